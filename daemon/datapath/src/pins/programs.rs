//! Programs that stay pinned, so that the next start need not have the kernel verify them again.
//!
//! Invariant: a set is found only by the build that loaded it, over the very maps that its programs read, with the same
//! switches. A set is whole, or it is not found. There is one set of each kind, so no set keeps outgrown maps alive.

use std::fmt::Debug;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use libbpf_rs::{MapCore, MapHandle};

use super::{Pins, remove_folder};
use crate::bpf_syscall;
use crate::map::{Map, MapHandles};

/// The folder of all sets. Programs of another version are useless, because they read other maps.
const PROGRAMS: &str = "programs";
/// The set in the making.
const INCOMPLETE: &str = "incomplete";
/// The compiled objects: programs of other objects are never taken over.
const BUILD: &str = env!("HOLDFAST_BPF_BUILD");

/// Programs that are loaded together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProgramKind {
    Sockets,
    Packets,
}

impl ProgramKind {
    const fn name(self) -> &'static str {
        match self {
            Self::Sockets => "sockets",
            Self::Packets => "packets",
        }
    }

    /// The pinned maps that the programs read.
    fn maps(self) -> Vec<Map> {
        let of_sockets = Map::generation_maps().chain(Map::shared_maps()).chain(Map::socket_maps());
        match self {
            Self::Sockets => of_sockets.collect(),
            Self::Packets => of_sockets.chain(Map::packet_maps()).chain(Map::flow_maps()).collect(),
        }
    }
}

/// The name of a set: its kind, and a number for everything that its programs were loaded with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProgramSetName {
    kind: ProgramKind,
    number: u64,
}

impl ProgramSetName {
    /// `None`: some map is missing or unknown to the kernel, so no set was loaded over these.
    pub(crate) fn new(kind: ProgramKind, switches: &impl Debug, maps: &MapHandles) -> Option<Self> {
        let mut hasher = DefaultHasher::new();
        (BUILD, format!("{switches:?}")).hash(&mut hasher);
        for map in kind.maps() {
            (map.name(), maps.get(&map)?.info().ok()?.info.id).hash(&mut hasher);
        }
        Some(Self { kind, number: hasher.finish() })
    }

    fn folder_name(&self) -> String {
        format!("{}-{:016x}", self.kind.name(), self.number)
    }
}

/// A set of pinned programs and maps.
#[derive(Clone, Debug)]
pub(crate) struct ProgramSet(PathBuf);

impl ProgramSet {
    pub(crate) fn open_program(&self, name: &str) -> Option<OwnedFd> {
        bpf_syscall::open_pin(&self.0.join(name)).ok()
    }

    pub(crate) fn open_map(&self, name: &str) -> Option<MapHandle> {
        MapHandle::from_pinned_path(self.0.join(name)).ok()
    }
}

impl Pins {
    pub(crate) fn find_programs(&self, name: &ProgramSetName) -> Option<ProgramSet> {
        let folder = self.programs_folder().join(name.folder_name());
        folder.is_dir().then_some(ProgramSet(folder))
    }

    /// Pins programs, and maps that they alone use, in place of all others of their kind.
    ///
    /// A failure costs the next start a second of the kernel's time, so it is not reported.
    pub(crate) fn keep_programs(&self, name: &ProgramSetName, objects: &[(String, BorrowedFd<'_>)]) {
        let kept = self.add_to_set(name, objects).or_else(|_| self.replace_set(name, objects));
        self.forget_others(name.kind, kept.is_ok().then(|| name.folder_name()).as_deref());
    }

    /// Removes the programs of this kind, because nothing serves with them any more.
    pub(crate) fn forget_programs(&self, kind: ProgramKind) {
        self.forget_others(kind, None);
    }

    /// Pins what a set lacks. An error: there is no such set, or it has other programs.
    fn add_to_set(&self, name: &ProgramSetName, objects: &[(String, BorrowedFd<'_>)]) -> io::Result<()> {
        let set = self.find_programs(name).ok_or(io::ErrorKind::NotFound)?;
        for (name, object) in objects {
            match bpf_syscall::open_pin(&set.0.join(name)) {
                Ok(found) if bpf_syscall::object_id(found.as_fd())? == bpf_syscall::object_id(*object)? => {}
                Ok(_) => return Err(io::ErrorKind::AlreadyExists.into()),
                Err(_) => bpf_syscall::pin(*object, &set.0.join(name))?,
            }
        }
        Ok(())
    }

    fn replace_set(&self, name: &ProgramSetName, objects: &[(String, BorrowedFd<'_>)]) -> io::Result<()> {
        let folder = self.programs_folder();
        let (incomplete, whole) = (folder.join(INCOMPLETE), folder.join(name.folder_name()));
        remove_folder(&incomplete)?;
        fs::create_dir_all(&incomplete)?;
        for (name, object) in objects {
            bpf_syscall::pin(*object, &incomplete.join(name))?;
        }
        remove_folder(&whole)?;
        fs::rename(&incomplete, &whole)
    }

    fn forget_others(&self, kind: ProgramKind, kept: Option<&str>) {
        let is_other =
            |name: &str| name == INCOMPLETE || (name.starts_with(kind.name()) && Some(name) != kept);
        let entries = fs::read_dir(self.programs_folder()).into_iter().flatten().flatten();
        for entry in entries.filter(|entry| entry.file_name().to_str().is_some_and(is_other)) {
            let _ = remove_folder(&entry.path());
        }
    }

    fn programs_folder(&self) -> PathBuf {
        self.version_folder().join(PROGRAMS)
    }
}
