//! `[hold]`: what becomes of a list that would become empty.

use std::time::Duration;

use holdfast_core::hold::{OnEmpty, Policy};
use toml::de::DeValue;

use super::limits::{HOLD, INTERVAL, MASS_LOSS_WINDOW};
use super::table::{Found, Table};
use super::value::{Share, duration, share, show_duration, word, word_among};

/// The table `[hold]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold {
    /// The policy of every service that has none of its own.
    pub on_empty: OnEmpty,
    /// How long a list is held.
    pub limit: Duration,
    /// How often each held backend is probed.
    pub probe_interval: Duration,
    /// The share of the services that have to lose all their endpoints to make it a mass loss.
    pub mass_loss_share: Share,
    /// The time within which those services have to lose them.
    pub mass_loss_window: Duration,
    /// How long a list is held in a mass loss.
    pub mass_loss_limit: Duration,
}

impl Default for Hold {
    fn default() -> Self {
        Self {
            on_empty: OnEmpty::Auto,
            limit: Duration::from_secs(120),
            probe_interval: Duration::from_secs(2),
            mass_loss_share: Share::QUARTER,
            mass_loss_window: Duration::from_secs(30),
            mass_loss_limit: Duration::from_secs(600),
        }
    }
}

impl Hold {
    /// The policy as the rules take it; a part of a second counts as a whole one.
    pub fn policy(&self) -> Policy {
        let seconds = |time: Duration| i64::try_from(time.as_millis().div_ceil(1_000)).unwrap_or(i64::MAX);
        Policy {
            on_empty: self.on_empty,
            limit: seconds(self.limit),
            mass_loss_share: self.mass_loss_share.millionths(),
            mass_loss_window: seconds(self.mass_loss_window),
            mass_loss_limit: seconds(self.mass_loss_limit),
        }
    }
}

pub(super) fn read(table: &mut Table<'_, '_, '_>) -> Hold {
    let default = Hold::default();
    let mut time = |key, bounds, default| table.take(key, duration(bounds)).unwrap_or(default);
    let limit = time("limit", HOLD, default.limit);
    let probe_interval = time("probe_interval", INTERVAL, default.probe_interval);
    let mass_loss_window = time("mass_loss_window", MASS_LOSS_WINDOW, default.mass_loss_window);
    let mass_loss_limit = table.find("mass_loss_limit", duration(HOLD));
    let hold = Hold {
        on_empty: table.take("on_empty", word).unwrap_or(default.on_empty),
        limit,
        probe_interval,
        mass_loss_share: table.take("mass_loss_share", share).unwrap_or(default.mass_loss_share),
        mass_loss_window,
        mass_loss_limit: mass_loss_limit.as_ref().map_or(default.mass_loss_limit, |found| found.value),
    };
    check_mass_loss(table, &hold, mass_loss_limit.as_ref());
    hold
}

fn check_mass_loss(table: &mut Table<'_, '_, '_>, hold: &Hold, found: Option<&Found<Duration>>) {
    if hold.mass_loss_limit >= hold.limit {
        return;
    }
    let site = found.map_or_else(|| table.site().clone(), |found| found.site.clone());
    let mass = show_duration(hold.mass_loss_limit);
    let single = show_duration(hold.limit);
    let message = format!("a mass loss is held for {mass}, less than a single loss (limit = {single:?})");
    table.report().warning(&site, message);
}

/// The policy that a `[[service]]` may have: any but `pass`, which needs an address that another balancer serves too.
pub(super) fn static_on_empty(value: &DeValue<'_>) -> Result<OnEmpty, String> {
    let [legal @ .., _pass] = &OnEmpty::ALL;
    match value.as_str() {
        Some("pass") => {
            Err("\"pass\" is for load-balancer and external addresses, and a [[service]] has none: \
             legal here: auto, refuse, hold"
                .to_owned())
        }
        _ => word_among(legal, value),
    }
}
