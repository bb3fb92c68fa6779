//! Errors of starting the datapath: what failed, on which object, and what to do.

use holdfast_status::errno::is_transient;
use std::io;
use std::path::{Path, PathBuf};

/// The datapath did not start. Attached programs stay as they were.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The process lacks a privilege, or may not lock enough memory.
    #[error(
        "loading programs is not permitted; run as root, or with CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON; before Linux \
         5.11 also raise the limit of locked memory (`ulimit -l unlimited`); a locked-down kernel, a security module or \
         seccomp may refuse it to root too"
    )]
    NotPermitted(#[source] libbpf_rs::Error),
    /// The kernel refused the programs or maps.
    #[error(
        "the kernel does not load the programs; Linux 5.10 or newer with CONFIG_CGROUP_BPF is needed: {0:#}"
    )]
    Load(#[source] libbpf_rs::Error),
    /// A transient shortage: the next attempt may succeed.
    #[error("this host is short of memory, files or threads now, or was interrupted: {0:#}")]
    ShortOfResources(#[source] libbpf_rs::Error),
    /// No cgroup v2 anywhere.
    #[error("no cgroup v2 hierarchy is mounted; mount one, or set `datapath.cgroup`")]
    NoCgroup,
    /// The configured path is no cgroup v2 folder.
    #[error("{} {}; check `datapath.cgroup`", path.display(), cgroup_reason(source.as_ref()))]
    Cgroup {
        /// The configured or detected path.
        path: PathBuf,
        /// The system's error, if there is one.
        #[source]
        source: Option<io::Error>,
    },
    /// The pins' path is not on a BPF file system.
    #[error(
        "{} is not on a BPF file system; mount one (`mount -t bpf bpf /sys/fs/bpf`) or check `datapath.bpffs`",
        path.display()
    )]
    NoBpffs {
        /// The path of the pins.
        path: PathBuf,
    },
    /// A folder or pin cannot be made, read or removed.
    #[error("cannot {attempt} {}: {source}", path.display())]
    Pin {
        /// What failed: make, open, read, remove …
        attempt: &'static str,
        /// The folder or pin.
        path: PathBuf,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// A pin that this daemon did not make.
    #[error("{} is not what holdfast pins there; remove it, or run `holdfast cleanup`", path.display())]
    ForeignPin {
        /// The folder or pin.
        path: PathBuf,
        /// The kernel's error.
        #[source]
        source: libbpf_rs::Error,
    },
    /// A file where the pins' folder should be.
    #[error(
        "{} is no folder, so nothing can be pinned below it; remove it, or check `datapath.bpffs`",
        path.display()
    )]
    NoFolder {
        /// The folder or pin.
        path: PathBuf,
    },
    /// The file system is read-only: by its mount, or by the service's sandbox.
    #[error(
        "{} cannot be written, because the file system is read-only here; mount it `rw`, or name it in the unit's \
         `ReadWritePaths`",
        path.display()
    )]
    ReadOnly {
        /// The path to create or remove.
        path: PathBuf,
    },
    /// The pins' folder vanished while this process ran. Its sandbox does not let it create the folder again.
    #[error(
        "{} was removed while holdfast runs, and this process cannot make it again; what is attached serves until it \
         ends, and a restart makes the folder anew",
        path.display()
    )]
    Removed {
        /// The path of the pins.
        path: PathBuf,
    },
    /// The BPF file system was unmounted while this process ran.
    #[error(
        "the BPF file system of {} is not mounted any more; mount it again (`mount -t bpf bpf /sys/fs/bpf`); what is \
         attached serves until this process ends",
        path.display()
    )]
    Unmounted {
        /// The path of the pins.
        path: PathBuf,
    },
    /// The pins belong to another version, or are incomplete: their programs cannot be put into draining.
    #[error(
        "{} was left by another version of holdfast, or is incomplete; start this version, which adopts it, \
         and stop it again, or drain with that version's `holdfast`",
        path.display()
    )]
    OtherVersion {
        /// The folder of its maps.
        path: PathBuf,
    },
    /// Another daemon uses the pins.
    #[error("another holdfast runs with the pins in {}; stop it first{}", path.display(), describe_process(*holder))]
    Locked {
        /// The folder of the pins.
        path: PathBuf,
        /// The process of the other daemon, if the kernel reports it.
        holder: Option<u32>,
    },
    /// A program was not attached.
    #[error("cannot attach {hook} to {site}: {source:#}")]
    Attach {
        /// The hook that has no program of ours now.
        hook: &'static str,
        /// The site of the hook: a cgroup.
        site: String,
        /// The kernel's error.
        #[source]
        source: libbpf_rs::Error,
    },
    /// A map cannot be used.
    #[error("cannot {attempt} the map {map}: {source}")]
    Map {
        /// What failed: make, open, read, remove …
        attempt: &'static str,
        /// The map's name in `bpf/maps.h`.
        map: &'static str,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
}

impl StartError {
    /// Classifies an error of loading.
    pub(crate) fn from_load(source: libbpf_rs::Error) -> Self {
        match errno_from_text(&source) {
            Some(libc::EPERM) => Self::NotPermitted(source),
            Some(errno) if is_transient(errno) => Self::ShortOfResources(source),
            _ => Self::Load(source),
        }
    }

    /// Classifies an error of opening a pin. The kernel always opens pins for writing, so a read-only file system
    /// refuses.
    pub(crate) fn from_open(path: &Path, source: libbpf_rs::Error) -> Self {
        let path = path.to_owned();
        match errno_from_text(&source) {
            Some(libc::EROFS) => Self::ReadOnly { path },
            Some(errno) if is_transient(errno) => Self::ShortOfResources(source),
            _ => Self::ForeignPin { path, source },
        }
    }
}

fn cgroup_reason(error: Option<&io::Error>) -> &'static str {
    match error.map(io::Error::kind) {
        Some(io::ErrorKind::NotFound) => "is not there",
        _ => "is not a cgroup v2 folder",
    }
}

/// Names the process of another holdfast for the end of a sentence, if known.
pub fn describe_process(process: Option<u32>) -> String {
    process.map(|process| format!(" (it is process {process})")).unwrap_or_default()
}

/// Reads the errno from the text: libbpf-rs does not expose it, and its kinds do not separate EPERM from the verifier's
/// EACCES.
fn errno_from_text(error: &libbpf_rs::Error) -> Option<i32> {
    let text = format!("{error:#}");
    let (_, from) = text.rsplit_once("(os error ")?;
    from.split_once(')')?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use libbpf_rs::ErrorExt as _;

    use super::*;

    #[test]
    fn a_verifier_error_is_not_reported_as_missing_privileges() {
        let loading = |errno| StartError::from_load(libbpf_rs::Error::from_raw_os_error(errno));
        assert!(matches!(loading(libc::EPERM), StartError::NotPermitted(_)));
        assert!(matches!(loading(libc::EACCES), StartError::Load(_)));
    }

    #[test]
    fn transient_errors_blame_neither_the_host_nor_the_pins() {
        use libc::{
            E2BIG, EACCES, EAGAIN, EBUSY, EINTR, EINVAL, EMFILE, ENFILE, ENOBUFS, ENOMEM, ENOSYS, EOPNOTSUPP,
        };
        let failed = |errno| libbpf_rs::Error::from_raw_os_error(errno).context("failed to load object");
        let opening = |errno| StartError::from_open(Path::new("/sys/fs/bpf/holdfast/v8"), failed(errno));
        for errno in [EAGAIN, EBUSY, EINTR, EMFILE, ENFILE, ENOBUFS, ENOMEM] {
            assert!(
                matches!(StartError::from_load(failed(errno)), StartError::ShortOfResources(_)),
                "{errno}"
            );
            assert!(matches!(opening(errno), StartError::ShortOfResources(_)), "{errno}");
        }
        for errno in [E2BIG, EACCES, EINVAL, ENOSYS, EOPNOTSUPP] {
            assert!(matches!(StartError::from_load(failed(errno)), StartError::Load(_)), "{errno}");
            assert!(matches!(opening(errno), StartError::ForeignPin { .. }), "{errno}");
        }
    }

    #[test]
    fn errors_of_loading_say_what_to_do() {
        for (errno, begins) in [
            // Missing privileges, a locked-down kernel, or too little locked memory.
            (
                libc::EPERM,
                "loading programs is not permitted; run as root, or with CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON; before Linux 5.11 also raise the limit of locked memory (`ulimit -l unlimited`); a locked-down kernel, a security module or seccomp may refuse it to root too",
            ),
            // A verifier error, and a kernel without the bpf call.
            (
                libc::EACCES,
                "the kernel does not load the programs; Linux 5.10 or newer with CONFIG_CGROUP_BPF is needed: ",
            ),
            (
                libc::ENOSYS,
                "the kernel does not load the programs; Linux 5.10 or newer with CONFIG_CGROUP_BPF is needed: ",
            ),
        ] {
            let message = StartError::from_load(libbpf_rs::Error::from_raw_os_error(errno)).to_string();
            assert!(message.starts_with(begins), "{message}");
        }
    }
}
