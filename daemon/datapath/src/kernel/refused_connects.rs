//! Reads which backends refused the connects of this node's sockets.
//!
//! Invariant: it only reads. The kernel may lack what it needs; then the daemon serves all the same, and says what it
//! does not see. A look takes a bounded number of look-ups, whatever clients do.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::num::NonZeroU16;

use holdfast_core::keys::{Family, FrontendKey, Transport};
use holdfast_core::op::QuotaId;
use holdfast_status::datapath::{BackendRefusal, BackendRefusals, REFUSAL_SECONDS, RefusedConnects};
use libbpf_rs::Link;
use libbpf_rs::skel::OpenSkel;

use super::KernelMaps;
use crate::abi::refused_connects::{ENTRY_WORDS, RefusedConnect, decode_entry};
use crate::error::StartError;
use crate::flows::{FlowTable, expire_refusals, keep_refusal};
use crate::load::open_tcp_reset;
use crate::map::MapHandles;
use crate::mapped_array::MappedArray;

/// How many new entries one look takes: about a millisecond of the engine's time. A look reads all entries and finds
/// the services of the new ones, so 4,096 new ones take 16 s: half as long as a refusal counts as recent.
const ENTRIES_PER_LOOK: usize = 256;

/// The frontends and backends of the refusals that are kept.
type KnownPairs = BTreeSet<(SocketAddr, SocketAddr)>;

/// The attached program with its entries, and what they have shown.
#[derive(Debug)]
pub(super) struct RefusedConnectReader {
    log: Result<ConnectLog, String>,
    refusals: BackendRefusals,
}

#[derive(Debug)]
struct ConnectLog {
    entries: MappedArray,
    seed: u64,
    // Where the next look begins.
    next: usize,
    // Detaches the program when dropped.
    _link: Link,
}

impl ConnectLog {
    /// Attaches the program to the kernel's tracepoint. Needs the kernel's types (BTF) and CAP_PERFMON.
    fn attach(maps: &MapHandles) -> Result<Self, StartError> {
        let seed = RandomState::new().hash_one(());
        let mut memory = MaybeUninit::uninit();
        let loaded = open_tcp_reset(&mut memory, seed, maps)?.load().map_err(StartError::from_load)?;
        let entries = MappedArray::new(&loaded.maps.refused_connects);
        let entries = entries.map_err(|error| StartError::from_load(error.into()))?;
        let link = loaded.progs.note_reset.attach().map_err(StartError::from_load)?;
        Ok(Self { entries, seed, next: 0, _link: link })
    }

    /// The recent refusals that are known, so that their times are new, and some others; the next call goes on where
    /// this one ends.
    fn read_some(&mut self, now: u32, known: &KnownPairs) -> Vec<RefusedConnect> {
        let (entries, _) = self.entries.as_chunks::<ENTRY_WORDS>();
        let order = (0..entries.len()).map(|offset| (self.next + offset) % entries.len());
        let found = order.filter_map(|at| Some((at, decode_entry(entries.get(at)?, self.seed)?)));
        let recent = found.filter(|(_, it)| now.saturating_sub(it.second) <= REFUSAL_SECONDS);
        let (taken, next) = take_some(recent, known);
        self.next = next.unwrap_or(self.next);
        taken
    }
}

/// The known refusals and some others, each with its place, and the place to go on from if some are left.
fn take_some(
    recent: impl Iterator<Item = (usize, RefusedConnect)>,
    known: &KnownPairs,
) -> (Vec<RefusedConnect>, Option<usize>) {
    let (mut taken, others): (Vec<_>, Vec<_>) =
        recent.partition(|(_, it)| known.contains(&(it.frontend, it.backend)));
    let next = others.get(ENTRIES_PER_LOOK).map(|(place, _)| *place);
    taken.extend(others.into_iter().take(ENTRIES_PER_LOOK));
    (taken.into_iter().map(|(_, it)| it).collect(), next)
}

impl RefusedConnectReader {
    /// Attaches the program over these maps.
    pub(super) fn start(maps: &MapHandles) -> Self {
        let log = ConnectLog::attach(maps).map_err(|error| unseen_reason(&error));
        Self { log, refusals: BackendRefusals::new() }
    }

    pub(super) fn status(&self) -> RefusedConnects {
        RefusedConnects { refusals: self.refusals.clone(), failure: self.log.as_ref().err().cloned() }
    }
}

impl KernelMaps {
    /// Takes what refused connects show since the last call. Call it about once a second.
    pub fn collect_refused_connects(&mut self) {
        let Some(mut reader) = self.refused_connects.take() else { return };
        let now = FlowTable::monotonic_seconds();
        let known = reader.refusals.keys().map(|it| (it.frontend, it.backend)).collect();
        let found = reader.log.as_mut().map(|log| log.read_some(now, &known)).unwrap_or_default();
        for it in found {
            if let Some(quota) = self.find_quota(&it) {
                let RefusedConnect { frontend, backend, second } = it;
                let refusal = BackendRefusal { quota, frontend, transport: Transport::Tcp, backend };
                keep_refusal(refusal, second, &mut reader.refusals);
            }
        }
        expire_refusals(now, &mut reader.refusals);
        self.refused_connects = Some(reader);
    }

    /// The quota of the service that the client dialled; `None`: no service has that address any more.
    fn find_quota(&self, refused: &RefusedConnect) -> Option<QuotaId> {
        let address = refused.frontend.ip();
        let port = NonZeroU16::new(refused.frontend.port())?;
        let exact = FrontendKey { address, port, transport: Transport::Tcp };
        let node_port = FrontendKey { address: Family::from_address(address).unspecified_address(), ..exact };
        let value = self.frontend_value(&exact).or_else(|| self.frontend_value(&node_port))?;
        Some(value.quota)
    }
}

fn unseen_reason(error: &StartError) -> String {
    let needs = "it needs the kernel's own types (CONFIG_DEBUG_INFO_BTF) and CAP_PERFMON";
    format!("cannot see which backends refuse processes and pods of this node: {error:#}; {needs}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A frontend that many clients dial among so many others that one look does not take them all.
    #[test]
    fn a_look_takes_each_known_refusal_and_some_others_in_turn() {
        let refused = |place: usize| {
            let frontend = SocketAddr::from(([10, 96, 0, 10], u16::try_from(place).unwrap()));
            RefusedConnect { frontend, backend: ([10, 1, 0, 3], 8080).into(), second: 9 }
        };
        let known = [599, 7].map(|place| (refused(place).frontend, refused(place).backend)).into();
        let look = |from: usize| {
            let order = (0..600).map(|offset| (from + offset) % 600);
            take_some(order.map(|place| (place, refused(place))), &known)
        };
        let (mut seen, mut next) = (BTreeSet::new(), 0);
        for _ in 0..3 {
            let (taken, after) = look(next);
            let ports: Vec<_> = taken.iter().map(|it| it.frontend.port()).collect();
            assert_eq!(ports.len(), ENTRIES_PER_LOOK + 2);
            assert!(ports.contains(&599) && ports.contains(&7), "the known ones");
            seen.extend(ports);
            next = after.unwrap();
        }
        assert_eq!(seen.len(), 600);
        let few = take_some((0..4).map(|place| (place, refused(place))), &known);
        assert_eq!((few.0.len(), few.1), (4, None));
    }

    #[test]
    fn without_its_program_nothing_is_seen_and_the_reason_is_told() {
        let status = RefusedConnectReader::start(&MapHandles::new()).status();
        assert_eq!(status.refusals, BackendRefusals::new());
        let failure = status.failure.unwrap();
        assert!(failure.starts_with("cannot see which backends refuse processes and pods"), "{failure}");
        assert!(failure.ends_with("(CONFIG_DEBUG_INFO_BTF) and CAP_PERFMON"), "{failure}");
    }
}
