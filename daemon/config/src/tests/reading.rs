//! Good files: the meaning of each spelling.

use std::path::Path;
use std::time::Duration;

use holdfast_core::hold::OnEmpty;
use holdfast_core::keys::{Family, Transport};

use super::effective::check_round_trip;
use crate::{
    CheckKind, ClientIdentity, Config, Discovery, EventsRead, ExternalIps, FlowMemory, Flows, GrpcCheck,
    HttpCheck, NodeName, NodePortAddresses, OuterAddresses, ServiceBlock,
};

#[track_caller]
fn read(text: &str) -> Config {
    match Config::parse(text, "/etc/holdfast/holdfast.toml") {
        Ok((config, _)) => check_round_trip(config),
        Err(refused) => panic!("{refused}"),
    }
}

#[track_caller]
fn service(more: &str) -> ServiceBlock {
    let required =
        "[[service]]\nname = \"web\"\nfrontends = [\"10.96.0.10:80\"]\nbackends = [\"192.0.2.1:8080\"]\n";
    read(&format!("{required}{more}")).services.remove(0)
}

#[test]
fn an_empty_file_is_the_defaults() {
    assert_eq!(read(""), Config::default());
    assert_eq!(read("\u{feff}[log]\r\n# only a comment\r\n"), Config::default());
}

#[test]
fn a_service_has_the_documented_defaults() {
    let web = service("");
    assert_eq!((web.namespace.as_str(), web.name.as_str()), ("static", "web"));
    assert_eq!((web.port_name, web.protocol), (None, Transport::Tcp));
    assert_eq!((web.health_check, web.session_affinity, web.on_empty), (None, None, None));
    assert_eq!(web.frontends, ["10.96.0.10:80".parse().unwrap()]);
    assert_eq!(web.backends, ["192.0.2.1:8080".parse().unwrap()]);
}

#[test]
fn a_backend_is_an_address_alone_or_with_its_weight() {
    let text = "[[service]]\nname = \"web\"\nfrontends = [\"10.96.0.10:80\"]\nmaglev = true\nbackends = [\
                \"192.0.2.1:8080\", { address = \"192.0.2.2:8080\", weight = 0 }, { address = \"192.0.2.3:8080\" }]\n";
    let web = read(text).services.remove(0);
    let backends: Vec<String> = web.backends.iter().map(ToString::to_string).collect();
    assert_eq!(backends, ["192.0.2.1:8080", "192.0.2.2:8080", "192.0.2.3:8080"]);
    assert_eq!(web.weights.iter().map(|weight| weight.number()).collect::<Vec<_>>(), [1, 0, 1]);
    assert_eq!(web.maglev, Some(true));
}

#[test]
fn a_health_check_has_the_documented_defaults() {
    let check = service("health_check = {}").health_check.unwrap();
    assert_eq!((check.kind, check.rise, check.fall), (CheckKind::Tcp, 2, 3));
    assert_eq!((check.interval, check.timeout), (Duration::from_secs(2), Duration::from_secs(1)));
    let check = service("health_check = { kind = \"http\" }").health_check.unwrap();
    assert_eq!(check.kind, CheckKind::Http(HttpCheck::default()));
    let CheckKind::Http(asked) = check.kind else { panic!() };
    assert_eq!((asked.path.as_str(), asked.expect_status.to_string().as_str()), ("/", "200-399"));
    let check = service("[service.health_check]\ninterval = \"10m\"");
    assert_eq!(check.health_check.unwrap().interval, Duration::from_secs(600));
}

#[track_caller]
fn check_statuses(text: &str, written: &str, healthy: &[u16], others: &[u16]) {
    let check = service(&format!("health_check = {{ kind = \"http\", expect_status = \"{text}\" }}"));
    let CheckKind::Http(asked) = check.health_check.unwrap().kind else { panic!("{text}") };
    assert_eq!(asked.expect_status.to_string(), written);
    assert!(healthy.iter().all(|status| asked.expect_status.contains(*status)), "{text}");
    assert!(!others.iter().any(|status| asked.expect_status.contains(*status)), "{text}");
}

#[test]
fn statuses_are_numbers_and_ranges() {
    check_statuses("200", "200", &[200], &[199, 201]);
    check_statuses("200-299,401", "200-299,401", &[200, 299, 401], &[199, 300, 400, 402]);
    check_statuses(" 503 , 100 - 599", "503,100-599", &[100, 599], &[99, 600]);
}

#[test]
fn a_check_may_ask_another_port_and_speak_plainly() {
    let check = service(
        "health_check = { kind = \"send-expect\", send = \"PING\\r\\n\", expect = \"+PONG\", port = 9000 }",
    );
    let check = check.health_check.unwrap();
    let expected = CheckKind::SendExpect { send: Some("PING\r\n".to_owned()), expect: "+PONG".to_owned() };
    assert_eq!(check.kind, expected);
    let target = |backend: &str| check.target(backend.parse().unwrap()).to_string();
    assert_eq!(
        (target("192.0.2.1:80"), target("[2001:db8::1]:80")),
        ("192.0.2.1:9000".into(), "[2001:db8::1]:9000".into())
    );
    let check = service("health_check = { kind = \"send-expect\", expect = \"220 \" }").health_check.unwrap();
    assert_eq!(check.kind, CheckKind::SendExpect { send: None, expect: "220 ".to_owned() });
    assert_eq!(check.target("192.0.2.1:80".parse().unwrap()).port(), 80);
}

#[test]
fn a_grpc_check_covers_the_whole_server_or_one_service() {
    let grpc = |more: &str| service(&format!("health_check = {{ {more} }}")).health_check.unwrap().kind;
    let kind = grpc("kind = \"grpc\"");
    assert_eq!((kind.as_str(), kind.tls()), ("grpc", None));
    assert_eq!(kind, CheckKind::Grpc(GrpcCheck::default()));
    let named = grpc("kind = \"grpc\", service = \"shop.v1.Orders\", host = \"shop.example.com\"");
    let (orders, host) = ("shop.v1.Orders".to_owned(), Some("shop.example.com".to_owned()));
    assert_eq!(named, CheckKind::Grpc(GrpcCheck { service: orders, host, tls: None }));
    assert_eq!(grpc("kind = \"grpc\", service = \"\""), kind, "Kubernetes' default");
    let secured = grpc("kind = \"grpcs\", ca_file = \"/ca\", tls_server_name = \"shop.internal\"");
    assert_eq!(secured.as_str(), "grpcs");
    assert_eq!(secured.tls().unwrap().server_name.as_deref(), Some("shop.internal"));
}

#[track_caller]
fn check_limit(text: &str, expected: Duration) {
    assert_eq!(read(&format!("[hold]\nlimit = \"{text}\"")).hold.limit, expected, "{text}");
}

#[test]
fn durations_are_a_number_and_a_unit() {
    check_limit("1500ms", Duration::from_millis(1_500));
    check_limit("0120s", Duration::from_secs(120));
    check_limit("10m", Duration::from_secs(600));
    check_limit("24h", Duration::from_secs(86_400));
}

#[track_caller]
fn check_share(text: &str, millionths: u32) {
    assert_eq!(
        read(&format!("[hold]\nmass_loss_share = {text}")).hold.mass_loss_share.millionths(),
        millionths
    );
}

#[test]
fn shares_are_exact_to_the_sixth_decimal() {
    check_share("0.25", 250_000);
    check_share("1", 1_000_000);
    check_share("1.0", 1_000_000);
    check_share("0.000001", 1);
    check_share("0.333333", 333_333);
    check_share("1e-2", 10_000);
}

#[test]
fn integers_may_be_grouped_and_of_any_base() {
    let limits =
        read("[datapath.limits]\nservices = 1_000\nfrontends = 0x10\nbackends = 0b11").datapath.limits;
    assert_eq!((limits.services, limits.frontends, limits.backends), (1_000, 16, 3));
}

#[test]
fn an_apiserver_enables_kubernetes_unless_the_file_says_no() {
    let kubeconfig = "[apiserver]\nkubeconfig = \"k\"\n";
    assert!(read(kubeconfig).kubernetes.enabled);
    assert!(read("[apiserver]\nendpoints = [\"https://10.0.0.10\"]").kubernetes.enabled);
    assert!(!read(&format!("{kubeconfig}[kubernetes]\nenabled = false")).kubernetes.enabled);
    assert!(!read("[apiserver]\ndiscover = [\"kubelet\"]").kubernetes.enabled);
}

/// Flows take 1/256 of the node's memory at 450 bytes each; their number is a power of two.
#[test]
fn flows_take_a_small_part_of_the_nodes_memory() {
    let gibibytes = |count: u64| count << 30;
    for (memory, most) in [
        (0, 65_536),
        (gibibytes(4), 65_536),
        (gibibytes(16), 131_072),
        (gibibytes(64), 524_288),
        (gibibytes(8192), 4_194_304),
    ] {
        let room = FlowMemory { memory, limit: Some(u64::MAX), ipv6: true };
        assert_eq!(Flows::Auto.max_flows(room), most, "{memory}");
    }
    assert_eq!(read("[packets]\nflows = \"auto\"").packets.flows, Flows::Auto);
}

/// The unit and the pods have a limit of 2 GiB, whatever the node has, and maps count against it when they are made.
#[test]
fn flows_take_at_most_a_quarter_of_the_memory_limit() {
    let gibibytes = |count: u64| count << 30;
    for (limit, ipv6, most) in [
        (Some(gibibytes(2)), false, 1_048_576),
        (Some(gibibytes(2)), true, 524_288),
        (None, false, 1_048_576),
        (None, true, 524_288),
        (Some(gibibytes(16)), true, 4_194_304),
        (Some(40 << 20), true, 8_192),
        (Some(0), true, 1_024),
    ] {
        let room = FlowMemory { memory: gibibytes(2048), limit, ipv6 };
        assert_eq!(Flows::Auto.max_flows(room), most, "{room:?}");
        let bytes = if ipv6 { 740 } else { 450 };
        assert!(limit.is_none_or(|limit| limit == 0 || u64::from(most) * bytes <= limit / 4), "{room:?}");
        assert_eq!(read("[packets]\nflows = 2048").packets.flows.max_flows(room), 2048);
    }
}

/// holdfast serves kube-proxy's own ports where it replaces kube-proxy, and elsewhere if the file says so.
#[test]
fn the_ports_of_kube_proxy_are_open_in_its_place_only() {
    let ports = |text: &str| {
        let ports = read(text).kube_proxy;
        [ports.health, ports.metrics].map(|it| it.map_or("off".to_owned(), |it| it.to_string()))
    };
    let node = "[apiserver]\nkubeconfig = \"/k\"\n";
    assert_eq!(ports(node), ["[::]:10256", "127.0.0.1:10249"]);
    let beside = "[kubernetes]\nservice_proxy_name = \"holdfast\"\n";
    let not_served = "[datapath]\nkind = \"memory\"\n";
    let sockets_alone = "[packets]\nenabled = false\n";
    assert_eq!(ports("[manifests]\npath = \"/m\"\n"), ["off", "off"]);
    for not_in_its_place in [beside, not_served, sockets_alone] {
        assert_eq!(ports(&format!("{node}{not_in_its_place}")), ["off", "off"], "{not_in_its_place}");
    }
    let said = "[kube_proxy]\nhealth = \"0.0.0.0:10256\"\n";
    assert_eq!(ports(&format!("{node}{said}metrics = \"off\"\n")), ["0.0.0.0:10256", "off"]);
    assert_eq!(ports(&format!("{node}{not_served}{said}")), ["0.0.0.0:10256", "off"]);
}

#[test]
fn external_ips_are_all_none_or_ranges() {
    let read = |text: &str| read(&format!("[kubernetes]\nexternal_ips = {text}")).kubernetes.external_ips;
    assert_eq!(read("\"all\""), ExternalIps::All);
    assert_eq!(read("\"none\""), ExternalIps::None);
    let ExternalIps::Cidrs(ranges) = read("[\"198.51.100.0/25\", \"2001:db8::/126\", \"0.0.0.0/0\"]") else {
        panic!("no ranges");
    };
    let ends: Vec<_> =
        ranges.iter().map(|range| (range.network().to_string(), range.last().to_string())).collect();
    let pair = |first: &str, last: &str| (first.to_owned(), last.to_owned());
    let expected = [
        pair("198.51.100.0", "198.51.100.127"),
        pair("2001:db8::", "2001:db8::3"),
        pair("0.0.0.0", "255.255.255.255"),
    ];
    assert_eq!(ends, expected);
}

#[test]
fn events_are_written_only_if_the_file_says_so() {
    let kubeconfig = "[apiserver]\nkubeconfig = \"k\"\n";
    assert!(!read(kubeconfig).kubernetes.events);
    assert!(read(&format!("{kubeconfig}[kubernetes]\nevents = true")).kubernetes.events);
}

#[test]
fn events_are_read_on_demand_by_default() {
    let kubeconfig = "[apiserver]\nkubeconfig = \"k\"\n";
    assert_eq!(read(kubeconfig).kubernetes.events_read, EventsRead::OnDemand);
    let off = read(&format!("{kubeconfig}[kubernetes]\nevents_read = \"off\""));
    assert_eq!(off.kubernetes.events_read, EventsRead::Off);
}

#[test]
fn apiserver_addresses_keep_their_order() {
    let text = "[apiserver]\nkubeconfig = \"k\"\nendpoints = [\"https://169.254.128.7:60002\", \"https://[fd00::1]\", \
                \"https://10.0.0.10\", \"https://[fd00::2]:6443\"]";
    let shown: Vec<String> = read(text).apiserver.endpoints.iter().map(ToString::to_string).collect();
    let expected = [
        "https://169.254.128.7:60002",
        "https://[fd00::1]:443",
        "https://10.0.0.10:443",
        "https://[fd00::2]:6443",
    ];
    assert_eq!(shown, expected);
}

#[test]
fn a_certificate_and_its_key_are_one_identity() {
    let text = "[apiserver]\nkubeconfig = \"/k\"\nclient_certificate_file = \"c\"\nclient_key_file = \"/secret/key\"";
    let identity = ClientIdentity::Certificate {
        certificate_file: "/etc/holdfast/c".into(),
        key_file: "/secret/key".into(),
    };
    assert_eq!(read(text).apiserver.identity, Some(identity));
}

#[test]
fn tiers_have_one_order() {
    let discover = |list| read(&format!("[apiserver]\ndiscover = {list}")).apiserver.discover;
    assert_eq!(discover("[\"learned\", \"kubelet\"]"), [Discovery::Kubelet, Discovery::Learned]);
    assert_eq!(discover("[\"learned\", \"learned\"]"), [Discovery::Learned]);
    assert_eq!(discover("[]"), []);
}

#[test]
fn relative_paths_start_from_the_folder_of_the_file() {
    let manifests = |path| read(&format!("[manifests]\npath = \"{path}\"")).manifests.path.unwrap();
    assert_eq!(manifests("manifests"), Path::new("/etc/holdfast/manifests"));
    assert_eq!(manifests("/srv/manifests"), Path::new("/srv/manifests"));
    let (config, _) = Config::parse("[state]\npath = \"state\"", "config.toml").unwrap();
    assert_eq!(config.state.path, Path::new("state"));
}

#[test]
fn words_are_read_in_any_case() {
    let settings = read("[log]\nlevel = \"INFO\"\n[datapath]\nkind = \"Memory\"");
    assert_eq!((settings.log.level.as_str(), settings.datapath.kind.as_str()), ("info", "memory"));
}

#[test]
fn node_ports_take_words_and_ranges_and_add_them_up() {
    let read = |list: &str| read(&format!("[node]\nnode_port_addresses = {list}"));
    let addresses = |list: &str| read(list).node.node_port_addresses;
    assert_eq!(addresses("[\"all\"]"), NodePortAddresses::from_outer(OuterAddresses::All));
    assert_eq!(addresses("[\"primary\"]"), NodePortAddresses::from_outer(OuterAddresses::Primary));
    assert_eq!(
        addresses("[\"primary\", \"all\", \"10.0.0.0/8\"]"),
        NodePortAddresses::from_outer(OuterAddresses::All)
    );
    for (list, outer) in [
        ("[\"all\", \"localhost\"]", OuterAddresses::All),
        ("[\"localhost\", \"primary\"]", OuterAddresses::Primary),
        ("[\"localhost\"]", OuterAddresses::Nowhere),
    ] {
        assert_eq!(addresses(list), NodePortAddresses { outer, localhost: true }, "{list}");
    }
    for (list, shown) in [
        ("\"10.0.0.0/8\", \"fd00::/64\", \"0.0.0.0/0\", \"::/0\"", ""),
        ("\"localhost\", \"10.0.0.0/8\"", "\"10.0.0.0/8\", \"localhost\""),
        ("\"10.0.0.0/8\", \"localhost\", \"primary\"", "\"primary\", \"10.0.0.0/8\", \"localhost\""),
    ] {
        let shown = if shown.is_empty() { list } else { shown };
        let text = read(&format!("[{list}]")).effective_text();
        assert!(text.contains(&format!("node_port_addresses = [{shown}]")), "{text}");
    }
}

#[test]
fn an_ipv4_mapped_address_is_the_ipv4_address() {
    let text = "[admin]\nlisten = \"[::ffff:127.0.0.1]:9890\"\n[node]\nnode_port_addresses = [\"::ffff:10.0.0.0/104\"]\n\
                [apiserver]\nkubeconfig = \"k\"\nendpoints = [\"https://[::ffff:10.0.0.10]\"]\n[[service]]\nname = \"web\"\n\
                frontends = [\"[::ffff:10.96.0.10]:80\"]\nbackends = [\"[::ffff:192.0.2.1]:8080\"]\n";
    let shown = read(text).effective_text();
    for plain in ["127.0.0.1:9890", "10.0.0.0/8", "https://10.0.0.10:443", "10.96.0.10:80", "192.0.2.1:8080"]
    {
        assert!(shown.contains(&format!("\"{plain}\"")), "{plain} in {shown}");
    }
}

#[test]
fn one_address_may_serve_each_protocol() {
    let block = |name, protocol| {
        format!(
            "[[service]]\nname = \"{name}\"\nprotocol = \"{protocol}\"\n\
             frontends = [\"10.96.0.2:53\"]\nbackends = [\"192.0.2.1:53\"]\n"
        )
    };
    let all = [("dns", "UDP"), ("dns-tcp", "TCP"), ("dns-sctp", "SCTP")].map(|(name, by)| block(name, by));
    let services = read(&("[packets]\nenabled = true\n".to_owned() + &all.concat())).services;
    let protocols: Vec<Transport> = services.iter().map(|it| it.protocol).collect();
    assert_eq!(protocols, [Transport::Udp, Transport::Tcp, Transport::Sctp]);
}

#[test]
fn affinity_and_policy_are_the_services_own() {
    let web = service("session_affinity = \"3h\"\non_empty = \"hold\"\nport_name = \"\"");
    assert_eq!(web.session_affinity, Some(Duration::from_secs(10_800)));
    assert_eq!(web.on_empty, Some(OnEmpty::Hold));
    assert_eq!(service("session_affinity = \"none\"").session_affinity, None);
}

#[test]
fn an_affinity_prefix_defaults_to_the_whole_address() {
    for (said, ipv4, ipv6) in [
        ("{ ipv4 = 24, ipv6 = 64 }", 24, 64),
        ("{ ipv6 = 32 }", 32, 32),
        ("{ ipv4 = 8 }", 8, 128),
        ("{}", 32, 128),
    ] {
        let web = service(&format!("session_affinity = \"3h\"\nsession_affinity_prefix = {said}"));
        let prefixes = web.affinity_prefix.unwrap();
        assert_eq!((prefixes.length(Family::V4), prefixes.length(Family::V6)), (ipv4, ipv6), "{said}");
    }
    assert_eq!(service("session_affinity = \"3h\"").affinity_prefix, None);
}

#[test]
fn the_host_name_gives_the_name_that_kubelet_registers() {
    let name = |host| NodeName::from_host_name(host).map(|name| name.as_str().to_owned());
    assert_eq!(name(" Node-7.Example.COM\n").as_deref(), Ok("node-7.example.com"));
    assert!(name("").is_err());
    let message = name("my_host").unwrap_err().to_string();
    assert!(message.contains("set `name` under [node]"), "{message}");
}
