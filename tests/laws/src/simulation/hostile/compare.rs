//! Compares a bystander in two simulations: alongside hostile tenants, and alone.
//!
//! Invariant: everything is compared except its places in the maps and probes out of turn, which another object's claim
//! on a held address may cause. The history records such a probe once, and it changes nothing.

use std::mem::{Discriminant, discriminant};
use std::sync::Arc;

use holdfast_core::change::{Cause, Change};
use holdfast_core::facts::Timestamp;
use holdfast_core::hold::Hold;
use holdfast_core::keys::ServiceKey;
use holdfast_core::snapshot::{PortView, ServiceView};

/// The content of one change record.
#[derive(Debug)]
pub(super) struct Record {
    service: ServiceKey,
    at: Timestamp,
    causes: Vec<Discriminant<Cause>>,
    suppressed: u32,
    is_visible: bool,
    has_failed: bool,
    /// Another service lists an address of it, or the maps were written to: this may differ.
    is_more: bool,
}

impl Record {
    /// `None`: others only list its address, or its leftovers were removed.
    pub(super) fn of(change: &Change) -> Option<Self> {
        let is_own =
            |cause: &&Cause| !matches!(cause, Cause::AddressClaimed(..) | Cause::ReadersLeft | Cause::Retry);
        // A deadline or a probe that changed nothing makes no record by itself.
        let is_plain = change.causes.iter().all(|cause| is_own(&cause)) || has_changed(change);
        let counts = |cause: &&Cause| is_own(cause) && (is_plain || is_of_an_object(cause));
        let causes: Vec<_> = change.causes.iter().filter(counts).map(discriminant).collect();
        let is_told = change.error.is_some() || !causes.is_empty();
        is_told.then(|| Self {
            service: change.service.clone(),
            at: change.at,
            causes,
            suppressed: change.suppressed,
            is_visible: change.visible,
            has_failed: change.error.is_some(),
            is_more: change.ops > 0 || change.causes.iter().any(|cause| !is_own(&cause)),
        })
    }

    fn is_same(&self, beside: &Self) -> bool {
        let told = |it: &Self| (it.service.clone(), it.at, it.causes.clone(), it.suppressed, it.has_failed);
        told(self) == told(beside) && (self.is_visible == beside.is_visible || self.is_more || beside.is_more)
    }
}

fn has_changed(change: &Change) -> bool {
    match (&change.before, &change.after) {
        (Some(before), Some(after)) => difference(before, after).is_some(),
        (before, after) => before.is_some() || after.is_some(),
    }
}

const fn is_of_an_object(cause: &Cause) -> bool {
    matches!(
        cause,
        Cause::ServiceApplied(_)
            | Cause::ServiceDeleted(..)
            | Cause::SliceApplied(_)
            | Cause::SliceDeleted(..)
            | Cause::SliceLeft(_)
    )
}

/// Whether both have the same records of each service.
pub(super) fn are_same(alone: &mut [Record], beside: &mut [Record]) -> bool {
    // Only the order of one service's own records is compared, not the turns of services.
    alone.sort_by(|a, b| a.service.cmp(&b.service));
    beside.sort_by(|a, b| a.service.cmp(&b.service));
    alone.len() == beside.len() && alone.iter().zip(beside.iter()).all(|(a, b)| a.is_same(b))
}

/// The first difference of a service alone and alongside others.
pub(super) fn difference(alone: &ServiceView, beside: &ServiceView) -> Option<String> {
    let differs = |what: &str, a: &dyn std::fmt::Debug, b: &dyn std::fmt::Debug| {
        Some(format!("{} of {}: {b:#?}, and alone it is {a:#?}", what, alone.key))
    };
    if (&alone.facts, &alone.slices, alone.state) != (&beside.facts, &beside.slices, beside.state) {
        return differs("the objects", &alone.facts, &beside.facts);
    }
    if alone.frontends != beside.frontends {
        return differs("the rows", &alone.frontends, &beside.frontends);
    }
    if alone.balancer_history != beside.balancer_history {
        return differs("what was seen", &alone.balancer_history, &beside.balancer_history);
    }
    if alone.ports.len() != beside.ports.len() {
        return differs("the ports", &alone.ports, &beside.ports);
    }
    let mut pairs = alone.ports.iter().zip(&beside.ports);
    let (a, b) = pairs.find(|(a, b)| !is_same_port(a, b))?;
    differs("a port", a, b)
}

fn is_same_port(a: &PortView, b: &PortView) -> bool {
    let lists = |it: &PortView| {
        (it.key.clone(), Arc::clone(&it.rows), it.last.clone(), it.ended, it.cluster_used, it.local_used)
    };
    lists(a) == lists(b) && hold_of(a) == hold_of(b)
}

fn hold_of(port: &PortView) -> Option<Hold> {
    let mut hold = Hold::clone(port.hold.as_deref()?);
    hold.backends.iter_mut().for_each(|backend| backend.is_claimed = false);
    Some(hold)
}
