//! How keepalived checks the servers of a virtual server, as one check of a block.
//!
//! Invariant: the first server's check is the block's; where another server has another one, that is noted.

use std::time::Duration;

use super::super::found::Check;
use super::super::notes::{Notes, shown};
use super::seconds;
use super::tree::Node;

/// The checks of all servers of a virtual server.
#[derive(Debug, Default)]
pub(super) struct Checks {
    first: Option<Check>,
}

/// Whether a line begins a check.
pub(super) fn is_check(word: &str) -> bool {
    word.ends_with("_CHECK") || matches!(word, "HTTP_GET" | "SSL_GET")
}

impl Checks {
    pub(super) fn add(&mut self, node: &Node<'_>, notes: &mut Notes) {
        let check = match node.word(0) {
            "TCP_CHECK" => check(node, None, notes),
            "HTTP_GET" => Check { statuses: statuses(node), ..check(node, Some(path(node, notes)), notes) },
            other => {
                notes.add(
                    node.line,
                    format!("{} has no counterpart: the check connects by TCP", shown(other)),
                );
                check(node, None, notes)
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

    pub(super) fn into_check(self, interval: Duration) -> Option<Check> {
        self.first.map(|check| Check { interval: Some(interval), ..check })
    }
}

fn check(node: &Node<'_>, path: Option<String>, notes: &mut Notes) -> Check {
    let mut check = Check { path, ..Check::default() };
    for child in &node.children {
        match child.word(0) {
            "connect_port" => check.port = child.word(1).parse().ok(),
            "connect_timeout" => check.timeout = seconds(child, notes),
            "retry" | "nb_get_retry" => {
                check.fall = child.word(1).parse().ok().map(|again: u32| again.saturating_add(1));
            }
            "url" => {}
            word => notes.no_counterpart(child.line, word),
        }
    }
    check
}

/// The statuses that are good for the first page that is asked for, where the file names them.
fn statuses(node: &Node<'_>) -> Option<String> {
    let named = node.child("url")?.child("status_code")?.words.get(1..)?;
    Some(named.join(",")).filter(|statuses| !statuses.is_empty())
}

/// The path of the first page that is asked for.
fn path(node: &Node<'_>, notes: &mut Notes) -> String {
    let Some(url) = node.child("url") else { return "/".to_owned() };
    for child in &url.children {
        if !matches!(child.word(0), "path" | "status_code") {
            notes.add(child.line, format!("{} has no counterpart", shown(&child.words.join(" "))));
        }
    }
    let asked = url.child("path").map(|path| path.word(1)).filter(|path| !path.is_empty());
    asked.unwrap_or("/").to_owned()
}
