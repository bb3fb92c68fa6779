//! Which Events are recorded, how often, and their texts.

use holdfast_core::facts::{Rejection, Timestamp};
use holdfast_core::hold::{Bound, Hold};
use holdfast_core::keys::{ObjectName, ServiceKey, SliceKey, Source};
use holdfast_core::op::ServiceId;
use holdfast_core::snapshot::{PortView, Reason, Rejections, ServiceView};
use holdfast_core::time::Uptime;

use super::*;
use holdfast_fixtures::{THEN, everything, many};

fn hold(reason: Reason, bound: Bound, view: &ServiceView) -> Hold {
    let (begun, slices) = (Uptime(0), Arc::clone(&view.slices));
    Hold {
        reason,
        begun,
        first_probe: None,
        bound_restarted: None,
        bound_reached: None,
        bound,
        slices,
        backends: Vec::new(),
    }
}

/// A snapshot whose first service is held for this reason.
fn held(reason: Reason) -> Snapshot {
    let mut snapshot = many(3, 2);
    let mut view = snapshot.services.get(ServiceId(0)).unwrap().as_ref().clone();
    view.ports[0].hold = Some(Arc::new(hold(reason, Bound::Limit, &view)));
    snapshot.services.set(ServiceId(0), Some(Arc::new(view)));
    Arc::make_mut(&mut snapshot.held).insert(ServiceId(0));
    snapshot
}

/// The hold has ended, because endpoints returned or for this reason.
fn over(ended: Option<Reason>) -> Snapshot {
    let mut snapshot = many(3, 2);
    let mut view = snapshot.services.get(ServiceId(0)).unwrap().as_ref().clone();
    view.ports[0].ended = ended;
    snapshot.services.set(ServiceId(0), Some(Arc::new(view)));
    snapshot
}

fn announced(seen: &mut TopicTracker, snapshot: &Snapshot) -> Vec<String> {
    let topics = seen.update_topics(snapshot);
    let notices =
        topics.iter().filter_map(|topic| topic.to_event(snapshot)).map(|notice| notice.to_json("n1"));
    notices
        .map(|event| format!("{} {} {}", event["type"], event["reason"], event["note"]).replace('"', ""))
        .collect()
}

#[test]
fn a_hold_is_reported_when_it_begins_and_ends() {
    let mut seen = TopicTracker::default();
    let snapshot = held(Reason::Vanished);
    assert_eq!(
        announced(&mut seen, &snapshot),
        [
            "Warning BackendsHeld its endpoints are gone (vanished); connections still go to the last 0 backends, \
          until 2026-01-08T11:13:55Z at the latest. On the node: holdfast explain default/service-00000"
        ]
    );
    assert!(announced(&mut seen, &snapshot).is_empty(), "what was told is not told again");
    assert_eq!(
        announced(&mut seen, &over(None)),
        ["Normal BackendsReturned no list is held any more: the endpoints decide again"]
    );
    assert!(announced(&mut seen, &over(None)).is_empty());
}

#[test]
fn the_hold_without_a_limit_is_reported() {
    let mut snapshot = held(Reason::Vanished);
    let mut view = snapshot.services.get(ServiceId(0)).unwrap().as_ref().clone();
    let limited = view.ports[0].clone();
    let unlimited =
        PortView { hold: Some(Arc::new(hold(Reason::Control, Bound::Unlimited, &view))), ..limited.clone() };
    for ports in [[limited.clone(), unlimited.clone()], [unlimited, limited]] {
        view.ports = ports.into();
        snapshot.services.set(ServiceId(0), Some(Arc::new(view.clone())));
        let told = announced(&mut TopicTracker::default(), &snapshot);
        assert!(told[0].contains("without limit"), "{told:?}");
    }
}

#[test]
fn an_unchanged_table_is_not_walked_again() {
    let mut seen = TopicTracker::default();
    let snapshot = held(Reason::Vanished);
    assert_eq!(seen.update_topics(&snapshot).len(), 1);
    // As if nothing had been reported: parts shared with the last snapshot bring nothing new.
    let again = Snapshot { held: Arc::default(), ..snapshot };
    assert!(seen.update_topics(&again).is_empty());
}

#[test]
fn a_hold_that_ends_without_endpoints_says_why() {
    let mut seen = TopicTracker::default();
    seen.update_topics(&held(Reason::Vanished));
    assert_eq!(
        announced(&mut seen, &over(Some(Reason::ProbesFailed))),
        [
            "Warning BackendsReleased connections are refused: probes-failed. On the node: holdfast history default/service-00000"
        ]
    );
}

#[test]
fn a_hold_that_becomes_a_mass_loss_is_reported_and_has_not_ended() {
    let mut seen = TopicTracker::default();
    seen.update_topics(&held(Reason::Vanished));
    let told = announced(&mut seen, &held(Reason::MassLoss));
    assert_eq!(told.len(), 1);
    assert!(told[0].starts_with("Warning BackendsHeld its endpoints are gone (mass-loss)"), "{told:?}");
}

#[test]
fn ordinary_changes_are_not_reported() {
    let mut seen = TopicTracker::default();
    for (services, backends) in [(3, 2), (5, 1), (1, 7)] {
        assert!(announced(&mut seen, &many(services, backends)).is_empty());
    }
    assert!(
        announced(&mut seen, &over(Some(Reason::HoldExpired))).is_empty(),
        "only what was held can be released"
    );
}

#[test]
fn saved_topics_are_not_reported_before_the_sources_are_synced() {
    let mut seen = TopicTracker::default();
    let mut snapshot = held(Reason::Control);
    snapshot.sources = [(Source::Kubernetes, false)].into();
    assert!(seen.update_topics(&snapshot).is_empty());
    snapshot.sources = [(Source::Kubernetes, true)].into();
    assert_eq!(seen.update_topics(&snapshot).len(), 1);
}

#[test]
fn a_conflict_is_reported_for_the_service_that_yields() {
    let mut seen = TopicTracker::default();
    let told = announced(&mut seen, &everything());
    let conflicts: Vec<_> = told.iter().filter(|line| line.contains("AddressConflict")).collect();
    assert_eq!(
        conflicts,
        ["Warning AddressConflict 10.96.0.10:80/TCP is not served: it belongs to default/web"]
    );
}

fn rejecting(source: Source, reason: &str) -> Snapshot {
    let name = ObjectName::new("default", "web-x").unwrap();
    let object = holdfast_core::facts::ObjectKey::Slice(SliceKey { name, source });
    let rejection = Rejection { object: object.clone(), origin: None, reason: reason.into(), partial: false };
    let named = [(object, rejection)].into();
    Snapshot { rejections: Arc::new(Rejections { named, total: 1, ..Rejections::default() }), ..many(1, 1) }
}

#[test]
fn only_a_rejected_object_of_the_cluster_is_reported() {
    let told =
        announced(&mut TopicTracker::default(), &rejecting(Source::Kubernetes, "addressType \"X\" is none"));
    assert_eq!(told.len(), 1);
    assert!(told[0].starts_with("Warning NotUnderstood "), "{told:?}");
    assert!(TopicTracker::default().update_topics(&rejecting(Source::Manifests, "the same")).is_empty());
}

/// The first Event of a snapshot.
fn notice(snapshot: &Snapshot) -> ClusterEvent {
    let topics = TopicTracker::default().update_topics(snapshot);
    topics[0].to_event(snapshot).unwrap()
}

fn event_name(snapshot: &Snapshot, node: &str) -> String {
    notice(snapshot).event_name(node)
}

#[test]
fn the_same_problem_has_the_same_event_name() {
    let name = event_name(&held(Reason::Vanished), "n1");
    let later = Snapshot { published: Timestamp(THEN.0 + 3_600), ..held(Reason::Vanished) };
    assert_eq!(event_name(&later, "n1"), name, "another time, another process");
    assert_ne!(event_name(&held(Reason::Vanished), "n2"), name, "another node");
    assert_ne!(event_name(&held(Reason::Resync), "n1"), name, "another reason");
    let [one, other] = ["a", "b"].map(|why| event_name(&rejecting(Source::Kubernetes, why), "n1"));
    assert_ne!(one, other);
}

#[test]
fn every_event_fits_the_apiservers_limits() {
    let long = "ü".repeat(900);
    let snapshot = rejecting(Source::Kubernetes, &long);
    let notice = notice(&snapshot);
    let event = notice.to_json(&"n".repeat(253));
    let length = |field: &str| event[field].as_str().unwrap().len();
    assert!((1_000..=1_024).contains(&length("note")), "{event}");
    assert_eq!(length("reportingInstance"), 128);
    assert_eq!(event["eventTime"], "2026-01-08T11:11:55.000000Z");
    assert_eq!(event["regarding"]["kind"], "EndpointSlice");
    assert_eq!(event["regarding"]["apiVersion"], "discovery.k8s.io/v1");
}

#[test]
fn the_object_is_named_with_its_uid() {
    let snapshot = held(Reason::Vanished);
    let notice = notice(&snapshot);
    let regarding = notice.to_json("n1")["regarding"].clone();
    let key: &ServiceKey = &snapshot.services.get(ServiceId(0)).unwrap().key;
    assert_eq!(regarding["name"], key.name.name());
    assert_eq!(regarding["uid"], "6f1c0a2e-0000-4000-8000-000000000001");
}

#[tokio::test(start_paused = true)]
async fn excess_events_are_counted_and_block_nothing() {
    let (snapshots, seen) = watch::channel(Arc::new(Snapshot::default()));
    let (queue, mut waiting) = mpsc::channel(QUEUED_EVENTS_MAX);
    let counts = EventCounts::default();
    let mut flood = many(200, 1);
    for id in (0..200).map(ServiceId) {
        let mut view = flood.services.get(id).unwrap().as_ref().clone();
        view.ports[0].hold = Some(Arc::new(hold(Reason::MassLoss, Bound::MassLoss, &view)));
        flood.services.set(id, Some(Arc::new(view)));
        Arc::make_mut(&mut flood.held).insert(id);
    }
    snapshots.send_replace(Arc::new(flood));
    drop(snapshots);
    queue_events(seen, queue, &counts).await;
    let mut written = 0;
    while waiting.recv().await.is_some() {
        written += 1;
    }
    let totals: Vec<_> = counts.totals().map(|(outcome, count)| (outcome.as_str(), count)).collect();
    assert_eq!(written, QUEUED_EVENTS_MAX);
    assert_eq!(totals, [("written", 0), ("failed", 0), ("dropped", 200 - QUEUED_EVENTS_MAX as u64)]);
}
