//! Reads the peers that programs recorded for UDP sockets, in all network namespaces at once.
//!
//! Invariant: the reading program changes nothing.

use std::collections::HashMap;
use std::io::{self, Read};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::sync::Arc;

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{Iter, Link, MapHandle};

use crate::abi::{self, UdpConnection, types};
use crate::skeleton::UdpIterSkelBuilder;

/// The most connections per read, some 10 MB. Later reads find the others once these are gone.
const CONNECTIONS_MAX: usize = 1 << 16;

const RECORD_BYTES: usize = size_of::<types::udp_connection>();

/// Connections by their sockets' cookies.
pub(crate) type UdpConnections = HashMap<u64, UdpConnection>;

#[derive(Clone, Debug)]
pub(crate) struct UdpPeerReader(Arc<Link>);

impl UdpPeerReader {
    /// Attaches the iterator to a map. Needs the kernel's types (BTF) and CAP_PERFMON.
    pub(crate) fn for_map(map: &MapHandle) -> Result<Self, libbpf_rs::Error> {
        let mut memory = MaybeUninit::uninit();
        let skeleton = UdpIterSkelBuilder::default().open(&mut memory)?.load()?;
        skeleton.progs.dump_udp_peers.attach_iter(map.as_fd()).map(Arc::new).map(Self)
    }

    /// Reads the connections that `wanted` accepts. Returns them, and whether there may be more.
    pub(crate) fn read_connections(
        &self,
        wanted: impl Fn(&UdpConnection) -> bool,
    ) -> io::Result<(UdpConnections, bool)> {
        let mut records = Iter::new(&self.0).map_err(|error| io::Error::other(format!("{error:#}")))?;
        let mut found = UdpConnections::default();
        let mut rest = Vec::new();
        let mut buffer = [0; 1 << 16];
        while found.len() < CONNECTIONS_MAX {
            let length = records.read(&mut buffer)?;
            if length == 0 {
                return Ok((found, false));
            }
            rest.extend_from_slice(buffer.get(..length).unwrap_or_default());
            let whole = rest.len() - rest.len() % RECORD_BYTES;
            let connections = rest.drain(..whole).collect::<Vec<_>>();
            let connections = connections.chunks_exact(RECORD_BYTES).filter_map(abi::decode_connection);
            found.extend(connections.filter(|(_, connection)| wanted(connection)));
        }
        Ok((found, true))
    }
}
