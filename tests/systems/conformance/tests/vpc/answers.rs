//! As whom each server sees each client.
//!
//! Invariant: nobody is left out because of an answer; who gets none is in the table as `nobody`.

use std::fmt::Write as _;
use std::time::Duration;

use super::stage::{SERVICES, Server, Service, Stage};
use super::typing::eventually;

const ASKER: &str = include_str!("asker.sh");

/// All targets at once; a busy machine takes three attempts of five seconds for one.
const LIMIT: Duration = Duration::from_secs(120);

const HEADING: &str = "client\ttarget\ttcp\tudp\n";

/// Addresses of machines, and what the table calls them. `far` is outside of the VPC.
const MACHINES: [(&str, &str); 7] = [
    ("172.30.0.10", "cp"),
    ("172.30.0.11", "n1"),
    ("172.30.0.65", "n1-card-2"),
    ("172.30.0.12", "n2"),
    ("172.30.0.136", "n2-card-2"),
    ("172.30.0.100", "out"),
    ("192.168.77.10", "far"),
];

/// A client: its name, and where it runs.
enum Client {
    Machine(&'static str, &'static str, &'static str),
    Pod(&'static str),
}

const CLIENTS: [Client; 7] = [
    Client::Machine("out", "out", "any"),
    Client::Machine("far", "cp", "192.168.77.10"),
    Client::Machine("n1", "n1", "any"),
    Client::Machine("n2", "n2", "any"),
    Client::Pod("n1-first"),
    Client::Pod("n1-second"),
    Client::Pod("n2-second"),
];

impl Client {
    fn name(&self) -> &'static str {
        match self {
            Self::Machine(name, _, _) | Self::Pod(name) => name,
        }
    }

    /// Whether it reaches addresses that proxies alone know.
    fn is_inside(&self) -> bool {
        !matches!(self.name(), "out" | "far")
    }
}

/// A line for each client and target.
pub(crate) fn table(stage: &Stage) -> String {
    let node = &CLIENTS[2];
    eventually("the node gets all answers", || {
        let rows = rows(stage, node);
        println!("{rows}");
        !rows.contains("\tnobody")
    });
    [HEADING.to_owned()].into_iter().chain(CLIENTS.iter().map(|client| rows(stage, client))).collect()
}

/// Who is answered where, whatever the server sees.
pub(crate) fn served(table: &str) -> Vec<[&str; 4]> {
    let word = |seen| if seen == "nobody" { "nobody" } else { "somebody" };
    let rows = table.lines().filter_map(|line| line.split('\t').collect::<Vec<_>>().try_into().ok());
    rows.map(|[client, target, tcp, udp]: [&str; 4]| [client, target, word(tcp), word(udp)]).collect()
}

fn rows(stage: &Stage, client: &Client) -> String {
    let targets = targets(stage, client);
    let mut command = vec!["sh", "-s"];
    let machine = match client {
        Client::Machine(_, machine, source) => {
            command.push(source);
            machine
        }
        Client::Pod(place) => {
            let pod = &stage.server(place).pod;
            command.splice(0..0, ["kubectl", "exec", "-i", pod, "--"]);
            command.push("any");
            "cp"
        }
    };
    command.extend(targets.iter().map(String::as_str));
    let answers = stage.cluster.on(machine).unwrap().said(&command, ASKER, LIMIT).unwrap();
    let mut lines: Vec<&str> = answers.lines().collect();
    lines.sort_unstable();
    lines.iter().fold(String::new(), |mut rows, line| {
        writeln!(rows, "{}\t{}", client.name(), named(&stage.servers, line)).unwrap();
        rows
    })
}

/// What a client asks: NodePorts of both nodes, pods, and for those inside ClusterIPs and servers outside.
fn targets(stage: &Stage, client: &Client) -> Vec<String> {
    let at = |node: &str, address: &str, service: &Service| {
        format!("{node}:{}={address}:{}:{}", service.name, service.port, service.udp_port())
    };
    let mut targets: Vec<String> = SERVICES.iter().map(|service| at("n1", "172.30.0.11", service)).collect();
    targets.push(at("n2", "172.30.0.12", &SERVICES[1]));
    targets.extend(stage.servers.iter().map(|it| format!("pod:{}={}:8080:8081", it.place, it.address)));
    if client.is_inside() {
        targets.extend(cluster_ips(stage));
        targets.extend(
            [("cp", "172.30.0.10"), ("far", "192.168.77.10")]
                .map(|(name, address)| format!("{name}={address}:9080:9081")),
        );
    }
    targets
}

fn cluster_ips(stage: &Stage) -> Vec<String> {
    let path = "jsonpath={range .items[*]}{.metadata.name}={.spec.clusterIP}:80:81{\"\\n\"}{end}";
    let listed = stage.cluster.kubectl(&["get", "services", "-o", path]).unwrap();
    let ours = listed.lines().filter(|line| {
        SERVICES.iter().take(4).any(|service| line.starts_with(&format!("{}=", service.name)))
    });
    ours.map(|line| format!("service:{line}")).collect()
}

/// A line of the asker with names in place of addresses.
fn named(servers: &[Server], line: &str) -> String {
    let name = |word: &str| {
        let machine = MACHINES.iter().find(|(address, _)| *address == word).map(|(_, name)| *name);
        let server = servers.iter().find(|server| server.address == word).map(|server| server.place);
        machine.or(server).unwrap_or(word).to_owned()
    };
    line.split(' ').map(name).collect::<Vec<_>>().join("\t")
}
