//! Pushed endpoints come out unchanged.

use std::string::String;
use std::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::keys::Family;
use crate::limits;

type Written = (u32, [bool; 3], String, String, Vec<String>, Option<[String; 4]>);

fn name() -> impl Strategy<Value = String> {
    prop_oneof![Just(String::new()), "[a-z]{1,8}", Just("n".repeat(255))]
}

fn uid() -> impl Strategy<Value = String> {
    prop_oneof![
        Just(String::new()),
        "[a-f0-9]{8}-[a-f0-9]{4}-[a-f0-9]{4}-[a-f0-9]{4}-[a-f0-9]{12}",
        "[A-F]{36}"
    ]
}

fn written() -> impl Strategy<Value = Written> {
    let target = proptest::option::of(
        (name(), name(), "-?[a-z]{1,8}(-[a-z]{0,4}){0,2}", uid()).prop_map(|it| [it.0, it.1, it.2, it.3]),
    );
    let hints = proptest::collection::vec("[a-z]{1,3}", 0..3);
    (0x0100_0000_u32..0x0a00_0000, any::<[bool; 3]>(), name(), name(), hints, target)
}

proptest! {
    #[test]
    fn pushed_endpoints_come_out_unchanged(all in proptest::collection::vec(written(), 0..20)) {
        let hints: Vec<HintSet> = all
            .iter()
            .map(|it| HintSet { zones: it.4.iter().map(|it| Arc::from(it.as_str())).collect(), nodes: Box::default() })
            .collect();
        let mut builder = EndpointsBuilder::new(Family::V4);
        let mut wanted = Vec::new();
        for ((address, [ready, serving, terminating], node, zone, _, target), hints) in all.iter().zip(&hints) {
            let endpoint = Endpoint {
                address: IpAddr::V4(Ipv4Addr::from_bits(*address)),
                conditions: Conditions { ready: *ready, serving: *serving, terminating: *terminating },
                node: (!node.is_empty()).then(|| node.as_str().into()),
                zone: (!zone.is_empty()).then_some(zone.as_str()),
                hints: (!hints.zones.is_empty()).then_some(hints),
                target: target.as_ref().map(|[kind, namespace, name, uid]| Target {
                    kind,
                    namespace,
                    name: name.as_str().into(),
                    uid: UidText::parse(uid),
                }),
            };
            prop_assert_eq!(builder.push(endpoint), Ok(()));
            wanted.push(endpoint);
        }
        let endpoints = builder.finish();
        prop_assert_eq!(endpoints.len(), wanted.len());
        prop_assert_eq!(endpoints.iter().collect::<Vec<_>>(), wanted.clone());
        let brief: Vec<_> = wanted.iter().map(|it| (it.address, it.conditions)).collect();
        prop_assert_eq!(endpoints.iter_brief().collect::<Vec<_>>(), brief);
        for (position, endpoint) in wanted.iter().enumerate() {
            prop_assert_eq!(endpoints.hints_for(position), endpoint.hints);
            prop_assert_eq!(endpoints.get(position), Some(*endpoint));
        }
    }

    #[test]
    fn a_uid_is_shown_as_it_was_written(text in uid()) {
        prop_assert_eq!(std::format!("{}", UidText::parse(&text)), text);
    }
}

fn plain(address: &str) -> Endpoint<'static> {
    let address = address.parse().unwrap();
    Endpoint { address, conditions: Conditions::READY, node: None, zone: None, hints: None, target: None }
}

#[test]
fn absent_conditions_mean_ready() {
    assert_eq!(Conditions::from_optional(None, None, None), Conditions::READY);
}

#[test]
fn an_invalid_endpoint_is_refused_and_the_others_stay() {
    let mut builder = EndpointsBuilder::new(Family::V4);
    for address in ["0.0.0.0", "224.0.0.1", "::1"] {
        assert!(builder.push(plain(address)).is_err(), "{address}");
    }
    let long = "n".repeat(256);
    let too_long = Endpoint { node: Some(long.as_str().into()), ..plain("1.1.1.1") };
    assert_eq!(builder.push(too_long), Err(EndpointError::NameTooLong(256)));
    assert_eq!(builder.push(plain("1.1.1.1")), Ok(()));
    assert_eq!(builder.finish().len(), 1);
}

#[test]
fn shared_parts_are_stored_once_in_any_order_of_endpoints() {
    let zones = ["a", "b"].map(|zone| HintSet { zones: [zone.into()].into(), nodes: Box::default() });
    let [a, b] = &zones;
    let endpoint = |nth: u8, hints| {
        let address = IpAddr::V4(Ipv4Addr::new(10, 0, 0, nth));
        let node = Some(if nth.is_multiple_of(2) { "node-1" } else { "node-22" }.into());
        Endpoint { address, node, zone: Some("z"), hints, ..plain("1.1.1.1") }
    };
    let order = [Some(a), Some(a), None, None, Some(b), Some(a), Some(b), Some(b), None, Some(a)];
    let wanted: Vec<_> = (1..).zip(order).map(|(nth, hints)| endpoint(nth, hints)).collect();
    let mut builder = EndpointsBuilder::new(Family::V4);
    wanted.iter().for_each(|it| builder.push(*it).unwrap());
    let endpoints = builder.finish();
    assert_eq!(endpoints.iter().collect::<Vec<_>>(), wanted);
    assert_eq!((endpoints.parts.len(), endpoints.hints.len()), (3, 2));
}

#[test]
fn invariant_10_endpoints_beyond_the_limit_of_a_slice_are_refused() {
    let mut builder = EndpointsBuilder::new(Family::V4);
    for _ in 0..limits::ENDPOINTS_PER_SLICE_MAX {
        builder.push(plain("1.1.1.1")).unwrap();
    }
    assert_eq!(builder.push(plain("1.1.1.1")), Err(EndpointError::TooMany));
}
