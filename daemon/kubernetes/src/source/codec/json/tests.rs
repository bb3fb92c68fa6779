//! Valid and invalid frames and objects.

use holdfast_core::event::Event;
use holdfast_core::keys::ObjectName;

use super::super::reject_object;
use super::super::tests::{provenance, shown};
use super::*;

#[track_caller]
fn check_frame(text: &str, expected: &str) {
    let shown =
        shown(Json::parse_frame(text.as_bytes()), |bytes| String::from_utf8_lossy(bytes).into_owned());
    assert_eq!(shown, expected);
}

#[test]
fn frames_of_a_watch() {
    check_frame(r#"{"type":"ADDED","object":{"a":[1]}}"#, r#"applied {"a":[1]}"#);
    check_frame(r#"{"type":"MODIFIED","object":{}}"#, "applied {}");
    check_frame(r#"{"type":"DELETED","object":{}}"#, "deleted {}");
    let bookmark = r#"{"type":"BOOKMARK","object":{"kind":"EndpointSlice","metadata":{"resourceVersion":"12"},"addressType":"","endpoints":null}}"#;
    check_frame(bookmark, "bookmark 12");
    let error =
        r#"{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired","message":"too old"}}"#;
    check_frame(error, "failed 410 Expired: too old");
}

#[test]
fn an_invalid_frame_is_described() {
    check_frame(r#"{"type":"NEWS","object":{}}"#, r#"not a watch event: its type is "NEWS""#);
    check_frame(r#"{"type":"BOOKMARK","object":{}}"#, "not a watch event: a bookmark without a version");
    check_frame(r#"{"type":"ADDED"}"#, "not a watch event: missing field `object` at line 1 column 16");
    check_frame("<html>", "not a watch event: expected value at line 1 column 1");
}

/// The messages of an object, whether it is bad, and its version.
fn read(what: Resource, text: &str) -> (Vec<String>, bool, Option<(String, String)>) {
    let object = Json::parse_object(what, text.as_bytes(), &provenance());
    let told = object.messages.iter().map(|told| match told {
        SinkMessage::Event(Event::ServiceApplied(facts)) => format!("+{}", facts.key),
        SinkMessage::Event(Event::SliceApplied(facts)) => format!("+{} {}", facts.key, facts.endpoints.len()),
        SinkMessage::Event(Event::Rejected(it)) => format!("!{} {}", it.object, it.reason),
        SinkMessage::Node(node) => {
            let leaves = if node.is_leaving { " leaves" } else { "" };
            format!("zone {:?} {:?}{leaves}", node.zone, node.addresses)
        }
        other @ SinkMessage::Event(_) => format!("{other:?}"),
    });
    let name = object.name.map(|(name, version)| (name.to_string(), version.resource_version.to_string()));
    (told.collect(), object.is_bad, name)
}

#[track_caller]
fn check(what: Resource, text: &str, told: &[&str], is_bad: bool, name: Option<(&str, &str)>) {
    let (found, found_bad, found_name) = read(what, text);
    assert_eq!((found, found_bad), (told.iter().map(|&it| it.to_owned()).collect(), is_bad), "{text}");
    assert_eq!(found_name, name.map(|(name, version)| (name.to_owned(), version.to_owned())), "{text}");
}

const META: &str = r#""metadata":{"name":"a","namespace":"d","uid":"u","resourceVersion":"7"}"#;

#[test]
fn good_objects() {
    let known = Some(("d/a", "7"));
    let service = format!(r#"{{{META},"spec":{{"clusterIP":"10.96.0.1","ports":[{{"port":80}}]}}}}"#);
    check(Resource::Services, &service, &["+d/a"], false, known);
    let slice =
        format!(r#"{{{META},"addressType":"IPv4","endpoints":[{{"addresses":["10.0.0.1"]}}],"new":1}}"#);
    check(Resource::Slices, &slice, &["+d/a 1"], false, known);
    let null = format!(r#"{{{META},"addressType":"IPv4","endpoints":null,"ports":null}}"#);
    check(Resource::Slices, &null, &["+d/a 0"], false, known);
}

#[test]
fn a_nodes_zone_is_read() {
    let node =
        |labels: &str| format!(r#"{{"metadata":{{"name":"n1","resourceVersion":"3","labels":{labels}}}}}"#);
    let known = Some(("-/n1", "3"));
    let zone = node(r#"{"topology.kubernetes.io/zone":"a"}"#);
    check(Resource::Node, &zone, &["zone Some(\"a\") []"], false, known);
    check(Resource::Node, &node(r#"{"topology.kubernetes.io/zone":""}"#), &["zone None []"], false, known);
    check(Resource::Node, &node("null"), &["zone None []"], false, known);
    check(Resource::Node, "{wrong", &[], true, None);
}

#[track_caller]
fn check_leaving(more: &str, taints: &str, leaves: bool) {
    let name = r#""name":"n1","resourceVersion":"3""#;
    let node = format!(r#"{{"metadata":{{{name}{more}}},"spec":{{"taints":{taints}}}}}"#);
    let expected = if leaves { "zone None [] leaves" } else { "zone None []" };
    check(Resource::Node, &node, &[expected], false, Some(("-/n1", "3")));
}

#[test]
fn a_node_is_leaving_when_deleted_or_tainted_by_the_autoscaler() {
    let taint = |key: &str| format!(r#"{{"key":"{key}","effect":"NoSchedule"}}"#);
    let (unready, leaving) = (taint("node.kubernetes.io/not-ready"), taint("ToBeDeletedByClusterAutoscaler"));
    check_leaving("", &format!("[{unready}]"), false);
    check_leaving("", &format!("[{unready},{leaving}]"), true);
    check_leaving(r#","deletionTimestamp":"2026-01-08T11:11:55Z""#, "[]", true);
    check_leaving(r#","deletionTimestamp":null"#, "null", false);
    check_leaving("", "[null,7,{},[]]", false);
    check_leaving("", &format!("[{}{leaving}]", format!("{unready},").repeat(300)), false);
}

#[track_caller]
fn check_addresses(addresses: &str, expected: &str) {
    let status = format!(r#""status":{{"addresses":{addresses}}}"#);
    let node = format!(r#"{{"metadata":{{"name":"n1","resourceVersion":"3"}},{status}}}"#);
    check(Resource::Node, &node, &[&format!("zone None [{expected}]")], false, Some(("-/n1", "3")));
}

#[test]
fn the_first_internal_else_external_address_of_each_family_counts() {
    let address = |kind: &str, address: &str| format!(r#"{{"type":"{kind}","address":"{address}"}}"#);
    let list = |addresses: &[(&str, &str)]| {
        let all: Vec<_> = addresses.iter().map(|(kind, it)| address(kind, it)).collect();
        format!("[{}]", all.join(","))
    };
    let (internal, external) = ("InternalIP", "ExternalIP");
    let both =
        [(external, "203.0.113.9"), (internal, "fd00::5"), (internal, "10.0.0.5"), (internal, "10.0.0.6")];
    check_addresses(&list(&both), "10.0.0.5, fd00::5");
    check_addresses(&list(&[(external, "2001:db8::1"), (internal, "10.0.0.5")]), "10.0.0.5, 2001:db8::1");
    check_addresses(
        &list(&[("Hostname", "10.0.0.5"), (internal, "node-1"), (internal, "::ffff:10.0.0.7")]),
        "10.0.0.7",
    );
    check_addresses("[null,7,{\"type\":\"InternalIP\"},{\"address\":\"10.0.0.5\"}]", "");
    check_addresses("{}", "");
    let many: Vec<_> = (0..300).map(|_| ("Hostname", "n")).chain([(internal, "10.0.0.5")]).collect();
    check_addresses(&list(&many), "");
}

#[test]
fn a_bad_object_rejects_itself_by_name() {
    let known = Some(("d/a", "7"));
    check(
        Resource::Slices,
        &format!(r#"{{{META},"addressType":"IPv4","ports":"all"}}"#),
        &[r#"!EndpointSlice d/a ports: invalid type: string "all", expected a sequence"#],
        true,
        known,
    );
    check(
        Resource::Slices,
        &format!(r#"{{{META},"addressType":"IPX"}}"#),
        &[r#"!EndpointSlice d/a addressType is "IPX"; IPv4, IPv6 and FQDN are legal"#],
        true,
        known,
    );
    check(
        Resource::Services,
        &format!(r#"{{{META},"spec":{{wrong}}}}"#),
        &["!Service d/a the object: no JSON: key must be a string at line 1 column 82"],
        true,
        known,
    );
    check(
        Resource::Services,
        r#"{"metadata":{"name":7},"spec":{}}"#,
        &[
            "!object in 10.0.0.1:6443, Service \"\" metadata.name: invalid type: integer `7`, expected a string",
        ],
        true,
        None,
    );
}

#[test]
fn a_bad_endpoint_is_skipped_and_the_slice_is_good() {
    let slice = format!(
        r#"{{{META},"addressType":"IPv4","endpoints":[{{"addresses":["10.0.0.1"]}},{{"addresses":["x"]}}]}}"#
    );
    let (told, is_bad, _) = read(Resource::Slices, &slice);
    assert_eq!(told.first().map(String::as_str), Some("+d/a 1"));
    assert!(told.get(1).is_some_and(|it| it.contains("1 endpoint skipped")), "{told:?}");
    assert!(!is_bad);
}

#[test]
fn an_object_with_invalid_utf_8_is_named_if_possible() {
    let mut bytes = format!(r#"{{{META},"spec":{{"type":""#).into_bytes();
    bytes.extend(b"\xff\"}}");
    let object = Json::parse_object(Resource::Services, &bytes, &provenance());
    assert_eq!(object.name.map(|(name, _)| name), ObjectName::new("d", "a").ok());
    assert!(object.is_bad);
}

#[test]
fn a_cut_object_is_refused_by_name() {
    let cut = format!(r#"{{"type":"ADDED","object":{{{META},"spec":{{"#);
    let object = reject_object(
        Resource::Services,
        Json::peek_event(cut.as_bytes()).identity,
        &"too long",
        &provenance(),
    );
    let rejection = object.rejection().unwrap();
    assert_eq!(
        (rejection.object.to_string().as_str(), &*rejection.reason),
        ("Service d/a", "the object: too long")
    );
    assert_eq!(object.name.map(|(_, version)| version.resource_version), Some("7".into()));
}
