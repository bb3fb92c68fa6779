//! Test connections to backends and frontends of this service.
//!
//! Invariant: a backend is dialled only if this service's slices list it. If tenants wrote those, the address must also
//! be one that a pod can have: no loopback, no link-local address, and none of this host's own unless a slice names a
//! pod of this host for it. The administrator's own backends may be anywhere, this host included. At most [`PODS_MAX`]
//! backends and as many frontends are dialled, [`PROBES_AT_ONCE`] at a time, each for [`PROBE_TIMEOUT`]. These
//! connections send nothing; only this node's health port gets a request.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use futures_util::StreamExt;
use holdfast_core::address_policy::is_reserved;
use holdfast_core::keys::Transport;
use holdfast_core::list::Row;
use holdfast_core::snapshot::{FrontendView, PortView, ServiceView, Snapshot, Status};
use holdfast_diagnose::dial_target;
use holdfast_diagnose::evidence::{Listener, Lookup, Probe, ProbeKind, ProbeOutcome};
use holdfast_diagnose::limits::PODS_MAX;
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{Instant, timeout_at};

use super::http;
use crate::diagnose::limits::{PROBE_TIMEOUT, PROBES_AT_ONCE};
use holdfast_host::error_origin::ErrorOrigin;
use holdfast_host::exempt;

/// An address to dial, or why it is not dialled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProbeTarget {
    pub(super) to: SocketAddr,
    pub(super) kind: ProbeKind,
    pub(super) skip_reason: Option<&'static str>,
}

impl ProbeTarget {
    pub(super) const fn address(&self) -> IpAddr {
        self.to.ip()
    }

    /// Whether it is on this host.
    pub(super) const fn is_local(&self) -> bool {
        matches!(self.kind, ProbeKind::Backend { local: true })
    }
}

/// The TCP backends of a service, each once, ready ones first.
pub(super) fn backend_targets(views: &[Arc<ServiceView>], node: &str, own: &[IpAddr]) -> Vec<ProbeTarget> {
    collect_targets(views, (node, own), |_, port| port.key.transport == Transport::Tcp)
}

/// The backends that clients reach over UDP at this port.
pub(super) fn name_server_targets(
    views: &[Arc<ServiceView>],
    number: u16,
    node: &str,
    own: &[IpAddr],
) -> Vec<ProbeTarget> {
    collect_targets(views, (node, own), |view, port| {
        let leads = |it: &FrontendView| it.port.get() == number && it.port_name == port.key.name;
        port.key.transport == Transport::Udp
            && view.frontends.iter().any(|it| leads(it) && it.protocol.transport() == Some(Transport::Udp))
    })
}

fn collect_targets(
    views: &[Arc<ServiceView>],
    (node, own): (&str, &[IpAddr]),
    is_wanted: impl Fn(&ServiceView, &PortView) -> bool,
) -> Vec<ProbeTarget> {
    let mut all: Vec<(bool, ProbeTarget)> = Vec::new();
    let mut seen = BTreeSet::new();
    for view in views {
        for port in view.ports.iter().filter(|port| is_wanted(view, port)) {
            for row in port.rows.iter().filter(|row| !row.is_held()) {
                if seen.len() >= ROWS_SCANNED_MAX || !seen.insert(row.backend()) {
                    continue;
                }
                all.push((!row.conditions().ready, backend_target(view, port, &row, (node, own))));
            }
        }
    }
    all.sort_by_key(|(is_unready, _)| *is_unready);
    all.into_iter().map(|(_, target)| target).take(PODS_MAX).collect()
}

fn backend_target(
    view: &ServiceView,
    port: &PortView,
    row: &Row,
    (node, own): (&str, &[IpAddr]),
) -> ProbeTarget {
    let endpoint = port.row_slice(row, &view.slices).and_then(|it| it.endpoints.get(row.endpoint.into()));
    let local = endpoint.as_ref().and_then(|it| it.node).is_some_and(|it| it == *node);
    let is_pod = endpoint.and_then(|it| it.target).is_some_and(|target| target.kind == "Pod");
    let skip_reason = match view.key.source.is_tenant_writable() {
        true => refusal_reason(row.address, own, local && is_pod),
        false => None,
    };
    // This host's addresses are local, whatever a slice says.
    let local = local || is_host_address(row.address, own);
    ProbeTarget { to: row.backend(), kind: ProbeKind::Backend { local }, skip_reason }
}

/// The most rows that are searched for ready ones.
const ROWS_SCANNED_MAX: usize = 20_000;

fn refusal_reason(address: IpAddr, own: &[IpAddr], is_own_pod: bool) -> Option<&'static str> {
    match address.to_canonical() {
        address if is_reserved(address) => Some("no pod can have this address"),
        address if own.contains(&address) && !is_own_pod => {
            Some("it is an address of this host, and no pod of this host is said to have it")
        }
        _ => None,
    }
}

fn is_host_address(address: IpAddr, own: &[IpAddr]) -> bool {
    let address = address.to_canonical();
    address.is_loopback() || own.contains(&address)
}

/// The TCP frontends in this node's maps.
pub(super) fn frontend_targets(
    views: &[Arc<ServiceView>],
    snapshot: &Snapshot,
    skip_reason: Option<&'static str>,
) -> Vec<ProbeTarget> {
    let all = views.iter().flat_map(|view| view.frontends.iter());
    let programmed = all.filter(|it| it.protocol.transport() == Some(Transport::Tcp) && is_programmed(it));
    let target = |it: &FrontendView| {
        Some(ProbeTarget { to: dial_target(snapshot, it)?, kind: ProbeKind::Frontend, skip_reason })
    };
    programmed.filter_map(target).take(PODS_MAX).collect()
}

fn is_programmed(frontend: &FrontendView) -> bool {
    frontend.verdict.is_in_maps() && frontend.status == Status::Done
}

pub(super) async fn dial_targets(targets: Vec<ProbeTarget>, deadline: Instant) -> Vec<Probe> {
    let probes = futures_util::stream::iter(targets).map(|target| probe_target(target, deadline));
    probes.buffered(PROBES_AT_ONCE).collect().await
}

async fn probe_target(ProbeTarget { to, kind: of, skip_reason }: ProbeTarget, deadline: Instant) -> Probe {
    let begun = Instant::now();
    let outcome = match skip_reason {
        Some(why) => ProbeOutcome::NotTried(why),
        None if begun >= deadline => ProbeOutcome::NotTried("no time left"),
        None => connect(to, of, deadline.min(begun + PROBE_TIMEOUT)).await,
    };
    Probe { to, kind: of, outcome, took: begun.elapsed() }
}

async fn connect(to: SocketAddr, of: ProbeKind, until: Instant) -> ProbeOutcome {
    let dialled = async {
        match of {
            ProbeKind::Backend { .. } => exempt::connect(to).await,
            ProbeKind::Frontend => connect_as_client(to).await,
        }
    };
    match timeout_at(until, dialled).await {
        Ok(Ok(stream)) => classify_peer(to, &stream.peer_addr()),
        Ok(Err(error)) => classify_error(&error),
        Err(_) => ProbeOutcome::TimedOut,
    }
}

/// Under our programs a connection has the frontend as its peer. Another peer means that another program redirected it,
/// or that the kernel shows the backend. The check tests whether that peer is a backend.
fn classify_peer(to: SocketAddr, peer: &io::Result<SocketAddr>) -> ProbeOutcome {
    match peer {
        Ok(peer) if *peer != to => ProbeOutcome::Elsewhere(*peer),
        Ok(_) | Err(_) => ProbeOutcome::Connected,
    }
}

fn classify_error(error: &io::Error) -> ProbeOutcome {
    match error.kind() {
        io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionReset => ProbeOutcome::Refused,
        io::ErrorKind::TimedOut => ProbeOutcome::TimedOut,
        io::ErrorKind::PermissionDenied => ProbeOutcome::NotPermitted,
        _ if ErrorOrigin::classify_established(error) == ErrorOrigin::Node => {
            ProbeOutcome::NotTried("this node has no file, no port or no memory left for a connection")
        }
        _ => ProbeOutcome::Unreachable(error.to_string()),
    }
}

/// Dials from a socket without the mark, like any other process, so that the programs translate it.
async fn connect_as_client(to: SocketAddr) -> io::Result<TcpStream> {
    let socket = if to.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.connect(to).await
}

/// The HTTP status of this node's health port.
pub(super) async fn query_health(
    port: u16,
    listeners: Option<&Vec<Listener>>,
    until: Instant,
) -> Lookup<u16> {
    let listening = listeners.into_iter().flatten().find(|it| it.port == port && it.protocol == "TCP");
    let Some(listening) = listening else {
        return Lookup::Failed(format!("no process is known to listen on port {port}").into());
    };
    let address = match listening.address {
        IpAddr::V4(address) if address.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(address) if address.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        address => address,
    };
    let request = http::request_status(SocketAddr::new(address, port), "localhost", "/");
    match timeout_at(until.min(Instant::now() + PROBE_TIMEOUT), request).await {
        Ok(Ok(status)) => Lookup::Answered(status),
        Ok(Err(error)) => Lookup::Failed(error.to_string().into()),
        Err(_) => Lookup::Failed("no answer within a second".into()),
    }
}
