//! What becomes of flows in the kernel's own table of connections (conntrack) when a firewall comes.
//!
//! Invariant: conntrack has an entry for each flow on which both sides have agreed before the firewall gets the packets
//! of those that passed by the stack, as far as [`INSERT_MAX`] allows it. So a rule that accepts what is established
//! accepts their next packet, whichever side sends it. Entries are made once for each firewall, and never removed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use holdfast_datapath::{ConntrackOutcome, FlowTable, LiveMaps};
use tokio::sync::watch;

/// How long a firewall waits for its packets meanwhile. A few hundred thousand flows are entered in a second.
const INSERT_MAX: Duration = Duration::from_secs(1);

/// After this time flows are entered once more: by then all packets go through the stack, and a flow that began before
/// that is known too.
const SECOND_PASS_WAIT: Duration = Duration::from_secs(2);

/// How long the second attempt may take. Nothing waits for it.
const SECOND_PASS_MAX: Duration = Duration::from_secs(30);

/// Makes flows known to conntrack.
pub(super) struct Conntrack {
    live_maps: watch::Receiver<LiveMaps>,
    /// The firewall for which that was done last.
    firewall: Option<Arc<str>>,
}

impl Conntrack {
    pub(super) const fn new(live_maps: watch::Receiver<LiveMaps>) -> Self {
        Self { live_maps, firewall: None }
    }

    /// Meets the firewall that is there now; enters all flows if it is another one than before.
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
            "conntrack has no entry for some flows, so the firewall that came may cut them: check that \
             nf_conntrack_netlink is loaded and that the table has room (net.netfilter.nf_conntrack_max)"
        );
    }
}
