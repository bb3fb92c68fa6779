//! A full disk and a stopped journal cost no client anything.

use holdfast_host::logging::messages::{LOST, SNAPSHOT_NOT_WRITTEN};

use super::{CONFIG, First, address, boot, config, install, property, serving, who_answers};

#[test]
fn a_full_disk_stops_nothing() {
    let mut host = boot();
    install(&host, First);
    let _one = host.serve("one", address("127.0.0.1:8081")).unwrap();
    let _two = host.serve("two", address("127.0.0.1:8082")).unwrap();
    host.shell("mkdir -p /var/lib/holdfast && mount -t tmpfs -o size=64k tmpfs /var/lib/holdfast")
        .unwrap()
        .expect_success();
    host.shell("cat /dev/zero >/var/lib/holdfast/fill").unwrap().expect_failure();
    host.write(CONFIG, &config("127.0.0.1:8081")).unwrap();
    host.run(&["systemctl", "start", "holdfast"]).unwrap().expect_success();
    assert_eq!(who_answers(&host), "one");
    host.write(CONFIG, &config("127.0.0.1:8082")).unwrap();
    host.run(&["systemctl", "reload", "holdfast"]).unwrap().expect_success();
    host.wait_for("the other backend", |host| who_answers(host) == "two").unwrap();
    host.wait_for("a warning", |host| {
        host.run(&["journalctl", "--unit", "holdfast", "--grep", SNAPSHOT_NOT_WRITTEN.text]).unwrap().code
            == 0
    })
    .unwrap();
    assert_eq!(property(&host, "NRestarts"), "0");
}

#[test]
fn a_stopped_journal_blocks_nothing_and_gets_the_count_of_lost_lines() {
    let (mut host, _one) = serving();
    let _two = host.serve("two", address("127.0.0.1:8082")).unwrap();
    host.run(&["systemctl", "kill", "--signal", "STOP", "systemd-journald"]).unwrap().expect_success();
    for round in 0..400 {
        let backend = ["127.0.0.1:8082", "127.0.0.1:8081"][round % 2];
        host.write(CONFIG, &config(backend)).unwrap();
        host.run(&[
            "curl",
            "--silent",
            "--fail",
            "--request",
            "POST",
            "--unix-socket",
            "/run/holdfast/admin.sock",
            "http://x/reload",
        ])
        .unwrap()
        .expect_success();
    }
    // A daemon that waited for the journal would not answer, once the journal's buffer is full.
    assert_eq!(who_answers(&host), "one");
    host.run(&["systemctl", "kill", "--signal", "CONT", "systemd-journald"]).unwrap().expect_success();
    host.wait_for("the count", |host| {
        let missed = format!("MESSAGE_ID={}", LOST.id);
        host.run(&["journalctl", "--unit", "holdfast", &missed]).unwrap().out.contains(LOST.text)
    })
    .unwrap();
    assert_eq!(property(&host, "NRestarts"), "0");
}
