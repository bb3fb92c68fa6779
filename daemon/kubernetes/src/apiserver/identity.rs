//! The identity of a cluster: the uid of its namespace `kube-system`.
//!
//! Invariant: the first uid ever seen is the cluster's. The uid does not prove that the server is the cluster's
//! apiserver; the certificate does.

use holdfast_status::views::apiserver::ClusterId;
use k8s_openapi::api::core::v1::Namespace;

/// The path of the namespace that has the uid.
pub(super) const PATH: &str = "/api/v1/namespaces/kube-system";

/// Parses the cluster's id out of a Namespace.
pub(super) fn parse_cluster_id(body: &[u8]) -> Option<ClusterId> {
    let namespace: Namespace = serde_json::from_slice(body).ok()?;
    ClusterId::new(&namespace.metadata.uid?)
}
