//! The configuration in force as a file: its values, and the defaults for absent ones.
//!
//! Invariant: if the text is read again as a file without a folder in its path, it gives an equal [`Config`]. Paths are
//! written as resolved, so a relative one starts from the daemon's working folder instead of the file's folder. With
//! the defaults the text may exceed the largest file that is read. Values from elsewhere, such as a node's name from
//! the host, are not in the text. Nothing can fail: the table holds text, finite numbers, booleans, lists and tables,
//! which TOML and JSON can always write.

use std::net::SocketAddr;

use holdfast_core::affinity::Prefixes;
use holdfast_core::keys::Family;
use holdfast_core::weights::Weight;
use toml::{Table, Value};

use super::apiserver::show_identity;
use super::keys::{Keys as _, show_table};
use super::show::{list, optional, path, rows, table, text, time, word};
use super::{
    Apiserver, CheckKind, CheckTls, Config, GrpcCheck, HealthCheck, HttpCheck, Resolve, ServiceBlock,
};

impl Config {
    /// Every key with its value in force. A key without a value, such as an omitted address, is left out.
    pub fn effective(&self) -> Table {
        rows([
            ("node", show_table(&self.node)),
            ("apiserver", Some(show_apiserver(&self.apiserver))),
            ("kubernetes", show_table(&self.kubernetes)),
            ("manifests", show_table(&self.manifests)),
            ("service", show_blocks(&self.services)),
            ("services", show_table(&self.more_services)),
            ("resolver", show_table(&self.resolver)),
            ("announce", show_table(&self.announce)),
            ("datapath", show_table(&self.datapath)),
            ("packets", show_table(&self.packets)),
            ("kube_proxy", show_table(&self.kube_proxy)),
            ("hold", show_table(&self.hold)),
            ("state", show_table(&self.state)),
            ("admin", show_table(&self.admin)),
            ("log", show_table(&self.log)),
        ])
    }

    /// The same configuration without possible secrets: the texts that checks send to backends, such as a password, and
    /// the queries of their URLs. Any user of the host may read the configuration in force, but perhaps not the file.
    pub fn without_secrets(mut self) -> Self {
        let checks = self.services.iter_mut().filter_map(|block| block.health_check.as_mut());
        checks.for_each(|check| hide_secrets(&mut check.kind));
        self
    }

    pub fn effective_text(&self) -> String {
        self.effective().to_string()
    }

    pub fn effective_json(&self) -> String {
        serde_json::json!(self.effective()).to_string()
    }
}

/// Replaces each secret text by its length.
fn hide_secrets(kind: &mut CheckKind) {
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

/// The keys of the identity belong to the table itself.
fn show_apiserver(apiserver: &Apiserver) -> Value {
    let mut rows = apiserver.rows();
    if let Some(Value::Table(identity)) = rows.remove("identity") {
        rows.extend(identity);
    }
    Value::Table(rows)
}

/// The `[[service]]` blocks; `None` without any, because a `[[service]]` may not follow `service = []`.
fn show_blocks(services: &[ServiceBlock]) -> Option<Value> {
    let blocks: Vec<Value> = services.iter().map(show_service).collect();
    (!blocks.is_empty()).then_some(Value::Array(blocks))
}

fn show_service(block: &ServiceBlock) -> Value {
    table([
        ("name", text(&block.name)),
        ("namespace", text(&block.namespace)),
        ("port_name", block.port_name.as_ref().map_or_else(|| text(""), text)),
        ("protocol", word(&block.protocol)),
        ("frontends", list(&block.frontends)),
        ("backends", show_backends(block)),
        ("resolve", block.resolve.as_ref().map(show_resolve)),
        ("session_affinity", block.session_affinity.as_ref().map_or_else(|| text("none"), time)),
        ("session_affinity_prefix", block.affinity_prefix.map(show_prefixes)),
        ("on_empty", block.on_empty.as_ref().and_then(word)),
        ("maglev", block.maglev.map(Into::into)),
        ("announce", word(&block.announce)),
        ("health_check", block.health_check.as_ref().map(show_health_check)),
    ])
}

fn show_prefixes(prefixes: Prefixes) -> Value {
    let length = |family| Some(i64::from(prefixes.length(family)).into());
    table([("ipv4", length(Family::V4)), ("ipv6", length(Family::V6))])
}

fn show_backends(block: &ServiceBlock) -> Option<Value> {
    let each = || block.backends.iter().zip(&block.weights).filter_map(show_backend).collect();
    block.resolve.is_none().then(|| Value::Array(each()))
}

fn show_resolve(resolve: &Resolve) -> Value {
    match resolve {
        Resolve::Servers(name) => table([("srv", text(name))]),
        Resolve::Addresses(name, port) => {
            table([("name", text(name)), ("port", Some(i64::from(port.get()).into()))])
        }
    }
}

fn show_backend((address, weight): (&SocketAddr, &Weight)) -> Option<Value> {
    match *weight {
        Weight::ONE => text(address),
        weight => {
            Some(table([("address", text(address)), ("weight", Some(i64::from(weight.number()).into()))]))
        }
    }
}

fn show_health_check(check: &HealthCheck) -> Value {
    let mut rows = show_check_kind(&check.kind);
    rows.extend(self::rows([
        ("kind", text(check.kind.as_str())),
        ("port", check.port.map(|port| i64::from(port.get()).into())),
        ("interval", time(&check.interval)),
        ("timeout", time(&check.timeout)),
        ("rise", Some(check.rise.into())),
        ("fall", Some(check.fall.into())),
        ("slow_start", check.slow_start.as_ref().and_then(time)),
    ]));
    Value::Table(rows)
}

fn show_check_kind(kind: &CheckKind) -> Table {
    match kind {
        CheckKind::Tcp => Table::new(),
        CheckKind::Http(asked) => show_http_check(asked),
        CheckKind::Grpc(asked) => show_grpc_check(asked),
        CheckKind::SendExpect { send, expect } => {
            rows([("send", send.as_ref().and_then(text)), ("expect", text(expect))])
        }
    }
}

fn show_http_check(asked: &HttpCheck) -> Table {
    let mut rows = show_tls(asked.tls.as_ref());
    rows.extend(self::rows([
        ("path", text(&asked.path)),
        ("host", asked.host.as_ref().and_then(text)),
        ("expect_status", text(&asked.expect_status)),
        ("expect_body", asked.expect_body.as_ref().and_then(text)),
    ]));
    rows
}

fn show_grpc_check(asked: &GrpcCheck) -> Table {
    let mut rows = show_tls(asked.tls.as_ref());
    rows.extend(self::rows([
        ("service", text(&asked.service)),
        ("host", asked.host.as_ref().and_then(text)),
    ]));
    rows
}

fn show_tls(tls: Option<&CheckTls>) -> Table {
    let Some(tls) = tls else { return Table::new() };
    let mut rows =
        rows([("tls_server_name", optional(text)(&tls.server_name)), ("ca_file", path(&tls.files.ca_file))]);
    if let Some(Value::Table(client)) = optional(show_identity)(&tls.files.client) {
        rows.extend(client);
    }
    rows
}
