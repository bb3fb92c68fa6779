//! Kubernetes' own tests: which of them, in which cluster, and their run.
//!
//! Invariant: a run is bounded, and ends with a report or an error.

use std::fs;
use std::time::Duration;

use crate::program::wait;
use crate::report::Report;
use crate::topology::{Cni, Family, Topology};
use crate::{Cluster, ClusterError};

/// What says nothing of Services on such a cluster: alpha features, SCTP (few kernels have it, and its sockets are not
/// served), and a test of DNS that wants a forwarder outside. The disruptive ones are there: each looks first whether
/// it may disrupt this cluster.
const SKIPPED: &str = r"\[Feature:|\[Flaky\]|SCTP|DNS configMap|\[Alpha\]|BetaOffByDefault";

/// Tests of features that are there, chosen by name.
const SKIPPED_OF_FEATURES: &str = r"SCTP|\[Flaky\]|\[Alpha\]|BetaOffByDefault|rolling update";

/// Most tests wait; on two processors more at once make each other late.
const PROCESSES: u8 = 5;

/// Ginkgo ends by itself when its time is up, and says so in its report.
const END_MARGIN: Duration = Duration::from_secs(120);

/// Which tests run.
#[derive(Clone, Debug)]
pub struct Selection {
    pub focus: String,
    pub skip: String,
    /// After this, what has not run fails.
    pub limit: Duration,
}

impl Selection {
    /// The tests with a name that matches, but for those that say nothing here.
    fn matching(focus: &str) -> Self {
        Self { focus: focus.to_owned(), skip: SKIPPED.to_owned(), limit: minutes(60) }
    }

    /// The tests with a name that matches, those of features too: the caller has asked for them by name.
    pub fn named(focus: &str) -> Self {
        Self { skip: SKIPPED_OF_FEATURES.to_owned(), ..Self::matching(focus) }
    }
}

/// A cluster and the tests that run in it.
#[derive(Clone, Debug)]
pub struct Suite {
    pub topology: Topology,
    pub selection: Selection,
    /// What holdfast has to be told there.
    pub holdfast: &'static str,
}

/// Source ranges bind pods where their packets are served; a test of load balancers looks for that.
const PACKETS_OF_PODS: &str = "[datapath]\nsockets = \"host\"\n\n[packets]\npod_devices = \"auto\"\n";

impl Suite {
    /// What a whole run is made of.
    pub fn all() -> Vec<Self> {
        let network = |cni| Self {
            topology: Topology { cni, ..Topology::default() },
            selection: Selection::matching(r"\[sig-network\]"),
            holdfast: "",
        };
        vec![network(Cni::Bridge), network(Cni::PointToPoint), Self::zones(), Self::balancers()]
    }

    /// Three nodes are three zones.
    fn zones() -> Self {
        let focus = r"\[sig-network\].*(Granular Checks: Services|Traffic Distribution|HealthCheckNodePort correctly|\[Feature:IPv6DualStack\])";
        Self {
            topology: Topology { nodes: 3, ..Topology::default() },
            selection: Selection::named(focus),
            holdfast: "",
        }
    }

    /// Tests of load balancers take a node's first address for one of IPv4.
    fn balancers() -> Self {
        Self {
            topology: Topology { nodes: 3, family: Family::Ipv4, ..Topology::default() },
            selection: Selection::named(r"\[sig-network\].*LoadBalancer"),
            holdfast: PACKETS_OF_PODS,
        }
    }

    /// One of each kind, within ten minutes.
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

    /// What holdfast has to be told there, with further keys of `[packets]`.
    pub fn config(&self, packets: Option<&str>) -> String {
        const PACKETS: &str = "[packets]\n";
        let Some(keys) = packets else { return self.holdfast.to_owned() };
        // Where a suite has that section, nothing stands behind it.
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
        // Tests that need several nodes believe this, not what they see.
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
