//! Which changes a reload cannot bring about.
//!
//! Invariant: a key says `restart` in the declaration of its table if, and only if, the part of the daemon that it is
//! for reads it once, when the daemon starts. A restart costs no traffic, because the datapath stays; but a reload that
//! ignored a key without a word would be a lie.

use super::Config;
use super::block_conflicts::{BlockConflict, admin_conflicts};
use super::keys::{Keys as _, RestartKey};

impl Config {
    /// The part of `read`, a later state of the file, that comes into force in a process that runs with `self`; and the
    /// keys with new values that wait for a restart, in the order in which the tables declare them.
    pub fn merge_reload(&self, mut read: Self) -> (Self, Vec<&'static str>) {
        let changed = read.keep(self).into_iter().filter(|key| key.differs);
        let waiting = changed.map(|key| key.name).collect();
        (read, waiting)
    }

    /// Takes over the values in force of the keys that wait for a restart. Returns each of these keys.
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

    /// Says which block of this configuration, as it comes into force, has the address at which the daemon listens
    /// until its restart. The file gives another one, so nothing is wrong in it; but clients of the daemon would be led
    /// to the block's backends.
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
