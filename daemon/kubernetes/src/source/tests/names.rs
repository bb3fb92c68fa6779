//! Lists of names: most objects are known, and the watch's version has expired.

use super::bed::{self, SourceHarness, error, giant, list, service, status};
use super::{Resource, SourceSettings};

/// How many services are known when their version expires.
const KNOWN: usize = 120;

fn known(versions: impl Fn(usize) -> Option<&'static str>) -> Vec<String> {
    let service = |at: usize| Some(service(&format!("s{at}"), versions(at)?, "10.96.0.1"));
    (0..KNOWN).filter_map(service).collect()
}

/// A harness with many known services, an expired version, and these next lists.
async fn gone_with(lists: Vec<String>) -> SourceHarness {
    gone_with_own(lists, &service("s7", "21", "10.96.0.7")).await
}

/// The same, with this object for `s7`.
async fn gone_with_own(lists: Vec<String>, s7: &str) -> SourceHarness {
    let mut bed = SourceHarness::new();
    let first = list("10", &known(|_| Some("1")));
    bed.lists("services", [first].into_iter().chain(lists));
    bed.watches("services", [bed::hang(&[error(410, "Expired")])]);
    bed.lists("s7", [bed::answer("200 OK", "", s7)]);
    bed.lists("s8", [status("404 Not Found", "", "NotFound")]);
    bed.lists("new", [bed::answer("200 OK", "", &service("new", "22", "10.96.0.9"))]);
    bed.start(SourceSettings::default()).await;
    bed.heard(KNOWN + 1).await;
    bed
}

#[tokio::test]
async fn after_an_expired_version_only_changed_objects_are_fetched() {
    let version = |at| match at {
        7 => Some("20"),
        8 => Some("23"),
        9 => None,
        _ => Some("1"),
    };
    let names = known(version).into_iter().chain([service("new", "22", "10.96.0.9")]);
    let mut bed = gone_with(vec![list("30", &names.collect::<Vec<_>>())]).await;
    assert_eq!(bed.heard(3).await, ["+s7@21", "+new@22", "-s9@"], "s8 is gone by now, which the watch tells");
    bed.requests("services", 4).await;
    assert_eq!(bed.asked("services", "limit"), ["500"], "all is listed only at first");
    assert_eq!(bed.asked("services", "resourceVersion"), ["10", "30"]);
    let services = bed.watch(Resource::Services);
    assert_eq!((services.lists, services.refetched, services.objects), (2, 0, KNOWN));
}

#[tokio::test]
async fn many_changes_or_a_failed_name_list_lead_to_a_full_list() {
    let changed = list("30", &known(|_| Some("20")));
    let refused = status("500 Internal Server Error", "", "InternalError");
    let nameless = known(|_| Some("1")).into_iter().chain([r#"{"spec":{}}"#.to_owned()]);
    let nameless = list("30", &nameless.collect::<Vec<_>>());
    for names in [
        changed.clone(),
        refused,
        nameless,
        list("30", &[]),
        "HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\n{\"kind\"}".to_owned(),
    ] {
        let mut bed = gone_with(vec![names, changed.clone()]).await;
        assert_eq!(bed.heard(KNOWN).await.len(), KNOWN);
        bed.requests("services", 5).await;
        assert_eq!(bed.asked("services", "limit"), ["500", "500"]);
        assert_eq!(bed.asked("services", "resourceVersion"), ["10", "30"]);
    }
}

#[tokio::test]
async fn an_overloaded_server_gets_no_full_list() {
    let busy = status("429 Too Many Requests", "", "TooManyRequests");
    let mut bed =
        gone_with(vec![busy.clone(), busy, list("30", &known(|at| (at != 9).then_some("1")))]).await;
    assert_eq!(bed.heard(1).await, ["-s9@"]);
    bed.requests("services", 6).await;
    assert_eq!(bed.asked("services", "limit"), ["500"]);
}

/// A server that reads everything before it replies may exceed the limit.
#[tokio::test]
async fn a_name_list_that_starts_too_late_leads_to_a_full_list() {
    let silence = String::new();
    let mut bed = gone_with(vec![silence, list("30", &known(|_| Some("20")))]).await;
    assert_eq!(bed.heard(KNOWN).await.len(), KNOWN);
    bed.requests("services", 5).await;
    assert_eq!(bed.asked("services", "limit"), ["500", "500"]);
    assert_eq!(bed.asked("services", "resourceVersion"), ["10", "30"]);
}

#[tokio::test]
async fn an_object_too_large_to_refetch_rejects_only_itself() {
    let version = |at| Some(if at == 7 { "21" } else { "1" });
    let names = list("30", &known(version));
    let mut bed = gone_with_own(vec![names], &giant("s7", "21")).await;
    assert_eq!(bed.heard(1).await, ["!Service default/s7"]);
    bed.requests("services", 4).await;
    assert_eq!(bed.asked("services", "limit"), ["500"], "all is listed only at first");
}
