//! Decides whether two nodes treat a client alike, and if not, whether the difference is by decision.
//!
//! Invariant: a difference has a reason of `REASONS`, or it is a finding. docs/migrate-from-kube-proxy.md explains
//! every reason to users.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use super::super::row::is_node;
use super::ask::Client;
use super::{Kind, PORTS_EACH, Target};
use crate::bed::packet_probe::{Probe, ProbeResult, Reply};

/// How holdfast differs from kube-proxy, and the words of the guide about it.
pub const REASONS: [(&str, &str); 5] = [
    ("kept", "policy Cluster, a client outside, a backend on this node"),
    ("unallocated", "a ClusterIP that no service has"),
    ("pod", "policy Cluster, a pod whose packets are served"),
    ("elsewhere", "a pod of another node dials this one"),
    ("itself", "a pod reaches itself through a service"),
];

/// The owner of a received packet's source address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SourceOwner {
    Client,
    Node,
    Other(IpAddr),
}

/// The networks of this node's backends.
const HERE: [&str; 6] = ["10.244.1.", "10.244.2.", "10.0.0.5", "fd00:244:1::", "fd00:244:2::", "fd00:a::5"];

fn is_here(backend: SocketAddr) -> bool {
    let text = backend.ip().to_string();
    HERE.iter().any(|network| text.starts_with(network))
}

/// Stands for the port of a packet that was not translated.
const AS_DIALLED: u16 = 0;

/// The results of one client's packets to one target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answers {
    /// The reached backends, the source that they saw, and the client's replies.
    led: BTreeMap<(SocketAddr, SourceOwner), BTreeSet<Reply>>,
    /// The client's replies for packets that reached no backend.
    rest: BTreeSet<Reply>,
}

impl Answers {
    pub(super) fn note(&mut self, sent: &Probe, result: &ProbeResult) {
        // No socket listens at the dialled address, so nothing receives replies to it.
        let reply = if sent.from == sent.to.ip() { Reply::Nothing } else { result.reply };
        let Some((to, seen)) = result.led else {
            self.rest.insert(reply);
            return;
        };
        let to = if to == sent.to { SocketAddr::new(to.ip(), AS_DIALLED) } else { to };
        let whose = match seen {
            seen if seen == sent.from => SourceOwner::Client,
            seen if is_node(seen) => SourceOwner::Node,
            seen => SourceOwner::Other(seen),
        };
        self.led.entry((to, whose)).or_default().insert(reply);
    }

    /// Merges the results of a repetition. A backend that was reached before stays; all else is replaced.
    pub(super) fn renew(&mut self, again: Self) {
        self.rest = again.rest;
        self.led.extend(again.led);
    }

    pub(super) fn leads(&self) -> bool {
        !self.led.is_empty()
    }

    /// Whether all packets reach this port, and the client receives the reply.
    pub(super) fn leads_to(&self, port: u16) -> bool {
        let is_heard = |replies: &BTreeSet<Reply>| *replies == [Reply::Refused].into();
        self.rest.is_empty()
            && self.led.iter().all(|((to, _), replies)| to.port() == port && is_heard(replies))
    }

    pub(super) fn is_refused(&self) -> bool {
        self.rest.contains(&Reply::Refused)
    }

    fn says(&self, reply: Reply) -> bool {
        self.led.is_empty() && self.rest == [reply].into()
    }

    /// Whether no packet reaches a backend and no error is reported: routing decides.
    fn is_lost(&self) -> bool {
        self.led.is_empty() && self.rest.is_subset(&[Reply::Nothing, Reply::Lost].into())
    }

    /// The same results, with the client's address as source at the backends that match.
    fn kept(&self, is_one: impl Fn(SocketAddr) -> bool) -> Self {
        let kept = |(to, whose): &(SocketAddr, SourceOwner)| match whose {
            SourceOwner::Node if is_one(*to) => (*to, SourceOwner::Client),
            _ => (*to, *whose),
        };
        let mut answers = Self { led: BTreeMap::new(), rest: self.rest.clone() };
        for (key, replies) in &self.led {
            answers.led.entry(kept(key)).or_default().extend(replies);
        }
        answers
    }

    /// The same results, with the node's address as source at backends elsewhere, so that replies return through the
    /// node.
    fn masqueraded(&self) -> Self {
        let led = self.led.iter().map(|((to, whose), replies)| match whose {
            SourceOwner::Client if !is_here(*to) => ((*to, SourceOwner::Node), [Reply::Refused].into()),
            _ => ((*to, *whose), replies.clone()),
        });
        Self { led: led.collect(), rest: self.rest.clone() }
    }

    /// The same results without an address, and without packets whose result is unknown.
    fn without(&self, ip: IpAddr) -> Self {
        let led = self.led.iter().filter(|((to, _), _)| to.ip() != ip);
        let rest = self.rest.iter().copied().filter(|reply| *reply != Reply::Nothing);
        Self { led: led.map(|(key, replies)| (*key, replies.clone())).collect(), rest: rest.collect() }
    }

    /// Whether these backends are a non-empty subset of the twin's.
    fn is_among(&self, twin: &Self) -> bool {
        let each = u16::try_from(PORTS_EACH).unwrap_or_default();
        let shifted = |(to, whose): &(SocketAddr, SourceOwner)| {
            let port = if to.port() == AS_DIALLED { AS_DIALLED } else { to.port().wrapping_sub(each) };
            (SocketAddr::new(to.ip(), port), *whose)
        };
        let is_known = |(key, replies): (&(SocketAddr, SourceOwner), &BTreeSet<Reply>)| {
            twin.led.get(&shifted(key)).is_some_and(|known| replies.is_subset(known))
        };
        self.rest == twin.rest && self.led.iter().all(is_known)
    }
}

/// The differing results of two nodes for one client and target.
#[derive(Clone, Debug)]
pub struct Difference {
    pub client: &'static str,
    pub target: Target,
    pub theirs: Answers,
    pub ours: Answers,
}

/// The verdict on a pair of results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Same,
    /// A difference by decision, with its reason.
    Known(&'static str),
    Different,
}

/// A target, a client of it, and the results on both nodes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pair<'a> {
    pub(super) client: &'a Client,
    pub(super) target: &'a Target,
    pub(super) theirs: &'a Answers,
    pub(super) ours: &'a Answers,
    /// What outside clients get from kube-proxy there.
    pub(super) outside: [&'a Answers; 2],
    /// For a target with affinity: the results of its twin, on both nodes.
    pub(super) twins: Option<[&'a Answers; 2]>,
}

/// Whether a reason explains a pair's difference.
type Rule<'a> = fn(&Pair<'a>) -> bool;

impl<'a> Pair<'a> {
    pub(super) fn judge(&self) -> Verdict {
        if self.is_same() {
            return Verdict::Same;
        }
        let rules: [(&str, Rule<'a>); 5] = [
            ("kept", Self::is_kept),
            ("unallocated", Self::is_unallocated),
            ("pod", Self::is_pods_own),
            ("elsewhere", Self::is_of_another_node),
            ("itself", Self::is_but_for_itself),
        ];
        let known = rules.into_iter().find(|(_, holds)| holds(self));
        known.map_or(Verdict::Different, |(reason, _)| Verdict::Known(reason))
    }

    /// Compares clients with affinity to their own twin, and the twins to each other. With kube-proxy, a client may
    /// stick to a second backend, because its affinity is also known at addresses with other backends by policy.
    fn is_same(&self) -> bool {
        match self.twins {
            None => self.theirs == self.ours,
            Some([their_twin, our_twin]) => {
                let is_one = self.ours.led.len() <= 1;
                is_one && self.theirs.is_among(their_twin) && self.ours.is_among(our_twin)
            }
        }
    }

    fn is_kept(&self) -> bool {
        self.theirs.kept(is_here) == *self.ours
    }

    fn is_unallocated(&self) -> bool {
        self.target.kind == Kind::Unallocated && self.theirs.says(Reply::Nothing) && self.ours.is_lost()
    }

    fn is_pods_own(&self) -> bool {
        self.client.is_pod_here() && self.theirs.kept(|_| true) == *self.ours
    }

    /// Another node's policies are those for outside clients, and so is the source that backends elsewhere see.
    fn is_of_another_node(&self) -> bool {
        if !self.client.is_pod_elsewhere() {
            return false;
        }
        let [first, _] = &self.outside;
        let as_outside = self.outside.iter().find(|it| it.leads()).unwrap_or(first);
        match self.target.kind {
            Kind::Cluster => self.theirs.masqueraded() == *self.ours,
            _ => **as_outside == *self.ours,
        }
    }

    /// Whether only packets that reach their own sender differ.
    fn is_but_for_itself(&self) -> bool {
        let own = |ip: &&IpAddr| self.client.has(**ip) && ip.is_ipv4() == self.target.to.is_ipv4();
        let Some(own) = self.target.endpoints.iter().find(own) else { return false };
        let [theirs, ours] = [self.theirs, self.ours].map(|answers| answers.without(*own));
        let twins = self.twins.map(|twins| twins.map(|answers| answers.without(*own)));
        let twins = twins.as_ref().map(|[theirs, ours]| [theirs, ours]);
        let rest = Pair { theirs: &theirs, ours: &ours, twins, ..*self };
        rest.is_same() || rest.is_kept() || rest.is_pods_own() || rest.is_of_another_node()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::CLIENTS;
    use super::*;
    use crate::bed::ask::Transport;

    const GUIDE: &str = include_str!("../../../../docs/migrate-from-kube-proxy.md");

    #[test]
    fn every_difference_is_in_the_guide() {
        for (reason, words) in REASONS {
            let is_row = |line: &&str| line.starts_with(&format!("| {words} |"));
            assert_eq!(GUIDE.lines().filter(is_row).count(), 1, "{reason}: {words}");
        }
    }

    fn target(kind: Kind, has: bool, endpoints: &[&str]) -> Target {
        let endpoints = Arc::new(endpoints.iter().map(|ip| ip.parse().unwrap()).collect());
        let to = "203.0.113.1:80".parse().unwrap();
        Target { service: "s1".to_owned(), kind, to, transport: Transport::Tcp, has, endpoints, twin: None }
    }

    /// `10.244.1.10:1 client refused`, or without a backend `refused`, `nothing`, `lost`.
    fn answers(texts: &[&str]) -> Answers {
        let mut answers = Answers::default();
        for text in texts {
            let words: Vec<&str> = text.split(' ').collect();
            let reply = match words.last() {
                Some(&"refused") => Reply::Refused,
                Some(&"lost") => Reply::Lost,
                Some(&"stray") => Reply::Stray,
                _ => Reply::Nothing,
            };
            let [to, whose, _] = words.as_slice() else {
                answers.rest.insert(reply);
                continue;
            };
            let whose = if *whose == "node" { SourceOwner::Node } else { SourceOwner::Client };
            answers.led.entry((to.parse().unwrap(), whose)).or_default().insert(reply);
        }
        answers
    }

    #[track_caller]
    fn check(client: &str, target: &Target, theirs: &[&str], ours: &[&str], expected: Verdict) {
        let client = CLIENTS.iter().find(|it| it.name == client).unwrap();
        let (theirs, ours, outside) = (answers(theirs), answers(ours), answers(&["nothing"]));
        let pair = Pair { client, target, theirs: &theirs, ours: &ours, outside: [&outside; 2], twins: None };
        assert_eq!(pair.judge(), expected, "{pair:?}");
    }

    #[test]
    fn only_a_backend_of_the_node_may_see_the_client() {
        let target = target(Kind::NodePort, true, &[]);
        let (here, away) = ("10.244.1.10:1 node refused", "10.244.9.10:1 node refused");
        let kept = ["10.244.1.10:1 client refused", "10.244.9.10:1 client refused"];
        check("outside", &target, &[here, away], &[kept[0], away], Verdict::Known("kept"));
        check("outside", &target, &[here, away], &kept, Verdict::Different);
        check("pod-a", &target, &[here, away], &kept, Verdict::Known("pod"));
        check("outside", &target, &[here], &["10.244.1.10:1 client nothing"], Verdict::Different);
        check("outside", &target, &[here, away], &[kept[0]], Verdict::Different);
    }

    #[test]
    fn a_missing_refusal_counts_except_at_unallocated_addresses() {
        check("outside", &target(Kind::Cluster, false, &[]), &["refused"], &["lost"], Verdict::Different);
        check("outside", &target(Kind::Cluster, true, &[]), &["refused"], &["lost"], Verdict::Different);
        let unallocated = target(Kind::Unallocated, false, &[]);
        check("outside", &unallocated, &["nothing"], &["lost"], Verdict::Known("unallocated"));
        check("outside", &target(Kind::External, false, &[]), &["nothing"], &["lost"], Verdict::Different);
        check("outside", &target(Kind::NodePort, true, &[]), &["refused"], &["nothing"], Verdict::Different);
    }

    #[test]
    fn a_pod_of_another_node_is_a_client_outside() {
        let (external, cluster) = (target(Kind::External, true, &[]), target(Kind::Cluster, true, &[]));
        let theirs = ["10.0.0.6:1 client stray"];
        check("pod-r", &external, &theirs, &["nothing"], Verdict::Known("elsewhere"));
        check("outside", &external, &theirs, &["nothing"], Verdict::Different);
        check("pod-r", &cluster, &theirs, &["10.0.0.6:1 node refused"], Verdict::Known("elsewhere"));
        check("pod-r", &cluster, &theirs, &["nothing"], Verdict::Different);
    }

    #[test]
    fn a_pod_that_reaches_itself_excuses_no_other_difference() {
        let target = target(Kind::Cluster, true, &["10.244.1.10", "10.244.1.11"]);
        let (itself, other) = ("10.244.1.10:1 node refused", "10.244.1.11:1 client refused");
        check("pod-a", &target, &[itself, other], &["nothing", other], Verdict::Known("itself"));
        check("pod-a", &target, &[itself, other], &["nothing"], Verdict::Different);
        check("pod-c", &target, &[itself, other], &["nothing", other], Verdict::Different);
    }
}
