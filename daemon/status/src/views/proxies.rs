//! Other proxies of this node, and firewall rules that affect services.
//!
//! Invariant: plain data; nothing here searches.

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
    /// The evidence: a process, rules, or pins.
    pub evidence: Vec<String>,
    /// Its parts that translate here or are left over, and how to end them; collected for Cilium alone.
    pub traces: Vec<Trace>,
}

/// One active or leftover part of another proxy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Trace {
    /// Its name.
    pub what: String,
    /// The setting that ends it, or the command that removes it.
    pub remove: String,
    /// Whether it may translate clients.
    pub translates: bool,
    /// Whether it has connections of outside clients.
    #[serde(skip)]
    pub has_clients: bool,
}

impl Trace {
    pub fn new_translating(what: impl Into<String>, remove: impl Into<String>) -> Self {
        Self { what: what.into(), remove: remove.into(), translates: true, has_clients: false }
    }

    /// Like `new_translating`, for one that translates packets of outside clients.
    pub fn for_clients(what: impl Into<String>, remove: impl Into<String>) -> Self {
        Self { has_clients: true, ..Self::new_translating(what, remove) }
    }

    pub fn new_idle(what: impl Into<String>, remove: impl Into<String>) -> Self {
        Self { translates: false, ..Self::new_translating(what, remove) }
    }
}

impl OtherProxy {
    /// Whether it may have connections of outside clients that need its parts here: the rules of a proxy that relies on
    /// the kernel's conntrack, or its own programs.
    pub fn has_clients(&self) -> bool {
        matches!(self.proxy, "kube-proxy" | "kube-router") || self.traces.iter().any(|it| it.has_clients)
    }

    /// Whether its process answers.
    pub fn is_running(&self) -> bool {
        self.evidence.iter().any(|evidence| evidence.starts_with(LISTENS_EVIDENCE))
    }

    /// Whether its process is gone while its programs go on with tables that get no updates.
    pub fn is_abandoned(&self) -> bool {
        !self.is_running() && self.traces.iter().any(|trace| trace.translates)
    }
}

words! {
    /// The effect of a filter on the packets of services.
    pub enum FilterKind {
        /// It drops packets by the address that clients dial, ahead of kube-proxy's translation. It no longer sees that
        /// address, because holdfast translates earlier still.
        Early = "early",
        /// It forwards only what a rule accepts, and may not accept what kube-proxy's mark let through.
        Forward = "forward",
        /// The conntrack table is smaller than kube-proxy made it.
        Connections = "connections",
    }
}

/// A firewall rule or a limit that affects services otherwise than with kube-proxy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Filter {
    pub kind: Code<FilterKind>,
    /// `nftables table inet guard, chain pre (prerouting, priority -300)`.
    pub place: String,
    /// The rule in short.
    pub rule: String,
    /// The dialled targets to which the rule applies; empty: it applies to all.
    #[serde(skip)]
    pub targets: Vec<(Option<IpAddr>, u16)>,
}

/// The dialled targets that rules can name.
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

    /// Whether a filter concerns one of these.
    pub fn matches_filter(&self, filter: &Filter) -> bool {
        filter.targets.iter().any(|(address, port)| match address {
            Some(address) => self.addresses.contains(&(*address, *port)),
            None => self.node_ports.contains(port),
        })
    }
}
