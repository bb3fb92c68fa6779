//! The head of a request: what is asked for, how, and with which words; and the body of the few that have one.
//!
//! Invariant: both are bounded.

use std::collections::BTreeMap;
use std::io;

use percent_encoding::percent_decode_str;
use tokio::io::{AsyncRead, AsyncReadExt};

use super::Kind;
use super::fault::Verb;

/// More than any client of an apiserver sends.
const HEAD_BYTES_MAX: usize = 64 * 1024;

/// More than any Event.
const BODY_BYTES_MAX: usize = 64 * 1024;

/// Where a head ends.
const HEAD_END: &[u8] = b"\r\n\r\n";

/// What was read of a request.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) target: String,
    pub(super) verb: Verb,
    pub(super) kind: Kind,
    /// The name of the one object that is asked for; of a new one its namespace.
    pub(super) name: Option<String>,
    pub(super) headers: BTreeMap<String, String>,
    /// What is written.
    pub(super) body: Vec<u8>,
    query: BTreeMap<String, String>,
}

impl Head {
    /// The next request of a connection; none when the client is done.
    pub(super) async fn read(reader: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<Self>> {
        let mut bytes = Vec::with_capacity(1024);
        while !bytes.ends_with(HEAD_END) {
            if bytes.len() >= HEAD_BYTES_MAX {
                return Err(io::Error::other("the head of a request is too long"));
            }
            match reader.read_u8().await {
                Ok(byte) => bytes.push(byte),
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        let Some(mut head) = Self::parse(&String::from_utf8_lossy(&bytes)) else { return Ok(None) };
        let length = head.headers.get("content-length").and_then(|text| text.parse().ok()).unwrap_or(0);
        if length > BODY_BYTES_MAX {
            return Err(io::Error::other("the body of a request is too long"));
        }
        head.body.resize(length, 0);
        reader.read_exact(&mut head.body).await?;
        Ok(Some(head))
    }

    fn parse(text: &str) -> Option<Self> {
        let mut lines = text.split("\r\n");
        let mut words = lines.next()?.split(' ');
        let (method, target) = (words.next()?, words.next()?);
        let headers: BTreeMap<String, String> = lines
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
            .collect();
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let query: BTreeMap<String, String> = query
            .split('&')
            .filter_map(|pair| pair.split_once('='))
            .map(|(a, b)| (decoded(a), decoded(b)))
            .collect();
        let (kind, name) = asked_for(path);
        let verb = match method {
            "GET" => verb(&query, &headers, kind, name.as_deref()),
            "POST" => Verb::Create,
            "PATCH" => Verb::Patch,
            _ => return None,
        };
        Some(Self { target: target.to_owned(), verb, kind, name, headers, body: Vec::new(), query })
    }

    /// A parameter's value, empty if it was not given.
    pub(super) fn parameter(&self, name: &str) -> &str {
        self.query.get(name).map_or("", String::as_str)
    }

    /// A parameter's number.
    pub(super) fn number<N: std::str::FromStr>(&self, name: &str) -> Option<N> {
        self.parameter(name).parse().ok()
    }
}

fn asked_for(path: &str) -> (Kind, Option<String>) {
    if let Some(rest) = path.strip_prefix("/apis/events.k8s.io/v1/namespaces/") {
        return match rest.split('/').collect::<Vec<_>>().as_slice() {
            [namespace, "events"] => (Kind::Events, Some((*namespace).to_owned())),
            [namespace, "events", name] => (Kind::Events, Some(format!("{namespace}/{name}"))),
            _ => (Kind::Unknown, None),
        };
    }
    let roots = [
        ("/api/v1/services", Kind::Services),
        ("/apis/discovery.k8s.io/v1/endpointslices", Kind::Slices),
        ("/api/v1/nodes", Kind::Nodes),
        ("/api/v1/namespaces", Kind::Namespaces),
        ("/readyz", Kind::Ready),
    ];
    let under = roots.into_iter().find_map(|(root, kind)| Some((kind, path.strip_prefix(root)?)));
    match under {
        Some((kind, "" | "/")) => (kind, None),
        Some((kind, rest)) => match rest.strip_prefix('/') {
            Some(name) if !name.contains('/') => (kind, Some(name.to_owned())),
            _ => (Kind::Unknown, None),
        },
        None => (Kind::Unknown, None),
    }
}

fn verb(
    query: &BTreeMap<String, String>,
    headers: &BTreeMap<String, String>,
    kind: Kind,
    name: Option<&str>,
) -> Verb {
    let accept = headers.get("accept").map_or("", String::as_str);
    match query.get("watch").map(String::as_str) {
        Some("true" | "1") => Verb::Watch,
        _ if name.is_some() || kind == Kind::Ready => Verb::Get,
        _ if accept.contains("as=PartialObjectMetadataList") => Verb::Audit,
        _ => Verb::List,
    }
}

/// A query's word without percent signs.
fn decoded(text: &str) -> String {
    percent_decode_str(&text.replace('+', " ")).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(target: &str, headers: &str, verb: Verb, kind: Kind) -> Head {
        let head = Head::parse(&format!("GET {target} HTTP/1.1\r\nHost: x\r\n{headers}\r\n")).unwrap();
        assert_eq!((head.verb, head.kind), (verb, kind), "of {target}");
        head
    }

    #[test]
    fn requests_are_known_by_path_and_query() {
        let slices = "/apis/discovery.k8s.io/v1/endpointslices";
        let head = check(&format!("{slices}?limit=500&labelSelector=%21a%2Cb"), "", Verb::List, Kind::Slices);
        assert_eq!((head.number("limit"), head.parameter("labelSelector")), (Some(500), "!a,b"));
        check("/api/v1/services?watch=true", "", Verb::Watch, Kind::Services);
        check("/api/v1/nodes?fieldSelector=metadata.name%3Da", "", Verb::List, Kind::Nodes);
        check("/api/v1/namespaces/kube-system", "", Verb::Get, Kind::Namespaces);
        check("/readyz", "", Verb::Get, Kind::Ready);
        check("/api/v1/namespaces/a/services", "", Verb::List, Kind::Unknown);
        let accept = "Accept: application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1\r\n";
        let head = check("/api/v1/services", accept, Verb::Audit, Kind::Services);
        assert!(head.headers.contains_key("accept"));
    }
}
