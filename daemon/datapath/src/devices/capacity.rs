//! Which devices get an entry in the map of devices.
//!
//! Invariant: devices that lead to other hosts come first. Pods' devices never take the part of the map reserved for
//! those, so no number of pods costs a node its uplink. A pod's device that has an entry keeps it.

use std::collections::BTreeMap;

use nix::sys::resource::{Resource, getrlimit};

use super::hook::Direction;
use super::{Device, DeviceSide};
use crate::abi::types::size;

/// Entries reserved for devices that lead to other hosts: a router with a VLAN per tenant has a few hundred.
const OUTER_DEVICES_MIN: u32 = 256;

/// The most devices of pods, whatever the limit of open files.
pub const POD_DEVICES_MAX: usize = (size::DEVICES.0 - OUTER_DEVICES_MIN) as usize;

pub(super) const OVER_LIMIT: &str = "too many devices of pods: the programs serve at most 3,840, \
                                     and no more than half of LimitNOFILE= allows at 3 open files each";

/// How many devices of pods this process can serve. Each program takes an open file, and half of all files stay for the
/// rest of the daemon.
pub(super) fn pod_devices_max() -> usize {
    let (files, _) = getrlimit(Resource::RLIMIT_NOFILE).unwrap_or_default();
    let files = usize::try_from(files).unwrap_or(usize::MAX);
    POD_DEVICES_MAX.min(files / 2 / Direction::ALL.len())
}

/// Selects the devices that get programs, by index, and those beyond the limit.
pub(super) fn admit_devices(
    devices: &[Device],
    has_room: impl Fn(u32) -> bool,
    pods_max: usize,
) -> (BTreeMap<u32, &Device>, Vec<Device>) {
    let (mut pods, outer): (Vec<_>, Vec<_>) = devices.iter().partition(|device| is_pod_device(device));
    // A pod with clients served here comes before a pod that only gets faster replies.
    pods.sort_by_key(|device| (device.side == DeviceSide::LocalPods, !has_room(device.index), device.index));
    let left_out = pods.split_off(pods.len().min(pods_max)).into_iter().cloned().collect();
    (outer.into_iter().chain(pods).map(|device| (device.index, device)).collect(), left_out)
}

/// Whether a device leads to a pod of this node, and not to other hosts.
pub(super) fn is_pod_device(device: &Device) -> bool {
    matches!(device.side, DeviceSide::Pod | DeviceSide::LocalPods)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(index: u32, side: DeviceSide) -> Device {
        Device::new(index, "any", side)
    }

    #[test]
    fn an_uplink_is_admitted_alongside_any_number_of_pods() {
        let pods = (1..=9_000)
            .map(|index| device(index, if index % 2 == 0 { DeviceSide::Pod } else { DeviceSide::LocalPods }));
        let devices: Vec<_> =
            pods.chain([device(9_001, DeviceSide::Outer), device(9_002, DeviceSide::Backends)]).collect();
        let (wanted, left_out) = admit_devices(&devices, |_| false, POD_DEVICES_MAX);
        assert!(wanted.contains_key(&9_001) && wanted.contains_key(&9_002));
        assert_eq!(wanted.len(), POD_DEVICES_MAX + 2);
        assert_eq!(left_out.len(), 9_000 - POD_DEVICES_MAX);
        assert!(wanted.len() + OUTER_DEVICES_MIN as usize - 2 <= size::DEVICES.0 as usize);
    }

    #[test]
    fn an_admitted_pod_stays_admitted_when_another_one_comes() {
        let devices = [1, 2, 3].map(|index| device(index, DeviceSide::Pod));
        let (wanted, left_out) = admit_devices(&devices, |index| index > 1, 2);
        assert_eq!(wanted.into_keys().collect::<Vec<_>>(), [2, 3]);
        assert_eq!(left_out, [device(1, DeviceSide::Pod)]);
    }
}
