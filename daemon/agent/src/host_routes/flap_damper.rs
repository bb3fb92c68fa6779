//! Damps routes that flap: withdraws a lost address at once, and announces it again after a delay.
//!
//! Invariant: pure; time is an argument. A lost address is withdrawn in the same call. An address that flaps faster
//! than [`STABLE_WAIT`] stays withdrawn until it is stable.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::address_state::{AddressState, AddressStates, ServingState};

/// How long a lost address must be served before it is announced again: routers damp routes that change more often,
/// and each change moves clients to another node.
pub(super) const STABLE_WAIT: Duration = Duration::from_secs(5);

/// How long an undecided address stays announced: a reload's services exist within milliseconds, and a new device has
/// its programs within two seconds.
pub(super) const UNDECIDED_MAX: Duration = Duration::from_secs(5);

/// Which addresses are announced, and since when the others could be.
#[derive(Debug, Default)]
pub(super) struct FlapDamper {
    announced: BTreeSet<IpAddr>,
    histories: BTreeMap<IpAddr, AddressHistory>,
}

#[derive(Debug, Default)]
struct AddressHistory {
    served_since: Option<Instant>,
    undecided_since: Option<Instant>,
    was_lost: bool,
}

impl FlapDamper {
    /// Continues from a former process's announcements.
    pub(super) fn from_announced(announced: impl Iterator<Item = IpAddr>) -> Self {
        Self { announced: announced.collect(), histories: BTreeMap::new() }
    }

    pub(super) fn announced_addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.announced.iter().copied()
    }

    /// Takes the current states, and returns when time alone next changes a decision.
    pub(super) fn update(&mut self, standings: &AddressStates, now: Instant) -> Option<Instant> {
        self.announced.retain(|address| standings.contains_key(address));
        self.histories.retain(|address, _| standings.contains_key(address));
        let mut next: Option<Instant> = None;
        for (address, standing) in standings {
            let past = self.histories.entry(*address).or_default();
            let was_there = self.announced.contains(address);
            let (is_there, turns) = past.decide(standing, was_there, now);
            past.was_lost |= was_there && !is_there;
            if is_there {
                self.announced.insert(*address);
            } else {
                self.announced.remove(address);
            }
            next = next.into_iter().chain(turns.filter(|turns| *turns > now)).min();
        }
        next
    }
}

impl AddressHistory {
    /// Whether to announce the address, and when time alone changes that.
    fn decide(&mut self, standing: &AddressState, is_there: bool, now: Instant) -> (bool, Option<Instant>) {
        if standing.serving != ServingState::Served {
            self.served_since = None;
        }
        if !matches!(standing.serving, ServingState::Undecided(_)) {
            self.undecided_since = None;
        }
        match (&standing.serving, is_there) {
            (ServingState::Served, true) => (true, None),
            (ServingState::Served, false) => {
                let again = if self.was_lost { STABLE_WAIT } else { Duration::ZERO };
                let begins = deadline_after(self.served_since, now, standing.checked_after.max(again));
                self.served_since.get_or_insert(now);
                (begins <= now, Some(begins))
            }
            (ServingState::Unreported(_), is_there) => (is_there, None),
            (ServingState::Undecided(_), true) => {
                let ends = deadline_after(self.undecided_since, now, UNDECIDED_MAX);
                self.undecided_since.get_or_insert(now);
                (ends > now, Some(ends))
            }
            (ServingState::Undecided(_), false) | (ServingState::Unserved(_), _) => (false, None),
        }
    }
}

/// The time `wait` after `since`, or after now without one. A time beyond the clock's range becomes an early recheck.
fn deadline_after(since: Option<Instant>, now: Instant, wait: Duration) -> Instant {
    let since = since.unwrap_or(now);
    since.checked_add(wait).unwrap_or_else(|| now + UNDECIDED_MAX)
}

#[cfg(test)]
mod tests {
    use holdfast_fixtures::clock;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// An address, what is announced, and the start time.
    struct Rig {
        damper: FlapDamper,
        begun: Instant,
        address: IpAddr,
    }

    impl Rig {
        fn new(announced: &[&str]) -> Self {
            let damper = FlapDamper::from_announced(announced.iter().map(|it| it.parse().unwrap()));
            Self { damper, begun: clock::now(), address: "192.0.2.10".parse().unwrap() }
        }

        /// Whether it is announced this many milliseconds after the start, and after how many more that changes.
        fn at(&mut self, milliseconds: u64, judged: &str, checked_after: Duration) -> (bool, Option<u128>) {
            let why = || "why".to_owned();
            let judged = match judged {
                "served" => ServingState::Served,
                "undecided" => ServingState::Undecided(why()),
                "unreported" => ServingState::Unreported(why()),
                _ => ServingState::Unserved(why()),
            };
            let now = self.begun + Duration::from_millis(milliseconds);
            let standings = [(self.address, AddressState { serving: judged, checked_after })].into();
            let next = self.damper.update(&standings, now);
            let is_there = self.damper.announced_addresses().any(|it| it == self.address);
            (is_there, next.map(|next| (next - now).as_millis()))
        }
    }

    #[test]
    fn a_served_address_is_announced_and_a_lost_one_withdrawn_at_once() {
        let mut rig = Rig::new(&[]);
        assert_eq!(rig.at(0, "lost", Duration::ZERO), (false, None));
        assert_eq!(rig.at(1, "served", Duration::ZERO), (true, None));
        assert_eq!(rig.at(2, "lost", Duration::ZERO), (false, None));
    }

    #[test]
    fn a_lost_address_is_announced_again_only_once_stable() {
        let mut rig = Rig::new(&[]);
        rig.at(0, "served", Duration::ZERO);
        rig.at(10, "lost", Duration::ZERO);
        assert_eq!(rig.at(20, "served", Duration::ZERO), (false, Some(5_000)));
        assert_eq!(rig.at(5_019, "served", Duration::ZERO), (false, Some(1)));
        assert_eq!(rig.at(5_019, "lost", Duration::ZERO), (false, None), "the wait restarts");
        assert_eq!(rig.at(5_020, "served", Duration::ZERO), (false, Some(5_000)));
        assert_eq!(rig.at(10_020, "served", Duration::ZERO), (true, None));
    }

    /// Until its first verdict a backend counts as usable, which is no reason to attract clients.
    #[test]
    fn a_checked_address_is_announced_after_its_first_checks() {
        let mut rig = Rig::new(&[]);
        assert_eq!(rig.at(0, "served", 3 * SECOND), (false, Some(3_000)));
        assert_eq!(rig.at(2_999, "served", 3 * SECOND), (false, Some(1)));
        assert_eq!(rig.at(3_000, "served", 3 * SECOND), (true, None));
    }

    #[test]
    fn a_former_announcement_stays_while_served_or_undecided() {
        let mut rig = Rig::new(&["192.0.2.10"]);
        assert_eq!(rig.at(0, "served", 3 * SECOND), (true, None), "pending checks do not withdraw it");
        let mut rig = Rig::new(&["192.0.2.10"]);
        assert_eq!(rig.at(0, "undecided", Duration::ZERO), (true, Some(5_000)));
        assert_eq!(rig.at(1_000, "served", Duration::ZERO), (true, None));
        assert_eq!(rig.at(2_000, "undecided", Duration::ZERO), (true, Some(5_000)));
        assert_eq!(rig.at(7_000, "undecided", Duration::ZERO), (false, None), "only for a bounded time");
        let mut rig = Rig::new(&["192.0.2.10"]);
        assert_eq!(rig.at(0, "lost", Duration::ZERO), (false, None));
    }

    #[test]
    fn an_unreported_address_keeps_its_state() {
        let mut rig = Rig::new(&["192.0.2.10"]);
        assert_eq!(rig.at(0, "unreported", Duration::ZERO), (true, None));
        assert_eq!(rig.at(3_600_000, "unreported", Duration::ZERO), (true, None));
        assert_eq!(rig.at(3_600_001, "lost", Duration::ZERO), (false, None));
        assert_eq!(rig.at(3_600_002, "unreported", Duration::ZERO), (false, None));
    }

    #[test]
    fn an_undecided_address_is_not_announced() {
        let mut rig = Rig::new(&[]);
        assert_eq!(rig.at(0, "undecided", Duration::ZERO), (false, None));
    }

    #[test]
    fn an_address_without_a_service_is_forgotten() {
        let mut rig = Rig::new(&["192.0.2.10", "2001:db8::10"]);
        rig.damper.update(&AddressStates::new(), rig.begun);
        assert_eq!(rig.damper.announced_addresses().count(), 0);
        assert!(rig.damper.histories.is_empty());
    }
}
