//! The configurations of `docs/outside.md`, copied as a user would, and a router that receives the routes.
//!
//! Invariant: only what a caller names is changed in the page's text.

use std::time::Instant;

use holdfast_tests::bed::Bed;

use crate::node::{SERVED, run};

const PAGE: &str = include_str!("../../../docs/outside.md");

/// The addresses that the page announces.
pub(crate) const V4: &str = "192.0.2.10";
pub(crate) const V6: &str = "2001:db8::10";

/// A code block of the section with this heading, counted from 0.
pub(crate) fn block(heading: &str, number: usize) -> String {
    let is_it = |line: &&str| line.trim_start_matches('#').trim() == heading && line.starts_with('#');
    let section = PAGE.lines().skip_while(|line| !is_it(line)).skip(1);
    let section: Vec<&str> = section.take_while(|line| !line.starts_with("## ")).collect();
    let fences: Vec<usize> = (0..section.len()).filter(|at| section[*at].starts_with("```")).collect();
    let pair = fences.chunks(2).nth(number).unwrap_or_else(|| panic!("{heading} has no block {number}"));
    section[pair[0] + 1..pair[1]].iter().map(|line| format!("{line}\n")).collect()
}

/// Replaces one place of a text.
pub(crate) fn with(text: &str, there: &str, instead: &str) -> String {
    assert_eq!(text.matches(there).count(), 1, "{there:?} stands once in\n{text}");
    text.replace(there, instead)
}

/// The page's configuration of holdfast, with other backends.
pub(crate) fn with_backends(backends: &[&str]) -> String {
    let text = block("Who has the address", 0);
    let line = text.lines().find(|line| line.starts_with("backends = ")).unwrap().to_owned();
    with(&text, &line, &format!("backends = {backends:?}"))
}

/// A router with FRR: keepalives every second, dead after three.
pub(crate) fn router(neighbours: &[&str]) -> String {
    let each = |line: &str| -> String {
        neighbours.iter().map(|neighbour| format!(" neighbor {neighbour} {line}\n")).collect()
    };
    let lines = ["remote-as 65001", "timers 1 3", "timers connect 1"].map(each).concat();
    let activated = each("activate");
    format!(
        "router bgp 65000\n no bgp ebgp-requires-policy\n{lines} address-family ipv6 unicast\n{activated} \
         exit-address-family\n"
    )
}

/// The gateways of the router's route to an address, in order.
pub(crate) fn gateways(bed: &Bed, address: &str) -> Vec<String> {
    let family = if address.contains(':') { "-6" } else { "-4" };
    let told = run(bed, "router", "ip", &format!("{family} route show {address}"));
    let words: Vec<&str> = told.split_whitespace().collect();
    let mut gateways: Vec<String> =
        words.windows(2).filter(|pair| pair[0] == "via").map(|pair| pair[1].to_owned()).collect();
    gateways.sort();
    gateways
}

/// Waits until the router's gateways for an address fit.
#[track_caller]
pub(crate) fn wait_for_gateways(bed: &Bed, address: &str, fits: impl Fn(&[String]) -> bool) {
    let begun = Instant::now();
    loop {
        let now = gateways(bed, address);
        if fits(&now) {
            return;
        }
        assert!(begun.elapsed() < SERVED, "the router reaches {address} by {now:?}");
    }
}
