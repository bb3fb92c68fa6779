//! Evidence with any of its parts missing, and with hostile texts.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use holdfast_laws::hostile::HOSTILE;
use proptest::prelude::*;
use proptest::sample::select;

use crate::diagnosis_result::judge_evidence;
use crate::evidence::{
    EventSubject, Evidence, HostPort, HttpAnswer, HttpProbe, Listener, Lookup, Pod, Pods, Probe, ProbeKind,
    ProbeOutcome, RecognisedEvent, Right, UnmatchedPod,
};
use crate::json::Diagnosis;
use crate::limits::COLUMNS_MAX;
use crate::text;
use holdfast_status::printable::is_unprintable;

/// Replaces one answer by a missing one.
fn replace<T>(lookup: &mut Lookup<T>, how: u8) {
    match how {
        0 => *lookup = Lookup::Skipped("it is switched off"),
        1 => {
            *lookup = Lookup::Forbidden(Right {
                group: "",
                resource: "pods",
                verbs: "list",
                namespace: Some("\u{1b}[2J".into()),
            });
        }
        2 => *lookup = Lookup::Failed("no\u{202e} answer".into()),
        _ => {}
    }
}

fn disturb(evidence: &mut Evidence, how: &[u8; 24], text: &str, number: i64) {
    let Evidence { cluster, host, .. } = evidence;
    let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u, v, w, x] = *how;
    replace(&mut cluster.service, a);
    replace(&mut cluster.slices, b);
    replace(&mut cluster.pods, c);
    replace(&mut cluster.near, d);
    replace(&mut cluster.endpoints, e);
    replace(&mut cluster.hosted, f);
    replace(&mut cluster.nodes, g);
    replace(&mut cluster.leases, h);
    replace(&mut cluster.address, i);
    replace(&mut cluster.policies, j);
    replace(&mut cluster.namespace, k);
    replace(&mut cluster.events, l);
    replace(&mut host.listeners, m);
    replace(&mut host.port_range, n);
    replace(&mut host.conntrack, o);
    replace(&mut host.resolver, p);
    replace(&mut host.rules, q);
    replace(&mut host.health, r);
    replace(&mut evidence.kernel, s);
    replace(&mut evidence.probes, t);
    if u == 0 {
        evidence.views.clear();
    }
    if v == 0 {
        evidence.own.apiserver = None;
        evidence.own.watches.clear();
    }
    if w == 0 {
        forge(evidence, text, number);
    }
    if x == 0 {
        evidence.taken.0 = number;
        evidence.snapshot = Arc::default();
    }
}

/// Forges the texts that a tenant, or a writer of Events, may write.
fn forge(evidence: &mut Evidence, text: &str, number: i64) {
    let text = || text.to_owned();
    let labels = || [(text(), text()), ("app".to_owned(), text())].into();
    let cluster = &mut evidence.cluster;
    if let Lookup::Answered(Some(seen)) = &mut cluster.service {
        seen.selector = labels();
        seen.resource_version = text();
    }
    let pod = Pod { name: text(), uid: text(), phase: text(), waiting: Some(text()), ..Pod::default() };
    cluster.pods =
        Lookup::Answered(Pods { list: if number % 2 == 0 { vec![pod] } else { Vec::new() }, more: false });
    cluster.near = Lookup::Answered(vec![UnmatchedPod { name: text(), labels: labels(), running: None }]);
    cluster.hosted =
        Lookup::Answered(vec![HostPort { pod: text(), port: 30080, protocol: "TCP".into(), address: None }]);
    let object = EventSubject { kind: "Service".into(), namespace: text(), name: text() };
    let time = Some(holdfast_core::facts::Timestamp(number));
    let event = RecognisedEvent {
        reason: text(),
        component: text(),
        object,
        warning: true,
        count: u32::MAX,
        first: time,
        last: time,
        open: true,
        message: text(),
        cause: Some(text()),
        ..RecognisedEvent::default()
    };
    cluster.events = Lookup::Answered(vec![event; 50]);
    let process = Some(text());
    let address = [0, 0, 0, 0].into();
    let listener = Listener { port: 30080, protocol: "TCP".into(), address, process, pid: None, own: false };
    evidence.host.listeners = Lookup::Answered(vec![listener]);
    let to: SocketAddr = "10.244.1.10:8080".parse().unwrap();
    let outcome = ProbeOutcome::Unreachable(text());
    let probe = Probe { to, kind: ProbeKind::Backend { local: true }, outcome, took: Duration::MAX };
    evidence.probes = Lookup::Answered(vec![probe]);
    let answer = HttpAnswer::Failed(text());
    evidence.http = Lookup::Answered(vec![HttpProbe { to, answer, took: Duration::MAX }]);
}

fn is_plain(text: &str) -> bool {
    !text.chars().any(is_unprintable)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, ..ProptestConfig::default() })]

    #[test]
    fn any_missing_part_or_hostile_text_gives_a_clean_diagnosis(
        place in any::<proptest::sample::Index>(),
        how in proptest::array::uniform24(0_u8..8),
        text in prop_oneof![
            any::<String>(),
            select(vec!["\u{1b}[31m".to_owned(), "x".repeat(20_000), "$(reboot)\n".to_owned(), format!("{} {HOSTILE}", "y".repeat(80))]),
        ],
        number in prop_oneof![any::<i64>(), select(vec![0, i64::MIN, i64::MAX, 1_795_183_331])],
    ) {
        let (_, given, _) = place.get(super::all());
        let mut evidence = given.evidence();
        disturb(&mut evidence, &how, &text, number);
        let answer = judge_evidence(&evidence);
        prop_assert_eq!(answer.findings.len(), super::ALL.len());
        let diagnosis = Diagnosis::new(&evidence, &answer, "1.0.0");
        prop_assert!(is_plain(&serde_json::to_string(&diagnosis).unwrap()));
        for line in text::render_text(&diagnosis, true).lines() {
            prop_assert!(is_plain(line) && !line.starts_with("FORGED"), "{line:?}");
            prop_assert!(line.chars().count() <= COLUMNS_MAX || line.starts_with("        "), "{line}");
        }
        for finding in &answer.findings {
            let judgement = &finding.judgement;
            prop_assert!(is_plain(&judgement.sentence), "{}: {:?}", finding.check.id, judgement.sentence);
            prop_assert!(is_plain(&serde_json::to_string(&judgement.evidence).unwrap()));
            for remedy in &judgement.remedies {
                let command = remedy.command.as_ref().map(ToString::to_string).unwrap_or_default();
                prop_assert!(is_plain(&remedy.text) && command.is_ascii() && !command.contains("$("), "{command}");
            }
        }
    }
}
