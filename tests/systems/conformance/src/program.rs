//! Runs programs to their end.
//!
//! Invariant: an error has the command and the end of its output.

use std::io::Write;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use holdfast_fixtures::clock::{Deadline, pause};

use crate::ClusterError;

/// How much of a failed program's output is shown.
const SAID_CHARS_MAX: usize = 2000;

const POLL: Duration = Duration::from_millis(100);

/// Runs a program to its end with this input.
pub(crate) fn output(command: &mut Command, input: &str) -> Result<Output, ClusterError> {
    let program = command.get_program().to_string_lossy().into_owned();
    let failed = |source| ClusterError::Start { program: program.clone(), source };
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(failed)?;
    // A program that ends before it has read all reports why itself.
    let mut pipe = child.stdin.take();
    thread::scope(|scope| {
        scope.spawn(move || pipe.as_mut().map(|pipe| pipe.write_all(input.as_bytes())));
        child.wait_with_output().map_err(failed)
    })
}

/// The standard output of a program that must succeed.
pub(crate) fn said(command: &mut Command, input: &str) -> Result<String, ClusterError> {
    let output = output(command, input)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(ClusterError::Failed { command: written(command), status: output.status, said: output_tail(&output) })
}

/// A command as one would type it.
fn written(command: &Command) -> String {
    let words = [command.get_program()].into_iter().chain(command.get_args());
    let text = words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
    text.chars().take(SAID_CHARS_MAX).collect()
}

/// The end of a program's output, standard error last.
pub(crate) fn output_tail(output: &Output) -> String {
    let text = [output.stdout.as_slice(), &output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    let from = text.trim().char_indices().rev().nth(SAID_CHARS_MAX).map_or(0, |(at, _)| at);
    text.trim().get(from..).unwrap_or_default().to_owned()
}

/// Polls until a condition holds; false when the time is up.
pub(crate) fn wait(limit: Duration, mut is_so: impl FnMut() -> bool) -> bool {
    let end = Deadline::after(limit);
    while !is_so() {
        if end.is_over() {
            return false;
        }
        pause(POLL);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_reports_the_command_and_its_output() {
        let error = said(Command::new("sh").args(["-c", "echo out; echo no >&2; exit 3"]), "").unwrap_err();
        assert_eq!(
            error.to_string(),
            "`sh -c echo out; echo no >&2; exit 3` ended with exit status: 3: out\nno"
        );
    }

    #[test]
    fn input_is_read_whole_and_a_program_may_ignore_it() {
        let long = "x".repeat(1 << 20);
        assert_eq!(said(Command::new("wc").arg("-c"), &long).unwrap().trim(), "1048576");
        assert_eq!(said(&mut Command::new("true"), &long).unwrap(), "");
    }
}
