//! What is wrong with a service, and why a client meets what it meets, as far as what was gathered shows it.
//!
//! Each of `checks` judges the `Material`, `answer` puts their findings together, and `json` and `text` write them
//! down; `why` explains one frontend.
//!
//! Invariant: pure: facts in, findings out. No file, no socket, no clock; time is an argument. The same facts give the
//! same words. No text that others wrote reaches a reader uncleaned, and none gets into a command unless it passes the
//! grammar of names.

#![forbid(unsafe_code)]

mod answer;
mod case;
mod checks;
mod command;
mod event_list;
mod finding;
mod focus;
mod json;
mod known;
pub mod limits;
mod looks;
mod lookup;
pub mod material;
mod meaning;
pub mod shown;
pub mod text;
mod unknown;
pub mod why;

pub use answer::answer as judge;
pub use event_list::{EventList, Scope};
pub use focus::{Focus, HttpPath, PortWanted};
pub use json::Diagnosis;
pub use known::{Known, views};
pub use lookup::{dialled, frontends};
pub use meaning::meaning;
