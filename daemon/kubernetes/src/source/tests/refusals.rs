//! An apiserver fails internally, or is slow to explain a refusal.

use super::bed::{SourceHarness, page, service, status};
use super::{Resource, SourceSettings, Timing, ms};
use crate::apiserver::tests::server::SLOWLY;

#[tokio::test]
async fn a_refusal_that_trickles_delays_no_watch() {
    let mut bed = SourceHarness::new();
    let head = "HTTP/1.1 500 Internal Server Error\r\ncontent-length: 60000\r\n\r\netcd is away";
    bed.watches("services", [format!("{head}{SLOWLY}{}", ".".repeat(60_000))]);
    let timing = Timing { error_body_timeout: ms(200), ..bed.timing() };
    bed.start(SourceSettings { timing, ..SourceSettings::default() }).await;
    bed.requests("services", 3).await;
    let error = bed.watch(Resource::Services).last_error.unwrap();
    assert!(error.text.starts_with("500: etcd is away"), "what came says why: {}", error.text);
}

#[tokio::test]
async fn a_page_that_gets_a_500_comes_from_another_apiserver() {
    let mut bed = SourceHarness::new();
    bed.after(|path| {
        let is_first = path.contains("/services?") && path.contains("limit=") && !path.contains("continue=");
        if is_first {
            page("10", "t1", &[service("a", "1", "10.96.0.1")])
        } else {
            status("500 Internal Server Error", "", "InternalError")
        }
    });
    bed.lists("services", [page("10", "", &[service("b", "2", "10.96.0.2")])]);
    bed.start(SourceSettings::default()).await;
    assert_eq!(bed.heard(3).await, ["+a@1", "+b@2", "synced"]);
    assert_eq!(bed.asked("services", "continue"), ["t1"]);
    bed.until(|watch| watch.what == Resource::Services && watch.page_retries == 1).await;
}
