//! A selector that matches no pod, and pods with labels that nearly match it.
//!
//! Invariant: a check proposes only labels that a pod has. It shows the proposal and changes nothing.

use std::collections::BTreeMap;

use holdfast_core::keys::Source;
use serde_json::{Value, json};

use crate::case::{Case, judge_unavailable};
use crate::command::Command;
use crate::finding::{Judgement, Remedy};
use crate::formatting::{self, clean, format_count};
use crate::limits::NAMED_MAX;

/// Labels are short. Longer texts are not compared.
const COMPARED_LENGTH_MAX: usize = 64;

/// The most letters that a typo changes.
const SLIP_MAX: usize = 2;

type Labels = BTreeMap<String, String>;

/// Other labels that would match, with the pods that have them.
type Candidates<'a> = BTreeMap<Vec<(&'a str, &'a str)>, CandidatePods<'a>>;

/// Pods that have the same labels in place of the selected ones.
#[derive(Default)]
struct CandidatePods<'a> {
    pods: usize,
    /// How many of the pods run. A pod of which only metadata was read counts too.
    running: usize,
    first: &'a str,
}

pub(super) fn check_typo(case: &Case<'_>) -> Judgement {
    if case.source() == Some(Source::Manifests) {
        return match describe_manifest_selector(case) {
            Some(_) if case.all_slices().next().is_some() => Judgement::not_applicable(
                "In manifests, EndpointSlices give a service its backends, and it has one.",
            ),
            Some(sentence) => Judgement::info(sentence),
            None => Judgement::not_applicable("There is no selector to compare with."),
        };
    }
    let Some(selector) = case.selector().filter(|selector| !selector.is_empty()) else {
        return Judgement::not_applicable("There is no selector to compare with.");
    };
    if case.pods().is_some_and(|pods| !pods.list.is_empty()) {
        return Judgement::ok("The selector matches pods.");
    }
    let Some(near) = case.unmatched_pods().answer() else {
        return judge_unavailable(case.unmatched_pods(), "Labels of other pods");
    };
    if super::pods::was_scaled_down(case) {
        return Judgement::not_applicable("It was scaled down, so no pod is to be found.");
    }
    let mut candidates = Candidates::new();
    for pod in near {
        if let Some(changes) = find_changes(selector, &pod.labels) {
            let have = candidates.entry(changes).or_default();
            have.pods += 1;
            have.running += usize::from(pod.running != Some(false));
            have.first = if have.first.is_empty() { &pod.name } else { have.first };
        }
    }
    candidates.retain(|_, have| have.running > 0);
    match candidates.is_empty() {
        true => Judgement::ok("No other pod has labels that are nearly those of the selector."),
        false => judge_candidates(case, selector, &candidates, near.iter().all(|pod| pod.running.is_some())),
    }
}

/// The selector of a Service that comes from a manifest, if it has one and the manifests could be read.
pub(super) fn manifest_selector<'a>(case: &Case<'a>) -> Option<&'a Labels> {
    case.manifests().answer()?.selector.as_ref().filter(|selector| !selector.is_empty())
}

/// What the selector of a manifest's Service matches among the Pods of the manifests. Neither decides what is served.
pub(super) fn describe_manifest_selector(case: &Case<'_>) -> Option<String> {
    let selector = manifest_selector(case)?;
    let pods = &case.manifests().answer()?.pods;
    let words = formatting::format_selector(selector);
    if pods.is_empty() {
        return Some(format!("Its selector is {words}, and the manifests have no Pod."));
    }
    let matched =
        pods.iter().filter(|pod| selector.iter().all(|(key, value)| pod.labels.get(key) == Some(value)));
    let matched = matched.count();
    if matched > 0 {
        let verb = if matched == 1 { "has" } else { "have" };
        return Some(format!(
            "Its selector is {words}, and {} of the manifests {verb} these labels.",
            format_count(matched, "Pod")
        ));
    }
    let near = pods.iter().find_map(|pod| Some((pod, find_changes(selector, &pod.labels)?)));
    let near = near.map(|(pod, changes)| {
        format!(" {} {} has {}.", clean(&pod.kind), clean(&pod.name), format_labels(&changes))
    });
    Some(format!("Its selector {words} also matches no Pod of the manifests.{}", near.unwrap_or_default()))
}

fn judge_candidates(
    case: &Case<'_>,
    selector: &Labels,
    candidates: &Candidates<'_>,
    is_certain: bool,
) -> Judgement {
    let text = candidates.iter().take(NAMED_MAX).map(|(changes, have)| {
        let what = if have.running == have.pods && is_certain { "running pod" } else { "pod" };
        format!("{} {}", describe_count(have.pods, what), format_labels(changes))
    });
    let text = text.collect::<Vec<_>>().join("; ");
    let listed: Vec<Value> = candidates.iter().take(NAMED_MAX).map(candidate_json).collect();
    let judgement = Judgement::error(format!(
        "Selector {} matches 0 pods. {text}.",
        formatting::format_selector(selector)
    ))
    .with("selector", json!(selector.iter().take(NAMED_MAX).collect::<BTreeMap<_, _>>()))
    .with("matched", 0)
    .with("candidates", listed);
    let only = candidates.keys().next().filter(|_| candidates.len() == 1);
    let command = only.and_then(|changes| Command::set_selector(case.name(), changes));
    let judgement = judgement
        .remedy(
            Remedy::disruptive("Correct the selector: it changes where traffic goes.").with_command(command),
        )
        .remedy(Remedy::disruptive(
            "Instead of the selector, correct the labels of the pods, in the workload's template.",
        ));
    if is_certain { judgement } else { judgement.likely() }
}

fn describe_count(number: usize, what: &str) -> String {
    format!("{} {}", format_count(number, what), if number == 1 { "has" } else { "have" })
}

fn candidate_json((changes, have): (&Vec<(&str, &str)>, &CandidatePods<'_>)) -> Value {
    let selector: BTreeMap<&str, &str> = changes.iter().copied().collect();
    json!({ "selector": selector, "pods": have.pods, "running": have.running, "first": have.first })
}

fn format_labels(changes: &[(&str, &str)]) -> String {
    changes.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(",")
}

/// The pod's labels in place of those that do not match. `None`: they differ too much.
fn find_changes<'a>(selector: &Labels, labels: &'a Labels) -> Option<Vec<(&'a str, &'a str)>> {
    let differs = |(name, value): &(&String, &String)| labels.get(*name) != Some(*value);
    let wrong: Vec<(&String, &String)> = selector.iter().filter(differs).collect();
    let found: Vec<(&str, &str, &str)> = wrong
        .iter()
        .map(|(name, value)| labels.get_key_value(*name).map(|(key, has)| (&**key, &**has, value.as_str())))
        .collect::<Option<_>>()?;
    let are_close = found.iter().all(|(_, has, wanted)| is_close(has, wanted));
    let all_but_one = selector.len() > 1 && found.len() == 1;
    (!found.is_empty() && (are_close || all_but_one))
        .then(|| found.into_iter().map(|(name, has, _)| (name, has)).collect())
}

/// Whether two texts differ only in case, dashes, underscores and dots, or by a typo. A short text allows one letter.
fn is_close(a: &str, b: &str) -> bool {
    let plain = |text: &str| text.to_ascii_lowercase().replace(['-', '_', '.'], "");
    let slips = if a.len().min(b.len()) > SLIP_MAX * 2 { SLIP_MAX } else { 1 };
    plain(a) == plain(b) || are_letters_swapped(a, b) || edit_distance(a, b) <= slips
}

/// Whether two texts differ by two neighbouring letters that changed places.
fn are_letters_swapped(a: &str, b: &str) -> bool {
    let differing: Vec<usize> =
        a.bytes().zip(b.bytes()).enumerate().filter(|(_, (a, b))| a != b).map(|(place, _)| place).collect();
    let [first, second] = differing.as_slice() else { return false };
    let letters = |text: &str| text.bytes().skip(*first).take(2).collect::<Vec<_>>();
    let swapped: Vec<u8> = letters(b).into_iter().rev().collect();
    a.len() == b.len() && *second == first + 1 && letters(a) == swapped
}

/// The Levenshtein distance of two texts, in bytes. Unequal long texts count as far apart.
pub(super) fn edit_distance(a: &str, b: &str) -> usize {
    if a.len() > COMPARED_LENGTH_MAX || b.len() > COMPARED_LENGTH_MAX {
        return if a == b { 0 } else { usize::MAX };
    }
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (line, letter) in a.bytes().enumerate() {
        let mut above = line;
        let mut left = line + 1;
        for (place, other) in row.iter_mut().skip(1).zip(b.bytes()) {
            let changed = above + usize::from(letter != other);
            above = *place;
            *place = changed.min(above + 1).min(left + 1);
            left = *place;
        }
        if let Some(first) = row.first_mut() {
            *first = line + 1;
        }
    }
    row.last().copied().unwrap_or(a.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edit_distance_counts_letters() {
        for (a, b, slips) in
            [("web", "web", 0), ("web", "wbe", 2), ("", "ab", 2), ("kitten", "sitting", 3), ("ab", "", 2)]
        {
            assert_eq!(edit_distance(a, b), slips, "{a} {b}");
        }
        assert_eq!(edit_distance(&"a".repeat(100), "a"), usize::MAX, "long texts are not compared");
    }

    #[test]
    fn swapped_letters_are_one_slip() {
        assert!(is_close("web", "wbe") && is_close("ab", "ba") && is_close("payment", "paymnet"));
        assert!(!is_close("web", "bew") && !is_close("abc", "xyz") && !is_close("web", "wbes"));
    }

    #[test]
    fn an_unrelated_value_of_the_only_label_is_no_typo() {
        let pairs = |of: &[(&str, &str)]| {
            of.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect::<Labels>()
        };
        assert_eq!(find_changes(&pairs(&[("app", "web")]), &pairs(&[("app", "db")])), None);
        assert_eq!(
            find_changes(&pairs(&[("app", "my-app")]), &pairs(&[("app", "myapp")])),
            Some(vec![("app", "myapp")])
        );
        let two = pairs(&[("app", "web"), ("tier", "front")]);
        let other = pairs(&[("app", "web"), ("tier", "blue")]);
        assert_eq!(find_changes(&two, &other), Some(vec![("tier", "blue")]));
        assert_eq!(
            find_changes(&two, &pairs(&[("app", "web")])),
            None,
            "a label that is not there cannot be proposed"
        );
    }
}
