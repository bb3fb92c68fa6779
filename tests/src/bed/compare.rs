//! Compares two sides under load: how much one does in the same time as the other.
//!
//! Invariant: both sides take turns within milliseconds and swap their order each time, so that a disturbance of the
//! machine affects both. Processes start anew in each round, and the measured setup starts anew in each draw, because
//! both keep the luck of their start. The result is the median of the draws, with the smallest and the largest.

use std::time::Duration;

use super::BedError;
use super::load::{Load, Turn};
use crate::size::sized;

/// One turn. Long compared with a context switch and short compared with the time slice of other processes, so that
/// most turns are undisturbed.
const TURN: Duration = Duration::from_millis(3);

/// Pairs of turns in a round.
const PAIRS: usize = 100;

/// Rounds in a draw: some six seconds.
const ROUNDS: usize = 9;

/// Draws of one measurement. With 98 % confidence, the true median lies between the smallest and the largest of seven.
pub fn draws() -> usize {
    sized(7, 1)
}

/// Turns that warm up caches, connections and the CPU's clock; they do not count.
const WARM_UP: usize = 10;

/// How the second side compares with the first one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio {
    /// The middle of all draws.
    pub median: f64,
    /// The smallest draw.
    pub low: f64,
    /// The largest draw.
    pub high: f64,
    /// The first side's median rate per second.
    pub first_rate: f64,
    /// The second side's median rate per second.
    pub second_rate: f64,
    /// Failed connections of the second side, in all draws.
    pub failed: u64,
}

impl Ratio {
    /// The ratio over several draws of one measurement.
    pub fn from_draws(draws: &[Medians]) -> Self {
        let ratios = sorted(draws.iter().map(|draw| draw.ratio));
        Self {
            median: median(&ratios),
            low: ratios.first().copied().unwrap_or(f64::NAN),
            high: ratios.last().copied().unwrap_or(f64::NAN),
            first_rate: median(&sorted(draws.iter().map(|draw| draw.first_rate))),
            second_rate: median(&sorted(draws.iter().map(|draw| draw.second_rate))),
            failed: draws.iter().map(|draw| draw.failed).sum(),
        }
    }
}

/// The medians of a round's turns, or of a draw's rounds.
#[derive(Clone, Copy, Debug)]
pub struct Medians {
    ratio: f64,
    first_rate: f64,
    second_rate: f64,
    failed: u64,
}

/// Starts one side, anew in each round.
pub type Start<'a> = &'a dyn Fn() -> Result<Load, BedError>;

/// Lets two sides take turns. Each round has new processes, started in the other order.
pub fn draw(first: Start<'_>, second: Start<'_>) -> Result<Medians, BedError> {
    let rounds: Vec<Medians> = (0..sized(ROUNDS, 1))
        .map(|number| round(first, second, number % 2 == 0))
        .collect::<Result<_, _>>()?;
    let Ratio { median, first_rate, second_rate, failed, .. } = Ratio::from_draws(&rounds);
    Ok(Medians { ratio: median, first_rate, second_rate, failed })
}

fn round(first: Start<'_>, second: Start<'_>, first_begins: bool) -> Result<Medians, BedError> {
    let (mut first, mut second) = if first_begins {
        let first = first()?;
        (first, second()?)
    } else {
        let second = second()?;
        (first()?, second)
    };
    let mut pairs = Vec::with_capacity(PAIRS);
    for number in 0..WARM_UP + sized(PAIRS, 2) {
        let pair = take_pair(&mut first, &mut second, number % 2 == 0)?;
        if number >= WARM_UP {
            pairs.push(pair);
        }
    }
    Ok(medians(&pairs))
}

fn take_pair(first: &mut Load, second: &mut Load, first_begins: bool) -> Result<(Turn, Turn), BedError> {
    if first_begins {
        let one = first.turn_with_failures(TURN)?;
        Ok((one, second.turn_with_failures(TURN)?))
    } else {
        let two = second.turn_with_failures(TURN)?;
        Ok((first.turn_with_failures(TURN)?, two))
    }
}

fn medians(pairs: &[(Turn, Turn)]) -> Medians {
    Medians {
        ratio: median(&sorted(pairs.iter().map(|(first, second)| second.rate() / first.rate()))),
        first_rate: median(&sorted(pairs.iter().map(|(first, _)| first.rate()))),
        second_rate: median(&sorted(pairs.iter().map(|(_, second)| second.rate()))),
        failed: pairs.iter().map(|(_, second)| second.failed).sum(),
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

#[cfg(test)]
mod tests {
    use super::*;

    fn turn(count: u64) -> Turn {
        Turn { count, took: Duration::from_millis(10), failed: 0 }
    }

    #[test]
    fn a_disturbed_pair_or_round_does_not_move_the_median() {
        let mut pairs = vec![(turn(1000), turn(980)); 99];
        pairs.push((turn(1000), turn(10)));
        let quiet = medians(&pairs);
        let mut rounds = vec![quiet; 10];
        rounds.push(Medians { ratio: 0.5, ..quiet });
        let ratio = Ratio::from_draws(&rounds);
        assert_eq!((ratio.low, ratio.median, ratio.high), (0.5, 0.98, 0.98));
        assert_eq!((ratio.first_rate, ratio.second_rate), (100_000.0, 98_000.0));
    }
}
