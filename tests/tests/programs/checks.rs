//! Health checks with the whole daemon and the kernel's datapath: clients while all checks fail, while results
//! alternate, while a reload changes checks, and while hundreds of backends hang.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::sleep;
use std::time::{Duration, Instant};

use holdfast_tests::bed::ask::{Asker, Outcome, Question, Transport};
use holdfast_tests::bed::daemon::Daemon;
use holdfast_tests::bed::{Bed, Location, Server};

const FRONTEND: &str = "10.96.0.10:80";

const BACKENDS: [&str; 2] = ["127.0.0.8:8080", "127.0.0.9:8080"];

/// Checks use another port than clients, so a backend that fails them still serves.
fn web(more: &str, check: &str) -> String {
    format!(
        "[[service]]\nname = \"web\"\nfrontends = [\"{FRONTEND}\"]\nbackends = [\"{}\", \"{}\"]\n{more}\n\
         health_check = {{ port = 9, interval = \"100ms\", timeout = \"100ms\", rise = 1, fall = 1 {check} }}\n",
        BACKENDS[0], BACKENDS[1],
    )
}

fn servers(bed: &Bed) -> [Server; 2] {
    BACKENDS.map(|address| {
        let address: SocketAddr = address.parse().unwrap();
        bed.serve_seen_source(Location::NODE, &address.ip().to_string(), &[address]).unwrap()
    })
}

/// The listeners that make checks pass, until dropped.
fn well(bed: &Bed) -> [TcpListener; 2] {
    bed.within(Location::NODE, || {
        BACKENDS.map(|address| {
            let address: SocketAddr = address.parse().unwrap();
            listen(SocketAddr::new(address.ip(), 9))
        })
    })
    .unwrap()
}

/// A process that is just starting may still hold the former listener.
fn listen(at: SocketAddr) -> TcpListener {
    let until = Instant::now() + Duration::from_secs(10);
    loop {
        match TcpListener::bind(at) {
            Ok(listener) => return listener,
            Err(error) => assert!(Instant::now() < until, "{at}: {error}"),
        }
        sleep(Duration::from_millis(5));
    }
}

fn ask(asker: &mut Asker) -> Outcome {
    let question = Question::new(Transport::Tcp, FRONTEND.parse().unwrap());
    asker.ask_all(&[question]).unwrap().remove(0)
}

fn verdict(daemon: &Daemon<'_>) -> String {
    let explained = daemon.ask(&["explain", "static/web"]).unwrap();
    explained["services"][0]["frontends"][0]["verdict"].as_str().unwrap().to_owned()
}

/// The last check result of each backend, and how many in a row were equal.
fn last_results(daemon: &Daemon<'_>) -> Vec<(String, u64)> {
    let explained = daemon.ask(&["explain", "static/web"]).unwrap();
    let endpoints = explained["services"][0]["endpoints"].as_array().unwrap().clone();
    let last = |it: &serde_json::Value| {
        let last = &it["check"]["last"];
        (
            last["result"].as_str().unwrap_or_default().to_owned(),
            last["in_a_row"].as_u64().unwrap_or_default(),
        )
    };
    endpoints.iter().map(last).collect()
}

#[test]
fn kernel_when_all_checks_fail_the_policy_decides_refuse_or_hold() {
    let bed = Bed::new().unwrap();
    let _servers = servers(&bed);
    for (on_empty, expected) in [("refuse", "refusing"), ("hold", "held")] {
        let mut daemon = Daemon::new(&bed, &web(&format!("on_empty = \"{on_empty}\""), "")).unwrap();
        // A service that has never served is not held.
        let good = well(&bed);
        daemon.start().unwrap();
        daemon.wait_until(|it| Ok(verdict(it) == "serving")).unwrap();
        drop(good);
        daemon.wait_until(|it| Ok(verdict(it) == expected)).unwrap();
        let outcome = ask(&mut bed.asker(Location::NODE).unwrap());
        assert_eq!(
            matches!(outcome, Outcome::Answered { .. }),
            on_empty == "hold",
            "{on_empty}: {outcome:?}"
        );
        daemon.wait_until(|it| Ok(last_results(it).iter().all(|(_, row)| *row > 3))).unwrap();
        assert!(last_results(&daemon).iter().all(|(result, _)| result == "bad"));
        let text = daemon.tell(&["explain", "static/web"]).unwrap();
        assert!(text.contains("unusable by tcp checks: ") && text.contains("cannot connect: "), "{text}");
        assert!(is_warned_of(&daemon, expected), "{}", daemon.logged());

        let well = well(&bed);
        daemon.wait_until(|it| Ok(verdict(it) == "serving")).unwrap();
        assert!(matches!(ask(&mut bed.asker(Location::NODE).unwrap()), Outcome::Answered { .. }));
        drop(well);
        daemon.stop().unwrap();
        daemon.cleanup().unwrap();
    }
}

/// Whether the log warns of this new verdict, and names the service of the refused client.
fn is_warned_of(daemon: &Daemon<'_>, verdict: &str) -> bool {
    let log = daemon.logged();
    let has = |words: &[&str]| log.lines().any(|line| words.iter().all(|word| line.contains(word)));
    let is_told = verdict == "held" || has(&["a client was not served", "service=static/web", FRONTEND]);
    is_told && has(&["WARN", "service=", "static/web", verdict, "was="])
}

/// A service with one backend on this host, without a check and without a listener.
const DEAD: &str =
    "[[service]]\nname = \"dead\"\nfrontends = [\"10.96.0.11:80\"]\nbackends = [\"127.0.0.7:8081\"]\n";

#[test]
fn kernel_a_dead_local_backend_and_a_failed_check_are_findings() {
    let bed = Bed::new().unwrap();
    let _servers = servers(&bed);
    let [good, fails] = well(&bed);
    let mut daemon = Daemon::new(&bed, &(web("", "") + DEAD)).unwrap();
    daemon.start().unwrap();
    daemon.wait_until(|it| Ok(verdict(it) == "serving")).unwrap();
    daemon.wait_until(|it| Ok(last_results(it).iter().all(|(result, _)| result == "good"))).unwrap();
    // Joins lines, so that no break splits a phrase.
    let diagnosed = |daemon: &Daemon<'_>, words: &[&str]| {
        let (code, text) = daemon.answer(&[&["diagnose"], words].concat()).unwrap();
        (code, text.split_whitespace().collect::<Vec<_>>().join(" "))
    };
    let (code, text) = diagnosed(&daemon, &["static/web", "-o", "wide"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(
        text.contains("Nothing is wrong for processes in this host's own network.")
            && text.contains("Each of 2 backends answers this host."),
        "{text}"
    );
    assert!(!daemon.tell(&["status"]).unwrap().contains("failing health checks"));

    let (code, text) = diagnosed(&daemon, &["static/dead"]);
    assert_eq!(code, Some(3), "{text}");
    assert!(text.contains("Its one backend fails: 127.0.0.7:8081 refused."), "{text}");

    drop(fails);
    daemon.wait_until(|it| Ok(unusable(it) == 1)).unwrap();
    let (code, text) = diagnosed(&daemon, &["static/web"]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("own health checks fail for 1 of 2 backends: 127.0.0.9:8080"), "{text}");
    let status = daemon.tell(&["status"]).unwrap();
    assert!(
        status.contains("failing health checks\n  static/web: 127.0.0.9:8080 fails tcp checks"),
        "{status}"
    );
    let (code, text) = diagnosed(&daemon, &["static/web", "--no-probe"]);
    assert!(code == Some(1) && text.contains("not checked connections from this host"), "{text}");
    drop(good);
    daemon.stop().unwrap();
    daemon.cleanup().unwrap();
}

#[test]
fn kernel_no_client_fails_while_check_results_or_checks_change() {
    let bed = Bed::new().unwrap();
    let _servers = servers(&bed);
    let hold = "on_empty = \"hold\"";
    let mut daemon = Daemon::new(&bed, &web(hold, "")).unwrap();
    // A service that has never served is not held.
    let good = well(&bed);
    daemon.start().unwrap();
    daemon.wait_until(|it| Ok(verdict(it) == "serving")).unwrap();
    drop(good);
    let mut dialer = bed.dial(Location::NODE, FRONTEND.parse().unwrap()).unwrap();
    let mut turns = 0;
    let until = Instant::now() + Duration::from_secs(6);
    while Instant::now() < until {
        let well = well(&bed);
        sleep(Duration::from_millis(120));
        drop(well);
        sleep(Duration::from_millis(120));
        turns += 1;
        // Another check each time, and every third time one that all pass.
        let check = ["", ", slow_start = \"1s\"", ", kind = \"http\""][turns % 3];
        daemon.configure(&web(hold, check)).unwrap();
        daemon.tell(&["reload"]).unwrap();
    }
    let tally = dialer.tally().unwrap();
    assert!(tally.failed.is_empty(), "{:?}", tally.failed);
    let turned = daemon.logged().matches("backend unready").count();
    assert!(turned > 4, "the backends have turned {turned} times in {turns}");
    daemon.stop().unwrap();
}

/// Takes all local ports of the node for connections to these addresses.
fn take_ports(bed: &Bed, listeners: &[TcpListener]) -> Vec<TcpStream> {
    const PORTS: usize = 16;
    let take = || {
        std::fs::write("/proc/sys/net/ipv4/ip_local_port_range", "61000 61015").unwrap();
        let mut taken = Vec::new();
        for (all, listener) in (1..).map(|it| it * PORTS).zip(listeners) {
            let (to, until) = (listener.local_addr().unwrap(), Instant::now() + Duration::from_secs(10));
            // A check may hold one of them right now.
            while taken.len() < all {
                match TcpStream::connect(to) {
                    Ok(stream) => taken.push(stream),
                    Err(error) => assert!(Instant::now() < until, "{to}: {error}"),
                }
            }
        }
        taken
    };
    bed.within(Location::NODE, take).unwrap()
}

/// Limits the daemon's open files, or lifts the limit.
fn limit_files(daemon: &Daemon<'_>, limit: &str) {
    let pid = daemon.pid().unwrap().to_string();
    let status =
        Command::new("prlimit").args(["--pid", &pid, &format!("--nofile={limit}:")]).status().unwrap();
    assert!(status.success());
}

#[test]
fn kernel_exhausted_ports_or_files_fail_no_backend() {
    let bed = Bed::new().unwrap();
    let (_servers, good) = (servers(&bed), well(&bed));
    let mut daemon = Daemon::new(&bed, &web("on_empty = \"refuse\"", "")).unwrap();
    daemon.start().unwrap();
    let all_are = |daemon: &Daemon<'_>, expected: &str| {
        last_results(daemon).iter().all(|(result, row)| result == expected && *row > 3)
    };
    daemon.wait_until(|it| Ok(all_are(it, "good"))).unwrap();

    let taken = take_ports(&bed, &good);
    daemon.wait_until(|it| Ok(all_are(it, "unasked"))).unwrap();
    assert_eq!(verdict(&daemon), "serving");
    drop(taken);
    daemon.wait_until(|it| Ok(all_are(it, "good"))).unwrap();

    limit_files(&daemon, "1");
    sleep(Duration::from_secs(2));
    let outcome = ask(&mut bed.asker(Location::NODE).unwrap());
    assert!(matches!(outcome, Outcome::Answered { .. }), "{outcome:?}");
    limit_files(&daemon, "12288");
    daemon.wait_until(|it| Ok(all_are(it, "good"))).unwrap();
    assert!(!daemon.logged().contains("backend unready"), "{}", daemon.logged());

    // A check result from a backend itself still counts.
    drop(good);
    daemon.wait_until(|it| Ok(verdict(it) == "refusing")).unwrap();
    daemon.stop().unwrap();
}

/// More backends than the daemon checks at once as prompt ones.
const HANGING: u32 = 600;

/// How long a check of one of them hangs: far longer than any other may be late.
const HANGS: Duration = Duration::from_secs(10);

const GOOD: u8 = 5;

const GOOD_INTERVAL: Duration = Duration::from_millis(500);

/// How late a check may be, beside its interval and its tenth of jitter: the time until hanging backends no longer
/// count as prompt, and some for a busy machine.
const LATE: Duration = Duration::from_millis(250 + 4_000);

/// Many addresses that accept connections and send nothing; counts the connections.
fn hang(bed: &Bed) -> (Vec<SocketAddr>, Arc<AtomicUsize>) {
    let listener = bed.within(Location::NODE, || TcpListener::bind("0.0.0.0:8080")).unwrap().unwrap();
    let taken = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&taken);
    std::thread::spawn(move || {
        // Checks have long ended the connections that are closed here.
        let mut held = VecDeque::new();
        for stream in listener.incoming().map_while(Result::ok) {
            held.push_back(stream);
            held.drain(..held.len().saturating_sub(700));
            counter.fetch_add(1, Ordering::Relaxed);
        }
    });
    let address = |number: u32| SocketAddr::from((Ipv4Addr::from_bits(0x7f05_0000 + number), 8080));
    ((1..=HANGING).map(address).collect(), taken)
}

/// A backend that passes checks until it closes, and records their times.
struct Good {
    address: SocketAddr,
    asked: Arc<Mutex<Vec<Instant>>>,
    is_closed: Arc<AtomicBool>,
}

fn good(bed: &Bed, number: u8) -> Good {
    let address = SocketAddr::from(([127, 0, 0, 10 + number], 8081));
    let listener = bed.within(Location::NODE, || TcpListener::bind(address)).unwrap().unwrap();
    let good = Good { address, asked: Arc::default(), is_closed: Arc::default() };
    let (asked, is_closed) = (Arc::clone(&good.asked), Arc::clone(&good.is_closed));
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            asked.lock().unwrap().push(Instant::now());
            if is_closed.load(Ordering::Relaxed) {
                continue;
            }
            let mut request = [0; 512];
            let _ = stream.read(&mut request);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
        }
    });
    good
}

fn block(name: &str, frontend: &str, backends: &[SocketAddr], check: &str) -> String {
    let backends: Vec<String> = backends.iter().map(SocketAddr::to_string).collect();
    format!(
        "[[service]]\nname = \"{name}\"\nfrontends = [\"{frontend}\"]\nbackends = {backends:?}\n\
         health_check = {{ kind = \"http\", rise = 1, {check} }}\n"
    )
}

/// How many backends have failed their checks, over all services.
fn unusable(daemon: &Daemon<'_>) -> usize {
    let mut stream = UnixStream::connect(daemon.socket()).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let row = "holdfast_checked_backends{state=\"unusable\"} ";
    text.lines().find_map(|line| line.strip_prefix(row)).unwrap().parse().unwrap()
}

#[test]
fn kernel_hundreds_of_hanging_backends_delay_no_other_check() {
    let bed = Bed::new().unwrap();
    let (hanging, taken) = hang(&bed);
    let well: Vec<Good> = (1..=GOOD).map(|number| good(&bed, number)).collect();
    let addresses: Vec<SocketAddr> = well.iter().map(|it| it.address).collect();
    let config = [
        block("hanging", "10.96.0.11:80", &hanging, "interval = \"10s\", timeout = \"10s\", fall = 1"),
        block("web", FRONTEND, &addresses, "interval = \"500ms\", timeout = \"500ms\", fall = 2"),
    ];
    let mut daemon = Daemon::new(&bed, &config.concat()).unwrap();
    daemon.start().unwrap();
    let begun = Instant::now();
    daemon.wait_until(|_| Ok(taken.load(Ordering::Relaxed) >= HANGING as usize)).unwrap();
    assert!(begun.elapsed() < HANGS, "all of them hang together: {:?}", begun.elapsed());

    // All of them hang for the first time, unforeseeably, for this long.
    sleep(HANGS);
    let most = GOOD_INTERVAL * 11 / 10 + LATE;
    for backend in &well {
        let asked = backend.asked.lock().unwrap();
        let longest = asked.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap();
        assert!(longest < most, "{} was not asked for {longest:?}", backend.address);
        assert!(asked.last().unwrap().elapsed() < most, "{} is not asked any more", backend.address);
    }
    daemon.wait_until(|it| Ok(unusable(it) == HANGING as usize)).unwrap();

    let fallen = &well[0];
    fallen.is_closed.store(true, Ordering::Relaxed);
    let since = Instant::now();
    daemon.wait_until(|it| Ok(unusable(it) == HANGING as usize + 1)).unwrap();
    let (took, bound) = (since.elapsed(), GOOD_INTERVAL * 2 * 11 / 10 + LATE);
    assert!(took < bound, "seen after {took:?}");
    daemon.stop().unwrap();
}
