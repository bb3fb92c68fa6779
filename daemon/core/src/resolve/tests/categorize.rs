//! The 32 rows of kube-proxy's `TestCategorizeEndpoints`, and further corner cases.

use super::*;

#[track_caller]
fn check(name: &str, own: &NodeFacts, words: &str, endpoints: &str, expected: [&str; 2], has_any: bool) {
    let here = if own.name.is_empty() { "here" } else { &*own.name };
    let node = NodeFacts { name: here.into(), ..own.clone() };
    let desired = resolved(&service(words), vec![slice("one", endpoints, here)], &node);
    let port = &desired.ports[0];
    assert_eq!([list(port, Scope::Cluster), list(port, Scope::Local)], expected, "{name}");
    assert_eq!(port.policy.has_usable_backend, has_any, "{name}: has any");
}

#[test]
fn hints_and_zones() {
    let zone = || node("zone-a", "");
    let hinted = "3 zone-a R; 4 b R; 5 c R; 6 zone-a R";
    let locals = "3 zone-a R@; 4 b R@; 5 c R; 6 zone-a R";
    check("1 all hinted, zone has endpoints", &zone(), "", hinted, ["3 6", "nil"], true);
    check("2 eTP Local: hints ignored for the local list", &zone(), "etp np", locals, ["3 6", "3 4"], true);
    check("3 iTP Local: the same", &zone(), "itp np", locals, ["3 6", "3 4"], true);
    check("4 the node has no labels", &node("none", ""), "", "3 zone-a R", ["3", "nil"], true);
    check("5 the zone label is empty", &node("", ""), "", "3 zone-a R", ["3", "nil"], true);
    check("6 the node is in another zone", &node("zone-b", ""), "", "3 zone-a R", ["3", "nil"], true);
    let unready = "3 zone-a R; 4 b R; 5 c R; 6 zone-a N";
    check("7 an unready endpoint is left out", &zone(), "", unready, ["3", "nil"], true);
    let only_unready = "3 zone-a N; 4 b R; 5 c R; 6 zone-a N";
    check("8 only unready ones in the own zone", &zone(), "", only_unready, ["4 5", "nil"], true);
    let missing = "3 zone-a R; 4 b R; 5 - R; 6 zone-a R";
    check("9 one hint is missing", &zone(), "", missing, ["3 4 5 6", "nil"], true);
    let several = "3 a,b,zone-c R; 4 b,zone-c R; 5 b,d R; 6 zone-c R";
    check("10 several hints each", &node("zone-c", ""), "", several, ["3 4 6", "nil"], true);
}

#[test]
fn hints_and_nodes() {
    let own = |name| node("zone-a", name);
    let hinted = "3 zone-a/n1 R; 4 b/n2 R; 5 c/n3 R; 6 zone-a/n4 R";
    check("11 no hint names this node: the zone counts", &own("n9"), "", hinted, ["3 6", "nil"], true);
    check("12 node hints", &own("n1"), "", hinted, ["3", "nil"], true);
    let missing = "3 zone-a/n1 R; 4 - R; 5 c/n3 R; 6 zone-a/n4 R";
    check("13 one endpoint has no hints", &own("n1"), "", missing, ["3 4 5 6", "nil"], true);
    check("14 no endpoint for this node", &own("n0"), "", hinted, ["3 6", "nil"], true);
    let conflict = "0 zone-a R@; 1 b R@; 2 zone-a R; 3 b R";
    // 0.0.0.0 cannot be a backend, so the addresses are one higher than in kube-proxy's test.
    let conflict = conflict
        .replace("3 b", "4 b")
        .replace("2 zone", "3 zone")
        .replace("1 b", "2 b")
        .replace("0 zone", "1 zone");
    check(
        "15 topology and locality conflict",
        &node("zone-a", ""),
        "etp np",
        &conflict,
        ["1 3", "1 2"],
        true,
    );
}

#[test]
fn policies() {
    let any = || node("none", "");
    check("16 iTP Local, no endpoints", &any(), "itp", "", ["nil", ""], false);
    check("17 iTP Local, all remote", &any(), "itp", "1 - R; 2 - R", ["nil", ""], true);
    check("18 iTP Local, all local", &any(), "itp", "1 - R@; 2 - R@", ["nil", "1 2"], true);
    check("19 iTP Local, some local", &any(), "itp", "1 - R@; 2 - R", ["nil", "1"], true);
    check("20 none ready", &any(), "", "1 - X; 2 - X", ["", "nil"], false);
    check("21 some ready", &any(), "", "1 - X; 2 - R", ["2", "nil"], true);
    check("22 all serving and terminating", &any(), "", "1 - T@; 2 - T", ["1 2", "nil"], true);
    check("23 iTP Local, eTP Cluster", &any(), "itp np", "1 - R@; 2 - R", ["1 2", "1"], true);
    check("24 iTP Cluster, eTP Local", &any(), "etp np", "1 - R@; 2 - R", ["1 2", "1"], true);
    check("25 both Local", &any(), "itp etp np", "1 - R@; 2 - R", ["1 2", "1"], true);
    check("26 both Local, all remote", &any(), "itp etp np", "1 - R; 2 - R", ["1 2", ""], true);
    check("27 both Local, all remote terminating", &any(), "itp etp np", "1 - T; 2 - T", ["1 2", ""], true);
    let terminating = "1 - R; 2 - X@; 3 - T@; 4 - T";
    check("28 eTP Local, terminating here", &any(), "etp np", terminating, ["1", "3"], true);
    check("29 eTP Local, but not external", &any(), "etp", "1 - R; 2 - R@", ["1 2", "nil"], true);
    check("30 iTP Local, internal only", &any(), "itp", "1 - R; 2 - R@", ["nil", "2"], true);
    check("32 one unusable endpoint", &node("zone-a", ""), "", "1 - X", ["", "nil"], false);
}

#[test]
fn a_service_without_slices_has_no_backend() {
    let desired = resolved(&service(""), vec![], &node("none", ""));
    assert_eq!(list(&desired.ports[0], Scope::Cluster), "", "31 nil endpoints");
    assert!(!desired.ports[0].policy.has_usable_backend);
}

/// A cluster without zones has no zone hints, and a node without a zone is in none.
#[test]
fn a_node_without_a_zone_matches_no_empty_zone_hint() {
    let own: Arc<str> = "".into();
    let mut builder = EndpointsBuilder::new(Family::V4);
    for (last, zone) in [(3, &own), (4, &"b".into())] {
        let hints = HintSet { zones: [Arc::clone(zone)].into(), nodes: [].into() };
        let address = IpAddr::V4(Ipv4Addr::new(0, 0, 0, last));
        let (conditions, hints) = (Conditions::READY, Some(&hints));
        builder.push(Endpoint { address, conditions, node: None, zone: None, hints, target: None }).unwrap();
    }
    let slice = SliceFacts { endpoints: builder.finish(), ..slice("a", "", "") };
    let desired = resolved(&service(""), vec![slice], &node("", "n1"));
    assert_eq!(list(&desired.ports[0], Scope::Cluster), "3 4");
}

#[test]
fn corner_facts() {
    let zone = || node("zone-a", "");
    check("hints of unready ones do not count", &zone(), "", "1 zone-a R; 2 - N; 3 b R", ["1", "nil"], true);
    check("ready and terminating is ready", &zone(), "", "1 - B; 2 - T", ["1", "nil"], true);
    check("ready and not serving is ready", &zone(), "", "1 - U; 2 - T", ["1", "nil"], true);
    check("a fall-back ignores zones", &zone(), "", "1 zone-a T; 2 b T", ["1 2", "nil"], true);
    check("terminating and not serving is no backend", &zone(), "itp", "1 - D@; 2 - D", ["nil", ""], false);
    check("serving and not ready is no backend", &zone(), "", "1 - N", ["", "nil"], false);
    check(
        "only terminating ones elsewhere: dropped, not refused",
        &zone(),
        "itp",
        "1 - T",
        ["nil", ""],
        true,
    );
}

#[test]
fn a_chosen_terminating_endpoint_is_draining() {
    use crate::list::SlotState;
    let desired = resolved(&service(""), vec![slice("one", "1 - T", "here")], &node("none", "here"));
    assert_eq!(desired.ports[0].rows[0].state(), SlotState::Draining);
    let desired = resolved(&service(""), vec![slice("one", "1 - B", "here")], &node("none", "here"));
    assert_eq!(desired.ports[0].rows[0].state(), SlotState::Active);
}
