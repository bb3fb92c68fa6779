//! What happens to the control plane: away, back in time, and the incident that holdfast exists for.
//!
//! Invariant: at the end the apiserver answers, and has all that the stage made.

use std::thread;
use std::time::Duration;

use holdfast_conformance::Proxy;

use super::seconds;
use crate::Failure;
use crate::kubernetes::{make_service, replace_backends, rolled_out};
use crate::stage::{SETTLE_MAX, Stage, eventually};

/// So many Services are younger than the copy of etcd's data.
const YOUNGER: u8 = 10;

/// Each round empties the neighbour, touches the dialled Service, and empties the apiserver's own.
const ROUNDS: u32 = 5;

fn orders(stage: &Stage, script: &str) -> Result<(), Failure> {
    stage.cluster.on("cp")?.said(&["bash", "-euc", script], "", SETTLE_MAX)?;
    Ok(())
}

fn ready(stage: &Stage) -> Result<(), Failure> {
    eventually("an apiserver that is ready", || stage.cluster.kubectl(&["get", "--raw", "/readyz"]).map(drop))
}

/// Everybody's watches go back: the servers that remember the younger state begin anew, as etcd's manual asks.
pub(super) fn etcd(stage: &Stage, _: &Proxy) -> Result<(), Failure> {
    let cp = stage.cluster.on("cp")?;
    let both = |order: fn(
        &holdfast_conformance::Machine,
        &str,
    ) -> Result<(), holdfast_conformance::ClusterError>| {
        ["apiserver", "etcd"].iter().try_for_each(|service| order(cp, service))
    };
    both(holdfast_conformance::Machine::stop)?;
    orders(stage, "rm -rf /var/lib/etcd-copy; cp -a /var/lib/etcd /var/lib/etcd-copy")?;
    ["etcd", "apiserver"].iter().try_for_each(|service| cp.start(service))?;
    ready(stage)?;
    for number in 0..YOUNGER {
        make_service(&stage.cluster, &format!("younger-{number}"), &format!("10.96.99.{number}"))?;
    }
    both(holdfast_conformance::Machine::stop)?;
    orders(stage, "rm -rf /var/lib/etcd; mv /var/lib/etcd-copy /var/lib/etcd")?;
    ["etcd", "apiserver"].iter().try_for_each(|service| cp.start(service))?;
    ready(stage)?;
    ["controller-manager", "scheduler"].iter().try_for_each(|service| stage.cluster.restart(service))?;
    stage.cluster.wait_for_nodes()?;
    replace_backends(&stage.cluster)?;
    rolled_out(&stage.cluster)
}

pub(super) fn outage(stage: &Stage, _: &Proxy) -> Result<(), Failure> {
    let cp = stage.cluster.on("cp")?;
    cp.stop("apiserver")?;
    thread::sleep(seconds("OUTAGE", 180));
    cp.start("apiserver")?;
    ready(stage)?;
    stage.cluster.wait_for_nodes()?;
    replace_backends(&stage.cluster)?;
    rolled_out(&stage.cluster)
}

/// See the record of it: a neighbour of the same backend is emptied, a harmless change makes everybody look again.
pub(super) fn incident(stage: &Stage, _: &Proxy) -> Result<(), Failure> {
    let neighbour = |app: &str| {
        let patch = format!("{{\"spec\": {{\"selector\": {{\"app\": \"{app}\"}}}}}}");
        stage.cluster.kubectl(&["-n", "drill", "patch", "service", "we", "-p", &patch]).map(drop)
    };
    for round in 0..ROUNDS {
        neighbour("nobody")?;
        stage.cluster.kubectl(&[
            "patch",
            "endpointslice",
            "kubernetes",
            "--type=merge",
            "-p",
            "{\"endpoints\": null, \"ports\": null}",
        ])?;
        thread::sleep(Duration::from_secs(1));
        let touched = format!("touched={round}");
        stage.cluster.kubectl(&["-n", "drill", "annotate", "--overwrite", "service", "web", &touched])?;
        stage.cluster.on("cp")?.restart("apiserver")?;
        ready(stage)?;
        neighbour("web")?;
    }
    Ok(())
}
