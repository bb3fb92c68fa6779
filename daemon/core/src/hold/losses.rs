//! The recently lost lists, counted by namespace: what one tenant empties is no mass loss of another tenant.
//!
//! Invariant: a namespace takes part in a mass loss if the losses over several namespaces amount to one, and still
//! would without any single other of these namespaces; or if all of its own services have lost their lists. In each
//! test the namespace with the most remaining services may be left out as well: one tenant's services must not end the
//! holds of others. The result depends on the entries, not on their order. The namespaces with a list and the losses
//! within the window bound the memory.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::judge::Policy;
use crate::op::ServiceId;
use crate::time::Uptime;

/// Whether a service has lists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ListPresence {
    /// A list, held or not.
    pub(crate) any: bool,
    /// A list that is not held.
    pub(crate) unheld: bool,
}

/// So many services lost their lists that all of these lists are held.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct MassLoss {
    pub(crate) lost: usize,
    pub(crate) populated: usize,
    pub(crate) services: Vec<ServiceId>,
}

/// The services of one namespace.
#[derive(Debug, Default)]
struct Tenant {
    /// How many have a list, held or not.
    populated: usize,
    /// How many have a list that is not held.
    unheld: usize,
    /// The services that lost their lists within the window and have none again.
    lost: BTreeSet<ServiceId>,
    /// All services in `lost` are part of a mass loss, except those added since.
    is_mass: bool,
    has_new_loss: bool,
}

impl Tenant {
    /// Whether no service of the namespace has a list that is not held, and enough of them lost theirs.
    fn lost_all(&self, policy: &Policy) -> bool {
        self.unheld == 0 && policy.is_mass_loss(self.lost.len(), self.populated)
    }

    fn is_empty(&self) -> bool {
        self.populated == 0 && self.lost.is_empty()
    }

    /// Sets whether the namespace takes part in a mass loss. `true`: that is new, or has a new loss.
    fn set_mass_loss(&mut self, is_mass: bool) -> bool {
        let was_mass = core::mem::replace(&mut self.is_mass, is_mass);
        is_mass && (core::mem::take(&mut self.has_new_loss) || !was_mass)
    }
}

/// The namespaces for which the losses over all namespaces are a mass loss.
#[derive(Debug)]
enum LossSpan {
    NoNamespace,
    AllNamespaces,
    /// One namespace alone: without its losses, those of the others would be no mass loss.
    Only(Arc<str>),
}

impl LossSpan {
    fn contains(&self, namespace: &Arc<str>) -> bool {
        match self {
            Self::NoNamespace => false,
            Self::AllNamespaces => true,
            Self::Only(one) => one == namespace,
        }
    }
}

/// The services that lost their lists within the window of a mass loss and have none again.
#[derive(Debug, Default)]
pub(super) struct Losses {
    order: BTreeSet<(Uptime, ServiceId)>,
    services: BTreeMap<ServiceId, (Uptime, Arc<str>)>,
    tenants: BTreeMap<Arc<str>, Tenant>,
    /// Services with a list, over all namespaces.
    populated: usize,
    /// The policy of the last judgement; `None`: an entry changed since.
    judged: Option<Policy>,
}

impl Losses {
    /// Counts a change of a service's lists.
    pub(super) fn count_lists(
        &mut self,
        namespace: &Arc<str>,
        (before, after): (ListPresence, ListPresence),
    ) {
        if before == after {
            return;
        }
        let step = |count: &mut usize, was: bool, is: bool| {
            *count = (*count + usize::from(is)).saturating_sub(usize::from(was));
        };
        let tenant = self.tenants.entry(Arc::clone(namespace)).or_default();
        step(&mut tenant.populated, before.any, after.any);
        step(&mut tenant.unheld, before.unheld, after.unheld);
        step(&mut self.populated, before.any, after.any);
        self.judged = None;
        self.forget_empty(namespace);
    }

    /// Records when a service last lost a list that is held now; `None`: it has no such list.
    pub(super) fn set_loss(&mut self, id: ServiceId, namespace: &Arc<str>, lost: Option<Uptime>) {
        if lost.is_none() && !self.services.contains_key(&id) {
            return;
        }
        self.remove(id);
        if let Some(at) = lost {
            self.services.insert(id, (at, Arc::clone(namespace)));
            self.order.insert((at, id));
            let tenant = self.tenants.entry(Arc::clone(namespace)).or_default();
            tenant.lost.insert(id);
            tenant.has_new_loss = true;
        }
        self.judged = None;
    }

    /// Drops the losses before the window.
    fn expire(&mut self, now: Uptime, window: i64) {
        while let Some((_, id)) = self.order.first().copied().filter(|(at, _)| now.since(*at) > window) {
            self.remove(id);
            self.judged = None;
        }
    }

    fn remove(&mut self, id: ServiceId) {
        let Some((at, namespace)) = self.services.remove(&id) else { return };
        self.order.remove(&(at, id));
        if let Some(tenant) = self.tenants.get_mut(&namespace) {
            tenant.lost.remove(&id);
        }
        self.forget_empty(&namespace);
    }

    fn forget_empty(&mut self, namespace: &Arc<str>) {
        if self.tenants.get(namespace).is_some_and(Tenant::is_empty) {
            self.tenants.remove(namespace);
        }
    }

    /// Every new or grown mass loss: the one over several namespaces first, then those of single ones.
    pub(super) fn judge_losses(&mut self, policy: &Policy, now: Uptime) -> Vec<MassLoss> {
        self.expire(now, policy.mass_loss_window);
        if self.judged.replace(*policy) == Some(*policy) {
            return Vec::new();
        }
        let span = self.span(policy);
        let mut over_all =
            MassLoss { lost: self.services.len(), populated: self.populated, services: Vec::new() };
        let mut found = Vec::new();
        for (namespace, tenant) in &mut self.tenants {
            let spans = span.contains(namespace) && !tenant.lost.is_empty();
            let is_whole = tenant.lost_all(policy);
            if !tenant.set_mass_loss(spans || is_whole) {
                continue;
            }
            if spans {
                over_all.services.extend(&tenant.lost);
            } else {
                let lost = tenant.lost.len();
                let populated = tenant.populated;
                found.push(MassLoss { lost, populated, services: tenant.lost.iter().copied().collect() });
            }
        }
        if !over_all.services.is_empty() {
            found.insert(0, over_all);
        }
        found
    }

    fn span(&self, policy: &Policy) -> LossSpan {
        let most = self.largest_namespace(None);
        let is_mass = |without: Option<&Arc<str>>| {
            let largest_other = if most == without { self.largest_namespace(most) } else { most };
            self.is_mass_without([without, None], policy)
                || self.is_mass_without([without, largest_other], policy)
        };
        if !is_mass(None) {
            return LossSpan::NoNamespace;
        }
        let losers =
            || self.tenants.iter().filter(|(_, it)| !it.lost.is_empty()).map(|(namespace, _)| namespace);
        let mut needed = losers().filter(|namespace| !is_mass(Some(*namespace)));
        match (losers().nth(1), needed.next(), needed.next()) {
            (None, ..) | (_, _, Some(_)) => LossSpan::NoNamespace,
            (_, None, _) => LossSpan::AllNamespaces,
            (_, Some(one), None) => LossSpan::Only(Arc::clone(one)),
        }
    }

    /// Whether the losses are a mass loss over all namespaces except these.
    fn is_mass_without(&self, namespaces: [Option<&Arc<str>>; 2], policy: &Policy) -> bool {
        let left_out =
            || namespaces.into_iter().flatten().filter_map(|namespace| self.tenants.get(namespace));
        let lost: usize = left_out().map(|it| it.lost.len()).sum();
        let populated: usize = left_out().map(|it| it.populated).sum();
        policy
            .is_mass_loss(self.services.len().saturating_sub(lost), self.populated.saturating_sub(populated))
    }

    /// The namespace with the most services that lost nothing, except `except`.
    fn largest_namespace(&self, except: Option<&Arc<str>>) -> Option<&Arc<str>> {
        let others = self.tenants.iter().filter(|(namespace, _)| Some(*namespace) != except);
        others
            .max_by_key(|(_, it)| it.populated.saturating_sub(it.lost.len()))
            .map(|(namespace, _)| namespace)
    }
}

#[cfg(test)]
mod tests;
