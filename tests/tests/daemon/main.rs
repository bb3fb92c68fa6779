//! The daemon's parts, connected as in the program: its sources and its API.
//!
//! Invariant: all of it is in this process or in a folder of the test; no test needs root.

#[cfg(test)]
mod api;
#[cfg(test)]
mod formats;
#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod scenarios;
