//! The metrics to the letter, and that their values are true.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use expect_test::expect_file;
use holdfast_core::hold::{Bound, Hold, Judgement, ProbeAnswer};
use holdfast_core::keys::Source;
use holdfast_core::op::ServiceId;
use holdfast_core::snapshot::{MapCheck, Reason, Snapshot};
use holdfast_core::time::Uptime;
use tokio::sync::watch;

use super::fixture::{THEN, everything, in_memory, many, serve, serve_with};
use holdfast_agent::readings::{Liveness, Readings, RefusedReload};
use holdfast_standalone::blocks::CheckResult;

#[test]
fn metrics_are_to_the_letter() {
    let body = serve(everything()).get("/metrics", "").body;
    let own = |line: &&str| {
        !["process_resident_memory_bytes ", "process_cpu_seconds_total "]
            .iter()
            .any(|name| line.starts_with(name))
    };
    let steady: Vec<&str> = body.lines().filter(own).collect();
    expect_file!["golden/metrics.txt"].assert_eq(&(steady.join("\n") + "\n"));
}

#[test]
fn every_metric_has_help_and_type_whatever_the_cluster() {
    let other = Snapshot { sources: everything().sources, ..many(50, 3) };
    assert_eq!(series(everything()), series(other), "the series do not depend on the cluster");
}

/// The samples of all series, without their values.
fn series(snapshot: Snapshot) -> BTreeSet<String> {
    let body = serve(snapshot).get("/metrics", "").body;
    let mut series = BTreeSet::new();
    for line in body.lines().filter(|line| !line.starts_with('#')) {
        let (sample, value) = line.rsplit_once(' ').unwrap();
        let name = sample.split('{').next().unwrap();
        let name = ["_bucket", "_sum", "_count"].iter().find_map(|it| name.strip_suffix(it)).unwrap_or(name);
        if name == "holdfast_service_condition_start_time_seconds" {
            continue;
        }
        assert!(
            body.contains(&format!("# HELP {name} ")) && body.contains(&format!("# TYPE {name} ")),
            "{name}"
        );
        assert!(value.parse::<f64>().is_ok(), "{line}");
        assert!(series.insert(sample.to_owned()), "{sample} comes twice");
    }
    series
}

fn metrics(snapshot: Snapshot, change: impl FnOnce(&mut Readings)) -> String {
    serve_with(snapshot, change).get("/metrics", "").body
}

#[track_caller]
fn has(body: &str, samples: &[&str]) {
    for sample in samples {
        assert!(body.lines().any(|line| line == *sample), "no {sample} in\n{body}");
    }
}

/// The services of a snapshot are held, each for its own reason and so many seconds.
fn held(holds: &[(Reason, Bound, i64)]) -> Snapshot {
    let mut snapshot = many(holds.len(), 1);
    for (id, (reason, bound, seconds)) in (0..).map(ServiceId).zip(holds) {
        let mut view = snapshot.services.get(id).unwrap().as_ref().clone();
        let begun = Uptime(-seconds);
        let slices = Arc::clone(&view.slices);
        let (reason, bound) = (*reason, *bound);
        let hold = Hold {
            reason,
            begun,
            first_probe: None,
            bound_restarted: None,
            bound_reached: None,
            bound,
            slices,
            backends: Vec::new(),
        };
        view.ports[0].hold = Some(Arc::new(hold));
        snapshot.services.set(id, Some(Arc::new(view)));
        Arc::make_mut(&mut snapshot.held).insert(id);
    }
    snapshot
}

#[test]
fn checks_are_counted_by_result() {
    let body = metrics(held(&[]), |readings| {
        [CheckResult::Good, CheckResult::Bad, CheckResult::Bad]
            .into_iter()
            .for_each(|it| readings.checks.count_result(it));
        readings.checks.set_backends(7, 2);
        readings.checks.add_refusal_rechecks(5);
    });
    has(
        &body,
        &[
            "holdfast_checks_total{result=\"good\"} 1",
            "holdfast_checks_total{result=\"bad\"} 2",
            "holdfast_checks_total{result=\"unasked\"} 0",
            "holdfast_checked_backends{state=\"usable\"} 7",
            "holdfast_checked_backends{state=\"unusable\"} 2",
        ],
    );
}

#[test]
fn holds_are_counted_by_reason_and_the_oldest_has_its_age() {
    let snapshot = held(&[
        (Reason::Vanished, Bound::Guarded, 5),
        (Reason::Control, Bound::Unlimited, 70),
        (Reason::Vanished, Bound::Guarded, 20),
    ]);
    let body = metrics(snapshot, |readings| {
        [ProbeAnswer::Accepted, ProbeAnswer::Silent, ProbeAnswer::Silent]
            .into_iter()
            .for_each(|it| readings.probes.count(it));
    });
    has(
        &body,
        &[
            "holdfast_services_held 3",
            "holdfast_holds{reason=\"vanished\"} 2",
            "holdfast_holds{reason=\"control\"} 1",
            "holdfast_holds{reason=\"resync\"} 0",
            "holdfast_hold_oldest_seconds 70",
            "holdfast_mass_loss 0",
            "holdfast_probes_total{answer=\"accepted\"} 1",
            "holdfast_probes_total{answer=\"refused\"} 0",
            "holdfast_probes_total{answer=\"silent\"} 2",
        ],
    );
}

#[test]
fn a_mass_loss_shows_as_long_as_a_list_is_held_for_it() {
    let body = metrics(held(&[(Reason::MassLoss, Bound::MassLoss, 1)]), |_| ());
    has(&body, &["holdfast_mass_loss 1", "holdfast_holds{reason=\"mass-loss\"} 1"]);
}

#[test]
fn every_reason_of_a_hold_has_a_series() {
    let holds = Judgement::REASONS.map(|reason| (reason, Bound::Limit, 1));
    let body = metrics(held(&holds), |_| ());
    let counted = body.lines().filter(|line| line.starts_with("holdfast_holds{") && line.ends_with(" 1"));
    assert_eq!(counted.count(), Judgement::REASONS.len());
}

#[test]
fn problems_of_the_daemon_itself_have_metrics() {
    let quiet = metrics(everything(), in_memory);
    has(&quiet, &["holdfast_engine_stalled_seconds 0", "holdfast_reload_refused 0"]);
    has(&quiet, &["holdfast_check_differences 0", "holdfast_check_timestamp_seconds 0"]);
    let checked = Some(MapCheck { at: THEN, differences: 3 });
    let body = metrics(Snapshot { checked, ..everything() }, |readings| {
        readings.liveness = Liveness::new(|| Some(Duration::from_secs(33)));
        readings.refused_reload = watch::channel(Some(RefusedReload::from_reason("no such key"))).1;
        readings.history.update_status(|recorded| {
            (recorded.records, recorded.gaps, recorded.file.lost, recorded.file.bytes) = (40, 2, 7, 4096);
            recorded.file.error = Some("no space left on device".into());
        });
    });
    has(
        &body,
        &[
            "holdfast_engine_stalled_seconds 33",
            "holdfast_reload_refused 1",
            "holdfast_check_differences 3",
            "holdfast_check_timestamp_seconds 1767870715",
            "holdfast_history_records_total 40",
            "holdfast_history_gaps_total 2",
            "holdfast_history_unwritten_total 7",
            "holdfast_history_disk_bytes 4096",
            "holdfast_history_failed 1",
        ],
    );
}

#[test]
fn load_balancers_are_counted_by_state() {
    let body = metrics(everything(), |_| ());
    has(
        &body,
        &["holdfast_load_balancers{state=\"ready\"} 1", "holdfast_load_balancers{state=\"ensuring\"} 1"],
    );
    let none = metrics(many(50, 3), |_| ());
    let counted = none.lines().filter(|line| line.starts_with("holdfast_load_balancers{"));
    assert!(counted.clone().count() == 12 && counted.clone().all(|line| line.ends_with(" 0")), "{none}");
}

#[test]
fn each_other_proxy_has_a_series_present_or_not() {
    let body = metrics(everything(), |_| ());
    has(&body, &["holdfast_other_proxy{proxy=\"kube-proxy\"} 1", "holdfast_other_proxy{proxy=\"Calico\"} 0"]);
    has(&metrics(everything(), in_memory), &["holdfast_other_proxy{proxy=\"kube-proxy\"} 0"]);
}

#[test]
fn steps_are_counted_by_how_long_they_took() {
    let body = metrics(everything(), |readings| {
        [1, 3, 2_000]
            .into_iter()
            .for_each(|ms| readings.liveness.steps.durations.add(Duration::from_millis(ms)));
    });
    has(
        &body,
        &[
            "holdfast_step_duration_seconds_bucket{le=\"0.001\"} 1",
            "holdfast_step_duration_seconds_bucket{le=\"0.004\"} 2",
            "holdfast_step_duration_seconds_bucket{le=\"+Inf\"} 3",
            "holdfast_step_duration_seconds_sum 2.004",
        ],
    );
}

#[test]
fn without_an_apiserver_there_is_no_table_digest() {
    let sources = [(Source::Config, true)].into();
    let body = metrics(Snapshot { sources, ..everything() }, in_memory);
    assert!(!body.contains("holdfast_table_digest"), "{body}");
}

#[test]
fn the_digest_is_exact_as_a_float() {
    let body = metrics(many(50, 3), |_| ());
    let line = body.lines().find(|line| line.starts_with("holdfast_table_digest ")).unwrap();
    let (_, text) = line.rsplit_once(' ').unwrap();
    assert_ne!(text, "0");
    assert_eq!(format!("{:.0}", text.parse::<f64>().unwrap()), text);
}
