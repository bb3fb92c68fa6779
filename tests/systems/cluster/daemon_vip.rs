//! The apiserver's virtual address over two real apiservers, while one of them dies, hangs, ends as planned or is cut
//! off, and the daemon is killed in between: clients of the node reach a serving one.

use std::net::SocketAddr;
use std::time::Duration;

use holdfast_fixtures::clock::{Stopwatch, wait_until};
use holdfast_tests::bed::daemon::Daemon;
use holdfast_tests::bed::fabric::rules;
use holdfast_tests::bed::{Dialer, Layout, Location, Tally, succeed};
use holdfast_tests::peers::{Cluster, Part, SOON, apiserver, until};

use crate::daemon_away::check_tried;
use crate::stage::{self, word};

const VIP: &str = "169.254.20.1:6443";

/// How many attempts a client may lose if the server itself closes: as many as it makes in the 3 s after which a silent
/// server is left.
const LOST_MAX: u64 = 750;

/// How long a terminating apiserver keeps serving, as in installations with several.
const LAME: &str = "--shutdown-delay-duration=15s";

/// How often an apiserver dies and returns.
const DEATHS: usize = 3;

fn start_cluster() -> Cluster {
    let cluster = Cluster::without_controllers(Layout::default(), 2).unwrap();
    stage::prepare(&cluster, 2);
    cluster
}

fn new_daemon(cluster: &Cluster) -> Daemon<'_> {
    let config = stage::by_certificate(cluster, 2) + &format!("vip = \"{VIP}\"\n");
    Daemon::new(cluster.bed(), &config).unwrap()
}

fn start_clients(cluster: &Cluster) -> Dialer {
    cluster.bed().dial(Location::NODE, VIP.parse().unwrap()).unwrap()
}

fn leads_to(daemon: &Daemon<'_>) -> Option<SocketAddr> {
    word(&daemon.ask(&["apiserver"]).ok()?["vip"], "leads_to").parse().ok()
}

/// Waits until the address leads to this apiserver; returns how long that took.
#[track_caller]
fn expect_led(daemon: &Daemon<'_>, index: usize) -> Duration {
    let (begun, expected) = (Stopwatch::start(), apiserver(index).unwrap());
    let led = until(SOON, "the other apiserver", || Ok((leads_to(daemon) == Some(expected)).then_some(())));
    led.unwrap_or_else(|error| panic!("{error}: {}", daemon.logged()));
    begun.read()
}

/// Checks that all dials from now on succeed.
#[track_caller]
fn check_served(clients: &mut Dialer, what: &str) {
    clients.tally().unwrap();
    stage::check_served(clients, what);
}

#[track_caller]
fn check_none_failed(tally: &Tally, what: &str) {
    println!("{what}: {tally}");
    assert!(tally.failed.is_empty() && tally.connected > 0, "{what}: {tally}");
}

#[test]
fn vip_clients_follow_dying_and_returning_apiservers() {
    let cluster = start_cluster();
    let mut daemon = new_daemon(&cluster);
    daemon.start().unwrap();
    expect_led(&daemon, 0);
    let mut clients = start_clients(&cluster);
    check_served(&mut clients, "at first");
    for _ in 0..DEATHS {
        clients.tally().unwrap();
        cluster.kill(Part::Apiserver(0)).unwrap();
        let (took, tally) = (expect_led(&daemon, 1), clients.tally().unwrap());
        println!("an apiserver was killed; led elsewhere after {took:?}: {tally}");
        assert!(tally.failed.values().sum::<u64>() < LOST_MAX, "{tally}");
        check_served(&mut clients, "with one of two");
        daemon.kill().unwrap();
        check_served(&mut clients, "with one of two, without a daemon");
        daemon.start().unwrap();
        check_served(&mut clients, "while the daemon started");
        cluster.start_part(Part::Apiserver(0)).unwrap();
        clients.tally().unwrap();
        expect_led(&daemon, 0);
        check_none_failed(&clients.tally().unwrap(), "until the preferred one is led to again");
    }
    cluster.kill(Part::Apiserver(0)).unwrap();
    cluster.kill(Part::Apiserver(1)).unwrap();
    check_tried(&daemon);
    assert!(leads_to(&daemon).is_some(), "it leads somewhere while none serves");
    let shown = stage::frontends(&daemon, "holdfast/apiserver");
    assert_eq!(shown.len(), 1, "{shown:?}");
    cluster.start_part(Part::Apiserver(1)).unwrap();
    expect_led(&daemon, 1);
    check_served(&mut clients, "with the one that came back first");
}

#[test]
fn a_planned_apiserver_end_costs_vip_clients_no_connection() {
    let cluster = start_cluster();
    let first = Part::Apiserver(0);
    cluster.stop(first).unwrap();
    cluster.start_part_with(first, &[LAME]).unwrap();
    let mut daemon = new_daemon(&cluster);
    daemon.start().unwrap();
    expect_led(&daemon, 0);
    let mut clients = start_clients(&cluster);
    check_served(&mut clients, "at first");
    cluster.ask_to_end(first).unwrap();
    let took = expect_led(&daemon, 1);
    println!("an apiserver ends as planned; led elsewhere after {took:?}");
    wait_until("the apiserver ends", || has_ended(first, &cluster));
    check_none_failed(&clients.tally().unwrap(), "from before its end until after it");
}

fn has_ended(part: Part, cluster: &Cluster) -> bool {
    let address = apiserver(0).unwrap();
    let refused = || std::net::TcpStream::connect_timeout(&address, Duration::from_millis(200)).is_err();
    cluster.pid(part).is_none() || cluster.bed().within(Location::OUTSIDE, refused).unwrap_or(false)
}

/// Cuts the first apiserver off, until clients reach the second one.
fn cut_off(cluster: &Cluster, daemon: &Daemon<'_>) {
    expect_led(daemon, 0);
    let address = apiserver(0).unwrap().ip();
    let cut = format!(
        "add table inet cut\nadd chain inet cut input {{ type filter hook input priority 0; }}\n\
         add rule inet cut input ip daddr {address} drop\n"
    );
    rules(cluster.bed(), &cut).unwrap();
    let took = expect_led(daemon, 1);
    println!("a host vanished; led elsewhere after {took:?}");
    check_served(&mut start_clients(cluster), "with the other one");
    let mut nft = cluster.bed().command(Location::OUTSIDE, "nft").unwrap();
    nft.args(["delete", "table", "inet", "cut"]);
    succeed(nft, SOON).unwrap();
}

#[test]
fn a_vanished_host_is_left_each_time() {
    let cluster = start_cluster();
    let mut daemon = new_daemon(&cluster);
    daemon.start().unwrap();
    (0..3).for_each(|_| cut_off(&cluster, &daemon));
    expect_led(&daemon, 0);
}
