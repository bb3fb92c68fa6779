//! Netmasks for affinity of another load balancer, as prefixes of a block.
//!
//! Invariant: a mask that a block cannot have is noted, and its clients stay by whole addresses.

use std::net::IpAddr;

use holdfast_core::affinity::Prefixes;
use holdfast_core::keys::Family;

use super::imported_service::ImportedService;
use super::notes::{Notes, quote_excerpt};

/// Applies the affinity mask to the service's prefixes, for the family of its addresses.
pub(super) fn set_prefix(found: &mut ImportedService, line: usize, mask: &str, notes: &mut Notes) {
    if let Some(frontend) = found.frontends.first() {
        found.prefixes = with_mask(found.prefixes, Family::from_address(frontend.ip()), line, mask, notes);
    }
}

/// The same prefixes with this mask for a family: its length, or its bits as an address.
pub(super) fn with_mask(
    prefixes: Prefixes,
    family: Family,
    line: usize,
    mask: &str,
    notes: &mut Notes,
) -> Prefixes {
    let read = parse_prefix_length(family, mask).and_then(|length| prefixes.with_length(family, length));
    read.unwrap_or_else(|| {
        let (least, most) = Prefixes::legal_lengths(family);
        let why = format!("is no prefix of {least} to {most} bits: clients are kept by whole addresses");
        notes.add(line, format!("{} {why}", quote_excerpt(mask)));
        prefixes
    })
}

/// The prefix length of the mask. `None`: it is no mask, or its bits are not contiguous.
fn parse_prefix_length(family: Family, mask: &str) -> Option<u8> {
    if mask.bytes().all(|byte| byte.is_ascii_digit()) {
        return mask.parse().ok();
    }
    let (ones, zeros, all) = match (family, mask.parse().ok()?) {
        (Family::V4, IpAddr::V4(mask)) => {
            (mask.to_bits().leading_ones(), mask.to_bits().trailing_zeros(), u32::BITS)
        }
        (Family::V6, IpAddr::V6(mask)) => {
            (mask.to_bits().leading_ones(), mask.to_bits().trailing_zeros(), u128::BITS)
        }
        _ => return None,
    };
    u8::try_from(ones).ok().filter(|_| ones + zeros == all)
}
