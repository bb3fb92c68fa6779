//! The daemon's parts, joined as the program joins them: its sources, its API, what `make run` does.
//!
//! Invariant: all of it is in this process or in a folder of the test; nothing here needs root.

#[cfg(test)]
mod api;
#[cfg(test)]
mod demo;
#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod scenarios;
