//! Loads the programs of packets: for each link layer one set, over the maps of the socket programs.
//!
//! Invariant: the programs of all layers share their maps and their variables.

#[cfg(test)]
use std::cell::OnceCell;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use libbpf_rs::libbpf_sys::BPF_F_XDP_HAS_FRAGS;
use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};
use libbpf_rs::{MapCore, MapHandle, OpenObject};

use super::{autoload_only, clone_fd, collect_made, prepare_maps, spawn_load};
use crate::abi;
use crate::error::StartError;
use crate::map::{self, Map, MapHandles, MapSize};
use crate::packets::{self, PacketSwitches};
use crate::pins::{NamedObject, ProgramSet, ProgramSetContent};
use crate::skeleton::packet::types;
use crate::skeleton::{PacketSkel, PacketSkelBuilder, XdpSkelBuilder};

/// The functions of a layer's programs.
const INGRESS: &str = "packet_in";
const EGRESS: &str = "packet_out";
const POD_EGRESS: &str = "packet_back";
const XDP: &str = "packet_xdp";
/// The pin of the programs' variables.
const VARIABLES: &str = "variables";

/// The header that packets at a device begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum LinkLayer {
    /// The Ethernet header.
    Ethernet,
    /// The IP header: a tunnel.
    Ip,
}

impl LinkLayer {
    #[cfg(test)]
    pub(crate) const ALL: [Self; 2] = [Self::Ethernet, Self::Ip];

    /// The name of a program's pin.
    fn pin_name(self, function: &str) -> String {
        let layer = match self {
            Self::Ethernet => "ethernet",
            Self::Ip => "ip",
        };
        format!("{layer}-{function}")
    }

    const fn header_length(self) -> u32 {
        match self {
            Self::Ethernet => 14,
            Self::Ip => 0,
        }
    }
}

/// The programs of a device: for ingress, for egress, and for pods' egress on the fast path.
#[derive(Debug)]
pub(crate) struct PacketPrograms {
    pub(crate) layer: LinkLayer,
    pub(crate) ingress: OwnedFd,
    pub(crate) egress: OwnedFd,
    pub(crate) pod_egress: OwnedFd,
    /// `None`: the layer has no such program, because drivers pass Ethernet frames to it.
    pub(crate) xdp: Option<XdpProgram>,
}

/// The XDP program over the maps of the others. Few nodes use it, so it loads when the first device wants it.
#[derive(Debug)]
pub(crate) struct XdpProgram {
    maps: MapHandles,
    loaded: OnceLock<Result<OwnedFd, String>>,
}

impl XdpProgram {
    /// `found`: the program that a former daemon pinned.
    fn new(layer: LinkLayer, maps: &MapHandles, found: Option<OwnedFd>) -> Result<Option<Self>, StartError> {
        if layer != LinkLayer::Ethernet {
            return Ok(None);
        }
        let loaded = found.map_or_else(OnceLock::new, |program| OnceLock::from(Ok(program)));
        Ok(Some(Self { maps: map::clone_handles(maps)?, loaded }))
    }

    /// Loads the program at the first call. Where the kernel takes none, the next start tries again.
    pub(crate) fn load(&self) -> Result<BorrowedFd<'_>, &String> {
        let load = || load_xdp(&self.maps).map_err(|error| error.to_string());
        self.loaded.get_or_init(load).as_ref().map(AsFd::as_fd)
    }

    /// The program, if it has loaded.
    fn loaded(&self) -> Option<BorrowedFd<'_>> {
        self.loaded.get()?.as_ref().ok().map(AsFd::as_fd)
    }
}

/// The programs for Ethernet that a test runs by hand. The verifier takes long for each, and few tests run all: those
/// for pods' egress and for XDP load when they are first run.
#[cfg(test)]
pub(crate) struct EthernetPrograms {
    pub(crate) ingress: OwnedFd,
    pub(crate) egress: OwnedFd,
    pod_egress: OnceCell<OwnedFd>,
    xdp: OnceCell<OwnedFd>,
    load: (MapHandles, MapHandle, PacketConstants),
}

#[cfg(test)]
impl EthernetPrograms {
    pub(crate) fn load(
        given: &MapHandles,
        flows: u32,
        switches: &PacketSwitches,
    ) -> Result<(Self, MapHandles), StartError> {
        let mut maps = map::clone_handles(given)?;
        let flows = maps.get(&Map::Flows).map_or(flows, MapHandle::max_entries);
        let constants = PacketConstants::new(flows, switches);
        let layer = PacketLoad { layer: LinkLayer::Ethernet, constants: &constants };
        let variables = layer.make_layer_maps(&mut maps)?;
        let (ingress, egress) = std::thread::scope(|scope| {
            let egress = spawn_load(scope, || {
                layer.load_object(&maps, Some(&variables), &[EGRESS], |it| clone_fd(&it.progs.packet_out))
            });
            let ingress =
                layer.load_object(&maps, Some(&variables), &[INGRESS], |it| clone_fd(&it.progs.packet_in));
            (ingress, egress())
        });
        let (ingress, egress) = (ingress?, egress?);
        let load = (map::clone_handles(&maps)?, variables, constants);
        Ok((Self { ingress, egress, pod_egress: OnceCell::new(), xdp: OnceCell::new(), load }, maps))
    }

    pub(crate) fn pod_egress(&self) -> &OwnedFd {
        let (maps, variables, constants) = &self.load;
        let layer = PacketLoad { layer: LinkLayer::Ethernet, constants };
        let back = |it: &PacketSkel<'_>| clone_fd(&it.progs.packet_back);
        self.pod_egress.get_or_init(|| layer.load_object(maps, Some(variables), &[POD_EGRESS], back).unwrap())
    }

    pub(crate) fn xdp(&self) -> &OwnedFd {
        self.xdp.get_or_init(|| load_xdp(&self.load.0).unwrap())
    }
}

impl PacketPrograms {
    /// Opens the programs of a layer. `None`: not all of them are there.
    fn open(layer: LinkLayer, set: &ProgramSet, maps: &MapHandles) -> Option<Self> {
        let open = |function| set.open_program(&layer.pin_name(function), function);
        Some(Self {
            layer,
            ingress: open(INGRESS)?,
            egress: open(EGRESS)?,
            pod_egress: open(POD_EGRESS)?,
            xdp: XdpProgram::new(layer, maps, open(XDP)).ok()?,
        })
    }

    fn iter(&self) -> impl Iterator<Item = NamedObject<'_>> {
        let all = [
            (INGRESS, Some(self.ingress.as_fd())),
            (EGRESS, Some(self.egress.as_fd())),
            (POD_EGRESS, Some(self.pod_egress.as_fd())),
            (XDP, self.xdp.as_ref().and_then(XdpProgram::loaded)),
        ];
        all.into_iter().filter_map(|(function, program)| Some((self.layer.pin_name(function), program?)))
    }
}

/// The maps that the programs of packets alone use.
#[derive(Debug)]
pub(crate) struct ProgramMaps {
    maps: MapHandles,
    variables: MapHandle,
}

impl ProgramMaps {
    /// Opens the maps of a set. `None`: not all of them are there.
    fn open(set: &ProgramSet) -> Option<Self> {
        let open = |map: Map| Some((map, set.open_map(map.name())?));
        let maps = Map::program_maps().map(open).collect::<Option<_>>()?;
        Some(Self { maps, variables: set.open_map(VARIABLES)? })
    }

    fn iter(&self) -> impl Iterator<Item = NamedObject<'_>> {
        let maps = self.maps.iter().map(|(map, handle)| (map.name(), handle));
        let all = maps.chain([(VARIABLES, &self.variables)]);
        all.map(|(name, handle)| (name.to_owned(), handle.as_fd()))
    }
}

/// The programs of all layers that were asked for.
#[derive(Debug)]
pub(crate) struct LoadedPackets {
    pub(crate) programs: Vec<PacketPrograms>,
    pub(crate) maps: ProgramMaps,
}

/// What a set of packet programs has to hold.
pub(crate) fn list_packet_set<'a>(
    programs: &'a [PacketPrograms],
    maps: &'a ProgramMaps,
) -> ProgramSetContent<'a> {
    ProgramSetContent {
        programs: programs.iter().flat_map(PacketPrograms::iter).collect(),
        maps: maps.iter().collect(),
    }
}

/// Loads the packet programs of each layer that the set `found` lacks, and opens the others. Uses the given maps, and
/// creates missing ones. A new flow table holds `flows` flows; a given one keeps its size.
pub(crate) fn load_packets(
    layers: &[LinkLayer],
    given: &MapHandles,
    (flows, switches): (u32, &PacketSwitches),
    found: Option<&ProgramSet>,
) -> Result<(LoadedPackets, MapHandles), StartError> {
    let mut maps = map::clone_handles(given)?;
    let flows = maps.get(&Map::Flows).map_or(flows, MapHandle::max_entries);
    let constants = &PacketConstants::new(flows, switches);
    let found = found.and_then(|set| Some((set, ProgramMaps::open(set)?)));
    let (set, own) = match found {
        Some((set, own)) => (Some(set), own),
        None => (None, PacketLoad { layer: LinkLayer::Ethernet, constants }.make_program_maps(&mut maps)?),
    };
    maps.extend(map::clone_handles(&own.maps)?);
    let load = |layer: &LinkLayer| {
        let found = set.and_then(|set| PacketPrograms::open(*layer, set, &maps));
        let load = || PacketLoad { layer: *layer, constants }.load_layer(&maps, &own.variables);
        found.map_or_else(load, Ok)
    };
    let programs = layers.iter().map(load).collect::<Result<_, _>>()?;
    Ok((LoadedPackets { programs, maps: own }, maps))
}

pub(crate) fn make_packet_maps(
    given: &MapHandles,
    (flows, switches): (u32, &PacketSwitches),
) -> Result<MapHandles, StartError> {
    let mut maps = map::clone_handles(given)?;
    let constants = &PacketConstants::new(flows, switches);
    PacketLoad { layer: LinkLayer::Ethernet, constants }.make_layer_maps(&mut maps)?;
    Ok(maps)
}

#[derive(Clone, Copy)]
struct PacketLoad<'a> {
    layer: LinkLayer,
    constants: &'a PacketConstants,
}

impl PacketLoad<'_> {
    /// Loads the programs over these maps, in parallel: the verifier takes longer for `packet_in` than for all others.
    fn load_layer(self, maps: &MapHandles, variables: &MapHandle) -> Result<PacketPrograms, StartError> {
        let layer = self.layer;
        std::thread::scope(|scope| {
            let others = spawn_load(scope, move || self.load_egress(maps, variables));
            let ingress =
                self.load_object(maps, Some(variables), &[INGRESS], |it| clone_fd(&it.progs.packet_in));
            let [egress, pod_egress] = others()?;
            let xdp = XdpProgram::new(layer, maps, None)?;
            Ok(PacketPrograms { layer, ingress: ingress?, egress, pod_egress, xdp })
        })
    }

    /// Creates only the missing maps. Returns the map of variables, which the programs of all layers share: a client
    /// may arrive at a device of one layer, and its backend's replies at one of another.
    fn make_layer_maps(self, maps: &mut MapHandles) -> Result<MapHandle, StartError> {
        let given = map::clone_handles(&*maps)?;
        self.load_object(&given, None, &[], |made| {
            collect_made(made.object(), maps)
                .and_then(|()| MapHandle::try_from(&made.maps.bss))
                .map_err(StartError::from_load)
        })
    }

    /// Creates the missing maps, and returns those that only these programs use.
    fn make_program_maps(self, maps: &mut MapHandles) -> Result<ProgramMaps, StartError> {
        let variables = self.make_layer_maps(maps)?;
        let own = Map::program_maps().filter_map(|map| maps.get_key_value(&map));
        Ok(ProgramMaps { maps: map::clone_handles(own)?, variables })
    }

    fn load_egress(self, maps: &MapHandles, variables: &MapHandle) -> Result<[OwnedFd; 2], StartError> {
        self.load_object(maps, Some(variables), &[EGRESS, POD_EGRESS], |it| {
            Ok([clone_fd(&it.progs.packet_out)?, clone_fd(&it.progs.packet_back)?])
        })
    }

    /// Loads these programs. The object ends after `then`.
    fn load_object<T>(
        self,
        maps: &MapHandles,
        variables: Option<&MapHandle>,
        programs: &[&str],
        then: impl FnOnce(&PacketSkel<'_>) -> Result<T, StartError>,
    ) -> Result<T, StartError> {
        let mut memory = MaybeUninit::<OpenObject>::uninit();
        let mut open = PacketSkelBuilder::default().open(&mut memory).map_err(StartError::from_load)?;
        if let Some(rodata) = open.maps.rodata_data.as_mut() {
            rodata.link_header = self.layer.header_length();
            self.constants.write_to(rodata);
        }
        if let Some(variables) = variables {
            open.maps.bss.reuse_fd(variables.as_fd()).map_err(StartError::from_load)?;
        } else if let Some(variables) = open.maps.bss_data.as_mut() {
            variables.has_bridge_port = packets::has_bridge_port(maps).into();
        }
        prepare_maps(open.open_object_mut(), MapSize::Flows(self.constants.max_flows), maps)?;
        autoload_only(programs, open.open_object_mut());
        then(&OpenSkel::load(open).map_err(StartError::from_load)?)
    }
}

/// What the programs of all link layers are compiled for. The name of their pinned set has all of it.
#[derive(Debug)]
pub(crate) struct PacketConstants {
    max_flows: u32,
    forward_mark: u32,
    has_dsr_from: bool,
    /// The node networks for DSR, each as an address and a mask.
    dsr_from4: Vec<u32>,
    dsr_from6: Vec<u32>,
    dsr_transports: u32,
}

impl PacketConstants {
    pub(crate) fn new(max_flows: u32, switches: &PacketSwitches) -> Self {
        let encode_family = |is_v4| {
            let networks = switches.dsr_from.iter().filter(|network| network.address().is_ipv4() == is_v4);
            networks.flat_map(|network| abi::packets::encode_network(*network)).collect()
        };
        Self {
            max_flows,
            forward_mark: switches.forward_mark,
            has_dsr_from: !switches.dsr_from.is_empty(),
            dsr_from4: encode_family(true),
            dsr_from6: encode_family(false),
            dsr_transports: packets::encode_dsr_transports(switches.dsr_transports),
        }
    }

    fn write_to(&self, rodata: &mut types::rodata) {
        let Self { max_flows, forward_mark, has_dsr_from, dsr_from4, dsr_from6, dsr_transports } = self;
        rodata.max_flows = *max_flows;
        rodata.forward_mark = *forward_mark;
        rodata.has_dsr_from = *has_dsr_from;
        rodata.dsr_transports = *dsr_transports;
        rodata.dsr_from4.iter_mut().zip(dsr_from4).for_each(|(to, from)| *to = *from);
        rodata.dsr_from6.iter_mut().zip(dsr_from6).for_each(|(to, from)| *to = *from);
    }
}

/// Loads the XDP program over the given maps, with support for multi-buffer frames if the kernel has it (Linux 5.18):
/// drivers with long frames accept no other program.
fn load_xdp(maps: &MapHandles) -> Result<OwnedFd, StartError> {
    let with_frags = |mut program: libbpf_rs::OpenProgramMut<'_>| program.set_flags(BPF_F_XDP_HAS_FRAGS);
    match load_xdp_as(maps, true, with_frags) {
        // The weaker program would stay pinned.
        Err(StartError::ShortOfResources(error)) => Err(StartError::ShortOfResources(error)),
        loaded => loaded.or_else(|_| load_xdp_as(maps, false, |_| ())),
    }
}

/// Loads the XDP program with or without support for multi-buffer frames.
pub(crate) fn load_xdp_as(
    maps: &MapHandles,
    has_frags: bool,
    each: impl FnMut(libbpf_rs::OpenProgramMut<'_>),
) -> Result<OwnedFd, StartError> {
    let mut memory = MaybeUninit::<OpenObject>::uninit();
    let mut open = XdpSkelBuilder::default().open(&mut memory).map_err(StartError::from_load)?;
    if let Some(switches) = open.maps.rodata_data.as_mut() {
        switches.has_frags = has_frags;
    }
    prepare_maps(open.open_object_mut(), MapSize::Flows(1), maps)?;
    open.open_object_mut().progs_mut().for_each(each);
    let loaded = OpenSkel::load(open).map_err(StartError::from_load)?;
    clone_fd(&loaded.progs.packet_xdp)
}

/// [`make_packet_maps`] with the default switches.
#[cfg(test)]
pub(crate) fn make_default_packet_maps(given: &MapHandles, flows: u32) -> Result<MapHandles, StartError> {
    make_packet_maps(given, (flows, &PacketSwitches::default()))
}

/// Creates the packet maps, and loads the programs that `each` selects.
#[cfg(test)]
pub(crate) fn load_packets_as(
    given: &MapHandles,
    flows: u32,
    each: impl FnMut(libbpf_rs::OpenProgramMut<'_>),
) -> Result<MapHandles, StartError> {
    let mut maps = map::clone_handles(given)?;
    let mut memory = MaybeUninit::<OpenObject>::uninit();
    let mut open = PacketSkelBuilder::default().open(&mut memory).map_err(StartError::from_load)?;
    prepare_maps(open.open_object_mut(), MapSize::Flows(flows), &maps)?;
    open.open_object_mut().progs_mut().for_each(each);
    let loaded = OpenSkel::load(open).map_err(StartError::from_load)?;
    collect_made(loaded.object(), &mut maps).map_err(StartError::from_load)?;
    Ok(maps)
}
