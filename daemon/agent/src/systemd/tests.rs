//! What systemd receives, and when.

use std::cell::RefCell;
use std::time::Duration;

use holdfast_core::facts::Timestamp;
use holdfast_core::keys::Source;
use holdfast_core::snapshot::Snapshot;
use holdfast_fixtures::clock;
use holdfast_status::views::datapath::DatapathView;
use sd_notify::NotifyState;
use tokio::sync::watch;

use super::{FIRST_LISTS_WAIT, Notifier, StatusInput, count_frontends};
use crate::readings::RefusedReload;
use crate::readings::fixture;
use crate::readings::{Liveness, Readings};
use holdfast_config::Log;
use holdfast_host::logging::Logging;

/// The messages that systemd received.
#[derive(Default)]
struct Listener(RefCell<Vec<String>>);

impl Listener {
    fn receive(&self, states: &[NotifyState<'_>]) {
        let words = states.iter().map(ToString::to_string);
        self.0.borrow_mut().extend(words);
    }

    fn messages(&self) -> Vec<String> {
        self.0.take()
    }
}

fn programmed() -> Snapshot {
    Snapshot { programmed: true, published: Timestamp(1), ..holdfast_fixtures::everything() }
}

fn unprogrammed() -> Snapshot {
    let sources = [(Source::Kubernetes, false)].into();
    Snapshot { programmed: false, published: Timestamp(1), sources, ..Snapshot::default() }
}

struct NotifierInputs {
    snapshots: watch::Sender<std::sync::Arc<Snapshot>>,
    refused: watch::Sender<Option<RefusedReload>>,
    watched: StatusInput,
}

fn fixture(snapshot: Snapshot) -> NotifierInputs {
    let (snapshots, seen) = watch::channel(std::sync::Arc::new(snapshot));
    let (refused, refused_reload) = watch::channel(None);
    let logging = std::sync::Arc::new(Logging::silent(&Log::default()));
    let readings = Readings { refused_reload, ..fixture::readings(seen) };
    let watched = StatusInput { readings, logging };
    NotifierInputs { snapshots, refused, watched }
}

#[test]
fn ready_is_sent_once_and_only_when_clients_are_served() {
    let NotifierInputs { snapshots, watched, .. } = fixture(unprogrammed());
    let (listener, began) = (Listener::default(), clock::now());
    let mut teller = Notifier::new(watched, began, |states: &[NotifyState<'_>]| listener.receive(states));
    teller.report(began);
    let messages = listener.messages();
    assert!(!messages.contains(&"READY=1".to_owned()), "{messages:?}");
    assert!(messages[0].ends_with("not ready: no first list yet from: kubernetes"), "{messages:?}");
    snapshots.send_replace(std::sync::Arc::new(programmed()));
    teller.report(began + Duration::from_millis(20));
    assert_eq!(listener.messages()[0], "READY=1");
    teller.report(began + Duration::from_secs(1));
    assert_eq!(listener.messages(), ["WATCHDOG=1"], "the same state is not sent again");
}

/// The log has the number of `holdfast status`, and beside it at how many of them clients get a backend.
#[test]
fn all_frontends_are_counted_and_those_that_serve() {
    assert_eq!(count_frontends(&holdfast_fixtures::everything()), (11, 7));
}

#[test]
fn a_node_whose_apiserver_kubelet_starts_does_not_wait_for_ever() {
    let NotifierInputs { watched, .. } = fixture(unprogrammed());
    let (listener, began) = (Listener::default(), clock::now());
    let mut teller = Notifier::new(watched, began, |states: &[NotifyState<'_>]| listener.receive(states));
    teller.report(began + FIRST_LISTS_WAIT);
    assert_eq!(listener.messages()[0], "READY=1");
}

#[test]
fn synced_sources_are_not_ready_while_devices_are_unknown() {
    let NotifierInputs { mut watched, .. } = fixture(programmed());
    let known = watched.readings.datapath();
    let unknown = DatapathView::for_kernel(fixture::status());
    let (datapath, seen) = watch::channel(std::sync::Arc::new(unknown));
    watched.readings.datapath = seen;
    let (listener, began) = (Listener::default(), clock::now());
    let mut teller = Notifier::new(watched, began, |states: &[NotifyState<'_>]| listener.receive(states));
    teller.report(began);
    let messages = listener.messages();
    assert!(!messages.contains(&"READY=1".to_owned()), "{messages:?}");
    datapath.send_replace(known);
    teller.report(began + Duration::from_millis(20));
    let messages = listener.messages();
    assert!(messages[0] == "READY=1" && !messages[1].contains("not ready"), "{messages:?}");
}

#[test]
fn a_hanging_engine_is_not_alive() {
    let NotifierInputs { mut watched, .. } = fixture(programmed());
    watched.readings.liveness = Liveness::new(|| Some(Duration::from_secs(6)));
    let (listener, began) = (Listener::default(), clock::now());
    let mut teller = Notifier::new(watched, began, |states: &[NotifyState<'_>]| listener.receive(states));
    teller.report(began);
    assert!(!listener.messages().contains(&"WATCHDOG=1".to_owned()));
}

#[test]
fn the_status_line_counts_and_names_the_apiserver_and_a_refused_reload() {
    let NotifierInputs { watched, refused, .. } = fixture(programmed());
    let (listener, began) = (Listener::default(), clock::now());
    let mut teller = Notifier::new(watched, began, |states: &[NotifyState<'_>]| listener.receive(states));
    teller.report(began);
    let line = listener.messages()[1].clone();
    assert!(line.starts_with("STATUS=") && line.contains(" services, ") && line.contains(" held"), "{line}");
    assert!(line.contains("; apiserver [fd00::12]:6443"), "{line}");
    refused.send_replace(Some(RefusedReload::from_reason("holdfast.toml:3: no such key")));
    teller.report(began);
    let line = listener.messages()[0].clone();
    assert!(line.ends_with("; the last reload was refused: holdfast.toml:3: no such key"), "{line}");
}

/// A missing folder may never appear; everything else is served, and kubelet waits for that.
#[test]
fn readiness_does_not_wait_for_an_unreadable_source() {
    let mut snapshot = Snapshot { programmed: true, ..unprogrammed() };
    for (sources, is_ready) in [
        (vec![(Source::Config, true), (Source::Manifests, false)], true),
        (vec![(Source::Kubernetes, false), (Source::Manifests, false)], false),
    ] {
        snapshot.sources = sources.into_iter().collect();
        snapshot.unreadable = [Source::Manifests].into();
        let NotifierInputs { watched, .. } = fixture(snapshot.clone());
        let (listener, began) = (Listener::default(), clock::now());
        Notifier::new(watched, began, |states: &[NotifyState<'_>]| listener.receive(states)).report(began);
        assert_eq!(listener.messages().contains(&"READY=1".to_owned()), is_ready);
    }
}

#[test]
fn an_address_in_use_is_in_the_status_line() {
    let NotifierInputs { mut watched, .. } = fixture(programmed());
    watched.readings.closed_listeners = watch::channel(vec!["cannot listen on 127.0.0.1:9890".to_owned()]).1;
    let (listener, began) = (Listener::default(), clock::now());
    Notifier::new(watched, began, |states: &[NotifyState<'_>]| listener.receive(states)).report(began);
    assert!(listener.messages()[1].ends_with("; cannot listen on 127.0.0.1:9890"));
}
