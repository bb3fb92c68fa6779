//! Connected clients of a backend that is about to leave: they keep it while it serves.

use std::time::Duration;

use holdfast_tests::bed::clients::LastingClient;
use holdfast_tests::bed::daemon::Daemon;
use holdfast_tests::bed::{Bed, Layout, Location, Role};

use crate::node::tells_what_sockets_keep;
use crate::served::ask;

/// The node is in zone a. The daemon, its clients and its servers share one network.
const ZONE: &str = "[node]\nname = \"n1\"\nzone = \"a\"\n";

const DNS: &str = "10.96.0.53:53";

/// Enough clients for each of two backends to get at least one.
const CLIENTS: usize = 12;

const SERVICES: &str = "
apiVersion: v1
kind: Service
metadata: {name: dns, namespace: default}
spec: {clusterIP: 10.96.0.53, internalTrafficPolicy: POLICY, ports: [{port: 53, protocol: UDP}]}
---
apiVersion: v1
kind: Service
metadata: {name: other, namespace: default}
spec: {clusterIP: 10.96.0.54, ports: [{port: 53, protocol: UDP}]}
";

fn slice(service: &str, endpoints: &str) -> String {
    format!(
        "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {{name: {service}-1, namespace: default, \
         labels: {{kubernetes.io/service-name: {service}}}}}\naddressType: IPv4\nports: [{{port: 5353, protocol: UDP}}]\n\
         endpoints: {endpoints}\n"
    )
}

/// A change of both backends and of the service's policy.
struct Change {
    what: &'static str,
    /// How many backends new clients may reach.
    listed: usize,
    policy: &'static str,
    first: &'static str,
    second: &'static str,
}

impl Change {
    const NONE: Self = Self { what: "both serve", listed: 2, policy: "Cluster", first: "", second: "" };

    fn manifest(&self, other: &str) -> String {
        let Self { policy, first, second, .. } = self;
        let endpoints = format!(
            "[{{addresses: [192.0.2.1], nodeName: n1{first}}}, {{addresses: [192.0.2.2], nodeName: n2{second}}}]"
        );
        let services = SERVICES.replace("POLICY", policy);
        format!("{services}{}{}", slice("dns", &endpoints), slice("other", other))
    }
}

/// One of the two backends gets no new clients, although it serves.
const CHANGES: [Change; 3] = [
    Change {
        what: "the first terminates and serves",
        listed: 1,
        first: ", conditions: {ready: false, serving: true, terminating: true}",
        ..Change::NONE
    },
    Change {
        what: "hints lead to the second alone",
        listed: 1,
        first: ", hints: {forZones: [{name: b}]}",
        second: ", hints: {forZones: [{name: a}]}",
        ..Change::NONE
    },
    Change { what: "only the first is local", listed: 1, policy: "Local", ..Change::NONE },
];

fn ended(daemon: &Daemon<'_>) -> u64 {
    daemon.ask(&["datapath"]).unwrap()["kernel"]["stale_sockets"]["ended"].as_u64().unwrap()
}

fn listed(daemon: &Daemon<'_>) -> usize {
    let rows = daemon.ask(&["frontends", "--address", "10.96.0.53"]).unwrap();
    rows["frontends"][0]["backends"].as_array().unwrap().len()
}

/// Makes a change and waits for a full sweep of the sockets: it has ended those that lose their backend, and one of
/// another service. Returns how many it ended besides that one.
fn sweep(bed: &Bed, daemon: &mut Daemon<'_>, change: &Change, lost: u64) -> u64 {
    let before = ended(daemon);
    daemon.write_manifest("cluster.yaml", &change.manifest("[{addresses: [192.0.2.3]}]")).unwrap();
    daemon.wait_until(|it| Ok(listed(it) == change.listed)).unwrap();
    let mut witness = LastingClient::start(bed, &["udp-lasting", "10.96.0.54", "53"]).unwrap();
    ask(&mut witness);
    daemon.write_manifest("cluster.yaml", &change.manifest("[]")).unwrap();
    daemon.wait_until(|it| Ok(ended(it) > before + lost)).unwrap();
    // The sweep that ended the last of them may have ended others after it.
    std::thread::sleep(Duration::from_millis(1500));
    ended(daemon) - before - 1
}

#[test]
fn kernel_a_connected_client_keeps_only_a_serving_backend() {
    if !tells_what_sockets_keep() {
        return;
    }
    let local = vec!["192.0.2.1/32", "192.0.2.2/32", "192.0.2.3/32"];
    let bed = Bed::lay(&Layout { local, ..Layout::default() }).unwrap();
    let _servers = [("one", "192.0.2.1:5353"), ("two", "192.0.2.2:5353"), ("three", "192.0.2.3:5353")]
        .map(|(name, at)| bed.serve(Location::NODE, Role::Udp, name, at.parse().unwrap()).unwrap());
    let mut daemon = Daemon::new(&bed, &format!("{ZONE}[hold]\non_empty = \"refuse\"\n")).unwrap();
    daemon.write_manifest("cluster.yaml", &Change::NONE.manifest("[{addresses: [192.0.2.3]}]")).unwrap();
    daemon.start().unwrap();

    let mut clients: Vec<_> = (0..CLIENTS)
        .map(|_| LastingClient::start(&bed, &["udp-lasting", "10.96.0.53", "53"]).unwrap())
        .collect();
    let served: Vec<_> = clients.iter_mut().filter_map(|client| ask(client).pop()).collect();
    let of = |server: &str| format!("recvfrom - {DNS} {DNS} {server}");
    assert!(["one", "two"].iter().all(|server| served.contains(&of(server))), "{served:?}");
    for change in &CHANGES {
        assert_eq!(sweep(&bed, &mut daemon, change, 0), 0, "{}", change.what);
        for (client, served) in clients.iter_mut().zip(&served) {
            assert_eq!(ask(client), std::slice::from_ref(served), "{}", change.what);
        }
        daemon.kill().unwrap();
        daemon.start().unwrap();
        assert_eq!(sweep(&bed, &mut daemon, &Change::NONE, 0), 0, "and back, over a restart");
    }
    let gone = Change {
        what: "the first does not serve any more",
        listed: 1,
        first: ", conditions: {ready: false, serving: false, terminating: true}",
        ..Change::NONE
    };
    let lost = served.iter().filter(|served| **served == of("one")).count() as u64;
    assert_eq!(sweep(&bed, &mut daemon, &gone, lost), lost, "{}", gone.what);
    for client in &mut clients {
        assert_eq!(ask(client).pop(), Some(of("two")), "{}", gone.what);
    }
}
