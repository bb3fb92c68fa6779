//! Session affinity by prefix: how many leading bits of an address identify a client.
//!
//! Invariant: every prefix length is legal; an unset one is the whole address.

use alloc::format;
use alloc::string::String;
use core::fmt;

use crate::keys::Family;
use crate::limits::{AFFINITY_PREFIX_V4, AFFINITY_PREFIX_V6};

/// How many leading bits of a client's address count, per family: all clients of one prefix are one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefixes {
    ipv4: u8,
    ipv6: u8,
}

impl Prefixes {
    /// Each address is its own client.
    pub const WHOLE: Self = Self { ipv4: 32, ipv6: 128 };

    /// The shortest and the longest legal length of a family.
    pub const fn legal_lengths(family: Family) -> (u8, u8) {
        match family {
            Family::V4 => (AFFINITY_PREFIX_V4, Self::WHOLE.ipv4),
            Family::V6 => (AFFINITY_PREFIX_V6, Self::WHOLE.ipv6),
        }
    }

    /// Sets the length of one family; `None` if that length is not legal.
    pub const fn with_length(mut self, family: Family, length: u8) -> Option<Self> {
        let (least, most) = Self::legal_lengths(family);
        if length < least || length > most {
            return None;
        }
        match family {
            Family::V4 => self.ipv4 = length,
            Family::V6 => self.ipv6 = length,
        }
        Some(self)
    }

    /// Parses `ipv4=24,ipv6=64`, or one of the two. The error names the invalid item and the legal lengths.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut all = Self::WHOLE;
        for item in text.split(',').map(str::trim) {
            let read = item.split_once('=').and_then(|(word, length)| all.with_item(word, length));
            all = read.ok_or_else(|| invalid_item_reason(item))?;
        }
        Ok(all)
    }

    fn with_item(self, word: &str, length: &str) -> Option<Self> {
        let family = Family::ALL.into_iter().find(|family| family_name(*family) == word.trim())?;
        let digits = Some(length.trim()).filter(|length| length.bytes().all(|byte| byte.is_ascii_digit()));
        self.with_length(family, digits?.parse().ok()?)
    }

    pub const fn length(self, family: Family) -> u8 {
        match family {
            Family::V4 => self.ipv4,
            Family::V6 => self.ipv6,
        }
    }

    /// How many trailing bits of an address do not count.
    pub(crate) const fn ignored_bits(self, family: Family) -> u8 {
        Self::WHOLE.length(family).saturating_sub(self.length(family))
    }
}

/// The format that [`Prefixes::parse`] accepts.
impl fmt::Display for Prefixes {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [ipv4, ipv6] = Family::ALL.map(family_name);
        write!(out, "{ipv4}={},{ipv6}={}", self.ipv4, self.ipv6)
    }
}

const fn family_name(family: Family) -> &'static str {
    match family {
        Family::V4 => "ipv4",
        Family::V6 => "ipv6",
    }
}

/// The error shows at most this many characters of an invalid item.
const EXCERPT_MAX: usize = 60;

fn invalid_item_reason(item: &str) -> String {
    let shown: String = item.chars().take(EXCERPT_MAX).collect();
    let [(v4, v4_most), (v6, v6_most)] = Family::ALL.map(Prefixes::legal_lengths);
    format!("{shown:?} is no prefix: legal are ipv4={v4} to ipv4={v4_most} and ipv6={v6} to ipv6={v6_most}")
}

#[cfg(test)]
mod tests;
