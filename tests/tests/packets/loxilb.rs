//! Scenarios of another load balancer, by their names there (LoxiLB's `cicd`): a balancer between a network of clients
//! and three backends, each on a link of its own, without a cluster. docs/outside.md lists them, and gives reasons for
//! the others.
//!
//! Invariant: setup and expectation are LoxiLB's, except for the next backend: holdfast selects it at random, not in
//! turn.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use holdfast_tests::bed::ask::{Asker, Outcome, Question, Transport};
use holdfast_tests::bed::daemon::Daemon;
use holdfast_tests::bed::fabric::set;
use holdfast_tests::bed::{Bed, Layout, Location, Neighbour, Server};
use holdfast_tests::packets::Family;
use serde_json::json;

use crate::node::{SERVED, ip, last_lines};

/// The backends: each is a host on a link of its own, with an address of each family.
const BACKENDS: [(&str, [&str; 2]); 3] = [
    ("one", ["10.31.0.1", "fd00:31::1"]),
    ("two", ["10.32.0.1", "fd00:32::1"]),
    ("three", ["10.33.0.1", "fd00:33::1"]),
];

/// The balancer's own ends of those links.
const GATEWAYS: [[&str; 2]; 3] = [
    ["10.31.0.254/24", "fd00:31::254/64"],
    ["10.32.0.254/24", "fd00:32::254/64"],
    ["10.33.0.254/24", "fd00:33::254/64"],
];

const FAR: [[&str; 2]; 3] =
    [["10.31.0.1/24", "fd00:31::1/64"], ["10.32.0.1/24", "fd00:32::1/64"], ["10.33.0.1/24", "fd00:33::1/64"]];

/// Clients use this device only.
const NODE: &str = "[node]\nname = \"balancer\"\n[packets]\ndevices = [\"client\"]\n";

/// An address of no host.
const VIRTUAL: [&str; 2] = ["192.0.2.20:2020", "[2001:db8::20]:2020"];

/// An address of the balancer, on its loopback.
const ON_LOOPBACK: &str = "198.51.100.3:2020";

/// An address of the balancer, through which clients reach it.
const OF_LINK: &str = "10.10.10.254:2020";

const CLIENT: &str = "10.10.10.1";
const OTHER_CLIENT: &str = "10.10.10.2";

/// This many clients miss one of three backends once in billions of runs.
const ENOUGH: usize = 60;

fn layout() -> Layout {
    let link = |name, near: &[&'static str], far: &[&'static str]| Neighbour {
        name,
        near: near.to_vec(),
        far: far.to_vec(),
    };
    let client = ["10.10.10.1/24", "10.10.10.2/24", "10.10.10.3/24", "fd00:10::1/64"];
    let mut neighbours = vec![link("client", &["10.10.10.254/24", "fd00:10::254/64"], &client)];
    let backends = BACKENDS.iter().zip(GATEWAYS.iter().zip(&FAR));
    neighbours.extend(backends.map(|((name, _), (near, far))| link(name, near, far)));
    Layout { local: vec!["198.51.100.3/32"], neighbours, ..Layout::default() }
}

/// The balancer with its backends, and a client.
struct Balancer<'a> {
    bed: &'a Bed,
    daemon: Daemon<'a>,
    client: Asker,
    _servers: Vec<Server>,
}

/// Runs a closure with a ready balancer of that configuration.
#[track_caller]
fn balance(config: &str, run: impl FnOnce(&mut Balancer<'_>)) {
    let bed = Bed::lay(&layout()).unwrap();
    set(&bed, Location::OUTSIDE, "ipv4/ip_forward", "1").unwrap();
    set(&bed, Location::OUTSIDE, "ipv6/conf/all/forwarding", "1").unwrap();
    let servers = BACKENDS.iter().map(|(name, addresses)| {
        let sockets = addresses.map(|address| SocketAddr::new(address.parse().unwrap(), 8080));
        bed.serve_seen_source(Location::far(name), name, &sockets).unwrap()
    });
    let servers = servers.collect();
    let mut daemon = Daemon::new(&bed, &format!("{NODE}{config}")).unwrap();
    daemon.start().unwrap();
    let client = bed.asker(Location::far("client")).unwrap();
    run(&mut Balancer { bed: &bed, daemon, client, _servers: servers });
}

/// A service at these frontends, with further keys.
fn service(frontends: &[&str], backends: &[&str], more: &str) -> String {
    format!("[[service]]\nname = \"served\"\nfrontends = {frontends:?}\nbackends = {backends:?}\n{more}\n")
}

/// A service with all three backends of a family.
fn with_all(frontends: &[&str], family: Family, more: &str) -> String {
    let sockets = BACKENDS.map(|(_, addresses)| match family {
        Family::V4 => format!("{}:8080", addresses[0]),
        Family::V6 => format!("[{}]:8080", addresses[1]),
    });
    service(frontends, &sockets.each_ref().map(String::as_str), more)
}

fn tcp(to: &str) -> Question {
    Question::new(Transport::Tcp, to.parse().unwrap())
}

fn udp(to: &str) -> Question {
    Question::new(Transport::Udp, to.parse().unwrap())
}

fn from(question: Question, address: &str) -> Question {
    question.from(SocketAddr::new(address.parse().unwrap(), 0))
}

impl Balancer<'_> {
    /// How many of the clients, fifty at once, each backend answers; `None`: some get no answer.
    fn answers(&mut self, question: &Question, count: usize) -> Option<BTreeMap<String, usize>> {
        let mut each = BTreeMap::new();
        let mut left = count;
        while left > 0 {
            let batch = left.min(50);
            left -= batch;
            for outcome in self.client.ask_all(&vec![question.clone(); batch]).unwrap() {
                let Outcome::Answered { by, .. } = outcome else { return None };
                *each.entry(by).or_default() += 1;
            }
        }
        Some(each)
    }

    /// Waits until exactly these backends answer all clients.
    #[track_caller]
    fn wait_for(&mut self, question: &Question, expected: &[&str]) {
        let expected: BTreeSet<&str> = expected.iter().copied().collect();
        let until = Instant::now() + 2 * SERVED;
        loop {
            let each = self.answers(question, ENOUGH);
            let is_so =
                |each: &BTreeMap<String, usize>| each.keys().map(String::as_str).eq(expected.iter().copied());
            if each.as_ref().is_some_and(is_so) {
                return;
            }
            let said = last_lines(&self.daemon);
            assert!(
                Instant::now() < until,
                "{question:?}: {each:?}, not {expected:?}; the daemon said:\n{said}"
            );
            thread::sleep(Duration::from_millis(100));
        }
    }

    #[track_caller]
    fn wait_for_all(&mut self, question: &Question) {
        self.wait_for(question, &BACKENDS.map(|(name, _)| name));
    }

    /// Reloads another configuration while clients go on.
    #[track_caller]
    fn reload(&self, config: &str) {
        self.daemon.configure(&format!("{NODE}{config}")).unwrap();
        let (code, said) = self.daemon.answer(&["reload"]).unwrap();
        assert_eq!(code, Some(0), "{said}");
    }
}

/// tcplb: an address of no host, the balancer's own towards clients, and one on its loopback.
#[test]
fn tcplb_three_backends_answer_at_each_kind_of_address() {
    let frontends = [VIRTUAL[0], OF_LINK, ON_LOOPBACK, "192.0.2.21:1111"];
    balance(&with_all(&frontends, Family::V4, ""), |balancer| {
        frontends.into_iter().for_each(|frontend| balancer.wait_for_all(&tcp(frontend)));
    });
}

/// tcplb-local: a process of the balancer dials an address of its own, and a server there answers.
#[test]
fn tcplb_local_a_process_of_the_balancer_reaches_a_server_of_the_balancer() {
    balance(&service(&[ON_LOOPBACK], &["198.51.100.3:8080"], ""), |balancer| {
        let own = ["198.51.100.3:8080".parse().unwrap()];
        let _server = balancer.bed.serve_seen_source(Location::NODE, "own", &own).unwrap();
        balancer.client = balancer.bed.asker(Location::NODE).unwrap();
        balancer.wait_for(&tcp(ON_LOOPBACK), &["own"]);
    });
}

/// tcplb-src: source ranges accept one client and reject another one of the same network.
#[test]
fn tcplb_src_a_client_outside_the_source_ranges_gets_no_reply() {
    balance("", |balancer| {
        let objects = [
            json!({
                "apiVersion": "v1", "kind": "Service", "metadata": {"name": "served", "namespace": "default"},
                "spec": {
                    "type": "LoadBalancer", "clusterIP": "10.96.0.20", "loadBalancerSourceRanges": ["10.10.10.1/32"],
                    "ports": [{"port": 2020, "targetPort": 8080}],
                },
                "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.20"}]}},
            }),
            json!({
                "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
                "metadata": {
                    "name": "served-1", "namespace": "default", "labels": {"kubernetes.io/service-name": "served"},
                },
                "ports": [{"port": 8080}],
                "endpoints": BACKENDS.map(|(_, addresses)| json!({"addresses": [addresses[0]]})),
            }),
        ];
        let text = objects.map(|object| object.to_string()).join("\n---\n");
        balancer.daemon.write_manifest("served.yaml", &text).unwrap();
        balancer.wait_for_all(&from(tcp(VIRTUAL[0]), CLIENT));
        let outcome = balancer.client.ask(from(tcp(VIRTUAL[0]), OTHER_CLIENT)).unwrap();
        assert_eq!(outcome, Outcome::Silent);
    });
}

/// tcplbepmod: backends are added, removed and added again.
#[test]
fn tcplbepmod_clients_follow_each_change_of_the_backends() {
    let [one, two] = ["10.31.0.1:8080", "10.32.0.1:8080"];
    let config = |backends: &[&str]| service(&[VIRTUAL[0]], backends, "");
    balance(&config(&[one]), |balancer| {
        balancer.wait_for(&tcp(VIRTUAL[0]), &["one"]);
        for (backends, names) in
            [(&[one, two][..], &["one", "two"][..]), (&[one], &["one"]), (&[one, two], &["one", "two"])]
        {
            balancer.reload(&config(backends));
            balancer.wait_for(&tcp(VIRTUAL[0]), names);
        }
    });
}

/// tcplbhash: a client that dials from the same port reaches the same backend.
#[test]
fn tcplbhash_the_same_address_and_port_reach_the_same_backend() {
    balance(&with_all(&[VIRTUAL[0]], Family::V4, "maglev = true"), |balancer| {
        balancer.wait_for_all(&tcp(VIRTUAL[0]));
        let same = tcp(VIRTUAL[0]).from(SocketAddr::new(CLIENT.parse().unwrap(), 55_001)).abort();
        let met: BTreeSet<String> = (0..12)
            .map(|_| match balancer.client.ask(same.clone()).unwrap() {
                Outcome::Answered { by, .. } => by,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(met.len(), 1, "{met:?}");
    });
}

/// tcplbmaxep: LoxiLB's maximum of backends. holdfast allows a thousand times as many.
#[test]
fn tcplbmaxep_each_of_thirty_two_backends_answers() {
    let ports = || 9_000..9_032;
    let sockets: Vec<String> = ports().map(|port| format!("10.31.0.1:{port}")).collect();
    let sockets: Vec<&str> = sockets.iter().map(String::as_str).collect();
    balance(&service(&[VIRTUAL[0]], &sockets, ""), |balancer| {
        let servers = sockets.iter().map(|socket| {
            balancer.bed.serve_seen_source(Location::far("one"), socket, &[socket.parse().unwrap()]).unwrap()
        });
        let _servers: Vec<Server> = servers.collect();
        balancer.wait_for_some(&tcp(VIRTUAL[0]));
        let each = balancer.answers(&tcp(VIRTUAL[0]), 800).unwrap();
        assert_eq!(each.len(), sockets.len(), "{each:?}");
    });
}

impl Balancer<'_> {
    /// Waits until a client is answered.
    #[track_caller]
    fn wait_for_some(&mut self, question: &Question) {
        let until = Instant::now() + 2 * SERVED;
        while self.answers(question, 1).is_none() {
            assert!(Instant::now() < until, "{question:?}; the daemon said:\n{}", last_lines(&self.daemon));
        }
    }
}

const CHECKED: &str = "[service.health_check]\nkind = \"tcp\"\ninterval = \"200ms\"\ntimeout = \"200ms\"\n";

/// tcplbmon, tcplbmon6: a backend loses its address, and gets it back.
#[track_caller]
fn check_monitored(family: Family) {
    let at = family.of([0, 1]);
    let (address, gateway) = (FAR[0][at], GATEWAYS[0][at].split('/').next().unwrap());
    let at_once = family.of(["", " nodad"]);
    balance(&with_all(&[VIRTUAL[at]], family, CHECKED), |balancer| {
        let question = tcp(VIRTUAL[at]);
        balancer.wait_for_all(&question);
        ip(balancer.bed, "one", &format!("address del {address} dev eth0"));
        balancer.wait_for(&question, &["two", "three"]);
        ip(balancer.bed, "one", &format!("address add {address} dev eth0{at_once}"));
        ip(balancer.bed, "one", &format!("route replace default via {gateway}"));
        balancer.wait_for_all(&question);
    });
}

#[test]
fn tcplbmon_a_missing_backend_gets_no_clients_until_it_is_back() {
    check_monitored(Family::V4);
}

#[test]
fn tcplbmon6_a_missing_backend_gets_no_clients_until_it_is_back() {
    check_monitored(Family::V6);
}

/// Weights in percent, over enough clients that seven deviations are below a tenth.
#[track_caller]
fn check_weights(weights: &[(usize, u32)]) {
    const CLIENTS: usize = 1_200;
    let backend = |(at, weight): &(usize, u32)| {
        let address = BACKENDS.get(*at).unwrap().1[0];
        format!("{{ address = \"{address}:8080\", weight = {weight} }}")
    };
    let backends: Vec<String> = weights.iter().map(backend).collect();
    let config = format!(
        "[[service]]\nname = \"served\"\nfrontends = [{:?}]\nbackends = [{}]\n",
        VIRTUAL[0],
        backends.join(", ")
    );
    balance(&config, |balancer| {
        balancer.wait_for_some(&tcp(VIRTUAL[0]));
        let each = balancer.answers(&tcp(VIRTUAL[0]), CLIENTS).unwrap();
        assert_eq!(each.len(), weights.len(), "{each:?}");
        for (at, weight) in weights {
            let (count, expected) = (each[BACKENDS.get(*at).unwrap().0], CLIENTS * *weight as usize / 100);
            assert!(count.abs_diff(expected) <= CLIENTS / 10, "{weight}: {each:?}");
        }
    });
}

#[test]
fn wrrtcplb1_eighty_and_twenty() {
    check_weights(&[(0, 80), (1, 20)]);
}

#[test]
fn wrrtcplb2_forty_forty_and_twenty() {
    check_weights(&[(0, 40), (1, 40), (2, 20)]);
}

/// udplb: small datagrams, and fragmented ones.
#[test]
fn udplb_three_backends_answer_fragmented_datagrams_too() {
    balance(&with_all(&[VIRTUAL[0]], Family::V4, "protocol = \"UDP\""), |balancer| {
        balancer.wait_for_all(&udp(VIRTUAL[0]));
        balancer.wait_for_all(&udp(VIRTUAL[0]).sized(8_000, 8_000));
    });
}

/// udplb-persist: each of three clients stays with its backend.
#[test]
fn udplb_persist_each_client_stays_with_its_backend() {
    let affinity = "protocol = \"UDP\"\nsession_affinity = \"1h\"";
    balance(&with_all(&[VIRTUAL[0]], Family::V4, affinity), |balancer| {
        for client in [CLIENT, OTHER_CLIENT, "10.10.10.3"] {
            let question = from(udp(VIRTUAL[0]), client);
            balancer.wait_for_some(&question);
            let each = balancer.answers(&question, ENOUGH).unwrap();
            assert_eq!(each.len(), 1, "{client}: {each:?}");
        }
    });
}

/// iperf3lb: thirty clients at once, each with affinity to a backend.
#[test]
fn iperf3lb_thirty_clients_at_once_are_answered() {
    let affinity = "protocol = \"UDP\"\nsession_affinity = \"1h\"";
    balance(&with_all(&[VIRTUAL[0]], Family::V4, affinity), |balancer| {
        let addresses: Vec<String> = (101..131).map(|last| format!("10.10.10.{last}")).collect();
        for address in &addresses {
            ip(balancer.bed, "client", &format!("address add {address}/24 dev eth0"));
        }
        balancer.wait_for_some(&udp(VIRTUAL[0]));
        let questions: Vec<Question> =
            addresses.iter().map(|address| from(udp(VIRTUAL[0]), address).sized(1_400, 1_400)).collect();
        let outcomes = balancer.client.ask_all(&questions).unwrap();
        let is_answered = |outcome: &Outcome| matches!(outcome, Outcome::Answered { .. });
        assert!(outcomes.iter().all(is_answered), "{outcomes:?}");
    });
}

#[test]
fn nat66tcp_three_backends_answer_over_ipv6() {
    balance(&with_all(&[VIRTUAL[1]], Family::V6, ""), |balancer| balancer.wait_for_all(&tcp(VIRTUAL[1])));
}

#[test]
fn nat66udp_three_backends_answer_over_ipv6() {
    let config = with_all(&[VIRTUAL[1]], Family::V6, "protocol = \"UDP\"");
    balance(&config, |balancer| balancer.wait_for_all(&udp(VIRTUAL[1])));
}
