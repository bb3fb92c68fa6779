//! `diagnose` without a service: the status of the node, then the diagnoses of the first services in trouble.
//!
//! Invariant: it diagnoses a bounded number of services and says how many it left out.

use std::io::Write;

use serde::Serialize;
use serde_json::Value;

use super::Exit;
use super::client::{Client, ClientError};
use super::status::{Status, to_json};

/// The most services that are diagnosed at once: each takes up to five seconds, and a screen holds no more.
const DIAGNOSED_MAX: usize = 3;

const NO_TROUBLE_BUT_DENIED: &str = "\nNo service fails its clients, as far as this node sees. Rules of a service turned away the clients above.\n";

/// The answer of `diagnose -o json` without a service.
#[derive(Serialize)]
struct NodeDiagnosis<'a> {
    status: &'a Status,
    diagnoses: Vec<Value>,
    /// How many more services are in trouble.
    diagnoses_omitted: usize,
}

/// The text of a node's status and of its diagnoses.
pub(super) fn write_text(
    client: &Client,
    diagnose: impl Fn(&str, &mut Vec<u8>) -> Result<Exit, ClientError>,
    out: &mut impl Write,
) -> Result<Exit, ClientError> {
    let status = Status::query(client)?;
    out.write_all(status.to_text()?.as_bytes())?;
    let services = status.list_services_in_trouble();
    let mut exit = status.exit();
    for service in services.iter().take(DIAGNOSED_MAX) {
        let mut text = b"\n".to_vec();
        exit = worse_exit(exit, diagnose(service, &mut text)?);
        out.write_all(&text)?;
    }
    let more = match services.len().saturating_sub(DIAGNOSED_MAX) {
        0 if services.is_empty() && status.has_denied_clients() => NO_TROUBLE_BUT_DENIED.to_owned(),
        0 if services.is_empty() => "\nNo service fails its clients, as far as this node sees.\n".to_owned(),
        0 => String::new(),
        more => format!("\nand {}: holdfast diagnose NAMESPACE/NAME\n", format_more(more)),
    };
    out.write_all(more.as_bytes())?;
    out.flush()?;
    Ok(exit)
}

/// The same as one JSON object.
pub(super) fn write_json(
    client: &Client,
    diagnose: impl Fn(&str, &mut Vec<u8>) -> Result<Exit, ClientError>,
    out: &mut impl Write,
) -> Result<Exit, ClientError> {
    let status = Status::query(client)?;
    let services = status.list_services_in_trouble();
    let mut exit = status.exit();
    let mut diagnoses = Vec::new();
    for service in services.iter().take(DIAGNOSED_MAX) {
        let mut text = Vec::new();
        exit = worse_exit(exit, diagnose(service, &mut text)?);
        diagnoses
            .push(serde_json::from_slice::<Value>(&text).map_err(|error| ClientError::Broken(error.into()))?);
    }
    let diagnoses_omitted = services.len().saturating_sub(DIAGNOSED_MAX);
    writeln!(out, "{}", to_json(&NodeDiagnosis { status: &status, diagnoses, diagnoses_omitted })?)?;
    out.flush()?;
    Ok(exit)
}

fn format_more(services: usize) -> String {
    if services == 1 { "1 more service".to_owned() } else { format!("{services} more services") }
}

/// The exit that tells more of what is wrong.
fn worse_exit(one: Exit, other: Exit) -> Exit {
    let order = [Exit::Errors, Exit::Finding, Exit::NoService, Exit::Incomplete, Exit::Good];
    let rank = |exit: Exit| order.iter().position(|it| *it == exit);
    if rank(one) <= rank(other) { one } else { other }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exit_is_that_of_the_worst_answer() {
        for (one, other, worse) in [
            (Exit::Good, Exit::Good, Exit::Good),
            (Exit::Good, Exit::Incomplete, Exit::Incomplete),
            (Exit::Finding, Exit::Incomplete, Exit::Finding),
            (Exit::Finding, Exit::Errors, Exit::Errors),
        ] {
            assert_eq!(worse_exit(one, other), worse);
            assert_eq!(worse_exit(other, one), worse);
        }
    }
}
