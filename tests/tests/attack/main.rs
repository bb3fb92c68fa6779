//! Rung 4: whoever means ill, against the daemon that users run, with the kernel's datapath. Needs root, so the `root` feature
//! selects it.
//!
//! A test does what an attacker did, as the user or the tenant who could, and times what a bystander's changes take meanwhile. The
//! bounds have room for a busy machine; figures are in docs/performance.md.

#![cfg(test)]

mod doors;
mod files;
mod stage;
mod tenant;
mod twins;
