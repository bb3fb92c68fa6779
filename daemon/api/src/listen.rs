//! Opens the TCP address and the unix socket, or reports the obstacle and tries again.
//!
//! Invariant: an obstacle to one of the two affects neither the other nor anything else. A socket file is removed only
//! if no process answers on it, or if it is our own, and from its first moment the new one is open to owner and group
//! only. The unit makes the folder and chooses the socket's group.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr};
use nix::sys::stat::Mode;
use tokio::net::{TcpListener, UnixListener};

use super::limits;
use holdfast_host::ticker;

/// Read and write for owner and group: the users of the socket are in the group.
const SOCKET_MODE: u32 = 0o660;

#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// Another process listens there already.
    #[error(
        "cannot listen on {0}: another process does; stop that process (`ss -ltnp` names it) or set another `listen` under [admin]"
    )]
    AddressTaken(SocketAddr),
    /// Any other reason.
    #[error(
        "cannot listen on {address}: {error}; set `listen` under [admin] to a loopback address of this host"
    )]
    Address { address: SocketAddr, error: io::Error },
    /// A living process answers on the socket.
    #[error(
        "cannot listen on {}: a running daemon answers there; stop it or set another `socket` under [admin]", .0.display()
    )]
    SocketTaken(PathBuf),
    /// The path is no socket.
    #[error("cannot listen on {}: it is not a socket; remove it or set another `socket` under [admin]", .0.display())]
    NotASocket(PathBuf),
    #[error(
        "cannot listen on {}: its folder does not exist; create it or set another `socket` under [admin]", .0.display()
    )]
    NoFolder(PathBuf),
    /// Any other reason.
    #[error("cannot listen on {}: {error}; set another `socket` under [admin] or mend what the error names", path.display())]
    Socket { path: PathBuf, error: io::Error },
    /// No thread or no runtime.
    #[error("cannot start the admin api: {0}; the system is out of threads or file descriptors")]
    Runtime(io::Error),
}

#[derive(Debug)]
pub(super) struct OpenTcp {
    pub(super) listener: TcpListener,
    pub(super) address: SocketAddr,
}

/// The unix socket, with its file.
#[derive(Debug)]
pub(super) struct OpenSocket {
    pub(super) listener: UnixListener,
    path: PathBuf,
    // The file that was made; `None`: it is unknown.
    file: Option<FileId>,
}

/// A file, whatever its path: its device and its inode.
type FileId = (u64, u64);

impl OpenSocket {
    /// Waits until another process removes the file at the path, so that no client can connect. A foreign file there
    /// stays.
    pub(super) async fn wait_until_removed(&self) {
        let is_there = || match std::fs::symlink_metadata(&self.path) {
            Err(error) => error.kind() != io::ErrorKind::NotFound,
            Ok(_) => true,
        };
        while is_there() {
            ticker::next_tick().await;
        }
    }
}

impl Drop for OpenSocket {
    fn drop(&mut self) {
        if self.file.is_some() && file_id(&self.path) == self.file {
            // A leftover file does no harm: the next start finds that no process answers on it.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn file_id(path: &Path) -> Option<FileId> {
    let found = std::fs::symlink_metadata(path).ok()?;
    Some((found.dev(), found.ino()))
}

/// Opens the TCP address, and returns it as bound. Call it within the runtime that serves it, like [`open_socket`].
pub(super) fn open_tcp(address: SocketAddr) -> Result<OpenTcp, AdminError> {
    let open = || {
        let listener = std::net::TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let bound = listener.local_addr()?;
        Ok(OpenTcp { listener: TcpListener::from_std(listener)?, address: bound })
    };
    open().map_err(|error: io::Error| match error.kind() {
        io::ErrorKind::AddrInUse => AdminError::AddressTaken(address),
        _ => AdminError::Address { address, error },
    })
}

pub(super) fn open_socket(path: &Path) -> Result<OpenSocket, AdminError> {
    remove_stale_socket(path)?;
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => AdminError::NoFolder(path.to_owned()),
        _ => AdminError::Socket { path: path.to_owned(), error },
    };
    let listener = bind_socket(path).map_err(failed)?;
    let socket = UnixListener::from_std(listener).map_err(failed)?;
    Ok(OpenSocket { listener: socket, path: path.to_owned(), file: file_id(path) })
}

/// Removes a socket of a dead process.
fn remove_stale_socket(path: &Path) -> Result<(), AdminError> {
    let failed = |error| AdminError::Socket { path: path.to_owned(), error };
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(error)),
        Ok(found) if !found.file_type().is_socket() => return Err(AdminError::NotASocket(path.to_owned())),
        Ok(_) => {}
    }
    match probe_socket(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path).map_err(failed)
        }
        // A process has it that accepts no clients: its queue is full.
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            Err(AdminError::SocketTaken(path.to_owned()))
        }
        Err(error) => Err(failed(error)),
        Ok(()) => Err(AdminError::SocketTaken(path.to_owned())),
    }
}

/// Probes whether a process answers on a socket, without waiting for one that accepts no clients.
fn probe_socket(path: &Path) -> io::Result<()> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = nix::sys::socket::socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    Ok(nix::sys::socket::connect(socket.as_raw_fd(), &UnixAddr::new(path)?)?)
}

fn bind_socket(path: &Path) -> io::Result<std::os::unix::net::UnixListener> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = nix::sys::socket::socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    // Linux gives the file the mode that the socket has when it is bound, less the umask. So it is never open to
    // others, and the umask, which all threads share, stays.
    nix::sys::stat::fchmod(&socket, Mode::from_bits_truncate(SOCKET_MODE))?;
    nix::sys::socket::bind(socket.as_raw_fd(), &UnixAddr::new(path)?)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(SOCKET_MODE))?;
    nix::sys::socket::listen(&socket, Backlog::new(limits::BACKLOG)?)?;
    Ok(socket.into())
}
