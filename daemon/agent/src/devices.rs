//! By which devices others reach this node, and by which its pods do.
//!
//! Invariant: a pure function of what the kernel lists (links, addresses, routes, rules) and of the configuration
//! decides what a device is; names count only where the configuration has some. A change is followed at once, and many
//! changes as one. Nothing is done to a device here: the engine is told what was decided.

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

/// How many times as long as a listing took the daemon rests before the next one. So listing takes about a twentieth of
/// the time, and more only where [`REST_MAX`] ends the rest: a router may have a million routes that change all the
/// time.
const REST_FACTOR: u32 = 20;

/// The longest rest after a listing, however long the listing took.
const REST_MAX: Duration = Duration::from_secs(10);

/// The time after which the kernel is asked again without a notice, so that a change of which no notice told is found.
const RELIST_EVERY: Duration = Duration::from_secs(60);

/// The longest that the first decision waits for the first look at the node's firewall.
const FIRST_OBSERVERS_WAIT: Duration = Duration::from_secs(2);

/// What on this node is to see packets which its stack sends on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observers {
    /// The first that was found, in words.
    pub first: Option<Arc<str>>,
    /// Whether there are policies of IPsec.
    pub has_policies: bool,
}

/// Decides now and after each change, until the configuration's sender is gone.
pub async fn run(
    config: watch::Receiver<Arc<Config>>,
    (mut onlookers, proxies): (watch::Receiver<Observers>, watch::Receiver<Arc<[OtherProxy]>>),
    (decisions, live_maps): (watch::Sender<Arc<[DeviceDecision]>>, watch::Receiver<LiveMaps>),
    engine: EngineClient,
) {
    // Without the first look, flows that a former daemon had pass by the stack would go through it for a moment.
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
        // Notices begin before the listing, so that a change that the listing misses is noticed.
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

/// What a decision rests on beside the kernel's lists, and the channels by which it is told.
struct DeviceFollower {
    config: watch::Receiver<Arc<Config>>,
    observers: watch::Receiver<Observers>,
    proxies: watch::Receiver<Arc<[OtherProxy]>>,
    /// Whether the node was looked at for other proxies.
    proxies_known: bool,
    decisions: watch::Sender<Arc<[DeviceDecision]>>,
    engine: EngineClient,
    conntrack: Conntrack,
}

impl DeviceFollower {
    /// Decides by what is listed. Where a firewall has come, conntrack knows the flows before the firewall gets their
    /// packets.
    async fn apply_listing(&mut self, listed: Option<&KernelListing>) {
        let first = self.observers.borrow().first.clone();
        self.conntrack.sync_firewall(first).await;
        self.publish(listed);
    }

    /// Rests, then waits for a reason to list again. A firewall that comes is heeded at once, by what was listed last.
    /// `false`: there is no configuration any more.
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
                // Without a sender nothing will change, and what was seen last holds.
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

    /// Whether what begins nothing and is of no flow is of no connection that another proxy of this node has.
    fn may_adopt_flows(&mut self) -> bool {
        self.proxies_known && !self.proxies.borrow_and_update().iter().any(OtherProxy::has_clients)
    }

    /// Decides by what is listed, and tells the engine if something is to be done otherwise than before.
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
            // An engine that is too busy to be told looks once a second anyway.
            self.engine.request_upkeep();
        }
    }
}

/// The device of the default route over IPv6 in the main table; other tables, to which rules of routing lead, do not
/// count.
pub(crate) fn default_device6() -> std::io::Result<Option<String>> {
    let index = netlink::default_device6()?;
    Ok(index.and_then(|index| nix::net::if_::if_indextoname(index).ok()?.into_string().ok()))
}

/// The tables of routes that rules lead to, each with whether it is one of IPv4.
pub(crate) fn rule_tables() -> std::io::Result<BTreeSet<(u32, bool)>> {
    Ok(netlink::list_rules()?.into_iter().map(|rule| (rule.table, rule.is_v4)).collect())
}

fn warn_failure(attempt: &str, error: &std::io::Error) {
    tracing::warn!(%error, "cannot {attempt} devices, addresses and routes; this is tried again within a minute");
}
