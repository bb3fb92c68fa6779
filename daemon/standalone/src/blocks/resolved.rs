//! Blocks that have their backends from name servers, filled with what these said last.
//!
//! Invariant: a block that waits for its first answer, of a name that is new to it too, has the backends that its
//! service had before, after a reload as after a restart. So a name server that is away takes nothing from a service.
//! What a former process knew counts for as long as the table may remember the service. A block of which nothing
//! changes stays the same object.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use holdfast_core::event::Event;
use holdfast_core::facts::{ObjectKey, Rejection};
use holdfast_core::keys::{ObjectName, Source};
use holdfast_core::snapshot::ServiceView;
use holdfast_core::weights::Weight;
use holdfast_objects::cut_reason;
use tokio::sync::{mpsc, watch};

use super::block::{Block, Blocks};
use super::told::{Rejections, Told};
use crate::names::{NameNews, Said, Set, Wanted, Wish};

/// The backends of services as a former process knew them.
pub type Sets = BTreeMap<ObjectName, Kept>;

/// The backends of a service, and the file that its block was in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    set: Arc<Set>,
    origin: Option<Arc<str>>,
}

/// What this source and the one of names tell each other, and what a former process knew.
#[derive(Debug)]
pub struct NamesEnds {
    pub wanted: watch::Sender<Arc<Wanted>>,
    pub news: mpsc::Receiver<Vec<NameNews>>,
    pub kept: Sets,
}

/// The sets of the configuration's services as a former process had them.
pub fn kept(services: &[Arc<ServiceView>]) -> Sets {
    let ours = services.iter().filter(|view| view.key.source == Source::Config);
    ours.filter_map(|view| Some((view.key.name.clone(), kept_of(view)?))).collect()
}

fn kept_of(view: &ServiceView) -> Option<Kept> {
    let origin = view.facts.as_ref().and_then(|facts| facts.meta.origin.clone());
    Some(Kept { set: Arc::new(set_of(view)?), origin })
}

/// The backends of a service; none: it has none. What its slices say of their weights was said by name servers; what
/// the service says may be of backends that grew just then.
fn set_of(view: &ServiceView) -> Option<Set> {
    let of_service = view.facts.as_deref().and_then(|facts| facts.weights.as_ref());
    let mut set = Set::default();
    for slice in view.slices.iter() {
        let Some(port) = slice.ports.first() else { continue };
        let asked = slice.weights.as_ref().or(of_service);
        for (address, conditions) in slice.endpoints.iter_brief() {
            let backend = SocketAddr::new(address, port.port.get());
            let weight =
                asked.and_then(|asked| asked.weights.find_weight(backend, None)).unwrap_or(Weight::ONE);
            set.backends.insert(backend, weight);
            set.is_withdrawn |= conditions.terminating;
        }
    }
    (!set.backends.is_empty()).then_some(set)
}

/// A block that was filled: with what it was filled, and what it became.
#[derive(Debug)]
struct Filled {
    bare: Arc<Block>,
    set: Arc<Set>,
    block: Arc<Block>,
}

/// The sets of all blocks that have a name.
#[derive(Debug)]
pub(super) struct Resolved {
    ends: NamesEnds,
    // The blocks as they were looked at last.
    bare: Arc<Blocks>,
    wanted: Arc<Wanted>,
    sets: BTreeMap<ObjectName, Arc<Set>>,
    troubles: BTreeMap<ObjectName, Arc<str>>,
    filled: BTreeMap<ObjectName, Filled>,
    told: Told,
}

impl Resolved {
    pub(super) fn new(ends: NamesEnds) -> Self {
        let (bare, wanted) = Default::default();
        let (sets, troubles, filled, told) = Default::default();
        Self { ends, bare, wanted, sets, troubles, filled, told }
    }

    /// Waits for news; none: there will be no more.
    pub(super) async fn news(&mut self) -> Option<Vec<NameNews>> {
        self.ends.news.recv().await
    }

    /// Takes news in.
    pub(super) fn take(&mut self, news: Vec<NameNews>) {
        for NameNews { service, wish, said } in news {
            // By what it is: where a wish comes back before the names were looked at, theirs is the one of before.
            if self.wanted.get(&service) != Some(&wish) {
                continue;
            }
            match said {
                Ok(said) => {
                    self.troubles.remove(&service);
                    let set = match &*said {
                        Said::Withdrawn => {
                            let before = self.sets.get(&service).map(|set| Set::clone(set));
                            Set { is_withdrawn: true, ..before.unwrap_or_default() }
                        }
                        Said::Backends(set) => set.clone(),
                    };
                    self.sets.insert(service, Arc::new(set));
                }
                Err(why) => drop(self.troubles.insert(service, why)),
            }
        }
    }

    /// The blocks with their backends, and what readers of rejections have to be told. `before` says what backends the
    /// service had until now, of whatever kind its block was.
    pub(super) fn fill(
        &mut self,
        blocks: &Arc<Blocks>,
        before: impl Fn(&ObjectName) -> Option<Set>,
    ) -> (Arc<Blocks>, Vec<Event>) {
        if !Arc::ptr_eq(&self.bare, blocks) {
            self.want(blocks);
            self.bare = Arc::clone(blocks);
        }
        for name in self.wanted.keys() {
            if !self.sets.contains_key(name) {
                let kept = self.ends.kept.remove(name).map(|kept| kept.set);
                let set = before(name).map(Arc::new).or(kept).unwrap_or_default();
                self.sets.insert(name.clone(), set);
            }
        }
        let filled: Vec<_> = self.wanted.keys().cloned().collect();
        let filled: Vec<_> = filled.iter().filter_map(|name| self.filled(name, blocks.get(name)?)).collect();
        let blocks =
            if filled.is_empty() { Arc::clone(blocks) } else { Arc::new(blocks.with(filled.into_iter())) };
        (blocks, self.told.news(self.rejections()))
    }

    /// Forgets what a former process knew of services that have no name by now, but for those of files that cannot be
    /// read: these the table still remembers.
    pub(super) fn forget_kept(&mut self, is_rejected: impl Fn(&str) -> bool) {
        self.ends.kept.retain(|_, kept| kept.origin.as_deref().is_some_and(&is_rejected));
    }

    /// Wishes for what these blocks name, and forgets all else.
    fn want(&mut self, blocks: &Blocks) {
        let servers: Arc<[_]> = blocks.beside().0.resolver.servers.as_slice().into();
        let mut wanted = Wanted::new();
        for (name, block) in blocks.iter() {
            let Some(resolve) = &block.resolve else { continue };
            let wish =
                Wish { resolve: resolve.clone(), families: block.families(), servers: Arc::clone(&servers) };
            let known = self.wanted.get(name).filter(|known| ***known == wish).map(Arc::clone);
            wanted.insert(name.clone(), known.unwrap_or_else(|| Arc::new(wish)));
        }
        if *self.wanted == wanted {
            return;
        }
        self.wanted = Arc::new(wanted);
        let wanted = &self.wanted;
        self.sets.retain(|name, _| wanted.contains_key(name));
        self.filled.retain(|name, _| wanted.contains_key(name));
        self.troubles.retain(|name, _| wanted.contains_key(name));
        self.ends.wanted.send_replace(Arc::clone(wanted));
    }

    fn filled(&mut self, name: &ObjectName, bare: &Arc<Block>) -> Option<Arc<Block>> {
        let set = self.sets.get(name)?;
        let known = self.filled.get(name);
        let is_same = |it: &&Filled| Arc::ptr_eq(&it.bare, bare) && it.set == *set;
        if let Some(known) = known.filter(is_same) {
            return Some(Arc::clone(&known.block));
        }
        // Never an error: a set has no more ports than a service may have slices.
        let block = Arc::new(bare.filled(set).ok()?);
        let filled = Filled { bare: Arc::clone(bare), set: Arc::clone(set), block: Arc::clone(&block) };
        self.filled.insert(name.clone(), filled);
        Some(block)
    }

    fn rejections(&self) -> Rejections {
        let each = self.troubles.iter().filter_map(|(name, why)| {
            let resolve = &self.wanted.get(name)?.resolve;
            // Not a rejection of the service: its block is understood.
            let object = ObjectKey::Unnamed(Source::Config, format!("the DNS, {resolve} of {name}").into());
            let reason = cut_reason(why);
            Some((object.clone(), Rejection { object, origin: None, reason, partial: false }))
        });
        each.collect()
    }
}

#[cfg(test)]
mod tests;
