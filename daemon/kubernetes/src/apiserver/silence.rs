//! Reminds of an apiserver that stays away: one warning after a minute, and then at growing intervals.
//!
//! Invariant: it says nothing while an endpoint answers, and at most one line an hour in the long run.

use std::time::{Duration, Instant};

use holdfast_host::ticker;
use holdfast_status::views::apiserver::ApiserverState;

use super::Inner;

const MINUTE: Duration = Duration::from_secs(60);

/// After how long silence the lines come; then one each hour.
const FIRST_LINES: [Duration; 4] = [MINUTE, MINUTE.saturating_mul(5), MINUTE.saturating_mul(15), HOUR];

const HOUR: Duration = Duration::from_secs(3600);

#[derive(Debug, Default)]
struct Reminder {
    since: Option<Instant>,
    lines: u32,
}

impl Reminder {
    /// How long no apiserver has answered, if that is to be said now.
    fn next_line(&mut self, is_silent: bool, now: Instant) -> Option<Duration> {
        if !is_silent {
            *self = Self::default();
            return None;
        }
        let silent = now.saturating_duration_since(*self.since.get_or_insert(now));
        let place = usize::try_from(self.lines).unwrap_or(usize::MAX);
        // The last of the first lines comes after an hour, and each later one an hour after the one before.
        let hours = self.lines.saturating_sub(2);
        let due = FIRST_LINES.get(place).copied().unwrap_or_else(|| HOUR.saturating_mul(hours));
        if silent < due {
            return None;
        }
        self.lines = self.lines.saturating_add(1);
        Some(silent)
    }
}

/// Logs while no endpoint answers.
pub(super) async fn run(inner: &Inner) {
    let mut reminder = Reminder::default();
    loop {
        ticker::next_tick().await;
        let (is_silent, error) = read_state(inner);
        if let Some(silent) = reminder.next_line(is_silent, Instant::now()) {
            let minutes = silent.as_secs() / 60;
            tracing::warn!(
                minutes,
                error,
                "no apiserver has answered for some time; this node goes on with what it knows, and learns of no \
                 rollout; see: holdfast apiserver"
            );
        }
    }
}

/// Whether no endpoint takes requests, and the first error.
fn read_state(inner: &Inner) -> (bool, Option<String>) {
    let table = inner.endpoints.lock();
    let rows = table.rows();
    let takes_none = |state| matches!(state, ApiserverState::Failed | ApiserverState::Throttled);
    let is_silent = !rows.is_empty() && rows.iter().all(|row| takes_none(row.state));
    let failed = rows.iter().find_map(|row| row.last_error.as_ref().map(|(error, _)| (&row.name, error)));
    (is_silent, failed.map(|(name, error)| format!("{name}: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_intervals_between_reminders_grow_to_an_hour() {
        let (mut reminder, begun) = (Reminder::default(), holdfast_fixtures::clock::now());
        let minutes: Vec<u64> = (0..=300)
            .filter(|minute| reminder.next_line(true, begun + MINUTE * *minute).is_some())
            .map(u64::from)
            .collect();
        assert_eq!(minutes, [1, 5, 15, 60, 120, 180, 240, 300]);
    }

    #[test]
    fn an_answer_ends_the_silence() {
        let (mut reminder, begun) = (Reminder::default(), holdfast_fixtures::clock::now());
        assert_eq!(reminder.next_line(true, begun), None);
        assert_eq!(reminder.next_line(false, begun + MINUTE), None);
        assert_eq!(reminder.next_line(true, begun + MINUTE * 2), None, "a new silence begins");
        assert_eq!(reminder.next_line(true, begun + MINUTE * 3), Some(MINUTE));
    }
}
