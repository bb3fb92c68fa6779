//! From nothing, or from what a former daemon left, to maps that work.
//!
//! Invariant: programs go into place only when their maps hold what the maps of the former programs held; so where
//! another version serves, they wait.

use std::path::PathBuf;

use holdfast_core::maps::Capacity;
use holdfast_core::op::MapGrowth;
use holdfast_status::datapath::{Features, Served, Shape};

use libbpf_rs::MapHandle;

use super::ahead::Ahead;
use super::cluster_ips::ClusterIps;
use super::exempt::Exempt;
use super::first::First;
use super::packets::Packets;
use super::refused::RefusedGrowths;
use super::sources::Sources;
use super::stale::{Stale, StaleSockets};
use super::{Attached, KernelMaps, SelfTestError, dump};
use crate::abi::types;
use crate::cgroup::{self, Cgroup};
use crate::error::StartError;
use crate::generation::Generation;
use crate::grace::GracePeriods;
use crate::links::Links;
use crate::load::{self, Programs};
use crate::map::{self, Handles};
use crate::packets::PacketOptions;
use crate::pins::{Pins, VERSION};
use crate::probe;
use crate::shape::Growth;
use crate::shared::{self, Shared};
use crate::sys;

/// What the datapath has to know before it starts.
#[derive(Clone, Debug)]
pub struct Options {
    /// The cgroup in which sockets get the services; `None`: the root of the host's cgroup v2 hierarchy.
    pub cgroup: Option<PathBuf>,
    /// Where everything is pinned: a folder on a BPF file system, or one that can be made there.
    pub bpffs: PathBuf,
    /// How much the maps may hold.
    pub capacity: Capacity,
    /// What new maps are made large enough for, beside a few hundred services: what is known to come soon. Later they
    /// would grow for it, and the programs be loaded once more.
    pub expected: MapGrowth,
    /// The mark of the daemon's own sockets; 0: none.
    pub mark: u32,
    /// Which sockets end when their backend leaves.
    pub stale_sockets: StaleSockets,
    /// The sockets that are served.
    pub served: Served,
    /// How packets are translated; `None`: only sockets are served.
    pub packets: Option<PacketOptions>,
}

/// Why another daemon's programs stay in place.
#[derive(Debug, thiserror::Error)]
pub enum TakeOverError {
    /// Ours are not attached.
    #[error(transparent)]
    Start(#[from] StartError),
    /// Ours do not do what they must.
    #[error(transparent)]
    SelfTest(#[from] SelfTestError),
}

impl Attached {
    /// Whether the programs may serve at once: over empty maps they would take from clients what other maps give them.
    fn may_serve(&self) -> bool {
        self.pins.has_generation() || !self.pins.has_links(self.links.site())
    }

    /// Pins the maps, and attaches the programs. Other versions' pins go before their programs do: what is pinned is
    /// always fit to be adopted.
    fn serve(&mut self, programs: &Programs<'_>, maps: &mut Handles) -> Result<(), StartError> {
        self.pins.pin(maps)?;
        self.pins.forget_versions()?;
        if let Err(error) = self.links.attach_all(programs, &self.pins) {
            self.links.withdraw(&self.pins);
            return Err(error);
        }
        self.pins.forget_older();
        Ok(())
    }
}

impl Attached {
    /// Until this daemon takes over, the programs of another version exempt it in place of their own daemon, which is
    /// gone. A version with an unreadable control is told nothing; its programs never lead to an apiserver anyway.
    fn tell_others(&self) {
        for pin in self.pins.other_controls() {
            if let Ok(control) = MapHandle::from_pinned_path(&pin) {
                shared::exempt_in(&control, &self.told);
            }
        }
    }
}

impl KernelMaps {
    /// Takes over what a former daemon left, or begins anew, and attaches the programs.
    pub fn start(options: &Options) -> Result<Self, StartError> {
        libbpf_rs::set_print(None);
        Self::start_as(options, probe::features()?, VERSION)
    }

    /// Starts as a daemon of that version would on a kernel with these features.
    pub(crate) fn start_as(options: &Options, features: Features, version: u32) -> Result<Self, StartError> {
        let cgroup = Cgroup::open(options.cgroup.as_deref())?;
        let pins = Pins::open(&options.bpffs, version)?;
        let first = Shape::for_expected(&options.expected, &Shape::limits(options.capacity));
        let told = control(options, &cgroup);
        let mut packets = Packets::new(options.packets.clone().map(|packets| packets.on(features)));
        let maps = load::maps(first, features, &pins.adopt()?)?;
        let links = Links::none(cgroup);
        let mut attached =
            Attached { pins, links, told, before: told, seen: None, put_back: 0, failure: None };
        if attached.may_serve() {
            packets.first =
                First::at_start((packets.layers(), packets.options.as_ref()), &attached.pins, &maps);
        }
        load::load(first, features, &maps, |programs, mut maps| {
            let mut this = Self::over(&maps, features, options.capacity)?;
            attached.before = this.shared.control();
            this.packets = packets;
            if options.packets.is_some() {
                let shares = || dump::shares(&this.generation);
                this.sources = Sources::adopt(&attached.pins.adopt_packets()?, shares)?;
            } else {
                this.shared.note_flows([]);
            }
            this.exempt = Exempt::new(&options.served, &maps)?;
            this.exempt.follow()?;
            this.cluster_ips.begin(this.shared.handles())?;
            this.shared.tell(&told);
            if attached.may_serve() {
                attached.serve(programs, &mut maps)?;
            } else {
                attached.tell_others();
            }
            this.attached = Some(attached);
            this.stale = Stale::start(options.stale_sockets, &this.shared)?;
            Ok(this)
        })
    }

    /// Puts the programs in the place of another daemon's, once the maps hold what clients need, and proves them.
    pub fn take_over(&mut self) -> Result<(), TakeOverError> {
        let Self { generation, shared, attached, features, .. } = self;
        if let Some(attached) = attached.as_mut().filter(|attached| !attached.links.are_attached()) {
            let mut maps = map::copies(shared.handles().iter().chain(generation.handles()))?;
            let given = map::copies(&maps)?;
            load::load(generation.shape, *features, &given, |programs, _| {
                attached.serve(programs, &mut maps)
            })?;
        }
        Ok(self.self_test()?)
    }

    /// Maps with no program attached and no pin: they are gone with this value.
    pub fn unattached(capacity: Capacity) -> Result<Self, StartError> {
        libbpf_rs::set_print(None);
        let features = probe::features()?;
        let first = Shape::first(Shape::limits(capacity));
        load::load(first, features, &Handles::new(), |_, maps| Self::over(&maps, features, capacity))
    }

    fn over(maps: &Handles, features: Features, capacity: Capacity) -> Result<Self, StartError> {
        let generation = Generation::new(maps)?;
        let found = dump::frontends(&generation);
        let found = found.map_err(|source| StartError::Map { attempt: "read", map: "frontends", source })?;
        let cluster_ips = ClusterIps::of(&found);
        let found: Vec<_> = found.iter().map(|(key, _)| *key).collect();
        Ok(Self {
            // What was found may be larger than the limits of today.
            limits: Shape::limits(capacity).or_larger(generation.shape),
            shared: Shared::new(maps, &found)?,
            grace: GracePeriods::start().map_err(StartError::loading)?,
            generation,
            features,
            capacity,
            reached: Shape::NONE,
            growths: 0,
            ahead: Ahead::default(),
            refused: RefusedGrowths::default(),
            attached: None,
            stale: None,
            exempt: Exempt::new(&Served::default(), maps)?,
            packets: Packets::default(),
            flows: None,
            sources: Sources::default(),
            cluster_ips,
            reading: Vec::new(),
        })
    }
}

/// What the programs are told: to exempt the daemon's mark and its cgroup. A daemon that is in the very cgroup that it
/// serves has no cgroup of its own.
fn control(options: &Options, cgroup: &Cgroup) -> types::control {
    let own = cgroup::own_id().filter(|own| *own != cgroup.id());
    types::control {
        exempt_cgroup: own.map_or(0, |own| own.0),
        host_netns: sys::own_netns_cookie().unwrap_or_default(),
        exempt_mark: options.mark,
        restrictions: super::exempt::restrictions(&options.served),
        ..types::control::default()
    }
}
