//! Which weights are legal, and which backends get them.

use alloc::boxed::Box;
use alloc::format;
use std::string::String;

use super::{Weight, WeightSetting, Weights};
use crate::facts::{NodeName, ServiceFacts, ServiceType};
use crate::keys::{ObjectName, ServiceKey, Source};
use crate::limits;

fn of(text: &str, backend: &str, node: Option<&str>) -> u16 {
    Weights::parse(text)
        .unwrap()
        .find_weight(backend.parse().unwrap(), node.map(NodeName::from))
        .unwrap_or(Weight::ONE)
        .number()
}

#[test]
fn the_narrowest_weight_counts() {
    let text = "node:worker-1=3, 192.0.2.1=5 ,192.0.2.1:8080=0,[2001:db8::1]:80=256,2001:db8::2=7";
    assert_eq!(of(text, "192.0.2.1:8080", Some("worker-1")), 0);
    assert_eq!(of(text, "192.0.2.1:8081", Some("worker-1")), 5);
    assert_eq!(of(text, "192.0.2.2:8081", Some("worker-1")), 3);
    assert_eq!(of(text, "192.0.2.2:8081", Some("worker-2")), 1);
    assert_eq!(of(text, "192.0.2.2:8081", None), 1);
    assert_eq!(of(text, "[2001:db8::1]:80", None), 256);
    assert_eq!(of(text, "[2001:db8::2]:1", None), 7);
}

#[test]
fn the_last_of_two_weights_for_one_target_counts() {
    assert_eq!(of("192.0.2.1=5,192.0.2.1=2", "192.0.2.1:80", None), 2);
}

#[test]
fn an_invalid_weight_is_named_and_no_weight_is_taken() {
    for (text, shown) in [
        ("192.0.2.1=5,192.0.2.2", "\"192.0.2.2\" is no weight"),
        ("192.0.2.1=257", "\"192.0.2.1=257\" is no weight"),
        ("192.0.2.1=-1", "\"192.0.2.1=-1\" is no weight"),
        ("192.0.2.1=+1", "\"192.0.2.1=+1\" is no weight"),
        ("192.0.2.1=1.5", "\"192.0.2.1=1.5\" is no weight"),
        ("192.0.2.01=1", "\"192.0.2.01=1\" is no weight"),
        ("node:=1", "\"node:=1\" is no weight"),
        (&format!("node:{}=1", "n".repeat(limits::NAME_LENGTH_MAX + 1)), "\"node:nnn"),
        ("web-0=1", "\"web-0=1\" is no weight"),
        ("", "\"\" is no weight"),
    ] {
        let error = Weights::parse(text).unwrap_err();
        assert!(error.starts_with(shown), "{text}: {error}");
    }
}

/// A waiting object counts with its memory.
#[test]
fn invariant_10_the_text_of_weights_counts_as_bytes_of_its_service() {
    let bytes = |weights: Option<WeightSetting>, maglev: Option<&str>| {
        let key = ServiceKey { name: ObjectName::new("default", "web").unwrap(), source: Source::Manifests };
        let weights = weights.map(Box::new);
        let maglev = maglev.map(Into::into);
        ServiceFacts { weights, maglev, ..ServiceFacts::new(key, ServiceType::ClusterIp) }.bytes()
    };
    let named = |name: &str| WeightSetting {
        weights: Weights::parse(&format!("node:{name}=2")).unwrap(),
        wrong: None,
    };
    let (short, long) = (named("n"), named(&"n".repeat(250)));
    assert_eq!(bytes(Some(long), None) - bytes(Some(short), None), 249);
    let wrong = |text: &str| WeightSetting { wrong: Some(text.into()), ..WeightSetting::default() };
    assert_eq!(bytes(Some(wrong("no weight")), None) - bytes(Some(wrong("")), None), 9);
    assert_eq!(bytes(None, Some("true")) - bytes(None, None), 4);
}

#[test]
fn more_weights_than_the_limit_are_refused() {
    let all = |count: usize| "192.0.2.1=1,".repeat(count - 1) + "192.0.2.1=1";
    assert!(Weights::parse(&all(limits::WEIGHTS_PER_SERVICE_MAX)).is_ok());
    let error: String = Weights::parse(&all(limits::WEIGHTS_PER_SERVICE_MAX + 1)).unwrap_err();
    assert_eq!(error, "it has more than 1024 weights");
    assert_eq!(Weight::new(257), None);
    let longest = format!("node:{}=1", "n".repeat(limits::NAME_LENGTH_MAX));
    assert!(Weights::parse(&longest).is_ok());
}
