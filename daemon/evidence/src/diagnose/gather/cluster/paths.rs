//! The path and the selectors of each query.
//!
//! Invariant: every path segment is a name by Kubernetes' grammar, every selector term is one label or field, and all
//! of it is percent-encoded. So a tenant's text queries what it names and nothing else.

use std::collections::BTreeMap;
use std::net::IpAddr;

use holdfast_diagnose::limits::NAME_LENGTH_MAX;
use percent_encoding::utf8_percent_encode;

use crate::diagnose::limits::{PAGE_ITEMS, QUERY_BYTES_MAX};
use holdfast_kubernetes::source::resource::{QUERY_ENCODE_SET, push_parameter};

/// The most characters of a label's value, and of its name after the slash.
const LABEL_LENGTH_MAX: usize = 63;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PathSegment<'a>(&'a str);

impl<'a> PathSegment<'a> {
    pub(super) fn new(text: &'a str) -> Option<Self> {
        let is_legal = !text.is_empty()
            && text.len() <= NAME_LENGTH_MAX
            && !matches!(text, "." | "..")
            && text.bytes().all(is_name_byte);
        is_legal.then_some(Self(text))
    }

    pub(super) const fn as_str(self) -> &'a str {
        self.0
    }
}

const fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_')
}

const CORE: &str = "/api/v1";

pub(super) fn object_path(
    root: &str,
    namespace: PathSegment<'_>,
    resource: &str,
    name: PathSegment<'_>,
) -> String {
    format!("{root}/namespaces/{}/{resource}/{}", namespace.0, name.0)
}

pub(super) fn service(namespace: PathSegment<'_>, name: PathSegment<'_>) -> String {
    object_path(CORE, namespace, "services", name)
}

pub(super) fn endpoints(namespace: PathSegment<'_>, name: PathSegment<'_>) -> String {
    object_path(CORE, namespace, "endpoints", name)
}

pub(super) fn namespace(name: PathSegment<'_>) -> String {
    format!("{CORE}/namespaces/{}", name.0)
}

pub(super) fn node(name: PathSegment<'_>) -> String {
    format!("{CORE}/nodes/{}", name.0)
}

/// The lease of a controller of the control plane.
pub(super) fn lease(name: &str) -> String {
    format!("/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/{name}")
}

pub(super) fn ip_address(address: IpAddr) -> String {
    let name = address.to_string();
    format!("/apis/networking.k8s.io/v1/ipaddresses/{}", utf8_percent_encode(&name, QUERY_ENCODE_SET))
}

pub(super) fn slices(of: PathSegment<'_>, namespace: PathSegment<'_>) -> String {
    let path = format!("/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices", namespace.0);
    list_query(&path, &format!("kubernetes.io/service-name={}", of.0), "")
}

pub(super) fn policies(namespace: PathSegment<'_>) -> String {
    list_query(&format!("/apis/networking.k8s.io/v1/namespaces/{}/networkpolicies", namespace.0), "", "")
}

/// The pods that a selector matches. `None`: it is too long, or no apiserver would have accepted it.
pub(super) fn pods(namespace: PathSegment<'_>, selector: &BTreeMap<String, String>) -> Option<String> {
    let is_legal = selector.iter().all(|(key, value)| is_label(key) && is_label_value(value));
    let terms: Vec<String> = selector.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let query = list_query(&pods_root(namespace), &terms.join(","), "");
    (is_legal && query.len() <= QUERY_BYTES_MAX).then_some(query)
}

pub(super) fn all_pods(namespace: PathSegment<'_>) -> String {
    list_query(&pods_root(namespace), "", "")
}

pub(super) fn pods_on_node(node: PathSegment<'_>) -> String {
    list_query(&format!("{CORE}/pods"), "", &format!("spec.nodeName={}", node.0))
}

/// Several nodes in one query, by the label that kubelet gives each of them: mostly the node's name.
pub(super) fn nodes(names: &[PathSegment<'_>]) -> String {
    let names: Vec<&str> = names.iter().map(|name| name.0).filter(|name| is_label_value(name)).collect();
    list_query(&format!("{CORE}/nodes"), &format!("kubernetes.io/hostname in ({})", names.join(",")), "")
}

/// The Events of a namespace with these fields.
pub(super) fn events(namespace: PathSegment<'_>, fields: &[(&str, &str)]) -> String {
    let fields: Vec<String> = fields.iter().map(|(field, value)| format!("{field}={value}")).collect();
    list_query(&format!("{CORE}/namespaces/{}/events", namespace.0), "", &fields.join(","))
}

/// The Events of all namespaces that match these terms, which are never a tenant's text.
pub(super) fn all_events(fields: &'static str) -> String {
    list_query(&format!("{CORE}/events"), "", fields)
}

fn pods_root(namespace: PathSegment<'_>) -> String {
    format!("{CORE}/namespaces/{}/pods", namespace.0)
}

fn list_query(path: &str, labels: &str, fields: &str) -> String {
    let mut query = format!("{path}?");
    push_parameter(&mut query, "labelSelector", labels);
    push_parameter(&mut query, "fieldSelector", fields);
    push_parameter(&mut query, "limit", &PAGE_ITEMS.to_string());
    query
}

fn is_label(key: &str) -> bool {
    let (prefix, name) = key.split_once('/').map_or((None, key), |(prefix, name)| (Some(prefix), name));
    let is_name = !name.is_empty() && is_label_value(name);
    is_name && prefix.is_none_or(|prefix| PathSegment::new(prefix).is_some())
}

fn is_label_value(value: &str) -> bool {
    value.len() <= LABEL_LENGTH_MAX && value.bytes().all(is_name_byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> PathSegment<'_> {
        PathSegment::new(text).unwrap()
    }

    #[test]
    fn a_segment_of_a_path_is_a_name() {
        for text in ["", ".", "..", "a/b", "a%2fb", "a?b", "a b", "ä", "a\n", &"x".repeat(254)] {
            assert_eq!(PathSegment::new(text), None, "{text:?}");
        }
        assert_eq!(service(name("shop"), name("web")), "/api/v1/namespaces/shop/services/web");
        assert_eq!(
            ip_address("fd00::1".parse().unwrap()),
            "/apis/networking.k8s.io/v1/ipaddresses/fd00%3A%3A1"
        );
    }

    #[test]
    fn a_selector_with_illegal_labels_or_too_many_makes_no_query() {
        let selector = |pairs: &[(&str, &str)]| {
            let pairs = pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
            pods(name("shop"), &pairs.collect())
        };
        let wanted = "/api/v1/namespaces/shop/pods?labelSelector=app%3Dweb%2Cx.y%2Ftier%3D&limit=500";
        assert_eq!(selector(&[("app", "web"), ("x.y/tier", "")]).as_deref(), Some(wanted));
        for (key, value) in [("app", "a,!b"), ("app", "a&limit=1"), ("!app", ""), ("a/b/c", "d"), ("", "a")] {
            assert_eq!(selector(&[(key, value)]), None, "{key}={value}");
        }
        let many: Vec<String> = (0..100).map(|number| format!("{number}{}", "x".repeat(50))).collect();
        let many: Vec<(&str, &str)> = many.iter().map(|key| (key.as_str(), "y")).collect();
        assert_eq!(selector(&many), None, "longer than proxies take");
    }

    #[test]
    fn several_nodes_are_one_query() {
        let long = "n".repeat(64);
        let query = nodes(&[name("n1"), name(&long), name("n2")]);
        assert_eq!(
            query,
            "/api/v1/nodes?labelSelector=kubernetes.io%2Fhostname%20in%20%28n1%2Cn2%29&limit=500"
        );
    }
}
