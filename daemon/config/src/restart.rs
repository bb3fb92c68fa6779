//! Which changes a reload cannot bring about.
//!
//! Invariant: a key is listed if, and only if, the part of the daemon that it is for reads it once, when the daemon
//! starts. A restart costs no traffic, because the datapath stays; but a reload that ignored a key without a word would
//! be a lie.

use super::Config;
use super::agreement::{Clash, own_address};

/// A key that is read once, at the start.
pub(super) struct Key {
    pub(super) name: &'static str,
    differs: fn(&Config, &Config) -> bool,
    /// Puts the value in force into a configuration that was read later.
    keep: fn(&mut Config, &Config),
}

/// A key by its name, and where its value is.
macro_rules! key {
    ($name:literal, $($place:ident).+) => {
        Key {
            name: $name,
            differs: |a, b| a.$($place).+ != b.$($place).+,
            keep: |read, runs| read.$($place).+.clone_from(&runs.$($place).+),
        }
    };
}

pub(super) const RESTART_KEYS: [Key; 31] = [
    key!("node.name", node.name),
    key!("apiserver.encoding", apiserver.encoding),
    key!("kubernetes.enabled", kubernetes.enabled),
    key!("kubernetes.service_proxy_name", kubernetes.service_proxy_name),
    key!("kubernetes.events", kubernetes.events),
    key!("kubernetes.service_imports", kubernetes.service_imports),
    key!("manifests.path", manifests.path),
    key!("services.path", more_services.path),
    key!("datapath.kind", datapath.kind),
    key!("datapath.cgroup", datapath.cgroup),
    key!("datapath.bpffs", datapath.bpffs),
    key!("datapath.limits.services", datapath.limits.services),
    key!("datapath.limits.frontends", datapath.limits.frontends),
    key!("datapath.limits.backends", datapath.limits.backends),
    key!("datapath.stale_sockets.protocols", datapath.stale_sockets.protocols),
    key!("datapath.stale_sockets.namespaces", datapath.stale_sockets.namespaces),
    key!("datapath.sockets", datapath.sockets),
    key!("datapath.udp_sockets", datapath.udp_sockets),
    key!("datapath.exempt_cgroups", datapath.exempt_cgroups),
    key!("packets.enabled", packets.enabled),
    key!("packets.snat_ports", packets.snat_ports),
    key!("packets.dsr", packets.dsr),
    key!("packets.dsr_from", packets.dsr_from),
    key!("packets.mark", packets.mark),
    key!("packets.forward_mark", packets.forward_mark),
    key!("kube_proxy.health", kube_proxy.health),
    key!("kube_proxy.metrics", kube_proxy.metrics),
    key!("state.path", state.path),
    key!("admin.listen", admin.listen),
    key!("admin.socket", admin.socket),
    key!("log.format", log.format),
];

impl Config {
    /// The part of `read`, a later state of the file, that comes into force in a process that runs with `self`; and the
    /// keys with new values that wait for a restart, in the order of `RESTART_KEYS`.
    pub fn reloaded(&self, mut read: Self) -> (Self, Vec<&'static str>) {
        let waiting = self.restart_keys_changed(&read);
        RESTART_KEYS.iter().for_each(|key| (key.keep)(&mut read, self));
        (read, waiting)
    }

    /// Says which block of this configuration, as it comes into force, has the address at which the daemon listens
    /// until its restart. The file gives another one, so nothing is wrong in it; but clients of the daemon would be led
    /// to the block's backends.
    pub fn has_its_own_address(&self) -> Result<(), String> {
        let clash = |block| own_address(block, &self.admin).into_iter().next().map(|clash| (block, clash));
        match self.services.iter().find_map(clash) {
            None => Ok(()),
            Some((block, Clash { message, .. })) => Err(format!(
                "[[service]] {}/{}: {message} until the daemon is restarted: restart it, or give the block another \
                 frontend",
                block.namespace, block.name
            )),
        }
    }

    /// The keys with new values in `other` that take effect only after a restart.
    fn restart_keys_changed(&self, other: &Self) -> Vec<&'static str> {
        RESTART_KEYS.iter().filter(|key| (key.differs)(self, other)).map(|key| key.name).collect()
    }
}
