//! Decides which devices lead to other hosts and which to pods.
//!
//! Invariant: a device's class is a pure function of what the kernel lists (links, addresses, routes, rules) and of
//! the configuration; names count only where the configuration has some. A change is followed at once, and a burst of
//! changes as one. This module changes no device: it sends the engine its decisions.

mod conntrack;
mod decide;
pub mod drivers;
mod listing;
mod netlink;
mod routing_rules;
mod snat;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use holdfast_datapath::LiveMaps;
use holdfast_status::views::devices::{DeviceClass, DeviceDecision};
use holdfast_status::views::proxies::OtherProxy;
use tokio::sync::watch;

use crate::engine::query::EngineClient;
use crate::netlink_monitor::NetlinkMonitor;
use holdfast_config::Config;

pub(crate) use snat::{ephemeral_overlap, snat_ports};

use conntrack::Conntrack;
use listing::KernelListing;

/// How long changes are collected: a pod's device comes in several of them within some milliseconds, and clients wait
/// for an uplink that returns.
const BURST: Duration = Duration::from_millis(20);

/// The rest after a listing, as a multiple of the listing's duration. So listing takes about a twentieth of the time,
/// and more only if [`REST_MAX`] ends the rest: a router may have a million routes that keep changing.
const REST_FACTOR: u32 = 20;

/// The longest rest, however long the listing took.
const REST_MAX: Duration = Duration::from_secs(10);

/// How often the kernel is listed without a notice, to find changes that sent none.
const RELIST_EVERY: Duration = Duration::from_secs(60);

/// How long the first decision waits at most for the first look at the node's firewall.
const FIRST_OBSERVERS_WAIT: Duration = Duration::from_secs(2);

/// What on this node must see the packets that its stack forwards.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observers {
    /// A description of the first one found.
    pub first: Option<Arc<str>>,
    pub has_policies: bool,
}

/// Decides now and after each change, until the configuration's sender is gone.
pub async fn run(
    config: watch::Receiver<Arc<Config>>,
    (mut onlookers, proxies): (watch::Receiver<Observers>, watch::Receiver<Arc<[OtherProxy]>>),
    (decisions, live_maps): (watch::Sender<Arc<[DeviceDecision]>>, watch::Receiver<LiveMaps>),
    engine: EngineClient,
) {
    // Without the first look, a former daemon's flows on the fast path would briefly take the stack.
    let _ = tokio::time::timeout(FIRST_OBSERVERS_WAIT, onlookers.changed()).await;
    let conntrack = Conntrack::new(live_maps);
    let mut follower = DeviceFollower {
        config,
        observers: onlookers,
        proxies,
        proxies_known: false,
        decisions,
        engine,
        conntrack,
    };
    let mut notices = None;
    loop {
        // Subscribe before listing, so that a change that the listing misses sends a notice.
        notices =
            notices.or_else(|| netlink::open_monitor().map_err(|error| warn_failure("follow", &error)).ok());
        let begun = Instant::now();
        let listed = match tokio::task::spawn_blocking(netlink::list).await {
            Ok(listed) => listed.map_err(|error| warn_failure("list", &error)).ok(),
            Err(_) => return,
        };
        follower.apply_listing(listed.as_ref()).await;
        let rest = (begun.elapsed() * REST_FACTOR).clamp(BURST, REST_MAX);
        if !follower.wait_for_change(listed.as_ref(), rest, &mut notices).await {
            return;
        }
        tokio::time::sleep(BURST).await;
        if let Some(notices) = &mut notices {
            notices.discard_pending();
        }
    }
}

/// What a decision depends on besides the kernel's lists, and the channels that carry it.
struct DeviceFollower {
    config: watch::Receiver<Arc<Config>>,
    observers: watch::Receiver<Observers>,
    proxies: watch::Receiver<Arc<[OtherProxy]>>,
    /// Whether the node was searched for other proxies.
    proxies_known: bool,
    decisions: watch::Sender<Arc<[DeviceDecision]>>,
    engine: EngineClient,
    conntrack: Conntrack,
}

impl DeviceFollower {
    /// Decides by the listing. If a firewall has come, conntrack gets the flows before the firewall gets their
    /// packets.
    async fn apply_listing(&mut self, listed: Option<&KernelListing>) {
        let first = self.observers.borrow().first.clone();
        self.conntrack.sync_firewall(first).await;
        self.publish(listed);
    }

    /// Rests, then waits for a reason to list again. A new firewall is handled at once, with the last listing.
    /// Returns `false` once the configuration's sender is gone.
    async fn wait_for_change(
        &mut self,
        listed: Option<&KernelListing>,
        rest: Duration,
        notices: &mut Option<NetlinkMonitor>,
    ) -> bool {
        let mut rested = std::pin::pin!(tokio::time::sleep(rest));
        let mut is_resting = true;
        let mut again = std::pin::pin!(tokio::time::sleep(rest + RELIST_EVERY));
        loop {
            tokio::select! {
                () = &mut rested, if is_resting => is_resting = false,
                changed = self.config.changed(), if !is_resting => return changed.is_ok(),
                // Without a sender nothing will change, and the last value holds.
                Ok(()) = self.observers.changed() => self.apply_listing(listed).await,
                Ok(()) = self.proxies.changed() => {
                    self.proxies_known = true;
                    self.publish(listed);
                }
                () = NetlinkMonitor::wait_if_open(notices), if !is_resting => return true,
                () = &mut again => return true,
            }
        }
    }

    /// Whether a segment that starts no flow and matches none cannot belong to another proxy's connection.
    fn may_adopt_flows(&mut self) -> bool {
        self.proxies_known && !self.proxies.borrow_and_update().iter().any(OtherProxy::has_clients)
    }

    /// Decides by the listing, and asks the engine for upkeep if a decision changed.
    fn publish(&mut self, listed: Option<&KernelListing>) {
        let Some(listed) = listed else { return };
        let onlookers = self.observers.borrow_and_update().clone();
        let config = self.config.borrow_and_update().clone();
        let joins = self.may_adopt_flows();
        let decided = decide::decide(listed, &config.packets, &onlookers).into_iter();
        let now: Arc<[DeviceDecision]> = decided
            .map(|it| DeviceDecision { adopts_flows: joins && it.class == DeviceClass::Outer, ..it })
            .collect();
        let is_news = self.decisions.send_if_modified(|before| {
            let is_news = *before != now;
            *before = now;
            is_news
        });
        if is_news {
            // If the engine's queue is full, its own check follows within a second anyway.
            self.engine.request_upkeep();
        }
    }
}

/// The device of the IPv6 default route in the main table; other tables do not count.
pub(crate) fn default_device6() -> std::io::Result<Option<String>> {
    let index = netlink::default_device6()?;
    Ok(index.and_then(|index| nix::net::if_::if_indextoname(index).ok()?.into_string().ok()))
}

/// The route tables that rules lead to, each with whether it is for IPv4.
pub(crate) fn rule_tables() -> std::io::Result<BTreeSet<(u32, bool)>> {
    Ok(netlink::list_rules()?.into_iter().map(|rule| (rule.table, rule.is_v4)).collect())
}

fn warn_failure(attempt: &str, error: &std::io::Error) {
    tracing::warn!(%error, "cannot {attempt} devices, addresses and routes; retrying within a minute");
}
