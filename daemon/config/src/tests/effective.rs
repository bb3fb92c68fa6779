//! The configuration in force, written as a file. Every good file of the other tests also passes [`check_round_trip`].

use std::collections::BTreeSet;

use expect_test::expect;
use proptest::prelude::*;
use toml::de::DeTable;

use super::example::{EXAMPLE, known_keys, shown_keys, uncomment};
use crate::Config;

/// Text and JSON agree, and the text reads as the configuration that wrote it.
#[track_caller]
pub(super) fn check_round_trip(config: Config) -> Config {
    let text = config.effective_text();
    match Config::parse(&text, "") {
        Ok((again, _)) => assert_eq!(again, config, "{text}"),
        Err(refused) => panic!("{refused}\n{text}"),
    }
    let json: toml::Table = serde_json::from_str(&config.effective_json()).expect("JSON");
    assert_eq!(json, config.effective());
    config
}

/// The example with every key, except those of one of its two identities.
fn full(identity_left_out: &str) -> Config {
    let all = uncomment(&uncomment(EXAMPLE, "##"), "#").replace("enabled = false", "enabled = true");
    let kept: String = all
        .lines()
        .filter(|line| !line.starts_with(identity_left_out))
        .map(|line| format!("{line}\n"))
        .collect();
    let (config, _) = Config::parse(&kept, "config.toml").unwrap_or_else(|refused| panic!("{refused}"));
    check_round_trip(config)
}

fn keys(text: &str) -> BTreeSet<String> {
    let mut keys = BTreeSet::new();
    shown_keys("", &DeTable::parse(text).expect("TOML").into_inner(), &mut keys);
    keys
}

#[test]
fn every_known_key_is_written() {
    let mut known = BTreeSet::new();
    known_keys("", &mut known);
    let written = keys(&full("token_file").effective_text());
    let written_with_token = keys(&full("client_").effective_text());
    assert!(
        !written.contains("apiserver.token_file")
            && !written_with_token.contains("apiserver.client_key_file")
    );
    assert_eq!(&written | &written_with_token, known);
}

#[test]
fn the_defaults_are_written_as_the_example_shows_them() {
    let shown: toml::Table = uncomment(EXAMPLE, "#").parse().expect("TOML");
    assert_eq!(check_round_trip(Config::default()).effective(), shown);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_share_and_time_is_written_exactly(millionths in 1_u32..=1_000_000, milliseconds in 1_000_u32..=86_400_000) {
        let text = format!("[hold]\nmass_loss_share = {millionths}e-6\nlimit = \"{milliseconds}ms\"");
        let (config, _) = Config::parse(&text, "").expect("a legal file");
        prop_assert_eq!(config.hold.mass_loss_share.millionths(), millionths);
        check_round_trip(config);
    }

    #[test]
    fn any_path_is_written_exactly(path in "[^\\x00]{1,12}", folder in prop::sample::select(&["", "/etc/holdfast/", "here/"][..])) {
        let path = toml::Value::String(path);
        let text = format!("[state]\npath = {path}\n[datapath]\ncgroup = {path}");
        let (config, _) = Config::parse(&text, &format!("{folder}config.toml")).expect("a legal file");
        check_round_trip(config);
    }
}

/// Each user of the host may read the configuration in force.
#[test]
fn texts_that_checks_send_are_shown_by_length_alone() {
    let check = |more: &str| {
        let text = format!(
            "[[service]]\nname = \"a\"\nfrontends = [\"192.0.2.1:80\"]\nbackends = [\"10.0.0.1:80\"]\n\
             [service.health_check]\n{more}"
        );
        let (config, _) = Config::parse(&text, "config.toml").expect("a legal file");
        check_round_trip(config.without_secrets()).effective_text()
    };
    let sent = check("kind = \"send-expect\"\nsend = \"AUTH s3cret\\r\\n\"\nexpect = \"+OK\"\n");
    assert!(!sent.contains("s3cret") && sent.contains("send = \"(13 bytes, not shown)\""), "{sent}");
    assert!(sent.contains("expect = \"+OK\""), "{sent}");
    let asked = check("kind = \"http\"\npath = \"/health?token=s3cret&x=?\"\n");
    assert!(
        !asked.contains("s3cret") && asked.contains("path = \"/health?(16-bytes-not-shown)\""),
        "{asked}"
    );
    assert!(check("kind = \"http\"\npath = \"/health\"\n").contains("path = \"/health\""));
}

#[test]
fn the_effective_text_is_to_the_letter() {
    expect![[r#"
        [admin]
        listen = "127.0.0.1:9890"
        socket = "/run/holdfast/admin.sock"

        [announce]
        table = 180

        [apiserver]
        ca_file = "/etc/kubernetes/pki/ca.crt"
        client_certificate_file = "/etc/holdfast/client.crt"
        client_key_file = "/etc/holdfast/client.key"
        discover = ["kubelet", "learned"]
        encoding = "auto"
        endpoints = ["https://10.0.0.10:6443", "https://10.0.0.11:6443"]
        kubeconfig = "/etc/holdfast/kubeconfig"
        tls_server_name = "kubernetes.default.svc"
        vip = "169.254.20.1:6443"

        [datapath]
        bpffs = "/sys/fs/bpf/holdfast"
        cgroup = "auto"
        exempt_cgroups = ["/kata.slice"]
        kind = "kernel"
        sockets = "all"
        udp_sockets = true

        [datapath.limits]
        backends = 4000000
        frontends = 500000
        services = 100000

        [datapath.stale_sockets]
        namespaces = "host"
        protocols = ["UDP"]

        [hold]
        limit = "2m"
        mass_loss_limit = "10m"
        mass_loss_share = 0.25
        mass_loss_window = "30s"
        on_empty = "auto"
        probe_interval = "2s"

        [kube_proxy]
        health = "off"
        metrics = "off"

        [kubernetes]
        enabled = true
        events = false
        events_read = "on-demand"
        external_ips = "all"
        service_imports = true
        service_proxy_name = "holdfast"

        [log]
        format = "auto"
        level = "info"

        [manifests]
        path = "/etc/holdfast/manifests"

        [node]
        name = "node-7.example.com"
        node_port_addresses = ["primary"]
        zone = "zone-a"

        [packets]
        devices = "auto"
        dsr = "off"
        dsr_from = ["10.0.0.0/24", "fd00:a::/64"]
        enabled = true
        flows = "auto"
        forward_mark = "none"
        maglev = false
        mark = "0x40"
        pod_devices = "none"
        shortcut = "auto"
        snat_ports = "auto"
        xdp = "never"

        [resolver]
        servers = ["192.0.2.53:53", "[2001:db8::53]:53"]

        [[service]]
        announce = "none"
        backends = ["192.0.2.1:8080", "[2001:db8::1]:8080"]
        frontends = ["10.96.0.10:80", "[fd00:96::10]:80"]
        maglev = false
        name = "web"
        namespace = "static"
        on_empty = "auto"
        port_name = ""
        protocol = "TCP"
        session_affinity = "none"

        [service.health_check]
        expect_body = "all is well"
        expect_status = "200-399"
        fall = 3
        host = "web.example.com"
        interval = "2s"
        kind = "http"
        path = "/"
        rise = 2
        timeout = "1s"

        [service.session_affinity_prefix]
        ipv4 = 32
        ipv6 = 128

        [[service]]
        announce = "none"
        backends = ["192.0.2.3:6379"]
        frontends = ["10.96.0.11:6379"]
        name = "cache"
        namespace = "static"
        port_name = ""
        protocol = "TCP"
        session_affinity = "none"

        [service.health_check]
        expect = "+PONG"
        fall = 3
        interval = "2s"
        kind = "send-expect"
        port = 6379
        rise = 2
        send = """
        PING\r
        """
        slow_start = "30s"
        timeout = "1s"

        [[service]]
        announce = "none"
        backends = ["192.0.2.4:8443"]
        frontends = ["10.96.0.12:443"]
        name = "shop"
        namespace = "static"
        port_name = ""
        protocol = "TCP"
        session_affinity = "none"

        [service.health_check]
        ca_file = "/etc/holdfast/backends-ca.crt"
        client_certificate_file = "/etc/holdfast/checks.crt"
        client_key_file = "/etc/holdfast/checks.key"
        expect_status = "200-399"
        fall = 3
        interval = "2s"
        kind = "https"
        path = "/"
        rise = 2
        timeout = "1s"
        tls_server_name = "shop.internal"

        [[service]]
        announce = "none"
        backends = ["192.0.2.5:50051"]
        frontends = ["10.96.0.13:50051"]
        name = "orders"
        namespace = "static"
        port_name = ""
        protocol = "TCP"
        session_affinity = "none"

        [service.health_check]
        fall = 3
        interval = "2s"
        kind = "grpc"
        rise = 2
        service = "shop.v1.Orders"
        timeout = "1s"

        [[service]]
        announce = "none"
        frontends = ["10.96.0.13:5432"]
        name = "db"
        namespace = "static"
        port_name = ""
        protocol = "TCP"
        session_affinity = "none"

        [service.resolve]
        srv = "_db._tcp.example.internal"

        [[service]]
        announce = "none"
        frontends = ["10.96.0.14:80"]
        name = "docs"
        namespace = "static"
        port_name = ""
        protocol = "TCP"
        session_affinity = "none"

        [service.resolve]
        name = "docs.example.internal"
        port = 8080

        [services]
        path = "/etc/holdfast/services.d"

        [state]
        path = "/var/lib/holdfast"
    "#]]
    .assert_eq(&full("token_file").effective_text());
}
