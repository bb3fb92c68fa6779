//! Resolves services that a small language of rows describes.
//!
//! An endpoint is `last hints conditions`, as in `3 a/n1 R@`: address 0.0.0.3, hints (zones, then nodes after `/`, `-`
//! for none), then `R` ready, `N` not ready but serving, `X` not serving, `T` serving and terminating, `D` terminating
//! and not serving, `B` ready and terminating, `U` ready and not serving; `@`: on this node.

mod categorize;
mod frontends;
mod merging;

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr};
use core::num::NonZeroU16;
use std::string::String;
use std::vec;

use super::*;
use crate::drains::Drains;
use crate::facts::{
    AddressType, Conditions, Endpoint, EndpointsBuilder, HintSet, Meta, ServicePort, ServiceType, SlicePort,
};
use crate::keys::{ObjectName, ServiceKey, SliceKey, Source};

pub(super) fn number(port: u16) -> NonZeroU16 {
    NonZeroU16::new(port).unwrap()
}

pub(super) fn node(zone: &str, name: &str) -> NodeFacts {
    let zone = (zone != "none").then(|| zone.into());
    NodeFacts { name: name.into(), zone, ..NodeFacts::default() }
}

/// An unnamed TCP port 80 with a cluster IP; `itp` and `etp` set a policy to Local, `np` adds a node port.
pub(super) fn service(words: &str) -> ServiceFacts {
    let has = |word| words.split(' ').any(|it| it == word);
    let policy = |word| if has(word) { TrafficPolicy::Local } else { TrafficPolicy::Cluster };
    let name = ObjectName::new("ns", "svc").unwrap();
    let kind = if has("np") { ServiceType::NodePort } else { ServiceType::ClusterIp };
    let node_port = has("np").then(|| number(8080));
    ServiceFacts {
        cluster_ips: vec!["10.0.0.1".parse().unwrap()],
        internal_policy: policy("itp"),
        external_policy: policy("etp"),
        ports: vec![ServicePort { name: "".into(), protocol: Protocol::TCP, port: number(80), node_port }],
        ..ServiceFacts::new(ServiceKey { name, source: Source::Kubernetes }, kind)
    }
}

fn conditions(letter: char) -> Conditions {
    let (ready, serving, terminating) = match letter {
        'R' => (true, true, false),
        'N' => (false, true, false),
        'X' => (false, false, false),
        'T' => (false, true, true),
        'D' => (false, false, true),
        'B' => (true, true, true),
        'U' => (true, false, false),
        other => panic!("no condition {other}"),
    };
    Conditions { ready, serving, terminating }
}

fn hints(text: &str) -> Option<HintSet> {
    let list =
        |text: &str| text.split(',').filter(|it| !it.is_empty() && *it != "-").map(Arc::from).collect();
    let (zones, nodes) = text.split_once('/').unwrap_or((text, ""));
    (text != "-").then(|| HintSet { zones: list(zones), nodes: list(nodes) })
}

/// A slice of the unnamed TCP port 80; `@` means the node named `here`.
pub(super) fn slice(name: &str, endpoints: &str, here: &str) -> SliceFacts {
    let mut builder = EndpointsBuilder::new(Family::V4);
    for text in endpoints.split(';').map(str::trim).filter(|text| !text.is_empty()) {
        let words: Vec<_> = text.split(' ').collect();
        let [last, hinted, state] = words.as_slice() else { panic!("not an endpoint: {text}") };
        let hints = hints(hinted);
        let endpoint = Endpoint {
            address: IpAddr::V4(Ipv4Addr::new(0, 0, 0, last.parse().unwrap())),
            conditions: conditions(state.chars().next().unwrap()),
            node: Some(if state.ends_with('@') { here } else { "elsewhere" }.into()),
            zone: None,
            hints: hints.as_ref(),
            target: None,
        };
        builder.push(endpoint).unwrap();
    }
    SliceFacts {
        key: SliceKey { name: ObjectName::new("ns", name).unwrap(), source: Source::Kubernetes },
        meta: Meta::default(),
        service: Some("svc".into()),
        headless: false,
        address_type: AddressType::Ip(Family::V4),
        ports: [SlicePort { name: "".into(), protocol: Protocol::TCP, port: number(80) }].into(),
        endpoints: builder.finish(),
        endpoints_null: false,
        weights: None,
    }
}

pub(super) fn resolved(service: &ServiceFacts, slices: Vec<SliceFacts>, node: &NodeFacts) -> DesiredService {
    let slices: Vec<_> = slices.into_iter().map(Arc::new).collect();
    resolve(Some(service), &slices, (node, &Settings::default(), &Drains::default()), FrontendQuota::WHOLE)
}

/// The last numbers of a list's addresses; `nil`: no frontend uses it.
pub(super) fn list(port: &DesiredPort, scope: Scope) -> String {
    let used = if scope == Scope::Cluster { port.policy.cluster_used } else { port.policy.local_used };
    if !used {
        return "nil".into();
    }
    let last = |row: &Row| match row.address {
        IpAddr::V4(address) => std::format!("{}", address.octets()[3]),
        IpAddr::V6(address) => std::format!("{}", address.segments()[7]),
    };
    let members: Vec<_> = port.rows.iter().filter(|row| row.is_in(scope)).map(last).collect();
    members.join(" ")
}
