//! What other load balancers are configured to do, as `[[service]]` blocks: IPVS as `ipvsadm` saves it, keepalived, and
//! `HAProxy` where it passes TCP on.
//!
//! Invariant: whatever such a file says is in a block, or is noted with its line; a reader of blocks and notes has lost
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

/// The largest file that is read, in bytes: what a configuration of holdfast may have, and what becomes of a file is
/// seldom longer than the file.
pub const BYTES_MAX: usize = 1 << 20;

words! {
    /// Whose configuration a file is.
    pub enum Format {
        Ipvs = "ipvs",
        Keepalived = "keepalived",
        Haproxy = "haproxy",
    }
}

impl Format {
    /// Whose configuration this seems to be: the first line that only one of them can have says so.
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

/// What became of a file.
#[derive(Debug)]
pub struct ImportOutcome {
    /// The blocks, as text of a configuration.
    pub text: String,
    /// What they do not say of the file, in the order of its lines.
    pub notes: Vec<Note>,
}

/// Says a file's services as blocks. `name` is the file's, for its reader.
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
