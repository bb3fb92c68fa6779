//! Sends thousands of first packets at once from many places and reports where each arrives. Raw sockets send them,
//! and raw sockets in every place receive them.
//!
//! Invariant: no server takes part. A receiving socket replies as a kernel does for a closed port, so the return path
//! is tested too. Packets of an earlier call never count in a later one.

use std::collections::BTreeMap;
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::socket::{ControlMessageOwned, MsgFlags, SockaddrIn6, recvmsg, setsockopt, sockopt};
use socket2::{Domain, Protocol, Socket, Type};

use super::ask::Transport;
pub use super::probe_packet::Reply;
use super::probe_packet::{Packet, ProbeEvent, ProbePacket, header4, read};
use super::{Bed, BedError, Location, at};

/// The receive buffer of a socket: thousands of packets.
const BUFFER_BYTES: usize = 16 << 20;

/// Longer than any packet here.
const PACKET_BYTES: usize = 2048;

/// After this silence the call ends. A receiver replies within microseconds; a busy machine may delay it by some tens
/// of milliseconds.
const SILENCE: Duration = Duration::from_millis(400);

/// The pause between two polls of all sockets.
const POLL: Duration = Duration::from_micros(200);

/// The pause between two checks of the clock while sending at a pace.
const STEP: Duration = Duration::from_millis(5);

const PROTOCOLS4: [Protocol; 3] = [Protocol::TCP, Protocol::UDP, Protocol::ICMPV4];
const PROTOCOLS6: [Protocol; 3] = [Protocol::TCP, Protocol::UDP, Protocol::ICMPV6];

/// The clients' first port, and the number of ports.
const PORTS: (u32, u32) = (10_000, 50_000);

/// A packet to send.
#[derive(Clone, Copy, Debug)]
pub struct Probe {
    /// The network that sends it.
    pub place: &'static str,
    pub from: IpAddr,
    pub to: SocketAddr,
    pub transport: Transport,
}

/// The result for one packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProbeResult {
    /// Where it arrived, and with which source address.
    pub led: Option<(SocketAddr, IpAddr)>,
    /// The reply that its client received.
    pub reply: Reply,
}

#[derive(Debug)]
struct ProbeReceiver {
    socket: Socket,
    protocol: u8,
    is_six: bool,
}

/// Raw sockets in places of a bed.
#[derive(Debug)]
pub struct PacketProbe {
    receivers: Vec<ProbeReceiver>,
    /// Sending sockets, one for each family.
    senders: BTreeMap<&'static str, [Socket; 2]>,
    /// The number of the next packet.
    number: u32,
}

impl PacketProbe {
    /// Receives in all of these places, and sends from those that have a name.
    pub fn open(bed: &Bed, places: &[Location<'static>]) -> Result<Self, BedError> {
        let mut all = Self { receivers: Vec::new(), senders: BTreeMap::new(), number: 1 << 24 };
        for place in places {
            let (receivers, senders) =
                bed.within(*place, sockets)?.map_err(at("open", "raw sockets".as_ref()))?;
            all.receivers.extend(receivers);
            all.senders.extend(place.neighbour.map(|name| (name, senders)));
        }
        Ok(all)
    }

    /// Sends all packets, at most `pace` per second, and returns the result for each.
    pub fn ask(&mut self, all: &[Probe], pace: u32) -> Result<Vec<ProbeResult>, BedError> {
        let first = self.number;
        let probes: Vec<ProbePacket> =
            all.iter().zip(first..).map(|(sent, number)| probe(sent, number)).collect();
        let mut results = vec![ProbeResult::default(); all.len()];
        let is_sent = AtomicBool::new(false);
        let this = &*self;
        thread::scope(|scope| {
            let heard = scope.spawn(|| this.receive(&probes, first, &mut results, &is_sent));
            let sent = this.send(all, &probes, pace);
            is_sent.store(true, Ordering::Release);
            let heard = heard.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            sent.and(heard).map_err(at("ask by", "raw sockets".as_ref()))
        })?;
        self.number = probes.last().map_or(first, |last| last.number.wrapping_add(1));
        Ok(results)
    }

    fn send(&self, all: &[Probe], probes: &[ProbePacket], pace: u32) -> io::Result<()> {
        let begun = Instant::now();
        for (sent, (probe, count)) in all.iter().zip(probes.iter().zip(0_u32..)) {
            let due = Duration::from_secs(1).saturating_mul(count) / pace.max(1);
            while due > begun.elapsed() + STEP {
                thread::sleep(STEP);
            }
            let senders = self.senders.get(sent.place).ok_or_else(|| io::Error::other(sent.place))?;
            let [four, six] = senders;
            let socket = if sent.to.is_ipv4() { four } else { six };
            // For a raw socket, the port is the protocol.
            send(socket, probe, SocketAddr::new(sent.to.ip(), 0))?;
        }
        Ok(())
    }

    fn receive(
        &self,
        probes: &[ProbePacket],
        first: u32,
        results: &mut [ProbeResult],
        is_sent: &AtomicBool,
    ) -> io::Result<()> {
        let mut buffer = [0; PACKET_BYTES];
        let mut last = Instant::now();
        loop {
            let was_sent = is_sent.load(Ordering::Acquire);
            let mut words = 0_usize;
            for receiver in &self.receivers {
                while let Some(word) = receiver.next(&mut buffer)? {
                    words += 1;
                    word.into_iter().for_each(|word| note(probes, first, results, word));
                }
            }
            if words > 0 || !was_sent {
                last = Instant::now();
            } else if last.elapsed() > SILENCE {
                return Ok(());
            }
            if words == 0 {
                thread::sleep(POLL);
            }
        }
    }
}

/// Without a route the node reports an error at once, which is a normal result. A full queue drains.
fn send(socket: &Socket, probe: &ProbePacket, to: SocketAddr) -> io::Result<()> {
    use nix::libc::{EHOSTUNREACH, ENETUNREACH, ENOBUFS, EPERM};
    loop {
        match socket.send_to(&probe.packet(), &to.into()) {
            Ok(_) => return Ok(()),
            Err(error) if error.raw_os_error() == Some(ENOBUFS) => thread::sleep(STEP),
            Err(error) if matches!(error.raw_os_error(), Some(EPERM | EHOSTUNREACH | ENETUNREACH)) => {
                return Ok(());
            }
            Err(error) => return Err(error),
        }
    }
}

fn probe(sent: &Probe, number: u32) -> ProbePacket {
    let (lowest, count) = PORTS;
    let port = u16::try_from(lowest + number % count).unwrap_or_default();
    ProbePacket { number, transport: sent.transport, from: SocketAddr::new(sent.from, port), to: sent.to }
}

fn note(probes: &[ProbePacket], first: u32, results: &mut [ProbeResult], word: ProbeEvent) {
    let (ProbeEvent::Arrived(seen) | ProbeEvent::Answered(seen, _)) = word;
    let index = usize::try_from(seen.number.wrapping_sub(first)).unwrap_or(usize::MAX);
    let (Some(probe), Some(result)) = (probes.get(index), results.get_mut(index)) else { return };
    match word {
        ProbeEvent::Arrived(seen) if seen.transport == probe.transport => {
            result.led = Some((seen.to, seen.from.ip()));
        }
        ProbeEvent::Answered(seen, reply) if seen == *probe => result.reply = reply,
        ProbeEvent::Answered(seen, _)
            if seen.transport == probe.transport && result.reply == Reply::Nothing =>
        {
            result.reply = Reply::Stray;
        }
        _ => {}
    }
}

fn sockets() -> io::Result<(Vec<ProbeReceiver>, [Socket; 2])> {
    let four = PROTOCOLS4.map(|protocol| receiver(Domain::IPV4, protocol));
    let six = PROTOCOLS6.map(|protocol| receiver(Domain::IPV6, protocol));
    let receivers = four.into_iter().chain(six).collect::<io::Result<_>>()?;
    // With this protocol the kernel sends headers as given.
    let raw = Protocol::from(nix::libc::IPPROTO_RAW);
    let voice = |domain| Socket::new(domain, Type::RAW, Some(raw));
    Ok((receivers, [voice(Domain::IPV4)?, voice(Domain::IPV6)?]))
}

fn receiver(domain: Domain, protocol: Protocol) -> io::Result<ProbeReceiver> {
    let socket = Socket::new(domain, Type::RAW, Some(protocol))?;
    setsockopt(&socket, sockopt::RcvBufForce, &BUFFER_BYTES)?;
    let is_six = domain == Domain::IPV6;
    if is_six {
        setsockopt(&socket, sockopt::Ipv6RecvPacketInfo, &true)?;
    }
    socket.set_nonblocking(true)?;
    Ok(ProbeReceiver { socket, protocol: u8::try_from(i32::from(protocol)).unwrap_or_default(), is_six })
}

impl ProbeReceiver {
    /// Reads the next packet and parses it. `None`: there is no packet. `Some(None)`: it is no probe.
    fn next(&self, buffer: &mut [u8; PACKET_BYTES]) -> io::Result<Option<Option<ProbeEvent>>> {
        let mut control = nix::cmsg_space!(nix::libc::in6_pktinfo);
        let mut parts = [IoSliceMut::new(buffer)];
        let fd = self.socket.as_raw_fd();
        let (count, ends) =
            match recvmsg::<SockaddrIn6>(fd, &mut parts, Some(&mut control), MsgFlags::empty()) {
                Ok(message) => (message.bytes, self.is_six.then(|| ends(&message))),
                Err(nix::errno::Errno::EAGAIN) => return Ok(None),
                Err(error) => return Err(error.into()),
            };
        let bytes = buffer.get(..count).unwrap_or_default();
        let packet = match ends {
            None => header4(bytes),
            Some(ends) => ends.map(|(from, to)| Packet { from, to, protocol: self.protocol, body: bytes }),
        };
        Ok(Some(packet.and_then(|packet| read(&packet))))
    }
}

/// Source and destination of an IPv6 packet; the kernel does not pass on its header.
fn ends(message: &nix::sys::socket::RecvMsg<'_, '_, SockaddrIn6>) -> Option<(IpAddr, IpAddr)> {
    let from = message.address?.ip();
    let to = message.cmsgs().ok()?.find_map(|control| match control {
        ControlMessageOwned::Ipv6PacketInfo(info) => Some(Ipv6Addr::from(info.ipi6_addr.s6_addr)),
        _ => None,
    })?;
    Some((from.into(), to.into()))
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const SENT: Probe = Probe {
        place: "client",
        from: IpAddr::V4(Ipv4Addr::new(10, 20, 0, 2)),
        to: SocketAddr::new(IpAddr::V4(Ipv4Addr::new(203, 0, 113, 1)), 80),
        transport: Transport::Tcp,
    };

    #[test]
    fn a_received_packet_counts_only_for_its_own_number() {
        let probes = [probe(&SENT, 7), probe(&SENT, 8)];
        let mut results = [ProbeResult::default(); 2];
        let mut note = |word| note(&probes, 7, &mut results, word);
        let backend = ProbePacket { to: "10.244.1.10:8080".parse().unwrap(), ..probes[1] };
        note(ProbeEvent::Arrived(backend));
        note(ProbeEvent::Answered(probes[1], Reply::Refused));
        note(ProbeEvent::Answered(backend, Reply::Refused));
        note(ProbeEvent::Arrived(ProbePacket { number: 6, ..backend }));
        note(ProbeEvent::Arrived(ProbePacket { number: 9, ..backend }));
        let led = Some((backend.to, SENT.from));
        assert_eq!(results, [ProbeResult::default(), ProbeResult { led, reply: Reply::Refused }]);
    }

    #[test]
    fn a_reply_from_another_address_is_a_stray() {
        let probes = [probe(&SENT, 7)];
        let mut results = [ProbeResult::default()];
        let other = ProbePacket { to: "10.244.1.10:8080".parse().unwrap(), ..probes[0] };
        note(&probes, 7, &mut results, ProbeEvent::Answered(other, Reply::Refused));
        assert_eq!(results[0].reply, Reply::Stray);
    }
}
