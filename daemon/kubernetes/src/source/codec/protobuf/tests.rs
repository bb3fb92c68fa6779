//! Frames, objects and statuses in protobuf, valid and broken.

use holdfast_core::event::Event;
use proptest::prelude::*;

use super::super::tests::{provenance, shown};
use super::*;
use crate::source::codec::{Framer, Splitter};
use crate::source::page::{ListFrame, PageError};
use crate::source::piece::Piece;

fn number(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    bytes.push(value.to_le_bytes()[0]);
    bytes
}

/// A field with bytes.
fn field(at: u64, bytes: &[u8]) -> Vec<u8> {
    [number(at << 3 | 2), number(bytes.len() as u64), bytes.to_vec()].concat()
}

/// A field with a number.
fn count(at: u64, value: u64) -> Vec<u8> {
    [number(at << 3), number(value)].concat()
}

fn message(fields: &[Vec<u8>]) -> Vec<u8> {
    fields.concat()
}

fn meta(name: &str) -> Vec<u8> {
    field(1, &message(&[field(1, name.as_bytes()), field(3, b"d"), field(5, b"u"), field(6, b"7")]))
}

fn wrapped(kind: &str, raw: &[u8]) -> Vec<u8> {
    let types = message(&[field(1, b"v1"), field(2, kind.as_bytes())]);
    [MAGIC.to_vec(), field(1, &types), field(2, raw), field(3, b""), field(4, b"")].concat()
}

fn event_of(kind: &str, raw: &[u8]) -> Vec<u8> {
    message(&[field(1, kind.as_bytes()), field(2, &field(1, &wrapped("Service", raw)))])
}

fn service_of(name: &str) -> Vec<u8> {
    message(&[meta(name), field(2, &message(&[field(1, &count(3, 80)), field(3, b"10.96.0.1")]))])
}

#[track_caller]
fn check_frame(bytes: &[u8], expected: &str) {
    let shown = shown(Protobuf::parse_frame(bytes), |bytes| format!("{} bytes", bytes.len()));
    assert_eq!(shown, expected);
}

#[test]
fn frames_of_a_watch() {
    let object = meta("a");
    check_frame(&event_of("ADDED", &object), "applied 14 bytes");
    check_frame(&event_of("MODIFIED", &object), "applied 14 bytes");
    check_frame(&event_of("DELETED", &object), "deleted 14 bytes");
    check_frame(&event_of("BOOKMARK", &object), "bookmark 7");
    let gone = message(&[field(3, b"too old"), field(4, b"Expired"), count(6, 410)]);
    check_frame(&event_of("ERROR", &gone), "failed 410 Expired: too old");
}

#[test]
fn an_invalid_frame_is_described() {
    check_frame(b"", "not a watch event: it has no object");
    check_frame(&event_of("NEWS", b""), r#"not a watch event: its type is "NEWS""#);
    check_frame(&event_of("BOOKMARK", b""), "not a watch event: a bookmark without a version");
    check_frame(&field(1, b"ADDED"), "not a watch event: it has no object");
    check_frame(&event_of("ADDED", b"")[..20], "not a watch event: it ends within a field");
    let json = message(&[field(1, b"ADDED"), field(2, &field(1, br#"{"kind":"Service"}"#))]);
    check_frame(&json, "not a watch event: it has no object");
}

fn read(what: Resource, bytes: &[u8]) -> (Vec<String>, bool, Option<String>) {
    let object = Protobuf::parse_object(what, bytes, &provenance());
    let told = object.messages.iter().map(|told| match told {
        Told::Event(Event::Rejected(it)) => format!("!{} {}", it.object, it.reason),
        Told::Event(Event::ServiceApplied(facts)) => format!("+{} {:?}", facts.key, facts.cluster_ips),
        other => format!("{other:?}"),
    });
    let name = object.name.map(|(name, version)| format!("{name}@{}", version.resource_version));
    (told.collect(), object.is_doubtful, name)
}

#[test]
fn a_partly_readable_object_is_doubtful_and_has_a_name() {
    let known = Some("d/a@7".to_owned());
    let good = service_of("a");
    assert_eq!(read(Resource::Services, &good), (vec!["+d/a [10.96.0.1]".into()], false, known.clone()));
    let broken = [&good[..], &[0x0b]].concat();
    let told = "!Service d/a the object: no protobuf: a field is of wire type 3, which nothing uses";
    assert_eq!(read(Resource::Services, &broken), (vec![told.into()], true, known.clone()));
    let nameless = field(1, &count(1, 7));
    let (_, is_doubtful, name) = read(Resource::Services, &nameless);
    assert_eq!((is_doubtful, name), (true, None));
}

/// An author can put any bytes into an object: refetching each would cost the apiserver more than the author.
#[test]
fn invalid_utf_8_does_not_make_an_object_doubtful() {
    let annotation = field(12, &message(&[field(1, b"x"), field(2, b"\xff")]));
    let named = field(1, &message(&[field(1, b"a"), field(3, b"d"), field(6, b"7"), annotation]));
    let service = message(&[named, field(2, &field(3, b"10.96.0.1"))]);
    let (told, is_doubtful, name) = read(Resource::Services, &service);
    assert_eq!((is_doubtful, name.as_deref()), (false, Some("d/a@7")), "{told:?}");
    let text = message(&[meta("a"), field(2, &field(4, b"\xff"))]);
    let (told, is_doubtful, _) = read(Resource::Services, &text);
    assert!(!is_doubtful && told[0].contains("spec.type is"), "{told:?}");
}

#[test]
fn an_invalid_value_does_not_make_an_object_doubtful() {
    let wrong = message(&[meta("a"), field(2, &field(4, b"Bridge"))]);
    let (told, is_doubtful, _) = read(Resource::Services, &wrong);
    assert!(!is_doubtful && told[0].contains(r#"spec.type is "Bridge""#), "{told:?}");
}

#[test]
fn messages_merge_lists_append_and_the_last_value_counts() {
    let port = |name: &str, number| field(1, &message(&[field(1, name.as_bytes()), count(3, number)]));
    let spec = |ip: &str, port: Vec<u8>| field(2, &message(&[port, field(3, ip.as_bytes())]));
    let twice =
        message(&[meta("b"), spec("10.96.0.9", port("x", 80)), meta("a"), spec("10.96.0.1", port("y", 81))]);
    assert_eq!(Protobuf::peek_identity(&twice).unwrap().name.as_deref(), Some("a"));
    let object = Protobuf::parse_object(Resource::Services, &twice, &provenance());
    let Some(Told::Event(Event::ServiceApplied(facts))) = object.messages.first() else {
        panic!("{object:?}")
    };
    assert_eq!(facts.key.to_string(), "d/a");
    assert_eq!(facts.ports.iter().map(|port| port.port.get()).collect::<Vec<_>>(), [80, 81]);
    assert_eq!(facts.cluster_ips, ["10.96.0.1".parse::<std::net::IpAddr>().unwrap()]);
}

#[test]
fn a_cut_event_names_its_object() {
    let whole = event_of("DELETED", &service_of("a"));
    let named = (0..whole.len()).filter(|end| {
        let glimpse = Protobuf::peek_event(&whole[..*end]);
        let identity = glimpse.identity.as_ref().and_then(|it| it.name.as_deref());
        assert!(identity.is_none_or(|name| name == "a" || name.is_empty()));
        identity == Some("a") && glimpse.is_deletion() == Some(true)
    });
    // All ends after the metadata, which takes 12 bytes with its header.
    assert!(named.count() >= service_of("a").len() - 14);
}

#[test]
fn a_refusal_is_read() {
    let status = message(&[field(3, b"no"), field(4, b"Forbidden"), count(6, 403)]);
    let read = Protobuf::parse_status(&wrapped("Status", &status)).unwrap();
    assert_eq!(read.to_string(), "403 Forbidden: no");
    assert_eq!(Protobuf::parse_status(b"{}"), None);
}

fn list_of(items: &[Vec<u8>], meta: &[Vec<u8>]) -> Vec<u8> {
    let items = items.iter().flat_map(|item| field(2, item));
    wrapped("ServiceList", &[field(1, &message(meta)), items.collect()].concat())
}

fn taken(chunks: &[&[u8]]) -> Result<(Vec<Vec<u8>>, ListFrame), PageError> {
    let mut page = list::ProtobufList::default();
    let mut items = Vec::new();
    let mut each = |item: Piece<'_>| items.push(item.bytes().to_vec());
    for chunk in chunks {
        page.push_chunk(chunk, &mut each)?;
    }
    let frame = page.finish(&mut each)?;
    Ok((items, frame))
}

#[test]
fn items_do_not_depend_on_chunks() {
    let items = [service_of("a"), Vec::new(), vec![0xff; 300]];
    let meta = [field(2, b"7"), field(3, b"next"), count(4, 9), field(9, b"new"), count(8, 1)];
    let list = list_of(&items, &meta);
    for size in 1..=list.len() {
        let (found, frame) = taken(&list.chunks(size).collect::<Vec<_>>()).unwrap();
        assert_eq!(found, items, "in chunks of {size}");
        assert_eq!((frame.kind.as_str(), frame.api_version.as_str()), ("ServiceList", "v1"));
        assert_eq!(frame.metadata.token.as_deref(), Some("next"));
    }
}

#[test]
fn a_list_cut_anywhere_is_truncated() {
    let list = list_of(&[service_of("a"), service_of("b")], &[field(2, b"7")]);
    // The bytes after the list may be missing: two empty texts of two bytes each.
    let whole = list.len() - 4;
    for end in 0..list.len() {
        let found = taken(&[&list[..end]]);
        let is_whole = end >= whole && (end - whole).is_multiple_of(2);
        assert_eq!(found.err(), (!is_whole).then_some(PageError::Truncated), "cut at {end}");
    }
}

#[test]
fn a_body_that_is_no_list_is_refused() {
    assert_eq!(taken(&[b"<html>"]).unwrap_err(), PageError::NotAList);
    assert_eq!(taken(&[&wrapped("Service", &service_of("a"))]).unwrap_err(), PageError::NotAList);
    assert_eq!(taken(&[&list_of(&[], &[])]).unwrap_err(), PageError::NotAList, "a list without a version");
    assert_eq!(taken(&[&list_of(&[], &[field(2, b"7"), count(4, 9)])]).unwrap_err(), PageError::NotAll);
    assert_eq!(taken(&[MAGIC, &field(2, &[0x0b])]).unwrap_err(), PageError::Garbled, "a group");
    assert_eq!(taken(&[MAGIC, &field(2, &[0x12, 0x05])]).unwrap_err(), PageError::Garbled, "beyond the list");
    let twice = [list_of(&[], &[field(2, b"7")]), field(2, b"")].concat();
    assert_eq!(taken(&[&twice]).unwrap_err(), PageError::Garbled, "two lists in one");
    let endless = list_of(&[], &[field(2, &vec![b'7'; 100_000])]);
    assert_eq!(taken(&[&endless]).unwrap_err(), PageError::TooLong);
}

#[test]
fn a_giant_item_is_cut_and_the_next_one_is_whole() {
    use crate::source::piece::PIECE_BYTES_MAX;
    let giant = vec![0; PIECE_BYTES_MAX + 1];
    let list = list_of(&[giant, service_of("b")], &[field(2, b"7")]);
    let (items, _) = taken(&list.chunks(16_384).collect::<Vec<_>>()).unwrap();
    assert_eq!(items.iter().map(Vec::len).collect::<Vec<_>>(), [PIECE_BYTES_MAX, service_of("b").len()]);
}

/// Bytes that resemble messages, so that the decoder reads beyond the first field.
fn nearly() -> impl Strategy<Value = Vec<u8>> {
    let leaf = prop_oneof![
        any::<Vec<u8>>(),
        "[a-z0-9.:/]{0,20}".prop_map(String::into_bytes),
        (1..25_u64, any::<u64>()).prop_map(|(at, value)| count(at, value)),
    ];
    leaf.prop_recursive(6, 64, 6, |inner| {
        let one = (1..25_u64, inner).prop_map(|(at, bytes)| field(at, &bytes));
        prop::collection::vec(one, 0..6).prop_map(|fields| fields.concat())
    })
}

fn read_all(bytes: &[u8]) {
    for what in Resource::ALL {
        let object = Protobuf::parse_object(what, bytes, &provenance());
        assert!(!object.is_doubtful || object.messages.len() <= 1);
    }
    let _ =
        (Protobuf::parse_frame(bytes).is_ok(), Protobuf::peek_event(bytes), Protobuf::parse_status(bytes));
    for size in [1, 7, bytes.len().max(1)] {
        let chunks: Vec<&[u8]> = bytes.chunks(size).collect();
        let _ = taken(&chunks);
        let mut frames = frames::Frames::default();
        chunks.iter().for_each(|chunk| {
            frames.push_chunk(chunk, &mut |piece| drop(Protobuf::parse_frame(piece.bytes())));
        });
    }
}

proptest! {
    #[test]
    fn no_input_breaks_the_decoder(bytes in nearly(), end in any::<prop::sample::Index>()) {
        read_all(&bytes);
        read_all(&bytes[..end.index(bytes.len() + 1)]);
        read_all(&[MAGIC, &bytes].concat());
        read_all(&event_of("MODIFIED", &bytes));
    }

    #[test]
    fn a_list_does_not_depend_on_chunks(bytes in nearly(), sizes in prop::collection::vec(1..40_usize, 1..20)) {
        let list = list_of(&[bytes.clone(), service_of("a")], &[field(2, b"7"), bytes]);
        let mut rest = &list[..];
        let mut chunks = Vec::new();
        for size in sizes.iter().cycle() {
            if rest.is_empty() { break; }
            let (chunk, after) = rest.split_at(rest.len().min(*size));
            chunks.push(chunk);
            rest = after;
        }
        prop_assert_eq!(taken(&chunks), taken(&[&list]));
    }
}
