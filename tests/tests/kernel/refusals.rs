//! The daemon records the clients that the kernel refused, and `cleanup` removes the datapath. Needs root.

// Everything here is a test.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::ffi::OsString;
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use crate::bed::{Port, address, bed, check_errno, dropped, tcp_backend};
use holdfast_agent::datapath::{RefusalLog, RefusalSnapshot};
use holdfast_cli::{self as cli, Command, Exit};
use holdfast_core::op::WordFlags;
use holdfast_datapath::{Denial, KernelMaps};
use holdfast_fixtures::clock::{pause, wait_for};

fn wait_for_refusals(log: &RefusalLog, count: usize) -> RefusalSnapshot {
    wait_for("the refusals", || Some(log.snapshot()).filter(|snapshot| snapshot.latest.len() >= count))
}

fn wall_seconds() -> i64 {
    holdfast_host::clock::now().0 / 1_000
}

/// Sets up a frontend that refuses and one that drops.
fn turn_away(maps: &mut KernelMaps) {
    Port { index: 1, frontends: &["10.96.0.20:80"], ..Port::TCP }.serve(maps);
    Port { index: 2, frontends: &["10.96.0.21:80"], flags: WordFlags::DROP, ..Port::TCP }.serve(maps);
}

#[test]
fn kernel_refusals_from_before_the_start_are_recorded_with_their_time() {
    bed(|bed| {
        let mut maps = bed.start();
        turn_away(&mut maps);
        let begin = wall_seconds();
        check_errno(TcpStream::connect(address("10.96.0.20:80")), libc::ECONNREFUSED, "nobody");
        let (reader, stop) = std::io::pipe().unwrap();
        // The record has seconds, and the kernel takes the time.
        pause(Duration::from_secs(2));
        let log = RefusalLog::start(maps.refusals().unwrap(), reader).unwrap();
        check_errno(TcpStream::connect(address("10.96.0.21:80")), dropped(&maps), "elsewhere");
        let told = wait_for_refusals(&log, 2);
        drop(stop);
        let dialled: Vec<_> = told.latest.iter().map(|it| it.refusal.frontend.to_string()).collect();
        assert_eq!(dialled, ["10.96.0.20:80/TCP", "10.96.0.21:80/TCP"]);
        assert_eq!(log.totals(), [(Denial::Refused, 1), (Denial::Dropped, 1)]);
        assert!(told.latest.iter().all(|it| it.refusal.process == std::process::id()));
        let end = wall_seconds();
        let times: Vec<_> = told.latest.iter().map(|row| row.last.0).collect();
        assert!(begin <= times[0] && times[0] < times[1] && times[1] <= end, "{begin} {times:?} {end}");
        assert_eq!(told.failure, None);
    });
}

/// Runs `holdfast cleanup` on the pins in that folder.
fn cleanup(folder: &Path, pins: &Path) -> (Exit, String, String) {
    let config = folder.join("config.toml");
    let state = folder.join("state");
    let text = format!("[datapath]\nbpffs = {:?}\n[state]\npath = {:?}\n", pins.display(), state.display());
    std::fs::write(&config, text).unwrap();
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let arguments = ["holdfast", "cleanup", "--config", config.to_str().unwrap()].map(OsString::from);
    let cli = cli::parse(arguments, &mut out, &mut err).unwrap();
    let Command::Client(question) = &cli.command else { panic!("a question") };
    let exit = cli.run_command(question, &mut out, &mut err);
    (exit, String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap())
}

#[test]
fn kernel_the_cleanup_command_frees_refused_clients() {
    bed(|bed| {
        let folder = tempfile::tempdir().unwrap();
        let pins = bed.options().bpffs;
        let vip = "127.9.9.9:80";
        let mut maps = bed.start();
        Port { frontends: &[vip], ..Port::TCP }.serve(&mut maps);
        tcp_backend(vip);
        let (exit, out, err) = cleanup(folder.path(), &pins);
        assert_eq!((exit, out.as_str()), (Exit::Finding, ""));
        assert!(err.contains("another holdfast runs"), "{err}");
        drop(maps);
        check_errno(TcpStream::connect(address(vip)), libc::ECONNREFUSED, "the programs are still there");
        let (exit, out, err) = cleanup(folder.path(), &pins);
        let said = format!("{}: removed; no connection is translated any more\n", pins.display());
        assert_eq!((exit, out, err), (Exit::Good, said, String::new()));
        TcpStream::connect(address(vip)).unwrap();
        assert!(!pins.exists());
        assert_eq!(cleanup(folder.path(), &pins).0, Exit::Good, "and again");
    });
}

#[test]
fn kernel_the_cleanup_command_reports_nothing_only_if_nothing_exists() {
    bed(|bed| {
        let folder = tempfile::tempdir().unwrap();
        let pins = bed.options().bpffs;
        let route = ["route", "add", "blackhole", "192.0.2.7/32", "protocol", "104", "table", "180"];
        assert!(std::process::Command::new("ip").args(route).status().unwrap().success());
        let (exit, out, err) = cleanup(folder.path(), &pins);
        assert_eq!((exit, err.as_str()), (Exit::Good, ""));
        assert!(out.contains("removed") && !out.contains("nothing is there"), "{out}");
        assert!(out.contains("1 routes to announced addresses removed"), "{out}");
        let (exit, out, _) = cleanup(folder.path(), &pins);
        assert_eq!((exit, out), (Exit::Good, format!("{}: nothing is there\n", pins.display())));
    });
}

/// The pins are hidden, as by another file system mounted over them.
#[test]
fn kernel_the_cleanup_command_keeps_routes_of_hidden_pins() {
    bed(|bed| {
        let folder = tempfile::tempdir().unwrap();
        let pins = bed.options().bpffs;
        let route = ["route", "add", "blackhole", "192.0.2.7/32", "protocol", "104", "table", "180"];
        assert!(std::process::Command::new("ip").args(route).status().unwrap().success());
        let claim = holdfast_agent::state::StateFolder::new(&folder.path().join("state")).claim().unwrap();
        let (exit, out, err) = cleanup(folder.path(), &pins);
        assert_eq!((exit, out.as_str()), (Exit::Finding, ""));
        assert!(err.contains("another holdfast runs with the state in "), "{err}");
        drop(claim);
        let (_, out, _) = cleanup(folder.path(), &pins);
        assert!(out.contains("1 routes to announced addresses removed"), "{out}");
    });
}
