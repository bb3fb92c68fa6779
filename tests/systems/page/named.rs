//! Hostile names of nodes, zones, devices, processes and files, wherever an operator sees them.
//!
//! Invariant: each name is real: the kernel or a server accepted it.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use holdfast_tests::bed::daemon::Daemon;
use holdfast_tests::bed::fabric::{self, Switches};
use holdfast_tests::bed::{Bed, Location, finish};
use holdfast_tests::fake::{Authority, Cluster, Names, Server};
use serde_json::json;

use crate::browser::{BOTH, Browser};
use crate::hostile::is_text;
use crate::node::Node;
use crate::tunnel::Tunnel;

/// An element that the page never has, characters that change the direction of writing, and a quote: 13 bytes, which
/// fit the names of devices and processes.
const ILL: &str = "<u>\u{202e}\"\u{61c}gpj";

/// The same, as the page shows it.
const SHOWN: &str = "<u>\\u{202e}\"\\u{61c}gpj";

/// A refused client ends at once; a dropped one does not.
const DIAL_LIMIT: Duration = Duration::from_secs(5);

/// Backends on a node and in a zone with that name, and services that refuse clients of this node and others.
fn objects() -> String {
    let ill = json!(ILL);
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: cart, namespace: shop}}\n\
         spec: {{type: LoadBalancer, clusterIP: 10.96.0.20, ports: [{{port: 80}}]}}\n\
         status: {{loadBalancer: {{ingress: [{{ip: 203.0.113.50}}]}}}}\n---\n\
         apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
         metadata: {{name: cart-1, namespace: shop, labels: {{kubernetes.io/service-name: cart}}}}\n\
         addressType: IPv4\nports: [{{port: 8080}}]\n\
         endpoints: [{{addresses: [10.244.9.10], nodeName: {ill}, zone: {ill}, \
           hints: {{forZones: [{{name: {ill}}}]}}}}]\n\
         ---\napiVersion: v1\nkind: Service\nmetadata: {{name: empty, namespace: shop}}\n\
         spec: {{type: LoadBalancer, clusterIP: 10.96.0.21, ports: [{{port: 80}}]}}\n\
         status: {{loadBalancer: {{ingress: [{{ip: 203.0.113.51}}]}}}}\n"
    )
}

/// A shell with that name.
fn shell(folder: &Path) -> PathBuf {
    let path = folder.join(ILL);
    std::fs::copy("/bin/bash", &path).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    path
}

fn dial(mut shell: Command, address: &str) {
    shell.args(["-c", &format!("exec 3<>/dev/tcp/{address}/80")]);
    // It must fail, because no backend serves it.
    let _ = finish(shell, DIAL_LIMIT);
}

fn daemon(bed: &Bed) -> Daemon<'_> {
    let mut daemon = Daemon::new(bed, "[node]\nname = \"n1\"\n").unwrap();
    daemon.write_manifest("cart.yaml", &objects()).unwrap();
    daemon.start().unwrap();
    daemon
        .wait_until(|it| Ok(it.ask(&["explain", "shop/cart"])?["services"][0]["endpoints"].is_array()))
        .unwrap();
    dial(bed.command(Location::NODE, shell(daemon.folder())).unwrap(), "10.96.0.21");
    dial(bed.command(Location::far("client"), "bash").unwrap(), "203.0.113.51");
    let are_told = |rows: &[serde_json::Value]| {
        rows.iter().any(|row| row["comm"] == ILL) && rows.iter().any(|row| row["device"] == ILL)
    };
    daemon
        .wait_until(|it| Ok(it.ask(&["refusals"])?["refusals"].as_array().is_some_and(|it| are_told(it))))
        .unwrap();
    daemon
}

/// The text with that name that each view must show.
fn check(browser: &mut Browser, url: impl Fn(&str) -> String, views: &[(&str, &str, String)]) {
    for (view, place, words) in views {
        browser.open("about:blank");
        browser.open(&url(view));
        browser.until_text("#alive", "live");
        browser.until_text(place, words);
        is_text(browser, view);
    }
    assert_eq!(browser.console(), [""; 0]);
}

#[test]
fn hostile_names_of_nodes_zones_devices_and_processes_are_escaped() {
    let bed = fabric::bed(Switches::default()).unwrap();
    // Quoted for ip's batch file.
    fabric::rename_uplink(&bed, &format!("'{ILL}'")).unwrap();
    let daemon = daemon(&bed);
    let tunnel = Tunnel::to(&daemon.socket());
    let packet = "service/shop/cart?from=198.18.0.9&to=203.0.113.50:80/TCP";
    let views = [
        ("", "[aria-label^='Devices']", SHOWN.to_owned()),
        ("service/shop/cart", ".ways", format!("{SHOWN}, {SHOWN}")),
        ("service/shop/cart", "[aria-label='Endpoints']", format!("{SHOWN}\t{SHOWN}")),
        (packet, ".packet", SHOWN.to_owned()),
        (packet, "[aria-label='Possible backends']", SHOWN.to_owned()),
        ("service/shop/empty", "[aria-label='Refusals']", format!("{SHOWN} (")),
        ("refusals", "[aria-label='Refusals']", format!("{SHOWN} (")),
        ("refusals", "[aria-label='Refusals'] td:nth-of-type(6)", SHOWN.to_owned()),
        ("diagnose/shop/cart", "main h2", "Diagnosis of".to_owned()),
        ("diagnose/shop/empty", "main h2", "Diagnosis of".to_owned()),
    ];
    for kind in BOTH {
        check(&mut Browser::start(kind), |view| tunnel.url(view), &views);
    }
}

#[test]
fn hostile_names_of_credential_files_are_escaped() {
    let (cluster, authority) =
        (Cluster::new("7c8d4a2e-0000-4000-8000-000000000002"), Authority::new().unwrap());
    let server = Server::start(&cluster, &authority.server(&Names::Kubernetes).unwrap()).unwrap();
    let mut token = PathBuf::new();
    let node = Node::with(|folder| {
        let trusted = folder.join(format!("{ILL}.crt"));
        token = folder.join(format!("{ILL}.token"));
        std::fs::write(&trusted, authority.pem()).unwrap();
        std::fs::write(&token, "good").unwrap();
        format!(
            "[apiserver]\nendpoints = [\"{}\"]\ntls_server_name = \"kubernetes.default.svc\"\nca_file = {}\n\
             token_file = {}\ndiscover = []\n",
            server.url(),
            toml(&trusted),
            toml(&token),
        )
    });
    // An invalid token is reported with the file's name.
    std::fs::write(&token, "a\nb").unwrap();
    let views = [("apiserver", "[aria-label='Credentials']", format!("{SHOWN}.token"))];
    check(&mut Browser::start(BOTH[0]), |view| node.url(view), &views);
}

/// As a TOML string.
fn toml(path: &Path) -> String {
    json!(path).to_string()
}
