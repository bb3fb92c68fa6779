//! Clients that dial in a loop, over new and over held connections: in pods, on nodes, and outside.
//!
//! Invariant: each attempt is one line of its client, and counts at the time at which it began.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use holdfast_conformance::{Cluster, Running};
use nix::time::{ClockId, clock_gettime};

/// The program of the drills, also in `objects.yaml`.
pub(crate) const PROGRAM: &str = "/opt/drill/drill";

/// The targets of inside clients: both Services by their ClusterIPs, and cluster DNS.
pub(crate) const INSIDE: [&str; 5] = [
    "name:10.96.77.1:80",
    "name:10.96.77.2:80",
    "held:10.96.77.1:81",
    "held:10.96.77.2:81",
    "dns:10.96.0.10:53",
];

/// The targets of outside clients at a node: the Service of each node, and the one with policy Local.
pub(crate) const NEW: [&str; 3] = ["name:NODE:30701", "name:NODE:30702", "name:NODE:30703"];
pub(crate) const HELD: [&str; 3] = ["held:NODE:30711", "held:NODE:30712", "held:NODE:30713"];

/// Fewer answers in a phase would prove nothing.
const ANSWERED_MIN: u64 = 5;

/// An attempt has a second, after which a lost SYN is sent again, so one in this many may be late. That happens at
/// NodePorts with pods of the same node, for an unknown reason. An outage is late twice in a row, which is another
/// outcome.
const LATE_ONE_IN: u64 = 50;
const LATE: &str = "timeout";
const SILENT: &str = "silent";

/// A client of several addresses.
pub(crate) struct Client {
    who: String,
    log: PathBuf,
    /// Dropping it ends the client; one in a pod ends with the pod.
    _running: Option<Running>,
}

/// Results by address and outcome.
#[derive(Debug, Default)]
pub(crate) struct Tally(BTreeMap<String, BTreeMap<String, u64>>);

/// The lines' clock: nanoseconds, shared by all machines of a kernel.
pub(crate) fn now() -> u64 {
    Duration::from(clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap()).as_nanos().try_into().unwrap()
}

impl Client {
    /// A client in a node's pod.
    pub(crate) fn in_pod(cluster: &Cluster, node: &str) -> Self {
        let log = cluster.on(node).unwrap().logs().join("pod.log");
        Self { who: format!("pod of {node}"), log, _running: None }
    }

    /// Starts a client on a machine.
    pub(crate) fn start(cluster: &Cluster, machine: &str, name: &str, targets: &[String]) -> Self {
        let machine = cluster.on(machine).unwrap();
        let command: Vec<&str> =
            [PROGRAM, "client"].into_iter().chain(targets.iter().map(String::as_str)).collect();
        let running = machine.spawn(name, &command).unwrap();
        Self {
            who: name.to_owned(),
            log: machine.logs().join(name).with_extension("log"),
            _running: Some(running),
        }
    }

    /// The results of the attempts since then.
    pub(crate) fn met(&self, since: u64) -> Tally {
        let text = fs::read_to_string(&self.log).unwrap();
        let (mut tally, mut last) = (Tally::default(), BTreeMap::new());
        for line in text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')) {
            let [at, address, outcome] = line.split(' ').collect::<Vec<_>>().try_into().unwrap();
            let again = last.insert(address, outcome) == Some(LATE) && outcome == LATE;
            if at.parse::<u64>().unwrap() >= since {
                let outcome = if again { SILENT } else { outcome };
                *tally.0.entry(address.to_owned()).or_default().entry(outcome.to_owned()).or_default() += 1;
            }
        }
        tally
    }
}

impl Tally {
    /// The results at addresses that contain this text.
    pub(crate) fn at(&self, part: &str) -> Self {
        let all = self.0.iter().filter(|(address, _)| address.contains(part));
        Self(all.map(|(address, outcomes)| (address.clone(), outcomes.clone())).collect())
    }

    /// Whether all attempts were answered, except for the few that may be late.
    pub(crate) fn is_well(&self) -> bool {
        self.each(|answered, others| {
            others.iter().all(|(word, count)| *word == LATE && *count * LATE_ONE_IN <= answered)
        })
    }

    /// Whether each connection was lost, by a reset or in silence, and another one was established at once.
    pub(crate) fn was_lost(&self) -> bool {
        let is_loss = |(word, count): &(&str, u64)| ["failed", LATE].contains(word) && *count <= 2;
        self.each(|_, others| others.len() == 1 && others.iter().all(is_loss))
    }

    /// Whether the condition holds for the unanswered attempts at each address, with enough answered ones.
    fn each(&self, is_so: impl Fn(u64, &[(&str, u64)]) -> bool) -> bool {
        let is_so = |outcomes: &BTreeMap<String, u64>| {
            let all = outcomes.iter().map(|(word, count)| (word.as_str(), *count));
            let (answered, others): (Vec<_>, Vec<_>) = all.partition(|(word, _)| *word == "answered");
            answered.iter().any(|(_, count)| *count >= ANSWERED_MIN && is_so(*count, &others))
        };
        !self.0.is_empty() && self.0.values().all(is_so)
    }
}

/// `172.30.0.11:30701 48 answered, 172.30.0.11:30702 3 answered 1 timeout`.
impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = |outcomes: &BTreeMap<String, u64>| {
            outcomes.iter().map(|(word, count)| format!(" {count} {word}")).collect::<String>()
        };
        let all: Vec<String> =
            self.0.iter().map(|(at, outcomes)| format!("{at}{}", counts(outcomes))).collect();
        f.write_str(&all.join(", "))
    }
}

/// Asserts that all of these clients were answered since then.
#[track_caller]
pub(crate) fn assert_well<'a>(clients: impl IntoIterator<Item = &'a Client>, since: u64, during: &str) {
    println!("== {during}");
    for client in clients {
        let tally = client.met(since);
        println!("{}: {tally}", client.who);
        assert!(tally.is_well(), "{during}: {}: {tally}", client.who);
    }
}
