//! The allocator against a model of each slot.

use alloc::vec::Vec;

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Step {
    Allocate(u32),
    AllocateLast(u32),
    Free(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (1_u32..40).prop_map(Step::Allocate),
        (1_u32..40).prop_map(Step::AllocateLast),
        any::<usize>().prop_map(Step::Free),
    ]
}

fn check_apart(held: &[(u32, u32)], capacity: u32) {
    let mut sorted = held.to_vec();
    sorted.sort_unstable();
    for pair in sorted.windows(2) {
        assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{:?} overlaps {:?}", pair[0], pair[1]);
    }
    assert!(sorted.iter().all(|(base, count)| base + count <= capacity), "a range beyond the array");
}

proptest! {
    #[test]
    fn ranges_never_overlap_and_none_is_lost(steps in prop::collection::vec(step(), 1..200)) {
        let mut ranges = SlotAllocator::new(1 << 10);
        let mut held: Vec<(u32, u32)> = Vec::new();
        for step in steps {
            match step {
                Step::Allocate(count) => held.extend(ranges.allocate(count).ok().map(|base| (base, count))),
                Step::AllocateLast(count) => {
                    prop_assert_eq!(ranges.has_run(count), ranges.clone().allocate_last(count).is_some());
                    held.extend(ranges.allocate_last(count).map(|base| (base, count)));
                }
                Step::Free(position) if !held.is_empty() => {
                    let (base, count) = held.swap_remove(position % held.len());
                    ranges.deallocate(base, count);
                }
                Step::Free(_) => {}
            }
            check_apart(&held, ranges.capacity());
            let blocks: u32 = held.iter().map(|(_, count)| count.next_power_of_two()).sum();
            prop_assert_eq!(ranges.used(), blocks);
        }
        for (base, count) in held.drain(..) {
            ranges.deallocate(base, count);
        }
        prop_assert_eq!(ranges.allocate(1 << 10), Ok(0), "free neighbours did not merge");
    }

    #[test]
    fn a_restart_reserves_the_ranges_in_use(counts in prop::collection::vec(1_u32..40, 1..20)) {
        let mut before = SlotAllocator::new(1 << 12);
        let held: Vec<_> = counts.iter().map(|count| (before.allocate(*count).unwrap(), *count)).collect();
        let mut after = SlotAllocator::new(1 << 12);
        for (base, count) in held.iter().rev() {
            prop_assert!(after.reserve(*base, *count));
            prop_assert!(!after.reserve(*base, *count), "reserved twice");
        }
        prop_assert_eq!(after.used(), before.used());
        prop_assert_eq!(after.allocate(3), before.allocate(3), "the two must continue alike");
    }
}

#[test]
fn a_full_array_returns_out_of_slots() {
    let mut ranges = SlotAllocator::new(8);
    assert_eq!(ranges.allocate(5), Ok(0));
    assert_eq!(ranges.allocate(1), Err(OutOfSlots { count: 1, capacity: 8 }));
    ranges.deallocate(0, 5);
    assert_eq!(ranges.allocate(8), Ok(0));
}

#[test]
fn a_run_at_an_unaligned_base_is_not_reserved() {
    assert!(!SlotAllocator::new(64).reserve(3, 4), "the allocator never returns such a run");
    assert!(!SlotAllocator::new(64).reserve(64, 1), "beyond the array");
}

#[test]
fn allocate_last_returns_the_last_free_run() {
    let mut ranges = SlotAllocator::new(16);
    assert_eq!(
        (ranges.allocate_last(3), ranges.allocate_last(1), ranges.allocate_last(4)),
        (Some(12), Some(11), Some(4))
    );
    assert_eq!(
        (ranges.allocate_last(2), ranges.allocate_last(1), ranges.allocate(4)),
        (Some(8), Some(10), Ok(0))
    );
    assert_eq!((ranges.allocate_last(1), ranges.used()), (None, 16));
}
