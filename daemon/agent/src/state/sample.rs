//! Samples the services in the file, to size the maps before all of them are read.
//!
//! Invariant: the sample is an estimate. Only the duration of a start and the size of new maps depend on it. A sample
//! reads about the same amount of any file.

use std::fs::{self, File};
use std::io::{self, BufReader};
use std::path::Path;
use std::sync::Arc;

use holdfast_core::op::MapGrowth;
use holdfast_core::snapshot::ServiceView;

use super::codec;
use super::file::{BODY, check_version};
use super::frames::{Frames, RecordKind};

/// How many places of the file are sampled, at equal distances: neighbours are of one namespace, and alike.
const PLACES: u64 = 256;

/// How many services are read at each place.
const AT_EACH: usize = 4;

/// The services of a smaller file fit into the maps that every start begins with.
const BYTES_MIN: u64 = 1 << 20;

/// The size of a service and the next one.
const BUFFER_BYTES: usize = 1 << 13;

/// Some services, and the number of all.
#[derive(Debug)]
pub struct Sample {
    services: Vec<Arc<ServiceView>>,
    all: u64,
}

impl Sample {
    /// Extrapolates the growth of all services from `each`.
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

/// Returns `None` if the file is small, of another format, or has no service.
pub(super) fn read_sample(path: &Path) -> io::Result<Option<Sample>> {
    let length = fs::metadata(path)?.len();
    if length < BYTES_MIN || check_version(path).is_err() {
        return Ok(None);
    }
    let mut frames = Frames::new(BufReader::with_capacity(BUFFER_BYTES, File::open(path)?), BODY, length);
    let mut record = Vec::new();
    let Some(all) = count_services(&mut frames, &mut record)? else { return Ok(None) };
    let mut services = Vec::new();
    // The file repeats the names at its end.
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

/// The number of services in the names at the file's beginning.
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

    /// The demand that a file of this many services predicts, and the actual one.
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
    fn a_sample_estimates_the_demand_of_all_services() {
        let (expected, all) = expected(3_000);
        for (expected, is) in expected.unwrap().into_iter().zip(all) {
            assert!(is > 0 && expected.abs_diff(is) <= is / 16, "{expected} for {is}");
        }
    }

    #[test]
    fn a_file_of_few_services_has_no_sample() {
        assert_eq!(expected(9).0, None);
    }
}
