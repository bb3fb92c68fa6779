//! What a process at a Service's node port means for clients, in words.
//!
//! Invariant: a diagnosis and `status` call the same socket a problem, and say the same about it.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use holdfast_core::facts::NodeFacts;
use holdfast_core::keys::{Family, ObjectName};

use crate::evidence::Listener;
use crate::formatting::join_names;
use holdfast_status::views::node_ports::NodePortListener;

impl From<&NodePortListener> for Listener {
    fn from(NodePortListener { listener, process, .. }: &NodePortListener) -> Self {
        let (process, pid) = process.clone().unzip();
        Self {
            port: listener.port.get(),
            protocol: listener.transport.as_str().to_owned(),
            address: listener.address,
            process,
            pid,
            own: false,
        }
    }
}

impl Listener {
    /// The process with its id, as far as it is known.
    pub fn describe_process(&self) -> String {
        let pid = self.pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default();
        format!("{}{pid}", self.process_name())
    }

    fn process_name(&self) -> &str {
        self.process.as_deref().unwrap_or("an unknown process")
    }
}

/// Which addresses of a node lead to the Service, and which to the process that listens at its node port.
pub fn describe_node_port_listener(node: &NodeFacts, service: &ObjectName, listener: &Listener) -> String {
    let family = Family::from_address(listener.address);
    let loopback = family.loopback_address();
    let own = node.addresses.iter().chain(&node.node_port_addresses).chain([&loopback]);
    let own: BTreeSet<SocketAddr> = own
        .filter(|address| Family::from_address(**address) == family)
        .map(|address| SocketAddr::new(*address, listener.port))
        .collect();
    let (served, others): (Vec<_>, Vec<_>) = own.into_iter().partition(|at| node.has_node_ports_at(at.ip()));
    let is_taken = |at: &SocketAddr| listener.address.is_unspecified() || listener.address == at.ip();
    let taken: Vec<_> = others.into_iter().filter(is_taken).collect();
    let served = match served.is_empty() {
        true => format!("no address leads to {service}"),
        false => describe_addresses(&served, &service.to_string()),
    };
    let taken = match taken.is_empty() {
        true => format!("{} gets no client", listener.process_name()),
        false => describe_addresses(&taken, listener.process_name()),
    };
    let protocol = if listener.protocol == "TCP" { String::new() } else { format!("/{}", listener.protocol) };
    format!(
        "{} listens at {}{protocol}, the node port of {service}: {served}, and {taken}",
        listener.describe_process(),
        listener.port
    )
}

fn describe_addresses(addresses: &[SocketAddr], to: &str) -> String {
    let verb = if addresses.len() == 1 { "leads" } else { "lead" };
    format!("{} {verb} to {to}", join_names(addresses))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn describe(listening: &str, protocol: &str) -> String {
        let node = NodeFacts {
            addresses: ["10.2.0.1".parse().unwrap()].into(),
            node_port_addresses: ["192.0.2.1".parse().unwrap()].into(),
            ..NodeFacts::default()
        };
        let listener = Listener {
            port: 30_080,
            protocol: protocol.to_owned(),
            address: listening.parse().unwrap(),
            process: Some("nginx".to_owned()),
            pid: Some(7),
            own: false,
        };
        describe_node_port_listener(&node, &ObjectName::new("shop", "web").unwrap(), &listener)
    }

    #[test]
    fn each_address_leads_to_one_of_the_two() {
        for (listening, protocol, expected) in [
            (
                "0.0.0.0",
                "TCP",
                "nginx (pid 7) listens at 30080, the node port of shop/web: 192.0.2.1:30080 leads to shop/web, and \
                 10.2.0.1:30080, 127.0.0.1:30080 lead to nginx",
            ),
            (
                "192.0.2.1",
                "UDP",
                "nginx (pid 7) listens at 30080/UDP, the node port of shop/web: 192.0.2.1:30080 leads to shop/web, and \
                 nginx gets no client",
            ),
            (
                "::",
                "TCP",
                "nginx (pid 7) listens at 30080, the node port of shop/web: no address leads to shop/web, and \
                 [::1]:30080 leads to nginx",
            ),
        ] {
            assert_eq!(describe(listening, protocol), expected);
        }
    }
}
