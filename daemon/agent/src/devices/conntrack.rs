//! Enters flows into the kernel's conntrack table when a firewall comes.
//!
//! Invariant: conntrack has an entry for each established flow of the fast path before the firewall gets its packets,
//! as far as [`INSERT_MAX`] allows. So a rule that accepts established connections accepts the next packet of either
//! side. Entries are made once per firewall, and never removed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use holdfast_datapath::{ConntrackOutcome, FlowTable, LiveMaps};
use tokio::sync::watch;

/// How long a firewall waits for its packets meanwhile. A few hundred thousand flows are entered per second.
const INSERT_MAX: Duration = Duration::from_secs(1);

/// The wait before a second pass: by then all packets take the stack, so it also enters flows that began after the
/// first one.
const SECOND_PASS_WAIT: Duration = Duration::from_secs(2);

/// The time limit of the second pass. Nothing waits for it.
const SECOND_PASS_MAX: Duration = Duration::from_secs(30);

pub(super) struct Conntrack {
    live_maps: watch::Receiver<LiveMaps>,
    /// The firewall of the last pass.
    firewall: Option<Arc<str>>,
}

impl Conntrack {
    pub(super) const fn new(live_maps: watch::Receiver<LiveMaps>) -> Self {
        Self { live_maps, firewall: None }
    }

    /// Takes the current firewall, and enters all flows if it is another one.
    pub(super) async fn sync_firewall(&mut self, firewall: Option<Arc<str>>) {
        if self.firewall == firewall {
            return;
        }
        self.firewall = firewall;
        let Some(table) = self.firewall.as_ref().and_then(|_| self.flow_table()) else { return };
        insert_flows(table.clone(), INSERT_MAX).await;
        tokio::spawn(async move {
            tokio::time::sleep(SECOND_PASS_WAIT).await;
            insert_flows(table, SECOND_PASS_MAX).await;
        });
    }

    fn flow_table(&self) -> Option<FlowTable> {
        self.live_maps.borrow().flow_table.clone()
    }
}

async fn insert_flows(table: FlowTable, takes: Duration) {
    let until = Instant::now() + takes;
    let entering = tokio::task::spawn_blocking(move || table.add_conntrack_entries(until));
    if let Ok(ConntrackOutcome { entered, refused, error: Some(error) }) = entering.await {
        tracing::warn!(
            entered,
            refused,
            %error,
            "conntrack has no entry for some flows, so the new firewall may cut them: check that nf_conntrack_netlink \
             is loaded and that net.netfilter.nf_conntrack_max is large enough"
        );
    }
}
