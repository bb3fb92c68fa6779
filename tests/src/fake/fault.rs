//! Faults, and the requests that they affect.
//!
//! Invariant: the first due rule that matches a request decides, and each match uses up one of the rule's times.

use std::sync::Mutex;
use std::time::Duration;

use serde_json::{Value, json};

use super::cluster::line;
use super::journal::Request;
use super::{Kind, lock};

/// The verb of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verb {
    /// One object by its name, or `/readyz`.
    Get,
    /// All objects of a kind, or a page of them.
    List,
    /// A list of only the objects' metadata.
    Audit,
    /// The changes of a kind from now on.
    Watch,
    /// Creates an object.
    Create,
    /// Patches an object.
    Patch,
}

/// The requests that a rule matches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestFilter {
    verb: Option<Verb>,
    kind: Option<Kind>,
}

impl RequestFilter {
    pub const ANYTHING: Self = Self { verb: None, kind: None };

    /// Lists of a kind.
    pub const fn list(kind: Kind) -> Self {
        Self { verb: Some(Verb::List), kind: Some(kind) }
    }

    /// Watches of a kind.
    pub const fn watch(kind: Kind) -> Self {
        Self { verb: Some(Verb::Watch), kind: Some(kind) }
    }

    /// Lists of a kind's metadata.
    pub const fn audit(kind: Kind) -> Self {
        Self { verb: Some(Verb::Audit), kind: Some(kind) }
    }

    /// Gets of single objects of a kind.
    pub const fn get(kind: Kind) -> Self {
        Self { verb: Some(Verb::Get), kind: Some(kind) }
    }

    /// Creates of a kind.
    pub const fn create(kind: Kind) -> Self {
        Self { verb: Some(Verb::Create), kind: Some(kind) }
    }

    /// All requests for a kind.
    pub const fn for_kind(kind: Kind) -> Self {
        Self { verb: None, kind: Some(kind) }
    }

    /// All requests with a verb.
    pub const fn for_verb(verb: Verb) -> Self {
        Self { verb: Some(verb), kind: None }
    }

    /// Whether a received request is one of these.
    pub fn matches(self, request: &Request) -> bool {
        self.fits(request.verb, request.kind)
    }

    pub(super) fn fits(self, verb: Verb, kind: Kind) -> bool {
        self.verb.is_none_or(|it| it == verb) && self.kind.is_none_or(|it| it == kind)
    }
}

/// The fault of a request.
#[derive(Clone, Debug)]
pub enum Fault {
    /// A status with Kubernetes' body for it.
    Status {
        /// The HTTP status.
        code: u16,
        /// Kubernetes' reason, such as `Expired`.
        reason: &'static str,
        /// The seconds in the `Retry-After` header.
        retry_after: Option<u32>,
    },
    /// Exactly these bytes, and then the connection closes.
    Raw(String),
    /// No answer.
    Silent,
    /// The status and headers, and no body.
    SilentBody,
    /// A connection reset.
    Reset,
    /// A closed connection.
    Close,
    /// A delayed answer.
    Slow(Duration),
    /// An answer that is cut off after this many bytes of its body, and then the connection closes.
    CutAfter(usize),
    /// Status 200, this body as JSON, and a clean end.
    Say(String),
    /// Status 200, these bytes as protobuf, and a clean end.
    SayProtobuf(Vec<u8>),
    /// A watch that sends this event, in the requested encoding, and ends.
    Event(String),
    /// Status 200, and these bytes as an endless body.
    Endless(String),
    /// A watch that sends each event twice.
    Twice,
    /// A watch with this pause between events.
    Trickle(Duration),
}

impl Fault {
    /// A status with Kubernetes' body for it.
    pub const fn status(code: u16, reason: &'static str) -> Self {
        Self::Status { code, reason, retry_after: None }
    }

    /// Status 200, this body as JSON, and a clean end.
    pub fn say(body: &str) -> Self {
        Self::Say(body.to_owned())
    }

    /// A watch that answers 200, sends an `ERROR` event, and ends.
    pub fn error_event(code: u16, reason: &str) -> Self {
        Self::Event(error_line(code, reason, reason))
    }

    /// An answer of a proxy in front of the apiserver: the end of the status line, headers, body.
    pub fn raw(status: &str, headers: &[&str], body: &str) -> Self {
        let headers: String = headers.iter().map(|header| format!("{header}\r\n")).collect();
        Self::Raw(format!("HTTP/1.1 {status}\r\n{headers}\r\n{body}"))
    }
}

/// How a server treats a new connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Greeting {
    /// Serves TLS.
    Serve,
    /// Accepts, reads, and never writes.
    Silent,
    /// Accepts and closes.
    Close,
    /// Answers in clear text, as another program on this port would.
    ClearText,
}

/// An `ERROR` line of a watch.
pub(super) fn error_line(code: u16, reason: &str, message: &str) -> String {
    line("ERROR", &status(code, reason, message).to_string())
}

/// A `Status` object.
pub(super) fn status(code: u16, reason: &str, message: &str) -> Value {
    let word = if code < 400 { "Success" } else { "Failure" };
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {},
        "status": word, "message": message, "reason": reason, "code": code,
    })
}

/// The rules of one server.
#[derive(Debug, Default)]
pub(super) struct Script {
    rules: Mutex<Vec<Rule>>,
}

#[derive(Debug)]
struct Rule {
    filter: RequestFilter,
    fault: Fault,
    left: Option<u32>,
    /// The rule applies to every n-th matching request; 1 means all of them.
    each: u32,
    seen: u32,
}

impl Rule {
    /// Counts a matching request, and reports whether the rule applies to it.
    const fn is_turn(&mut self) -> bool {
        self.seen = self.seen.wrapping_add(1);
        self.seen.is_multiple_of(self.each)
    }
}

impl Script {
    /// Appends a rule for a number of requests, or for all.
    pub(super) fn add(&self, filter: RequestFilter, fault: Fault, times: Option<u32>) {
        lock(&self.rules).push(Rule { filter, fault, left: times, each: 1, seen: 0 });
    }

    /// Appends a rule for every n-th matching request.
    pub(super) fn add_each(&self, filter: RequestFilter, fault: Fault, each: u32) {
        lock(&self.rules).push(Rule { filter, fault, left: None, each: each.max(1), seen: 0 });
    }

    /// Removes all rules.
    pub(super) fn clear(&self) {
        lock(&self.rules).clear();
    }

    /// The fault for this request.
    pub(super) fn take(&self, verb: Verb, kind: Kind) -> Option<Fault> {
        let mut rules = lock(&self.rules);
        let place = rules.iter_mut().position(|rule| rule.filter.fits(verb, kind) && rule.is_turn())?;
        let rule = rules.get_mut(place)?;
        let fault = rule.fault.clone();
        rule.left = rule.left.map(|left| left.saturating_sub(1));
        if rule.left == Some(0) {
            rules.remove(place);
        }
        Some(fault)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_used_up_by_the_requests_it_is_for() {
        let script = Script::default();
        script.add(RequestFilter::watch(Kind::Slices), Fault::Reset, Some(2));
        script.add(RequestFilter::ANYTHING, Fault::Close, None);
        let take = |verb, kind| script.take(verb, kind);
        assert!(matches!(take(Verb::List, Kind::Slices), Some(Fault::Close)));
        assert!(matches!(take(Verb::Watch, Kind::Slices), Some(Fault::Reset)));
        assert!(matches!(take(Verb::Watch, Kind::Services), Some(Fault::Close)));
        assert!(matches!(take(Verb::Watch, Kind::Slices), Some(Fault::Reset)));
        assert!(matches!(take(Verb::Watch, Kind::Slices), Some(Fault::Close)));
        script.clear();
        assert!(script.take(Verb::Watch, Kind::Slices).is_none());
    }

    #[test]
    fn a_rule_may_be_for_each_third_request() {
        let script = Script::default();
        script.add_each(RequestFilter::list(Kind::Slices), Fault::Reset, 3);
        let hit = |verb| script.take(verb, Kind::Slices).is_some();
        assert!(!hit(Verb::Watch) && !hit(Verb::Watch) && !hit(Verb::Watch), "these are not counted");
        let hits: Vec<bool> = (0..7).map(|_| hit(Verb::List)).collect();
        assert_eq!(hits, [false, false, true, false, false, true, false]);
    }
}
