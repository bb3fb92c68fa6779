//! The wire format of the parts of Kubernetes objects that are read.
//!
//! Invariant: every field may be absent or null, and unknown fields are skipped. So an object fails to fit only if a
//! field that is read has another type.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;

use holdfast_core::facts::Timestamp;
use holdfast_core::rfc3339;
use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// A text, borrowed from the input unless it has escapes: most of an object is text that is only compared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Text<'a>(Cow<'a, str>);

impl Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl<'a> From<Cow<'a, str>> for Text<'a> {
    fn from(text: Cow<'a, str>) -> Self {
        Self(text)
    }
}

impl<'a> From<&'a str> for Text<'a> {
    fn from(text: &'a str) -> Self {
        Self(Cow::Borrowed(text))
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(TextVisitor)
    }
}

struct TextVisitor;

impl<'de> Visitor<'de> for TextVisitor {
    type Value = Text<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Text<'de>, E> {
        Ok(Text(Cow::Borrowed(text)))
    }

    fn visit_str<E>(self, text: &str) -> Result<Text<'de>, E> {
        Ok(Text(Cow::Owned(text.to_owned())))
    }

    fn visit_string<E>(self, text: String) -> Result<Text<'de>, E> {
        Ok(Text(Cow::Owned(text)))
    }
}

/// A time in either of Kubernetes' encodings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TimeWire<'a> {
    /// In JSON and YAML, such as `2026-01-08T11:11:55Z`; it may be invalid.
    Rfc3339(Text<'a>),
    /// In protobuf: seconds since 1970.
    UnixSeconds(i64),
}

impl TimeWire<'_> {
    /// The time in whole seconds, if it is valid.
    pub fn timestamp(&self) -> Option<Timestamp> {
        match self {
            Self::Rfc3339(text) => rfc3339::parse(text),
            Self::UnixSeconds(seconds) => Some(Timestamp(*seconds)),
        }
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for TimeWire<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Text::deserialize(deserializer).map(Self::Rfc3339)
    }
}

/// Defines the wire types. Each reads only from a map: serde's derived code would also accept a list, field by
/// position, so `labels: ["web"]` would name a service.
macro_rules! wire {
    ($($(#[$about:meta])* pub struct $wire:ident $(<$text:lifetime>)? { $($fields:tt)* })*) => {$(
        wire!(@ $(#[$about])* $wire $(<$text> "'de: 'a")? { $($fields)* });

        impl<'de $(: $text, $text)?> Deserialize<'de> for $wire $(<$text>)? {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_map(Fields::<Self>(PhantomData))
            }
        }

        impl<'de $(: $text, $text)?> Visitor<'de> for Fields<$wire $(<$text>)?> {
            type Value = $wire $(<$text>)?;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<Self::Value, A::Error> {
                // The derived function, which `remote` makes inherent.
                $wire::deserialize(MapAccessDeserializer::new(fields))
            }
        }
    )*};
    (@ $(#[$about:meta])* $wire:ident $(<$text:lifetime> $borrows:literal)? { $($fields:tt)* }) => {
        $(#[$about])*
        #[derive(Clone, Debug, Default, Deserialize)]
        #[serde(remote = "Self", expecting = "an object", default, rename_all = "camelCase")]
        $(#[serde(bound(deserialize = $borrows))])?
        pub struct $wire $(<$text>)? { $($fields)* }
    };
}

struct Fields<Wire>(PhantomData<Wire>);

wire! {
    pub struct ServiceWire<'a> {
        pub metadata: Option<MetaWire<'a>>,
        pub spec: Option<ServiceSpecWire<'a>>,
        pub status: Option<ServiceStatusWire<'a>>,
    }

    pub struct ImportWire<'a> {
        pub metadata: Option<MetaWire<'a>>,
        pub spec: Option<ImportSpecWire<'a>>,
    }

    pub struct SliceWire<'a> {
        pub metadata: Option<MetaWire<'a>>,
        pub address_type: Option<Text<'a>>,
        /// `endpoints`: absent, null, or a list; the facts preserve the difference.
        #[serde(deserialize_with = "present")]
        pub endpoints: Option<Option<Vec<EndpointWire<'a>>>>,
        pub ports: Option<Vec<SlicePortWire<'a>>>,
    }

    /// `metadata` of any object.
    pub struct MetaWire<'a> {
        pub namespace: Option<Text<'a>>,
        pub name: Option<Text<'a>>,
        pub uid: Option<Text<'a>>,
        pub resource_version: Option<Text<'a>>,
        pub generation: Option<i64>,
        pub creation_timestamp: Option<TimeWire<'a>>,
        pub deletion_timestamp: Option<TimeWire<'a>>,
        pub finalizers: Option<Vec<Text<'a>>>,
        pub labels: Option<LabelsWire<'a>>,
        pub annotations: Option<AnnotationsWire<'a>>,
        /// `managedFields`, without the fields themselves.
        pub managed_fields: Option<Vec<ManagedFieldsWire<'a>>>,
    }

    pub struct LabelsWire<'a> {
        /// On a slice: its service.
        #[serde(rename = "kubernetes.io/service-name")]
        pub service_name: Option<Text<'a>>,
        /// On a slice: its ServiceImport.
        #[serde(rename = "multicluster.kubernetes.io/service-name")]
        pub import_name: Option<Text<'a>>,
        /// On a Service: another proxy serves it.
        #[serde(rename = "service.kubernetes.io/service-proxy-name")]
        pub proxy_name: Option<Text<'a>>,
        /// On a slice: the slice is not for proxies.
        #[serde(rename = "service.kubernetes.io/headless")]
        pub headless: Option<Text<'a>>,
    }

    pub struct AnnotationsWire<'a> {
        /// On a Service: what to do when no backend is left.
        #[serde(rename = "holdfast.io/on-empty")]
        pub on_empty: Option<Text<'a>>,
        /// On a Service: whether all nodes select the same backend for a client.
        #[serde(rename = "holdfast.io/maglev")]
        pub maglev: Option<Text<'a>>,
        /// On a Service: how much of a client's address counts for session affinity.
        #[serde(rename = "holdfast.io/session-affinity-prefix")]
        pub affinity_prefix: Option<Text<'a>>,
        /// On a Service or a slice: its backends' shares of new clients.
        #[serde(rename = "holdfast.io/weights")]
        pub weights: Option<Text<'a>>,
        /// On a slice: the time of the change that triggered this version.
        #[serde(rename = "endpoints.kubernetes.io/last-change-trigger-time")]
        pub triggered: Option<Text<'a>>,
    }

    /// One entry of `managedFields`.
    pub struct ManagedFieldsWire<'a> {
        pub manager: Option<Text<'a>>,
        /// `Update` or `Apply`.
        pub operation: Option<Text<'a>>,
        /// `status`, or nothing.
        pub subresource: Option<Text<'a>>,
        pub time: Option<TimeWire<'a>>,
    }

    /// `spec` of a Service.
    pub struct ServiceSpecWire<'a> {
        #[serde(rename = "type")]
        pub kind: Option<Text<'a>>,
        #[serde(rename = "clusterIP")]
        pub cluster_ip: Option<Text<'a>>,
        #[serde(rename = "clusterIPs")]
        pub cluster_ips: Option<Vec<Text<'a>>>,
        pub ip_families: Option<Vec<Text<'a>>>,
        #[serde(rename = "externalIPs")]
        pub external_ips: Option<Vec<Text<'a>>>,
        pub ports: Option<Vec<ServicePortWire<'a>>>,
        pub internal_traffic_policy: Option<Text<'a>>,
        pub external_traffic_policy: Option<Text<'a>>,
        pub session_affinity: Option<Text<'a>>,
        pub session_affinity_config: Option<AffinityConfigWire>,
        pub load_balancer_source_ranges: Option<Vec<Text<'a>>>,
        pub load_balancer_class: Option<Text<'a>>,
        pub allocate_load_balancer_node_ports: Option<bool>,
        pub health_check_node_port: Option<i64>,
    }

    /// `spec` of a ServiceImport.
    pub struct ImportSpecWire<'a> {
        #[serde(rename = "type")]
        pub kind: Option<Text<'a>>,
        pub ips: Option<Vec<Text<'a>>>,
        pub ports: Option<Vec<ServicePortWire<'a>>>,
        pub internal_traffic_policy: Option<Text<'a>>,
        pub session_affinity: Option<Text<'a>>,
        pub session_affinity_config: Option<AffinityConfigWire>,
    }

    pub struct AffinityConfigWire {
        #[serde(rename = "clientIP")]
        pub client_ip: Option<AffinityWire>,
    }

    pub struct AffinityWire {
        pub timeout_seconds: Option<i64>,
    }

    /// One entry of a Service's `ports`.
    pub struct ServicePortWire<'a> {
        pub name: Option<Text<'a>>,
        pub protocol: Option<Text<'a>>,
        pub port: Option<i64>,
        pub node_port: Option<i64>,
    }

    /// `status` of a Service.
    pub struct ServiceStatusWire<'a> {
        pub load_balancer: Option<LoadBalancerWire<'a>>,
    }

    pub struct LoadBalancerWire<'a> {
        pub ingress: Option<Vec<IngressWire<'a>>>,
    }

    /// One entry of `status.loadBalancer.ingress`.
    pub struct IngressWire<'a> {
        pub ip: Option<Text<'a>>,
        pub hostname: Option<Text<'a>>,
        pub ip_mode: Option<Text<'a>>,
    }

    /// One entry of a slice's `ports`.
    pub struct SlicePortWire<'a> {
        pub name: Option<Text<'a>>,
        pub protocol: Option<Text<'a>>,
        pub port: Option<i64>,
    }

    /// One entry of a slice's `endpoints`.
    pub struct EndpointWire<'a> {
        /// Only the first counts.
        pub addresses: Option<Vec<Text<'a>>>,
        pub conditions: Option<ConditionsWire>,
        pub node_name: Option<Text<'a>>,
        pub zone: Option<Text<'a>>,
        pub hints: Option<HintsWire<'a>>,
        pub target_ref: Option<TargetWire<'a>>,
    }

    /// `conditions` of an endpoint.
    pub struct ConditionsWire {
        pub ready: Option<bool>,
        pub serving: Option<bool>,
        pub terminating: Option<bool>,
    }

    /// `hints` of an endpoint.
    pub struct HintsWire<'a> {
        pub for_zones: Option<Vec<HintWire<'a>>>,
        pub for_nodes: Option<Vec<HintWire<'a>>>,
    }

    /// One zone or node of `hints`.
    pub struct HintWire<'a> {
        pub name: Option<Text<'a>>,
    }

    /// `targetRef` of an endpoint.
    pub struct TargetWire<'a> {
        pub kind: Option<Text<'a>>,
        pub namespace: Option<Text<'a>>,
        pub name: Option<Text<'a>>,
        pub uid: Option<Text<'a>>,
    }
}

/// Distinguishes null from absent.
fn present<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}
