//! The house rules as tests: a change that breaks one gets file, line and rule.
//!
//! Each rule is a function over texts and has two tests: one on snippets, which shows that it finds offenders, and one
//! on the repository. The rules repeat nothing that the compiler, clippy, rustfmt or cargo-deny enforce.

mod bindings;
mod circles;
mod claims;
mod clocks;
mod code;
mod hashes;
mod house_rules;
mod licences;
mod lines;
mod names;
mod pages;
mod rust_rules;
mod security;
mod tree;
mod vocabulary;
#[cfg(test)]
mod walls;
