//! Encodes a device's entry, and decodes a former daemon's.
//!
//! Invariant: plain values; this module reads and writes nothing.

use super::{Device, DeviceSide};
use crate::abi;
use crate::abi::packets::types::{self, device_flag};

/// Builds a device from its index and a former daemon's entry.
pub(super) fn decode_device(index: u32, entry: Option<&[u8]>) -> Device {
    let flags = entry.and_then(abi::from_bytes::<types::device>).map_or(0, |entry| u32::from(entry.flags));
    let is = |flag: device_flag| flags & flag.0 != 0;
    let (side, fast_path) = match (is(device_flag::DEVICE_LOCAL_PODS), is(device_flag::DEVICE_POD)) {
        (true, true) => (DeviceSide::Pod, true),
        (true, false) => (DeviceSide::LocalPods, false),
        (false, _) => (DeviceSide::Outer, false),
    };
    Device { fast_path, ..Device::new(index, "", side) }
}

/// Encodes a device's entry; `frames`: whether its driver may redirect frames.
pub(crate) fn encode_device(device: &Device, frames: bool) -> types::device {
    types::device {
        address4: device.address4.map_or(0, abi::address4),
        address6: device.address6.map_or([0; 4], abi::address6),
        flags: device_flags(device, frames),
        pod_prefix4: device.local_prefix4,
        pod_prefix6: device.local_prefix6,
    }
}

/// Clears the flag by which programs redirect frames to the device's driver.
pub(super) fn clear_xdp_flag(entry: &[u8]) -> Option<types::device> {
    let entry = abi::from_bytes::<types::device>(entry)?;
    let flags = u16::try_from(u32::from(entry.flags) & !device_flag::DEVICE_XDP.0).unwrap_or_default();
    Some(types::device { flags, ..entry })
}

/// The bits of `enum device_flag`; all of them fit.
fn device_flags(device: &Device, frames: bool) -> u16 {
    let side = match device.side {
        DeviceSide::Outer => device_flag::DEVICE_OUTER,
        DeviceSide::Pod if device.fast_path => {
            device_flag(device_flag::DEVICE_POD.0 | device_flag::DEVICE_LOCAL_PODS.0)
        }
        DeviceSide::Pod => device_flag::DEVICE_POD,
        DeviceSide::Backends => device_flag::DEVICE_BACKENDS,
        DeviceSide::LocalPods => device_flag::DEVICE_LOCAL_PODS,
    };
    let bit_if = |is_set, flag: device_flag| if is_set { flag.0 } else { 0 };
    let by_address = bit_if(device.route_by_address, device_flag::DEVICE_REPLY_BY_FRONTEND);
    let fast_path = bit_if(device.fast_path, device_flag::DEVICE_FAST_PATH);
    let peer = bit_if(device.peer, device_flag::DEVICE_PEER);
    let [is_plain4, is_plain6] = device.fib_ignores_ports;
    let simple_fib = bit_if(is_plain4, device_flag::DEVICE_SIMPLE_FIB4)
        | bit_if(is_plain6, device_flag::DEVICE_SIMPLE_FIB6);
    let adopts = bit_if(device.adopts_flows, device_flag::DEVICE_ADOPTS);
    let ipsec = bit_if(device.has_ipsec, device_flag::DEVICE_IPSEC);
    let bridge = bit_if(device.bridge, device_flag::DEVICE_BRIDGE);
    let switch = bit_if(device.switch, device_flag::DEVICE_SWITCH);
    let frames = bit_if(frames, device_flag::DEVICE_XDP);
    let kind = bridge | switch;
    u16::try_from(side.0 | by_address | fast_path | peer | simple_fib | adopts | ipsec | kind | frames)
        .unwrap_or_default()
}
