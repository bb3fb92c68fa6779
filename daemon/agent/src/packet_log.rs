//! Logs changes of devices, and why packets are not translated.
//!
//! Invariant: one line for each change, and none while nothing changes.

use std::collections::BTreeMap;

use holdfast_datapath::{DeviceSide, DeviceStatus, EvictedFlows, PacketStatus};
use holdfast_host::logging::messages::{self, say};
use holdfast_status::views::devices::DeviceDecision;

/// The last logged state.
#[derive(Debug, Default)]
pub(super) struct PacketLog {
    failure: Option<String>,
    devices: BTreeMap<u32, DeviceLog>,
    flows: FlowLog,
}

/// The logged state of the flow table: its size if known, the flows that did not fit, and why it lacks the requested
/// size.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct FlowLog {
    max: Option<u32>,
    given_up: EvictedFlows,
    failure: Option<String>,
}

/// The logged state of a device: its name, and why it has no program, or why its program has no pin.
#[derive(Clone, Debug, PartialEq, Eq)]
struct DeviceLog {
    name: String,
    is_served: bool,
    error: Option<String>,
}

impl From<DeviceStatus> for DeviceLog {
    fn from(status: DeviceStatus) -> Self {
        let is_served = status.error.is_none() || status.unpinned;
        Self { name: status.device.name, is_served, error: status.error }
    }
}

/// Whether the programs of a device are still to be attached.
fn is_pending(status: &DeviceStatus) -> bool {
    !status.attached && status.error.is_none()
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum LogLine {
    Failure(String),
    Served(u32, String),
    NotServed(String, String),
    Unpinned(String, String),
    Left(String),
    Resized(u32, EvictedFlows),
    NotResized(String),
}

impl PacketLog {
    pub(super) fn log_changes(&mut self, now: Option<PacketStatus>, decisions: &[DeviceDecision]) {
        for line in self.due_lines(now) {
            match line {
                LogLine::Failure(error) => say!(warn, messages::PACKETS_NOT_SERVED, error),
                LogLine::NotServed(device, error) => say!(warn, messages::PACKETS_NOT_SERVED, device, error),
                LogLine::Unpinned(device, error) => {
                    tracing::warn!(
                        device,
                        error,
                        "a device's programs have no pin, so they end with this daemon"
                    );
                }
                LogLine::NotResized(error) => {
                    tracing::warn!(error, "cannot resize the flow table");
                }
                LogLine::Resized(flows, EvictedFlows { total: all, in_use: needed }) if all > 0 => {
                    tracing::warn!(flows, given_up = all, needed, "the flow table was made smaller");
                }
                LogLine::Resized(flows, _) => tracing::info!(flows, "the flow table was resized"),
                LogLine::Left(device) => say!(info, messages::DEVICE_LEFT, device),
                LogLine::Served(index, device) => {
                    let why = decisions.iter().find(|it| it.index == index).map(|it| it.reason.as_str());
                    say!(info, messages::DEVICE_SERVED, device, index, why);
                }
            }
        }
    }

    fn due_lines(&mut self, now: Option<PacketStatus>) -> Vec<LogLine> {
        let Some(PacketStatus {
            failure, devices, flows, flows_failure, flows_evicted: flows_given_up, ..
        }) = now
        else {
            return Vec::new();
        };
        let mut lines = Vec::new();
        let most = Some(flows).filter(|flows| *flows > 0).or(self.flows.max);
        lines.extend(self.flows.due_lines(FlowLog {
            max: most,
            given_up: flows_given_up,
            failure: flows_failure,
        }));
        lines.extend(failure.clone().filter(|_| failure != self.failure).map(LogLine::Failure));
        self.failure = failure;
        // Pods come and go, and one that the stack serves loses nothing.
        let is_shown =
            |status: &DeviceStatus| status.device.side != DeviceSide::LocalPods && !is_pending(status);
        let served = devices.into_iter().filter(is_shown);
        let now: BTreeMap<u32, DeviceLog> =
            served.map(|status| (status.device.index, status.into())).collect();
        let gone = self.devices.iter().filter(|(index, device)| {
            device.is_served && now.get(index).is_none_or(|now| now.name != device.name)
        });
        lines.extend(gone.map(|(_, device)| LogLine::Left(device.name.clone())));
        for (index, device) in now.iter().filter(|(index, device)| self.devices.get(index) != Some(*device)) {
            let name = device.name.clone();
            let was_served =
                self.devices.get(index).is_some_and(|before| before.is_served && before.name == name);
            lines.extend(match &device.error {
                None => (!was_served).then_some(LogLine::Served(*index, name)),
                Some(error) if device.is_served => Some(LogLine::Unpinned(name, error.clone())),
                Some(error) => Some(LogLine::NotServed(name, error.clone())),
            });
        }
        self.devices = now;
        lines
    }
}

impl FlowLog {
    fn due_lines(&mut self, now: Self) -> Vec<LogLine> {
        let before = std::mem::replace(self, now.clone());
        let resized = before.max.zip(now.max).filter(|(before, now)| before != now);
        let given_up = EvictedFlows {
            total: now.given_up.total.saturating_sub(before.given_up.total),
            in_use: now.given_up.in_use.saturating_sub(before.given_up.in_use),
        };
        let resized = resized.map(|(_, now)| LogLine::Resized(now, given_up));
        let failure = now.failure.filter(|now| Some(now) != before.failure.as_ref());
        resized.into_iter().chain(failure.map(LogLine::NotResized)).collect()
    }
}

#[cfg(test)]
mod tests {
    use holdfast_datapath::{FastPathState, PacketSwitches, XdpState};

    use super::*;

    fn status(failure: Option<&str>, devices: &[(u32, &str, Option<&str>)]) -> Option<PacketStatus> {
        let device = |(index, name, error): &(u32, &str, Option<&str>)| DeviceStatus {
            device: holdfast_datapath::Device::new(*index, name, DeviceSide::Outer),
            attached: error.is_none(),
            unpinned: false,
            foreign_programs: 0,
            fast_path: FastPathState::Disabled,
            xdp: XdpState::Disabled,
            error: error.map(ToOwned::to_owned),
        };
        Some(PacketStatus {
            behind: false,
            switches: PacketSwitches::default(),
            flows: 1,
            flows_wanted: 1,
            flows_failure: None,
            flows_evicted: EvictedFlows::default(),
            hooks: None,
            failure: failure.map(ToOwned::to_owned),
            repaired: 0,
            devices: devices.iter().map(device).collect(),
        })
    }

    #[test]
    fn each_change_has_one_line() {
        let mut log = PacketLog::default();
        let served = |index, name: &str| LogLine::Served(index, name.to_owned());
        let left = |name: &str| LogLine::Left(name.to_owned());
        assert_eq!(log.due_lines(None), []);
        assert_eq!(log.due_lines(status(Some("no"), &[])), [LogLine::Failure("no".to_owned())]);
        assert_eq!(log.due_lines(status(Some("no"), &[])), []);
        assert_eq!(log.due_lines(status(None, &[(2, "eth0", None)])), [served(2, "eth0")]);
        assert_eq!(log.due_lines(status(None, &[(2, "eth0", None)])), []);
        let refused = LogLine::NotServed("eth0".to_owned(), "busy".to_owned());
        assert_eq!(log.due_lines(status(None, &[(2, "eth0", Some("busy"))])), [refused]);
        assert_eq!(log.due_lines(status(None, &[(2, "eth0", None)])), [served(2, "eth0")]);
        assert_eq!(log.due_lines(status(None, &[(2, "lan", None)])), [left("eth0"), served(2, "lan")]);
        assert_eq!(log.due_lines(status(None, &[])), [left("lan")]);
    }

    #[test]
    fn a_device_without_pins_is_not_logged_as_unserved() {
        let mut log = PacketLog::default();
        let unpinned = || {
            let mut now = status(None, &[(2, "eth0", Some("read-only"))]).unwrap();
            (now.devices[0].attached, now.devices[0].unpinned) = (true, true);
            Some(now)
        };
        assert_eq!(
            log.due_lines(status(None, &[(2, "eth0", None)])),
            [LogLine::Served(2, "eth0".to_owned())]
        );
        let expected = LogLine::Unpinned("eth0".to_owned(), "read-only".to_owned());
        assert_eq!(log.due_lines(unpinned()), [expected]);
        assert_eq!(log.due_lines(unpinned()), []);
        assert_eq!(log.due_lines(status(None, &[(2, "eth0", None)])), [], "it was served all the time");
        assert_eq!(log.due_lines(status(None, &[])), [LogLine::Left("eth0".to_owned())]);
    }

    #[test]
    fn pods_on_the_fast_path_are_not_logged() {
        let mut log = PacketLog::default();
        let mut near = status(None, &[(7, "veth7", Some("busy"))]).unwrap();
        near.devices[0].device.side = DeviceSide::LocalPods;
        assert_eq!(log.due_lines(Some(near)), []);
        assert_eq!(log.due_lines(status(None, &[])), []);
    }

    #[test]
    fn a_resized_flow_table_and_its_evictions_are_logged_once() {
        let mut log = PacketLog::default();
        let with = |flows, all, failure: Option<&str>| {
            let flows_given_up = EvictedFlows { total: all, in_use: all / 2 };
            let flows_failure = failure.map(ToOwned::to_owned);
            status(None, &[]).map(|it| PacketStatus {
                flows,
                flows_evicted: flows_given_up,
                flows_failure,
                ..it
            })
        };
        assert_eq!(log.due_lines(with(0, 0, None)), [], "packets are not translated yet");
        assert_eq!(log.due_lines(with(64, 0, None)), [], "the first size is no change");
        assert_eq!(log.due_lines(with(128, 0, None)), [LogLine::Resized(128, EvictedFlows::default())]);
        assert_eq!(log.due_lines(with(128, 0, Some("no"))), [LogLine::NotResized("no".to_owned())]);
        assert_eq!(log.due_lines(with(128, 0, Some("no"))), []);
        assert_eq!(
            log.due_lines(with(64, 8, None)),
            [LogLine::Resized(64, EvictedFlows { total: 8, in_use: 4 })]
        );
        assert_eq!(
            log.due_lines(with(32, 18, None)),
            [LogLine::Resized(32, EvictedFlows { total: 10, in_use: 5 })]
        );
        assert_eq!(log.due_lines(with(32, 18, None)), []);
    }
}
