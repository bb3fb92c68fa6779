//! The daemon's parts, connected as in the program: its sources, its API, and `make run`.
//!
//! Invariant: all of it is in this process or in a folder of the test; no test needs root.

#[cfg(test)]
mod api;
#[cfg(test)]
mod demo;
#[cfg(test)]
mod formats;
#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod scenarios;
