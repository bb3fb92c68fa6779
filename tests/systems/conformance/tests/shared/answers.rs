//! As whom servers see their clients.
//!
//! Invariant: each client has its row; one that got no answer is in the table as `nobody`.

use std::fmt::Write as _;
use std::time::Duration;

use holdfast_conformance::Cluster;

const ASKER: &str = include_str!("sources.sh");

/// All targets at once; a busy machine takes three attempts of five seconds for one.
const LIMIT: Duration = Duration::from_secs(120);

/// A client: its name in the table, and where it runs.
pub(crate) enum Client<'a> {
    /// On a machine, from one of its addresses or from `any`.
    Machine {
        name: &'a str,
        machine: &'a str,
        source: &'a str,
    },
    Pod {
        name: &'a str,
        pod: &'a str,
    },
}

impl Client<'_> {
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Machine { name, .. } | Self::Pod { name, .. } => name,
        }
    }
}

/// Asks targets at once, `NAME=ADDRESS:TCP-PORT:UDP-PORT` each. A row is the client, the target's name, and whom the
/// server sees by TCP and by UDP, with `names` in place of addresses.
pub(crate) fn rows(
    cluster: &Cluster,
    client: &Client<'_>,
    targets: &[String],
    names: &[(String, String)],
) -> String {
    let mut command = vec!["sh", "-s"];
    let machine = match client {
        Client::Machine { machine, source, .. } => {
            command.push(source);
            machine
        }
        Client::Pod { pod, .. } => {
            command.splice(0..0, ["kubectl", "exec", "-i", pod, "--"]);
            command.push("any");
            "cp"
        }
    };
    command.extend(targets.iter().map(String::as_str));
    let answers = cluster.on(machine).unwrap().said(&command, ASKER, LIMIT).unwrap();
    let mut lines: Vec<&str> = answers.lines().collect();
    lines.sort_unstable();
    lines.iter().fold(String::new(), |mut rows, line| {
        writeln!(rows, "{}\t{}", client.name(), with_names(line, names)).unwrap();
        rows
    })
}

/// Who is answered where, whatever the server sees. The last two columns are the answers.
pub(crate) fn served(table: &str) -> Vec<String> {
    let word = |seen: &str| if seen == "nobody" { "nobody" } else { "somebody" };
    let rows = table.lines().filter_map(|line| {
        let mut ends = line.rsplitn(3, '\t');
        let (udp, tcp, who) = (ends.next()?, ends.next()?, ends.next()?);
        Some([who, word(tcp), word(udp)].join("\t"))
    });
    rows.collect()
}

/// A line of the asker with names in place of addresses.
fn with_names(line: &str, names: &[(String, String)]) -> String {
    let name = |word| {
        let found = names.iter().find(|(address, _)| address == word);
        found.map_or(word, |(_, name)| name.as_str())
    };
    line.split(' ').map(name).collect::<Vec<_>>().join("\t")
}
