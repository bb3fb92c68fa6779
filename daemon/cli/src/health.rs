//! `holdfast health`: one query of a probe, with the answer as an exit code.
//!
//! Invariant: an unhealthy daemon answers, and says why; a silent daemon is unreachable.

use std::io::Write;

use clap::ValueEnum;

use super::Exit;
use super::client::{Client, ClientError};
use holdfast_api::form::Form;

/// The endpoint of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum HealthProbe {
    /// The engine, the one task that writes to the kernel, makes progress: `/livez`
    Live,
    /// The kernel has the tables of all known services: `/readyz`
    Ready,
}

/// Queries the probe, and exits by the answer.
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
