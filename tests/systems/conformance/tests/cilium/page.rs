//! The page's commands, by step.
//!
//! Invariant: the page's own words, except for what `at` fills in.

use super::guide::{blocks, section};

const PAGE: &str = "migrate-from-cilium.md";

/// The page's blocks. Those for a control plane contain `NODE` and `CILIUM`.
pub(crate) struct Page {
    /// holdfast's configuration next to an agent that listens at its address.
    pub(crate) admin: String,
    /// Sets Cilium up so that labelled nodes have no replacement.
    pub(crate) once: String,
    /// Removes a node from the load balancer; then counts its remaining connections.
    pub(crate) out: [String; 2],
    pub(crate) start: String,
    pub(crate) off: String,
    pub(crate) look: String,
    pub(crate) come: String,
    /// The way back: at the control plane, and on the node.
    pub(crate) on: String,
    pub(crate) end: String,
}

impl Page {
    #[track_caller]
    pub(crate) fn read() -> Self {
        let [admin] = blocks(PAGE, "Before");
        let [once, out, start, off, look, come] = blocks(PAGE, "Node by node");
        let [on, end] = blocks(PAGE, "The way back");
        let (label, count) = out.split_once('\n').unwrap();
        let out = [label, count].map(str::to_owned);
        Self { admin, once, out, start, off, look, come, on, end }
    }
}

/// The commands in the page's table that remove Cilium's leftovers.
#[track_caller]
pub(crate) fn removals() -> Vec<String> {
    let text = section(PAGE, "What Cilium leaves behind");
    let rows = text.lines().filter(|line| line.starts_with("| ") && line.contains('`'));
    let cells = rows.map(|row| row.replace("\\|", "\u{1}").split('|').nth(2).unwrap().replace('\u{1}', "|"));
    cells
        .flat_map(|cell| cell.split('`').skip(1).step_by(2).map(ToOwned::to_owned).collect::<Vec<_>>())
        .collect()
}

/// Fills in the reader's values.
pub(crate) fn at(block: &str, node: &str, agent: &str) -> String {
    block.replace("NODE", node).replace("CILIUM", agent)
}

#[test]
fn the_tables_commands_are_read_whole() {
    let all = removals();
    assert!(all.contains(&"rm -r /sys/fs/bpf/cilium/socketlb".to_owned()), "{all:#?}");
    assert!(all.iter().any(|command| command.contains("| grep -v CILIUM_ |")), "{all:#?}");
}
