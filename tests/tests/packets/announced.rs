//! Routes to announced addresses: they exist while the node serves the addresses, whatever happens to the daemon.

use std::time::Duration;

use holdfast_fixtures::clock::{self, Deadline};
use holdfast_tests::bed::ask::{Outcome, Question, Transport};
use holdfast_tests::bed::daemon::Daemon;
use holdfast_tests::bed::fabric::Switches;
use holdfast_tests::bed::{Bed, Location, Server};
use holdfast_tests::packets::Clients;

use crate::node::{last_lines, on_a_node, run};
use crate::notices::Notices;

const CONFIG: &str = r#"
[[service]]
name = "web"
announce = "route"
frontends = ["203.0.113.77:80"]
backends = ["10.244.1.10:9090"]
health_check = { interval = "100ms", timeout = "100ms", fall = 1 }
"#;

const ADDRESS: &str = "203.0.113.77";
const BACKEND: &str = "10.244.1.10:9090";

/// How long a lost address must be served before it is announced again.
const AGAIN: Duration = Duration::from_secs(5);

/// How many rounds; the fastest counts, because a busy machine may take the processor away.
const ROUNDS: usize = 3;

/// How many orders a withdrawal may take: it waits for no round of the daemon.
const ORDERS: u32 = 4;

fn server(bed: &Bed) -> Server {
    bed.serve_seen_source(Location::far("pod-a"), "a", &[BACKEND.parse().unwrap()]).unwrap()
}

/// holdfast's own routes.
fn routes(bed: &Bed) -> String {
    run(bed, "node", "ip", "route show table all proto 104").trim().to_owned()
}

#[track_caller]
fn wait_for(bed: &Bed, daemon: &Daemon<'_>, is_there: bool) {
    let state =
        std::fmt::from_fn(|f| write!(f, "a route: {is_there}; the daemon said:\n{}", last_lines(daemon)));
    clock::wait_until(state, || routes(bed).contains(ADDRESS) == is_there);
}

#[track_caller]
fn check_served(clients: &mut Clients, is_served: bool) {
    let question = Question::new(Transport::Tcp, format!("{ADDRESS}:80").parse().unwrap());
    let outcome = clients.client("outside").unwrap().ask_all(&[question]).unwrap().remove(0);
    assert_eq!(matches!(outcome, Outcome::Answered { .. }), is_served, "{outcome:?}");
}

#[test]
fn an_unserved_address_is_withdrawn_as_fast_as_an_order_is_obeyed() {
    on_a_node(Switches::default(), CONFIG, |bed, daemon, clients| {
        assert_eq!(routes(bed), "", "no backend answers yet");
        let backend = server(bed);
        wait_for(bed, daemon, true);
        assert_eq!(routes(bed), format!("blackhole {ADDRESS} table 180"));
        check_served(clients, true);
        let notices = Notices::subscribe(bed, "node");
        let (mut withdrawals, mut orders) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let begun = clock::now();
            orders.push(clock::measure(|| daemon.tell(&["drain", "10.244.1.10"]).unwrap()).0);
            withdrawals.push(notices.taken_out(ADDRESS, begun));
            check_served(clients, true);
            daemon.tell(&["undrain", "10.244.1.10"]).unwrap();
            wait_for(bed, daemon, true);
        }
        let (fastest, order) = (withdrawals.iter().min().unwrap(), orders.iter().max().unwrap());
        assert!(*fastest < *order * ORDERS, "withdrawn after {withdrawals:?}; the orders took {orders:?}");
        let begun = clock::now();
        drop(backend);
        notices.taken_out(ADDRESS, begun);
        check_served(clients, false);
    });
}

#[test]
fn the_route_outlives_the_daemon_and_goes_with_the_datapath() {
    on_a_node(Switches::default(), CONFIG, |bed, daemon, clients| {
        let backend = server(bed);
        wait_for(bed, daemon, true);
        for ends in [Daemon::stop, Daemon::kill] {
            ends(daemon).unwrap();
            assert!(routes(bed).contains(ADDRESS));
            check_served(clients, true);
            daemon.start().unwrap();
            assert!(routes(bed).contains(ADDRESS), "nor does a start take it out");
        }
        daemon.kill().unwrap();
        drop(backend);
        daemon.start().unwrap();
        wait_for(bed, daemon, false);
        let _backend = server(bed);
        wait_for(bed, daemon, true);
        daemon.stop().unwrap();
        daemon.cleanup().unwrap();
        assert_eq!(routes(bed), "");
    });
}

/// Another program owns the file and has left it half written during the daemon's upgrade.
#[test]
fn the_route_outlives_a_restart_with_a_file_that_cannot_be_read() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("web.toml");
    std::fs::write(&file, CONFIG).unwrap();
    let config = format!("[services]\npath = {:?}\n", folder.path());
    on_a_node(Switches::default(), &config, |bed, daemon, clients| {
        let backend = server(bed);
        wait_for(bed, daemon, true);
        daemon.stop().unwrap();
        std::fs::write(&file, CONFIG.split_at(CONFIG.len() / 2).0).unwrap();
        let notices = Notices::subscribe(bed, "node");
        daemon.start().unwrap();
        clock::pause(AGAIN);
        check_served(clients, true);
        assert_eq!(routes(bed), format!("blackhole {ADDRESS} table 180"));
        let begun = clock::now();
        std::fs::write(&file, "").unwrap();
        notices.taken_out(ADDRESS, begun);
        drop(backend);
    });
}

/// Weights distribute clients among the backends of a node; the router decides how many reach the node.
#[test]
fn slow_start_does_not_delay_the_return_of_an_address() {
    let config = CONFIG.replace("fall = 1", "fall = 1, slow_start = \"1h\"");
    on_a_node(Switches::default(), &config, |bed, daemon, clients| {
        let backend = server(bed);
        wait_for(bed, daemon, true);
        drop(backend);
        wait_for(bed, daemon, false);
        let again = Deadline::after(AGAIN);
        let _backend = server(bed);
        wait_for(bed, daemon, true);
        assert!(again.is_over(), "it is announced too early");
        check_served(clients, true);
    });
}
