//! Replaces the authority of a running cluster, as in Kubernetes' manual: all machines trust both, servers and users
//! get new certificates, then the old authority is removed.
//!
//! Invariant: files are replaced atomically. Only programs that read their files just at the start are restarted or
//! signalled, and no proxy is among them.

use std::time::Duration;

use holdfast_conformance::{Machine, MachineName, Proxy};
use holdfast_fixtures::clock::pause;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};

use crate::Failure;
use crate::drills::{seconds, without_apiserver};
use crate::kubernetes::{replace_backends, rolled_out};
use crate::stage::{SETTLE_MAX, Stage, nodes};

const FOLDER: &str = "/etc/kubernetes";

/// Clients with Kubernetes' library read their files every five minutes; each step leaves time for that.
const STEP_S: u64 = 310;

/// The apiserver reads its files each minute.
const LAST_STEP: Duration = Duration::from_secs(65);

type Authority = CertifiedIssuer<'static, KeyPair>;

pub(crate) fn rotate(stage: &Stage, _: &Proxy) -> Result<(), Failure> {
    let (authority, step) = (authority()?, seconds("CERTIFICATES", STEP_S));
    let old = stage.cluster.on("cp")?.said(&["cat", "/etc/kubernetes/ca.pem"], "", SETTLE_MAX)?;
    trust(stage, &format!("{old}{}", authority.pem()))?;
    pause(step);
    servers(stage, &authority)?;
    users(stage, &authority)?;
    nodes().iter().try_for_each(|node| stage.cluster.on(node)?.restart("kubelet"))?;
    pause(step);
    trust(stage, &authority.pem())?;
    pause(LAST_STEP);
    // A client on an old connection has not shown that it can open a new one.
    without_apiserver(stage, || Ok(()))?;
    stage.cluster.wait_for_nodes()?;
    replace_backends(&stage.cluster)?;
    rolled_out(&stage.cluster)
}

/// Pods get the authority from the controllers, which read it at their start, as cluster DNS does.
fn trust(stage: &Stage, authorities: &str) -> Result<(), Failure> {
    ["cp"].iter().chain(nodes()).try_for_each(|name| put(stage.cluster.on(name)?, "ca.pem", authorities))?;
    stage.cluster.restart("controller-manager")?;
    pause(PUBLISHED);
    stage.cluster.kubectl(&["-n", "kube-system", "rollout", "restart", "deployment/coredns"])?;
    rolled_out(&stage.cluster)
}

/// How long the controllers take to start and to publish it in every namespace.
const PUBLISHED: Duration = Duration::from_secs(20);

fn authority() -> Result<Authority, Failure> {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "the cluster's next authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages.push(KeyUsagePurpose::KeyCertSign);
    Ok(CertifiedIssuer::self_signed(params, KeyPair::generate()?)?)
}

fn servers(stage: &Stage, authority: &Authority) -> Result<(), Failure> {
    let names =
        ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost", "127.0.0.1", "10.96.0.1"];
    server(stage, authority, "cp", "apiserver", &names)?;
    nodes().iter().try_for_each(|node| server(stage, authority, node, "kubelet-server", &[]))
}

fn server(
    stage: &Stage,
    authority: &Authority,
    machine: &str,
    file: &str,
    more: &[&str],
) -> Result<(), Failure> {
    let [four, six] = machine.parse::<MachineName>()?.addresses();
    let own = [machine.to_owned(), four, six];
    let names: Vec<String> = own.into_iter().chain(more.iter().map(|name| (*name).to_owned())).collect();
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name.push(DnType::CommonName, file);
    params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
    issue(stage.cluster.on(machine)?, authority, file, &params)
}

fn users(stage: &Stage, authority: &Authority) -> Result<(), Failure> {
    let of_control_plane = [
        ("admin", "admin", Some("system:masters")),
        ("kubelet-client", "apiserver-kubelet-client", Some("system:masters")),
        ("front-proxy", "front-proxy-client", None),
        ("kube-controller-manager", "system:kube-controller-manager", None),
        ("kube-scheduler", "system:kube-scheduler", None),
    ];
    of_control_plane
        .iter()
        .try_for_each(|(file, name, group)| user(stage, authority, "cp", file, name, *group))?;
    for node in nodes() {
        let kubelet = format!("system:node:{node}");
        user(stage, authority, node, "kubelet", &kubelet, Some("system:nodes"))?;
        user(stage, authority, node, "kube-proxy", "system:kube-proxy", None)?;
        user(stage, authority, node, "holdfast", "holdfast", None)?;
    }
    Ok(())
}

fn user(
    stage: &Stage,
    authority: &Authority,
    machine: &str,
    file: &str,
    name: &str,
    group: Option<&str>,
) -> Result<(), Failure> {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    if let Some(group) = group {
        params.distinguished_name.push(DnType::OrganizationName, group);
    }
    params.extended_key_usages.push(ExtendedKeyUsagePurpose::ClientAuth);
    issue(stage.cluster.on(machine)?, authority, file, &params)
}

fn issue(
    machine: &Machine,
    authority: &Authority,
    file: &str,
    params: &CertificateParams,
) -> Result<(), Failure> {
    let key = KeyPair::generate()?;
    let certificate = params.signed_by(&key, authority)?;
    put(machine, &format!("{file}.key"), &key.serialize_pem())?;
    put(machine, &format!("{file}.pem"), &certificate.pem())
}

fn put(machine: &Machine, file: &str, text: &str) -> Result<(), Failure> {
    let path = format!("{FOLDER}/{file}");
    machine.write(&format!("{path}.new"), text)?;
    machine.said(&["mv", &format!("{path}.new"), &path], "", SETTLE_MAX)?;
    Ok(())
}
