//! What follows where an apiserver takes long to say why it refuses.

use super::bed::Bed;
use super::{Resource, Settings, Timing, ms};
use crate::apiserver::tests::server::SLOWLY;

#[tokio::test]
async fn a_refusal_that_comes_a_byte_at_a_time_holds_no_watch_up() {
    let mut bed = Bed::new();
    let head = "HTTP/1.1 500 Internal Server Error\r\ncontent-length: 60000\r\n\r\netcd is away";
    bed.watches("services", [format!("{head}{SLOWLY}{}", ".".repeat(60_000))]);
    let timing = Timing { refusal: ms(200), ..bed.timing() };
    bed.start(Settings { timing, ..Settings::default() }).await;
    bed.requests("services", 3).await;
    let error = bed.watch(Resource::Services).last_error.unwrap();
    assert!(error.text.starts_with("500: etcd is away"), "what came says why: {}", error.text);
}
