//! keepalived's checks of the servers of a virtual server, as one check of a block.
//!
//! Invariant: the first server's check is the block's; a different one of another server is noted.

use std::time::Duration;

use super::super::imported_service::ImportedCheck;
use super::super::notes::{Notes, quote_excerpt};
use super::parse_seconds;
use super::tree::Node;

/// The checks of all servers of a virtual server.
#[derive(Debug, Default)]
pub(super) struct ServerChecks {
    first: Option<ImportedCheck>,
}

pub(super) fn is_check(word: &str) -> bool {
    word.ends_with("_CHECK") || matches!(word, "HTTP_GET" | "SSL_GET")
}

impl ServerChecks {
    pub(super) fn add_check(&mut self, node: &Node<'_>, notes: &mut Notes) {
        let check = match node.word(0) {
            "TCP_CHECK" => parse_check(node, None, notes),
            "HTTP_GET" => ImportedCheck {
                statuses: parse_statuses(node),
                ..parse_check(node, Some(parse_path(node, notes)), notes)
            },
            other => {
                notes.add(
                    node.line,
                    format!("{} has no counterpart: the check connects by TCP", quote_excerpt(other)),
                );
                parse_check(node, None, notes)
            }
        };
        match &self.first {
            None => self.first = Some(check),
            Some(first) if *first != check => {
                notes.add(
                    node.line,
                    "another check than the first server's: the first one's is taken for all",
                );
            }
            Some(_) => {}
        }
    }

    pub(super) fn into_check(self, interval: Duration) -> Option<ImportedCheck> {
        self.first.map(|check| ImportedCheck { interval: Some(interval), ..check })
    }
}

fn parse_check(node: &Node<'_>, path: Option<String>, notes: &mut Notes) -> ImportedCheck {
    let mut check = ImportedCheck { path, ..ImportedCheck::default() };
    for child in &node.children {
        match child.word(0) {
            "connect_port" => check.port = child.word(1).parse().ok(),
            "connect_timeout" => check.timeout = parse_seconds(child, notes),
            "retry" | "nb_get_retry" => {
                check.fall = child.word(1).parse().ok().map(|again: u32| again.saturating_add(1));
            }
            "url" => {}
            word => notes.add_unsupported(child.line, word),
        }
    }
    check
}

/// The good statuses of the first URL, if the file has them.
fn parse_statuses(node: &Node<'_>) -> Option<String> {
    let named = node.child("url")?.child("status_code")?.words.get(1..)?;
    Some(named.join(",")).filter(|statuses| !statuses.is_empty())
}

/// The path of the first URL.
fn parse_path(node: &Node<'_>, notes: &mut Notes) -> String {
    let Some(url) = node.child("url") else { return "/".to_owned() };
    for child in &url.children {
        if !matches!(child.word(0), "path" | "status_code") {
            notes.add(child.line, format!("{} has no counterpart", quote_excerpt(&child.words.join(" "))));
        }
    }
    let path = url.child("path").map(|path| path.word(1)).filter(|path| !path.is_empty());
    path.unwrap_or("/").to_owned()
}
