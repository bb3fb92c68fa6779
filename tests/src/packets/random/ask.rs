//! Lets all clients dial all targets of two nodes, and compares the results.
//!
//! Invariant: a difference counts only if it remains after slow repetitions, because a busy machine may lose a packet.
//! Each client and target counts as one comparison, however often it is repeated.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::super::Family;
use super::super::row::is_node;
use super::judge::{Answers, Difference, Pair, Verdict};
use super::{Kind, Target};
use crate::bed::packet_probe::{PacketProbe, Probe};
use crate::bed::{Bed, BedError, Location};

/// A client: its name, its place, its addresses.
#[derive(Clone, Copy, Debug)]
pub struct Client {
    pub name: &'static str,
    place: &'static str,
    addresses: [&'static str; 2],
}

const fn client(name: &'static str, place: &'static str, addresses: [&'static str; 2]) -> Client {
    Client { name, place, addresses }
}

impl Client {
    /// Whether it is behind one of this node's pod devices.
    pub(super) fn is_pod_here(&self) -> bool {
        matches!(self.place, "pod-a" | "pod-c")
    }

    pub(super) fn is_pod_elsewhere(&self) -> bool {
        self.place == "pod-r"
    }

    /// The address from which it dials a target, if it does.
    fn address(&self, target: &Target) -> Option<IpAddr> {
        if self.name == "mirror" {
            // No other machine has an address of the node itself.
            let is_virtual = target.kind == Kind::Balancer && target.has && !is_node(target.to.ip());
            return is_virtual.then_some(target.to.ip());
        }
        Family::is(target.to.ip()).of(self.addresses).parse().ok()
    }

    pub(super) fn has(&self, ip: IpAddr) -> bool {
        self.addresses.iter().any(|own| own.parse() == Ok(ip))
    }
}

/// First two outside clients, of which one or both are in the source ranges. Then pods of the node on a link of their
/// own and behind a bridge, with packets that no socket program sees; then a pod of another node. The last client has
/// the address that it dials, like a node that sends to its own virtual address.
pub const CLIENTS: [Client; 6] = [
    client("outside", "client", ["10.20.0.2", "fd00:20::2"]),
    client("outside-3", "client", ["10.20.0.3", "fd00:20::3"]),
    client("pod-a", "pod-a", ["10.244.1.10", "fd00:244:1::10"]),
    client("pod-c", "pod-c", ["10.244.2.10", "fd00:244:2::10"]),
    client("pod-r", "pod-r", ["10.244.9.10", "fd00:244:9::10"]),
    client("mirror", "client", ["", ""]),
];

/// The places where packets may arrive.
const PLACES: [Location<'static>; 8] = [
    Location::OUTSIDE,
    Location::far("client"),
    Location::far("node2"),
    Location::far("pod-a"),
    Location::far("pod-b"),
    Location::far("pod-c"),
    Location::far("pod-d"),
    Location::far("pod-r"),
];

/// With 13 requests, a client misses one of three backends in 17 of 1000 targets; those are repeated.
const REPEATS: usize = 13;

/// How often differing requests are repeated.
const AGAIN: usize = 4;

/// More differences than this are no accidents.
const ACCIDENTS_MAX: usize = 400;

/// As fast as possible.
const QUICKLY: u32 = 100_000;

/// Slower than a node's rate limit of ICMP errors.
const SLOWLY: u32 = 700;

/// The indices of a client and of its target.
type Question = (usize, usize);

/// A node, and its results so far.
#[derive(Debug)]
pub struct Side {
    probe: PacketProbe,
    answers: BTreeMap<Question, Answers>,
}

impl Side {
    pub fn open(bed: &Bed) -> Result<Self, BedError> {
        Ok(Self { probe: PacketProbe::open(bed, &PLACES)?, answers: BTreeMap::new() })
    }

    /// Sends each request several times and records the results.
    fn ask(&mut self, all: &[Question], targets: &[Target], times: usize, pace: u32) -> Result<(), BedError> {
        let one = all.iter().filter_map(|question| Some((*question, sent(*question, targets)?)));
        let one: Vec<(Question, Probe)> = one.collect();
        let many: Vec<(Question, Probe)> = (0..times).flat_map(|_| one.iter().copied()).collect();
        let packets: Vec<Probe> = many.iter().map(|(_, sent)| *sent).collect();
        let fates = self.probe.ask(&packets, pace)?;
        let mut heard: BTreeMap<Question, Answers> = BTreeMap::new();
        for ((question, sent), fate) in many.iter().zip(&fates) {
            heard.entry(*question).or_default().note(sent, fate);
        }
        for (question, answers) in heard {
            self.answers.entry(question).or_default().renew(answers);
        }
        Ok(())
    }

    /// Whether every client reaches this backend and no other.
    pub fn leads_to(&mut self, targets: &[Target], backend: u16) -> Result<bool, BedError> {
        self.answers.clear();
        let all = questions(targets);
        self.ask(&all, targets, 1, SLOWLY)?;
        Ok(all
            .iter()
            .all(|question| self.answers_to(*question).is_some_and(|answers| answers.leads_to(backend))))
    }

    fn answers_to(&self, question: Question) -> Option<&Answers> {
        self.answers.get(&question)
    }
}

fn sent((client, target): Question, targets: &[Target]) -> Option<Probe> {
    let (client, target) = (CLIENTS.get(client)?, targets.get(target)?);
    let from = client.address(target)?;
    Some(Probe { place: client.place, from, to: target.to, transport: target.transport })
}

fn questions(targets: &[Target]) -> Vec<Question> {
    let all = (0..CLIENTS.len()).flat_map(|client| (0..targets.len()).map(move |target| (client, target)));
    all.filter(|question| sent(*question, targets).is_some()).collect()
}

/// The summary of a comparison.
#[derive(Debug, Default)]
pub struct ComparisonSummary {
    pub count: usize,
    /// Requests that reach a backend.
    pub led: usize,
    /// Differences by decision, by their reasons.
    pub known: BTreeMap<&'static str, usize>,
    /// How many requests differed until they were repeated.
    pub again: usize,
    pub differences: Vec<Difference>,
}

/// Sends all requests to both nodes, first to kube-proxy's: its results show which requests the other node needs more
/// time for.
pub fn compare(
    theirs: &mut Side,
    ours: &mut Side,
    targets: &[Target],
) -> Result<ComparisonSummary, BedError> {
    let all = questions(targets);
    theirs.answers.clear();
    ours.answers.clear();
    theirs.ask(&all, targets, 1, QUICKLY)?;
    let is_refused = |question: &Question| theirs.answers_to(*question).is_some_and(Answers::is_refused);
    let (refused, others): (Vec<Question>, Vec<Question>) = all.iter().copied().partition(is_refused);
    ours.ask(&refused, targets, 1, SLOWLY)?;
    ours.ask(&others, targets, 1, QUICKLY)?;
    let leads = |side: &Side, question: &Question| side.answers_to(*question).is_some_and(Answers::leads);
    let led: Vec<Question> = others.into_iter().filter(|it| leads(theirs, it) || leads(ours, it)).collect();
    for side in [&mut *theirs, &mut *ours] {
        side.ask(&led, targets, REPEATS - 1, QUICKLY)?;
    }
    let again = settle(theirs, ours, targets, &all)?;
    Ok(ComparisonSummary { count: all.len(), led: led.len(), again, ..outcome(theirs, ours, targets, &all) })
}

fn verdict(theirs: &Side, ours: &Side, targets: &[Target], question: Question) -> Option<Verdict> {
    let (client, at) = question;
    let target = targets.get(at)?;
    let both = |question| Some([theirs.answers_to(question)?, ours.answers_to(question)?]);
    let [their, our] = both(question)?;
    let twins = target.twin.map(|twin| both((client, twin)));
    let pair = Pair {
        client: CLIENTS.get(client)?,
        target,
        theirs: their,
        ours: our,
        outside: [theirs.answers_to((0, at))?, theirs.answers_to((1, at))?],
        twins: twins.flatten(),
    };
    Some(pair.judge())
}

fn differing(theirs: &Side, ours: &Side, targets: &[Target], all: &[Question]) -> Vec<Question> {
    let is = |question: &Question| verdict(theirs, ours, targets, *question) == Some(Verdict::Different);
    all.iter().copied().filter(is).collect()
}

/// Repeats differing requests, and the twins of those with affinity. Returns how many differed at first.
fn settle(
    theirs: &mut Side,
    ours: &mut Side,
    targets: &[Target],
    all: &[Question],
) -> Result<usize, BedError> {
    let mut differ = differing(theirs, ours, targets, all);
    let count = differ.len();
    for _ in 0..AGAIN {
        if differ.is_empty() || differ.len() > ACCIDENTS_MAX {
            break;
        }
        let twins = differ.iter().filter_map(|(client, at)| Some((*client, targets.get(*at)?.twin?)));
        let mut asked: Vec<Question> = differ.iter().copied().chain(twins).collect();
        asked.sort_unstable();
        asked.dedup();
        for side in [&mut *theirs, &mut *ours] {
            side.ask(&asked, targets, REPEATS, SLOWLY)?;
        }
        differ = differing(theirs, ours, targets, &differ);
    }
    Ok(count - differ.len())
}

fn outcome(theirs: &Side, ours: &Side, targets: &[Target], all: &[Question]) -> ComparisonSummary {
    let mut compared = ComparisonSummary::default();
    for question in all.iter().copied() {
        match verdict(theirs, ours, targets, question) {
            Some(Verdict::Known(reason)) => *compared.known.entry(reason).or_default() += 1,
            Some(Verdict::Same) => {}
            _ => compared.differences.extend(difference(theirs, ours, targets, question)),
        }
    }
    compared
}

fn difference(theirs: &Side, ours: &Side, targets: &[Target], question: Question) -> Option<Difference> {
    let client = CLIENTS.get(question.0)?.name;
    let target = targets.get(question.1)?.clone();
    let (theirs, ours) = (theirs.answers_to(question)?.clone(), ours.answers_to(question)?.clone());
    Some(Difference { client, target, theirs, ours })
}
