//! Health checks with the whole daemon and the kernel's datapath: what clients meet while all backends fail theirs,
//! while each check has another result than the one before, and while a reload changes them.

use std::net::{SocketAddr, TcpListener};
use std::thread::sleep;
use std::time::{Duration, Instant};

use holdfast_tests::bed::ask::{Asker, Outcome, Question, Transport};
use holdfast_tests::bed::daemon::Daemon;
use holdfast_tests::bed::{Bed, Location, Server};

const FRONTEND: &str = "10.96.0.10:80";

const BACKENDS: [&str; 2] = ["127.0.0.8:8080", "127.0.0.9:8080"];

/// Checks ask another port than clients get, so a backend that fails them serves all the same.
fn web(more: &str, check: &str) -> String {
    format!(
        "[[service]]\nname = \"web\"\nfrontends = [\"{FRONTEND}\"]\nbackends = [\"{}\", \"{}\"]\n{more}\n\
         health_check = {{ port = 9, interval = \"100ms\", timeout = \"100ms\", rise = 1, fall = 1 {check} }}\n",
        BACKENDS[0], BACKENDS[1],
    )
}

fn servers(bed: &Bed) -> [Server; 2] {
    BACKENDS.map(|address| {
        let address: SocketAddr = address.parse().unwrap();
        bed.tell_whom(Location::NODE, &address.ip().to_string(), &[address]).unwrap()
    })
}

/// What answers checks, while it is there.
fn well(bed: &Bed) -> [TcpListener; 2] {
    bed.within(Location::NODE, || {
        BACKENDS.map(|address| {
            let address: SocketAddr = address.parse().unwrap();
            listen(SocketAddr::new(address.ip(), 9))
        })
    })
    .unwrap()
}

/// A process that begins at this moment may still have the listener of before.
fn listen(at: SocketAddr) -> TcpListener {
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        match TcpListener::bind(at) {
            Ok(listener) => return listener,
            Err(error) => assert!(Instant::now() < until, "{at}: {error}"),
        }
        sleep(Duration::from_millis(5));
    }
}

fn ask(asker: &mut Asker) -> Outcome {
    let question = Question::new(Transport::Tcp, FRONTEND.parse().unwrap());
    asker.ask_all(&[question]).unwrap().remove(0)
}

fn verdict(daemon: &Daemon<'_>) -> String {
    let explained = daemon.ask(&["explain", "static/web"]).unwrap();
    explained["services"][0]["frontends"][0]["verdict"].as_str().unwrap().to_owned()
}

/// What the last check of each backend came to, and how many in a row had that result.
fn last_results(daemon: &Daemon<'_>) -> Vec<(String, u64)> {
    let explained = daemon.ask(&["explain", "static/web"]).unwrap();
    let endpoints = explained["services"][0]["endpoints"].as_array().unwrap().clone();
    let last = |it: &serde_json::Value| {
        let last = &it["check"]["last"];
        (
            last["result"].as_str().unwrap_or_default().to_owned(),
            last["in_a_row"].as_u64().unwrap_or_default(),
        )
    };
    endpoints.iter().map(last).collect()
}

#[test]
fn kernel_backends_that_all_fail_their_checks_are_refused_or_held_as_the_service_says() {
    let bed = Bed::new().unwrap();
    let _servers = servers(&bed);
    for (on_empty, expected) in [("refuse", "refusing"), ("hold", "held")] {
        let mut daemon = Daemon::new(&bed, &web(&format!("on_empty = \"{on_empty}\""), "")).unwrap();
        // What has never served is not held.
        let good = well(&bed);
        daemon.start().unwrap();
        daemon.wait_until(|it| Ok(verdict(it) == "serving")).unwrap();
        drop(good);
        daemon.wait_until(|it| Ok(verdict(it) == expected)).unwrap();
        let outcome = ask(&mut bed.asker(Location::NODE).unwrap());
        assert_eq!(
            matches!(outcome, Outcome::Answered { .. }),
            on_empty == "hold",
            "{on_empty}: {outcome:?}"
        );
        daemon.wait_until(|it| Ok(last_results(it).iter().all(|(_, row)| *row > 3))).unwrap();
        assert!(last_results(&daemon).iter().all(|(result, _)| result == "bad"));
        let text = daemon.tell(&["explain", "static/web"]).unwrap();
        assert!(text.contains("unusable by tcp checks: ") && text.contains("cannot connect: "), "{text}");

        let well = well(&bed);
        daemon.wait_until(|it| Ok(verdict(it) == "serving")).unwrap();
        assert!(matches!(ask(&mut bed.asker(Location::NODE).unwrap()), Outcome::Answered { .. }));
        drop(well);
        daemon.stop().unwrap();
        daemon.cleanup().unwrap();
    }
}

#[test]
fn kernel_no_client_fails_while_every_check_has_another_result_or_a_reload_changes_checks() {
    let bed = Bed::new().unwrap();
    let _servers = servers(&bed);
    let hold = "on_empty = \"hold\"";
    let mut daemon = Daemon::new(&bed, &web(hold, "")).unwrap();
    // What has never served is not held.
    let good = well(&bed);
    daemon.start().unwrap();
    daemon.wait_until(|it| Ok(verdict(it) == "serving")).unwrap();
    drop(good);
    let mut dialer = bed.dial(Location::NODE, FRONTEND.parse().unwrap()).unwrap();
    let mut turns = 0;
    let until = Instant::now() + Duration::from_secs(6);
    while Instant::now() < until {
        let well = well(&bed);
        sleep(Duration::from_millis(120));
        drop(well);
        sleep(Duration::from_millis(120));
        turns += 1;
        // Another check each time, and each third time a check that all pass.
        let check = ["", ", slow_start = \"1s\"", ", kind = \"http\""][turns % 3];
        daemon.configure(&web(hold, check)).unwrap();
        daemon.tell(&["reload"]).unwrap();
    }
    let tally = dialer.tally().unwrap();
    assert!(tally.failed.is_empty(), "{:?}", tally.failed);
    let turned = daemon.logged().matches("backend unready").count();
    assert!(turned > 4, "the backends have turned {turned} times in {turns}");
    daemon.stop().unwrap();
}
