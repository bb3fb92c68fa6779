//! One port: taking it, and the life of the connections to it.
//!
//! Invariant: a port has at most so many connections, and whoever comes when all places are taken gets the place of who
//! has stayed for longest, but for those who have only just come: they are read first. A check asks at once and is
//! answered at once, so idle clients keep nobody out, however many.

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
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;

use super::closed::{ClosedPorts, Purpose};
use super::limits;

/// Who answers at a port.
pub(super) trait Answerer: Send + Sync + 'static {
    /// The whole answer, at once.
    fn answer(&self, request: &Request<Incoming>) -> Response<String>;
}

/// Whether an address of IPv6 also gets the clients of IPv4 where it is that of any interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Families {
    Both,
    Own,
}

/// Takes an address. Must be called within the runtime that serves it.
pub(super) fn open(address: SocketAddr, families: Families) -> io::Result<TcpListener> {
    let (socket, address) = socket(address, families)?;
    // A restart is not kept out by connections of before.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Without IPv6 in this host whoever asks for both families gets the one that is there.
fn socket(address: SocketAddr, families: Families) -> io::Result<(TcpSocket, SocketAddr)> {
    if address.is_ipv4() {
        return Ok((TcpSocket::new_v4()?, address));
    }
    match TcpSocket::new_v6() {
        Err(error) if is_unknown(&error) && families == Families::Both && address.ip().is_unspecified() => {
            Ok((TcpSocket::new_v4()?, (Ipv4Addr::UNSPECIFIED, address.port()).into()))
        }
        socket => {
            let socket = socket?;
            setsockopt(&socket.as_fd(), sockopt::Ipv6V6Only, &(families == Families::Own))?;
            Ok((socket, address))
        }
    }
}

fn is_unknown(error: &io::Error) -> bool {
    error.raw_os_error() == Some(nix::libc::EAFNOSUPPORT)
}

/// Clients that are waiting to be accepted.
const BACKLOG: u32 = 128;

/// Serves a port as soon as it is free.
pub(super) async fn open_and_serve(
    address: SocketAddr,
    (purpose, closed): (Purpose, Arc<ClosedPorts>),
    answerer: Arc<dyn Answerer>,
) {
    let (mut pause, most) = limits::OPEN_PAUSE;
    loop {
        match open(address, Families::Both) {
            Ok(listener) => {
                closed.tell(purpose, address, None);
                return serve(listener, limits::CONNECTIONS_MAX, answerer).await;
            }
            Err(error) => closed.tell(purpose, address, Some(why(&error))),
        }
        tokio::time::sleep(pause).await;
        pause = pause.saturating_mul(2).min(most);
    }
}

/// Why a port is closed that somebody else has.
pub(super) const IN_USE: &str = "another process listens there (`ss -ltnp` names it)";

/// What an operator can do about it.
pub(super) fn why(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => IN_USE.to_owned(),
        io::ErrorKind::AddrNotAvailable => "this host does not have the address".to_owned(),
        io::ErrorKind::PermissionDenied => format!("{error}: ports below 1024 need CAP_NET_BIND_SERVICE"),
        _ => error.to_string(),
    }
}

/// Serves until it is dropped, and its connections with it.
pub(super) async fn serve(listener: TcpListener, places: usize, answerer: Arc<dyn Answerer>) {
    let mut connections = Connections { places, tasks: JoinSet::new(), stay: Vec::new() };
    loop {
        let full = connections.full_until();
        tokio::select! {
            Some(_) = connections.tasks.join_next() => {}
            () = tokio::time::sleep_until(full.unwrap_or_else(Instant::now)), if full.is_some() => {}
            accepted = listener.accept(), if full.is_none() => match accepted {
                Ok((stream, _)) => connections.add(stream, Arc::clone(&answerer)),
                Err(error) => {
                    tracing::debug!(%error, "a port of kube-proxy cannot accept a connection");
                    tokio::time::sleep(limits::ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

/// Those of one port, who has stayed for longest first.
struct Connections {
    places: usize,
    tasks: JoinSet<()>,
    stay: Vec<Stay>,
}

struct Stay {
    since: Instant,
    task: AbortHandle,
}

impl Connections {
    /// Until when nobody has to make room, where all places are taken.
    fn full_until(&mut self) -> Option<Instant> {
        self.stay.retain(|it| !it.task.is_finished());
        let longest = self.stay.first().filter(|_| self.stay.len() >= self.places)?;
        Some(longest.since + limits::STAY_MIN).filter(|until| Instant::now() < *until)
    }

    fn add(&mut self, stream: TcpStream, answerer: Arc<dyn Answerer>) {
        let too_many = (self.stay.len() + 1).saturating_sub(self.places);
        self.stay.drain(..too_many.min(self.stay.len())).for_each(|it| it.task.abort());
        let task = self.tasks.spawn(connection(stream, answerer));
        self.stay.push(Stay { since: Instant::now(), task });
    }
}

async fn connection(stream: TcpStream, answerer: Arc<dyn Answerer>) {
    // Without it an answer is merely later.
    let _ = stream.set_nodelay(true);
    let answer = service_fn(move |request: Request<Incoming>| {
        let answer = answerer.answer(&request);
        async move { Ok::<_, Infallible>(answer) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits::HEADER_TIME_MAX)
        .max_buf_size(limits::HEADER_BYTES_MAX)
        // Some scripts look for the very letters.
        .title_case_headers(true)
        .serve_connection(TokioIo::new(stream), answer);
    // Whoever broke it off wants nothing more.
    let _ = tokio::time::timeout(limits::CONNECTION_TIME_MAX, connection).await;
}
