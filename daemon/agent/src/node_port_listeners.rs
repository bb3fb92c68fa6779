//! Finds processes of this node that listen at node ports: some clients get the process, others the Service.
//!
//! Invariant: it serves nobody and stops nobody. Sockets are listed every ten seconds while a Service has a node port,
//! and processes are searched only when those sockets change, at the same pace.

use std::collections::BTreeMap;
use std::io;
use std::num::NonZeroU16;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use holdfast_core::facts::{Listener, NodeFacts};
use holdfast_core::keys::{Family, ObjectName, Transport};
use holdfast_core::op::FrontendType;
use holdfast_core::snapshot::{Snapshot, Verdict};
use holdfast_datapath::netlink::listeners::{self, ListeningSocket};
use holdfast_host::socket_owners::{SocketOwner, find_owners};
use holdfast_status::views::node_ports::NodePortListener;
use tokio::sync::watch;

use super::listeners::{ANSWER_BYTES_MAX, is_local_port};

/// How often sockets are listed.
const RELIST_EVERY: Duration = Duration::from_secs(10);

/// The most sockets that are reported. Further ones are as much a mistake as these.
const REPORTED_MAX: usize = 64;

/// What listens at node ports now.
pub type NodePortListeners = Arc<[NodePortListener]>;

/// The inode of a socket at a node port, before its process is known, and the service of that port. Sockets that share
/// their address count once.
type Found = BTreeMap<Listener, (u32, ObjectName)>;

/// Publishes what listens at node ports until nobody reads it.
pub async fn run(mut snapshots: watch::Receiver<Arc<Snapshot>>, out: watch::Sender<NodePortListeners>) {
    let mut before = Found::new();
    loop {
        if snapshots.wait_for(|now| uses_node_ports(now) || !before.is_empty()).await.is_err() {
            return;
        }
        let snapshot = Arc::clone(&snapshots.borrow_and_update());
        let former = before.clone();
        let looked = tokio::task::spawn_blocking(move || look(&snapshot, &former)).await;
        if let Ok(Ok(Some((found, named)))) = looked {
            before = found;
            report(&out.borrow(), &named);
            out.send_replace(named);
        }
        tokio::select! {
            () = tokio::time::sleep(RELIST_EVERY) => {}
            () = out.closed() => return,
        }
    }
}

fn uses_node_ports(snapshot: &Snapshot) -> bool {
    let mut all = snapshot.services.totals().frontends();
    all.any(|(kind, _, count)| kind == FrontendType::NodePort && count > 0)
}

/// What listens at node ports now; `None`: the same as before.
fn look(snapshot: &Snapshot, before: &Found) -> io::Result<Option<(Found, NodePortListeners)>> {
    let ports = list_node_ports(snapshot);
    let mut found = Found::new();
    for transport in [Transport::Tcp, Transport::Udp] {
        let sockets = listeners::list_sockets(transport, ANSWER_BYTES_MAX)?;
        found.append(&mut select_sockets(&ports, &snapshot.node, transport, &sockets));
    }
    if found == *before {
        return Ok(None);
    }
    let inodes = found.values().map(|(inode, _)| *inode).collect();
    let named = name_processes(&found, &find_owners(Path::new("/proc"), &inodes));
    Ok(Some((found, named)))
}

type NodePorts<'a> = BTreeMap<(NonZeroU16, Transport, Family), &'a ObjectName>;

/// The node ports that Services have; a claim without effect has none.
fn list_node_ports(snapshot: &Snapshot) -> NodePorts<'_> {
    let frontends = snapshot.services.iter().flat_map(|view| view.frontends.iter().map(move |it| (view, it)));
    let node_ports =
        frontends.filter(|(_, it)| it.kind == FrontendType::NodePort && it.verdict != Verdict::Conflict);
    let key = |it: &holdfast_core::snapshot::FrontendView| {
        Some((it.port, it.protocol.transport()?, Family::from_address(it.address)))
    };
    node_ports.filter_map(|(view, it)| Some((key(it)?, &view.key.name))).collect()
}

fn select_sockets(
    ports: &NodePorts<'_>,
    node: &NodeFacts,
    transport: Transport,
    sockets: &[ListeningSocket],
) -> Found {
    let is_taken = |it: &Listener| {
        node.takes_node_port_clients(it.address)
            // It may be a client of a name server.
            && !(transport == Transport::Udp && is_local_port(it.port))
    };
    let all = sockets.iter().filter_map(|socket| Some((NonZeroU16::new(socket.port)?, socket)));
    let listeners = all.flat_map(|(port, socket)| {
        socket.addresses().map(move |address| (Listener { port, transport, address }, socket.inode))
    });
    let mut found = Found::new();
    for (listener, inode) in listeners.filter(|(it, _)| is_taken(it)) {
        let key = (listener.port, transport, Family::from_address(listener.address));
        if let Some(service) = ports.get(&key)
            && (found.len() < REPORTED_MAX || found.contains_key(&listener))
        {
            let (first, _) = found.entry(listener).or_insert((inode, (*service).clone()));
            *first = inode.min(*first);
        }
    }
    found
}

fn name_processes(found: &Found, owners: &BTreeMap<u32, SocketOwner>) -> NodePortListeners {
    let named = found.iter().filter_map(|(listener, (inode, service))| {
        let owner = owners.get(inode);
        let process = owner.map(|it| (it.name.clone(), it.pid));
        let named = NodePortListener { service: service.clone(), listener: *listener, process };
        (!owner.is_some_and(SocketOwner::is_own)).then_some(named)
    });
    named.collect()
}

/// Logs the processes that listen there now and did not before.
fn report(before: &[NodePortListener], now: &[NodePortListener]) {
    for NodePortListener { service, listener, process } in now.iter().filter(|it| !before.contains(it)) {
        let (process, pid) = process.clone().unzip();
        tracing::warn!(%service, %listener, process, pid, "a process listens at a node port; some clients get it");
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use holdfast_core::keys::Protocol;
    use holdfast_core::op::ServiceId;
    use holdfast_fixtures::everything;

    use super::*;

    /// The node port of `default/web` in the fixture.
    const PORT: u16 = 30_080;

    fn socket(address: &str, port: u16) -> ListeningSocket {
        ListeningSocket { address: address.parse().unwrap(), port, inode: 7, is_dual: address == "::" }
    }

    fn selected(transport: Transport, sockets: &[ListeningSocket]) -> Vec<String> {
        let snapshot = everything();
        let ports = list_node_ports(&snapshot);
        let node =
            NodeFacts { node_port_addresses: ["192.0.2.5".parse().unwrap()].into(), ..NodeFacts::default() };
        let found = select_sockets(&ports, &node, transport, sockets);
        found.keys().map(ToString::to_string).collect()
    }

    #[test]
    fn a_socket_counts_where_it_takes_clients_of_a_node_port() {
        for (address, port, expected) in [
            ("0.0.0.0", PORT, &["0.0.0.0:30080/TCP"][..]),
            // The service has all clients of this address, so anybody may listen there.
            ("192.0.2.5", PORT, &[]),
            ("::", PORT, &["0.0.0.0:30080/TCP"]),
            ("198.51.100.1", PORT, &[]),
            ("0.0.0.0", PORT + 1, &[]),
        ] {
            assert_eq!(selected(Transport::Tcp, &[socket(address, port)]), expected, "{address}:{port}");
        }
        assert!(selected(Transport::Udp, &[socket("0.0.0.0", PORT)]).is_empty());
    }

    #[test]
    fn sockets_that_share_an_address_count_once() {
        let sockets = [7, 3, 5].map(|inode| ListeningSocket { inode, ..socket("0.0.0.0", PORT) });
        let snapshot = everything();
        let found = select_sockets(&list_node_ports(&snapshot), &snapshot.node, Transport::Tcp, &sockets);
        assert_eq!(found.values().map(|(inode, _)| *inode).collect::<Vec<_>>(), [3]);
    }

    #[test]
    fn a_node_port_that_another_service_takes_over_is_looked_at_again() {
        let snapshot = everything();
        let mut ports = list_node_ports(&snapshot);
        let sockets = [socket("0.0.0.0", PORT)];
        let before = select_sockets(&ports, &snapshot.node, Transport::Tcp, &sockets);
        let other = ObjectName::new("default", "other").unwrap();
        ports.values_mut().for_each(|service| *service = &other);
        assert_ne!(select_sockets(&ports, &snapshot.node, Transport::Tcp, &sockets), before);
    }

    #[test]
    fn a_process_has_its_name_and_the_daemon_is_none() {
        let snapshot = everything();
        let ports = list_node_ports(&snapshot);
        let found = select_sockets(&ports, &snapshot.node, Transport::Tcp, &[socket("0.0.0.0", PORT)]);
        let owner = |pid| BTreeMap::from([(7, SocketOwner { pid, name: "nginx".to_owned() })]);
        let named = name_processes(&found, &owner(9));
        assert_eq!(
            (named[0].service.to_string(), &named[0].process),
            ("default/web".to_owned(), &Some(("nginx".to_owned(), 9)))
        );
        assert!(name_processes(&found, &owner(std::process::id())).is_empty());
        assert_eq!(name_processes(&found, &BTreeMap::new())[0].process, None);
    }

    #[tokio::test]
    async fn kernel_an_unchanged_list_is_not_searched_again() {
        let held = TcpListener::bind("0.0.0.0:0").unwrap();
        let mut snapshot = everything();
        let port = held.local_addr().unwrap().port().try_into().unwrap();
        let mut view = (**snapshot.services.iter().find(|view| !view.frontends.is_empty()).unwrap()).clone();
        view.frontends.iter_mut().for_each(|it| {
            (it.kind, it.address, it.port) = (FrontendType::NodePort, Ipv4Addr::UNSPECIFIED.into(), port);
            (it.verdict, it.protocol) = (Verdict::Serving, Protocol::TCP);
        });
        snapshot.services.set(ServiceId(0), Some(Arc::new(view)));
        let (found, named) = look(&snapshot, &Found::new()).unwrap().unwrap();
        assert_eq!((found.len(), named.len()), (1, 0), "it is this process");
        assert!(look(&snapshot, &found).unwrap().is_none());
        drop(held);
        assert!(look(&snapshot, &found).unwrap().is_some_and(|(found, _)| found.is_empty()));
    }
}
