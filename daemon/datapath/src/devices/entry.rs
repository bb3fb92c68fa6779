//! What the programs are told of a device, and what that says of a device of which nothing else is known.
//!
//! Invariant: plain values; nothing is read or written here.

use super::{Device, DeviceSide};
use crate::abi;
use crate::abi::packets::types::{self, device_flag};

/// A device of which only the number is known, and what a former daemon told the programs of it.
pub(super) fn decode_device(index: u32, told: Option<&[u8]>) -> Device {
    let flags = told.and_then(abi::from_bytes::<types::device>).map_or(0, |told| u32::from(told.flags));
    let is = |flag: device_flag| flags & flag.0 != 0;
    let (side, shortcut) = match (is(device_flag::DEVICE_LOCAL_PODS), is(device_flag::DEVICE_POD)) {
        (true, true) => (DeviceSide::Pod, true),
        (true, false) => (DeviceSide::LocalPods, false),
        (false, _) => (DeviceSide::Outer, false),
    };
    Device { fast_path: shortcut, ..Device::new(index, "", side) }
}

/// What the programs are told of a device, and whether frames pass by the stack at its driver.
pub(crate) fn encode_device(device: &Device, frames: bool) -> types::device {
    types::device {
        address4: device.address4.map_or(0, abi::address4),
        address6: device.address6.map_or([0; 4], abi::address6),
        flags: device_flags(device, frames),
        pod_prefix4: device.local_prefix4,
        pod_prefix6: device.local_prefix6,
    }
}

/// What programs were told of a device, without what says that frames may be given to its driver.
pub(super) fn clear_xdp_flag(told: &[u8]) -> Option<types::device> {
    let told = abi::from_bytes::<types::device>(told)?;
    let flags = u16::try_from(u32::from(told.flags) & !device_flag::DEVICE_XDP.0).unwrap_or_default();
    Some(types::device { flags, ..told })
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
    let if_so = |is_so, flag: device_flag| if is_so { flag.0 } else { 0 };
    let by_address = if_so(device.route_by_address, device_flag::DEVICE_REPLY_BY_FRONTEND);
    let shortcut = if_so(device.fast_path, device_flag::DEVICE_FAST_PATH);
    let peer = if_so(device.peer, device_flag::DEVICE_PEER);
    let [is_plain4, is_plain6] = device.fib_ignores_ports;
    let plain =
        if_so(is_plain4, device_flag::DEVICE_SIMPLE_FIB4) | if_so(is_plain6, device_flag::DEVICE_SIMPLE_FIB6);
    let joins = if_so(device.adopts_flows, device_flag::DEVICE_ADOPTS);
    let secured = if_so(device.has_ipsec, device_flag::DEVICE_IPSEC);
    let bridge = if_so(device.bridge, device_flag::DEVICE_BRIDGE);
    let switch = if_so(device.switch, device_flag::DEVICE_SWITCH);
    let frames = if_so(frames, device_flag::DEVICE_XDP);
    let of_kind = bridge | switch;
    u16::try_from(side.0 | by_address | shortcut | peer | plain | joins | secured | of_kind | frames)
        .unwrap_or_default()
}
