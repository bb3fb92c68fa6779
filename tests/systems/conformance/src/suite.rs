//! Kubernetes' own tests: their selection, their cluster, and their run.
//!
//! Invariant: a run is bounded, and ends with a report or an error.

use std::fs;
use std::time::Duration;

use crate::program::wait;
use crate::report::Report;
use crate::topology::{Cni, Family, Topology};
use crate::{Cluster, ClusterError};

/// Tests that say nothing about Services on such a cluster: alpha features, SCTP (few kernels have it, and its sockets
/// are not served), and a DNS test that needs an outside forwarder. Disruptive ones run: each checks first whether it
/// may disrupt this cluster.
const SKIPPED: &str = r"\[Feature:|\[Flaky\]|SCTP|DNS configMap|\[Alpha\]|BetaOffByDefault";

/// The same for tests that are selected by name.
const SKIPPED_OF_FEATURES: &str = r"SCTP|\[Flaky\]|\[Alpha\]|BetaOffByDefault|rolling update";

/// Most tests wait; on two processors, more at once delay each other.
const PROCESSES: u8 = 5;

/// Ginkgo ends by itself at its timeout, and reports that.
const END_MARGIN: Duration = Duration::from_secs(120);

/// The selected tests.
#[derive(Clone, Debug)]
pub struct Selection {
    pub focus: String,
    pub skip: String,
    /// Tests that have not run by then fail.
    pub limit: Duration,
}

impl Selection {
    /// The tests whose name matches, except those that say nothing here.
    fn matching(focus: &str) -> Self {
        Self { focus: focus.to_owned(), skip: SKIPPED.to_owned(), limit: minutes(60) }
    }

    /// The tests whose name matches, including features, because the caller names them.
    pub fn named(focus: &str) -> Self {
        Self { skip: SKIPPED_OF_FEATURES.to_owned(), ..Self::matching(focus) }
    }
}

/// A cluster and the tests that run in it.
#[derive(Clone, Debug)]
pub struct Suite {
    pub topology: Topology,
    pub selection: Selection,
    /// holdfast's configuration there.
    pub holdfast: &'static str,
}

/// Source ranges apply to pods whose packets are served; a load balancer test checks that.
const PACKETS_OF_PODS: &str = "[datapath]\nsockets = \"host\"\n\n[packets]\npod_devices = \"auto\"\n";

impl Suite {
    /// The suites of a full run.
    pub fn all() -> Vec<Self> {
        let network = |cni| Self {
            topology: Topology { cni, ..Topology::default() },
            selection: Selection::matching(r"\[sig-network\]"),
            holdfast: "",
        };
        vec![network(Cni::Bridge), network(Cni::PointToPoint), Self::zones(), Self::balancers()]
    }

    /// Three nodes in three zones.
    fn zones() -> Self {
        let focus = r"\[sig-network\].*(Granular Checks: Services|Traffic Distribution|HealthCheckNodePort correctly|\[Feature:IPv6DualStack\])";
        Self {
            topology: Topology { nodes: 3, ..Topology::default() },
            selection: Selection::named(focus),
            holdfast: "",
        }
    }

    /// Load balancer tests assume that a node's first address is IPv4.
    fn balancers() -> Self {
        Self {
            topology: Topology { nodes: 3, family: Family::Ipv4, ..Topology::default() },
            selection: Selection::named(r"\[sig-network\].*LoadBalancer"),
            holdfast: PACKETS_OF_PODS,
        }
    }

    /// One test of each kind, within ten minutes.
    pub fn short() -> Self {
        let kinds = [
            r"(Services|EndpointSlice).*\[Conformance\]",
            r"LoadBalancers.* should have session affinity work for LoadBalancer service with Cluster",
            r"\[Feature:IPv6DualStack\].* should function for (pod|node)-Service: http",
        ];
        let focus = format!(r"\[sig-network\] ({})", kinds.join("|"));
        Self {
            topology: Topology::default(),
            selection: Selection { limit: minutes(9), ..Selection::named(&focus) },
            holdfast: "",
        }
    }

    /// holdfast's configuration there, with further keys of `[packets]`.
    pub fn config(&self, packets: Option<&str>) -> String {
        const PACKETS: &str = "[packets]\n";
        let Some(keys) = packets else { return self.holdfast.to_owned() };
        // If a suite has that section, it is the last one.
        let section = if self.holdfast.contains(PACKETS) { "" } else { PACKETS };
        format!("{}{section}{keys}\n", self.holdfast)
    }

    /// Runs the tests on `cp`. The logs have `e2e.log` and the report.
    pub fn run(selection: &Selection, cluster: &Cluster) -> Result<Report, ClusterError> {
        let machine = cluster.on("cp")?;
        let folder = machine.logs().join("e2e");
        let _ = fs::remove_dir_all(&folder);
        let arguments = arguments(selection, cluster.topology());
        let command: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let mut tests = machine.spawn("e2e", &command)?;
        let ended = wait(selection.limit + END_MARGIN, || !tests.runs());
        let path = folder.join("report.json");
        if ended && path.exists() {
            return Report::read(&path);
        }
        Err(ClusterError::Late {
            awaited: "report of the tests".to_owned(),
            limit: selection.limit,
            logs: cluster.logs_after_end().join("cp/e2e.log"),
            last: String::new(),
        })
    }
}

fn arguments(selection: &Selection, topology: &Topology) -> Vec<String> {
    let ginkgo = [
        "ginkgo".to_owned(),
        format!("--procs={PROCESSES}"),
        "--no-color".to_owned(),
        format!("--timeout={}s", selection.limit.as_secs()),
        format!("--focus={}", selection.focus),
        format!("--skip={}", selection.skip),
        "--json-report=report.json".to_owned(),
        "--output-dir=/var/log/machine/e2e".to_owned(),
        "/opt/kubernetes/e2e.test".to_owned(),
        "--".to_owned(),
        "--provider=skeleton".to_owned(),
        "--kubeconfig=/etc/kubernetes/admin.conf".to_owned(),
        "--kubectl-path=/opt/kubernetes/kubectl".to_owned(),
        // Tests that need several nodes use this number.
        format!("--num-nodes={}", topology.nodes),
        "--disable-log-dump".to_owned(),
    ];
    ginkgo.to_vec()
}

fn minutes(count: u64) -> Duration {
    Duration::from_secs(count * 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn further_packets_keys_share_one_section() {
        let keys = "xdp = \"native\"";
        assert_eq!(Suite::short().config(None), "");
        for suite in Suite::all().into_iter().chain([Suite::short()]) {
            let config = suite.config(Some(keys));
            assert!(config.starts_with(suite.holdfast) && config.ends_with("xdp = \"native\"\n"), "{config}");
            assert_eq!(config.matches("[packets]\n").count(), 1, "{config}");
        }
    }
}
