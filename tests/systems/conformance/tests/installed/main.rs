//! holdfast on the nodes of a real cluster as operators install it: docs/install.md, word by word, while clients
//! connect in a loop. `scripts/installed.sh` builds what it needs and runs this.
//!
//! Invariant: only the reader's values are filled in: the apiserver's address, and a node's cgroup mount.

// The clients' counts are printed.
#![allow(clippy::print_stdout)]

#[cfg(test)]
mod chart;
#[cfg(test)]
mod clients;
#[cfg(test)]
mod daemonset;
#[cfg(test)]
#[path = "../shared/guide.rs"]
mod guide;
#[cfg(test)]
mod helm;
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
