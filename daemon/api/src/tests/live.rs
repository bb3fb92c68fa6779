//! `/watch`, over real sockets.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use super::fixture::{Served, everything, serve_with};
use crate::limits;
use holdfast_agent::recorder::History;
use holdfast_agent::recorder::tests::{tell_incident, tell_many};

fn served() -> (Served, Arc<History>) {
    let history = Arc::<History>::default();
    let readings_history = Arc::clone(&history);
    (serve_with(everything(), |readings| readings.history = readings_history), history)
}

/// A watcher whose stream has begun.
fn watcher(served: &Served, query: &str) -> BufReader<TcpStream> {
    let mut stream = served.connect();
    let host = served.admin.address();
    write!(stream, "GET /watch{query} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n").unwrap();
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with(": watching\n") {
        assert!(reader.read_line(&mut head).unwrap() > 0, "{head}");
    }
    assert!(head.contains("content-type: text/event-stream\r\n"), "{head}");
    reader
}

fn rest(mut reader: BufReader<TcpStream>) -> String {
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn a_watcher_gets_every_record_until_the_end() {
    let (served, history) = served();
    let reader = watcher(&served, "");
    tell_incident(&history);
    let text = rest(reader);
    assert_eq!(text.matches("event: record\n").count(), 6, "{text}");
    assert_eq!(text.matches("\"endpoints_null\":true").count(), 1, "{text}");
    assert!(text.contains("event: end\ndata: {\"why\":\"the daemon stops\"}\n\n"), "{text}");
}

#[test]
fn a_watcher_that_does_not_read_is_dropped_with_a_last_line() {
    let (served, history) = served();
    let reader = watcher(&served, "");
    // More than the sockets take, and then more than the stream keeps for any watcher.
    tell_many(&history, 50_000);
    let text = rest(reader);
    let last = text.rsplit("event: ").next().unwrap();
    assert!(last.starts_with("dropped\ndata: {\"why\":\"this watcher lagged, "), "{last}");
    assert!(served.get("/healthz", "").status == 200, "everybody else is served");
}

#[test]
fn there_is_a_bound_on_watchers() {
    let (served, _history) = served();
    let watchers: Vec<_> = (0..limits::WATCHERS_MAX).map(|_| watcher(&served, "")).collect();
    let refused = served.get("/watch", "");
    assert_eq!(refused.status, 503);
    assert_eq!(
        refused.body,
        "error: there are 56 watchers already\nhint: close one of them, or poll `/history`\n"
    );
    drop(watchers);
}
