//! Objects of the apiserver as read for a diagnosis. Next to this node's objects they show which side lags.
//!
//! Invariant: lists are cut to what a person reads, and their lengths are reported.

use std::net::IpAddr;

use schemars::JsonSchema;
use serde::Serialize;

use crate::evidence::{
    Cluster, ObservedEndpoint, ObservedIngress, ObservedService, ObservedSlice, ObservedSlicePort, Pod,
    Request,
};
use crate::formatting::clean;
use crate::limits::NAMED_MAX;
use holdfast_status::rfc3339::Rfc3339;

/// The apiserver's answers; null where it was not queried or did not answer.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Api {
    pub service: Option<ApiService>,
    /// The first few slices.
    pub slices: Option<Vec<ApiSlice>>,
    /// The first few pods that the selector matches.
    pub pods: Option<Vec<ApiPod>>,
    /// The queries.
    pub reads: Vec<ApiRead>,
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
    /// Those that still answer, even while terminating.
    pub serving: usize,
    pub ports: Vec<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct ApiPod {
    pub name: String,
    pub phase: String,
    pub ready: bool,
    pub node: Option<String>,
    /// The object that created it, as kind and name.
    pub owner: Option<String>,
}

/// One query to the apiserver.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ApiRead")]
pub struct ApiRead {
    pub what: String,
    pub took_ms: u64,
    pub error: Option<String>,
}

impl Api {
    pub fn from_cluster(cluster: &Cluster) -> Self {
        let slices =
            cluster.slices.answer().map(|all| all.iter().take(NAMED_MAX).map(ApiSlice::from_slice).collect());
        let pods = cluster
            .pods
            .answer()
            .map(|pods| pods.list.iter().take(NAMED_MAX).map(ApiPod::from_pod).collect());
        Self {
            service: cluster.service.answer().and_then(Option::as_ref).map(ApiService::from_service),
            slices,
            pods,
            reads: cluster.requests.iter().map(ApiRead::from_request).collect(),
        }
    }
}

fn map_first<'a, T: 'a>(
    all: impl IntoIterator<Item = &'a T>,
    shown: impl Fn(&'a T) -> String,
) -> Vec<String> {
    all.into_iter().take(NAMED_MAX).map(shown).collect()
}

impl ApiService {
    fn from_service(it: &ObservedService) -> Self {
        Self {
            uid: clean(&it.uid),
            resource_version: clean(&it.resource_version),
            generation: it.generation,
            created: it.created.map(Rfc3339),
            class: it.class.as_deref().map(clean),
            finalizers: map_first(&it.finalizers, |it| clean(it)),
            ip_families: map_first(&it.families, |it| clean(it)),
            cluster_ips: it.cluster_ips.iter().copied().take(NAMED_MAX).collect(),
            ingress: map_first(&it.ingress, format_ingress),
            status_writers: map_first(&it.balancer_writers, |it| clean(it)),
            allocates_node_ports: it.allocates_node_ports.unwrap_or(true),
        }
    }
}

fn format_ingress(it: &ObservedIngress) -> String {
    let address = match (&it.ip, &it.hostname) {
        (Some(ip), _) => ip.to_string(),
        (None, Some(hostname)) => clean(hostname),
        (None, None) => "nothing".to_owned(),
    };
    if it.proxied { format!("{address} (ipMode Proxy)") } else { address }
}

impl ApiSlice {
    fn from_slice(it: &ObservedSlice) -> Self {
        let answers = |it: &&ObservedEndpoint| it.serving.or(it.ready).unwrap_or(true);
        Self {
            name: clean(&it.name),
            uid: clean(&it.uid),
            resource_version: clean(&it.resource_version),
            manager: it.manager.as_deref().map(clean),
            created: it.created.map(Rfc3339),
            endpoints: it.endpoints.len(),
            serving: it.endpoints.iter().filter(answers).count(),
            ports: map_first(&it.ports, format_port),
        }
    }
}

fn format_port(it: &ObservedSlicePort) -> String {
    let number = it.port.map_or_else(|| "every port".to_owned(), |port| port.to_string());
    clean(&format!("{} {number}/{}", it.name, it.protocol)).trim_start().to_owned()
}

impl ApiPod {
    fn from_pod(it: &Pod) -> Self {
        Self {
            name: clean(&it.name),
            phase: clean(&it.phase),
            ready: it.is_ready(),
            node: it.node.as_deref().map(clean),
            owner: it.owner.as_ref().map(|owner| clean(&format!("{}/{}", owner.kind, owner.name))),
        }
    }
}

impl ApiRead {
    fn from_request(it: &Request) -> Self {
        Self {
            what: clean(&it.what),
            took_ms: u64::try_from(it.took.as_millis()).unwrap_or(u64::MAX),
            error: it.error.as_deref().map(clean),
        }
    }
}
