//! The knowledge as a whole: what is built in, and what files of the operator add to it or put in its place.
//!
//! Invariant: every reason and every cause was judged, and whatever a reason names is there. What is wrong in a file
//! never takes a built-in entry away.

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
        /// Our files, in the order in which the guide shows them.
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

/// What is known of Events.
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
    /// What came with this program; read on first use, then kept.
    pub fn built_in() -> &'static Self {
        &KNOWLEDGE.0
    }

    /// What is wrong with what came with this program; a test sees to it that nothing is.
    #[cfg(test)]
    pub(crate) fn built_in_faults() -> &'static [Fault] {
        &KNOWLEDGE.1
    }

    /// What came with this program, with the files of the operator: the name and the text of each, in their order. An
    /// entry with the id of another takes its place, whole. What is wrong is left out and named. Nothing is kept beside
    /// what this returns, so a caller that wants the faults alone keeps no knowledge in memory.
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

    /// The cause behind an error that the apiserver answered to a write of a Service.
    pub fn refused_write_cause(&self, message: &str) -> Option<&Cause> {
        let message = message.to_ascii_lowercase();
        let says =
            |it: &&RefusedWrite| it.contains.iter().any(|text| message.contains(&text.to_ascii_lowercase()));
        self.cause(&self.refused_writes.iter().find(says)?.cause)
    }

    /// This knowledge with further entries; those with a fault are left out.
    fn merge(mut self, mut entries: Entries) -> (Self, Vec<Fault>) {
        let mut faults = std::mem::take(&mut entries.faults);
        self.nevers.extend(entries.nevers.into_iter().map(|placed| placed.entry));
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
        self.beliefs.extend(entries.beliefs.into_iter().map(|placed| placed.entry));
        self.symptoms.extend(entries.symptoms.into_iter().map(|placed| placed.entry));
        self.refused_writes.extend(entries.refused_writes.into_iter().map(|placed| placed.entry));
        self.index = ReasonIndex::new(&self.reasons, &self.causes);
        (self, faults)
    }

    /// The reasons that name nothing dead. A reason that is left out may have been named by another one, hence the
    /// loop; each round but the last leaves out at least one.
    fn drop_dangling(
        &self,
        mut reasons: Vec<LocatedEntry<EventReason>>,
        faults: &mut Vec<Fault>,
    ) -> Vec<LocatedEntry<EventReason>> {
        let causes: BTreeSet<&str> = self.causes.iter().map(|cause| cause.id.as_str()).collect();
        loop {
            let all = self.reasons.iter().chain(reasons.iter().map(|placed| &placed.entry));
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
            reasons.retain(|placed| {
                let message = at.next().and_then(|at| dead.get(&at));
                faults.extend(message.map(|message| placed.to_fault(&placed.entry.id, message)));
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
        let message = format!("{message}; until then what is built in holds");
        Fault::for_entry(&self.file, Some(self.line), Some(id), &message)
    }
}

/// The entries that are right. Of several with one id only the first is judged.
fn filter_valid<T>(
    entries: Vec<LocatedEntry<T>>,
    id: impl Fn(&T) -> &String,
    judge: impl Fn(&T) -> Validation,
    faults: &mut Vec<Fault>,
) -> Vec<LocatedEntry<T>> {
    let mut seen = BTreeSet::new();
    let mut refused = |placed: &LocatedEntry<T>| {
        let id = id(&placed.entry);
        let is_full = seen.len() >= ENTRIES_MAX;
        let judgement = match seen.insert(id.clone()) {
            _ if is_full => Err(format!(
                "there are {ENTRIES_MAX} entries before it, and no more are legal: leave some out"
            )),
            true => judge(&placed.entry),
            // This holds also if the first one is refused: the operator did not mean the second one in its place.
            false => Err("an entry before it has the same id: leave one of them out".to_owned()),
        };
        Some(placed.to_fault(id, &judgement.err()?))
    };
    let mut kept = Vec::new();
    for placed in entries {
        match refused(&placed) {
            Some(fault) => faults.push(fault),
            None => kept.push(placed),
        }
    }
    kept
}

/// Puts entries in the places of those with the same ids, or at the end.
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

/// The first faults, and how many more there are.
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
