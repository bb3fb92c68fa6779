//! When which addresses are dialled, and what an answer proves.

use super::*;

mod many;

#[test]
fn intervals_are_spread_by_a_fifth() {
    for _ in 0..100 {
        let millis = jitter(Duration::from_secs(2)).as_millis();
        assert!((1_600..=2_400).contains(&millis), "{millis}");
    }
}

#[test]
fn each_answer_has_its_own_count() {
    let probes = ProbeCounts::default();
    [ProbeAnswer::Silent, ProbeAnswer::Accepted, ProbeAnswer::Silent]
        .into_iter()
        .for_each(|answer| probes.count(answer));
    let totals: Vec<_> = probes.totals().map(|(answer, count)| (answer.as_str(), count)).collect();
    assert_eq!(totals, [("accepted", 1), ("refused", 0), ("silent", 2)]);
}
