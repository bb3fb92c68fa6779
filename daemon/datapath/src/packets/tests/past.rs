//! Shared by tests of the fast path: services, and how a forwarded packet looks.

use holdfast_core::op::FrontendType;

use super::craft::{Seen, address, see};
use super::node::{Node, REDIRECTED};
use crate::kernel::bed::Port;

/// An outside client, its frontend, and the backend.
pub(super) type Way = (&'static str, &'static str, &'static str);

/// The time to live of a crafted packet.
pub(super) const HOPS: u8 = 63;

/// Serves each frontend over TCP and UDP.
pub(super) fn serve(node: &mut Node, ways: &[Way]) {
    let both = [Port::TCP, Port::UDP];
    for (index, (_, frontend, backend)) in (1..).zip(ways) {
        for (transport, port) in both.iter().enumerate() {
            let index = index + 10 * u32::try_from(transport).unwrap();
            let (frontends, backends, base) = ([*frontend], [address(backend)], index);
            let kind = FrontendType::LoadBalancer;
            node.serve(&Port { index, kind, frontends: &frontends, backends: &backends, base, ..*port });
        }
    }
}

pub(super) fn hops(frame: &[u8]) -> u8 {
    if frame[12] == 8 { frame[14 + 8] } else { frame[14 + 7] }
}

/// A forwarded packet, one hop further.
#[track_caller]
pub(super) fn passed((verdict, frame): &(i32, Vec<u8>)) -> Seen {
    assert_eq!((*verdict, hops(frame)), (REDIRECTED, HOPS - 1));
    let seen = see(frame, true);
    assert!(seen.is_valid, "{seen:?}");
    seen
}
