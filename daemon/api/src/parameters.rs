//! The parameters of all paths: how each is read, its description for programs, and its argument on the command line.
//!
//! Invariant: a path accepts the parameters of its list, and nothing else. The reader of queries, the description of
//! the API and the command line are made from these lists.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use holdfast_core::keys::{ObjectName, Protocol};
use holdfast_core::snapshot::Reason;
use holdfast_datapath::{AddressFilter, Stage};
use holdfast_diagnose::explain::{DialTarget, QueryMatch};
use holdfast_diagnose::{HttpPath, PortSelector};
use holdfast_status::rfc3339::Millis;

use super::bare_name::BareName;
use super::form::Form;
use super::hint::Hint;
use super::limits::{FLOWS_MAX, RECORDS_MAX};
use super::query::{Argument, Parameter, Query, Values, bad_request, quote_excerpt};
use super::response::ApiError;
use holdfast_agent::recorder::RULES;
use holdfast_evidence::diagnose::limits::DIAGNOSIS_TIMEOUT;

pub(super) const FORMAT_ONLY: &[Parameter] = &[FORMAT];
pub const FRONTENDS: &[Parameter] = &[
    SERVICE,
    type_parameter(|| vec!["ClusterIP", "NodePort", "LoadBalancer", "ExternalIP", "Static", "ClusterSetIP"]),
    ip_parameter("Exactly this address of the frontend."),
    ONLY.with_about("Only frontends that need an explanation, because their clients are not served."),
    FORMAT,
];
pub const BACKENDS: &[Parameter] = &[SERVICE, ip_parameter("Exactly this address of the backend."), FORMAT];
pub const SERVICES: &[Parameter] = &[
    SERVICE,
    type_parameter(|| {
        vec!["ClusterIP", "NodePort", "LoadBalancer", "ExternalName", "Static", "ClusterSetIP"]
    }),
    ONLY,
    FORMAT,
];
pub const REFUSALS: &[Parameter] = &[
    SERVICE,
    ip_parameter("Exactly this address of the frontend; for a NodePort that of the node."),
    FORMAT,
];
pub const FLOWS: &[Parameter] = &[
    address_parameter(
        "client",
        "Exactly this address of the client, or this address and port.",
        |query, it, value| it.set_once(&mut query.flows.client, parse_address_filter(value)?),
    ),
    address_parameter(
        "frontend",
        "Exactly this address of the frontend, or this address and port.",
        |query, it, value| it.set_once(&mut query.flows.frontend, parse_address_filter(value)?),
    ),
    address_parameter(
        "backend",
        "Exactly this address of the backend, or this address and port.",
        |query, it, value| it.set_once(&mut query.flows.backend, parse_address_filter(value)?),
    ),
    text_parameter("state", "Only flows in this state.", |query, it, value| {
        it.set_once(
            &mut query.flows.stage,
            parse_word(value, "state", Stage::ALL.map(|it| (it.as_str(), it)))?,
        )
    })
    .with_words(|| Stage::ALL.map(Stage::as_str).to_vec())
    .with_help("STATE", "Only those in this state"),
    text_parameter("limit", "At most this many flows. Default: 1000.", |query, it, value| {
        it.set_once(&mut query.records.limit, parse_limit(value, FLOWS_MAX)?)
    })
    .with_bounds(Some(1), Some(FLOWS_MAX))
    .with_help("COUNT", "At most this many [default: 1000]"),
    FORMAT,
];
pub(super) const EXPLAIN: &[Parameter] = &[
    SERVICE,
    Parameter {
        read_value: |query, it, value| match value.parse::<IpAddr>() {
            Ok(host) => it.set_once(&mut query.filter.host, host.to_canonical()),
            Err(_) => it.set_once(&mut query.filter.endpoint, parse_dial_target(value)?),
        },
        ..endpoint_parameter(
            "A frontend or a backend: an address with its port, and optionally a slash and the only protocol; or an \
             address alone, for all that is there.",
        )
    },
    text_parameter(
        "from",
        "The address of a client: traces its first packet to the endpoint, without sending one.",
        |query, it, value| it.set_once(&mut query.filter.from, parse_client(value)?),
    ),
    FORMAT,
];
pub(super) const DIAGNOSE: &[Parameter] = &[
    SERVICE.with_about("Exactly this service, as namespace/name; it must be given."),
    text_parameter("probe", "Whether to open connections: by default yes, but over the socket alone.", |query, it, value| {
        it.set_once(&mut query.probes, parse_word(value, "probe", [("connect", true), ("none", false)])?)
    }),
    text_parameter(
        "port",
        "Only this port of the service, by its name or by the number that clients dial.",
        |query, it, value| it.set_once(&mut query.focus.port, parse_port(value)?),
    ),
    text_parameter(
        "http",
        "A path to request from backends that speak HTTP, over the socket alone. No redirect is followed.",
        |query, it, value| it.set_once(&mut query.focus.http, parse_http_path(value)?),
    ),
    text_parameter(
        "client",
        "The address of a client: what it would get at each frontend now, computed without sending anything.",
        |query, it, value| it.set_once(&mut query.flows.client, parse_address_filter(value)?),
    ),
    SINCE.with_about(
        "How far back a change counts as recent: a time in RFC 3339, or how long ago, such as 15m; 1h unless it is given.",
    ),
    text_parameter(
        "timeout",
        "How long the answer may take, in whole seconds; default and most: 5s.",
        |query, it, value| it.set_once(&mut query.timeout, parse_timeout(value)?),
    ),
    FORMAT,
];
pub const EVENTS: &[Parameter] = &[
    SERVICE
        .with_about(
            "Events about this service, as namespace/name, and its pods; by default about all services and what they depend on.",
        )
        .into_positional(
            "About this service and its pods [default: about all services and what they depend on]",
        ),
    FORMAT,
];
pub const HISTORY: &[Parameter] = &[
    SERVICE
        .with_about(
            "Exactly this service, as namespace/name, also one that is gone; with gaps that may have records of it.",
        )
        .into_positional("Exactly this service, also one that is gone [default: all]"),
    SINCE,
    text_parameter("until", "Not after this time, in the same formats.", |query, it, value| {
        it.set_once(&mut query.records.until, parse_time("until", value)?)
    })
    .with_argument("TIME"),
    text_parameter("reason", "Only records with this reason or rule.", |query, it, value| {
        let legal = Reason::ALL.into_iter().map(Reason::as_str).chain(RULES);
        let found = parse_word(value, "reason", legal.map(|word| (word, word)))?;
        it.set_once(&mut query.records.reason, found.to_owned())
    })
    .with_help("REASON", "Only records with this reason, such as `vanished`"),
    LIMIT,
    text_parameter("after", "Only records with a higher number than this.", |query, it, value| {
        it.set_once(&mut query.records.after, parse_record_number(value)?)
    })
    .with_bounds(None, None)
    .with_argument("SEQ"),
    FORMAT,
];
pub const WATCH: &[Parameter] = &[SERVICE
    .with_about("Exactly this service, as namespace/name; with gaps that may have records of it.")
    .into_positional("Exactly this service, which need not be there yet [default: all]")];
pub(super) const FORGET: &[Parameter] =
    &[Parameter { is_needed: true, ..endpoint_parameter("The address with its port.") }, FORMAT];

pub(super) const DRAIN: &[Parameter] = &[
    Parameter {
        is_needed: true,
        ..address_parameter(
            "backend",
            "The backend's address, with a port to select only that.",
            |query, it, value| it.set_once(&mut query.flows.backend, parse_address_filter(value)?),
        )
    },
    SERVICE.with_about("In exactly this service, as namespace/name; otherwise in all."),
    FORMAT,
];

const SERVICE: Parameter =
    text_parameter("service", "Exactly this service, as namespace/name.", |query, it, value| {
        it.set_once(&mut query.filter.service, parse_service(value)?)
    })
    .into_positional("Exactly this service [default: all]");
const ONLY: Parameter = text_parameter(
    "only",
    "Only services with a frontend that needs an explanation, because its clients are not served.",
    |query, it, value| {
        parse_word(value, "word", [(QueryMatch::Trouble.as_str(), ())])?;
        if std::mem::replace(&mut query.filter.only_trouble, true) {
            return it.set_once(&mut Some(()), ());
        }
        Ok(())
    },
)
.with_words(|| vec![QueryMatch::Trouble.as_str()])
.with_help("WHAT", "Only what needs an explanation");
const SINCE: Parameter = text_parameter(
    "since",
    "Not before this time, in RFC 3339 or as an age such as 90s, 15m, 2h, 1d.",
    |query, it, value| it.set_once(&mut query.records.since, parse_time("since", value)?),
)
.with_help("TIME", "Not before this time, in RFC 3339 or as an age such as `90s`, `15m`, `2h`, `1d`");
const LIMIT: Parameter = text_parameter(
    "limit",
    "At most this many of the latest; with after, of the first. Default: 1000.",
    |query, it, value| it.set_once(&mut query.records.limit, parse_limit(value, RECORDS_MAX)?),
)
.with_bounds(Some(1), Some(RECORDS_MAX))
.with_help("COUNT", "At most this many of the latest; with --after, of the first [default: 1000]");
const FORMAT: Parameter = text_parameter(
    "format",
    "The format of the answer; by default Accept decides, else it is a table.",
    |query, it, value| {
        it.set_once(&mut query.form, parse_word(value, "format", Form::ALL.map(|it| (it.as_str(), it)))?)
    },
)
.with_words(|| Form::ALL.map(Form::as_str).to_vec());

const fn type_parameter(words: fn() -> Vec<&'static str>) -> Parameter {
    text_parameter("type", "Exactly this type.", |query, it, value| {
        let Values::Words(legal) = it.values else { return Ok(()) };
        it.set_once(
            &mut query.filter.kind,
            parse_word(value, "type", legal().into_iter().map(|word| (word, word)))?,
        )
    })
    .with_words(words)
    .with_help("TYPE", "Exactly this type")
}

const fn ip_parameter(about: &'static str) -> Parameter {
    text_parameter("address", about, |query, it, value| {
        it.set_once(&mut query.filter.address, parse_ip(value)?)
    })
    .with_argument("IP")
}

const fn endpoint_parameter(about: &'static str) -> Parameter {
    text_parameter("endpoint", about, |query, it, value| {
        it.set_once(&mut query.filter.endpoint, parse_dial_target(value)?)
    })
}

const fn address_parameter(name: &'static str, about: &'static str, take: ValueReader) -> Parameter {
    text_parameter(name, about, take).with_argument("IP[:PORT]")
}

type ValueReader = fn(&mut Query, &Parameter, &str) -> Result<(), ApiError>;

const fn text_parameter(name: &'static str, about: &'static str, take: ValueReader) -> Parameter {
    Parameter { name, about, values: Values::Text, read_value: take, is_needed: false, argument: None }
}

impl Parameter {
    const fn with_about(self, about: &'static str) -> Self {
        Self { about, ..self }
    }

    const fn with_words(self, words: fn() -> Vec<&'static str>) -> Self {
        Self { values: Values::Words(words), ..self }
    }

    const fn with_bounds(self, least: Option<usize>, most: Option<usize>) -> Self {
        Self { values: Values::Number { least, most }, ..self }
    }

    /// Offers the parameter on the command line, with the description for programs as its help.
    const fn with_argument(self, value_name: &'static str) -> Self {
        Self { argument: Some(Argument { value_name, help: None, is_positional: false }), ..self }
    }

    const fn with_help(self, value_name: &'static str, help: &'static str) -> Self {
        Self { argument: Some(Argument { value_name, help: Some(help), is_positional: false }), ..self }
    }

    /// Offers the parameter on the command line as a positional service.
    const fn into_positional(self, help: &'static str) -> Self {
        let value_name = "NAMESPACE/NAME";
        Self { argument: Some(Argument { value_name, help: Some(help), is_positional: true }), ..self }
    }
}

fn parse_service(value: &str) -> Result<ObjectName, ApiError> {
    let refused =
        |why: &str| bad_request(format!("{} names no service: {why}", quote_excerpt(value)), Hint::Service);
    let Some((namespace, name)) = value.split_once('/') else {
        let hint = BareName::parse(value).map_or(Hint::Service, Hint::BareName);
        return Err(ApiError { hint, ..refused("it has no slash") });
    };
    ObjectName::new(namespace, name).map_err(|error| refused(&error.to_string()))
}

/// The meaning of a word among `legal`, in any case; a refusal calls such a word a `noun`.
fn parse_word<T: Copy>(
    value: &str,
    noun: &str,
    legal: impl IntoIterator<Item = (&'static str, T)>,
) -> Result<T, ApiError> {
    let (words, meanings): (Vec<&str>, Vec<T>) = legal.into_iter().unzip();
    let is_meant = |word: &str| word.eq_ignore_ascii_case(value);
    let found = words.iter().zip(meanings).find(|(word, _)| is_meant(word)).map(|(_, meaning)| meaning);
    let legal = || format!("legal {noun}s: {}", words.join(", "));
    found.ok_or_else(|| bad_request(format!("unknown {noun} {}", quote_excerpt(value)), legal()))
}

fn parse_ip(value: &str) -> Result<IpAddr, ApiError> {
    let address: Result<IpAddr, _> = value.parse();
    let address =
        address.map_err(|_| bad_request(format!("{} is no address", quote_excerpt(value)), Hint::Address))?;
    Ok(address.to_canonical())
}

/// An address, with or without a port.
fn parse_address_filter(value: &str) -> Result<AddressFilter, ApiError> {
    let with_port = value.parse::<SocketAddr>().map(|at| (at.ip(), Some(at.port())));
    let found = with_port.or_else(|_| value.parse::<IpAddr>().map(|address| (address, None)));
    let hint = "give an IP address, with a port if only that is meant, such as 10.96.0.10, 10.96.0.10:80 or [fd00::a]:80";
    let (address, port) =
        found.map_err(|_| bad_request(format!("{} is no address", quote_excerpt(value)), hint))?;
    Ok(AddressFilter { address: address.to_canonical(), port })
}

fn parse_client(value: &str) -> Result<IpAddr, ApiError> {
    let refused = || {
        bad_request(
            format!("{} is no address", quote_excerpt(value)),
            "give the client's IP address without a port",
        )
    };
    let address: IpAddr = value.parse().map_err(|_| refused())?;
    Ok(address.to_canonical())
}

fn parse_dial_target(value: &str) -> Result<DialTarget, ApiError> {
    let refused =
        || bad_request(format!("{} is no address with a port", quote_excerpt(value)), Hint::Endpoint);
    let (address, protocol) = value.split_once('/').map_or((value, None), |(at, by)| (at, Some(by)));
    let address = address.parse().map_err(|_| refused())?;
    Ok(DialTarget::new(address, protocol.map(self::parse_protocol).transpose()?))
}

fn parse_protocol(value: &str) -> Result<Protocol, ApiError> {
    match Protocol::parse(&value.to_ascii_uppercase()) {
        Protocol::Other(_) => {
            let error = format!("unknown protocol {}", quote_excerpt(value));
            Err(bad_request(error, "legal protocols: TCP, UDP, SCTP"))
        }
        known @ Protocol::Transport(_) => Ok(known),
    }
}

fn parse_port(value: &str) -> Result<PortSelector, ApiError> {
    let refused = || {
        bad_request(
            format!("{} is no port", quote_excerpt(value)),
            "give the name or number of one of its ports",
        )
    };
    PortSelector::parse(value).ok_or_else(refused)
}

fn parse_http_path(value: &str) -> Result<HttpPath, ApiError> {
    let refused =
        || bad_request(format!("{} is no path", quote_excerpt(value)), "give a path, such as /healthz");
    HttpPath::parse(value).ok_or_else(refused)
}

/// Whole seconds, with or without their unit.
fn parse_timeout(value: &str) -> Result<Duration, ApiError> {
    let seconds = value.strip_suffix('s').unwrap_or(value).parse().map(Duration::from_secs);
    let legal = seconds.ok().filter(|it| (Duration::from_secs(1)..=DIAGNOSIS_TIMEOUT).contains(it));
    let hint = format!("give whole seconds, from 1 to {}, such as 3s", DIAGNOSIS_TIMEOUT.as_secs());
    legal.ok_or_else(|| {
        bad_request(format!("{} is no time that a diagnosis may take", quote_excerpt(value)), hint)
    })
}

/// A time, or how long ago.
fn parse_time(name: &'static str, value: &str) -> Result<Millis, ApiError> {
    Millis::parse(value)
        .or_else(|| holdfast_host::clock::now().ago(value))
        .ok_or_else(|| bad_request(format!("{} is no time", quote_excerpt(value)), Hint::Time(name)))
}

fn parse_limit(value: &str, most: usize) -> Result<usize, ApiError> {
    let number = value.parse().ok().filter(|limit| (1..=most).contains(limit));
    let hint = format!("give a number from 1 to {most}");
    number.ok_or_else(|| bad_request(format!("{} is no limit", quote_excerpt(value)), hint))
}

fn parse_record_number(value: &str) -> Result<u64, ApiError> {
    value
        .parse()
        .map_err(|_| bad_request(format!("{} is no number of a record", quote_excerpt(value)), Hint::After))
}

#[cfg(test)]
mod tests {
    use super::super::hint::HintStyle;
    use super::*;

    fn hint(refusal: &ApiError) -> String {
        refusal.hint.text(HintStyle::Url)
    }

    #[test]
    fn a_client_sends_to_an_address_of_its_own_family() {
        let read = |text: &str| Query::read(text, EXPLAIN).map_err(|refusal| refusal.error);
        let from = read("endpoint=10.0.0.5:80&from=::ffff:203.0.113.9").unwrap().filter.from;
        assert_eq!(from, Some("203.0.113.9".parse().unwrap()));
        let refused = |text| read(text).unwrap_err();
        let no_frontend = "a client sends a packet to one frontend, and the query names none";
        for text in ["from=203.0.113.9", "from=203.0.113.9&service=a/b", "from=203.0.113.9&endpoint=10.0.0.5"]
        {
            assert_eq!(refused(text), no_frontend);
        }
        assert_eq!(refused("endpoint=10.0.0.5:80&from=fd00::1"), "fd00::1 cannot send to 10.0.0.5:80");
        assert_eq!(refused("endpoint=10.0.0.5:80&from=web"), "\"web\" is no address");
    }

    #[test]
    fn the_filters_of_records_are_read() {
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
    fn invalid_filters_of_records_are_refused() {
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
    fn the_filters_of_flows_are_read() {
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
    fn invalid_filters_of_flows_are_refused() {
        let refused = |text: &str| Query::read(text, FLOWS).unwrap_err();
        for text in ["client=web", "frontend=1.2.3.4:", "backend=1.2.3.4:70000", "client=[::1]", "client="] {
            assert!(refused(text).error.ends_with(" is no address"), "{text}");
        }
        assert_eq!(refused("state=ajar").error, "unknown state \"ajar\"");
        assert_eq!(Query::read("state=OPEN", FLOWS).unwrap().flows.stage, Some(Stage::Open));
        assert_eq!(hint(&refused("state=")), "legal states: opening, open, half-closed, closed, reset");
        assert_eq!(refused("client=::1&client=::1").error, "`client` is given twice");
    }

    #[test]
    fn a_diagnosis_timeout_has_bounds() {
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
