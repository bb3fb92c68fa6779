//! The watched kinds and the requests for each.
//!
//! Invariant: Services and the Node are selected as by kube-proxy. All slices are requested, and those of
//! ServiceImports once more, for the other source.

use std::sync::{Arc, Mutex, PoisonError};

use holdfast_core::event::WatchKind;
use holdfast_core::keys::{ObjectName, Source};
use holdfast_core::words;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::page::ListFrame;
use holdfast_config::NodeName;

/// The most items of a page. A page is one read of etcd, and the server keeps a whole one in memory.
pub(super) const PAGE_ITEMS: u32 = 500;

words! {
    /// One kind of objects, mostly named as in paths.
    #[derive(PartialOrd, Ord)]
    pub enum Resource {
        Services = "services",
        Slices = "endpointslices",
        /// The own Node.
        Node = "nodes",
        Imports = "serviceimports",
        /// The slices of ServiceImports.
        ImportedSlices = "importedslices",
    }
}

impl Resource {
    /// The engine's kind, if a restart resumes from its version. ServiceImports are few, and most clusters have none,
    /// so a restart lists them.
    pub(super) const fn engine_kind(self) -> Option<WatchKind> {
        match self {
            Self::Services => Some(WatchKind::Services),
            Self::Slices => Some(WatchKind::Slices),
            Self::Node | Self::Imports | Self::ImportedSlices => None,
        }
    }

    /// Whether the engine's table holds this kind; it does not hold the Node.
    pub(super) const fn is_in_table(self) -> bool {
        !matches!(self, Self::Node)
    }

    /// Whether these objects list backends.
    pub(super) const fn has_endpoints(self) -> bool {
        matches!(self, Self::Slices | Self::ImportedSlices)
    }

    /// Whether most clusters lack this kind or have no object of it.
    pub(super) const fn is_optional(self) -> bool {
        matches!(self.source(), Source::ClusterSet)
    }

    /// The source of these objects.
    pub(super) const fn source(self) -> Source {
        match self {
            Self::Services | Self::Slices | Self::Node => Source::Kubernetes,
            Self::Imports | Self::ImportedSlices => Source::ClusterSet,
        }
    }

    /// Whether a list is of this kind: a list of another kind would delete every object of this one.
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

/// The path of the core group.
const CORE: &str = "/api/v1";

const DISCOVERY: &str = "/apis/discovery.k8s.io/v1";

/// The paths of ServiceImports: the preferred version and that of older clusters.
const CLUSTER_SET: [&str; 2] =
    ["/apis/multicluster.x-k8s.io/v1beta1", "/apis/multicluster.x-k8s.io/v1alpha1"];

/// The objects of a kind to request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Selection {
    pub(super) what: Resource,
    /// The path of the group and version.
    group: &'static str,
    labels: String,
    /// Older servers may not support the field; see [`Self::without_fields`].
    fields: String,
}

impl Selection {
    /// Services with an address that are ours: without the label, or with this proxy's name in it.
    pub(super) fn services(proxy_name: Option<&str>) -> Self {
        const LABEL: &str = "service.kubernetes.io/service-proxy-name";
        let labels = proxy_name.map_or_else(|| format!("!{LABEL}"), |name| format!("{LABEL}={name}"));
        Self { what: Resource::Services, group: CORE, labels, fields: "spec.clusterIP!=None".to_owned() }
    }

    /// All slices: with a label selector, a slice that gets the headless label would look deleted.
    pub(super) const fn slices() -> Self {
        Self { what: Resource::Slices, group: DISCOVERY, labels: String::new(), fields: String::new() }
    }

    /// All ServiceImports.
    pub(super) const fn imports() -> Self {
        let [group, _] = CLUSTER_SET;
        Self { what: Resource::Imports, group, labels: String::new(), fields: String::new() }
    }

    /// The slices with the label of a ServiceImport.
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

    /// For a server that cannot select Services by address. It then sends headless Services too, which have no rows.
    pub(super) fn without_fields(&self) -> Option<Self> {
        let is_optional = self.what == Resource::Services && !self.fields.is_empty();
        is_optional.then(|| Self { fields: String::new(), ..self.clone() })
    }

    /// The other version of the kind, if it has one.
    pub(super) fn in_other_version(&self) -> Option<Self> {
        let [newer, older] = CLUSTER_SET;
        let group = match self.group {
            group if group == newer => older,
            group if group == older => newer,
            _ => return None,
        };
        Some(Self { group, ..self.clone() })
    }

    /// Requests one page of the list; an empty token requests the first.
    pub(super) fn page_path(&self, token: &str) -> String {
        let mut query = self.list_path();
        push_parameter(&mut query, "limit", &PAGE_ITEMS.to_string());
        push_parameter(&mut query, "continue", token);
        query
    }

    /// Requests the whole list at once.
    pub(super) fn list_path(&self) -> String {
        let mut query = format!("{}?", self.base_path());
        push_parameter(&mut query, "labelSelector", &self.labels);
        push_parameter(&mut query, "fieldSelector", &self.fields);
        query
    }

    /// The smallest request that returns the server's version.
    pub(super) fn newest_version_path(&self) -> String {
        newest_version_query(self.list_path())
    }

    /// Requests the changes after a version.
    pub(super) fn watch_path(&self, version: &str, timeout_s: u64) -> String {
        watch_query(self.list_path(), version, timeout_s)
    }

    /// Requests one object.
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

/// The selection that list, watch and audit of a kind share: different ones would yield false differences. Cheap to
/// clone.
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

    /// Replaces the selection after a list of the new one was delivered.
    pub(super) fn set(&self, selection: Selection) {
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = selection;
    }
}

/// Turns a list request into the smallest one that returns the server's version.
pub fn newest_version_query(mut list: String) -> String {
    push_parameter(&mut list, "limit", "1");
    list
}

/// Turns a list request into a watch of the changes after a version.
pub fn watch_query(mut list: String, version: &str, timeout_s: u64) -> String {
    push_parameter(&mut list, "watch", "true");
    push_parameter(&mut list, "allowWatchBookmarks", "true");
    push_parameter(&mut list, "resourceVersion", version);
    push_parameter(&mut list, "timeoutSeconds", &timeout_s.to_string());
    list
}

/// Everything but RFC 3986's unreserved characters.
pub const QUERY_ENCODE_SET: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');

/// Adds a percent-encoded parameter unless its value is empty.
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
    fn service_imports_have_two_versions_and_their_slices_a_label() {
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
    fn a_list_of_another_kind_is_refused() {
        let frame = |api_version: &str, kind: &str| ListFrame {
            api_version: api_version.to_owned(),
            kind: kind.to_owned(),
            ..ListFrame::default()
        };
        let imports = |version: &str| frame(&format!("multicluster.x-k8s.io/{version}"), "ServiceImportList");
        for version in ["v1beta1", "v1alpha1"] {
            assert!(Resource::Imports.is_listed_by(&imports(version)), "{version}");
        }
        assert!(!Resource::Imports.is_listed_by(&imports("v1")), "an unknown version");
        assert!(!Resource::Imports.is_listed_by(&frame("v1", "ServiceList")));
        assert!(!Resource::Services.is_listed_by(&imports("v1beta1")));
        assert!(Resource::ImportedSlices.is_listed_by(&frame("discovery.k8s.io/v1", "EndpointSliceList")));
    }

    #[test]
    fn pages_and_watches_request_their_start() {
        let slices = Selection::slices();
        assert!(slices.page_path("").ends_with("endpointslices?limit=500"));
        assert!(slices.page_path("a b+/=").ends_with("?limit=500&continue=a%20b%2B%2F%3D"));
        assert!(slices.watch_path("17", 240).ends_with(
            "endpointslices?watch=true&allowWatchBookmarks=true&resourceVersion=17&timeoutSeconds=240"
        ));
    }
}
