//! Checks what the packet programs do to packets, with an observer that is independent of them. Needs root.
//!
//! The kernel's test run passes each packet to a program, in its own network: nothing is attached or sent.

#![allow(unsafe_code)]

mod anew;
mod answers;
mod asked;
mod associations;
mod craft;
mod early;
mod errors;
mod flows;
mod frames;
mod fuzz;
mod hard;
mod inside;
mod joined;
mod judge;
mod lives;
mod loops;
mod maglev;
mod narrow;
mod near;
mod network;
mod networks;
mod node;
mod one_sided;
mod past;
mod ports;
mod room;
mod sctp;
mod shortcut;
mod snat;
mod sticky;
mod taken;
mod trailers;
mod verified;
mod wrapped;
