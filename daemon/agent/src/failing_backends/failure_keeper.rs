//! Refusals and silences that the datapath has forgotten, while no client has dialled their service since.
//!
//! Invariant: a failure is kept until the backend has answered a client from outside, or until a client has dialled the
//! port again, and for as long as the datapath may need to tell how that went. A client from outside without an answer
//! ends nothing. So a backend that serves clients is not called failing for long, and one that no client has dialled is
//! not called well. No namespace displaces the failures of another that has fewer.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};

use holdfast_core::keys::FrontendKey;
use holdfast_core::op::PortIndex;
use holdfast_core::snapshot::Snapshot;
use holdfast_datapath::keep_refusal;
use holdfast_status::datapath::{BackendEndpoint, BackendRefusal, BackendRefusals, KeptFailures, Status};
use holdfast_status::views::refusals::Owners;

/// Seconds after a failure in which dials still belong to it: the datapath reads it a second later, and a burst of
/// dials goes on meanwhile.
const SAME_BURST_SECONDS: u32 = 15;

/// Seconds after the first other dial. The datapath may need half a minute to call a backend silent, and a client that
/// gets no answer sends again for longer than that.
const SETTLING_SECONDS: u32 = 120;

#[derive(Debug, Default)]
pub(super) struct FailureKeeper {
    refusals: LastFailures,
    silences: LastFailures,
    ports: KnownPorts,
}

/// The last failure of one kind of each backend, and the dials of its port.
#[derive(Debug, Default)]
struct LastFailures {
    seconds: BackendRefusals,
    dials: BTreeMap<BackendRefusal, Dials>,
}

/// How often a port had been dialled at a failure, and when it was first seen that it was dialled again.
#[derive(Clone, Copy, Debug)]
struct Dials {
    connects: u64,
    again_at: Option<u32>,
}

/// The most seconds between a dial and the reading that sees its count.
const READING_SECONDS: u32 = 2;

/// What is known of a failing backend since its failure.
#[derive(Clone, Copy, Debug, Default)]
struct Evidence {
    /// How often clients have dialled its port; `None`: its service sends it none any more.
    connects: Option<u64>,
    /// When the last connection from outside began that it answered.
    answered_at: Option<u32>,
    /// The last packet from outside that it did not answer.
    unanswered_at: Option<u32>,
}

impl Dials {
    /// Forgets dials of a client that got no answer: such a dial does not show that the backend works.
    fn note_unanswered(&mut self, evidence: &Evidence) {
        let Evidence { connects, unanswered_at, .. } = *evidence;
        let is_of_dial =
            |again_at: u32| unanswered_at.is_some_and(|at| at.saturating_add(READING_SECONDS) >= again_at);
        if let Some(connects) = connects.filter(|_| self.again_at.is_some_and(is_of_dial)) {
            *self = Self { connects, again_at: None };
        }
    }

    /// Whether no client has dialled since, or the datapath may not know yet how that went.
    fn are_open(&mut self, connects: Option<u64>, now: u32) -> bool {
        let Some(connects) = connects else { return false };
        if connects != self.connects {
            self.again_at.get_or_insert(now);
        }
        self.again_at.is_none_or(|again_at| now.saturating_sub(again_at) < SETTLING_SECONDS)
    }
}

/// The ports of failing backends. They are looked for among all services only when either has changed.
#[derive(Debug, Default)]
struct KnownPorts {
    snapshot: Weak<Snapshot>,
    failures: BTreeSet<BackendRefusal>,
    found: BTreeMap<BackendRefusal, PortIndex>,
}

impl KnownPorts {
    fn update(&mut self, snapshot: &Arc<Snapshot>, failures: BTreeSet<BackendRefusal>) {
        let now = Arc::downgrade(snapshot);
        if self.failures != failures || !self.snapshot.ptr_eq(&now) {
            let found = find_ports(snapshot, &failures);
            *self = Self { snapshot: now, failures, found };
        }
    }
}

impl FailureKeeper {
    /// Takes the present failures, and returns the older ones that still count. `count` reads how often clients have
    /// dialled a port, and `watch` has the datapath look for answers of backends.
    pub(super) fn update(
        &mut self,
        status: &Status,
        snapshot: &Arc<Snapshot>,
        count: impl Fn(PortIndex) -> Option<u64>,
        watch: impl FnOnce(BTreeSet<BackendEndpoint>),
    ) -> KeptFailures {
        let (refusing, silent) = (status.backend_refusals(), status.silent_backends());
        let Self { refusals, silences, ports } = self;
        let current = refusing.keys().chain(silent.keys());
        let known: BTreeSet<_> = current.chain(refusals.keys()).chain(silences.keys()).copied().collect();
        watch(known.iter().map(BackendRefusal::backend).collect());
        if known.is_empty() {
            return KeptFailures::default();
        }
        ports.update(snapshot, known);
        let sweep = status.flows.as_ref().map(|flows| &flows.sweep);
        let find = |it: &BackendRefusal| Evidence {
            connects: ports.found.get(it).and_then(|port| count(*port)),
            answered_at: sweep.and_then(|sweep| sweep.answers.get(&it.backend())).copied(),
            unanswered_at: sweep.and_then(|sweep| sweep.unanswered.get(&it.backend())).copied(),
        };
        KeptFailures {
            refusals: refusals.update(find, &refusing, status.now),
            silences: silences.update(find, &silent, status.now),
        }
    }
}

impl LastFailures {
    fn keys(&self) -> impl Iterator<Item = &BackendRefusal> {
        self.seconds.keys()
    }

    fn update(
        &mut self,
        find: impl Fn(&BackendRefusal) -> Evidence,
        current: &BackendRefusals,
        now: u32,
    ) -> BackendRefusals {
        for (refusal, second) in current {
            let is_new = self.seconds.get(refusal) != Some(second);
            let is_burst = now.saturating_sub(*second) <= SAME_BURST_SECONDS;
            if let Some(connects) = find(refusal).connects.filter(|_| is_new || is_burst) {
                keep_refusal(*refusal, *second, &mut self.seconds);
                self.dials.insert(*refusal, Dials { connects, again_at: None });
            }
        }
        let Self { seconds, dials } = self;
        dials.retain(|it, dials| {
            let Some(failed_at) = seconds.get(it) else { return false };
            let evidence = find(it);
            dials.note_unanswered(&evidence);
            let is_mended = evidence.answered_at.is_some_and(|at| at > *failed_at);
            let is_open = dials.are_open(evidence.connects, now) && !is_mended;
            is_open || current.contains_key(it)
        });
        seconds.retain(|it, _| dials.contains_key(it));
        seconds.iter().filter(|(it, _)| !current.contains_key(*it)).map(|(it, at)| (*it, *at)).collect()
    }
}

/// The ports of the services that send clients of these frontends to these backends.
fn find_ports(
    snapshot: &Snapshot,
    failures: &BTreeSet<BackendRefusal>,
) -> BTreeMap<BackendRefusal, PortIndex> {
    let key = |it: &BackendRefusal| FrontendKey::from_socket(it.frontend, it.transport);
    let owners = Owners::from_snapshot(snapshot, failures.iter().filter_map(key));
    let port = |it: &BackendRefusal| {
        let (view, frontend) = owners.find_failing_owner(&key(it)?, it.backend)?;
        Some((*it, view.ports.get(frontend.position?)?.index?))
    };
    failures.iter().filter_map(port).collect()
}

#[cfg(test)]
mod tests {
    use holdfast_core::keys::Transport;
    use holdfast_core::op::QuotaId;
    use holdfast_status::datapath::{FlowSample, FlowStatus, FlowSweepProgress, RefusedConnects};

    use super::super::tests::WEB;
    use super::*;
    use crate::state::tests::snapshot_from;

    const REFUSAL_AT: u32 = 1_000;

    fn refusal() -> BackendRefusal {
        BackendRefusal {
            quota: QuotaId(1),
            frontend: "10.96.0.10:80".parse().unwrap(),
            transport: Transport::Tcp,
            backend: "10.1.0.3:8080".parse().unwrap(),
        }
    }

    fn dialled(connects: u64) -> Evidence {
        Evidence { connects: Some(connects), ..Evidence::default() }
    }

    /// The state after a client was refused as the last of 40, which the datapath forgets.
    fn forgotten() -> LastFailures {
        let mut last = LastFailures::default();
        let current: BackendRefusals = [(refusal(), REFUSAL_AT)].into();
        for (now, connects) in [(REFUSAL_AT, 20), (REFUSAL_AT + 1, 40), (REFUSAL_AT + 300, 40)] {
            assert!(last.update(|_| dialled(connects), &current, now).is_empty(), "the datapath tells");
        }
        last
    }

    fn kept_at(last: &mut LastFailures, connects: Option<u64>, now: u32) -> usize {
        last.update(|_| Evidence { connects, ..Evidence::default() }, &BackendRefusals::new(), now).len()
    }

    fn kept(last: &mut LastFailures, connects: Option<u64>) -> usize {
        kept_at(last, connects, REFUSAL_AT + 5_000)
    }

    #[test]
    fn a_refusal_counts_until_a_client_has_dialled_again_and_that_went_well() {
        let mut last = forgotten();
        assert_eq!([kept(&mut last, Some(40)), kept(&mut last, Some(40))], [1, 1]);
        let again_at = REFUSAL_AT + 6_000;
        let settled_at = again_at + SETTLING_SECONDS;
        for (now, expected) in [(again_at, 1), (settled_at - 1, 1), (settled_at, 0), (settled_at + 1, 0)] {
            assert_eq!(kept_at(&mut last, Some(41), now), expected, "{now}");
        }
    }

    #[test]
    fn a_refusal_of_a_port_that_clients_dial_ends_when_the_datapath_forgets_it() {
        let mut last = forgotten();
        let current: BackendRefusals = [(refusal(), REFUSAL_AT)].into();
        last.update(|_| dialled(41), &current, REFUSAL_AT + 100);
        assert_eq!(kept_at(&mut last, Some(90), REFUSAL_AT + 301), 0);
    }

    #[test]
    fn a_dial_that_got_no_answer_ends_no_refusal() {
        let mut last = forgotten();
        let dialled_at = REFUSAL_AT + 5_000;
        let mut keep = |connects, unanswered_at, now| {
            let evidence = Evidence { connects: Some(connects), unanswered_at, ..Evidence::default() };
            let kept = last.update(|_| evidence, &BackendRefusals::new(), now).len();
            (kept, last.dials.get(&refusal()).is_some_and(|dials| dials.again_at.is_some()))
        };
        assert_eq!(keep(41, None, dialled_at + 1), (1, true));
        assert_eq!(keep(41, Some(REFUSAL_AT), dialled_at + 2), (1, true), "it was before the dial");
        assert_eq!(keep(41, Some(dialled_at), dialled_at + 9), (1, false));
        assert_eq!(keep(41, Some(dialled_at), dialled_at + 9_000), (1, false));
        assert_eq!(keep(42, Some(dialled_at), dialled_at + 9_000), (1, true));
        assert_eq!(keep(42, Some(dialled_at), dialled_at + 9_000 + SETTLING_SECONDS), (0, false));
    }

    #[test]
    fn an_answer_to_a_later_client_from_outside_ends_a_failure_at_once() {
        for (answered_at, expected) in [(REFUSAL_AT, 1), (REFUSAL_AT + 1, 0)] {
            let evidence = Evidence { answered_at: Some(answered_at), ..dialled(41) };
            assert_eq!(
                forgotten().update(|_| evidence, &BackendRefusals::new(), REFUSAL_AT + 400).len(),
                expected
            );
        }
    }

    #[test]
    fn a_refusal_after_another_dial_is_kept_anew() {
        let mut last = forgotten();
        assert_eq!(kept_at(&mut last, Some(41), REFUSAL_AT + 5_000), 1);
        let again: BackendRefusals = [(refusal(), REFUSAL_AT + 5_050)].into();
        last.update(|_| dialled(42), &again, REFUSAL_AT + 5_050);
        assert_eq!(kept_at(&mut last, Some(42), REFUSAL_AT + 9_000), 1);
    }

    #[test]
    fn a_refusal_ends_with_its_service_or_the_use_of_its_backend() {
        let mut last = forgotten();
        assert_eq!([kept(&mut last, None), kept(&mut last, Some(40))], [0, 0]);
    }

    #[test]
    fn a_namespace_with_many_refusals_displaces_none_of_another() {
        let forged = |port: u16| {
            let backend = ([10, 1, 0, 3], port).into();
            (BackendRefusal { quota: QuotaId(2), backend, ..refusal() }, REFUSAL_AT)
        };
        let mut last = LastFailures::default();
        last.update(|_| dialled(7), &(1..1_000).map(forged).collect(), REFUSAL_AT);
        let most = last.seconds.len();
        assert!(most < 999, "bounded");
        last.update(|_| dialled(7), &[(refusal(), REFUSAL_AT)].into(), REFUSAL_AT);
        last.update(|_| dialled(7), &(1..1_000).map(forged).collect(), REFUSAL_AT + 1);
        assert!(last.seconds.contains_key(&refusal()));
        assert_eq!((last.seconds.len(), last.dials.len()), (most, most));
    }

    /// What the datapath tells at a second of its clock.
    fn status_at(now: u32, refusals: BackendRefusals, silent_backends: BackendRefusals) -> Status {
        let unanswered = silent_backends.iter().map(|(it, at)| (it.backend(), *at)).collect();
        let sweep = FlowSweepProgress { silent_backends, unanswered, ..FlowSweepProgress::default() };
        Status {
            now,
            refused_connects: RefusedConnects { refusals, failure: None },
            flows: Some(FlowStatus { sweep, sample: FlowSample::default() }),
            ..holdfast_fixtures::healthy::status()
        }
    }

    #[test]
    fn a_silence_is_kept_as_a_refusal_is_and_ends_none() {
        let snapshot = Arc::new(snapshot_from(WEB));
        let (mut keeper, none) = (FailureKeeper::default(), BackendRefusals::new);
        let mut tell = |now, refusals, silences, connects| {
            let (status, mut watched) = (status_at(now, refusals, silences), 0);
            let kept = keeper.update(&status, &snapshot, |_| Some(connects), |all| watched = all.len());
            assert_eq!(watched, 1, "it looks for answers of the backend");
            (kept.refusals.len(), kept.silences.len())
        };
        let at = |second: u32| BackendRefusals::from([(refusal(), second)]);
        assert_eq!(tell(REFUSAL_AT, at(REFUSAL_AT), none(), 1), (0, 0), "the datapath tells");
        assert_eq!(tell(REFUSAL_AT + 400, none(), none(), 1), (1, 0));
        let dialled_at = REFUSAL_AT + 500;
        assert_eq!(tell(dialled_at, none(), none(), 2), (1, 0), "it may not know yet how that went");
        assert_eq!(tell(dialled_at + 30, none(), at(dialled_at), 2), (1, 0), "it tells of the silence");
        assert_eq!(tell(dialled_at + 400, none(), none(), 2), (1, 1), "nobody has dialled since");
        let again_at = dialled_at + 500;
        assert_eq!(tell(again_at, none(), none(), 3), (1, 1));
        assert_eq!(tell(again_at + SETTLING_SECONDS, none(), none(), 3), (0, 0), "that went well");
    }
}
