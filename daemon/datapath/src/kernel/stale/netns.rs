//! Finds the network namespaces of other processes, and enters them.
//!
//! Invariant: only the calling thread moves, and it moves back. Namespaces without a process are skipped: their sockets
//! have no owner to notify.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::sched::{CloneFlags, setns};

/// Ten times the pods that kubelet allows on a node.
const NAMESPACES_MAX: usize = 1_100;

/// The bit of the capability, from `linux/capability.h`.
const CAP_SYS_PTRACE: u64 = 1 << 19;

/// The thread's own network namespace.
#[derive(Debug)]
pub(crate) struct HomeNamespace(File);

#[derive(Debug)]
pub(crate) struct NamespaceList {
    /// One path per namespace; its process may end at any time.
    pub(crate) namespaces: Vec<PathBuf>,
    /// Why the list is incomplete; `None`: it is complete.
    pub(crate) failure: Option<String>,
}

/// The identity of a namespace, independent of its path.
fn namespace_id(metadata: &fs::Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

#[derive(Debug, Default)]
struct ProcessWalk {
    known: BTreeMap<(u64, u64), PathBuf>,
    is_denied: bool,
    is_full: bool,
}

impl ProcessWalk {
    fn add_namespace(&mut self, path: PathBuf) {
        match fs::metadata(&path) {
            Ok(metadata) if self.known.len() < NAMESPACES_MAX => {
                self.known.entry(namespace_id(&metadata)).or_insert(path);
            }
            Ok(metadata) => self.is_full |= !self.known.contains_key(&namespace_id(&metadata)),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => self.is_denied = true,
            // The process has ended.
            Err(_) => {}
        }
    }

    fn failure(&self) -> io::Result<Option<String>> {
        // A process may be shielded even from a caller with the capability; it is no pod's.
        if self.is_denied && !can_see_processes()? {
            return Ok(Some("seeing other processes' namespaces needs CAP_SYS_PTRACE".to_owned()));
        }
        Ok(self.is_full.then(|| format!("there are more than {NAMESPACES_MAX} network namespaces")))
    }
}

impl HomeNamespace {
    pub(crate) fn open() -> io::Result<Self> {
        File::open("/proc/thread-self/ns/net").map(Self)
    }

    /// The other namespaces that have a process.
    pub(crate) fn list_namespaces(&self) -> io::Result<NamespaceList> {
        let mut walk = ProcessWalk::default();
        for process in fs::read_dir("/proc")?.flatten() {
            if process.file_name().as_encoded_bytes().first().is_some_and(u8::is_ascii_digit) {
                walk.add_namespace(process.path().join("ns/net"));
            }
        }
        walk.known.remove(&namespace_id(&self.0.metadata()?));
        Ok(NamespaceList { failure: walk.failure()?, namespaces: walk.known.into_values().collect() })
    }

    /// Runs a function in that namespace. `None`: the namespace is gone.
    pub(crate) fn run_in<T>(&self, namespace: &Path, run: impl FnOnce() -> T) -> io::Result<Option<T>> {
        let target = match File::open(namespace) {
            Ok(target) => target,
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ESRCH)) => {
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        enter_namespace(&target)?;
        let done = run();
        enter_namespace(&self.0)?;
        Ok(Some(done))
    }
}

fn can_see_processes() -> io::Result<bool> {
    let status = fs::read_to_string("/proc/thread-self/status")?;
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|it| u64::from_str_radix(it.trim(), 16).ok()).unwrap_or_default();
    Ok(effective & CAP_SYS_PTRACE != 0)
}

fn enter_namespace(namespace: &File) -> io::Result<()> {
    setns(namespace, CloneFlags::CLONE_NEWNET).map_err(|errno| match io::Error::from(errno) {
        error if error.kind() == io::ErrorKind::PermissionDenied => {
            io::Error::new(error.kind(), "entering other network namespaces needs CAP_SYS_ADMIN")
        }
        error => error,
    })
}
