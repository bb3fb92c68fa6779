//! Which cluster an apiserver belongs to: the uid of its namespace `kube-system`.
//!
//! Invariant: the first uid that was ever seen is the cluster's. The uid does not prove that the server is an apiserver
//! of the cluster; its certificate does.

use std::fmt;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Namespace;

/// The path of the object that has the uid.
pub(super) const PATH: &str = "/api/v1/namespaces/kube-system";

/// The longest uid: a UUID has 36 bytes, and nothing says that it must be one.
const UID_BYTES_MAX: usize = 128;

/// The uid of a cluster's `kube-system`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterId(Arc<str>);

impl ClusterId {
    /// An id from text; none if it cannot be one.
    pub fn new(uid: &str) -> Option<Self> {
        let legal = |byte: u8| byte.is_ascii_graphic() && byte != b'"' && byte != b'\\';
        let legal = !uid.is_empty() && uid.len() <= UID_BYTES_MAX && uid.bytes().all(legal);
        legal.then(|| Self(uid.into()))
    }

    /// As Kubernetes writes it.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The id in a Namespace.
    pub(super) fn of_namespace(body: &[u8]) -> Option<Self> {
        let namespace: Namespace = serde_json::from_slice(body).ok()?;
        Self::new(&namespace.metadata.uid?)
    }
}

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
