//! Connected UDP sockets whose backend has left the list.
//!
//! Invariant: only a socket that dialled a frontend is touched, and only if no list of that frontend has its backend any
//! more. A socket that dialled a backend directly is nobody's business. Deliberately absent: sockets of other network
//! namespaces, and TCP, which notices by itself.

use std::io;
use std::net::SocketAddr;
use std::num::NonZeroU16;

use holdfast_core::keys::{Family, FrontendKey, Transport};
use holdfast_core::list::Scope;
use libbpf_rs::{MapCore, MapFlags};

use super::KernelMaps;
use crate::abi::{self, FrontendBytes};
use crate::diag::Diag;

impl KernelMaps {
    /// Ends them, so that their owners connect anew. Gives how many there were.
    ///
    /// The owner sees ECONNABORTED. Needs `CONFIG_INET_DIAG_DESTROY`; a kernel without it says EOPNOTSUPP.
    pub fn end_stale_udp(&self) -> io::Result<usize> {
        let mut diag = Diag::open()?;
        let mut ended = 0;
        for socket in diag.connected_udp()? {
            let Some(dialled) = self.dialled(socket.cookie, socket.peer) else { continue };
            if !self.is_listed(&dialled, socket.peer) {
                diag.end(&socket)?;
                ended += 1;
            }
        }
        Ok(ended)
    }

    /// What a socket dialled when it got that backend; `None`: it was not translated.
    fn dialled(&self, cookie: u64, backend: SocketAddr) -> Option<FrontendKey> {
        let map = self.shared.handles().get("udp_reverse")?;
        let key = abi::udp_key(cookie, backend);
        let dialled = abi::udp_place(&map.lookup(abi::bytes(&key), MapFlags::ANY).ok()??)?;
        let port = NonZeroU16::new(dialled.port())?;
        Some(FrontendKey { address: dialled.ip(), port, transport: Transport::Udp })
    }

    fn is_listed(&self, dialled: &FrontendKey, backend: SocketAddr) -> bool {
        let family = Family::of(dialled.address);
        let wildcard = FrontendKey { address: family.unspecified(), ..*dialled };
        let index = self.index_of(dialled).or_else(|| self.index_of(&wildcard));
        let lists =
            index.into_iter().flat_map(|index| Scope::ALL.map(|scope| self.generation.word(index, scope)));
        lists.flat_map(|word| self.generation.list(family, word)).any(|slot| slot.backend() == backend)
    }

    fn index_of(&self, key: &FrontendKey) -> Option<holdfast_core::op::PortIndex> {
        let family = Family::of(key.address);
        let bytes = FrontendBytes::new(key);
        let found = self.generation.frontends(family).get(bytes.key())?;
        abi::frontend_of(family, bytes.key(), &found).map(|(_, value)| value.port)
    }
}
