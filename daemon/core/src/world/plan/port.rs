//! The ops for the lists and members of one port.
//!
//! Invariant: members are written before the word that needs them and removed after it. A word is emptied first.

use alloc::sync::Arc;
use alloc::vec::Vec;

use super::source_ranges::plan_stale_sources;
use crate::list::{Row, Scope};
use crate::op::{Action, MemberKey, Membership, PortFacts, PortIndex, Word, WordFlags};
use crate::service::Port;
use crate::work;
use crate::world::placement::ListPlacement;

pub(super) fn plan_list(port: &Port, index: PortIndex, list: &ListPlacement, push: &mut dyn FnMut(Action)) {
    let realized = port.realized.list(list.scope);
    if let Some(range) = list.range {
        push(Action::WriteRange(range, list.scope, Arc::clone(&port.rows)));
    }
    if list.word != realized.word || realized.uncertain {
        push(Action::PublishWord(index, list.scope, list.word));
    }
}

/// Empties what the service's own frontends no longer read. If the cluster word stops sending clients to the local one,
/// it is published first, and the rest is emptied a grace period later.
pub(super) fn plan_unused(port: &Port, index: PortIndex, push: &mut dyn FnMut(Action)) {
    for scope in Scope::ALL {
        let realized = port.realized.list(scope);
        let kept = if port.uses_list(scope) { realized.word } else { Word::EMPTY };
        let is_table = kept.flags.contains(WordFlags::TABLE);
        let word = Word { flags: port.flags(scope).with(WordFlags::TABLE, is_table), ..kept };
        if word != realized.word {
            push(Action::PublishWord(index, scope, word));
        }
        if !word.flags.contains(realized.word.flags.redirects()) {
            return;
        }
    }
    plan_stale_sources(port, index, push);
}

/// The backends that the maps key by address: those of a list with affinity, to check a client's last backend; those of
/// a Maglev table, which cannot be searched; and every serving one, so that sockets keep their backends.
pub(super) fn desired_members(port: &Port) -> impl Iterator<Item = (Membership, Row)> {
    let has_table = Scope::ALL.into_iter().any(|scope| port.is_table(scope));
    let has_any = port.policy.affinity_timeout > 0 || port.policy.keeps_members || has_table;
    let rows = has_any.then(|| port.rows.iter()).into_iter().flatten();
    let of = |row| Membership::ALL.into_iter().map(move |membership| (membership, row));
    rows.flat_map(of).filter(|(membership, row)| port.is_member(row, *membership))
}

pub(super) fn plan_new_members(
    port: &Port,
    index: PortIndex,
    stays: &dyn Fn(Scope) -> bool,
    push: &mut dyn FnMut(Action),
) {
    let waits = |membership, row: &Row| match membership {
        Membership::List(scope) => stays(scope),
        Membership::Serving => {
            row.is_chosen() && Scope::ALL.into_iter().all(|scope| stays(scope) || !row.is_in(scope))
        }
    };
    for (membership, row) in desired_members(port) {
        let backend = row.backend();
        let state = row.state();
        let member = (membership, backend);
        let known = port.realized.members.get(&member);
        if known.is_none() && waits(membership, &row) {
            continue;
        }
        if known != Some(&state) || port.realized.uncertain_members.contains(&member) {
            push(Action::InsertMember(MemberKey { port: index, membership, backend }, state));
        }
    }
}

/// Removes members that no published word needs; a list that stays still needs its own.
pub(super) fn plan_stale_members(
    port: &Port,
    index: PortIndex,
    stays: &dyn Fn(Scope) -> bool,
    push: &mut dyn FnMut(Action),
) {
    let realized = &port.realized;
    if realized.members.is_empty() && realized.uncertain_members.is_empty() {
        return;
    }
    let wanted = |membership, backend| {
        let row = port.rows.find(backend);
        row.is_some_and(|row| port.is_member(&row, membership))
    };
    let needed = |membership, backend| {
        Scope::ALL.into_iter().filter(|scope| stays(*scope)).any(|scope| {
            let row = realized.list(scope).rows.find(backend).filter(|row| row.is_in(scope));
            row.is_some() && (membership == Membership::List(scope) || membership == Membership::Serving)
        })
    };
    let mut known: Vec<_> = realized.members.keys().chain(&realized.uncertain_members).collect();
    known.sort_unstable();
    known.dedup();
    for (membership, backend) in known {
        work::count_work(1);
        if !wanted(*membership, *backend) && !needed(*membership, *backend) {
            let key = MemberKey { port: index, membership: *membership, backend: *backend };
            push(Action::RemoveMember(key));
        }
    }
}

pub(super) fn plan_wipe(port: &Port, index: PortIndex, push: &mut dyn FnMut(Action)) {
    for scope in Scope::ALL {
        let list = port.realized.list(scope);
        if list.word != Word::EMPTY || list.uncertain {
            push(Action::PublishWord(index, scope, Word::EMPTY));
        }
    }
    plan_stale_members(port, index, &|_| false, push);
    plan_stale_sources(port, index, push);
    if port.realized.facts != Some(PortFacts::default()) {
        push(Action::WriteFacts(index, PortFacts::default()));
    }
}
