//! IPVS, as `ipvsadm --save --numeric` writes it: a line for each service, and one for each of its servers.
//!
//! Invariant: a line whose address is none in numbers makes no service, and is noted.

use std::net::SocketAddr;
use std::time::Duration;

use holdfast_core::keys::Transport;

use super::address::with_port;
use super::found::{AFFINITY, Found};
use super::notes::{Notes, shown};
use super::prefix;

/// How long a persistent service keeps a client where its line has no number: `ipvsadm` takes five minutes.
const PERSISTENT: Duration = Duration::from_secs(300);

pub(super) fn read(text: &str, notes: &mut Notes) -> Vec<Found> {
    let mut all: Vec<Found> = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let mut words = line.split_whitespace();
        match words.next() {
            None => {}
            Some(word) if word.starts_with('#') => {}
            Some("-A" | "--add-service") => all.extend(service(number, &mut Words::new(words), notes)),
            Some("-a" | "--add-server") => server(&mut all, number, &mut Words::new(words), notes),
            Some(_) => notes.add(number, format!("{} adds no service and no server", shown(line))),
        }
    }
    all
}

/// The words of a line that are still to be read.
struct Words<'a> {
    rest: std::iter::Peekable<std::str::SplitWhitespace<'a>>,
}

impl<'a> Words<'a> {
    fn new(words: std::str::SplitWhitespace<'a>) -> Self {
        Self { rest: words.peekable() }
    }

    fn next(&mut self) -> Option<&'a str> {
        self.rest.next()
    }

    /// The value of an option that has one.
    fn value(&mut self) -> &'a str {
        self.rest.next().unwrap_or_default()
    }

    /// The value of an option that may have one.
    fn number(&mut self) -> Option<u64> {
        let number = self.rest.peek()?.parse().ok()?;
        self.rest.next();
        Some(number)
    }
}

fn transport_of(word: &str) -> Option<Transport> {
    match word {
        "-t" | "--tcp-service" => Some(Transport::Tcp),
        "-u" | "--udp-service" => Some(Transport::Udp),
        "--sctp-service" => Some(Transport::Sctp),
        _ => None,
    }
}

fn service(line: usize, words: &mut Words<'_>, notes: &mut Notes) -> Option<Found> {
    let mut found = None;
    let mut scheduler = "wlc";
    let (mut affinity, mut mask) = (None, None);
    while let Some(word) = words.next() {
        match word {
            "-s" | "--scheduler" => scheduler = words.value(),
            "-p" | "--persistent" => affinity = Some(words.number().map_or(PERSISTENT, Duration::from_secs)),
            "-f" | "--fwmark-service" => {
                notes.add(
                    line,
                    format!("firewall mark {} is no address: name the addresses", shown(words.value())),
                );
            }
            "-M" | "--netmask" => mask = Some(words.value()),
            word => match transport_of(word) {
                Some(transport) => found = begun(line, transport, words.value(), notes),
                None => option(line, word, words, notes),
            },
        }
    }
    let mut found: Found = found?;
    found.affinity = affinity;
    if let Some(mask) = mask {
        prefix::keep(&mut found, line, mask, notes);
    }
    schedule(&mut found, scheduler, notes);
    Some(found)
}

/// An option that no block has, with its value.
fn option(line: usize, word: &str, words: &mut Words<'_>, notes: &mut Notes) {
    notes.no_counterpart(line, word);
    if word.starts_with('-') && words.rest.peek().is_some_and(|next| !next.starts_with('-')) {
        words.next();
    }
}

fn begun(line: usize, transport: Transport, address: &str, notes: &mut Notes) -> Option<Found> {
    let frontend = address_of(line, address, notes)?;
    let name = format!("{}-{frontend}", transport.as_str());
    Some(Found { frontends: vec![frontend], ..Found::new(line, name, transport) })
}

fn address_of(line: usize, text: &str, notes: &mut Notes) -> Option<SocketAddr> {
    let address = with_port(text);
    if address.is_none() {
        let why = "is no address with a port, in numbers: save with ipvsadm --save --numeric";
        notes.add(line, format!("{} {why}", shown(text)));
    }
    address
}

fn schedule(found: &mut Found, scheduler: &str, notes: &mut Notes) {
    match scheduler {
        "rr" | "lc" => found.is_level = true,
        "mh" => found.maglev = true,
        "sh" => found.affinity = found.affinity.or(Some(AFFINITY)),
        _ => {}
    }
    if !matches!(scheduler, "rr" | "wrr" | "mh" | "sh") {
        let instead = "backends are chosen at random, by their weights";
        notes.add(found.line, format!("scheduler {} has no counterpart: {instead}", shown(scheduler)));
    }
}

fn server(all: &mut [Found], line: usize, words: &mut Words<'_>, notes: &mut Notes) {
    let (mut of, mut backend, mut weight, mut way) = (None, None, 1, "-g");
    while let Some(word) = words.next() {
        match word {
            "-r" | "--real-server" => backend = address_of(line, words.value(), notes),
            "-w" | "--weight" => weight = words.value().parse().unwrap_or(1),
            "-m" | "--masquerading" | "-g" | "--gatewaying" | "-i" | "--ipip" => way = word,
            "-f" | "--fwmark-service" => return,
            word => match transport_of(word) {
                Some(transport) => of = with_port(words.value()).map(|address| (transport, address)),
                None => option(line, word, words, notes),
            },
        }
    }
    let is_its = |found: &&mut Found| {
        of.is_some_and(|(transport, address)| {
            found.transport == transport && found.frontends.contains(&address)
        })
    };
    // A service stands right before its servers.
    let service = all.iter_mut().rev().find(is_its);
    match (service, backend) {
        (Some(service), Some(backend)) => {
            if service.backends.is_empty() {
                note_way(line, way, notes);
            }
            service.backends.push((backend, weight));
        }
        (None, _) => notes.add(line, "its service is not in the file, or was left out"),
        (Some(_), None) => {}
    }
}

/// Where answers went past the balancer, they come back through it.
fn note_way(line: usize, way: &str, notes: &mut Notes) {
    if !matches!(way, "-m" | "--masquerading") {
        let what = "answers come back through this node, and servers need no address of the service";
        notes.add(line, format!("{way}: {what}"));
    }
}
