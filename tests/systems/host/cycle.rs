//! The package's whole life on one host, with named steps: in namespaces on this machine's kernel, and in a guest with
//! a distribution's own kernel, cgroups and BPF file system.

use holdfast_fixtures::clock::Stopwatch;

use super::confinement::Confinement;
use super::journal::lines;
use super::life::{kill_under_traffic, purge, remove_under_traffic, replace_under_traffic};
use super::reload::{reload_under_traffic, reload_what_is_wrong};
use super::{CONFIG, First, Next, VIP, address, boot, config, files, install, property, who_answers};

/// Runs a step, and prints its time. A failed step is the one after the last printed one.
fn step<T>(name: &str, take: impl FnOnce() -> T) -> T {
    let began = Stopwatch::start();
    let out = take();
    println!("cycle: {name}: passed, {:.1} s", began.read().as_secs_f64());
    out
}

#[test]
fn install_upgrade_and_purge_in_one_boot() {
    let mut host = step("boot", boot);
    let confinement = Confinement::of(&host);
    println!("cycle: Linux {}, {confinement:?}", host.run(&["uname", "-r"]).unwrap().expect_success());
    let before = files(&host);
    let _one = host.serve("one", address("127.0.0.1:8081")).unwrap();
    let _two = host.serve("two", address("127.0.0.1:8082")).unwrap();

    step("install", || install(&host, First));
    step("configure", || host.write(CONFIG, &config("127.0.0.1:8081")).unwrap());
    step("start", || {
        let said = host.run(&["systemctl", "start", "holdfast"]).unwrap();
        assert_eq!(said.code, 0, "{said:?}; denied: {:#?}", confinement.denied(&host));
    });
    step("ready", || {
        assert_eq!(property(&host, "ActiveState"), "active");
        assert_eq!(property(&host, "StatusText"), "1 services, 1 backends, 0 held");
    });
    step("the policy's label", || confinement.check_label(&host));
    step("the address answers", || assert_eq!(who_answers(&host), "one"));
    let mut dialer = host.dial(address(VIP)).unwrap();
    step("reload", || reload_under_traffic(&mut host, &mut dialer, "127.0.0.1:8082", "two"));
    step("reload of what is wrong", || reload_what_is_wrong(&mut host, "two"));
    host.write(CONFIG, &config("127.0.0.1:8082")).unwrap();
    step("kill", || kill_under_traffic(&mut host, &mut dialer));
    step("journal", || {
        let story = lines(&host, &["HOLDFAST_SERVICE=static/web"]);
        let added = story.first().unwrap_or_else(|| panic!("no line of the service"));
        assert_eq!(added["HOLDFAST_FRONTEND"], "10.96.0.10:80/TCP");
        assert_eq!(added["HOLDFAST_VERDICT"], "serving");
        assert_eq!(added["_SYSTEMD_UNIT"], "holdfast.service");
    });
    step("what the policy forbids", || confinement.check_denial(&mut host));
    step("upgrade", || replace_under_traffic(&host, &mut dialer, Next));
    step("downgrade", || replace_under_traffic(&host, &mut dialer, First));
    step("remove", || remove_under_traffic(&host, &mut dialer, "two"));
    drop(dialer);
    step("purge", || purge(&host, &before));
    step("nothing was denied", || assert_eq!(confinement.denied(&host), Vec::<String>::new()));
}
