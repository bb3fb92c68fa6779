//! Every row of the policy.

use std::vec;
use std::vec::Vec;

use super::*;
use crate::str_enum::StrEnum;

const NOTHING: Evidence = Evidence {
    own: None,
    fallback: OnEmpty::Auto,
    is_control: false,
    is_unready: false,
    has_remote_backend: false,
    is_scaled_down: false,
    is_hidden: false,
    is_resync: false,
};

#[track_caller]
fn check(name: &str, evidence: Evidence, expected: Judgement) {
    assert_eq!(judge(evidence), expected, "{name}");
}

#[test]
fn a_lost_list_is_held_and_a_scaled_down_one_refused() {
    let listed = Evidence { is_unready: true, ..NOTHING };
    let scaled = Evidence { is_scaled_down: true, ..NOTHING };
    let resync = Evidence { is_resync: true, ..NOTHING };
    let hidden = Evidence { is_hidden: true, ..NOTHING };
    let guarded = |reason| Judgement::Hold(reason, Bound::Guarded);
    check("vanished", NOTHING, guarded(Reason::Vanished));
    check("resync", resync, guarded(Reason::Resync));
    check("hidden", hidden, guarded(Reason::Hidden));
    check("hidden after a resync", Evidence { is_resync: true, ..hidden }, guarded(Reason::Hidden));
    check("scaled down, then hidden", Evidence { is_hidden: true, ..scaled }, Judgement::Refuse);
    check("hidden, and unready elsewhere", Evidence { is_hidden: true, ..listed }, Judgement::Refuse);
    check("all unready", listed, Judgement::Refuse);
    check("scaled down", scaled, Judgement::Refuse);
    check("scaled down, then resync", Evidence { is_resync: true, ..scaled }, Judgement::Refuse);
    check("unready after a resync", Evidence { is_resync: true, ..listed }, Judgement::Refuse);
    let elsewhere = Evidence { has_remote_backend: true, ..NOTHING };
    check("vanished here, and usable on another node", elsewhere, Judgement::Refuse);
}

#[test]
fn the_path_to_the_apiserver_is_held_without_limit_on_any_evidence() {
    let control = Judgement::Hold(Reason::Control, Bound::Unlimited);
    for position in 0..8 {
        let evidence = Evidence {
            is_control: true,
            is_unready: position & 1 > 0,
            is_scaled_down: position & 2 > 0,
            is_resync: position & 4 > 0,
            ..NOTHING
        };
        check("control", evidence, control);
        check("control, others refuse", Evidence { fallback: OnEmpty::Refuse, ..evidence }, control);
        check("requests auto", Evidence { own: Some(OnEmpty::Auto), ..evidence }, control);
        check("requests refuse", Evidence { own: Some(OnEmpty::Refuse), ..evidence }, Judgement::Refuse);
    }
}

#[test]
fn a_services_own_setting_overrides_the_evidence_and_the_default() {
    let scaled = Evidence { is_scaled_down: true, ..NOTHING };
    let limit = |reason| Judgement::Hold(reason, Bound::Limit);
    for fallback in OnEmpty::ALL {
        let own = |own, evidence| Evidence { own: Some(own), fallback, ..evidence };
        check("refuse", own(OnEmpty::Refuse, NOTHING), Judgement::Refuse);
        check("hold, scaled down", own(OnEmpty::Hold, scaled), limit(Reason::ScaledDown));
        check("hold", own(OnEmpty::Hold, NOTHING), limit(Reason::Vanished));
        check("auto", own(OnEmpty::Auto, scaled), Judgement::Refuse);
        check("pass is auto for the rest", own(OnEmpty::Pass, scaled), Judgement::Refuse);
    }
    check("fallback", Evidence { fallback: OnEmpty::Refuse, ..NOTHING }, Judgement::Refuse);
    check("fallback", Evidence { fallback: OnEmpty::Hold, ..scaled }, limit(Reason::ScaledDown));
}

/// All possible evidence.
fn every_evidence() -> impl Iterator<Item = Evidence> {
    let asked = [None].into_iter().chain(OnEmpty::ALL.map(Some));
    let settings = asked.flat_map(|own| OnEmpty::ALL.map(|fallback| (own, fallback)));
    let bit = |bits: u8, position: u8| bits & 1 << position != 0;
    settings.flat_map(move |(own, fallback)| {
        (0..64).map(move |bits| Evidence {
            own,
            fallback,
            is_control: bit(bits, 0),
            is_unready: bit(bits, 1),
            is_scaled_down: bit(bits, 2),
            is_resync: bit(bits, 3),
            is_hidden: bit(bits, 4),
            has_remote_backend: bit(bits, 5),
        })
    })
}

/// Returns the rules that every judge must follow and this one breaks.
fn broken_rules(judge: fn(Evidence) -> Judgement) -> Vec<&'static str> {
    let mut broken = Vec::new();
    for evidence in every_evidence() {
        let judged = judge(evidence);
        let asked = evidence.own.unwrap_or(evidence.fallback);
        let by_evidence = matches!(asked, OnEmpty::Auto | OnEmpty::Pass) && !evidence.is_control;
        let was_meant = evidence.is_unready || evidence.is_scaled_down || evidence.has_remote_backend;
        let is_unlimited = matches!(judged, Judgement::Hold(_, Bound::Unlimited));
        let rules = [
            ("what was lost is held", !by_evidence || was_meant || judged != Judgement::Refuse),
            ("what was meant is refused", !by_evidence || !was_meant || judged == Judgement::Refuse),
            ("refuse is followed", evidence.own != Some(OnEmpty::Refuse) || judged == Judgement::Refuse),
            ("only control is without bound", evidence.is_control || !is_unlimited),
        ];
        broken.extend(rules.into_iter().filter(|(_, kept)| !kept).map(|(rule, _)| rule));
    }
    broken.sort_unstable();
    broken.dedup();
    broken
}

#[test]
fn policy_keeps_every_rule() {
    assert_eq!(broken_rules(judge), Vec::<&str>::new());
}

#[test]
fn policy_finds_a_judge_that_never_holds() {
    assert_eq!(broken_rules(|_| Judgement::Refuse), ["what was lost is held"]);
}

#[test]
fn policy_finds_a_judge_that_always_holds() {
    let always = |evidence| Judgement::Hold(classify(evidence), Bound::Guarded);
    assert_eq!(broken_rules(always), ["refuse is followed", "what was meant is refused"]);
}

#[test]
fn policy_finds_a_judge_that_holds_without_bound() {
    let endless = |evidence| match judge(evidence) {
        Judgement::Hold(reason, _) => Judgement::Hold(reason, Bound::Unlimited),
        Judgement::Refuse => Judgement::Refuse,
    };
    assert_eq!(broken_rules(endless), ["only control is without bound"]);
}

#[test]
fn policy_finds_a_judge_that_takes_null_for_scaled_down() {
    let null = |evidence: Evidence| {
        let is_scaled_down = evidence.is_scaled_down || !evidence.is_unready;
        judge(Evidence { is_scaled_down, ..evidence })
    };
    assert_eq!(broken_rules(null), ["what was lost is held"]);
}

#[test]
fn policy_finds_a_judge_that_takes_a_label_for_scaled_down() {
    let labelled = |evidence: Evidence| {
        let is_scaled_down = evidence.is_scaled_down || evidence.is_hidden;
        judge(Evidence { is_scaled_down, ..evidence })
    };
    assert_eq!(broken_rules(labelled), ["what was lost is held"]);
}

#[test]
fn a_mass_loss_is_more_than_three_services_and_more_than_the_share() {
    let policy = Policy::default();
    for (lost, populated, expected) in
        [(3, 4, false), (4, 4, true), (4, 15, true), (4, 16, false), (5, 16, true), (2_500, 10_000, false)]
    {
        assert_eq!(policy.is_mass_loss(lost, populated), expected, "{lost} of {populated}");
    }
}

#[test]
fn each_on_empty_setting_has_one_spelling() {
    for setting in OnEmpty::ALL {
        assert_eq!(OnEmpty::from_spelling(setting.as_str()), Some(setting));
    }
    assert_eq!(OnEmpty::from_spelling("Hold"), None);
}

#[test]
fn judgement_reasons_are_exactly_the_reasons_to_hold() {
    let mut seen = vec![Reason::MassLoss];
    for position in 0..32 {
        let evidence = Evidence {
            is_hidden: position & 16 > 0,
            own: Some(OnEmpty::Hold).filter(|_| position & 8 == 0),
            is_control: position & 1 > 0,
            is_unready: position & 2 > 0,
            is_scaled_down: position & 4 > 0,
            is_resync: position & 2 == 0 && position & 4 == 0 && position & 8 == 0,
            ..NOTHING
        };
        if let Judgement::Hold(reason, _) = judge(evidence) {
            seen.push(reason);
        }
        if let Judgement::Hold(reason, _) = judge(Evidence { is_resync: false, ..evidence }) {
            seen.push(reason);
        }
    }
    assert!(seen.iter().all(|reason| Judgement::REASONS.contains(reason)), "{seen:?}");
    assert!(Judgement::REASONS.iter().all(|reason| seen.contains(reason)), "{seen:?}");
}
