//! Reports, counts and samples match the table.

use holdfast_status::datapath::{AddressFilter, FlowFilter, Tally};

use super::*;

fn place(text: &str) -> Option<AddressFilter> {
    let at = text.parse::<SocketAddr>().map(|at| AddressFilter { address: at.ip(), port: Some(at.port()) });
    Some(at.unwrap_or_else(|_| AddressFilter { address: text.parse().unwrap(), port: None }))
}

#[test]
fn kernel_a_flow_is_reported_with_all_its_fields() {
    let bed = FlowMaps::new(8);
    let it = types::flow { client_flags: SYN | FIN | SHORTCUT, backend_flags: SYN, ..flow(6, TCP, NOW - 7) };
    bed.begin(it);
    let heard = SeenFlags { syn: true, ..SeenFlags::default() };
    let expected = Flow {
        client: "203.0.113.9:1030".parse().unwrap(),
        frontend: "192.0.2.10:443".parse().unwrap(),
        backend: "10.1.0.7:8443".parse().unwrap(),
        nat: Some("192.0.2.1:32774".parse().unwrap()),
        through_port: 1_030,
        fast_path: true,
        encap: None,
        transport: Transport::Tcp,
        stage: Stage::HalfClosed,
        client_seen: SeenFlags { fin: true, ..heard },
        backend_seen: heard,
        port: PortIndex(5),
        idle: Duration::from_secs(7),
        age: Duration::from_secs(17),
        lifetime: Duration::from_secs(3_600),
    };
    let report = bed.table.find_flows(&FlowFilter::default(), 10);
    assert_eq!((report.matches, report.omitted), (vec![expected], 0));
}

#[test]
fn kernel_flows_are_found_by_client_frontend_backend_and_stage() {
    let bed = FlowMaps::new(16);
    for n in 0..10 {
        bed.begin(flow(n, UDP, NOW));
    }
    bed.begin(types::flow { state: OPENING, ..flow(10, TCP, NOW) });
    bed.begin(flow(12, UDP, 1));
    let any = FlowFilter::default();
    for (filter, expected) in [
        (any, 11),
        (FlowFilter { client: place("203.0.113.9"), ..any }, 6),
        (FlowFilter { client: place("203.0.113.9:1026"), ..any }, 1),
        (FlowFilter { client: place("[2001:db8::9]:1025"), ..any }, 1),
        (FlowFilter { client: place("203.0.113.9:1036"), ..any }, 0),
        (FlowFilter { frontend: place("2001:db8:1::10"), ..any }, 5),
        (FlowFilter { frontend: place("192.0.2.10:80"), ..any }, 0),
        (FlowFilter { backend: place("10.1.0.7:8443"), ..any }, 4),
        (FlowFilter { backend: place("10.1.0.207"), ..any }, 2),
        (FlowFilter { stage: Some(Stage::Opening), ..any }, 1),
        (FlowFilter { stage: Some(Stage::Opening), backend: place("fd00::7"), ..any }, 0),
    ] {
        let report = bed.table.find_flows(&filter, 100);
        assert_eq!((report.matches.len(), report.omitted), (expected, 0), "{filter:?}");
        assert_eq!(report.tally.live(), 11, "all flows are counted");
        let report = bed.table.find_flows(&filter, 2);
        assert_eq!(
            (report.matches.len(), report.omitted as usize),
            (expected.min(2), expected.saturating_sub(2))
        );
    }
}

#[test]
fn kernel_the_newest_flows_are_found_first() {
    let bed = FlowMaps::new(16);
    for (n, age) in [(0, 5), (2, 1), (4, 9), (6, 3)] {
        bed.begin(types::flow { began: NOW - age, ..flow(n, UDP, NOW) });
    }
    let report = bed.table.find_flows(&FlowFilter::default(), 3);
    let ages: Vec<_> = report.matches.iter().map(|it| it.age.as_secs()).collect();
    assert_eq!((ages, report.omitted), (vec![1, 3, 5], 1));
}

#[test]
fn kernel_flows_are_counted_by_transport_stage_and_family() {
    let bed = FlowMaps::new(16);
    assert_eq!((bed.table.tally(), bed.table.capacity()), (Tally::default(), 16));
    for n in 0..4 {
        bed.begin(flow(n, UDP, NOW));
    }
    bed.begin(types::flow { client_flags: FIN, backend_flags: FIN, ..flow(4, TCP, NOW) });
    bed.begin(types::flow { state: OPENING, ..flow(5, TCP, NOW) });
    bed.begin(flow(6, UDP, NOW - 121));
    let tally = bed.table.tally();
    let counted: Vec<_> = tally.stages().filter(|(.., count)| *count > 0).collect();
    let expected = [
        (Transport::Tcp, Stage::Opening, 1),
        (Transport::Tcp, Stage::Closed, 1),
        (Transport::Udp, Stage::Open, 4),
    ];
    assert_eq!(counted, expected);
    assert_eq!((tally.live(), tally.families, tally.nat, tally.expired), (6, [3, 3], 2, 1));
}

#[test]
fn kernel_packets_are_counted_over_all_processors() {
    let bed = FlowMaps::new(4);
    assert_eq!(bed.table.packet_counts(), PacketCounts::default());
    let counts = &bed.handles[&Map::PacketCounts];
    let which = types::packet_count::COUNT_NO_PORT.0.to_ne_bytes();
    let mut each = counts.lookup_percpu(&which, MapFlags::ANY).unwrap().unwrap();
    each.iter_mut().for_each(|count| *count = 3_u64.to_ne_bytes().to_vec());
    counts.update_percpu(&which, &each, MapFlags::ANY).unwrap();
    let told = bed.table.packet_counts();
    assert_eq!(
        told.dropped,
        [
            ("source", 0),
            ("flows", 0),
            ("ports", 3 * each.len() as u64),
            ("write-failed", 0),
            ("not-listed", 0),
            ("not-local", 0),
            ("decap-unknown", 0),
            ("no-route", 0),
            ("loop", 0),
        ]
    );
    assert_eq!(told.events, PacketCounts::default().events);
}

#[test]
fn kernel_a_sample_finds_flows_with_wrong_entries() {
    let bed = FlowMaps::new(64);
    let all: Vec<_> = (0..20).map(|n| flow(n, UDP, NOW)).collect();
    for it in &all {
        bed.begin(*it);
    }
    bed.begin(flow(40, UDP, 1));
    bed.begin(types::flow { began: NOW - 1, ..flow(42, UDP, NOW) });
    let serves = |_, backend: SocketAddr| backend.is_ipv4();
    let sampled = bed.table.sample_flows(0, 100, serves);
    assert_eq!((sampled.checked, sampled.wrong.len(), sampled.without_backend), (20, 0, 10));
    bed.entries(&all[3]).delete(&keys(&all[3])[2]).unwrap();
    bed.entries(&all[4]).update(&keys(&all[4])[1], &9_u32.to_ne_bytes(), MapFlags::ANY).unwrap();
    let wrong = bed.table.sample_flows(0, 100, serves).wrong;
    let ports: Vec<_> = wrong.iter().map(|flow| flow.client.port()).collect();
    assert_eq!(ports, [1_027, 1_028]);
    let (first, second) = (bed.table.sample_flows(0, 12, serves), bed.table.sample_flows(12, 12, serves));
    assert_eq!(
        (first.checked, first.next, second.checked),
        (12, 12, 8),
        "the second sample continues the first"
    );
    assert_eq!(bed.table.sample_flows(u32::MAX, 1, serves).checked, 1, "and wraps around");
}
