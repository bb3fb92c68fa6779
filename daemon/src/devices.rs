//! By which devices others reach this node, and by which its pods do.
//!
//! Invariant: a pure function of what the kernel lists (links, addresses, routes, rules) and of the configuration
//! decides what a device is; names count only where the configuration has some. A change is followed at once, and many
//! changes as one. Nothing is done to a device here: the engine is told what was decided.

mod decide;
mod listed;
mod netlink;
mod ports;
mod rules;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use holdfast_judgement::views::devices::Decision;
use tokio::sync::watch;

use crate::config::Config;
use crate::engine::ask::Asker;

pub(crate) use ports::{shared_with_sockets, snat_ports};

use listed::Listed;
use netlink::Notices;

/// How long changes are collected: a pod's device comes in several of them.
const BURST: Duration = Duration::from_millis(50);

/// How many times as long as a listing took the daemon rests before the next one. So listing takes about a twentieth of
/// the time, and more only where [`REST_MAX`] ends the rest: a router may have a million routes that change all the
/// time.
const SHARE: u32 = 20;

/// The longest rest after a listing, however long the listing took.
const REST_MAX: Duration = Duration::from_secs(10);

/// The time after which the kernel is asked again without a notice, so that a change of which no notice told is found.
const LOOK_AGAIN: Duration = Duration::from_secs(60);

/// Decides now and after each change, until the configuration's sender is gone.
pub async fn run(
    mut config: watch::Receiver<Arc<Config>>,
    decisions: watch::Sender<Arc<[Decision]>>,
    engine: Asker,
) {
    let mut notices = None;
    loop {
        // Notices begin before the listing, so that a change that the listing misses is noticed.
        notices = notices.or_else(|| Notices::open().map_err(|error| tell("follow", &error)).ok());
        let begun = Instant::now();
        let listed = tokio::task::spawn_blocking(netlink::list).await;
        match listed {
            Ok(Ok(listed)) => publish(&listed, &config.borrow_and_update().clone(), &decisions, &engine),
            Ok(Err(error)) => tell("list", &error),
            Err(_) => return,
        }
        tokio::time::sleep((begun.elapsed() * SHARE).clamp(BURST, REST_MAX)).await;
        tokio::select! {
            changed = config.changed() => if changed.is_err() { return },
            () = changed(&mut notices) => {}
            () = tokio::time::sleep(LOOK_AGAIN) => {}
        }
        tokio::time::sleep(BURST).await;
        if let Some(notices) = &mut notices {
            notices.forget();
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
pub(crate) fn lookups() -> std::io::Result<BTreeSet<(u32, bool)>> {
    Ok(netlink::rules()?.into_iter().map(|rule| (rule.table, rule.is_v4)).collect())
}

fn tell(attempt: &str, error: &std::io::Error) {
    tracing::warn!(%error, "cannot {attempt} devices, addresses and routes; this is tried again within a minute");
}

/// Waits until something has changed; for ever where the kernel gives no notices.
async fn changed(notices: &mut Option<Notices>) {
    match notices {
        Some(notices) => notices.changed().await,
        None => std::future::pending().await,
    }
}

fn publish(listed: &Listed, config: &Config, decisions: &watch::Sender<Arc<[Decision]>>, engine: &Asker) {
    let now: Arc<[Decision]> = decide::decide(listed, &config.packets).into();
    let is_news = decisions.send_if_modified(|before| {
        let is_news = *before != now;
        *before = now;
        is_news
    });
    if is_news {
        // An engine that is too busy to be told looks once a second anyway.
        engine.look_after();
    }
}
