//! The process and its health.
//!
//! Invariant: as for all metrics, see the parent.

use holdfast_core::keys::Source;
use holdfast_core::snapshot::Snapshot;
use holdfast_status::views::announcements::AnnouncementStatus;

use holdfast_agent::exposition::Exposition;
use holdfast_agent::proxies;
use holdfast_agent::readings::Readings;

pub(super) fn write(out: &mut Exposition, readings: &Readings, snapshot: &Snapshot, ready: bool) {
    let labels = [("version", readings.about.version), ("datapath", readings.datapath().kind().as_str())];
    out.begin("holdfast_build_info", "gauge", "Always 1; the labels say what runs.");
    out.sample("holdfast_build_info", &labels, 1);
    out.gauge("holdfast_ready", "Whether the datapath follows the sources.", u8::from(ready));
    out.begin("holdfast_source_synced", "gauge", "Whether a source has delivered its first whole list.");
    for source in Source::ALL {
        if let Some(synced) = snapshot.sources.get(&source) {
            out.sample("holdfast_source_synced", &[("source", source.as_str())], u8::from(*synced));
        }
    }
    let help = "Whether the served state is from before a restart, because a source has not delivered since.";
    out.gauge("holdfast_stale", help, u8::from(snapshot.stale_since.is_some()));
    let help = "When the newest view was published.";
    out.gauge("holdfast_snapshot_timestamp_seconds", help, snapshot.published.0);
    let help = "For how long the engine has made no progress although it should; 0: it makes progress.";
    let stalled = readings.liveness.stalled_for().map_or(0, |still| still.as_secs());
    out.gauge("holdfast_engine_stalled_seconds", help, stalled);
    let help = "Whether the last reload was refused, so that an older configuration than that of the file is in force.";
    out.gauge("holdfast_reload_refused", help, u8::from(readings.refused_reload.borrow().is_some()));
    let (named, more) = readings.closed_ports.named_ports();
    let help = "Configured ports of kube-proxy that cannot be opened.";
    out.gauge("holdfast_closed_ports", help, named.len() + more);
    let name = "holdfast_other_proxy";
    out.begin(name, "gauge", "Whether another proxy serves, or served, on this node.");
    let found = readings.proxies.borrow();
    for proxy in proxies::PROXY_NAMES {
        let is_here = found.iter().any(|it| it.proxy == proxy);
        out.sample(name, &[("proxy", proxy)], u8::from(is_here));
    }
    write_announcements(out, &readings.routes.borrow());
}

/// Announced addresses, and changes of their routes.
fn write_announcements(out: &mut Exposition, routes: &AnnouncementStatus) {
    let there = routes.addresses.iter().filter(|it| it.announced).count();
    let help = "Addresses whose routes exist for routing daemons to announce.";
    out.gauge("holdfast_announced_addresses", help, there);
    let help = "Addresses to announce whose routes do not exist.";
    out.gauge("holdfast_unannounced_addresses", help, routes.addresses.len() - there);
    out.counter("holdfast_announcements_total", "Routes to addresses that were added.", routes.added);
    out.counter("holdfast_withdrawals_total", "Routes to addresses that were removed.", routes.removed);
    let help = "Changes of routes to addresses that the kernel refused.";
    out.counter("holdfast_announcements_refused_total", help, routes.failures);
}
