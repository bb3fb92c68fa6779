//! Rung 4: attackers of every kind, against the daemon that users run, with the kernel's datapath. Needs root, so the
//! `root` feature selects it.
//!
//! A test does what an attacker did, as the user or the tenant that could, and times what a bystander's changes take
//! meanwhile. The bounds have room for a busy machine; figures are in docs/performance.md.
//!
//! Left out is a step of the wall clock, because a bed has the machine's own; the engine's tests step theirs,
//! and so does the simulation. Nor thousands of holds at once: what would end one for want of a question shows from
//! 15,000 held backends on, which take half a minute to be asked, after the minute in which a loss may come of the
//! start; `probes` does it in virtual time.

#![cfg(test)]

mod busy;
mod doors;
mod files;
mod machine;
mod objects;
mod own_address;
mod sockets;
mod stage;
mod tenant;
mod twins;
