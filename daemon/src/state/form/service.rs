//! What a Service object or a `[[service]]` block says.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;
use std::sync::Arc;

use holdfast_core::facts::{Ingress, ServiceFacts, ServicePort, ServiceType, TrafficPolicy};
use holdfast_core::keys::{Protocol, ServiceKey, Source};
use serde::{Deserialize, Serialize};

use super::slice::{family, is_ipv6};
use super::{MetaForm, NameForm, spelled};

#[derive(Serialize, Deserialize)]
pub(super) struct FactsForm {
    name: NameForm,
    meta: MetaForm,
    kind: Arc<str>,
    headless: bool,
    cluster_ips: Vec<IpAddr>,
    ip_families: Vec<bool>,
    external_ips: Vec<IpAddr>,
    ingress: Vec<(IpAddr, bool)>,
    ports: Vec<ServicePortForm>,
    static_frontends: Vec<SocketAddr>,
    internal_local: bool,
    external_local: bool,
    affinity_timeout: Option<u32>,
    source_ranges: Vec<Arc<str>>,
    health_check_node_port: Option<NonZeroU16>,
    proxy_name: Option<Arc<str>>,
    on_empty: Option<Arc<str>>,
}

#[derive(Serialize, Deserialize)]
struct ServicePortForm {
    name: Arc<str>,
    protocol: Arc<str>,
    port: NonZeroU16,
    node_port: Option<NonZeroU16>,
}

impl From<&ServiceFacts> for FactsForm {
    fn from(facts: &ServiceFacts) -> Self {
        let port = |it: &ServicePort| ServicePortForm {
            name: Arc::clone(&it.name),
            protocol: it.protocol.as_str().into(),
            port: it.port,
            node_port: it.node_port,
        };
        Self {
            name: NameForm::from(&facts.key.name),
            meta: MetaForm::from(&facts.meta),
            kind: facts.kind.as_str().into(),
            headless: facts.headless,
            cluster_ips: facts.cluster_ips.clone(),
            ip_families: facts.ip_families.iter().copied().map(is_ipv6).collect(),
            external_ips: facts.external_ips.clone(),
            ingress: facts.ingress.iter().map(|it| (it.address, it.proxied)).collect(),
            ports: facts.ports.iter().map(port).collect(),
            static_frontends: facts.static_frontends.clone(),
            internal_local: facts.internal_policy == TrafficPolicy::Local,
            external_local: facts.external_policy == TrafficPolicy::Local,
            affinity_timeout: facts.affinity_timeout,
            source_ranges: facts.source_ranges.clone(),
            health_check_node_port: facts.health_check_node_port,
            proxy_name: facts.proxy_name.clone(),
            on_empty: facts.on_empty.clone(),
        }
    }
}

impl FactsForm {
    pub(super) fn into_facts(self, source: Source) -> Option<ServiceFacts> {
        let policy = |local| if local { TrafficPolicy::Local } else { TrafficPolicy::Cluster };
        let port = |it: ServicePortForm| ServicePort {
            name: it.name,
            protocol: Protocol::parse(&it.protocol),
            port: it.port,
            node_port: it.node_port,
        };
        let ingress = |(address, proxied)| Ingress { address, proxied };
        Some(ServiceFacts {
            key: ServiceKey { name: self.name.into_name()?, source },
            meta: self.meta.into(),
            kind: spelled(&ServiceType::ALL, ServiceType::as_str, &self.kind)?,
            headless: self.headless,
            cluster_ips: self.cluster_ips,
            ip_families: self.ip_families.into_iter().map(family).collect(),
            external_ips: self.external_ips,
            ingress: self.ingress.into_iter().map(ingress).collect(),
            ports: self.ports.into_iter().map(port).collect(),
            static_frontends: self.static_frontends,
            internal_policy: policy(self.internal_local),
            external_policy: policy(self.external_local),
            affinity_timeout: self.affinity_timeout,
            source_ranges: self.source_ranges,
            health_check_node_port: self.health_check_node_port,
            proxy_name: self.proxy_name,
            on_empty: self.on_empty,
        })
    }
}
