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

use crate::abi::{self, Connection, types};
use crate::skeleton::UdpIterSkelBuilder;

/// The most connections that one read finds, some 10 MB. If there are more, the first ones are found, and others once
/// those have gone.
const CONNECTIONS_MAX: usize = 1 << 16;

const TELLING: usize = size_of::<types::udp_connection>();

/// Connections by their sockets' cookies.
pub(crate) type Connections = HashMap<u64, Connection>;

/// The reading program, attached.
#[derive(Clone, Debug)]
pub(crate) struct Reader(Arc<Link>);

impl Reader {
    /// Attaches the reading program to a map. Needs the kernel's own types (BTF) and CAP_PERFMON.
    pub(crate) fn over(map: &MapHandle) -> Result<Self, libbpf_rs::Error> {
        let mut memory = MaybeUninit::uninit();
        let skeleton = UdpIterSkelBuilder::default().open(&mut memory)?.load()?;
        skeleton.progs.dump_udp_peers.attach_iter(map.as_fd()).map(Arc::new).map(Self)
    }

    /// The connections that `wanted` accepts, and whether there may be more.
    pub(crate) fn read(&self, wanted: impl Fn(&Connection) -> bool) -> io::Result<(Connections, bool)> {
        let mut told = Iter::new(&self.0).map_err(|error| io::Error::other(format!("{error:#}")))?;
        let mut found = Connections::default();
        let mut rest = Vec::new();
        let mut buffer = [0; 1 << 16];
        while found.len() < CONNECTIONS_MAX {
            let length = told.read(&mut buffer)?;
            if length == 0 {
                return Ok((found, false));
            }
            rest.extend_from_slice(buffer.get(..length).unwrap_or_default());
            let whole = rest.len() - rest.len() % TELLING;
            let connections = rest.drain(..whole).collect::<Vec<_>>();
            let connections = connections.chunks_exact(TELLING).filter_map(abi::connection);
            found.extend(connections.filter(|(_, connection)| wanted(connection)));
        }
        Ok((found, true))
    }
}
