//! Kills, restarts, upgrades or downgrades the proxies while backends change. A proxy that is down for longer than an
//! old backend serves sends clients to addresses without a server.
//!
//! Invariant: when a drill ends, each node's proxy runs in the version that the drill names.

use std::time::Duration;

use holdfast_conformance::Proxy;
use holdfast_fixtures::clock::{Deadline, pause};

use super::seconds;
use crate::Failure;
use crate::kubernetes::{replace_backends, rolled_out};
use crate::stage::{Stage, nodes};

const PROXY: &str = "proxy";

/// A holdfast of another version with another map layout; scripts/drill.sh builds it.
const OTHER: &str = "holdfast-other";

/// The path of that binary on a machine.
const OTHER_PROGRAM: &str = "/opt/drill/holdfast-other";

/// How long a proxy with a table lives before the next kill: too short to follow much. A proxy killed during its start
/// follows no changes at all, and the drill would measure stale tables.
const LIFE: Duration = Duration::from_millis(900);

/// Kills a node's proxy. A busy machine starts a proxy late, so its health port is polled for up to 20 s. Between two
/// lives there may be no process to kill.
const KILL: &str = r"
healthy() { exec 3<>/dev/tcp/127.0.0.1/10256 && printf 'GET /healthz HTTP/1.0\r\n\r\n' >&3 && grep -q ' 200 ' <&3; }
for _ in {1..200}; do (healthy) 2>/dev/null && break; sleep 0.1; done
kill -KILL $(cat /run/services/proxy.pid)
true";

/// Kills the proxy of one node after another, round and round.
pub(super) fn kill(stage: &Stage, _: &Proxy) -> Result<(), Failure> {
    let end = Deadline::after(seconds("KILLS", 30));
    replace_backends(&stage.cluster)?;
    for node in nodes().iter().cycle() {
        stage.cluster.on(node)?.run(&["bash", "-c", KILL])?;
        pause(LIFE / u32::try_from(nodes().len()).unwrap_or(1));
        if end.is_over() {
            break;
        }
    }
    rolled_out(&stage.cluster)
}

pub(super) fn restart(stage: &Stage, _: &Proxy) -> Result<(), Failure> {
    replace_backends(&stage.cluster)?;
    each(stage, |node| Ok(stage.cluster.on(node)?.restart(PROXY)?))
}

/// There is only one version of kube-proxy, so its upgrade is a restart.
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

/// Replaces the program, then restarts the service, as a package does.
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
