//! Drills of the control plane: an outage, a restored backup, and the incident that holdfast exists for.
//!
//! Invariant: at the end the apiserver answers and has all objects of the stage, and every node has renewed its lease
//! since: a node without a renewal for 50 s loses all its endpoints, with any proxy.

use std::time::Duration;

use holdfast_conformance::{ClusterError, Proxy};
use holdfast_fixtures::clock::pause;

use super::seconds;
use crate::Failure;
use crate::kubernetes::{make_service, replace_backends, rolled_out};
use crate::stage::{SETTLE_MAX, Stage, eventually};

/// How many Services are newer than the copy of etcd's data.
const YOUNGER: u8 = 10;

/// Each round empties the neighbour, touches the dialled Service, and empties the apiserver's own.
const ROUNDS: u32 = 5;

/// The controllers with leader election. With a lease they end if they cannot renew it for ten seconds, and forget the
/// nodes in an outage. Here they have no lease, and the drill stops them.
const LEADERS: [&str; 2] = ["controller-manager", "scheduler"];

/// Each kubelet renews its lease every ten seconds.
const LEASES: [&str; 6] = [
    "-n",
    "kube-node-lease",
    "get",
    "leases",
    "-o",
    "jsonpath={range .items[*]}{.metadata.name} {.spec.renewTime}{\"\\n\"}{end}",
];

/// Stops the apiserver and its controllers, runs a closure, and starts them again.
pub(crate) fn without_apiserver(
    stage: &Stage,
    meanwhile: impl FnOnce() -> Result<(), Failure>,
) -> Result<(), Failure> {
    let cp = stage.cluster.on("cp")?;
    LEADERS.iter().chain(&["apiserver"]).try_for_each(|service| cp.stop(service))?;
    meanwhile()?;
    cp.start("apiserver")?;
    eventually("an apiserver that is ready", || {
        stage.cluster.kubectl(&["get", "--raw", "/readyz"]).map(drop)
    })?;
    // The apiserver's current leases may be those of an older copy.
    let before = stage.cluster.kubectl(&LEASES)?;
    eventually("every node heard from", || heard(&stage.cluster.kubectl(&LEASES)?, &before))?;
    Ok(LEADERS.iter().try_for_each(|service| cp.start(service))?)
}

/// Checks that all leases have changed.
fn heard(now: &str, before: &str) -> Result<(), ClusterError> {
    match now.lines().find(|line| before.lines().any(|old| old == *line)) {
        None if !now.is_empty() => Ok(()),
        silent => Err(ClusterError::Malformed {
            from: format!("the lease {}", silent.unwrap_or_default()),
            why: "it was not renewed".to_owned(),
        }),
    }
}

/// All watches go back in time: the servers with the newer state restart, as etcd's manual says.
pub(super) fn etcd(stage: &Stage, _: &Proxy) -> Result<(), Failure> {
    without_apiserver(stage, || {
        offline(stage, "rm -rf /var/lib/etcd-copy; cp -a /var/lib/etcd /var/lib/etcd-copy")
    })?;
    for number in 0..YOUNGER {
        make_service(&stage.cluster, &format!("younger-{number}"), &format!("10.96.99.{number}"))?;
    }
    without_apiserver(stage, || offline(stage, "rm -rf /var/lib/etcd; mv /var/lib/etcd-copy /var/lib/etcd"))?;
    renewed(stage)
}

/// Changes the files of a stopped etcd.
fn offline(stage: &Stage, script: &str) -> Result<(), Failure> {
    let cp = stage.cluster.on("cp")?;
    cp.stop("etcd")?;
    cp.said(&["bash", "-euc", script], "", SETTLE_MAX)?;
    Ok(cp.start("etcd")?)
}

pub(super) fn outage(stage: &Stage, _: &Proxy) -> Result<(), Failure> {
    without_apiserver(stage, || {
        pause(seconds("OUTAGE", 180));
        Ok(())
    })?;
    renewed(stage)
}

/// Waits until nodes, controllers and proxies follow again.
fn renewed(stage: &Stage) -> Result<(), Failure> {
    stage.cluster.wait_for_nodes()?;
    replace_backends(&stage.cluster)?;
    rolled_out(&stage.cluster)
}

/// The incident: a neighbour with the same backend is emptied, and a harmless change makes all clients resync.
pub(super) fn incident(stage: &Stage, _: &Proxy) -> Result<(), Failure> {
    for round in 0..ROUNDS {
        neighbour(stage, "nobody")?;
        eventually("a neighbour without backends", || emptied(stage))?;
        empty_apiserver(stage)?;
        pause(Duration::from_secs(1));
        let touched = format!("touched={round}");
        stage.cluster.kubectl(&["-n", "drill", "annotate", "--overwrite", "service", "web", &touched])?;
        without_apiserver(stage, || Ok(()))?;
        neighbour(stage, "web")?;
    }
    Ok(())
}

/// Gives the dialled Service's neighbour other backends.
fn neighbour(stage: &Stage, app: &str) -> Result<(), Failure> {
    let patch = format!("{{\"spec\": {{\"selector\": {{\"app\": \"{app}\"}}}}}}");
    stage.cluster.kubectl(&["-n", "drill", "patch", "service", "we", "-p", &patch])?;
    Ok(())
}

fn emptied(stage: &Stage) -> Result<(), ClusterError> {
    let slices = ["-n", "drill", "get", "endpointslices", "-l", "kubernetes.io/service-name=we"];
    let addresses = ["-o", "jsonpath={.items[*].endpoints[*].addresses[*]}"];
    let left = stage.cluster.kubectl(&[&slices[..], &addresses].concat())?;
    if left.is_empty() {
        return Ok(());
    }
    Err(ClusterError::Malformed { from: "the neighbour".to_owned(), why: format!("it still has {left}") })
}

/// Empties it as a terminating apiserver does.
fn empty_apiserver(stage: &Stage) -> Result<(), Failure> {
    let nobody = "{\"endpoints\": null, \"ports\": null}";
    stage.cluster.kubectl(&["patch", "endpointslice", "kubernetes", "--type=merge", "-p", nobody])?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_lease_is_a_sign_of_life() {
        let before = "n1 10:00:00\nn2 10:00:01\n";
        assert!(heard("n1 10:00:10\nn2 10:00:11\n", before).is_ok());
        assert!(heard("n1 10:00:10\nn2 10:00:01\n", before).unwrap_err().to_string().contains("n2"));
        assert!(heard("", before).is_err());
    }
}
