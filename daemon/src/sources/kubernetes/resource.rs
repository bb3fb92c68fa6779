//! The three kinds of objects that are watched, and what is asked for each.
//!
//! Invariant: Services and the Node are selected as by kube-proxy; of slices all are asked for.

use std::sync::{Arc, Mutex, PoisonError};

use holdfast_core::event::Watched;
use holdfast_core::keys::ObjectName;
use holdfast_core::words;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::page::ListFrame;
use crate::config::NodeName;

/// The most items of one page. A page is one read of etcd, and a server keeps a whole one in memory.
pub(super) const PAGE_ITEMS: u32 = 500;

words! {
    /// One kind of objects, spelled as the resource is in paths.
    #[derive(PartialOrd, Ord)]
    pub enum Resource {
        Services = "services",
        Slices = "endpointslices",
        /// The own Node.
        Node = "nodes",
    }
}

impl Resource {
    /// The kind as the engine knows it; the engine does not know the Node object.
    pub(super) const fn watched(self) -> Option<Watched> {
        match self {
            Self::Services => Some(Watched::Services),
            Self::Slices => Some(Watched::Slices),
            Self::Node => None,
        }
    }

    /// Whether a list is one of this kind: a list of another kind would say that there is nothing of this one.
    pub(super) fn is_listed_by(self, frame: &ListFrame) -> bool {
        let (api_version, kind) = match self {
            Self::Services => ("v1", "ServiceList"),
            Self::Slices => ("discovery.k8s.io/v1", "EndpointSliceList"),
            Self::Node => ("v1", "NodeList"),
        };
        (frame.api_version.as_str(), frame.kind.as_str()) == (api_version, kind)
    }
}

/// Which objects of a kind are asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Selection {
    pub(super) what: Resource,
    labels: String,
    /// An older server may not know the field; see [`Self::without_fields`].
    fields: String,
}

impl Selection {
    /// Services that are ours and have an address: without the label, or with the label of this proxy's name.
    pub(super) fn services(proxy_name: Option<&str>) -> Self {
        const LABEL: &str = "service.kubernetes.io/service-proxy-name";
        let labels = proxy_name.map_or_else(|| format!("!{LABEL}"), |name| format!("{LABEL}={name}"));
        Self { what: Resource::Services, labels, fields: "spec.clusterIP!=None".to_owned() }
    }

    /// All slices: otherwise a slice that gets the label that keeps proxies away would seem to be deleted.
    pub(super) const fn slices() -> Self {
        Self { what: Resource::Slices, labels: String::new(), fields: String::new() }
    }

    /// The own Node.
    pub(super) fn node(name: &NodeName) -> Self {
        Self {
            what: Resource::Node,
            labels: String::new(),
            fields: format!("metadata.name={}", name.as_str()),
        }
    }

    /// The same for a server that does not select Services by address. Headless Services come too then; they have no
    /// rows.
    pub(super) fn without_fields(&self) -> Option<Self> {
        let is_optional = self.what == Resource::Services && !self.fields.is_empty();
        is_optional.then(|| Self { fields: String::new(), ..self.clone() })
    }

    /// One page of the list; an empty token asks for the first one.
    pub(super) fn page(&self, token: &str) -> String {
        let mut query = self.list();
        push(&mut query, "limit", &PAGE_ITEMS.to_string());
        push(&mut query, "continue", token);
        query
    }

    /// The list in one answer.
    pub(super) fn list(&self) -> String {
        let mut query = format!("{}?", self.path());
        push(&mut query, "labelSelector", &self.labels);
        push(&mut query, "fieldSelector", &self.fields);
        query
    }

    /// The smallest request that tells which version the server has.
    pub(super) fn newest(&self) -> String {
        newest(self.list())
    }

    /// The watch of what happens after a version.
    pub(super) fn watch(&self, version: &str, timeout_s: u64) -> String {
        watch(self.list(), version, timeout_s)
    }

    /// One object of this kind.
    pub(super) fn object(&self, name: &ObjectName) -> String {
        let encoded = |text| utf8_percent_encode(text, ENCODED);
        let (namespace, name) = (encoded(name.namespace()), encoded(name.name()));
        match self.what {
            Resource::Services => format!("/api/v1/namespaces/{namespace}/services/{name}"),
            Resource::Slices => {
                format!("/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices/{name}")
            }
            Resource::Node => format!("/api/v1/nodes/{name}"),
        }
    }

    const fn path(&self) -> &'static str {
        match self.what {
            Resource::Services => "/api/v1/services",
            Resource::Slices => "/apis/discovery.k8s.io/v1/endpointslices",
            Resource::Node => "/api/v1/nodes",
        }
    }
}

/// What a kind's list, watch and audit ask for alike: if one of the three asked for other objects, the audit would find
/// differences that do not exist. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct SharedSelection {
    pub(super) what: Resource,
    current: Arc<Mutex<Selection>>,
}

impl SharedSelection {
    pub(super) fn new(selection: Selection) -> Self {
        Self { what: selection.what, current: Arc::new(Mutex::new(selection)) }
    }

    pub(super) fn now(&self) -> Selection {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets what is asked for from now on: a list of it has been handed over.
    pub(super) fn set(&self, selection: Selection) {
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = selection;
    }
}

/// Makes of a list's request the smallest one that tells which version the server has.
pub(crate) fn newest(mut list: String) -> String {
    push(&mut list, "limit", "1");
    list
}

/// Makes of a list's request the watch of what happens after a version.
pub(crate) fn watch(mut list: String, version: &str, timeout_s: u64) -> String {
    push(&mut list, "watch", "true");
    push(&mut list, "allowWatchBookmarks", "true");
    push(&mut list, "resourceVersion", version);
    push(&mut list, "timeoutSeconds", &timeout_s.to_string());
    list
}

/// All but what RFC 3986 calls unreserved.
pub(crate) const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// Adds a parameter unless its value is empty, in the characters that a query may have.
pub(crate) fn push(query: &mut String, name: &str, value: &str) {
    if value.is_empty() {
        return;
    }
    if !query.ends_with('?') {
        query.push('&');
    }
    query.push_str(name);
    query.push('=');
    query.extend(utf8_percent_encode(value, ENCODED));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_selectors_are_those_of_kube_proxy_but_for_slices() {
        assert_eq!(
            Selection::services(None).list(),
            "/api/v1/services?labelSelector=%21service.kubernetes.io%2Fservice-proxy-name\
             &fieldSelector=spec.clusterIP%21%3DNone"
        );
        assert_eq!(
            Selection::services(Some("edge")).without_fields().unwrap().list(),
            "/api/v1/services?labelSelector=service.kubernetes.io%2Fservice-proxy-name%3Dedge"
        );
        assert_eq!(Selection::slices().list(), "/apis/discovery.k8s.io/v1/endpointslices?");
        let node = Selection::node(&NodeName::of_host("n1").unwrap());
        assert_eq!(node.list(), "/api/v1/nodes?fieldSelector=metadata.name%3Dn1");
        assert_eq!((node.without_fields(), Selection::slices().without_fields()), (None, None));
    }

    #[test]
    fn pages_and_watches_say_where_they_begin() {
        let slices = Selection::slices();
        assert!(slices.page("").ends_with("endpointslices?limit=500"));
        assert!(slices.page("a b+/=").ends_with("?limit=500&continue=a%20b%2B%2F%3D"));
        assert!(slices.watch("17", 240).ends_with(
            "endpointslices?watch=true&allowWatchBookmarks=true&resourceVersion=17&timeoutSeconds=240"
        ));
    }
}
