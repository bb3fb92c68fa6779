//! What answers come to, as tables of records and backends.

use super::*;

fn name(text: &str) -> Name {
    Name::parse(text).unwrap()
}

/// `priority weight port target`.
fn server(text: &str) -> Server {
    let words: Vec<&str> = text.split(' ').collect();
    let number = |at: usize| words[at].parse().unwrap();
    Server { priority: number(0), weight: number(1), port: number(2), target: name(words[3]) }
}

fn servers(texts: &[&str]) -> Vec<Server> {
    texts.iter().map(|text| server(text)).collect()
}

fn addresses(texts: &[&str]) -> Vec<IpAddr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

fn show(set: &Set) -> String {
    let each = set.backends.iter().map(|(backend, weight)| format!("{backend}={}", weight.number()));
    each.collect::<Vec<_>>().join(" ")
}

/// Each target has the address 192.0.2.N that its name ends with.
#[track_caller]
fn check(records: &[&str], expected: &str, left_out: Option<&str>) {
    for records in [servers(records), servers(records).into_iter().rev().collect()] {
        let mut left = LeftOut::default();
        let Led::To(led) = led(records, &mut left) else { panic!("withdrawn") };
        let of_target = |it: &Server| {
            let text = it.target.to_string();
            let last = text.trim_start_matches(|it: char| !it.is_ascii_digit()).parse().unwrap();
            (it.target.clone(), vec![IpAddr::from([192, 0, 2, last])])
        };
        let addresses = led.iter().map(of_target).collect();
        let set = of_servers(&led, &addresses, &mut left);
        assert_eq!((show(&set).as_str(), left.told().as_deref()), (expected, left_out));
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
    // A weight of 0 beside others is few clients, and not none.
    check(&["0 0 80 h1", "0 1 80 h2", "0 2 80 h3"], "192.0.2.1:80=1 192.0.2.2:80=128 192.0.2.3:80=256", None);
    check(&["0 1 80 h1", "0 65535 80 h2"], "192.0.2.1:80=1 192.0.2.2:80=256", None);
    check(&["0 1000 80 h1", "0 3000 80 h2"], "192.0.2.1:80=85 192.0.2.2:80=256", None);
    // Two records of one backend are both its own.
    check(&["0 1 80 h1", "0 2 80 h1", "0 1 80 h2"], "192.0.2.1:80=3 192.0.2.2:80=1", None);
}

#[test]
fn the_root_as_the_only_target_withdraws_the_service() {
    let root = Server { priority: 0, weight: 0, port: 0, target: Name::root() };
    let mut left = LeftOut::default();
    assert_eq!(led(vec![root.clone()], &mut left), Led::Withdrawn);
    assert_eq!(led(Vec::new(), &mut left), Led::To(Vec::new()), "a name without records withdraws nothing");
    assert_eq!(left.told(), None);
    let beside = led(vec![root, server("0 0 80 h1")], &mut left);
    assert_eq!(beside, Led::To(servers(&["0 0 80 h1"])));
    assert_eq!(left.told().unwrap(), "left out: a record without a target or a port");
}

#[test]
fn what_means_this_host_or_its_link_is_no_backend_of_a_name() {
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
    let mut left = LeftOut::default();
    let port = NonZeroU16::new(80).unwrap();
    assert_eq!(at_port(&addresses(&bad), port, &mut left), Set::default());
    assert_eq!(left.told().unwrap(), "12 left out, as 127.0.0.1, which is no address of another host");
    let good = ["10.0.0.1", "192.0.2.1", "2001:db8::1", "fd00::1", "::ffff:192.0.2.1"];
    let mut left = LeftOut::default();
    let set = at_port(&addresses(&good), port, &mut left);
    assert_eq!(show(&set), "10.0.0.1:80=1 192.0.2.1:80=1 [2001:db8::1]:80=1 [fd00::1]:80=1");
    assert_eq!(left.told(), None);
}

#[test]
fn a_flood_of_records_is_cut_alike_whatever_their_order() {
    let many: Vec<_> = (0..1_000).map(|number| server(&format!("0 1 80 host-{number:04}"))).collect();
    let turned: Vec<_> = many.iter().rev().cloned().collect();
    let mut left = LeftOut::default();
    let cut = led(many, &mut left);
    assert_eq!(cut, led(turned, &mut LeftOut::default()));
    let Led::To(cut) = cut else { panic!("withdrawn") };
    assert_eq!((cut.len(), cut[99].target.to_string()), (TARGETS_MAX, "host-0099".to_owned()));
    assert_eq!(left.told().unwrap(), "900 left out, as host-0100, because at most 100 hosts count");
    let addresses: Vec<_> =
        (0..4_000_u32).map(|number| IpAddr::from((0x0a00_0000 + number).to_be_bytes())).collect();
    let mut left = LeftOut::default();
    let set = at_port(&addresses, NonZeroU16::MIN, &mut left);
    assert_eq!(set.backends.len(), BACKENDS_MAX);
    let told = left.told().unwrap();
    assert_eq!(told, "3000 left out, as 10.0.3.232:1, because at most 1000 backends count");
}
