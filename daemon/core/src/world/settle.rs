//! The end of a piece: change records, and what nobody needs any more.
//!
//! Invariant: what was settled is as clients meet it, and told once. Deliberately absent: how a view is made
//! ([`super::view`]), and writing anything down.

use alloc::sync::Arc;
use core::mem;

use super::plan::Dialled;
use super::{Cursor, World, mark};
use crate::change::{Cause, Change};
use crate::facts::Timestamp;
use crate::op::ServiceId;
use crate::program::Program;
use crate::snapshot::{Checked, Counters, Fill, ServiceView, Snapshot};
use crate::time::Now;
use crate::work;

impl World {
    /// What kept a service's plan from being carried out; told with its next view.
    pub(crate) fn fail(&mut self, id: ServiceId, error: Arc<str>) {
        if let Some(program) = self.program(id) {
            program.error = Some(error);
            program.unfinished = false;
        }
    }

    /// An op that was not even tried, because its owner was not dirty.
    pub(crate) fn count_cross_service(&mut self) {
        self.counters.cross_service += 1;
    }

    /// Ends the piece: calls back with each change and gives what readers see from now on.
    pub(crate) fn settle(&mut self, now: Now, changed: &mut dyn FnMut(Change)) -> Snapshot {
        self.counters.batches += 1;
        // What was refused comes with another batch.
        self.frontends_coming = 0;
        self.settle_leftovers();
        for id in self.end_piece() {
            self.is_settled(id);
            self.settle_one(id, now.wall, changed);
        }
        self.release_gathered();
        self.admit();
        self.feed();
        // Whoever was woken by another service's op is planned again in the next piece.
        for id in mem::take(&mut self.woken) {
            self.retry(id);
        }
        self.snapshot.programmed |= self.is_programmed();
        self.publish(now)
    }

    /// Those who waited for room that came free are decided for in a later piece.
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
        program.cursor = Cursor::default();
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
        let Self { programs, frontends, freed, indices, .. } = self;
        let Some(Program { ports, frontends: own, wanted, .. }) = programs.get_mut(id.0 as usize) else {
            return;
        };
        if ports.len() <= *wanted {
            return;
        }
        let mut dialled = Dialled::default();
        own.iter().filter_map(|key| frontends.get(key)).for_each(|entry| dialled.by(entry));
        work::done(own.len() + ports.len());
        let mut place = 0;
        ports.retain(|port| {
            place += 1;
            let Some(index) = port.index.filter(|_| place > *wanted) else { return true };
            let stays = !port.realized.is_wiped() || dialled.has(index);
            if !stays {
                freed.now.indices.push(index);
            }
            stays
        });
        indices.put_all(ports);
    }

    /// What readers see while nothing may be written yet.
    pub(crate) fn publish(&mut self, now: Now) -> Snapshot {
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
