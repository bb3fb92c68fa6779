//! docs/migrate-from-cilium.md, word by word, on two nodes with a real Cilium and its kube-proxy replacement, while
//! clients dial in a loop. `make part PART=cilium` builds what it needs and runs this.
//!
//! Invariant: only the reader's values are filled in: the node, its agent's pod, the apiserver's address. No setting
//! of the whole kernel changes.

// The clients' results are printed.
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
