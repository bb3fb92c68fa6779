//! Flows move unchanged to a table of another size; a smaller table evicts by rank.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use holdfast_status::datapath::{EvictedFlows, FlowFilter};

use super::super::migration::FlowMigration;
use super::super::sweep::FlowSweep;
use super::*;

fn moving(from: &FlowMaps, to: &FlowMaps) -> FlowMigration {
    FlowMigration::new(from.table.clone(), to.table.clone())
}

/// Runs a whole pass; returns the number of changes.
fn pass(moving: &mut FlowMigration) -> u64 {
    moving.run_pass(later()).unwrap().expect("a whole pass")
}

/// Asserts that a table has a whole flow; returns its number.
#[track_caller]
fn check_there(bed: &FlowMaps, it: &types::flow) -> u32 {
    let number = bed.leads(it)[0].unwrap_or_else(|| panic!("{it:?} is not there"));
    bed.check_whole(number, it);
    number
}

#[track_caller]
fn check_not_there(bed: &FlowMaps, it: &types::flow) {
    assert!(bed.leads(it).iter().all(Option::is_none), "{it:?}");
}

#[test]
fn kernel_flows_move_to_another_table_with_their_entries() {
    for size in [16, 64, 256] {
        let old = FlowMaps::new(64);
        let new = old.of_another_size(size);
        let all: Vec<_> = (0..12).map(|n| flow(n, if n < 6 { TCP } else { UDP }, NOW)).collect();
        all.iter().for_each(|it| _ = old.begin(*it));
        let mut moving = moving(&old, &new);
        assert_eq!((pass(&mut moving), pass(&mut moving)), (12, 0), "the second pass changes nothing");
        moving.run_last_pass().unwrap();
        let mut taken: Vec<u32> = all.iter().map(|it| check_there(&new, it)).collect();
        all.iter().for_each(|it| _ = check_there(&old, it));
        moving.release_numbers(4096).unwrap();
        moving.record_released();
        assert!(new.table.are_numbers_released());
        assert_eq!((moving.finish_counts(), new.table.capacity()), (EvictedFlows::default(), size));
        let numbers = new.handles[&Map::FreeFlows].lookup_and_delete(&[]).unwrap();
        taken.extend(numbers.map(|it| u32::from_ne_bytes(it.try_into().unwrap())));
        taken.extend((0..).map_while(|_: u32| {
            let number = new.handles[&Map::FreeFlows].lookup_and_delete(&[]).unwrap();
            number.map(|it| u32::from_ne_bytes(it.try_into().unwrap()))
        }));
        taken.sort_unstable();
        assert_eq!(taken, (0..size).collect::<Vec<_>>(), "each number is used or free");
    }
}

/// The ports checked because of a flow's backend.
fn ports(bed: &FlowMaps) -> Vec<usize> {
    let all = bed.handles[&Map::BackendPorts].lookup(&0_u32.to_ne_bytes(), MapFlags::ANY).unwrap().unwrap();
    (0..all.len()).filter(|port| all[*port] != 0).collect()
}

/// Otherwise each port that a tenant's backends ever had would cost every packet of the node a look-up.
#[test]
fn kernel_backend_ports_without_flows_are_dropped_on_a_move() {
    let old = FlowMaps::new(64);
    let new = old.of_another_size(256);
    let it = flow(1, TCP, NOW);
    old.begin(it);
    let mut before = vec![0_u8; 1 << 16];
    (0..1 << 15).for_each(|port| before[port] = 1);
    before[usize::from(it.backend_port)] = 1;
    old.handles[&Map::BackendPorts].update(&0_u32.to_ne_bytes(), &before, MapFlags::ANY).unwrap();
    let mut moving = moving(&old, &new);
    pass(&mut moving);
    moving.run_last_pass().unwrap();
    assert_eq!(ports(&new), [usize::from(it.backend_port)]);
    assert!(ports(&old).len() > 1 << 14, "programs still use the old table");
}

#[test]
fn kernel_changes_of_moving_flows_reach_the_new_table() {
    let old = FlowMaps::new(64);
    let new = old.of_another_size(128);
    let [stays, ends, talks] = [0, 1, 3].map(|n| flow(n, TCP, NOW - 9));
    let [_, of_ended, of_talker] = [stays, ends, talks].map(|it| old.begin(it));
    let mut moving = moving(&old, &new);
    assert_eq!(pass(&mut moving), 3);
    let heard = types::flow { backend_flags: SYN | FIN, seen: NOW, ..talks };
    old.write(of_talker, heard);
    let mut sweep = FlowSweep::new(old.table.clone(), FlowSweepProgress::default());
    sweep.end_flow(of_ended, &ends).unwrap();
    // The same client connects again: a flow with its own serial.
    let anew = types::flow { serial: 99, ..ends };
    let number = old.begin(anew);
    assert_ne!(number, of_ended);
    let newcomer = flow(6, UDP, NOW);
    old.begin(newcomer);
    moving.run_last_pass().unwrap();
    for it in [stays, heard, anew, newcomer] {
        check_there(&new, &it);
        check_there(&old, &it);
    }
    assert_eq!(new.table.tally().live(), 4, "ended flows are gone");
}

#[test]
fn kernel_a_smaller_table_evicts_by_rank_and_counts() {
    let old = FlowMaps::new(64);
    let new = old.of_another_size(16);
    let counted = |it| types::flow { backend_flags: said::FLOW_COUNTED.0 as u8, ..it };
    let needed: Vec<_> = (0..14).map(|n| counted(flow(n, TCP, NOW - u32::from(n)))).collect();
    let answered: Vec<_> =
        (20..30).map(|n| types::flow { began: NOW - 5, ..counted(flow(n, UDP, NOW - 5)) }).collect();
    for it in answered.iter().chain(&needed) {
        old.begin(*it);
        old.table.0.shares.add_count(it);
    }
    let mut to_new = moving(&old, &new);
    assert_eq!(pass(&mut to_new), 15, "one of sixteen stays free");
    to_new.run_last_pass().unwrap();
    assert_eq!(to_new.finish_counts(), EvictedFlows { total: 9, in_use: 0 });
    needed.iter().for_each(|it| _ = check_there(&new, it));
    assert_eq!(new.table.tally().live(), 15);
    assert_eq!(new.table.0.shares.read_counts(&needed[0]), [15, 15]);
    let smaller = new.of_another_size(8);
    let mut on = moving(&new, &smaller);
    assert_eq!(pass(&mut on), 7);
    on.run_last_pass().unwrap();
    assert_eq!(on.finish_counts(), EvictedFlows { total: 8, in_use: 7 }, "evictions are counted");
    for (n, it) in needed.iter().enumerate() {
        // The flow that is idle for longest goes first.
        if n < 7 { _ = check_there(&smaller, it) } else { check_not_there(&smaller, it) }
    }
}

#[test]
fn kernel_flows_that_begin_or_end_during_a_move_reach_the_new_table() {
    let old = FlowMaps::new(64);
    let new = old.of_another_size(256);
    let (stop, begun) = (AtomicBool::new(false), AtomicU32::new(0));
    let mut moving = moving(&old, &new);
    let mut passes = 0;
    let living = std::thread::scope(|scope| {
        let programs = scope.spawn(|| super::swept::programs(&old, &stop, &begun));
        while passes < 100 || begun.load(Ordering::Relaxed) < 1_000 {
            pass(&mut moving);
            passes += 1;
        }
        stop.store(true, Ordering::Relaxed);
        programs.join().unwrap()
    });
    moving.run_last_pass().unwrap();
    assert_eq!(new.table.tally().live(), 8);
    living.iter().for_each(|(_, it)| _ = check_there(&new, it));
    assert_eq!(new.table.find_flows(&FlowFilter::default(), 100).matches.len(), living.len());
}

/// A decapsulated flow exists alongside a direct one, whichever moves first.
#[test]
fn kernel_two_flows_of_one_client_and_frontend_move_with_their_own_entries() {
    let old = FlowMaps::new(64);
    let new = old.of_another_size(16);
    let own = flow(6, TCP, NOW);
    let taken = types::flow {
        backend: crate::abi::flow::encode_endpoint("10.1.0.99:8443".parse().unwrap()).0,
        nat: [0; 4],
        nat_port: 0,
        backend_flags: own.backend_flags | u8::try_from(types::flow_flag::FLOW_DECAP.0).unwrap(),
        serial: own.serial + 1_000,
        ..own
    };
    old.begin(taken);
    old.entries(&taken).delete(&keys(&taken)[1]).unwrap();
    old.begin(own);
    assert_eq!(old.table.sample_flows(0, 100, |_, _| true).wrong, [], "all needed entries exist");
    let mut moving = moving(&old, &new);
    assert_eq!(pass(&mut moving), 2);
    check_there(&new, &own);
    let number = new.leads(&taken)[0].unwrap();
    assert_eq!(as_bytes(&new.record(number)), as_bytes(&taken));
}
