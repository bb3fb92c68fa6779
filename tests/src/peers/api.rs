//! A blocking client of one apiserver for tests, over TLS, with objects as JSON.
//!
//! Invariant: this process connects from the bed's network, and no program of the bed sees its sockets. A rejection is
//! an error with the apiserver's own words. It retries nothing and tries no other apiserver, so that tests see what
//! happens.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use ureq::Agent;
use ureq::config::Config;
use ureq::http::{Request, Response};
use ureq::tls::{Certificate, ClientCert, PrivateKey, RootCerts, TlsConfig};

use super::authority::{Authority, Credential};
use super::watch::Watch;
use super::{PeersError, workload};
use crate::bed::{Bed, Location};

/// The timeout of an answer, which takes milliseconds; a silent server must not block a test.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// Far more than the list of a large test; ureq's own limit is 10 MB.
const ANSWER_BYTES_MAX: u64 = 1 << 30;

/// The field manager in an object's managedFields.
const WRITER: &str = "fieldManager=holdfast-tests";

/// The kinds that tests write and read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Namespace,
    Node,
    Pod,
    Service,
    /// An account for workloads in the cluster.
    ServiceAccount,
    Slice,
    /// The predecessor of slices; users may still write them.
    Endpoints,
    /// A range of Services' cluster IPs.
    ServiceCidr,
    /// A set of permissions.
    ClusterRole,
    /// Binds a role to users.
    ClusterRoleBinding,
    /// Pods that a controller makes and replaces.
    Deployment,
    /// Pods with stable names.
    StatefulSet,
    /// A kubelet's heartbeat for its node.
    Lease,
    /// A CustomResourceDefinition.
    Definition,
    /// A ServiceImport of the Multi-Cluster Services API.
    Import,
}

/// The kinds that can be applied.
const KINDS: [Kind; 15] = [
    Kind::Namespace,
    Kind::Node,
    Kind::Pod,
    Kind::Service,
    Kind::ServiceAccount,
    Kind::Slice,
    Kind::Endpoints,
    Kind::ServiceCidr,
    Kind::ClusterRole,
    Kind::ClusterRoleBinding,
    Kind::Deployment,
    Kind::StatefulSet,
    Kind::Lease,
    Kind::Definition,
    Kind::Import,
];

const APPS: &str = "apps/v1";

const DISCOVERY: &str = "discovery.k8s.io/v1";

const RBAC: &str = "rbac.authorization.k8s.io/v1";

struct Row {
    api: &'static str,
    name: &'static str,
    plural: &'static str,
    namespaced: bool,
}

const fn row(api: &'static str, name: &'static str, plural: &'static str, namespaced: bool) -> Row {
    Row { api, name, plural, namespaced }
}

impl Row {
    /// Such as `api/v1/namespaces/default/services` or `api/v1/nodes`.
    fn collection(&self, namespace: Option<&str>) -> String {
        let root = if self.api.contains('/') { "apis" } else { "api" };
        let namespace = namespace.filter(|_| self.namespaced);
        let inside = namespace.map_or(String::new(), |name| format!("namespaces/{name}/"));
        format!("{root}/{}/{inside}{}", self.api, self.plural)
    }
}

impl Kind {
    const fn row(self) -> Row {
        match self {
            Self::Namespace => row("v1", "Namespace", "namespaces", false),
            Self::Node => row("v1", "Node", "nodes", false),
            Self::Pod => row("v1", "Pod", "pods", true),
            Self::Service => row("v1", "Service", "services", true),
            Self::ServiceAccount => row("v1", "ServiceAccount", "serviceaccounts", true),
            Self::Slice => row(DISCOVERY, "EndpointSlice", "endpointslices", true),
            Self::Endpoints => row("v1", "Endpoints", "endpoints", true),
            Self::ServiceCidr => row("networking.k8s.io/v1", "ServiceCIDR", "servicecidrs", false),
            Self::ClusterRole => row(RBAC, "ClusterRole", "clusterroles", false),
            Self::ClusterRoleBinding => row(RBAC, "ClusterRoleBinding", "clusterrolebindings", false),
            Self::Deployment => row(APPS, "Deployment", "deployments", true),
            Self::StatefulSet => row(APPS, "StatefulSet", "statefulsets", true),
            Self::Lease => row("coordination.k8s.io/v1", "Lease", "leases", true),
            Self::Definition => {
                row("apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions", false)
            }
            Self::Import => row("multicluster.x-k8s.io/v1beta1", "ServiceImport", "serviceimports", true),
        }
    }

    /// The API path of one object: `default/web`, or `n1` for kinds without namespaces.
    pub fn path(self, name: &str) -> Result<String, PeersError> {
        let row = self.row();
        let (namespace, own) = match name.split_once('/') {
            Some((namespace, own)) if row.namespaced => (Some(namespace), own),
            None if !row.namespaced => (None, name),
            _ => return Err(malformed(format!("{self:?} {name:?}"), "write NAMESPACE/NAME, or NAME")),
        };
        Ok(format!("{}/{own}", row.collection(namespace)))
    }
}

/// The API path of an object that a test wrote.
fn path_of(object: &Value) -> Result<String, PeersError> {
    let word = |pointer: &str| object.pointer(pointer).and_then(Value::as_str);
    let mut rows = KINDS.into_iter().map(Kind::row);
    let row = rows.find(|row| Some(row.api) == word("/apiVersion") && Some(row.name) == word("/kind"));
    let row = row.ok_or_else(|| malformed(object.to_string(), "a kind that is not in the table"))?;
    let name = word("/metadata/name").ok_or_else(|| malformed(object.to_string(), "no name"))?;
    let namespace = word("/metadata/namespace").unwrap_or("default");
    Ok(format!("{}/{name}", row.collection(Some(namespace))))
}

pub(super) fn malformed(what: String, said: &str) -> PeersError {
    PeersError::Malformed { what, said: said.to_owned() }
}

/// How a client proves its identity.
#[derive(Clone, Copy, Debug)]
pub enum Identity<'a> {
    /// By a certificate.
    Certificate(&'a Credential),
    /// By a bearer token.
    Token(&'a str),
}

/// An apiserver's answer.
#[derive(Clone, Debug)]
pub struct Reply {
    /// The HTTP status.
    pub status: u16,
    /// The body as received.
    pub text: String,
}

impl Reply {
    /// The body parsed as an object.
    pub fn object(&self) -> Result<Value, PeersError> {
        serde_json::from_str(&self.text).map_err(|error| malformed(self.text.clone(), &error.to_string()))
    }
}

/// The body of a request: its content type and its text.
type Body<'a> = (&'a str, String);

/// A client of an apiserver as one user.
#[derive(Clone, Debug)]
pub struct Api<'a> {
    bed: &'a Bed,
    base: String,
    agent: Agent,
    bearer: Option<String>,
}

impl<'a> Api<'a> {
    pub(super) fn new(
        bed: &'a Bed,
        address: SocketAddr,
        authority: &Authority,
        identity: &Identity<'_>,
    ) -> Result<Self, PeersError> {
        let roots = RootCerts::new_with_certs(&[certificate(authority.file())?]);
        let (certified, bearer) = match identity {
            Identity::Certificate(credential) => (Some(client_certificate(credential)?), None),
            Identity::Token(token) => (None, Some(format!("Bearer {token}"))),
        };
        let tls = TlsConfig::builder().root_certs(roots).client_cert(certified);
        let ring = Arc::new(rustls::crypto::ring::default_provider());
        let tls = tls.unversioned_rustls_crypto_provider(ring).build();
        let config = Config::builder().tls_config(tls).http_status_as_error(false).proxy(None);
        let config = config.user_agent("holdfast-tests").timeout_connect(Some(ANSWER_LIMIT));
        let agent = config.timeout_recv_response(Some(ANSWER_LIMIT)).build().new_agent();
        Ok(Self { bed, base: format!("https://{address}"), agent, bearer })
    }

    /// Server-side apply of one or more YAML documents; returns the resulting objects.
    pub fn apply(&self, yaml: &str) -> Result<Vec<Value>, PeersError> {
        let documents: Vec<Value> = serde_saphyr::from_multiple(yaml)
            .map_err(|error| malformed(yaml.to_owned(), &error.to_string()))?;
        documents.iter().map(|object| self.apply_object(object)).collect()
    }

    /// Creates an object, which costs an apiserver less than an apply.
    pub fn create(&self, object: &Value) -> Result<Value, PeersError> {
        let path = path_of(object)?;
        let folder = path.rsplit_once('/').map_or(path.as_str(), |(folder, _)| folder);
        self.expect("POST", folder, Some(("application/json", object.to_string())))
    }

    /// Server-side apply of one object.
    pub fn apply_object(&self, object: &Value) -> Result<Value, PeersError> {
        let path = format!("{}?force=true&{WRITER}", path_of(object)?);
        self.expect("PATCH", &path, Some(("application/apply-patch+yaml", object.to_string())))
    }

    /// Merges a patch into an object: `{"metadata": {"annotations": {"touched": "now"}}}`.
    pub fn merge(&self, kind: Kind, name: &str, part: &Value) -> Result<Value, PeersError> {
        self.merge_at(&kind.path(name)?, part)
    }

    /// Merges a patch into the status of an object: `{"status": {…}}`.
    pub fn merge_status(&self, kind: Kind, name: &str, part: &Value) -> Result<Value, PeersError> {
        self.merge_at(&format!("{}/status", kind.path(name)?), part)
    }

    fn merge_at(&self, path: &str, part: &Value) -> Result<Value, PeersError> {
        let body = ("application/merge-patch+json", part.to_string());
        self.expect("PATCH", &format!("{path}?{WRITER}"), Some(body))
    }

    /// An object, if it exists.
    pub fn get(&self, kind: Kind, name: &str) -> Result<Option<Value>, PeersError> {
        match self.expect("GET", &kind.path(name)?, None) {
            Err(PeersError::Refused { status: 404, .. }) => Ok(None),
            other => other.map(Some),
        }
    }

    /// The slices of a service.
    pub fn service_slices(&self, service: &str) -> Result<Vec<Value>, PeersError> {
        let path = Kind::Slice.path(service)?;
        let (slices, name) = path.rsplit_once('/').unwrap_or_default();
        let list =
            self.expect("GET", &format!("{slices}?labelSelector=kubernetes.io/service-name%3D{name}"), None)?;
        Ok(list.get("items").and_then(Value::as_array).cloned().unwrap_or_default())
    }

    /// All pods of a namespace.
    pub fn pods(&self, namespace: &str) -> Result<Vec<Value>, PeersError> {
        let list = self.expect("GET", &Kind::Pod.row().collection(Some(namespace)), None)?;
        Ok(list.get("items").and_then(Value::as_array).cloned().unwrap_or_default())
    }

    /// Deletes an object at once.
    pub fn delete(&self, kind: Kind, name: &str) -> Result<(), PeersError> {
        self.delete_within(kind, name, 0)
    }

    /// Deletes an object with a grace period. A pod with one stays, terminating, until it is deleted at once.
    pub fn delete_within(&self, kind: Kind, name: &str, seconds: u32) -> Result<(), PeersError> {
        let path = format!("{}?gracePeriodSeconds={seconds}", kind.path(name)?);
        self.expect("DELETE", &path, None).map(drop)
    }

    /// Adds a node as kubelet registers it: ready, in a zone.
    pub fn add_node(&self, name: &str, zone: &str) -> Result<(), PeersError> {
        workload::add_node(self, name, zone)
    }

    /// A token of a service account, such as `kube-system/holdfast`, as its pods get it.
    pub fn token(&self, account: &str) -> Result<String, PeersError> {
        let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": []}});
        let path = format!("{}/token", Kind::ServiceAccount.path(account)?);
        let object = self.expect("POST", &path, Some(("application/json", request.to_string())))?;
        let token = object.pointer("/status/token").and_then(Value::as_str);
        token.map(str::to_owned).ok_or_else(|| malformed(object.to_string(), "no token"))
    }

    /// Watches one object from now on.
    pub fn watch(&self, kind: Kind, name: &str) -> Result<Watch, PeersError> {
        let path = kind.path(name)?;
        let (objects, name) = path.rsplit_once('/').unwrap_or_default();
        let path = format!("{objects}?watch=1&fieldSelector=metadata.name%3D{name}");
        let response = self.bed.within(Location::OUTSIDE, || self.send("GET", &path, None))??;
        Ok(Watch::start(response.into_body().into_with_config().limit(ANSWER_BYTES_MAX).reader()))
    }

    /// Sends any request; a rejection is a reply too.
    pub fn request(&self, method: &str, path: &str, body: Option<Body<'_>>) -> Result<Reply, PeersError> {
        let ask = || {
            let mut response = self.send(method, path, body)?;
            let text = response.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_string();
            Ok(Reply {
                status: response.status().as_u16(),
                text: text.map_err(self.unreached(method, path))?,
            })
        };
        self.bed.within(Location::OUTSIDE, ask)?
    }

    fn expect(&self, method: &str, path: &str, body: Option<Body<'_>>) -> Result<Value, PeersError> {
        let reply = self.request(method, path, body)?;
        if reply.status < 300 {
            return reply.object();
        }
        let request = format!("{method} {}/{path}", self.base);
        Err(PeersError::Refused { request, status: reply.status, said: reply.text })
    }

    /// Sends the request from the calling thread's network.
    fn send(
        &self,
        method: &str,
        path: &str,
        body: Option<Body<'_>>,
    ) -> Result<Response<ureq::Body>, PeersError> {
        let mut request = Request::builder().method(method).uri(format!("{}/{path}", self.base));
        if let Some(bearer) = &self.bearer {
            request = request.header("authorization", bearer);
        }
        let sent = match body {
            Some((kind, text)) => {
                let request = request.header("content-type", kind).body(text);
                request.map_err(ureq::Error::from).and_then(|request| self.agent.run(request))
            }
            None => request.body(()).map_err(ureq::Error::from).and_then(|request| self.agent.run(request)),
        };
        sent.map_err(self.unreached(method, path))
    }

    fn unreached(&self, method: &str, path: &str) -> impl FnOnce(ureq::Error) -> PeersError {
        let request = format!("{method} {}/{path}", self.base);
        move |source| PeersError::Unreached { request, source: Box::new(source) }
    }
}

fn read(path: &Path) -> Result<Vec<u8>, PeersError> {
    std::fs::read(path).map_err(|source| PeersError::File { path: path.to_owned(), source })
}

fn certificate(path: &Path) -> Result<Certificate<'static>, PeersError> {
    Certificate::from_pem(&read(path)?)
        .map_err(|error| malformed(path.display().to_string(), &error.to_string()))
}

fn client_certificate(credential: &Credential) -> Result<ClientCert, PeersError> {
    let key = PrivateKey::from_pem(&read(&credential.key)?)
        .map_err(|error| malformed(credential.key.display().to_string(), &error.to_string()))?;
    Ok(ClientCert::new_with_certs(&[certificate(&credential.certificate)?], key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_path(kind: Kind, name: &str, expected: Option<&str>) {
        assert_eq!(kind.path(name).ok().as_deref(), expected, "of {kind:?} {name:?}");
    }

    #[test]
    fn a_kind_and_a_name_make_a_path() {
        check_path(Kind::Service, "default/web", Some("api/v1/namespaces/default/services/web"));
        let slice = "apis/discovery.k8s.io/v1/namespaces/a/endpointslices/b";
        check_path(Kind::Slice, "a/b", Some(slice));
        check_path(Kind::Node, "n1", Some("api/v1/nodes/n1"));
        check_path(Kind::Service, "web", None);
        check_path(Kind::Node, "default/n1", None);
    }

    #[test]
    fn an_objects_path_follows_from_its_kind_and_name() {
        let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"}});
        assert_eq!(path_of(&service).unwrap(), "api/v1/namespaces/default/services/web");
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}});
        assert_eq!(path_of(&node).unwrap(), "api/v1/nodes/n1");
        let unknown = json!({"apiVersion": "v2", "kind": "Service", "metadata": {"name": "web"}});
        assert!(path_of(&unknown).unwrap_err().to_string().contains("a kind that is not in the table"));
        assert!(path_of(&json!({"apiVersion": "v1", "kind": "Node"})).is_err());
    }
}
