//! A drained backend with the whole daemon and the kernel's datapath: no new client, no cut connection, also over a
//! restart.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use holdfast_tests::bed::ask::{Asker, HeldConnections, Outcome, Question, Transport};
use holdfast_tests::bed::daemon::Daemon;
use holdfast_tests::bed::{Bed, Location};

const WEB: &str = "[[service]]\nname = \"web\"\nfrontends = [\"10.96.0.10:80\"]\n\
                   backends = [\"127.0.0.8:8080\", { address = \"127.0.0.9:8080\", weight = 5 }]\n\
                   [[service]]\nname = \"web-extended\"\nfrontends = [\"10.96.0.11:80\"]\n\
                   backends = [\"127.0.0.8:8080\", \"127.0.0.9:8080\"]\n";

const CLIENTS: usize = 1_000;

/// How many of a thousand clients each server answers.
fn answers(asker: &mut Asker, frontend: &str) -> BTreeMap<String, usize> {
    let question = Question::new(Transport::Tcp, frontend.parse().unwrap());
    let mut by_server = BTreeMap::new();
    // Few enough at once that no server's queue is full.
    for _ in 0..CLIENTS / 50 {
        for outcome in asker.ask_all(&vec![question.clone(); 50]).unwrap() {
            let Outcome::Answered { by, .. } = outcome else { panic!("{outcome:?}") };
            *by_server.entry(by).or_default() += 1;
        }
    }
    by_server
}

#[track_caller]
fn check_order(daemon: &Daemon<'_>, words: &[&str], exit: i32, said: &str) {
    let (code, answer) = daemon.answer(words).unwrap();
    assert!(answer.contains(said), "{words:?}: {answer}");
    assert_eq!(code, Some(exit), "{words:?}: {answer}");
}

fn only(name: &str) -> BTreeMap<String, usize> {
    BTreeMap::from([(name.to_owned(), CLIENTS)])
}

/// The row of a service's drained backend in `holdfast backends`.
fn row(daemon: &Daemon<'_>, service: &str) -> serde_json::Value {
    let table = daemon.ask(&["backends", service, "--address", "127.0.0.9"]).unwrap();
    table["backends"][0].clone()
}

#[test]
fn kernel_a_drained_backend_gets_no_new_client_until_undrained() {
    let bed = Bed::new().unwrap();
    let serve = |name: &str, address: &str| {
        let address: SocketAddr = address.parse().unwrap();
        bed.serve_seen_source(Location::NODE, name, &[address]).unwrap()
    };
    let _servers = [serve("stays", "127.0.0.8:8080"), serve("drained", "127.0.0.9:8080")];
    let mut daemon = Daemon::new(&bed, WEB).unwrap();
    daemon.start().unwrap();
    let mut asker = bed.asker(Location::NODE).unwrap();
    let before = answers(&mut asker, "10.96.0.10:80");
    assert!(before["drained"] > before["stays"], "{before:?}");
    let held = asker.hold("10.96.0.10:80".parse().unwrap(), None, 40).unwrap();
    assert_eq!(held, HeldConnections { alive: 40, ..HeldConnections::default() });

    // Another spelling, and one service of two whose names begin alike.
    check_order(
        &daemon,
        &["drain", "::ffff:127.0.0.9", "--service", "static/web"],
        0,
        "1 service has it: static/web",
    );
    assert_eq!(answers(&mut asker, "10.96.0.10:80"), only("stays"));
    assert_eq!(answers(&mut asker, "10.96.0.11:80").len(), 2, "the other service");
    assert_eq!(
        asker.try_held().unwrap(),
        HeldConnections { alive: 40, ..HeldConnections::default() },
        "none is cut"
    );
    assert_eq!(row(&daemon, "static/web")["unused_because"], "drained");
    assert!(row(&daemon, "static/web")["drained_by"].as_str().unwrap().contains("uid 0"));
    assert_eq!(row(&daemon, "static/web-extended")["unused_because"], serde_json::Value::Null);
    let told = daemon.tell(&["history", "static/web"]).unwrap();
    assert!(told.contains("because 127.0.0.9 was drained by ") && told.contains("-127.0.0.9:8080"), "{told}");

    daemon.kill().unwrap();
    assert_eq!(answers(&mut asker, "10.96.0.10:80"), only("stays"), "while no daemon runs");
    daemon.start().unwrap();
    assert_eq!(answers(&mut asker, "10.96.0.10:80"), only("stays"), "after a restart");
    assert_eq!(asker.try_held().unwrap(), HeldConnections { alive: 40, ..HeldConnections::default() });
    let list = daemon.ask(&["drain"]).unwrap();
    let found = &list["drains"][0];
    let shown = ["backend", "service", "services", "used"].map(|field| found[field].to_string());
    assert_eq!(shown, ["\"127.0.0.9\"", "\"static/web\"", "1", "0"]);

    // The last backend that takes clients there.
    check_order(&daemon, &["drain", "127.0.0.8:8080"], 1, "still used by static/web:");
    assert_eq!(answers(&mut asker, "10.96.0.10:80").len(), 2, "no list becomes empty");
    assert_eq!(answers(&mut asker, "10.96.0.11:80"), only("drained"));
    check_order(&daemon, &["undrain", "127.0.0.8"], 1, "still drained by: 127.0.0.8:8080");
    check_order(&daemon, &["undrain", "127.0.0.8:8080"], 0, "is no longer drained");

    check_order(&daemon, &["undrain", "127.0.0.9", "--service", "static/web"], 0, "is no longer drained");
    let after = answers(&mut asker, "10.96.0.10:80");
    assert!(after["drained"] > after["stays"], "{after:?}");
    check_order(&daemon, &["undrain", "127.0.0.9", "--service", "static/web"], 0, "is not drained");
    check_order(&daemon, &["drain", "127.0.0.77"], 1, "no service lists it now");
}
