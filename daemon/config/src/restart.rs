//! Changes that need a restart.
//!
//! Invariant: a key has `restart` in the declaration of its table if, and only if, its part of the daemon reads it
//! once, at the start. A restart costs no traffic, because the datapath stays; but a reload must not ignore a key
//! silently.

use super::Config;
use super::block_conflicts::{BlockConflict, admin_conflicts};
use super::keys::{Keys as _, RestartKey};

impl Config {
    /// The part of `read`, a later state of the file, that takes effect in a process with `self` in force; and the
    /// changed keys that wait for a restart, in declaration order. Where only the default of a key changed, the written
    /// keys are named that changed it.
    pub fn merge_reload(&self, mut read: Self) -> (Self, Vec<&'static str>) {
        let changed = read.keep(self).into_iter().filter(|key| key.differs);
        read.written_keys.add_all(&self.written_keys);
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
