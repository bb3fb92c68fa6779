//! `[apiserver]` and `[kubernetes]`: how the daemon reaches the apiserver, and whether it uses its objects.
//!
//! Invariant: there is at most one client identity, so that a 401 or 403 has one cause. The files that are named here
//! are not read here: they rotate, so each user of a file reads it again.

use std::net::SocketAddr;
use std::path::PathBuf;

use holdfast_core::words;
use toml::Value;
use toml::de::DeValue;

use super::address::{ApiserverUrl, Cidr, address_port, apiserver_url, cidr};
use super::keys::{Keys as _, table, take, take_some, take_some_path};
use super::limits::{APISERVERS_MAX, CIDRS_MAX};
use super::report::Site;
use super::show;
use super::table::{ListRule, LocatedValue, Table, WhenEmpty};
use super::value::{boolean, dns_name, label_value, quote, string, word};

words! {
    /// Sources of further apiserver addresses, each a tier behind the configured ones.
    #[derive(PartialOrd, Ord)]
    pub enum Discovery {
        /// The kubelet's own kubeconfig.
        Kubelet = "kubelet",
        /// Backends that `default/kubernetes` has or had.
        Learned = "learned",
    }
}

words! {
    #[derive(Default)]
    pub enum Encodings {
        /// Protobuf where the server has it, else JSON.
        #[default]
        Auto = "auto",
        Protobuf = "protobuf",
        Json = "json",
    }
}

/// The daemon's identity to the apiserver. It overrides the kubeconfig's.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ClientIdentity {
    /// A file with a bearer token.
    TokenFile(PathBuf),
    /// A certificate and its key, both PEM.
    Certificate { certificate_file: PathBuf, key_file: PathBuf },
}

table! {
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Apiserver "apiserver" {
        /// The addresses in order of preference; no duplicates.
        endpoints: Vec<ApiserverUrl> = Vec::new(), take_endpoints, show::filled_list, reload;
        /// The address at which others on this node reach an apiserver; `None`: nowhere.
        vip: Option<SocketAddr> = None, take_some(address_port), show::optional(show::text), reload;
        /// The name that the certificate must have; `None`: the kubeconfig's, or else the dialled address. A learned
        /// address then needs a certificate for `kubernetes.default.svc`.
        tls_server_name: Option<String> = None, take_some(server_name), show::optional(show::text), reload;
        /// A kubeconfig, for values that the other keys omit.
        kubeconfig: Option<PathBuf> = None, take_some_path, show::optional(show::path), reload;
        /// The certificate authorities to trust; `None`: the kubeconfig's.
        ca_file: Option<PathBuf> = None, take_some_path, show::optional(show::path), reload;
        /// The client's identity; `None`: the kubeconfig's.
        // It has three keys of its own in this table.
        identity: Option<ClientIdentity> = None, take_identity, show::optional(show_identity), reload;
        /// The tiers behind the configured addresses.
        discover: Vec<Discovery> = vec![Discovery::Kubelet, Discovery::Learned], take_discover, show::list, reload;
        encoding: Encodings = Encodings::default(), take(word), show::word, restart;
    }
}

/// The service of the virtual address: namespace and name.
pub const VIP_SERVICE: [&str; 2] = ["holdfast", "apiserver"];

impl Apiserver {
    /// Whether the file gives an apiserver's address.
    pub fn is_configured(&self) -> bool {
        !self.endpoints.is_empty() || self.kubeconfig.is_some()
    }

    /// Whether requests would carry any identity.
    fn has_identity(&self) -> bool {
        self.identity.is_some() || self.kubeconfig.is_some()
    }
}

/// Addresses that Services of the cluster may claim by `spec.externalIPs`, and ServiceImports by `spec.ips`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExternalIps {
    /// Any: a tenant that may write a Service decides, as with kube-proxy.
    All,
    None,
    /// The addresses within these ranges, at least one.
    Cidrs(Vec<Cidr>),
}

words! {
    /// When the daemon reads Events of the cluster. No Event ever changes what is served.
    #[derive(Default)]
    pub enum EventsRead {
        Off = "off",
        /// While an operator requests a diagnosis of a service.
        #[default]
        OnDemand = "on-demand",
        /// On request, and also continuously, into the journal and the metrics.
        Watch = "watch",
    }
}

table! {
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Kubernetes "kubernetes" {
        /// Whether Services and EndpointSlices come from the apiserver. By default they do if an apiserver is
        /// configured.
        enabled: bool = false, take(boolean), show::scalar, restart;
        /// Serve the Services with this value in the label `service.kubernetes.io/service-proxy-name`; `None`: those
        /// without the label.
        service_proxy_name: Option<String> = None, take_some(label_value), show::optional(show::text), restart;
        events: bool = false, take(boolean), show::scalar, restart;
        events_read: EventsRead = EventsRead::default(), take(word), show::word, reload;
        /// Addresses that `spec.externalIPs` may claim, and `spec.ips` of ServiceImports.
        external_ips: ExternalIps = ExternalIps::All, take(external_ips), show_external_ips, reload;
        /// Whether ServiceImports are served, if the cluster has them.
        service_imports: bool = true, take(boolean), show::scalar, restart;
    }
}

const ENDPOINTS: ListRule = ListRule {
    what: "URLs such as \"https://10.0.0.10:6443\"",
    when_empty: WhenEmpty::Refused,
    most: APISERVERS_MAX,
};

const DISCOVER: ListRule =
    ListRule { what: "the words kubelet, learned", when_empty: WhenEmpty::Fine, most: Discovery::ALL.len() };

/// The table `[apiserver]`, with what `[kubernetes]` needs from it.
pub(super) struct ReadApiserver {
    pub(super) apiserver: Apiserver,
    site: Site,
    /// Whether the file names an apiserver, validly or not.
    is_named: bool,
}

pub(super) fn read(table: &mut Table<'_, '_, '_>) -> ReadApiserver {
    let apiserver = Apiserver::read(table);
    check_vip(table, &apiserver);
    let is_named = table.has("endpoints") || table.has("kubeconfig");
    check_companions(table, is_named);
    ReadApiserver { apiserver, site: table.site().clone(), is_named }
}

pub(super) fn read_kubernetes(table: &mut Table<'_, '_, '_>, read: &ReadApiserver) -> Kubernetes {
    let default = Kubernetes { enabled: read.apiserver.is_configured(), ..Kubernetes::default() };
    let kubernetes = Kubernetes::read_over(default, table);
    check_identity(table, read, kubernetes.enabled);
    if table.report().is_valid_toml() {
        check_use(table, read, &kubernetes);
    }
    kubernetes
}

/// Reports useless keys, because no apiserver is given or none is used.
fn check_use(table: &mut Table<'_, '_, '_>, read: &ReadApiserver, kubernetes: &Kubernetes) {
    if let Some(site) = table.good_site("enabled")
        && kubernetes.enabled
        && !read.is_named
    {
        let message = "there is no apiserver to read from: set `endpoints` or `kubeconfig` under [apiserver]";
        table.report().add_error(&site, message.to_owned());
    }
    if read.apiserver.vip.is_some() && read.is_named && !kubernetes.enabled {
        let message = "apiserver.vip is given, but no apiserver is used: [kubernetes] is not enabled";
        table.report().add_error(&read.site, message.to_owned());
    }
    if let Some(site) = table.good_site("events")
        && kubernetes.events
        && !kubernetes.enabled
    {
        let message = "there is no cluster to write Events to: [kubernetes] is not enabled";
        table.report().add_error(&site, message.to_owned());
    }
}

fn show_external_ips(ips: &ExternalIps) -> Option<Value> {
    match ips {
        ExternalIps::All => show::text("all"),
        ExternalIps::None => show::text("none"),
        ExternalIps::Cidrs(cidrs) => show::list(cidrs),
    }
}

const EXTERNAL_IPS: &str = "\"all\", \"none\" or a list of ranges such as \"198.51.100.0/24\"";

fn external_ips(value: &DeValue<'_>) -> Result<ExternalIps, String> {
    match value {
        DeValue::Array(items) => {
            let ranges =
                items.iter().map(|item| cidr(string(item.get_ref(), "a range such as \"10.0.0.0/8\"")?));
            external_ranges(ranges.collect::<Result<_, _>>()?)
        }
        other => match string(other, EXTERNAL_IPS)? {
            "all" => Ok(ExternalIps::All),
            "none" => Ok(ExternalIps::None),
            text => Err(format!("{} is not legal: legal is {EXTERNAL_IPS}", quote(text))),
        },
    }
}

fn external_ranges(ranges: Vec<Cidr>) -> Result<ExternalIps, String> {
    match ranges.len() {
        0 => Err("the list is empty: write \"none\" to allow no address".to_owned()),
        count if count > CIDRS_MAX => Err(format!("{count} items are too many: at most {CIDRS_MAX}")),
        _ => Ok(ExternalIps::Cidrs(ranges)),
    }
}

/// Warns if requests would carry no identity, because most clusters answer such requests with 401 or 403.
fn check_identity(table: &mut Table<'_, '_, '_>, read: &ReadApiserver, enabled: bool) {
    if enabled && read.apiserver.is_configured() && !read.apiserver.has_identity() {
        let message = "requests will be anonymous: set `kubeconfig`, `token_file` or a client certificate";
        table.report().add_warning(&read.site, message.to_owned());
    }
}

/// Keys that are useless without an apiserver's address.
const COMPANIONS: [&str; 6] =
    ["vip", "tls_server_name", "ca_file", "token_file", "client_certificate_file", "client_key_file"];

fn check_companions(table: &mut Table<'_, '_, '_>, is_named: bool) {
    let companion = COMPANIONS.into_iter().find(|key| table.has(key));
    if let (false, Some(key), true) = (is_named, companion, table.report().is_valid_toml()) {
        let message = format!("{key:?} is given, but no apiserver: set `endpoints` or `kubeconfig` too");
        let site = table.site().clone();
        table.report().add_error(&site, message);
    }
}

fn take_endpoints(table: &mut Table<'_, '_, '_>, key: &'static str) -> Option<Vec<ApiserverUrl>> {
    let found = table.list(key, &ENDPOINTS, apiserver_url)?;
    let mut distinct = Vec::new();
    for LocatedValue { value, site } in found {
        match distinct.contains(&value) {
            true => table.report().add_error(&site, format!("{value} is already in the list")),
            false => distinct.push(value),
        }
    }
    Some(distinct)
}

/// Rejects an endpoint's own address: it would be served in place of the endpoint.
fn check_vip(table: &mut Table<'_, '_, '_>, apiserver: &Apiserver) {
    let endpoints = &apiserver.endpoints;
    let Some((vip, site)) = apiserver.vip.zip(table.good_site("vip")) else { return };
    if endpoints.iter().any(|endpoint| endpoint.address() == vip) {
        let message = format!("{vip} is an endpoint's own address: the virtual one must be another");
        table.report().add_error(&site, message);
    }
    if !endpoints.is_empty() && endpoints.iter().all(|it| it.address().is_ipv4() != vip.is_ipv4()) {
        let message = format!("no endpoint has the family of {vip}: it leads only to learned ones");
        table.report().add_warning(&site, message);
    }
}

fn take_discover(table: &mut Table<'_, '_, '_>, key: &'static str) -> Option<Vec<Discovery>> {
    let found = table.list(key, &DISCOVER, word)?;
    let mut distinct: Vec<Discovery> = found.into_iter().map(|found| found.value).collect();
    // Tiers have one order, whatever the order of the words.
    distinct.sort_unstable();
    distinct.dedup();
    Some(distinct)
}

fn take_identity(table: &mut Table<'_, '_, '_>, _key: &'static str) -> Option<Option<ClientIdentity>> {
    let token = table.path("token_file");
    let certificate = table.path("client_certificate_file");
    let key = table.path("client_key_file");
    Some(match (token, certificate, key) {
        (None, certificate, key) => client_certificate(table, certificate, key),
        (Some(token), None, None) => Some(ClientIdentity::TokenFile(token.value)),
        (Some(token), _, _) => refuse(
            table,
            &token,
            "there are two identities: keep the token or the client certificate, not both",
        ),
    })
}

/// The keys of an identity, with their values.
pub(super) fn show_identity(identity: &ClientIdentity) -> Option<Value> {
    Some(match identity {
        ClientIdentity::TokenFile(token) => show::table([("token_file", show::path(token))]),
        ClientIdentity::Certificate { certificate_file, key_file } => show::table([
            ("client_certificate_file", show::path(certificate_file)),
            ("client_key_file", show::path(key_file)),
        ]),
    })
}

/// A client's certificate and its key; one requires the other.
pub(super) fn client_certificate(
    table: &mut Table<'_, '_, '_>,
    certificate: Option<LocatedValue<PathBuf>>,
    key: Option<LocatedValue<PathBuf>>,
) -> Option<ClientIdentity> {
    match (certificate, key) {
        (Some(certificate), Some(key)) => {
            Some(ClientIdentity::Certificate { certificate_file: certificate.value, key_file: key.value })
        }
        (Some(certificate), None) if !table.has("client_key_file") => {
            refuse(table, &certificate, "a client certificate needs its key: set `client_key_file` too")
        }
        (None, Some(key)) if !table.has("client_certificate_file") => {
            refuse(table, &key, "a client key needs its certificate: set `client_certificate_file` too")
        }
        // There is none, or one of the two was bad itself, and has been reported.
        _ => None,
    }
}

fn refuse<T>(table: &mut Table<'_, '_, '_>, found: &LocatedValue<PathBuf>, message: &str) -> Option<T> {
    if table.report().is_valid_toml() {
        table.report().add_error(&found.site, message.to_owned());
    }
    None
}

pub(super) fn server_name(value: &DeValue<'_>) -> Result<String, String> {
    let text = string(value, "a name such as \"kubernetes.default.svc\"")?;
    match text.parse::<std::net::IpAddr>() {
        Ok(address) => Ok(address.to_string()),
        Err(_) => dns_name(text),
    }
}
