//! The table of all tests, `tests/parts.toml`: the tests, needs and guarded paths of each part.
//!
//! Invariant: a test belongs to the first part with a matching pattern, so to exactly one. Each name occurs once.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::Deserialize;

use crate::error::{SuiteError, at};

/// The table's path in the repository.
pub(crate) const TABLE: &str = "tests/parts.toml";

/// The command that runs a part: each command runs the parts of the one before it, and more.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Set {
    /// By `make test`.
    Test,
    /// By `make test-all`.
    All,
}

impl Set {
    /// The target of the Makefile.
    pub(crate) fn command(self) -> &'static str {
        match self {
            Self::Test => "test",
            Self::All => "test-all",
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Table {
    #[serde(rename = "part")]
    pub(crate) parts: Vec<Part>,
    #[serde(rename = "supply", default)]
    pub(crate) supplies: Vec<Supply>,
}

/// Tests that run together.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Part {
    pub(crate) name: String,
    /// The first command that runs it.
    pub(crate) by: Set,
    /// Patterns of `package/target/test`.
    #[serde(default)]
    pub(crate) tests: Vec<String>,
    /// Another program that runs them, with its arguments.
    #[serde(default)]
    pub(crate) command: Vec<String>,
    /// Whether it is due at each run, and before all others.
    #[serde(default)]
    pub(crate) first: bool,
    /// Requirements on the machine; names of `needs`.
    #[serde(default)]
    pub(crate) needs: Vec<String>,
    /// Supplies that are made before it, by name.
    #[serde(default)]
    pub(crate) supplies: Vec<String>,
    /// Kernels or releases: the part runs once for each, and `{turn}` is its name.
    #[serde(default)]
    pub(crate) turns: Vec<String>,
    #[serde(default)]
    pub(crate) env: BTreeMap<String, String>,
    /// How many tests run at once: the number of processors for computing tests, more for waiting ones.
    #[serde(default = "one")]
    pub(crate) at_once: usize,
    /// Whether a failed test may run again alone.
    #[serde(default = "yes")]
    pub(crate) again: bool,
    /// The seconds after which a test or the command is ended.
    pub(crate) limit: u64,
    /// Paths of the repository; a change below one makes the part due.
    pub(crate) guards: Vec<String>,
}

/// Something that parts need and that is made once.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Supply {
    pub(crate) name: String,
    /// `{turn}` is the requesting part's turn.
    pub(crate) command: Vec<String>,
}

fn one() -> usize {
    1
}

fn yes() -> bool {
    true
}

impl Table {
    pub(crate) fn read(root: &Path) -> Result<Self, SuiteError> {
        let path = root.join(TABLE);
        let text = fs::read_to_string(&path).map_err(at("read", &path))?;
        let table: Self =
            toml::from_str(&text).map_err(|source| SuiteError::Table { path, source: Box::new(source) })?;
        table.checked()
    }

    fn checked(self) -> Result<Self, SuiteError> {
        let mut names: Vec<&str> = self.parts.iter().map(|part| part.name.as_str()).collect();
        names.sort_unstable();
        if let Some(twice) = names.windows(2).find(|pair| pair.first() == pair.last()) {
            return Err(SuiteError::Wrong(format!("part {twice:?} stands twice")));
        }
        for part in &self.parts {
            part.check(&self.supplies)
                .map_err(|why| SuiteError::Wrong(format!("part {}: {why}", part.name)))?;
        }
        Ok(self)
    }
}

impl Part {
    fn check(&self, supplies: &[Supply]) -> Result<(), String> {
        if self.tests.is_empty() && self.command.is_empty() {
            return Err("it has neither tests nor a command".to_owned());
        }
        let unknown = self.supplies.iter().find(|name| !supplies.iter().any(|supply| supply.name == **name));
        unknown.map_or(Ok(()), |name| Err(format!("there is no supply {name}")))
    }

    /// Its runs: one for each turn, or one.
    pub(crate) fn runs(&self) -> Vec<Run> {
        let turns: Vec<Option<String>> =
            if self.turns.is_empty() { vec![None] } else { self.turns.iter().cloned().map(Some).collect() };
        turns.into_iter().map(|turn| Run { part: self.clone(), turn }).collect()
    }
}

/// A part in one of its turns.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub(crate) part: Part,
    pub(crate) turn: Option<String>,
}

impl Run {
    /// `host@trixie`, as in commands and records.
    pub(crate) fn name(&self) -> String {
        self.turn.as_ref().map_or_else(|| self.part.name.clone(), |turn| format!("{}@{turn}", self.part.name))
    }

    /// A part with defaults.
    #[cfg(test)]
    pub(crate) fn for_tests() -> Self {
        let text = "name = \"a\"\nby = \"test\"\nlimit = 600\nguards = []\ntests = [\"*\"]";
        Self { part: toml::from_str(text).unwrap_or_else(|error| panic!("{error}")), turn: None }
    }

    /// A word of the table with the turn inserted.
    pub(crate) fn with_turn(&self, word: &str) -> String {
        word.replace("{turn}", self.turn.as_deref().unwrap_or_default())
    }

    /// The environment of its tests for a target folder.
    pub(crate) fn environment(&self, target: &Path) -> Vec<(String, String)> {
        let target = target.display().to_string();
        let value = |value: &String| self.with_turn(value).replace("{target}", &target);
        self.part.env.iter().map(|(name, word)| (name.clone(), value(word))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Table, String> {
        let table: Table = toml::from_str(text).map_err(|error| error.message().to_owned())?;
        table.checked().map_err(|error| error.to_string())
    }

    const PART: &str = "[[part]]\nname = \"a\"\nby = \"test\"\nlimit = 1\nguards = []\n";

    #[track_caller]
    fn check_refused(text: &str, why: &str) {
        let said = read(text).unwrap_err();
        assert!(said.contains(why), "{said}");
    }

    #[test]
    fn a_part_has_tests_or_a_command_and_supplies_that_exist() {
        assert!(read(&format!("{PART}tests = [\"x/*\"]")).is_ok());
        check_refused(PART, "neither tests nor a command");
        check_refused(&format!("{PART}tests = [\"x/*\"]\nsupplies = [\"y\"]"), "no supply y");
        check_refused(&format!("{PART}tests = [\"x/*\"]\n{PART}tests = [\"z\"]"), "stands twice");
        check_refused(&format!("{PART}tests = [\"x/*\"]\nlimits = 3"), "unknown field");
    }

    #[test]
    fn a_part_with_turns_is_one_run_for_each() {
        let table =
            read(&format!("{PART}command = [\"x\", \"{{turn}}\"]\nturns = [\"5.10\", \"6.1\"]")).unwrap();
        let runs = table.parts[0].runs();
        assert_eq!(runs.iter().map(Run::name).collect::<Vec<_>>(), ["a@5.10", "a@6.1"]);
        assert_eq!(runs[1].with_turn("{turn}.log"), "6.1.log");
    }

    #[test]
    fn this_repositorys_table_parses() {
        Table::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")).unwrap();
    }
}
