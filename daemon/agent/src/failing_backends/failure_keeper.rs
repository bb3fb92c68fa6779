//! Refusals and silences that the datapath has forgotten, while no client has shown that they are over.
//!
//! Invariant: a failure is kept until the backend has answered a client from outside, and no longer than its kind may
//! be. A refusal also ends by dials, where all clients of the port get the backend by chance: once they have dialled so
//! often that one of them met it, and after as long as the datapath may need to tell how that went. A client from
//! outside without an answer ends nothing.
//! So a backend that serves clients is not called failing for long, and one that no client has dialled is not called
//! well. No namespace displaces the failures of another that has fewer.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Weak};

use holdfast_core::keys::FrontendKey;
use holdfast_core::list::{Rows, Scope};
use holdfast_core::op::PortIndex;
use holdfast_core::snapshot::Snapshot;
use holdfast_datapath::keep_refusal;
use holdfast_status::datapath::{
    BackendAnswers, BackendEndpoint, BackendRefusal, BackendRefusals, KeptFailures, Status,
};
use holdfast_status::views::refusals::Owners;

/// Seconds after a failure in which dials still belong to it: the datapath reads it a second later, and a burst of
/// dials goes on meanwhile.
const SAME_BURST_SECONDS: u32 = 15;

/// How many times as many dials as the backend's share of them asks for show that one of them met it. In one case of
/// fifty all of them met other backends.
const DIALS_PER_SHARE: u64 = 4;

/// Seconds after which a refusal ends in any case. A port with session affinity may send all clients of this node
/// elsewhere, and shows nothing by dials.
const REFUSAL_KEPT_SECONDS: u32 = 24 * 3_600;

/// Seconds after which a silence ends in any case. Dials of processes and pods do not end it, because the daemon does
/// not see whether they get an answer, and a client that a policy keeps out may have been the only one from outside.
const SILENCE_KEPT_SECONDS: u32 = 3_600;

/// Seconds from the dial that met the backend to the end of the refusal. The datapath may need half a minute to call a
/// backend silent, and a client that gets no answer sends again for longer than that.
const SETTLING_SECONDS: u32 = 120;

#[derive(Debug)]
pub(super) struct FailureKeeper {
    refusals: LastFailures,
    silences: LastFailures,
    ports: KnownPorts,
}

impl Default for FailureKeeper {
    fn default() -> Self {
        let [refusals, silences] = [LastFailures::of_refusals(), LastFailures::of_silences()];
        Self { refusals, silences, ports: KnownPorts::default() }
    }
}

/// The last failure of one kind of each backend, and the dials of its port.
#[derive(Debug)]
struct LastFailures {
    seconds: BackendRefusals,
    dials: BTreeMap<BackendRefusal, Dials>,
    ends_by_dials: bool,
    kept_seconds: u32,
}

/// How often a port had been dialled when counting began, and when it was first seen that it was dialled often enough
/// since.
#[derive(Clone, Copy, Debug)]
struct Dials {
    connects: u64,
    since: u32,
    again_at: Option<u32>,
}

/// The most seconds between a dial and the reading that sees its count.
const READING_SECONDS: u32 = 2;

/// What is known of a failing backend since its failure.
#[derive(Clone, Copy, Debug, Default)]
struct Evidence {
    /// How often clients have dialled its port; `None`: its service sends it none any more.
    connects: Option<u64>,
    /// How many dials there are for each one that meets it; `None`: that depends on the client.
    dials_per_visit: Option<u64>,
    /// When the last connection from outside began that it answered.
    answered_at: Option<u32>,
    /// When a client of any frontend last failed there: it was refused, or a packet from outside got no answer.
    failed_at: Option<u32>,
}

impl Dials {
    const fn counted_from(connects: u64, since: u32) -> Self {
        Self { connects, since, again_at: None }
    }

    /// Counts anew after a client that failed: the dials before it do not show that the backend works.
    fn note_failure(&mut self, evidence: &Evidence, now: u32) {
        let is_new = |at: u32| at.saturating_add(READING_SECONDS) >= self.since;
        if let Some(connects) = evidence.connects.filter(|_| evidence.failed_at.is_some_and(is_new)) {
            *self = Self::counted_from(connects, now);
        }
    }

    /// Whether no client has met the backend since, or the datapath may not know yet how that went.
    fn are_open(&mut self, evidence: &Evidence, now: u32) -> bool {
        let Some(connects) = evidence.connects else { return false };
        // Counts begin anew with new facts of a port.
        self.connects = self.connects.min(connects);
        let Some(dials) = evidence.dials_per_visit else { return true };
        let needed = if dials > 1 { dials.saturating_mul(DIALS_PER_SHARE) } else { 1 };
        if connects - self.connects >= needed {
            self.again_at.get_or_insert(now);
        }
        self.again_at.is_none_or(|again_at| now.saturating_sub(again_at) < SETTLING_SECONDS)
    }
}

/// A port, and how many dials there are for each one that meets the backend, if chance decides.
type DialledPort = (PortIndex, Option<u64>);

/// The ports of failing backends. They are looked for among all services only when either has changed.
#[derive(Debug, Default)]
struct KnownPorts {
    snapshot: Weak<Snapshot>,
    failures: BTreeSet<BackendRefusal>,
    found: BTreeMap<BackendRefusal, DialledPort>,
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
        let failed_at = collect_failures(status, [&refusing, &silent]);
        let sweep = status.flows.as_ref().map(|flows| &flows.sweep);
        let find = |it: &BackendRefusal| Evidence {
            connects: ports.found.get(it).and_then(|(port, _)| count(*port)),
            dials_per_visit: ports.found.get(it).and_then(|(_, dials)| *dials),
            answered_at: sweep.and_then(|sweep| sweep.answers.get(&it.backend())).copied(),
            failed_at: failed_at.get(&it.backend()).copied(),
        };
        KeptFailures {
            refusals: refusals.update(find, &refusing, status.now),
            silences: silences.update(find, &silent, status.now),
        }
    }
}

impl LastFailures {
    const fn of_refusals() -> Self {
        Self::kept_for(REFUSAL_KEPT_SECONDS, true)
    }

    const fn of_silences() -> Self {
        Self::kept_for(SILENCE_KEPT_SECONDS, false)
    }

    const fn kept_for(kept_seconds: u32, ends_by_dials: bool) -> Self {
        Self { seconds: BackendRefusals::new(), dials: BTreeMap::new(), ends_by_dials, kept_seconds }
    }

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
                self.dials.insert(*refusal, Dials::counted_from(connects, now));
            }
        }
        let Self { seconds, dials, ends_by_dials, kept_seconds } = self;
        dials.retain(|it, dials| {
            let Some(failed_at) = seconds.get(it) else { return false };
            let evidence = find(it);
            dials.note_failure(&evidence, now);
            let is_over = evidence.answered_at.is_some_and(|at| at > *failed_at)
                || now.saturating_sub(*failed_at) > *kept_seconds;
            let is_served = evidence.connects.is_some();
            let is_open = if *ends_by_dials { dials.are_open(&evidence, now) } else { is_served };
            (is_open && !is_over) || current.contains_key(it)
        });
        seconds.retain(|it, _| dials.contains_key(it));
        seconds.iter().filter(|(it, _)| !current.contains_key(*it)).map(|(it, at)| (*it, *at)).collect()
    }
}

/// When a client last failed at each backend, whatever it dialled.
fn collect_failures(status: &Status, failing: [&BackendRefusals; 2]) -> BackendAnswers {
    let unanswered = status.flows.iter().flat_map(|flows| &flows.sweep.unanswered);
    let mut all: BackendAnswers = unanswered.map(|(backend, at)| (*backend, *at)).collect();
    for (it, at) in failing.into_iter().flatten() {
        let latest = all.entry(it.backend()).or_default();
        *latest = (*at).max(*latest);
    }
    all
}

/// The ports of the services that send clients of these frontends to these backends.
fn find_ports(
    snapshot: &Snapshot,
    failures: &BTreeSet<BackendRefusal>,
) -> BTreeMap<BackendRefusal, DialledPort> {
    let key = |it: &BackendRefusal| FrontendKey::from_socket(it.frontend, it.transport);
    let owners = Owners::from_snapshot(snapshot, failures.iter().filter_map(key));
    let port = |it: &BackendRefusal| {
        let (view, frontend) = owners.find_failing_owner(&key(it)?, it.backend)?;
        let port = view.ports.get(frontend.position?)?;
        let is_by_chance = view.facts.as_ref().is_none_or(|facts| facts.affinity_timeout.is_none());
        Some((*it, (port.index?, dials_per_visit(&port.rows, it.backend, is_by_chance))))
    };
    failures.iter().filter_map(port).collect()
}

/// How many dials of a port there are for each one that meets the backend. `None`: session affinity decides, or clients
/// with another list, whose dials have the same count, never meet it.
fn dials_per_visit(rows: &Rows, backend: SocketAddr, is_by_chance: bool) -> Option<u64> {
    let row = rows.find(backend)?;
    let lists = || Scope::ALL.into_iter().filter(|scope| !rows.is_empty(*scope));
    let dials = lists().map(|scope| rows.clients_per_share(scope, backend)).max()?;
    let do_all_meet_it = lists().all(|scope| row.is_in(scope));
    Some(dials).filter(|dials| do_all_meet_it && (is_by_chance || *dials == 1))
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU16;

    use holdfast_core::facts::{Conditions, Timestamp};
    use holdfast_core::keys::Transport;
    use holdfast_core::list::Row;
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

    /// Dials of a port with one backend.
    fn dialled(connects: u64) -> Evidence {
        Evidence { connects: Some(connects), dials_per_visit: Some(1), ..Evidence::default() }
    }

    /// The state after a client was refused as the last of 40, which the datapath forgets.
    fn forgotten() -> LastFailures {
        let mut last = LastFailures::of_refusals();
        let current: BackendRefusals = [(refusal(), REFUSAL_AT)].into();
        for (now, connects) in [(REFUSAL_AT, 20), (REFUSAL_AT + 1, 40), (REFUSAL_AT + 300, 40)] {
            assert!(last.update(|_| dialled(connects), &current, now).is_empty(), "the datapath tells");
        }
        last
    }

    fn kept_at(last: &mut LastFailures, connects: Option<u64>, now: u32) -> usize {
        last.update(|_| Evidence { connects, ..dialled(0) }, &BackendRefusals::new(), now).len()
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
    fn a_refusal_counts_until_so_many_have_dialled_that_one_met_the_backend() {
        for (dials_per_visit, connects, expected) in
            [(Some(1), 41, 0), (Some(2), 47, 1), (Some(2), 48, 0), (Some(100), 439, 1), (None, 9_000, 1)]
        {
            let (mut last, evidence) = (forgotten(), Evidence { dials_per_visit, ..dialled(connects) });
            let mut keep = |now| last.update(|_| evidence, &BackendRefusals::new(), now).len();
            let dialled_at = REFUSAL_AT + 5_000;
            let kept = [keep(dialled_at), keep(dialled_at + SETTLING_SECONDS)];
            assert_eq!(kept, [1, expected], "{connects} of {dials_per_visit:?}");
        }
    }

    #[test]
    fn a_client_without_an_answer_makes_the_dials_before_it_count_for_nothing() {
        let mut last = forgotten();
        let mut keep = |connects, unanswered_at, now| {
            let evidence =
                Evidence { dials_per_visit: Some(2), failed_at: unanswered_at, ..dialled(connects) };
            last.update(|_| evidence, &BackendRefusals::new(), now).len()
        };
        let hung_at = REFUSAL_AT + 5_000;
        assert_eq!(keep(43, Some(hung_at), hung_at + 5), 1, "one of three dials hangs");
        let later = [(50, hung_at + 4_000), (50, hung_at + 5_000), (51, hung_at + 6_000)];
        assert_eq!(later.map(|(connects, now)| keep(connects, Some(hung_at), now)), [1, 1, 1]);
        assert_eq!(keep(51, Some(hung_at), hung_at + 6_000 + SETTLING_SECONDS), 0);
    }

    /// How many dials there are for each one that meets 10.1.0.3, by what is set for the Service in [`WEB`].
    #[track_caller]
    fn check_dials(set: &[(&str, &str)], expected: Option<u64>) {
        let manifests = set.iter().fold(WEB.to_owned(), |all, (old, new)| all.replace(old, new));
        let found = find_ports(&snapshot_from(&manifests), &[refusal()].into());
        assert_eq!(found[&refusal()].1, expected, "{set:?}");
    }

    #[test]
    fn dials_meet_a_backend_by_its_share_of_the_clients_that_may_get_it() {
        const KIND: &str = "{type: ClusterIP,";
        const NAME: &str = "{name: web, namespace: shop}";
        let weigh = |weights| {
            format!(
                "{{name: web, namespace: shop, annotations: {{holdfast.io/weights: \"10.1.0.2={weights}\"}}}}"
            )
        };
        check_dials(&[], Some(2));
        check_dials(&[(NAME, &weigh("99"))], Some(100));
        check_dials(&[(NAME, &weigh("2, 10.1.0.3=4"))], Some(2));
        let affine = (KIND, "{type: ClusterIP, sessionAffinity: ClientIP,");
        check_dials(&[affine], None);
        check_dials(&[affine, ("{addresses: [10.1.0.2]}, ", "")], Some(1));
    }

    #[test]
    fn only_clients_that_may_get_a_backend_show_by_dials_that_one_met_it() {
        use Scope::{Cluster, Local};
        let conditions = Conditions { ready: true, serving: true, terminating: false };
        let dials = |lists: [&[Scope]; 3]| {
            let row = |(scopes, host): (&[Scope], u8)| {
                let mut row = Row::new([10, 1, 0, host].into(), NonZeroU16::MIN, conditions, 0, 0);
                scopes.iter().for_each(|scope| row.choose(*scope));
                row
            };
            let rows = lists.into_iter().zip(1..).map(row).collect();
            let rows = Rows::new(rows, &Rows::default(), Timestamp(0));
            [true, false].map(|is_by_chance| dials_per_visit(&rows, ([10, 1, 0, 1], 1).into(), is_by_chance))
        };
        assert_eq!(dials([&[Local], &[], &[]]), [Some(1), Some(1)]);
        assert_eq!(dials([&[Local], &[Local], &[Local]]), [Some(3), None]);
        assert_eq!(dials([&[Cluster, Local], &[Cluster], &[Cluster]]), [Some(3), None]);
        assert_eq!(
            dials([&[Cluster], &[Cluster, Local], &[]]),
            [None, None],
            "clients outside get another one"
        );
        assert_eq!(dials([&[Local], &[Cluster], &[]]), [None, None], "pods get another one");
    }

    #[test]
    fn a_refusal_ends_after_a_day() {
        for (seconds, expected) in [(REFUSAL_KEPT_SECONDS, 1), (REFUSAL_KEPT_SECONDS + 1, 0)] {
            assert_eq!(kept_at(&mut forgotten(), Some(40), REFUSAL_AT + seconds), expected, "{seconds}");
        }
    }

    #[test]
    fn counts_that_begin_anew_end_no_refusal() {
        let mut last = forgotten();
        let again_at = REFUSAL_AT + 5_000;
        assert_eq!(kept_at(&mut last, Some(0), again_at), 1);
        assert_eq!(kept_at(&mut last, Some(0), again_at + SETTLING_SECONDS), 1);
        assert_eq!(kept_at(&mut last, Some(1), again_at + 200), 1);
        assert_eq!(kept_at(&mut last, Some(1), again_at + 200 + SETTLING_SECONDS), 0);
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
            let evidence = Evidence { failed_at: unanswered_at, ..dialled(connects) };
            let kept = last.update(|_| evidence, &BackendRefusals::new(), now).len();
            (kept, last.dials.get(&refusal()).is_some_and(|dials| dials.again_at.is_some()))
        };
        assert_eq!(keep(41, None, dialled_at + 1), (1, true));
        assert_eq!(keep(41, Some(REFUSAL_AT - 9), dialled_at + 2), (1, true), "it was before the refusal");
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
        let mut last = LastFailures::of_refusals();
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
    fn dials_end_no_refusal_while_the_backend_refuses_clients_of_another_frontend() {
        let snapshot = Arc::new(snapshot_from(WEB));
        let (mut keeper, none) = (FailureKeeper::default(), BackendRefusals::new);
        let node_port = BackendRefusal { frontend: "192.0.2.1:30080".parse().unwrap(), ..refusal() };
        let mut tell = |now, refusals, connects| {
            let status = status_at(now, refusals, none());
            keeper.update(&status, &snapshot, |_| Some(connects), |_| ()).refusals.contains_key(&refusal())
        };
        assert!(!tell(REFUSAL_AT, [(refusal(), REFUSAL_AT)].into(), 1), "the datapath tells");
        for second in 1..900 {
            let now = REFUSAL_AT + second;
            assert!(
                second < 300 || tell(now, [(node_port, now)].into(), 1 + u64::from(second) * 9),
                "{second}"
            );
        }
        let mended_at = REFUSAL_AT + 1_300;
        assert!(tell(mended_at, none(), 9_000));
        assert!(!tell(mended_at + SETTLING_SECONDS, none(), 9_900));
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
        assert_eq!(tell(dialled_at, none(), none(), 9), (1, 0), "it may not know yet how that went");
        assert_eq!(tell(dialled_at + 30, none(), at(dialled_at), 9), (1, 0), "it tells of the silence");
        assert_eq!(tell(dialled_at + 400, none(), none(), 9), (1, 1), "nobody has dialled since");
        let again_at = dialled_at + 500;
        assert_eq!(tell(again_at, none(), none(), 16), (1, 1), "the other backend may have had these seven");
        assert_eq!(tell(again_at + SETTLING_SECONDS, none(), none(), 17), (1, 1));
        assert_eq!(tell(again_at + 2 * SETTLING_SECONDS, none(), none(), 17), (0, 1), "that went well");
        assert_eq!(
            tell(dialled_at + SILENCE_KEPT_SECONDS, none(), none(), 99),
            (0, 1),
            "dials show no answer"
        );
        assert_eq!(tell(dialled_at + SILENCE_KEPT_SECONDS + 1, none(), none(), 99), (0, 0));
    }
}
