//! The query of a request: decoded, checked against the path's parameters, and typed.
//!
//! Invariant: nothing is ignored. A filter without effect would show a table that looks like an answer.

use std::net::IpAddr;
use std::time::Duration;

use axum::http::StatusCode;
use holdfast_core::keys::{Family, ObjectName};
use holdfast_core::str_enum::StrEnum;
use holdfast_datapath::FlowFilter;
use holdfast_diagnose::Focus;
use holdfast_diagnose::explain::{DialTarget, ExplainQuery};

use super::form::Form;
use super::hint::Hint;
use super::response::ApiError;
use holdfast_agent::recorder::RecordQuery;

/// A parameter of a path: how it is read, its description for programs, and its argument on the command line.
#[derive(Clone, Copy, Debug)]
pub struct Parameter {
    pub name: &'static str,
    pub about: &'static str,
    pub(super) values: Values,
    pub(super) read_value: fn(&mut Query, &Self, &str) -> Result<(), ApiError>,
    pub(super) is_needed: bool,
    pub argument: Option<Argument>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Values {
    Text,
    Words(fn() -> Vec<&'static str>),
    Number { least: Option<usize>, most: Option<usize> },
}

/// The argument of a parameter on the command line.
#[derive(Clone, Copy, Debug)]
pub struct Argument {
    pub value_name: &'static str,
    /// The help, unless the description for programs serves as such.
    pub help: Option<&'static str>,
    /// Whether the value needs no parameter name.
    pub is_positional: bool,
}

impl Parameter {
    /// The list of its legal words, if it has one.
    pub const fn words(&self) -> Option<fn() -> Vec<&'static str>> {
        match self.values {
            Values::Words(words) => Some(words),
            Values::Text | Values::Number { .. } => None,
        }
    }

    /// Sets a value that may be given once.
    pub(super) fn set_once<T>(&self, place: &mut Option<T>, value: T) -> Result<(), ApiError> {
        match place.replace(value) {
            None => Ok(()),
            Some(_) => Err(bad_request(format!("`{}` is given twice", self.name), "give each filter once")),
        }
    }
}

/// The filters of a query. `None` is no restriction; everything else is exact.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Filter {
    pub(super) service: Option<ObjectName>,
    pub(super) kind: Option<&'static str>,
    pub(super) address: Option<IpAddr>,
    pub(super) endpoint: Option<DialTarget>,
    /// An address for all of its frontends.
    pub(super) host: Option<IpAddr>,
    /// Only rows that need an explanation.
    pub(super) only_trouble: bool,
    /// The client of a packet to `endpoint`, if given.
    pub(super) from: Option<IpAddr>,
}

impl Filter {
    /// Whether there is another filter than a service.
    pub(super) const fn has_row_filter(&self) -> bool {
        self.kind.is_some() || self.address.is_some() || self.only_trouble
    }

    /// Refuses a client without a dialled address, and one of another family than that address.
    fn check_client(&self) -> Result<(), ApiError> {
        let Some(from) = self.from else { return Ok(()) };
        match &self.endpoint {
            Some(dialled) if Family::from_address(dialled.address.ip()) == Family::from_address(from) => {
                Ok(())
            }
            Some(dialled) => Err(bad_request(
                format!("{from} cannot send to {dialled}"),
                "give two addresses of one family",
            )),
            None => Err(bad_request(
                "a client sends a packet to one frontend, and the query names none".to_owned(),
                Hint::Dialled,
            )),
        }
    }
}

/// A valid query.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Query {
    pub(super) filter: Filter,
    /// The filter of records; the service is in `filter`.
    pub(super) records: RecordQuery,
    /// The filter of flows; their number is the limit in `records`.
    pub(super) flows: FlowFilter,
    pub(super) form: Option<Form>,
    pub(super) probes: Option<bool>,
    /// The port, and the path of an HTTP request.
    pub(super) focus: Focus,
    /// How long the answer may take.
    pub(super) timeout: Option<Duration>,
}

impl Query {
    /// Reads the whole query, or says what is wrong with it.
    pub(super) fn read(text: &str, legal: &[Parameter]) -> Result<Self, ApiError> {
        let mut query = Self::default();
        for (name, value) in split_pairs(text) {
            let name = decode_component(name)?;
            let value = decode_component(value)?;
            let known =
                legal.iter().find(|it| it.name == name).ok_or_else(|| unknown_parameter(&name, legal))?;
            (known.read_value)(&mut query, known, &value)?;
        }
        query.filter.check_client()?;
        Ok(query)
    }

    pub(super) fn explain_query(&self) -> ExplainQuery {
        match (&self.filter.endpoint, self.filter.host, &self.filter.service) {
            (Some(dialled), _, _) => ExplainQuery::Address(dialled.clone()),
            (None, Some(host), _) => ExplainQuery::Host(host),
            (None, None, Some(service)) => ExplainQuery::Service(service.clone()),
            (None, None, None) => ExplainQuery::Trouble,
        }
    }
}

/// The requested format, whatever else is wrong with the query: a refusal uses it too.
pub(super) fn format_in_query(text: &str) -> Option<Form> {
    let (_, value) = split_pairs(text).find(|(name, _)| *name == "format")?;
    Form::from_spelling(value)
}

fn split_pairs(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let parts = text.split('&').filter(|part| !part.is_empty());
    parts.map(|part| part.split_once('=').unwrap_or((part, "")))
}

fn unknown_parameter(name: &str, legal: &[Parameter]) -> ApiError {
    let names: Vec<&str> = legal.iter().map(|it| it.name).collect();
    let hint = match names.as_slice() {
        [] => "this path takes no query".to_owned(),
        names => format!("legal here: {}", names.join(", ")),
    };
    bad_request(format!("unknown filter {}", quote_excerpt(name)), hint)
}

/// The text in quotes, cut to fit on one line.
pub(super) fn quote_excerpt(text: &str) -> String {
    match text.char_indices().nth(80) {
        Some((cut, _)) => format!("{:?}...", text.get(..cut).unwrap_or_default()),
        None => format!("{text:?}"),
    }
}

pub(super) fn bad_request(error: String, hint: impl Into<Hint>) -> ApiError {
    ApiError::new(StatusCode::BAD_REQUEST, error, hint)
}

/// Decodes form encoding: `+` is a blank, `%` and two hexadecimal digits are a byte.
fn decode_component(text: &str) -> Result<String, ApiError> {
    let refused = || {
        bad_request(
            format!("the query is not well encoded: {}", quote_excerpt(text)),
            "write bytes as % and two hexadecimal digits of UTF-8",
        )
    };
    let mut bytes = text.bytes();
    let mut plain = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        plain.push(match byte {
            b'+' => b' ',
            b'%' => decode_escape(&mut bytes).ok_or_else(refused)?,
            other => other,
        });
    }
    String::from_utf8(plain).map_err(|_| refused())
}

fn decode_escape(bytes: &mut impl Iterator<Item = u8>) -> Option<u8> {
    let mut digit = || char::from(bytes.next()?).to_digit(16);
    u8::try_from(digit()? * 16 + digit()?).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::hint::HintStyle;
    use super::*;

    const ALL: &[Parameter] = super::super::parameters::FRONTENDS;

    fn hint(refusal: &ApiError) -> String {
        refusal.hint.text(HintStyle::Url)
    }

    fn read(text: &str) -> Result<Query, String> {
        Query::read(text, ALL).map_err(|refusal| format!("{} / {}", refusal.error, hint(&refusal)))
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
    fn a_refused_query_lists_legal_values() {
        check_refused("name=x", "unknown filter \"name\" / legal here: service, type, address, only, format");
        check_refused(
            "type=node-port",
            "unknown type \"node-port\" / legal types: ClusterIP, NodePort, LoadBalancer, ExternalIP, Static, \
             ClusterSetIP",
        );
        check_refused("format=xml", "unknown format \"xml\" / legal formats: table, wide, json");
        check_refused("type=NodePort&type=NodePort", "`type` is given twice / give each filter once");
        check_refused(
            "address=10.0.0.1:80",
            "\"10.0.0.1:80\" is no address / give an IP address without a port, such as `?address=10.96.0.10`",
        );
        check_refused(
            "service=web",
            "\"web\" names no service: it has no slash / give the namespace and the name, such as `?service=default/kubernetes`; a \
             [[service]] block without a namespace is `?service=static/web`",
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
    fn a_path_without_parameters_says_so() {
        let refusal = Query::read("format=json", &[]).unwrap_err();
        assert_eq!(hint(&refusal), "this path takes no query");
    }

    fn encoded(text: &str) -> String {
        text.bytes().map(|byte| format!("%{byte:02X}")).collect()
    }

    proptest! {
        #[test]
        fn no_query_makes_the_reader_panic(text in "\\PC*") {
            let _ = read(&text);
            let _ = format_in_query(&text);
        }

        #[test]
        fn an_encoded_text_decodes_unchanged(text in any::<String>()) {
            prop_assert_eq!(decode_component(&encoded(&text)).ok(), Some(text));
        }

        #[test]
        fn plain_characters_stay(text in "[a-zA-Z0-9/._:-]*") {
            prop_assert_eq!(decode_component(&text).ok(), Some(text));
        }
    }
}
