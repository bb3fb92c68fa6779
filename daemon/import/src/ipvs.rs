//! IPVS in the format of `ipvsadm --save --numeric`: a line for each service, and one for each of its servers.
//!
//! Invariant: a line with a non-numeric address makes no service, and is noted.

use std::net::SocketAddr;
use std::time::Duration;

use holdfast_core::keys::Transport;

use super::address::parse_address_port;
use super::imported_service::{AFFINITY_TIMEOUT, ImportedService};
use super::notes::{Notes, quote_excerpt};
use super::prefix;

/// How long a persistent service keeps a client by default: `ipvsadm` takes five minutes.
const PERSISTENCE_TIMEOUT: Duration = Duration::from_secs(300);

pub(super) fn parse_services(text: &str, notes: &mut Notes) -> Vec<ImportedService> {
    let mut all: Vec<ImportedService> = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let mut words = line.split_whitespace();
        match words.next() {
            None => {}
            Some(word) if word.starts_with('#') => {}
            Some("-A" | "--add-service") => all.extend(parse_service(number, &mut Words::new(words), notes)),
            Some("-a" | "--add-server") => parse_server(&mut all, number, &mut Words::new(words), notes),
            Some(_) => notes.add(number, format!("{} adds no service and no server", quote_excerpt(line))),
        }
    }
    all
}

/// The unread words of a line.
struct Words<'a> {
    rest: std::iter::Peekable<std::str::SplitWhitespace<'a>>,
}

impl<'a> Words<'a> {
    fn new(words: std::str::SplitWhitespace<'a>) -> Self {
        Self { rest: words.peekable() }
    }

    fn next_word(&mut self) -> Option<&'a str> {
        self.rest.next()
    }

    /// The value of an option that requires one.
    fn take_value(&mut self) -> &'a str {
        self.rest.next().unwrap_or_default()
    }

    /// The value of an option with an optional one.
    fn take_number(&mut self) -> Option<u64> {
        let number = self.rest.peek()?.parse().ok()?;
        self.rest.next();
        Some(number)
    }
}

fn parse_transport(word: &str) -> Option<Transport> {
    match word {
        "-t" | "--tcp-service" => Some(Transport::Tcp),
        "-u" | "--udp-service" => Some(Transport::Udp),
        "--sctp-service" => Some(Transport::Sctp),
        _ => None,
    }
}

fn parse_service(line: usize, words: &mut Words<'_>, notes: &mut Notes) -> Option<ImportedService> {
    let mut found = None;
    let mut scheduler = "wlc";
    let (mut affinity, mut mask) = (None, None);
    while let Some(word) = words.next_word() {
        match word {
            "-s" | "--scheduler" => scheduler = words.take_value(),
            "-p" | "--persistent" => {
                affinity = Some(words.take_number().map_or(PERSISTENCE_TIMEOUT, Duration::from_secs));
            }
            "-f" | "--fwmark-service" => {
                notes.add(
                    line,
                    format!(
                        "firewall mark {} is no address: name the addresses",
                        quote_excerpt(words.take_value())
                    ),
                );
            }
            "-M" | "--netmask" => mask = Some(words.take_value()),
            word => match parse_transport(word) {
                Some(transport) => found = new_service(line, transport, words.take_value(), notes),
                None => note_option(line, word, words, notes),
            },
        }
    }
    let mut found: ImportedService = found?;
    found.affinity = affinity;
    if let Some(mask) = mask {
        prefix::set_prefix(&mut found, line, mask, notes);
    }
    apply_scheduler(&mut found, scheduler, notes);
    Some(found)
}

/// Notes an option without a counterpart, and skips its value.
fn note_option(line: usize, word: &str, words: &mut Words<'_>, notes: &mut Notes) {
    notes.add_unsupported(line, word);
    if word.starts_with('-') && words.rest.peek().is_some_and(|next| !next.starts_with('-')) {
        words.next_word();
    }
}

fn new_service(
    line: usize,
    transport: Transport,
    address: &str,
    notes: &mut Notes,
) -> Option<ImportedService> {
    let frontend = parse_address(line, address, notes)?;
    let name = format!("{}-{frontend}", transport.as_str());
    Some(ImportedService { frontends: vec![frontend], ..ImportedService::new(line, name, transport) })
}

fn parse_address(line: usize, text: &str, notes: &mut Notes) -> Option<SocketAddr> {
    let address = parse_address_port(text);
    if address.is_none() {
        let why = "is no address with a port, in numbers: save with ipvsadm --save --numeric";
        notes.add(line, format!("{} {why}", quote_excerpt(text)));
    }
    address
}

fn apply_scheduler(found: &mut ImportedService, scheduler: &str, notes: &mut Notes) {
    match scheduler {
        "rr" | "lc" => found.ignores_weights = true,
        "mh" => found.maglev = true,
        "sh" => found.affinity = found.affinity.or(Some(AFFINITY_TIMEOUT)),
        _ => {}
    }
    if !matches!(scheduler, "rr" | "wrr" | "mh" | "sh") {
        let instead = "backends are chosen at random, by their weights";
        notes
            .add(found.line, format!("scheduler {} has no counterpart: {instead}", quote_excerpt(scheduler)));
    }
}

fn parse_server(all: &mut [ImportedService], line: usize, words: &mut Words<'_>, notes: &mut Notes) {
    let (mut of, mut backend, mut weight, mut way) = (None, None, 1, "-g");
    while let Some(word) = words.next_word() {
        match word {
            "-r" | "--real-server" => backend = parse_address(line, words.take_value(), notes),
            "-w" | "--weight" => weight = words.take_value().parse().unwrap_or(1),
            "-m" | "--masquerading" | "-g" | "--gatewaying" | "-i" | "--ipip" => way = word,
            "-f" | "--fwmark-service" => return,
            word => match parse_transport(word) {
                Some(transport) => {
                    of = parse_address_port(words.take_value()).map(|address| (transport, address));
                }
                None => note_option(line, word, words, notes),
            },
        }
    }
    let is_its = |found: &&mut ImportedService| {
        of.is_some_and(|(transport, address)| {
            found.transport == transport && found.frontends.contains(&address)
        })
    };
    // A service is right before its servers.
    let service = all.iter_mut().rev().find(is_its);
    match (service, backend) {
        (Some(service), Some(backend)) => {
            if service.backends.is_empty() {
                note_forwarding(line, way, notes);
            }
            service.backends.push((backend, weight));
        }
        (None, _) => notes.add(line, "its service is not in the file, or was left out"),
        (Some(_), None) => {}
    }
}

/// Notes direct routing and tunnels: replies then bypass the balancer, and here they return through it.
fn note_forwarding(line: usize, way: &str, notes: &mut Notes) {
    if !matches!(way, "-m" | "--masquerading") {
        let what = "answers come back through this node, and servers need no address of the service";
        notes.add(line, format!("{way}: {what}"));
    }
}
