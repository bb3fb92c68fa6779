//! Decodes which backends refused the connects of this node's sockets.
//!
//! Invariant: an entry that a program is writing is not decoded.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Abi, from_mapped, from_words, mix, mix_endpoint};
pub(crate) use crate::skeleton::tcp_reset::types;

abi!(refused_connect {
    frontend: [u32; 4],
    backend: [u32; 4],
    frontend_port: u16,
    backend_port: u16,
    second: u32,
    check: u64,
});

/// How many 64-bit words an entry has.
pub(crate) const ENTRY_WORDS: usize = size_of::<types::refused_connect>() / 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RefusedConnect {
    pub(crate) frontend: SocketAddr,
    pub(crate) backend: SocketAddr,
    /// When, on the programs' clock.
    pub(crate) second: u32,
}

/// `None`: the entry is free, or torn.
pub(crate) fn decode_entry(words: &[AtomicU64], seed: u64) -> Option<RefusedConnect> {
    // Most entries are free, and are looked at each second.
    if words.last()?.load(Ordering::Relaxed) == 0 {
        return None;
    }
    let it: types::refused_connect = from_words(words.iter().map(|word| word.load(Ordering::Relaxed)))?;
    if it.backend_port == 0 || it.check != check(&it, seed) {
        return None;
    }
    let endpoint = |address, port| SocketAddr::new(from_mapped(address), u16::from_be(port));
    Some(RefusedConnect {
        frontend: endpoint(it.frontend, it.frontend_port),
        backend: endpoint(it.backend, it.backend_port),
        second: it.second,
    })
}

/// Does the same as `save_refusal` in `bpf/tcp_reset.bpf.c`.
fn check(it: &types::refused_connect, seed: u64) -> u64 {
    let mixed = mix(seed, it.frontend_port.into(), 0);
    let mixed = mix_endpoint(mixed, it.frontend, it.frontend_port);
    mix_endpoint(mixed, it.backend, it.backend_port)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::{to_mapped, to_words};

    #[test]
    fn an_entry_is_decoded_whole_or_not_at_all() {
        let (frontend, backend): (SocketAddr, SocketAddr) =
            ("10.96.0.10:80".parse().unwrap(), "[fd00::1]:8080".parse().unwrap());
        let mut it = types::refused_connect {
            frontend: to_mapped(frontend.ip()),
            backend: to_mapped(backend.ip()),
            frontend_port: frontend.port().to_be(),
            backend_port: backend.port().to_be(),
            second: 9,
            check: 0,
        };
        it.check = check(&it, 7);
        let decode = |it: &types::refused_connect, seed| {
            decode_entry(&to_words(it).map(AtomicU64::new).collect::<Vec<_>>(), seed)
        };
        assert_eq!(decode(&it, 7), Some(RefusedConnect { frontend, backend, second: 9 }));
        assert_eq!(decode(&it, 8), None, "another daemon wrote it");
        assert_eq!(decode(&types::refused_connect { frontend_port: 1, ..it }, 7), None, "torn");
        assert_eq!(decode(&types::refused_connect::default(), 7), None, "free");
    }
}
