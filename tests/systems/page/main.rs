//! The page in real browsers: Debian's Chromium and Firefox, with a real daemon.
//!
//! Invariant: a test sees what a user sees, and acts like one: by pointer and keys. Any console message is a failure.
#![cfg(test)]

mod astray;
mod browser;
mod clean;
mod connections;
mod hostile;
mod kept;
mod live;
mod look;
mod named;
mod node;
mod operator;
mod paper;
mod press;
mod socket;
mod starts;
mod tunnel;
mod verdict;
mod way;
