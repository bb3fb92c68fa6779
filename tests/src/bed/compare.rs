//! Two sides measured against each other: how much the one does in the time in which the other does its own.
//!
//! Invariant: both sides take turns within milliseconds and change their order each time, so that whatever disturbs the
//! machine disturbs both. The result is a median with the interval in which the true one lies (95 %). Deliberately
//! absent: comparing runs; only sides of one run are compared.

use std::time::Duration;

use super::BedError;
use super::load::{Load, Turn};

/// One turn. Long against a switch of processes, short against what changes on a busy machine.
const TURN: Duration = Duration::from_millis(10);

/// Turns that warm caches, connections and the CPU's clock up, and do not count.
const WARM_UP: usize = 10;

/// How a side does against the first one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio {
    /// The middle of all ratios.
    pub median: f64,
    /// The true median is above this, with 97.5 % confidence.
    pub low: f64,
    /// The true median is below this, with 97.5 % confidence.
    pub high: f64,
    /// What the first side does in a second, by its median.
    pub first_rate: f64,
    /// What the second side does in a second, by its median.
    pub second_rate: f64,
}

/// Lets two sides take turns, so many pairs of them.
pub fn compare(first: &mut Load, second: &mut Load, pairs: usize) -> Result<Ratio, BedError> {
    let mut measured = Vec::with_capacity(pairs);
    for number in 0..WARM_UP + pairs {
        let pair = take_pair(first, second, number % 2 == 0)?;
        if number >= WARM_UP {
            measured.push(pair);
        }
    }
    Ok(ratio(&measured))
}

fn take_pair(first: &mut Load, second: &mut Load, first_begins: bool) -> Result<(Turn, Turn), BedError> {
    if first_begins {
        let one = first.turn(TURN)?;
        Ok((one, second.turn(TURN)?))
    } else {
        let two = second.turn(TURN)?;
        Ok((first.turn(TURN)?, two))
    }
}

fn ratio(pairs: &[(Turn, Turn)]) -> Ratio {
    let ratios = sorted(pairs.iter().map(|(first, second)| second.rate() / first.rate()));
    let (low, high) = interval(ratios.len());
    let place = |at: usize| ratios.get(at).copied().unwrap_or(f64::NAN);
    Ratio {
        median: median(&ratios),
        low: place(low),
        high: place(high),
        first_rate: median(&sorted(pairs.iter().map(|(first, _)| first.rate()))),
        second_rate: median(&sorted(pairs.iter().map(|(_, second)| second.rate()))),
    }
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

fn median(sorted: &[f64]) -> f64 {
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

/// The places of the values between which the true median lies with 95 % confidence: the binomial distribution around
/// the middle, as a normal one, which is good from some twenty values on.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a small count"
)]
fn interval(count: usize) -> (usize, usize) {
    let reach = (0.98 * (count as f64).sqrt()).ceil() as usize;
    let middle = count / 2;
    (middle.saturating_sub(reach), (middle + reach).min(count.saturating_sub(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(count: u64) -> Turn {
        Turn { count, took: Duration::from_millis(10) }
    }

    #[test]
    fn the_median_is_not_moved_by_a_disturbed_pair() {
        let mut pairs = vec![(turn(1000), turn(980)); 99];
        pairs.push((turn(1000), turn(10)));
        let ratio = ratio(&pairs);
        assert_eq!((ratio.low, ratio.median, ratio.high), (0.98, 0.98, 0.98));
        assert_eq!((ratio.first_rate, ratio.second_rate), (100_000.0, 98_000.0));
    }

    #[test]
    fn the_interval_narrows_with_the_number_of_pairs() {
        assert_eq!(interval(100), (40, 60));
        assert_eq!(interval(10_000), (4902, 5098));
        assert_eq!(interval(1), (0, 0));
        assert_eq!(interval(0), (0, 0));
    }
}
