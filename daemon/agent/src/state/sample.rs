//! Some of the services in the file, by which the maps are made large enough before all of them are read.
//!
//! Invariant: it is an estimate, and only the time that a start takes and the room of new maps depend on it. However
//! large the file is, about as much of it is read.

use std::fs::{self, File};
use std::io::{self, BufReader};
use std::path::Path;
use std::sync::Arc;

use holdfast_core::op::MapGrowth;
use holdfast_core::snapshot::ServiceView;

use super::codec;
use super::file::{BODY, check_version};
use super::frames::{Frames, RecordKind};

/// Where the file is looked at, at equal distances: services of one namespace stand side by side, and are alike.
const PLACES: u64 = 256;

/// How many services are read behind each place.
const AT_EACH: usize = 4;

/// What is in a file of less bytes fits into the maps that every start begins with.
const BYTES_MIN: u64 = 1 << 20;

/// A service and what follows it.
const BUFFER_BYTES: usize = 1 << 13;

/// Some services, and how many there are.
#[derive(Debug)]
pub struct Sample {
    services: Vec<Arc<ServiceView>>,
    all: u64,
}

impl Sample {
    /// What all services would take, where `each` says it of one.
    pub fn extrapolate(&self, each: impl Fn(&ServiceView) -> MapGrowth) -> MapGrowth {
        let some: Vec<_> = self.services.iter().map(|view| each(view)).collect();
        let count = u64::try_from(some.len()).unwrap_or(u64::MAX).max(1);
        let all = |of: &dyn Fn(&MapGrowth) -> u32| {
            let sum: u64 = some.iter().map(|coming| u64::from(of(coming))).sum();
            u32::try_from(sum.saturating_mul(self.all) / count).unwrap_or(u32::MAX)
        };
        MapGrowth {
            frontends: [all(&|it| it.frontends[0]), all(&|it| it.frontends[1])],
            ports: all(&|it| it.ports),
            slots: [all(&|it| it.slots[0]), all(&|it| it.slots[1])],
            members: all(&|it| it.members),
        }
    }
}

/// `None`: the file is small, of another format, or has no service.
pub(super) fn read_sample(path: &Path) -> io::Result<Option<Sample>> {
    let length = fs::metadata(path)?.len();
    if length < BYTES_MIN || check_version(path).is_err() {
        return Ok(None);
    }
    let mut frames = Frames::new(BufReader::with_capacity(BUFFER_BYTES, File::open(path)?), BODY, length);
    let mut record = Vec::new();
    let Some(all) = count_services(&mut frames, &mut record)? else { return Ok(None) };
    let mut services = Vec::new();
    // The names stand at the file's end once more.
    let (begun, named) = (frames.offset, u64::try_from(record.len()).unwrap_or(u64::MAX));
    let distance = length.saturating_sub(begun).saturating_sub(named) / PLACES;
    for place in (0..PLACES).map(|place| begun + distance * place) {
        let mut kind = frames.next_after(place, &mut record)?;
        for _ in 0..AT_EACH {
            let is_service = kind == Some(RecordKind::Service);
            services.extend(is_service.then(|| codec::decode_service(&record)).flatten());
            kind = frames.next(&mut record)?;
        }
    }
    Ok((!services.is_empty()).then_some(Sample { services, all }))
}

/// How many services the file names at its beginning.
fn count_services(frames: &mut Frames<BufReader<File>>, record: &mut Vec<u8>) -> io::Result<Option<u64>> {
    frames.next_after(BODY.saturating_sub(1), record)?;
    let kind = frames.next(record)?;
    // The names are a list, which begins with its length.
    let length = postcard::take_from_bytes(record).ok().map(|(length, _)| length);
    Ok(length.filter(|_| kind == Some(RecordKind::Names)))
}

#[cfg(test)]
mod tests {
    use holdfast_core::engine::{Engine, estimate_service_growth};
    use holdfast_core::event::Event;
    use holdfast_core::facts::Settings;
    use holdfast_core::index::Seed;
    use holdfast_core::keys::Source;
    use holdfast_core::maps::MemoryMaps;
    use holdfast_core::snapshot::Snapshot;
    use holdfast_core::time::ClockReading;
    use holdfast_laws::whole::step_whole;
    use holdfast_laws::worlds::Shape;

    use crate::state::{SnapshotContext, StateFolder};

    /// What the file of so many services lets a start expect, and what they take.
    fn expected(services: u32) -> (Option<[u32; 3]>, [u32; 3]) {
        let (mut engine, _) = Engine::start(MemoryMaps::default(), Seed(1), &[Source::Kubernetes]).unwrap();
        Shape { services, endpoints: 60 }.events().into_iter().for_each(|event| engine.apply(event));
        engine.apply(Event::Synced(Source::Kubernetes));
        let snapshot: Snapshot =
            Snapshot::clone(&step_whole(&mut engine, ClockReading::default(), &mut drop));
        let folder = tempfile::tempdir().unwrap();
        let state = StateFolder::new(folder.path());
        let bytes = state.store(&SnapshotContext::default(), &snapshot).unwrap().bytes;
        assert_eq!(bytes >= super::BYTES_MIN, services > 1_000, "{bytes}");
        let settings = Settings::default();
        let sample = state.sample().map(|it| it.extrapolate(|view| estimate_service_growth(view, &settings)));
        let each = snapshot.services.iter().map(|view| estimate_service_growth(view, &settings));
        let all = each.fold([0; 3], |[frontends, ports, slots], it| {
            [frontends + it.frontends[0], ports + it.ports, slots + it.slots[0]]
        });
        (sample.map(|it| [it.frontends[0], it.ports, it.slots[0]]), all)
    }

    #[test]
    fn some_services_tell_what_all_of_them_take() {
        let (expected, all) = expected(3_000);
        for (expected, is) in expected.unwrap().into_iter().zip(all) {
            assert!(is > 0 && expected.abs_diff(is) <= is / 16, "{expected} for {is}");
        }
    }

    #[test]
    fn of_few_services_nothing_is_expected() {
        assert_eq!(expected(9).0, None);
    }
}
