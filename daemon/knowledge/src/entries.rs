//! Reads the entries of a file one by one.
//!
//! Invariant: an entry that cannot be read is left out and reported with its line; the other entries of the file stay.
//! A file that is no TOML has no entries.

use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeTable, DeValue, ValueDeserializer};

use crate::entry::{Belief, Cause, EventReason, ForbiddenPhrase, RefusedWrite, Subject, Symptom};
use crate::fault::Fault;

#[derive(Clone, Debug)]
pub(crate) struct LocatedEntry<T> {
    pub(crate) entry: T,
    pub(crate) file: String,
    pub(crate) line: usize,
}

/// The entries of all files that were read, and the faults.
#[derive(Debug, Default)]
pub(crate) struct Entries {
    pub(crate) reasons: Vec<LocatedEntry<EventReason>>,
    pub(crate) causes: Vec<LocatedEntry<Cause>>,
    pub(crate) beliefs: Vec<LocatedEntry<Belief>>,
    pub(crate) symptoms: Vec<LocatedEntry<Symptom>>,
    pub(crate) refused_writes: Vec<LocatedEntry<RefusedWrite>>,
    pub(crate) nevers: Vec<LocatedEntry<ForbiddenPhrase>>,
    pub(crate) faults: Vec<Fault>,
}

/// The author of a file; it decides which entries the file may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Author {
    BuiltIn,
    Operator,
}

struct File<'a> {
    name: &'a str,
    text: &'a str,
}

impl Entries {
    pub(crate) fn read_file(&mut self, name: &str, text: &str, author: Author) {
        let file = File { name, text };
        let table = match DeTable::parse(text) {
            Ok(table) => table.into_inner(),
            Err(error) => return self.faults.push(file.to_fault(&error, None)),
        };
        let mut subject = Subject::Other;
        if let Some(word) = table.get("subject") {
            match parse_entry(word.clone()) {
                Ok(known) => subject = known,
                Err(error) => self.faults.push(file.to_fault(&error, None)),
            }
        }
        for (key, value) in table {
            match (key.get_ref().as_ref(), author) {
                ("subject", _) => {}
                ("reason", _) => {
                    let reasons = file.parse_entries(value, &mut self.faults);
                    self.reasons.extend(reasons.into_iter().map(|reason| with_subject(reason, subject)));
                }
                ("cause", _) => self.causes.extend(file.parse_entries(value, &mut self.faults)),
                ("belief", Author::BuiltIn) => {
                    self.beliefs.extend(file.parse_entries(value, &mut self.faults));
                }
                ("symptom", Author::BuiltIn) => {
                    self.symptoms.extend(file.parse_entries(value, &mut self.faults));
                }
                ("refused_write", Author::BuiltIn) => {
                    self.refused_writes.extend(file.parse_entries(value, &mut self.faults));
                }
                ("never", Author::BuiltIn) => self.nevers.extend(file.parse_entries(value, &mut self.faults)),
                (other, _) => {
                    let message = format!("`{other}` is not known here: write [[reason]] and [[cause]]");
                    self.faults.push(Fault::for_file(
                        name,
                        Some(file.line_number(key.span().start)),
                        &message,
                    ));
                }
            }
        }
    }
}

fn with_subject(mut placed: LocatedEntry<EventReason>, subject: Subject) -> LocatedEntry<EventReason> {
    placed.entry.subject = subject;
    placed
}

fn parse_entry<T: DeserializeOwned>(value: Spanned<DeValue<'_>>) -> Result<T, toml::de::Error> {
    T::deserialize(ValueDeserializer::from(value))
}

impl File<'_> {
    /// Reads the entries of one kind, one by one.
    fn parse_entries<T: DeserializeOwned>(
        &self,
        value: Spanned<DeValue<'_>>,
        faults: &mut Vec<Fault>,
    ) -> Vec<LocatedEntry<T>> {
        let at = value.span().start;
        let DeValue::Array(items) = value.into_inner() else {
            let message = "this must be a list of tables: write its name in two pairs of brackets";
            faults.push(Fault::for_file(self.name, Some(self.line_number(at)), message));
            return Vec::new();
        };
        let entries = items.into_iter().filter_map(|item| {
            let line = self.line_number(item.span().start);
            let id = item.get_ref().get("id").and_then(|id| Some(id.get_ref().as_str()?.to_owned()));
            match parse_entry(item) {
                Ok(entry) => Some(LocatedEntry { entry, file: self.name.to_owned(), line }),
                Err(error) => {
                    let fault = self.to_fault(&error, id.as_deref());
                    faults.push(Fault { line: fault.line.or(Some(line)), ..fault });
                    None
                }
            }
        });
        entries.collect()
    }

    fn to_fault(&self, error: &toml::de::Error, id: Option<&str>) -> Fault {
        let line = error.span().map(|span| self.line_number(span.start));
        let text = error.message().lines().collect::<Vec<_>>().join("; ");
        let message = format!("{text}: correct it; until then the built-in entries apply");
        Fault::for_entry(self.name, line, id, &message)
    }

    fn line_number(&self, at: usize) -> usize {
        let before = self.text.as_bytes().get(..at).unwrap_or(self.text.as_bytes());
        1 + before.iter().filter(|byte| **byte == b'\n').count()
    }
}
