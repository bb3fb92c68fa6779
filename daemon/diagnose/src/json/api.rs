//! What the apiserver has now, as it was read for a diagnosis: beside what this node has, it shows which of the two is
//! behind.
//!
//! Invariant: lists are cut to what a person reads, and their lengths are told.

use std::net::IpAddr;

use schemars::JsonSchema;
use serde::Serialize;

use crate::limits::NAMED_MAX;
use crate::material::{
    Cluster, EndpointSeen, IngressSeen, Pod, Request, ServiceSeen, SlicePortSeen, SliceSeen,
};
use crate::shown::clean;
use holdfast_status::rfc3339::Rfc3339;

/// What the apiserver said; null where it was not asked or did not answer.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Api {
    pub service: Option<ApiService>,
    /// The first few slices.
    pub slices: Option<Vec<ApiSlice>>,
    /// The first few pods that the selector matches.
    pub pods: Option<Vec<ApiPod>>,
    /// What was asked for.
    pub reads: Vec<Read>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct ApiService {
    pub uid: String,
    pub resource_version: String,
    pub generation: Option<i64>,
    pub created: Option<Rfc3339>,
    pub class: Option<String>,
    pub finalizers: Vec<String>,
    pub ip_families: Vec<String>,
    pub cluster_ips: Vec<IpAddr>,
    pub ingress: Vec<String>,
    /// The managers that wrote the status of the load balancer.
    pub status_writers: Vec<String>,
    pub allocates_node_ports: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct ApiSlice {
    pub name: String,
    pub uid: String,
    pub resource_version: String,
    pub manager: Option<String>,
    pub created: Option<Rfc3339>,
    pub endpoints: usize,
    /// Those that answer, be it while terminating.
    pub serving: usize,
    pub ports: Vec<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct ApiPod {
    pub name: String,
    pub phase: String,
    pub ready: bool,
    pub node: Option<String>,
    /// The object that made it, as kind and name.
    pub owner: Option<String>,
}

/// One request to the apiserver.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ApiRead")]
pub struct Read {
    pub what: String,
    pub took_ms: u64,
    pub error: Option<String>,
}

impl Api {
    pub fn of(cluster: &Cluster) -> Self {
        let slices =
            cluster.slices.answer().map(|all| all.iter().take(NAMED_MAX).map(ApiSlice::of).collect());
        let pods =
            cluster.pods.answer().map(|pods| pods.list.iter().take(NAMED_MAX).map(ApiPod::of).collect());
        Self {
            service: cluster.service.answer().and_then(Option::as_ref).map(ApiService::of),
            slices,
            pods,
            reads: cluster.requests.iter().map(Read::of).collect(),
        }
    }
}

fn few<'a, T: 'a>(all: impl IntoIterator<Item = &'a T>, shown: impl Fn(&'a T) -> String) -> Vec<String> {
    all.into_iter().take(NAMED_MAX).map(shown).collect()
}

impl ApiService {
    fn of(it: &ServiceSeen) -> Self {
        Self {
            uid: clean(&it.uid),
            resource_version: clean(&it.resource_version),
            generation: it.generation,
            created: it.created.map(Rfc3339),
            class: it.class.as_deref().map(clean),
            finalizers: few(&it.finalizers, |it| clean(it)),
            ip_families: few(&it.families, |it| clean(it)),
            cluster_ips: it.cluster_ips.iter().copied().take(NAMED_MAX).collect(),
            ingress: few(&it.ingress, ingress),
            status_writers: few(&it.balancer_writers, |it| clean(it)),
            allocates_node_ports: it.allocates_node_ports.unwrap_or(true),
        }
    }
}

fn ingress(it: &IngressSeen) -> String {
    let address = match (&it.ip, &it.hostname) {
        (Some(ip), _) => ip.to_string(),
        (None, Some(hostname)) => clean(hostname),
        (None, None) => "nothing".to_owned(),
    };
    if it.proxied { format!("{address} (ipMode Proxy)") } else { address }
}

impl ApiSlice {
    fn of(it: &SliceSeen) -> Self {
        let answers = |it: &&EndpointSeen| it.serving.or(it.ready).unwrap_or(true);
        Self {
            name: clean(&it.name),
            uid: clean(&it.uid),
            resource_version: clean(&it.resource_version),
            manager: it.manager.as_deref().map(clean),
            created: it.created.map(Rfc3339),
            endpoints: it.endpoints.len(),
            serving: it.endpoints.iter().filter(answers).count(),
            ports: few(&it.ports, port),
        }
    }
}

fn port(it: &SlicePortSeen) -> String {
    let number = it.port.map_or_else(|| "every port".to_owned(), |port| port.to_string());
    clean(&format!("{} {number}/{}", it.name, it.protocol)).trim_start().to_owned()
}

impl ApiPod {
    fn of(it: &Pod) -> Self {
        Self {
            name: clean(&it.name),
            phase: clean(&it.phase),
            ready: it.is_ready(),
            node: it.node.as_deref().map(clean),
            owner: it.owner.as_ref().map(|owner| clean(&format!("{}/{}", owner.kind, owner.name))),
        }
    }
}

impl Read {
    fn of(it: &Request) -> Self {
        Self {
            what: clean(&it.what),
            took_ms: u64::try_from(it.took.as_millis()).unwrap_or(u64::MAX),
            error: it.error.as_deref().map(clean),
        }
    }
}
