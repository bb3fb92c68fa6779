//! A mesh's proxy in a pod: it takes the connections that rules redirect to it, asks the kernel for their original
//! destination, and dials that.
//!
//! A request and its reply are those of `seen_source`. The proxy adds the original destination to the server's name:
//! `pod-b@10.96.0.10:80 10.244.1.10:4000`. Where nobody answers, the name is `nobody`. Questions to the cluster's DNS
//! are answered by `proxy`.
//!
//! Invariant: connections and their time are bounded.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use nix::sys::socket::sockopt::{Ip6tOriginalDst, Mark, OriginalDst};
use nix::sys::socket::{SockaddrIn, SockaddrIn6, getsockopt, setsockopt};
use nix::unistd::{Gid, Uid, setgid, setgroups, setuid};
use socket2::{Domain, Protocol, Socket, Type};

use super::seen_source;

/// Where Istio's rules send what the pod dials, and what comes to the pod.
const OUTBOUND: u16 = 15001;
const INBOUND: u16 = 15006;

/// Where they send questions to the cluster's DNS. The rules want the same user there.
const RESOLVER: &str = "127.0.0.1:15053";

/// The user of a sidecar and the mark of ztunnel.
const ISTIO: u32 = 1337;

/// From these addresses a sidecar dials its own pod, so that its rules let it.
const TO_OWN_POD: [IpAddr; 2] =
    [IpAddr::V4(Ipv4Addr::new(127, 0, 0, 6)), IpAddr::V6(Ipv6Addr::new(0, 0, 0, 0, 0, 0, 0, 6))];

const CONNECTIONS_MAX: usize = 64;

/// Less than a client waits.
const PATIENCE: Duration = Duration::from_secs(2);

/// How rules recognize the proxy's own connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// Istio's sidecar.
    ByUser,
    /// ztunnel.
    ByMark,
}

impl Known {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::ByUser => "user",
            Self::ByMark => "mark",
        }
    }
}

/// The proxy's process, until it is killed.
pub(super) fn run(known: &str) -> io::Result<()> {
    let known = [Known::ByUser, Known::ByMark].into_iter().find(|it| it.word() == known);
    let known = known.ok_or_else(|| io::Error::other("a sidecar is known by user or mark"))?;
    if known == Known::ByUser {
        become_istio()?;
    }
    let open = Arc::new(AtomicUsize::new(0));
    for port in [OUTBOUND, INBOUND] {
        for address in [IpAddr::V4(Ipv4Addr::UNSPECIFIED), IpAddr::V6(Ipv6Addr::UNSPECIFIED)] {
            let listener = listener(SocketAddr::new(address, port))?;
            let open = Arc::clone(&open);
            thread::spawn(move || serve(&listener, port == INBOUND, known, &open));
        }
    }
    seen_source::run("proxy", &[RESOLVER])
}

fn become_istio() -> io::Result<()> {
    setgroups(&[])?;
    setgid(Gid::from_raw(ISTIO))?;
    Ok(setuid(Uid::from_raw(ISTIO))?)
}

fn listener(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.bind(&address.into())?;
    socket.listen(128)?;
    Ok(socket.into())
}

fn serve(listener: &TcpListener, is_inbound: bool, known: Known, open: &Arc<AtomicUsize>) {
    for stream in listener.incoming().filter_map(Result::ok) {
        let open = Arc::clone(open);
        if open.fetch_add(1, Ordering::Relaxed) >= CONNECTIONS_MAX {
            open.fetch_sub(1, Ordering::Relaxed);
            continue;
        }
        thread::spawn(move || {
            let _ = relay(stream, is_inbound, known);
            open.fetch_sub(1, Ordering::Relaxed);
        });
    }
}

fn relay(mut client: TcpStream, is_inbound: bool, known: Known) -> io::Result<()> {
    client.set_read_timeout(Some(PATIENCE))?;
    let original = original_destination(&client)?;
    let mut request = String::new();
    BufReader::new(&client).take(64).read_line(&mut request)?;
    let reply = forward(original, is_inbound, known, &request);
    let reply = reply.unwrap_or_else(|_| "nobody 0.0.0.0:0\n".to_owned());
    let (name, seen) = reply.split_once(' ').unwrap_or((&reply, "0.0.0.0:0\n"));
    client.write_all(format!("{name}@{original} {seen}").as_bytes())
}

fn original_destination(client: &TcpStream) -> io::Result<SocketAddr> {
    if client.local_addr()?.is_ipv4() {
        let raw = SockaddrIn::from(getsockopt(client, OriginalDst)?);
        return Ok(SocketAddr::new(raw.ip().into(), raw.port()));
    }
    let raw = SockaddrIn6::from(getsockopt(client, Ip6tOriginalDst)?);
    Ok(SocketAddr::new(raw.ip().into(), raw.port()))
}

/// Dials the original destination and returns the server's line.
fn forward(to: SocketAddr, is_inbound: bool, known: Known, request: &str) -> io::Result<String> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))?;
    match known {
        Known::ByMark => setsockopt(&socket, Mark, &ISTIO)?,
        Known::ByUser if is_inbound => socket.bind(&own_pod(to).into())?,
        Known::ByUser => {}
    }
    socket.connect_timeout(&to.into(), PATIENCE)?;
    let mut server: TcpStream = socket.into();
    server.set_read_timeout(Some(PATIENCE))?;
    server.write_all(request.as_bytes())?;
    let mut line = String::new();
    BufReader::new(server).take(256).read_line(&mut line)?;
    if line.is_empty() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(line)
}

fn own_pod(to: SocketAddr) -> SocketAddr {
    let [v4, v6] = TO_OWN_POD;
    SocketAddr::new(if to.is_ipv4() { v4 } else { v6 }, 0)
}
