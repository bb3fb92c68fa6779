//! The parameters of all paths: how each is read, what is said of it to programs, and how the command line offers it.
//!
//! Invariant: a path understands what its list names, and nothing else. The reader of queries, the description of the
//! API and the command line are made of these lists.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use holdfast_core::keys::{ObjectName, Protocol};
use holdfast_core::snapshot::Reason;
use holdfast_datapath::{AddressFilter, Stage};
use holdfast_diagnose::explain::{DialTarget, QueryMatch};
use holdfast_diagnose::{HttpPath, PortSelector};
use holdfast_status::rfc3339::Millis;

use super::answer::Refusal;
use super::form::Form;
use super::hint::Hint;
use super::limits::{FLOWS_MAX, RECORDS_MAX};
use super::query::{Argument, Parameter, Query, Values, bad, quoted};
use holdfast_agent::recorder::RULES;
use holdfast_evidence::diagnose::limits::DIAGNOSIS_TIMEOUT;

pub(super) const FORMAT_ALONE: &[Parameter] = &[FORMAT];
pub const FRONTENDS: &[Parameter] = &[
    SERVICE,
    kind(|| vec!["ClusterIP", "NodePort", "LoadBalancer", "ExternalIP", "Static", "ClusterSetIP"]),
    address("Exactly this address of the frontend."),
    ONLY.about("Only frontends that need an explanation, because their clients are not served."),
    FORMAT,
];
pub const BACKENDS: &[Parameter] = &[SERVICE, address("Exactly this address of the backend."), FORMAT];
pub const SERVICES: &[Parameter] = &[
    SERVICE,
    kind(|| vec!["ClusterIP", "NodePort", "LoadBalancer", "ExternalName", "Static", "ClusterSetIP"]),
    ONLY,
    FORMAT,
];
pub const REFUSALS: &[Parameter] =
    &[SERVICE, address("Exactly this address of the frontend; for a NodePort that of the node."), FORMAT];
pub const FLOWS: &[Parameter] = &[
    place("client", "Exactly this address of the client, or this address and port.", |query, it, value| {
        it.once(&mut query.flows.client, any_place(value)?)
    }),
    place(
        "frontend",
        "Exactly this address that was dialled, or this address and port.",
        |query, it, value| it.once(&mut query.flows.frontend, any_place(value)?),
    ),
    place("backend", "Exactly this address of the backend, or this address and port.", |query, it, value| {
        it.once(&mut query.flows.backend, any_place(value)?)
    }),
    text("state", "Only flows that have come so far.", |query, it, value| {
        it.once(&mut query.flows.stage, one_of(value, "state", Stage::ALL.map(|it| (it.as_str(), it)))?)
    })
    .among(|| Stage::ALL.map(Stage::as_str).to_vec())
    .offered(
        "STATE",
        "Only those that have come so far: `opening`, `open`, `half-closed`, `closed` or `reset`",
    ),
    LIMIT
        .about("So many flows at most; 1000 unless it is given.")
        .number(Some(1), Some(FLOWS_MAX))
        .offered("COUNT", "So many at most [default: 1000]"),
    FORMAT,
];
pub(super) const EXPLAIN: &[Parameter] = &[
    SERVICE,
    endpoint(
        "What a client dials, or a backend: an address with its port, and a protocol behind a slash if only that is meant.",
    ),
    text(
        "from",
        "The address of a client: what its first packet to the endpoint meets, computed without sending one.",
        |query, it, value| it.once(&mut query.filter.from, client(value)?),
    ),
    FORMAT,
];
pub(super) const DIAGNOSE: &[Parameter] = &[
    SERVICE.about("Exactly this service, as namespace/name; it must be given."),
    text("probe", "Whether connections are tried: over the socket alone, unless it says none.", |query, it, value| {
        it.once(&mut query.probes, one_of(value, "probe", [("connect", true), ("none", false)])?)
    }),
    text(
        "port",
        "Only this port of the service, by its name or by the number that clients dial.",
        |query, it, value| it.once(&mut query.focus.port, port(value)?),
    ),
    text(
        "http",
        "A path: backends that are known to speak HTTP are asked for it, over the socket alone. No redirect is followed.",
        |query, it, value| it.once(&mut query.focus.http, http(value)?),
    ),
    text(
        "client",
        "The address of a client: what it would meet at each frontend now, computed without sending anything.",
        |query, it, value| it.once(&mut query.flows.client, any_place(value)?),
    ),
    SINCE.about(
        "How far back a change counts as recent: a time in RFC 3339, or how long ago, such as 15m; 1h unless it is given.",
    ),
    text(
        "timeout",
        "How long the answer may take, in whole seconds: 5s unless it is given, which is the most.",
        |query, it, value| it.once(&mut query.timeout, timeout(value)?),
    ),
    FORMAT,
];
pub const EVENTS: &[Parameter] = &[
    SERVICE
        .about(
            "What is about this service, as namespace/name, and about its pods; otherwise what all services depend on.",
        )
        .positional(
            "About this service and its pods [default: about all services and what they depend on]",
        ),
    FORMAT,
];
pub const HISTORY: &[Parameter] = &[
    SERVICE
        .about(
            "Exactly this service, as namespace/name, also one that is gone; with gaps that may have records of it.",
        )
        .positional("Exactly this service, also one that is gone [default: all]"),
    SINCE,
    text("until", "Not after this time, in the same forms.", |query, it, value| {
        it.once(&mut query.records.until, time("until", value)?)
    })
    .argument("TIME"),
    text("reason", "Only where this reason or rule decided, or clients were told it.", |query, it, value| {
        let legal = Reason::ALL.into_iter().map(Reason::as_str).chain(RULES);
        let found = one_of(value, "reason", legal.map(|word| (word, word)))?;
        it.once(&mut query.records.reason, found.to_owned())
    })
    .offered("REASON", "Only where this reason decided or clients were told it, such as `vanished`"),
    LIMIT,
    text("after", "Only records with a higher number than this.", |query, it, value| {
        it.once(&mut query.records.after, after(value)?)
    })
    .number(None, None)
    .argument("SEQ"),
    FORMAT,
];
pub const WATCH: &[Parameter] = &[SERVICE
    .about("Exactly this service, as namespace/name; with gaps that may have records of it.")
    .positional("Exactly this service, which need not be there yet [default: all]")];
pub(super) const FORGET: &[Parameter] =
    &[Parameter { is_needed: true, ..endpoint("The address with its port.") }, FORMAT];

pub(super) const DRAIN: &[Parameter] = &[
    Parameter {
        is_needed: true,
        ..place("backend", "The backend's address, with a port if only that is meant.", |query, it, value| {
            it.once(&mut query.flows.backend, any_place(value)?)
        })
    },
    SERVICE.about("In exactly this service, as namespace/name; otherwise in all."),
    FORMAT,
];

const SERVICE: Parameter = text("service", "Exactly this service, as namespace/name.", |query, it, value| {
    it.once(&mut query.filter.service, service(value)?)
})
.offered("NAMESPACE/NAME", "Exactly this service");
const ONLY: Parameter = text(
    "only",
    "Only services with a frontend that needs an explanation, because its clients are not served.",
    |query, it, value| {
        one_of(value, "word", [(QueryMatch::Trouble.as_str(), ())])?;
        if std::mem::replace(&mut query.filter.is_trouble, true) {
            return it.once(&mut Some(()), ());
        }
        Ok(())
    },
)
.among(|| vec![QueryMatch::Trouble.as_str()])
.offered("WHAT", "Only what needs an explanation: `trouble`");
const SINCE: Parameter = text(
    "since",
    "Not before this time, in RFC 3339, or not longer ago, such as 90s, 15m, 2h, 1d.",
    |query, it, value| it.once(&mut query.records.since, time("since", value)?),
)
.offered("TIME", "Not before this time (RFC 3339), or not longer ago, such as `90s`, `15m`, `2h`, `1d`");
const LIMIT: Parameter = text(
    "limit",
    "The latest so many; with after, the first so many. Otherwise 1000.",
    |query, it, value| it.once(&mut query.records.limit, limit(value)?),
)
.number(Some(1), Some(RECORDS_MAX))
.offered("COUNT", "The latest so many; with --after, the first so many [default: 1000]");
const FORMAT: Parameter = text(
    "format",
    "The form of the answer; otherwise Accept decides, and a table is the default.",
    |query, it, value| {
        it.once(&mut query.form, one_of(value, "format", Form::ALL.map(|it| (it.as_str(), it)))?)
    },
)
.among(|| Form::ALL.map(Form::as_str).to_vec());

const fn kind(words: fn() -> Vec<&'static str>) -> Parameter {
    text("type", "Exactly this type.", |query, it, value| {
        let Values::Words(legal) = it.values else { return Ok(()) };
        it.once(&mut query.filter.kind, one_of(value, "type", legal().into_iter().map(|word| (word, word)))?)
    })
    .among(words)
    .offered("TYPE", "Exactly this type, such as `LoadBalancer`")
}

const fn address(about: &'static str) -> Parameter {
    text("address", about, |query, it, value| it.once(&mut query.filter.address, alone(value)?))
        .argument("IP")
}

const fn endpoint(about: &'static str) -> Parameter {
    text("endpoint", about, |query, it, value| it.once(&mut query.filter.endpoint, dialled(value)?))
}

const fn place(name: &'static str, about: &'static str, take: Take) -> Parameter {
    text(name, about, take).argument("IP[:PORT]")
}

type Take = fn(&mut Query, &Parameter, &str) -> Result<(), Refusal>;

const fn text(name: &'static str, about: &'static str, take: Take) -> Parameter {
    Parameter { name, about, values: Values::Text, take, is_needed: false, argument: None }
}

impl Parameter {
    const fn about(self, about: &'static str) -> Self {
        Self { about, ..self }
    }

    const fn among(self, words: fn() -> Vec<&'static str>) -> Self {
        Self { values: Values::Words(words), ..self }
    }

    const fn number(self, least: Option<usize>, most: Option<usize>) -> Self {
        Self { values: Values::Number { least, most }, ..self }
    }

    /// Offers the parameter on the command line, which says of it what programs are told.
    const fn argument(self, value_name: &'static str) -> Self {
        Self { argument: Some(Argument { value_name, help: None, is_positional: false }), ..self }
    }

    const fn offered(self, value_name: &'static str, help: &'static str) -> Self {
        Self { argument: Some(Argument { value_name, help: Some(help), is_positional: false }), ..self }
    }

    /// Offers the parameter on the command line as a service that is given without the parameter's name.
    const fn positional(self, help: &'static str) -> Self {
        let value_name = "NAMESPACE/NAME";
        Self { argument: Some(Argument { value_name, help: Some(help), is_positional: true }), ..self }
    }
}

fn service(value: &str) -> Result<ObjectName, Refusal> {
    let refused = |why: &str| bad(format!("{} names no service: {why}", quoted(value)), Hint::Service);
    let (namespace, name) = value.split_once('/').ok_or_else(|| refused("it has no slash"))?;
    ObjectName::new(namespace, name).map_err(|error| refused(&error.to_string()))
}

/// What a word means that has to be one of `legal`; a refusal calls such a word a `noun`.
fn one_of<T: Copy>(
    value: &str,
    noun: &str,
    legal: impl IntoIterator<Item = (&'static str, T)>,
) -> Result<T, Refusal> {
    let (words, meanings): (Vec<&str>, Vec<T>) = legal.into_iter().unzip();
    let found = words.iter().zip(meanings).find(|(word, _)| **word == value).map(|(_, meant)| meant);
    let legal = || format!("legal {noun}s: {}", words.join(", "));
    found.ok_or_else(|| bad(format!("unknown {noun} {}", quoted(value)), legal()))
}

fn alone(value: &str) -> Result<IpAddr, Refusal> {
    let address: Result<IpAddr, _> = value.parse();
    let address = address.map_err(|_| bad(format!("{} is no address", quoted(value)), Hint::Address))?;
    Ok(address.to_canonical())
}

/// An address, with a port or without.
fn any_place(value: &str) -> Result<AddressFilter, Refusal> {
    let with_port = value.parse::<SocketAddr>().map(|at| (at.ip(), Some(at.port())));
    let found = with_port.or_else(|_| value.parse::<IpAddr>().map(|address| (address, None)));
    let hint = "give an IP address, with a port if only that is meant, such as 10.96.0.10, 10.96.0.10:80 or [fd00::a]:80";
    let (address, port) = found.map_err(|_| bad(format!("{} is no address", quoted(value)), hint))?;
    Ok(AddressFilter { address: address.to_canonical(), port })
}

fn client(value: &str) -> Result<IpAddr, Refusal> {
    let refused =
        || bad(format!("{} is no address", quoted(value)), "give the client's IP address without a port");
    let address: IpAddr = value.parse().map_err(|_| refused())?;
    Ok(address.to_canonical())
}

fn dialled(value: &str) -> Result<DialTarget, Refusal> {
    let refused = || bad(format!("{} is no address with a port", quoted(value)), Hint::Endpoint);
    let (address, protocol) = value.split_once('/').map_or((value, None), |(at, by)| (at, Some(by)));
    let address = address.parse().map_err(|_| refused())?;
    Ok(DialTarget::new(address, protocol.map(self::protocol).transpose()?))
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

fn port(value: &str) -> Result<PortSelector, Refusal> {
    let refused =
        || bad(format!("{} is no port", quoted(value)), "give the name or number of one of its ports");
    PortSelector::parse(value).ok_or_else(refused)
}

fn http(value: &str) -> Result<HttpPath, Refusal> {
    let refused = || bad(format!("{} is no path", quoted(value)), "give a path, such as /healthz");
    HttpPath::parse(value).ok_or_else(refused)
}

/// Whole seconds, with their unit or without.
fn timeout(value: &str) -> Result<Duration, Refusal> {
    let seconds = value.strip_suffix('s').unwrap_or(value).parse().map(Duration::from_secs);
    let legal = seconds.ok().filter(|it| (Duration::from_secs(1)..=DIAGNOSIS_TIMEOUT).contains(it));
    let hint = format!("give whole seconds, from 1 to {}, such as 3s", DIAGNOSIS_TIMEOUT.as_secs());
    legal.ok_or_else(|| bad(format!("{} is no time that a diagnosis may take", quoted(value)), hint))
}

/// A time, or how long ago.
fn time(name: &'static str, value: &str) -> Result<Millis, Refusal> {
    Millis::parse(value)
        .or_else(|| holdfast_host::clock::now().ago(value))
        .ok_or_else(|| bad(format!("{} is no time", quoted(value)), Hint::Time(name)))
}

fn limit(value: &str) -> Result<usize, Refusal> {
    let number = value.parse().ok().filter(|limit| (1..=RECORDS_MAX).contains(limit));
    let hint = format!("give a number from 1 to {RECORDS_MAX}");
    number.ok_or_else(|| bad(format!("{} is no limit", quoted(value)), hint))
}

fn after(value: &str) -> Result<u64, Refusal> {
    value.parse().map_err(|_| bad(format!("{} is no number of a record", quoted(value)), Hint::After))
}

#[cfg(test)]
mod tests {
    use super::super::hint::Words;
    use super::*;

    fn hint(refusal: &Refusal) -> String {
        refusal.hint.text(Words::Url)
    }

    #[test]
    fn a_client_sends_to_an_address_of_its_own_family() {
        let read = |text: &str| Query::read(text, EXPLAIN).map_err(|refusal| refusal.error);
        let from = read("endpoint=10.0.0.5:80&from=::ffff:203.0.113.9").unwrap().filter.from;
        assert_eq!(from, Some("203.0.113.9".parse().unwrap()));
        let refused = |text| read(text).unwrap_err();
        assert_eq!(refused("from=203.0.113.9"), "`from` is given without what it dials");
        assert_eq!(refused("endpoint=10.0.0.5:80&from=fd00::1"), "fd00::1 cannot send to 10.0.0.5:80");
        assert_eq!(refused("endpoint=10.0.0.5:80&from=web"), "\"web\" is no address");
    }

    #[test]
    fn which_records_is_read() {
        let text = "since=2026-01-08T11:11:55Z&until=1s&reason=vanished&limit=7&after=184";
        let records = Query::read(text, HISTORY).unwrap().records;
        assert_eq!(records.since, Millis::parse("2026-01-08T11:11:55Z"));
        assert!(records.until < Some(holdfast_host::clock::now()) && records.until > records.since);
        let reason = records.reason.as_deref();
        let limit = records.limit;
        let after = records.after;
        assert_eq!((reason, limit, after), (Some("vanished"), Some(7), Some(184)));
        assert!(Query::read("reason=usable-endpoints", HISTORY).is_ok(), "a rule is as good as a reason");
    }

    #[test]
    fn records_that_cannot_be_meant_are_refused() {
        let refused = |text: &str| Query::read(text, HISTORY).unwrap_err();
        assert_eq!(refused("since=yesterday").error, "\"yesterday\" is no time");
        assert_eq!(refused("until=5").error, "\"5\" is no time");
        assert_eq!(hint(&refused("until=5")).matches("until=").count(), 2);
        assert_eq!(refused("reason=bad-luck").error, "unknown reason \"bad-luck\"");
        assert!(hint(&refused("reason=bad-luck")).contains("vanished, "), "the legal ones are named");
        assert_eq!(hint(&refused("limit=0")), "give a number from 1 to 10000");
        assert_eq!(refused("after=x").error, "\"x\" is no number of a record");
    }

    #[test]
    fn which_flows_is_read() {
        let text =
            "client=::ffff:203.0.113.9&frontend=192.0.2.1:80&backend=[fd00::1]:443&state=half-closed&limit=7";
        let Query { flows, records, .. } = Query::read(text, FLOWS).unwrap();
        let place = |address: &str, port| Some(AddressFilter { address: address.parse().unwrap(), port });
        assert_eq!(flows.client, place("203.0.113.9", None));
        assert_eq!(flows.frontend, place("192.0.2.1", Some(80)));
        assert_eq!(flows.backend, place("fd00::1", Some(443)));
        assert_eq!((flows.stage, records.limit), (Some(Stage::HalfClosed), Some(7)));
    }

    #[test]
    fn flows_that_cannot_be_meant_are_refused() {
        let refused = |text: &str| Query::read(text, FLOWS).unwrap_err();
        for text in ["client=web", "frontend=1.2.3.4:", "backend=1.2.3.4:70000", "client=[::1]", "client="] {
            assert!(refused(text).error.ends_with(" is no address"), "{text}");
        }
        assert_eq!(refused("state=OPEN").error, "unknown state \"OPEN\"");
        assert_eq!(hint(&refused("state=")), "legal states: opening, open, half-closed, closed, reset");
        assert_eq!(refused("client=::1&client=::1").error, "`client` is given twice");
    }

    #[test]
    fn a_diagnosis_takes_no_longer_than_any_may() {
        let read = |text: &str| Query::read(text, DIAGNOSE).map(|query| query.timeout);
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
}
