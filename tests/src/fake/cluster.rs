//! The shared state of all servers of one fake cluster: objects, their versions, and past changes.
//!
//! Invariant: each change has the next version, and a watch from a retained version gets every later change once, in
//! order. Objects are not validated, so that a test can store a malformed one.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use serde_json::{Map, Value, json};
use tokio::sync::watch;

use super::selector::{Selected, Selector};
use super::{FakeError, Kind, lock, protobuf};

/// The first version, far from list indices and counts.
const FIRST_VERSION: u64 = 1_000;

/// How many changes are retained; an older watcher gets "compacted".
const CHANGES_KEPT_MAX: usize = 100_000;

/// How many unfinished paged lists are retained.
const PAGED_KEPT_MAX: usize = 8;

/// A handle to one cluster; its clones share that cluster.
#[derive(Clone, Debug)]
pub struct Cluster {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    store: Mutex<Store>,
    changed: watch::Sender<u64>,
}

#[derive(Debug)]
struct Store {
    version: u64,
    compacted: u64,
    objects: BTreeMap<(Kind, String), Arc<Object>>,
    changes: VecDeque<Change>,
    paged: BTreeMap<(u64, Kind), Paged>,
}

/// The objects of a list at the time of the request for its first page.
type Paged = Arc<[Arc<Object>]>;

/// One object without `kind` and `apiVersion`, which lists leave out, in both encodings.
#[derive(Debug)]
pub(super) struct Object {
    pub(super) kind: Kind,
    pub(super) json: String,
    pub(super) protobuf: protobuf::Item,
    pub(super) selected: Selected,
}

#[derive(Clone, Debug)]
struct Change {
    version: u64,
    kind: Kind,
    before: Option<Arc<Object>>,
    after: Option<Arc<Object>>,
}

/// One page of a list.
#[derive(Debug)]
pub(super) struct Page {
    pub(super) version: u64,
    pub(super) items: Vec<Arc<Object>>,
    /// The offset of the next page, and how many objects remain.
    pub(super) next: Option<(usize, usize)>,
}

/// A watcher's version is compacted away; holds the oldest retained version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Compacted(pub(super) u64);

impl Cluster {
    /// A cluster with only the namespace `kube-system`, which has this uid.
    pub fn new(uid: &str) -> Self {
        let store = Store {
            version: FIRST_VERSION,
            compacted: 0,
            objects: BTreeMap::new(),
            changes: VecDeque::new(),
            paged: BTreeMap::new(),
        };
        let shared = Shared { store: Mutex::new(store), changed: watch::channel(0).0 };
        let cluster = Self { shared: Arc::new(shared) };
        // Cannot fail: the object has a kind and a name.
        let _ = cluster.apply(json!({"kind": "Namespace", "metadata": {"name": "kube-system", "uid": uid}}));
        cluster
    }

    /// Creates or replaces an object, notifies watches, and returns its version.
    pub fn apply(&self, object: Value) -> Result<u64, FakeError> {
        self.put(object, true)
    }

    /// Like [`apply`](Self::apply), but watches miss the event, as with a faulty watch cache. Bookmarks go on.
    pub fn apply_without_event(&self, object: Value) -> Result<u64, FakeError> {
        self.put(object, false)
    }

    /// Deletes `namespace/name`, or the name alone for kinds without namespaces, and returns the version.
    pub fn delete(&self, kind: Kind, name: &str) -> Result<u64, FakeError> {
        let mut store = lock(&self.shared.store);
        let missing = || FakeError::Missing(kind, name.to_owned());
        let before = store.objects.remove(&(kind, name.to_owned())).ok_or_else(missing)?;
        store.version += 1;
        let version = store.version;
        store.remember(Change { version, kind, before: Some(before), after: None });
        drop(store);
        self.tell();
        Ok(version)
    }

    /// Drops past changes: a watch from an older version must list again.
    pub fn compact(&self) {
        let mut store = lock(&self.shared.store);
        store.compacted = store.version;
        store.changes.clear();
        store.paged.clear();
    }

    /// Continues from another version, as a cluster does after a restore from a backup.
    pub fn rewind(&self, version: u64) {
        let mut store = lock(&self.shared.store);
        store.version = version;
        store.compacted = 0;
        store.changes.clear();
        store.paged.clear();
    }

    /// The version of the last change.
    pub fn version(&self) -> u64 {
        lock(&self.shared.store).version
    }

    /// All objects of a kind, each with `kind` and `apiVersion`.
    pub fn objects(&self, kind: Kind) -> Vec<Value> {
        let store = lock(&self.shared.store);
        let everything = Selector::default();
        let texts = store.select(kind, &everything).map(|object| object.typed());
        texts.filter_map(|text| serde_json::from_str(&text).ok()).collect()
    }

    fn put(&self, object: Value, told: bool) -> Result<u64, FakeError> {
        let mut store = lock(&self.shared.store);
        let version = store.version + 1;
        let (kind, name, object) = stored(object, version)?;
        store.version = version;
        let after = Some(Arc::clone(&object));
        let before = store.objects.insert((kind, name), object);
        if told {
            store.remember(Change { version, kind, before, after });
        }
        drop(store);
        self.tell();
        Ok(version)
    }

    fn tell(&self) {
        self.shared.changed.send_modify(|count| *count += 1);
    }

    /// A receiver that wakes a watch after each change.
    pub(super) fn changed(&self) -> watch::Receiver<u64> {
        self.shared.changed.subscribe()
    }

    /// One object by its name.
    pub(super) fn object(&self, kind: Kind, name: &str) -> Option<Arc<Object>> {
        lock(&self.shared.store).objects.get(&(kind, name.to_owned())).cloned()
    }

    /// A page of a list: the first one, or with `from` the one at an offset of a list from a version.
    pub(super) fn page(
        &self,
        kind: Kind,
        selector: &Selector,
        from: Option<(u64, usize)>,
        limit: usize,
    ) -> Result<Page, Compacted> {
        let mut store = lock(&self.shared.store);
        let (version, start) = from.unwrap_or((store.version, 0));
        let listed: Paged = match from {
            None => store.select(kind, selector).map(Arc::clone).collect(),
            Some(_) => store.paged.get(&(version, kind)).map(Arc::clone).ok_or(Compacted(store.version))?,
        };
        let end = start.saturating_add(limit).min(listed.len());
        let items = listed.get(start..end).unwrap_or_default().to_vec();
        let next = (end < listed.len()).then(|| (end, listed.len() - end));
        if from.is_none() && next.is_some() {
            store.keep_paged(kind, version, listed);
        }
        Ok(Page { version, items, next })
    }

    /// The changes after a version, as lines of a watch, and the version after them.
    pub(super) fn since(
        &self,
        kind: Kind,
        selector: &Selector,
        seen: u64,
    ) -> Result<(Vec<String>, u64), Compacted> {
        let store = lock(&self.shared.store);
        if seen < store.compacted {
            return Err(Compacted(store.compacted));
        }
        let first = store.changes.partition_point(|change| change.version <= seen);
        let later = store.changes.range(first..).filter(|change| change.kind == kind);
        let lines = later.filter_map(|change| change.line(selector)).collect();
        Ok((lines, store.version.max(seen)))
    }
}

impl Store {
    fn select<'a>(&'a self, kind: Kind, selector: &'a Selector) -> impl Iterator<Item = &'a Arc<Object>> {
        let all = self.objects.range((kind, String::new())..).take_while(move |((it, _), _)| *it == kind);
        all.map(|(_, object)| object).filter(|object| selector.matches(&object.selected))
    }

    fn remember(&mut self, change: Change) {
        self.changes.push_back(change);
        if self.changes.len() > CHANGES_KEPT_MAX
            && let Some(oldest) = self.changes.pop_front()
        {
            self.compacted = oldest.version;
        }
    }

    fn keep_paged(&mut self, kind: Kind, version: u64, listed: Paged) {
        self.paged.insert((version, kind), listed);
        while self.paged.len() > PAGED_KEPT_MAX {
            self.paged.pop_first();
        }
    }
}

impl Change {
    /// The change as a watch with a selector reports it: an object that begins to match is added, one that stops is
    /// deleted.
    fn line(&self, selector: &Selector) -> Option<String> {
        let matching = |object: &&Arc<Object>| selector.matches(&object.selected);
        let before = self.before.as_ref().filter(matching);
        let after = self.after.as_ref().filter(matching);
        match (before, after) {
            (None, Some(object)) => Some(line("ADDED", &object.typed())),
            (Some(_), Some(object)) => Some(line("MODIFIED", &object.typed())),
            (Some(object), None) => Some(line("DELETED", &object.gone(self.version))),
            (None, None) => None,
        }
    }
}

impl Object {
    /// The object with `kind` and `apiVersion`, as in a single answer or an event.
    pub(super) fn typed(&self) -> String {
        let (kind, api_version) = self.kind.names();
        let rest = self.json.strip_prefix('{').unwrap_or_default();
        format!(r#"{{"kind":"{kind}","apiVersion":"{api_version}",{rest}"#)
    }

    /// The metadata alone, for audits.
    pub(super) fn metadata(&self) -> String {
        let object: Value = serde_json::from_str(&self.json).unwrap_or_default();
        let metadata = object.get("metadata").cloned().unwrap_or_default();
        json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata})
            .to_string()
    }

    /// The object's last state, with the version of its deletion.
    fn gone(&self, version: u64) -> String {
        let mut object: Value = serde_json::from_str(&self.typed()).unwrap_or_default();
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.insert("resourceVersion".to_owned(), version.to_string().into());
        }
        object.to_string()
    }
}

/// One line of a watch.
pub(super) fn line(word: &str, object: &str) -> String {
    format!("{{\"type\":\"{word}\",\"object\":{object}}}\n")
}

/// Prepares an object for the store: adds a version, a uid and a creation time.
fn stored(mut object: Value, version: u64) -> Result<(Kind, String, Arc<Object>), FakeError> {
    let Some((kind, name)) = named(&object) else { return Err(FakeError::Object(object)) };
    if let Some(fields) = object.as_object_mut() {
        fields.remove("kind");
        fields.remove("apiVersion");
    }
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.insert("resourceVersion".to_owned(), version.to_string().into());
        give(metadata, "uid", &format!("uid-of-{}", name.replace('/', ".")));
        give(metadata, "creationTimestamp", "2026-01-08T11:05:15Z");
    }
    let selected = Selected::from_object(&object);
    let protobuf = protobuf::Item::encode(kind, &object);
    Ok((kind, name, Arc::new(Object { kind, json: object.to_string(), protobuf, selected })))
}

fn give(metadata: &mut Map<String, Value>, key: &str, value: &str) {
    metadata.entry(key).or_insert_with(|| value.into());
}

fn named(object: &Value) -> Option<(Kind, String)> {
    let kind = Kind::of_object(object.get("kind")?.as_str()?)?;
    let text = |pointer| object.pointer(pointer).and_then(Value::as_str);
    let name = text("/metadata/name")?;
    Some((
        kind,
        text("/metadata/namespace").map_or(name.to_owned(), |namespace| format!("{namespace}/{name}")),
    ))
}
