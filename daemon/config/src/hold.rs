//! `[hold]`: how long a list that would become empty is held.

use std::time::Duration;

use holdfast_core::hold::{OnEmpty, Policy};
use toml::Value;
use toml::de::DeValue;

use super::keys::{Keys as _, table, take};
use super::limits::{HOLD, INTERVAL, MASS_LOSS_WINDOW};
use super::show;
use super::table::Table;
use super::value::{Share, duration, share, show_duration, word, word_among};

table! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Hold "hold" {
        limit: Duration = Duration::from_secs(120), take(duration(HOLD)), show::time, reload;
        /// How often each held backend is probed.
        probe_interval: Duration = Duration::from_secs(2), take(duration(INTERVAL)), show::time, reload;
        /// The window in which so many services must lose their endpoints to count as a mass loss.
        mass_loss_window: Duration = Duration::from_secs(30), take(duration(MASS_LOSS_WINDOW)), show::time, reload;
        /// How long a list is held in a mass loss.
        mass_loss_limit: Duration = Duration::from_secs(600), take(duration(HOLD)), show::time, reload;
        /// The policy of every service without its own.
        on_empty: OnEmpty = OnEmpty::Auto, take(word), show::word, reload;
        /// The share of the services that must lose all their endpoints to count as a mass loss.
        mass_loss_share: Share = Share::QUARTER, take(share), show_share, reload;
    }
}

impl Hold {
    /// The policy for the rules; a part of a second counts as a whole one.
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
    let hold = Hold::read(table);
    if hold.mass_loss_limit < hold.limit {
        let site = table.good_site("mass_loss_limit").unwrap_or_else(|| table.site().clone());
        let mass = show_duration(hold.mass_loss_limit);
        let single = show_duration(hold.limit);
        let message = format!("a mass loss is held for {mass}, less than a single loss (limit = {single:?})");
        table.report().add_warning(&site, message);
    }
    hold
}

fn show_share(share: &Share) -> Option<Value> {
    show::scalar(&(f64::from(share.millionths()) / 1e6))
}

/// The policy of a `[[service]]`: any but `pass`, which needs an address that another balancer serves too.
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
