//! Judgement: what is wrong with a service, why a client meets what it meets, and how either is said.
//!
//! Invariant: pure: facts in, findings out. No file, no socket, no clock; time is an argument. The shell gathers the
//! facts, and nothing here knows the shell. The same facts give the same words, and no text that others wrote reaches a
//! reader uncleaned.
#![forbid(unsafe_code)]

pub mod diagnose;
pub mod why;

