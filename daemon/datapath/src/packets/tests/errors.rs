//! ICMP errors about translated packets.

use holdfast_core::op::FrontendType;

use super::craft::{ACK, SYN, Sent, TCP, UDP, address, error, see};
use super::lives::all;
use super::node::{NEXT, Node};
use super::sctp::SCTP;
use crate::abi::flow::encode_endpoint;
use crate::abi::flow::types::flow_flag;
use crate::kernel::bed::Port;

struct Case {
    client: &'static str,
    frontend: &'static str,
    backend: &'static str,
    router: &'static str,
    too_big: (u8, u8),
}

const CASES: [Case; 4] = [
    Case {
        client: "198.51.100.7:40000",
        frontend: "203.0.113.10:80",
        backend: "10.1.0.5:8080",
        router: "198.51.100.254",
        too_big: (3, 4),
    },
    Case {
        client: "198.51.100.7:40000",
        frontend: "203.0.113.11:80",
        backend: "10.2.0.5:8080",
        router: "198.51.100.254",
        too_big: (3, 4),
    },
    Case {
        client: "[2001:db8:1::7]:40000",
        frontend: "[2001:db8:f::10]:80",
        backend: "[fd01::5]:8080",
        router: "2001:db8:1::fe",
        too_big: (2, 0),
    },
    Case {
        client: "[2001:db8:1::7]:40000",
        frontend: "[2001:db8:f::11]:80",
        backend: "[fd02::5]:8080",
        router: "2001:db8:1::fe",
        too_big: (2, 0),
    },
];

fn ip(address: &str) -> String {
    super::craft::address(address).ip().to_string()
}

/// `packet_in` and `packet_out` handle the errors in the order of the stack.
#[test]
fn kernel_icmp_errors_reach_the_sender_and_quote_its_packet() {
    for (transport, base) in [(TCP, Port::TCP), (UDP, Port::UDP), (SCTP, Port::SCTP)] {
        Node::test(move |node| {
            for (index, case) in (1..).zip(&CASES) {
                let backends = [address(case.backend)];
                let kind = FrontendType::LoadBalancer;
                let port = Port {
                    index,
                    kind,
                    frontends: &[case.frontend],
                    backends: &backends,
                    base: index,
                    ..base
                };
                node.serve(&port);
                check_errors(node, case, transport);
            }
        });
    }
}

/// Whether that backend itself sent a port unreachable error.
fn is_refused(node: &Node, backend: &str) -> bool {
    let backend = encode_endpoint(address(backend));
    let its = all(node).filter(|(_, it)| (it.backend, it.backend_port) == backend);
    its.map(|(_, it)| u32::from(it.backend_flags)).any(|said| said & flow_flag::FLOW_UNREACHABLE_SEEN.0 != 0)
}

fn check_errors(node: &Node, case: &Case, transport: u8) {
    let packet = |from: &str, to: &str, flags| Sent::by(transport, from, to, flags, b"abcdefgh");
    let Case { client, frontend, backend, router, too_big } = *case;
    let is_remote = backend.contains("10.2") || backend.contains("fd02");
    let through = node.comes(&packet(client, frontend, SYN)).from;
    let at_backend = match is_remote {
        true => node.leaves(&packet(&through.to_string(), backend, SYN)).from.to_string(),
        false => through.to_string(),
    };
    for quoted in [if client.starts_with('[') { 48 } else { 28 }, 1000] {
        // A router before the client: the reply was too big.
        let answer = packet(frontend, client, ACK);
        let (verdict, frame) = node.come(&error(router, &ip(frontend), too_big, &answer.packet(), quoted));
        let seen = see(&frame, true);
        assert_eq!((verdict, seen.is_valid), (NEXT, true), "{seen:?}");
        assert_eq!((seen.from.ip().to_string(), seen.to.ip().to_string()), (router.to_owned(), ip(backend)));
        let (.., about) = seen.error.clone().unwrap();
        assert_eq!((about.from, about.to), (address(backend), through), "as the stack sees it");
        if is_remote {
            let (_, frame) = node.leave(&frame);
            let seen = see(&frame, true);
            assert!(seen.is_valid, "{seen:?}");
            let (.., about) = seen.error.unwrap();
            assert_eq!((about.from, about.to), (address(backend), address(&at_backend)), "as it sent it");
            let ends = (seen.from.ip(), seen.to.ip());
            assert_eq!(
                ends,
                (address(&at_backend).ip(), address(backend).ip()),
                "from the node, not the router"
            );
        }
        // The backend or a router before it: port unreachable or packet too big.
        let request = packet(&at_backend, backend, SYN);
        let code = if client.starts_with('[') { (1, 4) } else { (3, 3) };
        for (who, code) in [(ip(backend), code), (router.to_owned(), too_big)] {
            let sent = error(&who, &ip(&at_backend), code, &request.packet(), quoted);
            let frame = if is_remote { node.come(&sent).1 } else { sent };
            let (verdict, frame) = node.leave(&frame);
            let seen = see(&frame, true);
            assert_eq!((verdict, seen.is_valid), (NEXT, true), "{seen:?}");
            assert_eq!(
                (seen.from.ip(), seen.to.ip()),
                (address(frontend).ip(), address(client).ip()),
                "{who}"
            );
            let (.., about) = seen.error.unwrap();
            assert_eq!((about.from, about.to), (address(client), address(frontend)), "as the client sent it");
            assert_eq!(
                is_refused(node, backend),
                transport == UDP,
                "{who}: the backend's error counts until it replies"
            );
        }
        let answer = packet(backend, &at_backend, ACK).frame();
        let answer = if is_remote { node.come(&answer).1 } else { answer };
        assert_eq!(node.leave(&answer).0, NEXT);
        assert!(!is_refused(node, backend), "it has replied");
        let other = error(router, &ip(&at_backend), code, &request.packet(), quoted);
        let other = if is_remote { node.come(&other).1 } else { other };
        assert_eq!(node.leave(&other).0, NEXT);
        assert!(!is_refused(node, backend), "no other sender counts");
    }
}
