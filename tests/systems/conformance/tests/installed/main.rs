//! holdfast on the nodes of a real cluster as operators bring it there: docs/install.md, word by word, while clients
//! connect all the time. `scripts/installed.sh` builds what it takes and runs this.
//!
//! Invariant: only what the page leaves to its reader is filled in: where the apiserver is, and where a node has its
//! cgroups.

// What clients counted is shown where it is asked for.
#![allow(clippy::print_stdout)]

#[cfg(test)]
mod clients;
#[cfg(test)]
mod daemonset;
#[cfg(test)]
#[path = "../shared/guide.rs"]
mod guide;
#[cfg(test)]
mod image;
#[cfg(test)]
mod package;
#[cfg(test)]
mod page;
#[cfg(test)]
mod stage;
#[cfg(test)]
mod static_pod;
#[cfg(test)]
#[path = "../shared/typing.rs"]
mod typing;
