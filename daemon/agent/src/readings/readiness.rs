//! Judges whether clients meet the state that the rules ask for, and why not yet.
//!
//! Invariant: probes, metrics and the service manager all get the same answer. It does not cover liveness: the
//! engine's progress does.

use holdfast_core::snapshot::Snapshot;
use holdfast_datapath::{DeviceSide, DeviceStatus};
use holdfast_status::views::datapath::DatapathView;
use holdfast_status::views::devices::{ClassReason, DeviceClass, DeviceDecision};

use super::Readings;

impl Readings {
    /// Why clients do not yet meet the state that the rules ask for, by this snapshot.
    pub fn unready_reason(&self, snapshot: &Snapshot) -> Option<String> {
        unwritten_reason(snapshot).or_else(|| waiting_reason(self))
    }

    /// Whether only the first lists of unreadable sources are missing, which readiness does not wait for.
    pub(crate) fn serves_all_readable(&self, snapshot: &Snapshot) -> bool {
        snapshot.programmed
            && !snapshot.filling
            && snapshot.is_readable_synced()
            && waiting_reason(self).is_none()
    }
}

/// Why the maps do not match the rules yet.
fn unwritten_reason(snapshot: &Snapshot) -> Option<String> {
    // The initial snapshot, before the engine publishes its first one, has no time.
    if snapshot.published.0 == 0 {
        return Some("the engine has not published anything yet".to_owned());
    }
    let waits = || match missing_sources(snapshot) {
        none if none.is_empty() && snapshot.programmed => {
            "the first lists are being written to the maps".to_owned()
        }
        none if none.is_empty() => "waiting for clients of the maps' former owner".to_owned(),
        missing => format!("no first list yet from: {missing}"),
    };
    // The first sources' services are served earlier, but clients may not count on the rest yet.
    let is_whole = snapshot.is_synced() || snapshot.stale_since.is_some();
    (!snapshot.programmed || snapshot.filling || !is_whole).then(waits)
}

/// Why clients do not meet the maps yet.
fn waiting_reason(readings: &Readings) -> Option<String> {
    let view = readings.datapath();
    view.divergence_reason().or_else(|| unknown_devices_reason(&view))
}

/// Why clients outside may not be served yet.
fn unknown_devices_reason(view: &DatapathView) -> Option<String> {
    let status = view.status()?;
    // An operator who removes kube-proxy once this daemon is ready relies on NodePorts, too.
    let is_served = status.packets.as_ref().is_some_and(|packets| packets.failure.is_none());
    (is_served && view.devices().is_empty())
        .then(|| "the devices that lead to other hosts are not known yet".to_owned())
}

/// The names of the sources that have not delivered their first list.
pub fn missing_sources(snapshot: &Snapshot) -> String {
    let waiting = snapshot.sources.iter().filter(|(_, synced)| !**synced);
    waiting.map(|(source, _)| source.as_str()).collect::<Vec<_>>().join(", ")
}

/// Whether packets from outside are translated at each device that leads to load balancers, if the configuration asks
/// for that. Another failing device does not make the node unhealthy.
pub fn translates_packets(view: &DatapathView) -> bool {
    let Some(packets) = view.status().and_then(|status| status.packets.as_ref()) else { return true };
    let is_attached = |it: &DeviceDecision| {
        packets.devices.iter().any(|status| status.attached && status.device.index == it.index)
    };
    packets.hooks.is_some() && inbound_devices(view.devices()).into_iter().all(is_attached)
}

/// Whether the configured translation of packets from outside fails, at one device or entirely.
pub fn fails_packets(view: &DatapathView) -> bool {
    let Some(packets) = view.status().and_then(|status| status.packets.as_ref()) else { return false };
    let fails = |it: &DeviceStatus| it.device.side == DeviceSide::Outer && it.error.is_some() && !it.unpinned;
    packets.failure.is_some() || packets.devices.iter().any(fails)
}

/// The devices that lead to load balancers: those that the administrator named, and those that lead to a gateway;
/// without any of these, all that lead to other hosts.
fn inbound_devices(devices: &[DeviceDecision]) -> Vec<&DeviceDecision> {
    let leads = |it: &&DeviceDecision| {
        matches!(it.reason, ClassReason::Configured | ClassReason::Absent | ClassReason::Gateway)
    };
    let found: Vec<_> = devices.iter().filter(leads).collect();
    if found.is_empty() {
        devices.iter().filter(|it| it.class == DeviceClass::Outer).collect()
    } else {
        found
    }
}
