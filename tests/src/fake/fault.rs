//! What goes wrong, and with which requests.
//!
//! Invariant: of the rules that fit a request the first one that is due decides, and a rule for a number of requests
//! is used up by them.

use std::sync::Mutex;
use std::time::Duration;

use serde_json::{Value, json};

use super::cluster::line;
use super::{Kind, lock};

/// How something is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verb {
    /// One object by its name, or `/readyz`.
    Get,
    /// All objects of a kind, or a page of them.
    List,
    /// As `List`, but only the objects' metadata.
    Audit,
    /// What happens to the objects of a kind from now on.
    Watch,
    /// A new object.
    Create,
    /// Another version of an object.
    Patch,
}

/// The requests that a rule is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    verb: Option<Verb>,
    kind: Option<Kind>,
}

impl Asked {
    pub const ANYTHING: Self = Self { verb: None, kind: None };

    /// Lists of a kind.
    pub const fn list(kind: Kind) -> Self {
        Self { verb: Some(Verb::List), kind: Some(kind) }
    }

    /// Watches of a kind.
    pub const fn watch(kind: Kind) -> Self {
        Self { verb: Some(Verb::Watch), kind: Some(kind) }
    }

    /// Lists of a kind that ask for nothing but names and versions.
    pub const fn audit(kind: Kind) -> Self {
        Self { verb: Some(Verb::Audit), kind: Some(kind) }
    }

    /// Single objects of a kind.
    pub const fn get(kind: Kind) -> Self {
        Self { verb: Some(Verb::Get), kind: Some(kind) }
    }

    /// New objects of a kind.
    pub const fn create(kind: Kind) -> Self {
        Self { verb: Some(Verb::Create), kind: Some(kind) }
    }

    /// Whatever is asked of a kind.
    pub const fn of(kind: Kind) -> Self {
        Self { verb: None, kind: Some(kind) }
    }

    /// Whatever is asked in this way.
    pub const fn by(verb: Verb) -> Self {
        Self { verb: Some(verb), kind: None }
    }

    pub(super) fn fits(self, verb: Verb, kind: Kind) -> bool {
        self.verb.is_none_or(|it| it == verb) && self.kind.is_none_or(|it| it == kind)
    }
}

/// What happens to a request.
#[derive(Clone, Debug)]
pub enum Fault {
    /// It is answered with a status and Kubernetes' own words for it.
    Status {
        /// The HTTP status.
        code: u16,
        /// Kubernetes' word, such as `Expired`.
        reason: &'static str,
        /// Seconds of the header `Retry-After`.
        retry_after: Option<u32>,
    },
    /// It is answered with exactly these bytes, and the connection is closed.
    Raw(String),
    /// It is never answered.
    Silent,
    /// The status and headers come, and then nothing.
    SilentBody,
    /// The connection is reset.
    Reset,
    /// The connection is closed.
    Close,
    /// The answer comes so much later.
    Slow(Duration),
    /// The answer is cut off after so many bytes of its body, and the connection is closed.
    CutAfter(usize),
    /// Status 200, this body as JSON, and a clean end.
    Say(String),
    /// Status 200, these bytes as protobuf, and a clean end.
    SayProtobuf(Vec<u8>),
    /// The watch says this event, in whatever encoding was asked for, and ends.
    Event(String),
    /// Status 200, and a body of these bytes that goes on as long as a client reads it.
    Endless(String),
    /// Each event of the watch comes twice.
    Twice,
    /// Each event of the watch comes so long after the one before.
    Trickle(Duration),
}

impl Fault {
    /// Kubernetes' answer for a status.
    pub const fn status(code: u16, reason: &'static str) -> Self {
        Self::Status { code, reason, retry_after: None }
    }

    /// Status 200, this body as JSON, and a clean end.
    pub fn say(body: &str) -> Self {
        Self::Say(body.to_owned())
    }

    /// A watch that is answered with 200, says an error, and ends.
    pub fn error_event(code: u16, reason: &str) -> Self {
        Self::Event(error_line(code, reason, reason))
    }

    /// An answer that no apiserver gives, but a proxy before one may: the end of the status line, headers, body.
    pub fn raw(status: &str, headers: &[&str], body: &str) -> Self {
        let headers: String = headers.iter().map(|header| format!("{header}\r\n")).collect();
        Self::Raw(format!("HTTP/1.1 {status}\r\n{headers}\r\n{body}"))
    }
}

/// How a server meets a new connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Greeting {
    /// TLS, then answers.
    Serve,
    /// It accepts, reads, and never says a word.
    Silent,
    /// It accepts and closes.
    Close,
    /// It answers in clear text, as another program at this port would.
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
    asked: Asked,
    fault: Fault,
    left: Option<u32>,
    /// The rule is for each n-th request that it fits; 1: for all of them.
    each: u32,
    seen: u32,
}

impl Rule {
    /// Counts a request that the rule fits, and says whether the rule is for this one.
    const fn is_turn(&mut self) -> bool {
        self.seen = self.seen.wrapping_add(1);
        self.seen.is_multiple_of(self.each)
    }
}

impl Script {
    /// Adds a rule behind those that are there, for so many requests or for all.
    pub(super) fn add(&self, asked: Asked, fault: Fault, times: Option<u32>) {
        lock(&self.rules).push(Rule { asked, fault, left: times, each: 1, seen: 0 });
    }

    /// Adds a rule for each n-th request that it fits.
    pub(super) fn add_each(&self, asked: Asked, fault: Fault, each: u32) {
        lock(&self.rules).push(Rule { asked, fault, left: None, each: each.max(1), seen: 0 });
    }

    /// Forgets all rules.
    pub(super) fn clear(&self) {
        lock(&self.rules).clear();
    }

    /// What happens to this request.
    pub(super) fn take(&self, verb: Verb, kind: Kind) -> Option<Fault> {
        let mut rules = lock(&self.rules);
        let place = rules.iter_mut().position(|rule| rule.asked.fits(verb, kind) && rule.is_turn())?;
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
        script.add(Asked::watch(Kind::Slices), Fault::Reset, Some(2));
        script.add(Asked::ANYTHING, Fault::Close, None);
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
        script.add_each(Asked::list(Kind::Slices), Fault::Reset, 3);
        let hit = |verb| script.take(verb, Kind::Slices).is_some();
        assert!(!hit(Verb::Watch) && !hit(Verb::Watch) && !hit(Verb::Watch), "these are not counted");
        let hits: Vec<bool> = (0..7).map(|_| hit(Verb::List)).collect();
        assert_eq!(hits, [false, false, true, false, false, true, false]);
    }
}
