//! Properties for any object, any Events and any times.

use proptest::prelude::*;

use super::*;

fn any_time() -> impl Strategy<Value = Timestamp> {
    prop_oneof![
        (-4_000_i64..4_000).prop_map(|ago| Timestamp(WALL - ago)),
        any::<i64>().prop_map(Timestamp),
        Just(Timestamp(-62_135_596_800)),
    ]
}

fn any_event() -> impl Strategy<Value = BalancerEvent> {
    let cause = prop_oneof![Just(None), Just(Some(Arc::from("a"))), Just(Some(Arc::from("b")))];
    let meaning = (0..Meaning::ALL.len()).prop_map(|nth| Meaning::ALL[nth]);
    (meaning, any_time(), any_time(), any::<u32>(), any::<bool>(), cause, any::<bool>()).prop_map(
        |(meaning, first, last, count, is_open, cause, strands)| BalancerEvent {
            meaning,
            first,
            last,
            count,
            is_open,
            cause,
            strands,
        },
    )
}

fn any_object() -> impl Strategy<Value = ServiceFacts> {
    let words =
        ["lb", "cleanup", "other", "class", "ip", "host"].map(|word| prop_oneof![Just(word), Just("")]);
    (words, any_time(), any_time(), any_time(), any::<[bool; 3]>()).prop_map(|(words, a, b, c, has)| {
        let mut facts = service(&words.join(" "));
        facts.meta.created = has[0].then_some(a);
        let balancer = facts.balancer.as_mut().unwrap();
        balancer.deleted = has[1].then_some(b);
        balancer.written = has[2].then_some(c);
        facts
    })
}

fn any_controller() -> impl Strategy<Value = ControllerLiveness> {
    prop_oneof![
        Just(ControllerLiveness::Unknown),
        Just(ControllerLiveness::Alive),
        Just(ControllerLiveness::Silent)
    ]
}

fn any_now() -> impl Strategy<Value = ClockReading> {
    (any_time(), 0_u64..1 << 40)
        .prop_map(|(wall, mono)| ClockReading { wall, mono: Duration::from_secs(mono) })
}

/// Whether the finding reports that nothing moves.
fn reports_silence(it: &Finding) -> bool {
    matches!(it.id, FindingId::NoController | FindingId::ClassUnserved | FindingId::StuckEnsuring)
}

proptest! {
    #[test]
    fn the_order_of_events_makes_no_difference(
        facts in any_object(),
        events in prop::collection::vec(any_event(), 0..8),
        places in prop::collection::vec(any::<prop::sample::Index>(), 8),
        controller in any_controller(),
        now in any_now(),
    ) {
        let mut other = events.clone();
        for (position, place) in places.iter().enumerate().take(other.len()) {
            let place = place.index(other.len());
            other.swap(position, place);
        }
        let look = |events| {
            let events = EventReading::All(events);
            assess_balancer(&BalancerInput { facts: Some(&facts), history: None, events, controller, now })
        };
        prop_assert_eq!(look(&events), look(&other));
        // The start of the state uses the wall clock, and is never in the future.
        prop_assert!(look(&events).since.is_none_or(|since| since <= now.wall));
    }

    #[test]
    fn without_events_only_findings_of_the_object_are_made(
        facts in any_object(),
        controller in any_controller(),
        now in any_now(),
    ) {
        let seen = BalancerHistory::observe(None, &facts, false, now);
        for seen in [None, seen.as_ref()] {
            let events = EventReading::NotRead;
            let case = BalancerInput { facts: Some(&facts), history: seen, events, controller, now };
            let legal = [FindingId::Pending, FindingId::DeleteStuck, FindingId::Flapping];
            prop_assert!(assess_balancer(&case).findings.iter().all(|it| legal.contains(&it.id)));
        }
    }

    /// Even if the `Ensured` Event was lost.
    #[test]
    fn a_balancer_with_an_address_is_never_stuck_even_without_ensured(
        facts in any_object(),
        events in prop::collection::vec(any_event(), 0..8),
        controller in any_controller(),
        now in any_now(),
    ) {
        let case = |events| BalancerInput { facts: Some(&facts), history: None, events, controller, now };
        if BalancerPhase::from_facts(&facts) != BalancerPhase::Pending {
            prop_assert!(!assess_balancer(&case(EventReading::All(&events))).findings.iter().any(reports_silence));
            let left: Vec<_> = events.iter().filter(|it| it.meaning != Meaning::Ensured).cloned().collect();
            prop_assert!(!assess_balancer(&case(EventReading::All(&left))).findings.iter().any(reports_silence));
        }
    }

    #[test]
    fn a_history_has_an_age_at_any_time(
        objects in prop::collection::vec((any_object(), any::<bool>()), 1..8),
        times in prop::collection::vec(any_now(), 8),
    ) {
        let mut before: Option<(ServiceFacts, Option<BalancerHistory>)> = None;
        for ((facts, is_live), now) in objects.into_iter().zip(times) {
            let known = before.as_ref().map(|(facts, seen)| (facts, seen.as_ref()));
            let seen = BalancerHistory::observe(known, &facts, is_live, now);
            prop_assert_eq!(seen.is_none(), BalancerPhase::from_facts(&facts) == BalancerPhase::None);
            assess_without_events(&facts, seen.as_ref(), now);
            before = Some((facts, seen));
        }
    }
}
