//! Programs that stay pinned, so that the next start need not have the kernel verify them again.
//!
//! Invariant: a set is found only by the version and the compiled objects that loaded it, over the very maps that its
//! programs read, with the same constants. A set that is being made or removed is not found. There is one set of each
//! kind, so that no set holds outgrown maps.

use std::fmt::Debug;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use libbpf_rs::{MapCore, MapHandle};

use super::{Pins, remove_folder};
use crate::bpf_syscall;
use crate::map::{Map, MapHandles};

/// The folder of all sets. Programs of another version are useless, because they read other maps.
const PROGRAMS: &str = "programs";
/// The set that is being made or removed.
const INCOMPLETE: &str = "incomplete";
/// The compiled objects: programs of other objects are never taken over. How they are loaded changes with the version.
const BUILD: &str = env!("HOLDFAST_BPF_BUILD");
/// How the kernel translates programs. An operator who hardens that wants it for the next start.
const JIT_SETTINGS: [&str; 2] = ["bpf_jit_enable", "bpf_jit_harden"];

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
        let socket_maps = Map::generation_maps().chain(Map::shared_maps()).chain(Map::socket_maps());
        match self {
            Self::Sockets => socket_maps.collect(),
            Self::Packets => socket_maps.chain(Map::packet_maps()).chain(Map::flow_maps()).collect(),
        }
    }
}

/// The name of a set: its kind, and a hash of everything that its programs were loaded with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProgramSetName {
    kind: ProgramKind,
    hash: u64,
}

impl ProgramSetName {
    /// `None`: some map is missing or unknown to the kernel, so no set was loaded over these.
    pub(crate) fn new(kind: ProgramKind, constants: &impl Debug, maps: &MapHandles) -> Option<Self> {
        let mut hasher = DefaultHasher::new();
        (BUILD, env!("CARGO_PKG_VERSION"), format!("{constants:?}"), JIT_SETTINGS.map(read_setting))
            .hash(&mut hasher);
        for map in kind.maps() {
            (map.name(), maps.get(&map)?.info().ok()?.info.id).hash(&mut hasher);
        }
        Some(Self { kind, hash: hasher.finish() })
    }

    fn folder_name(&self) -> String {
        format!("{}-{:016x}", self.kind.name(), self.hash)
    }
}

/// A setting that cannot be read is the same at the next start.
fn read_setting(name: &str) -> Option<String> {
    fs::read_to_string(format!("/proc/sys/net/core/{name}")).ok()
}

/// A set of pinned programs and maps.
#[derive(Clone, Debug)]
pub(crate) struct ProgramSet(PathBuf);

impl ProgramSet {
    /// Opens the program that is pinned under this name. `None`: it is not there, or it is not this function.
    pub(crate) fn open_program(&self, name: &str, function: &str) -> Option<OwnedFd> {
        let program = bpf_syscall::open_pin(&self.0.join(name)).ok()?;
        (bpf_syscall::program_name(program.as_fd()).ok()? == function).then_some(program)
    }

    pub(crate) fn open_map(&self, name: &str) -> Option<MapHandle> {
        MapHandle::from_pinned_path(self.0.join(name)).ok()
    }

    fn holds(&self, (name, object): &NamedObject<'_>) -> io::Result<bool> {
        let found = bpf_syscall::open_pin(&self.0.join(name))?;
        Ok(bpf_syscall::object_id(found.as_fd())? == bpf_syscall::object_id(*object)?)
    }
}

/// A program or a map, and the name of its pin.
pub(crate) type NamedObject<'a> = (String, BorrowedFd<'a>);

/// What a set has to hold.
#[derive(Debug)]
pub(crate) struct ProgramSetContent<'a> {
    pub(crate) programs: Vec<NamedObject<'a>>,
    /// The maps that these programs alone use.
    pub(crate) maps: Vec<NamedObject<'a>>,
}

impl Pins {
    pub(crate) fn find_programs(&self, name: &ProgramSetName) -> Option<ProgramSet> {
        let folder = self.programs_folder().join(name.folder_name());
        folder.is_dir().then_some(ProgramSet(folder))
    }

    /// Pins programs and their maps in place of all others of their kind.
    ///
    /// A failure costs the next start a part of a second of CPU time, so it is not reported.
    pub(crate) fn pin_programs(&self, name: &ProgramSetName, content: &ProgramSetContent<'_>) {
        let pinned = self.add_to_set(name, content).or_else(|_| self.replace_set(name, content));
        self.remove_other_sets(name.kind, pinned.is_ok().then(|| name.folder_name()).as_deref());
    }

    /// Removes the pinned programs of this kind: no start may find them.
    pub(crate) fn remove_programs(&self, kind: ProgramKind) {
        self.remove_other_sets(kind, None);
    }

    /// Pins the programs that a set lacks. An error: there is no such set, or it has other programs or maps.
    fn add_to_set(&self, name: &ProgramSetName, content: &ProgramSetContent<'_>) -> io::Result<()> {
        let set = self.find_programs(name).ok_or(io::ErrorKind::NotFound)?;
        for map in &content.maps {
            set.holds(map)?.then_some(()).ok_or(io::ErrorKind::AlreadyExists)?;
        }
        for program in &content.programs {
            let (name, fd) = program;
            match set.holds(program) {
                Ok(true) => {}
                Ok(false) => return Err(io::ErrorKind::AlreadyExists.into()),
                Err(_) => bpf_syscall::pin(*fd, &set.0.join(name))?,
            }
        }
        Ok(())
    }

    fn replace_set(&self, name: &ProgramSetName, content: &ProgramSetContent<'_>) -> io::Result<()> {
        let (incomplete, whole) = (self.incomplete_set(), self.programs_folder().join(name.folder_name()));
        if whole.exists() {
            self.remove_set(&whole)?;
        }
        remove_folder(&incomplete)?;
        fs::create_dir_all(&incomplete)?;
        for (name, object) in content.programs.iter().chain(&content.maps) {
            bpf_syscall::pin(*object, &incomplete.join(name))?;
        }
        fs::rename(&incomplete, &whole)
    }

    fn remove_other_sets(&self, kind: ProgramKind, pinned: Option<&str>) {
        let is_other = |name: &str| name.starts_with(kind.name()) && Some(name) != pinned;
        let entries = fs::read_dir(self.programs_folder()).into_iter().flatten().flatten();
        for entry in entries.filter(|entry| entry.file_name().to_str().is_some_and(is_other)) {
            let _ = self.remove_set(&entry.path());
        }
        let _ = remove_folder(&self.incomplete_set());
    }

    /// Removes a set. Nothing finds it any more while its pins go one by one.
    fn remove_set(&self, set: &Path) -> io::Result<()> {
        remove_folder(&self.incomplete_set())?;
        fs::rename(set, self.incomplete_set())?;
        remove_folder(&self.incomplete_set())
    }

    fn incomplete_set(&self) -> PathBuf {
        self.programs_folder().join(INCOMPLETE)
    }

    fn programs_folder(&self) -> PathBuf {
        self.version_folder().join(PROGRAMS)
    }
}
