//! What happens to the control plane: away, back in time, and the incident that holdfast exists for.
//!
//! Invariant: at the end the apiserver answers, has all that the stage made, and every node has said since then that it
//! is well: a node that could not say so for 50 s loses all its endpoints, with any proxy.

use std::thread;
use std::time::Duration;

use holdfast_conformance::{ClusterError, Proxy};

use super::seconds;
use crate::Failure;
use crate::kubernetes::{make_service, replace_backends, rolled_out};
use crate::stage::{SETTLE_MAX, Stage, eventually};

/// So many Services are younger than the copy of etcd's data.
const YOUNGER: u8 = 10;

/// Each round empties the neighbour, touches the dialled Service, and empties the apiserver's own.
const ROUNDS: u32 = 5;

/// The controllers that lead by a lease. With it they end when they cannot renew it for ten seconds, so what they knew
/// of the nodes is forgotten over an outage. Here they have no lease, and are told to end.
const LEADERS: [&str; 2] = ["controller-manager", "scheduler"];

/// Renewed by each kubelet every ten seconds.
const LEASES: [&str; 6] = [
    "-n",
    "kube-node-lease",
    "get",
    "leases",
    "-o",
    "jsonpath={range .items[*]}{.metadata.name} {.spec.renewTime}{\"\\n\"}{end}",
];

/// Stops the apiserver and its leaders, does something, and has all of it back.
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
    // The leases that the apiserver has now may be those of an older copy.
    let before = stage.cluster.kubectl(&LEASES)?;
    eventually("every node heard from", || heard(&stage.cluster.kubectl(&LEASES)?, &before))?;
    Ok(LEADERS.iter().try_for_each(|service| cp.start(service))?)
}

/// Whether none of the leases is as it was.
fn heard(now: &str, before: &str) -> Result<(), ClusterError> {
    match now.lines().find(|line| before.lines().any(|old| old == *line)) {
        None if !now.is_empty() => Ok(()),
        silent => Err(ClusterError::Malformed {
            from: format!("the lease {}", silent.unwrap_or_default()),
            why: "it was not renewed".to_owned(),
        }),
    }
}

/// The watches of all clients go back: the servers that remember the younger state begin anew, as etcd's manual asks.
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

/// Has something done to the files of an etcd that is stopped.
fn offline(stage: &Stage, script: &str) -> Result<(), Failure> {
    let cp = stage.cluster.on("cp")?;
    cp.stop("etcd")?;
    cp.said(&["bash", "-euc", script], "", SETTLE_MAX)?;
    Ok(cp.start("etcd")?)
}

pub(super) fn outage(stage: &Stage, _: &Proxy) -> Result<(), Failure> {
    without_apiserver(stage, || {
        thread::sleep(seconds("OUTAGE", 180));
        Ok(())
    })?;
    renewed(stage)
}

/// Shows that nodes, controllers and proxies follow again.
fn renewed(stage: &Stage) -> Result<(), Failure> {
    stage.cluster.wait_for_nodes()?;
    replace_backends(&stage.cluster)?;
    rolled_out(&stage.cluster)
}

/// See the record of it: a neighbour of the same backend is emptied, a harmless change makes all clients look again.
pub(super) fn incident(stage: &Stage, _: &Proxy) -> Result<(), Failure> {
    for round in 0..ROUNDS {
        neighbour(stage, "nobody")?;
        eventually("a neighbour without backends", || emptied(stage))?;
        empty_apiserver(stage)?;
        thread::sleep(Duration::from_secs(1));
        let touched = format!("touched={round}");
        stage.cluster.kubectl(&["-n", "drill", "annotate", "--overwrite", "service", "web", &touched])?;
        without_apiserver(stage, || Ok(()))?;
        neighbour(stage, "web")?;
    }
    Ok(())
}

/// Gives the neighbour of the dialled Service other backends.
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

/// As an apiserver that ends leaves it.
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
