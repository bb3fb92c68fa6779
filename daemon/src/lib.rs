//! The shell.
pub mod admin;
pub mod cli;
