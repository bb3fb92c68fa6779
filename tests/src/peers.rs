//! A Kubernetes control plane of its own, made of the real servers: etcd, kube-apiservers, the controllers, and a
//! kube-proxy to compare with.
//!
//! ```no_run
//! use holdfast_tests::bed::Layout;
//! use holdfast_tests::peers::{Cluster, Kind, Part, PeersError, Pod, SOON, until};
//!
//! # fn main() -> Result<(), PeersError> {
//! let cluster = Cluster::start(Layout::default(), 2)?; let api = cluster.api(1)?;
//! api.add_node("n1", "zone-a")?; api.apply(
//!     "{apiVersion: v1, kind: Service, metadata: {name: web}, spec: {selector: {app: web}, ports: [{port: 80}]}}",
//! )?; let pod = Pod { name: "default/web-1", app: "web", node: "n1", address:
//! "10.1.0.1" }; pod.start(&api)?; pod.report(&api, true)?; let slice =
//! until(SOON, "a slice", || Ok(api.slices_of("default/web")?.pop()))?;
//! cluster.stop(Part::Apiserver(0))?;
//! # Ok(())
//! # }
//! ```
//!
//! All of it runs in one [`Bed`], in a cgroup beside the node: what a test attaches to `cluster.bed().cgroup()` sees
//! its own clients and its own holdfast, not these servers. Apiserver `n` listens on [`apiserver`]`(n)`, and all of
//! them advertise [`ADVERTISED`], as in the incident: when one gets SIGTERM, `default/kubernetes` has no endpoints for
//! seconds. [`ADVERTISED`] is an address of the bed too, without a server until a test puts one there. The controllers
//! and `cluster.api(last)` use the last apiserver, so stop an earlier one. A credential for a daemon comes from
//! `cluster.authority()`, as files and as a kubeconfig.
//!
//! Invariant: nothing here is imitated. Objects, slices, refusals and certificates are judged by upstream's code, built
//! from `tests/systems/peers` by `scripts/peers.sh`. There is no kubelet; a test says itself what it would have written
//! (`Pod`). The bed ends all of it, also when a test is killed.

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
use std::time::{Duration, Instant};

use tempfile::TempDir;

pub use self::api::{Api, Identity, Kind, Reply};
pub use self::authority::{Authority, Credential};
pub use self::crowd::Crowd;
pub(crate) use self::crowd::mixed;
pub use self::etcd::{Etcd, METRICS_PORT};
pub use self::kubelet::Kubelet;
pub use self::rules::{Client, Frontend, Way, ways};
use self::server::Server;
pub use self::store::Backup;
pub use self::watch::{Seen, Watch};
pub use self::workload::Pod;
use crate::bed::{Bed, BedError, Layout, Location};

/// The address that all apiservers say they have. Upstream refuses one that is link-local.
pub const ADVERTISED: Ipv4Addr = Ipv4Addr::new(10, 15, 0, 9);

/// Where each apiserver listens, on an address of its own.
pub const APISERVER_PORT: u16 = 6443;

/// The node that a kube-proxy or a holdfast of a test serves.
pub const NODE: &str = "n1";

/// What services get their ClusterIP from; the first one is `default/kubernetes`.
pub const SERVICE_CIDRS: &str = "192.168.0.0/16,fd00:192:168::/112";

/// For what controllers do within milliseconds, on a machine that is busy with other tests.
pub const SOON: Duration = Duration::from_secs(30);

/// An apiserver is ready within two seconds; one of several on a busy machine within ten; a kube-proxy of ten thousand
/// services takes minutes.
const READY_LIMIT: Duration = Duration::from_secs(300);

const POLL: Duration = Duration::from_millis(20);

/// The addresses of the apiservers, as the bed's interface gets them; also the most there can be.
const ADDRESSES: [&str; 3] = ["10.15.1.1/32", "10.15.1.2/32", "10.15.1.3/32"];

const ADVERTISED_LOCAL: &str = "10.15.0.9/32";

const ETCD: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 2379);

/// Why there is no cluster, or why it did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum PeersError {
    /// The place to run in.
    #[error(transparent)]
    Bed(#[from] BedError),
    /// The servers were never built.
    #[error("there is no peers/{program} above {}; build it: scripts/peers.sh", near.display())]
    NotBuilt {
        program: String,
        /// Where it was looked for.
        near: PathBuf,
    },
    /// More apiservers than there are addresses for, or none.
    #[error("{asked} apiservers; a cluster has 1 to {}", ADDRESSES.len())]
    Apiservers {
        /// How many were asked for.
        asked: usize,
    },
    /// A part that this cluster does not have.
    #[error("the cluster has no {0:?}")]
    NoPart(Part),
    /// A key or a certificate could not be made.
    #[error("make {what}")]
    Certificate {
        what: String,
        /// What the library said.
        source: rcgen::Error,
    },
    /// A file of the cluster's folder.
    #[error("write {}", path.display())]
    File {
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A signal could not be sent to a server, or its end could not be awaited.
    #[error("end {part:?}")]
    Signal {
        part: Part,
        /// What the system said.
        source: io::Error,
    },
    /// A server ended by itself, or does not become ready.
    #[error("{part:?} {how}; its log ends with:\n{said}")]
    Unready {
        part: Part,
        /// What it did instead.
        how: &'static str,
        /// The end of its log.
        said: String,
    },
    /// Something did not come about in its time.
    #[error("no {what} within {limit:?}")]
    Late {
        /// What was waited for.
        what: String,
        limit: Duration,
    },
    /// An apiserver could not be asked.
    #[error("{request}")]
    Unreached {
        /// Method and address.
        request: String,
        /// What the connection said.
        source: Box<ureq::Error>,
    },
    /// An apiserver said no.
    #[error("{request}: {status}: {said}")]
    Refused {
        /// Method and address.
        request: String,
        /// The HTTP status.
        status: u16,
        said: String,
    },
    /// An object or an answer that is not what it should be.
    #[error("{what} is no object that tests know: {said}")]
    Malformed {
        /// What was read.
        what: String,
        /// What is wrong.
        said: String,
    },
}

/// One server of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Etcd,
    /// An apiserver, counted from 0.
    Apiserver(usize),
    /// The kube-controller-manager, with the controllers that services need.
    Controllers,
    /// The kube-proxy of the node, in its nftables mode. It runs only when a test starts it.
    Proxy,
    /// The same in its iptables mode. It runs only when a test starts it.
    IptablesProxy,
    /// A second kube-controller-manager, with the controllers of nodes: as no kubelet renews a node here, it calls each
    /// of them lost within seconds. It runs only when a test starts it.
    NodeControllers,
    /// A third one, with the controllers of workloads. It runs only when a test starts it.
    WorkloadControllers,
    /// The cloud-controller-manager, for a cloud that answers as the Services' annotations ask (`tests/systems/peers`).
    /// It runs only when a test starts it.
    CloudControllers,
    /// The kube-scheduler. It runs only when a test starts it.
    Scheduler,
}

/// What runs only when a test starts it.
const OPTIONAL: [Part; 6] = [
    Part::Proxy,
    Part::IptablesProxy,
    Part::NodeControllers,
    Part::WorkloadControllers,
    Part::CloudControllers,
    Part::Scheduler,
];

/// Where an apiserver listens.
pub fn apiserver(index: usize) -> Result<SocketAddr, PeersError> {
    let text = ADDRESSES.get(index).and_then(|address| address.split('/').next());
    let address = text.and_then(|text| text.parse::<Ipv4Addr>().ok());
    let address = address.ok_or(PeersError::NoPart(Part::Apiserver(index)))?;
    Ok(SocketAddr::new(address.into(), APISERVER_PORT))
}

/// Asks until there is an answer.
pub fn until<T>(
    limit: Duration,
    what: &str,
    mut ask: impl FnMut() -> Result<Option<T>, PeersError>,
) -> Result<T, PeersError> {
    let end = Instant::now() + limit;
    loop {
        if let Some(answer) = ask()? {
            return Ok(answer);
        }
        if Instant::now() >= end {
            return Err(PeersError::Late { what: what.to_owned(), limit });
        }
        thread::sleep(POLL);
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
    /// Starts all parts and waits until each is ready. The layout says what the bed has besides the servers' addresses.
    pub fn start(layout: Layout, apiservers: usize) -> Result<Self, PeersError> {
        Self::start_for(layout, apiservers, None, &[Part::Controllers])
    }

    /// A cluster of etcd and apiservers alone: slices are written by hand there.
    pub fn without_controllers(layout: Layout, apiservers: usize) -> Result<Self, PeersError> {
        Self::start_for(layout, apiservers, None, &[])
    }

    /// A cluster with pod addresses from these ranges, so that kube-proxy tells pods from other clients.
    pub fn of_pods(layout: Layout, apiservers: usize, pods: &str) -> Result<Self, PeersError> {
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

    /// All apiservers at once, as they need more of the time than the others together.
    fn start_all(&self, parts: &[Part]) -> Result<(), PeersError> {
        self.start_part(Part::Etcd)?;
        let apiservers = || parts.iter().copied().filter(|part| matches!(part, Part::Apiserver(_)));
        apiservers().try_for_each(|part| self.server(part)?.start(&self.bed, &[]))?;
        apiservers().try_for_each(|part| self.wait_ready(part))
    }

    /// Where everything runs: for clients, further servers and a holdfast of the test's own.
    pub fn bed(&self) -> &Bed {
        &self.bed
    }

    /// The authority that signs the certificates.
    pub fn authority(&self) -> &Authority {
        &self.authority
    }

    /// A folder that goes with the cluster, for files of the test's own.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// An apiserver as the administrator sees it.
    pub fn api(&self, index: usize) -> Result<Api<'_>, PeersError> {
        self.api_as(index, &Identity::Certificate(self.authority.admin()))
    }

    /// An apiserver as another client sees it.
    pub fn api_as(&self, index: usize, identity: &Identity<'_>) -> Result<Api<'_>, PeersError> {
        self.server(Part::Apiserver(index))?;
        Api::new(&self.bed, apiserver(index)?, &self.authority, identity)
    }

    /// What a user has asked all apiservers for, and how often: `list services`, `watch nodes`.
    ///
    /// Only users that the audit's policy names are counted: those called `holdfast`, or with its account.
    pub fn requests_of(&self, user: &str) -> Result<BTreeMap<String, usize>, PeersError> {
        audit::requests(self.folder(), user)
    }

    /// Asks one part to end (SIGTERM) and does not wait. An apiserver takes a minute for that while a watch is open: it
    /// accepts no new client, and goes on with the watches that it has. Kubelet kills it after half of that.
    pub fn ask_to_end(&self, part: Part) -> Result<(), PeersError> {
        self.server(part)?.ask_to_end()
    }

    /// Asks one part to end (SIGTERM), waits until it has, and says how long that took.
    pub fn stop(&self, part: Part) -> Result<Duration, PeersError> {
        self.server(part)?.stop()
    }

    /// Ends one part without a warning.
    pub fn kill(&self, part: Part) -> Result<(), PeersError> {
        self.server(part)?.kill()
    }

    /// Starts a part that was stopped or killed, as it was, and waits until it is ready.
    pub fn start_part(&self, part: Part) -> Result<(), PeersError> {
        self.start_part_with(part, &[])
    }

    /// The same, as an operator starts it with other flags: of a flag that is there twice the last one holds.
    pub fn start_part_with(&self, part: Part, flags: &[&str]) -> Result<(), PeersError> {
        self.server(part)?.start(&self.bed, flags)?;
        self.wait_ready(part)
    }

    /// The number of its process, while it runs.
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

    /// The others say nothing of themselves; what they write is the sign.
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

    /// An apiserver is ready a moment before the namespaces are there in which tests make their objects.
    fn serves(&self, index: usize) -> Result<bool, PeersError> {
        let api = self.api(index)?;
        match api.request("GET", "readyz", None) {
            Ok(reply) if reply.status == 200 => Ok(api.get(Kind::Namespace, "default")?.is_some()),
            Ok(_) | Err(PeersError::Unreached { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// A failed test shows what its servers said last.
impl Drop for Cluster {
    fn drop(&mut self) {
        if thread::panicking() {
            self.servers.iter().for_each(Server::show);
        }
    }
}
