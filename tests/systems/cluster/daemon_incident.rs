//! The incident at a real control plane: apiservers that share an address, a VIP of our own table in front of one of
//! them, and the daemon in between.
//!
//! Mistaken losses are held: `default/kubernetes` while it flaps, and the VIP while its slice is gone. Clients notice
//! neither, no other service is affected, and the daemon keeps its connection to repair both.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use holdfast_fixtures::clock::{Stopwatch, pause};
use holdfast_host::logging::messages::LIST_HELD;
use holdfast_tests::bed::daemon::Daemon;
use holdfast_tests::bed::{Dialer, Layout, Location, Role};
use holdfast_tests::peers::{
    ADVERTISED, APISERVER_PORT, Api, Cluster, Kind, Part, SOON, WatchEvent, apiserver, until,
};
use serde_json::{Value, json};

use crate::stage::{self, check_served, expect, rows, watched};

/// A Service whose name begins with that of `default/kubernetes`; its backend is an apiserver too.
const INTRANET: &str = "default/kubernetes-intranet";

const KUBERNETES: &str = "default/kubernetes";

const VIP: &str = "10.15.1.8:443";

/// Only the test writes its slice, to see whether the daemon still receives changes.
const BEAT: &str = "default/beat";

/// As in the incident: a load balancer without a selector.
const SERVICES: &str = "
apiVersion: v1
kind: Service
metadata: {name: kubernetes-intranet}
spec: {type: LoadBalancer, ports: [{name: https, port: 443, targetPort: 60002}]}
---
apiVersion: v1
kind: Service
metadata: {name: beat}
spec: {ports: [{port: 80}]}
";

const SLICE: &str = "default/kubernetes-intranet-qxgk4";

/// The apiserver that stays, and the VIP's backend.
const LIVE: usize = 1;

/// The pause between two changes of the beat.
const BEAT_PAUSE: Duration = Duration::from_millis(20);

fn cluster() -> Cluster {
    let cluster = Cluster::without_controllers(Layout::default(), 2).unwrap();
    let api = cluster.api(LIVE).unwrap();
    stage::prepare(&cluster, 2);
    api.apply(SERVICES).unwrap();
    let ingress = json!({"status": {"loadBalancer": {"ingress": [{"ip": "10.15.1.8"}]}}});
    api.merge_status(Kind::Service, INTRANET, &ingress).unwrap();
    lead_vip_to_live(&api);
    cluster
}

/// A slice as an operator writes it by hand.
fn slice(name: &str, service: &str, to: SocketAddr) -> Value {
    json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": name, "namespace": "default", "labels": {"kubernetes.io/service-name": service}},
        "addressType": "IPv4",
        "ports": [{"name": if service == "beat" { "" } else { "https" }, "port": to.port()}],
        "endpoints": [{"addresses": [to.ip().to_string()]}],
    })
}

fn lead_vip_to_live(api: &Api<'_>) {
    let slice = slice("kubernetes-intranet-qxgk4", "kubernetes-intranet", apiserver(LIVE).unwrap());
    api.apply_object(&slice).unwrap();
}

fn is_full(seen: &WatchEvent) -> bool {
    seen.object["endpoints"][0]["addresses"][0] == ADVERTISED.to_string()
}

/// Changes the beat's slice until stopped, and waits for each change in the daemon's table. Returns the number of
/// changes, and the longest time that one took.
fn beat(api: &Api<'_>, daemon: &Daemon<'_>, stop: &AtomicBool) -> (u32, Duration) {
    let (mut beats, mut longest) = (0, Duration::ZERO);
    loop {
        let port = u16::try_from(1024 + beats).unwrap();
        let begun = Stopwatch::start();
        api.apply_object(&slice("beat-1", "beat", SocketAddr::new(ADVERTISED.into(), port))).unwrap();
        until(SOON, "beat", || Ok(has_port(daemon, port).then_some(()))).unwrap();
        longest = longest.max(begun.read());
        beats += 1;
        if stop.load(Ordering::Relaxed) {
            return (beats, longest);
        }
        pause(BEAT_PAUSE);
    }
}

fn has_port(daemon: &Daemon<'_>, port: u16) -> bool {
    let rows = rows(daemon, &["frontends", BEAT], "frontends");
    rows.first().is_some_and(|row| row["backends"][0]["port"] == port)
}

/// Runs a closure during beats, and prints their times.
fn while_it_hears(cluster: &Cluster, daemon: &Daemon<'_>, what: &str, run: impl FnOnce()) {
    let (api, stop) = (cluster.api(LIVE).unwrap(), AtomicBool::new(false));
    thread::scope(|scope| {
        let beating = scope.spawn(|| beat(&api, daemon, &stop));
        // The scope waits for the beats, also when this fails.
        let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
        stop.store(true, Ordering::Relaxed);
        let (beats, longest) = beating.join().unwrap();
        println!("{what}: {beats} changes written meanwhile; the slowest was in the table after {longest:?}");
        ran.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

struct Clients {
    vip: Dialer,
    cluster_ip: Dialer,
    /// A client of `default/kubernetes`, whose backend is the advertised address.
    kubernetes: Dialer,
}

impl Clients {
    fn start(cluster: &Cluster) -> Self {
        let dial = |address: &str| cluster.bed().dial(Location::NODE, address.parse().unwrap()).unwrap();
        let cluster_ip = |name| {
            let service = cluster.api(LIVE).unwrap().get(Kind::Service, name).unwrap().unwrap();
            dial(&format!("{}:443", service["spec"]["clusterIP"].as_str().unwrap()))
        };
        Self { vip: dial(VIP), cluster_ip: cluster_ip(INTRANET), kubernetes: cluster_ip(KUBERNETES) }
    }

    #[track_caller]
    fn check_served(&mut self, what: &str) {
        check_served(&mut self.vip, &format!("{what}, the VIP"));
        check_served(&mut self.cluster_ip, &format!("{what}, its ClusterIP"));
        check_served(&mut self.kubernetes, &format!("{what}, default/kubernetes"));
    }
}

fn touch(api: &Api<'_>, word: &str) {
    api.merge(Kind::Service, INTRANET, &json!({"metadata": {"annotations": {"touched": word}}})).unwrap();
}

/// The other apiserver reconciles every ten seconds, so a flap may be too short to show in the table.
fn has_held(daemon: &Daemon<'_>) -> bool {
    let held = [LIST_HELD.text, "service=default/kubernetes ", "verdict=\"held\"", "reason=\"control\""];
    daemon.logged().lines().any(|line| held.iter().all(|words| line.contains(words)))
}

/// Steps 2 to 5 of the incident: an apiserver ends, `default/kubernetes` flaps, and the VIP's Service is edited.
fn flap(cluster: &Cluster, daemon: &Daemon<'_>) {
    let api = cluster.api(LIVE).unwrap();
    let watch = api.watch(Kind::Slice, KUBERNETES).unwrap();
    watch.find(SOON, "full slice", is_full).unwrap();
    cluster.ask_to_end(Part::Apiserver(0)).unwrap();
    let empty = watch.find(SOON, "empty slice", |seen| !is_full(seen)).unwrap();
    assert_eq!(empty.object.get("endpoints"), Some(&Value::Null));
    until(SOON, "held default/kubernetes", || Ok(has_held(daemon).then_some(()))).unwrap();
    touch(&api, "while it was empty");
    let back = watch.find(SOON, "full slice again", is_full).unwrap();
    let gap = back.after - empty.after;
    println!("default/kubernetes had endpoints: null for {gap:?}");
    expect(daemon, KUBERNETES, &format!("serving {ADVERTISED}:{APISERVER_PORT}"));
    touch(&api, "when it was back");
    expect(daemon, INTRANET, &format!("serving {}", apiserver(LIVE).unwrap()));
    println!("watches at the apiserver that was asked to end, and at the other one: {:?}", watched(daemon));
}

/// Kills the terminating apiserver, as kubelet does after its grace period.
fn kill_the_ending_one(cluster: &Cluster, daemon: &Daemon<'_>) {
    let begun = Stopwatch::start();
    cluster.kill(Part::Apiserver(0)).unwrap();
    until(SOON, "three watches at the other one", || Ok((watched(daemon) == three(LIVE)).then_some(())))
        .unwrap();
    println!("all watches at the other one, as shown once a second: {:?} after the kill", begun.read());
}

/// `holdfast apiserver` when all watches use one apiserver.
fn three(index: usize) -> Vec<(String, u64)> {
    vec![(apiserver(index).unwrap().to_string(), 3)]
}

/// Step 6: the VIP itself loses its slice and gets it back. The answers meanwhile name the cause that took a day to
/// find.
fn recreate(cluster: &Cluster, daemon: &Daemon<'_>, clients: &mut Clients) {
    let api = cluster.api(LIVE).unwrap();
    let begun = Stopwatch::start();
    api.delete(Kind::Slice, SLICE).unwrap();
    expect(daemon, INTRANET, &format!("held {}", apiserver(LIVE).unwrap()));
    clients.check_served("while its slice is away");
    explain(daemon);
    lead_vip_to_live(&api);
    expect(daemon, INTRANET, &format!("serving {}", apiserver(LIVE).unwrap()));
    println!("without its slice for {:?}", begun.read());
}

/// Checks each fact that the operators lacked, by one command each.
fn explain(daemon: &Daemon<'_>) {
    let prints = |words: &[&str], parts: &[&str]| {
        let text = daemon.tell(words).unwrap();
        println!("$ holdfast {}\n{text}", words.join(" "));
        for part in parts {
            assert!(text.contains(part), "holdfast {} does not say {part:?}:\n{text}", words.join(" "));
        }
    };
    let live = apiserver(LIVE).unwrap().to_string();
    prints(
        &["explain", VIP],
        &[
            "(LoadBalancer of default/kubernetes-intranet, port https) is held",
            "because it is how this node reaches the apiserver",
            &format!("in the maps now: {live} (as it should be)"),
            "The hold has no limit; it ends when the endpoints return.",
            "EndpointSlice default/kubernetes-intranet-qxgk4 deleted",
            ", written by ",
        ],
    );
    prints(
        &["history", KUBERNETES],
        &["held (control)", "with `endpoints: null`", "written by kube-apiserver"],
    );
    prints(&["verify"], &["all equal"]);
    prints(&["apiserver"], &[&live]);
}

#[test]
fn the_incident_touches_neither_the_vip_nor_the_daemons_own_watch() {
    let cluster = cluster();
    let other = SocketAddr::new(ADVERTISED.into(), APISERVER_PORT);
    let _advertised = cluster.bed().serve(Location::OUTSIDE, Role::Accept, "advertised", other).unwrap();
    let mut daemon = Daemon::new(cluster.bed(), &stage::by_certificate(&cluster, 2)).unwrap();
    daemon.start().unwrap();
    let live = format!("serving {}", apiserver(LIVE).unwrap());
    expect(&daemon, INTRANET, &live);
    until(SOON, "three watches", || Ok((watched(&daemon) == three(0)).then_some(()))).unwrap();

    let mut clients = Clients::start(&cluster);
    clients.check_served("before");
    while_it_hears(&cluster, &daemon, "while an apiserver ends", || flap(&cluster, &daemon));
    clients.check_served("while default/kubernetes flapped");
    while_it_hears(&cluster, &daemon, "while it is killed", || kill_the_ending_one(&cluster, &daemon));
    clients.check_served("while it was killed");
    while_it_hears(&cluster, &daemon, "while the VIP's slice is away", || {
        recreate(&cluster, &daemon, &mut clients);
    });
    clients.check_served("with its slice again");

    cluster.start_part(Part::Apiserver(0)).unwrap();
    clients.check_served("while the apiserver came back");
    let asked = cluster.requests_by_user(stage::USER).unwrap();
    println!("asked of both apiservers: {asked:?}");
    // The first lists, and those of `holdfast verify`, which lists again if a slice changes meanwhile. A watch that is
    // silent after each of the two interruptions gets one object, to see the server's version.
    let lists = (asked["list services"], asked["list endpointslices"]);
    assert!(matches!(lists, (2..=4, 2..=5)), "{lists:?}");
    let watches = daemon.ask(&["apiserver"]).unwrap()["watches"].as_array().unwrap().clone();
    let is_here = |watch: &&Value| watch["state"] != "absent";
    let own: Vec<u64> = watches.iter().filter(is_here).map(|it| it["lists"].as_u64().unwrap()).collect();
    assert_eq!(own, [1, 1, 1], "a failover costs none");
}
