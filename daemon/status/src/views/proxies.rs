//! Other proxies of this node, and rules of a firewall that services meet, as they were found.
//!
//! Invariant: plain data; nothing here looks.

use std::collections::BTreeSet;
use std::net::IpAddr;

use holdfast_core::op::FrontendType;
use holdfast_core::snapshot::FrontendView;
use holdfast_core::words;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::schema_types::Code;

/// How the evidence of a process begins.
pub const LISTENS_EVIDENCE: &str = "listens on port";

/// Another proxy on this node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct OtherProxy {
    /// kube-proxy, Cilium, Calico, kube-router or Antrea.
    pub proxy: &'static str,
    /// What shows it: a process, rules, or pins.
    pub evidence: Vec<String>,
    /// What of this proxy translates here or was left behind, and what ends that; looked for with Cilium alone.
    pub traces: Vec<Trace>,
}

/// One thing that another proxy does here, or left.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Trace {
    /// What it is.
    pub what: String,
    /// The setting that ends it, or the command that removes it.
    pub remove: String,
    /// Whether clients may be translated by it.
    pub translates: bool,
    /// Whether it has connections of clients outside.
    #[serde(skip)]
    pub has_clients: bool,
}

impl Trace {
    pub fn new_translating(what: impl Into<String>, remove: impl Into<String>) -> Self {
        Self { what: what.into(), remove: remove.into(), translates: true, has_clients: false }
    }

    /// The same of what translates packets of clients outside.
    pub fn for_clients(what: impl Into<String>, remove: impl Into<String>) -> Self {
        Self { has_clients: true, ..Self::new_translating(what, remove) }
    }

    pub fn new_idle(what: impl Into<String>, remove: impl Into<String>) -> Self {
        Self { translates: false, ..Self::new_translating(what, remove) }
    }
}

impl OtherProxy {
    /// Whether connections of clients outside may be its own, which go on only by what it has here: by the rules of one
    /// that leaves all to the kernel's conntrack, or by programs of its own.
    pub fn has_clients(&self) -> bool {
        matches!(self.proxy, "kube-proxy" | "kube-router") || self.traces.iter().any(|it| it.has_clients)
    }

    /// Whether its process answers.
    pub fn is_running(&self) -> bool {
        self.evidence.iter().any(|evidence| evidence.starts_with(LISTENS_EVIDENCE))
    }

    /// Whether its process is gone, and its programs go on by tables that are no longer written.
    pub fn is_abandoned(&self) -> bool {
        !self.is_running() && self.traces.iter().any(|trace| trace.translates)
    }
}

words! {
    /// What a filter does to the packets of services.
    pub enum FilterKind {
        /// It drops packets by the address that clients dial, ahead of the point at which kube-proxy translated. It no
        /// longer sees that address, because holdfast translates earlier still.
        Early = "early",
        /// It forwards only what a rule accepts, and may not accept what kube-proxy's mark let through.
        Forward = "forward",
        /// The table of connections is smaller than kube-proxy made it.
        Connections = "connections",
    }
}

/// A rule of a firewall, or a limit, that services meet otherwise than with kube-proxy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Filter {
    pub kind: Code<FilterKind>,
    /// `nftables table inet guard, chain pre (prerouting, priority -300)`.
    pub place: String,
    /// What the rule says, in short.
    pub rule: String,
    /// What clients have to dial for the rule to count; empty: the rule counts whatever they dial.
    #[serde(skip)]
    pub targets: Vec<(Option<IpAddr>, u16)>,
}

/// What clients dial, as far as rules name it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DialTargets {
    pub node_ports: BTreeSet<u16>,
    /// Load-balancer and external addresses, with their ports.
    pub addresses: BTreeSet<(IpAddr, u16)>,
}

impl DialTargets {
    pub fn from_frontends<'a>(frontends: impl Iterator<Item = &'a FrontendView>) -> Self {
        let mut dialled = Self::default();
        for it in frontends {
            match it.kind {
                FrontendType::NodePort => dialled.node_ports.extend([it.port.get()]),
                FrontendType::LoadBalancer | FrontendType::ExternalIp => {
                    dialled.addresses.extend([(it.address, it.port.get())]);
                }
                FrontendType::ClusterIp | FrontendType::Static | FrontendType::ClusterSetIp => {}
            }
        }
        dialled
    }

    /// Whether a filter is about one of these.
    pub fn matches_filter(&self, filter: &Filter) -> bool {
        filter.targets.iter().any(|(address, port)| match address {
            Some(address) => self.addresses.contains(&(*address, *port)),
            None => self.node_ports.contains(port),
        })
    }
}
