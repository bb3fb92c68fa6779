//! The table of services as a daemon of an earlier version answers: every service, and no totals.
//!
//! Invariant: what is counted here is what the totals of a later version would say.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::{Rejected, Service};
use holdfast_api::totals::TotalsRow;

#[derive(Debug, Deserialize)]
pub(super) struct Services {
    services: Vec<Counted>,
    rejected: Vec<Rejected>,
    rejected_dropped: u64,
}

#[derive(Debug, Deserialize)]
struct Counted {
    #[serde(flatten)]
    service: Service,
    state: String,
    frontends: u64,
    backends: u64,
    #[serde(default)]
    drained: u64,
}

impl From<Services> for super::Services {
    fn from(Services { services, rejected, rejected_dropped }: Services) -> Self {
        let totals = totals(&services);
        let services = services.into_iter().map(|it| it.service).collect();
        Self { services, totals, rejected, rejected_dropped }
    }
}

fn totals(services: &[Counted]) -> TotalsRow {
    let sum = |count: fn(&Counted) -> u64| services.iter().map(count).fold(0, u64::saturating_add);
    TotalsRow {
        services: u64::try_from(services.len()).unwrap_or(u64::MAX),
        frontends: sum(|it| it.frontends),
        backends: sum(|it| it.backends),
        drained: sum(|it| it.drained),
        states: counted(services.iter().map(|it| it.state.as_str())),
        verdicts: counted(services.iter().filter_map(|it| it.service.verdict.as_deref())),
    }
}

fn counted<'a>(words: impl Iterator<Item = &'a str>) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    for word in words {
        *counts.entry(word.to_owned()).or_default() += 1;
    }
    counts
}
