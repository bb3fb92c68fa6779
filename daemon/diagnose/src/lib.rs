//! Diagnoses a service, and explains a client's packet, from gathered evidence.
//!
//! `checks` judges the `Evidence`, `diagnosis_result` collects the findings, and `json` and `text` render them.
//! `explain` explains one frontend.
//!
//! Invariant: pure: facts in, findings out. No file, no socket, no clock; time is an argument. The same facts give the
//! same text. Untrusted text is cleaned before it is shown, and enters a command only if it passes the grammar of
//! names.

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
pub mod node_ports;
pub mod text;
mod unknown_checks;

pub use check_meanings::describe_check;
pub use client_path::{dial_target, frontend_targets};
pub use diagnosis_result::{NO_SERVICE_EXIT, judge_evidence as judge};
pub use event_list::{EventList, EventScope};
pub use focus::{Focus, HttpPath, PortSelector};
pub use json::Diagnosis;
pub use known_services::{KnownServices, find_views};
