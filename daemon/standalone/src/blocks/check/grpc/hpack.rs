//! Encodes a request's headers, and decodes the two statuses of a reply (HPACK, RFC 7541).
//!
//! Invariant: our settings forbid a dynamic table, so each field stands alone. Of Huffman code only digits are decoded,
//! and two names are compared in encoded form; all else is skipped. Every length is compared with the available bytes
//! before use.

use super::write_varint;

/// The names to find, plain and Huffman-encoded.
const HTTP_STATUS: [&[u8]; 2] = [b":status", b"\xb8\x84\x8d\x36\xa3"];
const GRPC_STATUS: [&[u8]; 2] = [b"grpc-status", b"\x9a\xca\xc8\xb2\x12\x34\xda\x8f"];

/// The static table's values of `:status`, from this index on.
const FIRST_HTTP_STATUS: usize = 8;
const HTTP_STATUSES: [u16; 7] = [200, 204, 206, 304, 400, 404, 500];

/// The most continuation bytes of an integer: enough for the length of the longest reply.
const FURTHER_BYTES_MAX: u32 = 3;

/// A status has at most three digits, and each takes at most one byte in Huffman code.
const DIGITS_MAX: usize = 3;

/// Encodes headers as literals.
pub(super) fn encode_headers(headers: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in headers {
        block.push(0);
        write_text(&mut block, name);
        write_text(&mut block, value);
    }
    block
}

fn write_text(block: &mut Vec<u8>, text: &str) {
    let (length, most) = (text.len(), prefix_max(7));
    block.push(length.min(most).to_le_bytes()[0]);
    if let Some(rest) = length.checked_sub(most) {
        write_varint(block, rest);
    }
    block.extend(text.as_bytes());
}

/// The prefix value that marks an integer with continuation bytes.
const fn prefix_max(bits: u32) -> usize {
    (1 << bits) - 1
}

/// The statuses in headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CallStatuses {
    /// The HTTP status.
    pub(super) http: Option<u16>,
    /// The gRPC status.
    pub(super) grpc: Option<u16>,
}

impl CallStatuses {
    /// Decodes the statuses; `None`: the block is invalid.
    pub(super) fn parse(block: &[u8]) -> Option<Self> {
        let (mut block, mut found) = (HeaderBlock(block), Self::default());
        while let Some(first) = block.0.first() {
            match block.next_field(*first)? {
                (HeaderName::Http, status) => found.http = status,
                (HeaderName::Grpc, status) => found.grpc = status,
                (HeaderName::Other, _) => (),
            }
        }
        Some(found)
    }
}

/// The relevant header names.
enum HeaderName {
    Http,
    Grpc,
    Other,
}

impl HeaderName {
    const fn from_table_status(status: Option<u16>) -> Self {
        if status.is_some() { Self::Http } else { Self::Other }
    }
}

/// The unread rest of a header block.
struct HeaderBlock<'a>(&'a [u8]);

impl<'a> HeaderBlock<'a> {
    /// Decodes the field that starts with this byte: its name, and its status if it is a number.
    fn next_field(&mut self, first: u8) -> Option<(HeaderName, Option<u16>)> {
        if first & 0x80 != 0 {
            let status = table_status(self.read_integer(7)?);
            return Some((HeaderName::from_table_status(status), status));
        }
        // A dynamic table size update.
        if first & 0xe0 == 0x20 {
            return self.read_integer(5).map(|_| (HeaderName::Other, None));
        }
        let name = match self.read_integer(if first & 0x40 == 0 { 4 } else { 6 })? {
            0 => self.read_text()?.header_name(),
            field => HeaderName::from_table_status(table_status(field)),
        };
        Some((name, self.read_text()?.status_number()))
    }

    /// Decodes an integer with a prefix of this many bits.
    fn read_integer(&mut self, bits: u32) -> Option<usize> {
        let most = prefix_max(bits);
        let mut number = usize::from(self.read_byte()?) & most;
        if number < most {
            return Some(number);
        }
        for further in 0..FURTHER_BYTES_MAX {
            let byte = self.read_byte()?;
            number += usize::from(byte & 0x7f) << (7 * further);
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }

    fn read_byte(&mut self) -> Option<u8> {
        let (byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*byte)
    }

    fn read_text(&mut self) -> Option<HeaderText<'a>> {
        let is_packed = self.0.first()? & 0x80 != 0;
        let length = self.read_integer(7)?;
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(HeaderText { bytes, is_packed })
    }
}

/// The status of a static table entry.
fn table_status(field: usize) -> Option<u16> {
    HTTP_STATUSES.get(field.checked_sub(FIRST_HTTP_STATUS)?).copied()
}

struct HeaderText<'a> {
    bytes: &'a [u8],
    is_packed: bool,
}

impl HeaderText<'_> {
    fn header_name(&self) -> HeaderName {
        let is = |name: [&[u8]; 2]| name.get(usize::from(self.is_packed)) == Some(&self.bytes);
        match () {
            () if is(HTTP_STATUS) => HeaderName::Http,
            () if is(GRPC_STATUS) => HeaderName::Grpc,
            () => HeaderName::Other,
        }
    }

    fn status_number(&self) -> Option<u16> {
        if self.is_packed { parse_huffman(self.bytes) } else { parse_plain(self.bytes) }
    }
}

fn parse_plain(digits: &[u8]) -> Option<u16> {
    let is_one = (1..=DIGITS_MAX).contains(&digits.len()) && digits.iter().all(u8::is_ascii_digit);
    is_one.then(|| digits.iter().fold(0, |number, digit| number * 10 + u16::from(digit & 0x0f)))
}

/// Decodes Huffman-encoded digits; the padding must be ones.
fn parse_huffman(bytes: &[u8]) -> Option<u16> {
    let mut room = [0xff; DIGITS_MAX + 1];
    room.get_mut(..DIGITS_MAX)?.get_mut(..bytes.len())?.copy_from_slice(bytes);
    let mut bits = u32::from_be_bytes(room);
    let (mut left, mut digits, mut number) = (8 * bytes.len(), 0, 0);
    while let Some((digit, width)) = huffman_digit(bits)
        && width <= left
    {
        (left, digits, number) = (left - width, digits + 1, number * 10 + digit);
        bits = !(!bits << width);
    }
    let is_one = (1..=DIGITS_MAX).contains(&digits) && bits == u32::MAX;
    is_one.then_some(number)
}

/// The first digit of these bits and its width: five bits for `0` to `2`, six for `3` to `9`.
fn huffman_digit(bits: u32) -> Option<(u16, usize)> {
    let six = u16::try_from(bits >> 26).ok()?;
    match six {
        0..6 => Some((six >> 1, 5)),
        0x19..0x20 => Some((six - 0x16, 6)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn both(http: Option<u16>, grpc: Option<u16>) -> Option<CallStatuses> {
        Some(CallStatuses { http, grpc })
    }

    #[track_caller]
    fn check(rule: &str, block: &[u8], expected: Option<CallStatuses>) {
        assert_eq!(CallStatuses::parse(block), expected, "{rule}");
    }

    #[test]
    fn statuses_are_decoded_in_every_encoding() {
        check("no field", b"", both(None, None));
        check("from the table", b"\x88", both(Some(200), None));
        check("from the table", b"\x8d", both(Some(404), None));
        check("a name of the table", b"\x08\x03415", both(Some(415), None));
        check("one to be kept", b"\x48\x03503", both(Some(503), None));
        check("one never to be kept", b"\x18\x03503", both(Some(503), None));
        check("packed digits", b"\x48\x82\x64\x02", both(Some(302), None));
        check("a name in full", b"\0\x07:status\x03200", both(Some(200), None));
        check("a packed name", b"\0\x85\xb8\x84\x8d\x36\xa3\x03200", both(Some(200), None));
        check("of gRPC", b"\0\x0bgrpc-status\x010", both(None, Some(0)));
        check("of gRPC, kept", b"\x40\x0bgrpc-status\x0212", both(None, Some(12)));
        let packed = b"\x40\x88\x9a\xca\xc8\xb2\x12\x34\xda\x8f\x82\x08\xbf";
        check("of gRPC, packed", packed, both(None, Some(12)));
        check("both", b"\x88\x40\x0bgrpc-status\x015", both(Some(200), Some(5)));
        check("the last one counts", b"\x88\x8e", both(Some(500), None));
    }

    #[test]
    fn all_other_fields_are_skipped() {
        check("of the table", b"\x82\x90\xbd\x88", both(Some(200), None));
        check("beyond the table", b"\xff\x00\x88", both(Some(200), None));
        check("a size of the table", b"\x20\x88", both(Some(200), None));
        check("a large one", b"\x3f\xe1\x1f\x88", both(Some(200), None));
        check("a value that is no number", b"\x48\x03abc", both(None, None));
        check("a value that is empty", b"\0\x0bgrpc-status\x00", both(None, None));
        check("a value that is too long", b"\0\x0bgrpc-status\x040000", both(None, None));
        check(
            "a long value",
            &[b"\x0f\x10\x7f\x80\x01".as_slice(), &[b'a'; 255], b"\x88"].concat(),
            both(Some(200), None),
        );
        check("a name like it", b"\0\x0cgrpc-status-\x010", both(None, None));
        check("its bytes, said to be packed", b"\0\x8bgrpc-status\x010", both(None, None));
        check("trailers", b"\x40\x0cgrpc-message\x04well\x40\x0bgrpc-status\x010", both(None, Some(0)));
    }

    #[test]
    fn a_cut_block_is_invalid() {
        let whole = b"\x40\x0bgrpc-status\x0212";
        for end in 1..whole.len() {
            check("cut", &whole[..end], None);
        }
        check("a length beyond the end", b"\0\x7f\xff\xff\x7fx", None);
        check("a number without an end", &[0xff; 16], None);
    }

    #[test]
    fn all_numbers_of_three_digits_are_decoded_plain_and_huffman() {
        for number in 0..=999_u16 {
            let text = number.to_string();
            assert_eq!(parse_plain(text.as_bytes()), Some(number));
            assert_eq!(parse_huffman(&packed(&text)), Some(number), "{number}");
        }
    }

    /// Huffman-encodes digits.
    fn packed(digits: &str) -> Vec<u8> {
        let code =
            |digit: u32| if digit < 3 { format!("{digit:05b}") } else { format!("{:06b}", digit + 0x16) };
        let mut bits: String = digits.chars().map(|it| code(it.to_digit(10).unwrap())).collect();
        while !bits.len().is_multiple_of(8) {
            bits.push('1');
        }
        bits.as_bytes()
            .chunks(8)
            .map(|byte| u8::from_str_radix(str::from_utf8(byte).unwrap(), 2).unwrap())
            .collect()
    }

    #[test]
    fn only_valid_huffman_numbers_are_decoded() {
        assert_eq!(packed("302"), [0x64, 0x02], "the example of RFC 7541, C.6.1");
        for (rule, bytes) in [
            ("none", &b""[..]),
            ("four digits", b"\0\0\x0f"),
            ("more bytes than three digits have", b"\x07\xff\xff\xff"),
            ("padding of zeros", b"\x00"),
            ("a digit that goes on behind the end", b"\x03"),
            ("a letter", b"\x1f"),
            ("nothing but padding", b"\xff"),
        ] {
            assert_eq!(parse_huffman(bytes), None, "{rule}");
        }
    }

    #[test]
    fn encoded_headers_are_decoded() {
        for length in [0, 1, 126, 127, 128, 254, 255, 1_000, 16_383] {
            let value = "v".repeat(length);
            let block = encode_headers(&[("te", &value), (":status", "200")]);
            check("a long value", &block, both(Some(200), None));
            assert_eq!(
                block.len(),
                length
                    + if length < 127 {
                        18
                    } else if length < 255 {
                        19
                    } else {
                        20
                    }
            );
        }
        assert_eq!(encode_headers(&[("te", "trailers")]), b"\0\x02te\x08trailers");
    }
}
