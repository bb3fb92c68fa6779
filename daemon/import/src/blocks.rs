//! Services as blocks of a configuration.
//!
//! Invariant: a block omits its defaults, so it shows what the file requested.

use std::net::SocketAddr;
use std::time::Duration;

use holdfast_core::affinity::Prefixes;
use holdfast_core::keys::{Family, Transport};
use holdfast_core::str_enum::StrEnum;

use super::imported_service::{ImportedCheck, ImportedService};

/// All blocks, each with its place in the file.
pub(super) fn render_blocks(all: &[ImportedService], file: &str) -> String {
    let blocks = all.iter().map(|found| render_block(found, file));
    blocks.collect::<Vec<_>>().join("\n")
}

fn render_block(found: &ImportedService, file: &str) -> String {
    let mut lines = vec![format!("# {}, line {}", to_comment(file), found.line), "[[service]]".to_owned()];
    lines.push(format!("name = {:?}", found.name));
    if found.transport != Transport::Tcp {
        lines.push(format!("protocol = {:?}", found.transport.spelling()));
    }
    lines.push(render_list("frontends", found.frontends.iter().map(|address| quote_address(*address))));
    lines.push(render_list(
        "backends",
        found.backends.iter().map(|(address, weight)| render_backend(*address, *weight)),
    ));
    lines.extend(found.check.as_ref().map(render_check));
    lines.extend(found.affinity.map(|time| format!("session_affinity = {}", render_duration(time))));
    lines.extend(found.affinity.and_then(|_| render_prefixes(found.prefixes)));
    lines.extend(found.maglev.then(|| "maglev = true".to_owned()));
    lines.join("\n") + "\n"
}

/// The prefixes that count for affinity, if not the whole address.
fn render_prefixes(prefixes: Prefixes) -> Option<String> {
    let part = |(word, family)| {
        let length = prefixes.length(family);
        (length != Prefixes::WHOLE.length(family)).then(|| format!("{word} = {length}"))
    };
    let parts: Vec<String> =
        [("ipv4", Family::V4), ("ipv6", Family::V6)].into_iter().filter_map(part).collect();
    (!parts.is_empty()).then(|| format!("session_affinity_prefix = {{ {} }}", parts.join(", ")))
}

/// The text without characters that would end its comment.
fn to_comment(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).collect()
}

/// The most items of a list on one line.
const INLINE_ITEMS_MAX: usize = 3;

fn render_list(key: &str, items: impl Iterator<Item = String>) -> String {
    let items: Vec<String> = items.collect();
    if items.len() <= INLINE_ITEMS_MAX {
        return format!("{key} = [{}]", items.join(", "));
    }
    format!("{key} = [\n    {},\n]", items.join(",\n    "))
}

fn quote_address(address: SocketAddr) -> String {
    format!("\"{address}\"")
}

fn render_backend(address: SocketAddr, weight: u32) -> String {
    if weight == 1 {
        quote_address(address)
    } else {
        format!("{{ address = \"{address}\", weight = {weight} }}")
    }
}

const DEFAULT_TIMEOUT: Duration = Duration::from_secs(1);

fn render_check(check: &ImportedCheck) -> String {
    let kind = if check.path.is_some() { "http" } else { "tcp" };
    // A timeout may not exceed the interval, and defaults to one second.
    let asked = check.timeout.or(check.interval.filter(|interval| *interval < DEFAULT_TIMEOUT));
    let timeout = asked.map(|timeout| check.interval.map_or(timeout, |interval| timeout.min(interval)));
    let parts = [
        Some(format!("kind = {kind:?}")),
        check.path.as_ref().map(|path| format!("path = {path:?}")),
        check.statuses.as_ref().map(|statuses| format!("expect_status = {statuses:?}")),
        check.port.map(|port| format!("port = {port}")),
        check.interval.map(|time| format!("interval = {}", render_duration(time))),
        timeout.map(|time| format!("timeout = {}", render_duration(time))),
        check.rise.map(|count| format!("rise = {count}")),
        check.fall.map(|count| format!("fall = {count}")),
        check.slow_start.map(|time| format!("slow_start = {}", render_duration(time))),
    ];
    format!("health_check = {{ {} }}", parts.into_iter().flatten().collect::<Vec<_>>().join(", "))
}

fn render_duration(time: Duration) -> String {
    match time.as_millis() {
        whole if whole % 1_000 == 0 => format!("\"{}s\"", whole / 1_000),
        odd => format!("\"{odd}ms\""),
    }
}
