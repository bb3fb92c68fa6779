//! Requests to the kernel, byte by byte, and the parsing of its replies.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;
use std::thread::JoinHandle;

use super::*;

fn port(transport: Transport, at: &str, backend: &str) -> ConntrackEntry {
    let [at, backend] = [at, backend].map(|it| it.parse().unwrap());
    ConntrackEntry { transport, from: at, to: backend, timeout: Duration::from_secs(77), is_replied: false }
}

fn ports(count: u16) -> impl Iterator<Item = ConntrackEntry> {
    (0..count).map(|n| port(Transport::Tcp, &format!("10.0.0.5:{}", 61_000 + n), "10.1.0.7:8443"))
}

/// Words of four hexadecimal digits, in the order of memory.
#[track_caller]
fn check_body(port: ConntrackEntry, expected: &str) {
    let message = port.encode(1, 0);
    let (header, body) = message.split_at(HEADER_BYTES);
    assert_eq!(header[..4], u32::try_from(message.len()).unwrap().to_ne_bytes());
    let hex = |pair: &[u8]| pair.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let told: Vec<String> = body.chunks(2).map(hex).collect();
    assert_eq!(told, expected.split_whitespace().collect::<Vec<_>>());
}

#[cfg(target_endian = "little")]
#[test]
fn a_tcp_entry_is_established_between_node_and_backend() {
    check_body(
        port(Transport::Tcp, "10.0.0.5:61000", "10.1.0.7:8443"),
        "0200 0000
         3400 0180 1400 0180 0800 0100 0a00 0005 0800 0200 0a01 0007
                   1c00 0280 0500 0100 0600 0000 0600 0200 ee48 0000 0600 0300 20fb 0000
         3400 0280 1400 0180 0800 0100 0a01 0007 0800 0200 0a00 0005
                   1c00 0280 0500 0100 0600 0000 0600 0200 20fb 0000 0600 0300 ee48 0000
         0800 0700 0000 004d
         2000 0480 1c00 0180 0500 0100 0300 0000 0600 0400 0808 0000 0600 0500 0808 0000",
    );
}

#[cfg(target_endian = "little")]
#[test]
fn a_udp_entry_has_no_state() {
    check_body(
        port(Transport::Udp, "[fd00:a::5]:61001", "[fd00:9::7]:53"),
        "0a00 0000
         4c00 0180 2c00 0180 1400 0300 fd00 000a 0000 0000 0000 0000 0000 0005
                             1400 0400 fd00 0009 0000 0000 0000 0000 0000 0007
                   1c00 0280 0500 0100 1100 0000 0600 0200 ee49 0000 0600 0300 0035 0000
         4c00 0280 2c00 0180 1400 0300 fd00 0009 0000 0000 0000 0000 0000 0007
                             1400 0400 fd00 000a 0000 0000 0000 0000 0000 0005
                   1c00 0280 0500 0100 1100 0000 0600 0200 0035 0000 0600 0300 ee49 0000
         0800 0700 0000 004d",
    );
}

#[cfg(target_endian = "little")]
#[test]
fn a_translated_entry_is_marked_replied_and_assured() {
    let answered =
        ConntrackEntry { is_replied: true, ..port(Transport::Udp, "10.9.0.1:4660", "10.1.0.7:53") };
    check_body(
        answered,
        "0200 0000
         3400 0180 1400 0180 0800 0100 0a09 0001 0800 0200 0a01 0007
                   1c00 0280 0500 0100 1100 0000 0600 0200 1234 0000 0600 0300 0035 0000
         3400 0280 1400 0180 0800 0100 0a01 0007 0800 0200 0a09 0001
                   1c00 0280 0500 0100 1100 0000 0600 0200 0035 0000 0600 0300 1234 0000
         0800 0700 0000 004d
         0800 0300 0000 000e",
    );
}

/// The sequence numbers and flags of these messages.
fn asked(mut messages: &[u8]) -> Vec<(u32, u16)> {
    let mut asked = Vec::new();
    while let Some(length) = messages.first_chunk().map(|it| u32::from_ne_bytes(*it) as usize) {
        let (message, rest) = messages.split_at(length);
        assert_eq!(u16::from_ne_bytes([message[4], message[5]]), CT_NEW);
        let sequence = u32::from_ne_bytes(message[8..12].try_into().unwrap());
        asked.push((sequence, u16::from_ne_bytes([message[6], message[7]])));
        messages = rest;
    }
    asked
}

/// The number and flags of each message, per call.
type Heard = Vec<Vec<(u32, u16)>>;

/// A kernel that handles so many batches and replies to each message with this errno; it also acknowledges the last
/// message of a batch.
fn kernel_that_says(batches: usize, errno: fn(u32) -> Option<i32>) -> (ConntrackSocket, JoinHandle<Heard>) {
    let (ours, kernels) = UnixDatagram::pair().unwrap();
    ours.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let answering = std::thread::spawn(move || {
        let batch = || {
            let mut request = vec![0; 1 << 16];
            let length = kernels.recv(&mut request).unwrap();
            let messages = asked(&request[..length]);
            for (sequence, flags) in &messages {
                if let Some(errno) = errno(*sequence).or((flags & NLM_F_ACK != 0).then_some(0)) {
                    let mut answer = [0; 36];
                    answer[8..12].copy_from_slice(&sequence.to_ne_bytes());
                    answer[16..20].copy_from_slice(&(-errno).to_ne_bytes());
                    kernels.send(&answer).unwrap();
                }
            }
            messages
        };
        (0..batches).map(|_| batch()).collect()
    });
    (ConntrackSocket { kernel: NetlinkSocket::from_file(OwnedFd::from(ours).into()) }, answering)
}

fn taken_of(kernel: &mut ConntrackSocket, count: u16) -> (ConntrackOutcome, io::Result<()>) {
    let mut taken = ConntrackOutcome::default();
    let came = kernel.add_all(&mut ports(count), &mut taken);
    (taken, came)
}

#[test]
fn many_entries_take_few_calls_and_replace_none() {
    let (mut kernel, answering) = kernel_that_says(3, |_| None);
    let (taken, came) = taken_of(&mut kernel, 70);
    came.unwrap();
    assert_eq!((taken.entered, taken.refused, taken.error.is_none()), (70, 0, true));
    let batches = answering.join().unwrap();
    assert_eq!(batches.iter().map(Vec::len).collect::<Vec<_>>(), [32, 32, 6]);
    let new = NLM_F_REQUEST | NLM_F_CREATE | NLM_F_EXCL;
    for batch in batches {
        let last = batch.len();
        let expected = (1..).zip(1..=last).map(|(n, at)| (n, if at == last { new | NLM_F_ACK } else { new }));
        assert_eq!(batch, expected.collect::<Vec<_>>());
    }
}

#[test]
fn an_existing_entry_counts_as_entered() {
    let (mut kernel, answering) = kernel_that_says(1, |_| Some(libc::EEXIST));
    let (taken, came) = taken_of(&mut kernel, 20);
    came.unwrap();
    assert_eq!((taken.entered, taken.refused), (20, 0));
    answering.join().unwrap();
}

#[test]
fn a_refused_entry_does_not_stop_others() {
    let refused = |sequence| (sequence == 3).then_some(libc::ENOSPC);
    let (mut kernel, answering) = kernel_that_says(2, refused);
    let (taken, came) = taken_of(&mut kernel, 50);
    came.unwrap();
    assert_eq!((taken.entered, taken.refused), (48, 2));
    assert_eq!(taken.error.unwrap().raw_os_error(), Some(libc::ENOSPC));
    assert_eq!(answering.join().unwrap().len(), 2);
}

#[test]
fn a_fully_refused_batch_ends_the_requests() {
    let (mut kernel, answering) = kernel_that_says(1, |_| Some(libc::ENOMEM));
    let (taken, came) = taken_of(&mut kernel, 50);
    assert_eq!((taken.entered, taken.refused), (0, 32), "one batch");
    assert_eq!(came.unwrap_err().raw_os_error(), Some(libc::ENOMEM));
    answering.join().unwrap();
}

/// The kernel then replies to the first message only.
#[test]
fn a_missing_capability_is_reported() {
    let (ours, kernels) = UnixDatagram::pair().unwrap();
    ours.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
    let mut answer = [0; 36];
    answer[8..12].copy_from_slice(&1_u32.to_ne_bytes());
    answer[16..20].copy_from_slice(&(-libc::EPERM).to_ne_bytes());
    kernels.send(&answer).unwrap();
    let mut kernel = ConntrackSocket { kernel: NetlinkSocket::from_file(OwnedFd::from(ours).into()) };
    let (taken, came) = taken_of(&mut kernel, 5);
    assert_eq!((taken.entered, taken.refused), (0, 5));
    assert_eq!(came.unwrap_err().raw_os_error(), Some(libc::EPERM));
}

#[test]
fn a_truncated_reply_is_invalid() {
    assert_eq!(AckMessage::parse(&[0; 19]), None);
    assert_eq!(AckMessage::parse(&[]), None);
    assert_eq!(AckMessage::parse(&[0; 20]), Some(AckMessage { sequence: 0, errno: 0 }));
}

#[test]
fn without_snat_ports_nothing_is_sent() {
    let taken = add_port_entries(std::iter::empty());
    assert_eq!((taken.entered, taken.refused, taken.error.is_none()), (0, 0, true));
}
