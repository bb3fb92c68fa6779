//! Replaces whole lists as fast as the maps take them, while clients dial them.
//!
//! Invariant: a range is written again only after its grace period. Its former content is wiped first, so a late
//! reader would find no backend. The engine, which is slower than this, takes no part.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use holdfast_core::facts::{Conditions, Timestamp};
use holdfast_core::keys::{Family, FrontendKey, Transport};
use holdfast_core::list::{Row, Rows, Scope};
use holdfast_core::maps::{Capacity, MapError, Maps};
use holdfast_core::op::{
    Action, FrontendType, FrontendValue, Grace, MapGrowth, PortIndex, QuotaId, SlotRange, Word,
};
use holdfast_datapath::{KernelMaps, ServedSockets, StaleSockets, StartOptions};

use super::{BACKENDS, SoakBed, SoakError, VIP, backends};

/// The ranges in rotation: as many as are replaced in a grace period.
const RANGES: u32 = 4_096;

const SLOTS: u32 = 4;
const _: () = assert!(SLOTS as usize == BACKENDS.len(), "a range holds all backends");

const PORT: PortIndex = PortIndex(1);

/// How often the end of a grace period is polled, far shorter than the period. It sleeps: two threads that only yield
/// can keep all others from the CPUs for a minute on Linux 6.18, also the thread that ends grace periods.
const GRACE_POLL: Duration = Duration::from_micros(200);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplaceReport {
    /// Replaced lists.
    pub replacements: u64,
    /// Connects; all succeeded.
    pub connects: u64,
}

/// Replaces lists until the time is over and the minimum counts are reached.
pub fn replace_again_and_again(
    bed: &SoakBed,
    time: Duration,
    least: ReplaceReport,
) -> Result<ReplaceReport, SoakError> {
    let options = StartOptions {
        cgroup: Some(bed.bed.cgroup().to_owned()),
        bpffs: bed.bed.bpffs().join("replacing"),
        capacity: Capacity { slots: RANGES * SLOTS, ports: 16, services: 1 },
        mark: 0,
        expected: MapGrowth::default(),
        stale_sockets: StaleSockets::default(),
        served: ServedSockets::default(),
        packets: None,
    };
    let mut lists = Lists { maps: KernelMaps::start(&options)?, lists: lists(), waiting: VecDeque::new() };
    lists.replace(0)?;
    lists.insert()?;
    let replaced = bed.under_load(|connects| {
        let until = Instant::now() + time;
        let mut done = ReplaceReport::default();
        while Instant::now() < until
            || done.replacements < least.replacements
            || done.connects < least.connects
        {
            for _ in 0..RANGES {
                done.replacements += 1;
                lists.replace(done.replacements)?;
            }
            done.connects = connects.load(Ordering::Relaxed);
        }
        Ok(done)
    });
    drop(lists);
    holdfast_datapath::cleanup(&options.bpffs)?;
    replaced
}

struct Lists {
    maps: KernelMaps,
    lists: Vec<Arc<Rows>>,
    // Unused ranges, the oldest first.
    waiting: VecDeque<Grace>,
}

impl Lists {
    fn insert(&mut self) -> Result<(), MapError> {
        let Some(key) = key() else { return Ok(()) };
        let value = FrontendValue { port: PORT, kind: FrontendType::ClusterIp, quota: QuotaId::default() };
        self.maps.execute(&Action::InsertFrontend(key, value))
    }

    fn replace(&mut self, number: u64) -> Result<(), MapError> {
        let place = u32::try_from(number % u64::from(RANGES)).unwrap_or_default();
        let count = 1 + place % SLOTS;
        let Some(rows) = self.lists.get(count as usize - 1).map(Arc::clone) else { return Ok(()) };
        self.wait_for_a_range();
        let whole = SlotRange { family: Family::V4, base: place * SLOTS, count: SLOTS };
        self.maps.execute(&Action::FreeRange(whole))?;
        self.maps.execute(&Action::WriteRange(SlotRange { count, ..whole }, Scope::Cluster, rows))?;
        let word = Word { base: whole.base, count, ..Word::EMPTY };
        self.maps.execute(&Action::PublishWord(PORT, Scope::Cluster, word))?;
        self.waiting.push_back(self.maps.begin_grace());
        Ok(())
    }

    /// Waits until the oldest range is free.
    fn wait_for_a_range(&mut self) {
        if self.waiting.len() < RANGES as usize - 1 {
            return;
        }
        while self.waiting.front().is_some_and(|grace| !self.maps.is_grace_over(*grace)) {
            thread::sleep(GRACE_POLL);
        }
        self.waiting.pop_front();
    }
}

fn key() -> Option<FrontendKey> {
    let vip: std::net::SocketAddr = VIP.parse().ok()?;
    Some(FrontendKey { address: vip.ip(), port: vip.port().try_into().ok()?, transport: Transport::Tcp })
}

/// Lists of the first backend, of the first two, and so on.
fn lists() -> Vec<Arc<Rows>> {
    let list = |count: usize| {
        let row = |backend: std::net::SocketAddr| {
            let mut row = Row::new(backend.ip(), backend.port().try_into().ok()?, Conditions::READY, 0, 0);
            row.choose(Scope::Cluster);
            Some(row)
        };
        let rows = backends().take(count).filter_map(row).collect();
        Arc::new(Rows::new(rows, &Rows::default(), Timestamp(0)))
    };
    (1..=BACKENDS.len()).map(list).collect()
}
