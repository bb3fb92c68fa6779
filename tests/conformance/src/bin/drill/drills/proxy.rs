//! What happens to the proxy itself, while backends change: a proxy that is away for longer than an old backend serves
//! leads clients to addresses without a server.
//!
//! Invariant: at the end each node's proxy runs, and is the version that the drill names.

use std::thread;
use std::time::{Duration, Instant};

use holdfast_conformance::Proxy;

use super::seconds;
use crate::Failure;
use crate::kubernetes::{replace_backends, rolled_out};
use crate::stage::{Stage, nodes};

const PROXY: &str = "proxy";

/// Another version than the one under test, with another layout of its maps; scripts/drill.sh builds it.
const OTHER: &str = "holdfast-other";

/// Where a machine has it.
const OTHER_PROGRAM: &str = "/opt/drill/holdfast-other";

/// How long a proxy lives before it is killed again. Any proxy that is killed before it has begun follows nothing, and
/// then shows what stale tables cost.
const LIFE: Duration = Duration::from_millis(900);

/// One node after another.
pub(super) fn kill(stage: &Stage, _: &Proxy) -> Result<(), Failure> {
    let end = Instant::now() + seconds("KILLS", 30);
    replace_backends(&stage.cluster)?;
    for node in nodes().iter().cycle() {
        // Between two lives there is none to kill.
        stage.cluster.on(node)?.run(&["bash", "-c", "kill -KILL $(cat /run/services/proxy.pid); true"])?;
        thread::sleep(LIFE / u32::try_from(nodes().len()).unwrap_or(1));
        if Instant::now() > end {
            break;
        }
    }
    rolled_out(&stage.cluster)
}

pub(super) fn restart(stage: &Stage, _: &Proxy) -> Result<(), Failure> {
    replace_backends(&stage.cluster)?;
    each(stage, |node| Ok(stage.cluster.on(node)?.restart(PROXY)?))
}

/// kube-proxy has one version here: its upgrade is a restart.
pub(super) fn upgrade(stage: &Stage, proxy: &Proxy) -> Result<(), Failure> {
    replace_backends(&stage.cluster)?;
    each(stage, |node| to_version(stage, proxy, node, OTHER_PROGRAM))
}

pub(super) fn downgrade(stage: &Stage, proxy: &Proxy) -> Result<(), Failure> {
    replace_backends(&stage.cluster)?;
    each(stage, |node| to_version(stage, proxy, node, "holdfast"))
}

fn each(stage: &Stage, order: impl Fn(&str) -> Result<(), Failure>) -> Result<(), Failure> {
    nodes().iter().try_for_each(|node| order(node))?;
    rolled_out(&stage.cluster)
}

/// As a package does it: the program is another one, then the service restarts.
fn to_version(stage: &Stage, proxy: &Proxy, node: &str, program: &str) -> Result<(), Failure> {
    let machine = stage.cluster.on(node)?;
    if matches!(proxy, Proxy::Holdfast { .. }) {
        if program == OTHER_PROGRAM {
            let built = stage.cluster.built().folder.join(OTHER);
            let bytes = std::fs::read(&built)
                .map_err(|error| format!("read {}: {error}; scripts/drill.sh builds it", built.display()))?;
            machine.write(program, bytes)?;
            machine.said(&["chmod", "755", program], "", Duration::from_secs(30))?;
        }
        let script = format!("exec {program} run --config /etc/holdfast/config.toml\n");
        machine.write("/etc/machine/services/proxy", script)?;
    }
    Ok(machine.restart(PROXY)?)
}
