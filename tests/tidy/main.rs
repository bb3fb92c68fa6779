//! The house rules as tests: a change that breaks one is told file, line and rule.
//!
//! Each rule is a function over texts, so each is tested twice: on snippets, to show that it bites, and on the
//! repository. Deliberately absent: rules that the compiler, clippy, rustfmt or cargo-deny already enforce.

mod code;
mod house_rules;
mod licences;
mod lines;
mod rust_rules;
mod security;
mod tree;
