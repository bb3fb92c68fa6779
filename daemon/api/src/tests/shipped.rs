//! `contrib/` is true to the metrics: each one exists with these labels, and the dashboard is valid.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Instant;

use serde_json::Value;

use super::fixture::{everything, serve_following_events};
use super::promql::selectors;
use holdfast_agent::readings::{ConditionCause, ConditionKind};
use holdfast_kubernetes::source::{View as Watches, Watch};

/// Metrics of other exporters: Prometheus itself, kube-state-metrics and the control plane.
const OTHERS: [&str; 7] = [
    "up",
    "kube_service_spec_type",
    "kube_service_status_load_balancer_ingress",
    "kube_service_deletion_timestamp",
    "kube_endpoint_address",
    "apiserver_request_total",
    "endpoint_slice_controller_syncs",
];

/// The labels that Prometheus adds.
const TARGET_LABELS: [&str; 3] = ["instance", "cluster", "job"];

fn shipped(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn rules() -> Value {
    serde_saphyr::from_str(&shipped("contrib/prometheus/holdfast.rules.yaml")).unwrap()
}

fn dashboard() -> Value {
    serde_json::from_str(&shipped("contrib/grafana/holdfast.json")).unwrap()
}

/// All texts below a key of this name, wherever it is.
fn texts<'a>(value: &'a Value, key: &str, found: &mut Vec<&'a str>) {
    match value {
        Value::Object(fields) => fields.iter().for_each(|(name, value)| match value {
            Value::String(text) if name == key => found.push(text),
            other => texts(other, key, found),
        }),
        Value::Array(items) => items.iter().for_each(|item| texts(item, key, found)),
        _ => {}
    }
}

/// Each metric of a page with the values of each of its labels.
type Exposed = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

fn exposed() -> Exposed {
    // A watch without data has no silence, and if Events are not followed none are counted.
    let served = serve_following_events(everything(), |readings| {
        let heard = |watch| Watch { last_received: Some(Instant::now()), ..watch };
        readings.watches = Watches::from_watches(readings.watches.current().into_iter().map(heard).collect());
    });
    let body = served.get("/metrics", "").body;
    let mut metrics = Exposed::new();
    // A watch without data has a metric and no value for it.
    for typed in body.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        metrics.entry(typed.split(' ').next().unwrap().to_owned()).or_default();
    }
    for line in body.lines().filter(|line| !line.starts_with('#')) {
        let (sample, _) = line.rsplit_once(' ').unwrap();
        let (name, labels) = sample.split_once('{').unwrap_or((sample, ""));
        let metric = metrics.entry(name.to_owned()).or_default();
        for label in labels.trim_end_matches('}').split(',').filter(|label| !label.is_empty()) {
            let (label, value) = label.split_once('=').unwrap();
            metric.entry(label.to_owned()).or_default().insert(value.trim_matches('"').to_owned());
        }
    }
    // These exist only while something is wrong.
    let conditions = metrics.get_mut("holdfast_service_condition_start_time_seconds").unwrap();
    let all = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    conditions.insert("condition".to_owned(), all(&ConditionKind::ALL.map(ConditionKind::as_str)));
    conditions.insert("cause".to_owned(), all(&ConditionCause::ALL.map(ConditionCause::as_str)));
    metrics
}

/// The faults of the metrics of an expression; `recorded` are those of recording rules.
fn faults(expression: &str, exposed: &Exposed, recorded: &[&str]) -> Vec<String> {
    let mut faults = Vec::new();
    for (name, matchers) in selectors(expression) {
        if recorded.contains(&name) || OTHERS.contains(&name) {
            continue;
        }
        let Some(labels) = exposed.get(name) else {
            faults.push(format!("nobody exports {name}: {expression}"));
            continue;
        };
        for matcher in matchers.split(',').filter(|matcher| !matcher.is_empty()) {
            faults.extend(fault(matcher, labels).map(|fault| format!("{name} {fault}: {expression}")));
        }
    }
    faults
}

/// `label="a"`, `label!~"a|b"`: each value must be a possible one.
fn fault(matcher: &str, labels: &BTreeMap<String, BTreeSet<String>>) -> Option<String> {
    let (label, values) = matcher.split_once(['=', '!']).unwrap();
    if TARGET_LABELS.contains(&label) {
        return None;
    }
    let Some(known) = labels.get(label) else { return Some(format!("has no label {label}")) };
    let mut values = values.trim_start_matches(['=', '~']).trim_matches('"').split('|');
    values.find(|value| !known.contains(*value)).map(|value| format!("never has {label}={value}"))
}

#[track_caller]
fn check(expressions: &[&str]) {
    assert!(expressions.len() > 20, "only {} expressions were found", expressions.len());
    let (exposed, rules) = (exposed(), rules());
    let mut recorded = Vec::new();
    texts(&rules, "record", &mut recorded);
    for expression in expressions {
        assert!(!selectors(expression).is_empty(), "no metric is in {expression}");
        assert_eq!(faults(expression, &exposed, &recorded), [""; 0]);
    }
}

#[test]
fn every_metric_of_the_alerts_exists_with_its_labels() {
    let rules = rules();
    let mut expressions = Vec::new();
    texts(&rules, "expr", &mut expressions);
    check(&expressions);
}

#[test]
fn every_metric_of_the_dashboard_exists_with_its_labels() {
    let dashboard = dashboard();
    let (mut expressions, mut definitions) = (Vec::new(), Vec::new());
    texts(&dashboard, "expr", &mut expressions);
    texts(&dashboard, "definition", &mut definitions);
    let asked = |it: &'static str, text: &str| text.strip_prefix(it).map(str::to_owned);
    let of_values = definitions.iter().map(|it| asked("label_values(", it).unwrap()).collect::<Vec<_>>();
    expressions.extend(of_values.iter().map(|it| it.split_once(',').unwrap().0));
    check(&expressions);
}

#[test]
fn a_rule_about_an_unknown_metric_is_found() {
    let exposed = exposed();
    for (expression, expected) in [
        ("holdfast_ready == 0", ""),
        ("holdfast_redy == 0", "nobody exports holdfast_redy: holdfast_redy == 0"),
        ("rate(kube_pod_info[5m])", "nobody exports kube_pod_info: rate(kube_pod_info[5m])"),
        ("recorded > 0", ""),
        ("holdfast_holds{cause=\"x\"}", "holdfast_holds has no label cause: holdfast_holds{cause=\"x\"}"),
        (
            "holdfast_holds{reason=~\"control|gone\"}",
            "holdfast_holds never has reason=gone: holdfast_holds{reason=~\"control|gone\"}",
        ),
    ] {
        assert_eq!(faults(expression, &exposed, &["recorded"]).join("; "), expected);
    }
}

/// The part of the alerts' tests with this name.
fn test_of_alerts<'a>(tests: &'a Value, name: &str) -> &'a Value {
    let named = tests["tests"].as_array().unwrap().iter().find(|test| test["name"] == name);
    named.unwrap_or_else(|| panic!("no test is named {name:?}"))
}

#[test]
fn every_alert_fires_in_a_test_and_stays_silent_over_its_own_metrics_in_another() {
    let text = shipped("contrib/prometheus/holdfast.tests.yaml");
    let tests: Value = serde_saphyr::from_str(&text).unwrap();
    let mut sound = Vec::new();
    texts(test_of_alerts(&tests, "a sound cluster fires nothing"), "series", &mut sound);
    let sound: BTreeSet<&str> =
        sound.iter().flat_map(|series| selectors(series)).map(|(name, _)| name).collect();
    for group in rules()["groups"].as_array().unwrap() {
        for rule in group["rules"].as_array().unwrap().iter().filter(|rule| rule["alert"].is_string()) {
            let (alert, expression) = (rule["alert"].as_str().unwrap(), rule["expr"].as_str().unwrap());
            assert!(text.contains(&format!("alertname=\"{alert}\"")), "{alert} fires in no test");
            for (metric, _) in selectors(expression).iter().filter(|(name, _)| !name.starts_with("cluster:"))
            {
                assert!(sound.contains(metric), "the sound cluster has no {metric}, of {alert}");
            }
        }
    }
}

/// Anchors as GitHub makes them of headings.
fn anchors(page: &str) -> BTreeSet<String> {
    let text = shipped(page);
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let anchor = |heading: &str| {
        let kept = heading.trim_start_matches('#').trim().to_lowercase();
        kept.chars().filter(|it| it.is_alphanumeric() || matches!(it, '-' | ' ' | '_')).collect::<String>()
    };
    headings.map(|heading| anchor(heading).replace(' ', "-")).collect()
}

/// `HoldfastDown`, in a table or in a snippet.
fn words_like_alerts(page: &str) -> Vec<&str> {
    let words = page.split(|letter: char| !letter.is_ascii_alphanumeric());
    words.filter(|word| word.strip_prefix("Holdfast").is_some_and(|rest| !rest.is_empty())).collect()
}

/// The address below which the pages of `docs` are.
const GUIDE: &str = "https://holdfast.io/docs/";

#[test]
fn every_alert_links_to_its_chapter_in_the_guide() {
    let rules = rules();
    let (mut alerts, mut runbooks) = (Vec::new(), Vec::new());
    texts(&rules, "alert", &mut alerts);
    texts(&rules, "runbook_url", &mut runbooks);
    assert_eq!(alerts.len(), runbooks.len());
    let guide = shipped("docs/alerts.md");
    assert!(guide.contains(&format!("`{GUIDE}`")), "docs/alerts.md does not name {GUIDE}");
    for alert in &alerts {
        assert!(guide.contains(&format!("`{alert}`")), "docs/alerts.md does not explain {alert}");
    }
    for named in words_like_alerts(&guide) {
        assert!(alerts.contains(&named), "docs/alerts.md names {named}, and there is no such alert");
    }
    for runbook in runbooks {
        let (page, anchor) = runbook.strip_prefix(GUIDE).unwrap().split_once('#').unwrap();
        assert!(anchors(&format!("docs/{page}")).contains(anchor), "{runbook}");
    }
}

/// Columns of a dashboard.
const WIDTH: u64 = 24;

/// Left, right, top, bottom.
fn area(panel: &Value) -> [u64; 4] {
    let [x, y, w, h] = ["x", "y", "w", "h"].map(|field| panel["gridPos"][field].as_u64().unwrap());
    assert!(w > 0 && h > 0 && x + w <= WIDTH, "{}", panel["title"]);
    [x, x + w, y, y + h]
}

#[test]
fn the_panels_of_the_dashboard_have_ids_of_their_own_and_do_not_overlap() {
    let dashboard = dashboard();
    let panels = dashboard["panels"].as_array().unwrap();
    let ids: BTreeSet<u64> = panels.iter().map(|panel| panel["id"].as_u64().unwrap()).collect();
    assert!(panels.len() > 20 && ids.len() == panels.len());
    for (place, panel) in panels.iter().enumerate() {
        let [left, right, top, bottom] = area(panel);
        for other in &panels[..place] {
            let [its_left, its_right, its_top, its_bottom] = area(other);
            let apart = right <= its_left || its_right <= left || bottom <= its_top || its_bottom <= top;
            assert!(apart, "{} overlaps {}", panel["title"], other["title"]);
        }
    }
}

#[test]
fn every_panel_asks_the_chosen_prometheus() {
    let dashboard = dashboard();
    let (mut uids, mut names) = (Vec::new(), Vec::new());
    texts(&dashboard["panels"], "uid", &mut uids);
    texts(&dashboard["templating"], "name", &mut names);
    assert!(!uids.is_empty() && uids.iter().all(|uid| *uid == "${datasource}"), "{uids:?}");
    assert_eq!(names, ["datasource", "node"]);
    for panel in dashboard["panels"].as_array().unwrap().iter().filter(|panel| panel["type"] != "row") {
        let references = panel["targets"].as_array().unwrap().iter().map(|target| target["refId"].as_str());
        let all: Vec<_> = references.collect();
        let different: BTreeSet<_> = all.iter().collect();
        assert!(!all.is_empty() && all.len() == different.len(), "{}", panel["title"]);
    }
}
