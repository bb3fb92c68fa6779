//! Holds over all services: what they are judged by, when they end, who takes a held address, and losses in a mass.
//!
//! Invariant: a hold is entered and left by a decision for its own service alone; other services reach it only by claiming
//! a held address or by being part of the same mass loss, and each of these is a cause of its own. Deliberately absent:
//! what the evidence means ([`crate::hold`]).

use alloc::boxed::Box;
use alloc::collections::btree_map::Entry;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::SocketAddr;

use super::{World, mark};
use crate::change::Cause;
use crate::facts::{Endpoint, Settings, SliceFacts};
use crate::hold::{Bound, Hold, OnEmpty, Policy, Probed, RESYNC_WINDOW};
use crate::keys::{ServiceKey, Source};
use crate::list::Rows;
use crate::op::ServiceId;
use crate::program::Program;
use crate::snapshot::Reason;
use crate::time::{Now, Uptime};

/// All holds, found by what may end them.
#[derive(Debug, Default)]
pub(super) struct Holds {
    /// When a service must be decided for again.
    due: BTreeSet<(Uptime, ServiceId)>,
    held: Arc<BTreeSet<ServiceId>>,
    addresses: BTreeMap<SocketAddr, BTreeSet<ServiceId>>,
    addresses_of: BTreeMap<ServiceId, Vec<SocketAddr>>,
    losses: Losses,
    /// Services with a list.
    populated: usize,
    /// Sources that were interrupted since the last decision.
    interrupted_now: BTreeSet<Source>,
    interrupted: BTreeMap<Source, Uptime>,
}

/// Services that lost their lists within the window of a mass loss, and have not got them back.
#[derive(Debug, Default)]
struct Losses {
    order: BTreeSet<(Uptime, ServiceId)>,
    services: BTreeMap<ServiceId, Uptime>,
    /// All of them are part of a mass loss, but for those that came since.
    is_mass: bool,
    came: bool,
}

impl Losses {
    /// When a service lost its list last, if it is held for that.
    fn put(&mut self, id: ServiceId, lost: Option<Uptime>) {
        let before = match lost {
            Some(at) => self.services.insert(id, at),
            None => self.services.remove(&id),
        };
        self.order.extend(lost.map(|at| (at, id)));
        if let Some(before) = before.filter(|before| Some(*before) != lost) {
            self.order.remove(&(before, id));
        }
        self.came |= lost.is_some();
    }

    /// Forgets those before the window.
    fn pass(&mut self, now: Uptime, window: i64) {
        while let Some((at, id)) = self.order.first().copied().filter(|(at, _)| now.since(*at) > window) {
            self.order.remove(&(at, id));
            self.services.remove(&id);
        }
    }
}

/// What one service's empty lists are judged by, beside the lists themselves.
pub(crate) struct Bench<'a> {
    pub(crate) policy: &'a Policy,
    pub(crate) own: Option<OnEmpty>,
    pub(crate) is_resync: bool,
    pub(crate) now: Now,
    /// As they were when its last lists were made.
    pub(crate) slices: Arc<[Arc<SliceFacts>]>,
    key: ServiceKey,
    settings: &'a Settings,
}

impl Bench<'_> {
    /// Whether the node reaches the apiserver by this list.
    pub(crate) fn is_control(&self, last: &Rows) -> bool {
        let is_own = self.key.name.namespace() == "default" && self.key.name.name() == "kubernetes";
        let mut chosen = last.all().iter().filter(|row| row.is_chosen());
        is_own || chosen.any(|row| self.settings.bypass.contains(&row.backend()))
    }
}

impl World {
    /// What the empty lists of this service are judged by.
    pub(super) fn bench<'a>(&self, id: ServiceId, settings: &'a Settings, now: Now) -> Option<Bench<'a>> {
        let known = self.tables.get(id)?;
        let before = self.programs.get(id.0 as usize).and_then(|program| program.view.as_ref());
        let interrupted = self.holds.interrupted.get(&known.key.source);
        Some(Bench {
            policy: &settings.hold,
            own: known.facts.as_deref().and_then(crate::tables::on_empty),
            is_resync: interrupted.is_some_and(|at| now.uptime().since(*at) < RESYNC_WINDOW),
            now,
            slices: before.map(|view| Arc::clone(&view.slices)).unwrap_or_default(),
            key: known.key.clone(),
            settings,
        })
    }

    /// A source may miss something from now on.
    pub(super) fn interrupt(&mut self, source: Source) {
        self.holds.interrupted_now.insert(source);
    }

    /// Marks the services whose holds have reached their bounds.
    pub(super) fn expire_holds(&mut self, now: Uptime) {
        for source in core::mem::take(&mut self.holds.interrupted_now) {
            self.holds.interrupted.insert(source, now);
        }
        while let Some((due, id)) = self.holds.due.first().copied().filter(|(due, _)| *due <= now) {
            self.holds.due.remove(&(due, id));
            if self.holds.held.contains(&id) {
                mark(&mut self.programs, &mut self.dirty, id, Cause::HoldDue, true);
            }
        }
    }

    /// Takes notice of what a probe found.
    pub(super) fn probed(&mut self, probed: Box<Probed>) {
        let Some(id) = self.tables.id_of(&probed.service) else { return };
        let hold = self.program(id).and_then(|program| program.hold_of(&probed.port));
        if hold.is_some_and(|hold| Arc::make_mut(hold).observe(probed.backend, probed.answer)) {
            mark(&mut self.programs, &mut self.dirty, id, Cause::Probed(probed), true);
        }
    }

    /// Lets go of held addresses that this slice lists for somebody else: a probe would find that one there.
    pub(super) fn claim_addresses(&mut self, slice: &SliceFacts) {
        if self.holds.addresses.is_empty() {
            return;
        }
        for port in &slice.ports {
            for endpoint in slice.endpoints.iter() {
                self.claim_address(SocketAddr::new(endpoint.address, port.port.get()), endpoint, slice);
            }
        }
    }

    fn claim_address(&mut self, address: SocketAddr, endpoint: Endpoint<'_>, slice: &SliceFacts) {
        let (Some(ids), Some(by)) = (self.holds.addresses.get(&address), endpoint.target) else { return };
        let Some(claimant) = crate::tables::service_of(slice) else { return };
        for id in ids.clone() {
            let Some(program) = self.programs.get_mut(id.0 as usize) else { continue };
            let holds = program.ports.iter_mut().filter_map(|port| port.hold.as_mut());
            let lost =
                holds.map(|hold| Arc::make_mut(hold).give_up(address, by)).filter(|lost| *lost).count();
            if lost > 0 {
                let cause = Cause::AddressClaimed(address, claimant.clone());
                mark(&mut self.programs, &mut self.dirty, id, cause, true);
            }
        }
    }

    /// Keeps account of what a decision made of a service's holds.
    pub(super) fn account_for_holds(
        &mut self,
        id: ServiceId,
        had_list: bool,
        settings: &Settings,
        now: Uptime,
    ) {
        let Some(program) = self.programs.get(id.0 as usize) else { return };
        self.holds.populated += usize::from(program.has_list());
        self.holds.populated = self.holds.populated.saturating_sub(usize::from(had_list));
        let is_held = program.holds().next().is_some();
        if is_held || self.holds.held.contains(&id) {
            self.holds.index(id, program, &settings.hold);
        }
        let window = settings.hold.mass_loss_window;
        // A restart finds the losses before it in what is held.
        let is_lost = |hold: &&Hold| {
            now.since(hold.begun) <= window && matches!(hold.bound, Bound::Guarded | Bound::MassLoss)
        };
        let lost = program.holds().filter(is_lost).map(|hold| hold.begun).max();
        self.holds.losses.put(id, lost);
    }

    /// A remembered service has a list, or holds one, before anything is decided.
    pub(super) fn account_for_remembered(&mut self, id: ServiceId) {
        let Some(program) = self.programs.get(id.0 as usize) else { return };
        self.holds.populated += usize::from(program.has_list());
        self.holds.index(id, program, &self.tables.settings.hold);
    }

    /// Who lost its list within the window is held as long as a mass loss is, if there are so many. Judged once for all that
    /// a batch decided, so that its order does not matter.
    pub(super) fn judge_mass(&mut self, now: Uptime) {
        let policy = self.tables.settings.hold;
        self.holds.losses.pass(now, policy.mass_loss_window);
        let (lost, populated) = (self.holds.losses.services.len(), self.holds.populated);
        let is_mass = policy.is_mass_loss(lost, populated);
        let was_mass = core::mem::replace(&mut self.holds.losses.is_mass, is_mass);
        let came = core::mem::take(&mut self.holds.losses.came);
        if !is_mass || was_mass && !came {
            return;
        }
        for id in self.holds.losses.services.keys().copied().collect::<Vec<_>>() {
            let Some(program) = self.programs.get_mut(id.0 as usize) else { continue };
            if program.join_mass_loss() {
                self.holds.index(id, program, &policy);
                let cause = Cause::MassLoss { lost, populated };
                mark(&mut self.programs, &mut self.dirty, id, cause, false);
            }
        }
    }

    /// Services of which some list is held.
    pub(super) fn held(&self) -> Arc<BTreeSet<ServiceId>> {
        Arc::clone(&self.holds.held)
    }
}

impl Holds {
    fn index(&mut self, id: ServiceId, program: &Program, policy: &Policy) {
        for address in self.addresses_of.remove(&id).unwrap_or_default() {
            if let Entry::Occupied(mut entry) = self.addresses.entry(address) {
                entry.get_mut().remove(&id);
                if entry.get().is_empty() {
                    entry.remove();
                }
            }
        }
        let mut addresses = Vec::new();
        for hold in program.holds() {
            self.due.extend(hold.until(policy).map(|until| (until, id)));
            addresses.extend(hold.rows().map(crate::list::Row::backend));
        }
        let is_held = program.holds().next().is_some();
        // Readers share it, so it is copied only where it changes.
        match (is_held, self.held.contains(&id)) {
            (true, false) => drop(Arc::make_mut(&mut self.held).insert(id)),
            (false, true) => drop(Arc::make_mut(&mut self.held).remove(&id)),
            _ => {}
        }
        if !is_held {
            return;
        }
        for address in &addresses {
            self.addresses.entry(*address).or_default().insert(id);
        }
        self.addresses_of.insert(id, addresses);
    }
}

impl Program {
    pub(crate) fn holds(&self) -> impl Iterator<Item = &Hold> {
        self.ports.iter().filter_map(|port| port.hold.as_deref())
    }

    /// Turns holds of lists that were lost into those of a mass loss. `true`: there were any.
    fn join_mass_loss(&mut self) -> bool {
        let holds = self.ports.iter_mut().filter_map(|port| port.hold.as_mut());
        let mut joined = false;
        for hold in holds.filter(|hold| hold.bound == Bound::Guarded) {
            let hold = Arc::make_mut(hold);
            (hold.reason, hold.bound, joined) = (Reason::MassLoss, Bound::MassLoss, true);
        }
        joined
    }
}
