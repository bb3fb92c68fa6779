//! The lines of a section, one by one.
//!
//! Invariant: a line without a counterpart in blocks is noted, and changes nothing.

use std::time::Duration;

use holdfast_core::affinity::Prefixes;
use holdfast_core::keys::Family;

use super::super::address::parse_port_range;
use super::super::imported_service::{AFFINITY_TIMEOUT, ImportedCheck};
use super::super::notes::{Notes, quote_excerpt};
use super::super::prefix;
use super::section::{Section, Server};

/// Applies a line to its section.
pub(super) fn apply_directive(section: &mut Section, line: usize, words: &[String], notes: &mut Notes) {
    let all: Vec<&str> = words.iter().map(String::as_str).collect();
    match *all.as_slice() {
        ["mode", "tcp"] => section.is_http = false,
        ["mode", "http"] => section.is_http = true,
        // An HTTP section is left out as a whole.
        _ if section.is_http && !matches!(all.first(), Some(&"default_backend")) => {}
        ["bind", addresses, ref rest @ ..] => apply_bind(section, line, addresses, rest, notes),
        ["default_backend", name] => section.default_backend = Some(name.to_owned()),
        ["balance", method, ..] => apply_balance(section, line, method, notes),
        ["server", _, address, ref rest @ ..] => add_server(section, line, address, rest, notes),
        ["default-server", ref rest @ ..] => {
            let usual = ServerOptions::parse_options(rest, &section.default_check);
            usual.note_unknown(line, notes);
            section.default_check = usual.check;
        }
        ["option", "httpchk", ref rest @ ..] => section.check_path = Some(httpchk_path(rest).to_owned()),
        ["option", "tcp-check"] => {}
        ["http-check", "send", ref rest @ ..] => {
            let uri = rest.iter().skip_while(|word| **word != "uri").nth(1);
            section.check_path = uri.map(|uri| (*uri).to_owned()).or_else(|| section.check_path.take());
        }
        ["http-check", "expect", "status", statuses] => section.check_statuses = Some(statuses.to_owned()),
        ["timeout", "check", time] => section.check_timeout = parse_duration(time),
        ["timeout", which, ..] => {
            notes.add(
                line,
                format!(
                    "timeout {} has no counterpart: holdfast ends no idle connection",
                    quote_excerpt(which)
                ),
            );
        }
        ["stick-table", ref rest @ ..] => {
            let expires = rest
                .iter()
                .skip_while(|word| **word != "expire")
                .nth(1)
                .and_then(|time| parse_duration(time));
            section.affinity = Some(expires.unwrap_or(AFFINITY_TIMEOUT));
        }
        ["stick", "on" | "match" | "store-request", "src"] => {}
        ["stick", "on" | "match" | "store-request", key] if let Some(masks) = strip_masks(key) => {
            let before = section.prefixes.unwrap_or(Prefixes::WHOLE);
            section.prefixes = Some(apply_masks(before, masks, line, notes));
        }
        _ => notes.add_unsupported(line, &all.join(" ")),
    }
}

fn apply_bind(section: &mut Section, line: usize, addresses: &str, rest: &[&str], notes: &mut Notes) {
    for address in addresses.split(',') {
        match parse_port_range(address) {
            Some(all) => section.binds.extend(all),
            None => notes.add(
                line,
                format!(
                    "{} names no address: a block needs the one that clients dial",
                    quote_excerpt(address)
                ),
            ),
        }
    }
    if !rest.is_empty() {
        notes.add_unsupported(line, &rest.join(" "));
    }
}

/// The masks on the client's address: `src,ipmask(24)` or `src,ipmask(24,64)`.
fn strip_masks(key: &str) -> Option<&str> {
    key.strip_prefix("src,ipmask(")?.strip_suffix(')')
}

/// The first mask is for IPv4, the optional second one for IPv6.
fn apply_masks(before: Prefixes, masks: &str, line: usize, notes: &mut Notes) -> Prefixes {
    let by_family = Family::ALL.into_iter().zip(masks.splitn(2, ','));
    by_family.fold(before, |all, (family, mask)| prefix::with_mask(all, family, line, mask.trim(), notes))
}

fn apply_balance(section: &mut Section, line: usize, method: &str, notes: &mut Notes) {
    section.balances_by_source = method == "source";
    if !matches!(method, "roundrobin" | "static-rr" | "source") && !method.starts_with("random") {
        let instead = "backends are chosen at random, by their weights";
        notes.add(line, format!("balance {} has no counterpart: {instead}", quote_excerpt(method)));
    }
}

/// The path of `option httpchk`: its only word, or the one after the method.
fn httpchk_path<'a>(rest: &[&'a str]) -> &'a str {
    match *rest {
        [] => "/",
        [uri] => uri,
        [_, uri, ..] => uri,
    }
}

fn add_server(section: &mut Section, line: usize, address: &str, rest: &[&str], notes: &mut Notes) {
    let options = ServerOptions::parse_options(rest, &section.default_check);
    let addresses = parse_port_range(address).unwrap_or_default();
    let [address] = *addresses.as_slice() else {
        return notes.add(line, format!("{} is no address with a port, in numbers", quote_excerpt(address)));
    };
    options.note_unknown(line, notes);
    if options.is_backup {
        return notes
            .add(line, format!("{address} is a backup, for which there is no counterpart: left out"));
    }
    let check = options.is_checked.then_some(options.check);
    section.servers.push(Server { address, weight: options.weight, check });
}

/// The options after a server's address.
struct ServerOptions<'a> {
    weight: u32,
    is_checked: bool,
    is_backup: bool,
    check: ImportedCheck,
    unknown_words: Vec<&'a str>,
}

impl<'a> ServerOptions<'a> {
    fn parse_options(words: &[&'a str], usual: &ImportedCheck) -> Self {
        let mut options = Self {
            weight: 1,
            is_checked: false,
            is_backup: false,
            check: usual.clone(),
            unknown_words: Vec::new(),
        };
        let mut words = words.iter().copied();
        while let Some(word) = words.next() {
            match word {
                "check" => options.is_checked = true,
                "backup" => options.is_backup = true,
                "disabled" => options.weight = 0,
                "weight" => options.weight = parse_number(words.next()).unwrap_or(1),
                "inter" => options.check.interval = words.next().and_then(parse_duration),
                "rise" => options.check.rise = parse_number(words.next()),
                "fall" => options.check.fall = parse_number(words.next()),
                "port" => options.check.port = words.next().and_then(|port| port.parse().ok()),
                "slowstart" => options.check.slow_start = words.next().and_then(parse_duration),
                other => options.unknown_words.push(other),
            }
        }
        options
    }

    fn note_unknown(&self, line: usize, notes: &mut Notes) {
        if !self.unknown_words.is_empty() {
            notes.add_unsupported(line, &self.unknown_words.join(" "));
        }
    }
}

fn parse_number(word: Option<&str>) -> Option<u32> {
    word?.parse().ok()
}

/// A time: a number and a unit, by default milliseconds.
fn parse_duration(text: &str) -> Option<Duration> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at_checked(end)?;
    let number: u64 = number.parse().ok()?;
    let milliseconds = match unit {
        "us" => number / 1_000,
        "" | "ms" => number,
        "s" => number.checked_mul(1_000)?,
        "m" => number.checked_mul(60_000)?,
        "h" => number.checked_mul(3_600_000)?,
        "d" => number.checked_mul(86_400_000)?,
        _ => return None,
    };
    Some(Duration::from_millis(milliseconds))
}
