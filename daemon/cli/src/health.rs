//! `holdfast health`: one question of a probe, with the answer as an exit code.
//!
//! Invariant: that the daemon is not well is an answer, and says why; a daemon that says nothing
//! is unreachable.

use std::io::Write;

use clap::ValueEnum;

use super::Exit;
use super::client::{Client, ClientError};
use holdfast_api::form::Form;

/// What a probe asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum HealthProbe {
    /// The engine, the one task that writes to the kernel, moves: `/livez`
    Live,
    /// The kernel serves what is known: `/readyz`
    Ready,
}

/// Asks and ends as the answer says.
pub(super) fn query_health(
    client: &Client,
    what: HealthProbe,
    output: Form,
    out: &mut impl Write,
) -> Result<Exit, ClientError> {
    let path = match what {
        HealthProbe::Live => "/livez",
        HealthProbe::Ready => "/readyz",
    };
    let mut answer = client.get(&format!("{path}?format={}", output.as_str()))?;
    let is_good = answer.status == 200;
    answer.copy_body(out)?;
    Ok(if is_good { Exit::Good } else { Exit::Finding })
}
