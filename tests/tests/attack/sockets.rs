//! Attacks by the sockets that an unprivileged process opens.

use std::io::{self, Write};
use std::net::SocketAddr;

use holdfast_fixtures::clock::wait_until;
use holdfast_tests::bed::clients::LastingClient;
use holdfast_tests::bed::daemon::Daemon;
use holdfast_tests::bed::{Bed, Errand, Layout, Location, Role};

use crate::stage::{NOBODY, nobody_dials, slice};

/// Each unspecified address that means the own host.
const UNSPECIFIED: [&str; 3] = ["0.0.0.0:30080", "[::]:30080", "[::ffff:0.0.0.0]:30080"];
const OF_THE_NODE: [&str; 2] = ["192.0.2.1:30080", "[2001:db8::1]:30080"];

const NODE_PORT: &str = "
apiVersion: v1
kind: Service
metadata: {name: door, namespace: default}
spec:
  type: NodePort
  clusterIP: 10.96.0.8
  clusterIPs: [10.96.0.8, 'fd00:96::8']
  ipFamilies: [IPv4, IPv6]
  ports: [{port: 80, nodePort: 30080}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: door-4, namespace: default, labels: {kubernetes.io/service-name: door}}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: [192.0.2.1]}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: door-6, namespace: default, labels: {kubernetes.io/service-name: door}}
addressType: IPv6
ports: [{port: 8080}]
endpoints: [{addresses: ['2001:db8::1']}]
";

#[track_caller]
fn check_all_get(bed: &Bed, addresses: &[&str], expected: &str) {
    for address in addresses {
        assert_eq!(nobody_dials(bed, address), expected, "{address}");
    }
}

#[test]
fn dialling_the_unspecified_address_never_reaches_a_node_port() {
    let local = vec!["192.0.2.1/32", "2001:db8::1/128"];
    let bed = Bed::lay(&Layout { local, ..Layout::default() }).unwrap();
    let serve = |name, at: &str| bed.serve(Location::NODE, Role::Tcp, name, at.parse().unwrap()).unwrap();
    let _backends = ["192.0.2.1:8080", "[2001:db8::1]:8080"].map(|at| serve("the service", at));
    let ranges = "[node]\nnode_port_addresses = [\"192.0.2.0/24\", \"2001:db8::/64\"]\n";
    let mut daemon = Daemon::new(&bed, ranges).unwrap();
    daemon.write_manifest("door.yaml", NODE_PORT).unwrap();
    daemon.start().unwrap();
    wait_until("served", || OF_THE_NODE.iter().all(|at| nobody_dials(&bed, at) == "the service"));
    check_all_get(&bed, &UNSPECIFIED, "ECONNREFUSED");
    let _own = serve("own", "[::]:30080");
    check_all_get(&bed, &UNSPECIFIED, "own");
    check_all_get(&bed, &OF_THE_NODE, "the service");
}

const DNS: &str = "10.96.0.53:53";

/// No socket listens behind it, so that its clients cost as little as possible.
const QUIET: &str = "10.96.0.54:53";

fn udp(name: &str, vip: &str, backend: &str) -> String {
    let (address, port) = vip.split_once(':').unwrap();
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: default}}\n\
         spec: {{clusterIP: {address}, ports: [{{port: {port}, protocol: UDP}}]}}\n---\n{}",
        slice(name, "port: 5353, protocol: UDP", backend)
    )
}

/// The dialled address as the client sees it, the address that replies, and the reply.
fn ask(client: &mut LastingClient) -> (Option<String>, Option<String>, Option<String>) {
    let answer = client.ask().unwrap().pop().unwrap();
    (answer.peer, answer.from, answer.reply)
}

#[test]
fn seventy_thousand_short_sockets_evict_no_other_client() {
    let bed = Bed::lay(&Layout { local: vec!["192.0.2.0/24"], ..Layout::default() }).unwrap();
    let _servers = [("one", "192.0.2.1:5353"), ("two", "192.0.2.2:5353")]
        .map(|(name, at)| bed.serve(Location::NODE, Role::Udp, name, at.parse().unwrap()).unwrap());
    let mut daemon = Daemon::new(&bed, "").unwrap();
    daemon.write_manifest("dns.yaml", &udp("dns", DNS, "192.0.2.1")).unwrap();
    daemon.write_manifest("quiet.yaml", &udp("quiet", QUIET, "192.0.2.3")).unwrap();
    daemon.start().unwrap();
    let is_served =
        |vip: &str| daemon.tell(&["explain", &format!("{vip}/UDP")]).unwrap().contains("192.0.2.");
    wait_until("served", || is_served(DNS) && is_served(QUIET));

    let vip = || Some(DNS.to_owned());
    let mut idle = LastingClient::start(&bed, &["udp-lasting", "10.96.0.53", "53"]).unwrap();
    assert_eq!(ask(&mut idle), (vip(), vip(), Some("one".to_owned())));
    let quiet: SocketAddr = QUIET.parse().unwrap();
    assert_eq!(bed.errand(Location::NODE, NOBODY, Errand::ShortSockets, quiet).unwrap(), "70000");
    assert_eq!(ask(&mut idle), (vip(), vip(), Some("one".to_owned())), "it sees the service, not a backend");
    daemon.write_manifest("dns.yaml", &udp("dns", DNS, "192.0.2.2")).unwrap();
    let is_refused = || {
        let answer = daemon.ask(&["datapath"]).unwrap();
        let failure = answer["kernel"]["stale_sockets"]["failure"].as_str();
        failure.is_some_and(|it| it.contains("Operation not permitted"))
    };
    let moved = (vip(), vip(), Some("two".to_owned()));
    wait_until("ended with its backend", || is_refused() || ask(&mut idle) == moved);
    if is_refused() {
        let mut told = io::stderr();
        let what = "this kernel lets no program see what sockets keep, so no UDP socket is ended";
        writeln!(told, "not tried: {what}").unwrap();
    }
}
