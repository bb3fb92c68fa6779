//! How many connects may fail in a drill with holdfast, by the failures with the real kube-proxy, and the start time
//! of a cluster with either.
//!
//! Invariant: the table's results of kube-proxy are measured by the same command (docs/conformance.md).

use std::time::Duration;

use holdfast_conformance::{Cluster, Mode, Proxy};
use holdfast_fixtures::clock::Stopwatch;

use crate::stage::topology;
use crate::{Failure, say};

/// The failed connects in each drill with the real kube-proxy; in an unlisted drill none may fail.
const KUBE_PROXY: &str = include_str!("../../../drills.tsv");

/// The starts of each proxy, in turns; an odd number has a median.
const STARTS: usize = 5;

/// Whether this many connects may fail in this drill. Other proxies are only the reference, and have no limit.
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
        Proxy::Nobody => "no proxy".to_owned(),
    }
}

/// Prints the times until nodes and cluster DNS are ready, with holdfast and the real kube-proxy in turns, so that
/// other load affects both. Returns whether holdfast's median was no slower than kube-proxy's slowest.
pub(crate) fn starts() -> Result<bool, Failure> {
    let mut own = (Proxy::Holdfast { config: String::new() }, Vec::new());
    let mut theirs = (Proxy::KubeProxy(Mode::Nftables), Vec::new());
    for number in 0..STARTS {
        let mut turns = [&mut own, &mut theirs];
        // The second proxy profits from warm caches, so they swap.
        turns.rotate_left(number % 2);
        for (proxy, times) in turns {
            times.push(start(proxy)?);
        }
    }
    for (proxy, times) in [&mut own, &mut theirs] {
        times.sort_unstable();
        say(&format!("{}: {times:.1?}, middle {:.1?}", word(proxy), middle(times)))?;
    }
    Ok(is_as_soon(&own.1, &theirs.1))
}

/// Whether our median is no slower than their slowest; both are sorted.
fn is_as_soon(own: &[Duration], theirs: &[Duration]) -> bool {
    middle(own) <= theirs.last().copied().unwrap_or_default()
}

fn middle(sorted: &[Duration]) -> Duration {
    sorted.get(sorted.len() / 2).copied().unwrap_or_default()
}

fn start(proxy: &Proxy) -> Result<Duration, Failure> {
    let begun = Stopwatch::start();
    let cluster = Cluster::start(&topology(proxy)?)?;
    let took = begun.read();
    drop(cluster);
    say(&format!("a start, {}: {:.1} s", word(proxy), took.as_secs_f64()))?;
    Ok(took)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drill_may_cost_as_much_as_with_kube_proxy() {
        let table = "reboot\t7\nkill\t0\n";
        assert_eq!((allowed(table, "reboot"), allowed(table, "kill"), allowed(table, "other")), (7, 0, 0));
    }

    #[test]
    fn the_median_start_is_within_kube_proxys_slowest() {
        let times = |seconds: [u64; 3]| seconds.map(Duration::from_secs).to_vec();
        for (own, theirs, is_soon) in
            [([20, 25, 90], [21, 22, 25], true), ([20, 26, 26], [21, 22, 25], false)]
        {
            assert_eq!(is_as_soon(&times(own), &times(theirs)), is_soon, "{own:?} beside {theirs:?}");
        }
    }
}
