//! The facts that a Node states about this node, in any encoding.
//!
//! Invariant: a Node is read as kube-proxy reads it, and each of its lists up to a limit.

use std::net::IpAddr;

use crate::own_node::NodeDescription;

/// The label with the node's zone.
const ZONE_LABEL: &str = "topology.kubernetes.io/zone";

/// The taint that the autoscaler adds before it deletes a node.
const TO_BE_DELETED: &str = "ToBeDeletedByClusterAutoscaler";

/// The most addresses read. A kubelet writes one or two of each kind.
const NODE_ADDRESSES_MAX: usize = 256;

/// The most taints read. A node has a handful.
const NODE_TAINTS_MAX: usize = 256;

/// The parts of a Node to read.
#[derive(Clone, Debug, Default)]
pub(super) struct NodeWire<'a> {
    zone: Option<&'a str>,
    /// Kinds with addresses.
    addresses: Vec<(&'a str, &'a str)>,
    taints: usize,
    /// The autoscaler has announced the node's deletion.
    has_deletion_taint: bool,
    /// The object is being deleted.
    pub(super) is_deleted: bool,
}

impl<'a> NodeWire<'a> {
    pub(super) fn add_label(&mut self, key: &str, value: &'a str) {
        if key == ZONE_LABEL {
            self.zone = Some(value).filter(|zone| !zone.is_empty());
        }
    }

    pub(super) fn add_taint(&mut self, key: &str) {
        self.taints += 1;
        self.has_deletion_taint |= self.taints <= NODE_TAINTS_MAX && key == TO_BE_DELETED;
    }

    pub(super) fn add_address(&mut self, kind: &'a str, address: &'a str) {
        if self.addresses.len() < NODE_ADDRESSES_MAX {
            self.addresses.push((kind, address));
        }
    }

    pub(super) fn to_description(&self) -> NodeDescription {
        NodeDescription {
            zone: self.zone.map(Into::into),
            addresses: self.primary_addresses(),
            is_leaving: self.is_deleted || self.has_deletion_taint,
        }
    }

    /// The first internal address of each family, else the first external one, as in kube-proxy.
    fn primary_addresses(&self) -> Vec<IpAddr> {
        let of_kind = |wanted: &'static str| {
            let addresses = self.addresses.iter().filter(move |(kind, _)| *kind == wanted);
            addresses.filter_map(|(_, address)| Some(address.parse::<IpAddr>().ok()?.to_canonical()))
        };
        let all: Vec<_> = of_kind("InternalIP").chain(of_kind("ExternalIP")).collect();
        let first = |is_v4| all.iter().copied().find(|address| address.is_ipv4() == is_v4);
        [first(true), first(false)].into_iter().flatten().collect()
    }
}
