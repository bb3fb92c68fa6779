//! Starts from nothing, or from a former daemon's maps and programs.
//!
//! Invariant: programs attach only once their maps hold what the former programs' maps held, so they wait while another
//! version serves.

use std::path::PathBuf;

use holdfast_core::maps::Capacity;
use holdfast_core::op::MapGrowth;
use holdfast_status::datapath::{Features, MapSizes, ServedSockets};

use libbpf_rs::MapHandle;

use super::cluster_ips::ClusterIps;
use super::exempt::ExemptSubtrees;
use super::growth_failures::GrowthFailures;
use super::packet_load_thread::PacketLoadThread;
use super::packets::PacketTranslation;
use super::prebuild::Prebuild;
use super::refused_connects::RefusedConnectReader;
use super::sources::SourceMaps;
use super::stale::{StaleSockets, StaleSweep};
use super::{Attachment, KernelMaps, SelfTestError, dump};
use crate::abi::types;
use crate::cgroup::{self, Cgroup};
use crate::error::StartError;
use crate::generation::Generation;
use crate::grace::GracePeriods;
use crate::links::Links;
use crate::load::{self, LoadedPrograms};
use crate::map::{self, MapHandles};
use crate::packets::PacketOptions;
use crate::pins::{Pins, ProgramKind, ProgramSet, ProgramSetName, VERSION};
use crate::probe;
use crate::shape::ShapeGrowth;
use crate::shared_maps::{self, SharedMaps};
use crate::sys;

/// The options of a start.
#[derive(Clone, Debug)]
pub struct StartOptions {
    /// The cgroup with the sockets that the programs serve; `None`: the root of the host's cgroup v2 hierarchy.
    pub cgroup: Option<PathBuf>,
    /// The folder of all pins on a BPF file system; created if missing.
    pub bpffs: PathBuf,
    /// The most that the maps may hold.
    pub capacity: Capacity,
    /// What new maps must hold soon, beyond a few hundred services. Otherwise they would grow for it later and the
    /// programs load again.
    pub expected: MapGrowth,
    /// The mark of the daemon's own sockets; 0: none.
    pub mark: u32,
    /// Which sockets are ended once their backend is gone.
    pub stale_sockets: StaleSockets,
    /// The sockets that are served.
    pub served: ServedSockets,
    /// How packets are translated; `None`: only sockets are served.
    pub packets: Option<PacketOptions>,
}

/// Why another daemon's programs stay attached.
#[derive(Debug, thiserror::Error)]
pub enum TakeOverError {
    /// Our programs were not attached.
    #[error(transparent)]
    Start(#[from] StartError),
    /// Our programs do not work as they must.
    #[error(transparent)]
    SelfTest(#[from] SelfTestError),
}

impl Attachment {
    /// Whether the programs may serve at once: over empty maps they would cut off clients that other maps serve.
    fn can_serve(&self) -> bool {
        self.pins.has_generation() || !self.pins.has_links(self.links.site())
    }

    /// Pins the maps and attaches the programs. It removes other versions' pins before their programs: pins can always
    /// be adopted.
    fn attach_programs(
        &mut self,
        programs: &LoadedPrograms,
        maps: &mut MapHandles,
        features: Features,
    ) -> Result<(), StartError> {
        self.pins.pin_all(maps)?;
        self.pins.remove_other_versions()?;
        self.pins.make_link_folder()?;
        if let Err(error) = self.links.attach_all(programs, &self.pins) {
            self.links.undo_attach(&self.pins);
            // The next start loads its own.
            self.pins.remove_programs(ProgramKind::Sockets);
            return Err(error);
        }
        self.pins.prune_generations();
        self.pin_programs(programs, maps, features);
        Ok(())
    }

    /// Pins the programs that serve for the next start.
    pub(super) fn pin_programs(&self, programs: &LoadedPrograms, maps: &MapHandles, features: Features) {
        match socket_set_name(features, maps) {
            Some(name) => self.pins.pin_programs(&name, &programs.list_set()),
            None => self.pins.remove_programs(ProgramKind::Sockets),
        }
    }

    /// The programs over these maps: those that are pinned, or others that are loaded now.
    pub(super) fn find_or_load(
        &self,
        shape: MapSizes,
        features: Features,
        maps: &MapHandles,
    ) -> Result<LoadedPrograms, StartError> {
        self.open_or_load(find_socket_set(&self.pins, features, maps), (shape, features), maps)
    }

    /// The programs of this set. If there is none, or a program is missing, all are loaded.
    fn open_or_load(
        &self,
        set: Option<ProgramSet>,
        (shape, features): (MapSizes, Features),
        maps: &MapHandles,
    ) -> Result<LoadedPrograms, StartError> {
        let opened = set.and_then(|set| load::open_programs(&set, self.links.site()));
        opened.map_or_else(|| Ok(load::load_programs(shape, features, maps)?.0), Ok)
    }
}

/// The name of the set of socket programs over these maps; `None`: some are missing.
fn socket_set_name(features: Features, maps: &MapHandles) -> Option<ProgramSetName> {
    ProgramSetName::new(ProgramKind::Sockets, &features, maps)
}

fn find_socket_set(pins: &Pins, features: Features, maps: &MapHandles) -> Option<ProgramSet> {
    pins.find_programs(&socket_set_name(features, maps)?)
}

impl Attachment {
    /// Lets another version's programs exempt this daemon until it takes over; their own daemon is gone. A version with
    /// an unreadable control map is skipped: its programs never translate to an apiserver.
    fn write_foreign_controls(&self) {
        for pin in self.pins.foreign_controls() {
            if let Ok(control) = MapHandle::from_pinned_path(&pin) {
                shared_maps::write_exemptions(&control, &self.control);
            }
        }
    }
}

impl KernelMaps {
    /// Adopts a former daemon's maps or creates new ones, and attaches the programs.
    pub fn start(options: &StartOptions) -> Result<Self, StartError> {
        libbpf_rs::set_print(None);
        Self::start_as(options, probe::probe_features()?, VERSION)
    }

    /// Starts as a daemon of that version would on a kernel with these features.
    pub(crate) fn start_as(
        options: &StartOptions,
        features: Features,
        version: u32,
    ) -> Result<Self, StartError> {
        let cgroup = Cgroup::open(options.cgroup.as_deref())?;
        let pins = Pins::open(&options.bpffs, version)?;
        let first = MapSizes::for_expected(&options.expected, &MapSizes::from_capacity(options.capacity));
        let control = build_control(options, &cgroup);
        let mut packets =
            PacketTranslation::new(options.packets.clone().map(|packets| packets.restrict_to(features)));
        let adopted = pins.adopt()?;
        let programs = find_socket_set(&pins, features, &adopted);
        // If a set is pinned for these maps, none is missing.
        let mut maps = match &programs {
            Some(_) => adopted,
            None => load::make_maps(first, features, &adopted)?,
        };
        let links = Links::for_site(cgroup);
        let mut attached = Attachment {
            pins,
            links,
            control,
            former_control: control,
            last_look: None,
            put_back: 0,
            failure: None,
        };
        if attached.can_serve() {
            packets.load_thread = PacketLoadThread::start_with_sockets(
                (packets.link_layers(), packets.options.as_ref()),
                &attached.pins,
                &maps,
            );
        }
        let programs = attached.open_or_load(programs, (first, features), &maps)?;
        let mut this = Self::from_maps(&maps, features, options.capacity)?;
        attached.former_control = this.shared.control();
        this.packets = packets;
        if options.packets.is_some() {
            let quotas = || dump::read_quotas(&this.generation);
            this.sources = SourceMaps::adopt(&attached.pins.adopt_packets()?, quotas)?;
        } else {
            this.shared.record_flows([]);
        }
        this.exempt = ExemptSubtrees::new(&options.served, &maps)?;
        this.exempt.refresh()?;
        this.cluster_ips.attach_maps(this.shared.handles())?;
        this.shared.write_control(&control);
        if attached.can_serve() {
            attached.attach_programs(&programs, &mut maps, features)?;
        } else {
            attached.write_foreign_controls();
        }
        this.attached = Some(attached);
        this.stale = StaleSweep::start(options.stale_sockets, &this.shared)?;
        this.refused_connects = Some(RefusedConnectReader::start(this.shared.handles()));
        Ok(this)
    }

    /// Replaces another daemon's programs, once the maps hold what clients need, and runs the self-test.
    pub fn take_over(&mut self) -> Result<(), TakeOverError> {
        let Self { generation, shared, attached, features, .. } = self;
        if let Some(attached) = attached.as_mut().filter(|attached| !attached.links.are_attached()) {
            let mut maps = map::clone_handles(shared.handles().iter().chain(generation.handles()))?;
            let given = map::clone_handles(&maps)?;
            let programs = attached.find_or_load(generation.shape, *features, &given)?;
            attached.attach_programs(&programs, &mut maps, *features)?;
        }
        Ok(self.self_test()?)
    }

    /// Maps without programs and pins: dropping the value removes them.
    pub fn without_programs(capacity: Capacity) -> Result<Self, StartError> {
        Self::expecting(capacity, &MapGrowth::default())
    }

    /// The same, with space for what is expected.
    pub(crate) fn expecting(capacity: Capacity, expected: &MapGrowth) -> Result<Self, StartError> {
        libbpf_rs::set_print(None);
        let features = probe::probe_features()?;
        let first = MapSizes::for_expected(expected, &MapSizes::from_capacity(capacity));
        Self::from_maps(&load::make_maps(first, features, &MapHandles::new())?, features, capacity)
    }

    fn from_maps(maps: &MapHandles, features: Features, capacity: Capacity) -> Result<Self, StartError> {
        let generation = Generation::new(maps)?;
        let found = dump::read_frontends(&generation);
        let found = found.map_err(|source| StartError::Map { attempt: "read", map: "frontends", source })?;
        let cluster_ips = ClusterIps::from_frontends(&found);
        let found: Vec<_> = found.iter().map(|(key, _)| *key).collect();
        Ok(Self {
            // Found maps may be larger than the current limits.
            limits: MapSizes::from_capacity(capacity).max_with(generation.shape),
            shared: SharedMaps::new(maps, &found)?,
            grace: GracePeriods::start().map_err(StartError::from_load)?,
            generation,
            features,
            capacity,
            high_water: MapSizes::NONE,
            growths: 0,
            prebuild: Prebuild::default(),
            growth_failures: GrowthFailures::default(),
            attached: None,
            stale: None,
            refused_connects: None,
            exempt: ExemptSubtrees::new(&ServedSockets::default(), maps)?,
            packets: PacketTranslation::default(),
            flows: None,
            sources: SourceMaps::default(),
            cluster_ips,
            pending_parts: Vec::new(),
        })
    }
}

/// The control values: programs exempt the daemon's mark and cgroup. A daemon in the cgroup that it serves has no
/// cgroup to exempt.
fn build_control(options: &StartOptions, cgroup: &Cgroup) -> types::control {
    let own = cgroup::current_id().filter(|own| *own != cgroup.id());
    types::control {
        exempt_cgroup: own.map_or(0, |own| own.0),
        host_netns: sys::own_netns_cookie().unwrap_or_default(),
        exempt_mark: options.mark,
        restrictions: super::exempt::restriction_bits(&options.served),
        ..types::control::default()
    }
}
