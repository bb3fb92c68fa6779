//! Reads the programs' ring buffer of clients that were not served.
//!
//! Invariant: a reader never blocks a program. The program counts a record that is above the rate limit, or that does
//! not fit into the buffer. A refusal's frontend leads to its service.

use std::io::PipeReader;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::Duration;

use holdfast_core::keys::{FrontendKey, Transport};
use holdfast_core::op::{PortIndex, QuotaId};
pub(crate) use holdfast_status::datapath::{Arrival, Cause, Denial, Refusal};
use libbpf_rs::{MapHandle, RingBufferBuilder};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::abi::{self, types};

const CAUSES: [(Cause, types::reason); 6] = [
    (Cause::NoBackend, types::reason::REASON_NO_BACKEND),
    (Cause::Source, types::reason::REASON_SOURCE),
    (Cause::Flows, types::reason::REASON_FLOWS),
    (Cause::Ports, types::reason::REASON_PORTS),
    (Cause::Address, types::reason::REASON_ADDRESS),
    (Cause::NoSuchPort, types::reason::REASON_NO_SUCH_PORT),
];

/// Where the quota begins, above the port.
const QUOTA_SHIFT: u32 = abi::packets::types::flow_part::FLOW_SHARE_AT.0;

/// The reader of the ring buffer.
#[derive(Debug)]
pub struct RefusalReader {
    map: MapHandle,
}

impl RefusalReader {
    pub(crate) fn new(map: MapHandle) -> Self {
        Self { map }
    }

    /// Passes refusals to `tell`, oldest first, until the other end of `stop` is closed. Only one reader at a time.
    pub fn read_refusals(
        &self,
        stop: &PipeReader,
        mut tell: impl FnMut(Refusal),
    ) -> Result<(), libbpf_rs::Error> {
        let mut builder = RingBufferBuilder::new();
        builder.add(&self.map, move |bytes| {
            if let Some(refusal) = decode_refusal(bytes) {
                tell(refusal);
            }
            0
        })?;
        let ring = builder.build()?;
        while wait_for_record(&self.map, stop)? {
            ring.consume()?;
        }
        Ok(())
    }
}

/// Waits for a record without a time limit, so an idle node stays asleep. `false`: the reader is stopped.
fn wait_for_record(records: &impl AsFd, stop: &PipeReader) -> Result<bool, libbpf_rs::Error> {
    let mut watched =
        [PollFd::new(stop.as_fd(), PollFlags::POLLIN), PollFd::new(records.as_fd(), PollFlags::POLLIN)];
    match poll(&mut watched, PollTimeout::NONE) {
        // A signal to the daemon may interrupt this thread.
        Ok(_) | Err(Errno::EINTR) => Ok(watched[0].revents().is_none_or(|events| events.is_empty())),
        Err(errno) => Err(std::io::Error::from(errno).into()),
    }
}

fn decode_refusal(bytes: &[u8]) -> Option<Refusal> {
    let it: types::refusal = abi::from_bytes(bytes)?;
    let address = SocketAddr::new(abi::from_mapped(it.address), u16::from_be(it.port));
    let transport: Transport = abi::transport_from_number(it.transport)?;
    let comm = it.comm.split(|byte| *byte == 0).next().unwrap_or_default();
    let cause = CAUSES.iter().find(|(_, number)| u32::from(it.reason) == number.0);
    let source = SocketAddr::new(abi::from_mapped(it.source), u16::from_be(it.source_port));
    let is_packet = u32::from(it.stage) == types::stage::STAGE_PACKET.0;
    let dropped = u32::from(it.verdict) == types::verdict::VERDICT_DROPPED.0;
    Some(Refusal {
        at: Duration::from_nanos(it.at_ns),
        arrival: is_packet.then_some(Arrival { source, device: it.device }),
        process: it.process,
        thread: it.thread,
        comm: String::from_utf8_lossy(comm).into_owned(),
        cgroup: it.cgroup,
        netns: it.netns,
        frontend: FrontendKey::from_socket(address, transport)?,
        port: PortIndex(it.port_and_share & ((1 << QUOTA_SHIFT) - 1)),
        quota: refusal_quota(&it),
        denial: if dropped { Denial::Dropped } else { Denial::Refused },
        // Programs of a newer version may write a cause that this daemon does not know.
        cause: cause.map_or(Cause::NoBackend, |(cause, _)| *cause),
    })
}

/// The quota of the frontend; none if there is no frontend.
fn refusal_quota(it: &types::refusal) -> QuotaId {
    let is_no_port = u32::from(it.reason) == types::reason::REASON_NO_SUCH_PORT.0;
    let number = u16::try_from(it.port_and_share >> QUOTA_SHIFT).unwrap_or_default();
    if is_no_port { QuotaId::default() } else { QuotaId(number) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_the_client_and_the_dialled_frontend() {
        let mut comm = [0; 16];
        comm[..4].copy_from_slice(b"curl");
        let refusal = types::refusal {
            at_ns: 5,
            process: 10,
            comm,
            address: [0, 0, 0xffff_u32.to_be(), u32::from_ne_bytes([10, 96, 0, 10])],
            port: 443_u16.to_be(),
            transport: 6,
            verdict: 2,
            port_and_share: 9 << QUOTA_SHIFT | 7,
            ..types::refusal::default()
        };
        let read = decode_refusal(abi::as_bytes(&refusal)).unwrap();
        assert_eq!((read.comm.as_str(), read.process, read.denial), ("curl", 10, Denial::Dropped));
        assert_eq!(read.frontend.to_string(), "10.96.0.10:443/TCP");
        assert_eq!((read.arrival, read.cause), (None, Cause::NoBackend));
        assert_eq!((read.port, read.quota), (PortIndex(7), QuotaId(9)));
        assert_eq!(decode_refusal(&[0; 8]), None, "a truncated record");
    }

    #[test]
    fn a_refused_packet_names_its_source_device_and_cause() {
        for (reason, cause) in (0..).zip(CAUSES.map(|(cause, _)| cause)) {
            let refusal = types::refusal {
                address: [0, 0, 0xffff_u32.to_be(), u32::from_ne_bytes([192, 0, 2, 5])],
                source: [0, 0, 0xffff_u32.to_be(), u32::from_ne_bytes([203, 0, 113, 9])],
                port: 30_080_u16.to_be(),
                source_port: 50_000_u16.to_be(),
                transport: 17,
                verdict: 2,
                stage: 1,
                reason,
                device: 3,
                ..types::refusal::default()
            };
            let read = decode_refusal(abi::as_bytes(&refusal)).unwrap();
            let source = "203.0.113.9:50000".parse().unwrap();
            assert_eq!((read.arrival, read.cause), (Some(Arrival { source, device: 3 }), cause));
            assert_eq!((read.process, read.comm.as_str()), (0, ""));
        }
    }
}
