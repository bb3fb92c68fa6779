//! Our TC filters at devices (clsact), for kernels without tcx.
//!
//! Invariant: our filter has its own priority and handle, so it is replaced in place and no other filter is touched. A
//! missing clsact qdisc is created and never removed, because another program may need it.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use libbpf_rs::libbpf_sys as sys;

use super::{DeviceHook, Direction};
use crate::netlink::{Message, NetlinkFamily, NetlinkSocket};

/// The priority of our filter. Filters without a chosen priority follow it, because the kernel starts them at 49,152
/// and counts down. The first hundred stay free for filters that must come first.
const PRIORITY: u32 = 104;
/// "hold": no other filter has this handle by chance.
const HANDLE: u32 = 0x686f_6c64;

/// From `linux/rtnetlink.h` and `linux/pkt_sched.h`.
const RTM_NEWTFILTER: u16 = 44;
const RTM_GETTFILTER: u16 = 46;
const CLSACT_INGRESS: u32 = 0xffff_fff2;
const CLSACT_EGRESS: u32 = 0xffff_fff3;

/// More than the filters of any device take.
const REPLY_BYTES_MAX: usize = 16 << 20;

fn tc_hook(device_hook: &DeviceHook) -> sys::bpf_tc_hook {
    sys::bpf_tc_hook {
        sz: size_of::<sys::bpf_tc_hook>() as sys::size_t,
        ifindex: device_hook.ifindex(),
        attach_point: match device_hook.direction {
            Direction::Ingress | Direction::PodEgress => sys::BPF_TC_INGRESS,
            Direction::Egress => sys::BPF_TC_EGRESS,
        },
        ..Default::default()
    }
}

fn own_filter() -> sys::bpf_tc_opts {
    sys::bpf_tc_opts {
        sz: size_of::<sys::bpf_tc_opts>() as sys::size_t,
        handle: HANDLE,
        priority: PRIORITY,
        ..Default::default()
    }
}

#[derive(Clone, Copy, Debug)]
enum TcRequest {
    CreateQdisc,
    Attach,
    Query,
    Detach,
}

fn call_libbpf(what: TcRequest, hook: &mut sys::bpf_tc_hook, filter: &mut sys::bpf_tc_opts) -> i32 {
    // SAFETY: both structs outlive the calls, which read and write within their sizes.
    unsafe {
        match what {
            TcRequest::CreateQdisc => sys::bpf_tc_hook_create(hook),
            TcRequest::Attach => sys::bpf_tc_attach(hook, filter),
            TcRequest::Query => sys::bpf_tc_query(hook, filter),
            TcRequest::Detach => sys::bpf_tc_detach(hook, filter),
        }
    }
}

/// Converts a result of libbpf; `also`: an errno that counts as success.
fn check_result(returned: i32, also: i32) -> io::Result<()> {
    if returned == 0 || returned == -also {
        return Ok(());
    }
    Err(io::Error::from_raw_os_error(-returned))
}

/// Attaches the program to our filter, and replaces an existing filter in one step.
pub(super) fn attach_filter(program: BorrowedFd<'_>, device_hook: &DeviceHook) -> io::Result<()> {
    let mut hook = tc_hook(device_hook);
    let mut filter =
        sys::bpf_tc_opts { prog_fd: program.as_raw_fd(), flags: sys::BPF_TC_F_REPLACE, ..own_filter() };
    check_result(call_libbpf(TcRequest::CreateQdisc, &mut hook, &mut filter), libc::EEXIST)?;
    check_result(call_libbpf(TcRequest::Attach, &mut hook, &mut filter), 0)
}

/// The id of our filter's program; `None`: there is no such filter.
pub(super) fn program_at(device_hook: &DeviceHook) -> Option<u32> {
    let mut filter = own_filter();
    let returned = call_libbpf(TcRequest::Query, &mut tc_hook(device_hook), &mut filter);
    (returned == 0).then_some(filter.prog_id)
}

/// Removes our filter. It may be gone already, as after its device vanished. `true`: it existed.
pub(super) fn remove_filter(device_hook: &DeviceHook) -> io::Result<bool> {
    if program_at(device_hook).is_none() {
        return Ok(false);
    }
    check_result(call_libbpf(TcRequest::Detach, &mut tc_hook(device_hook), &mut own_filter()), libc::ENODEV)
        .map(|()| true)
}

/// Counts foreign filters. A refused dump counts as complete, because without a qdisc there are no filters. A dump that
/// times out is an error.
pub(super) fn count_foreign(device_hook: &DeviceHook) -> io::Result<usize> {
    let parent = if device_hook.direction == Direction::Egress { CLSACT_EGRESS } else { CLSACT_INGRESS };
    // A `struct tcmsg`.
    let fields = [0, device_hook.ifindex().cast_unsigned(), 0, parent, 0];
    let request = fields.map(u32::to_ne_bytes);
    let mut count = 0;
    let is_others = |it: &Message<'_>| it.kind == RTM_NEWTFILTER && is_foreign_filter(it.body);
    let add = |it: Message<'_>| count += usize::from(is_others(&it));
    match NetlinkSocket::dump(
        NetlinkFamily::Route,
        (RTM_GETTFILTER, request.as_flattened()),
        REPLY_BYTES_MAX,
        add,
    ) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(error),
        _ => Ok(count),
    }
}

/// Whether a filter is foreign. A filter without a handle is the head of a list, and filters nothing.
fn is_foreign_filter(body: &[u8]) -> bool {
    let word =
        |at: usize| body.get(at..).and_then(|it| it.first_chunk()).map_or(0, |it| u32::from_ne_bytes(*it));
    let handle = word(8);
    let priority = word(16) >> 16;
    handle != 0 && (handle, priority) != (HANDLE, PRIORITY)
}
