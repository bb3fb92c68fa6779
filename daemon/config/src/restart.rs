//! Changes that need a restart.
//!
//! Invariant: a key has `restart` in the declaration of its table if, and only if, its part of the daemon reads it
//! once, at the start. A restart costs no traffic, because the datapath stays; but a reload must not ignore a key
//! silently.

use std::collections::BTreeSet;

use super::Config;
use super::block_conflicts::{BlockConflict, admin_conflicts};
use super::keys::{Keys as _, RestartKey};

/// The keys that a file has, or had since the process started.
#[derive(Clone, Debug, Default)]
pub struct WrittenKeys(BTreeSet<String>);

/// Equal values are equal, wherever they come from.
impl PartialEq for WrittenKeys {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for WrittenKeys {}

impl WrittenKeys {
    /// Adds a key. The items of blocks are no keys of their own.
    pub(super) fn add(&mut self, path: String) {
        if !path.contains('[') {
            self.0.insert(path);
        }
    }

    /// The key if a file has or had it, else those that decide about its default.
    fn find_cause(&self, key: &'static str) -> Vec<&'static str> {
        match DERIVED.into_iter().find(|(derived, _)| *derived == key && !self.0.contains(key)) {
            Some((_, causes)) => causes.iter().copied().filter(|cause| self.0.contains(*cause)).collect(),
            None => vec![key],
        }
    }
}

/// Keys whose defaults follow from other keys, and these. A key of `[kube_proxy]` follows from keys that wait for a
/// restart too, and so are named themselves.
const DERIVED: [(&str, &[&str]); 3] = [
    ("kubernetes.enabled", &["apiserver.endpoints", "apiserver.kubeconfig"]),
    ("kube_proxy.health", &[]),
    ("kube_proxy.metrics", &[]),
];

impl Config {
    /// The part of `read`, a later state of the file, that takes effect in a process with `self` in force; and the
    /// changed keys that wait for a restart, in declaration order. Where only the default of a key changed, the written
    /// keys are named that changed it.
    pub fn merge_reload(&self, mut read: Self) -> (Self, Vec<&'static str>) {
        let changed = read.keep(self).into_iter().filter(|key| key.differs);
        read.written_keys.0.extend(self.written_keys.0.iter().cloned());
        let written = &read.written_keys;
        let waiting = changed.flat_map(|key| written.find_cause(key.name)).collect();
        (read, waiting)
    }

    /// Restores the values in force of the keys that wait for a restart. Returns these keys.
    pub(super) fn keep(&mut self, in_force: &Self) -> Vec<RestartKey> {
        let tables = [
            self.node.keep(&in_force.node),
            self.apiserver.keep(&in_force.apiserver),
            self.kubernetes.keep(&in_force.kubernetes),
            self.manifests.keep(&in_force.manifests),
            self.more_services.keep(&in_force.more_services),
            self.resolver.keep(&in_force.resolver),
            self.announce.keep(&in_force.announce),
            self.datapath.keep(&in_force.datapath),
            self.packets.keep(&in_force.packets),
            self.kube_proxy.keep(&in_force.kube_proxy),
            self.hold.keep(&in_force.hold),
            self.state.keep(&in_force.state),
            self.admin.keep(&in_force.admin),
            self.log.keep(&in_force.log),
        ];
        tables.concat()
    }

    /// Finds a block with the address at which the daemon listens until its restart. The file has another listen
    /// address, so the file is fine; but the daemon's clients would reach the block's backends.
    pub fn check_admin_address(&self) -> Result<(), String> {
        let clash =
            |block| admin_conflicts(block, &self.admin).into_iter().next().map(|clash| (block, clash));
        match self.services.iter().find_map(clash) {
            None => Ok(()),
            Some((block, BlockConflict { message, .. })) => Err(format!(
                "[[service]] {}/{}: {message} until the daemon is restarted: restart it, or give the block another \
                 frontend",
                block.namespace, block.name
            )),
        }
    }
}
