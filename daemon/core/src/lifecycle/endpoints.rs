//! Faults of one service's endpoints, as far as its slices and this node's history show them.
//!
//! Invariant: pure, and each finding lists its evidence, up to a bound. Facts that take another read (the manager of a
//! slice, whether an Endpoints object was truncated) are optional arguments; without them there is no finding. Real
//! ages are at least as long as the shown ones: any change of an endpoint restarts its age.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

use super::limits;
use super::{Confidence, Severity};
use crate::facts::endpoints::UidText;
use crate::facts::{Endpoint, SliceFacts, SlicePort, Timestamp};
use crate::keys::SliceKey;
use crate::list::Row;
use crate::time::Uptime;
use crate::words;

words! {
    #[derive(PartialOrd, Ord, Hash)]
    pub enum EndpointFindingId {
        /// Two targets are listed with one address: one of them is gone.
        Stale = "slices.stale",
        /// Two slices of the service have listed one address for a long time.
        Duplicates = "slices.duplicates",
        /// More than one manager writes slices of the service.
        Manager = "slices.manager",
        /// A label hides a slice from proxies although the service has an address.
        Hidden = "slices.hidden",
        /// The Endpoints object lists only a part of the endpoints.
        Truncated = "endpoints.truncated",
        /// An endpoint has been listed for a long time and was never ready.
        NeverReady = "endpoints.never-ready",
        /// An endpoint becomes ready and unready again and again.
        Flapping = "endpoints.flapping",
        /// An endpoint has been terminating for longer than pods do.
        StuckTerminating = "endpoints.stuck-terminating",
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EndpointEvidence {
    /// The endpoint's address; `None`: the finding is not about single endpoints.
    pub address: Option<IpAddr>,
    /// The slices of the finding: the service's own first, then the one that contradicts it.
    pub slices: Vec<SliceKey>,
    /// Minimum age in seconds; `None`: unknown.
    pub age: Option<i64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointFinding {
    pub id: EndpointFindingId,
    pub severity: Severity,
    pub confidence: Confidence,
    /// The first [`limits::NAMED_MAX`], in order.
    pub evidence: Vec<EndpointEvidence>,
    /// How many more there are.
    pub more: usize,
}

/// Builds the finding, if there is evidence.
fn build_finding(
    id: EndpointFindingId,
    severity: Severity,
    confidence: Confidence,
    evidence: impl IntoIterator<Item = EndpointEvidence>,
) -> Option<EndpointFinding> {
    let all: BTreeSet<EndpointEvidence> = evidence.into_iter().collect();
    let more = all.len().saturating_sub(limits::NAMED_MAX);
    let evidence: Vec<_> = all.into_iter().take(limits::NAMED_MAX).collect();
    (!evidence.is_empty()).then_some(EndpointFinding { id, severity, confidence, evidence, more })
}

/// The address that clients dial: two targets cannot share it, though all in a node's own network share its IP address.
type DialTarget = (SocketAddr, crate::keys::Protocol);

/// The ready endpoints of a slice with a known target, at each of its ports.
fn ready_targets(slice: &SliceFacts) -> impl Iterator<Item = (DialTarget, UidText<'_>)> {
    let ready = slice.endpoints.iter().filter(|it| it.conditions.ready && !it.conditions.terminating);
    let known = ready.filter_map(|it| Some((it.address, it.target.map(|target| target.uid)?)));
    known.filter(|(_, uid)| !uid.is_empty()).flat_map(|(address, uid)| {
        let place =
            move |port: &SlicePort| (SocketAddr::new(address, port.port.get()), port.protocol.clone());
        slice.ports.iter().map(move |port| (place(port), uid))
    })
}

/// Addresses that two ready targets have at the same port: one of them is gone. `all`: the slices of all services,
/// including `own`. A tenant may have made up what only another namespace lists.
pub fn find_stale<'a>(
    own: &'a [Arc<SliceFacts>],
    all: impl IntoIterator<Item = &'a SliceFacts>,
) -> Option<EndpointFinding> {
    let mut owners = BTreeMap::<DialTarget, (UidText<'a>, &'a SliceKey)>::new();
    for (slice, (place, uid)) in own.iter().flat_map(|slice| ready_targets(slice).map(move |it| (slice, it)))
    {
        owners.entry(place).or_insert((uid, &slice.key));
    }
    // Few of a million endpoints have these addresses, and comparing addresses alone is a fifth of the work.
    let addresses: BTreeSet<IpAddr> = owners.keys().map(|place| place.0.ip()).collect();
    let is_near = |slice: &&SliceFacts| slice.endpoints.iter_brief().any(|(at, _)| addresses.contains(&at));
    let near = all.into_iter().filter(is_near);
    let others = near.flat_map(|slice| ready_targets(slice).map(move |it| (slice, it)));
    let mut confidence = Confidence::Likely;
    let mut evidence = Vec::new();
    for (slice, (place, uid)) in others {
        let Some((_, key)) = owners.get(&place).filter(|(owner, _)| *owner != uid) else { continue };
        if slice.key.name.namespace() == key.name.namespace() {
            confidence = Confidence::Certain;
        }
        let slices = Vec::from([(*key).clone(), slice.key.clone()]);
        evidence.push(EndpointEvidence { address: Some(place.0.ip()), slices, age: None });
    }
    build_finding(EndpointFindingId::Stale, Severity::Error, confidence, evidence)
}

/// Seconds since the later write of the two slices, by the apiserver's clock.
fn write_age(a: &SliceFacts, b: &SliceFacts, now: Timestamp) -> Option<i64> {
    let written = |slice: &SliceFacts| slice.meta.writer.as_ref().and_then(|writer| writer.at);
    let later = written(a)?.max(written(b)?);
    Some(now.0.saturating_sub(later.0).max(0))
}

/// Addresses that two slices of the service list at a port of the same name for longer than a move takes. Different
/// conditions for one address make it an error, not just a slow move.
pub fn find_duplicates(own: &[Arc<SliceFacts>], now: Timestamp) -> Option<EndpointFinding> {
    let mut known = BTreeMap::<(IpAddr, &str, &crate::keys::Protocol), (&SliceFacts, Endpoint<'_>)>::new();
    let mut evidence = Vec::new();
    let mut disagree = false;
    for (slice, it) in own.iter().flat_map(|slice| slice.endpoints.iter().map(move |it| (&**slice, it))) {
        for port in &slice.ports {
            let place = (it.address, &*port.name, &port.protocol);
            let Some((first, other)) = known.get(&place) else {
                known.insert(place, (slice, it));
                continue;
            };
            let age = write_age(first, slice, now);
            if first.key != slice.key && age.is_some_and(|age| age >= limits::DUPLICATE_AFTER) {
                disagree |= other.conditions != it.conditions;
                let slices = Vec::from([first.key.clone(), slice.key.clone()]);
                evidence.push(EndpointEvidence { address: Some(it.address), slices, age });
            }
        }
    }
    let severity = if disagree { Severity::Error } else { Severity::Warning };
    build_finding(EndpointFindingId::Duplicates, severity, Confidence::Certain, evidence)
}

/// Slices that a label hides from proxies, though their service has an address.
pub fn find_hidden(own: &[Arc<SliceFacts>], is_headless: bool) -> Option<EndpointFinding> {
    let hidden = own.iter().filter(|slice| slice.headless && !is_headless);
    let evidence = hidden.map(|slice| EndpointEvidence {
        address: None,
        slices: Vec::from([slice.key.clone()]),
        age: None,
    });
    build_finding(EndpointFindingId::Hidden, Severity::Error, Confidence::Certain, evidence)
}

/// Slices of more than one manager: each adopts the other's slices, or leaves them outdated. `managed`: the label
/// `endpointslice.kubernetes.io/managed-by` of each slice as read; a slice without the label does not count.
pub fn find_managers<'a>(
    managed: impl IntoIterator<Item = (&'a SliceKey, Option<&'a str>)>,
) -> Option<EndpointFinding> {
    let mut first = BTreeMap::<&str, &SliceKey>::new();
    for (slice, manager) in managed {
        let Some(manager) = manager.filter(|manager| !manager.is_empty()) else { continue };
        let known = first.entry(manager).or_insert(slice);
        *known = (*known).min(slice);
    }
    let several = first.len() > 1;
    let evidence = first.into_values().filter(|_| several);
    let evidence = evidence.map(|slice| EndpointEvidence {
        address: None,
        slices: Vec::from([slice.clone()]),
        age: None,
    });
    build_finding(EndpointFindingId::Manager, Severity::Warning, Confidence::Certain, evidence)
}

/// Whether the Endpoints object lists only a part of the addresses. `over_capacity`: its annotation
/// `endpoints.kubernetes.io/over-capacity` as read.
pub fn find_truncated(over_capacity: Option<&str>) -> Option<EndpointFinding> {
    let evidence = Vec::new();
    let more = 0;
    let id = EndpointFindingId::Truncated;
    let severity = Severity::Warning;
    let confidence = Confidence::Certain;
    over_capacity.map(|_| EndpointFinding { id, severity, confidence, evidence, more })
}

/// A change of an endpoint's readiness in the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReadinessChange {
    pub address: IpAddr,
    pub at: Uptime,
    pub is_ready: bool,
}

/// Endpoints that changed their readiness again and again recently. A change that is listed twice counts once.
pub fn find_flapping(turns: &[ReadinessChange], now: Uptime) -> Option<EndpointFinding> {
    let is_late = |it: &&ReadinessChange| now.since(it.at) < limits::READY_FLAPS_WITHIN;
    let mut late: Vec<_> = turns.iter().filter(is_late).collect();
    late.sort_unstable();
    late.dedup_by_key(|it| (it.address, it.is_ready));
    let mut counts = BTreeMap::<IpAddr, (usize, Uptime)>::new();
    for it in late {
        counts.entry(it.address).or_insert((0, it.at)).0 += 1;
    }
    let many = counts.into_iter().filter(|(_, (count, _))| *count >= limits::READY_FLAPS_MIN);
    let evidence = many.map(|(address, (_, begun))| EndpointEvidence {
        address: Some(address),
        slices: Vec::new(),
        age: Some(now.since(begun).max(0)),
    });
    build_finding(EndpointFindingId::Flapping, Severity::Warning, Confidence::Certain, evidence)
}

fn filter_by_age(
    rows: impl IntoIterator<Item = Row>,
    now: Timestamp,
    at_least: i64,
) -> impl Iterator<Item = EndpointEvidence> {
    let aged = rows.into_iter().map(move |row| (row, now.0.saturating_sub(row.since().0).max(0)));
    let long = aged.filter(move |(_, age)| *age >= at_least);
    long.map(|(row, age)| EndpointEvidence { address: Some(row.address), slices: Vec::new(), age: Some(age) })
}

/// Endpoints that were listed long ago and never seen ready. `turns`: the history, which is limited.
pub fn find_never_ready(
    rows: impl IntoIterator<Item = Row>,
    turns: &[ReadinessChange],
    now: Timestamp,
) -> Option<EndpointFinding> {
    let seen: BTreeSet<IpAddr> = turns.iter().filter(|it| it.is_ready).map(|it| it.address).collect();
    let is_waiting = |row: &Row| {
        let conditions = row.conditions();
        !conditions.ready && !conditions.terminating && !row.is_held() && !row.was_seen_terminating()
    };
    let waiting = rows.into_iter().filter(is_waiting).filter(|row| !seen.contains(&row.address));
    let evidence = filter_by_age(waiting, now, limits::NEVER_READY_AFTER);
    build_finding(EndpointFindingId::NeverReady, Severity::Warning, Confidence::Likely, evidence)
}

/// Endpoints that have been terminating for longer than pods do.
pub fn find_stuck_terminating(
    rows: impl IntoIterator<Item = Row>,
    now: Timestamp,
) -> Option<EndpointFinding> {
    let going = rows.into_iter().filter(|row| row.conditions().terminating && !row.is_held());
    let evidence = filter_by_age(going, now, limits::TERMINATING_AFTER);
    build_finding(EndpointFindingId::StuckTerminating, Severity::Warning, Confidence::Certain, evidence)
}
