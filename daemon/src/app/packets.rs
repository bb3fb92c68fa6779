//! What the journal is told of packets: devices that come and go, and why packets are not translated.
//!
//! Invariant: one line for each change, and none while nothing changes.

use std::collections::BTreeMap;

use holdfast_datapath::{DeviceStatus, PacketStatus};

use crate::devices::Decision;
use crate::logging::messages::{self, say};

/// What was told last.
#[derive(Debug, Default)]
pub(super) struct Lines {
    failure: Option<String>,
    devices: BTreeMap<u32, Device>,
}

/// What was told of a device: its name, and why no program is there if none is.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Device {
    name: String,
    error: Option<String>,
}

impl From<DeviceStatus> for Device {
    fn from(status: DeviceStatus) -> Self {
        Self { name: status.device.name, error: status.error }
    }
}

/// A line that is due.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Line {
    Failure(String),
    Served(u32, String),
    NotServed(String, String),
    Left(String),
}

impl Lines {
    /// Says what has changed.
    pub(super) fn tell(&mut self, now: Option<PacketStatus>, decisions: &[Decision]) {
        for line in self.due(now) {
            match line {
                Line::Failure(error) => say!(warn, messages::PACKETS_NOT_SERVED, error),
                Line::NotServed(device, error) => say!(warn, messages::PACKETS_NOT_SERVED, device, error),
                Line::Left(device) => say!(info, messages::DEVICE_LEFT, device),
                Line::Served(index, device) => {
                    let why = decisions.iter().find(|it| it.index == index).map(|it| it.reason.as_str());
                    say!(info, messages::DEVICE_SERVED, device, index, why = why.unwrap_or_default());
                }
            }
        }
    }

    fn due(&mut self, now: Option<PacketStatus>) -> Vec<Line> {
        let Some(PacketStatus { failure, devices, .. }) = now else { return Vec::new() };
        let mut lines = Vec::new();
        lines.extend(failure.clone().filter(|_| failure != self.failure).map(Line::Failure));
        self.failure = failure;
        let now: BTreeMap<u32, Device> =
            devices.into_iter().map(|status| (status.device.index, status.into())).collect();
        let gone = self.devices.iter().filter(|(index, device)| {
            device.error.is_none() && now.get(index).is_none_or(|now| now.name != device.name)
        });
        lines.extend(gone.map(|(_, device)| Line::Left(device.name.clone())));
        for (index, device) in now.iter().filter(|(index, device)| self.devices.get(index) != Some(*device)) {
            let name = device.name.clone();
            lines.push(match &device.error {
                None => Line::Served(*index, name),
                Some(error) => Line::NotServed(name, error.clone()),
            });
        }
        self.devices = now;
        lines
    }
}

#[cfg(test)]
mod tests {
    use holdfast_datapath::Side;

    use super::*;

    fn status(failure: Option<&str>, devices: &[(u32, &str, Option<&str>)]) -> Option<PacketStatus> {
        let device = |(index, name, error): &(u32, &str, Option<&str>)| DeviceStatus {
            device: holdfast_datapath::Device {
                index: *index,
                name: (*name).to_owned(),
                side: Side::Outer,
                address4: None,
                address6: None,
                by_address: false,
            },
            attached: error.is_none(),
            others: 0,
            error: error.map(ToOwned::to_owned),
        };
        Some(PacketStatus {
            flows: 1,
            hooks: None,
            failure: failure.map(ToOwned::to_owned),
            repaired: 0,
            devices: devices.iter().map(device).collect(),
        })
    }

    #[test]
    fn each_change_has_one_line() {
        let mut told = Lines::default();
        let served = |index, name: &str| Line::Served(index, name.to_owned());
        let left = |name: &str| Line::Left(name.to_owned());
        assert_eq!(told.due(None), []);
        assert_eq!(told.due(status(Some("no"), &[])), [Line::Failure("no".to_owned())]);
        assert_eq!(told.due(status(Some("no"), &[])), []);
        assert_eq!(told.due(status(None, &[(2, "eth0", None)])), [served(2, "eth0")]);
        assert_eq!(told.due(status(None, &[(2, "eth0", None)])), []);
        let refused = Line::NotServed("eth0".to_owned(), "busy".to_owned());
        assert_eq!(told.due(status(None, &[(2, "eth0", Some("busy"))])), [refused]);
        assert_eq!(told.due(status(None, &[(2, "eth0", None)])), [served(2, "eth0")]);
        assert_eq!(told.due(status(None, &[(2, "lan", None)])), [left("eth0"), served(2, "lan")]);
        assert_eq!(told.due(status(None, &[])), [left("lan")]);
    }
}
