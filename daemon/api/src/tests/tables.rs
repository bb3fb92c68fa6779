//! The answers to the letter.

use std::sync::Arc;
use std::time::{Duration, Instant};

use expect_test::{ExpectFile, expect_file};
use holdfast_datapath::SocketSweepProgress;
use holdfast_status::age::remove_ages;
use holdfast_status::views::apiserver::ApiserverView;
use holdfast_status::views::datapath::DatapathView;
use serde_json::Value;
use tokio::sync::watch;

use super::fixture::{Served, everything, in_memory, many, serve, serve_with, status};
use holdfast_kubernetes::source::{View as Watches, Watch};

#[track_caller]
fn check(path: &str, expected: &ExpectFile) {
    let got = serve(everything()).get(path, "");
    assert_eq!(got.status, 200, "{}", got.body);
    expected.assert_eq(&got.body);
}

#[test]
fn tables_for_people() {
    check("/frontends", &expect_file!["golden/frontends.txt"]);
    check("/frontends?format=wide", &expect_file!["golden/frontends-wide.txt"]);
    check("/backends", &expect_file!["golden/backends.txt"]);
    check("/backends?format=wide", &expect_file!["golden/backends-wide.txt"]);
    check("/services", &expect_file!["golden/services.txt"]);
    check("/services?format=wide", &expect_file!["golden/services-wide.txt"]);
    check("/refusals", &expect_file!["golden/refusals.txt"]);
    check("/refusals?format=wide", &expect_file!["golden/refusals-wide.txt"]);
    check("/datapath", &expect_file!["golden/datapath.txt"]);
    check("/", &expect_file!["golden/index.txt"]);
}

#[test]
fn tables_for_programs() {
    check("/frontends?format=json", &expect_file!["golden/frontends.json"]);
    check("/backends?format=json", &expect_file!["golden/backends.json"]);
    check("/services?format=json", &expect_file!["golden/services.json"]);
    check("/refusals?format=json", &expect_file!["golden/refusals.json"]);
    check("/datapath?format=json", &expect_file!["golden/datapath.json"]);
}

#[test]
fn memory_maps_say_that_no_traffic_is_touched() {
    let served = serve_with(everything(), in_memory);
    let text = served.get("/datapath", "").body;
    assert_eq!(text, "datapath memory: everything is computed and shown, no traffic is touched\n");
    assert_eq!(
        served.get("/datapath?format=json", "").body,
        "{\"kind\":\"memory\",\"other_proxies\":[],\"filters\":[],\"announced_addresses\":[],\"kernel\":null}\n"
    );
    assert_eq!(rows(&served, "/refusals", "refusals").len(), 0);
    assert_eq!(rows(&served, "/flows", "flows").len(), 0);
    let metrics = served.get("/metrics", "").body;
    assert!(!metrics.contains("holdfast_flows"), "{metrics}");
    assert!(metrics.contains("holdfast_refusals_total{verdict=\"refused\"} 0\n"), "{metrics}");
    assert!(!metrics.contains("holdfast_map_size"), "{metrics}");
}

#[test]
fn flows_without_packet_translation_say_so() {
    for served in [serve(everything()), serve_with(everything(), in_memory)] {
        let none = "packets are not translated on this node, so there are no flows\n";
        assert_eq!(served.get("/flows?client=10.0.0.1&state=open", "").body, none);
        let refused = served.get("/flows?limit=1001", "");
        assert_eq!(
            (refused.status, refused.body.contains("from 1 to 1000")),
            (400, true),
            "{}",
            refused.body
        );
        let json: Value = serde_json::from_str(&served.get("/flows?format=json", "").body).unwrap();
        assert_eq!(
            (&json["packets"], &json["max"], &json["swept"]),
            (&false.into(), &0.into(), &Value::Null)
        );
    }
}

/// The width of a terminal at which people read tables.
const SCREEN_COLUMNS: usize = 120;

/// Watches have times of this process, which differ in each run, so the golden pages have no watch.
#[test]
fn the_connections_to_the_apiserver_are_shown() {
    let served = serve_with(everything(), |readings| readings.watches = Watches::default());
    expect_file!["golden/apiserver.txt"].assert_eq(&served.get("/apiserver", "").body);
    expect_file!["golden/apiserver.json"].assert_eq(&served.get("/apiserver?format=json", "").body);
    let served = serve(everything());
    let widest = served.get("/apiserver", "").body.lines().map(|line| line.chars().count()).max();
    assert!(widest.unwrap() <= SCREEN_COLUMNS, "{widest:?}");
    let watched = remove_ages(&served.get("/apiserver?format=wide", "").body);
    let row: Vec<&str> = watched.lines().last().unwrap().split_whitespace().collect();
    let (_since, _at) = (row[2], row[9]);
    assert_eq!(row[..2], ["services", "watching"]);
    assert_eq!(row[3..9], ["protobuf", "-", "12", "1", "2", "3"]);
    assert_eq!(row[10..], ["10.0.0.10:6443:", "connection", "refused"]);
}

/// A hanging apiserver keeps its connections open, and the last attempt succeeded.
#[test]
fn an_apiserver_with_silent_watches_is_not_healthy() {
    for (seconds, state) in [(1, "healthy"), (70, "unheard")] {
        let served = serve_with(everything(), |readings| {
            let heard = Instant::now().checked_sub(Duration::from_secs(seconds));
            let watches =
                readings.watches.current().into_iter().map(|watch| Watch { last_received: heard, ..watch });
            readings.watches = Watches::from_watches(watches.collect());
        });
        let text = served.get("/apiserver", "").body;
        let row = text.lines().find(|line| line.starts_with("[fd00::12]:6443  ")).unwrap();
        assert_eq!(row.split_whitespace().nth(2), Some(state), "{row}");
        let json: Value = serde_json::from_str(&served.get("/apiserver?format=json", "").body).unwrap();
        let endpoint = &json["endpoints"][2];
        assert_eq!((&endpoint["state"], endpoint["heard"].is_string()), (&Value::from("healthy"), true));
        assert!(json["endpoints"][0]["heard"].is_null(), "no watch leads there");
    }
}

#[test]
fn without_an_apiserver_its_page_says_so() {
    let served = serve_with(everything(), in_memory);
    let text = served.get("/apiserver", "").body;
    assert_eq!(text, "no apiserver is used: [kubernetes] is not enabled\n");
}

#[test]
fn an_unverified_cluster_is_shown() {
    let served = serve_with(everything(), |readings| {
        let view = ApiserverView { unverified_reason: Some("403: no".into()), ..ApiserverView::default() };
        readings.apiserver = Some(watch::channel(Arc::new(view)).1);
    });
    let text = served.get("/apiserver", "").body;
    assert!(text.starts_with("cluster    cannot be verified, 403: no\nfailovers  0\n"), "{text}");
}

#[test]
fn failures_of_the_datapath_are_shown() {
    let served = serve_with(everything(), |readings| {
        let grace_failure = Some("membarrier: not permitted".to_owned());
        let (broken_hooks, shared_hooks) = (Vec::new(), Vec::new());
        let stale_sockets = Some(SocketSweepProgress {
            failure: Some("not permitted".to_owned()),
            ..SocketSweepProgress::default()
        });
        let status = holdfast_datapath::Status {
            grace_failure,
            pins: None,
            broken_hooks,
            shared_hooks,
            stale_sockets,
            ..status()
        };
        readings.datapath = watch::channel(Arc::new(DatapathView::for_kernel(status))).1;
    });
    let text = served.get("/datapath", "").body;
    assert!(text.contains("grace periods       do not end: membarrier: not permitted\n"), "{text}");
    assert!(text.contains("pins                none\n"), "{text}");
    assert!(text.contains("broken hooks        none\nothers' programs    none\n"), "{text}");
    assert!(text.contains("stale sockets       0 ended; not all can be: not permitted\n"), "{text}");
    let metrics = served.get("/metrics", "").body;
    assert!(metrics.contains("holdfast_grace_failed 1\n"));
    assert!(metrics.contains("holdfast_stale_sockets_failed 1\n"));
}

#[test]
fn exempt_cgroups_and_leftover_maps_are_shown() {
    let served = serve_with(everything(), |readings| {
        let exempt_cgroups = vec!["/kata.slice".into(), "/gone.slice".into()];
        let status = holdfast_datapath::Status {
            in_cgroup_namespace: true,
            behind_hooks: vec!["connect6", "sendmsg6"],
            leftover: Some("cannot remove /sys/fs/bpf/holdfast/v3/g1: busy".to_owned()),
            served_sockets: holdfast_datapath::ServedSockets { pods: false, udp: false, exempt_cgroups },
            absent_cgroups: vec!["/gone.slice".into()],
            ..status()
        };
        readings.datapath = watch::channel(Arc::new(DatapathView::for_kernel(status))).1;
    });
    let text = served.get("/datapath", "").body;
    for line in [
        "cgroup              /sys/fs/cgroup (the root of a cgroup namespace, not the host's: processes outside of it are not \
         served)\n",
        "sockets served      of the host only, TCP only, but not below /kata.slice /gone.slice (absent)\n",
        "hooks behind        connect6 sendmsg6\n",
        "old maps            stay: cannot remove /sys/fs/bpf/holdfast/v3/g1: busy\n",
    ] {
        assert!(text.contains(line), "{text}");
    }
}

#[test]
fn programs_that_wait_for_their_maps_are_shown() {
    let served = serve_with(everything(), |readings| {
        let status = holdfast_datapath::Status { waiting: true, ..status() };
        readings.datapath = watch::channel(Arc::new(DatapathView::for_kernel(status))).1;
    });
    let text = served.get("/datapath", "").body;
    assert!(text.contains("serving             no: another version's programs serve\n"), "{text}");
    let json: serde_json::Value =
        serde_json::from_str(&served.get("/datapath?format=json", "").body).unwrap();
    assert_eq!(json["kernel"]["waiting"], true);
}

#[test]
fn unreadable_refusals_are_shown() {
    let served = serve_with(everything(), |readings| {
        readings.refusals.record_failure("the ring buffer is gone".to_owned());
    });
    let text = served.get("/refusals", "").body;
    assert!(text.ends_with("\n\nrefusals are no longer read: the ring buffer is gone\n"), "{text}");
}

#[test]
fn the_configuration_in_force_comes_in_both_forms() {
    let served = serve(everything());
    assert_eq!(served.get("/config", "").body, "[admin]\nlisten = \"127.0.0.1:9890\"\n");
    let got = served.get("/config", "accept: application/json\r\n");
    let config: Value = serde_json::from_str(&got.body).unwrap();
    assert_eq!(config["admin"]["listen"], "127.0.0.1:9890");
}

pub(super) fn rows(served: &Served, path: &str, list: &str) -> Vec<Value> {
    let body = served.get(path, "accept: application/json\r\n").body;
    let value: Value = serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {body}"));
    value[list].as_array().unwrap().clone()
}

#[track_caller]
fn check_filter(path: &str, list: &str, count: usize, has: impl Fn(&Value) -> bool) {
    let served = serve(everything());
    let rows = rows(&served, path, list);
    assert_eq!(rows.len(), count, "{path}");
    assert!(rows.iter().all(has), "{path}");
}

#[test]
fn filters_are_exact() {
    check_filter("/frontends?service=default/web", "frontends", 4, |row| row["service"] == "default/web");
    check_filter("/frontends?service=default/we", "frontends", 0, |_| true);
    check_filter("/frontends?type=NodePort", "frontends", 1, |row| row["type"] == "NodePort");
    check_filter("/frontends?address=10.96.0.10", "frontends", 2, |row| row["address"] == "10.96.0.10");
    check_filter("/frontends?address=10.1.0.1", "frontends", 0, |_| true);
    check_filter("/backends?address=10.1.0.9", "backends", 2, |row| row["service"] == "kube-system/kube-dns");
    check_filter("/backends?service=default%2Fweb", "backends", 3, |row| row["service"] == "default/web");
    check_filter("/refusals?service=default/gone", "refusals", 1, |row| row["reason"] == "vanished");
    check_filter("/refusals?address=192.0.2.5", "refusals", 1, |row| row["service"] == "default/web");
    check_filter("/refusals?address=0.0.0.0", "refusals", 0, |_| true);
    check_filter("/services?type=ExternalName", "services", 1, |row| row["service"] == "default/alias");
    check_filter("/frontends?only=trouble&service=default/web", "frontends", 3, |row| {
        // Another process listens at the node port.
        row["verdict"] != "serving" || row["status"] != "done" || row["type"] == "NodePort"
    });
    check_filter("/frontends?service=default/web&type=ClusterIP&address=10.96.0.10", "frontends", 1, |row| {
        row["verdict"] == "serving"
    });
}

#[test]
fn a_long_table_is_whole_and_in_order() {
    let served = serve(many(3_000, 3));
    let rows = rows(&served, "/frontends", "frontends");
    let names: Vec<&str> = rows.iter().map(|row| row["service"].as_str().unwrap()).collect();
    assert_eq!(names.len(), 3_000);
    assert!(names.is_sorted());
    assert!(rows.iter().all(|row| row["backends"].as_array().unwrap().len() == 3));
    let text = served.get("/backends?format=wide", "").body;
    assert_eq!(text.lines().count(), 9_001);
}

/// Serves the tables of a node. One of its backends refused a client at a node port.
fn serve_refused() -> Served {
    serve_with(everything(), |readings| {
        let refusal = holdfast_datapath::BackendRefusal {
            quota: holdfast_core::op::QuotaId(1),
            frontend: "192.0.2.5:30080".parse().unwrap(),
            transport: holdfast_core::keys::Transport::Tcp,
            backend: "10.1.0.1:8080".parse().unwrap(),
        };
        let kept_failures = holdfast_status::datapath::KeptFailures {
            refusals: [(refusal, 970)].into(),
            ..Default::default()
        };
        let status = holdfast_datapath::Status { kept_failures, ..status() };
        readings.datapath = watch::channel(Arc::new(DatapathView::for_kernel(status))).1;
    })
}

#[test]
fn an_explanation_of_a_service_begins_with_the_address_whose_clients_fail() {
    let said = serve_refused().get("/explain?service=default/web", "").body;
    let first = said.lines().next().unwrap();
    assert!(first.starts_with("*:30080/TCP at no address of this node (NodePort of default/web"), "{first}");
    assert!(first.contains("But 10.1.0.1:8080 refused clients of 192.0.2.5:30080/TCP"), "{first}");
}

#[test]
fn a_backend_that_refuses_clients_of_one_address_fails_at_each_that_leads_to_it() {
    let served = serve_refused();
    let all = rows(&served, "/frontends?service=default/web", "frontends");
    let fails = |kind: &str| {
        let row = all.iter().find(|row| row["type"] == kind).unwrap();
        row["fails"].as_array().unwrap().contains(&serde_json::json!("refused"))
    };
    assert_eq!(["NodePort", "ClusterIP", "Static"].map(fails), [true, true, false]);
}
