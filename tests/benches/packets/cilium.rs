//! A real Cilium agent on the bed's node without Kubernetes: it reads services and slices from a file. Its pods are
//! endpoints as Cilium's CNI plug-in makes them, so that packets take the agent's own fast path.
//!
//! Invariant: the agent sees no cgroup above its own, and writes settings only of the node's network. Once all is
//! programmed, it is stopped, and its programs serve.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use holdfast_fixtures::clock::{Deadline, pause};
use holdfast_tests::bed::fabric::NODE_ADDRESSES;
use holdfast_tests::bed::{Bed, Location, succeed};
use holdfast_tests::peers::NODE;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::stage::{CLIENT_POD, Failed, SOON, Stage, bed, objects};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/packets/cilium.sh");

/// The folder that `scripts/cilium.sh` fills, in the target folder.
const LAYER: &str = "cilium/layer/opt/cilium";

/// The agent's pods and their addresses.
const PODS: [(&str, &str); 2] = [("pod-a", "10.244.1.10"), (CLIENT_POD, "10.244.1.11")];

/// The agent compiles its programs twice at the start, which takes a minute on a busy machine.
const READY: Duration = Duration::from_secs(300);
const POLL: Duration = Duration::from_millis(200);

/// The interval of reading the file.
const READ_EVERY: &str = "50ms";

/// As in the Helm chart where it differs from the agent's defaults, which send an event for each packet. Policy,
/// proxies and observers, which holdfast lacks, are off.
const SETTINGS: [&str; 27] = [
    "--enable-k8s=false",
    "--kube-proxy-replacement=true",
    // The agent serves no cgroup of these pods; with this it translates their packets instead.
    "--bpf-lb-sock-hostns-only=true",
    "--bpf-lb-mode=snat",
    "--bpf-lb-algorithm=random",
    "--bpf-lb-acceleration=disabled",
    "--routing-mode=native",
    "--devices=eth0",
    "--direct-routing-device=eth0",
    "--ipv4-native-routing-cidr=10.244.0.0/16",
    "--enable-ipv4=true",
    "--enable-ipv6=false",
    "--enable-ipv4-masquerade=true",
    "--enable-bpf-masquerade=true",
    "--ipam=kubernetes",
    "--ipv4-range=10.244.1.0/24",
    "--local-router-ipv4=10.244.1.1",
    "--monitor-aggregation=medium",
    "--monitor-aggregation-interval=5s",
    "--monitor-aggregation-flags=all",
    "--preallocate-bpf-maps=false",
    "--enable-policy=never",
    "--enable-l7-proxy=false",
    "--enable-hubble=false",
    "--enable-health-checking=false",
    "--enable-endpoint-health-checking=false",
    "--cluster-name=default",
];

/// A network with a node that Cilium serves. Fields are dropped in this order.
pub(crate) struct Cilium {
    agent: Agent,
    bed: Bed,
    _folder: TempDir,
}

/// The agent's process, killed when dropped.
struct Agent(Child);

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Cilium {
    /// `None`: Cilium was not built.
    pub(crate) fn start() -> Result<Option<Self>, Failed> {
        let Some(layer) = layer()? else { return Ok(None) };
        let bed = bed()?;
        let folder = tempfile::tempdir()?;
        let services = folder.path().join("services.json");
        fs::write(&services, services_and_slices()?.to_string())?;
        let agent = launch(&bed, &layer, folder.path(), &services)?;
        let mut cilium = Self { agent, bed, _folder: folder };
        cilium.wait_until(|it| it.ask("GET", "/v1/healthz?brief=true", "").is_ok())?;
        for (number, (pod, address)) in (1..).zip(PODS) {
            let endpoint = cilium.endpoint(pod, address)?;
            cilium.ask("PUT", &format!("/v1/endpoint/{number}"), &endpoint.to_string())?;
        }
        cilium.wait_until(Self::is_built)?;
        cilium.wait_until_served()?;
        kill(Pid::from_raw(i32::try_from(cilium.agent.0.id())?), Signal::SIGSTOP)?;
        Ok(Some(cilium))
    }

    fn wait_until(&mut self, holds: impl Fn(&Self) -> bool) -> Result<(), Failed> {
        let until = Deadline::after(READY);
        while !holds(self) {
            if self.agent.0.try_wait()?.is_some() || until.is_over() {
                return Err(format!("cilium-agent does not serve; it said:\n{}", self.said()).into());
            }
            pause(POLL);
        }
        Ok(())
    }

    /// The end of the agent's log.
    fn said(&self) -> String {
        let said = fs::read_to_string(self._folder.path().join("log")).unwrap_or_default();
        let lines: Vec<&str> = said.lines().rev().take(20).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    }

    /// Sends a request to the agent's socket.
    fn ask(&self, method: &str, path: &str, body: &str) -> Result<String, Failed> {
        let socket = format!("/proc/{}/root/run/cilium/cilium.sock", self.agent.0.id());
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(READY))?;
        write!(
            stream,
            "{method} {path} HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n{body}",
            body.len()
        )?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let is_good = answer.split(' ').nth(1).is_some_and(|status| status.starts_with('2'));
        if is_good { Ok(answer) } else { Err(answer.into()) }
    }

    /// Whether the programs of the pods and of the node, which is an endpoint too, are attached. Until then packets
    /// take a longer path.
    fn is_built(&self) -> bool {
        let said = self.ask("GET", "/v1/endpoint", "").unwrap_or_default();
        let endpoints =
            said.split_once("\r\n\r\n").and_then(|(_, body)| serde_json::from_str::<Vec<Value>>(body).ok());
        let is_ready = |endpoint: &Value| endpoint.pointer("/status/state") == Some(&json!("ready"));
        endpoints.is_some_and(|endpoints| endpoints.len() > PODS.len() && endpoints.iter().all(is_ready))
    }

    /// A pod as the plug-in describes it.
    fn endpoint(&self, name: &str, address: &str) -> Result<Value, Failed> {
        let (index, host) = device(&self.bed, Location::OUTSIDE, name)?;
        let (_, pod) = device(&self.bed, Location::far(name), "eth0")?;
        Ok(json!({
            "id": 0, "container-id": format!("{name:0<64}"), "container-interface-name": "eth0",
            "interface-name": name, "interface-index": index, "mac": pod, "host-mac": host,
            "addressing": {"ipv4": address}, "state": "waiting-for-identity",
            "sync-build-endpoint": true, "datapath-configuration": {"external-ipam": true},
        }))
    }
}

impl Stage for Cilium {
    fn bed(&self) -> &Bed {
        &self.bed
    }
}

/// The folder of the agent, if it was built.
fn layer() -> Result<Option<PathBuf>, Failed> {
    let program = std::env::current_exe()?;
    let found = program.ancestors().map(|folder| folder.join(LAYER)).find(|layer| layer.exists());
    Ok(found.map(fs::canonicalize).transpose()?)
}

fn services_and_slices() -> Result<Value, Failed> {
    let (services, slices): (Vec<Value>, Vec<Value>) =
        objects()?.into_iter().partition(|object| object.get("kind") == Some(&json!("Service")));
    Ok(json!({"services": services, "endpoints": slices}))
}

fn launch(bed: &Bed, layer: &Path, folder: &Path, services: &Path) -> Result<Agent, Failed> {
    let log = fs::File::create(folder.join("log"))?;
    let mut command = bed.command_in(&bed.child_cgroup("cilium")?, "unshare");
    command.args(["-m", "-C", "sh", SCRIPT]).args([layer, folder]).args(SETTINGS);
    command.arg(format!("--ipv4-node={}", NODE_ADDRESSES[0]));
    command.arg(format!("--lb-state-file={}", services.display()));
    command.arg(format!("--lb-state-file-interval={READ_EVERY}")).env("K8S_NODE_NAME", NODE);
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    Ok(Agent(command.spawn()?))
}

/// The index of a device and its hardware address.
fn device(bed: &Bed, place: Location<'_>, name: &str) -> Result<(u64, String), Failed> {
    let mut ip = bed.command(place, "ip")?;
    ip.args(["-json", "link", "show", name]);
    let links: Value = serde_json::from_str(&succeed(ip, SOON)?)?;
    let link = links.get(0).ok_or("no such device")?;
    let index = link.get("ifindex").and_then(Value::as_u64).ok_or("a device without a number")?;
    Ok((index, link.get("address").and_then(Value::as_str).unwrap_or_default().to_owned()))
}
