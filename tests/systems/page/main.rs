//! The page in real browsers: Chromium and Firefox as Debian has them, before a real daemon.
//!
//! Invariant: a test sees what a person would see, and acts as one would: by pointer and keys. What a browser says in
//! its console is a failure.
#![cfg(test)]

mod astray;
mod browser;
mod clean;
mod connections;
mod hostile;
mod kept;
mod live;
mod named;
mod node;
mod operator;
mod paper;
mod press;
mod socket;
mod starts;
mod tunnel;
mod way;
