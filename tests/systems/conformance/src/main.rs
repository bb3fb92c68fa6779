//! Builds the images of clusters, and runs Kubernetes' own tests in clusters.
//!
//! Invariant: the last line of a run is `N passed, N failed`; the exit code is 0 if some passed and none failed.

use std::error::Error;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use holdfast_conformance::{
    Baseline, Built, Cluster, ClusterError, Cni, Comparison, Exceptions, Family, Mode, Proxy, Selection,
    Suite, Topology, write_images,
};
use holdfast_fixtures::clock::Stopwatch;

/// What the command line says.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    order: Order,
}

#[derive(Debug, Subcommand)]
enum Order {
    /// Write the images of nodes into a folder that has the programs.
    Images { folder: std::path::PathBuf },
    /// Run tests: without a choice all topologies, one after another.
    Run(Choice),
}

/// The tests, and the cluster for them.
#[derive(Debug, clap::Args)]
struct Choice {
    /// One of each kind, within ten minutes.
    #[arg(long)]
    short: bool,
    /// The tests with a name that matches this expression.
    #[arg(long)]
    focus: Option<String>,
    #[arg(long)]
    nodes: Option<u8>,
    /// The pod network: `bridge`, `ptp`, `flannel` (VXLAN), `flannel-host-gw`, `kube-router`, `calico` or
    /// `vpc`.
    #[arg(long)]
    cni: Option<Cni>,
    /// The families of addresses: `ipv4` or `dual`.
    #[arg(long)]
    family: Option<Family>,
    /// The proxy of the Services: holdfast, nftables or iptables.
    #[arg(long, default_value = "holdfast")]
    proxy: String,
    /// Keys of holdfast's `[packets]`, as TOML: one, or several lines.
    #[arg(long)]
    packets: Option<String>,
    /// Record what came out as the baseline.
    #[arg(long, conflicts_with = "packets")]
    bless: bool,
}

fn main() -> ExitCode {
    let done = match Arguments::parse().order {
        Order::Images { folder } => write_images(&folder).map(|()| true).map_err(Into::into),
        Order::Run(choice) => run(&choice),
    };
    done.map_or_else(|error| failed(error.as_ref()), |well| ExitCode::from(u8::from(!well)))
}

fn failed(error: &dyn Error) -> ExitCode {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(deeper) = cause {
        text = format!("{text}: {deeper}");
        cause = deeper.source();
    }
    // If this cannot be written, there is no other place to report it.
    let _ = writeln!(io::stderr(), "conformance: {text}");
    ExitCode::FAILURE
}

/// Runs the chosen tests; returns whether all passed.
fn run(choice: &Choice) -> Result<bool, Box<dyn Error>> {
    say(&format!("holdfast is {}", Built::find()?.holdfast.display()))?;
    let (mut passed, mut failed) = (0, 0);
    for suite in choice.suites() {
        match run_suite(suite, choice) {
            Ok((well, badly)) => (passed, failed) = (passed + well, failed + badly),
            Err(error) => {
                self::failed(&error);
                failed += 1;
            }
        }
    }
    say(&format!("{passed} passed, {failed} failed"))?;
    Ok(failed == 0 && passed > 0)
}

impl Choice {
    fn suites(&self) -> Vec<Suite> {
        if self.short {
            let mut short = Suite::short();
            self.choose(&mut short.topology);
            return vec![short];
        }
        let all = Suite::all();
        if self.focus.is_none() && self.nodes.is_none() && self.cni.is_none() && self.family.is_none() {
            return all;
        }
        all.into_iter().take(1).map(|first| self.applied(first)).collect()
    }

    /// The requested cluster, and the tests of the suite for it, unless others are requested.
    fn applied(&self, mut suite: Suite) -> Suite {
        self.choose(&mut suite.topology);
        let id = suite.topology.id();
        if let Some(known) = Suite::all().into_iter().find(|known| known.topology.id() == id) {
            suite = known;
        }
        if let Some(focus) = &self.focus {
            suite.selection = Selection::named(focus);
        }
        suite
    }

    fn choose(&self, topology: &mut Topology) {
        topology.nodes = self.nodes.unwrap_or(topology.nodes);
        topology.cni = self.cni.unwrap_or(topology.cni);
        topology.family = self.family.unwrap_or(topology.family);
    }

    fn proxy(&self, suite: &Suite) -> Result<Proxy, ClusterError> {
        match self.proxy.as_str() {
            "holdfast" => Ok(Proxy::Holdfast { config: suite.config(self.packets.as_deref()) }),
            mode => Ok(Proxy::KubeProxy(mode.parse::<Mode>()?)),
        }
    }
}

fn run_suite(mut suite: Suite, choice: &Choice) -> Result<(usize, usize), ClusterError> {
    let (id, began) = (suite.topology.id(), Stopwatch::start());
    suite.topology.proxy = choice.proxy(&suite)?;
    suite.topology.cards = choice.packets.is_some();
    let packets = choice.packets.iter().map(|keys| format!(" with {keys}")).collect::<String>();
    note(&format!("== {id}, {}{packets}: {}", choice.proxy, suite.selection.focus));
    let cluster = Cluster::start(&suite.topology)?;
    note(&format!("ready after {} s; logs: {}", began.read().as_secs(), cluster.logs_after_end().display()));
    let report = Suite::run(&suite.selection, &cluster)?;
    if choice.packets.is_some() {
        log_ways(&cluster)?;
    }
    drop(cluster);
    let baseline = Baseline::load(&id)?;
    let comparison = Comparison::new(&baseline, &report, &Exceptions::read()?);
    if choice.bless {
        baseline.record(&id, &report)?;
    }
    let (passed, failed) = (comparison.passed, comparison.failed());
    note(&format!(
        "{comparison}test result: {id}: {passed} passed; {failed} failed, in {} s",
        began.read().as_secs()
    ));
    Ok((passed, failed))
}

/// Logs a node's packet paths: a passing test does not show which of them was in use.
fn log_ways(cluster: &Cluster) -> Result<(), ClusterError> {
    let node = cluster.on("n1")?;
    for question in ["datapath", "flows"] {
        // If holdfast has no answer, its error is in the log too.
        let _ = node.spawn(question, &["holdfast", "-o", "wide", question])?.wait();
    }
    Ok(())
}

/// Prints progress; the run does not depend on it.
fn note(line: &str) {
    let _ = say(line);
}

fn say(line: &str) -> io::Result<()> {
    writeln!(io::stdout(), "{line}")
}
