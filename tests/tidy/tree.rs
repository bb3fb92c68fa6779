//! The repository as texts, and the findings of rules about them.
//!
//! Invariant: paths are relative to the repository, use `/` and have a stable order. No rule calls git, so the rules
//! also run on an unpacked archive.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// One file, with its text.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    pub(crate) path: String,
    pub(crate) text: String,
}

/// One place that breaks one rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) path: String,
    /// Counted from 1.
    pub(crate) line: usize,
    pub(crate) rule: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.rule)
    }
}

impl Source {
    pub(crate) fn new(path: &str, text: &str) -> Self {
        Self { path: path.to_owned(), text: text.to_owned() }
    }

    pub(crate) fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    pub(crate) fn finding(&self, line: usize, rule: impl Into<String>) -> Finding {
        Finding { path: self.path.clone(), line, rule: rule.into() }
    }
}

/// Every file of the repository.
pub(crate) fn repository() -> io::Result<Vec<Source>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut paths = Vec::new();
    collect(&root, &mut paths)?;
    paths.sort();
    Ok(paths.iter().filter_map(|path| read(&root, path)).collect())
}

/// A file that is not text, such as a picture, has no lines.
fn read(root: &Path, path: &Path) -> Option<Source> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let relative = path.strip_prefix(root).ok()?;
    Some(Source::new(&relative.to_string_lossy(), &text))
}

fn collect(folder: &Path, paths: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_file() {
            paths.push(entry.path());
        } else if kind.is_dir() && is_ours(&entry.path()) {
            collect(&entry.path(), paths)?;
        }
    }
    Ok(())
}

/// Build output marks itself as a cache. Hidden folders other than CI's belong to tools.
fn is_ours(folder: &Path) -> bool {
    let name = folder.file_name().unwrap_or_default().to_string_lossy();
    (name == ".ci" || !name.starts_with('.')) && name != "target" && !folder.join("CACHEDIR.TAG").exists()
}

/// Fails with one line for each finding.
#[track_caller]
pub(crate) fn assert_none(findings: &[Finding]) {
    let lines: Vec<String> = findings.iter().map(ToString::to_string).collect();
    assert!(lines.is_empty(), "\n{}", lines.join("\n"));
}

/// A rule about one file.
pub(crate) type Rule = fn(&Source) -> Vec<Finding>;

/// Fails unless the rule finds exactly these lines of a text.
#[track_caller]
pub(crate) fn check(rule: Rule, path: &str, text: &str, lines: &[usize]) {
    let found: Vec<usize> = rule(&Source::new(path, text)).iter().map(|finding| finding.line).collect();
    assert_eq!(found, lines, "in {path}: {text}");
}

/// A rule about all files together.
pub(crate) type TreeRule = fn(&[Source]) -> Vec<Finding>;

/// Fails unless the rule finds exactly these lines of some files.
#[track_caller]
pub(crate) fn check_tree(rule: TreeRule, sources: &[(&str, &str)], expected: &[(&str, usize)]) {
    let sources: Vec<Source> = sources.iter().map(|(path, text)| Source::new(path, text)).collect();
    let found = rule(&sources);
    let found: Vec<(&str, usize)> = found.iter().map(|it| (it.path.as_str(), it.line)).collect();
    assert_eq!(found, expected, "in {sources:?}");
}

/// Fails if the rule finds anything in the repository.
#[cfg(test)]
#[track_caller]
pub(crate) fn check_repository(rule: Rule) {
    let sources = repository().unwrap();
    assert_none(&sources.iter().flat_map(rule).collect::<Vec<_>>());
}

#[test]
fn the_repository_is_read_with_all_its_folders() {
    let sources = repository().unwrap();
    for path in ["Makefile", ".ci/run", "tests/tidy/tree.rs", "daemon/core/src/lib.rs"] {
        assert!(sources.iter().any(|source| source.path == path), "{path} is missing");
    }
}

#[test]
fn a_finding_names_file_line_and_rule() {
    assert_eq!(Source::new("a.rs", "").finding(7, "no").to_string(), "a.rs:7: no");
}
