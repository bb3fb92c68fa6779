//! Loads the compiled programs: sets sizes and switches, and reuses existing maps.
//!
//! Invariant: a load changes nothing that is attached.

mod packet_programs;

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread::{Builder, Scope};

use holdfast_status::datapath::{Features, MapSizes};
use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};
use libbpf_rs::{MapCore, MapHandle, Object, OpenMapMut, OpenObject, libbpf_sys};

use crate::error::StartError;
use crate::ipv6;
use crate::map::{self, Map, MapHandles, MapSize};
use crate::pins::{ProgramSet, ProgramSetContent};
use crate::site::Site;
#[cfg(test)]
use crate::skeleton::PacketSkelBuilder;
use crate::skeleton::{OpenTcpResetSkel, SocketSkelBuilder, TcpResetSkelBuilder};

#[cfg(test)]
pub(crate) use packet_programs::{EthernetPrograms, load_packets_as, load_xdp_as, make_default_packet_maps};
pub(crate) use packet_programs::{
    LinkLayer, LoadedPackets, PacketConstants, PacketPrograms, ProgramMaps, XdpProgram, list_packet_set,
    load_packets, make_packet_maps,
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

/// The loaded socket programs, each with its hook's name. They end with this value, unless a link holds them.
#[derive(Debug)]
pub(crate) struct LoadedPrograms(Vec<(String, OwnedFd)>);

impl LoadedPrograms {
    /// The program of a hook; it has the hook's name.
    pub(crate) fn find_program(&self, hook: &str) -> Option<BorrowedFd<'_>> {
        self.0.iter().find(|(name, _)| name == hook).map(|(_, fd)| fd.as_fd())
    }

    /// What a set of these programs has to hold.
    pub(crate) fn list_set(&self) -> ProgramSetContent<'_> {
        let programs = self.0.iter().map(|(name, fd)| (name.clone(), fd.as_fd())).collect();
        ProgramSetContent { programs, maps: Vec::new() }
    }

    /// The programs of a site, each with its hook.
    pub(crate) fn for_site(&self, site: &impl Site) -> Vec<(&'static str, BorrowedFd<'_>)> {
        site.hooks().filter_map(|hook| Some((hook, self.find_program(hook)?))).collect()
    }
}

/// Loads the programs. Uses the given maps, and creates missing ones.
pub(crate) fn load_programs(
    shape: MapSizes,
    features: Features,
    given: &MapHandles,
) -> Result<(LoadedPrograms, MapHandles), StartError> {
    let mut maps = map::clone_handles(given)?;
    let programs = load_objects(&OBJECTS, (shape, features), &mut maps)?;
    Ok((programs, maps))
}

/// Opens the programs of a set. `None`: not all of them are there.
pub(crate) fn open_programs(set: &ProgramSet, site: &impl Site) -> Option<LoadedPrograms> {
    let open = |hook: &str| Some((hook.to_owned(), set.open_program(hook, hook)?));
    site.hooks().map(open).collect::<Option<_>>().map(LoadedPrograms)
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
fn load_objects(
    objects: &[ObjectOpener],
    (shape, features): (MapSizes, Features),
    maps: &mut MapHandles,
) -> Result<LoadedPrograms, StartError> {
    let mut loaded = Vec::new();
    for open in objects {
        let mut memory = MaybeUninit::<OpenObject>::uninit();
        let mut object = open(&mut memory, features)?;
        prepare_maps(object.object(), MapSize::Generation(shape), maps)?;
        let object = object.load().map_err(StartError::from_load)?;
        collect_made(object.object(), maps).map_err(StartError::from_load)?;
        for program in object.object().progs() {
            loaded.push((program.name().to_string_lossy().into_owned(), clone_fd(&program)?));
        }
    }
    Ok(LoadedPrograms(loaded))
}

fn clone_fd(program: &dyn AsFd) -> Result<OwnedFd, StartError> {
    program.as_fd().try_clone_to_owned().map_err(|error| StartError::from_load(error.into()))
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
    use std::collections::BTreeSet;

    use libbpf_rs::query::{ProgInfoIter, ProgInfoQueryOptions};

    use super::*;
    use crate::bpf_syscall;
    use crate::cgroup::{self, Cgroup};
    use crate::packets::PacketSwitches;
    use crate::probe;

    #[test]
    fn kernel_packet_programs_load_over_the_maps_of_sockets() {
        let shape = MapSizes { frontends: [8; 2], ports: 8, slots: [8; 2], members: 8 };
        let (_, maps) = load_programs(shape, probe::probe_features().unwrap(), &MapHandles::new()).unwrap();
        let switches = PacketSwitches { forward_mark: 1 << 14, ..PacketSwitches::default() };
        let (loaded, made) = load_packets(&LinkLayer::ALL, &maps, (64, &switches), None).unwrap();
        assert_eq!(loaded.programs.len(), LinkLayer::ALL.len());
        assert!(Map::flow_maps().chain(Map::packet_maps()).all(|map| made.contains_key(&map)));
    }

    /// The maps that programs use, by their ids.
    fn used_maps(programs: &[(String, OwnedFd)]) -> BTreeSet<u32> {
        let ids: Vec<u32> =
            programs.iter().map(|(_, fd)| bpf_syscall::object_id(fd.as_fd()).unwrap()).collect();
        let with_maps = ProgInfoQueryOptions::default().include_map_ids(true);
        let infos = ProgInfoIter::with_query_opts(with_maps).filter(|info| ids.contains(&info.id));
        infos.flat_map(|info| info.map_ids).collect()
    }

    #[test]
    fn kernel_objects_loaded_together_share_their_maps() {
        let shape = MapSizes { frontends: [8; 2], ports: 8, slots: [8; 2], members: 8 };
        let mut maps = MapHandles::new();
        let how = (shape, probe::probe_features().unwrap());
        let programs = load_objects(&[open_socket_object, open_socket_object], how, &mut maps).unwrap();
        let site = Cgroup::open(Some(&cgroup::hierarchy_root().unwrap())).unwrap();
        let (first, second) = programs.0.split_at(site.hooks().count());
        assert_eq!(first.len(), second.len(), "one program per hook of each object");
        let made: BTreeSet<u32> = maps.values().map(|map| map.info().unwrap().info.id).collect();
        let [first, second] = [first, second].map(used_maps);
        let both: BTreeSet<u32> = first.intersection(&second).copied().collect();
        assert_eq!(both, &made & &(&first | &second), "all maps are passed on");
        assert!(!both.is_empty());
    }
}
