//! Which endpoints of a port get traffic, exactly by kube-proxy's rules.
//!
//! Invariant: the cluster list honours hints, the local list never does. A list without ready endpoints falls back to
//! endpoints that are serving and terminating, whatever the other list does.

use alloc::sync::Arc;

use super::PortPolicy;
use crate::facts::{Endpoint, HintSet, NodeFacts, SliceFacts};
use crate::list::{Row, Scope};

/// Marks the lists that each row is in, and returns whether any usable backend exists.
pub fn select_endpoints(
    rows: &mut [Row],
    slices: &[Arc<SliceFacts>],
    policy: PortPolicy,
    node: &NodeFacts,
) -> bool {
    let mut has_any = false;
    if policy.cluster_used {
        let topology = topology(rows, slices, node);
        mark_ready(rows, Scope::Cluster, |row| fits(row, slices, node, topology));
        if !rows.iter().any(|row| row.is_in(Scope::Cluster)) {
            mark_fallback(rows, Scope::Cluster, |_| true);
        }
        has_any = rows.iter().any(|row| row.is_in(Scope::Cluster));
    }
    if policy.local_used {
        let here = |row: &Row| is_local(row, slices, node);
        mark_ready(rows, Scope::Local, here);
        if !rows.iter().any(|row| row.is_in(Scope::Local)) {
            mark_fallback(rows, Scope::Local, here);
        }
        has_any |= rows.iter().any(|row| row.conditions().ready || is_fallback(row));
    }
    has_any
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Topology {
    Anywhere,
    SameZone,
    SameNode,
}

/// Hints count only if every ready endpoint has one and one of them names this node, or else its zone.
fn topology(rows: &[Row], slices: &[Arc<SliceFacts>], node: &NodeFacts) -> Topology {
    let ready = || rows.iter().filter(|row| row.conditions().ready).map(|row| hints(row, slices));
    let all_and_any = |all: &dyn Fn(&HintSet) -> bool, any: &dyn Fn(&HintSet) -> bool| {
        ready().all(|it| it.is_some_and(all)) && ready().flatten().any(any)
    };
    if all_and_any(&|it| !it.nodes.is_empty(), &|it| names_node(it, node)) {
        Topology::SameNode
    } else if all_and_any(&|it| !it.zones.is_empty(), &|it| names_zone(it, node)) {
        Topology::SameZone
    } else {
        Topology::Anywhere
    }
}

fn fits(row: &Row, slices: &[Arc<SliceFacts>], node: &NodeFacts, topology: Topology) -> bool {
    match topology {
        Topology::Anywhere => true,
        Topology::SameZone => hints(row, slices).is_some_and(|it| names_zone(it, node)),
        Topology::SameNode => hints(row, slices).is_some_and(|it| names_node(it, node)),
    }
}

fn names_node(hints: &HintSet, node: &NodeFacts) -> bool {
    hints.nodes.contains(&node.name)
}

fn names_zone(hints: &HintSet, node: &NodeFacts) -> bool {
    node.zone.as_ref().is_some_and(|zone| !zone.is_empty() && hints.zones.contains(zone))
}

fn mark_ready(rows: &mut [Row], scope: Scope, fits: impl Fn(&Row) -> bool) {
    for row in rows.iter_mut().filter(|row| row.conditions().ready) {
        if fits(row) {
            row.choose(scope);
        }
    }
}

fn mark_fallback(rows: &mut [Row], scope: Scope, fits: impl Fn(&Row) -> bool) {
    for row in rows.iter_mut().filter(|row| is_fallback(row)) {
        if fits(row) {
            row.choose(scope);
        }
    }
}

fn is_fallback(row: &Row) -> bool {
    let conditions = row.conditions();
    conditions.serving && conditions.terminating
}

fn is_local(row: &Row, slices: &[Arc<SliceFacts>], node: &NodeFacts) -> bool {
    endpoint(row, slices).and_then(|it| it.node).is_some_and(|it| it == *node.name)
}

pub(super) fn has_node(row: &Row, slices: &[Arc<SliceFacts>]) -> bool {
    endpoint(row, slices).is_some_and(|it| it.node.is_some())
}

fn hints<'a>(row: &Row, slices: &'a [Arc<SliceFacts>]) -> Option<&'a HintSet> {
    slices.get(usize::from(row.slice))?.endpoints.hints_for(usize::from(row.endpoint))
}

fn endpoint<'a>(row: &Row, slices: &'a [Arc<SliceFacts>]) -> Option<Endpoint<'a>> {
    slices.get(usize::from(row.slice))?.endpoints.get(usize::from(row.endpoint))
}
