//! What the packet programs make of a packet, judged by an observer that knows nothing of them. Needs root.
//!
//! Each packet is given to a program by the kernel's test run, in a network of its own: nothing is attached or sent.

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
mod near;
mod network;
mod networks;
mod node;
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
