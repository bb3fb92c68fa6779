//! Decides again for every stale service, and settles who owns which frontend.
//!
//! Invariant: deciding for one service changes no other service's lists. The only thing that reaches another one is a
//! claim won or lost, and it is marked dirty with that as its cause.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::SocketAddr;

use super::World;
use crate::change::Cause;
use crate::claims::{Claimed, Rank, Wanted};
use crate::facts::{NodeFacts, Settings};
use crate::keys::{Family, FrontendKey, Transport};
use crate::op::{FrontendType, ServiceId};
use crate::resolve::{self, DesiredFrontend};
use crate::time::Now;
use crate::work;

impl World {
    /// Decides for the dirty services of the next piece, but for those that wait for the rest of what their source
    /// has to tell.
    pub(crate) fn decide(&mut self, now: Now) {
        self.expire_holds(now.uptime());
        self.set_aside();
        self.begin_pieces();
        let mut left = self.most_work();
        loop {
            // Claims may make more services dirty while this runs.
            while left > 0
                && let Some(id) = self.next_of_piece()
            {
                left = left.saturating_sub(self.decide_next(id, now));
            }
            if self.is_judging(now.uptime()) {
                self.judge_mass(now.uptime());
            }
            if left == 0 || !self.has_more() {
                return self.gather();
            }
        }
    }

    /// Gives the work that the service takes of the piece.
    fn decide_next(&mut self, id: ServiceId, now: Now) -> u64 {
        let is_stale = self.services.get_mut(id).is_some_and(|service| core::mem::take(&mut service.stale));
        if is_stale {
            self.decide_one(id, now);
            self.is_decided(id);
        }
        self.take_into_piece(id, is_stale)
    }

    /// Of a first list that is not whole yet nothing counts: a service whose slices are still to come has nobody in it.
    /// What is remembered is whole.
    fn set_aside(&mut self) {
        if self.tables.is_synced() {
            return;
        }
        let dirty = core::mem::take(&mut self.services.dirty);
        let (ready, waiting): (Vec<_>, Vec<_>) = dirty.into_iter().partition(|id| self.may_decide(*id));
        self.services.dirty = ready;
        self.turns.waiting.extend(waiting);
    }

    /// A source has delivered: those of its services that waited for it are decided for.
    pub(super) fn go_on_with_waiting(&mut self) {
        self.services.dirty.append(&mut self.turns.waiting);
        for id in self.services.dirty.clone() {
            self.turns.is_to_be_written(self.services.get_mut(id));
        }
    }

    pub(super) fn may_decide(&self, id: ServiceId) -> bool {
        let source = self.tables.get(id).map(|known| known.key.source);
        let has_delivered = source.is_none_or(|source| self.tables.synced.get(&source) != Some(&false));
        has_delivered || self.services.get(id).is_some_and(|service| service.view.is_some())
    }

    fn decide_one(&mut self, id: ServiceId, now: Now) {
        let Some(known) = self.tables.get(id) else { return self.count_impossible() };
        let facts = known.facts.clone();
        let node = Arc::clone(&self.tables.node);
        let settings = Arc::clone(&self.tables.settings);
        let desired = resolve::resolve(facts.as_deref(), &known.slices, &node, &settings);
        self.tables.cut_short(id, desired.cut);
        let wanted = claimable(&desired.frontends, &settings, &node);
        let rank = facts.as_deref().map(Rank::of);
        let Some(case) = self.case(id, &settings, now) else { return self.count_impossible() };
        let Self { services, space, .. } = self;
        let Some(service) = services.get_mut(id) else { return self.count_impossible() };
        let before = service.lists();
        service.take(desired, facts, &case);
        space.indices.put_all(&service.ports);
        self.open_holds(id, &settings, &node);
        self.account_for_holds(id, before, &settings, now.uptime());
        self.claim(id, &wanted, rank);
    }

    /// Replaces the claims of a service. With another rank, all of them are entered anew.
    fn claim(&mut self, id: ServiceId, wanted: &[Wanted], rank: Option<Rank>) {
        let Some(service) = self.services.get_mut(id) else { return self.count_impossible() };
        let same_rank = service.rank == rank;
        if same_rank && service.claimed == wanted {
            return;
        }
        service.rank = rank;
        let claimed = core::mem::replace(&mut service.claimed, wanted.to_vec());
        for it in missing(&claimed, if same_rank { wanted } else { &[] }) {
            match self.frontends.withdraw(it.key, id) {
                Some(heir) => self.won(heir, it.key, id),
                None => self.left_over(it.key, id),
            }
        }
        let Some(rank) = rank else { return };
        for it in missing(wanted, if same_rank { &claimed } else { &[] }) {
            let tables = &self.tables;
            let name = |id| tables.get(id).map(|known| &known.key);
            match self.frontends.claim(*it, id, rank, &|a, b| name(a).cmp(&name(b))) {
                Claimed::Alone | Claimed::LostTo(_) => {}
                Claimed::WonFrom(_) => self.lost(it.key, id),
            }
        }
    }

    fn won(&mut self, heir: ServiceId, key: FrontendKey, from: ServiceId) {
        if let Some(from) = self.tables.get(from) {
            let cause = Cause::ClaimWon(key, from.key.clone());
            self.services.mark(heir, cause, false);
        }
        self.lost(key, heir);
    }

    /// Nobody claims it any more, and the one that withdrew never took it over: whoever has it in the maps removes it.
    fn left_over(&mut self, key: FrontendKey, by: ServiceId) {
        let Some(entry) = self.frontends.get(&key).filter(|entry| entry.winner().is_none()) else { return };
        let owner = entry.realized.and_then(|realized| realized.owner);
        if let Some(owner) = owner.filter(|owner| *owner != by) {
            self.services.mark(owner, Cause::Retry, false);
        }
    }

    /// All other claimants: the one that owned it until now, and those whose rows name the owner.
    fn lost(&mut self, key: FrontendKey, to: ServiceId) {
        let (Some(to), Some(entry)) = (self.tables.get(to), self.frontends.get(&key)) else {
            return self.count_impossible();
        };
        for loser in entry.losers() {
            work::done(1);
            let cause = Cause::ClaimLost(key, to.key.clone());
            self.services.mark(loser, cause, false);
        }
    }
}

/// Which of these the others lack; both are sorted.
fn missing<'a>(of: &'a [Wanted], others: &'a [Wanted]) -> impl Iterator<Item = &'a Wanted> {
    let mut others = others.iter().peekable();
    of.iter().filter(move |it| {
        while others.next_if(|other| other < it).is_some() {}
        others.peek() != Some(it)
    })
}

/// What a service claims, sorted: all that can be programmed, but for the apiserver's own addresses.
fn claimable(frontends: &[DesiredFrontend], settings: &Settings, node: &NodeFacts) -> Vec<Wanted> {
    let is_chosen = |kind| matches!(kind, FrontendType::LoadBalancer | FrontendType::ExternalIp);
    let all =
        frontends.iter().filter_map(|it| Some(Wanted { key: it.key()?, is_chosen: is_chosen(it.kind) }));
    let mut wanted: Vec<_> = all.filter(|it| !is_bypassed(&it.key, settings, node)).collect();
    wanted.sort_unstable();
    wanted
}

/// Whether this is the apiserver's own address, or a NodePort that would answer at it on this node.
pub(super) fn is_bypassed(key: &FrontendKey, settings: &Settings, node: &NodeFacts) -> bool {
    let family = Family::of(key.address);
    let is_here =
        |it: &&SocketAddr| Family::of(it.ip()) == family && node.node_port_addresses.contains(&it.ip());
    key.transport == Transport::Tcp
        && if key.address.is_unspecified() {
            settings.bypass.iter().filter(is_here).any(|it| it.port() == key.port.get())
        } else {
            settings.bypass.contains(&SocketAddr::new(key.address, key.port.get()))
        }
}
