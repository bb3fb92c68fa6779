//! The bed of a fault: a node with a pod, a daemon on one of two datapaths, and what brings the fault about.

use std::net::SocketAddr;
use std::time::Duration;

use holdfast_tests::bed::ask::{Outcome, Question, Transport};
use holdfast_tests::bed::daemon::Daemon;
use holdfast_tests::bed::{Bed, Dialer, Layout, Location, Neighbour, Server, succeed};
use holdfast_tests::fake::{Authority, Cluster, Names, Server as Apiserver};

use super::cases::{Case, Meeting, Twist, Who};

const SOON: Duration = Duration::from_secs(60);

/// The carrier of the traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Datapath {
    Memory,
    Kernel,
}

/// What lives as long as the fault.
pub(super) struct Held {
    _servers: Vec<Server>,
    _apiserver: Option<Apiserver>,
    /// Clients outside that are refused again and again, as long as somebody looks.
    _dialers: Vec<Dialer>,
}

pub(super) struct Stage {
    bed: Bed,
}

impl Stage {
    /// A node at 192.0.2.1 that forwards, with pods at 10.1.0.2 and 10.1.0.3, and a machine at 10.2.0.2.
    pub(super) fn new() -> Self {
        let pods = vec!["10.1.0.2/24", "10.1.0.3/24"];
        let neighbours = vec![
            Neighbour { name: "pod", near: vec!["10.1.0.1/24"], far: pods },
            Neighbour { name: "machine", near: vec!["10.2.0.1/24"], far: vec!["10.2.0.2/24"] },
        ];
        let local = vec!["192.0.2.1/32"];
        let bed = Bed::lay(&Layout { local, neighbours, ..Layout::default() }).unwrap();
        let forward = || std::fs::write("/proc/sys/net/ipv4/ip_forward", "1");
        bed.within(Location::NODE, forward).unwrap().unwrap();
        Self { bed }
    }

    pub(super) const fn bed(&self) -> &Bed {
        &self.bed
    }

    /// A daemon with the case's configuration and manifests, which is not started yet.
    pub(super) fn daemon(&self, case: &Case, datapath: Datapath) -> Daemon<'_> {
        let mut daemon = Daemon::new(&self.bed, "").unwrap();
        if datapath == Datapath::Memory {
            daemon.keep_maps_in_memory();
        }
        daemon.configure(&configuration(case)).unwrap();
        if !case.manifests.is_empty() {
            daemon.write_manifest("shop.yaml", case.manifests).unwrap();
        }
        daemon
    }

    /// Starts the daemon and what the case has. Clients meet the fault, where the kernel's programs carry them.
    pub(super) fn bring_about(&self, case: &Case, daemon: &mut Daemon<'_>, datapath: Datapath) -> Held {
        let servers = case.servers.iter().map(|at| self.serve(at)).collect();
        let apiserver = self.twist(case, daemon);
        if datapath == Datapath::Kernel {
            case.clients.iter().for_each(|it| self.meet(it, daemon));
        }
        let dialers = if datapath == Datapath::Kernel { self.dial_again(case) } else { Vec::new() };
        Held { _servers: servers, _apiserver: apiserver, _dialers: dialers }
    }

    fn dial_again(&self, case: &Case) -> Vec<Dialer> {
        let is_refused =
            |it: &&Meeting| matches!(it.who, Who::Outside) && matches!(it.meets, Some(Outcome::Refused));
        let dial = |it: &Meeting| self.bed.dial(Location::far("machine"), it.dials.parse().unwrap()).unwrap();
        case.clients.iter().filter(is_refused).map(dial).collect()
    }

    fn twist(&self, case: &Case, daemon: &mut Daemon<'_>) -> Option<Apiserver> {
        match case.twist {
            Twist::None => daemon.start().unwrap(),
            Twist::ApiserverEnds => {
                let stage = FakeApiserver::start(&self.bed);
                daemon.configure(&(configuration(case) + &stage.configuration(daemon))).unwrap();
                daemon.start().unwrap();
                daemon.wait_until(|it| Ok(it.tell(&["services"])?.contains("shop"))).unwrap();
                stage.server.stop();
                return Some(stage.server);
            }
            Twist::BlockAppended => {
                daemon.start().unwrap();
                let second = case.config.replace("\"web\"", "\"api\"");
                daemon.configure(&(configuration(case) + &second)).unwrap();
                daemon.tell(&["reload"]).unwrap();
            }
            Twist::DiskFills => {
                self.mount_small(daemon);
                daemon.start().unwrap();
                self.fill(daemon);
                daemon.write_manifest("more.yaml", super::cases::MORE).unwrap();
            }
        }
        None
    }

    fn serve(&self, at: &str) -> Server {
        let address: SocketAddr = at.parse().unwrap();
        let location = if at.starts_with("10.1.0.") { Location::pod("pod") } else { Location::OUTSIDE };
        self.bed.serve_seen_source(location, "web", &[address]).unwrap()
    }

    /// Dials often enough to meet every backend.
    fn meet(&self, meeting: &Meeting, daemon: &mut Daemon<'_>) {
        let location = match meeting.who {
            Who::Process => Location::NODE,
            Who::Outside => Location::far("machine"),
        };
        let question = Question::new(Transport::Tcp, meeting.dials.parse().unwrap());
        let mut asker = self.bed.asker(location).unwrap();
        let outcomes = asker.ask_all(&vec![question; 40]).unwrap();
        let is_as_expected = match &meeting.meets {
            Some(expected) => outcomes.contains(expected),
            None => outcomes.iter().all(|it| matches!(it, Outcome::Answered { .. })),
        };
        assert!(is_as_expected, "{}: {outcomes:?}\n{}", meeting.dials, daemon.logged());
    }

    fn mount_small(&self, daemon: &Daemon<'_>) {
        std::fs::create_dir_all(daemon.state()).unwrap();
        self.run("mount", &["-t", "tmpfs", "-o", "size=256k", "none", &daemon.state().display().to_string()]);
    }

    fn fill(&self, daemon: &Daemon<'_>) {
        let file = daemon.state().join("filler").display().to_string();
        self.run("sh", &["-c", &format!("cat /dev/zero > {file} 2> /dev/null || true")]);
    }

    fn run(&self, program: &str, words: &[&str]) {
        let mut command = self.bed.command(Location::OUTSIDE, program).unwrap();
        command.args(words);
        succeed(command, SOON).unwrap();
    }
}

fn configuration(case: &Case) -> String {
    format!("[node]\nname = \"n1\"\nnode_port_addresses = [\"192.0.2.0/24\"]\n{}", case.config)
}

/// The answer of the daemon's CLI, with the exit code.
pub(super) fn answer(daemon: &Daemon<'_>, words: &[&str]) -> (Option<i32>, String) {
    let config = daemon.config().display().to_string();
    let words: Vec<&str> =
        words.iter().map(|word| if *word == "FILE" { config.as_str() } else { word }).collect();
    daemon.answer_whole(&words).unwrap()
}

/// An apiserver with one service, in the node's network.
struct FakeApiserver {
    server: Apiserver,
    authority: Authority,
}

impl FakeApiserver {
    fn start(bed: &Bed) -> Self {
        let cluster = Cluster::new("7c8d4a2e-0000-4000-8000-00000000fa17");
        super::cases::cluster_objects().into_iter().for_each(|it| {
            cluster.apply(it).unwrap();
        });
        let authority = Authority::new().unwrap();
        let identity = authority.server(&Names::Kubernetes).unwrap();
        let server = bed.within(Location::NODE, || Apiserver::start(&cluster, &identity).unwrap()).unwrap();
        Self { server, authority }
    }

    fn configuration(&self, daemon: &Daemon<'_>) -> String {
        let ca = daemon.folder().join("ca.pem");
        std::fs::write(&ca, self.authority.pem()).unwrap();
        format!(
            "[apiserver]\nendpoints = [\"{}\"]\nca_file = {:?}\ndiscover = []\n\
             tls_server_name = \"kubernetes.default.svc\"\n",
            self.server.url(),
            ca.display().to_string()
        )
    }
}
