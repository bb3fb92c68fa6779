//! The line about the apiserver: the endpoints of the watches, or the broken ones, since when and why.
//!
//! Invariant: a broken watch is reported but is no fault by itself. While no watch works, or that of Services or
//! EndpointSlices has not for a minute, the node is not well: it serves what it knows and misses every rollout. Endpoints and credentials belong to `holdfast apiserver`.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

const NODES: &str = "nodes";

const WATCHING: &str = "watching";

/// The state of a watch during its list.
const LISTING: &str = "listing";

/// The state of a watch of a kind that the cluster does not have.
const ABSENT: &str = "absent";

/// The watches in the answer of `/apiserver`.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Apiserver {
    enabled: bool,
    /// Whether this node hears of no change.
    #[serde(default)]
    away: bool,
    #[serde(default)]
    zone_problem: Option<String>,
    watches: Vec<Watch>,
}

#[derive(Debug, Deserialize, Serialize)]
struct Watch {
    kind: String,
    state: String,
    endpoint: Option<String>,
    heard: Option<String>,
    last_error: Option<String>,
}

impl Apiserver {
    /// The line; `None` if no apiserver is used.
    pub(super) fn describe_state(&self) -> Option<String> {
        // No service needs a kind that the cluster does not have.
        let is_broken = |watch: &&Watch| !matches!(&*watch.state, WATCHING | ABSENT);
        let broken: Vec<&Watch> = self.watches.iter().filter(is_broken).collect();
        let is_all_but_zone = broken.iter().all(|watch| watch.kind == NODES);
        match (&self.zone_problem, broken.as_slice()) {
            _ if !self.enabled => None,
            // Services work without a watch of this node's Node.
            (Some(problem), _) if is_all_but_zone => Some(format!("{}; {problem}", self.used_endpoints())),
            (_, []) => Some(self.used_endpoints()),
            _ if self.is_away() && self.unheard_kinds().is_none() => Some("not heard".to_owned()),
            (_, broken) if broken.iter().all(|watch| watch.state == LISTING) => {
                Some(self.describe_listing(broken))
            }
            (_, broken) => Some(describe_broken(broken)),
        }
    }

    pub(super) const fn is_away(&self) -> bool {
        self.away
    }

    /// What is not heard.
    pub(super) fn absence_title(&self) -> String {
        let unheard = self.unheard_kinds();
        unheard
            .map_or_else(|| "the apiserver is not heard".to_owned(), |kinds| format!("no watch of {kinds}"))
    }

    /// The kinds whose watches do not work; `None`: no watch does.
    fn unheard_kinds(&self) -> Option<String> {
        let (heard, unheard): (Vec<&Watch>, Vec<&Watch>) =
            self.needed_watches().partition(|watch| watch.state == WATCHING);
        (!heard.is_empty()).then(|| join_kinds(&unheard))
    }

    /// What an operator needs to know while the apiserver is away.
    pub(super) fn describe_absence(&self) -> Vec<String> {
        if !self.is_away() {
            return Vec::new();
        }
        let is_unheard = |watch: &&Watch| watch.state != WATCHING;
        let unheard = self.needed_watches().filter(is_unheard).collect::<Vec<_>>();
        let why = unheard.iter().find_map(|watch| watch.last_error.as_deref());
        let why = why.map(|why| format!("; the last try: {why}")).unwrap_or_default();
        let heard = describe_last_heard(&unheard);
        vec![
            format!("{heard}{why}"),
            "this node goes on with what it knows, and learns of no rollout".to_owned(),
            "next: holdfast apiserver".to_owned(),
        ]
    }

    /// The watches of kinds that the cluster has.
    fn needed_watches(&self) -> impl Iterator<Item = &Watch> {
        self.watches.iter().filter(|watch| watch.state != ABSENT)
    }

    /// The line while lists are read and no watch has failed.
    fn describe_listing(&self, watches: &[&Watch]) -> String {
        let used = self.used_endpoints();
        let used = if used.is_empty() { used } else { used + "; " };
        format!("{used}reading the list of {}; {}", join_kinds(watches), describe_last_heard(watches))
    }

    fn used_endpoints(&self) -> String {
        let endpoints: BTreeSet<&str> =
            self.watches.iter().filter_map(|watch| watch.endpoint.as_deref()).collect();
        endpoints.into_iter().collect::<Vec<_>>().join(", ")
    }
}

fn describe_broken(broken: &[&Watch]) -> String {
    let why = broken.iter().find_map(|watch| watch.last_error.as_deref());
    let why = why.map(|why| format!(" ({why})")).unwrap_or_default();
    format!("no watch of {}; {}{why}", join_kinds(broken), describe_last_heard(broken))
}

fn join_kinds(watches: &[&Watch]) -> String {
    watches.iter().map(|watch| watch.kind.as_str()).collect::<Vec<_>>().join(", ")
}

fn describe_last_heard(watches: &[&Watch]) -> String {
    // RFC 3339 times in UTC sort as text.
    let heard = watches.iter().filter_map(|watch| watch.heard.as_deref()).max();
    heard.map_or_else(|| "nothing heard yet".to_owned(), |at| format!("last heard {at}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watch(kind: &str, state: &str, heard: Option<&str>, last_error: Option<&str>) -> Watch {
        Watch {
            kind: kind.to_owned(),
            state: state.to_owned(),
            endpoint: Some("10.0.0.1:6443".to_owned()),
            heard: heard.map(str::to_owned),
            last_error: last_error.map(str::to_owned),
        }
    }

    #[track_caller]
    fn check(enabled: bool, watches: Vec<Watch>, expected: Option<&str>) {
        let answer = Apiserver { enabled, away: false, zone_problem: None, watches };
        assert_eq!(answer.describe_state().as_deref(), expected);
    }

    #[test]
    fn the_line_shows_endpoints_of_watches_or_the_broken_watches() {
        let heard = Some("2026-01-08T11:11:55Z");
        let good = || watch("services", "watching", heard, Some("closed the connection"));
        check(false, Vec::new(), None);
        check(true, vec![good(), good()], Some("10.0.0.1:6443"));
        let late = watch("nodes", "waiting", Some("2026-01-08T11:11:50Z"), Some("connection refused"));
        check(
            true,
            vec![good(), late, watch("endpointslices", "listing", heard, None)],
            Some("no watch of nodes, endpointslices; last heard 2026-01-08T11:11:55Z (connection refused)"),
        );
        let without = Apiserver {
            enabled: true,
            away: false,
            zone_problem: Some("the own Node cannot be read".to_owned()),
            watches: vec![good(), watch("nodes", "waiting", None, Some("500"))],
        };
        assert_eq!(without.describe_state().as_deref(), Some("10.0.0.1:6443; the own Node cannot be read"));
        let absent = watch("serviceimports", "absent", None, Some("404 NotFound"));
        check(true, vec![good(), absent], Some("10.0.0.1:6443"));
        let listing = |heard| watch("endpointslices", "listing", heard, None);
        check(
            true,
            vec![good(), listing(heard)],
            Some("10.0.0.1:6443; reading the list of endpointslices; last heard 2026-01-08T11:11:55Z"),
        );
        let first = Watch { endpoint: None, ..listing(None) };
        check(true, vec![first], Some("reading the list of endpointslices; nothing heard yet"));
        let never = watch("services", "waiting", None, None);
        check(true, vec![never, good()], Some("no watch of services; nothing heard yet"));
    }

    #[test]
    fn while_no_watch_works_the_line_of_the_apiserver_says_so_and_a_section_since_when() {
        let waiting =
            watch("services", "waiting", Some("2026-01-08T11:11:55Z"), Some("10.0.0.1:6443: refused"));
        let watches = vec![waiting, watch("serviceimports", "absent", None, None)];
        let mut answer = Apiserver { enabled: true, away: true, zone_problem: None, watches };
        let lines = answer.describe_absence();
        assert_eq!(lines[0], "last heard 2026-01-08T11:11:55Z; the last try: 10.0.0.1:6443: refused");
        assert_eq!(lines.last().map(String::as_str), Some("next: holdfast apiserver"));
        assert_eq!(answer.describe_state().as_deref(), Some("not heard"));
        assert_eq!(answer.absence_title(), "the apiserver is not heard");
        answer.away = false;
        assert!(answer.describe_absence().is_empty());
    }

    #[test]
    fn a_kind_that_is_not_heard_beside_others_is_named() {
        let (early, late) = (Some("2026-01-08T11:11:50Z"), Some("2026-01-08T11:11:55Z"));
        let slices = watch("endpointslices", "waiting", early, Some("403 Forbidden"));
        let watches = vec![watch("nodes", "watching", late, None), slices];
        let answer = Apiserver { enabled: true, away: true, zone_problem: None, watches };
        assert_eq!(answer.absence_title(), "no watch of endpointslices");
        assert_eq!(
            answer.describe_absence()[0],
            "last heard 2026-01-08T11:11:50Z; the last try: 403 Forbidden"
        );
        assert_eq!(
            answer.describe_state().as_deref(),
            Some("no watch of endpointslices; last heard 2026-01-08T11:11:50Z (403 Forbidden)")
        );
    }
}
