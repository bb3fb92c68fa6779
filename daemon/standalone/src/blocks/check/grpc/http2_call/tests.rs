//! Replies as bytes, in chunks of any size.

use proptest::prelude::*;

use super::super::frames::write_frame;
use super::*;

/// One frame: type, flags, stream, payload.
type Frame<'a> = (u8, u8, u32, &'a [u8]);

const SETTINGS_FRAME: Frame<'_> = (4, 0, 0, b"");
const SETTINGS_ACK: Frame<'_> = (4, ACK, 0, b"");
/// `:status: 200` and `content-type: application/grpc`.
const HEADERS: Frame<'_> = (1, END_HEADERS, 1, b"\x88\x5f\x10application/grpc");
const DATA: Frame<'_> = (0, 0, 1, b"\0\0\0\0\x02\x08\x01");
const TRAILERS: Frame<'_> = (1, END_HEADERS | END_STREAM, 1, b"\x40\x0bgrpc-status\x010");
const PING: Frame<'_> = (6, 0, 0, b"12345678");
const WINDOW_UPDATE: Frame<'_> = (8, 0, 0, b"\0\0\0\x07");

fn bytes(frames: &[Frame<'_>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (kind, flags, stream, payload) in frames {
        let begins = bytes.len();
        write_frame(&mut bytes, FrameKind::Data, *flags, *stream, payload);
        // Also types that we never write.
        bytes[begins + 3] = *kind;
    }
    bytes
}

fn begun() -> Http2Call {
    Http2Call::new(&[("te", "trailers")], b"message")
}

/// The result of a reply in chunks of this size; `None`: incomplete.
fn outcome(answer: &[u8], piece: usize) -> Result<Option<GrpcReply>, Http2Error> {
    let mut call = begun();
    for piece in answer.chunks(piece) {
        call.unread.extend_from_slice(piece);
        if let Some(answer) = call.advance()? {
            return Ok(Some(answer));
        }
        assert!(call.unread.len() <= ANSWER_BYTES_MAX + piece.len());
    }
    Ok(None)
}

#[track_caller]
fn check(rule: &str, frames: &[Frame<'_>], expected: &Result<Option<GrpcReply>, Http2Error>) {
    let bytes = bytes(frames);
    for piece in [1, 2, 3, 10, 1_000, usize::MAX] {
        assert_eq!(outcome(&bytes, piece), *expected, "{rule}, in pieces of {piece}");
    }
}

fn well() -> Result<Option<GrpcReply>, Http2Error> {
    let statuses = CallStatuses { http: Some(200), grpc: Some(0) };
    Ok(Some(GrpcReply { statuses, message: DATA.3.to_vec() }))
}

#[track_caller]
fn check_well(rule: &str, frames: &[Frame<'_>]) {
    check(rule, frames, &well());
}

#[track_caller]
fn check_fault(rule: &str, frames: &[Frame<'_>], expected: Http2Error) {
    check(rule, frames, &Err(expected));
}

#[test]
fn a_call_sends_preface_settings_headers_and_message() {
    let sent = begun().unsent;
    let frames = sent.strip_prefix(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
    let expected: [Frame<'_>; 3] = [
        (4, 0, 0, b"\0\x01\0\0\0\0\0\x02\0\0\0\0"),
        (1, END_HEADERS, 1, b"\0\x02te\x08trailers"),
        (0, END_STREAM, 1, b"message"),
    ];
    assert_eq!(frames, bytes(&expected));
}

#[test]
fn a_reply_is_complete_at_the_end_of_its_stream() {
    check_well("the usual", &[SETTINGS_FRAME, SETTINGS_ACK, HEADERS, DATA, TRAILERS]);
    check_well("more behind it", &[SETTINGS_FRAME, HEADERS, DATA, TRAILERS, (0, 0, 1, b"more")]);
    check_well("others between", &[SETTINGS_FRAME, PING, HEADERS, WINDOW_UPDATE, DATA, PING, TRAILERS]);
    check_well(
        "unknown kinds",
        &[SETTINGS_FRAME, (0xfa, 0xff, 9, b"?"), (2, 0, 1, b"12345"), HEADERS, DATA, TRAILERS],
    );
    check_well("with settings", &[(4, 0, 0, b"\0\x05\0\0\x40\0"), HEADERS, DATA, TRAILERS]);
    check_well(
        "a message in pieces",
        &[SETTINGS_FRAME, HEADERS, (0, 0, 1, b"\0\0\0\0"), (0, 0, 1, b"\x02\x08\x01"), TRAILERS],
    );
    check_well(
        "padded",
        &[
            SETTINGS_FRAME,
            (1, END_HEADERS | 8, 1, b"\x02\x88.."),
            (0, 8, 1, b"\x01\0\0\0\0\x02\x08\x01."),
            TRAILERS,
        ],
    );
    check_well(
        "first something interim",
        &[SETTINGS_FRAME, (1, END_HEADERS, 1, b"\x48\x03103"), HEADERS, DATA, TRAILERS],
    );
    let split = [SETTINGS_FRAME, (1, 0, 1, b""), (9, 0, 1, b"\x88\x5f"), (9, END_HEADERS, 1, b"\x01a"), DATA];
    check_well(
        "headers in pieces",
        &[&split[..], &[(1, END_STREAM, 1, b"\x40\x0bgrpc"), (9, END_HEADERS, 1, b"-status\x010")]].concat(),
    );
    check_well(
        "a shutdown after this call",
        &[SETTINGS_FRAME, (7, 0, 0, b"\x7f\xff\xff\xff\0\0\0\0bye"), HEADERS, DATA, TRAILERS],
    );
    let at_once = (1, END_HEADERS | END_STREAM, 1, b"\x88\x40\x0bgrpc-status\x0212".as_slice());
    let statuses = CallStatuses { http: Some(200), grpc: Some(12) };
    check(
        "trailers alone",
        &[SETTINGS_FRAME, at_once],
        &Ok(Some(GrpcReply { statuses, message: Vec::new() })),
    );
    check("no trailers yet", &[SETTINGS_FRAME, HEADERS, DATA], &Ok(None));
    check("nothing", &[], &Ok(None));
}

#[test]
fn an_invalid_http_2_reply_is_named() {
    let begin = |more: &[Frame<'static>]| [&[SETTINGS_FRAME], more].concat();
    let refused = |rule, more: &[Frame<'static>], fault| check_fault(rule, &begin(more), fault);
    let ended = Http2Error::Reset(ErrorCode(7));
    refused("a stream that is refused", &[(3, 0, 1, b"\0\0\0\x07")], ended.clone());
    refused("after the message", &[HEADERS, DATA, (3, 0, 1, b"\0\0\0\x07")], ended);
    refused(
        "an overload",
        &[(7, 0, 0, b"\0\0\0\x01\0\0\0\x0btoo_many_pings")],
        Http2Error::GoAway(ErrorCode(11)),
    );
    refused(
        "a shutdown before this call",
        &[(7, 0, 0, b"\0\0\0\0\0\0\0\0")],
        Http2Error::GoAway(ErrorCode(0)),
    );
    refused("an end without a code", &[(3, 0, 1, b"\0\0\0")], Http2Error::Illegal("an end without a code"));
    refused("half a code", &[(7, 0, 0, b"\0\0\0\x01\0\0\0")], Http2Error::Illegal("an end without a code"));
    refused("a push", &[(5, 4, 1, b"\0\0\0\x02\x88")], Http2Error::Illegal("a PUSH_PROMISE"));
    refused("half a setting", &[(4, 0, 0, b"\0\x01\0")], Http2Error::Illegal("a SETTINGS frame"));
    refused("a short ping", &[(6, 0, 0, b"1234567")], Http2Error::Illegal("a PING"));
    refused("a long ping", &[(6, 0, 0, b"123456789")], Http2Error::Illegal("a PING"));
    refused("another stream", &[(1, END_HEADERS, 3, b"\x88")], Http2Error::Illegal("a frame of a stream"));
    refused("no stream", &[(0, 0, 0, b"")], Http2Error::Illegal("a frame of a stream"));
    refused(
        "a frame between headers",
        &[(1, 0, 1, b"\x88"), PING],
        Http2Error::Illegal("a frame out of place"),
    );
    refused("the end of none", &[(9, END_HEADERS, 1, b"\x88")], Http2Error::Illegal("a frame out of place"));
    refused("too much padding", &[HEADERS, (0, 8, 1, b"\x05abc")], Http2Error::Illegal("a DATA frame"));
    refused(
        "the same of headers",
        &[(1, END_HEADERS | 8, 1, b"\x05abc")],
        Http2Error::Illegal("a HEADERS frame"),
    );
    refused(
        "headers that are none",
        &[(1, END_HEADERS, 1, b"\x40")],
        Http2Error::Illegal("a block of headers"),
    );
}

#[test]
fn a_reply_that_does_not_start_with_settings_is_shown() {
    let begins = |bytes: &[u8]| outcome(bytes, usize::MAX).unwrap_err().to_string();
    assert_eq!(
        begins(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"),
        "it begins \"HTTP/1.1 400 Bad Request\\r\\nConnection: cl\""
    );
    assert_eq!(begins(b"SSH-2.0-x\r\n"), "it begins \"SSH-2.0-x\\r\\n\"");
    for first in [HEADERS, SETTINGS_ACK, PING, (4, 0, 1, b"")] {
        assert!(begins(&bytes(&[first])).starts_with("it begins "), "{first:?}");
    }
    let mut call = begun();
    assert_eq!(call.truncation_error(), Http2Error::Cut);
    call.unread.extend(b"-ERR\r\n");
    assert_eq!(call.advance(), Ok(None), "it may yet become a frame");
    assert_eq!(call.truncation_error().to_string(), "it begins \"-ERR\\r\\n\"");
    let mut call = begun();
    call.unread.extend(bytes(&[SETTINGS_FRAME]));
    assert_eq!((call.advance(), call.truncation_error()), (Ok(None), Http2Error::Cut));
}

/// Checks how many copies of a frame a server can send, and that our replies stay small.
#[track_caller]
fn check_flood(rule: &str, frame: Frame<'_>, most: usize) {
    let mut call = begun();
    call.unsent.clear();
    call.unread.extend(bytes(&[SETTINGS_FRAME]));
    assert_eq!(call.advance(), Ok(None));
    let mut sent = 0;
    let fault = loop {
        call.unread.extend(bytes(&[frame]));
        match call.advance() {
            Ok(answer) => assert_eq!(answer, None, "{rule}"),
            Err(fault) => break fault,
        }
        sent += 1;
    };
    assert_eq!((fault, sent), (Http2Error::TooLong, most), "{rule}");
    assert!(call.unsent.len() <= ANSWER_BYTES_MAX, "{rule}: {}", call.unsent.len());
}

#[test]
fn a_flood_of_any_frame_ends_and_is_not_amplified() {
    check_flood("pings", PING, 963);
    check_flood("settings", SETTINGS_FRAME, 1_819);
    check_flood("windows", WINDOW_UPDATE, 1_259);
    check_flood("unknown frames", (0xfa, 0, 0, b""), 1_819);
    check_flood("data without an end", (0, 0, 1, b""), 1_819);
    check_flood("headers without an end", (1, END_HEADERS, 1, b"\x88"), 1_637);
    let huge = vec![0; 6 * 1_000];
    check_flood("large settings", (4, 0, 0, &huge), 2);
    let mut call = begun();
    call.unread.extend(bytes(&[SETTINGS_FRAME, (1, 0, 1, b"\x88")]));
    assert_eq!(call.advance(), Ok(None));
    let pieces = std::iter::repeat_with(|| {
        call.unread.extend(bytes(&[(9, 0, 1, b"")]));
        call.advance()
    });
    assert_eq!(pieces.take_while(Result::is_ok).count(), 1_818, "headers in endless pieces");
}

/// A frame that announces too much is refused at once.
#[test]
fn a_too_large_frame_is_refused_by_its_header() {
    for length in [[0, 0x40, 0], [0xff, 0xff, 0xff]] {
        let head = [&length[..], b"\x04\0\0\0\0\0"].concat();
        assert_eq!(outcome(&head, 1), Err(Http2Error::TooLong));
    }
    let most = u16::try_from(ANSWER_BYTES_MAX - HEAD_BYTES).unwrap().to_be_bytes();
    assert_eq!(outcome(&[&[0], &most[..], b"\x04\0\0\0\0\0"].concat(), 1), Ok(None));
}

#[test]
fn settings_and_pings_are_acknowledged_once() {
    let mut call = begun();
    call.unsent.clear();
    call.unread.extend(bytes(&[SETTINGS_FRAME, SETTINGS_ACK, PING, (6, ACK, 0, b"abcdefgh")]));
    assert_eq!(call.advance(), Ok(None));
    assert_eq!(call.unsent, bytes(&[SETTINGS_ACK, (6, ACK, 0, b"12345678")]));
}

#[test]
fn error_codes_are_shown_by_name() {
    let told = |code| ErrorCode(code).to_string();
    assert_eq!(
        [0, 1, 7, 13, 14, u32::MAX].map(told),
        ["NO_ERROR", "PROTOCOL_ERROR", "REFUSED_STREAM", "HTTP_1_1_REQUIRED", "code 14", "code 4294967295"]
    );
}

fn any_frame() -> impl Strategy<Value = Vec<u8>> {
    let payload = prop_oneof![
        3 => prop::collection::vec(any::<u8>(), 0..40),
        1 => Just(HEADERS.3.to_vec()),
        1 => Just(TRAILERS.3.to_vec()),
        1 => Just(DATA.3.to_vec()),
    ];
    (0..11_u8, any::<u8>(), 0..3_u32, payload)
        .prop_map(|(kind, flags, stream, payload)| bytes(&[(kind, flags, stream, &payload)]))
}

proptest! {
    /// Any bytes in any chunks: the same result, and bounded memory.
    #[test]
    fn any_reply_has_one_outcome_in_any_chunks(
        frames in prop::collection::vec(any_frame(), 0..60),
        tail in prop::collection::vec(any::<u8>(), 0..20),
        piece in 1..300_usize,
    ) {
        let answer = [bytes(&[SETTINGS_FRAME]), frames.concat(), tail].concat();
        let whole = outcome(&answer, usize::MAX);
        prop_assert_eq!(outcome(&answer, piece), whole.clone());
        prop_assert_eq!(outcome(&answer, 1), whole);
    }
}
