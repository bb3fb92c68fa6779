//! Metrics of the connections to apiservers and of each watch; a daemon without an apiserver has none.
//!
//! Invariant: as for all metrics, see the parent. No endpoint has a series of its own, because the cluster decides how
//! many there are.

use std::time::Instant;

use holdfast_status::views::apiserver::{ApiserverState, ApiserverView, Tier};

use holdfast_agent::exposition::Exposition;
use holdfast_kubernetes::source::{self as watching, Watch};

/// Writes the metrics of the connections to apiservers and of the watches.
pub(super) fn write(out: &mut Exposition, view: &ApiserverView, watches: &[Watch]) {
    write_access(out, view);
    write_watches(out, watches);
}

const TIERS: [Tier; 3] = [Tier::Configured, Tier::Kubelet, Tier::Learned];
const ENDPOINT_STATES: [ApiserverState; 5] = [
    ApiserverState::Unknown,
    ApiserverState::Healthy,
    ApiserverState::Recovering,
    ApiserverState::Failed,
    ApiserverState::Throttled,
];

fn write_access(out: &mut Exposition, view: &ApiserverView) {
    out.begin("holdfast_apiserver_endpoints", "gauge", "Known addresses of apiservers by tier and state.");
    for tier in TIERS {
        for state in ENDPOINT_STATES {
            let here = view.endpoints.iter().filter(|it| it.tier == tier && it.state == state).count();
            let labels = [("tier", tier.as_str()), ("state", state.as_str())];
            out.sample("holdfast_apiserver_endpoints", &labels, here);
        }
    }
    let connections: usize = view.endpoints.iter().map(|it| it.connections).sum();
    out.gauge("holdfast_apiserver_connections", "Connections to apiservers.", connections);
    let help = "Requests that moved on to another endpoint.";
    out.counter("holdfast_apiserver_failovers_total", help, view.failovers);
    let problems = view.credentials.iter().filter(|it| it.problem.is_some()).count();
    out.gauge("holdfast_apiserver_credentials_failed", "Credentials that cannot be read.", problems);
    if let Some(expires) = view.credentials.iter().filter_map(|it| it.expires).min() {
        let help = "When the first of the credentials expires.";
        out.gauge("holdfast_apiserver_credentials_expiry_timestamp_seconds", help, expires.0);
    }
}

type WatchMetric = (&'static str, &'static str, &'static str, fn(&Watch) -> u64);

const WATCH_METRICS: [WatchMetric; 8] = [
    ("holdfast_watch_established", "gauge", "Whether the watch receives each change.", |it| {
        u64::from(it.state == watching::State::Watching)
    }),
    ("holdfast_watch_bad_objects", "gauge", "Objects whose last version was invalid.", |it| {
        u64::try_from(it.bad).unwrap_or(u64::MAX)
    }),
    ("holdfast_watch_lists_total", "counter", "Whole lists that were read.", |it| it.lists),
    ("holdfast_watch_restarts_total", "counter", "Lists and watches that failed or broke off.", |it| {
        it.restarts
    }),
    ("holdfast_watch_page_retries_total", "counter", "Pages of lists that were requested again.", |it| {
        it.page_retries
    }),
    ("holdfast_watch_events_total", "counter", "Events that changed something.", |it| it.events),
    ("holdfast_watch_losses_total", "counter", "Lists that removed more than half of everything.", |it| {
        it.losses
    }),
    (
        "holdfast_watch_differences_total",
        "counter",
        "Comparisons that found changes which a watch had missed.",
        |it| it.differences,
    ),
];

/// Writes the kinds that the cluster has.
fn write_watches(out: &mut Exposition, watches: &[Watch]) {
    let is_here = |it: &&Watch| it.state != watching::State::Absent;
    let watches: Vec<&Watch> = watches.iter().filter(is_here).collect();
    for (name, kind, help, value) in WATCH_METRICS {
        out.begin(name, kind, help);
        watches.iter().copied().for_each(|it| out.sample(name, &[("kind", &it.what.to_string())], value(it)));
    }
    let name = "holdfast_watch_silence_seconds";
    out.begin(
        name,
        "gauge",
        "For how long the watch has received nothing; an apiserver sends something each minute.",
    );
    for watch in watches {
        if let Some(silence) = watch.silence(Instant::now()) {
            out.sample(name, &[("kind", &watch.what.to_string())], silence.as_secs());
        }
    }
}
