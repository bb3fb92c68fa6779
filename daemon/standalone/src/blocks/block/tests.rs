//! Blocks as facts, and invalid blocks.

use expect_test::{Expect, expect};
use holdfast_core::affinity::Prefixes;
use holdfast_core::event::Event;
use holdfast_core::keys::Transport;

use super::super::tests::{block, show};
use super::*;

#[track_caller]
#[expect(clippy::needless_pass_by_value, reason = "rows of a table read best so")]
fn check(service: StaticService, expected: Expect) {
    let blocks = Blocks::new(vec![service], "/etc/holdfast/holdfast.toml").unwrap();
    let mut group = Vec::new();
    for (_, block) in blocks.iter() {
        group.push(Event::ServiceApplied(Arc::clone(&block.service)));
        let slice = |(key, members)| Event::SliceApplied(Arc::new(block.slice_facts(key, members, |_| true)));
        group.extend(block.slices.iter().map(slice));
    }
    expected.assert_eq(&show(&group));
}

#[test]
fn a_block_is_one_service_and_a_slice_per_family_and_port() {
    check(
        block("none", &["10.96.0.10:80"], &[]),
        expect![[r#"
        service static/none config Static http TCP 80: [10.96.0.10:80] affinity None on-empty None, /etc/holdfast/holdfast.toml by file
    "#]],
    );
    check(
        block(
            "dual",
            &["10.96.0.10:80", "[fd00::10]:81"],
            &["192.0.2.2:8080", "[2001:db8::1]:8080", "192.0.2.1:8080", "192.0.2.1:9090"],
        ),
        expect![[r#"
            service static/dual config Static http TCP 80: [10.96.0.10:80, [fd00::10]:81] affinity None on-empty None, /etc/holdfast/holdfast.toml by file
            slice static/dual-v4-8080 of dual V4 http TCP 8080: 192.0.2.2 ready 192.0.2.1 ready, /etc/holdfast/holdfast.toml by file
            slice static/dual-v4-9090 of dual V4 http TCP 9090: 192.0.2.1 ready, /etc/holdfast/holdfast.toml by file
            slice static/dual-v6-8080 of dual V6 http TCP 8080: 2001:db8::1 ready, /etc/holdfast/holdfast.toml by file
        "#]],
    );
    check(
        StaticService {
            namespace: "infra".into(),
            port_name: String::new(),
            transport: Transport::Udp,
            affinity_timeout: Some(30),
            affinity_prefix: Prefixes::WHOLE.with_length(Family::V4, 24),
            on_empty: Some("hold".into()),
            ..block("dns", &["10.96.0.10:53"], &["192.0.2.1:53"])
        },
        expect![[r#"
            service infra/dns config Static  UDP 53: [10.96.0.10:53] affinity Some(30) by ipv4=24,ipv6=128 on-empty Some("hold"), /etc/holdfast/holdfast.toml by file
            slice infra/dns-v4-53 of dns V4  UDP 53: 192.0.2.1 ready, /etc/holdfast/holdfast.toml by file
        "#]],
    );
}

#[test]
fn addresses_are_canonical_and_count_once() {
    check(
        block(
            "web",
            &["[::ffff:10.96.0.10]:80"],
            &["192.0.2.1:80", "[::ffff:192.0.2.1]:80", "192.0.2.1:80", "[fe80::1%3]:80", "[fe80::1]:80"],
        ),
        expect![[r#"
            service static/web config Static http TCP 80: [10.96.0.10:80] affinity None on-empty None, /etc/holdfast/holdfast.toml by file
            slice static/web-v4-80 of web V4 http TCP 80: 192.0.2.1 ready, /etc/holdfast/holdfast.toml by file
            slice static/web-v6-80 of web V6 http TCP 80: fe80::1 ready, /etc/holdfast/holdfast.toml by file
        "#]],
    );
}

#[track_caller]
fn check_invalid(rule: &str, services: &[StaticService], expected: &[&str]) {
    let invalid = Blocks::new(services.to_vec(), "holdfast.toml").unwrap_err();
    let invalid: Vec<_> = invalid.iter().map(ToString::to_string).collect();
    assert_eq!(invalid, expected, "{rule}");
}

#[test]
fn an_invalid_block_is_reported_with_its_error() {
    let good = block("web", &["10.96.0.10:80"], &["192.0.2.1:80"]);
    check_invalid(
        "no frontend",
        &[block("web", &[], &[])],
        &["[[service]] static/web: it has no frontend; give at least one, as \"10.96.0.10:80\""],
    );
    check_invalid(
        "port 0 of a later frontend",
        &[block("web", &["10.96.0.10:80", "10.96.0.11:0"], &[])],
        &["[[service]] static/web: 10.96.0.11:0 has port 0; legal are 1 to 65535"],
    );
    check_invalid(
        "port 0 of a backend",
        &[block("web", &["10.96.0.10:80"], &["192.0.2.1:0"])],
        &["[[service]] static/web: 192.0.2.1:0 has port 0; legal are 1 to 65535"],
    );
    check_invalid(
        "a backend that is nobody",
        &[block("web", &["10.96.0.10:80"], &["0.0.0.0:80"])],
        &[
            "[[service]] static/web: backend 0.0.0.0:80: address 0.0.0.0 cannot be a backend: it is unspecified or multicast",
        ],
    );
    check_invalid(
        "a name that no object can have",
        &[StaticService { name: "a b".into(), ..good.clone() }],
        &[
            "[[service]] static/a b: the name has the character ' '; letters, digits, '-', '.' and '_' are legal",
        ],
    );
    check_invalid(
        "twice",
        &[good.clone(), good.clone()],
        &["[[service]] static/web: another block has this namespace and name; give one of them another name"],
    );
    check_invalid(
        "every bad one is named",
        &[block("a", &[], &[]), good, block("b", &[], &[])],
        &[
            "[[service]] static/a: it has no frontend; give at least one, as \"10.96.0.10:80\"",
            "[[service]] static/b: it has no frontend; give at least one, as \"10.96.0.10:80\"",
        ],
    );
}

#[test]
fn backends_on_too_many_ports_are_refused() {
    let on_ports = |count: u16| StaticService {
        backends: (1..=count).map(|port| SocketAddr::from(([192, 0, 2, 1], port))).collect(),
        ..block("web", &["10.96.0.10:80"], &[])
    };
    let max = u16::try_from(limits::SLICES_PER_SERVICE_MAX).unwrap();
    assert!(Blocks::new(vec![on_ports(max)], "").is_ok());
    check_invalid(
        "one too many",
        &[on_ports(max + 1)],
        &[
            "[[service]] static/web: its backends need 1001 slices, one per family and port; at most 1000 are legal",
        ],
    );
}

#[test]
fn no_two_services_share_a_slice_name() {
    let named = |name: &str| ObjectName::new("static", name).unwrap();
    let port = NonZeroU16::new(80).unwrap();
    let mut seen = BTreeSet::new();
    for name in ["a", "a-v4", "a-v4-80", "a-v6-80", "a-v4-8080", "a-v4-80-v4-80"] {
        for family in Family::ALL {
            assert!(seen.insert(slice_key(&named(name), family, port).unwrap()), "{name}");
        }
    }
}
