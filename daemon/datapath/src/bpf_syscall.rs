//! The kernel's `bpf` call, for commands that libbpf-rs does not wrap safely.
//!
//! Invariant: no other module makes the call by hand. Each function builds one command's attributes as `linux/bpf.h`
//! defines them, from references that outlive the call, so no caller needs `unsafe`. Attributes that an older kernel
//! does not support stay zero, which every kernel accepts.

#![allow(unsafe_code)]

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use libbpf_rs::{MapCore, MapHandle, MapType, libbpf_sys as sys};

/// More programs than any host attaches to one hook; the kernel itself allows 64.
const PROGRAMS_MAX: usize = 64;

/// The word of a query's attributes that holds the number of programs.
const QUERY_COUNT_WORD: usize = 3;

/// The word of a batch's attributes that holds its count and its map.
const BATCH_COUNT_WORD: usize = 4;

/// The words of a program's description that hold its name.
const PROGRAM_NAME_WORDS: std::ops::Range<usize> = 16..20;

/// A command's attributes as 64-bit words; pairs of 32-bit fields share a word.
type Attributes = [u64; 7];

const fn pack_pair(first: u32, second: u32) -> u64 {
    let [a, b, c, d] = first.to_ne_bytes();
    let [e, f, g, h] = second.to_ne_bytes();
    u64::from_ne_bytes([a, b, c, d, e, f, g, h])
}

const fn fd_number(fd: RawFd) -> u32 {
    fd.cast_unsigned()
}

fn raw_descriptor(fd: BorrowedFd<'_>) -> u32 {
    fd_number(fd.as_raw_fd())
}

fn input_pointer<T: ?Sized>(memory: &T) -> u64 {
    std::ptr::from_ref(memory).cast::<u8>().expose_provenance() as u64
}

fn output_pointer<T: ?Sized>(memory: &mut T) -> u64 {
    std::ptr::from_mut(memory).cast::<u8>().expose_provenance() as u64
}

/// Makes the call. Addresses in the attributes point to memory that the caller borrows until the call returns.
fn call_bpf(command: sys::bpf_cmd, attributes: &mut Attributes) -> io::Result<i32> {
    let size = size_of_val(attributes);
    // SAFETY: the kernel reads and writes the attributes within their size. Beyond them it touches only the memory that
    // they point to, within the sizes they give. This module takes both from references.
    let returned = unsafe { libc::syscall(libc::SYS_bpf, command, attributes.as_mut_ptr(), size) };
    if returned < 0 {
        return Err(io::Error::last_os_error());
    }
    i32::try_from(returned).map_err(io::Error::other)
}

/// Makes a call that returns a new descriptor.
fn open_fd(command: sys::bpf_cmd, attributes: &mut Attributes) -> io::Result<OwnedFd> {
    // SAFETY: these commands return a descriptor that they opened for the caller.
    call_bpf(command, attributes).map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
}

fn path_to_cstring(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

pub(crate) fn load_classifier(instructions: &[sys::bpf_insn], licence: &CStr) -> io::Result<OwnedFd> {
    let count = u32::try_from(instructions.len()).map_err(io::Error::other)?;
    let kind = pack_pair(sys::BPF_PROG_TYPE_SCHED_CLS, count);
    let licence = input_pointer(licence.to_bytes_with_nul());
    open_fd(sys::BPF_PROG_LOAD, &mut [kind, input_pointer(instructions), licence, 0, 0, 0, 0])
}

pub(crate) fn create_link(
    program: BorrowedFd<'_>,
    device: i32,
    hook: sys::bpf_attach_type,
    flags: u32,
) -> io::Result<OwnedFd> {
    let target = pack_pair(raw_descriptor(program), fd_number(device));
    open_fd(sys::BPF_LINK_CREATE, &mut [target, pack_pair(hook, flags), 0, 0, 0, 0, 0])
}

/// Replaces a link's program by another one, in one step.
pub(crate) fn update_link(link: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    let both = pack_pair(raw_descriptor(link), raw_descriptor(program));
    call_bpf(sys::BPF_LINK_UPDATE, &mut [both, 0, 0, 0, 0, 0, 0]).map(drop)
}

/// Detaches a link's program at once, even while other processes hold the link open.
pub(crate) fn detach_link(link: BorrowedFd<'_>) -> io::Result<()> {
    call_bpf(sys::BPF_LINK_DETACH, &mut [pack_pair(raw_descriptor(link), 0), 0, 0, 0, 0, 0, 0]).map(drop)
}

pub(crate) fn open_pin(path: &Path) -> io::Result<OwnedFd> {
    let path = path_to_cstring(path)?;
    open_fd(sys::BPF_OBJ_GET, &mut [input_pointer(path.as_bytes_with_nul()), 0, 0, 0, 0, 0, 0])
}

pub(crate) fn pin(object: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let path = path_to_cstring(path)?;
    let object = pack_pair(raw_descriptor(object), 0);
    call_bpf(sys::BPF_OBJ_PIN, &mut [input_pointer(path.as_bytes_with_nul()), object, 0, 0, 0, 0, 0])
        .map(drop)
}

/// The first words of the kernel's description of a program, map or link.
fn object_info<const WORDS: usize>(object: BorrowedFd<'_>) -> io::Result<[u32; WORDS]> {
    let mut info = [0; WORDS];
    let size = u32::try_from(size_of_val(&info)).map_err(io::Error::other)?;
    let object = pack_pair(raw_descriptor(object), size);
    call_bpf(sys::BPF_OBJ_GET_INFO_BY_FD, &mut [object, output_pointer(&mut info), 0, 0, 0, 0, 0])?;
    Ok(info)
}

/// The kernel's id of a program, map or link.
pub(crate) fn object_id(object: BorrowedFd<'_>) -> io::Result<u32> {
    let [_kind, number] = object_info(object)?;
    Ok(number)
}

/// The name of a program's function. The kernel keeps fifteen bytes of it.
pub(crate) fn program_name(program: BorrowedFd<'_>) -> io::Result<String> {
    let info: [u32; PROGRAM_NAME_WORDS.end] = object_info(program)?;
    let name = info.into_iter().skip(PROGRAM_NAME_WORDS.start).flat_map(u32::to_ne_bytes);
    let name: Vec<u8> = name.take_while(|byte| *byte != 0).collect();
    String::from_utf8(name).map_err(io::Error::other)
}

/// The device, program and type of a link. Some types also give their hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LinkAttachment {
    pub(crate) kind: sys::bpf_link_type,
    pub(crate) device: u32,
    pub(crate) hook: sys::bpf_attach_type,
    pub(crate) program: u32,
}

/// The attachment of a device link; an error for links to anything else.
pub(crate) fn link_attachment(link: BorrowedFd<'_>) -> io::Result<LinkAttachment> {
    let [kind, _number, program, _gap, device, hook] = object_info(link)?;
    if kind != sys::BPF_LINK_TYPE_TCX && kind != sys::BPF_LINK_TYPE_XDP {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok(LinkAttachment { kind, device, hook, program })
}

/// The ids of all programs at a hook of this exact target: an open cgroup, or a device's index. Programs of other
/// owners are included: they stay attached, and operators want to see them. Programs at cgroups above or below are not:
/// query those cgroups.
pub(crate) fn query_programs(target: RawFd, hook: sys::bpf_attach_type) -> io::Result<Vec<u32>> {
    let mut programs = [0_u32; PROGRAMS_MAX];
    let max = u32::try_from(PROGRAMS_MAX).unwrap_or_default();
    let target = pack_pair(fd_number(target), hook);
    let mut attributes = [target, 0, output_pointer(&mut programs), pack_pair(max, 0), 0, 0, 0];
    call_bpf(sys::BPF_PROG_QUERY, &mut attributes)?;
    Ok(programs.into_iter().take(low_half(attributes[QUERY_COUNT_WORD]) as usize).collect())
}

const fn low_half(word: u64) -> u32 {
    let [a, b, c, d, ..] = word.to_ne_bytes();
    u32::from_ne_bytes([a, b, c, d])
}

/// Checks that a batch fits its buffers. Only hash maps are allowed: another kind's cursor may exceed the 8 bytes of a
/// walk, and per-processor values exceed the size of one value.
fn check_batch_size(map: &MapHandle, keys: &[u8], values: &[u8], count: u32) -> io::Result<()> {
    if !matches!(map.map_type(), MapType::Hash | MapType::LruHash) {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let fits_in = |bytes: &[u8], each: u32| bytes.len() as u64 >= u64::from(count) * u64::from(each);
    let fits = fits_in(keys, map.key_size()) && fits_in(values, map.value_size());
    fits.then_some(()).ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

/// Writes `count` keys and values. Sets `count` to how many the kernel accepted.
pub(crate) fn update_batch(map: &MapHandle, keys: &[u8], values: &[u8], count: &mut u32) -> io::Result<()> {
    check_batch_size(map, keys, values, *count)?;
    let count_and_map = pack_pair(*count, raw_descriptor(map.as_fd()));
    let mut attributes = [0, 0, input_pointer(keys), input_pointer(values), count_and_map, 0, 0];
    let returned = call_bpf(sys::BPF_MAP_UPDATE_BATCH, &mut attributes);
    *count = low_half(attributes[BATCH_COUNT_WORD]);
    returned.map(drop)
}

/// Deletes `count` keys up to the first that is missing or refused. Sets `count` to how many it deleted.
pub(crate) fn delete_batch(map: &MapHandle, keys: &[u8], count: &mut u32) -> io::Result<()> {
    // A batch of deletions has no values to check.
    if !matches!(map.map_type(), MapType::Hash)
        || keys.len() as u64 != u64::from(*count) * u64::from(map.key_size())
    {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let count_and_map = pack_pair(*count, raw_descriptor(map.as_fd()));
    let mut attributes = [0, 0, input_pointer(keys), 0, count_and_map, 0, 0];
    let returned = call_bpf(sys::BPF_MAP_DELETE_BATCH, &mut attributes);
    *count = low_half(attributes[BATCH_COUNT_WORD]);
    returned.map(drop)
}

/// Reads up to `count` keys and values from the position `at` (`None`: the beginning). Sets `count` to how many it
/// read, and `next` to the next position.
pub(crate) fn lookup_batch(
    map: &MapHandle,
    at: Option<&u64>,
    next: &mut u64,
    (keys, values): (&mut [u8], &mut [u8]),
    count: &mut u32,
) -> io::Result<()> {
    check_batch_size(map, keys, values, *count)?;
    let count_and_map = pack_pair(*count, raw_descriptor(map.as_fd()));
    let at = at.map_or(0, input_pointer);
    let mut attributes =
        [at, output_pointer(next), output_pointer(keys), output_pointer(values), count_and_map, 0, 0];
    let returned = call_bpf(sys::BPF_MAP_LOOKUP_BATCH, &mut attributes);
    *count = low_half(attributes[BATCH_COUNT_WORD]);
    returned.map(drop)
}
