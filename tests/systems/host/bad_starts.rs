//! Failing starts: one sentence in `systemctl status` names the error and the remedy, and systemd retries only if that
//! can help.

use holdfast_tests::host::Host;

use super::{CONFIG, First, boot, config, install, property, serving};

/// Whether a retry may help.
enum Hope {
    None(&'static str),
    Some,
}

#[track_caller]
fn check(prepare: impl FnOnce(&Host), expected: &str, hope: &Hope) {
    let mut host = boot();
    install(&host, First);
    host.write(CONFIG, &config("127.0.0.1:8081")).unwrap();
    prepare(&host);
    host.run(&["systemctl", "start", "holdfast"]).unwrap().expect_failure();
    let mut status = String::new();
    let said = |host: &mut Host| {
        status = host.run(&["systemctl", "status", "--lines", "30", "--full", "holdfast"]).unwrap().out;
        status.contains(expected)
    };
    let found = host.wait_for("the sentence", said);
    assert!(found.is_ok(), "{expected:?} is not in\n{status}");
    match hope {
        Hope::None(code) => {
            assert_eq!(
                (property(&host, "ActiveState").as_str(), property(&host, "ExecMainStatus").as_str()),
                ("failed", *code)
            );
        }
        Hope::Some => host.wait_for("another try", |host| property(host, "NRestarts") != "0").unwrap(),
    }
}

#[track_caller]
fn shell(line: &str) -> impl FnOnce(&Host) {
    move |host| drop(host.shell(line).unwrap().expect_success())
}

#[test]
fn a_missing_configuration_fails_the_start() {
    check(shell("rm /etc/holdfast/holdfast.toml"), "there is no such file: create it", &Hope::None("78"));
}

#[test]
fn an_unreadable_configuration_fails_the_start() {
    let prepare =
        shell("chown 1000:1000 /etc/holdfast/holdfast.toml && chmod 600 /etc/holdfast/holdfast.toml");
    check(prepare, "the file may not be read", &Hope::None("78"));
}

#[test]
fn an_unknown_key_fails_the_start() {
    check(shell("echo '[nodes]' >/etc/holdfast/holdfast.toml"), "nodes", &Hope::None("78"));
}

#[test]
fn a_missing_bpf_file_system_fails_the_start() {
    check(shell("umount /sys/fs/bpf"), "is not on a BPF file system; mount one", &Hope::Some);
}

#[test]
fn a_missing_cgroup_fails_the_start() {
    let prepare = shell("printf '[datapath]\\ncgroup = \"/var\"\\n' >>/etc/holdfast/holdfast.toml");
    check(prepare, "is not a cgroup v2 folder; check `datapath.cgroup`", &Hope::Some);
}

/// A taken port blocks only the admin API, which listens once the port is free.
#[test]
fn a_taken_port_is_reported_and_services_are_served() {
    let mut host = boot();
    install(&host, First);
    host.write(CONFIG, &config("127.0.0.1:8081")).unwrap();
    let other = "printf '[admin]\\nsocket = \"/srv/s\"\\n[datapath]\\nkind = \"memory\"\\n[state]\\npath = \"/srv/state\"\\n' >/srv/o.toml";
    host.shell(other).unwrap().expect_success();
    host.shell("systemd-run --unit other holdfast run --config /srv/o.toml").unwrap().expect_success();
    host.shell("until curl --silent --fail 127.0.0.1:9890/livez; do sleep 0.1; done")
        .unwrap()
        .expect_success();
    host.run(&["systemctl", "start", "holdfast"]).unwrap().expect_success();
    let taken = "cannot listen on 127.0.0.1:9890: another process does; stop that process";
    host.wait_for("the sentence", |host| property(host, "StatusText").contains(taken)).unwrap();
    host.run(&["systemctl", "stop", "other"]).unwrap().expect_success();
    host.wait_for("the address", |host| !property(host, "StatusText").contains(taken)).unwrap();
    host.run(&["curl", "--silent", "--fail", "127.0.0.1:9890/readyz"]).unwrap().expect_success();
}

#[test]
fn taken_pins_fail_the_start() {
    let prepare = |host: &Host| {
        let other = "printf '[admin]\\nlisten = \"127.0.0.1:1234\"\\nsocket = \"/srv/s\"\\n[state]\\npath = \"/srv/state\"\\n' >/srv/o.toml";
        host.shell(other).unwrap().expect_success();
        host.shell("systemd-run --unit other holdfast run --config /srv/o.toml").unwrap().expect_success();
        host.shell("until curl --silent --fail 127.0.0.1:1234/readyz; do sleep 0.1; done")
            .unwrap()
            .expect_success();
    };
    check(prepare, "another holdfast runs with the pins in /sys/fs/bpf/holdfast; stop it first", &Hope::Some);
}

#[test]
fn an_unreadable_token_is_reported_and_services_are_served() {
    let (mut host, _server) = serving();
    let authority = rcgen::generate_simple_self_signed(vec!["kubernetes".to_owned()]).unwrap().cert.pem();
    host.write("/etc/holdfast/ca.crt", &authority).unwrap();
    host.write("/etc/holdfast/token", "secret").unwrap();
    host.shell("chown 1000 /etc/holdfast/token && chmod 600 /etc/holdfast/token").unwrap().expect_success();
    let more = "[apiserver]\nendpoints = [\"https://127.0.0.1:6443\"]\nca_file = \"ca.crt\"\ntoken_file = \"token\"\n";
    host.write(CONFIG, &format!("{more}{}", config("127.0.0.1:8081"))).unwrap();
    host.run(&["systemctl", "restart", "holdfast"]).unwrap().expect_success();
    let mut status = String::new();
    let said = |host: &mut Host| {
        status = property(host, "StatusText");
        status.contains("no apiserver in use: ") && status.contains("/etc/holdfast/token")
    };
    assert!(host.wait_for("the sentence", said).is_ok(), "{status}");
    assert_eq!(super::who_answers(&host), "one");
}
