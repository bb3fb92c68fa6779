//! A private Kubernetes control plane of the real servers: etcd, kube-apiservers, controllers, and a kube-proxy to
//! compare with.
//!
//! ```no_run
//! use holdfast_tests::bed::Layout;
//! use holdfast_tests::peers::{Cluster, Kind, Part, PeersError, Pod, SOON, until};
//!
//! # fn main() -> Result<(), PeersError> {
//! let cluster = Cluster::start(Layout::default(), 2)?;
//! let api = cluster.api(1)?;
//! api.add_node("n1", "zone-a")?;
//! api.apply(
//! "{apiVersion: v1, kind: Service, metadata: {name: web}, spec: {selector: {app: web}, ports: [{port: 80}]}}",
//! )?;
//! let pod = Pod { name: "default/web-1", app: "web", node: "n1", address: "10.1.0.1" };
//! pod.start(&api)?;
//! pod.report(&api, true)?;
//! let slice = until(SOON, "a slice", || Ok(api.service_slices("default/web")?.pop()))?;
//! cluster.stop(Part::Apiserver(0))?;
//! # Ok(())
//! # }
//! ```
//!
//! All servers run in one [`Bed`], outside of the node's cgroup: programs attached to `cluster.bed().cgroup()` see the
//! test's clients and its holdfast, but not these servers. Apiserver `n` listens on [`apiserver`]`(n)`, and all of
//! them advertise [`ADVERTISED`], as in the incident: when one gets SIGTERM, `default/kubernetes` has no endpoints for
//! seconds. [`ADVERTISED`] is also an address of the bed, without a server until a test starts one. The controllers
//! and `cluster.api(last)` use the last apiserver, so stop an earlier one. `cluster.authority()` issues a daemon's
//! credentials, as files and as a kubeconfig.
//!
//! Invariant: nothing is imitated. Upstream's code, built from `tests/systems/peers` by `scripts/peers.sh`, judges
//! objects, slices, refusals and certificates. There is no kubelet; a test writes its objects itself (`Pod`). The bed
//! ends all servers, also when a test is killed.

mod access;
pub mod alike;
mod api;
mod audit;
mod authority;
mod crowd;
mod etcd;
mod flags;
mod kubelet;
mod rules;
mod server;
mod store;
mod watch;
mod workload;

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use holdfast_fixtures::clock::{Deadline, pause};
use tempfile::TempDir;

pub use self::api::{Api, Identity, Kind, Reply};
pub use self::authority::{Authority, Credential};
pub use self::crowd::RandomServices;
pub(crate) use self::crowd::mixed;
pub use self::etcd::{Etcd, METRICS_PORT};
pub use self::kubelet::Kubelet;
pub use self::rules::{Client, ClientFate, Frontend, client_fates};
use self::server::Server;
pub use self::store::Backup;
pub use self::watch::{Watch, WatchEvent};
pub use self::workload::Pod;
use crate::bed::{Bed, BedError, Layout, Location};

/// The address that all apiservers advertise. Upstream refuses a link-local one.
pub const ADVERTISED: Ipv4Addr = Ipv4Addr::new(10, 15, 0, 9);

/// The port of each apiserver, on an address of its own.
pub const APISERVER_PORT: u16 = 6443;

/// The node of a test's kube-proxy or holdfast.
pub const NODE: &str = "n1";

/// The ranges of ClusterIPs; the first address is `default/kubernetes`.
pub const SERVICE_CIDRS: &str = "192.168.0.0/16,fd00:192:168::/112";

/// The timeout for what controllers do within milliseconds, on a machine that is busy with other tests.
pub const SOON: Duration = Duration::from_secs(30);

/// An apiserver is ready within two seconds, one of several on a busy machine within ten. A kube-proxy with ten
/// thousand services takes minutes.
const READY_LIMIT: Duration = Duration::from_secs(300);

const POLL: Duration = Duration::from_millis(20);

/// The addresses of the apiservers, as the bed's interface gets them; they limit the number of apiservers.
const ADDRESSES: [&str; 3] = ["10.15.1.1/32", "10.15.1.2/32", "10.15.1.3/32"];

const ADVERTISED_LOCAL: &str = "10.15.0.9/32";

const ETCD: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 2379);

/// Why the cluster could not be started, or a request failed.
#[derive(Debug, thiserror::Error)]
pub enum PeersError {
    /// The bed failed.
    #[error(transparent)]
    Bed(#[from] BedError),
    /// The servers were never built.
    #[error("there is no peers/{program} above {}; build it: scripts/peers.sh", near.display())]
    NotBuilt {
        program: String,
        /// Where it was expected.
        near: PathBuf,
    },
    /// None, or more apiservers than addresses.
    #[error("{asked} apiservers; a cluster has 1 to {}", ADDRESSES.len())]
    Apiservers {
        /// The requested number.
        asked: usize,
    },
    /// This cluster lacks the part.
    #[error("the cluster has no {0:?}")]
    NoPart(Part),
    /// A key or a certificate could not be made.
    #[error("make {what}")]
    Certificate {
        what: String,
        /// The library's error.
        source: rcgen::Error,
    },
    /// An operation on a file of the cluster's folder failed.
    #[error("write {}", path.display())]
    File {
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A signal could not be sent to a server, or its end could not be awaited.
    #[error("end {part:?}")]
    Signal {
        part: Part,
        /// The system's error.
        source: io::Error,
    },
    /// A server ended by itself or does not become ready.
    #[error("{part:?} {how}; its log ends with:\n{said}")]
    Unready {
        part: Part,
        /// Which of both happened.
        how: &'static str,
        /// The end of its log.
        said: String,
    },
    /// An awaited condition did not hold in time.
    #[error("no {what} within {limit:?}")]
    Late {
        /// The condition.
        what: String,
        limit: Duration,
    },
    /// An apiserver was unreachable.
    #[error("{request}")]
    Unreached {
        /// Method and address.
        request: String,
        /// The connection's error.
        source: Box<ureq::Error>,
    },
    /// An apiserver rejected a request.
    #[error("{request}: {status}: {said}")]
    Refused {
        /// Method and address.
        request: String,
        /// The HTTP status.
        status: u16,
        said: String,
    },
    /// An object or an answer is malformed.
    #[error("{what} is no object that tests know: {said}")]
    Malformed {
        /// The object or answer.
        what: String,
        /// What is wrong with it.
        said: String,
    },
}

/// One server of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Etcd,
    /// An apiserver, counted from 0.
    Apiserver(usize),
    /// The kube-controller-manager with the controllers for services.
    Controllers,
    /// The node's kube-proxy in nftables mode. Only a test starts it.
    Proxy,
    /// The node's kube-proxy in iptables mode. Only a test starts it.
    IptablesProxy,
    /// A second kube-controller-manager with the node controllers. No kubelet renews a node here, so it marks each
    /// node as lost within seconds. Only a test starts it.
    NodeControllers,
    /// A third kube-controller-manager with the workload controllers. Only a test starts it.
    WorkloadControllers,
    /// The cloud-controller-manager with a cloud that obeys the Services' annotations (`tests/systems/peers`). Only a
    /// test starts it.
    CloudControllers,
    /// The kube-scheduler. Only a test starts it.
    Scheduler,
}

/// The parts that only a test starts.
const OPTIONAL: [Part; 6] = [
    Part::Proxy,
    Part::IptablesProxy,
    Part::NodeControllers,
    Part::WorkloadControllers,
    Part::CloudControllers,
    Part::Scheduler,
];

/// The address of an apiserver.
pub fn apiserver(index: usize) -> Result<SocketAddr, PeersError> {
    let text = ADDRESSES.get(index).and_then(|address| address.split('/').next());
    let address = text.and_then(|text| text.parse::<Ipv4Addr>().ok());
    let address = address.ok_or(PeersError::NoPart(Part::Apiserver(index)))?;
    Ok(SocketAddr::new(address.into(), APISERVER_PORT))
}

/// Calls a closure until it returns a value.
pub fn until<T>(
    limit: Duration,
    what: &str,
    mut ask: impl FnMut() -> Result<Option<T>, PeersError>,
) -> Result<T, PeersError> {
    let end = Deadline::after(limit);
    loop {
        if let Some(answer) = ask()? {
            return Ok(answer);
        }
        if end.is_over() {
            return Err(PeersError::Late { what: what.to_owned(), limit });
        }
        pause(POLL);
    }
}

/// A running control plane. Fields are dropped in this order: the servers end before their folder and the bed go.
#[derive(Debug)]
pub struct Cluster {
    servers: Vec<Server>,
    authority: Authority,
    folder: TempDir,
    bed: Bed,
}

impl Cluster {
    /// Starts all parts and waits until each is ready. The bed has the layout's addresses besides the servers' own.
    pub fn start(layout: Layout, apiservers: usize) -> Result<Self, PeersError> {
        Self::start_for(layout, apiservers, None, &[Part::Controllers])
    }

    /// A cluster of etcd and apiservers alone; the test writes the slices.
    pub fn without_controllers(layout: Layout, apiservers: usize) -> Result<Self, PeersError> {
        Self::start_for(layout, apiservers, None, &[])
    }

    /// A cluster with these pod ranges, so that kube-proxy can tell pods from other clients.
    pub fn start_with_pod_ranges(layout: Layout, apiservers: usize, pods: &str) -> Result<Self, PeersError> {
        Self::start_for(layout, apiservers, Some(pods), &[Part::Controllers])
    }

    fn start_for(
        mut layout: Layout,
        apiservers: usize,
        pods: Option<&str>,
        controllers: &[Part],
    ) -> Result<Self, PeersError> {
        let addresses = ADDRESSES.get(..apiservers).filter(|addresses| !addresses.is_empty());
        let addresses = addresses.ok_or(PeersError::Apiservers { asked: apiservers })?;
        layout.local.push(ADVERTISED_LOCAL);
        layout.local.extend(addresses);
        let bed = Bed::lay(&layout)?;
        let folder =
            tempfile::tempdir().map_err(|source| PeersError::File { path: std::env::temp_dir(), source })?;
        let authority = Authority::create(folder.path())?;
        let parts = [Part::Etcd].into_iter().chain((0..apiservers).map(Part::Apiserver));
        let parts: Vec<Part> = parts.collect();
        let server = |part: &Part| flags::server(*part, folder.path(), &authority, apiservers, pods);
        let all = parts.iter().chain([&Part::Controllers]).chain(&OPTIONAL);
        let servers = all.map(server).collect::<Result<_, _>>()?;
        let cluster = Self { servers, authority, folder, bed };
        cluster.start_all(&parts)?;
        controllers.iter().try_for_each(|part| cluster.start_part(*part))?;
        Ok(cluster)
    }

    /// Starts all apiservers at once, because they take longer than all other parts.
    fn start_all(&self, parts: &[Part]) -> Result<(), PeersError> {
        self.start_part(Part::Etcd)?;
        let apiservers = || parts.iter().copied().filter(|part| matches!(part, Part::Apiserver(_)));
        apiservers().try_for_each(|part| self.server(part)?.start(&self.bed, &[]))?;
        apiservers().try_for_each(|part| self.wait_ready(part))
    }

    /// The bed of all servers, for clients, further servers and the test's holdfast.
    pub fn bed(&self) -> &Bed {
        &self.bed
    }

    /// The authority that signs the certificates.
    pub fn authority(&self) -> &Authority {
        &self.authority
    }

    /// A folder for the test's files, removed with the cluster.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// A client of an apiserver as the administrator.
    pub fn api(&self, index: usize) -> Result<Api<'_>, PeersError> {
        self.api_as(index, &Identity::Certificate(self.authority.admin()))
    }

    /// A client of an apiserver with another identity.
    pub fn api_as(&self, index: usize, identity: &Identity<'_>) -> Result<Api<'_>, PeersError> {
        self.server(Part::Apiserver(index))?;
        Api::new(&self.bed, apiserver(index)?, &self.authority, identity)
    }

    /// How often a user has sent each request to all apiservers: `list services`, `watch nodes`.
    ///
    /// Only users in the audit policy are counted: those called `holdfast`, or with its account.
    pub fn requests_by_user(&self, user: &str) -> Result<BTreeMap<String, usize>, PeersError> {
        audit::requests(self.folder(), user)
    }

    /// Sends SIGTERM to one part without waiting. With an open watch, an apiserver takes a minute to end: it accepts
    /// no new client and keeps serving its watches. Kubelet kills it after half of that.
    pub fn ask_to_end(&self, part: Part) -> Result<(), PeersError> {
        self.server(part)?.ask_to_end()
    }

    /// Sends SIGTERM to one part, waits for its end, and returns how long that took.
    pub fn stop(&self, part: Part) -> Result<Duration, PeersError> {
        self.server(part)?.stop()
    }

    /// Kills one part with SIGKILL.
    pub fn kill(&self, part: Part) -> Result<(), PeersError> {
        self.server(part)?.kill()
    }

    /// Starts a stopped or killed part again with the same flags, and waits until it is ready.
    pub fn start_part(&self, part: Part) -> Result<(), PeersError> {
        self.start_part_with(part, &[])
    }

    /// Starts a part with further flags, as an operator would. Of a repeated flag, the last one counts.
    pub fn start_part_with(&self, part: Part, flags: &[&str]) -> Result<(), PeersError> {
        self.server(part)?.start(&self.bed, flags)?;
        self.wait_ready(part)
    }

    /// Its process id, while it runs.
    pub fn pid(&self, part: Part) -> Option<u32> {
        self.server(part).ok()?.pid()
    }

    fn server(&self, part: Part) -> Result<&Server, PeersError> {
        self.servers.iter().find(|server| server.part() == part).ok_or(PeersError::NoPart(part))
    }

    fn wait_ready(&self, part: Part) -> Result<(), PeersError> {
        let server = self.server(part)?;
        let ready = until(READY_LIMIT, "ready server", || {
            if !server.runs() {
                return Err(server.unready("ended"));
            }
            Ok(self.is_ready(part)?.then_some(()))
        });
        ready.map_err(|error| match error {
            PeersError::Late { .. } => server.unready("is not ready within five minutes"),
            other => other,
        })
    }

    /// The other parts have no readiness endpoint; what they write shows it.
    fn is_ready(&self, part: Part) -> Result<bool, PeersError> {
        match part {
            Part::Etcd => {
                Ok(self.bed.within(Location::OUTSIDE, || std::net::TcpStream::connect(ETCD).is_ok())?)
            }
            Part::Apiserver(index) => self.serves(index),
            Part::Controllers
            | Part::NodeControllers
            | Part::WorkloadControllers
            | Part::CloudControllers
            | Part::Scheduler => Ok(true),
            Part::Proxy => rules::are_written(self),
            Part::IptablesProxy => rules::translates(self, "KUBE-SERVICES"),
        }
    }

    /// Waits for the namespaces of tests, which appear a moment after the apiserver is ready.
    fn serves(&self, index: usize) -> Result<bool, PeersError> {
        let api = self.api(index)?;
        match api.request("GET", "readyz", None) {
            Ok(reply) if reply.status == 200 => Ok(api.get(Kind::Namespace, "default")?.is_some()),
            Ok(_) | Err(PeersError::Unreached { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Shows the last log lines of its servers if the test failed.
impl Drop for Cluster {
    fn drop(&mut self) {
        if thread::panicking() {
            self.servers.iter().for_each(Server::show);
        }
    }
}
