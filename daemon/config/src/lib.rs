//! The configuration: one TOML file, read and judged as a whole.
//!
//! Owns the file's keys, their defaults and bounds, and the messages about bad ones. Invariant: a [`Config`] that
//! exists is legal; no reader has to check a value again. One run finds every error of a file. Neither the environment
//! nor another file changes it; the command line may set the node's name.

#![forbid(unsafe_code)]

mod address;
mod announce;
mod apiserver;
mod block_admission;
mod block_conflicts;
mod blocks_file;
mod datapath;
pub mod dns_name;
mod duplicate;
mod effective;
mod file;
mod file_author;
mod health_check;
mod hold;
mod keys;
mod kube_proxy;
mod limits;
mod nearest;
mod node;
mod packets;
mod problem;
mod report;
mod resolve;
mod restart;
mod service;
mod settings;
mod show;
mod table;
#[cfg(test)]
mod tests;
mod value;
mod written_keys;

use std::path::{Path, PathBuf};

pub use self::address::{ApiserverUrl, Cidr, ListenAddress};
pub use self::announce::{Announce, Announcing, RouteTable};
pub use self::apiserver::{
    Apiserver, ClientIdentity, Discovery, Encodings, EventsRead, ExternalIps, Kubernetes, VIP_SERVICE,
};
pub use self::block_admission::BlockAdmission;
pub use self::blocks_file::BlocksFile;
pub use self::datapath::{
    Cgroup, CgroupPath, Datapath, DatapathKind, DatapathLimits, Namespaces, Protocol, Sockets, StaleSockets,
};
pub use self::file_author::FileAuthor;
pub use self::health_check::{CheckKind, CheckTls, GrpcCheck, HealthCheck, HttpCheck, Statuses, TlsFiles};
pub use self::hold::Hold;
pub use self::kube_proxy::KubeProxy;
pub use self::limits::{FILE_BYTES_MAX, NODE_PORTS, SNAT_RANGES_MAX};
pub use self::node::{HostNameError, Node, NodeName, NodePortAddresses, OuterAddresses};
pub use self::packets::{
    DeviceName, Dsr, FastPathUse, FlowMemory, Flows, Mark, OuterDevices, Packets, PodDevices, SnatPorts,
    XdpUse, ranges_overlap,
};
pub use self::problem::{ConfigErrors, Message, Position, Problem, Subject};
pub use self::resolve::{Resolve, Resolver};
pub use self::service::ServiceBlock;
pub use self::settings::{Admin, Log, LogFormat, LogLevel, Manifests, Services, State};
pub use self::value::{DnsLabel, Share};
pub use self::written_keys::WrittenKeys;

use self::block_conflicts::ConflictContext;
use self::keys::Keys as _;
use self::report::{Report, Site};
use self::table::Table;

/// All values of the file, with defaults for absent ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    pub node: Node,
    pub apiserver: Apiserver,
    pub kubernetes: Kubernetes,
    pub manifests: Manifests,
    /// `[[service]]`, in the order of the file.
    pub services: Vec<ServiceBlock>,
    /// `[services]`: the folder of further blocks.
    pub more_services: Services,
    /// The name servers for the backends of such blocks.
    pub resolver: Resolver,
    pub announce: Announcing,
    pub datapath: Datapath,
    pub packets: Packets,
    pub kube_proxy: KubeProxy,
    pub hold: Hold,
    pub state: State,
    pub admin: Admin,
    pub log: Log,
    /// The keys that the file has. Where a value comes from is no part of it: two configurations with the same values
    /// are equal.
    pub written_keys: WrittenKeys,
}

/// The sources of a daemon's configuration.
#[derive(Clone, Debug)]
pub struct ConfigFile {
    pub path: PathBuf,
    /// The node's name from the command line. It overrides the file's, because many nodes may share a file.
    pub node_name: Option<NodeName>,
}

impl ConfigFile {
    /// Reads and judges the file, and applies the node's name from the command line.
    pub fn load(&self) -> Result<(Config, Vec<Problem>), ConfigErrors> {
        let (mut config, warnings) = Config::load(&self.path)?;
        config.node.name = self.node_name.clone().or(config.node.name);
        Ok((config, warnings))
    }

    /// Reads and judges it again. A pipe in its place is rejected: opening it could block a thread for ever.
    pub fn reload(&self) -> Result<(Config, Vec<Problem>), ConfigErrors> {
        file::refuse_pipe(&self.path, &self.path.to_string_lossy())?;
        self.load()
    }
}

impl Config {
    /// Reads and judges a file. A legal one comes with its warnings.
    pub fn load(path: &Path) -> Result<(Self, Vec<Problem>), ConfigErrors> {
        let file_name = path.to_string_lossy();
        let text = file::read_text(path, &file_name)?;
        Self::parse(&text, &file_name)
    }

    /// Judges the text of a file. The name is for messages, and relative paths start from its folder.
    pub fn parse(text: &str, file_name: &str) -> Result<(Self, Vec<Problem>), ConfigErrors> {
        let (mut report, mut config) = Table::read_text(text, file_name, read_config)?;
        config.written_keys = report.take_written_keys();
        report.finish().map(|warnings| (config, warnings))
    }

    /// Whether it says where services come from. Without that, a daemon has nothing to serve.
    pub const fn has_services(&self) -> bool {
        self.kubernetes.enabled
            || self.manifests.path.is_some()
            || self.more_services.path.is_some()
            || !self.services.is_empty()
    }
}

fn read_config(root: &mut Table<'_, '_, '_>) -> Config {
    let node = root.table("node", Node::read);
    let read_apiserver = root.table("apiserver", apiserver::read);
    let kubernetes = root.table("kubernetes", |table| apiserver::read_kubernetes(table, &read_apiserver));
    let manifests = root.table("manifests", Manifests::read);
    let blocks = root.blocks("service", limits::SERVICES_MAX, service::read);
    let blocks: Vec<service::ReadBlock> = blocks.into_iter().flatten().collect();
    let more_services = root.table("services", Services::read);
    let resolver = root.table("resolver", Resolver::read);
    let announce = root.table("announce", Announcing::read);
    let datapath = root.table("datapath", datapath::read);
    let packets = root.table("packets", packets::read);
    let stands_in = kube_proxy::replaces_kube_proxy(&kubernetes, &datapath, &packets);
    let kube_proxy = root.table("kube_proxy", |table| kube_proxy::read(table, stands_in));
    let hold = root.table("hold", hold::read);
    let state = root.table("state", State::read);
    let admin = root.table("admin", Admin::read);
    let log = root.table("log", Log::read);
    let apiserver = read_apiserver.apiserver;
    block_conflicts::check_blocks(
        root.report(),
        &blocks,
        ConflictContext { admin: &admin, apiserver: &apiserver, packets: &packets, resolver: &resolver },
    );
    let services = blocks.into_iter().map(|read| read.block).collect();
    let config = Config {
        node,
        apiserver,
        kubernetes,
        manifests,
        services,
        more_services,
        resolver,
        announce,
        datapath,
        packets,
        kube_proxy,
        hold,
        state,
        admin,
        log,
        written_keys: WrittenKeys::default(),
    };
    check_sources(root.report(), &config);
    config
}

/// Warns of a file with nothing to serve. That is legal, since a node may be set up before its cluster, but seldom
/// meant. With errors in the file it is still unknown.
fn check_sources(report: &mut Report<'_>, config: &Config) {
    if report.errors_count() == 0 && !config.has_services() {
        let site = Site { place: Subject::File, offset: 0 };
        report.add_warning(&site, NOTHING_CONFIGURED.to_owned());
    }
}

/// Why a file has nothing to serve.
pub const NOTHING_CONFIGURED: &str =
    "nothing to serve: give an [apiserver], a path under [manifests] or [services], or a [[service]]";
