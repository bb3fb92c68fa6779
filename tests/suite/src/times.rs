//! The last run time of each test.
//!
//! Invariant: it only decides which test begins first; without the file all tests run just as well.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use crate::report::TestTime;

#[derive(Debug)]
pub(crate) struct Times {
    path: PathBuf,
    known: BTreeMap<String, Duration>,
}

impl Times {
    pub(crate) fn read(path: PathBuf) -> Self {
        let text = fs::read_to_string(&path).unwrap_or_default();
        let rows = text.lines().filter_map(|line| line.split_once('\t'));
        let known = rows
            .filter_map(|(name, time)| Some((name.to_owned(), Duration::from_millis(time.parse().ok()?))));
        Self { known: known.collect(), path }
    }

    /// An unknown test begins before the short ones, because it may be long.
    pub(crate) fn last(&self, test: &str) -> Duration {
        self.known.get(test).copied().unwrap_or(Duration::from_secs(1))
    }

    pub(crate) fn learn<'a>(&mut self, times: impl Iterator<Item = &'a TestTime>) {
        self.known.extend(times.map(|time| (time.test.clone(), time.wall)));
    }

    /// Saves the times of existing tests. A failed write costs only the order.
    pub(crate) fn keep(&mut self, exists: impl Fn(&str) -> bool) {
        self.known.retain(|name, _| exists(name));
        let rows: String =
            self.known.iter().map(|(name, time)| format!("{name}\t{}\n", time.as_millis())).collect();
        let _ = fs::write(&self.path, rows);
    }
}
