//! A program that recreates a packet and tail-calls a target, so that a test run can be repeated: packet programs
//! change their packet, and the next run would get another one.
//!
//! Invariant: its own cost depends only on frame and clients, so two feeders with different targets differ by their
//! targets.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use libbpf_rs::{MapCore, MapFlags, MapHandle, MapType, libbpf_sys as sys};

/// The offset of the IP header.
const IP: usize = 14;

/// The client's address and port in a frame.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Client {
    IsSource,
    IsDestination,
}

impl Client {
    /// The offsets of its address's last byte, and of its port.
    fn places(self, frame: &[u8]) -> [usize; 2] {
        match (frame[IP] >> 4, self) {
            (4, Self::IsSource) => [IP + 15, IP + 20],
            (4, Self::IsDestination) => [IP + 19, IP + 22],
            (_, Self::IsSource) => [IP + 23, IP + 40],
            (_, Self::IsDestination) => [IP + 39, IP + 42],
        }
    }
}

/// Packets of so many clients in turn, a power of two.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clients {
    pub(crate) at: Client,
    pub(crate) count: u32,
}

/// The result of the last packet of a run.
#[derive(Clone, Debug)]
pub(crate) struct Last {
    pub(crate) verdict: i32,
    pub(crate) frame: Vec<u8>,
    /// Nanoseconds per packet, reported by the kernel.
    pub(crate) took: f64,
}

pub(crate) struct Feeder {
    program: OwnedFd,
    turn: MapHandle,
    _target: MapHandle,
    frame: Vec<u8>,
    device: u32,
}

impl Feeder {
    /// Feeds frames of clients to a program, at ingress or egress of a device.
    pub(crate) fn new(frame: &[u8], clients: Option<Clients>, target: BorrowedFd<'_>, device: u32) -> Self {
        let (turn, targets) = (map(MapType::Array, "turn", 4), map(MapType::ProgArray, "target", 4));
        let fd = target.as_raw_fd().to_ne_bytes();
        targets.update(&0_u32.to_ne_bytes(), &fd, MapFlags::ANY).unwrap();
        let program = load(&code(frame, clients, &turn, &targets));
        Self { program, turn, _target: targets, frame: frame.to_vec(), device }
    }

    /// Makes the next packet that client's.
    pub(crate) fn turn_to(&self, client: u32) {
        self.turn.update(&0_u32.to_ne_bytes(), &client.to_ne_bytes(), MapFlags::ANY).unwrap();
    }

    /// Runs so many packets, and returns the last one's result.
    pub(crate) fn run(&self, repeat: u32) -> Last {
        test_run(self.program.as_fd(), &self.frame, self.device, repeat)
    }
}

/// A map of one value of so many bytes.
fn map(kind: MapType, name: &str, bytes: u32) -> MapHandle {
    let options =
        sys::bpf_map_create_opts { sz: size_of::<sys::bpf_map_create_opts>() as _, ..Default::default() };
    MapHandle::create(kind, Some(name), 4, bytes, 1, &options).unwrap()
}

/// Runs a program repeatedly over a frame.
fn test_run(program: BorrowedFd<'_>, frame: &[u8], device: u32, repeat: u32) -> Last {
    let mut out = vec![0_u8; 4096];
    // The beginning of the kernel's struct __sk_buff, where the device's index is the eleventh word.
    let mut context = [0_u32; 16];
    context[10] = device;
    let mut options = sys::bpf_test_run_opts {
        sz: size_of::<sys::bpf_test_run_opts>() as _,
        data_in: frame.as_ptr().cast(),
        data_size_in: u32::try_from(frame.len()).unwrap(),
        data_out: out.as_mut_ptr().cast(),
        data_size_out: u32::try_from(out.len()).unwrap(),
        ctx_in: context.as_ptr().cast(),
        ctx_size_in: u32::try_from(size_of_val(&context)).unwrap(),
        repeat: repeat.cast_signed(),
        ..Default::default()
    };
    // SAFETY: all memory that the options point to outlives the call.
    let returned = unsafe { sys::bpf_prog_test_run_opts(program.as_raw_fd(), &raw mut options) };
    assert_eq!(returned, 0, "{}", io::Error::last_os_error());
    out.truncate(options.data_size_out as usize);
    Last { verdict: options.retval.cast_signed(), frame: out, took: options.duration.into() }
}

/// A program that lets everything pass.
pub(crate) fn empty() -> OwnedFd {
    load(&[instruction(0xb7, 0, 0, 0, -1), EXIT])
}

fn load(code: &[u64]) -> OwnedFd {
    load_as(sys::BPF_PROG_TYPE_SCHED_CLS, code)
}

fn load_as(kind: sys::bpf_prog_type, code: &[u64]) -> OwnedFd {
    // SAFETY: instructions and strings, which end in zero, outlive the call; no options are given.
    let program = unsafe {
        sys::bpf_prog_load(
            kind,
            c"feeder".as_ptr(),
            c"GPL".as_ptr(),
            code.as_ptr().cast(),
            code.len() as _,
            std::ptr::null_mut(),
        )
    };
    assert!(program >= 0, "{}", io::Error::from_raw_os_error(-program));
    // SAFETY: a new file descriptor that nothing else owns.
    unsafe { OwnedFd::from_raw_fd(program) }
}

const EXIT: u64 = instruction(0x95, 0, 0, 0, 0);

/// One instruction in the kernel's layout.
const fn instruction(code: u8, to: u8, from: u8, offset: i16, number: i32) -> u64 {
    let registers = (from << 4 | to) as u64;
    code as u64
        | registers << 8
        | (offset.cast_unsigned() as u64) << 16
        | (number.cast_unsigned() as u64) << 32
}

/// Loads a 64-bit number, a map (1), or the address of its first value (2).
fn wide(to: u8, what: u8, number: u64) -> [u64; 2] {
    let [low, high] = [number, number >> 32].map(|half| (half as u32).cast_signed());
    [instruction(0x18, to, what, 0, low), instruction(0, 0, 0, 0, high)]
}

/// Registers: 6 is the context, 7 the start of the packet, 2 and 3 are temporary.
fn code(frame: &[u8], clients: Option<Clients>, turn: &MapHandle, targets: &MapHandle) -> Vec<u64> {
    let fd = |map: &MapHandle| u64::try_from(map.as_fd().as_raw_fd()).unwrap();
    let mut made = write(frame);
    made.extend(clients.map(|clients| write_client(frame, clients, fd(turn))).unwrap_or_default());
    let (data, end, length) = (76, 80, i32::try_from(frame.len()).unwrap());
    let mut code = vec![
        instruction(0xbf, 6, 1, 0, 0),
        instruction(0x61, 7, 1, data, 0),
        instruction(0x61, 3, 1, end, 0),
        instruction(0xbf, 2, 7, 0, 0),
        instruction(0x07, 2, 0, 0, length),
        // Jumps past the writes for a packet that is too short.
        instruction(0x2d, 2, 3, i16::try_from(made.len()).unwrap(), 0),
    ];
    code.append(&mut made);
    code.push(instruction(0xbf, 1, 6, 0, 0));
    code.extend(wide(2, 1, fd(targets)));
    let tail_call = instruction(0x85, 0, 0, 0, 12);
    code.extend([instruction(0xb7, 3, 0, 0, 0), tail_call, instruction(0xb7, 0, 0, 0, -2), EXIT]);
    code
}

/// In words of eight bytes from the IP header on: no field spans two of them, so a load does not wait for two stores.
fn write(frame: &[u8]) -> Vec<u64> {
    write_from(frame, IP)
}

fn write_from(frame: &[u8], mut at: usize) -> Vec<u64> {
    let mut code = Vec::new();
    while at < frame.len() {
        let (size, store) = match frame.len() - at {
            8.. => (8, 0x7b),
            4.. => (4, 0x63),
            2.. => (2, 0x6b),
            _ => (1, 0x73),
        };
        let mut bytes = [0; 8];
        bytes[..size].copy_from_slice(&frame[at..at + size]);
        code.extend(wide(2, 0, u64::from_le_bytes(bytes)));
        code.push(instruction(store, 7, 2, i16::try_from(at).unwrap(), 0));
        at += size;
    }
    code
}

/// Writes the turn's number into the client's port and its address's last byte.
fn write_client(frame: &[u8], clients: Clients, turn: u64) -> Vec<u64> {
    let [address, port] = clients.at.places(frame).map(|at| i16::try_from(at).unwrap());
    let mask = i32::try_from(clients.count - 1).unwrap();
    let mut code = wide(1, 2, turn).to_vec();
    code.extend([
        instruction(0x61, 2, 1, 0, 0),
        instruction(0xbf, 3, 2, 0, 0),
        instruction(0x07, 3, 0, 0, 1),
        instruction(0x63, 1, 3, 0, 0),
        instruction(0x57, 2, 0, 0, mask),
        instruction(0x6b, 7, 2, port, 0),
        instruction(0x77, 2, 0, 0, 16),
        // No client has the number 0.
        instruction(0x07, 2, 0, 0, 1),
        instruction(0x73, 7, 2, address, 0),
    ]);
    code
}

/// The kernel's flag for running a program over frames that then go where it redirects them.
const LIVE_FRAMES: u32 = sys::BPF_F_TEST_XDP_LIVE_FRAMES;
const XDP_DROP: i32 = 1;
const XDP_PASS: i32 = 2;
const XDP_TX: i32 = 3;

/// An XDP program that creates and sends frames, or receives them.
pub(crate) struct Frames {
    program: OwnedFd,
    seen: Option<MapHandle>,
    frame: Vec<u8>,
    device: u32,
}

impl Frames {
    /// Sends frames by a device, each recreated: a later frame reuses the memory of one that a program changed.
    pub(crate) fn sent(frame: &[u8], device: u32) -> Self {
        let made = [write_from(frame, 0), vec![instruction(0xb7, 0, 0, 0, XDP_TX), EXIT]].concat();
        let program = load_as(sys::BPF_PROG_TYPE_XDP, &over_frame(frame.len(), &made));
        Self { program, seen: None, frame: frame.to_vec(), device }
    }

    /// Drops all frames, and counts those to this port, over IPv4 without options.
    pub(crate) fn counted(port: u16) -> Self {
        let seen = map(MapType::Array, "seen", 8);
        let fd = u64::try_from(seen.as_fd().as_raw_fd()).unwrap();
        let [first, second] = wide(1, 2, fd);
        let made = vec![
            instruction(0x69, 2, 7, 36, 0),
            instruction(0x56, 2, 0, 4, i32::from(port.to_be())),
            first,
            second,
            instruction(0xb7, 2, 0, 0, 1),
            // An atomic addition.
            instruction(0xdb, 1, 2, 0, 0),
            instruction(0xb7, 0, 0, 0, XDP_DROP),
            EXIT,
        ];
        let program = load_as(sys::BPF_PROG_TYPE_XDP, &over_frame(42, &made));
        Self { program, seen: Some(seen), frame: Vec::new(), device: 0 }
    }

    pub(crate) fn program(&self) -> &OwnedFd {
        &self.program
    }

    /// The count so far.
    pub(crate) fn count(&self) -> u64 {
        let seen = self.seen.as_ref().unwrap().lookup(&0_u32.to_ne_bytes(), MapFlags::ANY).unwrap().unwrap();
        u64::from_ne_bytes(seen.try_into().unwrap())
    }

    /// Sends so many frames.
    pub(crate) fn send(&self, count: u32) {
        let context = [0, u32::try_from(self.frame.len()).unwrap(), 0, self.device, 0, 0];
        let mut options = sys::bpf_test_run_opts {
            sz: size_of::<sys::bpf_test_run_opts>() as _,
            data_in: self.frame.as_ptr().cast(),
            data_size_in: context[1],
            ctx_in: context.as_ptr().cast(),
            ctx_size_in: u32::try_from(size_of_val(&context)).unwrap(),
            repeat: count.cast_signed(),
            flags: LIVE_FRAMES,
            ..Default::default()
        };
        // SAFETY: all memory that the options point to outlives the call.
        let returned = unsafe { sys::bpf_prog_test_run_opts(self.program.as_raw_fd(), &raw mut options) };
        assert_eq!(returned, 0, "{}", io::Error::last_os_error());
    }
}

/// The code for a frame of at least so many bytes; a shorter one passes.
fn over_frame(length: usize, made: &[u64]) -> Vec<u64> {
    let mut code = vec![
        instruction(0x61, 7, 1, 0, 0),
        instruction(0x61, 3, 1, 4, 0),
        instruction(0xbf, 2, 7, 0, 0),
        instruction(0x07, 2, 0, 0, i32::try_from(length).unwrap()),
        instruction(0x2d, 2, 3, i16::try_from(made.len()).unwrap(), 0),
    ];
    code.extend(made);
    code.extend([instruction(0xb7, 0, 0, 0, XDP_PASS), EXIT]);
    code
}
