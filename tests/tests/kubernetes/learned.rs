//! Addresses learned from the cluster: how long they count, and which of them are dialled and get a token.

use std::net::SocketAddr;

use holdfast_config::{Apiserver, ApiserverUrl};
use holdfast_kubernetes::source::SourceSettings;
use holdfast_status::views::apiserver::Tier;
use holdfast_tests::fake::{Names, Server};
use serde_json::{Value, json};

use crate::node::{Node, Setup, backend, ms, quick, slice_object, web};

/// A slice of `default/kubernetes`.
fn endpoints(slice: &str, addresses: &[SocketAddr]) -> Value {
    let listed: Vec<_> = addresses.iter().map(|it| json!({"addresses": [it.ip()]})).collect();
    json!({
        "kind": "EndpointSlice",
        "metadata": {"namespace": "default", "name": slice, "labels": {"kubernetes.io/service-name": "kubernetes"}},
        "addressType": "IPv4", "endpoints": listed,
        "ports": [{"name": "https", "protocol": "TCP", "port": addresses.first().map_or(6443, SocketAddr::port)}],
    })
}

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn is_exempt(node: &Node, of: SocketAddr) -> bool {
    node.access.addresses().borrow().contains(&of)
}

fn is_dialled(node: &Node, of: SocketAddr) -> bool {
    let view = node.access.view();
    view.endpoints.iter().any(|row| row.address == of && row.tier == Tier::Learned)
}

#[test]
fn a_once_listed_address_is_dialled_for_ever_and_exempt_while_listed() {
    let setup = Setup::new(1);
    setup.services(1);
    let (own, strange) = (address("192.0.2.1:6443"), address("192.0.2.99:6443"));
    setup.cluster.apply(endpoints("kubernetes", &[own])).unwrap();
    let mut node = Node::start(setup);
    node.wait_until_synced();
    assert!(is_exempt(&node, own) && !is_exempt(&node, strange));
    node.cluster().apply(endpoints("kubernetes", &[own, strange])).unwrap();
    node.wait("it is exempt", |node| is_exempt(node, strange));
    node.cluster().apply(endpoints("kubernetes", &[own])).unwrap();
    node.wait("it is exempt no more", |node| !is_exempt(node, strange));
    assert!(is_dialled(&node, strange) && is_dialled(&node, own) && is_exempt(&node, own));
    // Nor after a restart, before any source has reported anything.
    let restart = |node: &Node| node.setup.access(node.setup.apiserver());
    node.wait("it is saved", |node| restart(node).addresses().borrow().contains(&own));
    let again = restart(&node);
    assert!(!again.addresses().borrow().contains(&strange));
    assert!(again.view().endpoints.iter().any(|row| row.address == strange));
}

/// An author of slices in `default` can name another Service's address.
#[test]
fn an_unlisted_silent_address_is_dialled_and_not_exempt() {
    let setup = Setup::new(1);
    setup.services(1);
    let strange = address("192.0.2.99:443");
    setup.cluster.apply(endpoints("kubernetes-x", &[strange])).unwrap();
    let mut node = Node::start(setup);
    node.wait_until_synced();
    node.wait("it is dialled", |node| is_dialled(node, strange));
    // Nothing answers there, so nothing but time can show a mistake.
    node.live(ms(1_500));
    assert!(!is_exempt(&node, strange));
}

#[test]
fn a_slice_that_leaves_the_service_removes_its_addresses() {
    let setup = Setup::new(1);
    setup.services(1);
    let strange = address("192.0.2.99:443");
    setup.cluster.apply(endpoints("kubernetes-x", &[address("192.0.2.1:6443")])).unwrap();
    setup.cluster.apply(endpoints("kubernetes", &[strange])).unwrap();
    let mut node = Node::start(setup);
    node.wait_until_synced();
    assert!(is_exempt(&node, strange));
    let mut moved = endpoints("kubernetes", &[strange]);
    moved["metadata"]["labels"]["kubernetes.io/service-name"] = json!("other");
    node.cluster().apply(moved).unwrap();
    node.wait("it is exempt no more", |node| !is_exempt(node, strange));
}

/// An emptied list of the control plane's own service is held without limit, and so is its exemption.
#[test]
fn an_emptied_lists_addresses_stay_exempt_until_others_come() {
    let setup = Setup::new(1);
    setup.services(1);
    let (old, new) = (address("192.0.2.1:6443"), address("192.0.2.2:6443"));
    setup.cluster.apply(endpoints("kubernetes", &[old])).unwrap();
    let mut node = Node::start(setup);
    node.wait_until_synced();
    let mut emptied = endpoints("kubernetes", &[]);
    emptied["endpoints"] = json!(null);
    emptied["ports"] = json!(null);
    node.cluster().apply(emptied).unwrap();
    node.cluster().apply(slice_object(&web(0), &[backend(9)])).unwrap();
    node.wait("heard", |node| node.serves(0, &[backend(9)]));
    assert!(is_exempt(&node, old));
    node.cluster().apply(endpoints("kubernetes", &[new])).unwrap();
    node.wait("there are others", |node| is_exempt(node, new) && !is_exempt(node, old));
}

/// A tenant with write access to slices must not displace addresses that the apiserver itself listed.
#[test]
fn a_flood_of_addresses_displaces_none_of_the_apiservers_own() {
    let setup = Setup::new(1);
    setup.services(1);
    let own = address("192.0.2.1:6443");
    setup.cluster.apply(endpoints("kubernetes", &[own])).unwrap();
    let flood: Vec<SocketAddr> =
        (1..=200).map(|last| SocketAddr::from(([198, 51, 100, last], 6443))).collect();
    setup.cluster.apply(endpoints("a-flood", &flood)).unwrap();
    let mut node = Node::start(setup);
    node.wait_until_synced();
    node.cluster().apply(slice_object(&web(0), &[backend(9)])).unwrap();
    node.wait("a change after the flood is served", |node| node.serves(0, &[backend(9)]));
    assert!(is_dialled(&node, own) && is_exempt(&node, own));
    assert!(node.access.addresses().borrow().len() <= 17);
}

/// Two servers, the second only learned. No server name is configured, so the first one is verified by its address.
fn with_learned(names: impl FnOnce(&Server) -> Names) -> (Node, SocketAddr) {
    let mut setup = Setup::new(1);
    setup.services(1);
    let first = Names::Address(setup.servers[0].address().ip());
    setup.servers[0].show(&setup.authority.server(&first).unwrap());
    let second = Server::start(&setup.cluster, &setup.authority.server(&Names::Kubernetes).unwrap()).unwrap();
    second.show(&setup.authority.server(&names(&second)).unwrap());
    let learned = second.address();
    setup.cluster.apply(endpoints("kubernetes", &[learned])).unwrap();
    let configured = vec![ApiserverUrl::parse(&setup.servers[0].url()).unwrap()];
    let apiserver = Apiserver { endpoints: configured, tls_server_name: None, ..setup.apiserver() };
    let access = setup.access(apiserver);
    setup.servers.push(second);
    let mut node =
        Node::start_over(setup, access, SourceSettings { timing: quick(), ..SourceSettings::default() });
    node.wait_until_synced();
    node.setup.servers[0].stop();
    node.cluster().apply(slice_object(&web(0), &[backend(9)])).unwrap();
    (node, learned)
}

#[test]
fn no_learned_address_gets_a_token_by_its_address_certificate() {
    let (mut node, learned) = with_learned(|server| Names::Address(server.address().ip()));
    node.wait("it was tried", |node| {
        let view = node.access.view();
        view.endpoints.iter().any(|row| row.address == learned && row.last_error.is_some())
    });
    node.wait("it was tried again", |node| node.setup.servers[1].connections() >= 3);
    assert!(node.setup.servers[1].requests().is_empty(), "{:?}", node.setup.servers[1].requests());
    let view = node.access.view();
    let said = &view.endpoints.iter().find(|row| row.address == learned).unwrap().last_error;
    assert!(said.as_ref().unwrap().0.contains("not kubernetes.default.svc"), "{said:?}");
    assert!(node.serves(0, &[backend(0)]), "what is known stays");
}

#[test]
fn a_learned_address_with_the_apiservers_name_is_used() {
    let (mut node, _) = with_learned(|_| Names::Kubernetes);
    node.wait("served over it", |node| node.serves(0, &[backend(9)]));
}
