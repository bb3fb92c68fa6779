//! Which changes a reload cannot bring about.
//!
//! Invariant: a key is listed if, and only if, its owner reads it once, when the daemon starts. Restarting costs
//! no traffic, because the datapath stays; but a reload that silently ignored a key would be a lie.

use super::Config;

/// A key with the question whether it differs.
pub(super) type Key = (&'static str, fn(&Config, &Config) -> bool);

pub(super) const RESTART_KEYS: [Key; 21] = [
    ("node.name", |a, b| a.node.name != b.node.name),
    ("kubernetes.enabled", |a, b| a.kubernetes.enabled != b.kubernetes.enabled),
    ("kubernetes.service_proxy_name", |a, b| {
        a.kubernetes.service_proxy_name != b.kubernetes.service_proxy_name
    }),
    ("kubernetes.events", |a, b| a.kubernetes.events != b.kubernetes.events),
    ("manifests.path", |a, b| a.manifests.path != b.manifests.path),
    ("datapath.kind", |a, b| a.datapath.kind != b.datapath.kind),
    ("datapath.cgroup", |a, b| a.datapath.cgroup != b.datapath.cgroup),
    ("datapath.bpffs", |a, b| a.datapath.bpffs != b.datapath.bpffs),
    ("datapath.limits.services", |a, b| a.datapath.limits.services != b.datapath.limits.services),
    ("datapath.limits.frontends", |a, b| a.datapath.limits.frontends != b.datapath.limits.frontends),
    ("datapath.limits.backends", |a, b| a.datapath.limits.backends != b.datapath.limits.backends),
    ("datapath.stale_sockets.protocols", |a, b| {
        a.datapath.stale_sockets.protocols != b.datapath.stale_sockets.protocols
    }),
    ("datapath.stale_sockets.namespaces", |a, b| {
        a.datapath.stale_sockets.namespaces != b.datapath.stale_sockets.namespaces
    }),
    ("datapath.sockets", |a, b| a.datapath.sockets != b.datapath.sockets),
    ("datapath.udp_sockets", |a, b| a.datapath.udp_sockets != b.datapath.udp_sockets),
    ("datapath.exempt_cgroups", |a, b| a.datapath.exempt_cgroups != b.datapath.exempt_cgroups),
    ("packets.mark", |a, b| a.packets.mark != b.packets.mark),
    ("state.path", |a, b| a.state.path != b.state.path),
    ("admin.listen", |a, b| a.admin.listen != b.admin.listen),
    ("admin.socket", |a, b| a.admin.socket != b.admin.socket),
    ("log.format", |a, b| a.log.format != b.log.format),
];

impl Config {
    /// The keys whose new values in `other` take effect only after a restart, in the order of the file.
    pub fn restart_keys_changed(&self, other: &Self) -> Vec<&'static str> {
        RESTART_KEYS.iter().filter(|(_, differ)| differ(self, other)).map(|(key, _)| *key).collect()
    }
}
