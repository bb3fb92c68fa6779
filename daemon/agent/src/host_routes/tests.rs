//! Which addresses are announced, by the real rules over maps in memory, and the kernel's routes after that.

mod bed;

use std::sync::Arc;
use std::time::Duration;

use holdfast_core::event::Event;
use holdfast_core::facts::{ObjectKey, Rejection};
use holdfast_core::keys::Source;
use holdfast_status::views::announcements::AnnouncementStatus;
use tokio::sync::watch;

use super::address_state::{ServingState, judge_blocks};
use super::kernel::{self, Route, RouteChange, RouteStep};
use bed::{Rules, config, ip, ip_route};
use holdfast_fixtures::clock::await_event;
use holdfast_fixtures::network_namespace;

/// An address of each family with two ports, and one with a block that does not mention announcing.
const BLOCKS: &str = r#"
[[service]]
name = "web"
announce = "route"
frontends = ["192.0.2.10:80", "[2001:db8::10]:80"]
backends = ["10.1.0.1:8080", "10.1.0.2:8080", "[fd01::1]:8080"]

[[service]]
name = "secure"
announce = "route"
frontends = ["192.0.2.10:443"]
backends = ["10.1.0.1:8443"]

[[service]]
name = "quiet"
frontends = ["192.0.2.10:22", "192.0.2.11:22"]
backends = []
"#;

/// The judgements, as `ADDRESS`, or `ADDRESS: why`.
async fn judged(text: &str, drained: &[&str]) -> Vec<String> {
    let mut rules = Rules::new();
    let config = config(text);
    rules.apply(&config).await;
    drained.iter().for_each(|address| rules.drain(address));
    shown(&config, &rules.snapshot(), true)
}

fn shown(
    config: &holdfast_config::Config,
    snapshot: &holdfast_core::snapshot::Snapshot,
    takes_packets: bool,
) -> Vec<String> {
    let standings = judge_blocks(&config.services, &snapshot.services, takes_packets);
    let one = |(address, standing): (&std::net::IpAddr, &super::address_state::AddressState)| match &standing
        .serving
    {
        ServingState::Served => address.to_string(),
        ServingState::Unreported(why) => format!("{address} untold: {why}"),
        ServingState::Undecided(why) => format!("{address} undecided: {why}"),
        ServingState::Unserved(why) => format!("{address}: {why}"),
    };
    standings.iter().map(one).collect()
}

#[tokio::test]
async fn an_address_is_served_if_all_its_announced_services_are() {
    assert_eq!(judged(BLOCKS, &[]).await, ["192.0.2.10", "2001:db8::10"]);
    let lost = BLOCKS.replace("backends = [\"10.1.0.1:8443\"]", "backends = []");
    let why = "192.0.2.10: static/secure is refusing (no-endpoints) at port 443";
    assert_eq!(judged(&lost, &[]).await, [why, "2001:db8::10"]);
    let quiet = lost.replace("name = \"secure\"\nannounce = \"route\"", "name = \"secure\"");
    assert_eq!(
        judged(&quiet, &[]).await,
        ["192.0.2.10", "2001:db8::10"],
        "a service that is not announced does not count"
    );
}

#[tokio::test]
async fn a_service_with_only_drained_backends_wants_no_clients() {
    let why = "192.0.2.10: all backends of static/secure are drained or have weight 0";
    assert_eq!(judged(BLOCKS, &["10.1.0.1"]).await, [why, "2001:db8::10"]);
    assert_eq!(judged(BLOCKS, &["10.1.0.2"]).await, ["192.0.2.10", "2001:db8::10"]);
    let weightless = BLOCKS.replace("[\"10.1.0.1:8443\"]", "[{ address = \"10.1.0.1:8443\", weight = 0 }]");
    assert_eq!(judged(&weightless, &[]).await, [why, "2001:db8::10"]);
}

#[tokio::test]
async fn an_unknown_address_is_undecided() {
    let mut rules = Rules::new();
    let config = config(BLOCKS);
    let snapshot = rules.snapshot();
    let unknown = "undecided: 192.0.2.10:80 is not in the table yet";
    assert_eq!(shown(&config, &snapshot, true)[0], format!("192.0.2.10 {unknown}"));
    rules.apply(&config).await;
    let snapshot = rules.snapshot();
    assert!(
        shown(&config, &snapshot, false)
            .iter()
            .all(|it| it.contains(" undecided: packets are not translated"))
    );
}

#[test]
fn first_checks_delay_the_announcement() {
    let checked = |more: &str| {
        let text = format!(
            "[[service]]\nname = \"a\"\nannounce = \"route\"\nfrontends = [\"192.0.2.1:80\"]\nbackends = []\n{more}"
        );
        let standings = judge_blocks(&config(&text).services, &Default::default(), true);
        standings.into_values().next().unwrap().checked_after
    };
    assert_eq!(checked(""), Duration::ZERO);
    assert_eq!(checked("health_check = { timeout = \"1s\" }"), Duration::from_millis(3_600));
    assert_eq!(checked("health_check = { timeout = \"1s\", rise = 5 }"), Duration::from_secs(6));
    let slow = checked("health_check = { timeout = \"1s\", slow_start = \"1h\" }");
    assert_eq!(slow, Duration::from_millis(3_600), "a route does not wait for a slow start");
}

/// At the beginning of its slow start a backend has a part of its weight, and is this node's only one.
#[tokio::test]
async fn an_address_is_served_by_one_backend_that_has_just_returned() {
    let growing = BLOCKS.replace(
        "[\"10.1.0.1:8443\"]",
        "[{ address = \"10.1.0.1:8443\", weight = 1 }, { address = \"10.1.0.3:8443\", weight = 256 }]",
    );
    assert_eq!(judged(&growing, &["10.1.0.3"]).await, ["192.0.2.10", "2001:db8::10"]);
}

/// Runs a test in its own network namespace.
fn apart(test: impl FnOnce() + Send + 'static) {
    network_namespace::run_inside(|| {
        ip("link set lo up");
        test();
    });
}

fn route(table: u8, address: &str) -> Route {
    Route { table, address: address.parse().unwrap() }
}

#[test]
fn kernel_only_our_own_routes_are_listed_and_removed() {
    apart(|| {
        let own = [route(180, "192.0.2.10"), route(180, "2001:db8::10"), route(7, "192.0.2.10")];
        let steps = |change| own.iter().map(|route| RouteStep { change, route: *route }).collect::<Vec<_>>();
        assert!(kernel::carry_out(steps(RouteChange::Add)).iter().all(|(_, outcome)| outcome.is_ok()));
        for others in ["blackhole 192.0.2.11 table 180", "blackhole 192.0.2.0/24 table 180 proto 104"] {
            ip(&format!("route add {others}"));
        }
        assert_eq!(kernel::list_routes().unwrap(), own.into());
        let again = kernel::carry_out(steps(RouteChange::Keep));
        let errno =
            |outcome: &std::io::Result<()>| outcome.as_ref().err().and_then(std::io::Error::raw_os_error);
        assert!(again.iter().all(|(_, outcome)| errno(outcome) == Some(nix::libc::EEXIST)), "{again:?}");
        assert!(kernel::carry_out(steps(RouteChange::Add)).iter().all(|(_, outcome)| outcome.is_ok()));
        let foreign = RouteStep { change: RouteChange::Add, route: route(180, "192.0.2.11") };
        assert_eq!(errno(&kernel::carry_out(vec![foreign])[0].1), Some(nix::libc::EEXIST));
        assert_eq!(kernel::remove_all().unwrap(), (3, Vec::new()));
        assert_eq!(kernel::remove_all().unwrap(), (0, Vec::new()));
        let left = ip_route("show table 180");
        assert_eq!(left, "blackhole 192.0.2.0/24 proto 104\nblackhole 192.0.2.11\n");
        let gone = kernel::carry_out(steps(RouteChange::Remove));
        assert!(gone.iter().all(|(_, outcome)| errno(outcome) == Some(nix::libc::ESRCH)), "{gone:?}");
        assert_eq!(ip_route("show table 180"), left, "foreign routes stay");
    });
}

/// Waits until the status matches.
async fn until(shown: &mut watch::Receiver<Arc<AnnouncementStatus>>, expected: &[&str]) {
    let line = |announced: &AnnouncementStatus| -> Vec<String> {
        let there = announced.addresses.iter().filter(|it| it.announced);
        there.map(|it| format!("{} {}", it.table, it.address)).collect()
    };
    let last = shown.clone();
    let what = std::fmt::from_fn(|f| write!(f, "{expected:?}; there is {:?}", last.borrow()));
    await_event(what, shown.wait_for(|now| line(now) == expected)).await.unwrap();
}

#[test]
fn kernel_routes_follow_served_addresses_over_reloads_and_restarts() {
    apart(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let stale = RouteStep { change: RouteChange::Add, route: route(9, "192.0.2.99") };
            assert!(kernel::carry_out(vec![stale])[0].1.is_ok());
            let mut rules = Rules::new();
            let mut first = bed::Running::start(&rules.snapshot());
            until(&mut first.shown, &["9 192.0.2.99"]).await;
            rules.apply(&first.configure(BLOCKS)).await;
            first.publish(&rules.snapshot());
            until(&mut first.shown, &["180 192.0.2.10", "180 2001:db8::10"]).await;
            let here = "blackhole 192.0.2.10 proto 104\n";
            assert_eq!(ip_route("show table 180"), here);
            assert!(ip_route("show table all").contains("192.0.2.10") && ip_route("show").is_empty());
            first.stop().await;
            assert_eq!(ip_route("show table 180"), here, "the end of the daemon keeps it");

            let mut rules = Rules::new();
            let mut second = bed::Running::start(&rules.snapshot());
            let moved = format!("{BLOCKS}[announce]\ntable = 7\n").replace("[\"10.1.0.1:8443\"]", "[]");
            rules.apply(&second.configure(&moved)).await;
            second.publish(&rules.snapshot());
            until(&mut second.shown, &["7 2001:db8::10"]).await;
            assert_eq!(ip_route("show table 180"), "");
            rules.apply(&second.configure("")).await;
            second.publish(&rules.snapshot());
            until(&mut second.shown, &[]).await;
            assert_eq!(kernel::list_routes().unwrap().len(), 0);
            second.stop().await;
        });
    });
}

/// The blocks are in a file that is half-written when the next process starts. Their service `quiet` was lost before,
/// at an address that is announced for others.
#[test]
fn kernel_a_restart_keeps_the_routes_of_an_unreadable_block() {
    apart(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut rules = Rules::new();
            let mut first = bed::Running::start(&rules.snapshot());
            rules.apply(&first.configure(BLOCKS)).await;
            first.publish(&rules.snapshot());
            let both = ["180 192.0.2.10", "180 2001:db8::10"];
            until(&mut first.shown, &both).await;
            first.stop().await;

            let mut rules = rules.restarted();
            let snapshot = rules.snapshot();
            assert!(snapshot.programmed && !snapshot.is_synced(), "the folder was not read");
            let mut second = bed::Running::start(&snapshot);
            until(&mut second.shown, &both).await;
            let file = ObjectKey::File(Source::Config, "config.toml".into());
            let (object, origin) = (file.clone(), Some("config.toml".into()));
            let rejection = Rejection { object, origin, reason: "half-written".into(), partial: false };
            rules.tell(Event::Rejected(rejection));
            rules.tell(Event::Synced(Source::Config));
            rules.drain("10.1.0.1");
            second.publish(&rules.snapshot());
            until(&mut second.shown, &both[1..]).await;
            assert_eq!(second.shown.borrow().removed, 1, "only the lost address is withdrawn");
            rules.tell(Event::RejectionEnded(file));
            second.publish(&rules.snapshot());
            until(&mut second.shown, &[]).await;
            second.stop().await;
        });
    });
}
