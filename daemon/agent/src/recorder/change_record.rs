//! Turns a change into its record.
//!
//! Invariant: only this module makes a change's record, and every part of a change has its place in the record.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use holdfast_core::change::{Cause, Change};
use holdfast_core::drains::DrainChange;
use holdfast_core::facts::{Meta, ServiceFacts, SliceFacts, Writer};
use holdfast_core::health::Health;
use holdfast_core::hold::{ProbeAnswer, ProbeResult};
use holdfast_core::keys::{Protocol, ServiceKey, SliceKey, Source};
use holdfast_core::list::{Row, Slot};
use holdfast_core::snapshot::{FrontendView, Reason, ServiceState, ServiceView, Status};
use holdfast_status::record::{Diff, Kind, LastWriter, Met, Outcome, Record, Transition, Trigger, Word};
use holdfast_status::rfc3339::Millis;

use super::compare;
use super::ring::SERVICE_GONE;
use holdfast_host::headroom::Reservation;

/// The most frontends in one entry; a service with one port seldom has more addresses.
const FRONTENDS_MAX: usize = 16;

/// The most entries of one record. Only a service with many ports, which change in different ways, has more.
const TRANSITIONS_MAX: usize = 16;

/// The rules that a record can name as deciding, besides the reasons that clients get.
pub const RULES: [&str; 10] = [
    "usable-endpoints",
    "no-effect",
    SERVICE_GONE,
    REFUSED_BY_THE_MAPS,
    ServiceState::NoAddress.as_str(),
    ServiceState::Headless.as_str(),
    ServiceState::ExternalName.as_str(),
    ServiceState::OtherProxy.as_str(),
    ServiceState::NoService.as_str(),
    GAP,
];

pub(super) const REFUSED_BY_THE_MAPS: &str = "refused-by-the-maps";

pub(super) const GAP: &str = "gap";

/// A change and the time of its batch, as the engine passes it on.
#[derive(Clone, Debug)]
pub struct TimedChange {
    /// The service's rows before and after, and the causes.
    pub change: Change,
    /// When its batch began.
    pub at: SystemTime,
    /// When its batch began, since the boot.
    pub mono: Duration,
    /// From the beginning of the batch until the whole change was written.
    pub elapsed: Duration,
    /// The change's memory in the queue, released when dropped; `None` if it does not count.
    pub reservation: Option<Arc<Reservation>>,
}

impl TimedChange {
    /// Whether clients get the snapshot's state after a start. No service's history records it: a start in a large
    /// table would evict what happened before it.
    pub(super) fn matches_remembered(&self) -> bool {
        is_remembered_state(&self.change)
    }

    /// Makes the change's record, without a number. One that is not kept is sent as an event.
    pub(super) fn record(&self, boot_id: &Arc<str>, is_kept: bool) -> Record {
        let change = &self.change;
        let (transitions, transitions_omitted) = transitions(change);
        Record {
            seq: None,
            time: holdfast_host::clock::millis(self.at),
            monotonic_us: micros(self.mono),
            boot_id: Arc::clone(boot_id),
            kind: if is_kept { Kind::Change } else { Kind::Event },
            service: Some(change.service.to_string()),
            source: Some(change.service.source.as_str().into()),
            rule: deciding_rule(change, &transitions),
            triggers: triggers(change),
            suppressed: change.suppressed,
            transitions,
            transitions_omitted,
            result: is_kept.then(|| change_outcome(change, self.elapsed)),
            gap: None,
        }
    }
}

/// Whether clients get exactly the snapshot's state of the service. If the maps served something else, they were
/// written.
fn is_remembered_state(change: &Change) -> bool {
    let (Some(before), Some(after)) = (change.before.as_deref(), change.after.as_deref()) else {
        return false;
    };
    let mut pairs = before.frontends.iter().zip(after.frontends.iter());
    let is_alike = |is_bare: bool| is_bare || change.ops == 0;
    change
        .causes
        .iter()
        .any(|cause| matches!(cause, Cause::Restored { is_cold_start } if is_alike(*is_cold_start)))
        && change.error.is_none()
        && before.state == after.state
        && before.frontends.len() == after.frontends.len()
        && pairs.all(|(old, new)| is_same_for_clients((before, old), (after, new)))
}

fn is_same_for_clients(before: RowInView<'_>, after: RowInView<'_>) -> bool {
    let ((_, old), (_, new)) = (before, after);
    row_key(old) == row_key(new)
        && (old.verdict, old.reason, &old.owner) == (new.verdict, new.reason, &new.owner)
        && !matches!(new.status, Status::Error(_))
        && backend_rows(Some(before)).map(slot).eq(backend_rows(Some(after)).map(slot))
        && external_rows(Some(before)).map(slot).eq(external_rows(Some(after)).map(slot))
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn change_outcome(change: &Change, elapsed: Duration) -> Outcome {
    Outcome { ops: change.ops, error: change.error.clone(), elapsed_us: micros(elapsed) }
}

fn deciding_rule(change: &Change, transitions: &[Transition]) -> Word {
    let was_there = change.before.as_ref().is_some_and(|before| before.facts.is_some());
    let after = match &change.after {
        Some(after) if after.facts.is_some() || !was_there => after,
        Some(_) | None => return SERVICE_GONE.into(),
    };
    let reasons = transitions.iter().filter_map(|it| it.after.as_ref()?.reason.clone());
    if change.error.is_some() {
        return REFUSED_BY_THE_MAPS.into();
    }
    if let Some(reason) = reasons.into_iter().next() {
        return reason;
    }
    match after.state {
        ServiceState::Served if transitions.is_empty() => "no-effect".into(),
        ServiceState::Served => "usable-endpoints".into(),
        state @ (ServiceState::NoAddress
        | ServiceState::Headless
        | ServiceState::ExternalName
        | ServiceState::OtherProxy
        | ServiceState::NoService) => state.as_str().into(),
    }
}

// === What changed for clients ===

fn transitions(change: &Change) -> (Vec<Transition>, u32) {
    let before = change.before.as_deref();
    let after = change.after.as_deref();
    let mut entries = Vec::new();
    let mut omitted = 0;
    let known = rows_by_key(before);
    for row in rows(after) {
        let old = known.get(&row_key(row)).and_then(|old| Some((before?, *old)));
        if let Some(transition) = transition(old, after.map(|after| (after, row))) {
            omitted += merge_transition(&mut entries, transition);
        }
    }
    let stays = rows_by_key(after);
    for old in rows(before).filter(|old| !stays.contains_key(&row_key(old))) {
        if let Some(transition) = transition(before.map(|before| (before, old)), None) {
            omitted += merge_transition(&mut entries, transition);
        }
    }
    (entries, omitted)
}

/// The address that clients dial: two rows with the same key are the same frontend.
pub(super) type RowKey<'a> = (IpAddr, NonZeroU16, &'a Protocol);

pub(super) const fn row_key(row: &FrontendView) -> RowKey<'_> {
    (row.address, row.port, &row.protocol)
}

/// The rows by key: a service may have thousands, so a search through all rows for each row would be too slow.
pub(super) fn rows_by_key(view: Option<&ServiceView>) -> BTreeMap<RowKey<'_>, &FrontendView> {
    rows(view).map(|row| (row_key(row), row)).collect()
}

pub(super) fn rows(view: Option<&ServiceView>) -> impl Iterator<Item = &FrontendView> {
    view.into_iter().flat_map(|view| view.frontends.iter())
}

/// The frontend as clients dial it: `address:port/protocol`.
pub(super) fn frontend_name(row: &FrontendView) -> String {
    format!("{}/{}", std::net::SocketAddr::new(row.address, row.port.get()), row.protocol)
}

type RowInView<'a> = (&'a ServiceView, &'a FrontendView);

/// The change at one frontend, if any; `None` stands for a frontend that did not exist or no longer exists.
fn transition(before: Option<RowInView<'_>>, after: Option<RowInView<'_>>) -> Option<Transition> {
    let backends = compare::diff_lists(backend_rows(before), backend_rows(after));
    let external = compare::diff_lists(external_rows(before), external_rows(after));
    let transition = Transition {
        frontends: vec![frontend_name(after.or(before)?.1)],
        frontends_omitted: 0,
        before: before.map(describe_row),
        after: after.map(describe_row),
        external_backends: Some(external).filter(|diff| *diff != Diff::default()),
        backends,
    };
    let external_differs = transition.external_backends.as_ref().is_some_and(|diff| !diff.is_empty());
    let differs =
        transition.before != transition.after || !transition.backends.is_empty() || external_differs;
    differs.then_some(transition)
}

fn backend_rows(shown: Option<RowInView<'_>>) -> impl Iterator<Item = Row> {
    shown.into_iter().flat_map(|(view, row)| view.backends(row))
}

fn external_rows(shown: Option<RowInView<'_>>) -> impl Iterator<Item = Row> {
    shown.into_iter().filter_map(|(view, row)| view.external_backends(row)).flatten()
}

fn describe_row((view, row): RowInView<'_>) -> Met {
    let status = match row.status {
        Status::Pending => "pending",
        Status::Done => "done",
        Status::Error(_) => "error",
    };
    let health = view.frontend_health(row);
    let is_special = health != Health::from_verdict(row.verdict, row.reason);
    Met {
        verdict: row.verdict.as_str().into(),
        reason: row.reason.map(|reason| Reason::as_str(reason).into()),
        health: is_special.then(|| health.as_str().into()),
        backends: u32::try_from(view.backends(row).count()).unwrap_or(u32::MAX),
        status: status.into(),
        owner: row.owner.as_ref().map(ServiceKey::to_string),
    }
}

/// Adds a frontend to the entry with the same change, or adds an entry. Returns how many frontends did not fit, 0 or 1.
fn merge_transition(entries: &mut Vec<Transition>, new: Transition) -> u32 {
    let same = |it: &&mut Transition| {
        (&it.before, &it.after, &it.backends, &it.external_backends)
            == (&new.before, &new.after, &new.backends, &new.external_backends)
    };
    let fits = entries.len() < TRANSITIONS_MAX;
    match entries.iter_mut().find(same) {
        Some(known) if known.frontends.len() < FRONTENDS_MAX => known.frontends.extend(new.frontends),
        Some(known) => known.frontends_omitted += 1,
        None if fits => entries.push(new),
        None => return 1,
    }
    0
}

/// The part of two rows that must be equal for a client.
pub(super) fn slot(row: Row) -> Slot {
    row.slot()
}

// === Why ===

fn triggers(change: &Change) -> Vec<Trigger> {
    let of = |(place, cause)| trigger(change, change.causes.get(..place).unwrap_or_default(), cause);
    change.causes.iter().enumerate().map(of).collect()
}

/// A cause in the form of the record; `earlier` are the same change's causes before it.
fn trigger(change: &Change, earlier: &[Cause], cause: &Cause) -> Trigger {
    match cause {
        Cause::ServiceApplied(facts) => {
            let old = service_before(change, earlier);
            Trigger {
                new: old.is_none(),
                fields: compare::service_fields(old, facts),
                ..object_trigger("applied", "Service", &facts.key, facts.key.source, Some(&facts.meta))
            }
        }
        Cause::ServiceDeleted(key, meta) => {
            object_trigger("deleted", "Service", key, key.source, meta.as_deref())
        }
        Cause::SliceApplied(facts) => {
            let old = slice_before(change, earlier, &facts.key);
            Trigger {
                new: old.is_none(),
                fields: compare::slice_fields(old, facts),
                ..slice_trigger("applied", old, Some(facts), &facts.key, Some(&facts.meta))
            }
        }
        Cause::SliceLeft(facts) => {
            let old = slice_before(change, earlier, &facts.key);
            slice_trigger("left", old, None, &facts.key, Some(&facts.meta))
        }
        Cause::SliceDeleted(key, meta) => {
            let old = slice_before(change, earlier, key);
            slice_trigger("deleted", old, None, key, meta.as_deref())
        }
        Cause::ClaimWon(frontend, other) => claim_trigger("claim-won", frontend, other),
        Cause::ClaimLost(frontend, other) => claim_trigger("claim-lost", frontend, other),
        Cause::NodeApplied => event_trigger("node"),
        Cause::ListenersApplied => event_trigger("listeners"),
        Cause::SettingsApplied => event_trigger("settings"),
        Cause::Drained(turned) => drain_trigger(turned),
        Cause::Retry => event_trigger("retry"),
        Cause::Restored { .. } => event_trigger("remembered"),
        Cause::HoldDue => event_trigger("hold-due"),
        Cause::Probed(probed) => probe_trigger(probed),
        Cause::AddressClaimed(address, other) => Trigger {
            address: Some(address.to_string()),
            other: Some(other.to_string()),
            source: Some(other.source.as_str().into()),
            ..event_trigger("address-claimed")
        },
        Cause::AddressReused(address) => {
            Trigger { address: Some(address.to_string()), ..event_trigger("address-reused") }
        }
        Cause::MassLoss { lost, populated } => {
            let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
            Trigger { lost: Some([count(*lost), count(*populated)]), ..event_trigger("mass-loss") }
        }
        Cause::ReadersLeft => event_trigger("readers-left"),
    }
}

fn drain_trigger(turned: &DrainChange) -> Trigger {
    Trigger {
        address: Some(turned.drain.to_string()),
        by: Some(turned.by.to_string()),
        ordered: Some(turned.by.at.into()),
        ..event_trigger(if turned.is_on { "drained" } else { "undrained" })
    }
}

fn probe_trigger(probed: &ProbeResult) -> Trigger {
    let event = match probed.answer {
        ProbeAnswer::Accepted => "probe-accepted",
        ProbeAnswer::Refused => "probe-refused",
        ProbeAnswer::Silent => "probe-silent",
    };
    Trigger { address: Some(probed.backend.to_string()), ..event_trigger(event) }
}

fn event_trigger(event: &'static str) -> Trigger {
    Trigger { event: event.into(), ..Trigger::default() }
}

fn claim_trigger(event: &'static str, frontend: &impl ToString, other: &ServiceKey) -> Trigger {
    Trigger {
        frontend: Some(frontend.to_string()),
        other: Some(other.to_string()),
        source: Some(other.source.as_str().into()),
        ..event_trigger(event)
    }
}

fn slice_trigger(
    event: &'static str,
    before: Option<&SliceFacts>,
    after: Option<&SliceFacts>,
    key: &SliceKey,
    meta: Option<&Meta>,
) -> Trigger {
    Trigger {
        endpoints: Some(compare::diff_slices(before, after)),
        endpoints_null: after.is_some_and(|facts| facts.endpoints_null),
        ..object_trigger(event, "EndpointSlice", key, key.source, meta)
    }
}

fn object_trigger(
    event: &'static str,
    kind: &'static str,
    key: &impl ToString,
    source: Source,
    meta: Option<&Meta>,
) -> Trigger {
    Trigger {
        kind: Some(kind.into()),
        object: Some(key.to_string()),
        source: Some(source.as_str().into()),
        uid: meta.and_then(|meta| meta.uid.clone()),
        resource_version: meta.and_then(|meta| meta.resource_version.clone()),
        generation: meta.and_then(|meta| meta.generation),
        writer: meta.and_then(|meta| meta.writer.as_ref()).map(last_writer),
        origin: meta.and_then(|meta| meta.origin.clone()),
        ..event_trigger(event)
    }
}

fn last_writer(writer: &Writer) -> LastWriter {
    LastWriter {
        manager: Arc::clone(&writer.manager),
        operation: Arc::clone(&writer.operation),
        subresource: writer.subresource.clone(),
        time: writer.at.map(Millis::from),
    }
}

fn service_before<'a>(change: &'a Change, earlier: &'a [Cause]) -> Option<&'a ServiceFacts> {
    let of = |cause: &'a Cause| match cause {
        Cause::ServiceApplied(facts) => Some(Some(&**facts)),
        Cause::ServiceDeleted(..) => Some(None),
        _ => None,
    };
    let known = || change.before.as_deref().and_then(|before| before.facts.as_deref());
    earlier.iter().rev().find_map(of).unwrap_or_else(known)
}

/// The slice before a cause, among this service's slices.
fn slice_before<'a>(change: &'a Change, earlier: &'a [Cause], key: &SliceKey) -> Option<&'a SliceFacts> {
    let of = |cause: &'a Cause| match cause {
        Cause::SliceApplied(facts) if facts.key == *key => Some(Some(&**facts)),
        Cause::SliceLeft(facts) if facts.key == *key => Some(None),
        Cause::SliceDeleted(gone, _) if gone == key => Some(None),
        _ => None,
    };
    let known = || {
        let slices = change.before.as_deref().map(|before| &*before.slices).unwrap_or_default();
        slices.iter().find(|slice| slice.key == *key).map(|slice| &**slice)
    };
    earlier.iter().rev().find_map(of).unwrap_or_else(known)
}
