//! The history of lists without a backend: the last list, which of its backends were seen terminating, and the holds.
//!
//! Invariant: it reads only the events to the engine and the endpoints listed when the engine decides, nothing else of
//! the engine.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::sync::Arc;

use holdfast_core::event::Event;
use holdfast_core::facts::{AddressType, ServiceFacts, ServicePort, ServiceType, SliceFacts, SlicePort};
use holdfast_core::hold::{Bound, OnEmpty, Policy, ProbeAnswer, ProbeResult, ProbeState};
use holdfast_core::keys::{ObjectName, Protocol, ServiceKey, SliceKey, Source, Transport};
use holdfast_core::list::{Slot, SlotState};
use holdfast_core::snapshot::{Reason, ServiceView};
use holdfast_core::time::ClockReading;

use super::model::{Expected, ExpectedPort, Facts, PortName, hidden, is_of};
use super::policy::{self, Lost, Probing, Rule, Signs};

/// For so many seconds after an interruption a loss may be due to it.
const RESYNC: i64 = 60;

/// A backend of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    pub slot: Slot,
    /// It is in the cluster list.
    pub cluster: bool,
    /// It is in the local list.
    pub local: bool,
    /// It is terminating.
    pub terminating: bool,
    /// The UID of the endpoint's target in the slice; may be empty.
    pub uid: String,
}

/// A backend of a held list: its probes, and why it was dropped.
#[derive(Clone, Debug, PartialEq, Eq)]
struct HeldMember {
    member: Member,
    asked: ProbeState,
    answered: bool,
    failures: u8,
    lost: Option<Reason>,
}

/// A held list.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Held {
    reason: Reason,
    bound: Bound,
    /// Seconds of the clock that never steps.
    begun: i64,
    asked: Option<i64>,
    /// When its bound was last reached while the source was silent.
    reached: Option<i64>,
    /// When its bound was last reached without an answer of the source since.
    unanswered: Option<i64>,
    members: Vec<HeldMember>,
}

impl Held {
    fn end(&mut self, policy: &Policy, now: i64, source: SourceState) -> Option<Reason> {
        if self.members.iter().any(|it| it.asked == ProbeState::Done) {
            self.asked.get_or_insert(now);
        }
        if self.members.iter().all(|it| it.lost.is_some()) {
            return self.members.last().and_then(|it| it.lost);
        }
        let bound = self.bound(policy).filter(|_| self.is_over(policy, now));
        match (bound, source) {
            (None, _) => return None,
            (Some(_), SourceState::Silent) => self.reached = Some(now),
            (Some(bound), SourceState::Answered(at)) if at.is_none_or(|at| at < bound) => {
                self.unanswered = Some(now);
            }
            _ => {}
        }
        self.is_over(policy, now).then_some(Reason::HoldExpired)
    }

    /// A list whose source has not answered is not checked for two seconds.
    fn is_over(&self, policy: &Policy, now: i64) -> bool {
        let rests = self.unanswered.is_some_and(|at| now < at + 2);
        !rests && self.bound(policy).is_some_and(|end| now >= end)
    }

    fn bound(&self, policy: &Policy) -> Option<i64> {
        let later = |at: i64| self.reached.map_or(at, |reached| reached.max(at));
        let probing = Probing {
            begun: later(self.begun),
            asked: self.asked.map(later),
            waits: self.members.iter().any(|it| it.lost.is_none() && it.asked == ProbeState::Due),
            answered: self.members.iter().any(|it| it.answered),
            hidden: self.reason == Reason::Hidden,
        };
        policy::end(self.bound, probing, policy)
    }

    /// If only the history speaks for a hold, a listed backend that is not usable is not held.
    fn leave_out(&mut self, listed: &BTreeSet<SocketAddr>) {
        let by_the_past = self.bound == Bound::Guarded || self.bound == Bound::MassLoss;
        for member in self.members.iter_mut().filter(|it| by_the_past && it.lost.is_none()) {
            member.lost = listed.contains(&member.member.slot.backend()).then_some(Reason::AllUnready);
        }
    }

    fn find(&mut self, backend: SocketAddr) -> Option<&mut HeldMember> {
        self.members.iter_mut().find(|it| it.lost.is_none() && it.member.slot.backend() == backend)
    }

    fn is_lost_since(&self, from: i64) -> bool {
        self.begun >= from && matches!(self.bound, Bound::Guarded | Bound::MassLoss)
    }
}

/// What a source could report about endpoints that are back.
#[derive(Clone, Copy, Debug)]
enum SourceState {
    /// Everything at any time: it is the node's files.
    All,
    Silent,
    /// Its state when the latest counted answer's query was sent, if any.
    Answered(Option<i64>),
}

/// The history of one port.
#[derive(Clone, Debug, Default)]
struct Past {
    last: Option<Arc<[Member]>>,
    terminating: BTreeSet<SocketAddr>,
    had_list: bool,
    held: Option<Held>,
    ended: Option<Reason>,
    // The numbers that clients dial while the port exists.
    numbers: BTreeSet<NonZeroU16>,
    // The port was away meanwhile, so the engine may have forgotten the last list.
    was_away: bool,
}

impl Past {
    fn keep(&mut self, chosen: &Arc<[Member]>) {
        if !self.last.as_ref().is_some_and(|last| Arc::ptr_eq(last, chosen)) {
            let terminating = chosen.iter().filter(|it| it.terminating);
            self.terminating = terminating.map(|it| it.slot.backend()).collect();
            self.last = Some(Arc::clone(chosen));
        }
        (self.held, self.ended, self.had_list, self.was_away) = (None, None, true, false);
    }

    fn leave(&mut self) {
        self.numbers.clear();
        (self.held, self.ended, self.had_list, self.was_away) = (None, None, false, true);
    }

    /// Applies backends that were terminating or ready in a slice that was replaced before any decision.
    fn recall(&mut self, missed: &SliceFacts, name: &PortName) {
        let Some(last) = self.last.clone() else { return };
        if missed.headless || missed.address_type != AddressType::Ip(name.2) {
            return;
        }
        let joins = |it: &&SlicePort| it.name == name.0 && it.protocol == Protocol::Transport(name.1);
        for port in missed.ports.iter().filter(joins) {
            for endpoint in missed.endpoints.iter() {
                let backend = SocketAddr::new(endpoint.address, port.port.get());
                if endpoint.conditions.terminating && last.iter().any(|it| it.slot.backend() == backend) {
                    self.terminating.insert(backend);
                } else if endpoint.conditions.ready {
                    self.terminating.remove(&backend);
                }
            }
        }
    }

    fn is_ended(&self) -> bool {
        self.backends().all(|backend| self.terminating.contains(&backend))
    }

    /// Whether each backend of the last list is still listed, or was seen terminating.
    fn is_unready(&self, listed: &BTreeSet<SocketAddr>) -> bool {
        !listed.is_empty() && self.backends().all(|it| listed.contains(&it) || self.terminating.contains(&it))
    }

    fn backends(&self) -> impl Iterator<Item = SocketAddr> {
        self.last.iter().flat_map(|last| last.iter()).map(|it| it.slot.backend())
    }

    fn judge(
        &mut self,
        judged: Option<(Reason, Bound)>,
        policy: &Policy,
        (now, transport): (i64, Transport),
        (source, listed): (SourceState, &BTreeSet<SocketAddr>),
    ) {
        match (self.held.take(), judged) {
            (Some(mut held), Some((reason, bound))) => {
                let stays = held.bound == bound || (held.bound == Bound::MassLoss && bound == Bound::Guarded);
                if !stays {
                    let begins = held.bound == Bound::Unlimited;
                    (held.reason, held.bound) = (reason, bound);
                    held.begun = if begins { now } else { held.begun };
                }
                held.leave_out(listed);
                self.ended = held.end(policy, now, source);
                self.held = if self.ended.is_none() { Some(held) } else { None };
            }
            (None, Some((reason, bound))) if self.had_list => {
                let is_asked =
                    |it: &Member| transport == Transport::Tcp && it.slot.state == SlotState::Active;
                let member = |it: &Member| HeldMember {
                    member: it.clone(),
                    asked: if is_asked(it) { ProbeState::Due } else { ProbeState::Never },
                    answered: false,
                    failures: 0,
                    lost: None,
                };
                let members = self.last.iter().flat_map(|last| last.iter()).map(member).collect();
                let (asked, reached, unanswered) = (None, None, None);
                let mut held = Held { reason, bound, begun: now, asked, reached, unanswered, members };
                held.leave_out(listed);
                self.held = Some(held);
            }
            _ => {}
        }
        self.had_list = false;
    }

    /// Why the list is empty; the first reason if the engine remembers everything.
    fn nobody(&self, port: &ExpectedPort) -> Vec<Reason> {
        let none = if port.listed.is_empty() { Reason::NoEndpoints } else { Reason::AllUnready };
        let seen = match (&self.held, &self.last, self.ended) {
            (Some(held), ..) => held.reason,
            (_, None, _) => none,
            _ if self.is_unready(&port.listed) => Reason::AllUnready,
            (.., Some(ended)) => ended,
            _ if self.is_ended() => Reason::ScaledDown,
            _ => Reason::Vanished,
        };
        // Nor does it learn how backends end that it has forgotten.
        let forgotten = [none, Reason::ScaledDown, Reason::Vanished];
        [seen].into_iter().chain(forgotten.into_iter().filter(|_| self.was_away)).collect()
    }

    /// What a client gets of the lists of a port, held or not.
    fn effective(&self, port: &ExpectedPort) -> ExpectedPort {
        let mut port = ExpectedPort { nobody: self.nobody(port), ..port.clone() };
        let Some(held) = &self.held else { return port };
        let list = |fits: fn(&Member) -> bool| {
            let members = held.members.iter().filter(|it| it.lost.is_none() && fits(&it.member));
            members.map(|it| Slot { state: SlotState::Active, ..it.member.slot }).collect()
        };
        port.cluster = port.cluster.map(|_| list(|it| it.cluster));
        port.local = port.local.map(|_| list(|it| it.local));
        let kept = held.members.iter().filter(|it| it.lost.is_none());
        let kept = kept.map(|it| (it.member.slot.backend(), SlotState::Active));
        port.serving.iter_mut().for_each(|serving| serving.extend(kept.clone()));
        (port.held, port.has_any) = (Some(held.reason), true);
        port
    }
}

type Pasts = BTreeMap<ServiceKey, BTreeMap<PortName, Past>>;

/// The saved history of all ports, and when it was saved.
#[derive(Clone, Debug, Default)]
pub struct Memory(Pasts, ClockReading, Slices, Uids);

impl Memory {
    /// Services with saved history.
    pub fn services(&self) -> impl Iterator<Item = &ServiceKey> {
        self.0.keys()
    }
}

/// The history of all ports, and the events since the engine last decided.
#[derive(Clone, Debug)]
pub struct History {
    rule: Rule,
    pasts: Pasts,
    now: ClockReading,
    interrupted_now: BTreeSet<Source>,
    interrupted: BTreeMap<Source, i64>,
    /// Sources that became silent or recovered since the engine last decided.
    silenced_now: BTreeMap<Source, bool>,
    /// Since when a source is silent, and until when it counts as silent.
    silent: BTreeMap<Source, (Option<i64>, i64)>,
    /// When the latest query that each source has answered was sent.
    answered: BTreeMap<Source, i64>,
    /// When the engine last continued after deciding nothing for more than five seconds.
    resumed: i64,
    /// Held addresses that another service lists: the holder, the address, the other service.
    pub claims: Vec<(ServiceKey, SocketAddr, ServiceKey)>,
    /// Services that became part of a mass loss.
    pub joined: BTreeSet<ServiceKey>,
    /// Each slice as last delivered, and as last used by its service's decision.
    delivered: Slices,
    decided: Slices,
    /// The object behind each service's name at the last decision.
    uids: Uids,
}

type Uids = BTreeMap<ServiceKey, Option<Arc<str>>>;

type Slices = BTreeMap<SliceKey, Arc<SliceFacts>>;

impl History {
    pub fn new(rule: Rule, memory: Memory) -> Self {
        Self {
            rule,
            pasts: memory.0,
            now: ClockReading::default(),
            interrupted_now: BTreeSet::new(),
            interrupted: BTreeMap::new(),
            silenced_now: BTreeMap::new(),
            silent: BTreeMap::new(),
            answered: BTreeMap::new(),
            resumed: 0,
            claims: Vec::new(),
            joined: BTreeSet::new(),
            delivered: memory.2.clone(),
            decided: memory.2,
            uids: memory.3,
        }
    }

    /// A new process starts with the saved history. The wall clocks determine the age of a hold; none is in the future.
    pub fn restart(&mut self, memory: Memory, now: ClockReading) {
        let then = memory.1;
        *self = Self::new(self.rule, memory);
        if then != ClockReading::default() {
            let tenants = Source::ALL.into_iter().filter(|it| it.is_tenant_writable());
            self.silenced_now = tenants.map(|it| (it, true)).collect();
        }
        let between = now.wall.0 - then.wall.0;
        let anew = |at: i64| seconds(now) - (seconds(then) - at + between).max(0);
        for (_, held) in self.all_held() {
            (held.begun, held.asked, held.reached) = (anew(held.begun), held.asked.map(anew), None);
            held.unanswered = None;
        }
    }

    /// The history to save now.
    pub fn memory(&self) -> Memory {
        Memory(self.pasts.clone(), self.now, self.decided.clone(), self.uids.clone())
    }

    /// Services with a held list.
    pub fn held(&self) -> impl Iterator<Item = &ServiceKey> {
        let is_held = |pasts: &BTreeMap<PortName, Past>| pasts.values().any(|past| past.held.is_some());
        self.pasts.iter().filter(move |(_, pasts)| is_held(pasts)).map(|(key, _)| key)
    }

    fn all_held(&mut self) -> impl Iterator<Item = (&ServiceKey, &mut Held)> {
        let of = |(key, pasts)| {
            let pasts: &mut BTreeMap<PortName, Past> = pasts;
            pasts.values_mut().filter_map(move |past| Some((key, past.held.as_mut()?)))
        };
        self.pasts.iter_mut().flat_map(of)
    }

    /// The engine receives an event.
    pub fn hear(&mut self, event: &Event) {
        match event {
            Event::Interrupted(source) | Event::Resumed(source) => drop(self.interrupted_now.insert(*source)),
            Event::Synced(source) => {
                self.interrupted_now.insert(*source);
                self.silenced_now.insert(*source, false);
            }
            Event::Silent(source) => drop(self.silenced_now.insert(*source, true)),
            Event::Recovered(source) => drop(self.silenced_now.insert(*source, false)),
            Event::Answered(source, put) => {
                let answered = self.answered.entry(*source).or_insert(put.0);
                *answered = put.0.max(*answered);
            }
            Event::Probed(probed) => self.probed(probed),
            Event::SliceApplied(slice) => {
                self.claim(slice);
                self.replace(&slice.key, Some(slice));
            }
            Event::SliceDeleted(key, _) => self.replace(key, None),
            _ => {}
        }
    }

    /// A state that no decision used is remembered when the slice is replaced.
    fn replace(&mut self, key: &SliceKey, new: Option<&Arc<SliceFacts>>) {
        let old = match new {
            Some(new) if self.delivered.get(key) == Some(new) => return,
            Some(new) => self.delivered.insert(key.clone(), Arc::clone(new)),
            None => self.delivered.remove(key),
        };
        let is_decided = |old: &Arc<SliceFacts>| self.decided.get(key).is_some_and(|it| Arc::ptr_eq(it, old));
        let Some(missed) = old.filter(|old| !is_decided(old)) else { return };
        for (_, pasts) in self.pasts.iter_mut().filter(|(service, _)| is_of(&missed, service)) {
            for (name, past) in pasts.iter_mut().filter(|(_, past)| !past.was_away) {
                past.recall(&missed, name);
            }
        }
    }

    fn probed(&mut self, probed: &ProbeResult) {
        let name = (Arc::clone(&probed.port.name), probed.port.transport, probed.port.family);
        let past = self.pasts.get_mut(&probed.service).and_then(|pasts| pasts.get_mut(&name));
        let held = past.and_then(|past| past.held.as_mut());
        let Some(member) = held.and_then(|held| held.find(probed.backend)) else { return };
        member.asked = ProbeState::Done;
        match probed.answer {
            ProbeAnswer::Accepted => (member.answered, member.failures) = (true, 0),
            ProbeAnswer::Silent if !member.answered => {}
            ProbeAnswer::Refused | ProbeAnswer::Silent => member.failures += 1,
        }
        if member.failures == 3 {
            member.lost = Some(Reason::ProbesFailed);
        }
    }

    /// A service that lists a held address for a pod of its own may have the address probed, and ends nothing.
    fn claim(&mut self, slice: &SliceFacts) {
        let Some(by) = &slice.service else { return };
        let Ok(name) = ObjectName::new(slice.key.name.namespace(), by) else { return };
        let by = ServiceKey { name, source: slice.key.source };
        let mut claims = Vec::new();
        for port in &slice.ports {
            for endpoint in slice.endpoints.iter() {
                let uid = endpoint.target.map(|target| target.uid.to_string()).unwrap_or_default();
                let backend = SocketAddr::new(endpoint.address, port.port.get());
                for (service, held) in self.all_held() {
                    let other = |it: &&mut HeldMember| !it.member.uid.is_empty() && it.member.uid != uid;
                    if held.find(backend).filter(other).filter(|_| !uid.is_empty()).is_some() {
                        claims.push((service.clone(), backend, by.clone()));
                    }
                }
            }
        }
        self.claims.append(&mut claims);
    }

    /// The engine starts to decide.
    pub fn begin(&mut self, now: ClockReading) {
        if seconds(now) - seconds(self.now) > 5 {
            self.resumed = seconds(now);
        }
        self.now = now;
        self.joined.clear();
        for source in std::mem::take(&mut self.interrupted_now) {
            self.interrupted.insert(source, seconds(now));
        }
        self.turn_silence(seconds(now));
    }

    fn turn_silence(&mut self, now: i64) {
        for (source, silent) in std::mem::take(&mut self.silenced_now) {
            let (since, until) = self.silent.entry(source).or_default();
            match (*since, silent) {
                (None, true) => *since = Some(now),
                (Some(at), false) => {
                    (*since, *until) = (None, (*until).max(now + (now - at).min(RESYNC)));
                }
                _ => {}
            }
        }
    }

    fn source_state(&self, source: Source) -> SourceState {
        let now = seconds(self.now);
        let silent = self.silent.get(&source).is_some_and(|(since, until)| since.is_some() || now < *until);
        let is_young = |put: &i64| *put >= self.resumed && now - put <= 30;
        match source {
            _ if silent => SourceState::Silent,
            source if source.is_tenant_writable() => {
                SourceState::Answered(self.answered.get(&source).copied().filter(is_young))
            }
            _ => SourceState::All,
        }
    }

    /// Seconds from the start of the engine's process to its last decision.
    pub fn now(&self) -> i64 {
        seconds(self.now)
    }

    /// The engine has decided for one service.
    pub fn conclude(&mut self, service: &ServiceKey, expected: Option<&Expected>, facts: &Facts) {
        let source = self.source_state(service.source);
        let pasts = self.pasts.entry(service.clone()).or_default();
        let uid = facts.services.get(service).and_then(|it| it.meta.uid.clone());
        let former = self.uids.insert(service.clone(), uid.clone()).flatten();
        if former.is_some() && uid.is_some() && former != uid {
            pasts.clear();
        }
        if let (Some(expected), Some(facts)) = (expected, facts.services.get(service)) {
            rename(pasts, expected, facts);
        }
        let gone = |name: &PortName| expected.is_none_or(|it| !it.ports.contains_key(name));
        pasts.iter_mut().filter(|(name, _)| gone(name)).for_each(|(_, past)| past.leave());
        let hold = &facts.settings.hold;
        let hidden = hidden(facts, service);
        let interrupted = self.interrupted.get(&service.source);
        let interrupted = interrupted.is_some_and(|at| seconds(self.now) - at < RESYNC);
        for (name, port) in expected.iter().flat_map(|it| &it.ports) {
            let past = pasts.entry(name.clone()).or_default();
            if !port.chosen.is_empty() {
                past.keep(&port.chosen);
                continue;
            }
            let Some(last) = &past.last else { continue };
            let members = last.iter().map(|it| it.slot.backend());
            past.terminating.extend(members.filter(|it| port.terminating.contains(it)));
            let bypassed = |it: &Member| {
                let settings = &facts.settings;
                settings.bypass.contains(&it.slot.backend())
                    || settings.reported_apiservers.contains(&it.slot.backend())
            };
            let own = (service.name.namespace(), service.name.name()) == ("default", "kubernetes");
            let signs = Signs {
                own: facts.services.get(service).and_then(|it| on_empty_setting(it)),
                all: hold.on_empty,
                control: own || last.iter().any(bypassed),
                unready: past.is_unready(&port.listed),
                beside: !port.listed.is_empty(),
                elsewhere: port.has_any,
                ended: past.is_ended(),
                hidden: last.iter().any(|it| hidden.contains(&it.slot.address)),
                interrupted,
            };
            past.judge((self.rule)(&signs), hold, (seconds(self.now), name.1), (source, &port.listed));
        }
    }

    /// The engine has decided for all.
    pub fn end(&mut self) {
        self.decided.clone_from(&self.delivered);
    }

    /// Services that lost their lists within the window are held as a mass loss if they are enough.
    pub fn judge_mass(&mut self, policy: &Policy, services: &BTreeMap<ServiceKey, Expected>) {
        let from = seconds(self.now) - policy.mass_loss_window;
        let lost = self.all_held().filter(|(_, held)| held.is_lost_since(from));
        let lost: BTreeSet<_> = lost.map(|(key, _)| key.clone()).collect();
        let counts = self.count(services, &lost);
        let mut joined = BTreeSet::new();
        for (key, held) in self.all_held().filter(|(_, held)| held.bound == Bound::Guarded) {
            let namespace = key.name.namespace().to_owned();
            if lost.contains(key) && policy::is_mass(&namespace, &counts, policy) {
                (held.reason, held.bound) = (Reason::MassLoss, Bound::MassLoss);
                joined.insert(key.clone());
            }
        }
        self.joined = joined;
    }

    /// Counts each namespace's services and losses.
    fn count(
        &self,
        services: &BTreeMap<ServiceKey, Expected>,
        lost: &BTreeSet<ServiceKey>,
    ) -> BTreeMap<String, Lost> {
        let mut counts: BTreeMap<String, Lost> = BTreeMap::new();
        for (key, expected) in services {
            let ports = || expected.ports.iter().map(|(name, port)| self.effective(key, name, port));
            let count = counts.entry(key.name.namespace().to_owned()).or_default();
            count.populated += usize::from(ports().any(|port| !port.is_empty()));
            count.standing += usize::from(ports().any(|port| !port.is_empty() && port.held.is_none()));
            count.lost += usize::from(lost.contains(key));
        }
        counts
    }

    /// What a client gets of the lists of a port.
    pub fn effective(&self, service: &ServiceKey, name: &PortName, port: &ExpectedPort) -> ExpectedPort {
        let past = self.pasts.get(service).and_then(|pasts| pasts.get(name));
        past.map_or_else(|| port.clone(), |past| past.effective(port))
    }

    /// Compares the holds that readers see with the history.
    pub fn compare(&self, view: &ServiceView) -> Result<(), String> {
        let nothing = Past::default();
        for port in &view.ports {
            let name = (Arc::clone(&port.key.name), port.key.transport, port.key.family);
            let past = self.pasts.get(&view.key).and_then(|pasts| pasts.get(&name)).unwrap_or(&nothing);
            let found = port.hold.as_ref().map(|hold| {
                let backends = hold.backends.iter();
                let backends =
                    backends.map(|it| (it.row.backend(), it.asked, it.answered, it.failures, it.lost));
                let times = (hold.begun.0, hold.first_probe.map(|at| at.0));
                (hold.reason, hold.bound, times, backends.collect::<Vec<_>>())
            });
            let wanted = past.held.as_ref().map(|held| {
                let members = held.members.iter();
                let members =
                    members.map(|it| (it.member.slot.backend(), it.asked, it.answered, it.failures, it.lost));
                (held.reason, held.bound, (held.begun, held.asked), members.collect::<Vec<_>>())
            });
            if (&found, port.ended) != (&wanted, past.ended) {
                return Err(format!(
                    "{} {:?} is held as {found:?} (ended: {:?}), not as {wanted:?} (ended: {:?}); now is {:?}",
                    view.key, port.key, port.ended, past.ended, self.now
                ));
            }
        }
        Ok(())
    }
}

fn seconds(now: ClockReading) -> i64 {
    now.mono.as_secs().cast_signed()
}

/// Clients dial a number with a protocol, not a name. So a port whose number had another name before gets the history
/// of that name, if that name gave up the number.
fn rename(pasts: &mut BTreeMap<PortName, Past>, expected: &Expected, service: &ServiceFacts) {
    let numbers = |name: &PortName| -> BTreeSet<NonZeroU16> {
        let own = |it: &&ServicePort| it.name == name.0 && it.protocol == Protocol::Transport(name.1);
        service.ports.iter().filter(own).map(|it| it.port).collect()
    };
    let before = pasts.clone();
    for name in expected.ports.keys() {
        let dialled = numbers(name);
        let own = before.get(name).is_some_and(|own| !own.numbers.is_disjoint(&dialled));
        let is_former = |(former, past): &(&PortName, &Past)| {
            let given_up = &past.numbers - &numbers(former);
            (former.1, former.2) == (name.1, name.2) && !given_up.is_disjoint(&dialled)
        };
        if let Some((_, former)) = before.iter().find(is_former).filter(|_| !own) {
            pasts.insert(name.clone(), former.clone());
        }
        pasts.entry(name.clone()).or_default().numbers = dialled;
    }
}

/// The service's on-empty setting, if it is valid.
fn on_empty_setting(service: &ServiceFacts) -> Option<OnEmpty> {
    let is_shared = service.kind == ServiceType::LoadBalancer
        || !service.external_ips.is_empty()
        || !service.ingress.is_empty();
    match service.on_empty.as_deref()? {
        "auto" => Some(OnEmpty::Auto),
        "refuse" => Some(OnEmpty::Refuse),
        "hold" => Some(OnEmpty::Hold),
        "pass" if is_shared => Some(OnEmpty::Pass),
        _ => None,
    }
}

/// Whether a service passes its shared addresses to the real balancer while it has no backend.
pub fn asks_to_pass(service: &ServiceKey, facts: &Facts) -> bool {
    let own = facts.services.get(service).and_then(|it| on_empty_setting(it));
    own.unwrap_or(facts.settings.hold.on_empty) == OnEmpty::Pass
}
