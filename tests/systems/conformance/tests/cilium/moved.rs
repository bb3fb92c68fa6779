//! From Cilium to holdfast node by node, back on one of them, and the leftovers of an agent that never returns.
//!
//! Invariant: inside clients never leave, and all of their attempts are answered.

use std::collections::BTreeMap;
use std::time::Duration;

use holdfast_conformance::{Cluster, MachineName};
use holdfast_fixtures::clock::pause;

use super::clients::{Client, PROGRAM, assert_well, now};
use super::page::{Page, at, removals};
use super::stage::{NODES, Setup, agent, configure, inside, outside, shared_settings, start};
use super::typing::{eventually, typed};

/// How long clients dial before the next step: some fifty attempts each.
const WHILE: Duration = Duration::from_secs(5);

/// Lines of `holdfast status` next to Cilium's replacement.
const BESIDE: [&str; 3] = [
    "alongside  Cilium (listens on port 9879",
    "translates connects of processes and pods, at the cgroup: kubeProxyReplacement: false",
    "translates packets of clients outside, at eth0: kubeProxyReplacement: false",
];

/// The line next to a Cilium without it.
const PACKETS_OF_PODS: &str = "translates packets of pods to ClusterIPs, at the devices of";

/// The heading of the section about Cilium.
const LEFT: &str = "\nCilium\n";

#[test]
fn pods_keep_services_when_moved_from_cilium_with_iptables_masquerading() {
    follow_the_page(Setup { masquerades_by_bpf: false, gops: true });
}

#[test]
fn pods_keep_services_when_moved_from_cilium_with_bpf_masquerading() {
    follow_the_page(Setup { masquerades_by_bpf: true, gops: false });
}

fn follow_the_page(setup: Setup) {
    let (before, cluster) = (shared_settings(), start(setup));
    let mut course = Course::begin(&cluster, setup);
    course.is_well("with Cilium alone", course.begun);
    typed(&cluster, "cp", &course.page.once);
    NODES.iter().for_each(|node| course.leave(node));
    course.come_back("n2");
    assert_well(&course.inside, course.begun, "the whole course");
    course.be_left_behind("n2");
    assert_eq!(shared_settings(), before, "what the whole kernel has is as it was");
}

/// The steps of the page, with all clients.
struct Course<'a> {
    cluster: &'a Cluster,
    setup: Setup,
    page: Page,
    begun: u64,
    inside: Vec<Client>,
    /// Outside clients by the node that they dial: they leave it when the page says so.
    outside: BTreeMap<&'a str, Client>,
}

impl<'a> Course<'a> {
    fn begin(cluster: &'a Cluster, setup: Setup) -> Self {
        let clients = NODES.map(|node| (node, outside(cluster, "client", node)));
        let mut course = Self {
            cluster,
            setup,
            page: Page::read(),
            begun: now(),
            inside: inside(cluster),
            outside: clients.into(),
        };
        // They dialled before all servers were ready.
        eventually("all are answered", || {
            course.begun = now();
            pause(WHILE);
            course.inside.iter().chain(course.outside.values()).all(|it| it.met(course.begun).is_well())
        });
        course
    }

    #[track_caller]
    fn is_well(&self, during: &str, since: u64) {
        assert_well(self.inside.iter().chain(self.outside.values()), since, during);
    }

    /// Runs a block of the page at the control plane.
    #[track_caller]
    fn order(&self, block: &str, node: &str) -> String {
        typed(self.cluster, "cp", &at(block, node, &agent(self.cluster, node)))
    }

    /// The output of a line, whatever its exit code.
    fn told(&self, machine: &str, line: &str) -> String {
        let said = self.cluster.on(machine).unwrap().run(&["sh", "-c", line]).unwrap();
        String::from_utf8_lossy(&[said.stdout, said.stderr].concat()).into_owned()
    }

    /// Steps 2 to 6 of the page for one node, with one more client that stays against the page's advice.
    fn leave(&mut self, node: &'a str) {
        let since = now();
        self.clients_go(node);
        let stubborn = outside(self.cluster, "stubborn", node);
        pause(WHILE);
        self.start(node);
        self.is_well(&format!("{node}: both run"), since);
        assert_well([&stubborn], since, &format!("{node}: both run, for who stays"));
        let off = now();
        self.order(&self.page.off, node);
        pause(WHILE);
        assert_only_held_are_lost(&stubborn, off, node);
        let alone = now();
        self.look(node);
        pause(WHILE);
        assert_well([&stubborn], alone, &format!("{node}: the replacement is off, for who stays"));
        self.clients_come(node);
        self.is_well(&format!("{node}: served by holdfast"), since);
    }

    /// Moves outside clients to another node.
    fn take_out(&mut self, node: &str) {
        self.order(&self.page.out[0], node);
        drop(self.outside.remove(node));
    }

    /// Moves them, and waits as the page says.
    fn clients_go(&mut self, node: &str) {
        self.take_out(node);
        let count = at(&self.page.out[1], node, &agent(self.cluster, node));
        eventually("its clients have gone", || self.told("cp", &count).trim() == "0");
    }

    /// Moves clients back once NodePorts of pods of either node answer.
    fn clients_come(&mut self, node: &'a str) {
        eventually("NodePorts answer", || answers(self.cluster, node));
        self.order(&self.page.come, node);
        self.outside.insert(node, outside(self.cluster, "client", node));
        pause(WHILE);
    }

    #[track_caller]
    fn start(&self, node: &str) {
        if self.setup.gops {
            self.find_the_address_taken(node);
        }
        self.says(node, &self.page.start, |status| BESIDE.iter().all(|line| status.contains(line)));
        let diagnosis = self.told(node, "holdfast diagnose default/one -o wide");
        assert!(diagnosis.contains("Cilium is, or was, on this node: listens on port 9879"), "{diagnosis}");
        pause(WHILE);
    }

    /// With the default configuration next to Cilium's own server: it serves, and answers only on its socket.
    #[track_caller]
    fn find_the_address_taken(&self, node: &str) {
        self.says(node, &self.page.start, |status| status.contains("ready      yes"));
        let log = typed(self.cluster, node, "journalctl --unit holdfast");
        assert!(log.contains("cannot listen on 127.0.0.1:9890: another process does"), "{log}");
        configure(self.cluster, node, &self.page.admin);
        typed(self.cluster, node, "systemctl restart holdfast && curl -sf 127.0.0.1:9895/livez");
    }

    #[track_caller]
    fn look(&self, node: &str) {
        let status = self.says(node, &self.page.look, |status| status.contains(PACKETS_OF_PODS));
        assert!(!status.contains("at the cgroup") && !status.contains("clients outside"), "{status}");
    }

    /// Runs a block of the page on a node, and repeats it until the answer fits: holdfast looks for other proxies
    /// after it has begun to serve.
    #[track_caller]
    fn says(&self, node: &str, block: &str, is_so: impl Fn(&str) -> bool) -> String {
        let mut status = self.told(node, block);
        eventually("said", || {
            let found = is_so(&status);
            if !found {
                status = self.told(node, "holdfast status");
            }
            found
        });
        println!("{node}: {status}");
        status
    }

    fn come_back(&mut self, node: &'a str) {
        let since = now();
        self.take_out(node);
        self.order(&self.page.on, node);
        let said = typed(self.cluster, node, &self.page.end);
        println!("{node}: {said}");
        assert_eq!(self.told(node, "ls /sys/fs/bpf/holdfast 2>/dev/null"), "", "{node}: nothing is left");
        self.clients_come(node);
        self.is_well(&format!("{node}: the way back"), since);
    }

    /// The agent does not return; each leftover is reported with the page's command that removes it.
    fn be_left_behind(&self, node: &str) {
        let gone = "kubectl -n kube-system delete daemonset cilium --cascade=foreground";
        typed(self.cluster, "cp", gone);
        let status = self.says(node, &self.page.start, |status| status.contains(LEFT));
        let diagnosis = self.told(node, "holdfast diagnose default/one");
        assert!(diagnosis.contains("Cilium's agent does not run here"), "{diagnosis}");
        let known = removals();
        for command in commands(&status) {
            assert!(known.contains(&command), "{command} is not on the page: {known:#?}");
            typed(self.cluster, node, &command);
        }
        self.told(node, &self.page.look);
        pause(WHILE);
        let status = self.told(node, "holdfast status");
        assert!(status.contains("ready      yes") && !status.contains("Cilium"), "{status}");
    }
}

/// An outside client that stayed loses its former held connections, and nothing else.
#[track_caller]
fn assert_only_held_are_lost(client: &Client, since: u64, node: &str) {
    let tally = client.met(since);
    println!("== {node}: the replacement goes, for who stays\n{tally}");
    assert!(tally.at(":3070").is_well(), "new connections: {tally}");
    assert!(tally.at(":3071").was_lost(), "connections from before: {tally}");
}

/// Whether an outside client reaches a pod of either node through this one.
fn answers(cluster: &Cluster, node: &str) -> bool {
    let [address, _] = node.parse::<MachineName>().unwrap().addresses();
    ["30701", "30702"].iter().all(|port| {
        let asked = cluster.on("out").unwrap().run(&[PROGRAM, "ask", &format!("{address}:{port}")]);
        asked.unwrap().status.success()
    })
}

/// The commands in `holdfast status` for Cilium's leftovers.
fn commands(status: &str) -> Vec<String> {
    let rest = status.split_once(LEFT).unwrap_or_else(|| panic!("nothing of Cilium: {status}")).1;
    let lines = rest.lines().take_while(|line| line.starts_with("  "));
    lines.map(|line| line.split_once(": ").unwrap().1.to_owned()).collect()
}
