//! The command line against a served snapshot.

mod verdicts;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::time::Duration;

use expect_test::{Expect, expect};
use holdfast_datapath::PacketStatus;
use holdfast_status::record::Record;
use holdfast_status::views::datapath::DatapathView;
use tokio::sync::{mpsc, watch};

use super::*;
use holdfast_agent::drains::{self, AcceptedOrder, Order};
use holdfast_agent::recorder::History;
use holdfast_agent::recorder::tests::{incident_history, tell_incident};
use holdfast_api::fixture::{
    self, Folder, Served, acts, everything, in_memory, many, serve, serve_to, serve_with,
};
use holdfast_api::{
    ForgetOutcome, ForgetRequest, RELOADS_WAITING_MAX, ReloadOutcome, ReloadRequest, RequestSenders,
};
use holdfast_kubernetes::apiserver::ForgetError;

/// The outcome of one command line.
#[derive(Debug)]
struct Ran {
    exit: Exit,
    out: String,
    err: String,
}

fn run(arguments: &[&str]) -> Ran {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let arguments = std::iter::once("holdfast").chain(arguments.iter().copied()).map(OsString::from);
    let exit = match parse(arguments, &mut out, &mut err) {
        Err(exit) => exit,
        Ok(cli) => match &cli.command {
            Command::Run(_) => Exit::Good,
            Command::Client(question) => cli.run_command(question, &mut out, &mut err),
        },
    };
    Ran { exit, out: String::from_utf8(out).unwrap(), err: String::from_utf8(err).unwrap() }
}

trait Ask {
    /// Queries over the socket and over TCP; both must give the same.
    fn ask(&self, arguments: &[&str]) -> Ran;
}

impl Ask for Served {
    fn ask(&self, arguments: &[&str]) -> Ran {
        let address = self.admin.address().to_string();
        let over_socket = run(&[&["--socket", self.socket.to_str().unwrap()], arguments].concat());
        let over_tcp = run(&[arguments, &["--tcp", &address]].concat());
        assert_eq!((over_socket.exit, &over_socket.out), (over_tcp.exit, &over_tcp.out));
        over_socket
    }
}

#[track_caller]
fn check(ran: &Ran, exit: Exit, out: &Expect, err: &Expect) {
    assert_eq!(ran.exit, exit, "{ran:?}");
    out.assert_eq(&ran.out);
    err.assert_eq(&ran.err);
}

#[test]
fn a_table_equals_the_answer_of_the_api() {
    let served = serve(everything());
    let ran = served.ask(&["frontends", "default/web", "--type", "NodePort", "--address", "0.0.0.0"]);
    check(
        &ran,
        Exit::Good,
        &expect![[r#"
            SERVICE      PORT  TYPE      FRONTEND     VERDICT  REASON  FAILS      BACKENDS
            default/web  http  NodePort  *:30080/TCP  serving  -       node-port  10.1.0.1:8080

            * at a node port: no address of this node answers node ports

            1 of 1 needs attention; next: holdfast diagnose default/web
        "#]],
        &expect![""],
    );
    let ran = served.ask(&["backends", "--address", "10.0.0.10", "-o", "json"]);
    let json: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(json["backends"][0]["service"], "default/kubernetes");
    let ran = served.ask(&["-o", "wide", "services", "--type", "ExternalName"]);
    assert!(ran.out.contains("ORIGIN") && ran.out.contains("default/alias"), "{}", ran.out);
}

#[test]
fn a_service_that_does_not_exist_is_no_empty_table() {
    let served = serve(everything());
    for command in ["frontends", "backends", "services", "refusals", "history", "explain"] {
        let ran = served.ask(&[command, "default/wbe"]);
        assert_eq!(ran.exit, Exit::NoService, "{command}: {ran:?}");
        let first = "No Service and no EndpointSlice of default/wbe is known.\n";
        assert!(ran.out.starts_with(first) && ran.out.contains("default/web"), "{command}: {}", ran.out);
        let ran = served.ask(&[command, "default/wbe", "-o", "json"]);
        assert_eq!(ran.exit, Exit::NoService, "{command} as JSON: {ran:?}");
    }
}

#[test]
fn words_are_read_in_any_case() {
    let served = serve(everything());
    let ran = served.ask(&["frontends", "default/web", "--type", "nodeport", "-o", "WIDE"]);
    assert_eq!(ran.exit, Exit::Good, "{ran:?}");
    assert!(ran.out.contains("NodePort") && ran.out.contains("OUTSIDE"), "{}", ran.out);
}

#[test]
fn yaml_says_what_json_says() {
    let served = serve(everything());
    for arguments in [&["frontends"][..], &["status"], &["explain", "default/web"], &["drain"]] {
        let [json, yaml] = ["json", "yaml"].map(|form| served.ask(&[arguments, &["-o", form]].concat()));
        let read: serde_json::Value = serde_saphyr::from_str(&yaml.out).unwrap();
        assert_eq!(read, serde_json::from_str::<serde_json::Value>(&json.out).unwrap(), "{arguments:?}");
        assert_eq!(json.exit, yaml.exit, "{arguments:?}");
    }
}

#[test]
fn an_option_of_other_programs_gets_a_tip() {
    let ran = run(&["status", "--json"]);
    assert_eq!(ran.exit, Exit::Usage);
    assert!(ran.err.contains("`-o json` chooses the format"), "{}", ran.err);
}

#[test]
fn an_address_without_a_port_gets_the_usual_one() {
    for (address, expected) in [
        ("localhost", "localhost:9890"),
        ("localhost:80", "localhost:80"),
        ("10.0.0.1", "10.0.0.1:9890"),
        ("fd00::1", "[fd00::1]:9890"),
        ("[fd00::1]:80", "[fd00::1]:80"),
    ] {
        assert_eq!(parse_tcp_address(address).as_deref(), Ok(expected));
    }
}

#[test]
fn what_is_no_address_is_a_usage_error() {
    for (address, expected) in [
        ("http://localhost:9890", "leave \"http://\" out"),
        ("localhost:http", "\"http\" is no port"),
        ("localhost:0", "\"0\" is no port"),
        ("[::1", "neither HOST"),
        ("", "neither HOST"),
        ("a b", "neither HOST"),
        (":9890", "neither HOST"),
    ] {
        let ran = run(&["status", "--tcp", address]);
        assert_eq!(ran.exit, Exit::Usage, "{address}");
        assert!(ran.err.contains(expected), "{address}: {}", ran.err);
    }
    // The name is legal, and nobody has it.
    let ran = run(&["status", "--tcp", "no-such-host.invalid"]);
    assert_eq!(ran.exit, Exit::Unreachable);
    assert!(ran.err.contains("such as localhost") && !ran.err.contains("is it running"), "{}", ran.err);
}

#[test]
fn a_bugreport_is_shown_before_it_is_written_and_never_overwrites() {
    let served = serve(everything());
    let shown = served.ask(&["bugreport"]);
    assert_eq!(shown.exit, Exit::Good);
    assert!(
        shown.out.contains("history.json") && shown.out.contains("Nothing is written yet"),
        "{}",
        shown.out
    );
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("report.tar");
    let socket = served.socket.to_str().unwrap();
    let write = || run(&["--socket", socket, "bugreport", "--write", path.to_str().unwrap()]);
    let written = write();
    assert!(written.out.contains("is written: 20 files"), "{written:?}");
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let mut archive = tar::Archive::new(std::fs::File::open(&path).unwrap());
    let mut contents = BTreeMap::new();
    for entry in archive.entries().unwrap() {
        let mut entry = entry.unwrap();
        let name = entry.path().unwrap().display().to_string();
        let mut text = String::new();
        entry.read_to_string(&mut text).unwrap();
        contents.insert(name, text);
    }
    assert_eq!(contents.len(), 21, "the files and their list");
    assert!(contents["holdfast-bugreport/frontends.json"].contains("default/web"));
    assert!(contents["holdfast-bugreport/status.txt"].contains("not serving"));
    assert!(contents["holdfast-bugreport/MANIFEST.txt"].contains("all services, and rejected objects"));
    assert_eq!(write().exit, Exit::Finding, "an existing file stays");
}

#[test]
fn a_bugreport_without_a_daemon_says_so_in_each_file() {
    let folder = tempfile::tempdir().unwrap();
    let (path, none) = (folder.path().join("report.tar"), folder.path().join("none.sock"));
    let ran = run(&["--socket", none.to_str().unwrap(), "bugreport", "--write", path.to_str().unwrap()]);
    assert_eq!(ran.exit, Exit::Incomplete, "{ran:?}");
    assert!(ran.err.contains("status.txt has no content: cannot reach the daemon"), "{}", ran.err);
    assert!(ran.err.contains("frontends.json has no content: not asked"), "{}", ran.err);
    assert!(path.exists());
}

#[test]
fn a_followed_table_is_for_people() {
    let ran = serve(everything()).ask(&["frontends", "-w", "-o", "json"]);
    assert_eq!(ran.exit, Exit::Usage, "{ran:?}");
    assert!(ran.err.contains("holdfast watch -o json"), "{}", ran.err);
}

#[test]
fn a_local_command_offers_no_way_to_a_daemon() {
    for command in LOCAL_COMMANDS {
        assert!(!run(&[command, "--help"]).out.contains("--socket"), "{command}");
    }
    for command in COMMANDS_WITHOUT_FORMS {
        assert!(!run(&[command, "--help"]).out.contains("--output"), "{command}");
    }
    let help = run(&["--help"]).out;
    assert!(!help.contains("prepare"), "{help}");
    assert!(run(&["frontends", "--help"]).out.contains("Global options:"));
}

/// The manual page and the documentation have the list of the code, in its order.
#[test]
fn every_list_of_exit_codes_is_the_same() {
    let page = include_str!("../../../packaging/man/holdfast.1");
    let codes: Vec<&str> = page
        .split(".Sh EXIT STATUS")
        .nth(1)
        .into_iter()
        .flat_map(str::lines)
        .take_while(|line| !line.starts_with(".Sh"))
        .filter_map(|line| line.strip_prefix(".It Li "))
        .collect();
    let expected: Vec<String> = exit::MEANINGS.iter().map(|(exit, _)| exit.code().to_string()).collect();
    assert_eq!(codes, expected);
    let guide = include_str!("../../../docs/tables.md");
    let joined = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(joined(guide).contains(exit::JUDGES) && joined(page).contains(exit::JUDGES));
    for (exit, meaning) in exit::MEANINGS {
        let row = format!("| {} | {meaning} |", exit.code());
        assert!(guide.contains(&row), "docs/tables.md has no row {row}");
        let line = page.lines().skip_while(|line| *line != format!(".It Li {}", exit.code())).nth(1);
        assert_eq!(
            line.map(str::to_lowercase),
            Some(format!("{}.", meaning.to_lowercase())),
            "{}",
            exit.code()
        );
    }
}

#[test]
fn refusals_name_the_client_and_the_service() {
    check(
        &serve(everything()).ask(&["refusals", "default/gone", "--address", "10.96.0.20"]),
        Exit::Good,
        &expect![[r#"
            TIME                              VERDICT  FRONTEND           SERVICE       REASON    COUNT  SOURCE  PID   COMM
            2026-01-08T11:11:57Z (2 min ago)  refused  10.96.0.20:80/TCP  default/gone  vanished  2      -       4701  curl
        "#]],
        &expect![""],
    );
}

#[test]
fn flows_pass_all_filters_to_the_api() {
    let served = serve(everything());
    let asked = ["--client", "203.0.113.9", "--frontend", "[fd00::99]:53", "--backend", "10.1.0.1:8080"];
    let ran = served.ask(&[&["flows", "--state", "open", "--limit", "7"][..], &asked].concat());
    let none = expect![["packets are not translated on this node, so there are no flows\n"]];
    check(&ran, Exit::Good, &none, &expect![""]);
    let ran = served.ask(&["flows", "--state", "gone"]);
    assert_eq!(ran.exit, Exit::Usage, "{}", ran.err);
    assert!(ran.err.contains("legal states: opening, open, half-closed, closed, reset"), "{}", ran.err);
}

#[test]
fn the_apiserver_is_shown_as_in_the_api() {
    let ran = serve(everything()).ask(&["apiserver"]);
    assert_eq!(ran.exit, Exit::Good);
    assert!(
        ran.out.starts_with("cluster    2f6d6a52-0001\n") && ran.out.contains("active, preferred"),
        "{}",
        ran.out
    );
}

#[test]
fn the_datapath_is_shown_as_in_the_api() {
    assert_eq!(serve_with(everything(), in_memory).ask(&["datapath"]).exit, Exit::Good);
    let ran = serve(everything()).ask(&["datapath"]);
    assert_eq!(ran.exit, Exit::Finding, "some hooks have no program");
    assert!(ran.out.starts_with("datapath kernel\n") && ran.out.contains("frontends4  8 "), "{}", ran.out);
    let ran = serve(everything()).ask(&["datapath", "-o", "json"]);
    let json: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(json["kernel"]["broken_hooks"][0], "sendmsg6");
}

/// Runs `holdfast reload` against a daemon with this answer.
fn reload(outcome: Result<ReloadOutcome, String>) -> Ran {
    reload_as(&[], outcome)
}

fn reload_as(more: &[&str], outcome: Result<ReloadOutcome, String>) -> Ran {
    let (reloads, mut wishes) = mpsc::channel::<ReloadRequest>(RELOADS_WAITING_MAX);
    let served = serve_to(everything(), RequestSenders { reloads, ..acts() });
    std::thread::scope(|scope| {
        let ran =
            scope.spawn(|| run(&[&["--socket", served.socket.to_str().unwrap(), "reload"], more].concat()));
        wishes.blocking_recv().unwrap().answer.send(outcome).unwrap();
        ran.join().unwrap()
    })
}

#[test]
fn a_refused_reload_ends_as_a_bad_configuration_does() {
    check(
        &reload(Ok(ReloadOutcome { restart_keys: vec!["log.format"] })),
        Exit::Good,
        &expect![[r#"
            reloaded; these keys take effect with the next restart: log.format
        "#]],
        &expect![""],
    );
    check(
        &reload(Err("holdfast.toml:3: no such key".to_owned())),
        Exit::Config,
        &expect![""],
        &expect![[r#"
            holdfast: holdfast.toml:3: no such key
            hint: the old configuration stays in force; mend the file and reload again
        "#]],
    );
}

#[test]
fn an_address_that_stays_is_a_finding() {
    let forget = |outcome: ForgetOutcome| {
        let (forgets, mut wishes) = mpsc::channel::<ForgetRequest>(1);
        let served = serve_to(everything(), RequestSenders { forgets, ..acts() });
        std::thread::scope(|scope| {
            let arguments =
                ["--socket", served.socket.to_str().unwrap(), "apiserver", "forget", "[fd00::1]:6443"];
            let ran = scope.spawn(move || run(&arguments));
            let wish = wishes.blocking_recv().unwrap();
            assert_eq!(wish.address.to_string(), "[fd00::1]:6443");
            wish.answer.send(outcome).unwrap();
            ran.join().unwrap()
        })
    };
    check(
        &forget(Ok(None)),
        Exit::Good,
        &expect![[r#"
            [fd00::1]:6443 is forgotten
        "#]],
        &expect![""],
    );
    let slice = "x".into();
    check(
        &forget(Err(ForgetError::Listed { address: "[fd00::1]:6443".parse().unwrap(), slice })),
        Exit::Finding,
        &expect![""],
        &expect![[r#"
            holdfast: [fd00::1]:6443 is listed now, in the EndpointSlice default/x: take it out there first
            hint: `holdfast apiserver` shows each address with its source
        "#]],
    );
    assert_eq!(serve(everything()).ask(&["apiserver", "forget", "10.0.0.1"]).exit, Exit::Usage);
}

#[test]
fn an_order_to_drain_reports_its_effect() {
    let (orders, mut ordered) = mpsc::channel::<Order>(1);
    let served = serve_to(everything(), RequestSenders { drains: orders, ..acts() });
    let socket = served.socket.to_str().unwrap();
    let ran = std::thread::scope(|scope| {
        let words = ["--socket", socket, "drain", "[::ffff:10.0.0.77]:80", "--service", "default/web"];
        let ran = scope.spawn(move || run(&words));
        let Order { uid, drain, is_on, answer, .. } = ordered.blocking_recv().unwrap();
        assert_eq!((uid, is_on), (nix::unistd::getuid().as_raw(), true));
        assert_eq!((drain.to_string().as_str(), drain.service().unwrap().name()), ("10.0.0.77:80", "web"));
        let problem = Some("drains.json: Read-only file system (os error 30)".to_owned());
        answer.send(Ok(AcceptedOrder { drains: Arc::default(), before: None, problem })).unwrap();
        ran.join().unwrap()
    });
    check(
        &ran,
        Exit::Finding,
        &expect![[r#"
            10.0.0.77:80 of default/web is drained, but is no backend now
            no service lists it now: is it spelled as in `holdfast backends`? It stays drained, and where a service lists it later, it gets no client there; `holdfast undrain` with the same words takes it back
            not on disk yet, so a restart of the daemon would lose it: drains.json: Read-only file system (os error 30)
        "#]],
        &expect![""],
    );
    check(
        &served.ask(&["drain"]),
        Exit::Good,
        &expect![[r#"
            BACKEND   OF SERVICE   BY            SINCE                             SERVICES  STILL USED IN
            10.9.9.9  default/web  root (uid 0)  2026-01-08T11:11:55Z (3 min ago)  0         0
        "#]],
        &expect![""],
    );
    for words in [&["drain", "--service", "default/web"][..], &["undrain"]] {
        assert_eq!(run(words).exit, Exit::Usage, "{words:?}");
    }
    assert_eq!(run(&["--socket", socket, "drain", "web"]).exit, Exit::Usage);
}

#[test]
fn a_long_answer_comes_whole() {
    let served = serve(many(2_000, 2));
    assert_eq!(served.ask(&["backends"]).out.lines().count(), 4_001);
}

#[test]
fn a_bad_filter_is_a_usage_error() {
    let served = serve(everything());
    check(
        &served.ask(&["frontends", "--type", "nodeport&format=json"]),
        Exit::Usage,
        &expect![""],
        &expect![[r#"
            holdfast: unknown type "nodeport&format=json"
            hint: legal types: ClusterIP, NodePort, LoadBalancer, ExternalIP, Static, ClusterSetIP
        "#]],
    );
}

#[test]
fn status_shows_every_problem() {
    check(
        &serve(everything()).ask(&["status"]),
        Exit::Finding,
        &expect![[r#"
            holdfast 0.1.0 on node-1, since 2026-01-08T11:10:55Z (4 min ago)
            ready      yes
            datapath   kernel
            alongside  Cilium (/sys/fs/bpf/cilium)
            alongside  kube-proxy (listens on port 10249, nftables table kube-proxy)
            left out   flannel.1 (packets.devices does not name it, though a route to other hosts uses it: backends behind it are reachable, but clients that arrive there are not served)
            sources    kubernetes
            apiserver  [fd00::12]:6443
            snapshot   not written yet
            history    no change yet
            services   14 (1 external-name, 1 headless, 1 no-address, 1 no-service, 1 other-proxy)
            frontends  11
            backends   6 of 10 in use
            verdicts   1 bypassed, 1 conflict, 1 draining, 1 dropping, 1 refusing, 3 serving, 1 unprogrammed
            announced  1 of 3 addresses
            not seen   backends that no client has dialled lately
                       for processes and pods of this node: TCP backends that never answer, and all UDP backends
                       next: holdfast diagnose SERVICE dials them

            datapath
              sendmsg6 serve, but their pins are gone: their programs end with this daemon
              the route to 2001:db8::10 cannot be updated: Operation not permitted (os error 1)

            filters
              table ip raw, chain PREROUTING (prerouting, priority -300): drops packets to port 30080, but no longer sees them
              table ip filter, chain FORWARD (forward, priority 0): policy drop: packets that no rule accepts are not forwarded to backends

            not announced
              192.0.2.11: static/mail is refusing (all-unready) at port 25
              2001:db8::10: it is served, and announced once that has lasted

            Cilium
              programs at the cgroup keep translating connects by a stale table: rm -r /sys/fs/bpf/cilium/socketlb
              maps: rm /sys/fs/bpf/tc/globals/cilium_*

            draining
              1 draining (scaled-down) since 2026-01-08T11:11:55Z (3 min ago): kube-system/kube-dns
              next: holdfast diagnose kube-system/kube-dns

            not serving
              1 conflict (claimed) since 2026-01-08T11:11:55Z (3 min ago): default/thief (default/web has its address)
              1 refusing (vanished) since 2026-01-08T11:11:55Z (3 min ago): default/gone
              1 unprogrammed (protocol) since 2026-01-08T11:11:55Z (3 min ago): telecom/signalling
              next: holdfast diagnose default/thief

            not serving, yet or on purpose
              1 dropping (local-policy) since 2026-01-08T11:11:55Z (3 min ago): default/elsewhere
              next: holdfast diagnose default/elsewhere

            failing health checks
              default/web: [fd00::1]:9000 fails http checks, the last at 2026-01-08T11:11:55.000Z (3 min ago): not an HTTP/1 status line: "\u{202e}</script>\r\nSMTP"
              next: holdfast diagnose default/web

            clients turned away
              default/web: 192.0.2.10:80/TCP dropped 1 packet of 198.51.100.7, the last at 2026-01-08T11:12:00Z (2 min ago): not in loadBalancerSourceRanges
              no service: [fd00::99]:53/UDP refused 1 try of dig (pid 4704), the last at 2026-01-08T11:11:59Z (2 min ago): there was no backend
              default/web: 192.0.2.5:30080/TCP refused 1 try of node?probe (pid 4703), the last at 2026-01-08T11:11:58Z (2 min ago): there was no backend
              next: holdfast explain 192.0.2.10:80 --from 198.51.100.7

            errors
              default/web: the map of frontends is full

            rejected
              Service default/bad: port 70000 is not legal
              EndpointSlice default/web-a: endpoint 3: "10.1.0.x" is no address
              File half.yaml: line 3: unexpected end
              and 2 more

            closed ports
              default/web, health check port 10.0.0.5:30123: another process listens there
              next: holdfast diagnose default/web

            other processes at node ports
              nginx (pid 4811) listens at 30080, the node port of default/web: no address leads to default/web, and 127.0.0.1:30080 leads to nginx
              next: ps -fp 4811, then: holdfast diagnose default/web

            files about Events
              /etc/holdfast/events.d/ours.toml:1: unclosed array table, expected `]`: correct it; until then the built-in entries apply
        "#]],
        &expect![""],
    );
}

/// In memory, with backends and ports as they should be.
fn well_in_memory(readings: &mut holdfast_agent::readings::Readings) {
    in_memory(readings);
    (readings.checks, readings.closed_ports) = (Arc::default(), Arc::default());
}

#[test]
fn status_is_good_when_all_is_well() {
    let served = serve_with(many(3, 2), well_in_memory);
    check(
        &served.ask(&["status"]),
        Exit::Good,
        &expect![[r#"
            holdfast 0.1.0 on , since 2026-01-08T11:10:55Z (4 min ago)
            ready      yes
            datapath   memory (computed and shown; no traffic is touched)
            sources    kubernetes
            snapshot   not written yet
            history    no change yet
            services   3
            frontends  3
            backends   6
            verdicts   3 serving
            not seen   whether backends take the clients of this node: holdfast diagnose SERVICE dials them

            files about Events
              /etc/holdfast/events.d/ours.toml:1: unclosed array table, expected `]`: correct it; until then the built-in entries apply
        "#]],
        &expect![""],
    );
    let json: serde_json::Value = serde_json::from_str(&served.ask(&["status", "-o", "json"]).out).unwrap();
    assert_eq!((&json["good"], &json["backends"]), (&true.into(), &6.into()));
}

#[test]
fn packets_that_cannot_be_translated_are_a_finding() {
    let of_packets = |change: fn(&mut PacketStatus)| {
        let served = serve_with(many(1, 1), |readings| {
            let mut status = fixture::status();
            (status.broken_hooks, status.grace_failure) = (Vec::new(), None);
            status.packets.iter_mut().for_each(change);
            let view = DatapathView::for_kernel(status).with_devices(readings.datapath().devices().into());
            readings.datapath = watch::channel(Arc::new(view)).1;
        });
        served.ask(&["status"])
    };
    let ran = of_packets(|packets| (packets.failure, packets.hooks) = (Some("no memory".to_owned()), None));
    assert_eq!(ran.exit, Exit::Finding);
    let expected = "datapath\n  clients from outside are not served: no memory\n";
    assert!(ran.out.contains(expected), "{}", ran.out);
    let ran = of_packets(|packets| packets.failure = Some("no memory".to_owned()));
    assert!(
        ran.out.contains("clients from outside are not served by all devices: no memory\n"),
        "{}",
        ran.out
    );
    let ran = of_packets(|packets| (packets.failure, packets.behind) = (Some("no memory".to_owned()), true));
    assert!(ran.out.contains("clients from outside get outdated services: no memory\n"));
    let ran = of_packets(|packets| {
        packets.devices.iter_mut().for_each(|it| it.error = Some("no such device".to_owned()));
    });
    assert!(ran.out.contains(" are not served: no such device\n"), "{}", ran.out);
}

/// An operator who restarts because of this message would end the service of all clients.
#[test]
fn unpinned_programs_are_distinguished_from_missing_ones() {
    let served = serve_with(many(1, 1), |readings| {
        let mut status = fixture::status();
        (status.broken_hooks, status.detached_hooks) =
            (vec!["connect4", "connect6", "getpeername4"], vec!["connect6", "getpeername4"]);
        status.repair_failure = Some("/sys/fs/bpf/holdfast was removed".to_owned());
        for device in status.packets.iter_mut().flat_map(|it| &mut it.devices) {
            (device.attached, device.unpinned) = (true, true);
            device.error = Some("cannot pin in: read-only".to_owned());
        }
        let view = DatapathView::for_kernel(status).with_devices(readings.datapath().devices().into());
        readings.datapath = watch::channel(Arc::new(view)).1;
    });
    let ran = served.ask(&["status"]);
    assert_eq!(ran.exit, Exit::Finding);
    for line in [
        "connect6 have no program, so clients there are not served, and the daemon cannot reattach one: /sys/fs",
        "getpeername4 have no program, so clients there are told the backend's address, and the daemon cannot reattach",
        "connect4 serve, but their pins are gone: their programs end with this daemon: /sys/fs/bpf/holdfast was",
        "clients that arrive at eth0 are served, but its programs end with this daemon: cannot pin in: read-only\n",
    ] {
        assert!(ran.out.contains(line), "{}", ran.out);
    }
    let text = served.ask(&["datapath"]).out;
    for line in [
        "connect6 getpeername4, connect4 (served, but not pinned: ends with the daemon); /sys/fs/bpf/holdfast was removed\n",
        "; served, but not pinned: cannot pin in: read-only\n",
    ] {
        assert!(text.contains(line), "{text}");
    }
}

#[test]
fn a_daemon_that_is_not_ready_is_a_finding() {
    let mut snapshot = many(1, 1);
    snapshot.sources = [(holdfast_core::keys::Source::Kubernetes, false)].into();
    snapshot.programmed = false;
    let ran = serve(snapshot).ask(&["status"]);
    assert_eq!(ran.exit, Exit::Finding);
    assert!(ran.out.contains("ready      no: no first list yet from: kubernetes\n"), "{}", ran.out);
}

/// A restart would begin with the file on disk.
#[test]
fn a_refused_reload_is_a_finding_and_a_closed_listener_is_shown() {
    let served = |refused: Option<&'static str>, shut: &'static [&'static str]| {
        serve_with(many(1, 1), move |readings| {
            well_in_memory(readings);
            readings.refused_reload =
                watch::channel(refused.map(holdfast_agent::readings::RefusedReload::from_reason)).1;
            readings.closed_listeners = watch::channel(shut.iter().map(|it| (*it).to_owned()).collect()).1;
        })
    };
    let refused = served(Some("h.toml:3: \u{9b}2Jone\nh.toml:4: two"), &[]);
    let ran = refused.ask(&["status"]);
    let expected = "\nthe last reload was refused\n  h.toml:3: ?2Jone\n  h.toml:4: two\n  refused 1970-";
    assert!(ran.exit == Exit::Finding && ran.out.contains(expected), "{ran:?}");
    let json = as_json(&refused.ask(&["status", "-o", "json"]));
    assert_eq!((&json["good"], json["refused_reload"].is_string()), (&false.into(), true));
    let shut = served(None, &["cannot listen on 127.0.0.1:9890: in use"]);
    let ran = shut.ask(&["status"]);
    let expected = "\nadmin api\n  cannot listen on 127.0.0.1:9890: in use\n";
    assert!(ran.exit == Exit::Good && ran.out.contains(expected), "{ran:?}");
    let json = as_json(&shut.ask(&["status", "-o", "json"]));
    assert_eq!((&json["good"], &json["refused_reload"]), (&true.into(), &serde_json::Value::Null));
}

#[test]
fn unwritten_drains_are_a_finding() {
    let ran = serve_with(many(1, 1), |readings| {
        well_in_memory(readings);
        readings.drains = watch::channel(drains::DrainsWrite::from_error("the disk is full")).1;
    })
    .ask(&["status"]);
    let expected = "\ndisk\n  /var/lib/holdfast takes no write: the disk is full\n  not on disk: the last orders to drain; ";
    assert!(ran.exit == Exit::Finding && ran.out.contains(expected), "{ran:?}");
}

#[test]
fn an_unreachable_daemon_is_reported_with_every_attempt() {
    let folder = Folder::new();
    let path = folder.0.join("none.sock");
    let ran = run(&["status", "--socket", path.to_str().unwrap()]);
    let expected = format!(
        "holdfast: cannot reach the daemon:\n  {}: No such file or directory (os error 2)\nhint: is it running? try: \
         systemctl status holdfast\n",
        path.display()
    );
    assert_eq!((ran.exit, ran.err), (Exit::Unreachable, expected));
    let client = Client::new(Some(path), Some("127.0.0.1:1".to_owned()));
    let error = client.get("/").map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("none.sock") && error.contains("127.0.0.1:1: Connection refused"), "{error}");
}

#[test]
fn a_permission_error_names_the_sockets_group() {
    let refused = std::io::Error::from(std::io::ErrorKind::PermissionDenied);
    let said =
        client::ClientError::Unreachable(vec![("/run/holdfast/admin.sock".to_owned(), refused)]).to_string();
    assert!(said.contains("root and the group") && !said.contains("is it running"), "{said}");
}

#[test]
fn tcp_is_tried_when_the_socket_is_dead() {
    let served = serve(everything());
    let folder = Folder::new();
    let dead = folder.0.join("dead.sock");
    drop(UnixListener::bind(&dead).unwrap());
    let client = Client::new(Some(dead), Some(served.admin.address().to_string()));
    assert_eq!(client.get("/healthz").unwrap().status, 200);
}

#[test]
fn another_program_on_the_address_is_no_daemon() {
    let folder = Folder::new();
    let path = folder.0.join("other.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let other = std::thread::spawn(move || {
        listener.accept().unwrap().0.write_all(b"220 mail ESMTP\r\n\r\n").unwrap();
    });
    let ran = run(&["frontends", "--socket", path.to_str().unwrap()]);
    other.join().unwrap();
    assert_eq!(ran.exit, Exit::Unreachable);
    assert!(ran.err.starts_with("holdfast: the daemon's answer cannot be used: "), "{}", ran.err);
}

struct ClosedPipe;

impl Write for ClosedPipe {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(io::ErrorKind::BrokenPipe.into())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_closed_pipe_is_quiet() {
    let served = serve(everything());
    let socket = served.socket.to_str().unwrap();
    for command in ["frontends", "completions"] {
        let shell: &[&str] = if command == "completions" { &["bash"] } else { &[] };
        let arguments = [&["holdfast", "--socket", socket, command], shell].concat();
        let mut err = Vec::new();
        let cli = parse(arguments.into_iter().map(OsString::from), &mut Vec::new(), &mut err).unwrap();
        let Command::Client(question) = &cli.command else { panic!("a question") };
        assert_eq!(cli.run_command(question, &mut ClosedPipe, &mut err), Exit::Good, "{command}");
        assert_eq!(String::from_utf8(err).unwrap(), "");
    }
}

#[test]
fn an_answer_ends_with_its_exit_code_however_much_of_it_is_read() {
    let served = serve(everything());
    let socket = served.socket.to_str().unwrap();
    for (command, expected) in [
        (&["status"][..], Exit::Finding),
        (&["status", "-o", "json"], Exit::Finding),
        (&["status", "-o", "yaml"], Exit::Finding),
        (&["explain"], Exit::Finding),
        (&["explain", "default/gone"], Exit::Finding),
        (&["diagnose", "default/thief"], Exit::Errors),
        (&["diagnose"], Exit::Errors),
        (&["datapath"], Exit::Finding),
        (&["explain", "default/none"], Exit::NoService),
        (&["check-config", "/none", "-o", "json"], Exit::Config),
    ] {
        let arguments = [&["holdfast", "--socket", socket], command].concat();
        let mut err = Vec::new();
        let cli = parse(arguments.into_iter().map(OsString::from), &mut Vec::new(), &mut err).unwrap();
        let Command::Client(question) = &cli.command else { panic!("a question") };
        assert_eq!(cli.run_command(question, &mut Vec::new(), &mut err), expected, "{command:?}, read whole");
        assert_eq!(cli.run_command(question, &mut ClosedPipe, &mut err), expected, "{command:?}");
        assert_eq!(String::from_utf8(err).unwrap(), "");
    }
}

#[test]
fn check_config_reports_every_error() {
    let folder = Folder::new();
    let path = folder.0.join("config.toml");
    std::fs::write(&path, "[admin]\nlisten = \"10.0.0.1:80\"\n[nod]\n").unwrap();
    let ran = run(&["check-config", path.to_str().unwrap()]);
    assert_eq!((ran.exit, ran.out.as_str()), (Exit::Config, ""));
    let errors: Vec<&str> = ran.err.lines().filter(|line| line.starts_with("error: ")).collect();
    assert_eq!(errors.len(), 2, "{}", ran.err);
    assert!(errors[0].contains("config.toml:2:") && errors[1].contains("config.toml:3:"), "{}", ran.err);

    std::fs::write(&path, "[admin]\nlisten = \"127.0.0.1:9890\"\n").unwrap();
    let ran = run(&["check-config", path.to_str().unwrap()]);
    assert_eq!((ran.exit, ran.out), (Exit::Good, format!("{}: good\n", path.display())));
    assert_eq!(run(&["check-config", "/nonexistent.toml"]).exit, Exit::Config);
}

#[test]
fn a_missing_file_is_a_warning_and_the_configuration_is_good() {
    let folder = Folder::new();
    let path = folder.0.join("config.toml");
    for (text, warning) in [
        (
            "[kubernetes]\n[apiserver]\nkubeconfig = \"/nonexistent/kubelet.conf\"\n",
            "[apiserver] /nonexistent/kubelet.conf: does not exist",
        ),
        (
            "[kubernetes]\n[apiserver]\nendpoints = [\"https://10.0.0.1:6443\"]\nca_file = \"/nonexistent/ca\"\n\
             token_file = \"/nonexistent/token\"\n",
            "[apiserver] /nonexistent/ca: does not exist",
        ),
        (
            "[datapath]\ncgroup = \"/nonexistent/cgroup\"\n",
            "datapath.cgroup: /nonexistent/cgroup does not exist",
        ),
    ] {
        std::fs::write(&path, text).unwrap();
        let ran = run(&["check-config", path.to_str().unwrap()]);
        assert_eq!((ran.exit, ran.out), (Exit::Good, format!("{}: good\n", path.display())), "{}", ran.err);
        assert!(ran.err.contains(&format!("{warning};")), "{}", ran.err);
    }
}

/// An operator mends all files at once.
#[test]
fn check_config_names_every_bad_file_of_certificates() {
    let folder = Folder::new();
    let path = folder.0.join("config.toml");
    let text = "[apiserver]\nendpoints = [\"https://10.0.0.1:6443\"]\nca_file = \"ca\"\nclient_certificate_file = \"crt\"\n\
                client_key_file = \"key\"\n[[service]]\nname = \"web\"\nfrontends = [\"10.96.0.1:443\"]\n\
                backends = [\"192.0.2.1:443\"]\nhealth_check = { kind = \"https\", ca_file = \"backends\" }\n";
    std::fs::write(&path, text).unwrap();
    let warnings = |ran: &Ran| ran.err.lines().filter(|line| line.starts_with("warning: ")).count();
    let ran = run(&["check-config", path.to_str().unwrap()]);
    for file in [
        "/ca: does not exist;",
        "/crt: does not exist;",
        "/key: does not exist;",
        "/backends: does not exist;",
    ] {
        assert!(ran.err.contains(file), "{file}: {}", ran.err);
    }
    assert_eq!((ran.exit, warnings(&ran)), (Exit::Good, 4), "{}", ran.err);
    for name in ["ca", "crt", "key", "backends"] {
        std::fs::write(folder.0.join(name), "hello").unwrap();
    }
    let ran = run(&["check-config", path.to_str().unwrap()]);
    for file in
        ["[apiserver] ", "/ca: the certificate authority has no", "/crt: the client certificate has no"]
    {
        assert!(ran.err.contains(file), "{file}: {}", ran.err);
    }
    assert!(
        ran.err.contains("[[service]] static/web: its health check: ") && warnings(&ran) == 3,
        "{}",
        ran.err
    );
}

#[test]
fn import_writes_blocks_and_notes_omissions() {
    let folder = Folder::new();
    let path = folder.0.join("rules");
    let path = path.to_str().unwrap();
    let import = |text: &str| {
        std::fs::write(path, text).unwrap();
        run(&["import", path])
    };
    let whole = "-A -t 192.0.2.1:80 -s wrr\n-a -t 192.0.2.1:80 -r 10.0.0.1:80 -m -w 2\n";
    let ran = import(whole);
    assert_eq!((ran.exit, ran.err.as_str()), (Exit::Good, ""));
    assert!(ran.out.contains("backends = [{ address = \"10.0.0.1:80\", weight = 2 }]"), "{}", ran.out);
    let ran = import(&format!("{whole}-A -f 1 -s rr\n"));
    assert_eq!((ran.exit, ran.err.contains(": line 3: firewall mark")), (Exit::Finding, true), "{}", ran.err);
    // The reader of configurations rejects two families that cannot meet.
    let ran = import("-A -t 192.0.2.1:80 -s wrr\n-a -t 192.0.2.1:80 -r [fd00::1]:80 -m -w 2\n");
    assert_eq!(
        (ran.exit, ran.err.contains("to mend: what was written:")),
        (Exit::Finding, true),
        "{}",
        ran.err
    );
    assert_eq!(import("nothing of the kind\n").exit, Exit::Config);
    assert_eq!(import(&"#".repeat(holdfast_import::BYTES_MAX + 1)).exit, Exit::Config);
    assert_eq!(run(&["import", "/nonexistent"]).exit, Exit::Config);
    assert_eq!(run(&["import", path, "--from", "nginx"]).exit, Exit::Usage);
    std::fs::write(path, "listen a\n bind 192.0.2.1:80\n server b 10.0.0.1:80\n").unwrap();
    let told = as_json(&run(&["import", path, "--from", "haproxy", "-o", "json"]));
    assert!(told["configuration"].as_str().unwrap().contains("name = \"a\""), "{told}");
    assert_eq!((&told["notes"], &told["errors"]), (&json!([]), &json!([])));
}

/// `check-config` reports faults in files about Events too, because operators write those as well.
#[test]
fn check_config_reports_faults_in_event_files() {
    let folder = Folder::new();
    let (path, events) = (folder.0.join("config.toml"), folder.0.join("events.d"));
    std::fs::create_dir(&events).unwrap();
    let dead = "[[reason]]\nid = \"a\"\nreason = \"A\"\nkinds = [\"Service\"]\ntype = \"Warning\"\n\
                emitted = \"third-party\"\nseverity = \"error\"\nmeaning = \"A.\"\ncauses = [\"nobody\"]\n";
    std::fs::write(events.join("a.toml"), dead).unwrap();
    std::fs::write(events.join("b.toml"), "\n[[cause\n").unwrap();
    for (text, errors) in [("[admin]\nlisten = \"127.0.0.1:9890\"\n", 2), ("[nod]\n", 3)] {
        std::fs::write(&path, text).unwrap();
        let ran = run(&["check-config", path.to_str().unwrap()]);
        assert_eq!((ran.exit, ran.out.as_str()), (Exit::Config, ""));
        let found: Vec<&str> = ran.err.lines().filter(|line| line.starts_with("error: ")).collect();
        assert_eq!(found.len(), errors, "{}", ran.err);
        assert!(ran.err.contains("a.toml:1:1: a: there is no cause \"nobody\""), "{}", ran.err);
        assert!(ran.err.contains("b.toml:2:1: "), "{}", ran.err);
    }
    std::fs::remove_dir_all(&events).unwrap();
    std::fs::write(&path, "[admin]\nlisten = \"127.0.0.1:9890\"\n").unwrap();
    assert_eq!(run(&["check-config", path.to_str().unwrap()]).exit, Exit::Good);
}

/// Files next to the configuration are judged with it, each block by itself and all of them together.
#[test]
fn check_config_reports_errors_in_service_files() {
    let folder = Folder::new();
    let (path, services) = (folder.0.join("config.toml"), folder.0.join("services.d"));
    let block = |name: &str, frontend: &str, backend: &str| {
        format!("[[service]]\nname = \"{name}\"\nfrontends = [\"{frontend}\"]\nbackends = [\"{backend}\"]\n")
    };
    let own = block("web", "10.96.0.1:80", "192.0.2.1:80");
    std::fs::write(&path, format!("[services]\npath = \"services.d\"\n{own}")).unwrap();
    let path = path.to_str().unwrap();
    let ran = run(&["check-config", path]);
    assert_eq!(ran.exit, Exit::Good, "a folder may come later");
    assert!(ran.err.contains("create the folder, or change `path` under [services]"), "{}", ran.err);
    std::fs::create_dir(&services).unwrap();
    std::fs::write(services.join("a.toml"), block("db", "10.96.0.2:80", "192.0.2.1:80")).unwrap();
    assert_eq!(run(&["check-config", path]).exit, Exit::Good);
    let bad = block("x", "10.96.0.3:80", "192.0.2.1") + &block("y", "10.96.0.4:80", "192.0.2.2");
    std::fs::write(services.join("b.toml"), bad + &block("web", "10.96.0.5:80", "192.0.2.1:80")).unwrap();
    std::fs::write(services.join("c.toml"), "[[").unwrap();
    let ran = run(&["check-config", path]);
    assert_eq!(ran.exit, Exit::Config);
    let said: Vec<&str> = ran.err.lines().filter(|line| line.starts_with("error: ")).collect();
    let places = [
        "b.toml:4:13: service \"x\": backends[0]",
        "b.toml:8:13: service \"y\": backends[0]",
        "c.toml:1:3: this is",
    ];
    let left_out = "b.toml: static/web is left out: ";
    assert!(
        places.iter().chain([&left_out]).all(|it| said.iter().any(|line| line.contains(it))),
        "{}",
        ran.err
    );
    assert_eq!(said.len(), 4, "{}", ran.err);
}

/// The names of files in the folder of services come from their writers, who need not be root.
#[test]
fn no_name_of_a_file_of_services_writes_or_turns_a_line_of_a_check() {
    let folder = Folder::new();
    let (path, services) = (folder.0.join("config.toml"), folder.0.join("services.d"));
    std::fs::write(&path, "[services]\npath = \"services.d\"\n").unwrap();
    std::fs::create_dir(&services).unwrap();
    std::fs::write(services.join("a\n\x1b[2Jerror: \u{202e}b.toml"), "[[").unwrap();
    let ran = run(&["check-config", path.to_str().unwrap()]);
    assert_eq!((ran.exit, ran.err.lines().count()), (Exit::Config, 1), "{}", ran.err);
    assert!(ran.err.contains("a??[2Jerror: ?b.toml:1:3: "), "{}", ran.err);
}

/// Cleans up after a daemon that has its pins in the folder `pins`.
fn cleanup(folder: &Folder, pins: &std::path::Path) -> Ran {
    let config = folder.0.join("config.toml");
    std::fs::write(&config, format!("[datapath]\nbpffs = \"{}\"\n", pins.display())).unwrap();
    run(&["cleanup", "--config", config.to_str().unwrap()])
}

#[test]
fn cleanup_of_nothing_is_good() {
    let folder = Folder::new();
    let pins = folder.0.join("pins");
    let ran = cleanup(&folder, &pins);
    assert_eq!((ran.exit, ran.out), (Exit::Good, format!("{}: nothing is there\n", pins.display())));
    let ran = run(&["cleanup", "--drain", "--config", folder.0.join("config.toml").to_str().unwrap()]);
    assert_eq!((ran.exit, ran.out), (Exit::Good, format!("{}: nothing is there\n", pins.display())));
}

#[test]
fn cleanup_removes_nothing_that_holdfast_cannot_have_made() {
    let folder = Folder::new();
    let kept = folder.0.join("pins").join("links");
    std::fs::create_dir_all(&kept).unwrap();
    let ran = cleanup(&folder, &folder.0.join("pins"));
    assert_eq!((ran.exit, ran.out.as_str()), (Exit::Finding, ""));
    assert!(
        ran.err.starts_with("holdfast: ") && ran.err.contains("is not on a BPF file system"),
        "{}",
        ran.err
    );
    assert!(kept.exists());
}

#[test]
fn nothing_is_drained_that_holdfast_cannot_have_made() {
    let folder = Folder::new();
    let pins = folder.0.join("pins");
    std::fs::create_dir_all(&pins).unwrap();
    cleanup(&folder, &pins);
    let ran = run(&["cleanup", "--drain", "--config", folder.0.join("config.toml").to_str().unwrap()]);
    assert_eq!((ran.exit, ran.out.as_str()), (Exit::Finding, ""));
    assert!(ran.err.contains("is not on a BPF file system") && pins.exists(), "{}", ran.err);
}

/// The unit starts the daemon after it, whatever its result.
#[test]
fn prepare_keeps_no_daemon_from_its_start() {
    let folder = Folder::new();
    let config = folder.0.join("config.toml");
    let prepare = |text: String| {
        std::fs::write(&config, text).unwrap();
        run(&["prepare", "--config", config.to_str().unwrap()])
    };
    let ran = prepare("[datapath]\nkind = \"memory\"\n".to_owned());
    assert_eq!((ran.exit, ran.out.as_str()), (Exit::Good, "the map of sockets: nothing is in the kernel\n"));
    let pins = folder.0.join("pins/holdfast").display().to_string();
    let makes_it = "; the daemon makes it itself\n";
    for (bad, is_made_later) in
        [("[datapath]\nbpfs = \"/a\"\n".to_owned(), false), (format!("[datapath]\nbpffs = {pins:?}\n"), true)]
    {
        let ran = prepare(bad);
        assert_eq!((ran.exit, ran.out.as_str()), (Exit::Good, ""));
        assert_eq!((ran.err.is_empty(), ran.err.ends_with(makes_it)), (false, is_made_later), "{}", ran.err);
    }
}

#[test]
fn cleanup_needs_a_configuration_that_can_be_read() {
    let folder = Folder::new();
    let path = folder.0.join("config.toml");
    std::fs::write(&path, "[datapath]\nbpfs = \"/a\"\n").unwrap();
    let ran = run(&["cleanup", "--config", path.to_str().unwrap()]);
    assert_eq!((ran.exit, ran.out.as_str()), (Exit::Config, ""));
    assert!(ran.err.contains("bpfs"), "{}", ran.err);
}

#[test]
fn usage_errors_have_their_own_exit() {
    for arguments in [
        &["frontend"][..],
        &[],
        &["frontends", "--name", "x"],
        &["-o", "xml", "status"],
        &["--socket", "a", "--tcp", "b", "status"],
        &["completions", "tcsh"],
    ] {
        let ran = run(arguments);
        assert_eq!((ran.exit, ran.out.as_str()), (Exit::Usage, ""), "{arguments:?}");
        assert!(!ran.err.is_empty());
    }
    let ran = run(&["--help"]);
    assert_eq!((ran.exit, ran.err.as_str()), (Exit::Good, ""));
    assert!(ran.out.contains("check-config"));
    assert_eq!(run(&["--version"]).out, format!("holdfast {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn every_shell_gets_completions() {
    for shell in ["bash", "zsh", "fish"] {
        let ran = run(&["completions", shell]);
        assert_eq!(ran.exit, Exit::Good);
        assert!(ran.out.contains("check-config"), "{shell}");
    }
}

#[test]
fn the_command_line_is_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn history_is_sentences_for_people_and_records_for_programs() {
    let served = serve_with(everything(), |readings| readings.history = incident_history());
    let ran = served.ask(&["history", "default/kubernetes", "--reason", "control", "--limit", "1"]);
    assert_eq!(ran.exit, Exit::Good);
    assert!(
        ran.out.contains(
            " #4 default/kubernetes: 10.96.0.1:443/TCP held (control) -> serving, +169.254.128.8:6443"
        ),
        "{}",
        ran.out
    );
    let ran = served.ask(&["history", "--after", "2", "--since", "2026-01-08T11:11:55Z", "-o", "json"]);
    let records: Vec<Record> = ran.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(records.iter().filter_map(|it| it.seq).collect::<Vec<_>>(), [3, 4, 5]);
    let ran = served.ask(&["history", "--until", "soon"]);
    assert_eq!((ran.exit, ran.out.as_str()), (Exit::Usage, ""));
    assert!(ran.err.contains("\"soon\" is no time"), "{}", ran.err);
}

#[track_caller]
fn check_watch(arguments: &[&str], expected: &[&str]) {
    let history = Arc::<History>::default();
    let served = serve_with(everything(), |readings| readings.history = Arc::clone(&history));
    let teller = std::thread::spawn(move || {
        while history.watchers() == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        tell_incident(&history);
    });
    let ran = run(&[&["--socket", served.socket.to_str().unwrap(), "watch"], arguments].concat());
    teller.join().unwrap();
    assert_eq!((ran.exit, ran.err.as_str()), (Exit::Unreachable, "holdfast: the daemon stops\n"));
    let lines: Vec<&str> = ran.out.lines().collect();
    assert_eq!(lines.len(), expected.len(), "{}", ran.out);
    for (line, part) in lines.iter().zip(expected) {
        assert!(line.contains(part), "{line}");
    }
}

#[test]
fn watch_shows_what_happens_until_the_daemon_stops() {
    check_watch(
        &["default/kubernetes-intranet"],
        &["is new: serving", "nothing changed for clients; because Service", "is gone, was serving"],
    );
    check_watch(
        &["default/kubernetes", "-o", "json"],
        &["\"seq\":1,", "\"endpoints_null\":true,\"fields\":[\"endpoints\"]", "\"seq\":4,"],
    );
}

#[test]
fn explain_traces_a_packet_from_outside() {
    let served = serve(everything());
    // There is no engine in these tests, so nothing can read the maps.
    let cannot = "has an unknown outcome now: the maps could not be read: the engine does not answer";
    for (asked, exit, first) in [
        (
            &["192.0.2.10:80", "--from", "203.0.113.9"][..],
            Exit::Good,
            format!("A TCP packet from 203.0.113.9 to 192.0.2.10:80 {cannot}"),
        ),
        (
            &["192.0.2.99:1", "--from", "203.0.113.9", "--udp"],
            Exit::Finding,
            "A UDP packet from 203.0.113.9 to 192.0.2.99:1 goes on as it is, because no service has that frontend."
                .to_owned(),
        ),
        (&["[fd00::80]:8000", "--from", "203.0.113.9"], Exit::Usage, String::new()),
        (&["192.0.2.10:80", "--from", "web"], Exit::Usage, String::new()),
        (&["default/web", "--from", "203.0.113.9"], Exit::Usage, String::new()),
        (&["default/web", "--udp"], Exit::Usage, String::new()),
        (&["192.0.2.10:80/TCP", "--udp"], Exit::Usage, String::new()),
        (&["--from", "203.0.113.9"], Exit::Usage, String::new()),
    ] {
        let ran = served.ask(&[&["explain"], asked].concat());
        assert_eq!(ran.exit, exit, "{asked:?}: {} {}", ran.out, ran.err);
        assert!(ran.out.starts_with(&first), "{asked:?}: {}", ran.out);
    }
    for (asked, says) in [
        (
            &["default/web", "--from", "203.0.113.9"][..],
            "`holdfast diagnose default/web --client 203.0.113.9` tries all",
        ),
        (&["192.0.2.10", "--from", "203.0.113.9"], "`holdfast explain 192.0.2.10` lists the ports"),
        (&["default/web", "--udp"], "--udp needs what the client dials"),
        (&["192.0.2.10/TCP", "--udp"], "is an address alone"),
        (&["web", "--from", "203.0.113.9"], "neither that nor a service"),
    ] {
        let ran = served.ask(&[&["explain"], asked].concat());
        assert_eq!(ran.exit, Exit::Usage, "{asked:?}: {}", ran.err);
        assert!(ran.err.contains(says), "{asked:?}: {}", ran.err);
    }
}

#[test]
fn explain_takes_a_service_an_address_and_a_row_of_a_table() {
    let served = serve(everything());
    for (what, exit, first) in [
        ("default/web", Exit::Finding, "[fd00::80]:8000/TCP (Static of default/web, port http) is served by"),
        (
            "10.96.0.20:80",
            Exit::Finding,
            "10.96.0.20:80/TCP (ClusterIP of default/gone) refuses every connection",
        ),
        (
            "10.96.0.20:80/TCP",
            Exit::Finding,
            "10.96.0.20:80/TCP (ClusterIP of default/gone) refuses every connection",
        ),
        (
            "[fd00::80]:8000",
            Exit::Good,
            "[fd00::80]:8000/TCP (Static of default/web, port http) is served by",
        ),
        // Another process listens there.
        ("30080", Exit::Finding, "*:30080/TCP at no address of this node (NodePort of default/web"),
        (":30080", Exit::Finding, "*:30080/TCP at no address of this node (NodePort of default/web"),
        ("*:30080/TCP", Exit::Finding, "*:30080/TCP at no address of this node (NodePort of default/web"),
        ("30080/web", Exit::NoService, "No Service and no EndpointSlice of 30080/web is known."),
        ("[*]:30080", Exit::Finding, "No service has [*]:30080"),
        ("0.0.0.0:30080", Exit::Finding, "*:30080/TCP at no address of this node (NodePort of default/web"),
        ("10.1.0.2:8080", Exit::Good, "10.1.0.2:8080 is a backend of default/web"),
        ("192.0.2.99:1", Exit::Finding, "No service has 192.0.2.99:1"),
        (
            "[::ffff:10.96.0.20]:80",
            Exit::Finding,
            "10.96.0.20:80/TCP (ClusterIP of default/gone) refuses every",
        ),
        ("10.96.0.20:80/UDP", Exit::Finding, "No service has 10.96.0.20:80/UDP"),
        (
            "10.96.0.53:53",
            Exit::Good,
            "10.96.0.53:53/UDP (ClusterIP of kube-system/kube-dns, port dns) is still",
        ),
        (
            "10.96.0.53:53/udp",
            Exit::Good,
            "10.96.0.53:53/UDP (ClusterIP of kube-system/kube-dns, port dns) is",
        ),
        ("10.96.0.53:53/TCP", Exit::Finding, "No service has 10.96.0.53:53/TCP"),
        ("10.96.0.53:53/XYZ", Exit::Usage, ""),
        ("10.1.0.9:53/UDP", Exit::Good, "10.1.0.9:53/UDP is a backend of kube-system/kube-dns"),
        ("10.1.0.2:8080/UDP", Exit::Finding, "No service has 10.1.0.2:8080/UDP"),
        ("default/none", Exit::NoService, "No Service and no EndpointSlice of default/none is known."),
        ("web", Exit::Usage, ""),
    ] {
        let ran = served.ask(&["explain", what]);
        assert_eq!(ran.exit, exit, "{what}: {}{}", ran.out, ran.err);
        assert!(ran.out.starts_with(first), "{what}: {}", ran.out);
    }
}

#[test]
fn a_diagnosis_exits_by_its_findings() {
    let served = serve(everything());
    for (what, exit, says) in [
        ("default/web", Exit::Errors, "default/web  LoadBalancer"),
        ("default/none", Exit::NoService, "There is no Service default/none"),
        ("default/bad", Exit::NoService, "is rejected"),
        ("web", Exit::Usage, ""),
    ] {
        // For a TCP client the daemon queries no other process, so the two listeners may give different answers.
        let (address, socket) = (served.admin.address().to_string(), served.socket.to_str().unwrap());
        for reach in [["--tcp", &address], ["--socket", socket]] {
            let ran = run(&[&["diagnose", what, "--no-probe"], &reach[..]].concat());
            assert_eq!(ran.exit, exit, "{what}: {}{}", ran.out, ran.err);
            assert!(ran.out.contains(says), "{what}: {}", ran.out);
        }
    }
}

/// An operator at night may not know which service it is.
#[test]
fn a_diagnosis_without_a_service_begins_with_the_node_and_names_the_worst_services() {
    let served = serve(everything());
    let socket = ["--socket", served.socket.to_str().unwrap()];
    let ran = run(&[&["diagnose", "--no-probe"], &socket[..]].concat());
    assert_eq!(ran.exit, Exit::Errors, "{}{}", ran.out, ran.err);
    assert!(ran.out.starts_with("holdfast 0.1.0 on node-1"), "{}", ran.out);
    for service in ["default/thief  ClusterIP", "default/gone  ClusterIP", "telecom/signalling  NodePort"] {
        assert!(ran.out.contains(&format!("\n\n{service}")), "{service}: {}", ran.out);
    }
    assert!(ran.out.ends_with("\nand 1 more service: holdfast diagnose NAMESPACE/NAME\n"), "{}", ran.out);

    let ran = run(&[&["diagnose", "--no-probe", "-o", "json"], &socket[..]].concat());
    let answer: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(answer["status"]["version"]["node"], "node-1");
    assert_eq!(answer["diagnoses"].as_array().unwrap().len(), 3);
    assert_eq!(answer["diagnoses_omitted"], 1);
    assert_eq!(run(&["diagnose", "--port", "https"]).exit, Exit::Usage, "a port of which service?");
}

#[test]
fn a_check_is_explained_without_a_daemon() {
    let ran = run(&["diagnose", "--explain", "slices.stale"]);
    assert_eq!((ran.exit, ran.err.as_str()), (Exit::Good, ""));
    assert!(
        ran.out.starts_with("slices.stale looks at: watch, table, api:service, api:endpointslices"),
        "{}",
        ran.out
    );
    let ran = run(&["diagnose", "--explain", "slices.old"]);
    assert_eq!((ran.exit, ran.out.as_str()), (Exit::Usage, ""));
    assert!(ran.err.contains("no check is called \"slices.old\""), "{}", ran.err);
}

#[test]
fn events_that_could_not_be_read_end_otherwise_than_none() {
    let served = serve(everything());
    let (address, socket) = (served.admin.address().to_string(), served.socket.to_str().unwrap());
    for (reach, says) in
        [(["--tcp", &address], "only for clients of"), (["--socket", socket], "no apiserver is used")]
    {
        for arguments in [&["events"][..], &["events", "default/web"], &["events", "-o", "json"]] {
            let ran = run(&[arguments, &reach[..]].concat());
            assert_eq!(ran.exit, Exit::Incomplete, "{}{}", ran.out, ran.err);
            assert!(ran.out.contains(says), "{}", ran.out);
        }
        assert_eq!(run(&[&["events", "web"], &reach[..]].concat()).exit, Exit::Usage);
    }
}

#[test]
fn an_overlong_request_is_a_usage_error() {
    let served = serve(everything());
    let ran = served.ask(&["explain", &"x".repeat(9_000)]);
    assert_eq!((ran.exit, ran.out.as_str()), (Exit::Usage, ""));
    assert!(
        ran.err.starts_with("holdfast: the request is too long: ") && ran.err.contains("8192"),
        "{}",
        ran.err
    );
    let name = format!("default/{}", "x".repeat(4_000));
    let ran = served.ask(&["explain", &name]);
    assert_eq!(ran.exit, Exit::Usage);
    assert!(ran.err.contains("at most 253"), "{}", ran.err);
}

#[test]
fn hints_are_in_the_words_of_the_command_line() {
    let served = serve(everything());
    for (arguments, expected) in [
        (&["explain", "web"][..], "give NAMESPACE/NAME, or an address with its port, such as 10.96.0.10:80"),
        (&["frontends", "web"], "give the namespace and the name, such as default/web; "),
        (&["events", "web"], "give the namespace and the name, such as default/web; "),
        (&["diagnose", "web"], "give the namespace and the name, such as default/web; "),
        (&["diagnose", "default/web", "--client", "web"], "give an IP address"),
        (&["diagnose", "default/web", "--since", "soon"], "--since 2026-01-08T11:11:55Z"),
        (&["diagnose", "default/web", "--timeout", "1h"], "give whole seconds, from 1 to 5"),
        (&["history", "web"], "give the namespace and the name, such as default/web; "),
        (&["frontends", "--address", "web"], "such as --address 10.96.0.10"),
        (&["history", "--since", "soon"], "--since 2026-01-08T11:11:55Z"),
        (&["history", "--until", "soon", "-o", "json"], "--until 2026-01-08T11:11:55Z"),
        (&["history", "--after", "x"], "--after 184"),
    ] {
        let ran = served.ask(arguments);
        assert_eq!((ran.exit, ran.out.as_str()), (Exit::Usage, ""), "{arguments:?}: {}", ran.err);
        assert!(ran.err.contains(expected), "{arguments:?}: {}", ran.err);
        assert!(!ran.err.contains(['?', '{', '`']), "{arguments:?}: {}", ran.err);
    }
}

fn as_json(ran: &Ran) -> serde_json::Value {
    assert_eq!(ran.err, "", "a program reads one place only");
    serde_json::from_str(&ran.out).unwrap_or_else(|error| panic!("{error}: {}", ran.out))
}

#[test]
fn check_config_has_json() {
    let folder = Folder::new();
    let path = folder.0.join("config.toml");
    let check = |text: &str| {
        std::fs::write(&path, text).unwrap();
        let ran = run(&["check-config", path.to_str().unwrap(), "-o", "json"]);
        (ran.exit, as_json(&ran))
    };
    let (exit, told) = check("[admin]\nlisten = \"10.0.0.1:80\"\n");
    assert_eq!((exit, &told["good"], &told["omitted"]), (Exit::Config, &false.into(), &0.into()), "{told}");
    let error = &told["errors"][0];
    assert_eq!((&error["line"], &error["place"]), (&2.into(), &"admin.listen".into()), "{told}");
    assert!(error["message"].as_str().unwrap().contains("loopback"), "{told}");
    let (exit, told) = check("[admin]\nlisten = \"127.0.0.1:80\"\n");
    assert_eq!((exit, &told["good"]), (Exit::Good, &true.into()));
    assert!(told["warnings"][0]["message"].as_str().unwrap().contains("nothing to serve"), "{told}");
}

#[test]
fn cleanup_has_json() {
    let folder = Folder::new();
    let config = folder.0.join("config.toml");
    let pins = folder.0.join("pins");
    let clean = |text: &str| {
        std::fs::write(&config, text).unwrap();
        let ran = run(&["cleanup", "--config", config.to_str().unwrap(), "-o", "json"]);
        (ran.exit, as_json(&ran))
    };
    let text = format!("[datapath]\nbpffs = \"{}\"\n", pins.display());
    let (exit, told) = clean(&text);
    assert_eq!(
        (exit, &told["removed"], &told["found"]),
        (Exit::Good, &false.into(), &false.into()),
        "{told}"
    );
    std::fs::create_dir_all(pins.join("links")).unwrap();
    let (exit, told) = clean(&text);
    assert_eq!(
        (exit, &told["removed"], &told["found"]),
        (Exit::Finding, &false.into(), &true.into()),
        "{told}"
    );
    assert!(told["errors"][0].as_str().unwrap().contains("is not on a BPF file system"), "{told}");
    let (exit, told) = clean("[datapath]\nbpfs = 1\n");
    assert_eq!(exit, Exit::Config);
    assert!(told["errors"][0].as_str().unwrap().contains("bpfs"), "{told}");
}

#[test]
fn reload_has_json() {
    let ran = reload_as(&["-o", "json"], Ok(ReloadOutcome { restart_keys: vec!["log.format"] }));
    let told = as_json(&ran);
    assert_eq!((ran.exit, &told["reloaded"]), (Exit::Good, &true.into()));
    assert_eq!(told["restart_needed_for"], serde_json::json!(["log.format"]));
    let ran = reload_as(&["-o", "json"], Err("holdfast.toml:3: no such key".to_owned()));
    let told = as_json(&ran);
    assert_eq!((ran.exit, &told["reloaded"]), (Exit::Config, &false.into()));
    assert_eq!(told["error"], "holdfast.toml:3: no such key");
}

#[test]
fn a_probe_gets_its_answer_as_an_exit_code() {
    let served = serve(everything());
    let ran = served.ask(&["health", "live"]);
    assert_eq!((ran.exit, &*ran.out), (Exit::Good, "ok\n"));
    assert_eq!(served.ask(&["health", "ready"]).exit, Exit::Good);
    served.snapshots.send_replace(Arc::default());
    let ran = served.ask(&["health", "ready"]);
    assert_eq!((ran.exit, &*ran.out), (Exit::Finding, "the engine has not published anything yet\n"));
    assert_eq!(run(&["--socket", "/nowhere/admin.sock", "health", "live"]).exit, Exit::Unreachable);
}

#[test]
fn a_failed_comparison_is_neither_equal_nor_a_difference() {
    // No engine runs here to compare the maps, and no program reads other maps.
    let ran = serve_with(everything(), |readings| {
        readings.datapath = watch::channel(Arc::new(DatapathView::for_memory())).1;
    })
    .ask(&["verify"]);
    let ends = "not fully compared: 0 of 1 comparisons were made, and found no difference\n";
    assert!(ran.out.contains("not compared: ") && ran.out.ends_with(ends), "{}", ran.out);
    assert_eq!((ran.exit, ran.exit.code()), (Exit::Incomplete, 5));
    let made = |equal: &str| {
        format!(
            r#"{{"what":"memory with kernel","equal":{equal},"differences":[],"omitted":0,"error":null,"compared_at":null,"age_seconds":null}}"#
        )
    };
    for (comparisons, exit, ends) in [
        ([made("true"), made("true")], Exit::Good, "all equal\n"),
        (
            [made("true"), made("null")],
            Exit::Incomplete,
            "not fully compared: 1 of 2 comparisons were made, and found no difference\n",
        ),
        ([made("false"), made("null")], Exit::Finding, "NOT equal\n"),
    ] {
        let [table, json] =
            verify(&format!(r#"{{"comparisons":[{}],"equal":false}}"#, comparisons.join(",")));
        assert_eq!((table.exit, json.exit), (exit, exit), "{}", table.out);
        assert!(table.out.ends_with(ends), "{}", table.out);
    }
}

/// Runs `holdfast verify` against this answer, for text and for JSON.
fn verify(body: &str) -> [Ran; 2] {
    let folder = Folder::new();
    let path = folder.0.join("daemon.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let answer =
        format!("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    let daemon = std::thread::spawn(move || {
        for _ in 0..2 {
            let mut stream = listener.accept().unwrap().0;
            assert_ne!(stream.read(&mut [0; 4096]).unwrap(), 0);
            stream.write_all(answer.as_bytes()).unwrap();
        }
    });
    let socket = path.to_str().unwrap();
    let ran =
        [&["table"][..], &["json"]].map(|form| run(&[&["--socket", socket, "verify", "-o"], form].concat()));
    daemon.join().unwrap();
    ran
}

#[test]
fn whether_all_is_equal_is_read_from_its_field_and_not_from_a_line() {
    let forged = r#"{"comparisons":[{"what":"memory with kernel","equal":false,"differences":["x\nall equal"],
        "omitted":0,"error":null,"compared_at":"2026-01-08T11:11:55Z","age_seconds":2}],"equal":false}"#;
    let [table, json] = verify(forged);
    assert_eq!((table.exit, json.exit), (Exit::Finding, Exit::Finding));
    assert_eq!(table.out, "memory with kernel: 1 difference (2 s ago)\n  x?all equal\nNOT equal\n");
    assert_eq!(json.out, forged);
    let [table, json] = verify(r#"{"comparisons":[], "equal":true}"#);
    let nothing = "not fully compared: 0 of 0 comparisons were made, and found no difference\n";
    assert_eq!((table.exit, json.exit, table.out.as_str()), (Exit::Incomplete, Exit::Incomplete, nothing));
    let [table, json] = verify(r#"{"comparisons":[]}"#);
    assert_eq!((table.exit, json.exit), (Exit::Unreachable, Exit::Unreachable), "it says nothing");
}

#[test]
fn special_characters_of_a_query_are_encoded_and_others_stay() {
    let filters = |value: &str| build_path("/services?format=text", &[("service", value.to_owned())]);
    for (value, encoded) in [
        ("default/a-b.c_d:80", "default/a-b.c_d:80"),
        ("a&b=c#d+e f%", "a%26b%3Dc%23d%2Be%20f%25"),
        ("[fd00::1]:53~", "%5Bfd00::1%5D:53%7E"),
        ("\r\nü", "%0D%0A%C3%BC"),
    ] {
        assert_eq!(filters(value), format!("/services?format=text&service={encoded}"));
    }
}

/// Every command, and every option that its help shows, has its place in the manual page.
#[test]
fn the_manual_page_has_every_command_and_option() {
    let page = include_str!("../../../packaging/man/holdfast.1");
    let items: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix(".It Cm ")).collect();
    let global = ["help", "version", "socket", "tcp", "output"];
    let all = command();
    for it in all.get_subcommands().filter(|it| !it.is_hide_set()) {
        let name = it.get_name();
        let is_about = |item: &&&str| item.split(' ').next() == Some(name);
        let about = items.iter().filter(is_about).copied().collect::<Vec<_>>().join(" ");
        assert!(!about.is_empty() || name == "help", "{name} is not in the manual page");
        let options = it.get_arguments().filter(|option| !option.is_hide_set());
        for option in options.filter_map(clap::Arg::get_long).filter(|option| !global.contains(option)) {
            let is_there =
                about.contains(&format!("Fl Fl {option}")) || option == "watch" && about.contains("Fl w");
            assert!(is_there, "{name} --{option} is not in the manual page");
        }
    }
}

/// What each `--help` offers of the global options, and in which order.
#[test]
fn global_options_are_below_their_own_heading_and_only_where_they_apply() {
    for it in command().get_subcommands().filter(|it| it.get_name() != "help") {
        let name = it.get_name();
        let help = run(&[name, "--help"]).out;
        let own = help.split_once("\nGlobal options:\n");
        let global = own.map_or("", |(_, global)| global);
        let own = own.map_or(help.as_str(), |(own, _)| own);
        for (option, applies) in [
            ("--socket", !LOCAL_COMMANDS.contains(&name)),
            ("--tcp", !LOCAL_COMMANDS.contains(&name)),
            ("--output", !COMMANDS_WITHOUT_FORMS.contains(&name)),
        ] {
            let places = (own.contains(&format!("{option} <")), global.contains(&format!("{option} <")));
            assert_eq!(places, (false, applies), "{name} {option}:\n{help}");
        }
    }
}
