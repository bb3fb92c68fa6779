//! The record of passed parts, `tests/ran.tsv`, with a row for each run and supply; and of tests that passed only at
//! their second try, `tests/unsteady.tsv`.
//!
//! Runs write their rows into the cache, because CI's clone goes with its machine; `make ran` moves them into the
//! repository as one landing.
//!
//! Invariant: only a fully passed run of a committed tree has a row; the newest is kept.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use crate::error::{SuiteError, at};

/// The path in the repository.
pub(crate) const RAN: &str = "tests/ran.tsv";
const UNSTEADY: &str = "tests/unsteady.tsv";

const SUPPLY: &str = "supply ";

const RAN_HEAD: &str = "# part\tlanding\tcommit\tday\tseconds\ttests";
const UNSTEADY_HEAD: &str = "# test\tcommit\tday";

/// The least seconds of a supply that was really made. A shorter one existed already; its row says nothing about other
/// machines, and stays in the cache, which holds the supply too.
const MADE_LEAST: u64 = 10;

/// The most that is read of the cache's file: it has a few rows for each landing.
const BYTES_MAX: usize = 1 << 20;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) part: String,
    /// The number of its landing; 0 before.
    pub(crate) landing: u32,
    pub(crate) commit: String,
    pub(crate) day: String,
    pub(crate) seconds: u64,
    pub(crate) tests: usize,
}

/// The newest row of each part.
pub(crate) type Rows = BTreeMap<String, Row>;

impl Row {
    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.split('\t');
        let mut next = || fields.next();
        Some(Self {
            part: next()?.to_owned(),
            landing: next()?.parse().ok()?,
            commit: next()?.to_owned(),
            day: next()?.to_owned(),
            seconds: next()?.parse().ok()?,
            tests: next()?.parse().ok()?,
        })
    }

    fn line(&self) -> String {
        let Self { part, landing, commit, day, seconds, tests } = self;
        format!("{part}\t{landing}\t{commit}\t{day}\t{seconds}\t{tests}\n")
    }
}

/// The cache's own files, next to the repository's.
#[derive(Debug)]
pub(crate) struct Records {
    root: PathBuf,
    cache: PathBuf,
}

impl Records {
    pub(crate) fn new(root: &Path, cache: &Path) -> Self {
        Self { root: root.to_owned(), cache: cache.to_owned() }
    }

    /// The repository's rows, with those that runs on this machine have added since.
    pub(crate) fn rows(&self) -> Result<Rows, SuiteError> {
        let mut rows = read(&self.root.join(RAN))?;
        rows.extend(read(&self.cache.join("ran.tsv"))?);
        Ok(rows)
    }

    pub(crate) fn add(&self, row: &Row) -> Result<(), SuiteError> {
        append(&self.cache.join("ran.tsv"), &row.line())
    }

    pub(crate) fn add_unsteady(
        &self,
        test: &str,
        (commit, day): &(String, String),
    ) -> Result<(), SuiteError> {
        append(&self.cache.join("unsteady.tsv"), &format!("{test}\t{commit}\t{day}\n"))
    }

    /// Moves the cache's rows into the repository as one landing, and returns their number. Rows of supplies that
    /// existed stay. Removed parts lose their rows.
    pub(crate) fn merge(&self, exists: impl Fn(&str) -> bool) -> Result<usize, SuiteError> {
        let path = self.root.join(RAN);
        let mut rows = read(&path)?;
        let landing = 1 + rows.values().map(|row| row.landing).max().unwrap_or_default();
        let news = read(&self.cache.join("ran.tsv"))?;
        let number = news.len();
        let was_there = |row: &Row| is_supply(&row.part) && row.seconds < MADE_LEAST;
        let (stay, news): (Vec<_>, Vec<_>) = news.into_iter().partition(|(_, row)| was_there(row));
        rows.extend(news.into_iter().map(|(part, row)| (part, Row { landing, ..row })));
        rows.retain(|part, _| exists(part));
        let lines: String = rows.values().map(Row::line).collect();
        write(&path, &format!("{RAN_HEAD}\n{lines}"))?;
        self.merge_unsteady()?;
        let stay: String = stay.iter().map(|(_, row)| row.line()).collect();
        write(&self.cache.join("ran.tsv"), &stay)?;
        Ok(number)
    }

    fn merge_unsteady(&self) -> Result<(), SuiteError> {
        let (path, cache) = (self.root.join(UNSTEADY), self.cache.join("unsteady.tsv"));
        let mut lines: Vec<String> =
            [text(&path)?, text(&cache)?].iter().flat_map(|text| facts(text)).collect();
        lines.sort();
        lines.dedup();
        let mut all = format!("{UNSTEADY_HEAD}\n");
        for line in lines {
            let _ = writeln!(all, "{line}");
        }
        write(&path, &all)?;
        write(&cache, "")
    }
}

/// The name of a supply's row.
pub(crate) fn supply_row(name: &str) -> String {
    format!("{SUPPLY}{name}")
}

/// Whether it is the row of a supply.
pub(crate) fn is_supply(part: &str) -> bool {
    part.starts_with(SUPPLY)
}

fn facts(text: &str) -> Vec<String> {
    text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
}

/// The rows of a file; none if it is missing.
fn read(path: &Path) -> Result<Rows, SuiteError> {
    let text = text(path)?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.starts_with('#'));
    let rows = lines.map(|(number, line)| {
        let wrong =
            || SuiteError::Row { path: path.to_owned(), line: number + 1, why: "six fields are expected" };
        Row::parse(line).map(|row| (row.part.clone(), row)).ok_or_else(wrong)
    });
    rows.collect()
}

fn text(path: &Path) -> Result<String, SuiteError> {
    match fs::read_to_string(path) {
        Ok(text) if text.len() <= BYTES_MAX => Ok(text),
        Ok(_) => Err(SuiteError::Row { path: path.to_owned(), line: 0, why: "it is too large" }),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(String::new()),
        Err(error) => Err(at("read", path)(error)),
    }
}

fn write(path: &Path, text: &str) -> Result<(), SuiteError> {
    let new = path.with_extension("new");
    fs::write(&new, text).and_then(|()| fs::rename(&new, path)).map_err(at("write", path))
}

/// Appends in one write, so that concurrent runs keep whole lines.
fn append(path: &Path, line: &str) -> Result<(), SuiteError> {
    let open = OpenOptions::new().create(true).append(true).open(path);
    open.and_then(|mut file| file.write_all(line.as_bytes())).map_err(at("write", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(part: &str, commit: &str) -> Row {
        let (part, commit) = (part.to_owned(), commit.to_owned());
        Row { part, landing: 0, commit, day: "2026-11-24".to_owned(), seconds: 7, tests: 3 }
    }

    fn records(folder: &Path) -> Records {
        fs::create_dir_all(folder.join("root/tests")).unwrap();
        fs::create_dir_all(folder.join("cache")).unwrap();
        Records::new(&folder.join("root"), &folder.join("cache"))
    }

    #[test]
    fn the_newest_row_of_a_part_counts_and_landings_are_numbered() {
        let folder = tempfile::tempdir().unwrap();
        let records = records(folder.path());
        ["one", "two"].iter().for_each(|commit| records.add(&row("laws", commit)).unwrap());
        assert_eq!(records.rows().unwrap()["laws"].commit, "two");
        assert_eq!(records.merge(|_| true).unwrap(), 1);
        records.add(&row("page", "three")).unwrap();
        records.merge(|_| true).unwrap();
        let rows = records.rows().unwrap();
        assert_eq!((rows["laws"].landing, rows["page"].landing), (1, 2));
        records.merge(|part| part == "page").unwrap();
        assert_eq!(records.rows().unwrap().into_keys().collect::<Vec<_>>(), ["page"]);
    }

    #[test]
    fn an_existing_supply_gives_a_time_for_this_machine_only() {
        let folder = tempfile::tempdir().unwrap();
        let records = records(folder.path());
        let name = supply_row("tools");
        for (seconds, everywhere) in [(400, 400), (1, 400)] {
            records.add(&Row { seconds, ..row(&name, "one") }).unwrap();
            records.merge(|_| true).unwrap();
            assert_eq!(records.rows().unwrap()[&name].seconds, seconds);
            assert_eq!(read(&folder.path().join("root").join(RAN)).unwrap()[&name].seconds, everywhere);
        }
    }

    #[test]
    fn an_unsteady_test_stays_until_it_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let records = records(folder.path());
        let commit = ("abc".to_owned(), "2026-11-24".to_owned());
        records.add_unsteady("a/b/c", &commit).unwrap();
        records.merge(|_| true).unwrap();
        records.merge(|_| true).unwrap();
        let text = fs::read_to_string(folder.path().join("root").join(UNSTEADY)).unwrap();
        assert_eq!(text, format!("{UNSTEADY_HEAD}\na/b/c\tabc\t2026-11-24\n"));
    }

    /// A part that CI has not run for longer proves nothing about today's code.
    const LANDINGS_MAX: u32 = 12;

    #[test]
    fn every_part_passed_within_twelve_landings() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let rows = read(&root.join(RAN)).unwrap();
        let now = rows.values().map(|row| row.landing).max().unwrap();
        let table = crate::table::Table::read(&root).unwrap();
        // `make test` has passed at every landing.
        let rest = table.parts.iter().filter(|part| part.by == crate::table::Set::All);
        let names = rest.flat_map(crate::table::Part::runs).map(|run| run.name());
        // A run that never passed counts from the first landing.
        let last = |name: &String| rows.get(name).map_or(0, |row| row.landing);
        let is_old = |name: &String| last(name) + LANDINGS_MAX < now;
        let old: Vec<String> = names.filter(is_old).map(|name| format!("make part PART={name}")).collect();
        assert!(old.is_empty(), "not passed for {LANDINGS_MAX} landings; then `make ran`: {old:?}");
    }

    #[test]
    fn an_unreadable_row_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        let records = records(folder.path());
        fs::write(folder.path().join("root").join(RAN), "# head\nlaws\tx\n").unwrap();
        let said = records.rows().unwrap_err().to_string();
        assert!(said.contains("ran.tsv line 2"), "{said}");
    }
}
