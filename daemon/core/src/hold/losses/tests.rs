//! Losses within their window, by namespace.

use std::format;
use std::vec;

use super::*;

const POLICY: Policy = Policy {
    mass_loss_window: 30,
    mass_loss_share: 250_000,
    limit: 120,
    mass_loss_limit: 600,
    on_empty: crate::hold::OnEmpty::Auto,
};

const LIVE: ListPresence = ListPresence { any: true, unheld: true };
const HELD: ListPresence = ListPresence { any: true, unheld: false };

/// Namespaces with this many services that have a list each, named by their number.
struct LossesHarness {
    losses: Losses,
    namespaces: Vec<Arc<str>>,
}

impl LossesHarness {
    fn new(populated: &[usize]) -> Self {
        let namespaces = (0..populated.len()).map(|number| format!("n-{number}").into()).collect();
        let mut fixture = Self { losses: Losses::default(), namespaces };
        for (namespace, count) in fixture.namespaces.iter().zip(populated) {
            (0..*count).for_each(|_| fixture.losses.count_lists(namespace, (ListPresence::default(), LIVE)));
        }
        fixture
    }

    /// A service of that namespace loses its list, which is held.
    fn lose(&mut self, id: u32, namespace: usize, at: i64) {
        let namespace = &self.namespaces[namespace];
        self.losses.count_lists(namespace, (LIVE, HELD));
        self.losses.set_loss(ServiceId(id), namespace, Some(Uptime(at)));
    }

    fn judge(&mut self, now: i64) -> Vec<MassLoss> {
        self.losses.judge_losses(&POLICY, Uptime(now))
    }

    /// The services in any mass loss.
    fn joined(&mut self, now: i64) -> Vec<u32> {
        let all = self.judge(now).into_iter().flat_map(|mass| mass.services);
        let mut all: Vec<_> = all.map(|id| id.0).collect();
        all.sort_unstable();
        all
    }
}

/// Services of these namespaces, in turn, lose their lists at these times.
fn spread(populated: &[usize], lost: &[i64]) -> LossesHarness {
    let mut fixture = LossesHarness::new(populated);
    for (id, at) in (0..).zip(lost) {
        fixture.lose(id, id as usize % populated.len(), *at);
    }
    fixture
}

fn ids(ids: impl Iterator<Item = u32>) -> Vec<ServiceId> {
    ids.map(ServiceId).collect()
}

#[test]
fn losses_within_the_window_are_a_mass_loss_whatever_their_order() {
    for lost in [[100, 110, 120, 130, 130, 105, 101, 130], [130, 101, 130, 105, 120, 110, 100, 130]] {
        let mut mass = spread(&[4, 4, 4], &lost).judge(130);
        mass.iter_mut().for_each(|mass| mass.services.sort_unstable());
        assert_eq!(mass, [MassLoss { lost: 8, populated: 12, services: ids(0..8) }], "{lost:?}");
    }
}

#[test]
fn losses_before_the_window_count_no_more() {
    assert_eq!(spread(&[4, 4, 4], &[100, 110, 120, 130, 130, 130]).joined(130).len(), 6);
    assert_eq!(spread(&[4, 4, 4], &[100, 110, 120, 130, 130, 130]).joined(141), [0_u32; 0]);
    assert_eq!(spread(&[9, 9, 9], &[100; 6]).joined(130), [0_u32; 0], "not more than the share");
}

#[test]
fn a_mass_loss_is_reported_once_and_again_after_more_losses() {
    let mut fixture = spread(&[4, 4, 4], &[100; 8]);
    assert_eq!(fixture.joined(100).len(), 8);
    assert_eq!(fixture.joined(101), [0_u32; 0]);
    fixture.lose(8, 2, 102);
    assert_eq!(fixture.joined(102), [2, 5, 8]);
}

#[test]
fn losses_of_one_namespace_do_not_make_a_mass_loss_of_others() {
    let mut fixture = LossesHarness::new(&[100, 5, 5]);
    (0..60).for_each(|id| fixture.lose(id, 0, 100));
    assert_eq!(fixture.joined(100), [0_u32; 0], "a part of one");
    fixture.lose(60, 1, 100);
    assert_eq!(fixture.joined(100), (0..60).collect::<Vec<_>>(), "and of another, which has no mass loss");
    fixture.lose(61, 2, 100);
    fixture.lose(62, 2, 100);
    assert_eq!(fixture.joined(100), [0_u32; 0]);
    fixture.lose(63, 2, 100);
    assert_eq!(fixture.joined(100), [60, 61, 62, 63], "as many without the large one");
}

/// The losses of a faulty controller, next to a tenant with far more services than all others.
#[test]
fn a_large_namespace_does_not_hide_the_mass_loss_of_others() {
    for (namespaces, each, lost, others) in [(20, 15, 12, 1_000), (4, 6, 2, 100), (20, 15, 3, 1_000)] {
        let mut fixture = LossesHarness::new(&[&vec![each; namespaces][..], &[others]].concat());
        let ids = 0..u32::try_from(namespaces * lost).unwrap();
        ids.clone().for_each(|id| fixture.lose(id, id as usize % namespaces, 100));
        let is_mass = lost * 4 > each;
        let expected: Vec<_> = ids.filter(|_| is_mass).collect();
        assert_eq!(fixture.joined(100), expected, "{lost} of {each}, and {others}");
        // The tenant loses some lists too, which does not affect the others.
        fixture.lose(10_000, namespaces, 101);
        assert_eq!(fixture.joined(101), if is_mass { vec![10_000] } else { vec![] });
    }
}

#[test]
fn a_namespace_that_loses_all_lists_has_a_mass_loss() {
    for (populated, expected) in [(3, 0), (4, 4)] {
        let mut fixture = LossesHarness::new(&[populated, 500]);
        let count = u32::try_from(populated).unwrap();
        (0..count - 1).for_each(|id| fixture.lose(id, 0, 100));
        assert_eq!(fixture.joined(100), [0_u32; 0]);
        fixture.lose(count - 1, 0, 100);
        assert_eq!(fixture.joined(100).len(), expected, "{populated}");
    }
}

#[test]
fn a_new_policy_judges_the_losses_again() {
    let mut fixture = spread(&[9, 9, 9], &[100; 6]);
    assert_eq!(fixture.joined(100), [0_u32; 0]);
    let policy = Policy { mass_loss_share: 0, ..POLICY };
    assert_eq!(fixture.losses.judge_losses(&policy, Uptime(100)).len(), 1);
}

#[test]
fn an_empty_namespace_leaves_no_entry() {
    let mut fixture = spread(&[1, 1], &[100, 100]);
    fixture.judge(100);
    for (id, namespace) in fixture.namespaces.iter().enumerate() {
        fixture.losses.count_lists(namespace, (HELD, ListPresence::default()));
        fixture.losses.set_loss(ServiceId(id.try_into().unwrap()), namespace, None);
    }
    let Losses { order, services, tenants, populated, .. } = &fixture.losses;
    assert_eq!((order.len(), services.len(), tenants.len(), *populated), (0, 0, 0, 0));
    let mut passed = spread(&[1, 1], &[100, 100]);
    assert_eq!(passed.judge(131), vec![]);
    assert_eq!(
        (passed.losses.order.len(), passed.losses.services.len(), passed.losses.tenants.len()),
        (0, 0, 2)
    );
}
