//! Contradictions of endpoints, and what only looks like one.

use alloc::borrow::ToOwned;
use alloc::string::ToString;
use std::vec;

use core::num::NonZeroU16;

use super::super::endpoints::*;
use super::*;
use crate::facts::endpoints::UidText;
use crate::facts::{
    AddressType, Conditions, Endpoint, EndpointsBuilder, SliceFacts, SlicePort, Target, Writer,
};
use crate::keys::{Family, Protocol, SliceKey};
use crate::list::{Row, Rows};
use crate::time::Uptime;

const READY: Conditions = Conditions::READY;
const UNREADY: Conditions = Conditions { ready: false, serving: false, terminating: false };
const GOING: Conditions = Conditions { ready: false, serving: true, terminating: true };

/// `shop/web-1 8080`, and endpoints such as `10.0.0.1=uid`; a trailing `!` means not ready, `u` after the port UDP.
fn slice(text: &str, endpoints: &[&str]) -> Arc<SliceFacts> {
    let (name, port) = text.split_once(' ').unwrap();
    let (namespace, name) = name.split_once('/').unwrap();
    let mut builder = EndpointsBuilder::new(Family::V4);
    for endpoint in endpoints {
        let (address, uid) = endpoint.split_once('=').unwrap();
        let (uid, conditions) = uid.strip_suffix('!').map_or((uid, READY), |uid| (uid, UNREADY));
        let target = Target { kind: "Pod", namespace, name: "web-1".into(), uid: UidText::parse(uid) };
        let address = address.parse().unwrap();
        let (node, zone, hints) = (None, None, None);
        builder.push(Endpoint { address, conditions, node, zone, hints, target: Some(target) }).unwrap();
    }
    let (port, protocol) = port.strip_suffix('u').map_or((port, Protocol::TCP), |port| (port, Protocol::UDP));
    let port = NonZeroU16::new(port.parse().unwrap()).unwrap();
    Arc::new(SliceFacts {
        key: SliceKey { name: ObjectName::new(namespace, name).unwrap(), source: Source::Kubernetes },
        meta: crate::facts::Meta::default(),
        service: Some("web".into()),
        headless: false,
        address_type: AddressType::Ip(Family::V4),
        ports: [SlicePort { name: "http".into(), protocol, port }].into(),
        endpoints: builder.finish(),
        endpoints_null: false,
        weights: None,
    })
}

fn shown(found: Option<&EndpointFinding>) -> Vec<String> {
    let line = |it: &EndpointEvidence| {
        let slices: Vec<_> = it.slices.iter().map(ToString::to_string).collect();
        let address = it.address.map(|it| it.to_string()).unwrap_or_default();
        let age = it.age.map(|age| age.to_string()).unwrap_or_default();
        alloc::format!("{address} {} {age}", slices.join("+")).trim().to_owned()
    };
    found.into_iter().flat_map(|it| &it.evidence).map(line).collect()
}

#[track_caller]
fn check_owners(
    own: &[Arc<SliceFacts>],
    others: &[Arc<SliceFacts>],
    expected: &[&str],
) -> Option<EndpointFinding> {
    let found = find_stale(own, own.iter().chain(others).map(|slice| &**slice));
    assert_eq!(shown(found.as_ref()), expected);
    found
}

#[test]
fn an_address_with_two_targets_at_one_port_is_stale() {
    let own = [slice("shop/web-1 8080", &["10.0.0.1=u1", "10.0.0.2=u2"])];
    let found = check_owners(
        &own,
        &[slice("shop/api-1 8080", &["10.0.0.2=u9"])],
        &["10.0.0.2 shop/web-1+shop/api-1"],
    );
    assert_eq!(found.unwrap().confidence, Confidence::Certain);
    check_owners(&own, &[slice("shop/api-1 8080", &["10.0.0.2=u2"])], &[]);
    check_owners(&own, &[slice("shop/api-1 8080", &["10.0.0.2=u9!"])], &[]);
    check_owners(&own, &[slice("shop/api-1 8080", &["10.0.0.2="])], &[]);
    check_owners(
        &[slice("shop/web-1 8080", &["10.0.0.2=u2!"])],
        &[slice("shop/api-1 8080", &["10.0.0.2=u9"])],
        &[],
    );
    let both = [slice("shop/web-1 8080", &["10.0.0.1=u1"]), slice("shop/web-2 8080", &["10.0.0.1=u2"])];
    check_owners(&both, &[], &["10.0.0.1 shop/web-1+shop/web-2"]);
}

/// All pods in a node's own network have the address of the node.
#[test]
fn one_address_at_two_ports_or_protocols_may_be_two_pods() {
    let own = [slice("shop/web-1 8080", &["10.0.0.1=u1"])];
    check_owners(&own, &[slice("shop/api-1 8081", &["10.0.0.1=u2"])], &[]);
    check_owners(&own, &[slice("shop/api-1 8080u", &["10.0.0.1=u2"])], &[]);
}

#[test]
fn a_contradiction_from_another_namespace_is_only_likely() {
    let own = [slice("shop/web-1 8080", &["10.0.0.1=u1"])];
    let forged = [slice("tenant/mine 8080", &["10.0.0.1=u2"])];
    let found = check_owners(&own, &forged, &["10.0.0.1 shop/web-1+tenant/mine"]).unwrap();
    assert_eq!((found.severity, found.confidence), (Severity::Error, Confidence::Likely));
}

fn written(mut slice: Arc<SliceFacts>, ago: i64) -> Arc<SliceFacts> {
    let (manager, operation, subresource) = ("kube-controller-manager".into(), "Update".into(), None);
    let at = Some(Timestamp(WALL - ago));
    Arc::make_mut(&mut slice).meta.writer = Some(Writer { manager, operation, subresource, at });
    slice
}

#[track_caller]
fn check_duplicates(ages: [Option<i64>; 2], second: &[&str], expected: &[&str], severity: Severity) {
    let both = [slice("shop/web-1 8080", &["10.0.0.1=u1"]), slice("shop/web-2 8080", second)];
    let aged = both.into_iter().zip(ages).map(|(slice, ago)| match ago {
        Some(ago) => written(slice, ago),
        None => slice,
    });
    let found = find_duplicates(&aged.collect::<Vec<_>>(), Timestamp(WALL));
    assert_eq!(shown(found.as_ref()), expected, "{ages:?}");
    assert!(found.is_none_or(|found| found.severity == severity));
}

#[test]
fn an_address_in_two_slices_is_found_after_five_minutes() {
    let same = ["10.0.0.1=u1"];
    check_duplicates([Some(900), Some(299)], &same, &[], Severity::Warning);
    check_duplicates(
        [Some(900), Some(300)],
        &same,
        &["10.0.0.1 shop/web-1+shop/web-2 300"],
        Severity::Warning,
    );
    check_duplicates(
        [Some(900), Some(300)],
        &["10.0.0.1=u1!"],
        &["10.0.0.1 shop/web-1+shop/web-2 300"],
        Severity::Error,
    );
    check_duplicates([Some(900), Some(300)], &["10.0.0.2=u1"], &[], Severity::Warning);
    // One of the slices has no time of its last write.
    check_duplicates([Some(900), None], &same, &[], Severity::Warning);
    check_duplicates([Some(-900), Some(-900)], &same, &[], Severity::Warning);
}

#[test]
fn a_hidden_slice_of_a_service_with_an_address_is_found() {
    let mut labelled = slice("shop/web-1 8080", &["10.0.0.1=u1"]);
    Arc::make_mut(&mut labelled).headless = true;
    let own = [labelled, slice("shop/web-2 8080", &["10.0.0.2=u2"])];
    assert_eq!(shown(find_hidden(&own, false).as_ref()), ["shop/web-1"]);
    assert_eq!(find_hidden(&own, true), None);
    assert_eq!(find_hidden(&own[1..], false), None);
}

#[test]
fn two_managers_are_found_and_missing_labels_are_ignored() {
    let keys =
        [slice("shop/a 1", &[]), slice("shop/b 1", &[]), slice("shop/c 1", &[])].map(|it| it.key.clone());
    let of = |managers: [Option<&'static str>; 3]| managers_of(&keys, managers);
    assert_eq!(of([Some("one"), Some("two"), Some("one")]), ["shop/a", "shop/b"]);
    assert_eq!(of([Some("one"), None, Some("one")]), [""; 0]);
    assert_eq!(of([Some("one"), Some(""), None]), [""; 0]);
    assert_eq!(of([None, None, None]), [""; 0]);
}

fn managers_of(keys: &[SliceKey], managed: [Option<&'static str>; 3]) -> Vec<String> {
    shown(find_managers(keys.iter().zip(managed)).as_ref())
}

#[test]
fn a_truncated_endpoints_object_is_found() {
    assert_eq!(find_truncated(Some("truncated")).map(|it| it.id), Some(EndpointFindingId::Truncated));
    assert_eq!(find_truncated(None), None);
}

/// Readiness at these seconds, in both orders.
#[track_caller]
fn check_flaps(turns: &[(i64, bool)], now: i64, expected: &[&str]) {
    let address = [10, 0, 0, 1].into();
    let mut turns: Vec<_> = turns
        .iter()
        .map(|(at, is_ready)| ReadinessChange { address, at: Uptime(*at), is_ready: *is_ready })
        .collect();
    for _ in 0..2 {
        assert_eq!(shown(find_flapping(&turns, Uptime(now)).as_ref()), expected);
        turns.reverse();
    }
}

#[test]
fn an_endpoint_that_changes_four_times_in_ten_minutes_is_flapping() {
    let four = [(10, true), (20, false), (30, true), (40, false)];
    check_flaps(&four, 50, &["10.0.0.1  40"]);
    check_flaps(&four[..3], 50, &[]);
    check_flaps(&four, 609, &["10.0.0.1  599"]);
    check_flaps(&four, 610, &[]);
    // Equal changes count once.
    check_flaps(&[(10, true), (11, true), (12, true), (13, true)], 50, &[]);
    check_flaps(&[], 50, &[]);
}

/// A row that has been like that for `ago` seconds.
fn rows(conditions: Conditions, ago: i64) -> Rows {
    let row = Row::new([10, 0, 0, 1].into(), NonZeroU16::new(80).unwrap(), conditions, 0, 0);
    Rows::new(vec![row], &Rows::default(), Timestamp(WALL - ago))
}

#[test]
fn an_endpoint_that_was_never_ready_is_found_after_five_minutes() {
    let look = |rows: &Rows, turns: &[ReadinessChange]| {
        shown(find_never_ready(rows.iter(), turns, Timestamp(WALL)).as_ref())
    };
    assert_eq!(look(&rows(UNREADY, 299), &[]), [""; 0]);
    assert_eq!(look(&rows(UNREADY, 300), &[]), ["10.0.0.1  300"]);
    assert_eq!(look(&rows(READY, 3_000), &[]), [""; 0]);
    assert_eq!(look(&rows(GOING, 3_000), &[]), [""; 0]);
    let turn = |is_ready| ReadinessChange { address: [10, 0, 0, 1].into(), at: Uptime(5), is_ready };
    assert_eq!(look(&rows(UNREADY, 300), &[turn(true), turn(false)]), [""; 0], "it was ready once");
    assert_eq!(look(&rows(UNREADY, 300), &[turn(false)]), ["10.0.0.1  300"]);
    assert_eq!(look(&rows(UNREADY, -300), &[]), [""; 0], "the clock was set back");
}

#[test]
fn an_endpoint_that_terminates_longer_than_pods_do_is_found() {
    let look = |rows: &Rows| shown(find_stuck_terminating(rows.iter(), Timestamp(WALL)).as_ref());
    assert_eq!(look(&rows(GOING, 599)), [""; 0]);
    assert_eq!(look(&rows(GOING, 600)), ["10.0.0.1  600"]);
    assert_eq!(look(&rows(UNREADY, 6_000)), [""; 0]);
}

#[test]
fn invariant_10_a_finding_names_a_limited_number_of_endpoints() {
    let many: Vec<_> = (0..50).map(|nth| alloc::format!("10.0.0.{nth}=u{nth}")).collect();
    let others: Vec<_> = (0..50).map(|nth| alloc::format!("10.0.0.{nth}=other")).collect();
    let texts = |all: &[String]| all.iter().map(|it| it.clone().leak() as &str).collect::<Vec<_>>();
    let own = [slice("shop/web-1 8080", &texts(&many))];
    let found = find_stale(&own, [&*slice("shop/api-1 8080", &texts(&others))]).unwrap();
    assert_eq!((found.evidence.len(), found.more), (limits::NAMED_MAX, 30));
}
