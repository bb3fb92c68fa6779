//! The drills: a row of data and a function each.
//!
//! Invariant: a drill leaves the cluster as healthy as before; the next one begins only when every client is answered.

mod control_plane;
mod node;
mod proxy;

pub(crate) use control_plane::without_apiserver;

use std::time::Duration;

use holdfast_conformance::Proxy;
use holdfast_fixtures::clock::Stopwatch;

use crate::client::now;
use crate::stage::Stage;
use crate::{Failure, certificates, figures, say};

/// A drill by its name.
#[derive(Clone, Copy)]
pub(crate) struct Drill {
    pub(crate) name: &'static str,
    /// What the drill does to the cluster, for the help.
    what: &'static str,
    run: fn(&Stage, &Proxy) -> Result<(), Failure>,
}

const fn drill(
    name: &'static str,
    what: &'static str,
    run: fn(&Stage, &Proxy) -> Result<(), Failure>,
) -> Drill {
    Drill { name, what, run }
}

/// All drills in order; the most expensive come last.
pub(crate) const ALL: [Drill; 14] = [
    drill(
        "kill",
        "kill -9 of the proxy of each node, again and again, while backends are replaced",
        proxy::kill,
    ),
    drill("restart", "stop and start of the proxy of each node, while backends are replaced", proxy::restart),
    drill(
        "upgrade",
        "another version of the proxy on each node, while backends are replaced",
        proxy::upgrade,
    ),
    drill(
        "downgrade",
        "the former version of the proxy again, while backends are replaced",
        proxy::downgrade,
    ),
    drill("kubelet", "kubelet restarts on each node", node::kubelet),
    drill("containerd", "containerd restarts on each node", node::containerd),
    drill(
        "across",
        "hosts dial the NodePorts of all nodes beside the ClusterIP, for ACROSS seconds (90)",
        node::across,
    ),
    drill(
        "incident",
        "a Service of the same backends, whose name begins like the dialled one, loses all",
        control_plane::incident,
    ),
    drill("cut", "a node without backends loses its network for 20 s", node::cut),
    drill(
        "certificates",
        "another authority: bundles, servers, users, then the old one goes",
        certificates::rotate,
    ),
    drill("etcd", "etcd comes back from a copy, older than the last Services", control_plane::etcd),
    drill("outage", "no apiserver for OUTAGE seconds (180)", control_plane::outage),
    drill("network", "pods get links of their own in place of a bridge, node by node", node::network),
    drill("reboot", "each node drained, without power for a moment, and back", node::reboot),
];

/// The result of a drill.
#[derive(Clone, Debug)]
pub(crate) struct Cost {
    pub(crate) failed: u64,
    pub(crate) row: String,
}

/// Runs the named drills, or all. Returns whether none cost more than it may.
pub(crate) fn run(names: &[String], proxy: &Proxy) -> Result<bool, Failure> {
    if let Some(unknown) = names.iter().find(|name| !ALL.iter().any(|drill| drill.name == **name)) {
        let known: Vec<&str> = ALL.iter().map(|drill| drill.name).collect();
        return Err(format!("no drill is called {unknown}; there are {}", known.join(", ")).into());
    }
    let chosen = ALL.iter().filter(|drill| names.is_empty() || names.iter().any(|name| name == drill.name));
    let (mut passed, mut failed) = (0, 0);
    let mut stage = None;
    for drill in chosen {
        let ran = on_stage(&mut stage, proxy).and_then(|stage| drill.ran_on(stage, proxy));
        let is_good = match ran {
            Ok(result) => {
                say(&result.row)?;
                figures::is_allowed(drill.name, proxy, result.failed)
            }
            Err(error) => {
                say(&format!("{}: FAILED: {}", drill.name, crate::whole(error.as_ref())))?;
                // After a failure, this cluster says nothing about the next drill.
                stage = None;
                false
            }
        };
        if is_good { passed += 1 } else { failed += 1 }
    }
    say(&format!("test result: drills, {}: {passed} passed; {failed} failed", figures::word(proxy)))?;
    Ok(failed == 0 && passed > 0)
}

fn on_stage<'a>(stage: &'a mut Option<Stage>, proxy: &Proxy) -> Result<&'a Stage, Failure> {
    let set = match stage.take() {
        Some(set) => set,
        None => Stage::set(proxy)?,
    };
    Ok(stage.insert(set))
}

impl Drill {
    fn ran_on(&self, stage: &Stage, proxy: &Proxy) -> Result<Cost, Failure> {
        say(&format!("== {}: {}", self.name, self.what))?;
        stage.settle()?;
        let (from, begun) = (now(), Stopwatch::start());
        (self.run)(stage, proxy)?;
        let follows = stage.follows()?;
        stage.settle()?;
        let tally = stage.tally([from, now()])?;
        let mut row = format!(
            "{}, {}: {tally}; a new Service was on every node after {:.1} s; took {} s",
            self.name,
            figures::word(proxy),
            follows.as_secs_f64(),
            begun.read().as_secs()
        );
        for place in tally.worst(WORST) {
            row = format!("{row}\n    {place}");
        }
        Ok(Cost { failed: tally.failed(), row })
    }
}

/// How many of the places with most failures are listed.
const WORST: usize = 8;

/// A number from the environment, for a longer or a shorter drill.
pub(crate) fn seconds(name: &str, usual: u64) -> Duration {
    let asked = std::env::var(name).ok().and_then(|text| text.parse().ok());
    Duration::from_secs(asked.unwrap_or(usual))
}
