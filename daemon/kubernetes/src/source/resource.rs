//! The kinds of objects that are watched, and what is asked for each.
//!
//! Invariant: Services and the Node are selected as by kube-proxy; of slices all are asked for, and once more those of
//! ServiceImports, which are another source's.

use std::sync::{Arc, Mutex, PoisonError};

use holdfast_core::event::WatchKind;
use holdfast_core::keys::{ObjectName, Source};
use holdfast_core::words;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::page::ListFrame;
use holdfast_config::NodeName;

/// The most items of one page. A page is one read of etcd, and a server keeps a whole one in memory.
pub(super) const PAGE_ITEMS: u32 = 500;

words! {
    /// One kind of objects, mostly spelled as the resource is in paths.
    #[derive(PartialOrd, Ord)]
    pub enum Resource {
        Services = "services",
        Slices = "endpointslices",
        /// The own Node.
        Node = "nodes",
        Imports = "serviceimports",
        /// The slices that belong to ServiceImports.
        ImportedSlices = "importedslices",
    }
}

impl Resource {
    /// The kind as the engine knows it, if a restart goes on from a version of it. ServiceImports are few, and most
    /// clusters have none, so a restart lists them.
    pub(super) const fn engine_kind(self) -> Option<WatchKind> {
        match self {
            Self::Services => Some(WatchKind::Services),
            Self::Slices => Some(WatchKind::Slices),
            Self::Node | Self::Imports | Self::ImportedSlices => None,
        }
    }

    /// Whether the engine's table has these objects; it does not have the Node object.
    pub(super) const fn is_in_table(self) -> bool {
        !matches!(self, Self::Node)
    }

    /// Whether these objects say where backends are.
    pub(super) const fn has_endpoints(self) -> bool {
        matches!(self, Self::Slices | Self::ImportedSlices)
    }

    /// Whether most clusters do not have this kind, or nothing of it.
    pub(super) const fn is_optional(self) -> bool {
        matches!(self.source(), Source::ClusterSet)
    }

    /// The source whose objects these are.
    pub(super) const fn source(self) -> Source {
        match self {
            Self::Services | Self::Slices | Self::Node => Source::Kubernetes,
            Self::Imports | Self::ImportedSlices => Source::ClusterSet,
        }
    }

    /// Whether a list is one of this kind: a list of another kind would say that there is nothing of this one.
    pub(super) fn is_listed_by(self, frame: &ListFrame) -> bool {
        let (api_versions, kind): (&[&str], _) = match self {
            Self::Services => (&["v1"], "ServiceList"),
            Self::Slices | Self::ImportedSlices => (&["discovery.k8s.io/v1"], "EndpointSliceList"),
            Self::Node => (&["v1"], "NodeList"),
            Self::Imports => {
                (&["multicluster.x-k8s.io/v1beta1", "multicluster.x-k8s.io/v1alpha1"], "ServiceImportList")
            }
        };
        api_versions.contains(&frame.api_version.as_str()) && frame.kind == kind
    }

    const fn path_name(self) -> &'static str {
        match self {
            Self::ImportedSlices => Self::Slices.as_str(),
            other => other.as_str(),
        }
    }
}

/// Where objects of the core are served.
const CORE: &str = "/api/v1";

const DISCOVERY: &str = "/apis/discovery.k8s.io/v1";

/// Where ServiceImports are served, in the version that is asked for first and in the one that older clusters have.
const CLUSTER_SET: [&str; 2] =
    ["/apis/multicluster.x-k8s.io/v1beta1", "/apis/multicluster.x-k8s.io/v1alpha1"];

/// Which objects of a kind are asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Selection {
    pub(super) what: Resource,
    /// The path of the kind's group and version.
    group: &'static str,
    labels: String,
    /// An older server may not know the field; see [`Self::without_fields`].
    fields: String,
}

impl Selection {
    /// Services that are ours and have an address: without the label, or with the label of this proxy's name.
    pub(super) fn services(proxy_name: Option<&str>) -> Self {
        const LABEL: &str = "service.kubernetes.io/service-proxy-name";
        let labels = proxy_name.map_or_else(|| format!("!{LABEL}"), |name| format!("{LABEL}={name}"));
        Self { what: Resource::Services, group: CORE, labels, fields: "spec.clusterIP!=None".to_owned() }
    }

    /// All slices: otherwise a slice that gets the label that keeps proxies away would seem to be deleted.
    pub(super) const fn slices() -> Self {
        Self { what: Resource::Slices, group: DISCOVERY, labels: String::new(), fields: String::new() }
    }

    /// All ServiceImports.
    pub(super) const fn imports() -> Self {
        let [group, _] = CLUSTER_SET;
        Self { what: Resource::Imports, group, labels: String::new(), fields: String::new() }
    }

    /// The slices that have the label by which they belong to a ServiceImport.
    pub(super) fn imported_slices() -> Self {
        const LABEL: &str = "multicluster.kubernetes.io/service-name";
        let (labels, fields) = (LABEL.to_owned(), String::new());
        Self { what: Resource::ImportedSlices, group: DISCOVERY, labels, fields }
    }

    /// The own Node.
    pub(super) fn node(name: &NodeName) -> Self {
        Self {
            what: Resource::Node,
            group: CORE,
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

    /// The same in the other version of the kind, if it has another one.
    pub(super) fn in_other_version(&self) -> Option<Self> {
        let [newer, older] = CLUSTER_SET;
        let group = match self.group {
            group if group == newer => older,
            group if group == older => newer,
            _ => return None,
        };
        Some(Self { group, ..self.clone() })
    }

    /// One page of the list; an empty token asks for the first one.
    pub(super) fn page_path(&self, token: &str) -> String {
        let mut query = self.list_path();
        push_parameter(&mut query, "limit", &PAGE_ITEMS.to_string());
        push_parameter(&mut query, "continue", token);
        query
    }

    /// The list in one answer.
    pub(super) fn list_path(&self) -> String {
        let mut query = format!("{}?", self.base_path());
        push_parameter(&mut query, "labelSelector", &self.labels);
        push_parameter(&mut query, "fieldSelector", &self.fields);
        query
    }

    /// The smallest request that tells which version the server has.
    pub(super) fn newest_version_path(&self) -> String {
        newest_version_query(self.list_path())
    }

    /// The watch of what happens after a version.
    pub(super) fn watch_path(&self, version: &str, timeout_s: u64) -> String {
        watch_query(self.list_path(), version, timeout_s)
    }

    /// One object of this kind.
    pub(super) fn object_path(&self, name: &ObjectName) -> String {
        let encoded = |text| utf8_percent_encode(text, QUERY_ENCODE_SET);
        let (namespace, name) = (encoded(name.namespace()), encoded(name.name()));
        let (group, kind) = (self.group, self.what.path_name());
        match self.what {
            Resource::Node => format!("{group}/{kind}/{name}"),
            _ => format!("{group}/namespaces/{namespace}/{kind}/{name}"),
        }
    }

    fn base_path(&self) -> String {
        format!("{}/{}", self.group, self.what.path_name())
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

    pub(super) fn current(&self) -> Selection {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets what is asked for from now on: a list of it has been handed over.
    pub(super) fn set(&self, selection: Selection) {
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = selection;
    }
}

/// Makes of a list's request the smallest one that tells which version the server has.
pub fn newest_version_query(mut list: String) -> String {
    push_parameter(&mut list, "limit", "1");
    list
}

/// Makes of a list's request the watch of what happens after a version.
pub fn watch_query(mut list: String, version: &str, timeout_s: u64) -> String {
    push_parameter(&mut list, "watch", "true");
    push_parameter(&mut list, "allowWatchBookmarks", "true");
    push_parameter(&mut list, "resourceVersion", version);
    push_parameter(&mut list, "timeoutSeconds", &timeout_s.to_string());
    list
}

/// All but what RFC 3986 calls unreserved.
pub const QUERY_ENCODE_SET: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// Adds a parameter unless its value is empty, in the characters that a query may have.
pub fn push_parameter(query: &mut String, name: &str, value: &str) {
    if value.is_empty() {
        return;
    }
    if !query.ends_with('?') {
        query.push('&');
    }
    query.push_str(name);
    query.push('=');
    query.extend(utf8_percent_encode(value, QUERY_ENCODE_SET));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_selectors_are_those_of_kube_proxy_but_for_slices() {
        assert_eq!(
            Selection::services(None).list_path(),
            "/api/v1/services?labelSelector=%21service.kubernetes.io%2Fservice-proxy-name\
             &fieldSelector=spec.clusterIP%21%3DNone"
        );
        assert_eq!(
            Selection::services(Some("edge")).without_fields().unwrap().list_path(),
            "/api/v1/services?labelSelector=service.kubernetes.io%2Fservice-proxy-name%3Dedge"
        );
        assert_eq!(Selection::slices().list_path(), "/apis/discovery.k8s.io/v1/endpointslices?");
        let node = Selection::node(&NodeName::from_host_name("n1").unwrap());
        assert_eq!(node.list_path(), "/api/v1/nodes?fieldSelector=metadata.name%3Dn1");
        assert_eq!((node.without_fields(), Selection::slices().without_fields()), (None, None));
    }

    #[test]
    fn service_imports_are_asked_for_in_either_version_and_their_slices_by_label() {
        let newer = Selection::imports();
        let older = newer.in_other_version().unwrap();
        assert_eq!(newer.list_path(), "/apis/multicluster.x-k8s.io/v1beta1/serviceimports?");
        assert_eq!(older.list_path(), "/apis/multicluster.x-k8s.io/v1alpha1/serviceimports?");
        assert_eq!(older.in_other_version(), Some(newer));
        let name = ObjectName::new("demo", "web").unwrap();
        assert_eq!(
            older.object_path(&name),
            "/apis/multicluster.x-k8s.io/v1alpha1/namespaces/demo/serviceimports/web"
        );
        let slices = Selection::imported_slices();
        assert_eq!(
            slices.list_path(),
            "/apis/discovery.k8s.io/v1/endpointslices?labelSelector=multicluster.kubernetes.io%2Fservice-name"
        );
        assert_eq!(slices.object_path(&name), Selection::slices().object_path(&name));
        assert_eq!((slices.in_other_version(), Selection::slices().in_other_version()), (None, None));
    }

    #[test]
    fn a_list_of_another_kind_is_not_taken_for_one_of_this() {
        let frame = |api_version: &str, kind: &str| ListFrame {
            api_version: api_version.to_owned(),
            kind: kind.to_owned(),
            ..ListFrame::default()
        };
        let imports = |version: &str| frame(&format!("multicluster.x-k8s.io/{version}"), "ServiceImportList");
        for version in ["v1beta1", "v1alpha1"] {
            assert!(Resource::Imports.is_listed_by(&imports(version)), "{version}");
        }
        assert!(!Resource::Imports.is_listed_by(&imports("v1")), "a version that is not known");
        assert!(!Resource::Imports.is_listed_by(&frame("v1", "ServiceList")));
        assert!(!Resource::Services.is_listed_by(&imports("v1beta1")));
        assert!(Resource::ImportedSlices.is_listed_by(&frame("discovery.k8s.io/v1", "EndpointSliceList")));
    }

    #[test]
    fn pages_and_watches_say_where_they_begin() {
        let slices = Selection::slices();
        assert!(slices.page_path("").ends_with("endpointslices?limit=500"));
        assert!(slices.page_path("a b+/=").ends_with("?limit=500&continue=a%20b%2B%2F%3D"));
        assert!(slices.watch_path("17", 240).ends_with(
            "endpointslices?watch=true&allowWatchBookmarks=true&resourceVersion=17&timeoutSeconds=240"
        ));
    }
}
