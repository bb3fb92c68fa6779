//! The cost of each node's proxy under a small version of clusterloader2's `load` test: pods of Services of three
//! sizes are created, replaced by another number, and deleted.
//!
//! Invariant: the numbers of pods and the order of changes are equal for every proxy, and all results are from the
//! proxy's own metrics, by kube-proxy's names. They are compared, not judged: a change's time begins with its pod's
//! status, so most of it is the controllers'.

use std::time::Duration;

use holdfast_conformance::{Cluster, Proxy};
use holdfast_fixtures::clock::Stopwatch;

use crate::stage::{SETTLE_MAX, eventually, nodes, topology};
use crate::{Failure, figures, say};

/// Deployments of one size.
struct Kind {
    name: &'static str,
    groups: u32,
    pods: u32,
}

/// clusterloader2 has 250, 30 and 5 pods: a quarter of all pods in large groups, a quarter in middle ones, half in
/// small ones. Two processors hold at most a tenth of one of its namespaces.
const KINDS: [Kind; 3] = [
    Kind { name: "big", groups: 1, pods: 24 },
    Kind { name: "medium", groups: 4, pods: 6 },
    Kind { name: "small", groups: 24, pods: 2 },
];

/// The number of pods after the change, in percent of the first one: clusterloader2 draws from 50 to 150.
const SCALES: [u32; 5] = [50, 150, 100, 67, 133];

/// The pods' image, which nodes have from the start.
const IMAGE: &str = "registry.k8s.io/e2e-test-images/agnhost:2.66.1";

const GONE: [&str; 6] = ["-n", "load", "wait", "--for=delete", "pods,endpointslices", "--all"];

const METRICS: &str = "http://127.0.0.1:10249/metrics";
const PROGRAMMING: &str = "kubeproxy_network_programming_duration_seconds_bucket";
const CPU: &str = "process_cpu_seconds_total";
const MEMORY: &str = "process_resident_memory_bytes";

/// Replaces the pods once, deletes them, and prints the proxies' metrics.
pub(crate) fn run(proxy: &Proxy) -> Result<bool, Failure> {
    let cluster = Cluster::start(&topology(proxy)?)?;
    cluster.apply("{apiVersion: v1, kind: Namespace, metadata: {name: load}}")?;
    let (before, begun) = (Sample::of_all(&cluster)?, Stopwatch::start());
    let mut most = before.memory;
    for round in 0..=1 {
        cluster.apply(&manifest(round))?;
        rolled_out(&cluster)?;
        most = most.max(Sample::of_all(&cluster)?.memory);
    }
    cluster.kubectl(&["-n", "load", "delete", "deployments,services", "--all"])?;
    eventually("all endpoints gone", || cluster.kubectl(&GONE).map(drop))?;
    let (took, after) = (begun.read(), Sample::of_all(&cluster)?);
    report(proxy, took, &after.since(&before), most.max(after.memory))
}

/// All deployments and their Services, in the given round.
fn manifest(round: u32) -> String {
    let groups = KINDS.iter().flat_map(|kind| (0..kind.groups).map(move |group| (kind, group)));
    let scales = SCALES.iter().cycle();
    groups
        .zip(scales)
        .map(|((kind, group), scale)| {
            let percent = if round == 0 { 100 } else { *scale };
            let pods = (kind.pods * percent).div_ceil(100);
            deployed(&format!("{}-{group}", kind.name), pods, round)
        })
        .collect()
}

/// A Service and its deployment. A new round is another template: every pod is replaced.
fn deployed(name: &str, pods: u32, round: u32) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: load}}\n\
         spec: {{selector: {{group: {name}}}, ports: [{{port: 80}}]}}\n---\n\
         apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: {name}, namespace: load}}\nspec:\n  \
         replicas: {pods}\n  selector: {{matchLabels: {{group: {name}}}}}\n  template:\n    \
         metadata: {{labels: {{group: {name}, round: \"{round}\"}}}}\n    spec:\n      \
         terminationGracePeriodSeconds: 1\n      containers:\n      \
         - {{name: pause, image: {IMAGE}, imagePullPolicy: Never, args: [pause]}}\n---\n"
    )
}

fn rolled_out(cluster: &Cluster) -> Result<(), Failure> {
    let names = KINDS.iter().flat_map(|kind| (0..kind.groups).map(|group| format!("{}-{group}", kind.name)));
    for name in names {
        let deployment = format!("deployment/{name}");
        let asked = ["-n", "load", "rollout", "status", &deployment, "--timeout=60s"];
        eventually(&format!("{name} rolled out"), || cluster.kubectl(&asked).map(drop))?;
    }
    Ok(())
}

/// The metrics of all nodes' proxies.
#[derive(Clone, Debug, Default, PartialEq)]
struct Sample {
    /// Cumulative buckets: how many changes took at most these seconds; the last one has all.
    programmed: Vec<(f64, f64)>,
    /// Processor seconds.
    cpu: f64,
    /// The bytes of the largest process.
    memory: f64,
}

impl Sample {
    fn of_all(cluster: &Cluster) -> Result<Self, Failure> {
        nodes().iter().try_fold(Self::default(), |all, node| {
            let text = cluster.on(node)?.said(&["curl", "-sf", METRICS], "", SETTLE_MAX)?;
            Ok(all.with(&Self::read(&text)))
        })
    }

    fn read(text: &str) -> Self {
        let samples = || text.lines().filter_map(|line| line.rsplit_once(' '));
        let one = |name| samples().find_map(|(it, value)| (it == name).then(|| value.parse().ok())?);
        let counts = samples().filter_map(|(series, value)| {
            let bound = series.strip_prefix(PROGRAMMING)?.split_once("le=\"")?.1.split_once('"')?.0;
            Some((bound.parse().ok()?, value.parse().ok()?))
        });
        let one_family = counts.map(|count| Self { programmed: vec![count], ..Self::default() });
        let programmed = one_family.fold(Self::default(), |all, it| all.with(&it)).programmed;
        let (cpu, memory) = (one(CPU).unwrap_or_default(), one(MEMORY).unwrap_or_default());
        Self { programmed, cpu, memory }
    }

    /// The sum of two proxies, or of both families of one.
    fn with(mut self, other: &Self) -> Self {
        for (bound, count) in &other.programmed {
            match self.programmed.iter_mut().find(|(known, _)| known == bound) {
                Some((_, all)) => *all += count,
                None => self.programmed.push((*bound, *count)),
            }
        }
        self.programmed.sort_by(|one, other| one.0.total_cmp(&other.0));
        Self { cpu: self.cpu + other.cpu, memory: self.memory.max(other.memory), ..self }
    }

    fn since(&self, before: &Self) -> Self {
        let counted = before.programmed.iter().map(|(bound, count)| (*bound, -count)).collect();
        let before = Self { programmed: counted, cpu: -before.cpu, memory: 0.0 };
        self.clone().with(&before)
    }

    fn changes(&self) -> f64 {
        self.programmed.last().map(|(_, count)| *count).unwrap_or_default()
    }

    /// The quantile in seconds, as Prometheus' `histogram_quantile` computes it.
    fn quantile(&self, share: f64) -> f64 {
        let rank = share * self.changes();
        let mut below = (0.0, 0.0);
        for (bound, count) in self.programmed.iter().copied() {
            if count >= rank && bound.is_infinite() {
                return below.0;
            }
            if count >= rank {
                let within = if count > below.1 { (rank - below.1) / (count - below.1) } else { 1.0 };
                return (bound - below.0).mul_add(within, below.0);
            }
            below = (bound, count);
        }
        below.0
    }
}

fn report(proxy: &Proxy, took: Duration, all: &Sample, most: f64) -> Result<bool, Failure> {
    let (pods, services) = KINDS
        .iter()
        .fold((0, 0), |(pods, groups), kind| (pods + kind.pods * kind.groups, groups + kind.groups));
    let [half, tenth, p99] = [0.5, 0.9, 0.99].map(|share| all.quantile(share));
    let each = all.cpu / f64::from(u32::try_from(nodes().len())?);
    say(&format!(
        "{}, {pods} pods of {services} Services in {:.0} s: {:.0} changes of endpoints, p50 {half:.3} s, \
         p90 {tenth:.3} s, p99 {p99:.3} s; {each:.2} s of a processor on each node, {:.0} MB at most",
        figures::word(proxy),
        took.as_secs_f64(),
        all.changes(),
        most / 1e6
    ))?;
    Ok(all.changes() > 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "process_cpu_seconds_total 1.5\nprocess_resident_memory_bytes 2e+07\n\
        kubeproxy_network_programming_duration_seconds_bucket{ip_family=\"IPv4\",le=\"0.25\"} 8\n\
        kubeproxy_network_programming_duration_seconds_bucket{ip_family=\"IPv4\",le=\"+Inf\"} 10\n\
        kubeproxy_network_programming_duration_seconds_bucket{ip_family=\"IPv6\",le=\"0.25\"} 1\n\
        kubeproxy_network_programming_duration_seconds_bucket{ip_family=\"IPv6\",le=\"+Inf\"} 2\n";

    #[test]
    fn both_families_are_counted_together_and_the_time_before_is_not() {
        let sample = Sample::read(TEXT);
        let expected = vec![(0.25, 9.0), (f64::INFINITY, 12.0)];
        assert_eq!(sample, Sample { programmed: expected, cpu: 1.5, memory: 2e7 });
        assert_eq!(sample.since(&sample).changes(), 0.0);
    }

    #[test]
    fn a_quantile_lies_between_two_bounds_and_never_beyond_the_last_one() {
        let programmed = vec![(1.0, 5.0), (3.0, 10.0), (f64::INFINITY, 11.0)];
        let sample = Sample { programmed, ..Sample::default() };
        for (share, expected) in [(0.0, 0.0), (5.0 / 11.0, 1.0), (7.5 / 11.0, 2.0), (1.0, 3.0)] {
            assert!((sample.quantile(share) - expected).abs() < 1e-9, "{share}: {}", sample.quantile(share));
        }
        assert_eq!(Sample::default().quantile(0.99), 0.0);
    }

    #[test]
    fn sizes_have_the_shares_of_their_original_test() {
        let [big, medium, small] = KINDS.map(|kind| kind.groups * kind.pods);
        assert_eq!((big, medium, small), (24, 24, 48));
        let number = |round: u32| manifest(round).matches("kind: Deployment").count();
        assert_eq!([number(0), number(1)], [29, 29]);
    }
}
