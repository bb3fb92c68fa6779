//! Which blocks of other files are compatible with a configuration.
//!
//! Invariant: pure, and decided by the order of the blocks alone: the first one keeps its names and addresses, whatever
//! follows. So the same files give the same services on each node and after each start.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use holdfast_core::keys::Transport;

use super::announce::Announce;
use super::block_conflicts::{BlockConflict, ConflictContext, find_conflicts};
use super::limits::{ANNOUNCED_MAX, BLOCKS_MAX};
use super::service::ServiceBlock;
use super::{Config, DnsLabel};

/// The names and addresses that are taken.
#[derive(Debug)]
pub struct BlockAdmission<'c> {
    config: &'c Config,
    names: BTreeMap<(DnsLabel, DnsLabel), Arc<str>>,
    frontends: BTreeMap<(SocketAddr, Transport), String>,
    announced: BTreeSet<std::net::IpAddr>,
}

impl<'c> BlockAdmission<'c> {
    /// Takes the blocks of the configuration itself; `origin` is its file.
    pub fn new(config: &'c Config, origin: &Arc<str>) -> Self {
        let (names, frontends, announced) = Default::default();
        let mut admission = Self { config, names, frontends, announced };
        config.services.iter().for_each(|block| admission.add_block(block, origin));
        admission
    }

    /// Adds a block of a file, or says why it conflicts with earlier ones.
    pub fn admit_block(&mut self, block: &ServiceBlock, file: &Arc<str>) -> Result<(), String> {
        match self.refusal_reason(block) {
            Some(why) => Err(why),
            None => {
                self.add_block(block, file);
                Ok(())
            }
        }
    }

    fn refusal_reason(&self, block: &ServiceBlock) -> Option<String> {
        if let Some(file) = self.names.get(&(block.namespace.clone(), block.name.clone())) {
            return Some(format!("{file} has a block of this name already"));
        }
        let claimed =
            block.frontends.iter().find_map(|it| Some((it, self.frontends.get(&(*it, block.protocol))?)));
        if let Some((frontend, owner)) = claimed {
            return Some(format!("{frontend} is claimed by {owner} already"));
        }
        if self.names.len() >= BLOCKS_MAX {
            return Some(format!("at most {BLOCKS_MAX} blocks of all files together are read"));
        }
        let Config { admin, apiserver, packets, resolver, .. } = self.config;
        let clash =
            find_conflicts(block, ConflictContext { admin, apiserver, packets, resolver }).into_iter().next();
        clash.map(|BlockConflict { message, .. }| message).or_else(|| self.announce_limit_reason(block))
    }

    fn announce_limit_reason(&self, block: &ServiceBlock) -> Option<String> {
        let new: BTreeSet<_> = announced_addresses(block).filter(|it| !self.announced.contains(it)).collect();
        let is_too_many = !new.is_empty() && self.announced.len() + new.len() > ANNOUNCED_MAX;
        is_too_many.then(|| format!("at most {ANNOUNCED_MAX} addresses are announced"))
    }

    fn add_block(&mut self, block: &ServiceBlock, file: &Arc<str>) {
        let owner = || format!("{}/{} ({file})", block.namespace, block.name);
        self.frontends.extend(block.frontends.iter().map(|it| ((*it, block.protocol), owner())));
        self.announced.extend(announced_addresses(block));
        self.names.insert((block.namespace.clone(), block.name.clone()), Arc::clone(file));
    }
}

fn announced_addresses(block: &ServiceBlock) -> impl Iterator<Item = std::net::IpAddr> {
    let is_announced = block.announce == Announce::Route;
    block.frontends.iter().filter(move |_| is_announced).map(SocketAddr::ip)
}
