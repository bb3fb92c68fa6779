//! The messages of lists and events, given earlier ones.

use holdfast_core::event::Event;
use holdfast_core::facts::{ObjectKey, Rejection};
use holdfast_core::keys::{ServiceKey, Source};

use super::*;
use crate::source::resource::Resource;

fn name(text: &str) -> ObjectName {
    ObjectName::new("default", text).unwrap()
}

/// Parses `a@7`: an object; `a@7!`: a rejected one; `a@7#2`: one with another uid; `!x`: one without a name.
fn object(text: &str) -> Object {
    let key = |name| ServiceKey { name, source: Source::Kubernetes };
    let rejected = |object| {
        SinkMessage::Event(Event::Rejected(Rejection {
            object,
            origin: None,
            reason: "bad".into(),
            partial: false,
        }))
    };
    if let Some(place) = text.strip_prefix('!') {
        let told = vec![rejected(ObjectKey::Unnamed(Source::Kubernetes, place.into()))];
        return Object { name: None, messages: told, is_bad: true, is_doubtful: false };
    }
    let (own, rest) = text.split_once('@').unwrap();
    let is_bad = rest.ends_with('!');
    let (resource_version, uid) =
        rest.trim_end_matches('!').split_once('#').unwrap_or((rest.trim_end_matches('!'), "1"));
    let version = Version { uid: uid.into(), resource_version: resource_version.into() };
    let told = match is_bad {
        true => rejected(ObjectKey::Service(key(name(own)))),
        // Any event stands for the object's name.
        false => SinkMessage::Event(Event::RejectionEnded(ObjectKey::File(Source::Kubernetes, text.into()))),
    };
    Object { name: Some((name(own), version)), messages: vec![told], is_bad, is_doubtful: false }
}

fn show(messages: &[SinkMessage]) -> String {
    let words = messages.iter().map(|it| match it {
        SinkMessage::Event(Event::RejectionEnded(ObjectKey::File(_, text))) => format!("+{text}"),
        SinkMessage::Event(Event::RejectionEnded(object)) => format!("ok {object}"),
        SinkMessage::Event(Event::Rejected(rejection)) => format!("!{}", rejection.object),
        SinkMessage::Event(Event::ServiceDeleted(key, _)) => format!("-{}", key.name.name()),
        other => format!("{other:?}"),
    });
    words.collect::<Vec<_>>().join(" ")
}

fn list(delivered: &mut ObjectCache, objects: &str) -> ListCommit {
    delivered.begin_list();
    for text in objects.split_whitespace() {
        let object = object(text);
        let is_known =
            object.name.as_ref().is_some_and(|(name, version)| delivered.mark_listed(name, version));
        if !is_known {
            delivered.stage_object(object);
        }
    }
    delivered.commit_list(|name| SinkMessage::deletion(Resource::Services, name, None))
}

#[track_caller]
fn check(lists: &[&str], expected: &str) {
    let mut delivered = ObjectCache::default();
    let told = lists.iter().map(|objects| show(&list(&mut delivered, objects).messages)).last().unwrap();
    assert_eq!(told, expected, "after {lists:?}");
}

#[test]
fn a_list_delivers_its_changes() {
    check(&["a@1 b@2"], "+a@1 +b@2");
    check(&["a@1 b@2", "a@1 b@2"], "");
    check(&["a@1 b@2", "a@1 b@3 c@4"], "+b@3 +c@4");
    check(&["a@1 b@2", "b@2"], "-a");
    check(&["a@1 b@2", ""], "-a -b");
    check(&["a@1", "a@1#2"], "+a@1#2");
    check(&["a@1", "a@2!"], "!Service default/a");
    check(&["a@2!", "a@2!"], "");
    check(&["a@2!", "a@3"], "+a@3");
    check(&["a@2!", ""], "-a");
}

#[test]
fn a_nameless_object_may_be_the_missing_one() {
    check(&["a@1 b@1", "a@1 !x"], "!object in x");
    check(&["a@1 b@1", "a@1 !x", "a@1"], "-b ok object in x");
    check(&["a@1 !x", "a@1 !x"], "!object in x");
}

#[test]
fn a_list_that_breaks_off_changes_nothing() {
    let mut delivered = ObjectCache::default();
    list(&mut delivered, "a@1 b@1");
    delivered.begin_list();
    delivered.stage_object(object("c@9"));
    assert!(delivered.mark_listed(&name("a"), &object("a@1").name.unwrap().1));
    assert_eq!((delivered.len(), delivered.version(&name("c"))), (2, None));
    assert_eq!(show(&list(&mut delivered, "a@1 b@1").messages), "", "and is forgotten by the next one");
}

#[test]
fn an_event_counts_once() {
    let mut delivered = ObjectCache::default();
    list(&mut delivered, "a@1");
    assert!(!delivered.apply_object(&object("a@1")), "known from the list");
    assert!(delivered.apply_object(&object("a@2")));
    assert!(!delivered.apply_object(&object("a@2")), "a duplicate");
    assert!(delivered.apply_object(&object("a@2#2")), "deleted and created again unseen");
    assert!(delivered.apply_object(&object("b@3!")));
    assert_eq!((delivered.len(), delivered.bad_count()), (2, 1));
    let version = |text: &str| object(text).name.unwrap().1;
    assert!(
        !delivered.remove_object(&name("a"), &version("a@9#1")),
        "that one has gone already, and another one is there"
    );
    assert!(
        delivered.remove_object(&name("a"), &version("a@9#2"))
            && !delivered.remove_object(&name("a"), &version("a@9#2"))
    );
    assert_eq!(show(&list(&mut delivered, "b@3").messages), "");
}

#[test]
fn an_object_without_a_version_is_always_news() {
    let mut delivered = ObjectCache::default();
    list(&mut delivered, "a@");
    assert!(delivered.apply_object(&object("a@")));
}

#[test]
fn restored_objects_are_known() {
    let of = |text: &str| object(text).name.unwrap();
    let mut delivered = ObjectCache::restore(vec![of("a@1"), of("b@1")], UntabledObjects::new());
    assert!(!delivered.apply_object(&object("a@1")));
    assert_eq!(show(&list(&mut delivered, "a@1 c@2").messages), "+c@2 -b");
}

#[test]
fn a_loss_is_more_than_half_or_everything() {
    let loss = |before: usize, after: usize| {
        let some = |count: usize| (0..count).map(|at| format!("o{at}@1")).collect::<Vec<_>>().join(" ");
        let mut delivered = ObjectCache::default();
        list(&mut delivered, &some(before));
        list(&mut delivered, &some(after)).is_loss()
    };
    assert_eq!([loss(1, 0), loss(12, 0), loss(12, 5)], [true; 3]);
    assert_eq!([loss(0, 0), loss(10, 4), loss(12, 6), loss(5, 9)], [false; 4]);
}

/// Parses `a@7`: in the table; untabled `a@7!`: rejected, `a@7%`: in part, `a@7~`: without a service.
#[track_caller]
fn check_remembered(table: &str, odd: &str, versions: &str, odds: &str) {
    let parts = |text: &str| {
        let (own, version) = text.split_once('@').unwrap();
        (name(own), Version { uid: "1".into(), resource_version: version.into() })
    };
    let odd = odd.split_whitespace().map(|text| {
        let (name, version) = parts(text.trim_end_matches(['!', '%', '~']));
        let object = ObjectKey::Service(ServiceKey { name: name.clone(), source: Source::Kubernetes });
        let partial = text.ends_with('%');
        let rejection = Rejection { object, origin: None, reason: "bad".into(), partial };
        (name, UntabledObject { version, rejection: (!text.ends_with('~')).then_some(rejection) })
    });
    let delivered = ObjectCache::restore(table.split_whitespace().map(parts).collect(), odd.collect());
    let shown = delivered.versions().map(|(name, it)| format!("{}@{}", name.name(), it.resource_version));
    assert_eq!(shown.collect::<Vec<_>>().join(" "), versions);
    let shown = delivered.untabled_objects().keys().map(|name| name.name().to_owned()).collect::<Vec<_>>();
    assert_eq!(shown.join(" "), odds);
}

#[test]
fn untabled_objects_are_no_older_than_the_table() {
    check_remembered("a@1", "b@2!", "a@1 b@2", "b");
    check_remembered("a@1", "a@2!", "a@2", "a");
    check_remembered("a@1", "a@1%", "a@1", "a");
    check_remembered("a@1", "b@2~", "a@1 b@2", "b");
    // The watch delivers these again.
    check_remembered("a@1", "a@2%", "a@1", "");
    check_remembered("a@1", "a@2~", "a@1", "");
    check_remembered("", "a@2%", "", "");
}
