//! What is wrong with a service, from the node where it hurts.
//!
//! Everything is gathered first, into `Material`; then each of `checks` judges it, `answer` puts what they found
//! together, and `json` and `text` write it down.
//!
//! Invariant: judging sends no request, changes nothing and says the same of the same material. No text that others
//! wrote reaches a reader uncleaned, nor a command unless it passes the grammar of names.

mod answer;
mod case;
mod checks;
mod command;
mod event_list;
mod finding;
mod focus;
pub mod gather;
mod json;
mod known;
pub(crate) mod limits;
mod lookup;
pub(crate) mod material;
mod meaning;
pub(crate) mod shown;
pub(crate) mod text;

pub(crate) use answer::answer as judge;
#[cfg(test)]
pub(crate) use event_list::any_events;
pub(crate) use event_list::{EventList, Scope};
pub(crate) use focus::{Focus, HttpPath, PortWanted};
pub(crate) use json::Diagnosis;
#[cfg(test)]
pub(crate) use json::any_api;
pub(crate) use known::Known;
pub(crate) use lookup::flows;
pub(crate) use material::{Material, Narrowed};
pub(crate) use meaning::meaning;

/// The header of an answer that says how the command line ends.
pub(crate) const EXIT_HEADER: &str = "holdfast-exit";
