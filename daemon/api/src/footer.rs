//! The lines below a table for people: how many rows fail, why the table may be old, and what a star stands for.
//!
//! Invariant: each line about trouble ends with the next command to type.

use std::net::IpAddr;
use std::time::Instant;

use holdfast_agent::readings::Readings;
use holdfast_core::facts::NodeFacts;
use holdfast_core::keys::ObjectName;
use holdfast_kubernetes::source::is_away;
use holdfast_status::printable::Printable;

/// The most addresses that a star is explained by; more are counted.
const ADDRESSES_MAX: usize = 4;

const UNHEARD: &str = "the apiserver is not heard, so this may be old; next: holdfast apiserver";

const REFUSED_RELOAD: &str =
    "the last reload was refused, so what is new in the configuration is not here; next: holdfast status";

/// What the rows written so far have shown.
#[derive(Debug, Default)]
pub(super) struct Footer {
    rows: usize,
    failing: usize,
    first: Option<ObjectName>,
    are_several_services: bool,
    has_star: bool,
    /// Why the rows may be old.
    caveats: Vec<&'static str>,
}

impl Footer {
    pub(super) fn from_readings(readings: &Readings) -> Self {
        let is_unheard = is_away(&readings.watches.current(), Instant::now());
        let is_refused = readings.refused_reload.borrow().is_some();
        let caveats = [(is_unheard, UNHEARD), (is_refused, REFUSED_RELOAD)];
        let caveats = caveats.into_iter().filter(|(is, _)| *is).map(|(_, caveat)| caveat).collect();
        Self { caveats, ..Self::default() }
    }

    pub(super) fn count_row(&mut self, failing: Option<&ObjectName>, has_star: bool) {
        self.rows += 1;
        self.has_star |= has_star;
        let Some(service) = failing else { return };
        self.failing += 1;
        self.are_several_services |= self.first.get_or_insert_with(|| service.clone()) != service;
    }

    pub(super) fn write(&self, node: &NodeFacts, out: &mut Vec<u8>) {
        let star = self.has_star.then(|| describe_star(node));
        let caveats = self.caveats.iter().map(|it| (*it).to_owned());
        for line in star.into_iter().chain(self.describe_failing()).chain(caveats) {
            out.extend_from_slice(format!("\n{line}\n").as_bytes());
        }
    }

    fn describe_failing(&self) -> Option<String> {
        let Self { rows, failing, first, are_several_services, .. } = self;
        let service = first.as_ref()?;
        let need = if *failing == 1 { "needs" } else { "need" };
        let next = match are_several_services {
            true => "holdfast status".to_owned(),
            false => format!("holdfast diagnose {}", Printable(service)),
        };
        Some(format!("{failing} of {rows} {need} attention; next: {next}"))
    }
}

/// The addresses at which node ports answer.
fn describe_star(node: &NodeFacts) -> String {
    let is_dialled = |address: &IpAddr| !matches!(address, IpAddr::V6(it) if it.is_unicast_link_local());
    let all: Vec<String> = node.external_addresses().filter(is_dialled).map(|it| it.to_string()).collect();
    let named = all.get(..ADDRESSES_MAX).unwrap_or(&all).join(", ");
    match all.len() {
        0 => "* at a node port: no address of this node answers node ports".to_owned(),
        count if count <= ADDRESSES_MAX => format!("* at a node port: {named}"),
        count => {
            format!("* at a node port: {named} and {} more addresses of this node", count - ADDRESSES_MAX)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn written(footer: &Footer, addresses: &[&str]) -> String {
        let node_port_addresses = addresses.iter().map(|it| it.parse().unwrap()).collect::<BTreeSet<_>>();
        let node = NodeFacts { node_port_addresses, ..NodeFacts::default() };
        let mut out = Vec::new();
        footer.write(&node, &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn the_line_below_a_table_names_the_next_command() {
        let [web, api] = ["web", "api"].map(|name| ObjectName::new("shop", name).unwrap());
        for (rows, expected) in [
            (vec![None, None], ""),
            (vec![Some(&web), None], "\n1 of 2 needs attention; next: holdfast diagnose shop/web\n"),
            (vec![Some(&web), Some(&web)], "\n2 of 2 need attention; next: holdfast diagnose shop/web\n"),
            (vec![Some(&web), None, Some(&api)], "\n2 of 3 need attention; next: holdfast status\n"),
        ] {
            let mut footer = Footer::default();
            rows.into_iter().for_each(|failing| footer.count_row(failing, false));
            assert_eq!(written(&footer, &[]), expected);
        }
    }

    #[test]
    fn a_table_that_may_be_old_says_so() {
        let footer = Footer { caveats: vec![UNHEARD], ..Footer::default() };
        let expected = "\nthe apiserver is not heard, so this may be old; next: holdfast apiserver\n";
        assert_eq!(written(&footer, &[]), expected);
    }

    #[test]
    fn a_star_is_explained_by_the_addresses_that_answer_node_ports() {
        let mut footer = Footer::default();
        footer.count_row(None, true);
        for (addresses, expected) in [
            (&[][..], "\n* at a node port: no address of this node answers node ports\n"),
            (&["127.0.0.1", "192.0.2.1", "fe80::1"], "\n* at a node port: 192.0.2.1\n"),
            (
                &["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.6"],
                "\n* at a node port: 10.0.0.1, 10.0.0.2, 10.0.0.3, 10.0.0.4 and 2 more addresses of this node\n",
            ),
        ] {
            assert_eq!(written(&footer, addresses), expected);
        }
    }
}
