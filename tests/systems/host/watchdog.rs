//! A daemon with a hanging engine is killed and replaced, while the kernel's datapath serves.

use std::fs;

use holdfast_tests::host::Host;
use nix::sys::ptrace;
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;

use super::{VIP, address, property, serving};

/// A stopped process would be noticed at once; only the watchdog notices one hanging thread.
fn hang_the_engine(host: &Host) -> Pid {
    for process in host.processes("system.slice/holdfast.service") {
        for task in fs::read_dir(format!("/proc/{process}/task")).unwrap().flatten() {
            let name = fs::read_to_string(task.path().join("comm")).unwrap();
            if name.trim_end() == "engine" {
                let thread = Pid::from_raw(task.file_name().to_str().unwrap().parse().unwrap());
                ptrace::seize(thread, ptrace::Options::empty()).unwrap();
                ptrace::interrupt(thread).unwrap();
                return thread;
            }
        }
    }
    panic!("no thread is called engine");
}

#[test]
fn a_hanging_engine_is_replaced_and_traffic_never_stops() {
    let (mut host, _server) = serving();
    host.write("/etc/systemd/system/holdfast.service.d/test.conf", "[Service]\nWatchdogSec=2s\n").unwrap();
    host.run(&["systemctl", "daemon-reload"]).unwrap().expect_success();
    host.run(&["systemctl", "restart", "holdfast"]).unwrap().expect_success();
    let mut dialer = host.dial(address(VIP)).unwrap();
    let before = property(&host, "MainPID");
    let thread = hang_the_engine(&host);
    host.wait_for("another daemon", |host| {
        // The dead thread of a dead process stays until its tracer has waited for it.
        let _ = waitpid(thread, Some(WaitPidFlag::WNOHANG | WaitPidFlag::__WALL));
        property(host, "ActiveState") == "active"
            && ![before.as_str(), "0"].contains(&property(host, "MainPID").as_str())
    })
    .unwrap();
    let tally = dialer.tally().unwrap();
    assert!(tally.failed.is_empty() && tally.connected > 500, "{tally:?}");
    let journal =
        host.run(&["journalctl", "--unit", "holdfast", "--grep", "[Ww]atchdog"]).unwrap().expect_success();
    assert!(journal.contains("atchdog"), "{journal}");
}

#[test]
fn a_stopped_process_is_replaced() {
    let (mut host, _server) = serving();
    host.write("/etc/systemd/system/holdfast.service.d/test.conf", "[Service]\nWatchdogSec=2s\n").unwrap();
    host.run(&["systemctl", "daemon-reload"]).unwrap().expect_success();
    host.run(&["systemctl", "restart", "holdfast"]).unwrap().expect_success();
    let before = property(&host, "MainPID");
    host.run(&["systemctl", "kill", "--signal", "STOP", "holdfast"]).unwrap().expect_success();
    host.wait_for("another daemon", |host| {
        property(host, "ActiveState") == "active"
            && ![before.as_str(), "0"].contains(&property(host, "MainPID").as_str())
    })
    .unwrap();
}
