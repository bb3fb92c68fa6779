//! Converts source ranges to and from keys of the tries in which programs look clients up.
//!
//! Invariant: a key begins with the whole port index, so a range of one port admits no client at another.

use std::net::IpAddr;

use holdfast_core::keys::Family;
use holdfast_core::op::{PortIndex, SourceKey};
use holdfast_core::source_ranges::SourceRange;

use super::{Abi, address4, address6, as_bytes, from_address4, from_address6, from_bytes};
pub(crate) use crate::skeleton::packet::types;

abi!(source4_key { prefix: u32, port_index: u32, address: u32 });
abi!(source6_key { prefix: u32, port_index: u32, address: [u32; 4] });

/// The bits of a key before its address: the port index.
const PORT_INDEX_BITS: u32 = u32::BITS;

pub(crate) fn encode_key(key: &SourceKey) -> Vec<u8> {
    let prefix = PORT_INDEX_BITS + u32::from(key.range.bits());
    let port_index = key.port.0;
    match key.range.address() {
        IpAddr::V4(address) => {
            as_bytes(&types::source4_key { prefix, port_index, address: address4(address) }).to_vec()
        }
        IpAddr::V6(address) => {
            as_bytes(&types::source6_key { prefix, port_index, address: address6(address) }).to_vec()
        }
    }
}

/// The inverse of [`encode_key`]. `None`: this daemon did not write the key, in any version.
pub(crate) fn decode_key(family: Family, key: &[u8]) -> Option<SourceKey> {
    let (prefix, port_index, address) = match family {
        Family::V4 => {
            let key: types::source4_key = from_bytes(key)?;
            (key.prefix, key.port_index, IpAddr::V4(from_address4(key.address)))
        }
        Family::V6 => {
            let key: types::source6_key = from_bytes(key)?;
            (key.prefix, key.port_index, IpAddr::V6(from_address6(key.address)))
        }
    };
    let bits = prefix.checked_sub(PORT_INDEX_BITS)?.try_into().ok()?;
    Some(SourceKey { port: PortIndex(port_index), range: SourceRange::new(address, bits)? })
}

#[cfg(test)]
mod tests;
