//! What an answer proves, and who sent it.

use std::process::Command;

use tokio::net::TcpListener;

use super::*;
use holdfast_fixtures::{few_ports, network_namespace};

#[tokio::test]
async fn a_listener_accepts_and_a_closed_port_refuses() {
    for any in ["127.0.0.1:0", "[::1]:0"] {
        let listener = TcpListener::bind(any).await.unwrap();
        let address = listener.local_addr().unwrap();
        assert_eq!(probe_backend(address).await, Some(ProbeAnswer::Accepted));
        drop(listener);
        assert_eq!(probe_backend(address).await, Some(ProbeAnswer::Refused));
    }
}

/// Three of them would end a hold, and those of all services at once.
#[test]
fn what_has_never_left_this_node_proves_nothing() {
    let (soon, later) = (Duration::from_micros(50), Duration::from_millis(3));
    for (number, after, expected) in [
        (libc::ENETUNREACH, later, None),
        (libc::EMFILE, soon, None),
        (libc::EADDRNOTAVAIL, soon, None),
        (libc::ENOBUFS, soon, None),
        (libc::EPERM, soon, None),
        (libc::EHOSTUNREACH, soon, None),
        (libc::EHOSTUNREACH, later, Some(ProbeAnswer::Refused)),
        (libc::ECONNREFUSED, soon, Some(ProbeAnswer::Refused)),
        (libc::ECONNRESET, soon, Some(ProbeAnswer::Silent)),
        (libc::ETIMEDOUT, later, Some(ProbeAnswer::Silent)),
    ] {
        let error = io::Error::from_raw_os_error(number);
        assert_eq!(classify_outcome(&error, None, after), expected, "{error}");
    }
}

#[test]
fn a_probe_without_a_local_port_proves_nothing() {
    few_ports::run_in_network(async || {
        let listener = TcpListener::bind("127.0.0.1:8080").await.unwrap();
        let backend = listener.local_addr().unwrap();
        assert_eq!(probe_backend(backend).await, Some(ProbeAnswer::Accepted));
        let taken = few_ports::take_ports(backend).await;
        assert_eq!(probe_backend(backend).await, None);
        drop(taken);
    });
}

fn run(words: &str) {
    let mut words = words.split(' ');
    let status = Command::new(words.next().unwrap()).args(words).status().unwrap();
    assert!(status.success());
}

/// NetworkPolicies of kube-router, Calico and others reject like this, for all nodes but the backend's own.
#[test]
fn a_filter_that_rejects_is_no_answer_of_the_backend() {
    let filtered = network_namespace::block_on_inside(async || {
        run("ip link set lo up");
        run("nft add table inet filter");
        run("nft add chain inet filter output { type filter hook output priority 0 ; }");
        for (port, with) in [
            (1, "icmpx port-unreachable"),
            (2, "icmpx admin-prohibited"),
            (3, "icmpx host-unreachable"),
            (4, "tcp reset"),
        ] {
            run(&format!("nft add rule inet filter output tcp dport {port} reject with {with}"));
        }
        let mut answers = Vec::new();
        for host in ["127.0.0.1", "::1"] {
            for port in 1..=4 {
                answers.push(probe_backend(SocketAddr::new(host.parse().unwrap(), port)).await);
            }
        }
        answers
    });
    let one =
        [ProbeAnswer::Silent, ProbeAnswer::Silent, ProbeAnswer::Refused, ProbeAnswer::Refused].map(Some);
    assert_eq!(filtered, [one, one].concat());
}
