//! From installation to purge, under constant traffic.

use std::time::Duration;

use holdfast_fixtures::clock::{pause, wait_until};
use holdfast_host::logging::messages::OTHER_PROXY;
use holdfast_tests::bed::Dialer;
use holdfast_tests::host::Host;

use super::{
    CONFIG, First, Next, VIP, Version, address, boot, config, files, install, property, serving, who_answers,
};

/// Files that any package's installation leaves.
const OF_THE_SYSTEM: [&str; 12] = [
    "/var/lib/dpkg",
    "/var/log",
    "/var/cache",
    "/srv",
    "/etc/group-",
    "/etc/gshadow-",
    "/etc/gshadow",
    "/etc/.pwd.lock",
    "/var/lib/systemd/catalog",
    "/var/lib/systemd",
    "/var/lib/selinux",
    "/etc/selinux",
];

/// Checks that no connect has failed since the client's last tally, nor any of more than fifty in all.
#[track_caller]
pub(crate) fn check_dials(dialer: &mut Dialer, what: &str) {
    let mut connected = 0;
    wait_until("a client that dials", || {
        let tally = dialer.tally().unwrap();
        assert!(tally.failed.is_empty(), "{what}: {tally:?}");
        connected += tally.connected;
        connected > 50
    });
}

/// Installs the package while a client dials, and checks that no connect fails.
pub(crate) fn replace_under_traffic(host: &Host, dialer: &mut Dialer, version: Version) {
    let before = property(host, "MainPID");
    dialer.tally().unwrap();
    install(host, version);
    check_dials(dialer, &format!("{version:?}"));
    assert_ne!(property(host, "MainPID"), before, "the new one runs");
    assert_eq!(property(host, "ActiveState"), "active");
}

/// Checks that the unit found nothing to serve, and that systemd does not try again after the unit's RestartSec.
#[track_caller]
fn stays_inactive(host: &Host) {
    pause(Duration::from_millis(1500));
    assert_eq!(property(host, "ActiveState"), "inactive");
    assert_eq!(property(host, "Result"), "exec-condition");
    assert_eq!(property(host, "NRestarts"), "0");
}

#[test]
fn an_installation_enables_the_service_without_starting_it() {
    let host = boot();
    install(&host, First);
    assert_eq!(property(&host, "UnitFileState"), "enabled");
    assert_eq!(property(&host, "ActiveState"), "inactive");
    host.shell("getent group holdfast").unwrap().expect_success();
    // As shipped it serves nothing, so that a start or a boot loads no program.
    host.run(&["systemctl", "start", "holdfast"]).unwrap().expect_success();
    stays_inactive(&host);
    host.shell("! ls -A /sys/fs/bpf/holdfast | grep .").unwrap().expect_success();
    let said = host.run(&["journalctl", "--unit", "holdfast", "--grep", "nothing is configured"]).unwrap();
    assert!(
        said.out.contains("/etc/holdfast/holdfast.toml: nothing to serve: give an [apiserver]"),
        "{said:?}"
    );
    host.write(CONFIG, &config("127.0.0.1:8081")).unwrap();
    host.run(&["systemctl", "start", "holdfast"]).unwrap().expect_success();
    assert_eq!(property(&host, "ActiveState"), "active");
}

#[test]
fn a_configured_service_is_ready_serves_and_says_how_it_is() {
    let (host, _server) = serving();
    // Without waiting: `systemctl start` has returned.
    assert_eq!(who_answers(&host), "one");
    assert_eq!(property(&host, "StatusText"), "1 services, 1 backends, 0 held");
    let table =
        host.run(&["curl", "--silent", "--fail", "127.0.0.1:9890/frontends"]).unwrap().expect_success();
    assert!(table.contains("static/web") && table.contains("serving"), "{table}");
    host.run(&["holdfast", "status"]).unwrap().expect_success();
    let datapath = host.run(&["holdfast", "datapath"]).unwrap().expect_success();
    assert!(datapath.contains("own cgroup exempt   yes"), "{datapath}");
}

/// Kills the daemon while a client dials, and waits for the next one.
pub(crate) fn kill_under_traffic(host: &mut Host, dialer: &mut Dialer) {
    end_under_traffic(host, dialer, "KILL");
}

/// Sends the daemon a signal while a client dials, and waits for the next daemon.
fn end_under_traffic(host: &mut Host, dialer: &mut Dialer, signal: &str) {
    let before = property(host, "MainPID");
    dialer.tally().unwrap();
    host.run(&["systemctl", "kill", "--signal", signal, "holdfast"]).unwrap().expect_success();
    host.wait_for("another daemon", |host| {
        property(host, "ActiveState") == "active"
            && ![before.as_str(), "0"].contains(&property(host, "MainPID").as_str())
    })
    .unwrap();
    check_dials(dialer, signal);
    assert_eq!(property(host, "NRestarts"), "1");
}

#[test]
fn a_killed_daemon_comes_back_and_traffic_never_stops() {
    let (mut host, _server) = serving();
    let mut dialer = host.dial(address(VIP)).unwrap();
    kill_under_traffic(&mut host, &mut dialer);
}

#[test]
fn a_daemon_that_ends_well_although_nobody_stopped_its_unit_comes_back() {
    let (mut host, _server) = serving();
    let mut dialer = host.dial(address(VIP)).unwrap();
    end_under_traffic(&mut host, &mut dialer, "TERM");
}

#[test]
fn a_unit_whose_configuration_became_empty_stays_inactive() {
    let (host, _server) = serving();
    host.run(&["systemctl", "stop", "holdfast"]).unwrap().expect_success();
    host.run(&["holdfast", "cleanup"]).unwrap().expect_success();
    host.write(CONFIG, "").unwrap();
    host.run(&["systemctl", "start", "holdfast"]).unwrap().expect_success();
    stays_inactive(&host);
}

#[test]
fn an_upgrade_and_a_downgrade_fail_no_connect() {
    let (host, _server) = serving();
    let mut dialer = host.dial(address(VIP)).unwrap();
    replace_under_traffic(&host, &mut dialer, Next);
    replace_under_traffic(&host, &mut dialer, First);
    assert_eq!(who_answers(&host), "one");
}

#[test]
fn an_upgrade_does_not_start_a_stopped_service() {
    let host = boot();
    install(&host, First);
    install(&host, Next);
    assert_eq!(property(&host, "ActiveState"), "inactive");
}

/// Removes the package while a client dials.
pub(crate) fn remove_under_traffic(host: &Host, dialer: &mut Dialer, backend: &str) {
    dialer.tally().unwrap();
    host.run(&["dpkg", "--remove", "holdfast"]).unwrap().expect_success();
    assert_eq!(who_answers(host), backend, "what is in the kernel serves on");
    check_dials(dialer, "the removal");
    assert!(host.path(CONFIG).exists(), "the configuration stays");
}

/// State that no pin keeps: routes to announced addresses, and a filter, as on kernels without links at devices.
const WITHOUT_PINS: &str = "ip route add blackhole 192.0.2.7/32 table 180 protocol 104 && \
    ip -6 route add blackhole 2001:db8::7/128 table 180 protocol 104 && \
    tc qdisc add dev lo clsact && \
    tc filter add dev lo ingress protocol all pref 104 handle 0x686f6c64 \
        bpf da bytecode '1,6 0 0 4294967295,'";
const SHOW_WITHOUT_PINS: &str = "ip route show table all protocol 104; ip -6 route show table all protocol 104; \
    tc filter show dev lo ingress";

/// Purges the package and lists new files that remain.
pub(crate) fn purge(host: &Host, before: &[String]) {
    host.shell(WITHOUT_PINS).unwrap().expect_success();
    assert_ne!(host.shell(SHOW_WITHOUT_PINS).unwrap().expect_success(), "");
    host.run(&["dpkg", "--purge", "holdfast"]).unwrap().expect_success();
    assert_eq!(who_answers(host), "", "no program is left");
    assert_eq!(host.shell(SHOW_WITHOUT_PINS).unwrap().expect_success(), "", "no route and no filter is left");
    assert_ne!(host.shell("getent group holdfast").unwrap().code, 0, "the group is gone");
    let left: Vec<String> = files(host).into_iter().filter(|file| !before.contains(file)).collect();
    let ours = |file: &&String| !OF_THE_SYSTEM.iter().any(|known| file.starts_with(known));
    assert_eq!(left.iter().filter(ours).collect::<Vec<_>>(), Vec::<&String>::new());
    assert!(!left.iter().any(|file| file.contains("holdfast") && !file.starts_with("/srv")), "{left:?}");
}

#[test]
fn a_removal_leaves_traffic_alone_and_a_purge_leaves_nothing() {
    let host = boot();
    let before = files(&host);
    install(&host, First);
    let _server = host.serve("one", address("127.0.0.1:8081")).unwrap();
    host.write(CONFIG, &config("127.0.0.1:8081")).unwrap();
    host.run(&["systemctl", "start", "holdfast"]).unwrap().expect_success();
    let mut dialer = host.dial(address(VIP)).unwrap();
    remove_under_traffic(&host, &mut dialer, "one");
    purge(&host, &before);
}

/// Takes the lock of a daemon that runs in another way, such as by a DaemonSet.
const ANOTHER: &str = "systemd-run --unit another flock /sys/fs/bpf/holdfast sleep infinity && \
    until ! flock --nonblock /sys/fs/bpf/holdfast true; do sleep 0.1; done";

#[test]
fn a_purge_keeps_the_state_of_another_holdfast() {
    let (host, _server) = serving();
    host.run(&["dpkg", "--remove", "holdfast"]).unwrap().expect_success();
    host.shell(ANOTHER).unwrap().expect_success();
    host.run(&["dpkg", "--purge", "holdfast"]).unwrap().expect_success();
    assert_eq!(who_answers(&host), "one");
    host.shell("ls /var/lib/holdfast/snapshot /sys/fs/bpf/holdfast/links").unwrap().expect_success();
}

#[test]
fn a_stop_leaves_the_datapath_and_cleanup_removes_it() {
    let (host, _server) = serving();
    host.run(&["systemctl", "stop", "holdfast"]).unwrap().expect_success();
    assert_eq!(property(&host, "ExecMainStatus"), "0");
    assert_eq!(who_answers(&host), "one");
    host.run(&["holdfast", "cleanup"]).unwrap().expect_success();
    assert_eq!(who_answers(&host), "");
    host.run(&["systemctl", "start", "holdfast"]).unwrap().expect_success();
    assert_eq!(who_answers(&host), "one", "and it comes back");
}

#[test]
fn only_root_and_group_use_the_socket_and_all_read_tcp() {
    let (host, _server) = serving();
    let by = |who: &str, what: &str| {
        host.shell(&format!("setpriv --reuid 1000 --regid {who} --clear-groups curl --silent --fail {what}"))
            .unwrap()
    };
    by("1000", "127.0.0.1:9890/frontends").expect_success();
    by("1000", "--unix-socket /run/holdfast/admin.sock http://localhost/frontends").expect_failure();
    by("1000", "--request POST 127.0.0.1:9890/reload").expect_failure();
    by("1000", "--request POST --unix-socket /run/holdfast/admin.sock http://localhost/reload")
        .expect_failure();
    by("holdfast", "--unix-socket /run/holdfast/admin.sock http://localhost/frontends").expect_success();
    by("holdfast", "--request POST --unix-socket /run/holdfast/admin.sock http://localhost/reload")
        .expect_success();
}

#[test]
fn another_proxys_rules_are_reported_and_left_alone() {
    let mut host = boot();
    install(&host, First);
    host.write(CONFIG, &config("127.0.0.1:8081")).unwrap();
    // A device of kube-proxy's IPVS mode suffices; holdfast's own tests have its rules.
    let made = host.run(&["ip", "link", "add", "kube-ipvs0", "type", "bridge"]).unwrap();
    assert_eq!(made.code, 0, "{made:?}");
    host.run(&["systemctl", "start", "holdfast"]).unwrap().expect_success();
    // The daemon is ready before it has looked for other proxies.
    host.wait_for("another proxy's line in the journal", |host| {
        let said = host.run(&["journalctl", "--unit", "holdfast", "--grep", OTHER_PROXY.text]).unwrap();
        said.out.contains("proxy=kube-proxy evidence=/sys/class/net/kube-ipvs0")
    })
    .unwrap();
    let status = host.run(&["holdfast", "status"]).unwrap();
    assert!(status.out.contains("alongside  kube-proxy (/sys/class/net/kube-ipvs0)"), "{status:?}");
    host.run(&["ip", "link", "show", "kube-ipvs0"]).unwrap().expect_success();
}
