//! Reads Protobuf in place: numbered fields, one after another.
//!
//! Invariant: every length is checked against the bytes present. Only text that is not UTF-8 is copied. Nested messages
//! are parsed only on demand, so deep nesting costs nothing.

use std::borrow::Cow;

/// A varint has seven bits per byte and at most 64 bits.
const NUMBER_BYTES_MAX: usize = 10;

/// Why bytes are not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FieldValue<'a> {
    Number(u64),
    /// A text, bytes, or another message.
    Bytes(&'a [u8]),
    /// Four or eight bytes; no field of this type is read.
    Fixed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field<'a> {
    pub number: u32,
    value: FieldValue<'a>,
}

impl<'a> Field<'a> {
    pub const fn bytes(self) -> Result<&'a [u8], DecodeError> {
        match self.value {
            FieldValue::Bytes(bytes) => Ok(bytes),
            FieldValue::Number(_) | FieldValue::Fixed => Err(DecodeError::Mistyped(self.number)),
        }
    }

    /// A text as in the apiserver's own JSON: the apiserver accepts any bytes from an object's author, also in texts.
    pub fn text(self) -> Result<Cow<'a, str>, DecodeError> {
        let bytes = self.bytes()?;
        Ok(str::from_utf8(bytes).map_or_else(|_| Cow::Owned(replace_invalid(bytes)), Cow::Borrowed))
    }

    pub const fn message(self) -> Result<Fields<'a>, DecodeError> {
        match self.bytes() {
            Ok(bytes) => Ok(Fields::new(bytes)),
            Err(malformed) => Err(malformed),
        }
    }

    /// Negative 32-bit numbers are encoded like 64-bit ones.
    pub const fn number(self) -> Result<i64, DecodeError> {
        match self.value {
            FieldValue::Number(number) => Ok(number.cast_signed()),
            FieldValue::Bytes(_) | FieldValue::Fixed => Err(DecodeError::Mistyped(self.number)),
        }
    }

    pub fn flag(self) -> Result<bool, DecodeError> {
        self.number().map(|number| number != 0)
    }
}

/// Replaces each invalid byte by U+FFFD.
fn replace_invalid(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        text.extend(chunk.invalid().iter().map(|_| char::REPLACEMENT_CHARACTER));
    }
    text
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldHeader {
    pub number: u32,
    pub length: usize,
    pub kind: WireKind,
}

/// What follows the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireKind {
    /// Nothing: the header contains the number.
    Number(u64),
    /// So many bytes of a text, bytes, or another message.
    Bytes(u64),
    /// So many bytes to skip.
    Fixed(u64),
}

impl FieldHeader {
    /// Reads a header; [`DecodeError::Cut`] if it is incomplete.
    pub fn read(bytes: &[u8]) -> Result<Self, DecodeError> {
        let (key, key_length) = read_varint(bytes)?;
        let field = u32::try_from(key >> 3).map_err(|_| DecodeError::Number)?;
        if field == 0 {
            return Err(DecodeError::Zero);
        }
        let rest = bytes.get(key_length..).unwrap_or_default();
        let (kind, length) = match key & 7 {
            0 => read_varint(rest).map(|(value, length)| (WireKind::Number(value), length))?,
            1 => (WireKind::Fixed(8), 0),
            2 => read_varint(rest).map(|(value, length)| (WireKind::Bytes(value), length))?,
            5 => (WireKind::Fixed(4), 0),
            other => return Err(DecodeError::Kind(other.to_le_bytes()[0])),
        };
        Ok(Self { number: field, length: key_length + length, kind })
    }
}

/// A number and its length in bytes.
fn read_varint(bytes: &[u8]) -> Result<(u64, usize), DecodeError> {
    let mut value = 0;
    for (at, byte) in bytes.iter().take(NUMBER_BYTES_MAX).enumerate() {
        let bits = u64::from(byte & 0x7f);
        // The tenth byte holds only the last bit.
        if at + 1 == NUMBER_BYTES_MAX && *byte > 1 {
            return Err(DecodeError::Number);
        }
        value |= bits << (7 * at);
        if *byte < 0x80 {
            return Ok((value, at + 1));
        }
    }
    Err(if bytes.len() < NUMBER_BYTES_MAX { DecodeError::Cut } else { DecodeError::Number })
}

/// The unread fields of a message.
#[derive(Clone, Copy, Debug)]
pub struct Fields<'a> {
    rest: &'a [u8],
    may_be_cut: bool,
}

impl<'a> Fields<'a> {
    pub const fn new(message: &'a [u8]) -> Self {
        Self { rest: message, may_be_cut: false }
    }

    /// The fields of a truncated message; the truncated field is returned as far as it goes.
    pub const fn from_prefix(message: &'a [u8]) -> Self {
        Self { rest: message, may_be_cut: true }
    }

    /// The fields of a message inside this one, truncated where this one is.
    pub const fn nested_fields(self, message: &'a [u8]) -> Self {
        Self { rest: message, ..self }
    }

    pub fn next_field(&mut self) -> Result<Option<Field<'a>>, DecodeError> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let head = FieldHeader::read(self.rest)?;
        let after = self.rest.get(head.length..).unwrap_or_default();
        let value = match head.kind {
            WireKind::Number(number) => {
                self.rest = after;
                FieldValue::Number(number)
            }
            WireKind::Bytes(length) => FieldValue::Bytes(self.split_value(after, length)?),
            WireKind::Fixed(length) => {
                self.split_value(after, length)?;
                FieldValue::Fixed
            }
        };
        Ok(Some(Field { number: head.number, value }))
    }

    fn split_value(&mut self, after: &'a [u8], length: u64) -> Result<&'a [u8], DecodeError> {
        let there = usize::try_from(length).ok().and_then(|length| after.split_at_checked(length));
        let (value, rest) = match there {
            None if self.may_be_cut => (after, &[][..]),
            there => there.ok_or(DecodeError::Cut)?,
        };
        self.rest = rest;
        Ok(value)
    }

    /// The last field of this number, as an independent message.
    pub fn last_bytes(mut self, number: u32) -> Result<Option<&'a [u8]>, DecodeError> {
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

    fn read(bytes: &[u8]) -> Result<Vec<Field<'_>>, DecodeError> {
        let mut fields = Fields::new(bytes);
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
        assert_eq!(found[0].bytes(), Err(DecodeError::Mistyped(1)));
        assert_eq!(found[1].number(), Err(DecodeError::Mistyped(2)));
        assert_eq!(found[2].number(), Err(DecodeError::Mistyped(3)));
    }

    #[track_caller]
    fn check_malformed(bytes: &[u8], expected: DecodeError) {
        assert_eq!(read(bytes), Err(expected), "of {bytes:?}");
    }

    #[test]
    fn malformed_messages_give_distinct_errors() {
        check_malformed(&[0x08], DecodeError::Cut);
        check_malformed(&[0x08, 0x80], DecodeError::Cut);
        check_malformed(&[0x12, 0x05, b'a'], DecodeError::Cut);
        check_malformed(&[0x1d, 1, 2, 3], DecodeError::Cut);
        check_malformed(
            &[0x12, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01],
            DecodeError::Cut,
        );
        check_malformed(&[0x08, 255, 255, 255, 255, 255, 255, 255, 255, 255, 2], DecodeError::Number);
        check_malformed(&[0x80; 10], DecodeError::Number);
        check_malformed(&[0x00, 0x01], DecodeError::Zero);
        check_malformed(&[0x0b], DecodeError::Kind(3));
        check_malformed(&[0x0f], DecodeError::Kind(7));
    }

    /// As Go's JSON encoder does: one mark per byte, even if several bytes begin a character.
    #[test]
    fn invalid_utf8_is_replaced_as_in_the_apiservers_json() {
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
    fn a_truncated_message_gives_its_complete_part() {
        let mut fields = Fields::from_prefix(&[0x12, 0x7f, b'a', b'b']);
        assert_eq!(fields.next_field().map(|it| it.map(Field::text)), Ok(Some(Ok("ab".into()))));
        assert_eq!(fields.next_field(), Ok(None));
    }
}
