//! The whole knowledge: the built-in entries, and the operator's files that add to them or replace them.
//!
//! Invariant: every reason and every cause is validated, and everything that a reason names exists. A fault in a file
//! never removes a built-in entry.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use crate::entries::{Author, Entries, LocatedEntry};
use crate::entry::{Belief, Cause, EventReason, ForbiddenPhrase, RefusedWrite, Symptom};
use crate::fault::Fault;
use crate::index::ReasonIndex;
use crate::limits::{ENTRIES_MAX, FAULTS_MAX, FILE_BYTES_MAX, FILES_MAX};
use crate::validate::{self, ForbiddenPhrases, ReasonNames, Validation};

macro_rules! built_in {
    ($($name:literal),+ $(,)?) => {
        /// Our files, in the order of the guide.
        pub(crate) const BUILT_IN: &[(&str, &str)] = &[$((
            concat!("knowledge/", $name),
            include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../knowledge/", $name)),
        )),+];
    };
}

built_in![
    "never.toml",
    "causes-cloud.toml",
    "causes-endpoints.toml",
    "causes-host.toml",
    "reasons-load-balancer.toml",
    "reasons-endpoints.toml",
    "reasons-addresses.toml",
    "reasons-pods.toml",
    "reasons-nodes.toml",
    "reasons-controllers.toml",
    "beliefs.toml",
    "symptoms.toml",
];

static KNOWLEDGE: LazyLock<(Knowledge, Vec<Fault>)> = LazyLock::new(load_built_in);

fn load_built_in() -> (Knowledge, Vec<Fault>) {
    let mut entries = Entries::default();
    BUILT_IN.iter().for_each(|(name, text)| entries.read_file(name, text, Author::BuiltIn));
    Knowledge::default().merge(entries)
}

#[derive(Clone, Debug, Default)]
pub struct Knowledge {
    pub(crate) reasons: Vec<EventReason>,
    pub(crate) causes: Vec<Cause>,
    beliefs: Vec<Belief>,
    symptoms: Vec<Symptom>,
    refused_writes: Vec<RefusedWrite>,
    nevers: Vec<ForbiddenPhrase>,
    pub(crate) index: ReasonIndex,
}

impl Knowledge {
    /// The built-in knowledge; read on first use, then kept.
    pub fn built_in() -> &'static Self {
        &KNOWLEDGE.0
    }

    /// The faults of the built-in knowledge; a test requires that there are none.
    #[cfg(test)]
    pub(crate) fn built_in_faults() -> &'static [Fault] {
        &KNOWLEDGE.1
    }

    /// The built-in knowledge with the operator's files: the name and the text of each, in order. An entry replaces one
    /// with the same id as a whole. Faulty entries are left out and reported. This call caches nothing, so a caller
    /// that needs only the faults keeps no knowledge in memory.
    pub fn with_overrides(files: &[(&str, &str)]) -> (Self, Vec<Fault>) {
        let mut entries = Entries::default();
        for (at, (name, text)) in files.iter().enumerate() {
            match file_bound_fault(at, text) {
                Some(message) => entries.faults.push(Fault::for_file(name, None, &message)),
                None => entries.read_file(name, text, Author::Operator),
            }
        }
        let known = LazyLock::get(&KNOWLEDGE).map(|(knowledge, _)| knowledge.clone());
        let (knowledge, faults) = known.unwrap_or_else(|| load_built_in().0).merge(entries);
        (knowledge, truncate_faults(faults))
    }

    pub fn reasons(&self) -> &[EventReason] {
        &self.reasons
    }

    pub fn causes(&self) -> &[Cause] {
        &self.causes
    }

    pub fn cause(&self, id: &str) -> Option<&Cause> {
        self.causes.iter().find(|cause| cause.id == id)
    }

    pub fn reason(&self, id: &str) -> Option<&EventReason> {
        self.reasons.iter().find(|reason| reason.id == id)
    }

    pub fn beliefs(&self) -> &[Belief] {
        &self.beliefs
    }

    pub fn symptoms(&self) -> &[Symptom] {
        &self.symptoms
    }

    pub fn nevers(&self) -> &[ForbiddenPhrase] {
        &self.nevers
    }

    pub fn refused_writes(&self) -> &[RefusedWrite] {
        &self.refused_writes
    }

    /// The cause of an error that the apiserver returned for a write of a Service.
    pub fn refused_write_cause(&self, message: &str) -> Option<&Cause> {
        let message = message.to_ascii_lowercase();
        let says =
            |it: &&RefusedWrite| it.contains.iter().any(|text| message.contains(&text.to_ascii_lowercase()));
        self.cause(&self.refused_writes.iter().find(says)?.cause)
    }

    /// Adds entries, except faulty ones.
    fn merge(mut self, mut entries: Entries) -> (Self, Vec<Fault>) {
        let mut faults = std::mem::take(&mut entries.faults);
        self.nevers.extend(entries.nevers.into_iter().map(|located| located.entry));
        let never = ForbiddenPhrases::new(self.nevers.iter());
        let causes = filter_valid(
            entries.causes,
            |cause| &cause.id,
            |cause| validate::validate_cause(cause, &never),
            &mut faults,
        );
        let reasons = filter_valid(
            entries.reasons,
            |reason| &reason.id,
            |reason| validate::validate_reason(reason, &never),
            &mut faults,
        );
        upsert(&mut self.causes, causes, |cause| &cause.id);
        let reasons = self.drop_dangling(reasons, &mut faults);
        upsert(&mut self.reasons, reasons, |reason| &reason.id);
        self.beliefs.extend(entries.beliefs.into_iter().map(|located| located.entry));
        self.symptoms.extend(entries.symptoms.into_iter().map(|located| located.entry));
        self.refused_writes.extend(entries.refused_writes.into_iter().map(|located| located.entry));
        self.index = ReasonIndex::new(&self.reasons, &self.causes);
        (self, faults)
    }

    /// Removes reasons that name missing entries. Another reason may name a removed one, hence the loop; each round but
    /// the last removes at least one.
    fn drop_dangling(
        &self,
        mut reasons: Vec<LocatedEntry<EventReason>>,
        faults: &mut Vec<Fault>,
    ) -> Vec<LocatedEntry<EventReason>> {
        let causes: BTreeSet<&str> = self.causes.iter().map(|cause| cause.id.as_str()).collect();
        loop {
            let all = self.reasons.iter().chain(reasons.iter().map(|located| &located.entry));
            let names = collect_names(all);
            let dead: BTreeMap<usize, String> = reasons
                .iter()
                .enumerate()
                .filter_map(|(at, it)| {
                    Some((at, validate::validate_references(&it.entry, &causes, &names).err()?))
                })
                .collect();
            if dead.is_empty() {
                return reasons;
            }
            let mut at = 0..;
            reasons.retain(|located| {
                let message = at.next().and_then(|at| dead.get(&at));
                faults.extend(message.map(|message| located.to_fault(&located.entry.id, message)));
                message.is_none()
            });
        }
    }
}

fn collect_names<'a>(reasons: impl Iterator<Item = &'a EventReason>) -> ReasonNames<'a> {
    let mut names = ReasonNames::default();
    for reason in reasons {
        names.words.insert(&reason.reason);
        names.words.extend(reason.aliases.iter().map(String::as_str));
        if reason.alias_of.is_none() {
            names.ids.insert(&reason.id);
        }
    }
    names
}

impl<T> LocatedEntry<T> {
    fn to_fault(&self, id: &str, message: &str) -> Fault {
        let message = format!("{message}; until then the built-in entries apply");
        Fault::for_entry(&self.file, Some(self.line), Some(id), &message)
    }
}

/// The valid entries. Of several with one id only the first is validated.
fn filter_valid<T>(
    entries: Vec<LocatedEntry<T>>,
    id: impl Fn(&T) -> &String,
    judge: impl Fn(&T) -> Validation,
    faults: &mut Vec<Fault>,
) -> Vec<LocatedEntry<T>> {
    let mut seen = BTreeSet::new();
    let mut find_fault = |located: &LocatedEntry<T>| {
        let id = id(&located.entry);
        let is_full = seen.len() >= ENTRIES_MAX;
        let judgement = match seen.insert(id.clone()) {
            _ if is_full => Err(format!(
                "there are {ENTRIES_MAX} entries before it, and no more are legal: leave some out"
            )),
            true => judge(&located.entry),
            // This applies even if the first one is refused: the operator did not mean the second one to replace it.
            false => Err("an entry before it has the same id: leave one of them out".to_owned()),
        };
        Some(located.to_fault(id, &judgement.err()?))
    };
    let mut valid = Vec::new();
    for located in entries {
        match find_fault(&located) {
            Some(fault) => faults.push(fault),
            None => valid.push(located),
        }
    }
    valid
}

/// Replaces the entries with the same ids, or appends new ones.
fn upsert<T>(all: &mut Vec<T>, entries: Vec<LocatedEntry<T>>, id: impl Fn(&T) -> &String) {
    for LocatedEntry { entry, .. } in entries {
        match all.iter_mut().find(|known| id(known) == id(&entry)) {
            Some(known) => *known = entry,
            None => all.push(entry),
        }
    }
}

fn file_bound_fault(at: usize, text: &str) -> Option<String> {
    if at >= FILES_MAX {
        return Some(format!("there are {FILES_MAX} files before it, and no more are read: join some"));
    }
    (text.len() > FILE_BYTES_MAX)
        .then(|| format!("it has {} bytes, and at most {FILE_BYTES_MAX} are read: divide it", text.len()))
}

/// The first faults, and the number of the others.
fn truncate_faults(mut faults: Vec<Fault>) -> Vec<Fault> {
    let more = faults.len().saturating_sub(FAULTS_MAX);
    faults.truncate(FAULTS_MAX);
    if more > 0
        && let Some(last) = faults.last_mut()
    {
        last.message = format!("{} (and {more} more faults)", last.message);
    }
    faults
}
