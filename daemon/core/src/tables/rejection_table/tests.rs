//! Which objects are named if there are too many, and the counters.

use alloc::format;
use alloc::vec::Vec;

use super::*;
use crate::keys::{ObjectName, ServiceKey, Source};

fn object(namespace: &str, number: usize) -> ObjectKey {
    let name = ObjectName::new(namespace, &format!("s{number:06}")).unwrap();
    ObjectKey::Service(ServiceKey { name, source: Source::Kubernetes })
}

fn put(rejected: &mut RejectionTable, namespace: &str, number: usize) {
    let object = object(namespace, number);
    rejected.put(Rejection { object, origin: None, reason: "bad".into(), partial: false });
}

/// How many are named, and how many counted.
fn shown(rejected: &mut RejectionTable) -> (usize, usize) {
    let shared = rejected.publish(0);
    (shared.named.len(), shared.more)
}

#[test]
fn unnamed_rejections_become_named_when_others_end() {
    let mut rejected = RejectionTable::default();
    (0..limits::REJECTIONS_MAX + 7).for_each(|number| put(&mut rejected, "a", number));
    assert_eq!(shown(&mut rejected), (limits::REJECTIONS_MAX, 7));
    (0..10).for_each(|number| rejected.end(&object("a", number)));
    assert_eq!(shown(&mut rejected), (limits::REJECTIONS_MAX - 3, 0), "the unnamed ones became named");
    (10..limits::REJECTIONS_MAX + 7).for_each(|number| rejected.end(&object("a", number)));
    assert_eq!(shown(&mut rejected), (0, 0));
    assert!(rejected.is_empty() && rejected.named_counts.is_empty());
    let counted = rejected.publish(0);
    assert_eq!((counted.total, counted.dropped), (u64::try_from(limits::REJECTIONS_MAX).unwrap() + 7, 7));
}

#[test]
fn many_rejections_of_one_namespace_hide_no_other_namespaces_rejection() {
    let mut rejected = RejectionTable::default();
    (0..limits::REJECTIONS_MAX * 2).for_each(|number| put(&mut rejected, "noise", number));
    (0..3).for_each(|number| put(&mut rejected, "quiet", number));
    let named = rejected.publish(0);
    let own: Vec<_> = named.named.keys().filter(|it| namespace_label(it) == "quiet").collect();
    assert_eq!(own, [&object("quiet", 0), &object("quiet", 1), &object("quiet", 2)]);
    assert_eq!(shown(&mut rejected), (limits::REJECTIONS_MAX, limits::REJECTIONS_MAX + 3));
}

#[test]
fn an_object_rejected_twice_counts_once() {
    let mut rejected = RejectionTable::default();
    (0..3).for_each(|_| put(&mut rejected, "a", 1));
    assert_eq!(shown(&mut rejected), (1, 0));
    (0..limits::REJECTIONS_MAX * 2).for_each(|number| put(&mut rejected, "a", number));
    (0..limits::REJECTIONS_MAX * 2).for_each(|number| put(&mut rejected, "a", number));
    assert_eq!(shown(&mut rejected), (limits::REJECTIONS_MAX, limits::REJECTIONS_MAX));
}

#[test]
fn invariant_10_rejections_that_are_known() {
    let mut rejected = RejectionTable::default();
    (0..limits::REJECTIONS_MAX + limits::REJECTED_MAX + 9).for_each(|number| put(&mut rejected, "a", number));
    assert_eq!(shown(&mut rejected), (limits::REJECTIONS_MAX, limits::REJECTED_MAX));
}
