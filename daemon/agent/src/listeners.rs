//! Lists this host's listening sockets, so that no external IP at the host's own address takes their clients.
//!
//! Invariant: if sockets cannot be listed, the last listing holds. They are listed every second while a Service has
//! an external IP; else every ten, and at once when the first one comes.

use std::collections::BTreeSet;
use std::io;
use std::num::NonZeroU16;
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use holdfast_core::event::Event;
use holdfast_core::facts::{Listener, Listeners};
use holdfast_core::keys::Transport;
use holdfast_core::op::FrontendType;
use holdfast_core::snapshot::Snapshot;
use holdfast_datapath::netlink::listeners::{self, ListeningSocket};
use tokio::sync::{mpsc, watch};

/// How often sockets are listed while a Service has an external IP. The kernel scans at most 64,000 buckets, which
/// takes less than a millisecond.
const RELIST_EVERY: Duration = Duration::from_secs(1);

/// How often they are listed otherwise.
const RELIST_EVERY_IDLE: Duration = Duration::from_secs(10);

/// The most bytes of the kernel's list, some 80 per socket. UDP sockets of DNS clients are among them.
pub(crate) const ANSWER_BYTES_MAX: usize = 1 << 26;

/// The ephemeral ports: most UDP sockets there are short-lived clients.
const LOCAL_PORTS: &str = "/proc/sys/net/ipv4/ip_local_port_range";

/// The kernel's default ephemeral ports.
const LOCAL_PORTS_USUAL: RangeInclusive<u16> = 32_768..=60_999;

/// The current sockets; `None` if they cannot be listed or are too many.
pub fn current_listeners() -> Option<Arc<Listeners>> {
    match list(None) {
        Ok((listed, _)) => listed.map(Arc::new),
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
        let is_asked_for = uses_external_ips(&snapshots.borrow_and_update());
        let former = before.clone();
        if let Ok(Ok((listed, brief))) = tokio::task::spawn_blocking(move || list(former.as_ref())).await {
            before = Some(brief);
            if listed.as_ref() != told.as_deref() {
                told = listed.map(Arc::new);
                if events.send(vec![Event::ListenersApplied(told.clone())]).await.is_err() {
                    return;
                }
            }
        }
        let pause = if is_asked_for { RELIST_EVERY } else { RELIST_EVERY_IDLE };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            ended = snapshots.wait_for(|now| uses_external_ips(now) && !is_asked_for) => {
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
type LocalSockets = BTreeSet<Listener>;

/// Lists the sockets. A UDP socket at an ephemeral port may be a DNS client or a WireGuard tunnel: it counts as
/// listening if the listing before had it as well, or if there was none.
fn list(before: Option<&LocalSockets>) -> io::Result<(Option<Listeners>, LocalSockets)> {
    let local = local_ports(Path::new(LOCAL_PORTS));
    let tcp = listeners::list_sockets(Transport::Tcp, ANSWER_BYTES_MAX)?;
    let udp = listeners::list_sockets(Transport::Udp, ANSWER_BYTES_MAX)?;
    // The kernel lists SCTP only if it has the module.
    let sctp = listeners::list_sockets(Transport::Sctp, ANSWER_BYTES_MAX).unwrap_or_default();
    let (brief, udp): (LocalSockets, LocalSockets) =
        to_listeners(Transport::Udp, &udp).partition(|it| local.contains(&it.port.get()));
    let lasting = brief.iter().copied().filter(|it| before.is_none_or(|before| before.contains(it)));
    let others = to_listeners(Transport::Tcp, &tcp).chain(to_listeners(Transport::Sctp, &sctp)).chain(udp);
    let listed = Listeners::new(others.chain(lasting));
    Ok((listed, brief))
}

fn to_listeners(transport: Transport, sockets: &[ListeningSocket]) -> impl Iterator<Item = Listener> {
    let with_port = sockets.iter().filter_map(|socket| Some((NonZeroU16::new(socket.port)?, socket)));
    with_port.flat_map(move |(port, socket)| {
        socket.addresses().map(move |address| Listener { port, transport, address })
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
        let Event::ListenersApplied(Some(listeners)) = events.remove(0) else { panic!("no sockets") };
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
        let nothing = LocalSockets::new();
        let (fresh, lasting) = (list(Some(&nothing)).unwrap().0, list(Some(&brief)).unwrap().0);
        for (listed, is_known, when) in [
            (first, true, "there was no listing before"),
            (fresh, false, "it is new"),
            (lasting, true, "it lasts"),
        ] {
            let listed = listed.unwrap();
            assert_eq!(listed.find_listener(&key(client.0, Transport::Udp)).is_some(), is_known, "{when}");
            assert!(listed.find_listener(&key(server.0, Transport::Udp)).is_some(), "{when}");
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
