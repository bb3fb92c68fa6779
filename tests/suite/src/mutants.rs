//! Mutants: small mistakes, each with the tests that must catch it: `make mutants`.
//!
//! All mutants are compiled at once into a copy of the tree, each behind its number in an environment variable, so
//! that one build serves every run.
//!
//! Invariant: nothing is written to the checkout except the target folder. Without a number, the copy behaves as the
//! checkout, and a run first shows that all tests pass in it.

mod scratch;
mod table;
mod weave;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use crate::built::{Program, Test};
use crate::error::{SuiteError, at};
use crate::pattern::fits;
use crate::process;
use crate::session::Places;
use crate::terminal::say;
use scratch::Scratch;
use table::{Mutants, Row};

/// The variable with the active mutant's number; 0 or unset means none.
const NUMBER: &str = "HOLDFAST_MUTANT";

/// A longer test has failed: without a mutant each takes seconds, and a minute on a busy machine.
const LIMIT: Duration = Duration::from_secs(600);

/// Runs the rows of the files whose paths contain `only`. The exit code is 0 if each mutant was caught.
pub(crate) fn run(places: &Places, only: &str) -> Result<ExitCode, SuiteError> {
    let mutants = Mutants::read(&places.root)?;
    let scratch = Scratch::fill(places, &mutants)?;
    let rows: Vec<(usize, &Row)> = mutants.numbered().filter(|(_, row)| row.file.contains(only)).collect();
    say(&format!(
        "compiles {} mistakes into {}, which takes minutes",
        mutants.rows.len(),
        scratch.tree.display()
    ));
    let tests = Tests::find(&scratch, &rows)?;
    tests.check_without_mistake(&scratch, &rows)?;
    let mut caught = 0;
    for (number, row) in &rows {
        let missed = tests.missed(&scratch, *number, row)?;
        caught += usize::from(missed.is_empty());
        say(&line(*number, row, &missed));
    }
    say(&format!("{caught} of {} caught", rows.len()));
    Ok(ExitCode::from(u8::from(caught < rows.len())))
}

fn line(number: usize, row: &Row, missed: &[&str]) -> String {
    let verdict = if missed.is_empty() { "caught" } else { "NOT CAUGHT" };
    let (file, mistake) = (&row.file, &row.mistake);
    let by = if missed.is_empty() { row.tests.join(", ") } else { missed.join(", ") };
    format!("{verdict:<10} {number:>3} {file}: {} -> {mistake} by {by}", row.original())
}

/// The tests of the rows' patterns.
struct Tests(BTreeMap<String, Vec<Test>>);

impl Tests {
    fn find(scratch: &Scratch, rows: &[(usize, &Row)]) -> Result<Self, SuiteError> {
        let patterns: Vec<&String> = rows.iter().flat_map(|(_, row)| &row.tests).collect();
        let mut all = Vec::new();
        for program in scratch.build(&patterns)?.iter().filter(|program| is_meant(program, &patterns)) {
            all.extend(program.tests()?);
        }
        let mut found = BTreeMap::new();
        for pattern in patterns {
            let fitting: Vec<Test> = all.iter().filter(|test| fits(pattern, &test.name)).cloned().collect();
            if fitting.is_empty() {
                return Err(SuiteError::Mutant(format!("no test fits {pattern}")));
            }
            found.insert(pattern.clone(), fitting);
        }
        Ok(Self(found))
    }

    fn fitting(&self, pattern: &str) -> &[Test] {
        self.0.get(pattern).map_or(&[], Vec::as_slice)
    }

    /// A test that fails without a mutant would seem to catch every mutant.
    fn check_without_mistake(&self, scratch: &Scratch, rows: &[(usize, &Row)]) -> Result<(), SuiteError> {
        let mut tests: Vec<&Test> =
            rows.iter().flat_map(|(_, row)| &row.tests).flat_map(|it| self.fitting(it)).collect();
        tests.sort_by(|one, other| one.name.cmp(&other.name));
        tests.dedup_by(|one, other| one.name == other.name);
        let mut failed = Vec::new();
        for test in &tests {
            // Clocks and real traffic can be late on a busy machine, so a failure needs a second one.
            if !passes(scratch, test, 0)? && !passes(scratch, test, 0)? {
                failed.push(test.name.clone());
            }
        }
        if failed.is_empty() {
            say(&format!("{} tests pass without a mistake", tests.len()));
            return Ok(());
        }
        Err(SuiteError::Mutant(format!("these tests fail without any mistake: {}", failed.join(", "))))
    }

    /// The patterns of a row whose tests all pass despite the mutant.
    fn missed<'a>(&self, scratch: &Scratch, number: usize, row: &'a Row) -> Result<Vec<&'a str>, SuiteError> {
        let mut missed = Vec::new();
        for pattern in &row.tests {
            let mut is_caught = false;
            for test in self.fitting(pattern) {
                is_caught = is_caught || !passes(scratch, test, number)?;
            }
            if !is_caught {
                missed.push(pattern.as_str());
            }
        }
        Ok(missed)
    }
}

/// Whether a pattern names a test of the program.
fn is_meant(program: &Program, patterns: &[&String]) -> bool {
    let name = format!("{}/", program.name);
    patterns.iter().any(|pattern| pattern.starts_with(&name))
}

fn passes(scratch: &Scratch, test: &Test, number: usize) -> Result<bool, SuiteError> {
    let mut command = test.program.command();
    command.args(&test.arguments).env(NUMBER, number.to_string());
    let log = scratch.log(number, &test.name);
    log.parent().map_or(Ok(()), std::fs::create_dir_all).map_err(at("create the folder of", &log))?;
    Ok(process::run(&mut command, LIMIT, &log)?.passed)
}
