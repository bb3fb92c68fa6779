//! Errors between a package mirror and a program in a kernel.
//!
//! Each error names the attempt, its subject, and the remedy unless that is obvious.

use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Why there is no kernel, no guest or no result.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("{what} {}", path.display())]
    File { what: &'static str, path: PathBuf, source: io::Error },
    #[error("start `{program}`; is it installed? `scripts/setup vm` brings what is needed")]
    Start { program: String, source: io::Error },
    #[error("`{program}` failed with {status}: {said}")]
    Program { program: String, status: std::process::ExitStatus, said: String },
    #[error("no kernel of series {series} among the packages; there are {known}")]
    NoSuchKernel { series: String, known: String },
    #[error("{what} was not fetched; run `scripts/setup vm`")]
    NotFetched { what: String },
    #[error("{} is packed in a way that is not known here", path.display())]
    UnknownPacking { path: PathBuf },
    #[error("{} has no place for the table: two lines `<!-- observed: begin -->` and `<!-- observed: end -->`", path.display())]
    NoTable { path: PathBuf },
    #[error("a client of the tests could not be built")]
    Client(#[from] holdfast_tests::bed::BedError),
    #[error("the guest gave no exit code, {why}; its console ended so:\n{console}")]
    NoResult {
        why: &'static str,
        console: String,
        /// Whether the emulator has failed, and not what ran in the guest.
        is_emulators: bool,
    },
}

/// An error with all of its causes.
pub(crate) fn described(failure: &Failure) -> String {
    let mut text = failure.to_string();
    let mut cause = failure.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// Names the file in an error of a file operation.
pub(crate) fn at<'a>(what: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> Failure + 'a {
    move |source| Failure::File { what, path: path.to_owned(), source }
}

/// Runs a program to its end and returns its standard output.
pub(crate) fn output(command: &mut Command) -> Result<Vec<u8>, Failure> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|source| Failure::Start { program: program.clone(), source })?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(Failure::Program { program, status: output.status, said })
}
