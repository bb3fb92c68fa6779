//! Real sockets at every hook, in both families, with every verdict. Needs root.

// Everything here is a test.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use crate::bed::{
    self, MARK, Port, ThreadBed, address, answer, ask, bed, check_errno, check_udp_denied, connect_marked,
    dial, disconnect, dropped, knows_its_netns, tcp_backend, udp_backend, udp_client,
};
use holdfast_core::list::{Scope, SlotState};
use holdfast_core::maps::Maps;
use holdfast_core::op::{
    Action, FrontendType, MapGrowth, MemberKey, Membership, PortFacts, PortIndex, QuotaId, WordFlags,
};
use holdfast_datapath::{Denial, KernelMaps, PortCounts, Refusal, ServedSockets, StartOptions};
use holdfast_fixtures::clock::pause;
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use socket2::{Domain, Socket, Type};

const UDP: Port<'_> = Port::UDP;
const LISTED: Membership = Membership::List(Scope::Cluster);

#[test]
fn kernel_tcp_connects_to_a_backend_and_shows_what_was_dialled() {
    bed(|bed| {
        let mut maps = bed.start();
        let backends = [tcp_backend("127.0.0.2:0")];
        Port { frontends: &["10.96.0.10:80"], backends: &backends, ..Port::TCP }.serve(&mut maps);
        let backends = [tcp_backend("[::1]:0")];
        Port { index: 2, frontends: &["[fd00::10]:80"], backends: &backends, ..Port::TCP }.serve(&mut maps);
        for vip in ["10.96.0.10:80", "[fd00::10]:80", "[::ffff:10.96.0.10]:80"] {
            assert_eq!(dial(vip), address(vip), "getpeername shows the frontend");
        }
        let direct = backends[0];
        assert_eq!(
            dial(&direct.to_string()),
            direct,
            "a backend that is dialled directly is shown as itself"
        );
    });
}

/// Disconnects a socket, and connects it again.
fn connect_again(socket: &Socket, to: SocketAddr) -> SocketAddr {
    disconnect(socket);
    socket.connect(&to.into()).unwrap();
    socket.peer_addr().unwrap().as_socket().unwrap()
}

#[test]
fn kernel_a_socket_connected_directly_to_a_backend_shows_it() {
    bed(|bed| {
        let mut maps = bed.start();
        let (v4, v6) = ([tcp_backend("127.0.0.2:0")], [tcp_backend("[::1]:0")]);
        Port { frontends: &["10.96.0.10:80"], backends: &v4, ..Port::TCP }.serve(&mut maps);
        Port { index: 2, frontends: &["[fd00::10]:80"], backends: &v6, ..Port::TCP }.serve(&mut maps);
        let (other, other6) = (tcp_backend("127.0.0.3:0"), tcp_backend("[::1]:0"));
        let mapped = |at: SocketAddr| address(&format!("[::ffff:{}]:{}", at.ip(), at.port()));
        for (domain, vip, backend, other) in [
            (Domain::IPV4, "10.96.0.10:80", v4[0], other),
            (Domain::IPV6, "[fd00::10]:80", v6[0], other6),
            (Domain::IPV6, "[::ffff:10.96.0.10]:80", mapped(v4[0]), mapped(other)),
        ] {
            let socket = Socket::new(domain, Type::STREAM, None).unwrap();
            for to in [address(vip), backend, address(vip), other, backend, backend, address(vip)] {
                assert_eq!(connect_again(&socket, to), to, "after {vip}");
            }
        }
    });
}

#[test]
fn kernel_all_backends_of_a_list_are_selected() {
    bed(|bed| {
        let mut maps = bed.start();
        let backends: Vec<_> = (2..6).map(|n| udp_backend(&format!("127.0.0.{n}:0"))).collect();
        Port { frontends: &["10.96.0.10:53"], backends: &backends, ..UDP }.serve(&mut maps);
        let chosen: BTreeSet<_> =
            (0..200).map(|_| ask(&udp_client("0.0.0.0:0"), "10.96.0.10:53").0).collect();
        assert_eq!(chosen, backends.iter().copied().collect());
    });
}

#[test]
fn kernel_an_empty_list_refuses_and_a_dropping_one_times_out() {
    bed(|bed| {
        let mut maps = bed.start();
        let (refused, timed_out) = (libc::ECONNREFUSED, dropped(&maps));
        for (index, frontend, flags, errno) in [
            (1, "10.96.0.10:80", bed::NONE, refused),
            (2, "10.96.0.11:80", WordFlags::DROP, timed_out),
            (3, "[fd00::10]:80", bed::NONE, refused),
            (4, "[fd00::11]:80", WordFlags::DROP, timed_out),
        ] {
            Port { index, frontends: &[frontend], flags, ..Port::TCP }.serve(&mut maps);
            check_errno(TcpStream::connect(address(frontend)), errno, frontend);
            Port { index, frontends: &[frontend], flags, ..UDP }.serve(&mut maps);
            check_udp_denied(&maps, frontend, errno);
        }
        check_errno(TcpStream::connect(address("[::ffff:10.96.0.10]:80")), refused, "mapped");
        let counts = maps.live_maps().port_counts;
        assert_eq!(counts.read_port(PortIndex(1)), PortCounts { refused: 4, ..PortCounts::default() });
        assert_eq!(counts.read_port(PortIndex(2)), PortCounts { dropped: 3, ..PortCounts::default() });
    });
}

#[test]
fn kernel_connects_and_udp_conversations_are_counted_per_port() {
    bed(|bed| {
        let mut maps = bed.start();
        let (tcp, udp) =
            ([tcp_backend("127.0.0.2:0")], [udp_backend("127.0.0.2:0"), udp_backend("127.0.0.3:0")]);
        Port { frontends: &["10.96.0.10:80", "10.96.0.11:80"], backends: &tcp, ..Port::TCP }.serve(&mut maps);
        Port { index: 2, frontends: &["10.96.0.10:53"], backends: &udp, base: 8, ..UDP }.serve(&mut maps);
        let counted = |maps: &KernelMaps| {
            [1, 2].map(|index| maps.live_maps().port_counts.read_port(PortIndex(index)).connects)
        };
        for vip in ["10.96.0.10:80", "10.96.0.11:80", "[::ffff:10.96.0.10]:80"] {
            TcpStream::connect(address(vip)).unwrap();
        }
        TcpStream::connect(tcp[0]).unwrap();
        assert_eq!(counted(&maps), [3, 0], "a direct client is not counted");
        let socket = udp_client("0.0.0.0:0");
        (0..5).for_each(|_| _ = ask(&socket, "10.96.0.10:53"));
        udp_client("0.0.0.0:0").connect(address("10.96.0.10:53")).unwrap();
        assert_eq!(counted(&maps), [3, 2], "a conversation counts once");

        let entries = |port: u32| MapGrowth { ports: port, ..MapGrowth::default() };
        maps.reserve_capacity(&entries(10_000)).unwrap();
        assert_eq!(maps.status().growths, 1);
        assert_eq!(counted(&maps), [3, 2], "growth keeps counts");
        TcpStream::connect(address("10.96.0.10:80")).unwrap();
        assert_eq!(counted(&maps), [4, 2], "and counting continues");
        drop(maps);
        let mut maps = bed.start();
        assert_eq!(counted(&maps), [4, 2], "a restart keeps counts");
        maps.execute(&Action::WriteFacts(PortIndex(1), PortFacts::default())).unwrap();
        assert_eq!(counted(&maps), [0, 2], "a new port has no clients yet");
    });
}

#[test]
fn kernel_udp_shows_the_vip_as_the_source() {
    bed(|bed| {
        let mut maps = bed.start();
        let v4 = [udp_backend("127.0.0.2:0")];
        let v6 = [udp_backend("[::1]:0")];
        Port { frontends: &["10.96.0.10:53", "10.96.0.11:53"], backends: &v4, ..UDP }.serve(&mut maps);
        Port { index: 2, frontends: &["[fd00::10]:53"], backends: &v6, ..UDP }.serve(&mut maps);
        for (any, vip) in [
            ("0.0.0.0:0", "10.96.0.10:53"),
            ("[::]:0", "[fd00::10]:53"),
            ("[::]:0", "[::ffff:10.96.0.10]:53"),
        ] {
            let unconnected = udp_client(any);
            assert_eq!(ask(&unconnected, vip).1, address(vip), "unconnected");
            let connected = udp_client(any);
            connected.connect(address(vip)).unwrap();
            assert_eq!(connected.peer_addr().unwrap(), address(vip), "getpeername");
            connected.send(b"who").unwrap();
            assert_eq!(answer(&connected).1, address(vip), "connected");
            assert_eq!(ask(&connected, vip).1, address(vip), "sendto on a connected socket");
        }
    });
}

#[test]
fn kernel_one_udp_socket_distinguishes_two_vips() {
    bed(|bed| {
        let mut maps = bed.start();
        let (one, other) = ([udp_backend("127.0.0.2:0")], [udp_backend("127.0.0.3:0")]);
        Port { frontends: &["10.96.0.10:53"], backends: &one, ..UDP }.serve(&mut maps);
        Port { index: 2, frontends: &["10.96.0.11:53"], backends: &other, base: 4, ..UDP }.serve(&mut maps);
        let socket = udp_client("0.0.0.0:0");
        assert_eq!(ask(&socket, "10.96.0.10:53"), (one[0], address("10.96.0.10:53")));
        assert_eq!(ask(&socket, "10.96.0.11:53"), (other[0], address("10.96.0.11:53")));
        let direct = other[0].to_string();
        socket.send_to(b"who", other[0]).unwrap();
        assert_eq!(answer(&socket).0.to_string(), direct, "a backend can be dialled directly too");
    });
}

#[test]
fn kernel_a_backend_that_a_udp_socket_dials_directly_shows_its_address() {
    bed(|bed| {
        let mut maps = bed.start();
        let (v4, v6) = ([udp_backend("127.0.0.2:0")], [udp_backend("[::1]:0")]);
        Port { frontends: &["10.96.0.10:53"], backends: &v4, ..UDP }.serve(&mut maps);
        Port { index: 2, frontends: &["[fd00::10]:53"], backends: &v6, ..UDP }.serve(&mut maps);
        for (any, vip, backend) in [("0.0.0.0:0", "10.96.0.10:53", v4[0]), ("[::]:0", "[fd00::10]:53", v6[0])]
        {
            let (socket, direct) = (udp_client(any), backend.to_string());
            for to in [vip, &direct, vip, &direct, &direct, vip, vip] {
                assert_eq!(ask(&socket, to), (backend, address(to)), "after {vip}");
            }
            let connected = udp_client(any);
            connected.connect(address(vip)).unwrap();
            assert_eq!(ask(&connected, &direct).1, address(vip), "a connected socket has one peer");
            disconnect(&connected);
            assert_eq!(ask(&connected, &direct).1, backend, "a disconnected socket has none");
        }
    });
}

#[test]
fn kernel_an_unlisted_cluster_ip_port_refuses_processes() {
    bed(|bed| {
        let mut maps = bed.start();
        let own = [("10.96.0.10:80", "10.96.0.10:81"), ("[fd00::10]:80", "[fd00::10]:81")];
        for (index, (frontend, _)) in (1..).zip(own) {
            Port { index, frontends: &[frontend], ..Port::TCP }.serve(&mut maps);
        }
        let other = ["192.0.2.9:80", "192.0.2.9:81"];
        let kind = FrontendType::LoadBalancer;
        Port { index: 3, kind, frontends: &other[..1], ..Port::TCP }.serve(&mut maps);
        let refusal = |to: &str| TcpStream::connect(address(to)).unwrap_err().raw_os_error().unwrap();
        let refused = libc::ECONNREFUSED;
        assert_ne!(refusal(own[0].1), refused, "an address is published a moment later");
        maps.repair().unwrap();
        for (_, missed) in own {
            assert_eq!(refusal(missed), refused, "{missed}");
            let any = if missed.starts_with('[') { "[::]:0" } else { "0.0.0.0:0" };
            let sent =
                udp_client(any).send_to(b"who", address(missed)).err().and_then(|it| it.raw_os_error());
            assert_eq!(sent == Some(refused), maps.status().features.set_retval, "{missed}: {sent:?}");
            let learns = udp_client(any).connect(address(missed)).err().and_then(|it| it.raw_os_error());
            assert_ne!(learns, Some(refused), "a connect without datagrams is not refused");
        }
        assert_eq!(refusal("[::ffff:10.96.0.10]:81"), refused);
        assert_ne!(refusal(other[1]), refused, "an external address may have other ports");
        assert_ne!(refusal("10.96.0.11:81"), refused, "as may an address without a service");
        let node: IpAddr = "10.96.0.10".parse().unwrap();
        maps.execute(&Action::InsertNodeAddress(node)).unwrap();
        assert_ne!(refusal(own[0].1), refused, "the node refuses for itself");
        maps.execute(&Action::RemoveNodeAddress(node)).unwrap();
        maps.execute(&Action::RemoveFrontend(Port::TCP.key(own[0].0))).unwrap();
        assert_ne!(refusal(own[0].1), refused, "the address has left with its last port");
    });
}

/// The backends that one socket reaches.
fn met(socket: &UdpSocket, vip: &str) -> BTreeSet<std::net::SocketAddr> {
    (0..40).map(|_| ask(socket, vip).0).collect()
}

#[test]
fn kernel_a_udp_socket_keeps_its_backend_while_the_list_has_it() {
    bed(|bed| {
        let mut maps = bed.start();
        let backends: Vec<_> = (2..6).map(|n| udp_backend(&format!("127.0.0.{n}:0"))).collect();
        let vip = "10.96.0.10:53";
        let port = Port { frontends: &[vip], backends: &backends, ..UDP };
        port.serve(&mut maps);
        let socket = udp_client("0.0.0.0:0");
        let kept = met(&socket, vip);
        assert_eq!(kept.len(), 1, "all datagrams of one socket go to one backend");
        let own = *kept.first().unwrap();

        let other = *backends.iter().find(|backend| **backend != own).unwrap();
        let two = [own, other];
        Port { backends: &two, base: 64, ..port }.publish(&mut maps, Scope::Cluster);
        assert_eq!(met(&socket, vip), kept, "the list has moved, and still has it");

        let one = [other];
        Port { backends: &one, base: 128, ..port }.publish(&mut maps, Scope::Cluster);
        assert_eq!(met(&socket, vip), BTreeSet::from([other]), "the list does not have it any more");
    });
}

#[test]
fn kernel_only_cluster_ips_and_cluster_set_ips_obey_the_internal_policy() {
    bed(|bed| {
        let mut maps = bed.start();
        let (all, local) = ([udp_backend("127.0.0.2:0")], [udp_backend("127.0.0.3:0")]);
        let port = Port { backends: &all, flags: WordFlags::INTERNAL_LOCAL, ..UDP };
        Port { frontends: &["10.96.0.10:53"], ..port }.serve(&mut maps);
        Port { frontends: &["192.0.2.9:53"], kind: FrontendType::ExternalIp, ..port }.serve(&mut maps);
        Port { frontends: &["10.200.0.9:53"], kind: FrontendType::ClusterSetIp, ..port }.serve(&mut maps);
        let local =
            Port { frontends: &["10.96.0.10:53"], backends: &local, flags: bed::NONE, base: 4, ..port };
        local.publish(&mut maps, Scope::Local);
        let socket = udp_client("0.0.0.0:0");
        assert_eq!(ask(&socket, "10.96.0.10:53").0, local.backends[0]);
        assert_eq!(ask(&socket, "10.200.0.9:53").0, local.backends[0]);
        assert_eq!(ask(&socket, "192.0.2.9:53").0, all[0]);
    });
}

#[test]
fn kernel_a_connect_obeys_the_internal_policy() {
    bed(|bed| {
        let mut maps = bed.start();
        let [all, local] = ["127.0.0.2:0", "127.0.0.3:0"].map(|at| std::net::TcpListener::bind(at).unwrap());
        local.set_nonblocking(true).unwrap();
        let [all, here] = [&all, &local].map(|backend| [backend.local_addr().unwrap()]);
        let port = Port { frontends: &["10.96.0.10:80"], flags: WordFlags::INTERNAL_LOCAL, ..Port::TCP };
        Port { backends: &all, ..port }.serve(&mut maps);
        Port { backends: &here, flags: bed::NONE, base: 4, ..port }.publish(&mut maps, Scope::Local);
        let _client = std::net::TcpStream::connect("10.96.0.10:80").unwrap();
        local.accept().unwrap();
    });
}

/// The most bits of an IPv6 prefix that may be ignored; the cookies of namespaces differ in bits among them.
const LEFT_OUT: u8 = 96;

fn affine(maps: &mut KernelMaps, port: &Port<'_>, seconds: u32) {
    let index = PortIndex(port.index);
    // A process counts by its network namespace, so ignored address bits do not matter.
    let facts = PortFacts { affinity_timeout: seconds, ignored_bits: LEFT_OUT };
    maps.execute(&Action::WriteFacts(index, facts)).unwrap();
    for backend in port.backends {
        let member = MemberKey { port: index, membership: LISTED, backend: *backend };
        maps.execute(&Action::InsertMember(member, SlotState::Active)).unwrap();
    }
    port.serve(maps);
}

/// The backends that new sockets reach.
fn met_by_new_sockets(vip: &str) -> BTreeSet<std::net::SocketAddr> {
    (0..40).map(|_| ask(&udp_client("0.0.0.0:0"), vip).0).collect()
}

#[test]
fn kernel_affinity_ends_with_its_timeout_or_its_backend() {
    bed(|bed| {
        let mut maps = bed.start();
        let backends: Vec<_> = (2..10).map(|n| udp_backend(&format!("127.0.0.{n}:0"))).collect();
        let vip = "10.96.0.10:53";
        let port = Port { frontends: &[vip], backends: &backends, flags: WordFlags::AFFINITY, ..UDP };
        affine(&mut maps, &port, 1000);
        let kept = met_by_new_sockets(vip);
        assert_eq!(kept.len(), 1, "one client, one backend");
        let member = MemberKey { port: PortIndex(1), membership: LISTED, backend: *kept.first().unwrap() };
        maps.execute(&Action::RemoveMember(member)).unwrap();
        let rest: Vec<_> = backends.iter().copied().filter(|backend| !kept.contains(backend)).collect();
        let port = Port { backends: &rest, base: 64, ..port };
        port.publish(&mut maps, Scope::Cluster);
        let next = met_by_new_sockets(vip);
        assert!(next.len() == 1 && next != kept, "the backend left: {next:?}");
        affine(&mut maps, &port, 1);
        let mut later = BTreeSet::new();
        // The same backend may be selected repeatedly by chance, but not twenty times.
        for _ in 0..20 {
            // The affinity ends by the kernel's clock.
            pause(Duration::from_millis(1_100));
            later.extend(met_by_new_sockets(vip));
            if later.len() > 1 {
                break;
            }
        }
        assert!(later.len() > 1, "after the timeout any backend may be selected: {later:?}");
    });
}

#[test]
fn kernel_affinity_survives_a_restart_and_is_per_pod() {
    bed(|bed| {
        let mut maps = bed.start();
        let backends: Vec<_> = (2..10).map(|n| udp_backend(&format!("127.0.0.{n}:0"))).collect();
        let vip = "10.96.0.10:53";
        let port = Port { frontends: &[vip], backends: &backends, flags: WordFlags::AFFINITY, ..UDP };
        affine(&mut maps, &port, 1000);
        let kept = met_by_new_sockets(vip);
        drop(maps);
        assert_eq!(met_by_new_sockets(vip), kept, "without a daemon");
        let maps = KernelMaps::start(&bed.options()).unwrap();
        assert_eq!(met_by_new_sockets(vip), kept, "after a restart");
        bed::in_pod(|| drop(udp_client("0.0.0.0:0").connect(address(vip))));
        drop(maps);
        check_clients(bed, 2);
    });
}

#[test]
fn kernel_a_client_that_connects_on_two_cpus_at_once_keeps_its_backend() {
    bed(|bed| {
        let mut maps = bed.start();
        let backends: Vec<_> = (2..10).map(|n| address(&format!("127.0.0.{n}:5353"))).collect();
        let port =
            Port { frontends: &["10.96.0.10:53"], backends: &backends, flags: WordFlags::AFFINITY, ..UDP };
        affine(&mut maps, &port, 1000);
        let connect_often = |times| {
            let socket = udp_client("0.0.0.0:0");
            (0..times).for_each(|_| socket.connect(address("10.96.0.10:53")).unwrap());
        };
        connect_often(1);
        let kept = last_choices(bed);
        std::thread::scope(|scope| {
            drop([scope.spawn(|| connect_often(CONNECTS)), scope.spawn(|| connect_often(CONNECTS))]);
        });
        assert_eq!(last_choices(bed), kept);
    });
}

/// Connects of each thread: enough for a selection to interleave with the other's.
const CONNECTS: u32 = 50_000;

/// Address and port of each client's last selection.
fn last_choices(bed: &ThreadBed) -> Vec<Vec<u8>> {
    let affinity = affinity(bed);
    let choice = |key: Vec<u8>| affinity.lookup(&key, MapFlags::ANY).unwrap().unwrap()[..18].to_vec();
    affinity.keys().map(choice).collect()
}

fn affinity(bed: &ThreadBed) -> MapHandle {
    MapHandle::from_pinned_path(bed.options().bpffs.join(bed::pinned("shared/affinity"))).unwrap()
}

/// Checks the remembered clients, each by a cookie and nothing else.
#[track_caller]
fn check_clients(bed: &ThreadBed, expected: usize) {
    let keys: Vec<_> = affinity(bed).keys().collect();
    assert_eq!(keys.len(), expected, "{keys:?}");
    for key in keys {
        let (cookie, rest) = key.split_at(8);
        assert_ne!(cookie, [0; 8]);
        assert_eq!(
            rest,
            [0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0],
            "no address; port 1, cluster, a namespace"
        );
    }
}

/// Ends the wait of a listener's thread: a client that dials `vip` is refused, or reaches the listener itself.
#[track_caller]
fn check_served(is_served: bool, vip: &str, what: &str) {
    match TcpStream::connect(address(vip)) {
        Ok(_) => assert!(!is_served, "{what}"),
        Err(error) => {
            assert!(is_served && error.raw_os_error() == Some(libc::ECONNREFUSED), "{what}: {error}");
        }
    }
}

#[test]
fn kernel_sockets_of_pods_can_be_excluded() {
    bed(|bed| {
        let served = ServedSockets { pods: false, ..ServedSockets::default() };
        let mut maps = KernelMaps::start(&StartOptions { served, ..bed.options() }).unwrap();
        bed.join(&bed.cgroup);
        let vip = refused_vip(&mut maps);
        let udp = Port { frontends: &[vip], index: 2, ..Port::UDP };
        udp.serve(&mut maps);
        bed::in_pod(|| {
            tcp_backend(vip);
            check_served(false, vip, "a pod's own listener at that address");
            udp_client("0.0.0.0:0").send_to(b"x", address(vip)).unwrap();
        });
        assert_eq!(maps.live_maps().port_counts.read_port(PortIndex(2)), PortCounts::default());
        // A daemon that cannot read its namespace's cookie takes the machine's first network for the host's, which this
        // is not.
        check_served(knows_its_netns(), vip, "the host");
        drop(maps);
        let _maps = KernelMaps::start(&bed.options()).unwrap();
        bed::in_pod(|| check_served(true, vip, "the next daemon serves pods again"));
    });
}

#[test]
fn kernel_udp_sockets_can_be_excluded() {
    bed(|bed| {
        let served = ServedSockets { udp: false, ..ServedSockets::default() };
        let mut maps = KernelMaps::start(&StartOptions { served, ..bed.options() }).unwrap();
        bed.join(&bed.cgroup);
        let vip = refused_vip(&mut maps);
        Port { index: 2, frontends: &[vip], ..Port::UDP }.serve(&mut maps);
        let own = udp_backend(vip);
        let socket = udp_client("0.0.0.0:0");
        assert_eq!(ask(&socket, vip), (own, own));
        socket.connect(own).unwrap();
        assert_eq!(ask(&socket, vip), (own, own));
        check_served(true, vip, "TCP is served");
    });
}

#[test]
fn kernel_an_exempt_cgroup_subtree_is_tracked_across_recreation() {
    bed(|bed| {
        let exempt = bed.cgroup.join("kata");
        let served =
            ServedSockets { exempt_cgroups: vec![bed::below_root(&exempt)], ..ServedSockets::default() };
        let mut maps = KernelMaps::start(&StartOptions { served: served.clone(), ..bed.options() }).unwrap();
        bed.join(&bed.cgroup);
        let vip = refused_vip(&mut maps);
        check_served(true, vip, "next to the subtree");
        assert_eq!(maps.status().absent_cgroups, served.exempt_cgroups);
        for what in ["it was created", "it was recreated"] {
            bed.child_cgroup("kata");
            let deep = bed.child_cgroup("kata/pod");
            maps.repair().unwrap();
            assert_eq!(maps.status().absent_cgroups, [""; 0].map(std::path::PathBuf::from));
            for inside in [&exempt, &deep] {
                bed.join(inside);
                check_served(false, vip, what);
            }
            bed.join(&bed.child_cgroup("beside"));
            check_served(true, vip, "another cgroup");
            bed.join(&bed.cgroup);
            for gone in [&deep, &exempt, &bed.cgroup.join("beside")] {
                std::fs::remove_dir(gone).unwrap();
            }
            maps.repair().unwrap();
            assert_eq!(maps.status().absent_cgroups, served.exempt_cgroups);
        }
        bed.child_cgroup("kata");
        maps.repair().unwrap();
        drop(maps);
        let _maps = KernelMaps::start(&bed.options()).unwrap();
        bed.join(&exempt);
        check_served(true, vip, "the next daemon has no exempt cgroups");
    });
}

/// A VIP without backends, which refuses if translated; otherwise its address and port are a listener's.
fn refused_vip(maps: &mut KernelMaps) -> &'static str {
    let vip = "127.9.9.9:80";
    Port { frontends: &[vip], ..Port::TCP }.serve(maps);
    tcp_backend(vip);
    vip
}

#[test]
fn invariant_11_kernel_marked_sockets_are_never_translated() {
    bed(|bed| {
        let mut maps = bed.start();
        let vip = refused_vip(&mut maps);
        check_errno(TcpStream::connect(address(vip)), libc::ECONNREFUSED, "a client");
        check_errno(connect_marked(vip, MARK + 1), libc::ECONNREFUSED, "another mark");
        connect_marked(vip, MARK).unwrap();
    });
}

#[test]
fn invariant_11_kernel_the_daemons_cgroup_is_never_translated() {
    bed(|bed: &ThreadBed| {
        let own = bed.child_cgroup("daemon");
        let client = bed.child_cgroup("client");
        bed.join(&own);
        let mut maps = KernelMaps::start(&bed.options()).unwrap();
        assert!(maps.status().own_cgroup_exempt);
        let vip = refused_vip(&mut maps);
        TcpStream::connect(address(vip)).unwrap();
        bed.join(&client);
        check_errno(TcpStream::connect(address(vip)), libc::ECONNREFUSED, "a client");
    });
}

/// All refusals that wait in the ring.
fn told(maps: &KernelMaps) -> Vec<Refusal> {
    let (reader, stop) = std::io::pipe().unwrap();
    let (mut stop, mut told) = (Some(stop), Vec::new());
    maps.refusals()
        .unwrap()
        .read_refusals(&reader, |refusal| {
            told.push(refusal);
            drop(stop.take());
        })
        .unwrap();
    told
}

#[test]
fn kernel_a_refusal_names_the_process_and_the_frontend() {
    bed(|bed| {
        let mut maps = bed.start();
        let share = QuotaId(3);
        Port { index: 9, frontends: &["10.96.0.10:443"], share, ..Port::TCP }.serve(&mut maps);
        check_errno(TcpStream::connect(address("10.96.0.10:443")), libc::ECONNREFUSED, "no backend");
        let refusal = &told(&maps)[0];
        assert_eq!(refusal.process, std::process::id());
        assert_eq!(refusal.comm, std::fs::read_to_string("/proc/thread-self/comm").unwrap().trim_end());
        assert_eq!(refusal.frontend.to_string(), "10.96.0.10:443/TCP");
        assert_eq!((refusal.port, refusal.quota), (PortIndex(9), share));
        assert_eq!(refusal.denial, Denial::Refused);
        assert_eq!(refusal.cgroup, std::fs::metadata(&bed.cgroup).unwrap().ino());
    });
}

#[test]
fn kernel_a_looping_process_hides_no_refusals_of_another_quota() {
    bed(|bed| {
        let mut maps = bed.start();
        let (flooded, other) = ("10.96.0.10:80", "10.96.0.11:80");
        Port { index: 1, frontends: &[flooded], ..Port::TCP }.serve(&mut maps);
        Port { index: 2, frontends: &[other], share: QuotaId(2), ..Port::TCP }.serve(&mut maps);
        (0..5_000).for_each(|_| drop(TcpStream::connect(address(flooded)).unwrap_err()));
        check_errno(TcpStream::connect(address(other)), libc::ECONNREFUSED, "another quota's client");
        let (told, lost) = (told(&maps), maps.status().refusals_lost);
        let at_other = told.iter().filter(|it| it.frontend.address == address(other).ip()).count();
        assert_eq!(at_other, 1, "among {}", told.len());
        assert_eq!(told.len() as u64 + lost, 5_001, "lost refusals are counted");
    });
}
