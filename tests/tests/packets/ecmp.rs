//! Two nodes announce one address, and a router balances clients between them: a loss at one node does not affect the
//! clients of the other.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use holdfast_tests::bed::ask::{Asker, HeldConnections, Outcome, Question, Transport};
use holdfast_tests::bed::daemon::Daemon;
use holdfast_tests::bed::fabric::{self, NODE_ADDRESSES, Switches};
use holdfast_tests::bed::speakers::{Speaker, Speakers};
use holdfast_tests::bed::{Bed, Dialer, Location, Server};

use crate::node::{SERVED, ip, location};
use crate::page::{self, V4, wait_for_gateways};

/// Established connections during an event, half of them through each node.
const FLOWS: usize = 10_000;

/// New clients, which report their backend after the event.
const NEW: u16 = 200;

/// The router's hold time: after this silence a node counts as dead.
const HOLD: Duration = Duration::from_secs(3);

/// New clients at once, and their timeout.
const AT_ONCE: u16 = 20;
const ANSWERED: Duration = Duration::from_millis(300);

const HERE: &str = "10.0.0.5";
const THERE: &str = "10.0.0.6";

/// The number of clients at each backend; other outcomes by their names.
type Reached = BTreeMap<String, usize>;

struct Two<'a> {
    bed: &'a Bed,
    daemons: [Daemon<'a>; 2],
    client: Asker,
    /// The servers of each node's own backends, called `here` and `there`.
    servers: [Option<Server>; 2],
    _speakers: [Speaker; 3],
}

fn server(bed: &Bed, place: &'static str, name: &str, backends: [&str; 2]) -> Option<Server> {
    let addresses = backends.map(|it| it.parse().unwrap());
    Some(bed.serve_seen_source(Location::far(place), name, &addresses).unwrap())
}

impl<'a> Two<'a> {
    /// Starts FRR on one node and BIRD on the other, configured as in the page.
    fn start(bed: &'a Bed) -> Self {
        fabric::set(bed, location("router"), "ipv4/fib_multipath_hash_policy", "1").unwrap();
        let speakers = Speakers::lay(bed).unwrap();
        let _speakers = [
            speakers.frr(location("router"), &page::router(&[NODE_ADDRESSES[0], THERE])).unwrap(),
            speakers.frr(location("node"), &page::block("FRR", 0)).unwrap(),
            speakers.bird(location("node2"), &page::block("BIRD 2", 0)).unwrap(),
        ];
        let (here, there) =
            (["10.244.1.10:8443", "[fd00:244:1::10]:8443"], ["10.244.9.10:8443", "[fd00:244:9::10]:8443"]);
        let servers = [server(bed, "pod-a", "here", here), server(bed, "pod-r", "there", there)];
        let mut daemons = [
            Daemon::new(bed, &page::with_backends(&here)).unwrap(),
            Daemon::at(bed, "node2", &page::with_backends(&there)).unwrap(),
        ];
        daemons.iter_mut().for_each(|daemon| daemon.start().unwrap());
        let client = bed.asker(Location::far("client")).unwrap();
        let two = Self { bed, daemons, client, servers, _speakers };
        two.wait_for(&[HERE, THERE]);
        two
    }

    /// Waits until the router balances between these nodes.
    #[track_caller]
    fn wait_for(&self, nodes: &[&str]) {
        wait_for_gateways(self.bed, V4, |gateways| gateways == nodes);
    }

    /// Opens connections, and returns how many went to each node.
    #[track_caller]
    fn hold(&mut self) -> [usize; 2] {
        let begun = Instant::now();
        let held = self.client.hold(format!("{V4}:443").parse().unwrap(), None, FLOWS).unwrap();
        assert_eq!(held, HeldConnections { alive: FLOWS, ..HeldConnections::default() });
        let reached = self.client.who_answers().unwrap();
        println!("{FLOWS} connections in {:?}: {reached:?}", begun.elapsed());
        let each = ["here", "there"].map(|name| reached.get(name).copied().unwrap_or_default());
        assert!(each.iter().sum::<usize>() == FLOWS && each.iter().all(|of| *of > FLOWS / 4), "{reached:?}");
        each
    }

    fn dial(&self) -> Dialer {
        self.bed.dial(Location::far("client"), format!("{V4}:443").parse().unwrap()).unwrap()
    }

    /// The backends of new clients with this timeout.
    fn ask(&mut self, count: u16, patience: Duration) -> Reached {
        let to = format!("{V4}:443").parse().unwrap();
        let question = Question { patience, ..Question::new(Transport::Tcp, to).abort() };
        let mut reached = Reached::new();
        for outcome in self.client.ask_all(&vec![question; count.into()]).unwrap() {
            let word = match outcome {
                Outcome::Answered { by, .. } => by,
                other => format!("{other:?}"),
            };
            *reached.entry(word).or_default() += 1;
        }
        reached
    }

    /// Checks that all new clients go to the other node, and that only its connections live.
    #[track_caller]
    fn check_there_alone(&mut self, [here, there]: [usize; 2], word: &str) {
        assert_eq!(self.ask(NEW, SERVED), [("there".to_owned(), NEW.into())].into(), "new clients");
        let expected = [("there".to_owned(), there), (word.to_owned(), here)].into();
        assert_eq!(self.client.who_answers().unwrap(), expected, "connections");
    }

    /// Checks that the first node is back and gets new clients, while the other one's connections go on.
    #[track_caller]
    fn check_back(&mut self, there: usize) {
        self.wait_for(&[HERE, THERE]);
        assert_eq!(self.client.who_answers().unwrap(), [("there".to_owned(), there)].into());
        let reached = self.ask(NEW, SERVED);
        assert!(reached.len() == 2 && reached.contains_key("here"), "{reached:?}");
    }
}

#[test]
fn a_drained_node_gets_no_new_client_and_breaks_none_of_others() {
    let bed = fabric::bed(Switches::default()).unwrap();
    let mut two = Two::start(&bed);
    let each = two.hold();
    let mut dialer = two.dial();
    two.daemons[0].tell(&["drain", "10.244.1.10"]).unwrap();
    two.wait_for(&[THERE]);
    two.check_there_alone(each, "Reset");
    let tally = dialer.tally().unwrap();
    println!("while one of two nodes was drained: {tally}");
    assert!(tally.failed.is_empty() && tally.connected > 0, "{tally}");
    two.daemons[0].tell(&["undrain", "10.244.1.10"]).unwrap();
    two.check_back(each[1]);
    let tally = dialer.tally().unwrap();
    assert!(tally.failed.is_empty() && tally.connected > 0, "{tally}");
}

#[test]
fn a_node_with_dead_backends_is_left_once_its_checks_fail() {
    let bed = fabric::bed(Switches::default()).unwrap();
    let mut two = Two::start(&bed);
    let [here, there] = two.hold();
    let mut dialer = two.dial();
    let begun = Instant::now();
    two.servers[0] = None;
    two.wait_for(&[THERE]);
    println!("from the end of one node's backends until the router left it: {:?}", begun.elapsed());
    println!("meanwhile: {}", dialer.tally().unwrap());
    assert_eq!(two.ask(NEW, SERVED), [("there".to_owned(), NEW.into())].into(), "new clients");
    let reached = two.client.who_answers().unwrap();
    assert_eq!(reached.get("there"), Some(&there), "{reached:?}");
    assert_eq!(reached.values().sum::<usize>(), here + there, "{reached:?}");
    let tally = dialer.tally().unwrap();
    assert!(tally.failed.is_empty() && tally.connected > 0, "{tally}");
    let backends = ["10.244.1.10:8443", "[fd00:244:1::10]:8443"];
    two.servers[0] = server(&bed, "pod-a", "here", backends);
    two.check_back(there);
}

/// New clients fail until the router's hold time has passed.
#[test]
fn a_dead_node_costs_new_clients_only_the_bgp_hold_time() {
    let bed = fabric::bed(Switches::default()).unwrap();
    let mut two = Two::start(&bed);
    let each = two.hold();
    let begun = Instant::now();
    ip(&bed, "router", "link set node down");
    let (mut lost, mut last) = (0, Duration::ZERO);
    while page::gateways(&bed, V4) != [THERE] {
        assert!(begun.elapsed() < SERVED, "the router keeps the node");
        let asked = begun.elapsed();
        let answered = two.ask(AT_ONCE, ANSWERED).remove("there").unwrap_or_default();
        if answered < usize::from(AT_ONCE) {
            (lost, last) = (lost + usize::from(AT_ONCE) - answered, asked);
        }
    }
    println!("new clients without an answer: {lost}, the last of them {last:?} after the node had died");
    assert!(lost > 0 && last < HOLD + Duration::from_secs(1), "{last:?}");
    two.check_there_alone(each, "Reset");
    ip(&bed, "router", "link set node up");
    two.check_back(each[1]);
}
