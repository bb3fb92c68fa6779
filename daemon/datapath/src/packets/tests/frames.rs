//! The XDP program does to a frame what the TC program did to a similar one, or nothing.

use libbpf_rs::libbpf_sys as sys;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

use super::craft::{ACK, FIN, RST, SYN, Sent, TCP, UDP, address, see};
use super::network::{self, OUTER};
use super::node::{Node, REDIRECTED, next_second};
use super::past::{Way, passed, serve};
use crate::abi::packets::types::packet_count;
use crate::bpf_syscall;

/// The XDP verdicts of a frame that passes to the kernel, or is redirected.
pub(super) const PASSED: i32 = 2;
const SENT: i32 = 4;

/// An outside client, its frontend, and a backend of another node.
pub(super) const WAYS: [Way; 2] = [
    ("198.51.100.7:40000", "203.0.113.10:80", "10.2.0.5:8080"),
    ("[2001:db8:1::7]:40000", "[2001:db8:f::10]:80", "[fd02::5]:8080"),
];

/// From the node's hardware address to its router's.
const LINK: [u8; 12] = [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];

/// Runs a test on a node with the XDP program at its outer device. Each CPU caches routes.
pub(super) fn test(test: impl FnOnce(&mut Node) + Send + 'static) {
    Node::test(|node| {
        let mut first = CpuSet::new();
        first.set(0).unwrap();
        sched_setaffinity(Pid::from_raw(0), &first).unwrap();
        serve(node, &WAYS);
        network::know_routers();
        node.tell_of_frames(OUTER, true, true);
        // The kernel's test run accepts a device as the frame's own only if it has a program.
        let index = i32::try_from(OUTER).unwrap();
        let link =
            bpf_syscall::create_link(node.frames(), index, sys::BPF_XDP, sys::XDP_FLAGS_DRV_MODE).unwrap();
        match node.try_arrive(&Sent::udp(WAYS[0].0, WAYS[0].1, b"?").frame()) {
            Ok(_) => test(node),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) && is_before(5, 14) => {
                check_elsewhere(node);
            }
            Err(error) => panic!("the frame is not looked at: {error}"),
        }
        drop(link);
    });
}

/// Whether the kernel is older than that version.
fn is_before(major: u32, minor: u32) -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(|it: char| !it.is_ascii_digit());
    let mut number = || numbers.next().unwrap().parse::<u32>().unwrap();
    (number(), number()) < (major, minor)
}

/// Checks that frames of flows by another device pass to the kernel unchanged. Kernels before 5.14 run programs for no
/// other device.
#[track_caller]
fn check_elsewhere(node: &Node) {
    const LOOPBACK: u32 = 1;
    node.tell_of_frames(LOOPBACK, true, true);
    for way in WAYS {
        for transport in [TCP, UDP] {
            for sent in begin(node, way, transport) {
                passed(&node.come(&sent.frame()));
                assert_eq!(node.arrive_elsewhere(&sent.frame()), (PASSED, sent.frame()));
            }
        }
    }
}

#[test]
fn kernel_frames_at_another_device_than_their_flows_pass_the_driver() {
    test(|node| check_elsewhere(node));
}

/// Opens a flow, and returns its next packets: from the client, and from the backend.
#[track_caller]
fn begin(node: &Node, (client, frontend, backend): Way, transport: u8) -> [Sent; 2] {
    let open = |flags| Sent::by(transport, client, frontend, flags, b"?");
    let seen = passed(&node.come(&open(SYN).frame()));
    let through = seen.from.to_string();
    let answer = |flags| Sent::by(transport, backend, &through, flags, b"!");
    let (verdict, frame) = node.come(&answer(SYN | ACK).frame());
    assert_eq!(verdict, REDIRECTED);
    // The SYN-ACK goes through the program of the other device.
    assert_eq!(node.leave(&frame).0, super::node::NEXT);
    passed(&node.come(&open(ACK).frame()));
    [open(ACK), answer(ACK)]
}

/// The result for a frame at the driver right after the TC program has seen one of the flow. Occasionally a second ends
/// in between.
#[track_caller]
fn arrive_after(node: &Node, seen: &Sent, frame: &[u8]) -> (i32, Vec<u8>) {
    let mut arrived = (PASSED, Vec::new());
    for _ in 0..3 {
        passed(&node.come(&seen.frame()));
        arrived = node.arrive(frame);
        if arrived.0 != PASSED {
            break;
        }
    }
    arrived
}

/// Checks that a frame leaves at the driver exactly as it would behind it.
#[track_caller]
fn check_sent(node: &Node, seen: &Sent, frame: &[u8]) {
    let before = node.counted(packet_count::COUNT_XDP_REDIRECTS);
    let (verdict, sent) = arrive_after(node, seen, frame);
    let behind = node.come(frame);
    passed(&behind);
    assert_eq!(verdict, SENT, "{seen:?}");
    assert_eq!((&sent[..12], &sent[12..]), (&LINK[..], &behind.1[12..]), "{seen:?}");
    assert!(see(&sent, true).is_valid);
    assert_eq!(node.counted(packet_count::COUNT_XDP_REDIRECTS), before + 1);
}

/// Checks that a frame passes to the kernel unchanged.
#[track_caller]
fn check_left(node: &Node, seen: &Sent, frame: &[u8], what: &str) {
    assert_eq!(arrive_after(node, seen, frame), (PASSED, frame.to_vec()), "{what}: {seen:?}");
}

#[test]
fn kernel_the_driver_redirects_frames_as_the_tc_program_would() {
    test(|node| {
        for way in WAYS {
            for transport in [TCP, UDP] {
                for sent in begin(node, way, transport) {
                    check_sent(node, &sent, &sent.frame());
                    let long = Sent { payload: vec![7; 1_400], ..sent.clone() };
                    check_sent(node, &sent, &long.frame());
                }
            }
        }
    });
}

/// Checksums of all kinds: of various payloads, none, and zero.
#[test]
fn kernel_checksums_at_the_driver_are_as_behind_it() {
    test(|node| {
        for way in WAYS {
            let [from_client, from_backend] = begin(node, way, UDP);
            for sent in [from_client, from_backend] {
                for word in (0..=u16::MAX).step_by(251) {
                    let sent = Sent { payload: word.to_be_bytes().to_vec(), ..sent.clone() };
                    check_sent(node, &sent, &sent.frame());
                }
                if sent.from.is_ipv4() {
                    let sent = Sent { no_sum: true, ..sent.clone() };
                    check_sent(node, &sent, &sent.frame());
                    check_nothing(node, &sent);
                }
            }
        }
    });
}

/// A datagram that leaves with a checksum of 0 would claim to have none.
#[track_caller]
fn check_nothing(node: &Node, sent: &Sent) {
    let of = |word: u16| {
        let sent = Sent { payload: word.to_be_bytes().to_vec(), no_sum: false, ..sent.clone() };
        let (verdict, frame) = arrive_after(node, &sent, &sent.frame());
        assert_eq!(verdict, SENT);
        u16::from_be_bytes([frame[40], frame[41]])
    };
    // The checksum falls by what the payload gains.
    let word = of(1).wrapping_add(1);
    let made = [word.wrapping_sub(1), word, word.wrapping_add(1)].map(of);
    assert!(made.contains(&0xffff) && !made.contains(&0), "{made:04x?}");
}

#[test]
fn kernel_frames_that_need_the_stack_pass_the_driver_unchanged() {
    test(|node| {
        for way in WAYS {
            for sent in begin(node, way, UDP) {
                check_sent(node, &sent, &sent.frame());
                let at = if sent.from.is_ipv4() { 14 + 20 } else { 14 + 40 };
                let hops = if sent.from.is_ipv4() { 22 } else { 21 };
                let fragment = Sent { fragment: Some((7, 0, true)), ..sent.clone() };
                check_left(node, &sent, &fragment.frame(), "a fragment");
                check_left(
                    node,
                    &sent,
                    &Sent { payload: vec![0; 1_480], ..sent.clone() }.frame(),
                    "too long",
                );
                if sent.from.is_ipv4() {
                    let options = Sent { options: vec![1; 4], ..sent.clone() };
                    check_left(node, &sent, &options.frame(), "options");
                } else {
                    let header = vec![(0, vec![0, 0, 1, 4, 0, 0, 0, 0])];
                    check_left(node, &sent, &Sent { extensions: header, ..sent.clone() }.frame(), "a header");
                    let mut no_sum = sent.frame();
                    no_sum[at + 6..at + 8].fill(0);
                    check_left(node, &sent, &no_sum, "a missing checksum");
                }
                let edits: [(&str, usize, u8); 5] = [
                    ("the last hop", hops, 1),
                    ("for other hardware", 5, 9),
                    ("of a VLAN", 12, 0x81),
                    ("another type of service", 15, 0x20),
                    ("of another client", at + 1, 1),
                ];
                for (what, at, byte) in edits {
                    let mut frame = sent.frame();
                    frame[at] = byte;
                    check_left(node, &sent, &frame, what);
                }
                let mut empty = sent.frame();
                let (high, length) = if sent.from.is_ipv4() { (16, 24) } else { (18, 4) };
                empty[high..high + 2].copy_from_slice(&[0, length]);
                empty.resize(60, 0);
                check_left(node, &sent, &empty, "a truncated transport header");
                let mut longer = Sent { payload: vec![1; 80], ..sent.clone() }.frame();
                longer.push(0);
                check_left(node, &sent, &longer, "longer than its packet");
                let short = Sent { payload: vec![1; 80], ..sent.clone() }.frame();
                check_left(node, &sent, &short[..short.len() - 1], "truncated");
            }
        }
    });
}

/// The first buffer may look like a whole frame. Kernels before 6.18 accept no such frame in a test run.
#[test]
fn kernel_a_partial_first_buffer_passes_the_driver() {
    test(|node| {
        for way in WAYS {
            for sent in begin(node, way, UDP) {
                let whole = Sent { payload: vec![1; 80], ..sent.clone() }.frame();
                check_sent(node, &sent, &whole);
                let longer = [&whole[..], &[0; 4]].concat();
                match node.try_arrive_in_buffers(&longer, whole.len()) {
                    Ok(arrived) => assert_eq!(arrived, (PASSED, longer)),
                    Err(error) => {
                        assert!(error.raw_os_error() == Some(libc::EINVAL) && is_before(6, 18), "{error}");
                    }
                }
            }
        }
    });
}

/// Drivers that transmit whole frames may silently drop these. A frame of more than a page has several buffers; kernels
/// before 5.18 do not support them.
#[test]
fn kernel_a_multi_buffer_frame_passes_the_driver() {
    test(|node| {
        network::narrow(9_000);
        for way in WAYS {
            for sent in begin(node, way, UDP) {
                let whole = Sent { payload: vec![1; 3_900], ..sent.clone() }.frame();
                passed(&node.come(&sent.frame()));
                match node.try_arrive(&whole) {
                    Ok(arrived) => assert!(arrived == (PASSED, whole), "{sent:?}"),
                    Err(error) => {
                        assert!(error.raw_os_error() == Some(libc::EINVAL) && is_before(5, 18), "{error}");
                    }
                }
            }
        }
    });
}

/// Packets from this host to itself have no checksum yet if a network card would compute it.
#[test]
fn kernel_a_frame_with_a_partial_checksum_passes_the_driver() {
    test(|node| {
        for way in WAYS {
            for transport in [TCP, UDP] {
                for sent in begin(node, way, transport) {
                    let mut frame = sent.frame();
                    let at = 14
                        + if sent.from.is_ipv4() { 20 } else { 40 }
                        + if transport == TCP { 16 } else { 6 };
                    frame[at..at + 2].copy_from_slice(&unfinished(&sent).to_be_bytes());
                    check_left(node, &sent, &frame, "unfinished");
                }
            }
        }
    });
}

/// The checksum of the pseudo header, as a kernel leaves it to a card.
fn unfinished(sent: &Sent) -> u16 {
    let empty = super::craft::sum_of_segment(sent.from.ip(), sent.to.ip(), sent.transport, &[]);
    let length = if sent.transport == TCP { 20 } else { 8 } + u16::try_from(sent.payload.len()).unwrap();
    super::craft::folded(u32::from(!empty), &length.to_be_bytes())
}

#[test]
fn kernel_segments_that_open_or_close_pass_the_driver() {
    test(|node| {
        for way @ (client, frontend, backend) in WAYS {
            let [from_client, from_backend] = begin(node, way, TCP);
            for sent in [&from_client, &from_backend] {
                for flags in [SYN, SYN | ACK, FIN | ACK, RST] {
                    check_left(node, &from_client, &Sent { flags, ..sent.clone() }.frame(), "flags");
                }
            }
            check_sent(node, &from_client, &from_client.frame());
            // After a client's RST the TC program must see the next packet.
            node.come(&Sent { flags: RST, ..from_client.clone() }.frame());
            let frame = from_backend.frame();
            assert_eq!(node.arrive(&frame), (PASSED, frame), "{client} {frontend} {backend}");
        }
    });
}

/// A cached route and all state of the TC program last for a second.
#[test]
fn kernel_the_first_packet_of_each_second_passes_the_driver() {
    test(|node| {
        let flows = WAYS.map(|way| begin(node, way, UDP));
        for sent in flows.iter().flatten() {
            check_sent(node, sent, &sent.frame());
        }
        next_second();
        for sent in flows.iter().flatten() {
            let frame = sent.frame();
            assert_eq!(node.arrive(&frame), (PASSED, frame));
        }
    });
}

/// A forged SYN does not extend a flow's life, so the following packets must.
#[test]
fn kernel_packets_after_a_forged_syn_first_pass_the_driver() {
    test(|node| {
        let flows = WAYS.map(|way| begin(node, way, TCP));
        next_second();
        for [from_client, _] in &flows {
            passed(&node.come(&from_client.frame()));
        }
        next_second();
        for [from_client, _] in &flows {
            passed(&node.come(&Sent { flags: SYN, ..from_client.clone() }.frame()));
            let frame = from_client.frame();
            assert_eq!(node.arrive(&frame), (PASSED, frame));
            check_sent(node, from_client, &from_client.frame());
        }
    });
}

#[test]
fn kernel_frames_pass_the_driver_without_the_xdp_flag() {
    test(|node| {
        let flows = WAYS.map(|way| begin(node, way, UDP));
        for (shortcut, frames, expected) in
            [(true, true, SENT), (true, false, PASSED), (false, true, PASSED), (true, true, SENT)]
        {
            for sent in flows.iter().flatten() {
                node.tell_of_frames(OUTER, true, true);
                check_sent(node, sent, &sent.frame());
                node.tell_of_frames(OUTER, shortcut, frames);
                assert_eq!(node.arrive(&sent.frame()).0, expected, "{shortcut} {frames}");
            }
        }
    });
}

/// The stack sees all packets of a flow or none.
#[test]
fn kernel_frames_of_flows_through_the_stack_pass_the_driver() {
    test(|node| {
        node.tell_of_frames(OUTER, false, true);
        for (client, frontend, backend) in WAYS {
            let sent = Sent::udp(client, frontend, b"?");
            assert_eq!(node.comes(&sent).to, address(backend));
            node.tell_of_frames(OUTER, true, true);
            let frame = sent.frame();
            assert_eq!(node.arrive(&frame), (PASSED, frame));
            node.tell_of_frames(OUTER, false, true);
        }
    });
}
