//! DNS records and the backends that they yield.

use super::*;

fn name(text: &str) -> Name {
    Name::parse(text).unwrap()
}

/// Parses `priority weight port target`.
fn server(text: &str) -> SrvRecord {
    let words: Vec<&str> = text.split(' ').collect();
    let number = |at: usize| words[at].parse().unwrap();
    SrvRecord { priority: number(0), weight: number(1), port: number(2), target: name(words[3]) }
}

fn servers(texts: &[&str]) -> Vec<SrvRecord> {
    texts.iter().map(|text| server(text)).collect()
}

fn addresses(texts: &[&str]) -> Vec<IpAddr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

fn show(set: &BackendSet) -> String {
    let each = set.backends.iter().map(|(backend, weight)| format!("{backend}={}", weight.number()));
    each.collect::<Vec<_>>().join(" ")
}

/// Each target has the address 192.0.2.N of its name's last digit.
#[track_caller]
fn check(records: &[&str], expected: &str, left_out: Option<&str>) {
    for records in [servers(records), servers(records).into_iter().rev().collect()] {
        let mut left = LeftOutRecords::default();
        let SrvTargets::To(led) = select_targets(records, &mut left) else { panic!("withdrawn") };
        let of_target = |it: &SrvRecord| {
            let text = it.target.to_string();
            let last = text.trim_start_matches(|it: char| !it.is_ascii_digit()).parse().unwrap();
            (it.target.clone(), vec![IpAddr::from([192, 0, 2, last])])
        };
        let addresses = led.iter().map(of_target).collect();
        let set = backends_from_servers(&led, &addresses, &mut left);
        assert_eq!((show(&set).as_str(), left.describe_left_out().as_deref()), (expected, left_out));
    }
}

#[test]
fn only_servers_of_the_lowest_priority_count() {
    check(&["20 1 80 h3", "10 1 80 h1", "10 1 81 h2", "30 9 80 h4"], "192.0.2.1:80=1 192.0.2.2:81=1", None);
}

#[test]
fn weights_are_taken_as_they_are_or_in_proportion() {
    check(&["0 0 80 h1", "0 0 80 h2"], "192.0.2.1:80=1 192.0.2.2:80=1", None);
    check(&["0 50 80 h1", "0 50 80 h2"], "192.0.2.1:80=1 192.0.2.2:80=1", None);
    check(&["0 1 80 h1", "0 3 80 h2", "0 256 80 h3"], "192.0.2.1:80=1 192.0.2.2:80=3 192.0.2.3:80=256", None);
    // A weight of 0 among others gets few clients, not none.
    check(&["0 0 80 h1", "0 1 80 h2", "0 2 80 h3"], "192.0.2.1:80=1 192.0.2.2:80=128 192.0.2.3:80=256", None);
    check(&["0 1 80 h1", "0 65535 80 h2"], "192.0.2.1:80=1 192.0.2.2:80=256", None);
    check(&["0 1000 80 h1", "0 3000 80 h2"], "192.0.2.1:80=85 192.0.2.2:80=256", None);
    // Two records of one backend add up.
    check(&["0 1 80 h1", "0 2 80 h1", "0 1 80 h2"], "192.0.2.1:80=3 192.0.2.2:80=1", None);
}

#[test]
fn the_root_as_the_only_target_withdraws_the_service() {
    let root = SrvRecord { priority: 0, weight: 0, port: 0, target: Name::root() };
    let mut left = LeftOutRecords::default();
    assert_eq!(select_targets(vec![root.clone()], &mut left), SrvTargets::Withdrawn);
    assert_eq!(
        select_targets(Vec::new(), &mut left),
        SrvTargets::To(Vec::new()),
        "a name without records withdraws nothing"
    );
    assert_eq!(left.describe_left_out(), None);
    let beside = select_targets(vec![root, server("0 0 80 h1")], &mut left);
    assert_eq!(beside, SrvTargets::To(servers(&["0 0 80 h1"])));
    assert_eq!(left.describe_left_out().unwrap(), "left out: a record without a target or a port");
}

#[test]
fn addresses_of_this_host_or_its_link_are_no_backends() {
    let bad = [
        "127.0.0.1",
        "0.0.0.0",
        "0.1.2.3",
        "169.254.169.254",
        "224.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "fe80::1",
        "ff02::1",
        "::ffff:127.0.0.1",
        "::ffff:169.254.169.254",
    ];
    let of_both = |texts: &[&str]| {
        let mut left = LeftOutRecords::default();
        let (v6, v4): (Vec<_>, Vec<_>) =
            addresses(texts).into_iter().partition(|address| address.to_canonical().is_ipv6());
        let fit =
            [select_family(v4, Family::V4, &mut left), select_family(v6, Family::V6, &mut left)].concat();
        (show(&backends_at_port(&fit, NonZeroU16::new(80).unwrap(), &mut left)), left.describe_left_out())
    };
    let told = "12 left out, such as 127.0.0.1, which is no address of another host";
    assert_eq!(of_both(&bad), (String::new(), Some(told.to_owned())));
    let good = ["10.0.0.1", "192.0.2.1", "2001:db8::1", "fd00::1", "::ffff:192.0.2.1"];
    let all = "10.0.0.1:80=1 192.0.2.1:80=1 [2001:db8::1]:80=1 [fd00::1]:80=1";
    assert_eq!(of_both(&good), (all.to_owned(), None));
}

#[test]
fn a_flood_of_records_is_cut_independent_of_order() {
    let many: Vec<_> = (0..1_000).map(|number| server(&format!("0 1 80 host-{number:04}"))).collect();
    let turned: Vec<_> = many.iter().rev().cloned().collect();
    let mut left = LeftOutRecords::default();
    let cut = select_targets(many, &mut left);
    assert_eq!(cut, select_targets(turned, &mut LeftOutRecords::default()));
    let SrvTargets::To(cut) = cut else { panic!("withdrawn") };
    assert_eq!((cut.len(), cut[99].target.to_string()), (TARGETS_MAX, "host-0099".to_owned()));
    assert_eq!(
        left.describe_left_out().unwrap(),
        "900 left out, such as host-0100, because at most 100 hosts count"
    );
    let mut left = LeftOutRecords::default();
    let mut addresses = numbered(4_000);
    addresses.reverse();
    let addresses = select_family([addresses.clone(), addresses].concat(), Family::V4, &mut left);
    assert_eq!((addresses.len(), addresses[0]), (BACKENDS_MAX, "10.0.0.0".parse().unwrap()));
    let told = left.describe_left_out().unwrap();
    assert_eq!(told, "3000 left out, such as 10.0.3.232, because at most 1000 backends count");
}

/// The addresses from 10.0.0.0 on.
fn numbered(count: u32) -> Vec<IpAddr> {
    (0..count).map(|number| IpAddr::from((0x0a00_0000 + number).to_be_bytes())).collect()
}

/// As many records of one host, and as many addresses, as fit into an answer: 13 million backends.
#[test]
fn multiplying_answers_are_cut_to_the_first_backends() {
    let many: Vec<_> = (1..=3_270).map(|port| server(&format!("0 7 {port} h1"))).collect();
    let addresses = BTreeMap::from([(name("h1"), numbered(4_090))]);
    let mut left = LeftOutRecords::default();
    let set = backends_from_servers(&many, &addresses, &mut left);
    let first = (1..=1_000).map(|port| (SocketAddr::from(([10, 0, 0, 0], port)), Weight::ONE));
    assert_eq!(set.backends, first.collect::<BTreeMap<_, _>>());
    let told = left.describe_left_out().unwrap();
    assert_eq!(told, "13373300 left out, such as 10.0.0.0:1001, because at most 1000 backends count");
}

#[test]
fn the_work_is_bounded_by_the_limit_of_backends() {
    let mut shares = Shares::default();
    for lowest in [2_000, 1_500, 0, 3_000, 0] {
        let mut looked_at = 0;
        let endless = (lowest..).map(|number: u32| {
            looked_at += 1;
            assert!(looked_at <= BACKENDS_MAX + 1, "of a host, from {lowest} on");
            (SocketAddr::from((number.to_be_bytes(), 80)), 1)
        });
        shares.add_backends(endless, usize::MAX);
        assert!(shares.lowest.len() <= BACKENDS_MAX);
    }
    let expected: BTreeMap<_, _> =
        (0..1_000_u32).map(|number| (SocketAddr::from((number.to_be_bytes(), 80)), 2)).collect();
    assert_eq!(
        shares.lowest, expected,
        "the lowest of all, whatever came first, with all that was said of them"
    );
}

/// Equal records exceed 32 bits only if their addresses repeat, and repeated addresses count once.
#[test]
fn shares_of_equal_records_saturate() {
    let mut many: Vec<_> = (0..3_270).map(|_| server("0 65535 80 h1")).collect();
    many.push(server("0 1 80 h2"));
    let mut left = LeftOutRecords::default();
    let twice = select_family([numbered(1), numbered(1)].concat(), Family::V4, &mut left);
    let addresses = BTreeMap::from([(name("h1"), twice), (name("h2"), addresses(&["192.0.2.1"]))]);
    assert_eq!(show(&backends_from_servers(&many, &addresses, &mut left)), "10.0.0.0:80=256 192.0.2.1:80=1");
    let mut shares = Shares::default();
    let backend = SocketAddr::from(([192, 0, 2, 1], 80));
    shares.add_backends([(backend, u64::MAX), (backend, u64::MAX)].into_iter(), 2);
    assert_eq!(show(&shares.into_set(&mut left)), "192.0.2.1:80=1");
    assert_eq!(left.describe_left_out(), None);
}
