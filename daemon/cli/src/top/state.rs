//! What `top` knows, and what its user has asked for by keys.
//!
//! Invariant: the selected service stays selected wherever new answers and another order put it.

use std::time::{Duration, Instant};

use holdfast_core::facts::Timestamp;
use holdfast_status::printable::sanitise_line;
use holdfast_status::rfc3339::Rfc3339;

use super::keys::Key;
use super::rows::{Column, Row, select_rows};

/// The most characters of a filter.
const FILTER_CHARS_MAX: usize = 64;

/// An answer that is older than this is late, also on a large node.
const LATE: Duration = Duration::from_secs(30);

/// How many rows a page has.
const PAGE: isize = 10;

/// One round of answers.
#[derive(Debug)]
pub(super) struct Answers {
    /// The daemon's clock, and ours at the same moment.
    now: Option<(Timestamp, Instant)>,
    /// What the status says before its sections, and in them.
    pub(super) head: Vec<String>,
    pub(super) attention: Vec<String>,
    /// The latest changes, newest first.
    pub(super) changes: Vec<String>,
    pub(super) rows: Vec<Row>,
    received: Instant,
}

/// The lines of a status that every screen shows.
const HEAD_WORDS: [&str; 3] = ["holdfast ", "ready ", "verdicts "];

impl Answers {
    pub(super) fn new(
        now: Option<Rfc3339>,
        (status, changes): (&str, &str),
        rows: Vec<Row>,
        notes: &[String],
    ) -> Self {
        let (summary, sections) = status.split_once("\n\n").unwrap_or((status, ""));
        let is_head = |line: &&str| HEAD_WORDS.iter().any(|word| line.starts_with(word));
        let notes = notes.iter().flat_map(|note| note.lines());
        let head = notes.chain(summary.lines().filter(is_head));
        let attention = sections.lines().filter(|line| !line.is_empty());
        let received = Instant::now();
        Self {
            now: now.map(|now| (now.0, received)),
            head: head.map(sanitise_line).collect(),
            attention: attention.map(sanitise_line).collect(),
            changes: changes.lines().rev().map(sanitise_line).collect(),
            rows,
            received,
        }
    }

    /// The daemon's clock now; without it, the time at which nothing has an age.
    pub(super) fn now(&self) -> Timestamp {
        self.now.map_or(Timestamp(0), |(then, at)| {
            Timestamp(then.0.saturating_add(i64::try_from(at.elapsed().as_secs()).unwrap_or(i64::MAX)))
        })
    }
}

/// Everything behind one screen.
#[derive(Debug)]
pub(super) struct State {
    pub(super) answers: Option<Answers>,
    /// Why the last query has no answer, and since when there is none.
    outage: Option<String>,
    begun: Instant,
    pub(super) filter: String,
    pub(super) column: Column,
    pub(super) is_reversed: bool,
    /// The selected service; `None`: the first row.
    selected: Option<String>,
    /// The rows that are shown, by their places in the answer; they are sorted when something changes.
    shown: Vec<usize>,
    /// The first row on the screen.
    pub(super) first: usize,
}

impl Default for State {
    fn default() -> Self {
        Self {
            answers: None,
            outage: None,
            begun: Instant::now(),
            filter: String::new(),
            column: Column::Verdict,
            is_reversed: false,
            selected: None,
            shown: Vec::new(),
            first: 0,
        }
    }
}

impl State {
    pub(super) fn update(&mut self, answered: Result<Answers, String>) {
        match answered {
            Ok(answers) => (self.answers, self.outage) = (Some(answers), None),
            Err(why) => self.outage = Some(why),
        }
        self.sort();
    }

    /// Obeys a key. Returns whether it ends `top`.
    pub(super) fn press(&mut self, key: Key) -> bool {
        match key {
            Key::Quit => return true,
            Key::Escape | Key::Text('q' | 'Q') if self.filter.is_empty() => return true,
            // A slash begins a filter, as in other programs, also one whose first letter is a q.
            Key::Text('/') if self.filter.is_empty() => self.filter.push(' '),
            Key::Text(letter) if self.filter.chars().count() < FILTER_CHARS_MAX => self.filter.push(letter),
            Key::Text(_) => {}
            Key::Backspace => drop(self.filter.pop()),
            Key::Escape | Key::ClearLine => self.filter.clear(),
            Key::Left => self.column = self.column.step(-1),
            Key::Right => self.column = self.column.step(1),
            Key::Tab => self.is_reversed = !self.is_reversed,
            Key::Up => self.move_selection(-1),
            Key::Down => self.move_selection(1),
            Key::PageUp => self.move_selection(-PAGE),
            Key::PageDown => self.move_selection(PAGE),
            Key::Home => self.move_selection(isize::MIN),
            Key::End => self.move_selection(isize::MAX),
        }
        self.sort();
        false
    }

    fn sort(&mut self) {
        let rows = self.answers.as_ref().map_or(&[][..], |answers| &answers.rows);
        self.shown = select_rows(rows, &self.filter, (self.column, self.is_reversed));
    }

    fn move_selection(&mut self, by: isize) {
        let last = self.shown.len().saturating_sub(1);
        let place = self.selected_place().saturating_add_signed(by).min(last);
        self.selected = self.row(place).map(|row| row.service.clone());
    }

    pub(super) fn shown_count(&self) -> usize {
        self.shown.len()
    }

    /// The row at a place of the screen's order.
    pub(super) fn row(&self, place: usize) -> Option<&Row> {
        self.answers.as_ref()?.rows.get(*self.shown.get(place)?)
    }

    /// The place of the selected row; the first one if it is gone or filtered out.
    pub(super) fn selected_place(&self) -> usize {
        let Some(selected) = &self.selected else { return 0 };
        let is_it = |place: &usize| self.row(*place).is_some_and(|row| row.service == *selected);
        (0..self.shown.len()).find(is_it).unwrap_or_default()
    }

    /// What the screen says while the daemon has not answered.
    pub(super) fn describe_outage(&self) -> Option<String> {
        let age = |since: Instant| since.elapsed().as_secs();
        let known = self.answers.as_ref().map(|answers| age(answers.received));
        let what_follows = |age: u64| format!("; what follows is {age} s old");
        match (&self.outage, known) {
            (Some(why), known) => {
                let why = sanitise_line(why.lines().map(str::trim).collect::<Vec<_>>().join(" ").as_str());
                Some(format!("error: {why}{}", known.map(what_follows).unwrap_or_default()))
            }
            (None, None) => Some(format!("asking the daemon for {} s", age(self.begun))),
            (None, Some(late)) if late >= LATE.as_secs() => {
                Some(format!("error: the daemon has not answered for {late} s{}", what_follows(late)))
            }
            (None, Some(_)) => None,
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::rows::tests::{NOW, row};
    use super::*;

    pub(in super::super) fn answers(count: u64) -> Answers {
        let row = |number: u64| match number % 3 {
            0 => row(&format!("s{number:05}"), "refusing", Some("vanished"), (10, number)),
            _ => row(&format!("s{number:05}"), "serving", None, (20, number)),
        };
        let status = "holdfast 1.0 on n1, since 2026-01-08T11:10:55Z (4 min ago)\nready      yes\ndatapath   kernel\n\
                      verdicts   2 serving\n\nnot serving\n  1 refusing (vanished): demo/s00000\n";
        let changes = "2026-01-08T11:11:55.000Z (3 min ago) #1 demo/a\n2026-01-08T11:11:56.000Z (2 min ago) #2 demo/b\n";
        Answers::new(Some(Rfc3339(NOW)), (status, changes), (0..count).map(row).collect(), &[])
    }

    fn state(count: u64) -> State {
        let mut state = State::default();
        state.update(Ok(answers(count)));
        state
    }

    fn press(state: &mut State, keys: &[Key]) -> bool {
        keys.iter().any(|key| state.press(*key))
    }

    fn selected_service(state: &State) -> &str {
        state.row(state.selected_place()).map_or("none", |row| &row.service)
    }

    #[test]
    fn typing_filters_and_escape_takes_it_back_before_it_ends() {
        let mut state = state(10);
        assert!(!press(&mut state, &"REFUSING".chars().map(Key::Text).collect::<Vec<_>>()));
        assert_eq!(state.shown_count(), 4);
        assert!(!press(&mut state, &[Key::Backspace, Key::ClearLine]));
        assert_eq!(state.shown_count(), 10);
        assert!(!press(&mut state, &[Key::Text('/'), Key::Text('q'), Key::Escape]));
        assert!(press(&mut state, &[Key::Escape]));
        assert!(press(&mut state, &[Key::Text('q')]) && press(&mut state, &[Key::Quit]));
    }

    #[test]
    fn the_selected_service_stays_selected() {
        let mut state = state(10);
        assert_eq!(selected_service(&state), "demo/s00000", "the worst one is first");
        press(&mut state, &[Key::Down, Key::Down]);
        assert_eq!(selected_service(&state), "demo/s00006");
        press(&mut state, &[Key::Left, Key::Tab]);
        assert_eq!((selected_service(&state), state.selected_place()), ("demo/s00006", 3));
        press(&mut state, &[Key::End]);
        assert_eq!(selected_service(&state), "demo/s00000");
        press(&mut state, &[Key::PageDown, Key::Home, Key::Up]);
        assert_eq!(selected_service(&state), "demo/s00009");
        state.update(Ok(answers(5)));
        assert_eq!(state.selected_place(), 0, "it is gone");
    }

    #[test]
    fn an_outage_says_how_old_the_rest_is() {
        let mut state = State::default();
        assert_eq!(state.describe_outage().as_deref(), Some("asking the daemon for 0 s"));
        state.update(Err("cannot reach the daemon:\n  /run/x: refused\nhint: is it running?".to_owned()));
        let why = "error: cannot reach the daemon: /run/x: refused hint: is it running?";
        assert_eq!(state.describe_outage().as_deref(), Some(why));
        state.update(Ok(answers(1)));
        assert_eq!(state.describe_outage(), None);
        state.update(Err("a\u{1b}[2J".to_owned()));
        assert_eq!(state.describe_outage().as_deref(), Some("error: a?[2J; what follows is 0 s old"));
        assert_eq!(state.shown_count(), 1, "the last known state stays");
    }
}
