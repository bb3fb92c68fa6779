//! Reads what programs keep with UDP sockets, for all network namespaces at once.
//!
//! Invariant: the program that reads it changes nothing.

use std::collections::HashMap;
use std::io::{self, Read};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::sync::Arc;

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{Iter, Link, MapHandle};

use crate::abi::{self, UdpConnection, types};
use crate::skeleton::UdpIterSkelBuilder;

/// The most connections that one read finds, some 10 MB. If there are more, the first ones are found, and others once
/// those have gone.
const CONNECTIONS_MAX: usize = 1 << 16;

const RECORD_BYTES: usize = size_of::<types::udp_connection>();

/// Connections by their sockets' cookies.
pub(crate) type UdpConnections = HashMap<u64, UdpConnection>;

/// The reading program, attached.
#[derive(Clone, Debug)]
pub(crate) struct UdpPeerReader(Arc<Link>);

impl UdpPeerReader {
    /// Attaches the reading program to a map. Needs the kernel's own types (BTF) and CAP_PERFMON.
    pub(crate) fn for_map(map: &MapHandle) -> Result<Self, libbpf_rs::Error> {
        let mut memory = MaybeUninit::uninit();
        let skeleton = UdpIterSkelBuilder::default().open(&mut memory)?.load()?;
        skeleton.progs.dump_udp_peers.attach_iter(map.as_fd()).map(Arc::new).map(Self)
    }

    /// The connections that `wanted` accepts, and whether there may be more.
    pub(crate) fn read_connections(
        &self,
        wanted: impl Fn(&UdpConnection) -> bool,
    ) -> io::Result<(UdpConnections, bool)> {
        let mut told = Iter::new(&self.0).map_err(|error| io::Error::other(format!("{error:#}")))?;
        let mut found = UdpConnections::default();
        let mut rest = Vec::new();
        let mut buffer = [0; 1 << 16];
        while found.len() < CONNECTIONS_MAX {
            let length = told.read(&mut buffer)?;
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
