//! An in-process apiserver with the known faults of apiservers and of proxies in front of them.
//!
//! A [`Cluster`] is the content of etcd: objects, versions, compaction. A [`Server`] is one apiserver of it: an
//! address, TLS, and a [`Fault`] or none for each request. Two servers of one cluster agree, and two clusters do not.
//! A test sets faults ("the next watch of slices ends at once", "from now on refuse every list"), then counts the
//! requests.
//!
//! ```no_run
//! # use holdfast_tests::fake::{RequestFilter, Authority, Cluster, Fault, Kind, Names, Server};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let cluster = Cluster::new("7c8d4a2e-0000-4000-8000-000000000001");
//! let authority = Authority::new()?;
//! let server = Server::start(&cluster, &authority.server(&Names::Kubernetes)?)?;
//! server.once(RequestFilter::watch(Kind::Slices), Fault::say(""));
//! cluster.apply(serde_json::json!({"kind": "Service", "metadata": {"namespace": "default", "name": "web"}}))?;
//! assert_eq!(server.request_count(RequestFilter::list(Kind::Services)), 0);
//! # Ok(())
//! # }
//! ```
//!
//! Invariant: the server is deterministic; without a fault it behaves as a healthy apiserver. Each server runs on a
//! thread of its own, so that it takes no time from the client's runtime. Clients can create only Events over HTTP.
//! There are no defaults and no streaming lists. Clients that prefer protobuf get lists and watches of Services,
//! slices and Nodes in it.

mod authority;
mod cluster;
mod connection;
mod events;
mod fault;
mod journal;
mod list;
pub mod many;
mod protobuf;
mod request;
mod selector;
mod server;
mod watch;
mod writer;

#[cfg(test)]
mod tests;

use std::sync::{Mutex, MutexGuard, PoisonError};

pub use authority::{Authority, ClientIdentity, Names, ServerIdentity};
pub use cluster::Cluster;
pub use fault::{Fault, Greeting, RequestFilter, Verb};
pub use journal::Request;
pub use server::Server;

/// The kind of a requested object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Served at `/api/v1/services`; like all kinds with a namespace, also below one.
    Services,
    /// Served at `/apis/discovery.k8s.io/v1/endpointslices`.
    Slices,
    /// Served at `/api/v1/nodes`.
    Nodes,
    /// Served at `/api/v1/namespaces/NAME`.
    Namespaces,
    /// Written at `/apis/events.k8s.io/v1/namespaces/NAMESPACE/events`, read at `/api/v1/namespaces/NAMESPACE/events`.
    Events,
    /// Served at `/api/v1/pods`.
    Pods,
    /// Served at `/api/v1/namespaces/NAMESPACE/endpoints/NAME`.
    Endpoints,
    /// Served at `/apis/coordination.k8s.io/v1/namespaces/NAMESPACE/leases/NAME`.
    Leases,
    /// Served at `/apis/networking.k8s.io/v1/ipaddresses/ADDRESS`.
    Addresses,
    /// Served at `/apis/networking.k8s.io/v1/namespaces/NAMESPACE/networkpolicies`.
    Policies,
    /// Served at `/apis/multicluster.x-k8s.io/v1alpha1/serviceimports`, and in no other version.
    Imports,
    /// Served at `/readyz`.
    Ready,
    /// Anything else; answered with 404.
    Unknown,
}

impl Kind {
    /// Kubernetes' name of the kind, and its group and version.
    const fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Services => ("Service", "v1"),
            Self::Slices => ("EndpointSlice", "discovery.k8s.io/v1"),
            Self::Nodes => ("Node", "v1"),
            Self::Namespaces => ("Namespace", "v1"),
            Self::Events => ("Event", "events.k8s.io/v1"),
            Self::Pods => ("Pod", "v1"),
            Self::Endpoints => ("Endpoints", "v1"),
            Self::Leases => ("Lease", "coordination.k8s.io/v1"),
            Self::Addresses => ("IPAddress", "networking.k8s.io/v1"),
            Self::Policies => ("NetworkPolicy", "networking.k8s.io/v1"),
            Self::Imports => ("ServiceImport", "multicluster.x-k8s.io/v1alpha1"),
            Self::Ready | Self::Unknown => ("Status", "v1"),
        }
    }

    fn of_object(word: &str) -> Option<Self> {
        Self::STORED.into_iter().find(|kind| kind.names().0 == word)
    }

    /// The kinds of stored objects.
    const STORED: [Self; 11] = [
        Self::Services,
        Self::Slices,
        Self::Nodes,
        Self::Namespaces,
        Self::Events,
        Self::Pods,
        Self::Endpoints,
        Self::Leases,
        Self::Addresses,
        Self::Policies,
        Self::Imports,
    ];
}

/// Why the fake refuses a call.
#[derive(Debug, thiserror::Error)]
pub enum FakeError {
    /// No apiserver could hold this object.
    #[error("an object needs a kind that the fake knows, metadata and a name: {0}")]
    Object(serde_json::Value),
    /// There is no object of this name.
    #[error("there is no {0:?} {1}")]
    Missing(Kind, String),
    /// A certificate could not be made.
    #[error("cannot make a certificate: {0}")]
    Certificate(#[from] rcgen::Error),
    /// TLS rejects the certificate or key.
    #[error("cannot set up TLS: {0}")]
    Tls(#[from] rustls::Error),
    /// TLS rejects the verifier of client certificates.
    #[error("cannot judge client certificates: {0}")]
    Verifier(#[from] rustls::server::VerifierBuilderError),
    /// A socket, thread or runtime could not be created.
    #[error("cannot serve: {0}")]
    Serve(#[from] std::io::Error),
}

/// Ignores poison: a panicking test thread leaves nothing half done behind these locks.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
