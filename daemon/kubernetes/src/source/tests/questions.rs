//! The engine asks whether the endpoints of a held list are back, and a new watch answers.

use super::bed::{self, SourceHarness, bookmark, event, list, slice, status};
use super::{Resource, SourceSettings, ms};

/// A watching source, with these replies to later watches of slices.
async fn asked(watches: impl IntoIterator<Item = String>) -> SourceHarness {
    let mut bed = SourceHarness::new();
    bed.lists("endpointslices", [list("10", &[])]);
    bed.watches("endpointslices", [bed::hang(&[])].into_iter().chain(watches));
    bed.start(SourceSettings::default()).await;
    assert_eq!(bed.heard(1).await, ["synced"]);
    bed.requests("endpointslices", 2).await;
    bed.question(7);
    bed
}

#[tokio::test]
async fn a_new_watch_answers_a_question_after_it_delivered_the_misses() {
    let back = event("ADDED", &slice("a-1", "11", "10.0.0.1"));
    let mut bed = asked([bed::hang(&[back])]).await;
    let interruptions = bed.interruptions();
    assert_eq!(bed.heard(2).await, ["+a-1@11", "answered 7"]);
    assert_eq!(bed.asked("endpointslices", "resourceVersion"), ["10", "10"]);
    assert_eq!((bed.interruptions(), bed.hearings()), (interruptions, &[true][..]), "it is no interruption");
    assert_eq!(bed.watch(Resource::Slices).restarts, 0);
}

#[tokio::test]
async fn a_server_without_news_is_asked_for_its_version_first() {
    let mut bed = asked([bed::hang(&[])]).await;
    bed.lists("endpointslices", [list("10", &[])]);
    assert_eq!(bed.heard(1).await, ["answered 7"]);
    assert_eq!(bed.lists_of("endpointslices"), 2, "the list of the start, and the question for the version");
}

#[tokio::test]
async fn a_server_that_lags_answers_by_its_list() {
    let mut bed = asked([bed::hang(&[])]).await;
    let behind = [slice("a-1", "4", "10.0.0.1")];
    bed.lists("endpointslices", [list("5", &[]), list("5", &behind), list("5", &behind)]);
    assert_eq!(bed.heard(2).await, ["+a-1@4", "answered 7"]);
}

#[tokio::test]
async fn a_source_without_an_apiserver_answers_nothing_and_is_silent() {
    let refused = status("503 Service Unavailable", "", "ServiceUnavailable");
    let mut bed = asked([refused, bed::hang(&[bookmark("12")])]).await;
    assert_eq!(bed.heard(1).await, ["answered 7"]);
    assert_eq!(bed.hearings(), [true, false, true]);
}

#[tokio::test]
async fn a_question_is_answered_once_and_the_next_one_after_a_pause() {
    let mut bed = asked([bed::hang(&[bookmark("12")]), bed::hang(&[bookmark("13")])]).await;
    assert_eq!(bed.heard(1).await, ["answered 7"]);
    tokio::time::sleep(ms(300)).await;
    let watches = bed.asked("endpointslices", "watch").len();
    let begun = std::time::Instant::now();
    bed.question(8);
    assert_eq!(bed.heard(1).await, ["answered 8"]);
    assert!(begun.elapsed() >= ms(9_000), "{:?}", begun.elapsed());
    assert_eq!((watches, bed.asked("endpointslices", "watch").len()), (2, 3));
}
