//! Changes outside the engine: objects are changed, deleted and recreated, sources interrupted, probes answered.
//!
//! Invariant: the model's facts change with the event that reports it.

use std::sync::Arc;

use holdfast_core::event::Event;
use holdfast_core::facts::{ObjectKey, Rejection, ServiceFacts, SliceFacts};
use holdfast_core::hold::{ProbeAnswer, ProbeResult};
use holdfast_core::keys::{ServiceKey, SliceKey, Source};
use holdfast_core::time::Uptime;

use super::{Simulation, population};

/// How many answers may be under way.
const LAGGING_MAX: usize = 8;

impl Simulation {
    /// Changes some object in the facts, and returns the event.
    pub(super) fn change(&mut self) -> Event {
        match self.random.below(100) {
            0..34 => self.change_service(),
            34..88 => self.change_slice(),
            88..91 => self.change_node(),
            91..93 => self.change_settings(),
            93..98 => self.reject(),
            _ => self.interrupt(),
        }
    }

    fn change_service(&mut self) -> Event {
        let position = self.random.below(population::SERVICES_MAX);
        let key = population::service_key(position);
        let old = self.watch().model.facts.services.get(&key).cloned();
        if old.is_some() && self.random.chance(180) {
            let model = &mut self.watch().model;
            model.facts.services.remove(&key);
            model.touch(&key);
            return Event::ServiceDeleted(key, None);
        }
        let small = self.random.chance(700);
        let new = match old {
            Some(old) if small => population::changed_service(&mut self.random, &old),
            _ => population::service(&mut self.random, position),
        };
        let new = Arc::new(new);
        let model = &mut self.watch().model;
        model.facts.services.insert(key.clone(), Arc::clone(&new));
        model.touch(&key);
        Event::ServiceApplied(new)
    }

    fn change_slice(&mut self) -> Event {
        let position = self.random.below(population::SLICES_MAX);
        let key = population::slice_key(position);
        let old = self.watch().model.facts.slices.get(&key).cloned();
        let gone = old.is_some() && self.random.chance(180);
        let small = self.random.chance(800);
        let new = match &old {
            _ if gone => None,
            Some(old) if small => Some(population::changed_slice(&mut self.random, old)),
            _ => Some(population::slice(&mut self.random, position)),
        };
        let new = new.map(Arc::new);
        self.replace_slice(&key, old.as_ref(), new.as_ref());
        new.map_or(Event::SliceDeleted(key, None), Event::SliceApplied)
    }

    fn replace_slice(
        &mut self,
        key: &SliceKey,
        old: Option<&Arc<SliceFacts>>,
        new: Option<&Arc<SliceFacts>>,
    ) {
        let model = &mut self.watch().model;
        match new {
            Some(new) => model.facts.slices.insert(key.clone(), Arc::clone(new)),
            None => model.facts.slices.remove(key),
        };
        for slice in old.into_iter().chain(new) {
            let own = |it: &ServiceKey| {
                it.source == slice.key.source
                    && it.name.namespace() == slice.key.name.namespace()
                    && slice.service.as_deref() == Some(it.name.name())
            };
            if let Some(service) = model.facts.services.keys().find(|it| own(it)).cloned() {
                model.touch(&service);
            }
        }
    }

    fn change_node(&mut self) -> Event {
        let node = Arc::new(population::node(&mut self.random));
        let model = &mut self.watch().model;
        model.facts.node = Arc::clone(&node);
        model.touch_all();
        Event::NodeApplied(node)
    }

    fn change_settings(&mut self) -> Event {
        let settings = Arc::new(population::settings(&mut self.random));
        let model = &mut self.watch().model;
        model.facts.settings = Arc::clone(&settings);
        model.touch_all();
        Event::SettingsApplied(settings)
    }

    /// An object arrives that cannot be parsed: nothing may change.
    fn reject(&mut self) -> Event {
        let position = self.random.below(population::SLICES_MAX);
        let object = if self.random.chance(500) {
            ObjectKey::Slice(population::slice_key(position))
        } else {
            ObjectKey::Service(population::service_key(position % population::SERVICES_MAX))
        };
        Event::Rejected(Rejection { object, origin: None, reason: "not understood".into(), partial: false })
    }

    /// A source is interrupted, silent or recovered, or answers an earlier query.
    fn interrupt(&mut self) -> Event {
        let source =
            Source::ALL.get(self.random.below(Source::ALL.len())).copied().unwrap_or(Source::Kubernetes);
        match self.random.below(8) {
            0 | 1 => Event::Silent(source),
            2 | 3 => Event::Recovered(source),
            4 | 5 => {
                let ago = i64::try_from(self.random.below(40)).unwrap_or(0);
                let now = self.watch().model.history.now();
                Event::Answered(source, Uptime(now.saturating_sub(ago)))
            }
            _ => Event::Interrupted(source),
        }
    }

    /// All services have plain lists for a while; then all slices are emptied at once, without a sign of intent.
    pub(super) fn lose_everything(&mut self) {
        for position in 0..population::SERVICES_MAX {
            let new = Arc::new(population::plain_service(&mut self.random, position));
            let model = &mut self.watch().model;
            model.facts.services.insert(new.key.clone(), Arc::clone(&new));
            model.touch(&new.key);
            self.tell(Event::ServiceApplied(new));
        }
        for position in 0..population::SLICES_MAX {
            let new = Arc::new(population::plain_slice(&mut self.random, position));
            let old = self.watch().model.facts.slices.get(&new.key).cloned();
            self.replace_slice(&new.key, old.as_ref(), Some(&new));
            self.tell(Event::SliceApplied(new));
        }
        self.turn();
        for key in (0..population::SLICES_MAX).map(population::slice_key) {
            let Some(old) = self.watch().model.facts.slices.get(&key).cloned() else { continue };
            let new = Arc::new(population::emptied(&old));
            self.replace_slice(&key, Some(&old), Some(&new));
            self.tell(Event::SliceApplied(new));
        }
    }

    /// All of a slice's endpoints terminate and are removed, within one batch or two.
    pub(super) fn finish(&mut self) {
        let key = population::slice_key(self.random.below(population::SLICES_MAX));
        let Some(old) = self.watch().model.facts.slices.get(&key).cloned() else { return };
        let ending = Arc::new(population::ended(&mut self.random, &old));
        let empty = Arc::new(population::emptied(&old));
        self.replace_slice(&key, Some(&old), Some(&ending));
        self.tell(Event::SliceApplied(Arc::clone(&ending)));
        if self.random.chance(200) {
            self.turn();
        }
        self.replace_slice(&key, Some(&ending), Some(&empty));
        self.tell(Event::SliceApplied(empty));
    }

    /// Some tenant empties every slice of its namespace, and of no other.
    pub(super) fn lose_namespace(&mut self) {
        let position = self.random.below(population::SLICES_MAX);
        let own = population::slice_key(position);
        let is_own = |key: &SliceKey| key.name.namespace() == own.name.namespace();
        for key in (0..population::SLICES_MAX).map(population::slice_key).filter(is_own) {
            let Some(old) = self.watch().model.facts.slices.get(&key).cloned() else { continue };
            let new = Arc::new(population::emptied(&old));
            self.replace_slice(&key, Some(&old), Some(&new));
            self.tell(Event::SliceApplied(new));
        }
    }

    /// Some tenant writes a slice that lists a held address for a pod of its own, if any is held.
    pub(super) fn claim(&mut self) {
        let snapshot = Arc::clone(&self.snapshot);
        let ports = snapshot.services.iter().flat_map(|view| view.ports.iter());
        let held: Vec<_> = ports.flat_map(|port| port.hold.iter().flat_map(|hold| hold.rows())).collect();
        if held.is_empty() {
            return;
        }
        let Some(row) = held.get(self.random.below(held.len())) else { return };
        let position = self.random.below(population::SLICES_MAX);
        let new = Arc::new(population::claiming(&mut self.random, position, row.address, row.port));
        let key = new.key.clone();
        let old = self.watch().model.facts.slices.get(&key).cloned();
        self.replace_slice(&key, old.as_ref(), Some(&new));
        self.tell(Event::SliceApplied(new));
    }

    /// A port of a service is renamed, or two swap their names, while the numbers stay. The slices follow now or later,
    /// or did before.
    pub(super) fn rename_port(&mut self) {
        let position = self.random.below(population::SERVICES_MAX);
        let key = population::service_key(position);
        let Some(old) = self.watch().model.facts.services.get(&key).cloned() else { return };
        let names = population::renamed(&mut self.random, &old);
        let order = self.random.below(3);
        if order > 0 {
            self.rename_in_service(&old, &names);
        }
        if order == 1 {
            self.turn();
        }
        self.rename_in_slices(&key, &names);
        if order == 0 {
            self.turn();
            self.rename_in_service(&old, &names);
        }
    }

    fn rename_in_service(&mut self, old: &ServiceFacts, names: &[population::Rename]) {
        let mut new = old.clone();
        new.ports.iter_mut().for_each(|port| port.name = population::name_after(names, &port.name));
        let new = Arc::new(new);
        let model = &mut self.watch().model;
        model.facts.services.insert(new.key.clone(), Arc::clone(&new));
        model.touch(&new.key);
        self.tell(Event::ServiceApplied(new));
    }

    fn rename_in_slices(&mut self, service: &ServiceKey, names: &[population::Rename]) {
        let is_own = |it: &&Arc<SliceFacts>| {
            (it.key.source, it.key.name.namespace()) == (service.source, service.name.namespace())
                && it.service.as_deref() == Some(service.name.name())
        };
        let slices = self.watch().model.facts.slices.values().filter(is_own).cloned();
        for old in slices.collect::<Vec<_>>() {
            let mut new = SliceFacts::clone(&old);
            new.ports.iter_mut().for_each(|port| port.name = population::name_after(names, &port.name));
            let new = Arc::new(new);
            self.replace_slice(&new.key.clone(), Some(&old), Some(&new));
            self.tell(Event::SliceApplied(new));
        }
    }

    /// Probes a backend of a held list some times in a row, if there is one, or delivers answers under way.
    pub(super) fn probe(&mut self) {
        if self.random.chance(200) {
            for probed in std::mem::take(&mut self.lagging) {
                self.tell(Event::Probed(Box::new(probed)));
            }
        }
        let snapshot = Arc::clone(&self.snapshot);
        let mut probes = Vec::new();
        for view in snapshot.services.iter() {
            for port in &view.ports {
                let backends = port.hold.iter().flat_map(|hold| hold.probe_targets(port.key.transport));
                probes.extend(backends.map(|backend| (view.key.clone(), port.key.clone(), backend)));
            }
        }
        let answers =
            [ProbeAnswer::Accepted, ProbeAnswer::Refused, ProbeAnswer::Refused, ProbeAnswer::Silent];
        let answer = answers.get(self.random.below(answers.len())).copied().unwrap_or(ProbeAnswer::Silent);
        if probes.is_empty() {
            return;
        }
        let (service, port, backend) = probes.swap_remove(self.random.below(probes.len()));
        for _ in 0..1 + self.random.below(3) {
            let probed = ProbeResult { service: service.clone(), port: port.clone(), backend, answer };
            if self.random.chance(300) && self.lagging.len() < LAGGING_MAX {
                self.lagging.push(probed);
            } else {
                self.tell(Event::Probed(Box::new(probed)));
            }
        }
    }
}
