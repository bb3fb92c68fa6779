//! Asks the engine for upkeep as soon as a device's driver can do more or less than before.
//!
//! Invariant: a notice is handled at once, and at most once per `PAUSE`, so a pod that keeps switching its end of a
//! veth on and off costs the node no more than that.

use std::sync::Arc;
use std::time::Duration;

use holdfast_datapath::subscribe_driver_changes;
use tokio::sync::watch;

use crate::engine::query::EngineClient;
use crate::netlink_monitor::NetlinkMonitor;
use holdfast_config::{Config, XdpUse};

/// How long notices are collected after a request.
const PAUSE: Duration = Duration::from_millis(50);

/// Requests upkeep after each change, until the configuration's sender is gone.
pub async fn run(mut config: watch::Receiver<Arc<Config>>, looks: watch::Sender<()>, engine: EngineClient) {
    let opened = subscribe_driver_changes().and_then(NetlinkMonitor::from_socket);
    let mut notices = opened.inspect_err(warn_failure).ok();
    loop {
        tokio::select! {
            changed = config.changed() => if changed.is_err() { return },
            () = NetlinkMonitor::wait_if_open(&mut notices) => {}
        }
        notices.as_mut().into_iter().for_each(NetlinkMonitor::discard_pending);
        if config.borrow_and_update().packets.xdp != XdpUse::Never {
            looks.send_replace(());
            engine.request_upkeep();
        }
        tokio::time::sleep(PAUSE).await;
    }
}

fn warn_failure(error: &std::io::Error) {
    tracing::debug!(%error, "cannot subscribe to driver changes; drivers are checked every ten seconds");
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use holdfast_fixtures::clock::{await_event, pause_async};
    use holdfast_fixtures::network_namespace;

    use super::*;
    use crate::engine::query::{self, EngineQuery};

    fn run_tool(program: &str, arguments: &str) {
        let done = Command::new(program).args(arguments.split(' ')).output().unwrap();
        assert!(done.status.success(), "{program} {arguments}: {}", String::from_utf8_lossy(&done.stderr));
    }

    fn configured(xdp: &str) -> Arc<Config> {
        Arc::new(Config::parse(&format!("[packets]\nxdp = \"{xdp}\"\n"), "config.toml").unwrap().0)
    }

    #[test]
    fn kernel_a_changed_driver_is_checked_at_once_if_xdp_is_used() {
        network_namespace::block_on_inside(async || {
            tokio::time::pause();
            run_tool("ip", "link add left type veth peer name right");
            let (config, followed) = watch::channel(configured("native"));
            let (looks, mut looked) = watch::channel(());
            let (engine, mut asks) = query::channel();
            let running = tokio::spawn(run(followed, looks, engine));
            tokio::task::yield_now().await;
            run_tool("ethtool", "-K left rxvlan off");
            await_event("the driver is checked", looked.changed()).await.unwrap();
            let query = await_event("the engine is asked", asks.recv()).await;
            assert!(matches!(query, Some(EngineQuery::RunUpkeep)));
            config.send_replace(configured("never"));
            // The paused clock moves only when nobody has work, so each pause gives a notice all the time it needs.
            pause_async(2 * PAUSE).await;
            run_tool("ethtool", "-K left rxvlan on");
            pause_async(3 * PAUSE).await;
            assert!(!looked.has_changed().unwrap(), "no XDP program needs it");
            drop(config);
            running.await.unwrap();
        });
    }
}
