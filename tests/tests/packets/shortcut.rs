//! Packets of flows with other nodes, and with pods of this one, bypass the stack if nothing needs them there, and
//! pass through it if a firewall does.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use holdfast_tests::bed::ask::{Outcome, Question, Transport};
use holdfast_tests::bed::daemon::Daemon;
use holdfast_tests::bed::fabric::{self, Switches};
use holdfast_tests::bed::uplinks::BY_IPV6;
use holdfast_tests::bed::{Bed, Location};
use holdfast_tests::packets::{Clients, Family, PORT, frontend, outside};
use serde_json::{Value, json};

use crate::node::{SERVED, ip, last_lines, location, on_this, run, write};

const FAMILIES: [Family; 2] = [Family::V4, Family::V6];

/// Requests to a service at once.
const ASKED: usize = 4;

/// Counts the packets that the stack forwards between clients and the pods of both nodes.
const COUNTED: &str = "table inet counted {
 counter seen { }
 chain forward {
  type filter hook forward priority filter;
  ip daddr 10.244.0.0/16 counter name seen
  ip saddr 10.244.0.0/16 counter name seen
  ip6 daddr fd00:244::/32 counter name seen
  ip6 saddr fd00:244::/32 counter name seen
 }
}
";

/// Services with a pod on a link of its own, one behind a bridge, and one on the other node.
const OF_PODS: [&str; 3] = ["here", "bridged", "away"];

const CLOSED: &str = "table inet closed {
 chain forward {
  type filter hook forward priority filter; policy drop;
 }
}
";

/// How many packets to and from pods the stack has forwarded.
fn seen(bed: &Bed) -> u64 {
    let said = run(bed, "node", "nft", "list counter inet counted seen");
    said.split_whitespace().skip_while(|word| *word != "packets").nth(1).unwrap().parse().unwrap()
}

#[track_caller]
fn wait_until_said(daemon: &Daemon<'_>, words: &str) {
    let until = Instant::now() + SERVED;
    loop {
        let said = daemon.tell(&["datapath"]).unwrap();
        if said.contains(words) {
            return;
        }
        assert!(Instant::now() < until, "{words:?} is not said:\n{said}\n{}", last_lines(daemon));
        thread::sleep(Duration::from_millis(100));
    }
}

/// The outcomes of one request in each family by TCP and UDP, from an outside client.
fn outcomes(clients: &mut Clients, service: &str) -> Vec<Outcome> {
    ask(clients, "outside", (service, "balancer"), |question, of| question.from(outside(of, 0)))
}

fn ask(
    clients: &mut Clients,
    client: &str,
    (service, address): (&str, &str),
    changed: impl Fn(Question, Family) -> Question,
) -> Vec<Outcome> {
    let ways = FAMILIES.into_iter().flat_map(|of| [Transport::Tcp, Transport::Udp].map(|by| (of, by)));
    // A stream of many segments, and a datagram that is not fragmented.
    let size = |by| if by == Transport::Tcp { 100_000 } else { 900 };
    let question = |(of, by)| {
        changed(Question::new(by, frontend(service, address, of).unwrap()), of).sized(size(by), size(by))
    };
    clients.client(client).unwrap().ask_all(&ways.map(question).collect::<Vec<_>>()).unwrap()
}

#[track_caller]
fn check_answered(clients: &mut Clients, service: &str) {
    check_all_answered(&outcomes(clients, service), service);
}

#[track_caller]
fn check_all_answered(outcomes: &[Outcome], what: &str) {
    let are_answered = outcomes.iter().all(|it| matches!(it, Outcome::Answered { .. }));
    assert!(are_answered, "{what}: {outcomes:?}");
}

/// Checks whether the flows of the last requests to a service take the shortcut.
#[track_caller]
fn check_flows(daemon: &Daemon<'_>, service: &str, expected: bool) {
    let said: Value = serde_json::from_str(&daemon.tell(&["flows", "-o", "json"]).unwrap()).unwrap();
    let addresses = FAMILIES.map(|of| frontend(service, "balancer", of).unwrap().ip().to_string());
    let flows = said["flows"].as_array().unwrap();
    let of_service: Vec<_> =
        flows.iter().filter(|flow| addresses.iter().any(|it| flow["frontend_address"] == **it)).collect();
    let taken = of_service.iter().filter(|flow| flow["shortcut"] == true).count();
    assert!(if expected { taken >= ASKED } else { taken == 0 }, "{service}: {said}");
    assert!(of_service.len() >= ASKED, "{service}: {said}");
}

/// A network for a setting of the shortcut, and the daemon's description of the uplink there.
fn bed_for(at_driver: bool, switches: Switches) -> (Bed, &'static str, &'static str) {
    let bed = fabric::bed(switches).unwrap();
    if !at_driver {
        return (bed, "", "packets to other nodes bypass the stack");
    }
    // The peer of the uplink accepts redirected packets only with NAPI.
    run(&bed, "router", "ethtool", "-K node gro on");
    (bed, "[packets]\nxdp = \"native\"\n", "packets to other nodes bypass the stack, at the driver (native)")
}

/// How many packets were redirected at drivers.
fn passed_at_drivers(daemon: &Daemon<'_>) -> u64 {
    let said: Value = serde_json::from_str(&daemon.tell(&["flows", "-o", "json"]).unwrap()).unwrap();
    let events = said["events"].as_array().unwrap();
    events.iter().find(|it| it["event"] == "xdp-redirect").unwrap()["count"].as_u64().unwrap()
}

#[test]
fn packets_to_other_nodes_and_local_pods_bypass_the_stack() {
    let strict = Switches { strict_rp_filter: true, no_offload: true, ..Switches::default() };
    for (switches, at_driver) in
        [(Switches::default(), false), (Switches::default(), true), (strict, false), (strict, true)]
    {
        let (bed, setting, said) = bed_for(at_driver, switches);
        fabric::rules(&bed, COUNTED).unwrap();
        on_this(&bed, setting, |_, daemon, clients| {
            wait_until_said(daemon, said);
            wait_until_said(daemon, "packets to its pods bypass the stack");
            // The first flows find no neighbour entry.
            OF_PODS.iter().for_each(|service| check_answered(clients, service));
            let before = seen(&bed);
            OF_PODS.iter().for_each(|service| check_answered(clients, service));
            check_answered(clients, "host");
            let said = daemon.tell(&["datapath"]).unwrap();
            assert_eq!(seen(&bed), before, "the stack has seen packets:\n{said}");
            // Packets without a checksum are redirected behind the driver, with nearly all of their segments.
            let passed = passed_at_drivers(daemon);
            assert!(if at_driver && switches.no_offload { passed > 100 } else { passed < 100 }, "{passed}");
            OF_PODS.iter().for_each(|service| check_flows(daemon, service, true));
            check_flows(daemon, "host", false);
        });
    }
}

#[test]
fn packets_with_an_ipv6_next_hop_bypass_the_stack() {
    let bed = Bed::lay(&fabric::layout()).unwrap();
    fabric::lay_by(&bed, Switches::default(), &BY_IPV6).unwrap();
    fabric::rules(&bed, COUNTED).unwrap();
    on_this(&bed, "", |_, daemon, clients| {
        wait_until_said(daemon, "packets to other nodes bypass the stack");
        wait_until_said(daemon, "packets to its pods bypass the stack");
        // The first flows find no neighbour entry.
        OF_PODS.iter().for_each(|service| check_answered(clients, service));
        let before = seen(&bed);
        OF_PODS.iter().for_each(|service| check_answered(clients, service));
        assert_eq!(seen(&bed), before, "the stack has seen packets");
        OF_PODS.iter().for_each(|service| check_flows(daemon, service, true));
    });
}

/// From one pod with a link of its own to another; to itself and to a pod behind a bridge, packets pass the stack.
#[test]
fn packets_of_client_pods_bypass_the_stack() {
    let strict = Switches { strict_rp_filter: true, no_offload: true, ..Switches::default() };
    for switches in [Switches::default(), strict] {
        let bed = fabric::bed(switches).unwrap();
        fabric::rules(&bed, COUNTED).unwrap();
        on_this(&bed, "[packets]\npod_devices = \"auto\"\n", |_, daemon, clients| {
            wait_until_said(daemon, "packets to and from its pod bypass the stack");
            let check_dialled = |clients: &mut Clients, pod: &str, service: &str| {
                for address in ["cluster", "balancer"] {
                    let outcomes = ask(clients, pod, (service, address), |question, _| question);
                    check_all_answered(&outcomes, &format!("{pod}: {service} at {address}"));
                }
            };
            // The first flows find no neighbour entry.
            check_dialled(clients, "bare-b", "here");
            check_answered(clients, "here");
            let before = seen(&bed);
            check_dialled(clients, "bare-b", "here");
            check_answered(clients, "here");
            let said = daemon.tell(&["datapath"]).unwrap();
            assert_eq!(seen(&bed), before, "the stack has seen packets:\n{said}");
            check_flows(daemon, "here", true);
            for service in ["bridged", "away"] {
                check_dialled(clients, "bare-b", service);
            }
            check_dialled(clients, "bare-a", "here");
            assert!(seen(&bed) > before, "what the stack sends on is counted");
            let explain = |service: &str, address: &str, from: &str| {
                let dialled = frontend(service, address, Family::V4).unwrap().to_string();
                daemon.tell(&["explain", &dialled, "--from", from]).unwrap().replace("\n", " ")
            };
            let from_pod = explain("here", "cluster", "10.244.1.11");
            assert!(from_pod.contains("From pod to pod behind pod-a, pod-b they bypass"), "{from_pod}");
            let from_outside = explain("away", "balancer", "10.20.0.2");
            assert!(from_outside.contains("At eth0 packets of such flows bypass"), "{from_outside}");
        });
    }
}

/// A service with pods of this node that see their clients' addresses.
const LOCAL: &str = "local";

/// A service whose only backend is the other service's frontend.
fn before_a_service(service: &str) -> [Value; 3] {
    let port = |port: u16| json!([{"name": "udp", "protocol": "UDP", "port": port}]);
    let of = |family| frontend(service, "balancer", family).unwrap();
    let slice = |family: Family| {
        let (kind, suffix) = family.of([("IPv4", "v4"), ("IPv6", "v6")]);
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": kind,
            "metadata": {
                "name": format!("before-{suffix}"), "namespace": "default",
                "labels": {"kubernetes.io/service-name": "before"},
            },
            "ports": port(of(family).port()),
            "endpoints": [{"addresses": [of(family).ip()], "nodeName": "n1"}],
        })
    };
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "before", "namespace": "default"},
        "spec": {
            "type": "LoadBalancer", "clusterIPs": ["192.168.7.96", "fd00:192:168::796"],
            "externalTrafficPolicy": "Local", "ports": port(PORT),
        },
        "status": {"loadBalancer": {"ingress": BEFORE.map(|ip| json!({"ip": ip, "ipMode": "VIP"}))}},
    });
    [service, slice(Family::V4), slice(Family::V6)]
}

const BEFORE: [&str; 2] = ["203.0.113.96", "2001:db8:113::96"];

/// A bypassing packet of the first service equals the reply of the other service's backend.
#[test]
fn a_bypassing_reply_is_not_taken_for_another_services() {
    on_this(&fabric::bed(Switches::default()).unwrap(), "", |_, daemon, clients| {
        wait_until_said(daemon, "packets to its pods bypass the stack");
        // The first flows find no neighbour entry.
        check_answered(clients, LOCAL);
        check_asked_by_two_ways(daemon, clients, LOCAL);
        for of in FAMILIES {
            let flow = flow_to(daemon, frontend(LOCAL, "balancer", of).unwrap().ip()).unwrap();
            assert_eq!(flow["shortcut"], true, "{flow}");
        }
    });
}

/// One client port dials a service, and another service whose backend is the first one.
#[track_caller]
pub(crate) fn check_asked_by_two_ways(daemon: &Daemon<'_>, clients: &mut Clients, service: &str) {
    write(daemon, "before", &before_a_service(service));
    for of in FAMILIES {
        let [before, asked] =
            [of.of(BEFORE).parse().unwrap(), frontend(service, "balancer", of).unwrap().ip()];
        let mut ask = |to| {
            let question = Question::new(Transport::Udp, SocketAddr::new(to, PORT));
            clients.client("outside").unwrap().ask(question.from(outside(of, CLIENT))).unwrap()
        };
        let until = Instant::now() + SERVED;
        while flow_to(daemon, before).is_none() {
            assert!(Instant::now() < until, "{before} leads nowhere");
            ask(before);
        }
        check_all_answered(&[asked; ASKED].map(ask), "the service itself");
    }
}

/// The client's port for both.
const CLIENT: u16 = 40_000;

/// The flow of that client with a frontend.
fn flow_to(daemon: &Daemon<'_>, address: IpAddr) -> Option<Value> {
    let said: Value = serde_json::from_str(&daemon.tell(&["flows", "-o", "json"]).unwrap()).unwrap();
    let is_it = |it: &&Value| it["frontend_address"] == address.to_string() && it["client_port"] == CLIENT;
    said["flows"].as_array().unwrap().iter().find(is_it).cloned()
}

#[test]
fn packets_pass_the_stack_if_configured() {
    let bed = fabric::bed(Switches::default()).unwrap();
    fabric::rules(&bed, COUNTED).unwrap();
    on_this(&bed, "[packets]\nshortcut = \"never\"\n", |_, daemon, clients| {
        wait_until_said(daemon, "packets go through the stack: packets.shortcut is \"never\"");
        for service in OF_PODS {
            let before = seen(&bed);
            check_answered(clients, service);
            assert!(seen(&bed) > before, "{service}");
            check_flows(daemon, service, false);
        }
    });
}

/// The firewall takes effect at once, also for existing flows.
#[test]
fn a_firewall_gets_the_packets_while_it_exists() {
    [false, true].into_iter().for_each(check_firewall);
}

#[track_caller]
fn check_firewall(at_driver: bool) {
    let (bed, setting, said) = bed_for(at_driver, Switches { no_offload: true, ..Switches::default() });
    on_this(&bed, setting, |_, daemon, clients| {
        wait_until_said(daemon, said);
        wait_until_said(daemon, "packets to its pods bypass the stack");
        let before = passed_at_drivers(daemon);
        (0..2).for_each(|_| OF_PODS.iter().for_each(|service| check_answered(clients, service)));
        let passed = passed_at_drivers(daemon) - before;
        assert_eq!(passed > 100, at_driver, "{passed} have passed at drivers");
        fabric::rules(&bed, CLOSED).unwrap();
        wait_until_said(daemon, "packets go through the stack: table inet closed, chain forward");
        for service in OF_PODS {
            let outcomes = outcomes(clients, service);
            let are_silent = outcomes.iter().all(|it| *it == Outcome::Silent);
            assert!(are_silent, "the firewall lets through to {service}: {outcomes:?}");
        }
        run(&bed, "node", "nft", "delete table inet closed");
        wait_until_said(daemon, "packets to its pods bypass the stack");
        OF_PODS.iter().for_each(|service| check_answered(clients, service));
    });
}

/// Accepts connections in conntrack and drops nothing: packets still bypass the stack.
const TRACKED: &str = "table inet tracked {
 chain forward {
  type filter hook forward priority filter;
  ct state established,related accept
 }
}
";

/// Accepts connections in conntrack and drops all others.
const KNOWN: &str = "table inet known {
 chain forward {
  type filter hook forward priority 10; policy drop;
  ct state established,related accept
 }
}
";

/// Services whose backends' port only the test's sockets use: a pod of this node, and one of the other.
const LISTENED: [(&str, &str, [&str; 2]); 2] = [
    ("closed", "pod-a", ["10.244.1.10:8081", "[fd00:244:1::10]:8081"]),
    ("closed-away", "pod-r", ["10.244.9.10:8081", "[fd00:244:9::10]:8081"]),
];

/// Connections to each of those in each family.
const HELD: usize = 20;

/// Both ends of connections, the server's first; each has received from the other one.
fn hold(bed: &Bed) -> Vec<(TcpStream, TcpStream)> {
    let mut held = Vec::new();
    for (service, place, sockets) in LISTENED {
        for (of, socket) in FAMILIES.into_iter().zip(sockets) {
            let listener = bed.within(Location::far(place), || TcpListener::bind(socket)).unwrap().unwrap();
            let dialled = frontend(service, "balancer", of).unwrap();
            for _ in 0..HELD {
                let dial = || TcpStream::connect(dialled);
                let mut client = bed.within(Location::far("client"), dial).unwrap().unwrap();
                let (mut server, _) = listener.accept().unwrap();
                [&client, &server].iter().for_each(|it| it.set_read_timeout(Some(SERVED)).unwrap());
                let mut byte = [0];
                client.write_all(&byte).unwrap();
                server.read_exact(&mut byte).unwrap();
                server.write_all(&byte).unwrap();
                client.read_exact(&mut byte).unwrap();
                held.push((server, client));
            }
        }
    }
    held
}

/// How many clients receive from their servers, within a time that covers retransmissions.
fn count_heard(held: &mut [(TcpStream, TcpStream)]) -> usize {
    let until = Instant::now() + SERVED;
    let is_heard = |(_, client): &mut (TcpStream, TcpStream)| {
        let left = until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        client.set_read_timeout(Some(left)).unwrap();
        client.read_exact(&mut [0]).is_ok()
    };
    held.iter_mut().map(is_heard).filter(|it| *it).count()
}

/// The server sends and the client listens, as with logs and events: so the first packet that a new firewall sees is
/// the server's, which opens no connection.
#[test]
fn a_later_firewall_cuts_no_connection() {
    for (setting, before) in [("", Some(TRACKED)), ("", None), ("[packets]\nshortcut = \"never\"\n", None)] {
        let bed = fabric::bed(Switches::default()).unwrap();
        before.iter().for_each(|rules| fabric::rules(&bed, rules).unwrap());
        on_this(&bed, setting, |bed, daemon, clients| {
            if setting.is_empty() {
                wait_until_said(daemon, "packets to its pods bypass the stack");
            }
            // The first flows find no neighbour entry.
            OF_PODS.iter().for_each(|service| check_answered(clients, service));
            let mut held = hold(bed);
            fabric::rules(bed, KNOWN).unwrap();
            if setting.is_empty() {
                wait_until_said(daemon, "packets go through the stack: table inet known, chain forward");
            }
            held.iter_mut().for_each(|(server, _)| server.write_all(&[1]).unwrap());
            let live = count_heard(&mut held);
            assert_eq!(live, held.len(), "with {setting:?}, tracked before: {}", before.is_some());
        });
    }
}

/// Streams in both directions, of some ten thousand segments each: none is lost, and most are redirected at drivers.
#[test]
fn long_streams_bypass_at_the_driver_in_both_directions() {
    const BYTES: usize = 16 << 20;
    let (bed, setting, said) = bed_for(true, Switches { no_offload: true, ..Switches::default() });
    on_this(&bed, setting, |_, daemon, clients| {
        wait_until_said(daemon, said);
        check_answered(clients, "away");
        for (take, give) in [(BYTES, 0), (0, BYTES), (BYTES, BYTES)] {
            let before = passed_at_drivers(daemon);
            let questions = FAMILIES.map(|of| {
                let mut question = Question::new(Transport::Tcp, frontend("away", "balancer", of).unwrap());
                question.patience = SERVED;
                question.from(outside(of, 0)).sized(take, give)
            });
            let outcomes = clients.client("outside").unwrap().ask_all(&questions).unwrap();
            let are_answered = outcomes.iter().all(|it| matches!(it, Outcome::Answered { .. }));
            assert!(are_answered, "{take} {give}: {outcomes:?}");
            let passed = passed_at_drivers(daemon) - before;
            let segments = u64::try_from(FAMILIES.len() * (take + give) / 1_500).unwrap();
            assert!(
                passed > segments / 2,
                "of {segments} segments at least, {passed} have passed at drivers"
            );
        }
    });
}

/// Puts a guest with its own hardware address behind a bridge in pod a, as a virtual machine is.
fn lay_guest(bed: &Bed) {
    for words in [
        "link add guest address 02:00:00:00:0a:0a type bridge mcast_snooping 0",
        "link set guest up",
        "address flush dev eth0 scope global",
        "-6 route flush dev eth0",
        "link set eth0 master guest",
        "address add 10.244.1.10/32 dev guest",
        "route add 10.244.1.1/32 dev guest",
        "route add default via 10.244.1.1",
        "address add fd00:244:1::10/128 dev guest nodad",
        "route add fd00:244:1::1/128 dev guest",
        "route add default via fd00:244:1::1",
    ] {
        ip(bed, "pod-a", words);
    }
}

/// Such a guest accepts only packets for its own hardware address, which the pod's device passes on.
#[test]
fn a_virtual_machine_behind_a_bridge_in_its_pod_gets_its_packets() {
    let bed = fabric::bed(Switches::default()).unwrap();
    lay_guest(&bed);
    on_this(&bed, "", |_, daemon, clients| {
        wait_until_said(daemon, "packets to its pods bypass the stack");
        (0..2).for_each(|_| check_answered(clients, "here"));
        check_flows(daemon, "here", true);
    });
}

/// Makes the pods' neighbour entries stale soon; the kernel asks again within a second.
fn doubt_neighbours(bed: &Bed) {
    for family in ["ipv4", "ipv6"] {
        for (name, value) in
            [("base_reachable_time_ms", "500"), ("delay_first_probe_time", "1"), ("retrans_time_ms", "100")]
        {
            fabric::set(bed, location("node"), &format!("{family}/neigh/pod-a/{name}"), value).unwrap();
        }
    }
}

/// The guest sends nothing by itself: others have its old hardware address until they ask again.
#[test]
fn a_guest_with_a_changed_hardware_address_is_found_again() {
    let bed = fabric::bed(Switches::default()).unwrap();
    lay_guest(&bed);
    doubt_neighbours(&bed);
    on_this(&bed, "", |bed, daemon, clients| {
        wait_until_said(daemon, "packets to its pods bypass the stack");
        (0..2).for_each(|_| check_answered(clients, "here"));
        check_flows(daemon, "here", true);
        ip(bed, "pod-a", "link set guest address 02:00:00:00:0a:0b");
        for family in FAMILIES {
            let question = Question::new(Transport::Tcp, frontend("here", "balancer", family).unwrap());
            let until = Instant::now() + SERVED;
            let mut is_found = || {
                let outcome = clients.client("outside").unwrap().ask(question.clone()).unwrap();
                matches!(outcome, Outcome::Answered { .. })
            };
            while !is_found() {
                assert!(Instant::now() < until, "the guest is not asked for by {family:?}");
            }
        }
    });
}

/// The queue at a pod's device limits the pod's bandwidth, also for bypassing packets.
#[test]
fn a_pods_limit_of_bandwidth_holds() {
    let bed = fabric::bed(Switches::default()).unwrap();
    run(&bed, "node", "tc", "qdisc add dev pod-a root tbf rate 8mbit burst 16kb latency 400ms");
    on_this(&bed, "", |bed, daemon, clients| {
        wait_until_said(daemon, "packets to its pods bypass the stack");
        check_answered(clients, "here");
        let before = queued(bed);
        check_answered(clients, "here");
        check_flows(daemon, "here", true);
        assert!(queued(bed) > before + 100_000, "the queue has seen what the pod got");
    });
}

/// How many bytes the queue at pod a's device has seen.
fn queued(bed: &Bed) -> u64 {
    let said = run(bed, "node", "tc", "-s qdisc show dev pod-a root");
    said.split_whitespace().skip_while(|word| *word != "Sent").nth(1).unwrap().parse().unwrap()
}
