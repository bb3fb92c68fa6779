//! Reads and writes HTTP/2 frames (RFC 9113) in memory.
//!
//! Invariant: every length is compared with the available bytes before use, and payloads are not copied.

/// The client's preface before its first frame.
pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Length, type, flags and stream of a frame.
pub(super) const HEAD_BYTES: usize = 9;

/// The only stream in use, the first that a client may open; 0 is the connection.
pub(super) const STREAM: u32 = 1;

pub(super) const ACK: u8 = 0x1;
pub(super) const END_STREAM: u8 = 0x1;
pub(super) const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;

/// The type of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FrameKind {
    Data = 0,
    Headers = 1,
    RstStream = 3,
    Settings = 4,
    PushPromise = 5,
    Ping = 6,
    GoAway = 7,
    Continuation = 9,
    /// A type that needs no action, known or not.
    Other = 0xff,
}

impl FrameKind {
    const fn from_byte(byte: u8) -> Self {
        match byte {
            0 => Self::Data,
            1 => Self::Headers,
            3 => Self::RstStream,
            4 => Self::Settings,
            5 => Self::PushPromise,
            6 => Self::Ping,
            7 => Self::GoAway,
            9 => Self::Continuation,
            _ => Self::Other,
        }
    }
}

/// A frame's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FrameHeader {
    pub kind: FrameKind,
    flags: u8,
    pub(super) stream: u32,
    /// The length of the payload.
    pub length: usize,
}

impl FrameHeader {
    /// Parses a header; `None` if bytes are missing.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let (&[high, middle, low, kind, flags, s0, s1, s2, s3], _) = bytes.split_first_chunk()?;
        let length = u32::from_be_bytes([0, high, middle, low]);
        // The highest bit is reserved.
        let stream = u32::from_be_bytes([s0 & 0x7f, s1, s2, s3]);
        Some(Self { kind: FrameKind::from_byte(kind), flags, stream, length: usize::try_from(length).ok()? })
    }

    pub(super) const fn has_flag(self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// The payload without padding and priority; `None`: it is shorter than its padding claims.
    pub(super) fn payload_content(self, payload: &[u8]) -> Option<&[u8]> {
        let (padding, rest) = match self.has_flag(PADDED) {
            true => payload.split_first().map(|(length, rest)| (usize::from(*length), rest))?,
            false => (0, payload),
        };
        let priority = if self.kind == FrameKind::Headers && self.has_flag(PRIORITY) { 5 } else { 0 };
        rest.get(priority..rest.len().checked_sub(padding)?)
    }
}

/// Appends a frame; its payload is below every server's limit, at least 16 KiB.
pub(super) fn write_frame(to: &mut Vec<u8>, kind: FrameKind, flags: u8, stream: u32, payload: &[u8]) {
    let [.., high, middle, low] = payload.len().to_be_bytes();
    to.extend([high, middle, low, kind as u8, flags]);
    to.extend(stream.to_be_bytes());
    to.extend(payload);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_read_as_it_was_written() {
        let mut bytes = Vec::new();
        write_frame(&mut bytes, FrameKind::Ping, ACK, 0, b"12345678");
        assert_eq!(bytes, *b"\0\0\x08\x06\x01\0\0\0\x0012345678");
        let head = FrameHeader { kind: FrameKind::Ping, flags: ACK, stream: 0, length: 8 };
        assert_eq!(FrameHeader::parse(&bytes), Some(head));
        assert_eq!(FrameHeader::parse(&bytes[..HEAD_BYTES]), Some(head));
        assert_eq!(FrameHeader::parse(&bytes[..HEAD_BYTES - 1]), None);
    }

    #[test]
    fn lengths_have_24_bits_and_streams_31() {
        let head = FrameHeader::parse(&[0xff, 0xff, 0xff, 0, 0, 0xff, 0xff, 0xff, 0xff]).unwrap();
        assert_eq!((head.length, head.stream), ((1 << 24) - 1, u32::MAX >> 1));
    }

    #[test]
    fn unused_frame_types_are_all_other() {
        for byte in 0..=u8::MAX {
            let kind = FrameKind::from_byte(byte);
            assert!(kind == FrameKind::Other || kind as u8 == byte, "{byte}");
        }
        let others =
            (0..=9).filter(|byte| FrameKind::from_byte(*byte) == FrameKind::Other).collect::<Vec<_>>();
        assert_eq!(others, [2, 8], "PRIORITY and WINDOW_UPDATE");
    }

    #[track_caller]
    fn check_content(rule: &str, kind: FrameKind, flags: u8, payload: &[u8], expected: Option<&[u8]>) {
        let head = FrameHeader { kind, flags, stream: 1, length: payload.len() };
        assert_eq!(head.payload_content(payload), expected, "{rule}");
    }

    #[test]
    fn padding_and_priority_are_no_content() {
        check_content("all of it", FrameKind::Data, 0, b"abc", Some(b"abc"));
        check_content("padding", FrameKind::Data, PADDED, b"\x02abc..", Some(b"abc"));
        check_content("nothing but padding", FrameKind::Data, PADDED, b"\x02..", Some(b""));
        check_content("more padding than there is", FrameKind::Data, PADDED, b"\x03..", None);
        check_content("no length of padding", FrameKind::Data, PADDED, b"", None);
        check_content("priority", FrameKind::Headers, PRIORITY, b"12345abc", Some(b"abc"));
        check_content("both", FrameKind::Headers, PRIORITY | PADDED, b"\x0112345abc.", Some(b"abc"));
        check_content("padding within priority", FrameKind::Headers, PRIORITY | PADDED, b"\x0212345.", None);
        check_content("half a priority", FrameKind::Headers, PRIORITY, b"1234", None);
        check_content("a flag of headers alone", FrameKind::Data, PRIORITY, b"12345abc", Some(b"12345abc"));
    }
}
