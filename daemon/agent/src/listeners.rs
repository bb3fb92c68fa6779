//! Lists this host's listening sockets, so that no external IP at the host's own address takes their clients.
//!
//! Invariant: if sockets cannot be listed, the last listing holds. Only sockets at the node's addresses count, because
//! every user may open any number at others. They are listed every second while a Service has an external IP; else
//! every ten, and at once when the first one comes or the node's addresses change.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::num::NonZeroU16;
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use holdfast_core::event::Event;
use holdfast_core::facts::{Listener, Listeners};
use holdfast_core::keys::{Family, Transport};
use holdfast_core::op::FrontendType;
use holdfast_core::snapshot::Snapshot;
use holdfast_datapath::netlink::listeners;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::node;

/// How often sockets are listed while a Service has an external IP. The kernel scans at most 64,000 buckets, which
/// takes less than a millisecond.
const RELIST_EVERY: Duration = Duration::from_secs(1);

/// How often they are listed otherwise.
const RELIST_EVERY_IDLE: Duration = Duration::from_secs(10);

/// A listing of very many sockets pauses this many times as long as it took.
const PAUSE_FACTOR: u32 = 10;

/// The most bytes of a list of sockets that is kept, some 80 per socket. UDP sockets of DNS clients are among them.
pub(crate) const ANSWER_BYTES_MAX: usize = 1 << 26;

/// The ephemeral ports: most UDP sockets there are short-lived clients.
const LOCAL_PORTS: &str = "/proc/sys/net/ipv4/ip_local_port_range";

/// The kernel's default ephemeral ports.
const LOCAL_PORTS_USUAL: RangeInclusive<u16> = 32_768..=60_999;

/// The current sockets; `None` if they cannot be listed.
pub fn current_listeners() -> Option<Arc<Listeners>> {
    match list(None) {
        Ok((listed, _)) => Some(Arc::new(listed)),
        Err(error) => {
            tracing::warn!(%error, "cannot list this host's listening sockets; external IPs of the node are not served");
            None
        }
    }
}

/// Sends the engine each change of the listening sockets.
pub async fn run(mut snapshots: watch::Receiver<Arc<Snapshot>>, events: mpsc::Sender<Vec<Event>>) {
    let (mut told, mut before) = (None, None);
    loop {
        let (is_asked_for, node) = {
            let snapshot = snapshots.borrow_and_update();
            (uses_external_ips(&snapshot), Arc::clone(&snapshot.node))
        };
        let former = before.clone();
        let began = Instant::now();
        if let Ok(Ok((listed, brief))) = tokio::task::spawn_blocking(move || list(former.as_ref())).await {
            before = Some(brief);
            if told.as_deref() != Some(&listed) {
                let listed = Arc::new(listed);
                told = Some(Arc::clone(&listed));
                if events.send(vec![Event::ListenersApplied(listed)]).await.is_err() {
                    return;
                }
            }
        }
        let pause = if is_asked_for { RELIST_EVERY } else { RELIST_EVERY_IDLE };
        let is_urgent = |now: &Arc<Snapshot>| {
            uses_external_ips(now) && !is_asked_for || now.node.addresses != node.addresses
        };
        tokio::select! {
            () = tokio::time::sleep(pause.max(began.elapsed() * PAUSE_FACTOR)) => {}
            ended = snapshots.wait_for(is_urgent) => {
                if ended.is_err() {
                    return;
                }
            }
        }
    }
}

fn uses_external_ips(snapshot: &Snapshot) -> bool {
    let mut all = snapshot.services.totals().frontends();
    all.any(|(kind, _, count)| kind == FrontendType::ExternalIp && count > 0)
}

/// UDP sockets at ephemeral ports, from one listing.
type LocalSockets = Listeners;

/// Lists the sockets. A UDP socket at an ephemeral port may be a DNS client or a WireGuard tunnel: it counts as
/// listening if the listing before had it as well, or if there was none.
fn list(before: Option<&LocalSockets>) -> io::Result<(Listeners, LocalSockets)> {
    let local = local_ports(Path::new(LOCAL_PORTS));
    let addresses = counted_addresses()?;
    let (mut listed, mut brief) = (Listeners::default(), LocalSockets::default());
    for_each_listener(Transport::Udp, &addresses, |listener| {
        let is_brief = local.contains(&listener.port.get());
        if is_brief {
            brief.insert(listener);
        }
        if !is_brief || before.is_none_or(|before| before.contains(&listener)) {
            listed.insert(listener);
        }
    })?;
    for_each_listener(Transport::Tcp, &addresses, |listener| listed.insert(listener))?;
    // The kernel lists SCTP only if it has the module.
    let _ = for_each_listener(Transport::Sctp, &addresses, |listener| listed.insert(listener));
    Ok((listed, brief))
}

/// The addresses at which a socket may take clients of an external IP. An unprivileged socket may be bound to any
/// other: to the loopback range, or by `IP_FREEBIND`.
fn counted_addresses() -> io::Result<BTreeSet<IpAddr>> {
    let own = node::local_addresses()?.into_iter().map(|local| local.address);
    Ok(own.chain([Family::V4, Family::V6].map(Family::unspecified_address)).collect())
}

/// Passes each listener at these addresses on. The list may have any length, because none of it is kept.
fn for_each_listener(
    transport: Transport,
    addresses: &BTreeSet<IpAddr>,
    mut each: impl FnMut(Listener),
) -> io::Result<()> {
    listeners::for_each_socket(transport, usize::MAX, |socket| {
        let Some(port) = NonZeroU16::new(socket.port) else { return };
        let counted = socket.addresses().filter(|address| addresses.contains(address));
        counted.for_each(|address| each(Listener { port, transport, address }));
    })
}

/// Whether the kernel assigns this port to sockets without a port of their own.
pub(crate) fn is_local_port(port: NonZeroU16) -> bool {
    local_ports(Path::new(LOCAL_PORTS)).contains(&port.get())
}

fn local_ports(path: &Path) -> RangeInclusive<u16> {
    let read = || {
        let text = std::fs::read_to_string(path).ok()?;
        let mut words = text.split_whitespace().map(|word| word.parse().ok());
        Some(words.next()??..=words.next()??)
    };
    read().unwrap_or(LOCAL_PORTS_USUAL)
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr, TcpListener, UdpSocket};

    use holdfast_core::keys::FrontendKey;
    use holdfast_fixtures::clock::await_event;

    use super::*;

    const NODE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 7));

    fn key(port: u16, transport: Transport) -> FrontendKey {
        FrontendKey { address: NODE, port: port.try_into().unwrap(), transport }
    }

    async fn told(events: &mut mpsc::Receiver<Vec<Event>>) -> Arc<Listeners> {
        let mut events = await_event("a list of sockets", events.recv()).await.unwrap();
        let Event::ListenersApplied(listeners) = events.remove(0) else { panic!("no sockets") };
        listeners
    }

    #[tokio::test(start_paused = true)]
    async fn kernel_new_and_closed_listeners_are_reported() {
        let first = TcpListener::bind("0.0.0.0:0").unwrap();
        let port = first.local_addr().unwrap().port();
        let (_snapshots, seen) = watch::channel(Arc::new(Snapshot::default()));
        let (send, mut events) = mpsc::channel(1);
        let task = tokio::spawn(run(seen, send));
        assert!(told(&mut events).await.find_listener(&key(port, Transport::Tcp)).is_some());
        drop(first);
        while told(&mut events).await.find_listener(&key(port, Transport::Tcp)).is_some() {}
        task.abort();
    }

    #[test]
    fn kernel_a_udp_socket_at_an_ephemeral_port_counts_once_it_lasts() {
        let local = local_ports(Path::new(LOCAL_PORTS));
        let client = UdpSocket::bind("0.0.0.0:0").unwrap();
        let chosen = (20_000..30_000).filter(|port| !local.contains(port));
        let server = chosen.into_iter().find_map(|port| UdpSocket::bind(("0.0.0.0", port)).ok()).unwrap();
        let [client, server] = [client, server].map(|it| (it.local_addr().unwrap().port(), it));
        let (first, brief) = list(None).unwrap();
        let nothing = LocalSockets::default();
        let (fresh, lasting) = (list(Some(&nothing)).unwrap().0, list(Some(&brief)).unwrap().0);
        for (listed, is_known, when) in [
            (first, true, "there was no listing before"),
            (fresh, false, "it is new"),
            (lasting, true, "it lasts"),
        ] {
            assert_eq!(listed.find_listener(&key(client.0, Transport::Udp)).is_some(), is_known, "{when}");
            assert!(listed.find_listener(&key(server.0, Transport::Udp)).is_some(), "{when}");
        }
    }

    #[test]
    fn kernel_sockets_at_addresses_that_the_node_lacks_do_not_count() {
        let [here, looped] = ["0.0.0.0:0", "127.9.9.9:0"].map(|address| TcpListener::bind(address).unwrap());
        let listed = list(None).unwrap().0;
        for (socket, is_listed) in [(here, true), (looped, false)] {
            let address = socket.local_addr().unwrap();
            let port = address.port().try_into().unwrap();
            let listener = Listener { port, transport: Transport::Tcp, address: address.ip() };
            assert_eq!(listed.contains(&listener), is_listed, "{address}");
        }
    }

    #[test]
    fn ephemeral_ports_come_from_the_kernel_or_the_default() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("range");
        for (text, expected) in [
            ("1024\t2048\n", 1_024..=2_048),
            ("1024", LOCAL_PORTS_USUAL),
            ("a b", LOCAL_PORTS_USUAL),
            ("", LOCAL_PORTS_USUAL),
        ] {
            std::fs::write(&file, text).unwrap();
            assert_eq!(local_ports(&file), expected, "{text:?}");
        }
        assert_eq!(local_ports(&folder.path().join("gone")), LOCAL_PORTS_USUAL);
    }
}
