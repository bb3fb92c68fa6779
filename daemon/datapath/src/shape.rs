//! The size of one generation of maps, and when it must grow.
//!
//! Invariant: a shape never exceeds its limits, and never shrinks.

use holdfast_core::keys::Family;
use holdfast_core::maps::Capacity;
use holdfast_core::op::MapGrowth;
use holdfast_status::datapath::MapSizes;

/// Enough for a few hundred services: half a megabyte in total.
const FRONTENDS_FIRST: u32 = 4096;
const PORTS_FIRST: u32 = 4096;
const SLOTS_FIRST: u32 = 16_384;
const MEMBERS_FIRST: u32 = 4096;

/// The factor of each growth. A growth loads the programs, some 0.1 s, while a large cluster is read; an empty entry
/// costs 8 to 128 bytes.
const GROWTH_FACTOR: u32 = 16;

/// The most entries that changes can add while larger maps are created, some 0.1 s.
const HEADROOM_MIN: u32 = 4096;

/// The self-test's entries in the arrays: a port and a slot that no service can have.
pub(crate) const PROBE_ENTRIES: u32 = 1;

/// The index of a family in a pair.
pub(crate) const fn family_index(family: Family) -> usize {
    match family {
        Family::V4 => 0,
        Family::V6 => 1,
    }
}

/// The initial shape and its growth.
pub(crate) trait ShapeGrowth: Sized {
    fn initial(limits: Self) -> Self;

    /// The shape of new maps that are expected to hold so much.
    fn for_expected(expected: &MapGrowth, limits: &Self) -> Self;

    const NONE: Self;

    fn from_capacity(capacity: Capacity) -> Self;

    /// Enlarges all maps that are half full. Maps that grow with the cluster grow together, so the programs move once.
    fn grow_half_full(self, used: &Self, limits: &Self) -> Self;

    /// Adds planned entries.
    fn with_planned(self, coming: &MapGrowth) -> Self;

    /// Enlarges maps to hold what is used. A map that grows also gets headroom: an array an eighth, a hash map as much
    /// again, so that it is half empty.
    fn grow_to_hold(self, used: &Self, limits: &Self) -> Self;

    /// The larger of both, map by map.
    fn max_with(self, other: Self) -> Self;
}

impl ShapeGrowth for MapSizes {
    fn initial(limits: Self) -> Self {
        let first = Self {
            frontends: [FRONTENDS_FIRST; 2],
            ports: PORTS_FIRST,
            slots: [SLOTS_FIRST; 2],
            members: MEMBERS_FIRST,
        };
        clamp_shape(first, limits)
    }

    fn for_expected(expected: &MapGrowth, limits: &Self) -> Self {
        Self::initial(*limits).grow_to_hold(&Self::NONE.with_planned(expected), limits)
    }

    const NONE: Self = Self { frontends: [0; 2], ports: 0, slots: [0; 2], members: 0 };

    fn from_capacity(capacity: Capacity) -> Self {
        let slots = 1 << capacity.slots.max(1).ilog2();
        let ports = capacity.ports.max(1);
        Self { frontends: [ports; 2], ports, slots: [slots; 2], members: slots }
    }

    fn grow_half_full(self, used: &Self, limits: &Self) -> Self {
        let grown = |entries: u32, used: u32, limit| match used >= entries / 2 {
            true => next_size(entries, 0, limit).unwrap_or(entries),
            false => entries,
        };
        let both = |[a, b]: [u32; 2], [c, d]: [u32; 2], [e, f]: [u32; 2]| [grown(a, c, e), grown(b, d, f)];
        Self {
            frontends: both(self.frontends, used.frontends, limits.frontends),
            ports: grown(self.ports, used.ports, limits.ports),
            slots: both(self.slots, used.slots, limits.slots),
            members: grown(self.members, used.members, limits.members),
        }
    }

    fn with_planned(self, coming: &MapGrowth) -> Self {
        let sum = |[a, b]: [u32; 2], [c, d]: [u32; 2]| [a.saturating_add(c), b.saturating_add(d)];
        Self {
            frontends: sum(self.frontends, coming.frontends),
            ports: self.ports.saturating_add(coming.ports),
            slots: sum(self.slots, coming.slots),
            members: self.members.saturating_add(coming.members),
        }
    }

    fn grow_to_hold(self, used: &Self, limits: &Self) -> Self {
        let array = |entries: u32, used: u32, limit: u32| match used <= entries {
            true => entries,
            false => array_size_for(used).min(limit),
        };
        let hash = |entries: u32, used: u32, limit: u32| match is_crowded(used, entries) {
            true => used.saturating_mul(2).checked_next_power_of_two().unwrap_or(limit).min(limit),
            false => entries,
        };
        let each = |size: &dyn Fn(u32, u32, u32) -> u32,
                    [a, b]: [u32; 2],
                    [c, d]: [u32; 2],
                    [e, f]: [u32; 2]| [size(a, c, e), size(b, d, f)];
        Self {
            frontends: each(&hash, self.frontends, used.frontends, limits.frontends),
            ports: array(self.ports, used.ports, limits.ports),
            slots: each(&array, self.slots, used.slots, limits.slots),
            members: hash(self.members, used.members, limits.members),
        }
        .max_with(self)
    }

    fn max_with(self, other: Self) -> Self {
        let max = |[a, b]: [u32; 2], [c, d]: [u32; 2]| [a.max(c), b.max(d)];
        Self {
            frontends: max(self.frontends, other.frontends),
            ports: self.ports.max(other.ports),
            slots: max(self.slots, other.slots),
            members: self.members.max(other.members),
        }
    }
}

fn clamp_shape(shape: MapSizes, limits: MapSizes) -> MapSizes {
    let min = |[a, b]: [u32; 2], [c, d]: [u32; 2]| [a.min(c), b.min(d)];
    MapSizes {
        frontends: min(shape.frontends, limits.frontends),
        ports: shape.ports.min(limits.ports),
        slots: min(shape.slots, limits.slots),
        members: shape.members.min(limits.members),
    }
}

/// Whether an array should grow soon: enough space is left for entries added meanwhile.
pub(crate) fn is_filling(used: u32, entries: u32) -> bool {
    is_near_full(used, entries, entries)
}

/// The same for a hash map.
pub(crate) fn is_hash_filling(used: u32, entries: u32) -> bool {
    is_near_full(used, entries, hash_capacity(entries))
}

/// Whether entries added meanwhile could fill the remaining space. A small map needs more spare: three eighths.
fn is_near_full(used: u32, entries: u32, capacity: u32) -> bool {
    let spare = (capacity / 16).max(HEADROOM_MIN);
    used >= (entries - entries / 8 * 3).max(capacity.saturating_sub(spare))
}

/// How many entries a hash map takes before it must grow. Slightly more may be in use than counted: a replacement
/// briefly takes an entry.
const fn hash_capacity(entries: u32) -> u32 {
    entries - entries / 16
}

/// Whether a hash map with so many entries should have grown by now.
pub(crate) const fn is_crowded(used: u32, entries: u32) -> bool {
    used >= entries - entries / 4
}

/// Whether a hash map must grow before another entry.
pub(crate) const fn is_full(used: u32, entries: u32) -> bool {
    used >= hash_capacity(entries)
}

/// The next size that holds `needed` entries, within the limit.
pub(crate) fn next_size(entries: u32, needed: u32, limit: u32) -> Option<u32> {
    let mut next = entries.max(1);
    while next < needed || next == entries {
        if next >= limit {
            return None;
        }
        next = next.saturating_mul(GROWTH_FACTOR).min(limit);
    }
    Some(next)
}

/// An eighth more than is used, rounded up. Replaced lists need space meanwhile, and a new array must not grow again at
/// once. Not more, because mapped memory counts as the daemon's.
fn array_size_for(used: u32) -> u32 {
    let entries = used.saturating_add((used / 8).max(2 * HEADROOM_MIN));
    let step = entries.checked_next_power_of_two().map_or(1, |power| power / 8).max(1);
    entries.checked_next_multiple_of(step).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_grown(entries: u32, needed: u32, limit: u32, expected: Option<u32>) {
        assert_eq!(next_size(entries, needed, limit), expected, "{entries} to {needed} within {limit}");
    }

    #[test]
    fn a_map_grows_in_steps_up_to_its_limit() {
        check_grown(4096, 1, 1 << 20, Some(65_536));
        check_grown(4096, 70_000, 1 << 21, Some(1 << 20));
        check_grown(4096, 4097, 5000, Some(5000));
        check_grown(5000, 5001, 5000, None);
        check_grown(4096, 6000, 5000, None);
    }

    #[test]
    fn a_shape_stays_within_its_limits() {
        let limits = MapSizes::from_capacity(Capacity { slots: 1000, ports: 10, services: 1 });
        assert_eq!(limits.slots, [512; 2]);
        let first = MapSizes::initial(limits);
        assert_eq!(first, limits);
    }

    #[test]
    fn half_full_maps_grow_together() {
        let limits = MapSizes::from_capacity(Capacity::default());
        let first = MapSizes::initial(limits);
        let used = MapSizes { frontends: [3072, 0], ports: 3000, slots: [6000, 0], members: 0 };
        let next = first.grow_half_full(&used, &limits);
        assert_eq!(next, MapSizes { frontends: [65_536, 4096], ports: 65_536, ..first });
        assert_eq!(next.grow_half_full(&used, &limits), next, "once is enough");
    }

    #[track_caller]
    fn check_holding(coming: MapGrowth, expected: MapSizes) {
        let limits = MapSizes::from_capacity(Capacity::default());
        let first = MapSizes::initial(limits);
        assert_eq!(first.grow_to_hold(&MapSizes::NONE.with_planned(&coming), &limits), expected);
    }

    #[test]
    fn many_planned_entries_grow_maps_in_one_step() {
        let first = MapSizes::initial(MapSizes::from_capacity(Capacity::default()));
        check_holding(MapGrowth::default(), first);
        let few = MapGrowth { frontends: [3071, 0], ports: 4096, slots: [16_384, 0], members: 3071 };
        check_holding(few, first);
        let many =
            MapGrowth { frontends: [50_000, 0], ports: 50_000, slots: [50_000, 20_000], members: 3072 };
        let larger =
            MapSizes { frontends: [131_072, 4096], ports: 65_536, slots: [65_536, 28_672], members: 8192 };
        check_holding(many, larger);
        let limits = MapSizes::from_capacity(Capacity { slots: 1000, ports: 10, services: 1 });
        let first = MapSizes::initial(limits);
        assert_eq!(
            first.grow_to_hold(&MapSizes::NONE.with_planned(&many), &limits),
            first,
            "within the limits"
        );
    }

    /// The expected entries fit without a second load of the programs.
    #[test]
    fn new_maps_hold_what_a_start_expects() {
        let limits = MapSizes::from_capacity(Capacity::default());
        assert_eq!(MapSizes::for_expected(&MapGrowth::default(), &limits), MapSizes::initial(limits));
        let expected = MapGrowth { frontends: [50_000, 0], ports: 50_000, slots: [500_000, 0], members: 0 };
        let initial = MapSizes::for_expected(&expected, &limits);
        let used = MapSizes::NONE.with_planned(&expected);
        assert_eq!(initial.grow_to_hold(&used, &limits), initial);
        let more = MapGrowth { slots: [540_000, 0], ports: 54_000, ..expected };
        assert_eq!(
            initial.grow_to_hold(&MapSizes::NONE.with_planned(&more), &limits),
            initial,
            "some more than expected"
        );
    }

    /// Otherwise the first write would grow the new maps, and load the programs again.
    #[test]
    fn maps_made_for_many_entries_do_not_grow_again_at_once() {
        let limits = MapSizes::from_capacity(Capacity { slots: 1 << 23, ports: 1 << 22, services: 1 });
        for many in (5_000..1_000_000).step_by(777) {
            let used = MapSizes { frontends: [many; 2], ports: many, slots: [4 * many; 2], members: many };
            let made = MapSizes::initial(limits).grow_to_hold(&used, &limits);
            let arrays = [(made.ports, many), (made.slots[0], 4 * many), (made.slots[1], 4 * many)];
            let hashes = [made.frontends[0], made.frontends[1], made.members];
            let filling = arrays.into_iter().filter(|(entries, used)| is_filling(*used, *entries)).count()
                + hashes.into_iter().filter(|entries| is_hash_filling(many, *entries)).count();
            assert_eq!(filling, 0, "{many} in {made:?}");
        }
    }

    #[test]
    fn an_array_has_an_eighth_of_headroom() {
        for (used, expected) in
            [(1, 10_240), (10_000, 20_480), (100_000, 114_688), (2_560_000, 3_145_728), (u32::MAX, u32::MAX)]
        {
            assert_eq!(array_size_for(used), expected, "{used}");
        }
    }

    #[test]
    fn three_quarters_are_crowded() {
        assert!(!is_crowded(2, 4));
        assert!(is_crowded(3, 4));
        assert!(is_crowded(1, 1));
    }
}
