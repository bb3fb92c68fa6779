//! The house rules as tests: a change that breaks one gets file, line and rule.
//!
//! Each rule is a function over texts, so each is tested twice: on snippets, to show that it bites, and on the
//! repository. What the compiler, clippy, rustfmt or cargo-deny enforce is not repeated.

mod bindings;
mod circles;
mod claims;
mod code;
mod hashes;
mod house_rules;
mod licences;
mod lines;
mod names;
mod rust_rules;
mod security;
mod tree;
mod vocabulary;
#[cfg(test)]
mod walls;
