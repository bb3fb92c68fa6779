//! Loads the compiled programs: sets sizes and switches, and reuses existing maps.
//!
//! Invariant: a load changes nothing that is attached.

#[cfg(test)]
use std::cell::OnceCell;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread::{Builder, Scope};

use holdfast_status::datapath::{Features, MapSizes};
use libbpf_rs::libbpf_sys::BPF_F_XDP_HAS_FRAGS;
use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};
use libbpf_rs::{MapCore, MapHandle, Object, OpenMapMut, OpenObject, ProgramMut, libbpf_sys};

use crate::abi;
use crate::error::StartError;
use crate::ipv6;
use crate::map::{self, Map, MapHandles, MapSize};
use crate::packets::{self, PacketSwitches};
use crate::site::Site;
use crate::skeleton::packet::types;
use crate::skeleton::{
    OpenTcpResetSkel, PacketSkel, PacketSkelBuilder, SocketSkelBuilder, TcpResetSkelBuilder, XdpSkelBuilder,
};

type OpenedObject<'a> = Box<dyn LoadableObject<'a> + 'a>;

type ObjectOpener =
    for<'a> fn(&'a mut MaybeUninit<OpenObject>, Features) -> Result<OpenedObject<'a>, StartError>;

/// The objects with programs for sites. All share the same maps. (The others load separately, because a kernel may lack
/// their features: `udp_iter.bpf.c` by `kernel::stale`, `tcp_reset.bpf.c` by `kernel::refused_connects`, `packet.bpf.c`
/// and `xdp.bpf.c` by `load_packets`.)
const OBJECTS: [ObjectOpener; 1] = [open_socket_object];

/// A program that uses every switch.
const PROBE_PROGRAM: &str = "connect4";

/// The interface of all open skeletons.
trait LoadableObject<'a> {
    fn object(&mut self) -> &mut OpenObject;
    fn load(self: Box<Self>) -> Result<Box<dyn Skel<'a> + 'a>, libbpf_rs::Error>;
}

impl<'a, S: OpenSkel<'a>> LoadableObject<'a> for S
where
    S::Output: 'a,
{
    fn object(&mut self) -> &mut OpenObject {
        self.open_object_mut()
    }

    fn load(self: Box<Self>) -> Result<Box<dyn Skel<'a> + 'a>, libbpf_rs::Error> {
        Ok(Box::new(OpenSkel::load(*self)?))
    }
}

fn open_socket_object(
    memory: &mut MaybeUninit<OpenObject>,
    features: Features,
) -> Result<OpenedObject<'_>, StartError> {
    let mut open = SocketSkelBuilder::default().open(memory).map_err(StartError::from_load)?;
    if let Some(switches) = open.maps.rodata_data.as_mut() {
        switches.has_set_retval = features.set_retval;
    }
    Ok(Box::new(open))
}

pub(crate) struct Programs<'a>(Vec<Box<dyn Skel<'a> + 'a>>);

impl Programs<'_> {
    /// The programs of a site, each with its hook.
    pub(crate) fn for_site(&self, site: &impl Site) -> Vec<(&'static str, ProgramMut<'_>)> {
        let programs = self.0.iter().flat_map(|object| object.object().progs_mut());
        programs.filter_map(|program| pair_with_hook(site, program)).collect()
    }
}

impl Programs<'_> {
    /// Clones all programs, so that they outlive the objects.
    pub(crate) fn clone_programs(&self) -> Result<LoadedPrograms, StartError> {
        let programs = self.0.iter().flat_map(|object| object.object().progs());
        let cloned = programs.map(|program| {
            let fd = program.as_fd().try_clone_to_owned()?;
            Ok((program.name().to_string_lossy().into_owned(), fd))
        });
        let programs = cloned.collect::<io::Result<_>>();
        programs.map(LoadedPrograms).map_err(|error| StartError::from_load(error.into()))
    }
}

/// Loaded programs by name, which may move to another thread.
#[derive(Debug)]
pub(crate) struct LoadedPrograms(Vec<(String, OwnedFd)>);

impl LoadedPrograms {
    /// The program of a hook; it has the hook's name.
    pub(crate) fn find_program(&self, hook: &str) -> Option<BorrowedFd<'_>> {
        self.0.iter().find(|(name, _)| name == hook).map(|(_, fd)| fd.as_fd())
    }
}

fn pair_with_hook<'a>(site: &impl Site, program: ProgramMut<'a>) -> Option<(&'static str, ProgramMut<'a>)> {
    let hook = site.hooks().find(|hook| program.name() == *hook)?;
    Some((hook, program))
}

/// Loads the programs. Uses the given maps, and creates missing ones.
///
/// The programs end after `then`, unless a link holds them.
pub(crate) fn load_programs<T>(
    shape: MapSizes,
    features: Features,
    given: &MapHandles,
    then: impl FnOnce(&Programs<'_>, MapHandles) -> Result<T, StartError>,
) -> Result<T, StartError> {
    let mut memory = [const { MaybeUninit::uninit() }; OBJECTS.len()];
    let mut maps = map::clone_handles(given)?;
    let programs = load_objects(&OBJECTS, &mut memory, (shape, features), &mut maps)?;
    then(&programs, maps)
}

/// Creates the missing maps without loading programs: parallel loads need the same maps.
pub(crate) fn make_maps(
    shape: MapSizes,
    features: Features,
    given: &MapHandles,
) -> Result<MapHandles, StartError> {
    let mut maps = map::clone_handles(given)?;
    for open in OBJECTS {
        let mut memory = MaybeUninit::<OpenObject>::uninit();
        let mut object = open(&mut memory, features)?;
        prepare_maps(object.object(), MapSize::Generation(shape), &maps)?;
        autoload_only(&[], object.object());
        let loaded = object.load().map_err(StartError::from_load)?;
        collect_made(loaded.object(), &mut maps).map_err(StartError::from_load)?;
    }
    Ok(maps)
}

/// Creates only the maps that are kept with sockets.
pub(crate) fn make_socket_maps(features: Features) -> Result<MapHandles, StartError> {
    let is_socket_map = |map: &Map| Map::socket_maps().any(|it| it == *map);
    let mut memory = MaybeUninit::<OpenObject>::uninit();
    let mut object = open_socket_object(&mut memory, features)?;
    for mut map in object.object().maps_mut() {
        let is_other = Map::from_name(&map.name().to_string_lossy()).is_some_and(|map| !is_socket_map(&map));
        if is_other {
            map.set_autocreate(false).map_err(StartError::from_load)?;
        }
    }
    autoload_only(&[], object.object());
    let loaded = object.load().map_err(StartError::from_load)?;
    let maps = loaded.object().maps().filter_map(|map| {
        let which = Map::from_name(&map.name().to_string_lossy()).filter(is_socket_map)?;
        Some(MapHandle::try_from(&map).map(|handle| (which, handle)))
    });
    maps.collect::<Result<_, _>>().map_err(StartError::from_load)
}

/// Opens the program for refused connects over the given maps. It creates only the map that is its own.
pub(crate) fn open_tcp_reset<'a>(
    memory: &'a mut MaybeUninit<OpenObject>,
    seed: u64,
    given: &MapHandles,
) -> Result<OpenTcpResetSkel<'a>, StartError> {
    let mut open = TcpResetSkelBuilder::default().open(memory).map_err(StartError::from_load)?;
    if let Some(switches) = open.maps.rodata_data.as_mut() {
        switches.hash_seed = seed;
    }
    map::find_handle(given, Map::Reverse)?;
    let reverse = map::clone_handles(given.get_key_value(&Map::Reverse))?;
    prepare_maps(open.open_object_mut(), MapSize::Flows(1), &reverse)?;
    for mut map in open.open_object_mut().maps_mut() {
        if Map::from_name(&map.name().to_string_lossy()).is_some_and(|it| it != Map::Reverse) {
            map.set_autocreate(false).map_err(StartError::from_load)?;
        }
    }
    Ok(open)
}

fn autoload_only(wanted: &[&str], object: &mut OpenObject) {
    for mut program in object.progs_mut() {
        let is_wanted = wanted.iter().any(|name| program.name() == *name);
        program.set_autoload(is_wanted);
    }
}

/// Starts a load on its own thread, and returns the function that waits for it. Without a thread, that function loads.
fn spawn_load<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    load: impl Fn() -> Result<T, StartError> + Clone + Send + 'scope,
) -> impl FnOnce() -> Result<T, StartError> {
    let thread = Builder::new().name("load".to_owned()).spawn_scoped(scope, load.clone());
    move || match thread {
        Ok(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
        Err(_) => load(),
    }
}

/// Loads the objects in order, each over the maps of the former ones.
fn load_objects<'a>(
    objects: &[ObjectOpener],
    memory: &'a mut [MaybeUninit<OpenObject>],
    (shape, features): (MapSizes, Features),
    maps: &mut MapHandles,
) -> Result<Programs<'a>, StartError> {
    let mut loaded = Vec::new();
    for (open, memory) in objects.iter().zip(memory) {
        let mut object = open(memory, features)?;
        prepare_maps(object.object(), MapSize::Generation(shape), maps)?;
        let object = object.load().map_err(StartError::from_load)?;
        collect_made(object.object(), maps).map_err(StartError::from_load)?;
        loaded.push(object);
    }
    Ok(Programs(loaded))
}

fn prepare_maps(object: &mut OpenObject, size: MapSize, given: &MapHandles) -> Result<(), StartError> {
    for mut map in object.maps_mut() {
        let Some(which) = Map::from_name(&map.name().to_string_lossy()) else { continue };
        if let Some(given) = given.get(&which) {
            check_map_kind(&map, which, given)?;
            map.reuse_fd(given.as_fd()).map_err(StartError::from_load)?;
        } else if let Some(entries) = which.max_entries(size) {
            map.set_max_entries(entries).map_err(StartError::from_load)?;
            if which == Map::Entries6 && !ipv6::has_global_ipv6() {
                map.set_map_flags(libbpf_sys::BPF_F_NO_PREALLOC).map_err(StartError::from_load)?;
            }
        }
    }
    Ok(())
}

/// Refuses a pinned map of another kind: anything may be pinned there.
fn check_map_kind(map: &OpenMapMut<'_>, which: Map, given: &MapHandle) -> Result<(), StartError> {
    let wanted = (map.map_type(), map.key_size(), map.value_size());
    let found = (given.map_type(), given.key_size(), given.value_size());
    if wanted == found {
        return Ok(());
    }
    let source = io::Error::other(format!(
        "it is pinned, but as {found:?} and not {wanted:?}; clients are served as before; `holdfast cleanup` removes all \
         pins, and clients are not served from then until holdfast has started again"
    ));
    Err(StartError::Map { attempt: "adopt", map: which.name(), source })
}

/// Collects the maps created for one object, for the next one.
fn collect_made(object: &Object, maps: &mut MapHandles) -> Result<(), libbpf_rs::Error> {
    for map in object.maps() {
        let made = Map::from_name(&map.name().to_string_lossy()).filter(|map| !maps.contains_key(map));
        if let Some(made) = made {
            maps.insert(made, MapHandle::try_from(&map)?);
        }
    }
    Ok(())
}

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
    /// The XDP program, or why there is none.
    pub(crate) xdp: Result<OwnedFd, String>,
}

/// The programs for Ethernet that a test runs by hand. The verifier takes long for each, and few tests run all: those
/// for pods' egress and for XDP load when they are first run.
#[cfg(test)]
pub(crate) struct EthernetPrograms {
    pub(crate) ingress: OwnedFd,
    pub(crate) egress: OwnedFd,
    pod_egress: OnceCell<OwnedFd>,
    xdp: OnceCell<OwnedFd>,
    load: (MapHandles, MapHandle, u32, PacketSwitches),
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
        let layer = PacketLoad { layer: LinkLayer::Ethernet, flows, switches };
        let variables = layer.make_layer_maps(&mut maps)?;
        let (ingress, egress) = std::thread::scope(|scope| {
            let egress = spawn_load(scope, || {
                layer.load_object(&maps, Some(&variables), &["packet_out"], |it| {
                    clone_fd(&it.progs.packet_out)
                })
            });
            let ingress = layer
                .load_object(&maps, Some(&variables), &["packet_in"], |it| clone_fd(&it.progs.packet_in));
            (ingress, egress())
        });
        let load = (map::clone_handles(&maps)?, variables, flows, switches.clone());
        let (ingress, egress) = (ingress?, egress?);
        Ok((Self { ingress, egress, pod_egress: OnceCell::new(), xdp: OnceCell::new(), load }, maps))
    }

    pub(crate) fn pod_egress(&self) -> &OwnedFd {
        let (maps, variables, flows, switches) = &self.load;
        let layer = PacketLoad { layer: LinkLayer::Ethernet, flows: *flows, switches };
        let back = |it: &PacketSkel<'_>| clone_fd(&it.progs.packet_back);
        self.pod_egress
            .get_or_init(|| layer.load_object(maps, Some(variables), &["packet_back"], back).unwrap())
    }

    pub(crate) fn xdp(&self) -> &OwnedFd {
        self.xdp.get_or_init(|| load_xdp(LinkLayer::Ethernet, &self.load.0).unwrap())
    }
}

/// Loads the packet programs, one set per layer. Uses the given maps, and creates missing ones. A new flow table holds
/// `flows` flows; a given one keeps its size.
pub(crate) fn load_packets(
    layers: &[LinkLayer],
    given: &MapHandles,
    (flows, switches): (u32, &PacketSwitches),
) -> Result<(Vec<PacketPrograms>, MapHandles), StartError> {
    let mut maps = map::clone_handles(given)?;
    let flows = maps.get(&Map::Flows).map_or(flows, MapHandle::max_entries);
    let variables = PacketLoad { layer: LinkLayer::Ethernet, flows, switches }.make_layer_maps(&mut maps)?;
    let load =
        |layer: &LinkLayer| PacketLoad { layer: *layer, flows, switches }.load_layer(&maps, &variables);
    let programs = layers.iter().map(load).collect::<Result<_, _>>()?;
    Ok((programs, maps))
}

pub(crate) fn make_packet_maps(
    given: &MapHandles,
    (flows, switches): (u32, &PacketSwitches),
) -> Result<MapHandles, StartError> {
    let mut maps = map::clone_handles(given)?;
    PacketLoad { layer: LinkLayer::Ethernet, flows, switches }.make_layer_maps(&mut maps)?;
    Ok(maps)
}

#[derive(Clone, Copy)]
struct PacketLoad<'a> {
    layer: LinkLayer,
    flows: u32,
    switches: &'a PacketSwitches,
}

impl PacketLoad<'_> {
    /// Loads the programs over these maps, in parallel: the verifier takes longer for `packet_in` than for all others.
    fn load_layer(self, maps: &MapHandles, variables: &MapHandle) -> Result<PacketPrograms, StartError> {
        let layer = self.layer;
        std::thread::scope(|scope| {
            let others = spawn_load(scope, move || self.load_egress(maps, variables));
            let xdp = spawn_load(scope, move || load_xdp(layer, maps));
            let ingress =
                self.load_object(maps, Some(variables), &["packet_in"], |it| clone_fd(&it.progs.packet_in));
            let ([egress, pod_egress], xdp) = (others()?, xdp().map_err(|error| error.to_string()));
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

    fn load_egress(self, maps: &MapHandles, variables: &MapHandle) -> Result<[OwnedFd; 2], StartError> {
        self.load_object(maps, Some(variables), &["packet_out", "packet_back"], |it| {
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
        if let Some(switches) = open.maps.rodata_data.as_mut() {
            switches.link_header = self.layer.header_length();
            switches.forward_mark = self.switches.forward_mark;
            write_dsr_from(switches, self.switches);
            switches.max_flows = self.flows;
        }
        if let Some(variables) = variables {
            open.maps.bss.reuse_fd(variables.as_fd()).map_err(StartError::from_load)?;
        } else if let Some(variables) = open.maps.bss_data.as_mut() {
            variables.has_bridge_port = packets::has_bridge_port(maps).into();
        }
        prepare_maps(open.open_object_mut(), MapSize::Flows(self.flows), maps)?;
        autoload_only(programs, open.open_object_mut());
        then(&OpenSkel::load(open).map_err(StartError::from_load)?)
    }
}

/// Writes the node networks for DSR, each as an address and a mask.
fn write_dsr_from(switches: &mut types::rodata, options: &PacketSwitches) {
    let [mut v4, mut v6] = [switches.dsr_from4.chunks_mut(2), switches.dsr_from6.chunks_mut(8)]
        .map(Iterator::collect::<Vec<_>>)
        .map(Vec::into_iter);
    for network in &options.dsr_from {
        let words = if network.address().is_ipv4() { v4.next() } else { v6.next() };
        for (word, encoded) in words.into_iter().flatten().zip(abi::packets::encode_network(*network)) {
            *word = encoded;
        }
    }
    switches.has_dsr_from = !options.dsr_from.is_empty();
    switches.dsr_transports = packets::encode_dsr_transports(options.dsr_transports);
}

fn clone_fd(program: &dyn AsFd) -> Result<OwnedFd, StartError> {
    program.as_fd().try_clone_to_owned().map_err(|error| StartError::from_load(error.into()))
}

/// Loads the XDP program over the given maps, with support for multi-buffer frames if the kernel has it (Linux 5.18):
/// drivers with long frames accept no other program.
fn load_xdp(layer: LinkLayer, maps: &MapHandles) -> Result<OwnedFd, StartError> {
    if layer != LinkLayer::Ethernet {
        return Err(StartError::from_load(io::Error::from(io::ErrorKind::Unsupported).into()));
    }
    let with_frags = |mut program: libbpf_rs::OpenProgramMut<'_>| program.set_flags(BPF_F_XDP_HAS_FRAGS);
    load_xdp_as(maps, true, with_frags).or_else(|_| load_xdp_as(maps, false, |_| ()))
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

/// Whether the kernel loads a program that uses these features. One program with tiny maps loads fastest.
pub(crate) fn can_load(features: Features) -> Result<bool, StartError> {
    let tiny = MapSizes { frontends: [1; 2], ports: 1, slots: [1; 2], members: 1 };
    let mut memory = MaybeUninit::<OpenObject>::uninit();
    let mut open = open_socket_object(&mut memory, features)?;
    prepare_maps(open.object(), MapSize::Generation(tiny), &MapHandles::new())?;
    autoload_only(&[PROBE_PROGRAM], open.object());
    match open.load().map_err(StartError::from_load) {
        Ok(_) => Ok(true),
        Err(StartError::Load(_)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Opens each object with maps, and loads nothing.
#[cfg(test)]
pub(crate) fn for_each_object(visit: &mut dyn FnMut(&OpenObject)) -> Result<(), StartError> {
    for open in OBJECTS {
        let mut memory = MaybeUninit::<OpenObject>::uninit();
        visit(open(&mut memory, Features::FLOOR)?.object());
    }
    let mut memory = MaybeUninit::<OpenObject>::uninit();
    let mut packets = PacketSkelBuilder::default().open(&mut memory).map_err(StartError::from_load)?;
    visit(packets.open_object_mut());
    Ok(())
}

/// The names of all objects' maps, without libbpf's own.
#[cfg(test)]
pub(crate) fn map_names() -> Result<std::collections::BTreeSet<String>, StartError> {
    let mut names = std::collections::BTreeSet::new();
    for_each_object(&mut |object| {
        let found = object.maps().map(|map| map.name().to_string_lossy().into_owned());
        names.extend(found.filter(|name| !name.contains('.')));
    })?;
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::{self, Cgroup};
    use crate::probe;

    #[test]
    fn kernel_packet_programs_load_over_the_maps_of_sockets() {
        let shape = MapSizes { frontends: [8; 2], ports: 8, slots: [8; 2], members: 8 };
        let (made, programs) =
            load_programs(shape, probe::probe_features().unwrap(), &MapHandles::new(), |_, maps| {
                let (programs, made) = load_packets(
                    &LinkLayer::ALL,
                    &maps,
                    (64, &PacketSwitches { forward_mark: 1 << 14, ..PacketSwitches::default() }),
                )?;
                Ok((made, programs))
            })
            .unwrap();
        assert_eq!(programs.len(), LinkLayer::ALL.len());
        assert!(Map::flow_maps().chain(Map::packet_maps()).all(|map| made.contains_key(&map)));
    }

    #[test]
    fn kernel_objects_loaded_together_share_their_maps() {
        let shape = MapSizes { frontends: [8; 2], ports: 8, slots: [8; 2], members: 8 };
        let mut memory = [const { MaybeUninit::uninit() }; 2];
        let mut maps = MapHandles::new();
        let how = (shape, probe::probe_features().unwrap());
        let programs =
            load_objects(&[open_socket_object, open_socket_object], &mut memory, how, &mut maps).unwrap();
        let [first, second] = programs.0.as_slice() else { unreachable!("two objects") };
        let ids = |object: &dyn Skel<'_>| {
            let maps =
                object.object().maps().filter(|map| Map::from_name(&map.name().to_string_lossy()).is_some());
            maps.map(|map| map.info().unwrap().info.id).collect::<Vec<_>>()
        };
        assert_eq!(ids(first.as_ref()), ids(second.as_ref()));
        assert_eq!(maps.len(), ids(first.as_ref()).len(), "all maps are passed on");
        let site = Cgroup::open(Some(&cgroup::hierarchy_root().unwrap())).unwrap();
        assert_eq!(
            programs.for_site(&site).len(),
            2 * site.hooks().count(),
            "one program per hook of each object"
        );
    }
}
