//! The page over real sockets: which requests get it, and which do not.

use std::os::unix::net::UnixStream;

use super::exchange;
use super::fixture::{everything, serve};

const BROWSER: &str = "accept: text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8\r\n";
const POLICY: &str = "content-security-policy";

#[test]
fn a_browser_gets_the_page_and_others_the_list() {
    let served = serve(everything());
    let page = served.get("/", BROWSER);
    assert_eq!((page.status, page.header("content-type")), (200, Some("text/html; charset=utf-8")));
    assert!(page.body.starts_with("<!doctype html>") && page.body.ends_with("</html>\n"));
    for headers in ["", "accept: */*\r\n", "accept: text/plain\r\n"] {
        assert!(served.get("/", headers).body.starts_with("/              this list"), "{headers}");
    }
    assert!(served.get("/", "accept: application/json\r\n").body.starts_with("{\"paths\":["));
}

#[test]
fn a_named_format_overrides_the_page_of_the_index() {
    let served = serve(everything());
    assert!(served.get("/?format=table", BROWSER).body.starts_with("/              this list"));
    for path in ["/frontends", "/healthz", "/history"] {
        assert_eq!(
            served.get(path, BROWSER).header("content-type"),
            Some("text/plain; charset=utf-8"),
            "{path}"
        );
    }
}

#[test]
fn only_the_page_may_run_anything_and_nothing_may_frame_it() {
    let served = serve(everything());
    let page = served.get("/", BROWSER);
    let policy = page.header(POLICY).unwrap();
    for part in ["default-src 'none'", "script-src 'sha256-", "connect-src 'self'", "frame-ancestors 'none'"]
    {
        assert!(policy.contains(part), "{part}: {policy}");
    }
    assert!(!policy.contains("unsafe"), "{policy}");
    assert_eq!(page.header("cross-origin-opener-policy"), Some("same-origin"));
    for (name, value) in [("x-frame-options", "DENY"), ("cache-control", "no-store"), ("vary", "accept")] {
        assert_eq!(page.header(name), Some(value));
    }
    let other = served.get("/frontends", BROWSER);
    assert_eq!(other.header(POLICY), Some("default-src 'none'; frame-ancestors 'none'"));
}

#[test]
fn a_foreign_page_gets_neither_the_page_nor_an_answer() {
    let served = serve(everything());
    for path in ["/", "/frontends", "/watch"] {
        for site in ["cross-site", "same-site"] {
            for how in ["sec-fetch-mode: cors\r\n", "sec-fetch-mode: navigate\r\nsec-fetch-dest: iframe\r\n"]
            {
                let headers = format!("{BROWSER}sec-fetch-site: {site}\r\n{how}");
                assert_eq!(served.get(path, &headers).status, 403, "{path} {headers}");
            }
        }
        assert_eq!(served.get(path, "origin: http://evil.example\r\n").status, 403, "{path}");
    }
    let rebound = format!("GET / HTTP/1.1\r\nhost: evil.example:9890\r\n{BROWSER}connection: close\r\n\r\n");
    assert_eq!(served.send(&rebound).status, 421);
}

#[test]
fn the_page_comes_by_the_socket_too() {
    let served = serve(everything());
    let stream = UnixStream::connect(&served.socket).unwrap();
    let request = format!("GET / HTTP/1.1\r\nhost: localhost:9890\r\n{BROWSER}connection: close\r\n\r\n");
    let got = exchange(stream, &request);
    assert_eq!((got.status, got.body.starts_with("<!doctype html>")), (200, true));
}
