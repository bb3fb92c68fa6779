//! The configuration in force, written as a file: what the file says, and the defaults for what it does not say.
//!
//! Invariant: if the text is read again as a file without a folder in its path, it gives an equal [`Config`]. Paths are
//! written as they were resolved, so a relative one now starts from the daemon's working folder and no longer from the
//! folder of the file. Since defaults are written too, the text may be longer than the largest file that is read, if
//! the file was near that bound. A value that is known only from elsewhere, such as a node's name taken from the host,
//! is not in the text. Nothing can fail: the table holds text, finite numbers, booleans, lists and tables, which TOML
//! and JSON can always write.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use holdfast_core::affinity::Prefixes;
use holdfast_core::keys::Family;
use holdfast_core::spelled::Spelled;
use holdfast_core::weights::Weight;
use toml::{Table, Value};

use super::kube_proxy::OFF;
use super::value::show_duration;
use super::{
    Admin, Announcing, Apiserver, Cgroup, CheckKind, CheckTls, ClientIdentity, Config, Datapath,
    DatapathLimits, ExternalIps, Flows, GrpcCheck, HealthCheck, Hold, HttpCheck, KubeProxy, Kubernetes, Log,
    Node, OuterAddresses, OuterDevices, Packets, PodDevices, Resolve, Resolver, ServiceBlock, StaleSockets,
};

impl Config {
    /// Every key with its value in force. A key without a value, such as an address that is not given, is left out.
    pub fn effective(&self) -> Table {
        rows([
            ("node", Some(node(&self.node))),
            ("apiserver", Some(apiserver(&self.apiserver))),
            ("kubernetes", Some(kubernetes(&self.kubernetes))),
            ("manifests", Some(table([("path", self.manifests.path.as_deref().and_then(path))]))),
            ("service", blocks(&self.services)),
            ("services", Some(table([("path", self.more_services.path.as_deref().and_then(path))]))),
            ("resolver", Some(resolver(&self.resolver))),
            ("announce", Some(announce(self.announce))),
            ("datapath", Some(datapath(&self.datapath))),
            ("packets", Some(packets(&self.packets))),
            ("kube_proxy", Some(kube_proxy(self.kube_proxy))),
            ("hold", Some(hold(&self.hold))),
            ("state", Some(table([("path", path(&self.state.path))]))),
            ("admin", Some(admin(&self.admin))),
            ("log", Some(log(&self.log))),
        ])
    }

    /// The same configuration without what may be a secret: what checks send to backends, such as a password, and what
    /// they ask for behind the path. Any user of the host may read what is in force, and need not be able to read the
    /// file.
    pub fn without_secrets(mut self) -> Self {
        let checks = self.services.iter_mut().filter_map(|block| block.health_check.as_mut());
        checks.for_each(|check| hide(&mut check.kind));
        self
    }

    /// [`Config::effective`] as TOML.
    pub fn effective_text(&self) -> String {
        self.effective().to_string()
    }

    /// [`Config::effective`] as JSON.
    pub fn effective_json(&self) -> String {
        serde_json::json!(self.effective()).to_string()
    }
}

/// Leaves of each text how long it is.
fn hide(kind: &mut CheckKind) {
    match kind {
        CheckKind::Tcp | CheckKind::Grpc(_) | CheckKind::SendExpect { send: None, .. } => {}
        CheckKind::SendExpect { send: Some(send), .. } => {
            *send = format!("({} bytes, not shown)", send.len());
        }
        CheckKind::Http(HttpCheck { path, .. }) => {
            if let Some((before, query)) = path.split_once('?') {
                *path = format!("{before}?({}-bytes-not-shown)", query.len());
            }
        }
    }
}

fn node(node: &Node) -> Value {
    let setting = &node.node_port_addresses;
    let outer = match &setting.outer {
        OuterAddresses::Nowhere => Vec::new(),
        OuterAddresses::Primary => vec!["primary".to_owned()],
        OuterAddresses::All => vec!["all".to_owned()],
        OuterAddresses::Ranges { cidrs, primary } => {
            let word = primary.then(|| "primary".to_owned());
            word.into_iter().chain(cidrs.iter().map(ToString::to_string)).collect()
        }
    };
    let addresses = list(outer.into_iter().chain(setting.localhost.then(|| "localhost".to_owned())));
    table([
        ("name", node.name.as_ref().and_then(|name| text(name.as_str()))),
        ("zone", node.zone.as_ref().and_then(text)),
        ("node_port_addresses", addresses),
    ])
}

/// The files of a token, of a certificate and of its key.
fn identity(identity: Option<&ClientIdentity>) -> [Option<Value>; 3] {
    match identity {
        None => [None, None, None],
        Some(ClientIdentity::TokenFile(token)) => [path(token), None, None],
        Some(ClientIdentity::Certificate { certificate_file, key_file }) => {
            [None, path(certificate_file), path(key_file)]
        }
    }
}

fn apiserver(apiserver: &Apiserver) -> Value {
    let [token, certificate, key] = identity(apiserver.identity.as_ref());
    table([
        // An empty list is left out, because the reader of a configuration refuses one.
        ("endpoints", list(&apiserver.endpoints).filter(|_| !apiserver.endpoints.is_empty())),
        ("tls_server_name", apiserver.tls_server_name.as_ref().and_then(text)),
        ("kubeconfig", apiserver.kubeconfig.as_deref().and_then(path)),
        ("ca_file", apiserver.ca_file.as_deref().and_then(path)),
        ("token_file", token),
        ("client_certificate_file", certificate),
        ("client_key_file", key),
        ("discover", list(&apiserver.discover)),
        ("vip", apiserver.vip.as_ref().and_then(text)),
        ("encoding", word(apiserver.encoding)),
    ])
}

fn kubernetes(kubernetes: &Kubernetes) -> Value {
    let external_ips = match &kubernetes.external_ips {
        ExternalIps::All => text("all"),
        ExternalIps::None => text("none"),
        ExternalIps::Cidrs(cidrs) => list(cidrs),
    };
    table([
        ("enabled", Some(kubernetes.enabled.into())),
        ("service_proxy_name", kubernetes.service_proxy_name.as_ref().and_then(text)),
        ("events", Some(kubernetes.events.into())),
        ("events_read", word(kubernetes.events_read)),
        ("external_ips", external_ips),
        ("service_imports", Some(kubernetes.service_imports.into())),
    ])
}

/// The `[[service]]` blocks; none if there are none, because `service = []` could not be followed by a `[[service]]`.
fn blocks(services: &[ServiceBlock]) -> Option<Value> {
    let blocks: Vec<Value> = services.iter().map(service).collect();
    (!blocks.is_empty()).then_some(Value::Array(blocks))
}

fn service(block: &ServiceBlock) -> Value {
    table([
        ("name", text(&block.name)),
        ("namespace", text(&block.namespace)),
        ("port_name", block.port_name.as_ref().map_or_else(|| text(""), text)),
        ("protocol", word(block.protocol)),
        ("frontends", list(&block.frontends)),
        ("backends", backends(block)),
        ("resolve", block.resolve.as_ref().map(resolve)),
        ("session_affinity", block.session_affinity.map_or_else(|| text("none"), time)),
        ("session_affinity_prefix", block.affinity_prefix.map(prefixes)),
        ("on_empty", block.on_empty.and_then(word)),
        ("maglev", block.maglev.map(Into::into)),
        ("announce", word(block.announce)),
        ("health_check", block.health_check.as_ref().map(health_check)),
    ])
}

fn prefixes(prefixes: Prefixes) -> Value {
    let length = |family| Some(i64::from(prefixes.of(family)).into());
    table([("ipv4", length(Family::V4)), ("ipv6", length(Family::V6))])
}

fn announce(announce: Announcing) -> Value {
    table([("table", Some(i64::from(announce.table.number()).into()))])
}

fn backends(block: &ServiceBlock) -> Option<Value> {
    let each = || block.backends.iter().zip(&block.weights).filter_map(backend).collect();
    block.resolve.is_none().then(|| Value::Array(each()))
}

fn resolve(resolve: &Resolve) -> Value {
    match resolve {
        Resolve::Servers(name) => table([("srv", text(name))]),
        Resolve::Addresses(name, port) => {
            table([("name", text(name)), ("port", Some(i64::from(port.get()).into()))])
        }
    }
}

fn resolver(resolver: &Resolver) -> Value {
    // An empty list is left out, because the reader of a configuration refuses one.
    table([("servers", list(&resolver.servers).filter(|_| !resolver.servers.is_empty()))])
}

fn backend((address, weight): (&SocketAddr, &Weight)) -> Option<Value> {
    match *weight {
        Weight::ONE => text(address),
        weight => {
            Some(table([("address", text(address)), ("weight", Some(i64::from(weight.number()).into()))]))
        }
    }
}

fn health_check(check: &HealthCheck) -> Value {
    let mut rows = of_kind(&check.kind);
    rows.extend(self::rows([
        ("kind", text(check.kind.as_str())),
        ("port", check.port.map(|port| i64::from(port.get()).into())),
        ("interval", time(check.interval)),
        ("timeout", time(check.timeout)),
        ("rise", Some(check.rise.into())),
        ("fall", Some(check.fall.into())),
        ("slow_start", check.slow_start.and_then(time)),
    ]));
    Value::Table(rows)
}

fn of_kind(kind: &CheckKind) -> Table {
    match kind {
        CheckKind::Tcp => Table::new(),
        CheckKind::Http(asked) => http(asked),
        CheckKind::Grpc(asked) => grpc(asked),
        CheckKind::SendExpect { send, expect } => {
            rows([("send", send.as_ref().and_then(text)), ("expect", text(expect))])
        }
    }
}

fn http(asked: &HttpCheck) -> Table {
    let mut rows = check_tls(asked.tls.as_ref());
    rows.extend(self::rows([
        ("path", text(&asked.path)),
        ("host", asked.host.as_ref().and_then(text)),
        ("expect_status", text(&asked.expect_status)),
        ("expect_body", asked.expect_body.as_ref().and_then(text)),
    ]));
    rows
}

fn grpc(asked: &GrpcCheck) -> Table {
    let mut rows = check_tls(asked.tls.as_ref());
    rows.extend(self::rows([
        ("service", text(&asked.service)),
        ("host", asked.host.as_ref().and_then(text)),
    ]));
    rows
}

fn check_tls(tls: Option<&CheckTls>) -> Table {
    let [_, certificate, key] = identity(tls.and_then(|tls| tls.files.client.as_ref()));
    rows([
        ("tls_server_name", tls.and_then(|tls| text(tls.server_name.as_ref()?))),
        ("ca_file", tls.and_then(|tls| path(&tls.files.ca_file))),
        ("client_certificate_file", certificate),
        ("client_key_file", key),
    ])
}

fn datapath(datapath: &Datapath) -> Value {
    let cgroup = match &datapath.cgroup {
        Cgroup::Auto => text("auto"),
        Cgroup::Path(folder) => path(folder),
    };
    table([
        ("kind", word(datapath.kind)),
        ("cgroup", cgroup),
        ("bpffs", path(&datapath.bpffs)),
        ("sockets", word(datapath.sockets)),
        ("udp_sockets", Some(datapath.udp_sockets.into())),
        ("exempt_cgroups", list(&datapath.exempt_cgroups).filter(|_| !datapath.exempt_cgroups.is_empty())),
        ("limits", Some(limits(&datapath.limits))),
        ("stale_sockets", Some(stale_sockets(&datapath.stale_sockets))),
    ])
}

fn packets(packets: &Packets) -> Value {
    let devices = match &packets.devices {
        OuterDevices::Auto => text("auto"),
        OuterDevices::Named(names) => list(names),
    };
    let pod_devices = match &packets.pod_devices {
        PodDevices::None => text("none"),
        PodDevices::Auto => text("auto"),
        PodDevices::Named(patterns) => list(patterns),
    };
    let ports = packets.snat_ports.spelled();
    table([
        ("enabled", Some(packets.enabled.into())),
        ("devices", devices),
        ("pod_devices", pod_devices),
        ("snat_ports", if let [ports] = ports.as_slice() { text(ports) } else { list(&ports) }),
        ("flows", flows(packets.flows)),
        ("maglev", Some(packets.maglev.into())),
        ("shortcut", word(packets.shortcut)),
        ("xdp", word(packets.xdp)),
        ("dsr", word(packets.dsr)),
        ("dsr_from", list(&packets.dsr_from).filter(|_| !packets.dsr_from.is_empty())),
        ("mark", text(&packets.mark)),
        ("forward_mark", packets.forward_mark.map_or_else(|| text("none"), |mark| text(&mark))),
    ])
}

fn flows(flows: Flows) -> Option<Value> {
    match flows {
        Flows::Auto => text("auto"),
        Flows::Most(most) => Some(most.into()),
    }
}

fn kube_proxy(ports: KubeProxy) -> Value {
    let port = |port: Option<SocketAddr>| port.map_or_else(|| text(OFF), |address| text(&address));
    table([("health", port(ports.health)), ("metrics", port(ports.metrics))])
}

fn stale_sockets(sockets: &StaleSockets) -> Value {
    table([("protocols", list(&sockets.protocols)), ("namespaces", word(sockets.namespaces))])
}

fn limits(limits: &DatapathLimits) -> Value {
    table([
        ("services", Some(limits.services.into())),
        ("frontends", Some(limits.frontends.into())),
        ("backends", Some(limits.backends.into())),
    ])
}

fn hold(hold: &Hold) -> Value {
    let share = f64::from(hold.mass_loss_share.millionths()) / 1e6;
    table([
        ("on_empty", word(hold.on_empty)),
        ("limit", time(hold.limit)),
        ("probe_interval", time(hold.probe_interval)),
        ("mass_loss_share", Some(share.into())),
        ("mass_loss_window", time(hold.mass_loss_window)),
        ("mass_loss_limit", time(hold.mass_loss_limit)),
    ])
}

fn admin(admin: &Admin) -> Value {
    table([("listen", text(&admin.listen.address())), ("socket", path(&admin.socket))])
}

fn log(log: &Log) -> Value {
    table([("level", word(log.level)), ("format", word(log.format))])
}

/// A key, and its value if it has one.
type Entry = (&'static str, Option<Value>);

fn rows<const N: usize>(rows: [Entry; N]) -> Table {
    rows.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect()
}

fn table<const N: usize>(keys: [Entry; N]) -> Value {
    Value::Table(rows(keys))
}

fn text(value: &(impl ToString + ?Sized)) -> Option<Value> {
    Some(Value::String(value.to_string()))
}

/// A path as text; the text is exact, because every path was read from text.
fn path(path: &Path) -> Option<Value> {
    text(&path.display())
}

fn time(duration: Duration) -> Option<Value> {
    text(&show_duration(duration))
}

fn word(value: impl Spelled) -> Option<Value> {
    text(value.spelling())
}

fn list<T: ToString>(items: impl IntoIterator<Item = T>) -> Option<Value> {
    Some(Value::Array(items.into_iter().filter_map(|item| text(&item)).collect()))
}
