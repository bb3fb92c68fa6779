//! A reload applies all of a file, or nothing of it.

use holdfast_tests::bed::Dialer;
use holdfast_tests::host::Host;

use super::{CONFIG, VIP, address, config, property, serving, who_answers};

/// Reloads a configuration with this backend while a client dials.
pub(crate) fn reload_under_traffic(host: &mut Host, dialer: &mut Dialer, at: &str, backend: &str) {
    dialer.tally().unwrap();
    host.write(CONFIG, &config(at)).unwrap();
    host.run(&["systemctl", "reload", "holdfast"]).unwrap().expect_success();
    host.wait_for("the other backend", |host| who_answers(host) == backend).unwrap();
    assert!(dialer.tally().unwrap().failed.is_empty());
    assert_eq!(property(host, "ActiveState"), "active");
}

#[test]
fn a_good_reload_takes_effect_before_it_returns_and_fails_no_connect() {
    let (mut host, _one) = serving();
    let _two = host.serve("two", address("127.0.0.1:8082")).unwrap();
    let mut dialer = host.dial(address(VIP)).unwrap();
    reload_under_traffic(&mut host, &mut dialer, "127.0.0.1:8082", "two");
}

/// Reloads a configuration with a wrong key, and checks that this backend still serves.
pub(crate) fn reload_what_is_wrong(host: &mut Host, backend: &str) {
    let before = property(host, "MainPID");
    host.write(CONFIG, "[[service]]\nname = \"web\"\nfrontend = [\"10.96.0.10:80\"]\n").unwrap();
    host.run(&["systemctl", "reload", "holdfast"]).unwrap().expect_failure();
    assert_eq!((property(host, "ActiveState"), property(host, "MainPID")), ("active".to_owned(), before));
    assert_eq!(who_answers(host), backend);
    host.wait_for("the reason", |host| {
        let status = host.run(&["systemctl", "status", "holdfast"]).unwrap().out;
        status.contains("the last reload was refused: ") && status.contains("frontends")
    })
    .unwrap();
}

#[test]
fn a_bad_reload_fails_with_the_reason_and_the_old_configuration_serves() {
    let (mut host, _one) = serving();
    reload_what_is_wrong(&mut host, "one");
    let told = host.run(&["holdfast", "reload"]).unwrap();
    assert_eq!(told.code, 78, "{told:?}");
    assert!(told.err.contains("the old configuration stays in force"), "{told:?}");

    host.write(CONFIG, &config("127.0.0.1:8081")).unwrap();
    host.run(&["systemctl", "reload", "holdfast"]).unwrap().expect_success();
    host.wait_for("the status", |host| property(host, "StatusText") == "1 services, 1 backends, 0 held")
        .unwrap();
}

#[test]
fn keys_that_need_a_restart_are_listed() {
    let (host, _one) = serving();
    host.write(CONFIG, &format!("{}[log]\nformat = \"text\"\n", config("127.0.0.1:8081"))).unwrap();
    let told = host.run(&["holdfast", "reload"]).unwrap().expect_success();
    assert_eq!(told, "reloaded; these keys take effect with the next restart: log.format");
}

#[test]
fn a_signal_reloads_too() {
    let (mut host, _one) = serving();
    let _two = host.serve("two", address("127.0.0.1:8082")).unwrap();
    host.write(CONFIG, &config("127.0.0.1:8082")).unwrap();
    host.run(&["systemctl", "kill", "--signal", "HUP", "holdfast"]).unwrap().expect_success();
    host.wait_for("the other backend", |host| who_answers(host) == "two").unwrap();
    host.wait_for("active again", |host| property(host, "ActiveState") == "active").unwrap();
}
