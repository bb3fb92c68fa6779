//! Failures that the datapath has forgotten, while nobody has dialled their service since.
//!
//! Invariant: a failure is kept until a client dials the port again. The datapath tells then how that went, so a
//! backend that serves clients is not called failing for long, and one that nobody has dialled is not called well.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};

use holdfast_core::keys::FrontendKey;
use holdfast_core::op::PortIndex;
use holdfast_core::snapshot::Snapshot;
use holdfast_datapath::PortCounters;
use holdfast_status::datapath::{BackendRefusal, BackendRefusals, Status};
use holdfast_status::views::refusals::Owners;

/// The most failures that are kept: a screen of them is read, and a host that forges refusals fills no memory.
const KEPT_MAX: usize = 256;

/// Seconds after a failure in which dials still belong to it: the datapath reads it a second later, and a burst of
/// dials goes on meanwhile.
const SAME_BURST_SECONDS: u32 = 15;

/// When a backend failed a client, and how often the port had been dialled by then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    second: u32,
    connects: u64,
}

#[derive(Debug, Default)]
pub(super) struct FailureMemory {
    seen: BTreeMap<BackendRefusal, Seen>,
    ports: KnownPorts,
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

impl FailureMemory {
    /// Takes the present failures, and returns the older ones that still count.
    pub(super) fn update(
        &mut self,
        status: &Status,
        snapshot: &Arc<Snapshot>,
        counts: Option<&PortCounters>,
    ) -> BackendRefusals {
        let current = status.backend_refusals();
        if current.is_empty() && self.seen.is_empty() {
            return BackendRefusals::new();
        }
        let Self { seen, ports } = self;
        ports.update(snapshot, current.keys().chain(seen.keys()).copied().collect());
        keep_undialled(seen, |it| count_connects(&ports.found, counts, it), &current, status.now)
    }
}

fn keep_undialled(
    seen: &mut BTreeMap<BackendRefusal, Seen>,
    connects: impl Fn(&BackendRefusal) -> Option<u64>,
    current: &BackendRefusals,
    now: u32,
) -> BackendRefusals {
    for (refusal, second) in current {
        let is_new = seen.get(refusal).is_none_or(|it| it.second != *second);
        let is_burst = now.saturating_sub(*second) <= SAME_BURST_SECONDS;
        let has_room = seen.len() < KEPT_MAX || seen.contains_key(refusal);
        if let Some(connects) = connects(refusal).filter(|_| has_room && (is_new || is_burst)) {
            seen.insert(*refusal, Seen { second: *second, connects });
        }
    }
    seen.retain(|refusal, it| current.contains_key(refusal) || connects(refusal) == Some(it.connects));
    let old = seen.iter().filter(|(refusal, _)| !current.contains_key(refusal));
    old.map(|(refusal, it)| (*refusal, it.second)).collect()
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

fn count_connects(
    ports: &BTreeMap<BackendRefusal, PortIndex>,
    counts: Option<&PortCounters>,
    refusal: &BackendRefusal,
) -> Option<u64> {
    Some(counts?.read_port(*ports.get(refusal)?).connects)
}

#[cfg(test)]
mod tests {
    use holdfast_core::keys::Transport;
    use holdfast_core::op::QuotaId;

    use super::*;

    const REFUSAL_AT: u32 = 1_000;

    fn refusal() -> BackendRefusal {
        BackendRefusal {
            quota: QuotaId(1),
            frontend: "10.96.0.10:80".parse().unwrap(),
            transport: Transport::Tcp,
            backend: "10.1.0.3:8080".parse().unwrap(),
        }
    }

    type Memory = BTreeMap<BackendRefusal, Seen>;

    /// The memory after a client was refused as the last of 40, which the datapath forgets.
    fn forgotten() -> Memory {
        let mut memory = Memory::new();
        let current: BackendRefusals = [(refusal(), REFUSAL_AT)].into();
        for (now, connects) in [(REFUSAL_AT, 20), (REFUSAL_AT + 1, 40), (REFUSAL_AT + 300, 40)] {
            let kept = keep_undialled(&mut memory, |_| Some(connects), &current, now);
            assert!(kept.is_empty(), "the datapath tells");
        }
        memory
    }

    fn kept(memory: &mut Memory, connects: Option<u64>) -> usize {
        keep_undialled(memory, |_| connects, &BackendRefusals::new(), REFUSAL_AT + 5_000).len()
    }

    #[test]
    fn a_failure_counts_until_somebody_dials_again() {
        let mut memory = forgotten();
        assert_eq!([kept(&mut memory, Some(40)), kept(&mut memory, Some(40))], [1, 1]);
        assert_eq!([kept(&mut memory, Some(41)), kept(&mut memory, Some(40))], [0, 0]);
    }

    #[test]
    fn a_failure_ends_with_its_service_or_the_use_of_its_backend() {
        let mut memory = forgotten();
        assert_eq!([kept(&mut memory, None), kept(&mut memory, Some(40))], [0, 0]);
    }

    #[test]
    fn a_host_that_forges_refusals_fills_no_memory() {
        let forged = |port: usize| {
            let backend = ([10, 1, 0, 3], u16::try_from(port).unwrap()).into();
            (BackendRefusal { backend, ..refusal() }, REFUSAL_AT)
        };
        let current: BackendRefusals = (1..2 * KEPT_MAX).map(forged).collect();
        let mut memory = Memory::new();
        keep_undialled(&mut memory, |_| Some(7), &current, REFUSAL_AT);
        assert_eq!(memory.len(), KEPT_MAX);
    }
}
