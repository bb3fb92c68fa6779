//! The log as journald gets it, through outages and their ends.
//!
//! Invariant: the warnings of a service and its records are the whole story: what `journalctl -p warning` and
//! `HOLDFAST_SERVICE=` select. The daemon runs with the maps in memory and with the kernel's programs.

use std::collections::BTreeMap;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use holdfast_tests::bed::ask::{Outcome, Question, Transport};
use holdfast_tests::bed::daemon::Daemon;
use holdfast_tests::bed::{Bed, Location, Server, succeed};

const SOON: Duration = Duration::from_secs(60);

/// A service whose backends the daemon checks, and the log in the journal's own format.
const CONFIG: &str = "
[node]
name = \"n1\"
[log]
format = \"journald\"
[[service]]
name = \"checked\"
frontends = [\"10.96.0.20:80\"]
backends = [\"127.0.0.8:8080\", \"127.0.0.9:8080\"]
health_check = { interval = \"100ms\", timeout = \"100ms\", rise = 1, fall = 1 }
";

/// A service of one endpoint, at the address of all of them.
fn service(name: &str, is_ready: bool) -> String {
    format!(
        "
apiVersion: v1
kind: Service
metadata: {{name: {name}, namespace: shop}}
spec: {{type: ClusterIP, clusterIP: 10.96.0.10, ports: [{{port: 80, targetPort: 8080}}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: {name}-1, namespace: shop, labels: {{kubernetes.io/service-name: {name}}}}}
addressType: IPv4
ports: [{{port: 8080}}]
endpoints: [{{addresses: [127.0.0.8], conditions: {{ready: {is_ready}}}}}]
"
    )
}

/// A journald in the daemon's mount namespace, which only keeps what it gets.
struct Journal {
    socket: UnixDatagram,
    records: Vec<Record>,
}

/// The fields of one line of the log. Those with a line end in them are left out.
type Record = BTreeMap<String, String>;

impl Journal {
    /// Puts its socket where the daemon looks for it. The bed's mounts end with the bed.
    fn open(bed: &Bed, daemon: &Daemon<'_>) -> Self {
        let folder = daemon.folder().join("journal");
        std::fs::create_dir(&folder).unwrap();
        let socket = UnixDatagram::bind(folder.join("socket")).unwrap();
        socket.set_nonblocking(true).unwrap();
        let mut command = bed.command(Location::OUTSIDE, "sh").unwrap();
        command.arg("-ec").arg(format!(
            "mount -t tmpfs none /run; mkdir -p /run/systemd/journal; mount --bind {} /run/systemd/journal",
            folder.display()
        ));
        succeed(command, SOON).unwrap();
        Self { socket, records: Vec::new() }
    }

    fn read(&mut self) {
        let mut bytes = vec![0; 1 << 16];
        while let Ok(count) = self.socket.recv(&mut bytes) {
            let text = String::from_utf8_lossy(&bytes[..count]).into_owned();
            let fields = text.lines().filter_map(|line| line.split_once('='));
            self.records.push(fields.map(|(name, value)| (name.to_owned(), value.to_owned())).collect());
        }
    }

    /// Waits for a record with these fields.
    #[track_caller]
    fn wait_for(&mut self, daemon: &mut Daemon<'_>, wanted: &[(&str, &str)]) {
        let has = |record: &Record| {
            wanted.iter().all(|(name, value)| record.get(*name).is_some_and(|it| it.starts_with(value)))
        };
        let until = std::time::Instant::now() + SOON;
        loop {
            self.read();
            if self.records.iter().any(has) {
                return;
            }
            let is_late = std::time::Instant::now() > until || !daemon.is_running();
            assert!(!is_late, "no record with {wanted:?} in {:#?}", self.records);
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The records of services at this priority, or a more urgent one.
    fn select(&self, priority: u8) -> Vec<Line<'_>> {
        let is_urgent = |record: &&Record| record["PRIORITY"].parse::<u8>().unwrap() <= priority;
        self.records.iter().filter(is_urgent).filter_map(Line::read).collect()
    }
}

/// A record of a service.
#[derive(Debug, PartialEq, Eq)]
struct Line<'a> {
    service: &'a str,
    /// The words before the fields.
    text: &'a str,
    verdict: &'a str,
}

impl<'a> Line<'a> {
    fn read(record: &'a Record) -> Option<Self> {
        let (service, message) = (record.get("HOLDFAST_SERVICE")?, &record["MESSAGE"]);
        let (text, fields) =
            message.split_once(" service=").unwrap_or_else(|| panic!("no service=: {message}"));
        assert!(fields.starts_with(service), "{message}");
        let verdict = record.get("HOLDFAST_VERDICT").map_or("", String::as_str);
        Some(Self { service, text, verdict })
    }
}

const fn line<'a>(service: &'a str, text: &'a str, verdict: &'a str) -> Line<'a> {
    Line { service, text, verdict }
}

fn serve(bed: &Bed, at: &str) -> Server {
    bed.serve_seen_source(Location::OUTSIDE, "web", &[at.parse().unwrap()]).unwrap()
}

/// Runs through each kind of outage and its end, and returns all records since the daemon served.
fn story(is_in_memory: bool) -> Journal {
    let bed = Bed::new().unwrap();
    let _first = serve(&bed, "127.0.0.8:8080");
    let second = serve(&bed, "127.0.0.9:8080");
    let mut daemon = Daemon::new(&bed, CONFIG).unwrap();
    if is_in_memory {
        daemon.keep_maps_in_memory();
        daemon.configure(CONFIG).unwrap();
    }
    let mut journal = Journal::open(&bed, &daemon);
    daemon.write_manifest("web.yaml", &service("web", true)).unwrap();
    daemon.start().unwrap();
    let serving = [("HOLDFAST_SERVICE", "shop/web"), ("HOLDFAST_VERDICT", "serving")];
    journal.wait_for(&mut daemon, &serving);
    daemon.wait_until(|it| Ok(it.status().is_some_and(|status| status["good"] == true))).unwrap();
    journal.read();
    journal.records.iter().for_each(|record| println!("<{}>{}", record["PRIORITY"], record["MESSAGE"]));
    journal.records.clear();

    daemon.write_manifest("web.yaml", &service("web", false)).unwrap();
    journal.wait_for(&mut daemon, &[("HOLDFAST_SERVICE", "shop/web"), ("HOLDFAST_VERDICT", "refusing")]);
    if !is_in_memory {
        let question = Question::new(Transport::Tcp, "10.96.0.10:80".parse().unwrap());
        let outcome = bed.asker(Location::NODE).unwrap().ask_all(&[question]).unwrap().remove(0);
        assert_eq!(outcome, Outcome::Refused);
        journal.wait_for(&mut daemon, &[("MESSAGE", "a client was not served service=shop/web")]);
    }
    daemon.write_manifest("web.yaml", &service("web", true)).unwrap();
    journal.wait_for(&mut daemon, &serving);
    drop(second);
    journal.wait_for(&mut daemon, &[("MESSAGE", "backend unready")]);
    let _second = serve(&bed, "127.0.0.9:8080");
    journal.wait_for(&mut daemon, &[("MESSAGE", "backend ready")]);
    daemon.write_manifest("web-two.yaml", &service("web-two", true)).unwrap();
    journal.wait_for(&mut daemon, &[("HOLDFAST_SERVICE", "shop/web-two"), ("HOLDFAST_OWNER", "shop/web")]);
    daemon.stop().unwrap();
    journal.read();
    journal
}

#[track_caller]
fn check(is_in_memory: bool) {
    let journal = story(is_in_memory);
    let warnings = journal.select(4);
    assert_eq!(
        warnings,
        [
            line("shop/web", "verdict changed", "refusing"),
            line("static/checked", "backend unready", ""),
            line("shop/web-two", "frontend added", "conflict"),
        ]
    );
    let mut notices = journal.select(5);
    notices.retain(|it| !warnings.contains(it));
    assert_eq!(
        notices,
        [line("shop/web", "verdict changed", "serving"), line("static/checked", "backend ready", "")]
    );
    let refused = journal.select(6).iter().filter(|it| it.text == "a client was not served").count();
    assert_eq!(refused, usize::from(!is_in_memory));
}

#[test]
fn memory_warnings_and_notices_tell_each_outage_and_its_end() {
    check(true);
}

#[test]
fn kernel_warnings_and_notices_tell_each_outage_and_its_end() {
    check(false);
}
