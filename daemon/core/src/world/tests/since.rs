//! `since` changes only if the verdict, the reason or a list of the row does.

use super::*;

fn backends(view: &ServiceView, row: &FrontendView) -> Vec<std::string::String> {
    view.backends(row).map(|it| std::format!("{}", it.address)).collect()
}

#[test]
fn a_policy_that_changes_no_list_does_not_move_since() {
    let mut rig = Rig::new();
    let facts = service("a", "10.0.0.1", &["10.0.0.9"]);
    let before = rig.turn(vec![applied(facts.clone()), slice("a", &["@1.1.1.1"])]);
    let after = rig.turn(vec![applied(ServiceFacts { external_policy: local(), ..facts })]);
    let (before, after) = (view(&before, "a"), view(&after, "a"));
    assert!(after.external_backends(row(&after, "10.0.0.9")).is_none(), "both lists are the same");
    assert_eq!(row(&after, "10.0.0.9").since, row(&before, "10.0.0.9").since);
}

/// A drain or a rollout changes the list. Clients have been served since before it.
#[test]
fn the_time_of_the_verdict_stays_while_its_list_changes() {
    let mut rig = Rig::new();
    rig.turn(vec![applied(service("a", "10.0.0.1", &[])), slice("a", &["1.1.1.1", "1.1.1.2"])]);
    let shorter = view(&rig.turn(vec![slice("a", &["1.1.1.1"])]), "a");
    let times = |view: &ServiceView| (row(view, "10.0.0.1").since, row(view, "10.0.0.1").verdict_since);
    assert_eq!(times(&shorter), (Timestamp(102), Timestamp(101)));
    let gone = view(&rig.turn(vec![slice("a", &[])]), "a");
    assert_eq!(times(&gone), (Timestamp(103), Timestamp(103)), "the list is held");
}

#[test]
fn since_moves_when_a_list_that_was_refused_is_accepted() {
    let mut rig = Rig::new();
    rig.turn(vec![applied(service("a", "10.0.0.1", &[])), slice("a", &["1.1.1.1"])]);
    rig.refuse = |op| matches!(op.action, Action::PublishWord(..));
    let refused = view(&rig.turn(vec![slice("a", &["1.1.1.2"])]), "a");
    assert_eq!(backends(&refused, row(&refused, "10.0.0.1")), ["1.1.1.1"], "what the maps still serve");
    assert_eq!(row(&refused, "10.0.0.1").since, Timestamp(101));
    rig.refuse = |_| false;
    rig.retry(rig.id("a"));
    let accepted = view(&rig.turn(vec![]), "a");
    assert_eq!(backends(&accepted, row(&accepted, "10.0.0.1")), ["1.1.1.2"]);
    assert_eq!(row(&accepted, "10.0.0.1").since, Timestamp(103));
}

#[test]
fn a_new_version_of_the_object_does_not_move_since() {
    let mut rig = Rig::new();
    let facts = service("a", "10.0.0.1", &[]);
    rig.turn(vec![applied(facts.clone()), slice("a", &["1.1.1.1"])]);
    let meta = Meta { resource_version: Some("2".into()), ..Meta::default() };
    let after = view(&rig.turn(vec![applied(ServiceFacts { meta, ..facts })]), "a");
    assert_eq!(row(&after, "10.0.0.1").since, Timestamp(101));
    assert_eq!(rig.log.len(), 0);
    let visible: Vec<bool> = rig.changes.iter().map(|change| change.visible).collect();
    assert_eq!(visible, [false], "only watchers of the object see it");
}
