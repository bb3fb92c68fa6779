//! The sentence about an address and port that no frontend has.
//!
//! Invariant: it says whose port it is, if this node knows: a node port at an address that serves none, or a health
//! port. It does not say where a packet ends, unless a listener is known.

use std::net::SocketAddr;

use holdfast_core::keys::{Family, FrontendKey, Transport};
use holdfast_core::op::FrontendType;
use holdfast_core::snapshot::{FrontendView, ServiceView, Snapshot};

use super::place::list_node_port_addresses;
use super::query_match::DialTarget;
use crate::formatting::join_names;

pub(super) fn describe_unserved(snapshot: &Snapshot, dialled: &DialTarget) -> String {
    if let Some((view, it)) = find_node_port(snapshot, dialled) {
        return describe_silent_node_port(snapshot, dialled, view, it);
    }
    match find_health_port(snapshot, dialled) {
        Some(view) => describe_health_port(view, dialled),
        None => format!("No service has {dialled}: holdfast does not translate packets to it."),
    }
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
    dialled: &DialTarget,
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
    let then = match (listener, is_own) {
        (Some(listener), true) => {
            format!("A process of this node listens at {listener}, and gets these clients.")
        }
        (None, true) => {
            "A process of this node that listens there gets these clients, and no service.".to_owned()
        }
        (_, false) => "holdfast does not translate packets to it here.".to_owned(),
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

fn describe_health_port(view: &ServiceView, dialled: &DialTarget) -> String {
    let name = &view.key.name;
    format!(
        "{} is the health check port of {name}: load balancers ask this daemon there, and no backend answers. Whether it \
         is open: holdfast diagnose {name}",
        SocketAddr::port(&dialled.address)
    )
}
