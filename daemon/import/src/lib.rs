//! Configurations of other load balancers as `[[service]]` blocks: IPVS in `ipvsadm`'s format, keepalived, and
//! `HAProxy` where it forwards TCP.
//!
//! Invariant: every setting of such a file is in a block, or is noted with its line; blocks and notes together lose
//! nothing. Text in, text out: no file is read here, and no name is looked up.

#![forbid(unsafe_code)]

mod address;
mod blocks;
mod haproxy;
mod imported_service;
mod ipvs;
mod keepalived;
mod notes;
mod prefix;
#[cfg(test)]
mod tests;

use holdfast_core::words;

pub use notes::Note;

use imported_service::ImportedService;
use notes::Notes;

/// The largest file to read, in bytes: the limit of holdfast's own configuration, and the result is seldom longer than
/// the file.
pub const BYTES_MAX: usize = 1 << 20;

words! {
    /// The program that a file configures.
    pub enum Format {
        Ipvs = "ipvs",
        Keepalived = "keepalived",
        Haproxy = "haproxy",
    }
}

impl Format {
    /// Guesses the program by the first line that only one of them can have.
    pub fn detect(text: &str) -> Option<Self> {
        text.lines().find_map(|line| {
            let is_indented = line.starts_with(char::is_whitespace);
            match line.split_whitespace().next()? {
                "-A" | "-a" | "--add-service" | "--add-server" => Some(Self::Ipvs),
                "virtual_server" | "virtual_server_group" | "vrrp_instance" | "global_defs" => {
                    Some(Self::Keepalived)
                }
                "global" | "defaults" | "frontend" | "backend" | "listen" if !is_indented => {
                    Some(Self::Haproxy)
                }
                _ => None,
            }
        })
    }
}

#[derive(Debug)]
pub struct ImportOutcome {
    /// The blocks, as text of a configuration.
    pub text: String,
    /// The settings that the blocks omit, in the order of the file's lines.
    pub notes: Vec<Note>,
}

/// Converts a file's services to blocks. `name` is the file's, for comments in the text.
pub fn import(format: Format, name: &str, text: &str) -> ImportOutcome {
    let mut notes = Notes::default();
    let read = match format {
        Format::Ipvs => ipvs::parse_services,
        Format::Keepalived => keepalived::parse_services,
        Format::Haproxy => haproxy::parse_services,
    };
    let mut found: Vec<ImportedService> = read(text, &mut notes);
    imported_service::normalise_services(&mut found, &mut notes);
    ImportOutcome { text: blocks::render_blocks(&found, name), notes: notes.into_sorted() }
}
