//! Selects the parts that a command runs.
//!
//! Invariant: of the due parts, those that the table calls `first` come first, then the one that waits longest, then
//! those with paths that changed since they passed, then the others, oldest first. By their former times, they fit into
//! the time limit together; but the one that waits longest runs also where it alone takes longer, so that each part has
//! its turn.

use crate::error::SuiteError;
use crate::record::{Row, Rows, supply_row};
use crate::slowdown::slow_row;
use crate::supply::wanted;
use crate::table::{Run, Set, Table};

/// The longest part that runs although the time limit is shorter, with what has to be built for it, in seconds. After
/// `make test` and the parts that come first it ends some 50 minutes after CI has begun.
const LONGEST_TURN: u64 = 1_800;

/// The requested parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Selection {
    Set(Set),
    /// Due parts of `make test-all`, for this many seconds.
    Due(u64),
    /// One part of `make test` for a slow run, which takes so many times as long, within this many seconds.
    SlowTurn {
        slow: u32,
        seconds: u64,
    },
    /// By name: `host`, `host@trixie`.
    Named(Vec<String>),
}

/// The requested runs, in the table's order.
pub(crate) fn choose(
    asked: &Selection,
    table: &Table,
    rows: &Rows,
    changed: impl Fn(&Row, &Run) -> bool,
) -> Result<Vec<Run>, SuiteError> {
    let all: Vec<Run> = table.parts.iter().flat_map(crate::table::Part::runs).collect();
    match asked {
        Selection::Set(set) => Ok(all.into_iter().filter(|run| run.part.by <= *set).collect()),
        Selection::Named(names) => named(names, &all),
        Selection::Due(seconds) => Ok(due(*seconds, all, table, rows, changed)),
        Selection::SlowTurn { slow, seconds } => Ok(slow_turn(all, rows, (*slow, *seconds))),
    }
}

/// The part whose slow run is the oldest, of those that fit into the time limit.
fn slow_turn(all: Vec<Run>, rows: &Rows, (slow, seconds): (u32, u64)) -> Vec<Run> {
    let fits =
        |run: &Run| rows.get(&run.name()).is_some_and(|row| (row.seconds + 1) * u64::from(slow) <= seconds);
    let landing = |run: &Run| rows.get(&slow_row(&run.name())).map_or(0, |row| row.landing);
    let fitting = all.into_iter().filter(|run| run.part.by == Set::Test && fits(run));
    fitting.min_by_key(landing).into_iter().collect()
}

fn named(names: &[String], all: &[Run]) -> Result<Vec<Run>, SuiteError> {
    let of = |name: &String| -> Result<Vec<Run>, SuiteError> {
        let found: Vec<Run> =
            all.iter().filter(|run| run.part.name == *name || run.name() == *name).cloned().collect();
        if found.is_empty() { Err(SuiteError::NoPart(name.clone())) } else { Ok(found) }
    };
    names.iter().map(of).collect::<Result<Vec<_>, _>>().map(|found| found.into_iter().flatten().collect())
}

fn due(
    seconds: u64,
    all: Vec<Run>,
    table: &Table,
    rows: &Rows,
    changed: impl Fn(&Row, &Run) -> bool,
) -> Vec<Run> {
    let rest = all.into_iter().filter(|run| run.part.by == Set::All);
    let mut rest: Vec<(bool, u32, Run)> = rest
        .map(|run| {
            let row = rows.get(&run.name());
            let stays = row.is_some_and(|row| !changed(row, &run));
            (stays, row.map_or(0, |row| row.landing), run)
        })
        .collect();
    let supplies = |run: &Run| wanted(table, run).into_iter().map(|supply| supply.name).collect::<Vec<_>>();
    let may_wait = |(_, _, run): &&(bool, u32, Run)| {
        !run.part.first && cost(run, supplies(run).iter(), rows) <= LONGEST_TURN
    };
    let longest_waiting = rest.iter().filter(may_wait).min_by_key(|(_, landing, _)| *landing);
    let longest_waiting = longest_waiting.map(|(_, _, run)| run.name());
    let has_turn = |run: &Run| Some(run.name()) == longest_waiting;
    rest.sort_by_key(|(stays, landing, run)| (!run.part.first, !has_turn(run), *stays, *landing));
    let mut left = seconds;
    let (mut chosen, mut made) = (Vec::new(), Vec::new());
    for (_, _, run) in rest {
        let supplies = supplies(&run);
        let missing = supplies.iter().filter(|name| !made.contains(*name));
        let cost = cost(&run, missing, rows);
        if cost <= left || has_turn(&run) {
            left = left.saturating_sub(cost);
            made.extend(supplies);
            chosen.push(run);
        }
    }
    chosen
}

/// The expected seconds of a run: its last time plus that of its missing supplies. A run that never ran counts with
/// its limit.
fn cost<'a>(run: &Run, supplies: impl Iterator<Item = &'a String>, rows: &Rows) -> u64 {
    let own = rows.get(&run.name()).map_or(run.part.limit, |row| row.seconds);
    own + supplies.filter_map(|name| rows.get(&supply_row(name))).map(|row| row.seconds).sum::<u64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let part = |name: &str, by: &str, more: &str| {
            format!(
                "[[part]]\nname = \"{name}\"\nby = \"{by}\"\nlimit = 500\nguards = [\"{name}\"]\ncommand = [\"x\"]\n{more}\n"
            )
        };
        let text = [
            part("laws", "test", ""),
            part("page", "all", "supplies = [\"tools\"]"),
            part("host", "all", "turns = [\"a\", \"b\"]\nsupplies = [\"tools\"]"),
            part("never", "all", ""),
            "[[supply]]\nname = \"tools\"\ncommand = [\"t\"]".to_owned(),
        ];
        toml::from_str(&text.concat()).unwrap()
    }

    fn rows(known: &[(&str, u32, u64)]) -> Rows {
        let row = |(part, landing, seconds): &(&str, u32, u64)| {
            let part = (*part).to_owned();
            let row = Row {
                part: part.clone(),
                landing: *landing,
                commit: "c".to_owned(),
                day: "d".to_owned(),
                seconds: *seconds,
                tests: 1,
            };
            (part, row)
        };
        known.iter().map(row).collect()
    }

    #[track_caller]
    fn check(asked: &Selection, known: &[(&str, u32, u64)], changed: &[&str], expected: &[&str]) {
        let changed = |_: &Row, run: &Run| changed.contains(&run.part.name.as_str());
        let chosen = choose(asked, &table(), &rows(known), changed).unwrap();
        assert_eq!(chosen.iter().map(Run::name).collect::<Vec<_>>(), expected, "{asked:?}");
    }

    #[test]
    fn slow_runs_take_turns_among_the_parts_that_fit() {
        let turn = Selection::SlowTurn { slow: 4, seconds: 100 };
        check(&turn, &[], &[], &[]);
        check(&turn, &[("laws", 3, 20)], &[], &["laws"]);
        check(&turn, &[("laws", 3, 25), ("page", 3, 1)], &[], &[]);
        check(&turn, &[("laws", 3, 20), ("slow laws", 2, 80)], &[], &["laws"]);
    }

    #[test]
    fn each_command_runs_the_parts_of_the_previous_one() {
        check(&Selection::Set(Set::Test), &[], &[], &["laws"]);
        check(&Selection::Set(Set::All), &[], &[], &["laws", "page", "host@a", "host@b", "never"]);
    }

    #[test]
    fn a_part_is_named_alone_or_with_its_turn() {
        let named = |names: &[&str]| Selection::Named(names.iter().map(|name| (*name).to_owned()).collect());
        check(&named(&["host"]), &[], &[], &["host@a", "host@b"]);
        check(&named(&["host@b", "laws"]), &[], &[], &["host@b", "laws"]);
        let wrong = choose(&named(&["hots"]), &table(), &Rows::new(), |_, _| false).unwrap_err().to_string();
        assert!(wrong.contains("hots"), "{wrong}");
    }

    #[test]
    fn the_oldest_part_runs_first_and_then_changed_ones() {
        let known = [("page", 3, 100), ("host@a", 1, 100), ("host@b", 2, 100), ("never", 4, 100)];
        check(&Selection::Due(100), &known, &[], &["host@a"]);
        check(&Selection::Due(200), &known, &["never"], &["host@a", "never"]);
        check(&Selection::Due(1_000), &known, &[], &["host@a", "host@b", "page", "never"]);
    }

    #[test]
    fn a_part_that_is_always_due_runs_before_all_others() {
        let mut table = table();
        table.parts.iter_mut().filter(|part| part.name == "never").for_each(|part| part.first = true);
        let known = rows(&[("page", 1, 100), ("host@a", 1, 100), ("host@b", 1, 100), ("never", 4, 100)]);
        let changed = |_: &Row, run: &Run| run.part.name == "page";
        let chosen = choose(&Selection::Due(200), &table, &known, changed).unwrap();
        assert_eq!(chosen.iter().map(Run::name).collect::<Vec<_>>(), ["never", "page"]);
    }

    #[test]
    fn supplies_cost_once_and_parts_that_do_not_fit_wait() {
        let known = [
            ("page", 1, 100),
            ("host@a", 2, 100),
            ("host@b", 3, 100),
            ("never", 4, 50),
            ("supply tools", 1, 150),
        ];
        check(&Selection::Due(260), &known, &[], &["page"]);
        check(&Selection::Due(301), &known, &[], &["page", "never"]);
        check(&Selection::Due(400), &known, &[], &["page", "host@a", "never"]);
    }

    #[test]
    fn the_part_that_waits_longest_runs_although_it_takes_longer_than_the_limit() {
        let known = |oldest| [("page", 1, oldest), ("host@a", 2, 90), ("host@b", 3, 90), ("never", 4, 10)];
        check(&Selection::Due(100), &known(LONGEST_TURN), &[], &["page"]);
        check(&Selection::Due(100), &known(LONGEST_TURN), &["never"], &["page"]);
        check(&Selection::Due(100), &known(LONGEST_TURN + 1), &[], &["host@a", "never"]);
    }

    #[test]
    fn a_part_that_never_ran_is_due_if_its_limit_fits() {
        check(
            &Selection::Due(500),
            &[("page", 1, 10), ("host@a", 1, 10), ("host@b", 1, 10)],
            &[],
            &["never"],
        );
    }
}
