//! The metrics of each released version: their names, types and labels stay.

use std::collections::BTreeSet;

use holdfast_fixtures::frozen::frozen_text;

use super::fixture::{everything, serve};

/// A line for each metric's type, and one for each set of labels of its samples.
fn forms(metrics: &str) -> BTreeSet<String> {
    let mut forms = BTreeSet::new();
    for line in metrics.lines() {
        if let Some(kind) = line.strip_prefix("# TYPE ") {
            forms.insert(kind.to_owned());
        } else if !line.starts_with('#') {
            let sample = line.rsplit_once(' ').map_or(line, |(sample, _)| sample);
            forms.insert(format!("{} {{{}}}", name(sample), label_names(sample).join(",")));
        }
    }
    forms
}

fn name(sample: &str) -> &str {
    sample.split('{').next().unwrap_or(sample)
}

/// The names of a sample's labels: each stands before `="`.
fn label_names(sample: &str) -> Vec<&str> {
    let labels = sample.split_once('{').map_or("", |(_, labels)| labels);
    let before = labels.split("=\"").map(|text| text.rsplit([',', '{']).next().unwrap_or(text));
    let count = labels.matches("=\"").count();
    before.take(count).collect()
}

#[test]
fn each_released_metric_keeps_its_name_type_and_labels() {
    let now = forms(&serve(everything()).get("/metrics", "").body);
    assert!(now.contains("holdfast_ready gauge") && now.contains("holdfast_ready {}"));
    assert!(now.contains("holdfast_frontends {type,verdict}"), "{now:?}");
    let text: String = now.iter().map(|form| format!("{form}\n")).collect();
    for then in frozen_text("metrics.txt", text.as_bytes()) {
        let then_text = then.text();
        let gone: Vec<_> = then_text.lines().filter(|form| !now.contains(*form)).collect();
        assert!(gone.is_empty(), "since {}: {gone:?}", then.version);
    }
}
