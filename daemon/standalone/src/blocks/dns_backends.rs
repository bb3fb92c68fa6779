//! Fills blocks with the backends that name servers returned last.
//!
//! Invariant: a block that waits for its first answer keeps its service's earlier backends, after a reload and after a
//! restart. So an unreachable name server removes no backend. Saved backends last as long as the table may remember the
//! service. An unchanged block stays the same object.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use holdfast_core::event::Event;
use holdfast_core::facts::{ObjectKey, Rejection};
use holdfast_core::keys::{ObjectName, Source};
use holdfast_core::snapshot::ServiceView;
use holdfast_core::weights::Weight;
use holdfast_objects::truncate_reason;
use tokio::sync::{mpsc, watch};

use super::block::{Block, Blocks};
use super::rejection_log::{RejectionLog, Rejections};
use crate::names::{BackendSet, NameAnswer, NameNews, NameQueries, NameQuery};

/// The backends of services in a former process.
pub type SavedSets = BTreeMap<ObjectName, SavedSet>;

/// The backends of a service, and the file of its block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedSet {
    set: Arc<BackendSet>,
    origin: Option<Arc<str>>,
}

/// The channels to the name resolver, and a former process's backends.
#[derive(Debug)]
pub struct NameChannels {
    pub queries: watch::Sender<Arc<NameQueries>>,
    pub news: mpsc::Receiver<Vec<NameNews>>,
    pub saved: SavedSets,
}

/// Reads the backends of the configuration's services from a former process's table.
pub fn saved_sets(services: &[Arc<ServiceView>]) -> SavedSets {
    let ours = services.iter().filter(|view| view.key.source == Source::Config);
    ours.filter_map(|view| Some((view.key.name.clone(), saved_set(view)?))).collect()
}

fn saved_set(view: &ServiceView) -> Option<SavedSet> {
    let origin = view.facts.as_ref().and_then(|facts| facts.meta.origin.clone());
    Some(SavedSet { set: Arc::new(read_set(view)?), origin })
}

/// The backends of a service; `None`: it has none. Weights in slices come from DNS; those of the service may be of a
/// slow start.
fn read_set(view: &ServiceView) -> Option<BackendSet> {
    let of_service = view.facts.as_deref().and_then(|facts| facts.weights.as_ref());
    let mut set = BackendSet::default();
    for slice in view.slices.iter() {
        let Some(port) = slice.ports.first() else { continue };
        let setting = slice.weights.as_ref().or(of_service);
        for (address, conditions) in slice.endpoints.iter_brief() {
            let backend = SocketAddr::new(address, port.port.get());
            let weight =
                setting.and_then(|setting| setting.weights.find_weight(backend, None)).unwrap_or(Weight::ONE);
            set.backends.insert(backend, weight);
            set.is_withdrawn |= conditions.terminating;
        }
    }
    (!set.backends.is_empty()).then_some(set)
}

/// A filled block, with its inputs.
#[derive(Debug)]
struct FilledBlock {
    unfilled: Arc<Block>,
    set: Arc<BackendSet>,
    block: Arc<Block>,
}

/// Fills all blocks with DNS names.
#[derive(Debug)]
pub(super) struct ResolvedBlocks {
    channels: NameChannels,
    // The blocks of the last update.
    unfilled: Arc<Blocks>,
    queries: Arc<NameQueries>,
    sets: BTreeMap<ObjectName, Arc<BackendSet>>,
    errors: BTreeMap<ObjectName, Arc<str>>,
    filled: BTreeMap<ObjectName, FilledBlock>,
    rejection_log: RejectionLog,
}

impl ResolvedBlocks {
    pub(super) fn new(channels: NameChannels) -> Self {
        let (unfilled, queries) = Default::default();
        let (sets, errors, filled, rejection_log) = Default::default();
        Self { channels, unfilled, queries, sets, errors, filled, rejection_log }
    }

    /// Waits for news; `None`: the resolver is gone.
    pub(super) async fn next_news(&mut self) -> Option<Vec<NameNews>> {
        self.channels.news.recv().await
    }

    /// Applies news.
    pub(super) fn take_news(&mut self, news: Vec<NameNews>) {
        for NameNews { service, query, result } in news {
            // Compares by value: an equal query may come back as another object before the resolver has seen it.
            if self.queries.get(&service) != Some(&query) {
                continue;
            }
            match result {
                Ok(result) => {
                    self.errors.remove(&service);
                    let set = match &*result {
                        NameAnswer::Withdrawn => {
                            let before = self.sets.get(&service).map(|set| BackendSet::clone(set));
                            BackendSet { is_withdrawn: true, ..before.unwrap_or_default() }
                        }
                        NameAnswer::Backends(set) => set.clone(),
                    };
                    self.sets.insert(service, Arc::new(set));
                }
                Err(why) => drop(self.errors.insert(service, why)),
            }
        }
    }

    /// Fills the blocks, and returns changes of rejections. `before` supplies a service's present backends, from any
    /// kind of block.
    pub(super) fn fill_blocks(
        &mut self,
        blocks: &Arc<Blocks>,
        before: impl Fn(&ObjectName) -> Option<BackendSet>,
    ) -> (Arc<Blocks>, Vec<Event>) {
        if !Arc::ptr_eq(&self.unfilled, blocks) {
            self.update_queries(blocks);
            self.unfilled = Arc::clone(blocks);
        }
        for name in self.queries.keys() {
            if !self.sets.contains_key(name) {
                let saved = self.channels.saved.remove(name).map(|saved| saved.set);
                let set = before(name).map(Arc::new).or(saved).unwrap_or_default();
                self.sets.insert(name.clone(), set);
            }
        }
        let filled: Vec<_> = self.queries.keys().cloned().collect();
        let filled: Vec<_> =
            filled.iter().filter_map(|name| self.fill_block(name, blocks.get(name)?)).collect();
        let blocks = if filled.is_empty() {
            Arc::clone(blocks)
        } else {
            Arc::new(blocks.with_blocks(filled.into_iter()))
        };
        (blocks, self.rejection_log.update_rejections(self.rejections()))
    }

    /// Drops saved backends of services without a DNS name, except those of unreadable files, which the table still
    /// holds.
    pub(super) fn forget_saved(&mut self, is_rejected: impl Fn(&str) -> bool) {
        self.channels.saved.retain(|_, saved| saved.origin.as_deref().is_some_and(&is_rejected));
    }

    /// Replaces the queries by those of these blocks.
    fn update_queries(&mut self, blocks: &Blocks) {
        let servers: Arc<[_]> = blocks.own_config().0.resolver.servers.as_slice().into();
        let mut queries = NameQueries::new();
        for (name, block) in blocks.iter() {
            let Some(resolve) = &block.resolve else { continue };
            let query = NameQuery {
                resolve: resolve.clone(),
                families: block.families(),
                servers: Arc::clone(&servers),
            };
            let known = self.queries.get(name).filter(|known| ***known == query).map(Arc::clone);
            queries.insert(name.clone(), known.unwrap_or_else(|| Arc::new(query)));
        }
        if *self.queries == queries {
            return;
        }
        self.queries = Arc::new(queries);
        let queries = &self.queries;
        self.sets.retain(|name, _| queries.contains_key(name));
        self.filled.retain(|name, _| queries.contains_key(name));
        self.errors.retain(|name, _| queries.contains_key(name));
        self.channels.queries.send_replace(Arc::clone(queries));
    }

    fn fill_block(&mut self, name: &ObjectName, unfilled: &Arc<Block>) -> Option<Arc<Block>> {
        let set = self.sets.get(name)?;
        let known = self.filled.get(name);
        let is_same = |it: &&FilledBlock| Arc::ptr_eq(&it.unfilled, unfilled) && it.set == *set;
        if let Some(known) = known.filter(is_same) {
            return Some(Arc::clone(&known.block));
        }
        // Never an error: a set has no more ports than a service may have slices.
        let block = Arc::new(unfilled.with_backends(set).ok()?);
        let filled =
            FilledBlock { unfilled: Arc::clone(unfilled), set: Arc::clone(set), block: Arc::clone(&block) };
        self.filled.insert(name.clone(), filled);
        Some(block)
    }

    fn rejections(&self) -> Rejections {
        let each = self.errors.iter().filter_map(|(name, why)| {
            let resolve = &self.queries.get(name)?.resolve;
            // The block is valid, so this rejects no service.
            let object = ObjectKey::Unnamed(Source::Config, format!("the DNS, {resolve} of {name}").into());
            let reason = truncate_reason(why);
            Some((object.clone(), Rejection { object, origin: None, reason, partial: false }))
        });
        each.collect()
    }
}

#[cfg(test)]
mod tests;
