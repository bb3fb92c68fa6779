//! The API over real sockets.

mod described;
mod diagnoses;
mod doors;
mod drains;
mod events;
mod explanations;
mod formats;
mod history;
mod hostile;
mod judged;
mod live;
mod metrics;
mod owned;
mod page;
mod promql;
mod shipped;
mod tables;
mod verified;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use super::fixture::{self, Served};

/// One answer as received.
struct Got {
    status: u16,
    head: String,
    body: String,
}

impl Got {
    fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }
}

impl Served {
    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.admin.address()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream
    }

    fn host(&self) -> String {
        self.admin.address().to_string()
    }

    /// GET with further headers, each with its line end.
    fn get(&self, path: &str, headers: &str) -> Got {
        let host = self.host();
        self.send(&format!("GET {path} HTTP/1.1\r\nhost: {host}\r\n{headers}connection: close\r\n\r\n"))
    }

    fn send(&self, request: &str) -> Got {
        exchange(self.connect(), request)
    }
}

fn exchange(mut stream: impl Read + Write, request: &str) -> Got {
    stream.write_all(request.as_bytes()).unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    got(&bytes)
}

fn got(bytes: &[u8]) -> Got {
    let text = String::from_utf8(bytes.to_vec()).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {text:?}"));
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let chunked = head.contains("transfer-encoding: chunked");
    Got { status, head: head.to_owned(), body: if chunked { unchunked(body) } else { body.to_owned() } }
}

fn unchunked(mut rest: &str) -> String {
    let mut body = String::new();
    loop {
        let (size, after) = rest.split_once("\r\n").expect("a whole answer");
        let size = usize::from_str_radix(size, 16).unwrap();
        if size == 0 {
            return body;
        }
        body.push_str(&after[..size]);
        rest = &after[size + 2..];
    }
}
