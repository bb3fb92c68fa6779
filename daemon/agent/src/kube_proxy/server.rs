//! Opens one port, and serves its connections.
//!
//! Invariant: a port has a bounded number of connection slots and never stops accepting. When all slots are taken, a
//! new client gets the slot of the one idle for longest. A check sends its request at once and gets its response at
//! once, so idle clients, however many, keep no check out.

use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::Arc;

use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use nix::sys::socket::{setsockopt, sockopt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;

use super::limits;
use crate::readings::{ClosedPorts, IN_USE, Purpose};
use holdfast_host::idle_evictor::{IdleEvictor, TrackedStream};

/// Answers the requests at a port.
pub(super) trait Handler: Send + Sync + 'static {
    /// Returns the whole response, at once.
    fn answer(&self, request: &Request<Incoming>) -> Response<String>;
}

/// Whether the unspecified IPv6 address also accepts clients over IPv4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Families {
    Both,
    Own,
}

/// Listens at an address. Call it within the runtime that serves it.
pub(super) fn bind_listener(address: SocketAddr, families: Families) -> io::Result<TcpListener> {
    let (socket, address) = build_socket(address, families)?;
    // Connections of a former process must not keep a restart from binding.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Makes a socket. On a host without IPv6, a port for both families gets only IPv4.
fn build_socket(address: SocketAddr, families: Families) -> io::Result<(TcpSocket, SocketAddr)> {
    if address.is_ipv4() {
        return Ok((TcpSocket::new_v4()?, address));
    }
    match TcpSocket::new_v6() {
        Err(error)
            if is_unsupported_family(&error)
                && families == Families::Both
                && address.ip().is_unspecified() =>
        {
            Ok((TcpSocket::new_v4()?, (Ipv4Addr::UNSPECIFIED, address.port()).into()))
        }
        socket => {
            let socket = socket?;
            setsockopt(&socket.as_fd(), sockopt::Ipv6V6Only, &(families == Families::Own))?;
            Ok((socket, address))
        }
    }
}

fn is_unsupported_family(error: &io::Error) -> bool {
    error.raw_os_error() == Some(nix::libc::EAFNOSUPPORT)
}

/// How many clients may wait in the backlog while the thread is busy; none waits for long.
const BACKLOG: u32 = 1_024;

/// Opens a port as soon as it is free, and serves it.
pub(super) async fn open_and_serve(
    address: SocketAddr,
    (purpose, closed): (Purpose, Arc<ClosedPorts>),
    answerer: Arc<dyn Handler>,
) {
    let (mut pause, most) = limits::OPEN_PAUSE;
    loop {
        match bind_listener(address, Families::Both) {
            Ok(listener) => {
                closed.report_port(purpose, address, None);
                return serve(listener, ConnectionLimit::exclusive(limits::CONNECTIONS_MAX), answerer).await;
            }
            Err(error) => closed.report_port(purpose, address, Some(describe_bind_error(&error))),
        }
        tokio::time::sleep(pause).await;
        pause = pause.saturating_mul(2).min(most);
    }
}

/// Why a port could not be opened, and what an operator can do.
pub(super) fn describe_bind_error(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => IN_USE.to_owned(),
        io::ErrorKind::AddrNotAvailable => "this host does not have the address".to_owned(),
        io::ErrorKind::PermissionDenied => format!("{error}: ports below 1024 need CAP_NET_BIND_SERVICE"),
        _ => error.to_string(),
    }
}

#[derive(Clone, Debug)]
pub(super) struct ConnectionLimit {
    pub(super) reserved: usize,
    /// The most connections, including those from the shared slots.
    pub(super) max: usize,
    pub(super) shared: Arc<Semaphore>,
}

impl ConnectionLimit {
    /// A limit of one port that shares no slots.
    pub(super) fn exclusive(places: usize) -> Self {
        Self { reserved: places, max: places, shared: Arc::new(Semaphore::const_new(0)) }
    }
}

/// Serves connections until the future is dropped, which ends them.
pub(super) async fn serve(listener: TcpListener, room: ConnectionLimit, answerer: Arc<dyn Handler>) {
    let mut connections =
        Connections { limit: room, tasks: JoinSet::new(), idle_evictor: IdleEvictor::default() };
    loop {
        tokio::select! {
            Some(_) = connections.tasks.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => connections.add(stream, Arc::clone(&answerer)).await,
                Err(error) => {
                    tracing::debug!(%error, "a port of kube-proxy cannot accept a connection");
                    tokio::time::sleep(limits::ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

struct Connections {
    limit: ConnectionLimit,
    tasks: JoinSet<()>,
    idle_evictor: IdleEvictor,
}

impl Connections {
    async fn add(&mut self, stream: TcpStream, answerer: Arc<dyn Handler>) {
        let place = self.acquire_place().await;
        let guest = self.idle_evictor.add_client();
        // A failure here only delays responses.
        let _ = stream.set_nodelay(true);
        self.tasks.spawn(async move {
            let connection = serve_connection(guest.track_stream(stream), answerer);
            let _ = guest.serve_until_evicted(connection).await;
            drop(place);
        });
    }

    /// Waits for a slot. `None` means one of the port's own, which has no permit to return.
    async fn acquire_place(&mut self) -> Option<OwnedSemaphorePermit> {
        loop {
            while self.tasks.try_join_next().is_some() {}
            if self.tasks.len() < self.limit.reserved {
                return None;
            }
            if self.tasks.len() < self.limit.max
                && let Ok(place) = Arc::clone(&self.limit.shared).try_acquire_owned()
            {
                return Some(place);
            }
            self.idle_evictor.evict_idle().await;
        }
    }
}

async fn serve_connection(stream: TrackedStream<TcpStream>, answerer: Arc<dyn Handler>) {
    let answer = service_fn(move |request: Request<Incoming>| {
        let answer = answerer.answer(&request);
        async move { Ok::<_, Infallible>(answer) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits::HEADER_TIME_MAX)
        .max_buf_size(limits::HEADER_BYTES_MAX)
        // Some scripts compare headers with their case.
        .title_case_headers(true)
        .serve_connection(TokioIo::new(stream), answer);
    // A client that closed the connection needs no response.
    let _ = tokio::time::timeout(limits::CONNECTION_TIME_MAX, connection).await;
}
