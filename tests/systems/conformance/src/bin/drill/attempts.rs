//! The results of all clients, parsed from their lines.
//!
//! Invariant: an attempt is skipped only if its own machine or the dialled one was absent when it began. A truncated
//! line is no attempt.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use crate::client::{OUTCOMES, Outcome};

/// The longest time of an attempt: one that began this long before an absence may be affected by it.
const ATTEMPT_MAX: u64 = 1_000_000_000;

/// An absent machine, with the time.
#[derive(Clone, Debug)]
pub(crate) struct Absence {
    pub(crate) machine: String,
    /// Its address, as clients dial it.
    pub(crate) address: String,
    pub(crate) from: u64,
    pub(crate) to: u64,
}

impl Absence {
    fn concerns(&self, machine: &str, target: &str, at: u64) -> bool {
        let is_meant = self.machine == machine || target.starts_with(&format!("{}:", self.address));
        is_meant && at + ATTEMPT_MAX > self.from && at < self.to
    }
}

/// The sum of the clients' results.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    outcomes: BTreeMap<Outcome, u64>,
    /// Failures by client, target and outcome, to show where to look.
    places: BTreeMap<String, u64>,
    longest: Duration,
}

impl Tally {
    /// Adds the attempts of one client that began within that time.
    pub(crate) fn add(&mut self, client: Client<'_>, lines: &str, [from, to]: [u64; 2], away: &[Absence]) {
        let mut since: BTreeMap<&str, u64> = BTreeMap::new();
        for (at, target, outcome) in lines.split_inclusive('\n').filter_map(attempt) {
            let is_out = away.iter().any(|absence| absence.concerns(client.machine, target, at));
            if at < from || at > to || is_out {
                since.remove(target);
                continue;
            }
            *self.outcomes.entry(outcome).or_default() += 1;
            if outcome == Outcome::Answered {
                if let Some(first) = since.remove(target) {
                    self.longest = self.longest.max(Duration::from_nanos(at - first));
                }
            } else {
                *self.places.entry(format!("{} -> {target} {outcome}", client.name)).or_default() += 1;
                let first = *since.entry(target).or_insert(at);
                self.longest = self.longest.max(Duration::from_nanos(at - first));
            }
        }
    }

    pub(crate) fn failed(&self) -> u64 {
        self.outcomes
            .iter()
            .filter(|(outcome, _)| **outcome != Outcome::Answered)
            .map(|(_, count)| count)
            .sum()
    }

    pub(crate) fn attempts(&self) -> u64 {
        self.outcomes.values().sum()
    }

    /// The clients and targets with the most failures.
    pub(crate) fn worst(&self, most: usize) -> Vec<String> {
        let mut places: Vec<_> = self.places.iter().map(|(place, count)| (*count, place)).collect();
        places.sort_by(|a, b| b.cmp(a));
        places.into_iter().take(most).map(|(count, place)| format!("{count} x {place}")).collect()
    }
}

/// The client that wrote the lines.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Client<'a> {
    pub(crate) name: &'a str,
    pub(crate) machine: &'a str,
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} connects failed", self.failed(), self.attempts())?;
        for (outcome, count) in self.outcomes.iter().filter(|(outcome, _)| **outcome != Outcome::Answered) {
            write!(f, ", {count} {outcome}")?;
        }
        if self.failed() > 0 {
            write!(f, "; longest gap {:.2} s", self.longest.as_secs_f64())?;
        }
        Ok(())
    }
}

/// Time, target and outcome of a complete line.
fn attempt(line: &str) -> Option<(u64, &str, Outcome)> {
    let mut words = line.strip_suffix('\n')?.split(' ');
    let (at, target, word) = (words.next()?.parse().ok()?, words.next()?, words.next()?);
    let (outcome, _) = OUTCOMES.iter().find(|(_, known)| *known == word)?;
    Some((at, target, *outcome))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const HOST: Client<'_> = Client { name: "n1", machine: "n1" };

    fn tally(lines: &str, away: &[Absence]) -> Tally {
        let mut tally = Tally::default();
        tally.add(HOST, lines, [0, 100 * SECOND], away);
        tally
    }

    fn lines(rows: &[(u64, &str, &str)]) -> String {
        rows.iter().map(|(at, target, word)| format!("{} {target} {word}\n", at * SECOND)).collect()
    }

    #[test]
    fn a_gap_lasts_from_a_failure_to_the_targets_next_answer() {
        let rows =
            [(1, "a:1", "answered"), (2, "a:1", "refused"), (3, "b:1", "answered"), (4, "a:1", "timeout")];
        let text = lines(&rows);
        assert_eq!(tally(&text, &[]).longest, Duration::from_secs(2));
        let ended = format!("{text}{}", lines(&[(9, "a:1", "answered")]));
        assert_eq!(
            tally(&ended, &[]).to_string(),
            "2 of 5 connects failed, 1 refused, 1 timeout; longest gap 7.00 s"
        );
    }

    #[test]
    fn attempts_from_and_to_absent_nodes_do_not_count() {
        let text = lines(&[(1, "n2:1", "answered"), (5, "n2:1", "timeout"), (5, "n3:1", "refused")]);
        let away = |machine: &str| Absence {
            machine: machine.to_owned(),
            address: machine.to_owned(),
            from: 4 * SECOND,
            to: 6 * SECOND,
        };
        assert_eq!(tally(&text, &[away("n2")]).failed(), 1);
        assert_eq!(tally(&text, &[away("n1")]).failed(), 0);
        assert_eq!(tally(&text, &[away("n4")]).failed(), 2);
    }

    #[test]
    fn a_line_cut_short_is_no_attempt() {
        assert_eq!(tally("1 a:1 answered\n2 a:1 ref", &[]).attempts(), 1);
    }
}
