//! Builds the view of one service.
//!
//! Invariant: a view shows what the maps do, not what they should do: if an op failed, the row shows what is still
//! served. `since` changes only when verdict, reason or a list of the row does. What a port's rows share is computed
//! once.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::IpAddr;
use core::num::NonZeroU16;

use super::adopt::LeftoverPorts;
use super::decide::{find_listener, is_bypassed, is_node_reserved};
use super::owners::Owners;
use super::services::Services;
use super::space::Indices;
use crate::facts::{AddressType, ServiceFacts, SliceFacts, Timestamp};
use crate::keys::{Family, FrontendKey, Protocol, Source};
use crate::lifecycle::BalancerHistory;
use crate::list::{Row, Rows, Scope};
use crate::op::{FrontendType, FrontendValue, PortIndex, ServiceId, WordFlags};
use crate::resolve::DesiredFrontend;
use crate::service::{FactsOrigin, Port, RealizedList, RealizedPort, Service};
use crate::snapshot::{FrontendView, PortView, Reason, ServiceView, Status, Verdict};
use crate::tables::Tables;
use crate::time::ClockReading;
use crate::work;

pub(super) struct Viewer<'a> {
    pub(super) tables: &'a Tables,
    pub(super) services: &'a Services,
    pub(super) owners: &'a Owners,
    pub(super) leftovers: &'a LeftoverPorts,
    pub(super) indices: &'a Indices,
}

impl Viewer<'_> {
    /// The view of a service; `None`: nothing is known of it.
    pub(super) fn view(&self, id: ServiceId, now: ClockReading) -> Option<ServiceView> {
        let known = self.tables.get(id)?;
        let service = self.services.get(id)?;
        if known.facts.is_none() && known.slices.is_empty() {
            return None;
        }
        let before = service.view.as_deref();
        let ports: Box<[_]> = service.ports.iter().take(service.desired_count).map(build_port_view).collect();
        let mut view = ServiceView {
            key: known.key.clone(),
            facts: known.facts.clone(),
            slices: known.slices.as_slice().into(),
            state: service.state,
            ports,
            frontends: Box::default(),
            balancer_history: known
                .facts
                .as_deref()
                .and_then(|facts| observe_balancer(service, before, facts, now))
                .map(Box::new),
        };
        let done: Vec<_> = service.ports.iter().take(service.desired_count).map(is_port_realized).collect();
        let mut before = before.map(|before| PreviousView::new(before, &view));
        let row = |(position, it)| {
            let mut row = self.frontend_view(id, service, it, &done, now.wall);
            set_hidden_reason(&mut row, &view.slices);
            before.iter_mut().for_each(|before| before.keep_since(position, &mut row));
            row
        };
        let frontends = service.desired.iter().enumerate().map(row).collect();
        view.frontends = frontends;
        Some(view)
    }

    fn frontend_view(
        &self,
        id: ServiceId,
        service: &Service,
        it: &DesiredFrontend,
        done: &[bool],
        now: Timestamp,
    ) -> FrontendView {
        let mut view = unprogrammed_view(it, now);
        if it.denied {
            view.reason = Some(Reason::Address);
            return view;
        }
        let at = it.position.and_then(|position| service.ports.get(position));
        let (Some(key), Some(port)) = (it.key(), at) else {
            view.reason = Some(Reason::Protocol);
            return view;
        };
        if is_bypassed(&key, it.kind, &self.tables.settings, &self.tables.node) {
            (view.verdict, view.reason) = (Verdict::Bypassed, Some(Reason::Control));
            return view;
        }
        let source = self.tables.get(id).map_or(Source::Kubernetes, |known| known.key.source);
        if let Some((verdict, reason)) = self.node_conflict(&key, it.kind, (source, id)) {
            (view.verdict, view.reason) = (verdict, Some(reason));
            return view;
        }
        let entry = self.owners.frontends.get(&key);
        let owner = self.owners.owner(&key, it.kind, (source, id), self.tables);
        if owner != Some(id) {
            (view.verdict, view.reason) = (Verdict::Conflict, Some(Reason::Claimed));
            view.owner = owner.and_then(|owner| Some(self.tables.get(owner)?.key.clone()));
            return view;
        }
        let realized = entry.and_then(|entry| entry.realized);
        let wanted =
            port.index.map(|port| FrontendValue { port, kind: it.kind, quota: self.tables.quota(id) });
        if it.passes {
            let is_there = entry.is_some_and(|entry| entry.uncertain) || realized.is_some();
            view.status = if is_there { service.status() } else { Status::Done };
            (view.verdict, view.reason) = (Verdict::Passing, Some(no_backend_reason(port)));
            return view;
        }
        let known = wanted.is_some() && entry.is_some_and(|entry| !entry.uncertain);
        let is_there = known && realized.map(|it| it.value) == wanted;
        if is_there && it.position.is_some_and(|position| done.get(position) == Some(&true)) {
            (view.verdict, view.reason) = desired_verdict(port, it.scope);
            return view;
        }
        view.status = service.status();
        if let Some(serving) = realized.and_then(|it| self.realized_port(it.value.port, it.owner)) {
            let list = serving.list(it.scope);
            view.applied = Some(Arc::clone(&list.rows));
            (view.verdict, view.reason) = applied_verdict(port, list, it.scope);
        }
        view
    }

    /// The node's own rule or listener that keeps the frontend from the service. Another owner of the address takes
    /// precedence.
    fn node_conflict(
        &self,
        key: &FrontendKey,
        kind: FrontendType,
        (source, id): (Source, ServiceId),
    ) -> Option<(Verdict, Reason)> {
        let host = self.tables.host_facts();
        let withheld = if is_node_reserved(key, kind, source, host) {
            (Verdict::Unprogrammed, Reason::Address)
        } else {
            find_listener(key, kind, source, host).map(|_| (Verdict::Conflict, Reason::Listener))?
        };
        self.owners.reserving_service(key, kind, (source, id), self.tables).is_none().then_some(withheld)
    }

    fn realized_port(&self, index: PortIndex, owner: Option<ServiceId>) -> Option<&RealizedPort> {
        let Some(owner) = owner else { return self.leftovers.get(index).map(|found| &found.realized) };
        self.services.port_at(owner, index, self.indices).map(|port| &port.realized)
    }
}

/// The load balancer's history as this node has observed it.
fn observe_balancer(
    service: &Service,
    before: Option<&ServiceView>,
    facts: &ServiceFacts,
    now: ClockReading,
) -> Option<BalancerHistory> {
    let before = before.and_then(|view| Some((view.facts.as_deref()?, view.balancer_history.as_deref())));
    BalancerHistory::observe(before, facts, service.facts_origin == FactsOrigin::Watch, now)
}

/// A row before the maps are consulted.
fn unprogrammed_view(it: &DesiredFrontend, now: Timestamp) -> FrontendView {
    FrontendView {
        address: it.address,
        port: it.port,
        protocol: it.protocol.clone(),
        kind: it.kind,
        port_name: Arc::clone(&it.port_name),
        position: it.position,
        scope: it.scope,
        external_local: it.external_local,
        verdict: Verdict::Unprogrammed,
        reason: None,
        status: Status::Done,
        owner: None,
        applied: None,
        since: now,
        verdict_since: now,
    }
}

fn build_port_view(port: &Port) -> PortView {
    PortView {
        key: port.key.clone(),
        index: port.index,
        rows: Arc::clone(&port.rows),
        last: port.history.last.clone(),
        hold: port.history.hold.clone(),
        ended: port.history.end_reason,
        cluster_used: port.policy.cluster_used,
        local_used: port.policy.local_used,
    }
}

/// Whether the maps hold exactly the port's facts and lists.
fn is_port_realized(port: &Port) -> bool {
    work::count_work(1 + port.rows.iter().len());
    let facts = port.realized.facts == Some(port.facts());
    facts
        && port.sources().iter().all(|range| port.has_realized_source(range))
        && Scope::ALL.into_iter().all(|scope| {
            let list = port.realized.list(scope);
            let is_same =
                || Arc::ptr_eq(&list.rows, &port.rows) || port.rows.has_same_list(scope, &list.rows, scope);
            // A list that cannot grow is there in part.
            let same = !port.uses_list(scope) || (list.word.count >= port.rows.len(scope) && is_same());
            // Whether the list is a Maglev table does not matter here.
            let [there, wanted] =
                [list.word.flags, port.transitional_flags(scope)].map(|it| it.without(WordFlags::TABLE));
            same && !list.uncertain && there == wanted
        })
}

fn desired_verdict(port: &Port, scope: Scope) -> (Verdict, Option<Reason>) {
    verdict(port, &port.rows, scope, scope == Scope::Local && port.policy.has_usable_backend)
}

fn applied_verdict(port: &Port, list: &RealizedList, scope: Scope) -> (Verdict, Option<Reason>) {
    verdict(port, &list.rows, scope, list.word.flags.contains(WordFlags::DROP))
}

/// What clients of a list get. `drops`: an empty list drops their packets instead of refusing them.
fn verdict(port: &Port, rows: &Rows, scope: Scope, drops: bool) -> (Verdict, Option<Reason>) {
    if !rows.is_empty(scope) {
        filled_verdict(port, rows, scope)
    } else if drops {
        (Verdict::Dropping, Some(Reason::LocalPolicy))
    } else {
        (Verdict::Refusing, Some(no_backend_reason(port)))
    }
}

fn filled_verdict(port: &Port, rows: &Rows, scope: Scope) -> (Verdict, Option<Reason>) {
    if let Some(hold) = port.history.hold.as_ref().filter(|_| rows.is_held(scope)) {
        (Verdict::Held, Some(hold.reason))
    } else if rows.is_draining(scope) {
        (Verdict::Draining, Some(Reason::ScaledDown))
    } else {
        (Verdict::Serving, None)
    }
}

fn no_backend_reason(port: &Port) -> Reason {
    let none_yet = if port.rows.iter().len() > 0 { Reason::AllUnready } else { Reason::NoEndpoints };
    port.history.empty_reason().unwrap_or(none_yet)
}

/// Sets the label as the reason if it hides a slice with endpoints from proxies: its endpoints exist, so the other
/// reasons would mislead.
fn set_hidden_reason(row: &mut FrontendView, slices: &[Arc<SliceFacts>]) {
    let is_unserved = matches!(row.verdict, Verdict::Refusing | Verdict::Passing);
    let less_specific = [Reason::NoEndpoints, Reason::ScaledDown, Reason::Vanished, Reason::HoldExpired];
    let is_unserved = is_unserved && row.reason.is_some_and(|reason| less_specific.contains(&reason));
    let family = AddressType::Ip(Family::from_address(row.address));
    let hides = |slice: &Arc<SliceFacts>| {
        slice.headless && slice.address_type == family && slice.endpoints.iter_brief().next().is_some()
    };
    if is_unserved && slices.iter().any(hides) {
        row.reason = Some(Reason::Hidden);
    }
}

/// The previous view, to find since when a row is unchanged.
struct PreviousView<'a> {
    before: &'a ServiceView,
    after: &'a ServiceView,
    /// Built when the first row has moved.
    positions: Option<BTreeMap<(IpAddr, NonZeroU16, &'a Protocol), usize>>,
    /// The last compared lists and the result: all rows of one port and kind share them.
    compared: Option<(ComparedLists, bool)>,
}

/// The lists of two rows: own and external, before and after.
type ComparedLists = [Option<(*const Rows, Scope)>; 4];

impl<'a> PreviousView<'a> {
    const fn new(before: &'a ServiceView, after: &'a ServiceView) -> Self {
        Self { before, after, positions: None, compared: None }
    }

    /// Keeps the previous row's times as far as the row is unchanged.
    fn keep_since(&mut self, position: usize, row: &mut FrontendView) {
        let Some(old) = self.find(position, row) else { return };
        if (old.verdict, old.reason) != (row.verdict, row.reason) {
            return;
        }
        row.verdict_since = old.verdict_since;
        if self.same_lists(old, row) {
            row.since = old.since;
        }
    }

    /// The row of the same address, port and protocol; usually its position is the same.
    fn find(&mut self, position: usize, row: &FrontendView) -> Option<&'a FrontendView> {
        work::count_work(1);
        let before = self.before;
        let key = |it: &'a FrontendView| (it.address, it.port, &it.protocol);
        let wanted = (row.address, row.port, &row.protocol);
        if let Some(old) = before.frontends.get(position).filter(|old| key(old) == wanted) {
            return Some(old);
        }
        let positions = self.positions.get_or_insert_with(|| {
            work::count_work(before.frontends.len());
            before.frontends.iter().map(key).zip(0..).collect()
        });
        before.frontends.get(*positions.get(&wanted)?)
    }

    fn same_lists(&mut self, old: &FrontendView, new: &FrontendView) -> bool {
        let before = self.before;
        let after = self.after;
        let lists = [
            own_list(before, old),
            own_list(after, new),
            external_list(before, old),
            external_list(after, new),
        ];
        if let Some((_, same)) = self.compared.filter(|(compared, _)| *compared == lists) {
            return same;
        }
        let [own_before, own_after, outside_before, outside_after] = lists;
        let same = own_before == own_after && outside_before == outside_after || {
            work::count_work(before.backends(old).count());
            let own = before.backends(old).map(Row::slot).eq(after.backends(new).map(Row::slot));
            own && match (before.external_backends(old), after.external_backends(new)) {
                (Some(old), Some(new)) => old.map(Row::slot).eq(new.map(Row::slot)),
                (old, new) => old.is_none() && new.is_none(),
            }
        };
        self.compared = Some((lists, same));
        same
    }
}

fn own_list(view: &ServiceView, row: &FrontendView) -> Option<(*const Rows, Scope)> {
    let rows = row.applied.as_ref().or_else(|| view.rows(row))?;
    Some((Arc::as_ptr(rows), row.scope))
}

/// The list for clients from outside. The scope is that of this node's own list, because the external list is shown
/// only if it differs.
fn external_list(view: &ServiceView, row: &FrontendView) -> Option<(*const Rows, Scope)> {
    let rows = view.rows(row).filter(|_| row.external_local)?;
    Some((Arc::as_ptr(rows), row.scope))
}
