//! docs/migrate-from-cilium.md, word by word, on two nodes whose network is a real Cilium with its replacement of
//! kube-proxy, while clients dial all the time. `make part PART=cilium` builds what it takes and runs this.
//!
//! Invariant: only what the page leaves to its reader is filled in: the node, the pod of its agent, where the apiserver
//! is. Nothing is changed that the whole kernel has.

// What clients met is shown where it is asked for.
#![allow(clippy::print_stdout)]

#[cfg(test)]
mod clients;
#[cfg(test)]
#[path = "../shared/guide.rs"]
mod guide;
#[cfg(test)]
mod moved;
#[cfg(test)]
mod page;
#[cfg(test)]
mod stage;
#[cfg(test)]
#[path = "../shared/typing.rs"]
mod typing;
