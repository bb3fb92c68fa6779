//! Finds Cilium on this node: the packets and connects that its programs translate, and what it leaves behind.
//!
//! Cilium's agent pins the links of its programs under its own names, which prove more than a configuration that may
//! have changed since: programs at the cgroup are pinned while Cilium translates connects, and those that keep node
//! ports from being bound only while its kube-proxy replacement is on. All these programs outlive the agent, and
//! then no process updates their tables.
//!
//! Invariant: this module looks at names, and changes nothing. It reads at most [`ENTRIES_MAX`] names of a folder. It
//! suggests removing a part that the pod network needs only if no agent runs.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use holdfast_status::views::proxies::Trace;

/// The health check port of Cilium's agent.
pub(super) const PORT: u16 = 9879;

const SOCKETS: &str = "sys/fs/bpf/cilium/socketlb/links/cgroup";
const DEVICES: &str = "sys/fs/bpf/cilium/devices";
const PINS: &str = "sys/fs/bpf/cilium";
const PODS: &str = "sys/fs/bpf/cilium/endpoints";
const MAPS: &str = "sys/fs/bpf/tc/globals";
const LINKS: &str = "sys/class/net";

/// The programs that translate connects, by the names of their pins.
const CONNECTS: [&str; 2] = ["cil_sock4_connect", "cil_sock6_connect"];
/// The programs that exist only while the kube-proxy replacement is on.
const GUARDS: [&str; 2] = ["cil_sock4_post_bind", "cil_sock6_post_bind"];
const FROM_OUTSIDE: &str = "cil_from_netdev";

/// The route tables of Cilium's own proxy, to which its rules lead.
const TABLES: [u32; 2] = [2004, 2005];
/// Cilium's own devices. `cilium_net` goes with `cilium_host`.
const OWN_LINKS: [&str; 4] = ["cilium_host", "cilium_vxlan", "cilium_geneve", "cilium_wg0"];

/// The most names read in one folder: each pod has one, each map has one.
const ENTRIES_MAX: usize = 4096;

/// A route table that a rule leads to, and whether it is for IPv4.
pub(super) type RuleTable = (u32, bool);

/// The findings about Cilium.
#[derive(Debug, Default)]
struct CiliumState {
    is_running: bool,
    sockets: BTreeSet<String>,
    /// Devices at which packets from outside go through Cilium's programs.
    devices: BTreeSet<String>,
    pods: usize,
    pins: bool,
    maps: bool,
    chains: bool,
    lookups: Vec<RuleTable>,
    links: Vec<&'static str>,
}

/// All traces of Cilium below this root and in the kernel's lists: chains of iptables, and routing `lookups`.
pub(super) fn traces(root: &Path, runs: bool, chains: bool, lookups: &BTreeSet<RuleTable>) -> Vec<Trace> {
    let at = |path: &str| list_names(&root.join(path));
    let takes_packets =
        |device: &String| root.join(DEVICES).join(device).join("links").join(FROM_OUTSIDE).exists();
    let is_own = |device: &String| !device.starts_with("cilium_");
    let seen = CiliumState {
        is_running: runs,
        sockets: at(SOCKETS),
        devices: at(DEVICES).into_iter().filter(is_own).filter(takes_packets).collect(),
        pods: at(PODS).len(),
        pins: root.join(PINS).exists(),
        maps: at(MAPS).iter().any(|name| name.starts_with("cilium_")),
        chains,
        lookups: lookups.iter().filter(|(table, _)| TABLES.contains(table)).copied().collect(),
        links: OWN_LINKS.into_iter().filter(|name| root.join(LINKS).join(name).exists()).collect(),
    };
    if seen.is_running { seen.running_traces() } else { seen.leftover_traces() }
}

fn list_names(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().take(ENTRIES_MAX).filter_map(Result::ok);
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

impl CiliumState {
    fn translates_connects(&self) -> bool {
        CONNECTS.iter().any(|name| self.sockets.contains(*name))
    }

    fn replaces_kube_proxy(&self) -> bool {
        GUARDS.iter().any(|name| self.sockets.contains(*name))
    }

    fn device_names(&self) -> String {
        self.devices.iter().cloned().collect::<Vec<_>>().join(", ")
    }

    /// The traces while Cilium's agent runs: only what translates, and the setting that ends it.
    fn running_traces(&self) -> Vec<Trace> {
        let setting = if self.replaces_kube_proxy() {
            "kubeProxyReplacement: false"
        } else {
            "socketLB.enabled: false"
        };
        let connects = self.translates_connects().then(|| {
            Trace::new_translating("translates connects of processes and pods, at the cgroup", setting)
        });
        let packets = (self.replaces_kube_proxy() && !self.devices.is_empty()).then(|| {
            let what = format!("translates packets of clients outside, at {}", self.device_names());
            Trace::for_clients(what, "kubeProxyReplacement: false, when their connections have ended")
        });
        let is_left_to_pods = self.pods > 0 && !self.translates_connects();
        let pods = is_left_to_pods.then(|| {
            let what =
                format!("translates packets of pods to ClusterIPs, at the devices of {} pods", self.pods);
            Trace::new_translating(what, "nothing; it does not affect connects that holdfast has served")
        });
        connects.into_iter().chain(packets).chain(pods).collect()
    }

    /// The traces after the agent has gone, in the order of removal: first what translates, then what that needs.
    fn leftover_traces(&self) -> Vec<Trace> {
        let programs = [
            (!self.sockets.is_empty()).then(|| {
                let what = "programs at the cgroup keep translating connects by a stale table";
                Trace::new_translating(what, "rm -r /sys/fs/bpf/cilium/socketlb")
            }),
            (!self.devices.is_empty()).then(|| {
                let what = format!("programs at {} keep translating by stale tables", self.device_names());
                Trace::for_clients(what, "rm -r /sys/fs/bpf/cilium/devices")
            }),
            (self.pods > 0).then(|| {
                let what = format!("programs at the devices of {} pods", self.pods);
                Trace::new_translating(what, "rm -r /sys/fs/bpf/cilium/endpoints")
            }),
            self.pins.then(|| Trace::new_idle("its folder of pins", "rm -r /sys/fs/bpf/cilium")),
            self.maps.then(|| Trace::new_idle("maps", "rm /sys/fs/bpf/tc/globals/cilium_*")),
            self.chains.then(|| {
                let remove = "for i in iptables ip6tables; do $i-save | grep -v CILIUM_ | $i-restore; done";
                Trace::new_idle("chains of iptables", remove)
            }),
        ];
        let links = self.links.iter().map(|link| {
            Trace::new_idle(format!("the device {link}, with its routes"), format!("ip link delete {link}"))
        });
        programs.into_iter().flatten().chain(self.lookups.iter().map(rule_trace)).chain(links).collect()
    }
}

fn rule_trace((table, is_v4): &RuleTable) -> Trace {
    let family = if *is_v4 { "-4" } else { "-6" };
    Trace::new_idle(
        format!("a rule of routing, to the table {table}"),
        format!("ip {family} rule delete lookup {table}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: &str = "
        sys/fs/bpf/cilium/socketlb/links/cgroup/cil_sock4_connect
        sys/fs/bpf/cilium/socketlb/links/cgroup/cil_sock4_post_bind
        sys/fs/bpf/cilium/devices/eth0/links/cil_from_netdev
        sys/fs/bpf/cilium/devices/cilium_host/links/cil_from_netdev
        sys/fs/bpf/cilium/endpoints/17/links/cil_from_container
        sys/fs/bpf/cilium/endpoints/99/links/cil_from_container
        sys/fs/bpf/tc/globals/cilium_lb4_services_v2
        sys/class/net/cilium_host/ifindex
        sys/class/net/cilium_vxlan/ifindex";

    /// Compares the traces of a node with these files.
    #[track_caller]
    fn check(files: &str, runs: bool, chains: bool, lookups: &[RuleTable], expected: &[(bool, &str, &str)]) {
        let root = tempfile::tempdir().unwrap();
        for file in files.split_whitespace().map(|file| root.path().join(file)) {
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, "").unwrap();
        }
        let found = traces(root.path(), runs, chains, &lookups.iter().copied().collect());
        let found: Vec<_> =
            found.iter().map(|it| (it.translates, it.what.as_str(), it.remove.as_str())).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn a_node_without_cilium_has_no_traces() {
        check("", false, false, &[(255, true), (254, false)], &[]);
        check("", true, true, &[], &[]);
    }

    #[test]
    fn kube_proxy_replacement_translates_connects_and_packets() {
        let packets = "kubeProxyReplacement: false, when their connections have ended";
        let expected = [
            (true, "translates connects of processes and pods, at the cgroup", "kubeProxyReplacement: false"),
            (true, "translates packets of clients outside, at eth0", packets),
        ];
        check(WHOLE, true, true, &[(2004, true)], &expected);
    }

    #[test]
    fn without_the_replacement_sockets_may_be_translated_alone() {
        let files = WHOLE.replace("cil_sock4_post_bind", "cil_sock6_connect");
        let what = "translates connects of processes and pods, at the cgroup";
        check(&files, true, false, &[], &[(true, what, "socketLB.enabled: false")]);
    }

    #[test]
    fn without_programs_at_the_cgroup_it_still_translates_at_the_devices_of_pods() {
        let files: String = WHOLE.split_inclusive('\n').filter(|line| !line.contains("socketlb")).collect();
        let what = "translates packets of pods to ClusterIPs, at the devices of 2 pods";
        let remove = "nothing; it does not affect connects that holdfast has served";
        check(&files, true, true, &[], &[(true, what, remove)]);
    }

    #[test]
    fn leftovers_of_an_agent_are_named_with_the_removing_command() {
        let sockets = "programs at the cgroup keep translating connects by a stale table";
        let chains = "for i in iptables ip6tables; do $i-save | grep -v CILIUM_ | $i-restore; done";
        let expected = [
            (true, sockets, "rm -r /sys/fs/bpf/cilium/socketlb"),
            (true, "programs at eth0 keep translating by stale tables", "rm -r /sys/fs/bpf/cilium/devices"),
            (true, "programs at the devices of 2 pods", "rm -r /sys/fs/bpf/cilium/endpoints"),
            (false, "its folder of pins", "rm -r /sys/fs/bpf/cilium"),
            (false, "maps", "rm /sys/fs/bpf/tc/globals/cilium_*"),
            (false, "chains of iptables", chains),
            (false, "a rule of routing, to the table 2004", "ip -4 rule delete lookup 2004"),
            (false, "a rule of routing, to the table 2005", "ip -6 rule delete lookup 2005"),
            (false, "the device cilium_host, with its routes", "ip link delete cilium_host"),
            (false, "the device cilium_vxlan, with its routes", "ip link delete cilium_vxlan"),
        ];
        check(WHOLE, false, true, &[(2004, true), (2005, false), (7, true)], &expected);
    }
}
