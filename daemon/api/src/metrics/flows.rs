//! Flows, and counts of packets.
//!
//! Invariant: as for all metrics, see the parent. If packets are not translated, all these numbers are 0.

use holdfast_datapath::FlowTable;
use holdfast_status::views::datapath::DatapathView;

use super::Exposition;
use holdfast_agent::readings::fails_packets;

/// Writes the flows and their limit, and dropped packets. For maps in memory, writes nothing.
pub(super) fn write(out: &mut Exposition, view: &DatapathView, table: Option<&FlowTable>) {
    let Some(status) = view.status() else { return };
    let tally = table.map(FlowTable::tally).unwrap_or_default();
    out.begin("holdfast_flows", "gauge", "Flows of clients through packets, by state.");
    for (transport, stage, count) in tally.stages() {
        let labels = [("transport", transport.as_str()), ("state", stage.as_str())];
        out.sample("holdfast_flows", &labels, count);
    }
    let help = "Whether a device where outside clients arrive does not translate packets.";
    out.gauge("holdfast_packets_failed", help, u8::from(fails_packets(view)));
    out.gauge("holdfast_flows_max", "The capacity of the flow table.", table.map_or(0, FlowTable::capacity));
    let help = "Expired flows that the sweep is about to delete.";
    out.gauge("holdfast_flows_expired", help, tally.expired);
    let help = "Flows with an SNAT port of this node.";
    out.gauge("holdfast_snat_ports_in_use", help, tally.nat);
    let swept = status.flows.as_ref().map(|seen| seen.sweep.clone()).unwrap_or_default();
    let help = "SNAT ports of this node, towards each port of each backend of another node.";
    out.gauge("holdfast_snat_ports_max", help, swept.snat_ports);
    let help = "SNAT ports in use at the backend where the most are.";
    out.gauge("holdfast_snat_ports_fullest", help, swept.fullest.as_ref().map_or(0, |it| it.used_ports));
    out.counter("holdfast_flows_swept_total", "Expired flows that the sweep deleted.", swept.ended);
    let help = "Whether the sweep cannot delete some expired flows.";
    out.gauge("holdfast_flows_sweep_failed", help, u8::from(swept.failure.is_some()));
    let help = "Ports that SNAT may not use for one backend, because another proxy has a connection there.";
    out.gauge("holdfast_snat_ports_kept_free", help, swept.reserved_ports);
    let counts = table.map(FlowTable::packet_counts).unwrap_or_default();
    out.begin("holdfast_packets_dropped_total", "counter", "Packets that were dropped, by reason.");
    for (reason, count) in counts.dropped {
        out.sample("holdfast_packets_dropped_total", &[("reason", reason)], count);
    }
    out.begin("holdfast_packet_events_total", "counter", "Other events of packets.");
    for (event, count) in counts.events {
        out.sample("holdfast_packet_events_total", &[("event", event)], count);
    }
}
