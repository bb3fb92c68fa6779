//! Names of hosts and services, in the configuration and in DNS messages.
//!
//! Invariant: a [`Name`] consists of lower-case letters, digits, `-`, `_` and dots, and fits a message. So two names
//! are equal if, and only if, their texts are, and a name server's names are safe to show. A name is absolute: no other
//! one is ever tried in its place.

use std::fmt;
use std::sync::Arc;

/// The longest name as text (RFC 1035: 255 bytes in a message).
const TEXT_BYTES_MAX: usize = 253;

/// The longest label of a name (RFC 1035).
const LABEL_BYTES_MAX: usize = 63;

/// The most pointers of one name. Writers of messages need one. Each leads to an earlier place than the one before, and
/// following a message full of them would waste time.
const POINTERS_MAX: usize = 16;

const IS_POINTER: u8 = 0xc0;

/// A name without its last dot; the empty one is the root.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Arc<str>);

/// A text that is not a legal name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "it is not a DNS name: legal are parts of letters, digits, \"-\" and \"_\" with dots between them, 1 to 63 \
     characters each and {TEXT_BYTES_MAX} in all"
)]
pub struct InvalidDnsName;

impl Name {
    /// Parses a name; a final dot is optional.
    pub fn parse(text: &str) -> Result<Self, InvalidDnsName> {
        let text = text.strip_suffix('.').unwrap_or(text);
        let is_legal = text.len() <= TEXT_BYTES_MAX && text.split('.').all(is_label);
        if is_legal { Ok(Self(text.to_ascii_lowercase().into())) } else { Err(InvalidDnsName) }
    }

    pub fn root() -> Self {
        Self("".into())
    }

    /// Whether it is the root, which as a target means that there is no server.
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    pub fn to_wire(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.0.len() + 2);
        for label in self.0.split('.').filter(|label| !label.is_empty()) {
            // Never more than `LABEL_BYTES_MAX`.
            bytes.push(u8::try_from(label.len()).unwrap_or_default());
            bytes.extend(label.bytes());
        }
        bytes.push(0);
        bytes
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_root() { "." } else { &self.0 })
    }
}

fn is_label(label: &str) -> bool {
    (1..=LABEL_BYTES_MAX).contains(&label.len()) && label.bytes().all(is_legal_byte)
}

const fn is_legal_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_'
}

/// A name from a message.
#[derive(Debug, PartialEq, Eq)]
pub struct NameInMessage {
    /// `None`: a legal name of a message that is no [`Name`].
    pub name: Option<Name>,
    /// The offset past the name.
    pub end: usize,
}

/// The name at an offset of a message; `None`: it is malformed.
pub fn read_name(message: &[u8], start: usize) -> Option<NameInMessage> {
    let mut text = String::new();
    let (mut at, mut earliest, mut end, mut is_fit) = (start, start, None, true);
    let mut pointers = 0;
    loop {
        let length = *message.get(at)?;
        let next = at.checked_add(1)?;
        match length & IS_POINTER {
            0 if length == 0 => {
                let name = is_fit.then(|| Name(text.into()));
                return Some(NameInMessage { name, end: end.unwrap_or(next) });
            }
            0 => {
                let after = next.checked_add(usize::from(length))?;
                is_fit &= append_label(&mut text, message.get(next..after)?);
                at = after;
            }
            IS_POINTER => {
                let to = usize::from(u16::from_be_bytes([length & !IS_POINTER, *message.get(next)?]));
                end = end.or(next.checked_add(1));
                pointers += 1;
                if to >= earliest || pointers > POINTERS_MAX {
                    return None;
                }
                (at, earliest) = (to, to);
            }
            _ => return None,
        }
        if text.len() > TEXT_BYTES_MAX {
            return None;
        }
    }
}

/// Appends a label to a name; returns whether a [`Name`] may have it.
fn append_label(text: &mut String, label: &[u8]) -> bool {
    if !text.is_empty() {
        text.push('.');
    }
    text.extend(label.iter().map(|byte| char::from(byte.to_ascii_lowercase())));
    label.iter().copied().all(self::is_legal_byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        Name::parse(text).unwrap()
    }

    #[test]
    fn a_name_is_legal_by_characters_and_length() {
        let longest = format!("{}.{}.{}.{}", "a".repeat(63), "b".repeat(63), "c".repeat(63), "d".repeat(61));
        assert_eq!(longest.len(), TEXT_BYTES_MAX);
        for good in ["web", "_web._tcp.Example.internal", "x.", "a--b.c", "10.in-addr.arpa", &longest] {
            let expected = good.trim_end_matches('.').to_ascii_lowercase();
            assert_eq!(name(good).to_string(), expected);
        }
        let too_long = format!("{longest}d");
        let label = "a".repeat(64);
        for bad in ["", ".", "..", "a..b", ".a", "a b", "ä.de", "a/b", "*.de", "a\0", &too_long, &label] {
            assert_eq!(Name::parse(bad), Err(InvalidDnsName), "{bad}");
        }
    }

    #[test]
    fn a_name_survives_the_wire_format() {
        for text in ["web", "_web._tcp.example.internal", "a.b.c.d.e.f"] {
            let bytes = name(text).to_wire();
            let read = read_name(&bytes, 0).unwrap();
            assert_eq!((read.name, read.end), (Some(name(text)), bytes.len()));
        }
        let root = read_name(&[0], 0).unwrap();
        assert!(root.name.is_some_and(|name| name.is_root() && name.to_string() == "."));
    }

    #[test]
    fn a_pointer_to_an_earlier_place_ends_the_name() {
        // "example" at 0, "Web" and a pointer to it at 9.
        let message = b"\x07example\0\x03Web\xc0\x00after";
        let read = read_name(message, 9).unwrap();
        assert_eq!((read.name, read.end), (Some(name("web.example")), 15));
    }

    #[test]
    fn pointer_loops_are_malformed() {
        let loops: [&[u8]; 6] = [
            b"\xc0\x00",                // to itself
            b"\xc0\x02\xc0\x00",        // to what comes later
            b"\x01a\xc0\x00",           // round through a label
            b"\x01a\xc0\x02",           // to the pointer itself
            b"\x00\xc0",                // half a pointer, at 1
            b"\x01a\x01b\xc0\x02\x01c", // back into its own labels
        ];
        for (message, start) in loops.iter().zip([0, 0, 0, 0, 1, 0]) {
            assert_eq!(read_name(message, start), None, "{message:?}");
        }
        assert_eq!(read_name(b"\xc0\x02\x01a\0", 0), None, "a later place ends nowhere either");
        // Each leads to the one before, and there are too many.
        let chain: Vec<u8> = (0..40_u8).flat_map(|at| [IS_POINTER, (2 * at).saturating_sub(1)]).collect();
        assert_eq!(read_name(&[&[0], &chain[..]].concat(), 79), None);
    }

    #[test]
    fn malformed_names_are_none_and_odd_names_are_skipped() {
        let mut long = Vec::new();
        (0..5).for_each(|_| long.extend([&[63][..], &[b'a'; 63]].concat()));
        long.push(0);
        for bad in [&b""[..], b"\x03we", b"\x40", b"\x80\0", b"\x01a", &long] {
            assert_eq!(read_name(bad, 0), None, "{bad:?}");
        }
        assert_eq!(read_name(b"\x01a\0", 7), None);
        for odd in [&b"\x03a.b\0"[..], b"\x02\xff\x1b\0", b"\x01*\0"] {
            assert_eq!(read_name(odd, 0), Some(NameInMessage { name: None, end: odd.len() }), "{odd:?}");
        }
    }
}
