//! What only this crate can arrange: an older kernel, and maps that somebody else has changed. Needs root.

use std::net::TcpStream;

use holdfast_core::keys::Transport;
use holdfast_core::op::WordFlags;

use super::bed::{NONE, Port, address, bed, check_errno, dial, tcp_backend, udp_client};
use super::*;

#[test]
fn kernel_without_set_retval_a_refused_client_still_never_sees_eperm() {
    bed(|bed| {
        let mut maps = KernelMaps::start_with(&bed.options(), Features::FLOOR).unwrap();
        bed.join(&bed.cgroup);
        for (index, frontend, flags) in
            [(1, "10.96.0.10:80", NONE), (2, "10.96.0.11:80", WordFlags::DROP), (3, "[fd00::10]:80", NONE)]
        {
            let port = Port { index, frontends: &[frontend], flags, ..Port::TCP };
            port.serve(&mut maps);
            check_errno(TcpStream::connect(address(frontend)), libc::ECONNREFUSED, frontend);
            Port { transport: Transport::Udp, ..port }.serve(&mut maps);
            let any = if frontend.starts_with('[') { "[::]:0" } else { "0.0.0.0:0" };
            let socket = udp_client(any);
            socket.connect(address(frontend)).unwrap();
            socket.send(b"x").unwrap();
            check_errno(socket.recv(&mut [0; 8]), libc::ECONNREFUSED, "UDP hears of it with the answer");
        }
        let mapped = TcpStream::connect(address("[::ffff:10.96.0.10]:80"));
        check_errno(mapped, libc::ECONNREFUSED, "mapped");
        let backends = [tcp_backend("127.0.0.2:0")];
        Port { index: 4, frontends: &["10.96.0.12:80"], backends: &backends, ..Port::TCP }.serve(&mut maps);
        assert_eq!(dial("10.96.0.12:80"), address("10.96.0.12:80"), "the rest is as always");
    });
}

#[test]
fn kernel_contents_that_nobody_wrote_are_left_out_of_a_dump() {
    let mut maps = KernelMaps::unattached(super::bed::CAPACITY).unwrap();
    // Port 0, transport 255: no version of this daemon wrote that.
    let key = [1, 2, 3, 4, 0, 0, 255, 0];
    maps.generation.frontends_mut(Family::V4).put(&key, &[9; 16]).unwrap();
    assert_eq!(maps.dump().unwrap(), Dump::default());
}
