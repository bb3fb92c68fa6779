//! The end of a batch: views, change records, and what nobody needs any more.
//!
//! Invariant: a view tells what the maps do, not what they should: where an op failed, the row shows what is still served.
//! `since` moves only when verdict, reason or a list of the row changed. Deliberately absent: writing anything down.

use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::mem;

use super::decide::is_bypassed;
use super::{World, mark};
use crate::change::{Cause, Change};
use crate::claims::Frontends;
use crate::facts::Timestamp;
use crate::keys::FrontendKey;
use crate::list::{Rows, Scope};
use crate::op::{FrontendValue, PortIndex, ServiceId, WordFlags};
use crate::program::{Port, Program, RealizedPort};
use crate::resolve::DesiredFrontend;
use crate::snapshot::{
    Checked, Counters, Fill, FrontendView, PortView, Reason, ServiceView, Snapshot, Status, Verdict,
};
use crate::time::Now;

impl World {
    /// What kept a service's plan from being carried out; told with its next view.
    pub fn fail(&mut self, id: ServiceId, error: Arc<str>) {
        if let Some(program) = self.program(id) {
            program.error = Some(error);
        }
    }

    /// An op that was not even tried, because its owner was not dirty.
    pub fn count_cross_service(&mut self) {
        self.counters.cross_service += 1;
    }

    /// Ends the batch: calls back with each change and gives what readers see from now on.
    pub fn settle(&mut self, now: Now, changed: &mut dyn FnMut(Change)) -> Snapshot {
        self.counters.batches += 1;
        // What was refused comes with another batch.
        self.frontends_coming = 0;
        self.settle_leftovers();
        for id in mem::take(&mut self.dirty) {
            self.settle_one(id, now.wall, changed);
        }
        self.admit();
        self.feed();
        // Whoever was woken by another service's op is planned again in the next batch.
        for id in mem::take(&mut self.woken) {
            self.retry(id);
        }
        self.snapshot.programmed = true;
        self.publish(now)
    }

    /// Those who waited for room that came free are decided for in the next batch.
    fn admit(&mut self) {
        let Self { tables, programs, dirty, .. } = self;
        tables.admit(&mut |id, cause| mark(programs, dirty, id, cause, true));
    }

    fn settle_one(&mut self, id: ServiceId, now: Timestamp, changed: &mut dyn FnMut(Change)) {
        self.drop_wiped(id);
        let view = self.view(id, now).map(Arc::new);
        let gone = view.is_none();
        let Some(program) = self.program(id) else { return };
        program.dirty = false;
        let causes = mem::take(&mut program.causes);
        let suppressed = mem::take(&mut program.suppressed);
        let ops = mem::take(&mut program.ops);
        let error = program.error.take();
        let before = mem::replace(&mut program.view, view.clone());
        self.snapshot.services.set(id.0 as usize, view.clone());
        let visible = ops > 0 || error.is_some() || is_visible(before.as_deref(), view.as_deref());
        let told = visible || causes.iter().any(Cause::is_of_an_object);
        if let Some(service) = view.as_ref().or(before.as_ref()).map(|view| view.key.clone()).filter(|_| told)
        {
            self.counters.changes += u64::from(visible);
            let after = view;
            changed(Change { service, at: now, causes, suppressed, visible, before, after, ops, error });
        }
        if gone
            && self.program(id).is_some_and(|program| program.is_empty())
            && self.tables.forget(id)
            && let Some(program) = self.program(id)
        {
            *program = Program::default();
        }
    }

    /// Forgets ports of which the maps hold nothing any more, and frontends that are certainly not this service's.
    fn drop_wiped(&mut self, id: ServiceId) {
        let Self { programs, frontends, freed, .. } = self;
        let Some(Program { ports, frontends: own, wanted, .. }) = programs.get_mut(id.0 as usize) else {
            return;
        };
        let mut place = 0;
        ports.retain(|port| {
            place += 1;
            let Some(index) = port.index.filter(|_| place > *wanted) else { return true };
            let stays = !port.realized.is_wiped() || is_reachable(frontends, own, index);
            if !stays {
                freed.now.indices.push(index);
            }
            stays
        });
    }

    /// What readers see while nothing may be written yet.
    pub fn publish(&mut self, now: Now) -> Snapshot {
        let slots = self.ranges.each_ref().map(|ranges| u64::from(ranges.used()));
        self.snapshot.rejections = self.tables.rejections();
        for source in self.tables.sources_to_ask() {
            *self.snapshot.asks.entry(source).or_default() += 1;
        }
        self.snapshot.node = Arc::clone(&self.tables.node);
        self.snapshot.settings = Arc::clone(&self.tables.settings);
        self.snapshot.sources.clone_from(&self.tables.synced);
        self.snapshot.held = self.held();
        self.snapshot.progress.clone_from(&self.tables.progress);
        self.snapshot.stale_since = self.remembered_at.filter(|_| !self.tables.is_synced());
        self.snapshot.counters = Counters { ..self.counters };
        self.snapshot.fill =
            Fill { frontends: self.frontends_realized, ports: self.indices.used(), slots, retries: 0 };
        if let Some(differences) = self.found.take() {
            self.snapshot.checked = Some(Checked { at: now.wall, differences });
        }
        (self.snapshot.published, self.snapshot.mono) = (now.wall, now.mono);
        self.snapshot.clone()
    }

    fn view(&self, id: ServiceId, now: Timestamp) -> Option<ServiceView> {
        let known = self.tables.get(id)?;
        let program = self.programs.get(id.0 as usize)?;
        if known.facts.is_none() && known.slices.is_empty() {
            return None;
        }
        let before = program.view.as_deref();
        let ports: Box<[_]> = program.ports.iter().take(program.wanted).map(port_view).collect();
        let mut view = ServiceView {
            key: known.key.clone(),
            facts: known.facts.clone(),
            slices: known.slices.as_slice().into(),
            state: program.state,
            ports,
            frontends: Box::default(),
        };
        let row = |(place, it)| self.frontend_view(id, program, it, now).since_of(place, &view, before);
        view.frontends = program.desired.iter().enumerate().map(row).collect();
        Some(view)
    }

    fn frontend_view(
        &self,
        id: ServiceId,
        program: &Program,
        it: &DesiredFrontend,
        now: Timestamp,
    ) -> FrontendView {
        let mut view = unprogrammed(it, now);
        if it.barred {
            view.reason = Some(Reason::Address);
            return view;
        }
        let (Some(key), Some(port)) = (it.key(), it.place.and_then(|place| program.ports.get(place))) else {
            view.reason = Some(Reason::Protocol);
            return view;
        };
        if is_bypassed(&key, &self.tables.settings, &self.tables.node) {
            (view.verdict, view.reason) = (Verdict::Bypassed, Some(Reason::Control));
            return view;
        }
        let entry = self.frontends.get(&key);
        let winner = entry.and_then(crate::claims::Frontend::winner);
        if winner != Some(id) {
            (view.verdict, view.reason) = (Verdict::Conflict, Some(Reason::Claimed));
            view.owner = winner.and_then(|winner| Some(self.tables.get(winner)?.key.clone()));
            return view;
        }
        let realized = entry.and_then(|entry| entry.realized);
        let wanted = port.index.map(|port| FrontendValue { port, kind: it.kind });
        if it.passes {
            let is_there = entry.is_some_and(|entry| entry.uncertain) || realized.is_some();
            view.status = if is_there { program.status() } else { Status::Done };
            (view.verdict, view.reason) = (Verdict::Passing, Some(why_nobody(port)));
            return view;
        }
        let known = wanted.is_some() && entry.is_some_and(|entry| !entry.uncertain);
        let placed = known && realized.map(|it| it.value) == wanted;
        if placed && is_done(port) {
            (view.verdict, view.reason) = verdict(port, &port.rows, it.scope);
            return view;
        }
        view.status = program.status();
        if let Some(serving) = realized.and_then(|it| self.realized_port(it.value.port, it.owner)) {
            let list = serving.list(it.scope);
            view.applied = Some(Arc::clone(&list.rows));
            (view.verdict, view.reason) = applied_verdict(port, &list.rows, it.scope, list.word.flags);
        }
        view
    }

    fn realized_port(&self, index: PortIndex, owner: Option<ServiceId>) -> Option<&RealizedPort> {
        let Some(owner) = owner else { return self.adopted.get(&index).map(|adopted| &adopted.realized) };
        let program = self.programs.get(owner.0 as usize)?;
        program.ports.iter().find(|port| port.index == Some(index)).map(|port| &port.realized)
    }
}

/// A row of which nothing is known to be in the maps.
fn unprogrammed(it: &DesiredFrontend, now: Timestamp) -> FrontendView {
    FrontendView {
        address: it.address,
        port: it.port,
        protocol: it.protocol.clone(),
        kind: it.kind,
        port_name: Arc::clone(&it.port_name),
        place: it.place,
        scope: it.scope,
        external_local: it.external_local,
        verdict: Verdict::Unprogrammed,
        reason: None,
        status: Status::Done,
        owner: None,
        applied: None,
        since: now,
    }
}

/// Whether a client may still find this index by one of the service's frontends.
fn is_reachable(frontends: &Frontends, own: &[FrontendKey], index: PortIndex) -> bool {
    let mut entries = own.iter().filter_map(|key| frontends.get(key));
    entries.any(|it| it.uncertain || it.realized.is_some_and(|realized| realized.value.port == index))
}

fn port_view(port: &Port) -> PortView {
    PortView {
        key: port.key.clone(),
        index: port.index,
        rows: Arc::clone(&port.rows),
        last: port.last.clone(),
        hold: port.hold.clone(),
        ended: port.ended,
        cluster_used: port.policy.cluster_used,
        local_used: port.policy.local_used,
    }
}

/// Whether the maps hold exactly the port's facts and lists.
fn is_done(port: &Port) -> bool {
    let facts = port.realized.facts == Some(port.facts());
    facts
        && Scope::ALL.into_iter().all(|scope| {
            let list = port.realized.list(scope);
            let same = !port.uses(scope)
                || (Arc::ptr_eq(&list.rows, &port.rows) || port.rows.same_list(scope, &list.rows, scope));
            same && !list.uncertain && list.word.flags == port.flags_for_now(scope)
        })
}

fn verdict(port: &Port, rows: &Rows, scope: Scope) -> (Verdict, Option<Reason>) {
    if !rows.is_empty(scope) {
        return filled_verdict(port, rows, scope);
    }
    if scope == Scope::Local && port.policy.has_any {
        return (Verdict::Dropping, Some(Reason::LocalPolicy));
    }
    (Verdict::Refusing, Some(why_nobody(port)))
}

fn applied_verdict(port: &Port, rows: &Rows, scope: Scope, flags: WordFlags) -> (Verdict, Option<Reason>) {
    if !rows.is_empty(scope) {
        filled_verdict(port, rows, scope)
    } else if flags.has(WordFlags::DROP) {
        (Verdict::Dropping, Some(Reason::LocalPolicy))
    } else {
        (Verdict::Refusing, Some(why_nobody(port)))
    }
}

fn filled_verdict(port: &Port, rows: &Rows, scope: Scope) -> (Verdict, Option<Reason>) {
    if let Some(hold) = port.hold.as_ref().filter(|_| rows.is_held(scope)) {
        (Verdict::Held, Some(hold.reason))
    } else if rows.is_draining(scope) {
        (Verdict::Draining, Some(Reason::ScaledDown))
    } else {
        (Verdict::Serving, None)
    }
}

/// Why nobody is there.
fn why_nobody(port: &Port) -> Reason {
    if let Some(hold) = &port.hold {
        hold.reason
    } else if !port.rows.all().is_empty() {
        Reason::AllUnready
    } else if let Some(ended) = port.ended {
        ended
    } else if !port.last.is_some() {
        Reason::NoEndpoints
    } else if port.last.was_scaled_down() {
        Reason::ScaledDown
    } else {
        Reason::Vanished
    }
}

impl FrontendView {
    /// Keeps the time of the row before, if it showed the same.
    fn since_of(mut self, place: usize, view: &ServiceView, before: Option<&ServiceView>) -> Self {
        let Some(before) = before else { return self };
        let mine = |old: &&FrontendView| {
            (old.address, old.port, &old.protocol) == (self.address, self.port, &self.protocol)
        };
        let old = before.frontends.get(place).filter(mine).or_else(|| before.frontends.iter().find(mine));
        if let Some(old) = old.filter(|old| shows_the_same(before, old, view, &self)) {
            self.since = old.since;
        }
        self
    }
}

fn shows_the_same(before: &ServiceView, old: &FrontendView, view: &ServiceView, new: &FrontendView) -> bool {
    if (old.verdict, old.reason) != (new.verdict, new.reason) {
        return false;
    }
    let from_rows = old.applied.is_none() && new.applied.is_none();
    let same_rows = match (before.rows(old), view.rows(new)) {
        (Some(a), Some(b)) => {
            let same_lists = (old.scope, old.external_local) == (new.scope, new.external_local);
            from_rows && same_lists && Arc::ptr_eq(a, b)
        }
        (None, None) => from_rows,
        _ => false,
    };
    let slots = |view: &ServiceView, row| view.backends(row).map(crate::list::Row::slot).collect::<Vec<_>>();
    let external = |view: &ServiceView, row| {
        view.external_backends(row).map(|rows| rows.map(crate::list::Row::slot).collect::<Vec<_>>())
    };
    same_rows || slots(before, old) == slots(view, new) && external(before, old) == external(view, new)
}

/// Whether readers see another verdict, list or set of frontends than before.
fn is_visible(before: Option<&ServiceView>, after: Option<&ServiceView>) -> bool {
    match (before, after) {
        (Some(before), Some(after)) => {
            before.state != after.state || before.frontends != after.frontends || before.ports != after.ports
        }
        (None, None) => false,
        _ => true,
    }
}
