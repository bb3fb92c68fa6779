//! What is wrong with a service, and why a client meets what it meets, as far as what was gathered shows it.
//!
//! Each of `checks` judges the `Evidence`, `answer` puts their findings together, and `json` and `text` write them
//! down; `why` explains one frontend.
//!
//! Invariant: pure: facts in, findings out. No file, no socket, no clock; time is an argument. The same facts give the
//! same words. No text that others wrote reaches a reader uncleaned, and none gets into a command unless it passes the
//! grammar of names.

#![forbid(unsafe_code)]

mod case;
mod check_meanings;
mod checks;
mod client_path;
mod command;
mod diagnosis_result;
mod event_list;
pub mod evidence;
mod evidence_source;
pub mod explain;
mod finding;
mod focus;
pub mod formatting;
mod json;
mod known_services;
pub mod limits;
pub mod text;
mod unknown_checks;

pub use check_meanings::describe_check;
pub use client_path::{dial_target, frontend_targets};
pub use diagnosis_result::judge_evidence as judge;
pub use event_list::{EventList, EventScope};
pub use focus::{Focus, HttpPath, PortSelector};
pub use json::Diagnosis;
pub use known_services::{KnownServices, find_views};
