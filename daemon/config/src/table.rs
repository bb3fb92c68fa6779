//! A cursor over one table of the document, with the list of its legal keys.
//!
//! Invariant: the legal keys of a table are those that its reader requested; no second list can differ. Any other key
//! is reported as unknown when the reader is done. Nothing returns early: a bad value is reported and counts as absent,
//! and reading goes on.

use std::path::PathBuf;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::duplicate::Duplicate;
use super::problem::{ConfigErrors, Subject};
use super::report::{Report, Site};
use super::value::{mismatch_message, path_text, unknown_key_message};
use super::{file, limits};

/// A value and its place.
#[derive(Clone, Debug)]
pub(crate) struct LocatedValue<T> {
    pub(super) value: T,
    pub(super) site: Site,
}

/// The rule for a list.
#[derive(Debug)]
pub(crate) struct ListRule {
    /// The kind of items, for a message.
    pub(super) what: &'static str,
    pub(super) when_empty: WhenEmpty,
    pub(super) most: usize,
}

/// How an empty list counts.
#[derive(Debug)]
pub(super) enum WhenEmpty {
    Refused,
    /// It is legal but seldom meant; the text is the warning.
    Doubtful(&'static str),
    Fine,
}

impl ListRule {
    fn check_count(&self, report: &mut Report<'_>, site: &Site, count: usize) {
        match (count, &self.when_empty) {
            (0, WhenEmpty::Refused) => {
                report.add_error(site, format!("the list is empty: it needs {}", self.what));
            }
            (0, WhenEmpty::Doubtful(message)) => report.add_warning(site, (*message).to_owned()),
            _ if count > self.most => {
                report.add_error(site, format!("{count} items are too many: at most {}", self.most));
            }
            _ => (),
        }
    }
}

#[derive(Debug)]
pub(super) struct Table<'r, 'd, 't> {
    report: &'r mut Report<'t>,
    // `None`: the table is absent, or the value is no table, which is reported.
    entries: Option<&'d DeTable<'d>>,
    site: Site,
    path: String,
    known_keys: Vec<&'static str>,
    // The keys with good values, and their places.
    good_values: Vec<(&'static str, Site)>,
}

impl<'r, 'd, 't> Table<'r, 'd, 't> {
    /// Reads the text of a file. Returns the problems so far, and the result.
    pub(super) fn read_text<T>(
        text: &'t str,
        file_name: &'t str,
        read: impl FnOnce(&mut Table<'_, '_, 't>) -> T,
    ) -> Result<(Report<'t>, T), ConfigErrors> {
        if text.len() > limits::FILE_BYTES_MAX {
            return Err(ConfigErrors::for_file(file_name, None, file::too_large_message()));
        }
        let mut report = Report::new(file_name, text);
        let (document, syntax) = DeTable::parse_recoverable(text);
        for (place, error) in syntax.iter().enumerate() {
            let searched = (place < limits::DUPLICATES_SEARCHED_MAX).then(|| document.get_ref());
            match Duplicate::find(searched, text, (error.span(), error.message())) {
                Some(duplicate) => report.add_duplicate(&duplicate),
                None => report.add_syntax_error(error.span(), error.message()),
            }
        }
        let said = Table::read_document(&mut report, document.get_ref(), read);
        Ok((report, said))
    }

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
            known_keys: Vec::new(),
            good_values: Vec::new(),
        };
        root.read_to_end(read)
    }

    /// The problems so far, for checks over several values.
    pub(super) fn report(&mut self) -> &mut Report<'t> {
        self.report
    }

    pub(super) fn site(&self) -> &Site {
        &self.site
    }

    /// Whether the file has this key here, good or bad.
    pub(super) fn has(&self, key: &str) -> bool {
        self.entries.is_some_and(|entries| entries.contains_key(key))
    }

    /// The place of the value of `key`, if it was read as a single value and is good.
    pub(super) fn good_site(&self, key: &str) -> Option<Site> {
        self.good_values.iter().find(|(good, _)| *good == key).map(|(_, site)| site.clone())
    }

    /// Puts these keys first in the list of legal keys in messages.
    pub(super) fn list_keys_first(&mut self, keys: &[&'static str]) {
        self.known_keys.extend(keys);
    }

    /// The value of `key`, if it is present and good.
    pub(super) fn take<T>(
        &mut self,
        key: &'static str,
        read: impl FnOnce(&DeValue<'_>) -> Result<T, String>,
    ) -> Option<T> {
        self.take_located(key, read).map(|found| found.value)
    }

    /// Like [`Table::take`], with the place.
    pub(super) fn take_located<T>(
        &mut self,
        key: &'static str,
        read: impl FnOnce(&DeValue<'_>) -> Result<T, String>,
    ) -> Option<LocatedValue<T>> {
        let (site, value) = self.entry(key)?;
        match read(value) {
            Ok(value) => {
                self.good_values.push((key, site.clone()));
                Some(LocatedValue { value, site })
            }
            Err(message) => {
                self.report.add_error(&site, message);
                None
            }
        }
    }

    /// Like [`Table::take`], for a required key.
    pub(super) fn require<T>(
        &mut self,
        key: &'static str,
        read: impl FnOnce(&DeValue<'_>) -> Result<T, String>,
    ) -> Option<T> {
        self.require_key(key);
        self.take(key, read)
    }

    pub(super) fn require_key(&mut self, key: &'static str) {
        if !self.has(key) && self.report.is_valid_toml() {
            self.report.add_error(&self.site, format!("the key {key:?} is missing, and it has no default"));
        }
    }

    /// A path; a relative one starts from the folder of the configuration file.
    pub(super) fn path(&mut self, key: &'static str) -> Option<LocatedValue<PathBuf>> {
        let found = self.take_located(key, path_text)?;
        Some(LocatedValue { value: self.report.resolve_path(&found.value), site: found.site })
    }

    /// The good items of a list; each bad one is reported separately.
    pub(super) fn list<T>(
        &mut self,
        key: &'static str,
        items: &ListRule,
        read: impl Fn(&DeValue<'_>) -> Result<T, String>,
    ) -> Option<Vec<LocatedValue<T>>> {
        let (site, value) = self.entry(key)?;
        let DeValue::Array(values) = value else {
            self.report.add_error(&site, mismatch_message(&format!("a list of {}", items.what), value));
            return None;
        };
        items.check_count(self.report, &site, values.len());
        let mut found = Vec::new();
        for (index, item) in values.iter().take(items.most).enumerate() {
            let site = self.item_site(key, index, item);
            match read(item.get_ref()) {
                Ok(value) => found.push(LocatedValue { value, site }),
                Err(message) => self.report.add_error(&site, message),
            }
        }
        Some(found)
    }

    /// Reads the table `key`; an absent one counts as empty.
    pub(super) fn table<T>(
        &mut self,
        key: &'static str,
        read: impl FnOnce(&mut Table<'_, 'd, 't>) -> T,
    ) -> T {
        let path = self.key_path(key);
        // A table within a block has no header with its name.
        let place =
            if path.contains('[') { Subject::Key(path.clone()) } else { Subject::Table(path.clone()) };
        let site = Site { place, offset: self.site.offset };
        let (site, entries) = match self.entry(key) {
            Some((Site { offset, .. }, DeValue::Table(entries))) => (Site { offset, ..site }, Some(entries)),
            Some((at, value)) => {
                self.report.add_error(&at, mismatch_message("a table", value));
                (site, None)
            }
            None => (site, None),
        };
        self.child(entries, site, path).read_to_end(read)
    }

    /// Like [`Table::table`]; `None` if the file does not have the table.
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
            self.report.add_error(&site, mismatch_message(&format!("[[{key}]] blocks"), value));
            return Vec::new();
        };
        if blocks.len() > blocks_max {
            self.report
                .add_error(&site, format!("{} blocks are too many: at most {blocks_max}", blocks.len()));
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
            self.report.add_error(&site, mismatch_message(&format!("a [[{key}]] block"), block.get_ref()));
            return None;
        };
        let path = format!("{}[{index}]", self.key_path(key));
        if let Some(DeValue::String(name)) = entries.get("name").map(Spanned::get_ref) {
            let is_short = name.len() <= limits::BLOCK_NAME_SHOWN_MAX;
            is_short.then(|| self.report.name_block(&path, name));
        }
        Some(self.child(Some(entries), site, path).read_to_end(read))
    }

    fn child(&mut self, entries: Option<&'d DeTable<'d>>, site: Site, path: String) -> Table<'_, 'd, 't> {
        Table { report: self.report, entries, site, path, known_keys: Vec::new(), good_values: Vec::new() }
    }

    fn entry(&mut self, key: &'static str) -> Option<(Site, &'d DeValue<'d>)> {
        if !self.known_keys.contains(&key) {
            self.known_keys.push(key);
        }
        // A value that the parser could not read has no extent; its error is reported.
        let value = self.entries?.get(key).filter(|value| !value.span().is_empty())?;
        let path = self.key_path(key);
        self.report.note_written(path.clone());
        let site = Site { place: Subject::Key(path), offset: value.span().start };
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
            let known = self.known_keys.contains(&key.get_ref().as_ref());
            let offset = key.span().start;
            if !known && !self.may_lack_header(found.get_ref(), offset) {
                let site = Site { place: self.site.place.clone(), offset };
                self.report.add_error(&site, unknown_key_message(key.get_ref(), &self.known_keys));
            }
        }
        value
    }

    /// Whether this is a top-level key that may have lost the header of its table in a broken text. Below a header that
    /// is not closed, the parser calls the last key a table.
    fn may_lack_header(&self, value: &DeValue<'_>, offset: usize) -> bool {
        let is_table = value.is_table() && self.report.is_in_header(offset);
        self.path.is_empty() && !is_table && !self.report.is_valid_toml()
    }
}
