//! The pins, which outlive the daemon.
//!
//! ```text
//! <bpffs>/links/connect4 …       one link per hook; stays while programs and maps are replaced
//! <bpffs>/links/tc/2/in, out     the links of each device, if the kernel has tcx
//! <bpffs>/links/tc/2/xdp         the XDP link at its driver, if there is one
//! <bpffs>/sockets1/udp_sockets   maps kept with sockets, across versions of the other maps
//! <bpffs>/flows1/flow_table …    flows and their entries, across versions too
//! <bpffs>/flows-next/…           flows in a table of another size, until it replaces `flows1`
//! <bpffs>/flows-former/…         flows in the former table, until they are removed
//! <bpffs>/v8/shared/affinity …   maps that keep their size
//! <bpffs>/v8/packets/devices …   maps for packets alone
//! <bpffs>/v8/g3/frontends4 …     one generation of the maps that grow
//! <bpffs>/v8/programs/sockets-…  the programs that serve, for the next start
//! <bpffs>/v8/filling/…           an incomplete generation; a start removes it
//! <bpffs>/v4/…                   maps of another version, until this one has taken over
//! ```
//!
//! Invariant: a complete generation gets its number by one rename; the highest one counts. A generation exists only
//! while clients may be served from it. One daemon at a time holds the lock.

mod programs;
mod removal;

use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use libbpf_rs::MapHandle;
use nix::sys::statfs::{BPF_FS_MAGIC, fstatfs};

use crate::error::StartError;
use crate::map::{Map, MapHandles};
use crate::site::Site;

pub(crate) use programs::{NamedObject, ProgramKind, ProgramSet, ProgramSetContent, ProgramSetName};
pub use removal::{CleanupReport, DrainReport, cleanup, drain};

/// The version of `bpf/include/abi.h`. Daemons of other versions have their own maps.
pub const VERSION: u32 = 8;
pub(crate) const SOCKETS_VERSION: u32 = 1;
pub(crate) const FLOWS_VERSION: u32 = 1;
const LINKS: &str = "links";
/// Contains a folder per device, named by its index.
const DEVICE_LINKS: &str = "tc";
/// The folders of maps that outlive versions of the other maps; each name ends with its own version.
const SOCKETS: &str = "sockets";
const FLOWS: &str = "flows";
const FLOWS_NEXT: &str = "flows-next";
const FLOWS_FORMER: &str = "flows-former";
const SHARED: &str = "shared";
const PACKETS: &str = "packets";
const FILLING: &str = "filling";

#[derive(Debug)]
pub(crate) struct Pins {
    root: PathBuf,
    version: u32,
    generation: u32,
    // The highest number of any generation's folder, complete or not.
    highest: u32,
    leftover: Option<Leftover>,
    // Held while the daemon lives; the kernel releases it in any case.
    lock: PinLock,
}

/// Pins of unused maps that could not be removed.
#[derive(Debug)]
struct Leftover {
    reason: String,
    is_reported: bool,
}

fn pin_error(attempt: &'static str, path: &Path) -> impl FnOnce(io::Error) -> StartError {
    move |source| match source.kind() {
        io::ErrorKind::ReadOnlyFilesystem => StartError::ReadOnly { path: path.to_owned() },
        _ => StartError::Pin { attempt, path: path.to_owned(), source },
    }
}

/// The error of creating a folder: something else may have taken its path.
fn folder_error(path: &Path) -> impl FnOnce(io::Error) -> StartError {
    move |source| match source.kind() {
        io::ErrorKind::AlreadyExists | io::ErrorKind::NotADirectory => {
            StartError::NoFolder { path: path.to_owned() }
        }
        _ => pin_error("make", path)(source),
    }
}

impl Pins {
    /// Creates missing folders, and takes the lock.
    pub(crate) fn open(root: &Path, version: u32) -> Result<Self, StartError> {
        let lock = lock_root(root)?;
        let mut pins =
            Self { root: root.to_owned(), version, generation: 0, highest: 0, leftover: None, lock };
        for folder in [pins.root.join(LINKS), pins.version_folder()] {
            fs::create_dir_all(&folder).map_err(folder_error(&folder))?;
        }
        pins.recover_flows()?;
        remove_folder(&pins.version_folder().join(FILLING))
            .map_err(pin_error("remove", &pins.version_folder()))?;
        let numbers = pins.generations()?;
        pins.highest = numbers.iter().copied().max().unwrap_or(0);
        pins.generation = numbers.into_iter().filter(|number| pins.is_complete(*number)).max().unwrap_or(0);
        Ok(pins)
    }

    /// Opens a former daemon's maps. Without a generation the shared maps are useless and left out; the maps kept with
    /// sockets are adopted in any case.
    pub(crate) fn adopt(&self) -> Result<MapHandles, StartError> {
        let mut maps = MapHandles::new();
        adopt_folder(&self.socket_folder(), Map::socket_maps(), &mut maps)?;
        if self.has_generation() {
            adopt_folder(&self.version_folder().join(SHARED), Map::shared_maps(), &mut maps)?;
            adopt_folder(&self.generation_folder(self.generation), Map::generation_maps(), &mut maps)?;
        }
        Ok(maps)
    }

    /// Pins all maps that lack their pin. From now on a start adopts them.
    pub(crate) fn pin_all(&mut self, maps: &mut MapHandles) -> Result<(), StartError> {
        let shared = self.version_folder().join(SHARED);
        self.pin_sockets(maps)?;
        if self.has_generation() {
            return pin_folder(&shared, Map::shared_maps(), maps);
        }
        remove_folder(&shared).map_err(pin_error("remove", &shared))?;
        fs::create_dir(&shared).map_err(pin_error("make", &shared))?;
        pin_folder(&shared, Map::shared_maps(), maps)?;
        self.pin_generation(maps)
    }

    /// Pins missing maps that are kept with sockets.
    pub(crate) fn pin_sockets(&self, maps: &mut MapHandles) -> Result<(), StartError> {
        let sockets = self.socket_folder();
        fs::create_dir_all(&sockets).map_err(folder_error(&sockets))?;
        pin_folder(&sockets, Map::socket_maps(), maps)
    }

    /// Whether all maps kept with sockets are pinned.
    pub(crate) fn has_socket_maps(&self) -> bool {
        Map::socket_maps().all(|map| self.socket_folder().join(map.name()).exists())
    }

    /// Pins a complete generation under the next number. The former one stays until [`Self::prune_generations`].
    pub(crate) fn pin_generation(&mut self, maps: &mut MapHandles) -> Result<(), StartError> {
        let filling = self.version_folder().join(FILLING);
        remove_folder(&filling).map_err(pin_error("remove", &filling))?;
        fs::create_dir(&filling).map_err(pin_error("make", &filling))?;
        pin_folder(&filling, Map::generation_maps(), maps)?;
        let numbered = self.generation_folder(self.highest + 1);
        fs::rename(&filling, &numbered).map_err(pin_error("make", &numbered))?;
        self.highest += 1;
        self.generation = self.highest;
        Ok(())
    }

    pub(crate) fn adopt_packets(&self) -> Result<MapHandles, StartError> {
        let mut maps = MapHandles::new();
        for (folder, which) in self.packet_folders() {
            adopt_folder(&folder, which, &mut maps)?;
        }
        Ok(maps)
    }

    /// Removes the pin of one packet map, so that another one can replace it.
    pub(crate) fn remove_packet_map(&self, map: Map) -> Result<(), StartError> {
        let [(packets, _), _] = self.packet_folders();
        let path = packets.join(map.name());
        remove_folder(&path).map_err(pin_error("remove", &path))
    }

    /// Removes the pins of all flow maps, which are useless individually.
    pub(crate) fn remove_flows(&self) -> Result<(), StartError> {
        let [_, (flows, _)] = self.packet_folders();
        remove_folder(&flows).map_err(pin_error("remove", &flows))
    }

    /// Pins other flow maps in place of the present ones, which end with their last program. After an error the former
    /// ones stay pinned.
    pub(crate) fn replace_flows(&self, maps: &mut MapHandles) -> Result<(), StartError> {
        let [_, (flows, which)] = self.packet_folders();
        let [next, former] = self.flow_swap_folders();
        for folder in [&next, &former] {
            remove_folder(folder).map_err(pin_error("remove", folder))?;
        }
        fs::create_dir(&next).map_err(pin_error("make", &next))?;
        pin_folder(&next, which, maps)?;
        fs::rename(&flows, &former).map_err(pin_error("make", &former))?;
        if let Err(error) = fs::rename(&next, &flows) {
            let _ = fs::rename(&former, &flows);
            return Err(pin_error("make", &flows)(error));
        }
        // If this fails, the next start removes the folder.
        let _ = remove_folder(&former);
        Ok(())
    }

    /// Recovers from a daemon killed while it replaced flows: restores the former ones if none are in place, and
    /// removes leftovers.
    fn recover_flows(&self) -> Result<(), StartError> {
        let [_, (flows, _)] = self.packet_folders();
        let [next, former] = self.flow_swap_folders();
        if !flows.exists() && former.exists() {
            fs::rename(&former, &flows).map_err(pin_error("make", &flows))?;
        }
        for folder in [&next, &former] {
            remove_folder(folder).map_err(pin_error("remove", folder))?;
        }
        Ok(())
    }

    /// The folders of the next flow maps, and of the replaced ones.
    fn flow_swap_folders(&self) -> [PathBuf; 2] {
        [FLOWS_NEXT, FLOWS_FORMER].map(|name| self.root.join(name))
    }

    pub(crate) fn is_packet_pin_missing(&self) -> bool {
        self.packet_folders().into_iter().any(is_pin_missing)
    }

    /// Pins all packet maps that lack their pin.
    pub(crate) fn pin_packets(&self, maps: &mut MapHandles) -> Result<(), StartError> {
        pin_folders(self.packet_folders(), maps)
    }

    pub(crate) fn device_link_folder(&self) -> PathBuf {
        device_links(&self.root)
    }

    fn packet_folders(&self) -> [(PathBuf, Vec<Map>); 2] {
        [
            (self.version_folder().join(PACKETS), Map::packet_maps().collect()),
            (self.root.join(format!("{FLOWS}{FLOWS_VERSION}")), Map::flow_maps().collect()),
        ]
    }

    pub(crate) fn is_map_pin_missing(&self) -> bool {
        self.map_folders().into_iter().any(is_pin_missing)
    }

    pub(crate) fn repair(&self, maps: &mut MapHandles) -> Result<(), StartError> {
        pin_folders(self.map_folders(), maps)
    }

    /// Explains a failed repair: if the root of all pins is gone, the error of a single call is misleading.
    pub(crate) fn explain_error(&self, error: StartError) -> StartError {
        let path = self.root.clone();
        let is_mounted = File::open(&path).and_then(|folder| is_bpffs(&folder)).unwrap_or(false);
        let is_removed = self.lock.0.metadata().is_ok_and(|it| it.nlink() == 0);
        match error {
            StartError::ReadOnly { .. } if is_removed => StartError::Removed { path },
            _ if !is_mounted && is_removed => StartError::Removed { path },
            _ if !is_mounted => StartError::Unmounted { path },
            error => error,
        }
    }

    pub(crate) fn make_link_folder(&self) -> Result<(), StartError> {
        let links = self.root.join(LINKS);
        fs::create_dir_all(&links).map_err(pin_error("make", &links))
    }

    /// The folders of all maps except those of packets, each with its maps.
    fn map_folders(&self) -> [(PathBuf, Vec<Map>); 3] {
        [
            (self.version_folder().join(SHARED), Map::shared_maps().collect()),
            (self.generation_folder(self.generation), Map::generation_maps().collect()),
            (self.socket_folder(), Map::socket_maps().collect()),
        ]
    }

    /// Whether a generation existed when this daemon started, or has been pinned since.
    pub(crate) fn has_generation(&self) -> bool {
        self.generation > 0
    }

    /// The number of the current generation; 0: there is none.
    pub(crate) fn generation(&self) -> u32 {
        self.generation
    }

    /// Whether hooks of a site have programs, of any version.
    pub(crate) fn has_links(&self, site: &impl Site) -> bool {
        site.hooks().any(|hook| self.link_pin(site, hook).exists())
    }

    /// Removes the pins of other versions' maps. Programs that still use them hold the maps.
    pub(crate) fn remove_other_versions(&self) -> Result<(), StartError> {
        let own = [("v", self.version), (SOCKETS, SOCKETS_VERSION), (FLOWS, FLOWS_VERSION)];
        let is_other = |name: &str| {
            let number = |prefix| name.strip_prefix(prefix)?.parse::<u32>().ok();
            own.iter().any(|(prefix, own)| number(*prefix).is_some_and(|number| number != *own))
        };
        let entries = fs::read_dir(&self.root).map_err(pin_error("read", &self.root))?;
        for entry in entries.flatten().filter(|entry| entry.file_name().to_str().is_some_and(is_other)) {
            remove_folder(&entry.path()).map_err(pin_error("remove", &entry.path()))?;
        }
        Ok(())
    }

    /// Removes all pins. The caller ensures that nothing is attached.
    pub(crate) fn remove_all(&self) -> Result<(), StartError> {
        remove_folder(&self.root).map_err(pin_error("remove", &self.root))
    }

    /// Reverts to a former generation, because the programs did not move to the latest one.
    pub(crate) fn revert_generation(&mut self, generation: u32) {
        self.generation = generation;
        self.prune_generations();
    }

    /// Removes unused generations. They only cost memory, so a failure is just stored.
    pub(crate) fn prune_generations(&mut self) {
        let why = self.remove_older().err().map(|error| error.to_string());
        if why.as_deref() != self.leftover() {
            self.leftover = why.map(|why| Leftover { reason: why, is_reported: false });
        }
    }

    /// Retries to remove unused generations.
    pub(crate) fn retry_leftover(&mut self) {
        if self.leftover.is_some() {
            self.prune_generations();
        }
    }

    /// Why unused maps are still pinned; `None`: there are none.
    pub(crate) fn leftover(&self) -> Option<&str> {
        self.leftover.as_ref().map(|leftover| leftover.reason.as_str())
    }

    /// Returns the same, but only once, for reporting.
    pub(crate) fn take_leftover_report(&mut self) -> Option<String> {
        let news = self.leftover.as_mut().filter(|leftover| !leftover.is_reported)?;
        news.is_reported = true;
        Some(news.reason.clone())
    }

    fn remove_older(&self) -> Result<(), StartError> {
        let mut removed = Ok(());
        for number in self.generations()?.into_iter().filter(|number| *number != self.generation) {
            let folder = self.generation_folder(number);
            if let Err(error) = remove_folder(&folder) {
                removed = Err(pin_error("remove", &folder)(error));
            }
        }
        removed
    }

    /// The control maps of other versions, with their exemptions.
    pub(crate) fn foreign_controls(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.root).into_iter().flatten().flatten();
        let is_other = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with('v') && *path != self.version_folder()
        };
        entries
            .map(|entry| entry.path())
            .filter(is_other)
            .map(|path| path.join(SHARED).join(Map::Control.name()))
            .collect()
    }

    pub(crate) fn link_pin(&self, site: &impl Site, hook: &str) -> PathBuf {
        self.root.join(LINKS).join(site.link_path(hook))
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    fn version_folder(&self) -> PathBuf {
        self.root.join(format!("v{}", self.version))
    }

    fn socket_folder(&self) -> PathBuf {
        self.root.join(format!("{SOCKETS}{SOCKETS_VERSION}"))
    }

    fn generation_folder(&self, number: u32) -> PathBuf {
        self.version_folder().join(format!("g{number}"))
    }

    /// Whether a generation still has all its maps. A missing map cannot be replaced by an empty one.
    fn is_complete(&self, number: u32) -> bool {
        let folder = self.generation_folder(number);
        Map::generation_maps().all(|map| folder.join(map.name()).exists())
    }

    fn generations(&self) -> Result<Vec<u32>, StartError> {
        let folder = self.version_folder();
        let number = |entry: fs::DirEntry| entry.file_name().to_str()?.strip_prefix('g')?.parse().ok();
        let entries = fs::read_dir(&folder).map_err(pin_error("read", &folder))?;
        Ok(entries.flatten().filter_map(number).collect())
    }
}

#[derive(Debug)]
struct PinLock(File);

impl Drop for PinLock {
    /// Unlocks the folder. Closing is not enough: a freshly forked child shares the lock until it executes its program.
    fn drop(&mut self) {
        let _ = self.0.unlock();
    }
}

/// Creates the root if its parent is on a BPF file system, and locks it.
fn lock_root(root: &Path) -> Result<PinLock, StartError> {
    let no_bpffs = || StartError::NoBpffs { path: root.to_owned() };
    if !root.exists() {
        let parent = File::open(root.parent().unwrap_or(root)).map_err(|_| no_bpffs())?;
        if !is_bpffs(&parent).map_err(pin_error("read", root))? {
            return Err(no_bpffs());
        }
        fs::create_dir(root).map_err(pin_error("make", root))?;
    }
    if !root.is_dir() {
        return Err(StartError::NoFolder { path: root.to_owned() });
    }
    let folder = File::open(root).map_err(pin_error("open", root))?;
    if !is_bpffs(&folder).map_err(pin_error("read", root))? {
        return Err(no_bpffs());
    }
    match folder.try_lock() {
        Ok(()) => Ok(PinLock(folder)),
        Err(TryLockError::WouldBlock) => {
            Err(StartError::Locked { path: root.to_owned(), holder: lock_holder(&folder) })
        }
        Err(TryLockError::Error(source)) => Err(pin_error("lock", root)(source)),
    }
}

fn is_bpffs(folder: &File) -> io::Result<bool> {
    Ok(fstatfs(folder)?.filesystem_type() == BPF_FS_MAGIC)
}

/// The process that has locked a file or folder, as /proc/locks shows it: `1: FLOCK ADVISORY WRITE 4711 00:2a:1234 0
/// EOF`.
pub fn lock_holder(locked: &File) -> Option<u32> {
    let found = locked.metadata().ok()?;
    let major = libc::major(found.dev());
    let minor = libc::minor(found.dev());
    let inode = format!("{major:02x}:{minor:02x}:{}", found.ino());
    let locks = fs::read_to_string("/proc/locks").ok()?;
    let process = |line: &str| {
        let mut fields = line.split_whitespace().skip_while(|it| *it != "FLOCK").skip(3);
        let process = fields.next()?.parse().ok()?;
        (fields.next()? == inode && process > 0).then_some(process)
    };
    locks.lines().find_map(process)
}

fn is_pin_missing((folder, maps): (PathBuf, Vec<Map>)) -> bool {
    maps.iter().any(|map| !folder.join(map.name()).exists())
}

fn pin_folders(
    folders: impl IntoIterator<Item = (PathBuf, Vec<Map>)>,
    maps: &mut MapHandles,
) -> Result<(), StartError> {
    for (folder, which) in folders {
        fs::create_dir_all(&folder).map_err(pin_error("make", &folder))?;
        pin_folder(&folder, which, maps)?;
    }
    Ok(())
}

fn adopt_folder(
    folder: &Path,
    which: impl IntoIterator<Item = Map>,
    maps: &mut MapHandles,
) -> Result<(), StartError> {
    for map in which {
        let path = folder.join(map.name());
        if path.exists() {
            let found = MapHandle::from_pinned_path(&path);
            maps.insert(map, found.map_err(|source| StartError::from_open(&path, source))?);
        }
    }
    Ok(())
}

fn pin_folder(
    folder: &Path,
    which: impl IntoIterator<Item = Map>,
    maps: &mut MapHandles,
) -> Result<(), StartError> {
    for map in which {
        let path = folder.join(map.name());
        if let Some(handle) = maps.get_mut(&map).filter(|_| !path.exists()) {
            let pinned = handle.pin(&path);
            pinned.map_err(|error| pin_error("pin", &path)(io::Error::other(format!("{error:#}"))))?;
        }
    }
    Ok(())
}

/// Removes a folder of pins, or a file in its place; a missing one is fine.
fn remove_folder(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => fs::remove_file(folder),
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn device_links(root: &Path) -> PathBuf {
    root.join(LINKS).join(DEVICE_LINKS)
}
