//! Which cluster an apiserver belongs to: the uid of its namespace `kube-system`.
//!
//! Invariant: the first uid that was ever seen is the cluster's. The uid does not prove that the server is an apiserver
//! of the cluster; its certificate does.

use holdfast_status::views::apiserver::ClusterId;
use k8s_openapi::api::core::v1::Namespace;

/// The path of the object that has the uid.
pub(super) const PATH: &str = "/api/v1/namespaces/kube-system";

/// The id in a Namespace.
pub(super) fn parse_cluster_id(body: &[u8]) -> Option<ClusterId> {
    let namespace: Namespace = serde_json::from_slice(body).ok()?;
    ClusterId::new(&namespace.metadata.uid?)
}
