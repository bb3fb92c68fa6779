//! The shell.

pub mod sources;
