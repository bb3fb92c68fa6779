//! A service of another load balancer, and its conversion to a block.
//!
//! Invariant: after [`normalise_services`] each service has a unique name, and weights that a block may have.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use holdfast_core::affinity::Prefixes;
use holdfast_core::keys::Transport;
use holdfast_core::weights::Weight;

use super::notes::Notes;

const NAME_MAX: usize = 63;

/// How long clients stay with their backends if a file enables affinity without a time: as in Kubernetes.
pub(super) const AFFINITY_TIMEOUT: Duration = Duration::from_secs(3 * 60 * 60);

/// How backends are checked; `None` is the default of a block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ImportedCheck {
    /// The path of the HTTP request; `None`: the check only connects.
    pub(super) path: Option<String>,
    /// The good statuses as written.
    pub(super) statuses: Option<String>,
    /// The port to check; `None`: the server's own.
    pub(super) port: Option<u16>,
    pub(super) interval: Option<Duration>,
    pub(super) timeout: Option<Duration>,
    pub(super) rise: Option<u32>,
    pub(super) fall: Option<u32>,
    pub(super) slow_start: Option<Duration>,
}

/// A service of the file.
#[derive(Clone, Debug)]
pub(crate) struct ImportedService {
    pub(super) line: usize,
    pub(super) name: String,
    pub(super) transport: Transport,
    pub(super) frontends: Vec<SocketAddr>,
    /// Each with its weight.
    pub backends: Vec<(SocketAddr, u32)>,
    pub(super) check: Option<ImportedCheck>,
    pub(super) affinity: Option<Duration>,
    /// The prefixes that count for affinity.
    pub(super) prefixes: Prefixes,
    pub(super) maglev: bool,
    /// Whether the file's method ignores weights.
    pub(super) ignores_weights: bool,
}

impl ImportedService {
    pub(super) fn new(line: usize, name: impl Into<String>, transport: Transport) -> Self {
        Self {
            line,
            name: name.into(),
            transport,
            frontends: Vec::new(),
            backends: Vec::new(),
            check: None,
            affinity: None,
            prefixes: Prefixes::WHOLE,
            maglev: false,
            ignores_weights: false,
        }
    }

    /// Gives all backends that take clients the same weight, if the file's method ignores weights.
    fn level_weights(&mut self) {
        if self.ignores_weights {
            self.backends.iter_mut().for_each(|(_, weight)| *weight = (*weight).min(1));
        }
    }

    /// Merges equal backends, and adds up their weights.
    fn merge_backends(&mut self) {
        let mut merged: Vec<(SocketAddr, u32)> = Vec::with_capacity(self.backends.len());
        self.backends.sort_by_key(|(address, _)| *address);
        for (address, weight) in self.backends.drain(..) {
            match merged.last_mut().filter(|(before, _)| *before == address) {
                Some((_, sum)) => *sum = sum.saturating_add(weight),
                None => merged.push((address, weight)),
            }
        }
        self.backends = merged;
    }

    /// Scales heavy weights down, all alike. A backend that takes clients keeps a weight.
    fn scale_weights(&mut self, notes: &mut Notes) {
        let most = u32::from(Weight::MAX);
        let heaviest = self.backends.iter().map(|(_, weight)| *weight).max().unwrap_or_default();
        let part = heaviest.div_ceil(most).max(1);
        if part > 1 {
            self.backends.iter_mut().for_each(|(_, weight)| *weight = weight.div_ceil(part));
            notes
                .add(self.line, format!("weights above {most} are divided by {part}, and so are all others"));
        }
    }
}

/// Gives the services unique names, leaves out those without a legal address, and notes them.
pub(super) fn normalise_services(all: &mut Vec<ImportedService>, notes: &mut Notes) {
    let mut names = BTreeMap::new();
    all.retain_mut(|found| {
        found.frontends.sort_unstable();
        found.frontends.dedup();
        found.level_weights();
        found.merge_backends();
        found.scale_weights(notes);
        found.name = unique_name(&to_label(&found.name), &mut names);
        if found.frontends.is_empty() {
            notes.add(
                found.line,
                format!("{:?} has no address that a block can have, and is left out", found.name),
            );
        }
        !found.frontends.is_empty()
    });
}

/// The name as a block may have it: lower-case letters, digits and `-`, with no `-` at either end.
fn to_label(name: &str) -> String {
    let legal = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let name: String = name.chars().map(legal).collect();
    let name: String = name.trim_matches('-').chars().take(NAME_MAX).collect();
    if name.trim_matches('-').is_empty() {
        "service".to_owned()
    } else {
        name.trim_end_matches('-').to_owned()
    }
}

/// The name, with a number if another service has it already. `names` has the last number of each name.
fn unique_name(name: &str, names: &mut BTreeMap<String, usize>) -> String {
    loop {
        let number = names.get(name).map_or(1, |last| last.saturating_add(1));
        names.insert(name.to_owned(), number);
        let free = append_number(name, number);
        // A name with its number may be the whole name of another service.
        if number == 1 || !names.contains_key(&free) {
            names.entry(free.clone()).or_insert(1);
            return free;
        }
    }
}

fn append_number(name: &str, number: usize) -> String {
    let ending = if number == 1 { String::new() } else { format!("-{number}") };
    let kept: String = name.chars().take(NAME_MAX.saturating_sub(ending.len())).collect();
    kept + &ending
}
