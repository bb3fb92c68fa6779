//! Protobuf as it lies in memory: numbered fields, one after another.
//!
//! Invariant: no length is believed before it was compared with the bytes that are there, nothing is copied but a text
//! that is no UTF-8, and no message is looked into but by its reader, so what is nested deeply costs nothing.

use std::borrow::Cow;

/// A number has seven bits in each byte, and at most 64 of them.
const NUMBER_BYTES_MAX: usize = 10;

/// Why bytes are not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    #[error("it ends within a field")]
    Cut,
    #[error("a number has more than 64 bits")]
    Number,
    #[error("a field has number 0")]
    Zero,
    #[error("a field is of wire type {0}, which nothing uses")]
    Kind(u8),
    #[error("field {0} is of another type than it should be")]
    Mistyped(u32),
}

/// What a field holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Value<'a> {
    Number(u64),
    /// A text, bytes, or another message.
    Bytes(&'a [u8]),
    /// Four or eight bytes, which no field has that is read.
    Fixed,
}

/// One field of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field<'a> {
    pub number: u32,
    value: Value<'a>,
}

impl<'a> Field<'a> {
    pub const fn bytes(self) -> Result<&'a [u8], Malformed> {
        match self.value {
            Value::Bytes(bytes) => Ok(bytes),
            Value::Number(_) | Value::Fixed => Err(Malformed::Mistyped(self.number)),
        }
    }

    /// A text as an apiserver's own JSON has it: it takes any bytes from an object's author, also in a text.
    pub fn text(self) -> Result<Cow<'a, str>, Malformed> {
        let bytes = self.bytes()?;
        Ok(str::from_utf8(bytes).map_or_else(|_| Cow::Owned(repaired(bytes)), Cow::Borrowed))
    }

    pub const fn message(self) -> Result<Fields<'a>, Malformed> {
        match self.bytes() {
            Ok(bytes) => Ok(Fields::of(bytes)),
            Err(malformed) => Err(malformed),
        }
    }

    /// Negative numbers of 32 bits are written as those of 64 are.
    pub const fn number(self) -> Result<i64, Malformed> {
        match self.value {
            Value::Number(number) => Ok(number.cast_signed()),
            Value::Bytes(_) | Value::Fixed => Err(Malformed::Mistyped(self.number)),
        }
    }

    pub fn flag(self) -> Result<bool, Malformed> {
        self.number().map(|number| number != 0)
    }
}

/// The text, with a mark for each byte that is none of a character.
fn repaired(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        text.extend(chunk.invalid().iter().map(|_| char::REPLACEMENT_CHARACTER));
    }
    text
}

/// The beginning of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    pub number: u32,
    /// How many bytes the beginning itself has.
    pub length: usize,
    pub kind: Kind,
}

/// What follows the beginning of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Nothing: the number was part of the beginning.
    Number(u64),
    /// So many bytes of a text, bytes, or another message.
    Bytes(u64),
    /// So many bytes that nothing reads.
    Fixed(u64),
}

impl Head {
    /// Reads the beginning of a field; [`Malformed::Truncation`] if there are too few bytes for it.
    pub fn read(bytes: &[u8]) -> Result<Self, Malformed> {
        let (key, key_length) = number(bytes)?;
        let field = u32::try_from(key >> 3).map_err(|_| Malformed::Number)?;
        if field == 0 {
            return Err(Malformed::Zero);
        }
        let rest = bytes.get(key_length..).unwrap_or_default();
        let (kind, length) = match key & 7 {
            0 => number(rest).map(|(value, length)| (Kind::Number(value), length))?,
            1 => (Kind::Fixed(8), 0),
            2 => number(rest).map(|(value, length)| (Kind::Bytes(value), length))?,
            5 => (Kind::Fixed(4), 0),
            other => return Err(Malformed::Kind(other.to_le_bytes()[0])),
        };
        Ok(Self { number: field, length: key_length + length, kind })
    }
}

/// A number, and how many bytes it has.
fn number(bytes: &[u8]) -> Result<(u64, usize), Malformed> {
    let mut value = 0;
    for (at, byte) in bytes.iter().take(NUMBER_BYTES_MAX).enumerate() {
        let bits = u64::from(byte & 0x7f);
        // The tenth byte has room for the last bit only.
        if at + 1 == NUMBER_BYTES_MAX && *byte > 1 {
            return Err(Malformed::Number);
        }
        value |= bits << (7 * at);
        if *byte < 0x80 {
            return Ok((value, at + 1));
        }
    }
    Err(if bytes.len() < NUMBER_BYTES_MAX { Malformed::Cut } else { Malformed::Number })
}

/// The fields of a message that are still to be read.
#[derive(Clone, Copy, Debug)]
pub struct Fields<'a> {
    rest: &'a [u8],
    may_be_cut: bool,
}

impl<'a> Fields<'a> {
    pub const fn of(message: &'a [u8]) -> Self {
        Self { rest: message, may_be_cut: false }
    }

    /// The fields of the beginning of a message: the one that is cut is given as far as it is there.
    pub const fn of_beginning(message: &'a [u8]) -> Self {
        Self { rest: message, may_be_cut: true }
    }

    /// The fields of a message within this one, which is cut where this one is.
    pub const fn alike(self, message: &'a [u8]) -> Self {
        Self { rest: message, ..self }
    }

    pub fn next_field(&mut self) -> Result<Option<Field<'a>>, Malformed> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let head = Head::read(self.rest)?;
        let after = self.rest.get(head.length..).unwrap_or_default();
        let value = match head.kind {
            Kind::Number(number) => {
                self.rest = after;
                Value::Number(number)
            }
            Kind::Bytes(length) => Value::Bytes(self.split(after, length)?),
            Kind::Fixed(length) => {
                self.split(after, length)?;
                Value::Fixed
            }
        };
        Ok(Some(Field { number: head.number, value }))
    }

    fn split(&mut self, after: &'a [u8], length: u64) -> Result<&'a [u8], Malformed> {
        let there = usize::try_from(length).ok().and_then(|length| after.split_at_checked(length));
        let (value, rest) = match there {
            None if self.may_be_cut => (after, &[][..]),
            there => there.ok_or(Malformed::Cut)?,
        };
        self.rest = rest;
        Ok(value)
    }

    /// The last of the fields of this number, as a message that is no part of what holds it.
    pub fn last(mut self, number: u32) -> Result<Option<&'a [u8]>, Malformed> {
        let mut last = None;
        while let Some(field) = self.next_field()? {
            if field.number == number {
                last = Some(field.bytes()?);
            }
        }
        Ok(last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Result<Vec<Field<'_>>, Malformed> {
        let mut fields = Fields::of(bytes);
        let mut found = Vec::new();
        while let Some(field) = fields.next_field()? {
            found.push(field);
        }
        Ok(found)
    }

    #[test]
    fn fields_of_every_type_are_read_or_skipped() {
        let bytes =
            [0x08, 0x96, 0x01, 0x12, 0x02, b'o', b'k', 0x1d, 1, 2, 3, 4, 0x21, 1, 2, 3, 4, 5, 6, 7, 8];
        let found = read(&bytes).unwrap();
        assert_eq!(found.iter().map(|it| it.number).collect::<Vec<_>>(), [1, 2, 3, 4]);
        assert_eq!((found[0].number(), found[1].text()), (Ok(150), Ok("ok".into())));
        assert_eq!(found[0].bytes(), Err(Malformed::Mistyped(1)));
        assert_eq!(found[1].number(), Err(Malformed::Mistyped(2)));
        assert_eq!(found[2].number(), Err(Malformed::Mistyped(3)));
    }

    #[track_caller]
    fn check_malformed(bytes: &[u8], expected: Malformed) {
        assert_eq!(read(bytes), Err(expected), "of {bytes:?}");
    }

    #[test]
    fn what_is_no_message_is_told_apart() {
        check_malformed(&[0x08], Malformed::Cut);
        check_malformed(&[0x08, 0x80], Malformed::Cut);
        check_malformed(&[0x12, 0x05, b'a'], Malformed::Cut);
        check_malformed(&[0x1d, 1, 2, 3], Malformed::Cut);
        check_malformed(&[0x12, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01], Malformed::Cut);
        check_malformed(&[0x08, 255, 255, 255, 255, 255, 255, 255, 255, 255, 2], Malformed::Number);
        check_malformed(&[0x80; 10], Malformed::Number);
        check_malformed(&[0x00, 0x01], Malformed::Zero);
        check_malformed(&[0x0b], Malformed::Kind(3));
        check_malformed(&[0x0f], Malformed::Kind(7));
    }

    /// As Go's encoder of JSON has it: a mark for each byte, and not one for what begins a character.
    #[test]
    fn a_text_that_is_no_utf8_is_read_as_the_apiserver_writes_it_in_json() {
        let [field] = read(&[0x0a, 6, b'a', 0xff, 0xe2, 0x82, b'b', 0xc3]).unwrap()[..] else {
            panic!("one field")
        };
        assert_eq!(field.text().unwrap(), "a\u{fffd}\u{fffd}\u{fffd}b\u{fffd}");
    }

    #[test]
    fn numbers_have_64_bits_and_a_sign() {
        let most = [0x08, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1];
        assert_eq!(read(&most).unwrap()[0].number(), Ok(-1));
        assert_eq!(read(&[0x08, 0]).unwrap()[0].flag(), Ok(false));
    }

    #[test]
    fn a_beginning_gives_what_is_there() {
        let mut fields = Fields::of_beginning(&[0x12, 0x7f, b'a', b'b']);
        assert_eq!(fields.next_field().map(|it| it.map(Field::text)), Ok(Some(Ok("ab".into()))));
        assert_eq!(fields.next_field(), Ok(None));
    }
}
