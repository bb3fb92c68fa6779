//! `watch`: records as they happen.
//!
//! Invariant: each record is written as soon as it arrives. The command ends by itself only if the daemon stops or
//! rejects it, or if the stream breaks, and says which. It does not reconnect: that would hide the records that it
//! missed meanwhile.

use std::io::{self, BufRead, BufReader, Write};

use holdfast_status::printable::Printable;
use holdfast_status::record::Record;
use serde::Deserialize;

use super::Exit;
use super::client::{Client, ClientError};
use holdfast_api::form::Form;

#[derive(Debug, Deserialize)]
struct EndEvent {
    why: String,
}

/// Watches until the daemon or the reader of the output is gone.
pub(super) fn run_watch(
    client: &Client,
    path: &str,
    output: Form,
    out: &mut impl Write,
    err: &mut impl Write,
) -> Result<Exit, ClientError> {
    let mut answer = client.get(path)?.expect_ok()?;
    client.report_fallback(err);
    let mut event = String::new();
    for line in BufReader::new(answer.body()).lines() {
        let line = line.map_err(ClientError::Broken)?;
        match line.split_once(": ") {
            Some(("event", name)) => name.clone_into(&mut event),
            Some(("data", json)) if event == "record" => {
                writeln!(out, "{}", render_record(json, output)?)?;
                out.flush()?;
            }
            Some(("data", json)) => {
                let EndEvent { why } = parse_json(json)?;
                writeln!(err, "holdfast: {}", Printable(why))?;
                return Ok(Exit::Unreachable);
            }
            Some(_) | None => {}
        }
    }
    Err(ClientError::Broken(io::Error::new(io::ErrorKind::UnexpectedEof, "the stream broke off")))
}

fn render_record(json: &str, output: Form) -> Result<String, ClientError> {
    match output {
        Form::Json => Ok(json.to_owned()),
        Form::Table | Form::Wide => parse_json::<Record>(json).map(|record| record.sentence()),
    }
}

fn parse_json<'a, T: Deserialize<'a>>(json: &'a str) -> Result<T, ClientError> {
    serde_json::from_str(json).map_err(|error| ClientError::Broken(error.into()))
}
