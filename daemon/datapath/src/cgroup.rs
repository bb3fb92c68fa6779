//! The cgroup to which programs attach, and the daemon's own.
//!
//! Invariant: the file system identifies a cgroup v2 folder, so a hybrid host's is found at any mount point. This
//! module creates and changes no cgroup.

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use libbpf_rs::libbpf_sys as sys;
use libbpf_rs::query::{LinkInfo, LinkTypeInfo};
use nix::sys::statfs::{CGROUP2_SUPER_MAGIC, fstatfs};

use crate::bpf_syscall;
use crate::error::StartError;
use crate::site::Site;

/// The cgroup's hooks: program name and the kernel's attach type.
const HOOKS: [(&str, sys::bpf_attach_type); 8] = [
    ("connect4", sys::BPF_CGROUP_INET4_CONNECT),
    ("connect6", sys::BPF_CGROUP_INET6_CONNECT),
    ("sendmsg4", sys::BPF_CGROUP_UDP4_SENDMSG),
    ("sendmsg6", sys::BPF_CGROUP_UDP6_SENDMSG),
    ("recvmsg4", sys::BPF_CGROUP_UDP4_RECVMSG),
    ("recvmsg6", sys::BPF_CGROUP_UDP6_RECVMSG),
    ("getpeername4", sys::BPF_CGROUP_INET4_GETPEERNAME),
    ("getpeername6", sys::BPF_CGROUP_INET6_GETPEERNAME),
];

/// A cgroup's id, as programs and links use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CgroupId(pub(crate) u64);

#[derive(Debug)]
pub(crate) struct Cgroup {
    path: PathBuf,
    folder: File,
    id: CgroupId,
    is_namespace_root: bool,
}

/// The id of the whole hierarchy's root; the root of a cgroup namespace has another id.
const ROOT: CgroupId = CgroupId(1);

impl Cgroup {
    /// Opens the configured cgroup, or the root of the host's hierarchy.
    pub(crate) fn open(configured: Option<&Path>) -> Result<Self, StartError> {
        let path = match configured {
            Some(path) => path.to_owned(),
            None => hierarchy_root().ok_or(StartError::NoCgroup)?,
        };
        match Self::open_folder(&path) {
            Ok(Some(found)) => {
                Ok(Self { is_namespace_root: configured.is_none() && found.id != ROOT, ..found })
            }
            Ok(None) => Err(StartError::Cgroup { path, source: None }),
            Err(source) => Err(StartError::Cgroup { path, source: Some(source) }),
        }
    }

    fn open_folder(path: &Path) -> io::Result<Option<Self>> {
        let folder = File::open(path)?;
        let id = CgroupId(folder.metadata()?.ino());
        let is_cgroup = fstatfs(&folder)?.filesystem_type() == CGROUP2_SUPER_MAGIC;
        Ok(is_cgroup.then(|| Self { path: path.to_owned(), folder, id, is_namespace_root: false }))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether this is only the root of a cgroup namespace, opened as the host's root. Processes outside of it are not
    /// served.
    pub(crate) fn is_namespace_root(&self) -> bool {
        self.is_namespace_root
    }

    pub(crate) fn id(&self) -> CgroupId {
        self.id
    }
}

impl fmt::Display for Cgroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.path.display().fmt(f)
    }
}

impl Site for Cgroup {
    fn hooks(&self) -> impl Iterator<Item = &'static str> {
        HOOKS.iter().map(|(hook, _)| *hook)
    }

    /// A pin is named after the hook alone, because a daemon serves one cgroup.
    fn link_path(&self, hook: &str) -> PathBuf {
        PathBuf::from(hook)
    }

    fn attach(&self, hook: &str, program: BorrowedFd<'_>) -> io::Result<OwnedFd> {
        let hook = attach_type(hook).ok_or(io::ErrorKind::InvalidInput)?;
        bpf_syscall::create_link(program, self.folder.as_raw_fd(), hook, 0)
    }

    fn holds_link(&self, link: &LinkInfo) -> bool {
        matches!(&link.info, LinkTypeInfo::Cgroup(found) if found.cgroup_id == self.id.0)
    }

    fn reopen(&mut self) {
        if let Ok(Some(found)) = Self::open_folder(&self.path)
            && found.id != self.id
        {
            *self = Self { is_namespace_root: self.is_namespace_root, ..found };
        }
    }

    fn query_programs(&self, hook: &str) -> io::Result<Vec<u32>> {
        attach_type(hook)
            .map_or_else(|| Ok(Vec::new()), |hook| bpf_syscall::query_programs(self.folder.as_raw_fd(), hook))
    }
}

/// The kernel's name of a hook.
fn attach_type(hook: &str) -> Option<sys::bpf_attach_type> {
    HOOKS.iter().find(|(name, _)| *name == hook).map(|(_, kind)| *kind)
}

pub(crate) fn hierarchy_root() -> Option<PathBuf> {
    mount_point(&fs::read_to_string("/proc/thread-self/mountinfo").ok()?)
}

/// Parses lines such as `36 35 0:31 / /sys/fs/cgroup rw shared:9 - cgroup2 cgroup2 rw`: the mounted folder, the mount
/// point, and after the dash the type.
fn mount_point(mounts: &str) -> Option<PathBuf> {
    find_mount(mounts, |kind| kind.starts_with("cgroup2 "))
}

/// The mount point of a whole file system with a matching type, device and options.
fn find_mount(mounts: &str, is_wanted: impl Fn(&str) -> bool) -> Option<PathBuf> {
    let parse_line = |line: &str| {
        let (mount, kind) = line.split_once(" - ")?;
        let mut fields = mount.split(' ').skip(3);
        let is_root = fields.next()? == "/" && is_wanted(kind);
        fields.next().filter(|_| is_root).map(PathBuf::from)
    };
    mounts.lines().find_map(parse_line)
}

/// The root of the hierarchy that accounts memory: on hybrid hosts, cgroup v1's if it has the controller.
pub(crate) fn memory_root() -> Option<PathBuf> {
    memory_mount(&fs::read_to_string("/proc/thread-self/mountinfo").ok()?)
}

fn memory_mount(mounts: &str) -> Option<PathBuf> {
    let has_memory = |kind: &str| {
        kind.starts_with("cgroup ")
            && kind.rsplit(' ').next().is_some_and(|all| all.split(',').any(|it| it == "memory"))
    };
    find_mount(mounts, has_memory).or_else(|| mount_point(mounts))
}

/// The cgroup of this thread; `None` if the hierarchy is not visible.
pub(crate) fn current_id() -> Option<CgroupId> {
    let path = current_path(&fs::read_to_string("/proc/thread-self/cgroup").ok()?)?;
    let folder = hierarchy_root()?.join(path.strip_prefix("/").unwrap_or(&path));
    Some(CgroupId(fs::metadata(folder).ok()?.ino()))
}

/// The smallest memory limit from this thread's cgroup to the root; [`u64::MAX`] if none is set. `None`: no cgroup here
/// reports a limit, as where cgroup v1 accounts memory. Limits above a cgroup namespace are not visible.
pub fn memory_limit() -> Option<u64> {
    let path = current_path(&fs::read_to_string("/proc/thread-self/cgroup").ok()?)?;
    let root = hierarchy_root()?;
    min_limit(&root, &root.join(path.strip_prefix("/").unwrap_or(&path)))
}

fn min_limit(root: &Path, own: &Path) -> Option<u64> {
    let limit = |folder: &Path| match fs::read_to_string(folder.join("memory.max")).ok()?.trim() {
        "max" => Some(u64::MAX),
        bytes => bytes.parse().ok(),
    };
    own.ancestors().take_while(|folder| folder.starts_with(root)).filter_map(limit).min()
}

fn current_path(cgroups: &str) -> Option<PathBuf> {
    cgroups.lines().find_map(|line| line.strip_prefix("0::")).map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_mounts(mounts: &str, expected: Option<&str>) {
        assert_eq!(mount_point(mounts), expected.map(PathBuf::from), "{mounts}");
    }

    #[test]
    fn the_hierarchy_is_found_by_its_type() {
        check_mounts("36 35 0:31 / /sys/fs/cgroup rw shared:9 - cgroup2 cgroup2 rw", Some("/sys/fs/cgroup"));
        let hybrid = "1 0 0:2 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                      2 0 0:3 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw";
        check_mounts(hybrid, Some("/sys/fs/cgroup/unified"));
        check_mounts("2 0 0:3 /../.. /sys/fs/cgroup rw - cgroup2 cgroup2 rw", None);
        check_mounts("1 0 0:2 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu", None);
        check_mounts("nonsense", None);
    }

    #[test]
    fn cgroup_v1_accounts_memory_if_it_has_the_controller() {
        let second = "2 0 0:3 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw";
        let cpu = "1 0 0:2 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu";
        let memory = "3 0 0:4 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory";
        let both = [cpu, second, memory].join("\n");
        assert_eq!(memory_mount(&both), Some("/sys/fs/cgroup/memory".into()));
        assert_eq!(memory_mount(&[cpu, second].join("\n")), Some("/sys/fs/cgroup/unified".into()));
        assert_eq!(memory_mount(cpu), None);
    }

    #[test]
    fn the_smallest_memory_limit_up_to_the_root_counts() {
        let top = tempfile::tempdir().unwrap();
        let (outer, inner) = (top.path().join("kubepods"), top.path().join("kubepods/pod"));
        fs::create_dir_all(&inner).unwrap();
        let limit = |folder: &Path, text: &str| fs::write(folder.join("memory.max"), text).unwrap();
        let least = || min_limit(top.path(), &inner);
        assert_eq!(least(), None, "no file gives a limit");
        limit(&inner, "max\n");
        assert_eq!(least(), Some(u64::MAX));
        limit(&outer, "2147483648\n");
        assert_eq!(least(), Some(2 << 30), "the pod's limit holds for the container too");
        limit(&inner, "1073741824\n");
        assert_eq!(least(), Some(1 << 30));
        limit(top.path(), "1\n");
        assert_eq!(min_limit(&outer, &inner), Some(1 << 30), "limits above the root do not count");
    }

    #[test]
    fn the_own_cgroup_is_read_from_the_cgroup_v2_line() {
        let cgroups = "4:cpu:/a\n0::/system.slice/holdfast.service\n";
        assert_eq!(current_path(cgroups), Some(PathBuf::from("/system.slice/holdfast.service")));
        assert_eq!(current_path("4:cpu:/a\n"), None);
    }
}
