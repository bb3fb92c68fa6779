//! The maps by meaning.
//!
//! Invariant: two maps that are equal to every client give the same text, wherever their ranges and indices are.

use std::fmt::Write;

use holdfast_core::list::Scope;
use holdfast_core::op::{Dump, DumpPort, Membership, PortFacts, WordFlags};

use super::show::{list, state};

const FLAGS: [(WordFlags, &str); 9] = [
    (WordFlags::DROP, "drop"),
    (WordFlags::INTERNAL_LOCAL, "internal-local"),
    (WordFlags::AFFINITY, "affinity"),
    (WordFlags::EXTERNAL_LOCAL, "external-local"),
    (WordFlags::MEMBERS, "members"),
    (WordFlags::SOURCES, "sources"),
    (WordFlags::MAGLEV, "maglev"),
    (WordFlags::TABLE, "table"),
    (WordFlags::OFF_CLUSTER, "outside"),
];

/// Each port with its frontends, in the order of its first frontend; then the node's addresses.
pub(super) fn maps(dump: &Dump) -> String {
    let mut ports: Vec<(Vec<String>, &DumpPort)> =
        dump.ports.iter().map(|port| (frontends(dump, port), port)).collect();
    let first = |port: &DumpPort| dump.frontends.iter().position(|(_, value)| value.port == port.index);
    ports.sort_by_key(|(_, port)| first(port));
    let mut text = String::new();
    for (frontends, port) in ports {
        let _fits = writeln!(text, "{}\n{}", frontends.join(", "), lists(dump, port));
    }
    let _fits = dump.orphans.iter().try_for_each(|_| writeln!(text, "a port that no client can dial"));
    if !dump.node_addresses.is_empty() {
        let addresses: Vec<String> = dump.node_addresses.iter().map(ToString::to_string).collect();
        let _fits = writeln!(text, "node addresses {}", addresses.join(" "));
    }
    text
}

fn frontends(dump: &Dump, port: &DumpPort) -> Vec<String> {
    let own = dump.frontends.iter().filter(|(_, value)| value.port == port.index);
    own.map(|(key, value)| format!("{key} {}", value.kind.as_str())).collect()
}

fn lists(dump: &Dump, port: &DumpPort) -> String {
    let mut lines = vec![line("cluster", port, Scope::Cluster), line("local", port, Scope::Local)];
    if port.facts.affinity_timeout > 0 {
        let PortFacts { affinity_timeout, ignored_bits: left_out } = port.facts;
        let by = if left_out > 0 { format!(", without the last {left_out} bits") } else { String::new() };
        lines.push(format!("  affinity for {affinity_timeout} s{by}"));
    }
    for (member, slot) in dump.members.iter().filter(|(member, _)| member.port == port.index) {
        let what = match member.membership {
            Membership::List(Scope::Cluster) => "member of cluster",
            Membership::List(Scope::Local) => "member of local",
            Membership::Serving => "serves",
        };
        lines.push(format!("  {what}: {} {}", member.backend, state(*slot)));
    }
    let sources = dump.sources.iter().flatten().filter(|source| source.port == port.index);
    lines.extend(sources.map(|source| format!("  source: {}", source.range)));
    lines.join("\n")
}

fn line(name: &str, port: &DumpPort, scope: Scope) -> String {
    let word = port.word(scope);
    let flags: Vec<&str> =
        FLAGS.iter().filter(|(flag, _)| word.flags.contains(*flag)).map(|(_, name)| *name).collect();
    format!("  {name} {} {}", list(port.backends(scope).into_keys()), flags.join(" ")).trim_end().to_owned()
}
