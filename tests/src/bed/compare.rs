//! Two sides measured against each other: how much the one does in the time in which the other does its own.
//!
//! Invariant: both sides take turns within milliseconds and change their order each time, so that whatever disturbs the
//! machine disturbs both. The result is a median with the interval in which the true one lies (95 %). Deliberately
//! absent: comparing runs; only sides of one run are compared.

use std::time::Duration;

use super::BedError;
use super::load::{Load, Turn};

/// One turn. Long against a switch of processes, short against the time slice of whoever else runs here, so that most
/// turns are not disturbed.
const TURN: Duration = Duration::from_millis(3);

/// When to stop: the median is then known to half a percent.
const WIDTH_ENOUGH: f64 = 0.01;

/// Pairs of turns in a round.
const PAIRS: usize = 100;

/// Rounds before the interval means anything.
const ROUNDS_MIN: usize = 11;

/// When to stop on a machine that is too busy: some twenty seconds.
const ROUNDS_MAX: usize = 31;

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

impl Ratio {
    /// How wide the interval is; past a percent the machine is too busy for a verdict.
    pub fn width(&self) -> f64 {
        self.high - self.low
    }
}

/// Starts one side; a side is started anew in each round.
pub type Start<'a> = &'a dyn Fn() -> Result<Load, BedError>;

/// Lets two sides take turns until their ratio is known well enough, or will not be.
///
/// A process and its connection keep the luck of their start, so a value is the median of a round, and each round has
/// new ones, started in the other order.
pub fn compare(first: Start<'_>, second: Start<'_>) -> Result<Ratio, BedError> {
    let mut rounds = Vec::new();
    loop {
        rounds.push(round(first, second, rounds.len() % 2 == 0)?);
        let ratio = over(&rounds);
        let known = rounds.len() >= ROUNDS_MIN && ratio.width() <= WIDTH_ENOUGH;
        if known || rounds.len() >= ROUNDS_MAX {
            return Ok(ratio);
        }
    }
}

/// The medians of one round: the ratio and both rates.
#[derive(Clone, Copy, Debug)]
struct Round {
    ratio: f64,
    first_rate: f64,
    second_rate: f64,
}

fn round(first: Start<'_>, second: Start<'_>, first_begins: bool) -> Result<Round, BedError> {
    let (mut first, mut second) = if first_begins {
        let first = first()?;
        (first, second()?)
    } else {
        let second = second()?;
        (first()?, second)
    };
    let mut pairs = Vec::with_capacity(PAIRS);
    for number in 0..WARM_UP + PAIRS {
        let pair = take_pair(&mut first, &mut second, number % 2 == 0)?;
        if number >= WARM_UP {
            pairs.push(pair);
        }
    }
    Ok(medians(&pairs))
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

fn medians(pairs: &[(Turn, Turn)]) -> Round {
    Round {
        ratio: median(&sorted(pairs.iter().map(|(first, second)| second.rate() / first.rate()))),
        first_rate: median(&sorted(pairs.iter().map(|(first, _)| first.rate()))),
        second_rate: median(&sorted(pairs.iter().map(|(_, second)| second.rate()))),
    }
}

fn over(rounds: &[Round]) -> Ratio {
    let ratios = sorted(rounds.iter().map(|round| round.ratio));
    let (low, high) = interval(ratios.len());
    let place = |at: usize| ratios.get(at).copied().unwrap_or(f64::NAN);
    Ratio {
        median: median(&ratios),
        low: place(low),
        high: place(high),
        first_rate: median(&sorted(rounds.iter().map(|round| round.first_rate))),
        second_rate: median(&sorted(rounds.iter().map(|round| round.second_rate))),
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
    fn a_disturbed_pair_or_round_does_not_move_the_median() {
        let mut pairs = vec![(turn(1000), turn(980)); 99];
        pairs.push((turn(1000), turn(10)));
        let quiet = medians(&pairs);
        let mut rounds = vec![quiet; 10];
        rounds.push(Round { ratio: 0.5, ..quiet });
        let ratio = over(&rounds);
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
