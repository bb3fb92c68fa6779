//! Slow start: ramps the weights of backends that have just returned.
//!
//! Invariant: the other backends keep their proportions. A ramping backend has clients from its return on, unless its
//! weight is 0. All backends of a service step at the same moments, so the weights change at most [`STEPS`] times per
//! slow start besides the returns, however many backends return.

use std::net::SocketAddr;
use std::time::Duration;

use holdfast_core::weights::{Weight, Weights};

/// The number of steps to the full weight.
pub(super) const STEPS: u16 = 10;

/// The present step out of [`STEPS`]; `None`: the full weight.
pub(super) fn weight_step(returned: Duration, slow_start: Duration, now: Duration) -> Option<u16> {
    let passed = elapsed_ticks(slow_start, now).saturating_sub(elapsed_ticks(slow_start, returned));
    u16::try_from(passed).ok().map(|passed| passed.saturating_add(1)).filter(|step| *step < STEPS)
}

/// When backends with this slow start step next.
pub(super) fn next_step(slow_start: Duration, now: Duration) -> Duration {
    let next = u32::try_from(elapsed_ticks(slow_start, now).saturating_add(1)).unwrap_or(u32::MAX);
    tick_length(slow_start).saturating_mul(next)
}

fn elapsed_ticks(slow_start: Duration, at: Duration) -> u128 {
    at.as_nanos() / tick_length(slow_start).as_nanos().max(1)
}

fn tick_length(slow_start: Duration) -> Duration {
    slow_start / u32::from(STEPS)
}

/// Scales the target weights by their steps.
pub(super) fn scale_weights(each: &[(SocketAddr, Weight, Option<u16>)]) -> Weights {
    let heaviest = each.iter().map(|(_, weight, _)| weight.number()).max().unwrap_or_default().max(1);
    // A weight of 1 has no fractions, so all weights are scaled up alike, as far as possible.
    let times = (Weight::MAX / heaviest).clamp(1, STEPS);
    Weights::from_backends(each.iter().map(|(backend, weight, step)| {
        let whole = weight.number().saturating_mul(times);
        let part = step.map_or(whole, |step| (whole.saturating_mul(step) / STEPS).max(1).min(whole));
        (*backend, Weight::new(part).unwrap_or(*weight))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    #[test]
    fn a_backend_grows_in_ten_steps_of_equal_length() {
        let steps = |returned: u64| -> Vec<_> {
            let slow_start = ms(30_000);
            let mut now = ms(returned);
            let mut seen = vec![weight_step(ms(returned), slow_start, now)];
            while seen.last().is_some_and(Option::is_some) {
                now = next_step(slow_start, now);
                seen.push(weight_step(ms(returned), slow_start, now));
            }
            assert!(now <= ms(returned) + slow_start && now >= ms(returned) + slow_start * 8 / 10, "{now:?}");
            seen
        };
        let expected: Vec<_> = (1..STEPS).map(Some).chain([None]).collect();
        for returned in [0, 1, 2_999, 3_000, 3_001, 86_400_000] {
            assert_eq!(steps(returned), expected, "{returned}");
        }
    }

    #[test]
    fn a_clock_at_its_end_ends_a_slow_start() {
        assert_eq!(weight_step(Duration::ZERO, ms(1_000), Duration::MAX), None);
        assert_eq!(weight_step(ms(5_000), ms(1_000), ms(4_000)), Some(1), "before it returned");
        assert!(next_step(ms(1_000), Duration::MAX) <= Duration::MAX);
        assert_eq!(weight_step(ms(1), Duration::ZERO, ms(9)), None);
    }

    /// Checks the result of weights with steps.
    #[track_caller]
    fn check(rule: &str, each: &[(u16, Option<u16>)], expected: &[u16]) {
        let backend = |position: usize| SocketAddr::from(([192, 0, 2, u8::try_from(position).unwrap()], 80));
        let all: Vec<_> = each
            .iter()
            .enumerate()
            .map(|(position, (weight, step))| (backend(position), Weight::new(*weight).unwrap(), *step))
            .collect();
        let weights = scale_weights(&all);
        let found =
            (0..each.len()).map(|position| weights.find_weight(backend(position), None).unwrap().number());
        assert_eq!(found.collect::<Vec<_>>(), expected, "{rule}");
    }

    #[test]
    fn ramping_weights_leave_the_others_in_proportion() {
        check("the first step", &[(1, None), (1, Some(1))], &[10, 1]);
        check("the fifth step", &[(1, None), (1, Some(5))], &[10, 5]);
        check("the others keep their shares", &[(3, None), (1, None), (2, Some(5))], &[30, 10, 10]);
        check(
            "none is as heavy as no weight can be",
            &[(256, None), (128, None), (64, Some(5))],
            &[256, 128, 32],
        );
        check("room for eight parts", &[(32, None), (1, Some(5)), (32, Some(5))], &[256, 4, 128]);
        check("at least one", &[(256, None), (1, Some(1))], &[256, 1]);
        check("none stays none", &[(1, None), (0, Some(5))], &[10, 0]);
        check("all are none", &[(0, None), (0, Some(5))], &[0, 0]);
        check("all grow alike", &[(1, Some(3)), (1, Some(3))], &[3, 3]);
    }
}
