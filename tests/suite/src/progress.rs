//! How far a run is: its part, the tests that have ended, and the time that is left: that of the last run, times what
//! the tests of this run have taken longer until now.
//!
//! Invariant: it only reports. On a terminal it is one line that is rewritten; in a file it is a line now and then.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::terminal;

/// How often the line is rewritten on a terminal.
const ON_TERMINAL: Duration = Duration::from_secs(1);

/// How often a line is written into a file or a pipe.
const IN_FILE: Duration = Duration::from_secs(30);

/// The weight of the last run's times against those of this one.
const BELIEVED: Duration = Duration::from_secs(20);

/// What a part is expected to take.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Expected {
    pub(crate) tests: usize,
    /// The wall-clock time of the part.
    pub(crate) wall: Duration,
    /// The sum of its tests' times.
    pub(crate) sum: Duration,
}

#[derive(Debug)]
pub(crate) struct Progress {
    state: Mutex<State>,
    over: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The parts that have not begun.
    coming: BTreeMap<String, Expected>,
    /// The last one begins while the former one's last tests run.
    running: Vec<Current>,
    done: usize,
    total: usize,
    /// The time of the tests that have ended: in the last run, and in this one.
    recorded: Duration,
    taken: Duration,
    is_over: bool,
}

/// The running part.
#[derive(Debug)]
struct Current {
    name: String,
    expected: Expected,
    /// The supply that it waits for, since when, and how long that takes.
    waits: Option<(String, Instant, Duration)>,
    done: usize,
    sum_done: Duration,
}

impl Progress {
    pub(crate) fn new(coming: BTreeMap<String, Expected>) -> Self {
        let total = coming.values().map(|part| part.tests).sum();
        Self { state: Mutex::new(State { coming, total, ..State::default() }), over: Condvar::new() }
    }

    pub(crate) fn begin_part(&self, name: &str) {
        let mut state = self.state();
        let expected = state.coming.remove(name).unwrap_or_default();
        let (name, waits, done, sum_done) = (name.to_owned(), None, 0, Duration::ZERO);
        state.running.push(Current { name, expected, waits, done, sum_done });
    }

    /// Notes that a part waits for a supply, which takes so long.
    pub(crate) fn begin_wait(&self, part: &str, supply: &str, takes: Duration) {
        self.change(part, |part| part.waits = Some((supply.to_owned(), Instant::now(), takes)));
    }

    pub(crate) fn end_wait(&self, part: &str) {
        self.change(part, |part| part.waits = None);
    }

    /// Counts a test that took so long in the last run, and in this one.
    pub(crate) fn end_test(&self, part: &str, (recorded, taken): (Duration, Duration)) {
        self.change(part, |part| (part.done, part.sum_done) = (part.done + 1, part.sum_done + recorded));
        let mut state = self.state();
        (state.recorded, state.taken) = (state.recorded + recorded, state.taken + taken);
    }

    /// Counts all tests of a part, also those of one that could not run.
    pub(crate) fn end_part(&self, name: &str) {
        let mut state = self.state();
        let ended = state.running.iter().filter(|part| part.name == name).map(|part| part.expected.tests);
        state.done += ended.sum::<usize>();
        state.running.retain(|part| part.name != name);
    }

    fn change(&self, name: &str, change: impl FnOnce(&mut Current)) {
        if let Some(part) = self.state().running.iter_mut().find(|part| part.name == name) {
            change(part);
        }
    }

    /// Shows the line again and again during the run.
    pub(crate) fn beside<T>(&self, during: impl FnOnce() -> T) -> T {
        std::thread::scope(|scope| {
            scope.spawn(|| self.show());
            let done = during();
            self.state().is_over = true;
            self.over.notify_all();
            done
        })
    }

    fn show(&self) {
        let (pace, print): (_, fn(&str)) = if terminal::is_terminal() {
            (ON_TERMINAL, terminal::show_progress)
        } else {
            (IN_FILE, terminal::say)
        };
        let mut state = self.state();
        while !state.is_over {
            let waited = self.over.wait_timeout_while(state, pace, |state| !state.is_over);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            if let Some(line) = state.line().filter(|_| !state.is_over) {
                print(&line);
            }
        }
        if terminal::is_terminal() {
            terminal::clear_progress();
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn line(&self) -> Option<String> {
        let part = self.running.last()?;
        let done = self.done + self.running.iter().map(|part| part.done).sum::<usize>();
        let all = format!("{done} of {} tests", self.total);
        let left = format_left(self.left());
        Some(match &part.waits {
            Some((supply, since, _)) => {
                let waited = since.elapsed().as_secs();
                format!("{}: waiting for {supply} for {waited} s; {all}; {left}", part.name)
            }
            None => format!("{}: {} of {}; {all}; {left}", part.name, part.done, part.expected.tests),
        })
    }

    fn left(&self) -> Duration {
        let later = self.coming.values().map(|part| part.wall);
        let recorded: Duration = later.chain(self.running.iter().map(Current::left)).sum();
        recorded.mul_f64(self.slowness())
    }

    /// How many times as long the tests of this run take. The first ones say little: they count as much as
    /// `BELIEVED` of tests that took as long as in the last run.
    fn slowness(&self) -> f64 {
        (self.taken + BELIEVED).as_secs_f64() / (self.recorded + BELIEVED).as_secs_f64()
    }
}

impl Current {
    /// The share of the part's time that its remaining tests have of the sum of all, and the rest of the wait.
    fn left(&self) -> Duration {
        let Expected { wall, sum, .. } = self.expected;
        let share = if sum.is_zero() { 0.0 } else { self.sum_done.as_secs_f64() / sum.as_secs_f64() };
        let wait = self.waits.iter().map(|(_, since, takes)| takes.saturating_sub(since.elapsed()));
        wall.mul_f64((1.0 - share).clamp(0.0, 1.0)) + wait.sum::<Duration>()
    }
}

fn format_left(left: Duration) -> String {
    match left.as_secs() {
        seconds @ 0..100 => format!("about {seconds} s left"),
        seconds => format!("about {} min left", (seconds + 30) / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expected(tests: usize, wall: u64, sum: u64) -> Expected {
        Expected { tests, wall: Duration::from_secs(wall), sum: Duration::from_secs(sum) }
    }

    fn progress() -> Progress {
        let parts = [("laws", expected(2, 40, 60)), ("page", expected(5, 300, 900))];
        Progress::new(parts.map(|(name, part)| (name.to_owned(), part)).into())
    }

    fn as_before(seconds: u64) -> (Duration, Duration) {
        (Duration::from_secs(seconds), Duration::from_secs(seconds))
    }

    #[track_caller]
    fn check(progress: &Progress, line: &str) {
        assert_eq!(progress.state().line().as_deref(), Some(line));
    }

    #[test]
    fn the_time_left_is_that_of_the_tests_that_have_not_ended() {
        let progress = progress();
        assert_eq!(progress.state().line(), None);
        progress.begin_part("laws");
        check(&progress, "laws: 0 of 2; 0 of 7 tests; about 6 min left");
        progress.end_test("laws", as_before(45));
        check(&progress, "laws: 1 of 2; 1 of 7 tests; about 5 min left");
        progress.end_part("laws");
        progress.begin_part("page");
        progress.end_test("page", as_before(720));
        check(&progress, "page: 1 of 5; 3 of 7 tests; about 60 s left");
        progress.end_test("page", as_before(720));
        check(&progress, "page: 2 of 5; 4 of 7 tests; about 0 s left");
    }

    #[test]
    fn the_time_left_grows_with_what_the_tests_of_this_run_take() {
        let progress = progress();
        progress.begin_part("page");
        check(&progress, "page: 0 of 5; 0 of 7 tests; about 6 min left");
        progress.end_test("page", (Duration::from_secs(180), Duration::from_secs(380)));
        check(&progress, "page: 1 of 5; 1 of 7 tests; about 9 min left");
    }

    #[test]
    fn a_wait_for_a_supply_is_reported_with_its_time() {
        let progress = progress();
        progress.begin_part("page");
        progress.begin_wait("page", "browsers", Duration::from_secs(600));
        check(&progress, "page: waiting for browsers for 0 s; 0 of 7 tests; about 16 min left");
        progress.end_wait("page");
        check(&progress, "page: 0 of 5; 0 of 7 tests; about 6 min left");
    }

    #[test]
    fn a_part_that_could_not_run_counts_whole() {
        let progress = progress();
        progress.begin_part("page");
        progress.end_part("page");
        progress.begin_part("laws");
        check(&progress, "laws: 0 of 2; 5 of 7 tests; about 40 s left");
    }

    #[test]
    fn the_last_tests_of_one_part_count_beside_those_of_the_next() {
        let progress = progress();
        progress.begin_part("laws");
        progress.end_test("laws", as_before(45));
        progress.begin_part("page");
        check(&progress, "page: 0 of 5; 1 of 7 tests; about 5 min left");
        progress.end_test("page", as_before(450));
        progress.end_part("laws");
        check(&progress, "page: 1 of 5; 3 of 7 tests; about 3 min left");
    }

    #[test]
    fn a_part_without_times_has_no_time_left() {
        let parts = BTreeMap::from([("new".to_owned(), Expected { tests: 3, ..Expected::default() })]);
        let progress = Progress::new(parts);
        progress.begin_part("new");
        progress.end_test("new", as_before(1));
        check(&progress, "new: 1 of 3; 1 of 3 tests; about 0 s left");
    }
}
