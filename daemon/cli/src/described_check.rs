//! What a check of a diagnosis looks at, and when it is well.
//!
//! Invariant: it asks no daemon.

use std::io::Write;

use super::Exit;
use super::client::ClientError;

/// Describes a check, without a query to the daemon.
pub(super) fn print_check(check: &str, out: &mut impl Write) -> Result<Exit, ClientError> {
    let Some(text) = holdfast_diagnose::describe_check(check) else {
        let message =
            format!("no check is called {check:?}\nhint: a diagnosis with `-o wide` names all of them");
        return Err(ClientError::Refused { status: 400, message });
    };
    out.write_all(text.as_bytes())?;
    Ok(Exit::Good)
}
