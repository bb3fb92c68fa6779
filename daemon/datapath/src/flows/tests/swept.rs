//! The sweep ends expired flows, and nothing else.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use holdfast_fixtures::clock;
use holdfast_status::datapath::{REFUSAL_SECONDS, Tally};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use super::super::lifetime::{EXPIRY_MARGIN, lifetime_seconds};
use super::super::refusals::flow_backend;
use super::super::sweep::{FlowSweep, ORPHANS_MAX, RECORDS_PER_LOOK};
use super::*;
use crate::conntrack::foreign_connections::TranslatedConnection;

fn pass(sweep: &mut FlowSweep) {
    let passes = sweep.swept.passes;
    while sweep.swept.passes == passes {
        sweep.sweep_part(7, later());
    }
}

fn sweep(bed: &FlowMaps) -> FlowSweep {
    FlowSweep::new(bed.table.clone(), FlowSweepProgress::default())
}

#[test]
fn kernel_expired_flows_are_removed_with_their_entries_and_live_ones_stay() {
    let bed = FlowMaps::new(32);
    let mut begun = Vec::new();
    for (n, transport) in (0..6).flat_map(|n| [(n, TCP), (n, UDP)]) {
        let life = lifetime_seconds(&flow(n, transport, NOW)).unwrap();
        let old = flow(n, transport, NOW - life - EXPIRY_MARGIN - 1);
        let young = types::flow { seen: NOW - life - EXPIRY_MARGIN, ..flow(n + 100, transport, 0) };
        begun.extend([old, young].map(|it| (bed.begin(it), it)));
    }
    let mut sweep = sweep(&bed);
    pass(&mut sweep);
    for (at, (number, it)) in begun.iter().enumerate() {
        if at.is_multiple_of(2) { bed.check_gone(*number, it) } else { bed.check_whole(*number, it) }
    }
    let fullest = sweep.swept.fullest.clone().unwrap();
    assert_eq!(fullest.used_ports, 1, "{fullest:?}");
    let fullest = Some(fullest);
    assert_eq!(
        sweep.swept,
        FlowSweepProgress { passes: 1, ended: 12, fullest, ..FlowSweepProgress::default() }
    );
    pass(&mut sweep);
    assert_eq!(sweep.swept.ended, 12, "a second pass ends none");
    assert_eq!(bed.free(), 32 - 12, "their numbers are free again");
}

/// Of backends that refused clients from outside, and of those that refused sockets.
#[test]
fn kernel_the_sweep_notes_answers_of_backends_that_refused_clients() {
    let bed = FlowMaps::new(8);
    let rst = said::FLOW_RST_SEEN.0 as u8;
    let refused = types::flow { state: OPENING, backend_flags: rst, began: NOW, ..flow(0, TCP, NOW) };
    bed.begin(refused);
    let mut sweep = sweep(&bed);
    assert_eq!(sweep.part_size(), 1, "a tenth of the table");
    pass(&mut sweep);
    assert_eq!(sweep.swept.backend_refusals, [(flow_backend(&refused).unwrap(), NOW)].into());
    assert_eq!(sweep.part_size(), 8, "the times of refusals become new in each part");
    let opened = |n, began| types::flow { state: OPEN, backend_flags: SYN, began, ..flow(n, TCP, began) };
    let (local, other, same) = (opened(1, NOW + 1), opened(2, NOW + 2), opened(10, NOW + 3));
    for it in [local, other, same] {
        bed.begin(it);
    }
    let backend = |it: &types::flow| flow_backend(it).unwrap().backend();
    bed.table.watch_answers([backend(&local)].into());
    pass(&mut sweep);
    let expected = [(backend(&local), NOW + 1), (backend(&refused), NOW + 3)];
    assert_eq!(sweep.swept.answers, expected.into());
    CLOCK.set(NOW + REFUSAL_SECONDS + 1);
    assert_eq!(sweep.part_size(), 1, "nobody is refused any more");
}

/// Of backends whose failures the daemon keeps.
#[test]
fn kernel_the_sweep_notes_answered_and_unanswered_clients_of_watched_backends() {
    let bed = FlowMaps::new(8);
    let hung = types::flow { state: OPENING, client_flags: SYN, began: NOW - 2, ..flow(0, TCP, NOW - 1) };
    let opened = types::flow { state: OPEN, backend_flags: SYN, began: NOW - 3, ..flow(1, TCP, NOW) };
    [hung, opened].iter().for_each(|it| _ = bed.begin(*it));
    let [silent, serving] = [hung, opened].map(|it| flow_backend(&it).unwrap().backend());
    let mut sweep = sweep(&bed);
    bed.table.watch_answers([silent, serving].into());
    pass(&mut sweep);
    assert_eq!(sweep.swept.unanswered, [(silent, NOW - 1)].into());
    assert_eq!(sweep.swept.answers, [(silent, 0), (serving, NOW - 3)].into());
    // As after a resize.
    let next = FlowMaps::new(8);
    next.begin(opened);
    let mut resized = FlowSweep::new(next.table.clone(), sweep.swept.clone());
    pass(&mut resized);
    assert_eq!(resized.swept.answers, [(silent, 0), (serving, NOW - 3)].into());
    bed.table.watch_answers([].into());
    pass(&mut sweep);
    assert!(sweep.swept.unanswered.is_empty() && sweep.swept.answers.is_empty());
}

#[test]
fn kernel_an_ended_flow_is_subtracted_from_the_counts() {
    let bed = FlowMaps::new(4);
    let counted = |n| types::flow { backend_flags: said::FLOW_COUNTED.0 as u8, ..flow(n, UDP, 1) };
    let (old, young) = (counted(0), types::flow { seen: NOW, ..counted(1) });
    let shares = &bed.table.0.shares;
    for it in [old, young] {
        bed.begin(it);
        shares.add_count(&it);
    }
    bed.begin(flow(2, UDP, 1));
    pass(&mut sweep(&bed));
    assert_eq!(shares.read_counts(&young), [1, 1], "an uncounted flow is in no count");
}

#[test]
fn kernel_record_numbers_are_released_in_pieces_and_once_each() {
    let bed = FlowMaps::with(0, |given| load::make_default_packet_maps(given, 100_000).unwrap());
    crate::packets::release_first_numbers(&bed.handles).unwrap();
    let mut pieces = 0;
    while !bed.table.release_numbers(4096).unwrap() {
        pieces += 1;
    }
    assert_eq!(pieces, (100_000 - 65_536) / 4096, "and a smaller last piece");
    assert!(bed.table.release_numbers(4096).unwrap());
    let mut all: Vec<u32> =
        std::iter::from_fn(|| bed.handles[&Map::FreeFlows].lookup_and_delete(&[]).unwrap())
            .map(|number| u32::from_ne_bytes(number.try_into().unwrap()))
            .collect();
    all.sort_unstable();
    assert!(all.into_iter().eq(0..100_000));
}

/// A process killed between the two leaves a count too high, and its service would get less than its quota.
#[test]
fn kernel_a_count_that_is_too_high_is_corrected() {
    let bed = FlowMaps::new(4);
    let it = types::flow { backend_flags: said::FLOW_COUNTED.0 as u8, ..flow(0, UDP, NOW) };
    let shares = &bed.table.0.shares;
    bed.begin(it);
    (0..5).for_each(|_| shares.add_count(&it));
    pass(&mut sweep(&bed));
    assert_eq!(shares.read_counts(&it), [1, 1]);
}

#[test]
fn kernel_a_flow_that_a_program_is_ending_is_left_to_it() {
    let bed = FlowMaps::new(4);
    let it = flow(0, UDP, 1);
    let number = bed.begin(it);
    bed.entries(&it).delete(&keys(&it)[0]).unwrap();
    let mut sweep = sweep(&bed);
    pass(&mut sweep);
    assert_eq!(as_bytes(&bed.record(number)), as_bytes(&it), "the record is unchanged");
    assert_eq!(bed.leads(&it), [None, Some(number), Some(number)]);
    assert_eq!((sweep.swept.ended, bed.free()), (0, 3), "no number is freed twice");
}

#[test]
fn kernel_an_orphan_record_is_finished_later() {
    let bed = FlowMaps::new(4);
    let left = flow(0, UDP, 1);
    let number = bed.begin(left);
    bed.entries(&left).delete(&keys(&left)[0]).unwrap();
    let mut sweep = sweep(&bed);
    pass(&mut sweep);
    CLOCK.set(NOW + 4);
    pass(&mut sweep);
    assert_eq!((sweep.swept.ended, bed.free()), (0, 3), "a program may still be ending it");
    CLOCK.set(NOW + 5);
    pass(&mut sweep);
    bed.check_gone(number, &left);
    assert_eq!((sweep.swept.ended, sweep.swept.taken_over, bed.free()), (1, 1, 1));
}

/// Finished orphans make space for others.
#[test]
fn kernel_orphans_beyond_the_limit_are_finished_after_the_others() {
    let all = u16::try_from(ORPHANS_MAX).unwrap() + 1;
    let bed = FlowMaps::new(all.into());
    for it in (0..all).map(|n| flow(n, UDP, 1)) {
        bed.begin(it);
        bed.entries(&it).delete(&keys(&it)[0]).unwrap();
    }
    let mut sweep = sweep(&bed);
    for step in 0..8 {
        // A table without flows is not swept.
        if sweep.swept.taken_over < u64::from(all) {
            CLOCK.set(NOW + 5 * step);
            pass(&mut sweep);
        }
    }
    assert_eq!((sweep.swept.taken_over, bed.free()), (u64::from(all), usize::from(all)));
}

/// As after a killed daemon: from some step on nothing happens.
#[test]
fn kernel_an_interrupted_end_leaves_a_record_for_the_next_pass() {
    let bed = FlowMaps::new(4);
    let it = flow(0, UDP, 1);
    let number = bed.begin(it);
    bed.entries(&it).freeze().unwrap();
    bed.table.finish_flow(number, &it).unwrap_err();
    assert_eq!(as_bytes(&bed.record(number)), as_bytes(&it));
    assert_eq!(bed.free(), 3);
}

#[test]
fn kernel_a_new_flow_in_an_orphans_record_is_not_an_orphan() {
    let bed = FlowMaps::new(1);
    assert_eq!(bed.free(), 1);
    let mut sweep = sweep(&bed);
    for n in 0..4 {
        let it = flow(n, UDP, 1);
        bed.write(0, it);
        CLOCK.set(NOW + 10 * u32::from(n));
        pass(&mut sweep);
        assert_eq!(as_bytes(&bed.record(0)), as_bytes(&it), "each is an orphan for the first time");
    }
    CLOCK.set(NOW + 100);
    pass(&mut sweep);
    assert_eq!((sweep.swept.taken_over, bed.free()), (1, 1));
}

#[test]
fn kernel_a_new_flow_with_the_same_addresses_keeps_its_entries() {
    let bed = FlowMaps::new(4);
    let (old, new) = (flow(0, UDP, 1), types::flow { serial: 7, ..flow(0, UDP, NOW) });
    let number = bed.begin(old);
    // In the same record, after the old one was read.
    bed.write(number, new);
    let mut sweep = sweep(&bed);
    sweep.end_flow(number, &old).unwrap();
    bed.check_whole(number, &new);
    // In another record, with its entries replacing the old ones.
    bed.write(number, old);
    bed.write(2, new);
    for key in keys(&new) {
        bed.entries(&new).update(&key, &2_u32.to_ne_bytes(), MapFlags::ANY).unwrap();
    }
    pass(&mut sweep);
    CLOCK.set(NOW + 10);
    pass(&mut sweep);
    bed.check_whole(2, &new);
    assert_eq!(bed.record(number).serial, 0, "the old flow is gone");
}

#[test]
fn kernel_a_record_that_is_being_written_is_skipped() {
    let bed = FlowMaps::new(2);
    for strange in [
        types::flow { serial: 0, ..flow(0, UDP, 1) },
        types::flow { state: 0, ..flow(0, UDP, 1) },
        types::flow { state: 9, ..flow(0, UDP, 1) },
        types::flow { transport: 132, ..flow(0, UDP, 1) },
    ] {
        bed.write(1, strange);
        let mut sweep = sweep(&bed);
        pass(&mut sweep);
        bed.count_begun();
        pass(&mut sweep);
        assert_eq!(as_bytes(&bed.record(1)), as_bytes(&strange));
        assert_eq!(sweep.swept.ended, 0);
    }
}

#[test]
fn kernel_a_slice_ends_soon_after_its_time_with_any_load() {
    let bed = FlowMaps::new(20_000);
    for n in 0..20_000 {
        bed.begin(flow(n, UDP, 1));
    }
    let mut sweep = sweep(&bed);
    let mut slices = 0;
    while sweep.swept.passes == 0 {
        sweep.sweep_part(20_000, clock::now());
        slices += 1;
    }
    assert_eq!(slices, 20_000_u32.div_ceil(RECORDS_PER_LOOK));
    assert_eq!(sweep.swept.ended, 20_000);
}

#[test]
fn kernel_a_part_that_takes_several_slices_ends_with_its_last_record() {
    let bed = FlowMaps::new(1_000);
    let mut sweep = sweep(&bed);
    let mut count_slices = || (1..100).find(|_| sweep.sweep_part(200, clock::now())).unwrap();
    assert_eq!([(); 5].map(|()| count_slices()), [200_u32.div_ceil(RECORDS_PER_LOOK); 5]);
    assert_eq!(sweep.swept.passes, 1);
}

#[test]
fn kernel_the_thread_sweeps_and_ends_with_its_owner() {
    let bed = FlowMaps::new(64);
    let old = flow(0, UDP, 1);
    let number = bed.begin(old);
    let sweeping = SweepThread::start(
        bed.table.clone(),
        ReservedPorts::without_check(bed.table.clone()),
        FlowSweepProgress::default(),
    )
    .unwrap();
    clock::wait_until("a flow is ended", || sweeping.progress().ended > 0);
    bed.check_gone(number, &old);
    drop(sweeping);
}

/// Ends expired flows and opens new ones, as a program does for returning clients. Returns the flows that live at the
/// end.
pub(super) fn programs(bed: &FlowMaps, stop: &AtomicBool, begun: &AtomicU32) -> Vec<(u32, types::flow)> {
    let mut living: Vec<Option<(u32, types::flow)>> = vec![None; 8];
    let mut serial = 1;
    while !stop.load(Ordering::Relaxed) {
        for (n, place) in (0..).zip(&mut living) {
            if let Some((number, it)) = *place {
                // Its packet arrives just before the sweep.
                bed.write(number, types::flow { seen: 1, ..it });
                if bed.entries(&it).delete(&keys(&it)[0]).is_ok() {
                    bed.table.finish_flow(number, &it).unwrap();
                }
                // If the sweep was first, wait for its end; a program would find no free number.
                while bed.leads(&it).iter().any(Option::is_some) || bed.record(number).serial == it.serial {}
            }
            serial += 1;
            begun.store(serial, Ordering::Relaxed);
            let it = types::flow { serial, ..flow(n, UDP, NOW) };
            *place = Some((bed.begin(it), it));
        }
    }
    living.into_iter().flatten().collect()
}

#[test]
fn kernel_sweeping_alongside_programs_loses_no_flow() {
    let bed = FlowMaps::new(64);
    let (stop, begun) = (AtomicBool::new(false), AtomicU32::new(0));
    let mut sweep = sweep(&bed);
    let living = std::thread::scope(|scope| {
        let programs = scope.spawn(|| programs(&bed, &stop, &begun));
        while sweep.swept.passes < 100 || begun.load(Ordering::Relaxed) < 1_000 {
            pass(&mut sweep);
        }
        stop.store(true, Ordering::Relaxed);
        programs.join().unwrap()
    });
    for (number, it) in &living {
        bed.check_whole(*number, it);
    }
    assert_eq!(bed.free(), 64 - living.len(), "{:?}", sweep.swept);
}

fn any_flow() -> impl Strategy<Value = types::flow> {
    let kinds = (any::<bool>(), prop::sample::select(vec![OPENING, OPEN]), 0_u8..8, 0_u8..8);
    let ages = prop::sample::select(vec![
        0, 29, 30, 31, 32, 33, 119, 121, 122, 123, 3_602, 3_603, 86_402, 86_403, 190_000,
    ]);
    (kinds, ages).prop_map(|((udp, state, client_flags, backend_flags), age)| types::flow {
        state,
        client_flags,
        backend_flags,
        ..flow(0, if udp { UDP } else { TCP }, NOW - age)
    })
}

#[test]
fn kernel_no_live_flow_is_ever_removed() {
    let bed = FlowMaps::new(64);
    let mut runner = TestRunner::new(ProptestConfig { cases: 200, ..ProptestConfig::default() });
    let ran = runner.run(&prop::collection::vec(any_flow(), 1..40), |kinds| {
        let begin = |(n, kind): (u16, types::flow)| {
            let types::flow { transport, state, client_flags, backend_flags, seen, .. } = kind;
            let it = types::flow { state, client_flags, backend_flags, ..flow(n, transport, seen) };
            (bed.begin(it), it)
        };
        let all: Vec<_> = (0..).zip(kinds).map(begin).collect();
        let mut sweep = sweep(&bed);
        pass(&mut sweep);
        for (number, it) in &all {
            if NOW - it.seen > lifetime_seconds(it).unwrap() + EXPIRY_MARGIN {
                bed.check_gone(*number, it);
            } else {
                bed.check_whole(*number, it);
            }
        }
        CLOCK.set(2 * NOW);
        pass(&mut sweep);
        CLOCK.set(NOW);
        prop_assert_eq!((sweep.swept.ended as usize, bed.table.tally()), (all.len(), Tally::default()));
        Ok(())
    });
    ran.unwrap();
    assert_eq!(bed.free(), 64);
}

#[test]
fn kernel_an_empty_table_is_swept_once_until_a_flow_begins() {
    let bed = FlowMaps::new(16);
    let mut sweep = sweep(&bed);
    let mut parts = |count: usize| {
        (0..count).for_each(|_| assert!(sweep.sweep_part(16, later())));
        sweep.swept.passes
    };
    assert_eq!(parts(5), 1, "no flow found, none begun");
    bed.begin(flow(0, UDP, NOW));
    assert_eq!(parts(5), 6, "while there is a flow");
}

fn translated(backend: &str, node: &str, transport: Transport) -> TranslatedConnection {
    TranslatedConnection { transport, backend: backend.parse().unwrap(), node: node.parse().unwrap() }
}

#[test]
fn kernel_a_foreign_connections_port_is_reserved_until_it_ends() {
    let bed = FlowMaps::new(4);
    // The first has an IPv6 SNAT port, the second an IPv4 one.
    let [six, four] = [3, 6].map(|n| flow(n, TCP, NOW));
    let theirs = [
        translated("[fd00::7]:8443", "[2001:db8:1::1]:32771", Transport::Tcp),
        translated("10.1.0.7:8443", "192.0.2.1:32774", Transport::Tcp),
        translated("10.1.0.7:8443", "192.0.2.1:32774", Transport::Udp),
    ];
    let at_nat = |it: &types::flow| bed.leads(it)[2];
    let mut kept = ReservedPorts::without_check(bed.table.clone());
    assert_eq!(kept.observe(&theirs, true), 3);
    assert_eq!([&six, &four].map(at_nat), [Some(u32::MAX); 2], "a flow finds this port taken");
    assert_eq!(kept.observe(&theirs[..1], false), 3, "an incomplete list ends nothing");
    assert_eq!(kept.observe(&theirs[..1], true), 1);
    assert_eq!([&six, &four].map(at_nat), [Some(u32::MAX), None]);
    let mut next_daemons = ReservedPorts::without_check(bed.table.clone());
    assert_eq!(next_daemons.observe(&[], true), 0, "a former daemon's ports are released");
    assert_eq!([&six, &four].map(at_nat), [None; 2]);
}

#[test]
fn kernel_a_former_daemons_reserved_ports_are_found_in_pieces() {
    // Entries of one family for three pieces.
    const FLOWS: u16 = 6_000;
    let bed = FlowMaps::new(u32::from(FLOWS) + 8);
    let theirs = [
        translated("[fd00::9]:8443", "[2001:db8:1::1]:61001", Transport::Tcp),
        translated("10.1.0.9:8443", "192.0.2.1:61001", Transport::Tcp),
    ];
    ReservedPorts::without_check(bed.table.clone()).observe(&theirs, true);
    let begun: Vec<_> = (0..FLOWS).map(|n| flow(2 * n, UDP, NOW)).map(|it| (bed.begin(it), it)).collect();
    let mut kept = ReservedPorts::without_check(bed.table.clone());
    let mut pieces = 1;
    while !kept.adopt_pieces(1) {
        bed.begin(flow(2 * pieces + 1, UDP, NOW));
        pieces += 1;
    }
    assert!((4..12).contains(&pieces), "{pieces}");
    assert_eq!(kept.status(), (2, None), "both are found");
    assert_eq!(kept.observe(&[], true), 0);
    begun.iter().for_each(|(number, it)| bed.check_whole(*number, it));
}

#[test]
fn kernel_only_the_first_pass_reports_the_ingress_of_flows() {
    let bed = FlowMaps::new(64);
    bed.begin(flow(1, UDP, NOW));
    bed.begin(types::flow { frontend_port: 30_080_u16.to_be(), ..flow(6, TCP, NOW) });
    let mut sweep = sweep(&bed);
    sweep.sweep_part(63, later());
    assert!(sweep.adopted.is_none(), "the rest of the table may have more");
    pass(&mut sweep);
    let adopted = sweep.adopted.take().unwrap();
    assert_eq!(adopted.ports, [443, 30_080, 32_774].into());
    let places = [("192.0.2.10", 30_080), ("2001:db8:1::10", 443)];
    assert_eq!(adopted.frontends, places.map(|(it, port)| (it.parse().unwrap(), port)).into());
    pass(&mut sweep);
    assert!(sweep.adopted.is_none(), "later flows have set their bits already");
}

#[test]
fn kernel_a_flows_port_is_never_reserved() {
    let bed = FlowMaps::new(4);
    let it = flow(6, TCP, NOW);
    let number = bed.begin(it);
    let mut kept = ReservedPorts::without_check(bed.table.clone());
    let theirs = translated("10.1.0.7:8443", "192.0.2.1:32774", Transport::Tcp);
    assert_eq!((kept.observe(&[theirs], true), kept.observe(&[], true)), (0, 0));
    bed.check_whole(number, &it);
}
