//! The world outside the daemon: files, an apiserver's objects, the configuration, the node.
//!
//! Invariant: it has everything that a source would send after a restart, read through the daemon's own code.

use std::collections::BTreeMap;
use std::sync::Arc;

use holdfast_core::drains::{Drain, DrainOrder, Drains};
use holdfast_core::event::Event;
use holdfast_core::facts::{NodeFacts, ObjectKey, Settings, Timestamp};
use holdfast_core::keys::{ObjectName, ServiceKey, SliceKey, Source};
use holdfast_objects::manifests::TextFolder;
use holdfast_objects::{self as objects, Defaulting, ObjectKind, Provenance, SliceWire};
use serde_json::Value;

use super::Daemon;
use super::text::{Command, stage_settings};

/// The folder of manifests, in messages.
const FOLDER: &str = "manifests";

/// Everything that sources read.
#[derive(Debug)]
pub(super) struct Outside {
    files: BTreeMap<Arc<str>, Vec<u8>>,
    texts: TextFolder,
    cluster: BTreeMap<ObjectKey, Event>,
    blocks: BTreeMap<ObjectKey, Event>,
    node: Arc<NodeFacts>,
    settings: Arc<Settings>,
    drains: Arc<Drains>,
}

impl Default for Outside {
    fn default() -> Self {
        Self {
            files: BTreeMap::new(),
            texts: TextFolder::new(FOLDER),
            cluster: BTreeMap::new(),
            blocks: BTreeMap::new(),
            node: Arc::default(),
            settings: Arc::new(stage_settings()),
            drains: Arc::default(),
        }
    }
}

impl Outside {
    /// Applies a change, and returns the sources' events.
    pub(super) fn take(&mut self, command: &Command, daemon: &dyn Daemon) -> Result<Vec<Event>, String> {
        match command {
            Command::File(name, text) => {
                self.files.insert(name.as_str().into(), text.clone().into_bytes());
                Ok(self.texts.replace_files(&self.files))
            }
            Command::Remove(name) => {
                self.files.remove(name.as_str()).ok_or_else(|| format!("there is no file {name}"))?;
                Ok(self.texts.replace_files(&self.files))
            }
            Command::Cluster(yaml) => {
                let group = cluster_events(yaml)?;
                let known = group.iter().filter_map(|event| Some((key(event)?, event.clone())));
                self.cluster.extend(known);
                Ok(group)
            }
            Command::ClusterDelete(kind, name) => {
                let key = object_key(kind, name)?;
                self.cluster.remove(&key).ok_or_else(|| format!("there is no {key}"))?;
                Ok(vec![deletion(&key)])
            }
            Command::Config(toml) => {
                let blocks = daemon.blocks(toml)?.into_iter();
                Ok(self.replace_blocks(blocks.filter_map(|event| Some((key(&event)?, event))).collect()))
            }
            Command::Node(node) => Ok(vec![self.set_node(node.clone())]),
            Command::Settings(settings) => Ok(vec![self.set_settings(settings.clone())]),
            Command::Drain(drain, is_on) => Ok(vec![self.drain(drain, *is_on)?]),
            Command::Probe(..)
            | Command::Interrupted
            | Command::Time(_)
            | Command::Restart
            | Command::Show(_)
            | Command::KeepRunning => Ok(Vec::new()),
        }
    }

    /// The events for a new process.
    pub(super) fn all(&mut self) -> Result<Vec<Event>, String> {
        self.texts = TextFolder::new(FOLDER);
        let mut group = vec![
            Event::NodeApplied(Arc::clone(&self.node)),
            Event::SettingsApplied(Arc::clone(&self.settings)),
        ];
        group.extend(self.texts.replace_files(&self.files));
        group.extend(self.cluster.values().chain(self.blocks.values()).cloned());
        Ok(group)
    }

    pub(super) fn clear(&mut self) -> Vec<Event> {
        self.files.clear();
        let mut group = self.texts.replace_files(&self.files);
        group.extend(self.cluster.keys().map(deletion));
        self.cluster.clear();
        group.extend(self.replace_blocks(BTreeMap::new()));
        group.push(self.set_node(NodeFacts::default()));
        group.push(self.set_settings(stage_settings()));
        group.push(self.set_drains(Drains::default()));
        group
    }

    fn set_node(&mut self, node: NodeFacts) -> Event {
        self.node = Arc::new(node);
        Event::NodeApplied(Arc::clone(&self.node))
    }

    /// The drains that a new process starts with.
    pub(super) const fn drains(&self) -> &Arc<Drains> {
        &self.drains
    }

    fn drain(&mut self, drain: &Drain, is_on: bool) -> Result<Event, String> {
        let mut drains = Drains::clone(&self.drains);
        if is_on {
            drains.add(drain.clone(), ordered()).map_err(|error| error.to_string())?;
        } else {
            drains.remove(drain).ok_or_else(|| format!("{drain} is not drained"))?;
        }
        Ok(self.set_drains(drains))
    }

    fn set_drains(&mut self, drains: Drains) -> Event {
        self.drains = Arc::new(drains);
        Event::DrainsApplied(Arc::clone(&self.drains), ordered())
    }

    fn set_settings(&mut self, settings: Settings) -> Event {
        self.settings = Arc::new(settings);
        Event::SettingsApplied(Arc::clone(&self.settings))
    }

    fn replace_blocks(&mut self, blocks: BTreeMap<ObjectKey, Event>) -> Vec<Event> {
        let gone = self.blocks.keys().filter(|key| !blocks.contains_key(*key)).map(deletion);
        let group = gone.chain(blocks.values().cloned()).collect();
        self.blocks = blocks;
        group
    }
}

const fn ordered() -> DrainOrder {
    DrainOrder { uid: 0, user: None, at: Timestamp(1) }
}

fn key(event: &Event) -> Option<ObjectKey> {
    match event {
        Event::ServiceApplied(facts) => Some(ObjectKey::Service(facts.key.clone())),
        Event::SliceApplied(facts) => Some(ObjectKey::Slice(facts.key.clone())),
        _ => None,
    }
}

fn deletion(key: &ObjectKey) -> Event {
    match key {
        ObjectKey::Service(key) => Event::ServiceDeleted(key.clone(), None),
        ObjectKey::Slice(key) => Event::SliceDeleted(key.clone(), None),
        other => Event::RejectionEnded(other.clone()),
    }
}

fn object_key(kind: &str, name: &str) -> Result<ObjectKey, String> {
    let (namespace, name) = name.split_once('/').ok_or_else(|| format!("{name:?} is no NAMESPACE/NAME"))?;
    let name = ObjectName::new(namespace, name).map_err(|error| error.to_string())?;
    match kind {
        "Service" => Ok(ObjectKey::Service(ServiceKey { name, source: Source::Kubernetes })),
        "EndpointSlice" => Ok(ObjectKey::Slice(SliceKey { name, source: Source::Kubernetes })),
        other => Err(format!("Service or EndpointSlice, not {other}")),
    }
}

/// The events of the apiserver's objects, whose defaults it has filled in.
fn cluster_events(yaml: &str) -> Result<Vec<Event>, String> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(yaml).map_err(|error| error.to_string())?;
    let from = Provenance { source: Source::Kubernetes, origin: None, defaulting: Defaulting::Done };
    let mut group = Vec::new();
    for document in &documents {
        match document.get("kind").and_then(Value::as_str) {
            Some("Service") => group.push(service_event(document, &from)),
            Some("EndpointSlice") => group.extend(slice_events(document, &from)),
            other => return Err(format!("an apiserver's Service or EndpointSlice, not {other:?}")),
        }
    }
    Ok(group)
}

fn service_event(document: &Value, from: &Provenance) -> Event {
    let facts = objects::from_value(document)
        .map_err(|refusal| objects::reject_object(ObjectKind::Service, document, &refusal, from))
        .and_then(|wire| objects::parse_service(&wire, from));
    facts.map_or_else(Event::Rejected, |facts| Event::ServiceApplied(Arc::new(facts)))
}

fn slice_events(document: &Value, from: &Provenance) -> Vec<Event> {
    let facts = objects::from_value(document)
        .map_err(|refusal| objects::reject_object(ObjectKind::Slice, document, &refusal, from))
        .and_then(|wire: SliceWire| objects::parse_slice(&wire, from));
    match facts {
        Ok((facts, skipped)) => {
            let applied = Event::SliceApplied(Arc::new(facts));
            std::iter::once(applied).chain(skipped.map(Event::Rejected)).collect()
        }
        Err(rejection) => vec![Event::Rejected(rejection)],
    }
}
