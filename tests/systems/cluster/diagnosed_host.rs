//! The control plane is healthy, and the fault is on this node: foreign programs, missing programs of ours, leftover
//! rules of a proxy, or a foreign process on our port.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::process::Command;
use std::thread;
use std::time::Duration;

use holdfast_tests::bed::ask::{Outcome, Question, Transport};
use holdfast_tests::bed::clients::Client;
use holdfast_tests::bed::daemon::Daemon;
use holdfast_tests::bed::{Bed, Location, Role, Server, succeed};
use holdfast_tests::peers::{Api, Cluster, Kind, Part, Pod, SOON, until};
use serde_json::json;

use crate::diagnosed::{
    self, ExpectedDiagnosis, WELL, expect, expect_once_looked, expect_unprobed, served_daemon, service,
};
use crate::guide::shows;
use crate::stage::{self, NODE};

const WEB: Pod<'static> = Pod { name: "default/web-1", app: "web", node: NODE, address: "10.1.0.2" };
const GONE: Pod<'static> = Pod { name: "default/web-0", app: "web", node: NODE, address: "10.1.0.9" };

const LIMIT: Duration = Duration::from_secs(20);

fn serve(bed: &Bed, name: &str, at: &str) -> Server {
    bed.serve(Location::pod("pod"), Role::Tcp, name, at.parse().unwrap()).unwrap()
}

/// A Service with one pod that answers.
fn web(cluster: &Cluster) -> (String, Server) {
    let api = cluster.api(0).unwrap();
    let address = service(&api, "web", &json!({"selector": {"app": "web"}}));
    diagnosed::pods(&api, &[WEB]);
    (address, serve(cluster.bed(), "web", "10.1.0.2:8080"))
}

/// Removes the program of a hook, and keeps the daemon from pinning another one.
fn take_away(daemon: &Daemon<'_>, hook: &str) -> std::path::PathBuf {
    let pin = daemon.pins().join("links").join(hook);
    let is_away = || {
        let mut unhook = Command::new(Client::unhook()?.program());
        unhook.arg(&pin);
        // Removes it again if the daemon has restored it meanwhile.
        succeed(unhook, LIMIT)?;
        let _ = std::fs::remove_file(&pin);
        Ok(std::fs::create_dir(&pin).ok())
    };
    until(SOON, "a hook without a program", is_away).unwrap();
    pin
}

#[test]
fn a_missing_program_is_the_cause_and_its_return_is_reported() {
    let cluster = diagnosed::cluster_with_pods();
    let (_, _web) = web(&cluster);
    let mut daemon = served_daemon(&cluster, &stage::by_certificate(&cluster, 1));
    daemon.start().unwrap();
    let wanted = ExpectedDiagnosis {
        service: "default/web",
        findings: &["self.hooks ok", "probe.frontend ok"],
        ..WELL
    };
    expect(&daemon, &wanted);
    let pin = take_away(&daemon, "connect4");
    let text = expect_once_looked(
        &daemon,
        &ExpectedDiagnosis {
            service: "default/web",
            first: "self.hooks",
            exit: 3,
            next: "Restart holdfast",
            findings: &["probe.frontend unknown", "probe.backend ok", "view.table-kernel ok", "verdict ok"],
            says: &["Programs are not attached", "connect4. Local clients are not served"],
        },
    );
    shows("A program of ours that somebody detached, and that cannot be put back", &text);
    std::fs::remove_dir(pin).unwrap();
    let wanted = ExpectedDiagnosis {
        service: "default/web",
        findings: &["self.hooks info", "probe.frontend ok"],
        says: &["Nothing is wrong", "Detached programs were attached again"],
        ..WELL
    };
    expect_once_looked(&daemon, &wanted);
}

#[test]
fn foreign_programs_that_redirect_or_deny_are_reported() {
    let cluster = diagnosed::cluster_with_pods();
    let (address, _web) = web(&cluster);
    let bed = cluster.bed();
    let _other = serve(bed, "other", "10.1.0.4:9999");
    let dialled = format!("{address}:80").parse().unwrap();
    let meddle = |words: &[&str]| Client::meddle(bed.cgroup(), words, dialled).unwrap();
    let first = meddle(&["lead", &address, "80", "10.1.0.4", "9999"]);
    let mut daemon = served_daemon(&cluster, &stage::by_certificate(&cluster, 1));
    daemon.start().unwrap();
    let wanted = ExpectedDiagnosis {
        service: "default/web",
        first: "self.hooks",
        exit: 3,
        next: "Look whose program it is",
        findings: &[
            "probe.frontend error",
            "probe.frontend because self.hooks",
            "probe.backend ok",
            "view.table-kernel ok",
            "foreign.cilium ok",
        ],
        says: &[
            "run before ours",
            "leads this host to 10.1.0.4:9999",
            "connect4: program ",
            "bpftool prog show id",
        ],
    };
    shows("A program of somebody else that leads elsewhere", &expect(&daemon, &wanted));
    drop(first);
    daemon.stop().unwrap();
    daemon.cleanup().unwrap();
    let _first = meddle(&["deny", &address, "80"]);
    daemon.start().unwrap();
    let wanted = ExpectedDiagnosis {
        service: "default/web",
        first: "probe.frontend",
        exit: 3,
        next: "Look whose program it is",
        findings: &["self.hooks info", "probe.backend ok", "verdict ok"],
        says: &["is not permitted to this host", "connect4: program "],
    };
    shows("A program of somebody else that forbids what ours allows", &expect(&daemon, &wanted));
    daemon.stop().unwrap();
    // A daemon in a cgroup of its own is not served by its programs and probes no frontend: it only sees foreign
    // programs.
    daemon.cleanup().unwrap();
    let mut apart = Daemon::new(bed, &stage::by_certificate(&cluster, 1)).unwrap();
    apart.start().unwrap();
    let wanted = ExpectedDiagnosis {
        service: "default/web",
        findings: &["self.hooks info", "probe.frontend skipped", "probe.backend ok"],
        says: &["Nothing is wrong", "those of others run before it (connect4: program "],
        ..WELL
    };
    expect(&apart, &wanted);
}

/// Waits until kube-proxy's rules lead to a pod.
fn wait_rule(bed: &Bed, pod: &str) {
    let is_led = || {
        let mut nft = bed.command(Location::OUTSIDE, "nft")?;
        nft.args(["list", "table", "ip", "nat"]);
        Ok(succeed(nft, LIMIT)?.contains(&format!("dnat to {pod}")).then_some(()))
    };
    until(SOON, "a rule of kube-proxy", is_led).unwrap();
}

#[test]
fn kube_proxys_leftover_rules_are_reported_with_affected_clients() {
    let cluster = diagnosed::cluster_with_pods();
    let (api, bed) = (cluster.api(0).unwrap(), cluster.bed());
    let address = service(&api, "web", &json!({"selector": {"app": "web"}}));
    diagnosed::pods(&api, &[GONE]);
    cluster.start_part(Part::IptablesProxy).unwrap();
    wait_rule(bed, "10.1.0.9:8080");
    cluster.kill(Part::IptablesProxy).unwrap();
    GONE.gone(&api).unwrap();
    diagnosed::pods(&api, &[WEB]);
    let _web =
        bed.serve_seen_source(Location::far("pod"), "web", &["10.1.0.2:8080".parse().unwrap()]).unwrap();
    let mut daemon = served_daemon(&cluster, &stage::by_certificate(&cluster, 1));
    daemon.start().unwrap();
    let text = expect(
        &daemon,
        &ExpectedDiagnosis {
            service: "default/web",
            first: "foreign.leftover",
            exit: 3,
            next: "Remove what it left",
            findings: &["foreign.kube-proxy because foreign.leftover", "probe.frontend ok", "verdict ok"],
            says: &["which does not run", "lead to addresses that are no backends", "chain KUBE-SERVICES"],
        },
    );
    shows("Rules that the real kube-proxy left, and whom they lead to", &text);
    let ask = |place| {
        let question = Question::new(Transport::Tcp, format!("{address}:80").parse().unwrap());
        bed.asker(place).unwrap().ask(question).unwrap()
    };
    let local = ask(Location::NODE);
    assert!(matches!(&local, Outcome::Answered { by, .. } if by == "web"), "{local:?}");
    let forwarded = ask(Location::far("pod"));
    // The packet programs at the pod's device serve the client before the leftover rules see its packet.
    assert!(matches!(&forwarded, Outcome::Answered { by, .. } if by == "web"), "{forwarded:?}");
}

/// A process on a port of the node that answers every health check with 200, until the test ends.
fn call_well(bed: &Bed, port: u16) {
    let listener = bed.within(Location::NODE, || TcpListener::bind(("0.0.0.0", port)).unwrap()).unwrap();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = BufReader::new(&stream).read_line(&mut String::new());
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        }
    });
}

fn balanced(api: &Api<'_>) -> u16 {
    service(
        api,
        "balanced",
        &json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local", "selector": {"app": "away"}}),
    );
    let service = api.get(Kind::Service, "default/balanced").unwrap().unwrap();
    service["spec"]["healthCheckNodePort"].as_u64().and_then(|port| port.try_into().ok()).unwrap()
}

#[test]
fn a_foreign_health_port_answer_for_an_empty_node_is_reported() {
    let cluster = diagnosed::cluster_with_pods();
    let api = cluster.api(0).unwrap();
    api.add_node("n2", "zone-b").unwrap();
    let port = balanced(&api);
    let ingress = json!({"status": {"loadBalancer": {"ingress": [{"ip": "203.0.113.10"}]}}});
    api.merge_status(Kind::Service, "default/balanced", &ingress).unwrap();
    diagnosed::pods(&api, &[Pod { name: "default/away-1", app: "away", node: "n2", address: "10.1.0.4" }]);
    call_well(cluster.bed(), port);
    let mut daemon = served_daemon(&cluster, &stage::by_certificate(&cluster, 1));
    daemon.start().unwrap();
    let said = format!("Its health port {port} answers 200, not 503, with 0 endpoints here. cluster-");
    let text = expect_unprobed(
        &daemon,
        &ExpectedDiagnosis {
            service: "default/balanced",
            first: "lb.health-port",
            exit: 3,
            next: "See what that process is",
            findings: &["lb.health-port error", "policy.external-local info"],
            says: &[&said],
        },
    );
    shows("A process that calls a node well at which nobody is", &text);
}
