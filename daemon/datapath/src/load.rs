//! From the compiled programs to loaded ones: sizes, switches, maps that are there already.
//!
//! Invariant: a load changes nothing that is attached. Deliberately absent: pins and links.

use std::collections::BTreeMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;

use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};
use libbpf_rs::{ErrorKind, MapCore, MapHandle, Object, OpenMapMut, OpenObject};

use crate::error::StartError;
use crate::probe::Features;
use crate::shape::Shape;
use crate::skeleton::{OpenSocketSkel, SocketSkelBuilder};

/// The hooks, each the name of its program and of its pin.
pub(crate) const HOOKS: [&str; 8] =
    ["connect4", "connect6", "sendmsg4", "sendmsg6", "recvmsg4", "recvmsg6", "getpeername4", "getpeername6"];

/// A program that uses every switch.
const PROBE: &str = "connect4";

/// The maps of one generation: they are made anew when they grow.
pub(crate) const GENERATION_MAPS: [&str; 6] =
    ["frontends4", "frontends6", "ports", "backends4", "backends6", "members"];

/// The maps that all generations share.
pub(crate) const SHARED_MAPS: [&str; 9] = [
    "node_addresses4",
    "node_addresses6",
    "exempt_cgroups",
    "node_ports",
    "frontend_blocks",
    "affinity",
    "reverse",
    "refusals",
    "control",
];

/// What is kept with sockets, for all versions.
pub(crate) const SOCKET_MAPS: [&str; 1] = ["udp_sockets"];

/// Maps by their names.
pub(crate) type Maps = BTreeMap<&'static str, MapHandle>;

/// The same maps once more.
pub(crate) fn copies<'a>(
    maps: impl IntoIterator<Item = (&'a &'static str, &'a MapHandle)>,
) -> Result<Maps, StartError> {
    let copy = |(name, map): (&&'static str, &MapHandle)| Ok((*name, MapHandle::try_from(map)?));
    maps.into_iter().map(copy).collect::<Result<_, libbpf_rs::Error>>().map_err(StartError::Load)
}

/// Loads the programs. Maps that are given are used, the others are made.
///
/// `then` sees the programs; they are gone afterwards unless a link holds them.
pub(crate) fn load<T>(
    shape: Shape,
    features: Features,
    given: &Maps,
    then: impl FnOnce(&Object, Maps) -> Result<T, StartError>,
) -> Result<T, StartError> {
    let mut place = MaybeUninit::<OpenObject>::uninit();
    let mut open = open(&mut place, features)?;
    prepare(open.open_object_mut(), shape, given)?;
    let loaded = open.load().map_err(StartError::loading)?;
    let maps = handles(loaded.object()).map_err(StartError::loading)?;
    then(loaded.object(), maps)
}

fn prepare(object: &mut OpenObject, shape: Shape, given: &Maps) -> Result<(), StartError> {
    for mut map in object.maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        if let Some((name, given)) = given.get_key_value(name.as_str()) {
            check_kind(&map, name, given)?;
            map.reuse_fd(given.as_fd()).map_err(StartError::loading)?;
        } else if let Some(entries) = shape.entries(&name) {
            map.set_max_entries(entries).map_err(StartError::loading)?;
        }
    }
    Ok(())
}

/// What was found pinned may be anything.
fn check_kind(map: &OpenMapMut<'_>, name: &'static str, given: &MapHandle) -> Result<(), StartError> {
    let wanted = (map.map_type(), map.key_size(), map.value_size());
    let found = (given.map_type(), given.key_size(), given.value_size());
    if wanted == found {
        return Ok(());
    }
    let source = io::Error::other(format!("it is pinned, but as {found:?} and not {wanted:?}"));
    Err(StartError::Map { attempt: "adopt", map: name, source })
}

fn handles(object: &Object) -> Result<Maps, libbpf_rs::Error> {
    let names = || GENERATION_MAPS.into_iter().chain(SHARED_MAPS).chain(SOCKET_MAPS);
    let mut maps = Maps::new();
    for map in object.maps() {
        if let Some(name) = names().find(|name| map.name() == *name) {
            maps.insert(name, MapHandle::try_from(&map)?);
        }
    }
    Ok(maps)
}

/// Whether the kernel lets a program load that uses these features. One is enough to know, and the smallest is quickest.
pub(crate) fn loads_with(features: Features) -> Result<bool, StartError> {
    let tiny = Shape { frontends: [1; 2], ports: 1, slots: [1; 2], members: 1 };
    let mut place = MaybeUninit::<OpenObject>::uninit();
    let mut open = open(&mut place, features)?;
    prepare(open.open_object_mut(), tiny, &Maps::new())?;
    for mut program in open.open_object_mut().progs_mut() {
        let is_probe = program.name() == PROBE;
        program.set_autoload(is_probe);
    }
    match open.load().map_err(StartError::loading) {
        Ok(_) => Ok(true),
        Err(StartError::Load(error)) if error.kind() != ErrorKind::OutOfMemory => Ok(false),
        Err(error) => Err(error),
    }
}

fn open(place: &mut MaybeUninit<OpenObject>, features: Features) -> Result<OpenSocketSkel<'_>, StartError> {
    let mut open = SocketSkelBuilder::default().open(place).map_err(StartError::loading)?;
    if let Some(switches) = open.maps.rodata_data.as_mut() {
        switches.has_set_retval = features.set_retval;
    }
    Ok(open)
}
