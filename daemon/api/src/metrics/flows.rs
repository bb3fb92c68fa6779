//! Flows, and what happened to packets.
//!
//! Invariant: as for all metrics, see the parent. Where packets are not to be translated, all these numbers are 0.

use holdfast_datapath::FlowTable;
use holdfast_status::views::datapath::DatapathView;

use super::Exposition;
use holdfast_agent::readings::fails_packets;

/// Writes how many flows there are and may be, and which packets were dropped. For maps in memory, writes nothing.
pub(super) fn write(out: &mut Exposition, view: &DatapathView, table: Option<&FlowTable>) {
    let Some(status) = view.status() else { return };
    let tally = table.map(FlowTable::tally).unwrap_or_default();
    out.begin(
        "holdfast_flows",
        "gauge",
        "Clients with a backend through packets, by how far they have come.",
    );
    for (transport, stage, count) in tally.stages() {
        let labels = [("transport", transport.as_str()), ("state", stage.as_str())];
        out.sample("holdfast_flows", &labels, count);
    }
    let help = "Whether packets of clients outside are not translated, by all or one of the devices by which they come.";
    out.gauge("holdfast_packets_failed", help, u8::from(fails_packets(view)));
    out.gauge("holdfast_flows_max", "Flows that there may be.", table.map_or(0, FlowTable::capacity));
    let help = "Flows that have ended and are about to be taken away.";
    out.gauge("holdfast_flows_expired", help, tally.expired);
    let help = "Flows by whose port of this node a backend of another node answers.";
    out.gauge("holdfast_snat_ports_in_use", help, tally.nat);
    let swept = status.flows.as_ref().map(|seen| seen.sweep.clone()).unwrap_or_default();
    let help =
        "Of how many ports of this node one is given, towards each port of each backend of another node.";
    out.gauge("holdfast_snat_ports_max", help, swept.snat_ports);
    let help = "Of those the ports that flows have at the backend where they have most.";
    out.gauge("holdfast_snat_ports_fullest", help, swept.fullest.as_ref().map_or(0, |it| it.used_ports));
    out.counter("holdfast_flows_swept_total", "Flows that were taken away after their end.", swept.ended);
    let help = "Whether some flows cannot be taken away after their end.";
    out.gauge("holdfast_flows_sweep_failed", help, u8::from(swept.failure.is_some()));
    let help =
        "Ports that no client is given at one backend, because a connection of another proxy has them there.";
    out.gauge("holdfast_snat_ports_kept_free", help, swept.reserved_ports);
    let counts = table.map(FlowTable::packet_counts).unwrap_or_default();
    out.begin("holdfast_packets_dropped_total", "counter", "Packets that were dropped, by reason.");
    for (reason, count) in counts.dropped {
        out.sample("holdfast_packets_dropped_total", &[("reason", reason)], count);
    }
    out.begin("holdfast_packet_events_total", "counter", "What else happened to packets.");
    for (event, count) in counts.events {
        out.sample("holdfast_packet_events_total", &[("event", event)], count);
    }
}
