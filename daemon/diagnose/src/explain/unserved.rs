//! The sentence about an address and port that no frontend has.
//!
//! Invariant: it says whose port it is, if this node knows: a node port at an address that serves none, or a health
//! port. It does not say where a packet ends, unless a listener is known.

use std::net::SocketAddr;

use holdfast_core::facts::Listener;
use holdfast_core::keys::{Family, FrontendKey, Transport};
use holdfast_core::op::FrontendType;
use holdfast_core::snapshot::{FrontendView, ServiceView, Snapshot};

use super::place::list_node_port_addresses;
use super::query_match::DialTarget;
use super::{ClosedHealthPort, ExplainEvidence, OtherProcess};
use crate::formatting::join_names;

pub(super) fn describe_unserved(
    snapshot: &Snapshot,
    dialled: &DialTarget,
    given: &ExplainEvidence,
) -> String {
    describe_known_port(snapshot, dialled, given)
        .unwrap_or_else(|| format!("No service has {dialled}: holdfast does not translate packets to it."))
}

/// Whose port it is; `None`: this node does not know.
pub(super) fn describe_known_port(
    snapshot: &Snapshot,
    dialled: &DialTarget,
    given: &ExplainEvidence,
) -> Option<String> {
    if let Some((view, it)) = find_node_port(snapshot, dialled) {
        return Some(describe_silent_node_port(snapshot, (dialled, given), view, it));
    }
    let view = find_health_port(snapshot, dialled)?;
    Some(describe_health_port(view, dialled, given))
}

/// Why no frontend has it, as a clause.
pub(super) fn describe_absence(snapshot: &Snapshot, dialled: &DialTarget) -> String {
    let (port, host) = (dialled.address.port(), dialled.address.ip());
    match (find_node_port(snapshot, dialled), find_health_port(snapshot, dialled)) {
        (Some((view, it)), _) => {
            let name = &view.key.name;
            format!("the node port {port}/{} of {name} does not answer at {host}", it.protocol)
        }
        (None, Some(view)) => format!("{port} is the health check port of {}", view.key.name),
        (None, None) => "no service has that frontend".to_owned(),
    }
}

/// Whether a socket of this node is at the port and the protocol of a node port.
pub(super) fn is_node_port_of(it: &FrontendView, listener: &Listener) -> bool {
    it.kind == FrontendType::NodePort
        && it.port == listener.port
        && it.protocol.transport() == Some(listener.transport)
        && it.address.is_ipv4() == listener.address.is_ipv4()
}

fn find_node_port<'a>(
    snapshot: &'a Snapshot,
    dialled: &DialTarget,
) -> Option<(&'a ServiceView, &'a FrontendView)> {
    let is_meant = |it: &&FrontendView| {
        it.kind == FrontendType::NodePort
            && it.port.get() == dialled.address.port()
            && dialled.protocol.as_ref().is_none_or(|protocol| *protocol == it.protocol)
            && it.address.is_ipv4() == dialled.address.is_ipv4()
    };
    snapshot.services.iter().find_map(|view| Some((&**view, view.frontends.iter().find(&is_meant)?)))
}

/// A node port, dialled at an address that answers none.
fn describe_silent_node_port(
    snapshot: &Snapshot,
    (dialled, given): (&DialTarget, &ExplainEvidence),
    view: &ServiceView,
    it: &FrontendView,
) -> String {
    let (port, host, name) = (it.port, dialled.address.ip(), &view.key.name);
    let answering = list_node_port_addresses(&snapshot.node, Family::from_address(it.address));
    let at = match answering.is_empty() {
        true => "at no address of this node".to_owned(),
        false => format!("at {}, not at {host}", join_names(answering)),
    };
    let is_own = host.is_loopback() || snapshot.node.has_address(host);
    let listener = it.protocol.transport().and_then(|transport| {
        let key = FrontendKey { address: host, port, transport };
        snapshot.listeners.as_ref()?.find_listener(&key)
    });
    let gets = |found: &&OtherProcess| {
        let at = found.listener.address;
        is_node_port_of(it, &found.listener) && (at == host || at.is_unspecified())
    };
    let named = given.node_port_listeners.iter().find(gets);
    let then = match (named, listener, is_own) {
        (Some(found), _, true) => {
            let at = SocketAddr::new(found.listener.address, port.get());
            let process = &found.name;
            format!(
                "{process} listens at {at}, and gets these clients. Cause and remedy: holdfast diagnose {name}"
            )
        }
        (None, Some(listener), true) => {
            format!("A process of this node listens at {listener}, and gets these clients.")
        }
        (None, None, true) => {
            "A process of this node that listens there gets these clients, and no service.".to_owned()
        }
        (_, _, false) => "holdfast does not translate packets to it here.".to_owned(),
    };
    format!(
        "{port}/{} is a node port of {name}. It answers {at} (`node_port_addresses`). {then}",
        it.protocol
    )
}

fn find_health_port<'a>(snapshot: &'a Snapshot, dialled: &DialTarget) -> Option<&'a ServiceView> {
    let is_tcp = dialled.protocol.as_ref().is_none_or(|it| it.transport() == Some(Transport::Tcp));
    let port = dialled.address.port();
    let has = |view: &ServiceView| {
        let facts = view.facts.as_deref();
        facts.and_then(|facts| facts.health_check_node_port).is_some_and(|it| it.get() == port)
    };
    snapshot.services.iter().map(|view| &**view).find(|view| is_tcp && has(view))
}

fn describe_health_port(view: &ServiceView, dialled: &DialTarget, given: &ExplainEvidence) -> String {
    let (name, port) = (&view.key.name, dialled.address.port());
    let is_it = |it: &&ClosedHealthPort| it.service == *name && it.address.port() == port;
    match given.closed_ports.iter().find(is_it) {
        None => format!(
            "{port} is the health check port of {name}. This daemon answers load balancers there, and no backend does."
        ),
        Some(closed) => format!(
            "{port} is the health check port of {name}, and this daemon could not open it: {}. Load balancers that ask \
             there do not reach this daemon. Cause and remedy: holdfast diagnose {name}",
            closed.reason
        ),
    }
}
