//! The parts of Kubernetes objects that are read, as they stand on the wire.
//!
//! Invariant: every field may be absent or null, and unknown ones are skipped without being kept, so that an object fails
//! to fit only where a field that is read has another type. Deliberately absent: any rule about values.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// A Service.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(remote = "Self", expecting = "an object", default)]
pub struct ServiceWire {
    /// `metadata`.
    pub metadata: Option<MetaWire>,
    /// `spec`.
    pub spec: Option<ServiceSpecWire>,
    /// `status`.
    pub status: Option<ServiceStatusWire>,
}

/// An `EndpointSlice`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(remote = "Self", expecting = "an object", default, rename_all = "camelCase")]
pub struct SliceWire {
    /// `metadata`.
    pub metadata: Option<MetaWire>,
    /// `addressType`.
    pub address_type: Option<String>,
    /// `endpoints`: absent, null, or a list. The difference is a fact.
    #[serde(deserialize_with = "present")]
    pub endpoints: Option<Option<Vec<EndpointWire>>>,
    /// `ports`.
    pub ports: Option<Vec<SlicePortWire>>,
}

/// `metadata` of any object.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(remote = "Self", expecting = "an object", default, rename_all = "camelCase")]
pub struct MetaWire {
    /// `namespace`.
    pub namespace: Option<String>,
    /// `name`.
    pub name: Option<String>,
    /// `uid`.
    pub uid: Option<String>,
    /// `resourceVersion`.
    pub resource_version: Option<String>,
    /// `generation`.
    pub generation: Option<i64>,
    /// `creationTimestamp`.
    pub creation_timestamp: Option<String>,
    /// `labels`, the few that are read.
    pub labels: Option<LabelsWire>,
    /// `annotations`, the few that are read.
    pub annotations: Option<AnnotationsWire>,
    /// `managedFields`, without the fields themselves.
    pub managed_fields: Option<Vec<ManagedFieldsWire>>,
}

/// The labels that are read.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(remote = "Self", expecting = "an object", default)]
pub struct LabelsWire {
    /// On a slice: the service that it belongs to.
    #[serde(rename = "kubernetes.io/service-name")]
    pub service_name: Option<String>,
    /// On a Service: another proxy serves it.
    #[serde(rename = "service.kubernetes.io/service-proxy-name")]
    pub proxy_name: Option<String>,
    /// On a slice: not for proxies.
    #[serde(rename = "service.kubernetes.io/headless")]
    pub headless: Option<String>,
}

/// The annotations that are read.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(remote = "Self", expecting = "an object", default)]
pub struct AnnotationsWire {
    /// On a Service: what to do when nobody is left.
    #[serde(rename = "holdfast.io/on-empty")]
    pub on_empty: Option<String>,
}

/// One entry of `managedFields`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(remote = "Self", expecting = "an object", default)]
pub struct ManagedFieldsWire {
    /// Who wrote.
    pub manager: Option<String>,
    /// `Update` or `Apply`.
    pub operation: Option<String>,
    /// `status`, or nothing.
    pub subresource: Option<String>,
    /// When.
    pub time: Option<String>,
}

/// `spec` of a Service.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(remote = "Self", expecting = "an object", default, rename_all = "camelCase")]
pub struct ServiceSpecWire {
    /// `type`.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// `clusterIP`.
    #[serde(rename = "clusterIP")]
    pub cluster_ip: Option<String>,
    /// `clusterIPs`.
    #[serde(rename = "clusterIPs")]
    pub cluster_ips: Option<Vec<String>>,
    /// `ipFamilies`.
    pub ip_families: Option<Vec<String>>,
    /// `externalIPs`.
    #[serde(rename = "externalIPs")]
    pub external_ips: Option<Vec<String>>,
    /// `ports`.
    pub ports: Option<Vec<ServicePortWire>>,
    /// `internalTrafficPolicy`.
    pub internal_traffic_policy: Option<String>,
    /// `externalTrafficPolicy`.
    pub external_traffic_policy: Option<String>,
    /// `sessionAffinity`.
    pub session_affinity: Option<String>,
    /// `sessionAffinityConfig`.
    pub session_affinity_config: Option<AffinityConfigWire>,
    /// `loadBalancerSourceRanges`.
    pub load_balancer_source_ranges: Option<Vec<String>>,
    /// `healthCheckNodePort`.
    pub health_check_node_port: Option<i64>,
}

/// `sessionAffinityConfig`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(remote = "Self", expecting = "an object", default)]
pub struct AffinityConfigWire {
    /// `clientIP`.
    #[serde(rename = "clientIP")]
    pub client_ip: Option<AffinityWire>,
}

/// `sessionAffinityConfig.clientIP`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(remote = "Self", expecting = "an object", default, rename_all = "camelCase")]
pub struct AffinityWire {
    /// `timeoutSeconds`.
    pub timeout_seconds: Option<i64>,
}

/// One entry of a Service's `ports`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(remote = "Self", expecting = "an object", default, rename_all = "camelCase")]
pub struct ServicePortWire {
    /// `name`.
    pub name: Option<String>,
    /// `protocol`.
    pub protocol: Option<String>,
    /// `port`.
    pub port: Option<i64>,
    /// `nodePort`.
    pub node_port: Option<i64>,
}

/// `status` of a Service.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(remote = "Self", expecting = "an object", default, rename_all = "camelCase")]
pub struct ServiceStatusWire {
    /// `loadBalancer`.
    pub load_balancer: Option<LoadBalancerWire>,
}

/// `status.loadBalancer`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(remote = "Self", expecting = "an object", default)]
pub struct LoadBalancerWire {
    /// `ingress`.
    pub ingress: Option<Vec<IngressWire>>,
}

/// One entry of `status.loadBalancer.ingress`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(remote = "Self", expecting = "an object", default, rename_all = "camelCase")]
pub struct IngressWire {
    /// `ip`.
    pub ip: Option<String>,
    /// `ipMode`.
    pub ip_mode: Option<String>,
}

/// One entry of a slice's `ports`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(remote = "Self", expecting = "an object", default)]
pub struct SlicePortWire {
    /// `name`.
    pub name: Option<String>,
    /// `protocol`.
    pub protocol: Option<String>,
    /// `port`.
    pub port: Option<i64>,
}

/// One entry of a slice's `endpoints`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(remote = "Self", expecting = "an object", default, rename_all = "camelCase")]
pub struct EndpointWire {
    /// `addresses`, of which only the first counts.
    pub addresses: Option<Vec<String>>,
    /// `conditions`.
    pub conditions: Option<ConditionsWire>,
    /// `nodeName`.
    pub node_name: Option<String>,
    /// `zone`.
    pub zone: Option<String>,
    /// `hints`.
    pub hints: Option<HintsWire>,
    /// `targetRef`.
    pub target_ref: Option<TargetWire>,
}

/// `conditions` of an endpoint.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(remote = "Self", expecting = "an object", default)]
pub struct ConditionsWire {
    /// `ready`.
    pub ready: Option<bool>,
    /// `serving`.
    pub serving: Option<bool>,
    /// `terminating`.
    pub terminating: Option<bool>,
}

/// `hints` of an endpoint.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(remote = "Self", expecting = "an object", default, rename_all = "camelCase")]
pub struct HintsWire {
    /// `forZones`.
    pub for_zones: Option<Vec<HintWire>>,
    /// `forNodes`.
    pub for_nodes: Option<Vec<HintWire>>,
}

/// One zone or node of `hints`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(remote = "Self", expecting = "an object", default)]
pub struct HintWire {
    /// `name`.
    pub name: Option<String>,
}

/// `targetRef` of an endpoint.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(remote = "Self", expecting = "an object", default)]
pub struct TargetWire {
    /// `kind`.
    pub kind: Option<String>,
    /// `namespace`.
    pub namespace: Option<String>,
    /// `name`.
    pub name: Option<String>,
    /// `uid`.
    pub uid: Option<String>,
}

/// Keeps null apart from absent.
fn present<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

/// Reads objects from maps alone. serde's own code would read a list too, place by place, so that `labels: ["web"]` named a
/// service.
macro_rules! from_maps_alone {
    ($($wire:ident),* $(,)?) => {$(
        impl<'de> Deserialize<'de> for $wire {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_map(Fields::<Self>(PhantomData))
            }
        }

        impl<'de> Visitor<'de> for Fields<$wire> {
            type Value = $wire;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<$wire, A::Error> {
                // What is derived, which `remote` keeps beside the trait.
                $wire::deserialize(MapAccessDeserializer::new(fields))
            }
        }
    )*};
}

/// The fields of one wire type.
struct Fields<Wire>(PhantomData<Wire>);

from_maps_alone!(
    ServiceWire,
    SliceWire,
    MetaWire,
    LabelsWire,
    AnnotationsWire,
    ManagedFieldsWire,
    ServiceSpecWire,
    AffinityConfigWire,
    AffinityWire,
    ServicePortWire,
    ServiceStatusWire,
    LoadBalancerWire,
    IngressWire,
    SlicePortWire,
    EndpointWire,
    ConditionsWire,
    HintsWire,
    HintWire,
    TargetWire,
);
