//! What is asked of holdfast beside the real kube-proxy, and how long a cluster takes to start.
//!
//! Invariant: the figures of kube-proxy in the table are measured by the same command (docs/conformance.md).

use std::time::Instant;

use holdfast_conformance::{Cluster, Proxy};

use crate::stage::topology;
use crate::{Failure, say};

/// So many connects failed in each drill with the real kube-proxy; a drill that is not here may cost nothing.
const KUBE_PROXY: &str = include_str!("../../../drills.tsv");

const STARTS: u32 = 3;

/// Whether a proxy may have failed so often. The real kube-proxy is what is compared with.
pub(crate) fn is_allowed(drill: &str, proxy: &Proxy, failed: u64) -> bool {
    !matches!(proxy, Proxy::Holdfast { .. }) || failed <= allowed(KUBE_PROXY, drill)
}

fn allowed(table: &str, drill: &str) -> u64 {
    let rows = table.lines().filter_map(|line| line.split_once('\t'));
    rows.filter(|(name, _)| *name == drill).find_map(|(_, count)| count.trim().parse().ok()).unwrap_or(0)
}

pub(crate) fn word(proxy: &Proxy) -> String {
    match proxy {
        Proxy::KubeProxy(mode) => format!("kube-proxy ({mode})"),
        Proxy::Holdfast { .. } => "holdfast".to_owned(),
        Proxy::Nobody => "nobody".to_owned(),
    }
}

/// From nothing until nodes and cluster DNS are ready.
pub(crate) fn starts(proxy: &Proxy) -> Result<bool, Failure> {
    for number in 1..=STARTS {
        let begun = Instant::now();
        let cluster = Cluster::start(&topology(proxy))?;
        let took = begun.elapsed();
        drop(cluster);
        say(&format!("start {number}, {}: {:.1} s", word(proxy), took.as_secs_f64()))?;
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drill_may_cost_what_kube_proxy_costs_and_an_unknown_one_nothing() {
        let table = "reboot\t7\nkill\t0\n";
        assert_eq!((allowed(table, "reboot"), allowed(table, "kill"), allowed(table, "other")), (7, 0, 0));
    }
}
