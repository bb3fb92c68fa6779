//! The datapath in this machine's kernel and in those of `make matrix`. Needs root.
//!
//! Invariant: each test has its own bed and leaves nothing.

#[cfg(test)]
mod bed;
#[cfg(test)]
mod faults;
#[cfg(test)]
mod life;
#[cfg(test)]
mod maps;
#[cfg(test)]
mod node_ports;
#[cfg(test)]
mod refused;
#[cfg(test)]
mod shown;
#[cfg(test)]
mod sockets;
#[cfg(test)]
mod stale;
#[cfg(test)]
mod udp;
#[cfg(test)]
mod weights;
