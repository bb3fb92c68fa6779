//! Finds other proxies that serve, or served, on this node: kube-proxy, Cilium, Calico, kube-router or Antrea.
//!
//! Invariant: this module only looks; it reports its findings and changes nothing. Chains of `iptables-legacy` are
//! not read, because the kernel shows them only through a separate system call; a kube-proxy that uses them is found
//! by its port while it runs.

mod cilium;
pub mod netfilter_rules;
mod rule_match;
mod rule_target;
mod rules;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use holdfast_status::views::proxies::{LISTENS_EVIDENCE, OtherProxy};
use tokio::sync::watch;

use crate::devices;
use holdfast_host::logging::messages::{self, say};

pub use rule_match::{RuleMatch, find_rules, host_ports};

/// How often the node is scanned again: an operator may start another proxy while holdfast runs.
const RESCAN_EVERY: Duration = Duration::from_secs(300);

/// How many bytes of the list of TCP sockets are read: listeners come first, and some hundreds of them fit.
const SOCKETS_BYTES_MAX: u64 = 128 << 10;

const CILIUM: &str = "Cilium";
const KUBE_ROUTER: &str = "kube-router";
const ANTREA: &str = "Antrea";

/// The health check ports of other proxies. Finding processes by name would mean reading all of them.
const PORTS: [(u16, &str); 3] = [(10249, "kube-proxy"), (cilium::PORT, CILIUM), (9099, "Calico")];

/// The files that these proxies leave in the kernel's file systems.
const TRACES: [(&str, &str); 7] = [
    ("sys/class/net/kube-ipvs0", "kube-proxy"),
    ("sys/fs/bpf/cilium", CILIUM),
    ("sys/fs/bpf/tc/globals/cilium_lb4_services_v2", CILIUM),
    ("sys/fs/bpf/calico", "Calico"),
    ("sys/fs/bpf/tc/globals/cali_v4_nat_fe3", "Calico"),
    ("sys/class/net/kube-dummy-if", KUBE_ROUTER),
    ("sys/class/net/antrea-gw0", ANTREA),
];

/// The names of the proxies that may be found.
pub const PROXY_NAMES: [&str; 5] = ["kube-proxy", CILIUM, "Calico", KUBE_ROUTER, ANTREA];

/// Scans periodically, and logs new findings. This daemon itself listens at `own_port`, which is one of their ports.
pub async fn run(
    found: watch::Sender<Arc<[OtherProxy]>>,
    own_port: impl Fn() -> Option<u16> + Send + 'static,
) {
    loop {
        let own = own_port();
        let look = tokio::task::spawn_blocking(move || {
            let lookups = devices::rule_tables().unwrap_or_default();
            find_proxies(Path::new("/"), rules::read_proxies(), own, &lookups)
        });
        if let Ok(now) = look.await {
            log_new(&found.borrow(), &now);
            found.send_replace(now.into());
        }
        tokio::time::sleep(RESCAN_EVERY).await;
    }
}

fn log_new(before: &[OtherProxy], now: &[OtherProxy]) {
    for it in now.iter().filter(|it| before.iter().all(|known| known.proxy != it.proxy)) {
        let evidence = it.evidence.join(", ");
        say!(warn, messages::OTHER_PROXY, proxy = it.proxy, evidence);
    }
}

/// The proxies found below this root or by these rules; for Cilium also by routing `lookups`.
fn find_proxies(
    root: &Path,
    rules: Vec<(&'static str, String)>,
    own: Option<u16>,
    lookups: &BTreeSet<cilium::RuleTable>,
) -> Vec<OtherProxy> {
    let mut found: BTreeMap<&'static str, Vec<String>> = BTreeMap::new();
    let traces = TRACES.iter().filter(|(path, _)| root.join(path).exists());
    let traces = traces.map(|(path, proxy)| (*proxy, format!("/{path}")));
    for (proxy, evidence) in
        find_listeners(&root.join("proc/net"), own).into_iter().chain(rules).chain(traces)
    {
        found.entry(proxy).or_default().push(evidence);
    }
    let other = |(proxy, evidence)| OtherProxy { proxy, evidence, traces: Vec::new() };
    let with_traces = |it: OtherProxy| match it.proxy {
        CILIUM => {
            let chains = it.evidence.iter().any(|evidence| evidence.starts_with(rules::CHAIN_OF_IPTABLES));
            OtherProxy { traces: cilium::traces(root, it.is_running(), chains, lookups), ..it }
        }
        _ => it,
    };
    found.into_iter().map(other).map(with_traces).collect()
}

/// The proxies with a listening socket, in the files of both families.
fn find_listeners(net: &Path, own: Option<u16>) -> Vec<(&'static str, String)> {
    let listed = ["tcp", "tcp6"].map(|name| read_start(&net.join(name)).unwrap_or_default());
    let ports: BTreeSet<u16> =
        listed.iter().flat_map(|list| list.lines()).filter_map(parse_listening_port).collect();
    let known = PORTS.iter().filter(|(port, _)| ports.contains(port) && own != Some(*port));
    known.map(|(port, proxy)| (*proxy, format!("{LISTENS_EVIDENCE} {port}"))).collect()
}

fn read_start(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(SOCKETS_BYTES_MAX).read_to_string(&mut text)?;
    Ok(text)
}

/// The port of a line, if its socket listens: number, own address, peer, state 0A.
fn parse_listening_port(line: &str) -> Option<u16> {
    let mut words = line.split_whitespace().skip(1);
    let (own, _, state) = (words.next()?, words.next()?, words.next()?);
    let (_, port) = own.rsplit_once(':').filter(|_| state == "0A")?;
    u16::from_str_radix(port, 16).ok()
}
