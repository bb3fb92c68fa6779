//! What `contrib/` says of the metrics is true: each one exists with these labels, and the dashboard can be shown.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Instant;

use serde_json::Value;

use super::fixture::{everything, serve_with};
use crate::sources::kubernetes::{View as Watches, Watch};

/// What Prometheus itself has, and the labels that it gives.
const OTHERS: [&str; 3] = ["up", "changes", "time"];
const TARGET_LABELS: [&str; 3] = ["instance", "cluster", "job"];

fn shipped(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path);
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

fn is_of_a_name(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || matches!(letter, '_' | ':')
}

/// Each metric of an expression, with what stands in the braces behind it.
fn selectors(expression: &str) -> Vec<(&str, &str)> {
    let mut found = Vec::new();
    let mut rest = expression;
    while let Some(start) = rest.find("holdfast_").or_else(|| rest.find("process_")) {
        let begin = rest[..start].rfind(|letter| !is_of_a_name(letter)).map_or(0, |place| place + 1);
        let end =
            rest[start..].find(|letter| !is_of_a_name(letter)).map_or(rest.len(), |place| start + place);
        let braces = rest[end..].strip_prefix('{').and_then(|behind| behind.split_once('}'));
        found.push((&rest[begin..end], braces.map_or("", |(within, _)| within)));
        rest = &rest[end..];
    }
    found
}

/// Each metric of a page with the values of each of its labels.
fn exposed() -> BTreeMap<String, BTreeMap<String, BTreeSet<String>>> {
    // A watch that has heard nothing yet has no silence.
    let served = serve_with(everything(), |readings| {
        let heard = |watch| Watch { heard: Some(Instant::now()), ..watch };
        readings.watches = Watches::still(readings.watches.now().into_iter().map(heard).collect());
    });
    let body = served.get("/metrics", "").body;
    let mut metrics: BTreeMap<String, BTreeMap<String, BTreeSet<String>>> = BTreeMap::new();
    // A watch that has heard nothing yet has a metric and no value for it.
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
    metrics
}

#[track_caller]
fn check(expressions: &[&str]) {
    assert!(expressions.len() > 20, "only {} expressions were found", expressions.len());
    let (exposed, rules) = (exposed(), rules());
    let mut recorded = Vec::new();
    texts(&rules, "record", &mut recorded);
    for expression in expressions {
        let selectors = selectors(expression);
        assert!(!selectors.is_empty() || OTHERS.iter().any(|it| expression.contains(it)), "{expression}");
        for (name, matchers) in selectors.into_iter().filter(|(name, _)| !recorded.contains(name)) {
            let labels = exposed.get(name).unwrap_or_else(|| panic!("no metric {name}: {expression}"));
            for matcher in matchers.split(',').filter(|matcher| !matcher.is_empty()) {
                let (label, values) = matcher.split_once(['=', '!']).unwrap();
                if TARGET_LABELS.contains(&label) {
                    continue;
                }
                let known =
                    labels.get(label).unwrap_or_else(|| panic!("{name} has no label {label}: {expression}"));
                for value in values.trim_start_matches(['=', '~']).trim_matches('"').split('|') {
                    assert!(known.contains(value), "{name} never has {label}={value}: {expression}");
                }
            }
        }
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
    let mut expressions = Vec::new();
    texts(&dashboard, "expr", &mut expressions);
    texts(&dashboard, "definition", &mut expressions);
    check(&expressions);
}

/// As GitHub makes them of headings.
fn anchors(page: &str) -> BTreeSet<String> {
    let text = shipped(page);
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let anchor = |heading: &str| {
        let kept = heading.trim_start_matches('#').trim().to_lowercase();
        kept.chars().filter(|it| it.is_alphanumeric() || matches!(it, '-' | ' ' | '_')).collect::<String>()
    };
    headings.map(|heading| anchor(heading).replace(' ', "-")).collect()
}

#[test]
fn every_alert_leads_to_a_place_in_the_guide_and_stands_there() {
    let rules = rules();
    let (mut alerts, mut runbooks) = (Vec::new(), Vec::new());
    texts(&rules, "alert", &mut alerts);
    texts(&rules, "runbook", &mut runbooks);
    assert_eq!(alerts.len(), runbooks.len());
    let guide = shipped("docs/operate.md");
    for alert in alerts {
        assert!(guide.contains(&format!("`{alert}`")), "docs/operate.md does not explain {alert}");
    }
    for runbook in runbooks {
        let (page, anchor) = runbook.split_once('#').unwrap();
        assert!(anchors(page).contains(anchor), "{runbook}");
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
