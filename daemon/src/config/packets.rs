//! `[packets]`: how packets of this daemon are told from those of others.

use toml::de::DeValue;

use super::table::Table;
use super::value::{expected, quote};

/// The one bit of a packet's mark that holdfast uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark(u32);

impl Mark {
    /// The only bit that nobody else is known to use: kube-proxy has 14 and 15, Calico all from 16 on, Cilium 8 to 11,
    /// Antrea and the AWS VPC CNI the lowest eight, the portmap plugin 13.
    pub const DEFAULT: Self = Self(1 << 12);

    /// The mark of a socket or a packet.
    pub const fn bit(self) -> u32 {
        self.0
    }
}

impl Default for Mark {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl std::fmt::Display for Mark {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// The table `[packets]`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Packets {
    /// The bit that marks the daemon's own sockets.
    pub mark: Mark,
}

pub(super) fn read(table: &mut Table<'_, '_, '_>) -> Packets {
    Packets { mark: table.take("mark", mark).unwrap_or_default() }
}

fn hexadecimal(text: &str) -> Option<u32> {
    // The standard library would take a sign as well.
    let digits = text.strip_prefix("0x").filter(|digits| digits.bytes().all(|it| it.is_ascii_hexdigit()))?;
    u32::from_str_radix(digits, 16).ok()
}

const LEGAL: &str = "one bit of 32, such as \"0x1000\"";

fn mark(value: &DeValue<'_>) -> Result<Mark, String> {
    let number = match value {
        DeValue::Integer(number) => u32::from_str_radix(number.as_str(), number.radix()).ok(),
        DeValue::String(text) => hexadecimal(text),
        _ => return Err(expected(LEGAL, value)),
    };
    match (number.filter(|number| number.is_power_of_two()), value) {
        (Some(number), _) => Ok(Mark(number)),
        (None, DeValue::String(text)) => Err(format!("{} is not {LEGAL}", quote(text))),
        (None, _) => Err(expected(LEGAL, value)),
    }
}
