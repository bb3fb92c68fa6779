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

/// Seconds after which a refusal ends in any case: the service may have no clients on this node any more.
const REFUSAL_KEPT_SECONDS: u32 = 24 * 3_600;

/// Seconds after which a silence ends in any case. Dials of processes and pods do not end it, because the daemon does
/// not see whether they get an answer, and a client that a policy keeps out may have been the only one from outside.
const SILENCE_KEPT_SECONDS: u32 = 3_600;

/// Seconds from the dial that met the backend to the end of the refusal. The datapath may need half a minute to call a
/// backend silent, and a client that gets no answer sends again for longer than that.
const SETTLING_SECONDS: u32 = 120;

/// The same where no count of dials shows that the backend was met: session affinity, or a traffic policy, may send all
/// of them elsewhere. One client that a restarting container refused makes the node ill for no longer than that.
const UNSEEN_SETTLING_SECONDS: u32 = 3_600;

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
        let (needed, settling) = match evidence.dials_per_visit {
            Some(dials) if dials > 1 => (dials.saturating_mul(DIALS_PER_SHARE), SETTLING_SECONDS),
            Some(_) => (1, SETTLING_SECONDS),
            None => (1, UNSEEN_SETTLING_SECONDS),
        };
        if connects - self.connects >= needed {
            self.again_at.get_or_insert(now);
        }
        self.again_at.is_none_or(|again_at| now.saturating_sub(again_at) < settling)
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

/// How many dials of a port there are for each one that meets the backend. `None`: session affinity decides, or some
/// clients have a list without the backend, and the port's count has their dials too.
fn dials_per_visit(rows: &Rows, backend: SocketAddr, is_by_chance: bool) -> Option<u64> {
    let row = rows.find(backend)?;
    let lists = || Scope::ALL.into_iter().filter(|scope| !rows.is_empty(*scope));
    let dials = lists().map(|scope| rows.clients_per_share(scope, backend)).max()?;
    let do_all_meet_it = lists().all(|scope| row.is_in(scope));
    Some(dials).filter(|dials| do_all_meet_it && (is_by_chance || *dials == 1))
}

#[cfg(test)]
mod tests;
