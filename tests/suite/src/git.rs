//! Queries git about this tree.
//!
//! Invariant: nothing here changes the tree.

use std::path::Path;
use std::process::{Command, Output, Stdio};

fn git(root: &Path, arguments: &[&str]) -> Option<Output> {
    Command::new("git").current_dir(root).args(arguments).stdin(Stdio::null()).output().ok()
}

fn said(root: &Path, arguments: &[&str]) -> Option<String> {
    let output = git(root, arguments).filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// The short name and the day of the tree's commit. `None`: a file has changed since, or git fails.
pub(crate) fn commit(root: &Path) -> Option<(String, String)> {
    let is_clean = said(root, &["status", "--porcelain", "--untracked-files=no"])?.is_empty();
    let line = said(root, &["log", "-1", "--abbrev=12", "--format=%h %cs"])?;
    let (commit, day) = line.split_once(' ')?;
    is_clean.then(|| (commit.to_owned(), day.to_owned()))
}

/// Whether a path differs from a commit. An unknown commit counts as a change.
pub(crate) fn changed_since(root: &Path, commit: &str, paths: &[String]) -> bool {
    let mut arguments = vec!["diff", "--quiet", commit, "--"];
    arguments.extend(paths.iter().map(String::as_str));
    git(root, &arguments).is_none_or(|output| !output.status.success())
}
