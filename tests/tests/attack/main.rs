//! Rung 4: attackers of every kind against the real daemon with the kernel's datapath. Needs root, so the `root`
//! feature selects it.
//!
//! Each test does what an attacker did, as a user or tenant that could, and times a bystander's changes meanwhile. The
//! bounds leave room for a busy machine; measurements are in docs/performance.md.
//!
//! Two attacks are missing. A bed shares the machine's wall clock, so steps of the clock are in the engine's tests and
//! in the simulation. Thousands of holds at once take too long: a late probe would end a hold only from 15,000 held
//! backends on, which take half a minute to probe; `probes` does it in virtual time.

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
