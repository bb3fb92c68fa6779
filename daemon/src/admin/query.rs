//! The query of a request: decoded, checked against what the path understands, and typed.
//!
//! Invariant: nothing is ignored. A filter that does nothing would show a table that looks like an answer.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use axum::http::StatusCode;
use holdfast_core::keys::{Family, ObjectName, Protocol};
use holdfast_core::snapshot::Reason;
use holdfast_core::spelled::Spelled;
use holdfast_datapath::{FlowFilter, Place, Stage};
use holdfast_judgement::diagnose::{Focus, HttpPath, PortWanted};
use holdfast_judgement::rfc3339::Millis;
use holdfast_judgement::why::{Dialled, Question};

use super::answer::Refusal;
use super::form::{FORMATS, Form};
use super::hint::Hint;
use super::limits::RECORDS_MAX as LIMIT_MAX;
use crate::diagnose::limits::TOTAL;
use crate::recorder::{RULES, Wanted};

/// What a path understands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Legal {
    /// The names of its parameters.
    pub(super) parameters: &'static [&'static str],
    /// The values of `type`.
    pub(super) types: &'static [&'static str],
}

impl Legal {
    /// No parameter at all.
    pub(super) const NOTHING: Self = Self { parameters: &[], types: &[] };
    /// No parameter but the form of the answer.
    pub(super) const FORMAT: Self = Self { parameters: &["format"], types: &[] };
}

/// The legal values of `probe`, and whether connections are tried.
pub(super) const PROBES: [(&str, bool); 2] = [("connect", true), ("none", false)];

/// What was asked. `None` is no restriction; everything else is exact.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Filter {
    pub(super) service: Option<ObjectName>,
    pub(super) kind: Option<&'static str>,
    pub(super) address: Option<IpAddr>,
    pub(super) endpoint: Option<Dialled>,
    /// The client that sends a packet to `endpoint`, if one is asked about.
    pub(super) from: Option<IpAddr>,
}

impl Filter {
    /// A client sends to an address of its own family.
    fn check_from(&self) -> Result<(), Refusal> {
        let Some(from) = self.from else { return Ok(()) };
        match &self.endpoint {
            Some(dialled) if Family::of(dialled.address.ip()) == Family::of(from) => Ok(()),
            Some(dialled) => {
                Err(bad(format!("{from} cannot send to {dialled}"), "give two addresses of one family"))
            }
            None => Err(bad("`from` is given without what it dials".to_owned(), Hint::Endpoint)),
        }
    }
}

/// A query that was understood.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Query {
    pub(super) filter: Filter,
    /// Which records; the service is in the filter.
    pub(super) records: Wanted,
    /// Which flows; how many is with the records.
    pub(super) flows: FlowFilter,
    pub(super) form: Option<Form>,
    /// Whether connections are tried.
    pub(super) probes: Option<bool>,
    /// Which port, and what is asked for by HTTP.
    pub(super) focus: Focus,
    /// How long the answer may take.
    pub(super) timeout: Option<Duration>,
}

impl Query {
    /// Reads all of it, or says what is wrong.
    pub(super) fn read(text: &str, legal: &Legal) -> Result<Self, Refusal> {
        let mut query = Self::default();
        for (name, value) in pairs(text) {
            let name = decoded(name)?;
            let value = decoded(value)?;
            query.take(&name, &value, legal)?;
        }
        query.filter.check_from()?;
        Ok(query)
    }

    /// What an explanation is asked about.
    pub(super) fn question(&self) -> Question {
        match (&self.filter.endpoint, &self.filter.service) {
            (Some(dialled), _) => Question::Address(dialled.clone()),
            (None, Some(service)) => Question::Service(service.clone()),
            (None, None) => Question::Trouble,
        }
    }

    fn take(&mut self, name: &str, value: &str, legal: &Legal) -> Result<(), Refusal> {
        if !legal.parameters.contains(&name) {
            return Err(unknown(name, legal));
        }
        match name {
            "service" => once(name, &mut self.filter.service, service(value)?),
            "type" => once(name, &mut self.filter.kind, kind(value, legal)?),
            "address" => once(name, &mut self.filter.address, address(value)?),
            "endpoint" => once(name, &mut self.filter.endpoint, endpoint(value)?),
            "client" => once(name, &mut self.flows.client, place(value)?),
            "frontend" => once(name, &mut self.flows.frontend, place(value)?),
            "backend" => once(name, &mut self.flows.backend, place(value)?),
            "state" => once(name, &mut self.flows.stage, stage(value)?),
            "from" => once(name, &mut self.filter.from, client(value)?),
            "since" => once(name, &mut self.records.since, time("since", value)?),
            "until" => once(name, &mut self.records.until, time("until", value)?),
            "reason" => once(name, &mut self.records.reason, reason(value)?),
            "limit" => once(name, &mut self.records.limit, limit(value)?),
            "after" => once(name, &mut self.records.after, after(value)?),
            "format" => once(name, &mut self.form, format(value)?),
            "probe" => once(name, &mut self.probes, probe(value)?),
            "port" => once(name, &mut self.focus.port, port(value)?),
            "http" => once(name, &mut self.focus.http, http(value)?),
            "timeout" => once(name, &mut self.timeout, timeout(value)?),
            _ => Err(unknown(name, legal)),
        }
    }
}

/// The form that is asked for, whatever else is wrong with the query: errors are written in it too.
pub(super) fn form_of(text: &str) -> Option<Form> {
    let (_, value) = pairs(text).find(|(name, _)| *name == "format")?;
    Form::named(value)
}

fn pairs(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let parts = text.split('&').filter(|part| !part.is_empty());
    parts.map(|part| part.split_once('=').unwrap_or((part, "")))
}

fn once<T>(name: &str, place: &mut Option<T>, value: T) -> Result<(), Refusal> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err(bad(format!("`{name}` is given twice"), "give each filter once")),
    }
}

fn service(value: &str) -> Result<ObjectName, Refusal> {
    let refused = |why: &str| bad(format!("{} names no service: {why}", quoted(value)), Hint::Service);
    let (namespace, name) = value.split_once('/').ok_or_else(|| refused("it has no slash"))?;
    ObjectName::new(namespace, name).map_err(|error| refused(&error.to_string()))
}

fn kind(value: &str, legal: &Legal) -> Result<&'static str, Refusal> {
    let found = legal.types.iter().find(|kind| **kind == value);
    let refused =
        || bad(format!("unknown type {}", quoted(value)), format!("legal types: {}", legal.types.join(", ")));
    found.copied().ok_or_else(refused)
}

fn address(value: &str) -> Result<IpAddr, Refusal> {
    let address: Result<IpAddr, _> = value.parse();
    let address = address.map_err(|_| bad(format!("{} is no address", quoted(value)), Hint::Address))?;
    Ok(address.to_canonical())
}

/// An address, with a port or without.
fn place(value: &str) -> Result<Place, Refusal> {
    let with_port = value.parse::<SocketAddr>().map(|at| (at.ip(), Some(at.port())));
    let found = with_port.or_else(|_| value.parse::<IpAddr>().map(|address| (address, None)));
    let hint = "give an IP address, with a port if only that is meant, such as 10.96.0.10, 10.96.0.10:80 or [fd00::a]:80";
    let (address, port) = found.map_err(|_| bad(format!("{} is no address", quoted(value)), hint))?;
    Ok(Place { address: address.to_canonical(), port })
}

fn stage(value: &str) -> Result<Stage, Refusal> {
    let legal = || format!("legal states: {}", Stage::ALL.map(Stage::as_str).join(", "));
    Stage::find(value).ok_or_else(|| bad(format!("unknown state {}", quoted(value)), legal()))
}

fn client(value: &str) -> Result<IpAddr, Refusal> {
    let refused =
        || bad(format!("{} is no address", quoted(value)), "give the client's IP address without a port");
    let address: IpAddr = value.parse().map_err(|_| refused())?;
    Ok(address.to_canonical())
}

fn endpoint(value: &str) -> Result<Dialled, Refusal> {
    let refused = || bad(format!("{} is no address with a port", quoted(value)), Hint::Endpoint);
    let (address, protocol) = value.split_once('/').map_or((value, None), |(at, by)| (at, Some(by)));
    let address = address.parse().map_err(|_| refused())?;
    Ok(Dialled::new(address, protocol.map(self::protocol).transpose()?))
}

fn protocol(value: &str) -> Result<Protocol, Refusal> {
    match Protocol::parse(&value.to_ascii_uppercase()) {
        Protocol::Other(_) => {
            let error = format!("unknown protocol {}", quoted(value));
            Err(bad(error, "legal protocols: TCP, UDP, SCTP"))
        }
        known @ Protocol::Transport(_) => Ok(known),
    }
}

fn format(value: &str) -> Result<Form, Refusal> {
    let legal = FORMATS.map(|(name, _)| name).join(", ");
    Form::named(value)
        .ok_or_else(|| bad(format!("unknown format {}", quoted(value)), format!("legal formats: {legal}")))
}

fn probe(value: &str) -> Result<bool, Refusal> {
    let found = PROBES.iter().find(|(word, _)| *word == value).map(|(_, are_tried)| *are_tried);
    let legal = || format!("legal probes: {}", PROBES.map(|(word, _)| word).join(", "));
    found.ok_or_else(|| bad(format!("unknown probe {}", quoted(value)), legal()))
}

fn port(value: &str) -> Result<PortWanted, Refusal> {
    let refused =
        || bad(format!("{} is no port", quoted(value)), "give the name or number of one of its ports");
    PortWanted::parse(value).ok_or_else(refused)
}

fn http(value: &str) -> Result<HttpPath, Refusal> {
    let refused = || bad(format!("{} is no path", quoted(value)), "give a path, such as /healthz");
    HttpPath::parse(value).ok_or_else(refused)
}

/// Whole seconds, with their unit or without.
fn timeout(value: &str) -> Result<Duration, Refusal> {
    let seconds = value.strip_suffix('s').unwrap_or(value).parse().map(Duration::from_secs);
    let legal = seconds.ok().filter(|it| (Duration::from_secs(1)..=TOTAL).contains(it));
    let hint = format!("give whole seconds, from 1 to {}, such as 3s", TOTAL.as_secs());
    legal.ok_or_else(|| bad(format!("{} is no time that a diagnosis may take", quoted(value)), hint))
}

/// A time, or how long ago.
fn time(name: &'static str, value: &str) -> Result<Millis, Refusal> {
    Millis::parse(value)
        .or_else(|| crate::clock::now().ago(value))
        .ok_or_else(|| bad(format!("{} is no time", quoted(value)), Hint::Time(name)))
}

fn reason(value: &str) -> Result<String, Refusal> {
    let legal = || Reason::ALL.into_iter().map(Reason::as_str).chain(RULES);
    let refused = || {
        let all: Vec<&str> = legal().collect();
        bad(format!("unknown reason {}", quoted(value)), format!("legal reasons: {}", all.join(", ")))
    };
    legal().find(|known| *known == value).map(str::to_owned).ok_or_else(refused)
}

fn limit(value: &str) -> Result<usize, Refusal> {
    let number = value.parse().ok().filter(|limit| (1..=LIMIT_MAX).contains(limit));
    let hint = format!("give a number from 1 to {LIMIT_MAX}");
    number.ok_or_else(|| bad(format!("{} is no limit", quoted(value)), hint))
}

fn after(value: &str) -> Result<u64, Refusal> {
    value.parse().map_err(|_| bad(format!("{} is no number of a record", quoted(value)), Hint::After))
}

fn unknown(name: &str, legal: &Legal) -> Refusal {
    let hint = match legal.parameters {
        [] => "this path takes no query".to_owned(),
        parameters => format!("legal here: {}", parameters.join(", ")),
    };
    bad(format!("unknown filter {}", quoted(name)), hint)
}

/// Quoted, and short enough for one line.
fn quoted(text: &str) -> String {
    match text.char_indices().nth(80) {
        Some((cut, _)) => format!("{:?}...", text.get(..cut).unwrap_or_default()),
        None => format!("{text:?}"),
    }
}

fn bad(error: String, hint: impl Into<Hint>) -> Refusal {
    Refusal::new(StatusCode::BAD_REQUEST, error, hint)
}

/// As a form is encoded: `+` is a blank, `%` and two hexadecimal digits are a byte.
fn decoded(text: &str) -> Result<String, Refusal> {
    let refused = || {
        bad(
            format!("the query is not well encoded: {}", quoted(text)),
            "write bytes as % and two hexadecimal digits of UTF-8",
        )
    };
    let mut bytes = text.bytes();
    let mut plain = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        plain.push(match byte {
            b'+' => b' ',
            b'%' => escaped(&mut bytes).ok_or_else(refused)?,
            other => other,
        });
    }
    String::from_utf8(plain).map_err(|_| refused())
}

fn escaped(bytes: &mut impl Iterator<Item = u8>) -> Option<u8> {
    let mut digit = || char::from(bytes.next()?).to_digit(16);
    u8::try_from(digit()? * 16 + digit()?).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::hint::Words;
    use super::*;

    const ALL: Legal =
        Legal { parameters: &["service", "type", "address", "format"], types: &["ClusterIP", "NodePort"] };

    fn hint(refusal: &Refusal) -> String {
        refusal.hint.text(Words::Url)
    }

    fn read(text: &str) -> Result<Query, String> {
        Query::read(text, &ALL).map_err(|refusal| format!("{} / {}", refusal.error, hint(&refusal)))
    }

    #[test]
    fn a_whole_query_is_read() {
        let query = read("service=a/b&type=NodePort&&address=%3A%3A1&format=wide&").unwrap();
        let service = Some(ObjectName::new("a", "b").unwrap());
        let filter = Filter {
            service,
            kind: Some("NodePort"),
            address: Some("::1".parse().unwrap()),
            ..Filter::default()
        };
        assert_eq!(query, Query { filter, form: Some(Form::Wide), ..Query::default() });
        assert_eq!(read("").unwrap(), Query::default());
    }

    #[track_caller]
    fn check_refused(text: &str, expected: &str) {
        assert_eq!(read(text).unwrap_err(), expected);
    }

    #[test]
    fn a_bad_query_is_told_what_is_legal() {
        check_refused("name=x", "unknown filter \"name\" / legal here: service, type, address, format");
        check_refused("type=nodeport", "unknown type \"nodeport\" / legal types: ClusterIP, NodePort");
        check_refused("format=xml", "unknown format \"xml\" / legal formats: table, wide, json");
        check_refused("type=NodePort&type=NodePort", "`type` is given twice / give each filter once");
        check_refused(
            "address=10.0.0.1:80",
            "\"10.0.0.1:80\" is no address / give an IP address without a port, such as `?address=10.96.0.10`",
        );
        check_refused(
            "service=web",
            "\"web\" names no service: it has no slash / give the namespace and the name, such as `?service=default/kubernetes`",
        );
        check_refused(
            "service=a%2F",
            "\"a/\" names no service: the name is empty / give the namespace and the name, such as `?service=default/kubernetes`",
        );
        check_refused(
            "service=%zz",
            "the query is not well encoded: \"%zz\" / write bytes as % and two hexadecimal digits of UTF-8",
        );
    }

    #[test]
    fn a_client_sends_to_an_address_of_its_own_family() {
        let legal = Legal { parameters: &["endpoint", "from"], types: &[] };
        let read = |text: &str| Query::read(text, &legal).map_err(|refusal| refusal.error);
        let from = read("endpoint=10.0.0.5:80&from=::ffff:203.0.113.9").unwrap().filter.from;
        assert_eq!(from, Some("203.0.113.9".parse().unwrap()));
        let refused = |text| read(text).unwrap_err();
        assert_eq!(refused("from=203.0.113.9"), "`from` is given without what it dials");
        assert_eq!(refused("endpoint=10.0.0.5:80&from=fd00::1"), "fd00::1 cannot send to 10.0.0.5:80");
        assert_eq!(refused("endpoint=10.0.0.5:80&from=web"), "\"web\" is no address");
    }

    const RECORDS: Legal = Legal { parameters: &["since", "until", "reason", "limit", "after"], types: &[] };

    #[test]
    fn which_records_is_read() {
        let text = "since=2026-01-08T11:11:55Z&until=1s&reason=vanished&limit=7&after=184";
        let records = Query::read(text, &RECORDS).unwrap().records;
        assert_eq!(records.since, Millis::parse("2026-01-08T11:11:55Z"));
        assert!(records.until < Some(crate::clock::now()) && records.until > records.since);
        let reason = records.reason.as_deref();
        let limit = records.limit;
        let after = records.after;
        assert_eq!((reason, limit, after), (Some("vanished"), Some(7), Some(184)));
        assert!(Query::read("reason=usable-endpoints", &RECORDS).is_ok(), "a rule is as good as a reason");
    }

    #[test]
    fn records_that_cannot_be_meant_are_refused() {
        let refused = |text: &str| Query::read(text, &RECORDS).unwrap_err();
        assert_eq!(refused("since=yesterday").error, "\"yesterday\" is no time");
        assert_eq!(refused("until=5").error, "\"5\" is no time");
        assert_eq!(hint(&refused("until=5")).matches("until=").count(), 2);
        assert_eq!(refused("reason=bad-luck").error, "unknown reason \"bad-luck\"");
        assert!(hint(&refused("reason=bad-luck")).contains("vanished, "), "the legal ones are named");
        assert_eq!(hint(&refused("limit=0")), "give a number from 1 to 10000");
        assert_eq!(refused("after=x").error, "\"x\" is no number of a record");
    }

    const FLOWS: Legal =
        Legal { parameters: &["client", "frontend", "backend", "state", "limit"], types: &[] };

    #[test]
    fn which_flows_is_read() {
        let text =
            "client=::ffff:203.0.113.9&frontend=192.0.2.1:80&backend=[fd00::1]:443&state=half-closed&limit=7";
        let Query { flows, records, .. } = Query::read(text, &FLOWS).unwrap();
        let place = |address: &str, port| Some(Place { address: address.parse().unwrap(), port });
        assert_eq!(flows.client, place("203.0.113.9", None));
        assert_eq!(flows.frontend, place("192.0.2.1", Some(80)));
        assert_eq!(flows.backend, place("fd00::1", Some(443)));
        assert_eq!((flows.stage, records.limit), (Some(Stage::HalfClosed), Some(7)));
    }

    #[test]
    fn flows_that_cannot_be_meant_are_refused() {
        let refused = |text: &str| Query::read(text, &FLOWS).unwrap_err();
        for text in ["client=web", "frontend=1.2.3.4:", "backend=1.2.3.4:70000", "client=[::1]", "client="] {
            assert!(refused(text).error.ends_with(" is no address"), "{text}");
        }
        assert_eq!(refused("state=OPEN").error, "unknown state \"OPEN\"");
        assert_eq!(hint(&refused("state=")), "legal states: opening, open, half-closed, closed, reset");
        assert_eq!(refused("client=::1&client=::1").error, "`client` is given twice");
    }

    #[test]
    fn a_diagnosis_takes_no_longer_than_any_may() {
        let legal = Legal { parameters: &["timeout"], types: &[] };
        let read = |text: &str| Query::read(text, &legal).map(|query| query.timeout);
        for text in ["timeout=3s", "timeout=3"] {
            assert_eq!(read(text).unwrap(), Some(Duration::from_secs(3)));
        }
        for text in ["timeout=0s", "timeout=6s", "timeout=30m", "timeout=-1", "timeout="] {
            assert_eq!(
                hint(&read(text).unwrap_err()),
                "give whole seconds, from 1 to 5, such as 3s",
                "{text}"
            );
        }
    }

    #[test]
    fn a_path_without_parameters_says_so() {
        let refusal = Query::read("format=json", &Legal::NOTHING).unwrap_err();
        assert_eq!(hint(&refusal), "this path takes no query");
    }

    fn encoded(text: &str) -> String {
        text.bytes().map(|byte| format!("%{byte:02X}")).collect()
    }

    proptest! {
        #[test]
        fn no_query_makes_the_reader_panic(text in "\\PC*") {
            let _ = read(&text);
            let _ = form_of(&text);
        }

        #[test]
        fn what_was_encoded_comes_out_unchanged(text in any::<String>()) {
            prop_assert_eq!(decoded(&encoded(&text)).ok(), Some(text));
        }

        #[test]
        fn plain_characters_stay(text in "[a-zA-Z0-9/._:-]*") {
            prop_assert_eq!(decoded(&text).ok(), Some(text));
        }
    }
}
