//! Parses the head of a request, and the body if it has one.
//!
//! Invariant: both are bounded.

use std::collections::BTreeMap;
use std::io;

use percent_encoding::percent_decode_str;
use tokio::io::{AsyncRead, AsyncReadExt};

use super::fault::Verb;
use super::writer::Encoding;
use super::{Kind, protobuf};

/// More than any client of an apiserver sends.
const HEAD_BYTES_MAX: usize = 64 * 1024;

/// More than any Event.
const BODY_BYTES_MAX: usize = 64 * 1024;

/// The end of a head.
const HEAD_END: &[u8] = b"\r\n\r\n";

/// A parsed request.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) target: String,
    pub(super) verb: Verb,
    pub(super) kind: Kind,
    /// The name of the requested object; for a create, its namespace.
    pub(super) name: Option<String>,
    /// The namespace of a list.
    pub(super) namespace: Option<String>,
    pub(super) headers: BTreeMap<String, String>,
    /// The body of a write.
    pub(super) body: Vec<u8>,
    query: BTreeMap<String, String>,
}

impl Head {
    /// The answer's encoding: the first available one that the client names. `None`: the client accepts none of them.
    pub(super) fn encoding(&self, speaks_protobuf: bool) -> Option<Encoding> {
        let is_protobuf = speaks_protobuf
            && protobuf::has_protobuf(self.kind)
            && matches!(self.verb, Verb::List | Verb::Audit | Verb::Watch);
        let ranges = self.headers.get("accept").map_or("*/*", String::as_str).split(',');
        let known = |range: &str| match range.split(';').next().unwrap_or_default().trim() {
            "application/vnd.kubernetes.protobuf" if is_protobuf => Some(Encoding::Protobuf),
            "application/json" | "application/*" | "*/*" => Some(Encoding::Json),
            _ => None,
        };
        ranges.filter_map(known).next()
    }

    /// The next request of a connection; `None` when the client is done.
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
        let Place { kind, name, namespace } = place(path);
        let kind = kind.unwrap_or(Kind::Unknown);
        let verb = match method {
            "GET" => verb(&query, &headers, kind, name.as_deref()),
            "POST" => Verb::Create,
            "PATCH" => Verb::Patch,
            _ => return None,
        };
        Some(Self {
            target: target.to_owned(),
            verb,
            kind,
            name,
            namespace,
            headers,
            body: Vec::new(),
            query,
        })
    }

    /// A parameter's value; empty if absent.
    pub(super) fn parameter(&self, name: &str) -> &str {
        self.query.get(name).map_or("", String::as_str)
    }

    /// A parameter as a number.
    pub(super) fn number<N: std::str::FromStr>(&self, name: &str) -> Option<N> {
        self.parameter(name).parse().ok()
    }
}

/// The objects that a path names.
#[derive(Debug, Default)]
struct Place {
    kind: Option<Kind>,
    /// The name of one object, with its namespace.
    name: Option<String>,
    /// The namespace of a list.
    namespace: Option<String>,
}

/// The path of each API group, and its resources.
const GROUPS: [(&str, &[(&str, Kind)]); 5] = [
    (
        "/api/v1/",
        &[
            ("services", Kind::Services),
            ("nodes", Kind::Nodes),
            ("pods", Kind::Pods),
            ("endpoints", Kind::Endpoints),
            ("events", Kind::Events),
        ],
    ),
    ("/apis/discovery.k8s.io/v1/", &[("endpointslices", Kind::Slices)]),
    ("/apis/coordination.k8s.io/v1/", &[("leases", Kind::Leases)]),
    ("/apis/networking.k8s.io/v1/", &[("ipaddresses", Kind::Addresses), ("networkpolicies", Kind::Policies)]),
    ("/apis/multicluster.x-k8s.io/v1alpha1/", &[("serviceimports", Kind::Imports)]),
];

fn place(path: &str) -> Place {
    if let Some(rest) = path.strip_prefix("/apis/events.k8s.io/v1/namespaces/") {
        let name = match rest.split('/').collect::<Vec<_>>().as_slice() {
            [namespace, "events"] => (*namespace).to_owned(),
            [namespace, "events", name] => format!("{namespace}/{name}"),
            _ => return Place::default(),
        };
        return Place { kind: Some(Kind::Events), name: Some(name), namespace: None };
    }
    if path == "/readyz" {
        return Place { kind: Some(Kind::Ready), ..Place::default() };
    }
    let Some((rest, words)) =
        GROUPS.iter().find_map(|(root, words)| path.strip_prefix(root).map(|rest| (rest, *words)))
    else {
        return Place::default();
    };
    let kind = |wanted: &str| words.iter().find(|(word, _)| *word == wanted).map(|(_, kind)| *kind);
    let segments: Vec<String> = rest.split('/').filter(|it| !it.is_empty()).map(decoded).collect();
    let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
    let owned = |text: &str| Some(text.to_owned());
    match segments.as_slice() {
        ["namespaces"] => Place { kind: Some(Kind::Namespaces), ..Place::default() },
        ["namespaces", name] => Place { kind: Some(Kind::Namespaces), name: owned(name), namespace: None },
        ["namespaces", namespace, word] => {
            Place { kind: kind(word), name: None, namespace: owned(namespace) }
        }
        ["namespaces", namespace, word, name] => {
            Place { kind: kind(word), name: Some(format!("{namespace}/{name}")), namespace: None }
        }
        [word] => Place { kind: kind(word), ..Place::default() },
        [word, name] => Place { kind: kind(word), name: owned(name), namespace: None },
        _ => Place::default(),
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

/// Decodes percent signs in a query.
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
    fn paths_and_queries_parse_to_verb_and_kind() {
        let slices = "/apis/discovery.k8s.io/v1/endpointslices";
        let head = check(&format!("{slices}?limit=500&labelSelector=%21a%2Cb"), "", Verb::List, Kind::Slices);
        assert_eq!((head.number("limit"), head.parameter("labelSelector")), (Some(500), "!a,b"));
        check("/api/v1/services?watch=true", "", Verb::Watch, Kind::Services);
        check("/api/v1/nodes?fieldSelector=metadata.name%3Da", "", Verb::List, Kind::Nodes);
        check("/api/v1/namespaces/kube-system", "", Verb::Get, Kind::Namespaces);
        check("/readyz", "", Verb::Get, Kind::Ready);
        check("/api/v1/namespaces/a/things", "", Verb::List, Kind::Unknown);
        let head = check("/api/v1/namespaces/a/services", "", Verb::List, Kind::Services);
        assert_eq!(head.namespace.as_deref(), Some("a"));
        let head = check("/api/v1/namespaces/a/endpoints/b", "", Verb::Get, Kind::Endpoints);
        assert_eq!(head.name.as_deref(), Some("a/b"));
        let head =
            check("/apis/networking.k8s.io/v1/ipaddresses/fd00%3A%3A1", "", Verb::Get, Kind::Addresses);
        assert_eq!(head.name.as_deref(), Some("fd00::1"));
        let accept = "Accept: application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1\r\n";
        let head = check("/api/v1/services", accept, Verb::Audit, Kind::Services);
        assert!(head.headers.contains_key("accept"));
    }
}
