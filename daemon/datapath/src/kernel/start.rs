//! From nothing, or from what a former daemon left, to maps that work.
//!
//! Invariant: programs go into place only when they have maps that hold what the former ones held. Deliberately absent:
//! deciding what should be in the maps.

use std::collections::BTreeSet;
use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::path::PathBuf;

use holdfast_core::world::Capacity;

use super::{Attached, KernelMaps, dump};
use crate::abi::types;
use crate::cgroup::{self, Cgroup};
use crate::error::StartError;
use crate::generation::Generation;
use crate::grace::GracePeriods;
use crate::links::Links;
use crate::load::{self, Maps};
use crate::pins::Pins;
use crate::probe::Features;
use crate::shape::Shape;
use crate::shared::Shared;
use crate::sys;

/// What the datapath has to know before it starts.
#[derive(Clone, Debug)]
pub struct Options {
    /// The cgroup whose sockets get the services; `None`: the root of the host's cgroup v2 hierarchy.
    pub cgroup: Option<PathBuf>,
    /// Where everything is pinned: a folder on a BPF file system, or one that can be made there.
    pub bpffs: PathBuf,
    /// How much the maps may hold.
    pub capacity: Capacity,
    /// The mark of the daemon's own sockets; 0: none.
    pub mark: u32,
}

impl KernelMaps {
    /// Takes over what a former daemon left, or begins anew, and attaches the programs.
    pub fn start(options: &Options) -> Result<Self, StartError> {
        libbpf_rs::set_print(None);
        Self::start_with(options, Features::probe()?)
    }

    /// As on a kernel with these features.
    pub(crate) fn start_with(options: &Options, features: Features) -> Result<Self, StartError> {
        let cgroup = Cgroup::open(options.cgroup.as_deref())?;
        let mut pins = Pins::open(&options.bpffs)?;
        let first = Shape::first(Shape::limits(options.capacity));
        let told = control(options.mark, &cgroup);
        load::load(first, features, &pins.adopt()?, |object, mut maps| {
            pins.pin_shared(&mut maps)?;
            if !pins.has_generation() {
                pins.pin_generation(&mut maps)?;
            }
            let mut this = Self::over(&maps, features, options.capacity)?;
            this.shared.tell(&told);
            let links = Links::attach(object, cgroup, &pins)?;
            pins.forget_older()?;
            this.attached = Some(Attached { pins, links });
            Ok(this)
        })
    }

    /// Maps with no program attached and no pin: they are gone with this value.
    pub fn unattached(capacity: Capacity) -> Result<Self, StartError> {
        libbpf_rs::set_print(None);
        let features = Features::probe()?;
        let first = Shape::first(Shape::limits(capacity));
        load::load(first, features, &Maps::new(), |_, maps| Self::over(&maps, features, capacity))
    }

    fn over(maps: &Maps, features: Features, capacity: Capacity) -> Result<Self, StartError> {
        let generation = Generation::new(maps)?;
        let found = dump::frontends(&generation);
        let found = found.map_err(|source| StartError::Map { attempt: "read", map: "frontends", source })?;
        let wildcards: BTreeSet<_> =
            found.iter().map(|(key, _)| *key).filter(|key| key.address.is_unspecified()).collect();
        Ok(Self {
            // What was found may be larger than the limits of today.
            limits: Shape::limits(capacity).or_larger(generation.shape),
            shared: Shared::new(maps, wildcards)?,
            grace: GracePeriods::start().map_err(StartError::Load)?,
            generation,
            features,
            capacity,
            reached: Shape::NONE,
            growths: 0,
            attached: None,
        })
    }
}

/// Exempts the daemon's mark and its cgroup. A daemon that is in the very cgroup that it serves has no cgroup of its own.
fn control(mark: u32, cgroup: &Cgroup) -> types::control {
    let own = cgroup::own_id().filter(|own| *own != cgroup.id());
    let host = UdpSocket::bind("127.0.0.1:0").ok().and_then(|socket| sys::netns_cookie(socket.as_fd()));
    types::control {
        exempt_cgroup: own.map_or(0, |own| own.0),
        host_netns: host.unwrap_or_default(),
        exempt_mark: mark,
        ..types::control::default()
    }
}
