//! Merges a folder of manifests, file by file and object by object.
//!
//! Invariant: pure. For each object the first file by name with a parsed version of it wins, and the events so far
//! always add up to those winners. A file or object that cannot be parsed keeps its last good version.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use holdfast_core::event::Event;
use holdfast_core::facts::{ObjectKey, Rejection};
use holdfast_core::keys::Source;

use super::decode::{FileContents, ObjectFacts, ObjectVersion};
use crate::truncate_reason;

/// The result of one scan of the folder.
#[derive(Debug)]
pub struct FolderScan<C = FileContents> {
    /// The files that exist, or why they cannot be listed: then none counts as deleted.
    pub present: Result<BTreeSet<Arc<str>>, String>,
    /// The files read in this scan, each with its contents or an error.
    pub files: Vec<(Arc<str>, Result<C, String>)>,
}

impl<C> FolderScan<C> {
    /// Merges this scan with a later one; the later reading of a file wins.
    pub fn merge_later(mut self, later: Self) -> Self {
        let again: BTreeSet<&Arc<str>> = later.files.iter().map(|(file, _)| file).collect();
        self.files.retain(|(file, _)| !again.contains(file));
        self.files.extend(later.files);
        Self { present: later.present, files: self.files }
    }

    pub fn readable_files(&self) -> impl Iterator<Item = (&Arc<str>, &C)> {
        self.files.iter().filter_map(|(file, contents)| Some((file, contents.as_ref().ok()?)))
    }
}

#[derive(Debug)]
pub struct Folder {
    path: Arc<str>,
    files: BTreeMap<Arc<str>, BTreeSet<ObjectKey>>,
    objects: BTreeMap<ObjectKey, Object>,
}

/// One object, or a file's rejection: its version in every file, and what was delivered.
#[derive(Debug, Default)]
struct Object {
    versions: BTreeMap<Arc<str>, ObjectVersion>,
    delivered: Option<ObjectFacts>,
    delivered_rejections: Vec<Rejection>,
}

impl Folder {
    pub fn new(path: &str) -> Self {
        Self { path: path.into(), files: BTreeMap::new(), objects: BTreeMap::new() }
    }

    pub fn apply_scan(&mut self, reading: FolderScan) -> Vec<Event> {
        let mut dirty = BTreeSet::new();
        match reading.present {
            Ok(present) => self.retain_files(&present, &mut dirty),
            Err(reason) => self.reject_file(&Arc::clone(&self.path), &reason, &mut dirty),
        }
        for (file, contents) in reading.files {
            match contents {
                Ok(contents) => self.replace_file(&file, contents, &mut dirty),
                Err(reason) => self.reject_file(&file, &reason, &mut dirty),
            }
        }
        self.emit_all(&dirty)
    }

    /// Whether an object may be moving between files: one file has lost it and none has it yet, or a second file has it
    /// and the first has not lost it yet.
    pub fn is_object_moving(&self, reading: &FolderScan) -> bool {
        let Ok(present) = &reading.present else { return false };
        let read: BTreeMap<&Arc<str>, &FileContents> = reading.readable_files().collect();
        let named: BTreeSet<&ObjectKey> =
            read.values().flat_map(|contents| contents.objects.keys()).collect();
        let keeps = |file: &Arc<str>, key: &ObjectKey| match read.get(file) {
            Some(contents) => contents.objects.contains_key(key),
            None => present.contains(file),
        };
        let is_kept = |key: &ObjectKey| self.files_with(key).any(|file| keeps(file, key));
        let is_lost = |file: &Arc<str>, key: &ObjectKey| {
            // A rejected file or kind cannot move to another file.
            let is_object = !matches!(key, ObjectKey::File(..) | ObjectKey::Kind(..));
            is_object && !keeps(file, key) && !named.contains(key) && !is_kept(key)
        };
        let is_doubled = |file: &Arc<str>, key: &ObjectKey| {
            self.files_with(key).all(|known| known != file) && is_kept(key)
        };
        let changed =
            self.files.iter().filter(|(file, _)| read.contains_key(file) || !present.contains(*file));
        changed.into_iter().any(|(file, keys)| keys.iter().any(|key| is_lost(file, key)))
            || read.iter().any(|(file, contents)| contents.objects.keys().any(|key| is_doubled(file, key)))
    }

    /// Delivers all current objects and rejections again.
    pub fn redeliver_all(&mut self) -> Vec<Event> {
        let all: BTreeSet<ObjectKey> = self.objects.keys().cloned().collect();
        self.objects.values_mut().for_each(|object| object.delivered = None);
        self.emit_all(&all)
    }

    fn files_with(&self, key: &ObjectKey) -> impl Iterator<Item = &Arc<str>> {
        self.objects.get(key).into_iter().flat_map(|object| object.versions.keys())
    }

    /// Rejects files that cannot be read now; their last good versions stay.
    pub fn reject_files(&mut self, files: &[Arc<str>], reason: &str) -> Vec<Event> {
        let mut dirty = BTreeSet::new();
        for file in files {
            self.reject_file(file, reason, &mut dirty);
        }
        self.emit_all(&dirty)
    }

    /// Ends a rejection of the folder that another part of the daemon delivered, and repeats this part's own, if any.
    pub fn folder_rejection(&self) -> Vec<Event> {
        let key = ObjectKey::File(Source::Manifests, Arc::clone(&self.path));
        let told =
            self.objects.get(&key).into_iter().flat_map(|object| object.delivered_rejections.iter().cloned());
        let told: Vec<Event> = told.map(Event::Rejected).collect();
        std::iter::once(Event::RejectionEnded(key)).chain(told).collect()
    }

    fn retain_files(&mut self, present: &BTreeSet<Arc<str>>, dirty: &mut BTreeSet<ObjectKey>) {
        let gone: Vec<Arc<str>> =
            self.files.keys().filter(|file| !present.contains(*file)).cloned().collect();
        for file in gone {
            self.replace_file(&file, FileContents::default(), dirty);
            self.files.remove(&file);
        }
    }

    fn replace_file(&mut self, file: &Arc<str>, contents: FileContents, dirty: &mut BTreeSet<ObjectKey>) {
        let keys: BTreeSet<ObjectKey> = contents.objects.keys().cloned().collect();
        let before = self.files.insert(Arc::clone(file), keys).unwrap_or_default();
        for key in before {
            if !contents.objects.contains_key(&key) {
                self.object_mut(&key).versions.remove(file);
                dirty.insert(key);
            }
        }
        for (key, version) in contents.objects {
            self.object_mut(&key).update_version(file, version);
            dirty.insert(key);
        }
    }

    fn reject_file(&mut self, file: &Arc<str>, reason: &str, dirty: &mut BTreeSet<ObjectKey>) {
        let rejection = file_rejection(file, reason);
        let key = rejection.object.clone();
        self.files.entry(Arc::clone(file)).or_default().insert(key.clone());
        self.object_mut(&key)
            .update_version(file, ObjectVersion { facts: None, rejections: vec![rejection] });
        dirty.insert(key);
    }

    fn object_mut(&mut self, key: &ObjectKey) -> &mut Object {
        self.objects.entry(key.clone()).or_default()
    }

    fn emit_all(&mut self, dirty: &BTreeSet<ObjectKey>) -> Vec<Event> {
        dirty.iter().flat_map(|key| self.emit_changes(key)).collect()
    }

    fn emit_changes(&mut self, key: &ObjectKey) -> Vec<Event> {
        let object = self.object_mut(key);
        let events = object.emit_changes(key);
        if object.versions.is_empty() {
            self.objects.remove(key);
        }
        events
    }
}

impl Object {
    /// Sets a file's version of the object; one that could not be parsed keeps the facts of the previous version.
    fn update_version(&mut self, file: &Arc<str>, mut version: ObjectVersion) {
        let known = self.versions.entry(Arc::clone(file)).or_default();
        version.facts = version.facts.or_else(|| known.facts.take());
        *known = version;
    }

    fn emit_changes(&mut self, key: &ObjectKey) -> Vec<Event> {
        let winner = self.versions.iter().find(|(_, version)| version.facts.is_some());
        let facts = winner.and_then(|(_, version)| version.facts.clone());
        let rejections = self.rejections(winner.map(|(file, _)| file), key);
        let change = change_event(self.delivered.take(), facts.as_ref());
        let rejections_changed = rejections != self.delivered_rejections;
        let mut events: Vec<Event> = change.into_iter().collect();
        // Applied and deleted events end earlier rejections.
        if events.is_empty() && rejections_changed && !self.delivered_rejections.is_empty() {
            events.push(Event::RejectionEnded(key.clone()));
        }
        if rejections_changed || !events.is_empty() {
            events.extend(rejections.iter().cloned().map(Event::Rejected));
        }
        self.delivered = facts;
        self.delivered_rejections = rejections;
        events
    }

    fn rejections(&self, winner: Option<&Arc<str>>, key: &ObjectKey) -> Vec<Rejection> {
        let rejections = self.versions.iter().flat_map(|(file, version)| match winner {
            Some(winner) if version.facts.is_some() && winner != file => {
                vec![duplicate_rejection(key, winner, file)]
            }
            _ => version.rejections.clone(),
        });
        let mut rejections: Vec<Rejection> = rejections.collect();
        // An ignored kind is reported once for all files.
        if matches!(key, ObjectKey::Kind(..)) {
            rejections.truncate(1);
        }
        // A reader that shows only one rejection shows the last one, so the worst goes last.
        rejections.sort_by_key(|rejection| !rejection.partial);
        rejections
    }
}

/// The rejection of a file or the folder that cannot be read, for a caller without a [`Folder`].
pub fn file_rejection_event(file: &str, reason: &str) -> Event {
    Event::Rejected(file_rejection(&file.into(), reason))
}

fn file_rejection(file: &Arc<str>, reason: &str) -> Rejection {
    Rejection {
        object: ObjectKey::File(Source::Manifests, Arc::clone(file)),
        origin: Some(Arc::clone(file)),
        reason: truncate_reason(reason),
        partial: false,
    }
}

fn duplicate_rejection(key: &ObjectKey, winner: &str, loser: &Arc<str>) -> Rejection {
    Rejection {
        object: key.clone(),
        origin: Some(Arc::clone(loser)),
        reason: truncate_reason(&format!("is also in {winner}, which comes first and counts")),
        partial: true,
    }
}

fn change_event(before: Option<ObjectFacts>, after: Option<&ObjectFacts>) -> Option<Event> {
    match (before, after) {
        (None, None) => None,
        (Some(before), Some(after)) if before == *after => None,
        (_, Some(ObjectFacts::Service(facts))) => Some(Event::ServiceApplied(Arc::clone(facts))),
        (_, Some(ObjectFacts::Slice(facts))) => Some(Event::SliceApplied(Arc::clone(facts))),
        (Some(ObjectFacts::Service(gone)), None) => {
            Some(Event::ServiceDeleted(gone.key.clone(), Some(Box::new(gone.meta.clone()))))
        }
        (Some(ObjectFacts::Slice(gone)), None) => {
            Some(Event::SliceDeleted(gone.key.clone(), Some(Box::new(gone.meta.clone()))))
        }
    }
}
