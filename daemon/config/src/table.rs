//! A cursor over one table of the document, and the one list of legal keys.
//!
//! Invariant: the keys that are legal in a table are those that its reader asked for; there is no second list to keep
//! in step. Whatever the reader did not ask for is reported as unknown when the table is left. Nothing returns early: a
//! bad value is reported and reads as absent, and reading goes on.

use std::path::PathBuf;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::problem::{ConfigErrors, Subject};
use super::report::{Report, Site};
use super::value::{expected, path_text, unknown};
use super::{file, limits};

/// A value that was read, and where.
#[derive(Clone, Debug)]
pub(crate) struct Found<T> {
    pub(super) value: T,
    pub(super) site: Site,
}

/// What a list may hold.
#[derive(Debug)]
pub(crate) struct Items {
    /// What the items are, for a message.
    pub(super) what: &'static str,
    pub(super) when_empty: WhenEmpty,
    pub(super) most: usize,
}

/// What becomes of an empty list.
#[derive(Debug)]
pub(super) enum WhenEmpty {
    Refused,
    /// It is legal and seldom meant; the text is the warning.
    Doubtful(&'static str),
    Fine,
}

impl Items {
    fn judge(&self, report: &mut Report<'_>, site: &Site, count: usize) {
        match (count, &self.when_empty) {
            (0, WhenEmpty::Refused) => {
                report.error(site, format!("the list is empty: it needs {}", self.what));
            }
            (0, WhenEmpty::Doubtful(message)) => report.warning(site, (*message).to_owned()),
            _ if count > self.most => {
                report.error(site, format!("{count} items are too many: at most {}", self.most));
            }
            _ => (),
        }
    }
}

/// One open table.
#[derive(Debug)]
pub(super) struct Table<'r, 'd, 't> {
    report: &'r mut Report<'t>,
    // None: the table is absent, or the value is no table, which is reported.
    entries: Option<&'d DeTable<'d>>,
    site: Site,
    path: String,
    asked: Vec<&'static str>,
    // The keys whose values are good, and where these are.
    good: Vec<(&'static str, Site)>,
}

impl<'r, 'd, 't> Table<'r, 'd, 't> {
    /// Reads the text of a file, and returns what is wrong with it so far beside what it says.
    pub(super) fn read_text<T>(
        text: &'t str,
        file_name: &'t str,
        read: impl FnOnce(&mut Table<'_, '_, 't>) -> T,
    ) -> Result<(Report<'t>, T), ConfigErrors> {
        if text.len() > limits::FILE_BYTES_MAX {
            return Err(ConfigErrors::of_file(file_name, None, file::too_large()));
        }
        let mut report = Report::new(file_name, text);
        let (document, syntax) = DeTable::parse_recoverable(text);
        for error in &syntax {
            report.syntax(error.span(), error.message());
        }
        let said = Table::read_document(&mut report, document.get_ref(), read);
        Ok((report, said))
    }

    /// Reads the whole document, from its top level on.
    fn read_document<T>(
        report: &'r mut Report<'t>,
        document: &'d DeTable<'d>,
        read: impl FnOnce(&mut Table<'_, 'd, 't>) -> T,
    ) -> T {
        let site = Site { place: Subject::File, offset: 0 };
        let mut root = Self {
            report,
            entries: Some(document),
            site,
            path: String::new(),
            asked: Vec::new(),
            good: Vec::new(),
        };
        root.read_to_end(read)
    }

    /// The problems so far, for checks over several values.
    pub(super) fn report(&mut self) -> &mut Report<'t> {
        self.report
    }

    /// Where this table is.
    pub(super) fn site(&self) -> &Site {
        &self.site
    }

    /// Whether the file has this key here, good or bad.
    pub(super) fn has(&self, key: &str) -> bool {
        self.entries.is_some_and(|entries| entries.contains_key(key))
    }

    /// Where the value of `key` is, if it was read as a single value and is good.
    pub(super) fn good_site(&self, key: &str) -> Option<Site> {
        self.good.iter().find(|(good, _)| *good == key).map(|(_, site)| site.clone())
    }

    /// Puts these keys first in the list of legal keys that messages give.
    pub(super) fn name_first(&mut self, keys: &[&'static str]) {
        self.asked.extend(keys);
    }

    /// The value of `key`, if it is there and good.
    pub(super) fn take<T>(
        &mut self,
        key: &'static str,
        read: impl FnOnce(&DeValue<'_>) -> Result<T, String>,
    ) -> Option<T> {
        self.find(key, read).map(|found| found.value)
    }

    /// As [`Table::take`], with the place.
    pub(super) fn find<T>(
        &mut self,
        key: &'static str,
        read: impl FnOnce(&DeValue<'_>) -> Result<T, String>,
    ) -> Option<Found<T>> {
        let (site, value) = self.entry(key)?;
        match read(value) {
            Ok(value) => {
                self.good.push((key, site.clone()));
                Some(Found { value, site })
            }
            Err(message) => {
                self.report.error(&site, message);
                None
            }
        }
    }

    /// As [`Table::take`], for a key that must be there.
    pub(super) fn require<T>(
        &mut self,
        key: &'static str,
        read: impl FnOnce(&DeValue<'_>) -> Result<T, String>,
    ) -> Option<T> {
        self.require_key(key);
        self.take(key, read)
    }

    /// Reports `key` if it is absent.
    pub(super) fn require_key(&mut self, key: &'static str) {
        if !self.has(key) && self.report.is_whole() {
            self.report.error(&self.site, format!("the key {key:?} is missing, and it has no default"));
        }
    }

    /// A path; a relative one starts from the folder of the configuration file.
    pub(super) fn path(&mut self, key: &'static str) -> Option<Found<PathBuf>> {
        let found = self.find(key, path_text)?;
        Some(Found { value: self.report.resolve(&found.value), site: found.site })
    }

    /// The good items of a list; each bad one is reported on its own.
    pub(super) fn list<T>(
        &mut self,
        key: &'static str,
        items: &Items,
        read: impl Fn(&DeValue<'_>) -> Result<T, String>,
    ) -> Option<Vec<Found<T>>> {
        let (site, value) = self.entry(key)?;
        let DeValue::Array(values) = value else {
            self.report.error(&site, expected(&format!("a list of {}", items.what), value));
            return None;
        };
        items.judge(self.report, &site, values.len());
        let mut found = Vec::new();
        for (index, item) in values.iter().take(items.most).enumerate() {
            let site = self.item_site(key, index, item);
            match read(item.get_ref()) {
                Ok(value) => found.push(Found { value, site }),
                Err(message) => self.report.error(&site, message),
            }
        }
        Some(found)
    }

    /// Reads the table `key`; an absent one reads as an empty one.
    pub(super) fn table<T>(
        &mut self,
        key: &'static str,
        read: impl FnOnce(&mut Table<'_, 'd, 't>) -> T,
    ) -> T {
        let path = self.key_path(key);
        // A table within a block has no header that would name it.
        let place =
            if path.contains('[') { Subject::Key(path.clone()) } else { Subject::Table(path.clone()) };
        let site = Site { place, offset: self.site.offset };
        let (site, entries) = match self.entry(key) {
            Some((Site { offset, .. }, DeValue::Table(entries))) => (Site { offset, ..site }, Some(entries)),
            Some((at, value)) => {
                self.report.error(&at, expected("a table", value));
                (site, None)
            }
            None => (site, None),
        };
        self.child(entries, site, path).read_to_end(read)
    }

    /// As [`Table::flow_table`]; none if the file does not have the table.
    pub(super) fn optional_table<T>(
        &mut self,
        key: &'static str,
        read: impl FnOnce(&mut Table<'_, 'd, 't>) -> T,
    ) -> Option<T> {
        let present = self.has(key);
        let value = self.table(key, read);
        present.then_some(value)
    }

    /// Reads each `[[key]]` block.
    pub(super) fn blocks<T>(
        &mut self,
        key: &'static str,
        blocks_max: usize,
        mut read: impl FnMut(&mut Table<'_, 'd, 't>) -> T,
    ) -> Vec<T> {
        let Some((site, value)) = self.entry(key) else { return Vec::new() };
        let DeValue::Array(blocks) = value else {
            self.report.error(&site, expected(&format!("[[{key}]] blocks"), value));
            return Vec::new();
        };
        if blocks.len() > blocks_max {
            self.report.error(&site, format!("{} blocks are too many: at most {blocks_max}", blocks.len()));
        }
        let blocks = blocks.iter().take(blocks_max).enumerate();
        blocks.filter_map(|(index, block)| self.block(key, index, block, &mut read)).collect()
    }

    fn block<T>(
        &mut self,
        key: &str,
        index: usize,
        block: &'d Spanned<DeValue<'d>>,
        read: impl FnOnce(&mut Table<'_, 'd, 't>) -> T,
    ) -> Option<T> {
        let site = self.item_site(key, index, block);
        let DeValue::Table(entries) = block.get_ref() else {
            self.report.error(&site, expected(&format!("a [[{key}]] block"), block.get_ref()));
            return None;
        };
        let path = format!("{}[{index}]", self.key_path(key));
        Some(self.child(Some(entries), site, path).read_to_end(read))
    }

    fn child(&mut self, entries: Option<&'d DeTable<'d>>, site: Site, path: String) -> Table<'_, 'd, 't> {
        Table { report: self.report, entries, site, path, asked: Vec::new(), good: Vec::new() }
    }

    fn entry(&mut self, key: &'static str) -> Option<(Site, &'d DeValue<'d>)> {
        if !self.asked.contains(&key) {
            self.asked.push(key);
        }
        // A value that the parser could not read at all has no extent; its error is reported.
        let value = self.entries?.get(key).filter(|value| !value.span().is_empty())?;
        let site = Site { place: Subject::Key(self.key_path(key)), offset: value.span().start };
        Some((site, value.get_ref()))
    }

    fn item_site(&self, key: &str, index: usize, item: &Spanned<DeValue<'_>>) -> Site {
        let place = Subject::Key(format!("{}[{index}]", self.key_path(key)));
        Site { place, offset: item.span().start }
    }

    fn key_path(&self, key: &str) -> String {
        match self.path.as_str() {
            "" => key.to_owned(),
            path => format!("{path}.{key}"),
        }
    }

    fn read_to_end<T>(&mut self, read: impl FnOnce(&mut Self) -> T) -> T {
        let value = read(self);
        for (key, found) in self.entries.into_iter().flatten() {
            let known = self.asked.contains(&key.get_ref().as_ref());
            if !known && !self.is_stray(found.get_ref()) {
                let site = Site { place: self.site.place.clone(), offset: key.span().start };
                self.report.error(&site, unknown("key", key.get_ref(), &self.asked));
            }
        }
        value
    }

    /// Whether this is a key at the top level that may have lost the header of its table in a broken text.
    fn is_stray(&self, value: &DeValue<'_>) -> bool {
        self.path.is_empty() && !value.is_table() && !self.report.is_whole()
    }
}
