//! The generated skeletons of `bpf/`. Only [`crate::abi`] uses the types of `socket.bpf.c`, only [`crate::load`] its
//! programs, only `kernel::stale::udp_peers` the program of `udp_iter.bpf.c`, and only `kernel::refused_connects` that
//! of `tcp_reset.bpf.c`.

// Generated code does not follow the house rules.
#![allow(unsafe_code, missing_debug_implementations, unreachable_pub, dead_code, clippy::all)]
#![allow(clippy::pedantic, clippy::restriction, clippy::undocumented_unsafe_blocks)]

include!(concat!(env!("OUT_DIR"), "/socket.skel.rs"));

/// The skeleton of `packet.bpf.c` with the types of packets.
pub(crate) mod packet {
    include!(concat!(env!("OUT_DIR"), "/packet.skel.rs"));
}
pub(crate) use packet::{PacketSkel, PacketSkelBuilder};

/// The skeleton of `xdp.bpf.c` with the types of `packet.bpf.c`.
mod xdp {
    include!(concat!(env!("OUT_DIR"), "/xdp.skel.rs"));
}
pub(crate) use xdp::XdpSkelBuilder;

/// The skeleton of `udp_iter.bpf.c` with the types of `socket.bpf.c`.
mod udp_iter {
    include!(concat!(env!("OUT_DIR"), "/udp_iter.skel.rs"));
}
pub(crate) use udp_iter::UdpIterSkelBuilder;

/// The skeleton of `tcp_reset.bpf.c` with the types of refused connects.
pub(crate) mod tcp_reset {
    include!(concat!(env!("OUT_DIR"), "/tcp_reset.skel.rs"));
}
pub(crate) use tcp_reset::{OpenTcpResetSkel, TcpResetSkelBuilder};

#[cfg(test)]
mod tests;
