//! Errors that stop a run of tests.
//!
//! Invariant: each names its subject and the remedy. A failed test is no error.

use std::io;
use std::path::{Path, PathBuf};

#[derive(Debug, thiserror::Error)]
pub(crate) enum SuiteError {
    #[error("{what} {}", path.display())]
    File { what: &'static str, path: PathBuf, source: io::Error },
    #[error("{}: {source}", path.display())]
    Table { path: PathBuf, source: Box<toml::de::Error> },
    #[error("tests/parts.toml: {0}")]
    Wrong(String),
    #[error("there is no part {0}; `make parts` lists them")]
    NoPart(String),
    #[error("{} line {line}: {why}; it is written by `make ran`", path.display())]
    Row { path: PathBuf, line: usize, why: &'static str },
    #[error("start {program}")]
    Start { program: String, source: io::Error },
    #[error("{} cannot list its tests: {said}", program.display())]
    List { program: PathBuf, said: String },
    #[error("{0} is in no part of tests/parts.toml")]
    Unclaimed(String),
    #[error("SLOW needs root and a cgroup hierarchy with the controller cpu; BUSY works without")]
    NoProcessorCgroups,
    #[error("tests/mutants.toml: {0}")]
    Mutant(String),
    #[error("no test fits {pattern:?} of part {part}")]
    Empty { part: String, pattern: String },
}

/// Names the file in an error of a file operation.
pub(crate) fn at<'a>(what: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> SuiteError + 'a {
    move |source| SuiteError::File { what, path: path.to_owned(), source }
}
