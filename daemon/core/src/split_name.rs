//! Names of nodes and pods, split into shared and unique parts. A slice stores shared parts once. The unique part is
//! mostly a few letters and digits, which fit into a number.
//!
//! Invariant: the parts joined are the name. The split depends on the name alone.

use core::cmp::Ordering;
use core::fmt;

/// The letters and digits that fit into 32 bits; controllers end the names of pods with five.
const SHORT_MAX: usize = 6;

const LETTERS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";

/// One more than there are letters: 0 is no letter, so the number implies the length.
const BASE: u32 = 37;

/// Up to six letters and digits, as a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShortText(pub(crate) u32);

impl ShortText {
    pub(crate) fn new(text: &str) -> Option<Self> {
        let is_short = (1..=SHORT_MAX).contains(&text.len());
        let add = |number: u32, byte| number.checked_mul(BASE)?.checked_add(digit(byte)?);
        is_short.then(|| text.bytes().try_fold(0, add))?.map(Self)
    }

    fn bytes(self) -> impl Iterator<Item = u8> {
        let digits = (0..6).rev().map(move |place| self.0 / BASE.pow(place) % BASE);
        digits.filter_map(|digit| LETTERS.get((digit as usize).checked_sub(1)?).copied())
    }
}

fn digit(byte: u8) -> Option<u32> {
    match byte {
        b'0'..=b'9' => Some(u32::from(byte - b'0') + 1),
        b'a'..=b'z' => Some(u32::from(byte - b'a') + 11),
        _ => None,
    }
}

/// The unique part of a name.
#[derive(Clone, Copy, Debug)]
pub(crate) enum UniquePart<'a> {
    Text(&'a str),
    Short(ShortText),
}

impl UniquePart<'_> {
    fn bytes(&self) -> impl Iterator<Item = u8> {
        let (text, short) = match self {
            Self::Text(text) => (*text, None),
            Self::Short(short) => ("", Some(*short)),
        };
        text.bytes().chain(short.into_iter().flat_map(ShortText::bytes))
    }

    fn equals(&self, wanted: &str) -> bool {
        match self {
            Self::Text(text) => *text == wanted,
            Self::Short(short) => ShortText::new(wanted) == Some(*short),
        }
    }
}

/// A name in three parts; similar names share the first and the last.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SplitName<'a> {
    pub(crate) start: &'a str,
    pub(crate) unique: UniquePart<'a>,
    pub(crate) end: &'a str,
}

impl<'a> SplitName<'a> {
    /// Splits after the last dash within the first `length` bytes; the rest is the end.
    fn split_at_dash(name: &'a str, length: usize) -> Self {
        let (name, end) = name.split_at_checked(length).unwrap_or((name, ""));
        let (start, own) = name.split_at(name.rfind('-').map_or(0, |dash| dash + 1));
        Self { start, unique: UniquePart::Text(own), end }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes().next().is_none()
    }

    pub(crate) fn len(&self) -> usize {
        self.start.len() + self.unique.bytes().count() + self.end.len()
    }

    fn bytes(&self) -> impl Iterator<Item = u8> {
        self.start.bytes().chain(self.unique.bytes()).chain(self.end.bytes())
    }

    fn equals(&self, wanted: &str) -> bool {
        let own = wanted.strip_prefix(self.start).and_then(|rest| rest.strip_suffix(self.end));
        own.is_some_and(|own| self.unique.equals(own))
    }
}

impl Default for SplitName<'_> {
    fn default() -> Self {
        Self { start: "", unique: UniquePart::Text(""), end: "" }
    }
}

impl PartialEq for SplitName<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.bytes().eq(other.bytes())
    }
}

impl Eq for SplitName<'_> {}

impl fmt::Display for SplitName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.start)?;
        match self.unique {
            UniquePart::Text(text) => f.write_str(text)?,
            UniquePart::Short(short) => {
                short.bytes().try_for_each(|byte| fmt::Write::write_char(f, char::from(byte)))?;
            }
        }
        f.write_str(self.end)
    }
}

/// The name of a target: the pods of one controller share the part before the last dash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TargetName<'a>(pub(crate) SplitName<'a>);

impl<'a> From<&'a str> for TargetName<'a> {
    fn from(name: &'a str) -> Self {
        Self(SplitName::split_at_dash(name, name.len()))
    }
}

impl fmt::Display for TargetName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The name of a node: nodes share their domain, and the part before the last dash of the host name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeName<'a>(pub(crate) SplitName<'a>);

impl<'a> From<&'a str> for NodeName<'a> {
    fn from(name: &'a str) -> Self {
        Self(SplitName::split_at_dash(name, name.find('.').unwrap_or(name.len())))
    }
}

impl NodeName<'_> {
    /// Compares the name with a text in byte order.
    pub fn compare(&self, other: &str) -> Ordering {
        self.0.bytes().cmp(other.bytes())
    }
}

impl PartialEq<str> for NodeName<'_> {
    fn eq(&self, other: &str) -> bool {
        self.0.equals(other)
    }
}

impl fmt::Display for NodeName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use std::string::{String, ToString};

    use proptest::prelude::*;

    use super::*;

    /// The name as a slice returns it.
    fn packed(name: NodeName<'_>) -> NodeName<'_> {
        let UniquePart::Text(text) = name.0.unique else { return name };
        NodeName(SplitName {
            unique: ShortText::new(text).map_or(UniquePart::Text(text), UniquePart::Short),
            ..name.0
        })
    }

    fn name() -> impl Strategy<Value = String> {
        prop_oneof![
            "[a-c.-]{0,8}",
            "[0-9a-zA-Z]{0,8}",
            "[a-z]{1,3}-[0-9a-z]{1,7}(\\.[a-z-]{1,4}){0,2}",
            "\\PC{0,6}"
        ]
    }

    proptest! {
        #[test]
        fn a_name_is_shown_and_compared_as_it_was_written(name in name(), other in name()) {
            let (whole, kept) = (NodeName::from(name.as_str()), packed(name.as_str().into()));
            prop_assert_eq!((whole.to_string(), kept.to_string()), (name.clone(), name.clone()));
            prop_assert!(kept == whole && kept == *name && whole == *name);
            prop_assert_eq!(kept == *other, name == other);
            prop_assert_eq!(kept == packed(other.as_str().into()), name == other);
            prop_assert_eq!(kept.0.len(), name.len());
            prop_assert_eq!(kept.compare(&other), name.cmp(&other));
        }
    }

    #[test]
    fn a_short_unique_part_is_stored_as_a_number() {
        let own = |name: &'static str| match packed(name.into()).0.unique {
            UniquePart::Text(text) => Err(text),
            UniquePart::Short(short) => Ok(short.0),
        };
        let names =
            ["node-017", "ip-10-0-1-23.eu-west-1.compute.internal", "zzzzzz", "node-0123456", "a-", "a-B"];
        let of = |name| own(name).map_err(|text: &str| text.len());
        let z = (1..7).fold(0, |number, _| number * BASE + 36);
        assert_eq!(names.map(of), [Ok((37 + 2) * 37 + 8), Ok(3 * 37 + 4), Ok(z), Err(7), Err(0), Err(1)]);
    }
}
