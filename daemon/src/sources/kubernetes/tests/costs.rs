//! What one object, or one answer, may cost.

use super::bed::{self, Bed, list};
use super::{Asker, Resource, Settings};
use crate::sources::kubernetes::page::OBJECTS_MAX;

/// What a client is told that asks for a comparison of Services, when the apiserver answers that one so.
async fn compared_with(answer: String) -> String {
    let mut bed = Bed::new();
    bed.lists("services", [list("10", &[]), answer]);
    bed.start(Settings::default()).await;
    assert_eq!(bed.heard(1).await, ["synced"]);
    let (what, compared) = bed.view().audit(Asker::Looks).await.remove(0);
    assert_eq!(what, Resource::Services);
    compared.found.unwrap_err()
}

#[tokio::test]
async fn a_comparison_ends_at_a_list_without_an_end() {
    let count = usize::try_from(OBJECTS_MAX).unwrap() + 1;
    let error = compared_with(list("20", &vec!["{}".to_owned(); count])).await;
    assert_eq!(error, "the list has more than 500000 objects");
}

#[tokio::test]
async fn a_comparison_with_another_kind_says_nothing() {
    let slices = r#"{"kind":"EndpointSliceList","apiVersion":"discovery.k8s.io/v1","metadata":{"resourceVersion":"20"},"items":[]}"#;
    let error = compared_with(bed::answer("200 OK", "", slices)).await;
    assert_eq!(error, "the list is not of the kind that was asked for");
}
