//! A watch for tests: the events of one object, and their times.
//!
//! Invariant: events stay in order, with their arrival times. Past the bound the reader blocks, and with it the
//! apiserver.

use std::io::{BufRead, BufReader, Read};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use holdfast_fixtures::clock::{Deadline, Stopwatch};
use serde_json::Value;

use super::PeersError;

/// More events than any test accumulates.
const LINES_MAX: usize = 1024;

/// One event of a watch.
#[derive(Clone, Debug, PartialEq)]
pub struct WatchEvent {
    /// The time since the watch began.
    pub after: Duration,
    /// `ADDED`, `MODIFIED`, `DELETED`.
    pub event: String,
    /// The object as sent.
    pub object: Value,
}

/// An open watch.
#[derive(Debug)]
pub struct Watch {
    lines: Receiver<(Duration, String)>,
}

impl Watch {
    /// Starts a thread that reads, so that an event's time is that of its arrival. The thread ends with the
    /// connection, or with the receiver.
    pub(super) fn start(body: impl Read + Send + 'static) -> Self {
        let (sender, lines) = sync_channel(LINES_MAX);
        let begin = Stopwatch::start();
        thread::spawn(move || read(BufReader::new(body), begin, &sender));
        Self { lines }
    }

    /// The next event; `None` if none arrives in time or the connection has ended.
    pub fn next(&self, limit: Duration) -> Result<Option<WatchEvent>, PeersError> {
        self.lines.recv_timeout(limit).ok().map(seen).transpose()
    }

    /// The first matching event; skips the events before it.
    pub fn find(
        &self,
        limit: Duration,
        what: &str,
        is_it: impl Fn(&WatchEvent) -> bool,
    ) -> Result<WatchEvent, PeersError> {
        let end = Deadline::after(limit);
        while let Some(seen) = self.next(end.remaining())? {
            if is_it(&seen) {
                return Ok(seen);
            }
        }
        Err(PeersError::Late { what: what.to_owned(), limit })
    }
}

fn read(body: impl BufRead, begin: Stopwatch, sender: &SyncSender<(Duration, String)>) {
    for line in body.lines() {
        let Ok(line) = line else { return };
        if sender.send((begin.read(), line)).is_err() {
            return;
        }
    }
}

fn seen((after, line): (Duration, String)) -> Result<WatchEvent, PeersError> {
    let malformed = || PeersError::Malformed { what: line.clone(), said: "no event of a watch".to_owned() };
    let mut whole: Value = serde_json::from_str(&line).map_err(|_| malformed())?;
    let event = whole.get("type").and_then(Value::as_str).map(str::to_owned).ok_or_else(malformed)?;
    let object = whole.get_mut("object").map(Value::take).ok_or_else(malformed)?;
    Ok(WatchEvent { after, event, object })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINES: &str =
        "{\"type\":\"ADDED\",\"object\":{\"a\":1}}\n{\"type\":\"MODIFIED\",\"object\":{\"a\":2}}\n";

    #[test]
    fn events_come_in_their_order() {
        let watch = Watch::start(LINES.as_bytes());
        let words: Vec<(String, Value)> = std::iter::from_fn(|| watch.next(Duration::from_secs(5)).unwrap())
            .map(|seen| (seen.event, seen.object["a"].clone()))
            .collect();
        assert_eq!(words, [("ADDED".to_owned(), 1.into()), ("MODIFIED".to_owned(), 2.into())]);
    }

    #[test]
    fn a_missing_event_is_reported_as_late() {
        let watch = Watch::start(LINES.as_bytes());
        let found = watch.find(Duration::from_secs(5), "a change", |seen| seen.event == "MODIFIED").unwrap();
        assert_eq!(found.object["a"], 2);
        let late = watch.find(Duration::from_millis(10), "an end", |_| true).unwrap_err();
        assert_eq!(late.to_string(), "no an end within 10ms");
        let wrong = Watch::start("{}\n".as_bytes());
        assert!(wrong.next(Duration::from_secs(5)).is_err());
    }
}
