//! A node with holdfast, in the middle of a fabric.
//!
//! Invariant: the daemon reads the table's objects from its folder, and recognizes pods only by their devices.

use std::time::Duration;

use holdfast_tests::bed::daemon::Daemon;
use holdfast_tests::bed::fabric::{self, Switches};
use holdfast_tests::bed::{Bed, Location, Server, succeed};
use holdfast_tests::packets::{Clients, objects, serve, sign};
use serde_json::Value;

/// The daemon serves devices and lists within a second; a busy machine takes longer.
pub(crate) const SERVED: Duration = Duration::from_secs(30);

/// The node of the table, without holds, because kube-proxy holds nothing.
pub(crate) const CONFIG: &str = "[hold]\non_empty = \"refuse\"\n[node]\nname = \"n1\"\n";

/// A daemon with all objects of the table in one file. `more` begins with keys of `[node]`.
pub(crate) fn daemon<'a>(bed: &'a Bed, more: &str) -> Daemon<'a> {
    let daemon = Daemon::new(bed, &format!("{CONFIG}{more}")).unwrap();
    write(&daemon, "table", &objects());
    daemon
}

/// The daemon of the other node, without the table's sign.
pub(crate) fn other_daemon<'a>(bed: &'a Bed, more: &str) -> Daemon<'a> {
    let config = CONFIG.replace("n1", "n2");
    let daemon = Daemon::at(bed, "node2", &format!("{config}{more}")).unwrap();
    write(&daemon, "table", &objects());
    daemon
}

/// Replaces a whole file of objects.
pub(crate) fn write(daemon: &Daemon<'_>, name: &str, objects: &[Value]) {
    let documents: Vec<String> = objects.iter().map(ToString::to_string).collect();
    daemon.write_manifest(&format!("{name}.yaml"), &documents.join("\n---\n")).unwrap();
}

/// A place of the fabric: "node" or one of the others.
pub(crate) fn location(place: &str) -> Location<'_> {
    if place == "node" { Location::OUTSIDE } else { Location::far(place) }
}

/// Runs a program at a place of the fabric, and returns its output.
#[track_caller]
pub(crate) fn run(bed: &Bed, place: &str, program: &str, words: &str) -> String {
    let mut command = bed.command(location(place), program).unwrap();
    command.args(words.split(' '));
    succeed(command, SERVED).unwrap()
}

#[track_caller]
pub(crate) fn ip(bed: &Bed, place: &str, words: &str) {
    run(bed, place, "ip", words);
}

/// The daemon's last log lines.
pub(crate) fn last_lines(daemon: &Daemon<'_>) -> String {
    let said = daemon.logged();
    let lines: Vec<&str> = said.lines().rev().take(20).collect();
    lines.into_iter().rev().collect::<Vec<_>>().join("\n")
}

/// Servers behind the services, and clients of each kind.
pub(crate) struct Around {
    pub(crate) clients: Clients,
    _servers: Vec<Server>,
}

impl Around {
    pub(crate) fn start(bed: &Bed) -> Self {
        Self { _servers: serve(bed).unwrap(), clients: Clients::start(bed).unwrap() }
    }

    #[track_caller]
    pub(crate) fn wait_until_served(&mut self, daemon: &Daemon<'_>) {
        let served = self.clients.wait_for(&sign(), SERVED).unwrap();
        assert!(served, "nothing comes back from outside; the daemon said:\n{}", last_lines(daemon));
        let refused = self.clients.wait_until_refused(&sign(), SERVED).unwrap();
        assert!(
            refused,
            "a port that no service has is not refused; the daemon said:\n{}",
            last_lines(daemon)
        );
    }
}

/// Runs a closure on a served node.
#[track_caller]
pub(crate) fn on_a_node<T>(
    switches: Switches,
    more: &str,
    run: impl FnOnce(&Bed, &mut Daemon<'_>, &mut Clients) -> T,
) -> T {
    on_this(&fabric::bed(switches).unwrap(), more, run)
}

/// Runs a closure on the node of an existing fabric.
#[track_caller]
pub(crate) fn on_this<T>(
    bed: &Bed,
    more: &str,
    run: impl FnOnce(&Bed, &mut Daemon<'_>, &mut Clients) -> T,
) -> T {
    let mut around = Around::start(bed);
    let mut daemon = daemon(bed, more);
    daemon.start().unwrap();
    around.wait_until_served(&daemon);
    run(bed, &mut daemon, &mut around.clients)
}
