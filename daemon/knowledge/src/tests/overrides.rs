//! The operator's files: their legal entries, and the reports of their faults.

use super::event;
use crate::limits::{FAULTS_MAX, FILE_BYTES_MAX, FILES_MAX};
use crate::{Fault, Knowledge};

const CAUSE: &str = r#"
[[cause]]
id = "ours.tunnel"
any = ["the tunnel is down"]
means = "Our tunnel to the cloud is down."
check = ["Look at the tunnel."]
remedy = [{ risk = "disruptive", do = "Start the tunnel again." }]
"#;

const REASON: &str = r#"
[[reason]]
id = "ours.tide"
reason = "TideIsOut"
kinds = ["Service"]
type = "Warning"
emitted = "third-party"
severity = "error"
meaning = "The tide is out."
causes = ["ours.tunnel"]
"#;

/// The one fault of a file. Checks that every built-in entry stays.
#[track_caller]
fn fault(text: &str) -> Fault {
    let (knowledge, mut faults) = Knowledge::with_overrides(&[("ours.toml", text)]);
    assert_eq!(faults.len(), 1, "{faults:?}");
    let built_in = Knowledge::built_in();
    for cause in built_in.causes() {
        assert_eq!(format!("{cause:?}"), format!("{:?}", knowledge.cause(&cause.id).unwrap()));
    }
    for reason in built_in.reasons() {
        assert_eq!(format!("{reason:?}"), format!("{:?}", knowledge.reason(&reason.id).unwrap()));
    }
    faults.remove(0)
}

#[track_caller]
fn check(text: &str, line: usize, id: Option<&str>, says: &str) {
    let fault = fault(text);
    assert_eq!((fault.line, fault.id.as_deref()), (Some(line), id), "{fault}");
    assert!(fault.message.contains(says), "{fault}");
    assert!(fault.to_string().starts_with(&format!("ours.toml:{line}: ")), "{fault}");
}

fn changed(text: &str, from: &str, to: &str) -> String {
    assert!(text.contains(from), "{from}");
    text.replacen(from, to, 1)
}

#[test]
fn a_file_adds_reasons_and_causes() {
    let text = format!("{REASON}{CAUSE}");
    let (knowledge, faults) = Knowledge::with_overrides(&[("ours.toml", &text)]);
    assert_eq!(faults, []);
    let event = event("TideIsOut", "anybody", "Service", "no way: the tunnel is down");
    let recognised = knowledge.recognise(&event);
    assert_eq!(recognised.cause.unwrap().id, "ours.tunnel");
    assert_eq!(recognised.confidence, crate::Confidence::Exact);
    assert!(Knowledge::built_in().recognise(&event).reason.is_none());
}

#[test]
fn an_entry_replaces_the_one_with_its_id() {
    let text = changed(CAUSE, "ours.tunnel", "cloud.deadline");
    let (knowledge, faults) = Knowledge::with_overrides(&[("ours.toml", &text)]);
    assert_eq!(faults, []);
    assert_eq!(knowledge.cause("cloud.deadline").unwrap().means, "Our tunnel to the cloud is down.");
    assert_eq!(knowledge.causes().len(), Knowledge::built_in().causes().len());
    let recognise = |message| {
        let event = event("SyncLoadBalancerFailed", "service-controller", "Service", message);
        knowledge.recognise(&event).cause.map(|cause| cause.id.clone())
    };
    assert_eq!(recognise("the tunnel is down").as_deref(), Some("cloud.deadline"));
    assert_eq!(recognise("i/o timeout"), None);
}

#[test]
fn a_file_may_name_entries_of_another() {
    let (knowledge, faults) = Knowledge::with_overrides(&[("a.toml", REASON), ("b.toml", CAUSE)]);
    assert_eq!(faults, []);
    assert!(knowledge.reason("ours.tide").is_some());
}

#[test]
fn a_syntax_error_is_reported_with_its_line() {
    check("\n[[cause]]\nid = \n", 3, None, "");
    check("[[cause]", 1, None, "");
}

#[test]
fn an_unknown_field_is_reported_with_its_entry() {
    let text = changed(CAUSE, "check =", "chekc =");
    check(&text, 6, Some("ours.tunnel"), "chekc");
    check(&format!("{CAUSE}\n[[caus]]\nid = \"a\"\n"), 9, None, "`caus`");
    check("[[never]]\nid = \"a\"\n", 1, None, "`never`");
    check("cause = 1\n", 1, None, "list of tables");
    check(&changed(CAUSE, "\"disruptive\"", "\"harmless\""), 7, Some("ours.tunnel"), "harmless");
}

#[test]
fn one_bad_entry_keeps_the_others_of_its_file() {
    let text = format!("{}{CAUSE}", changed(CAUSE, "ours.tunnel", "Not Legal"));
    let (knowledge, faults) = Knowledge::with_overrides(&[("ours.toml", &text)]);
    assert_eq!(faults.len(), 1, "{faults:?}");
    assert!(faults[0].message.contains("not legal"), "{}", faults[0]);
    assert!(knowledge.cause("ours.tunnel").is_some());
}

/// The fault belongs to the second one, in any file: the operator may rely on the first.
#[test]
fn a_duplicate_id_is_a_fault_of_the_second_file() {
    let other = changed(CAUSE, "Our tunnel to the cloud", "Another tunnel");
    let (knowledge, faults) = Knowledge::with_overrides(&[("a.toml", CAUSE), ("b.toml", &other)]);
    assert_eq!(faults.len(), 1, "{faults:?}");
    let fault = faults[0].to_string();
    assert!(fault.starts_with("b.toml:2: ours.tunnel: ") && fault.contains("same id"), "{fault}");
    assert_eq!(knowledge.cause("ours.tunnel").unwrap().means, "Our tunnel to the cloud is down.");
}

#[test]
fn no_file_removes_all_causes_of_a_reason() {
    let ours = Knowledge::built_in().reason("sync-load-balancer-failed").unwrap();
    let bare = changed(REASON, "ours.tide", &ours.id);
    let bare = changed(&bare, "TideIsOut", &ours.reason);
    let bare = changed(&bare, "[\"ours.tunnel\"]", "[]");
    check(&bare, 2, Some("sync-load-balancer-failed"), "no causes");
}

#[test]
fn a_dead_id_is_reported() {
    check(REASON, 2, Some("ours.tide"), "no cause \"ours.tunnel\"");
    let alone =
        changed(REASON, "causes = [\"ours.tunnel\"]", "no_causes = \"x\"\nresolved_by = [\"Nobody\"]");
    check(&alone, 2, Some("ours.tide"), "\"Nobody\"");
    let alias = changed(REASON, "causes = [\"ours.tunnel\"]", "no_causes = \"x\"\nalias_of = \"nobody\"");
    check(&alias, 2, Some("ours.tide"), "alias_of");
}

#[test]
fn an_entry_that_names_a_removed_one_is_reported_too() {
    let ends =
        changed(REASON, "causes = [\"ours.tunnel\"]", "no_causes = \"x\"\nresolved_by = [\"TideIsIn\"]");
    let dead = changed(&changed(REASON, "ours.tide", "ours.in"), "TideIsOut", "TideIsIn");
    let (_, faults) = Knowledge::with_overrides(&[("a.toml", &ends), ("b.toml", &dead)]);
    let ids: Vec<_> = faults.iter().map(|fault| fault.id.as_deref().unwrap()).collect();
    assert_eq!(ids, ["ours.in", "ours.tide"]);
}

#[test]
fn a_forbidden_phrase_in_a_file_is_reported() {
    for phrase in [
        "kubectl create clusterrolebinding x --clusterrole=cluster-admin",
        "kubectl patch svc web -p '{\\\"metadata\\\":{\\\"finalizers\\\":[]}}'",
        "kubectl delete pod web --FORCE",
        "Use 8.8.8.8.",
        "Restart   Everything",
        "kubectl annotate endpointslice web-x a=b",
        "echo {message}",
        "echo $(cat x)",
    ] {
        let text = changed(CAUSE, "Start the tunnel again.", phrase);
        check(&text, 2, Some("ours.tunnel"), "");
        check(&changed(CAUSE, "Look at the tunnel.", phrase), 2, Some("ours.tunnel"), "");
    }
}

#[test]
fn a_control_character_is_reported() {
    check(&changed(CAUSE, "is down.", "is down.\\u001b[2J"), 2, Some("ours.tunnel"), "U+001B");
    check(&changed(CAUSE, "is down.", "is down.\\u202e"), 2, Some("ours.tunnel"), "U+202E");
    check(&changed(CAUSE, "the tunnel is", "the\\u009btunnel is"), 2, Some("ours.tunnel"), "U+009B");
}

#[test]
fn an_incomplete_entry_is_reported() {
    check(&changed(REASON, "causes = [\"ours.tunnel\"]", ""), 2, Some("ours.tide"), "no causes");
    check(&changed(CAUSE, "[\"the tunnel is down\"]", "[]"), 2, Some("ours.tunnel"), "any is empty");
    check(&changed(CAUSE, "\"the tunnel is down\"", "\"a\""), 2, Some("ours.tunnel"), "keyword");
    let remedy = "[{ risk = \"disruptive\", do = \"Start the tunnel again.\" }]";
    check(&changed(CAUSE, remedy, "[]"), 2, Some("ours.tunnel"), "remedy is empty");
    check(&changed(CAUSE, "Our tunnel", &"x".repeat(401)), 2, Some("ours.tunnel"), "shorten");
    let many = format!("[{}]", "\"keyword\", ".repeat(25));
    check(&changed(CAUSE, "[\"the tunnel is down\"]", &many), 2, Some("ours.tunnel"), "25 items");
    check(&format!("{CAUSE}{CAUSE}"), 9, Some("ours.tunnel"), "same id");
}

#[test]
fn files_and_their_faults_are_bounded() {
    let large = " ".repeat(FILE_BYTES_MAX + 1);
    assert!(fault(&large).message.contains("divide it"));
    let many = vec![("a.toml", ""); FILES_MAX + 1];
    assert_eq!(Knowledge::with_overrides(&many).1.len(), 1);
    let bad: String = (0..200).map(|at| format!("[[cause]]\nid = \"a{at}\"\n")).collect();
    let faults = Knowledge::with_overrides(&[("a.toml", &bad)]).1;
    assert_eq!(faults.len(), FAULTS_MAX);
    assert!(faults.last().unwrap().message.contains("150 more faults"), "{:?}", faults.last());
}
