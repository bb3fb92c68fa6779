//! `/`, `/config`, `/version`: what can be asked here, and what runs here.
//!
//! Invariant: the index is made of the paths that are served.

use std::sync::Arc;

use axum::http::StatusCode;
use axum::response::Response;
use holdfast_judgement::rfc3339::Rfc3339;
use holdfast_judgement::views::datapath::KINDS;
use schemars::JsonSchema;
use serde::Serialize;

use super::answer;
use super::form::Form;
use super::path::Path;
use super::query::Query;
use crate::readings::Readings;

/// What can be asked here.
#[derive(Serialize, JsonSchema)]
pub(super) struct Index {
    paths: Vec<IndexRow>,
}

/// A path that can be read, and the parameters that it understands.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Path")]
struct IndexRow {
    path: &'static str,
    about: &'static str,
    parameters: &'static [&'static str],
}

/// Every path with what it understands.
pub(super) fn index(paths: &[Path], form: Form) -> Response {
    let row =
        |path: &Path| IndexRow { path: path.path, about: path.about, parameters: path.legal.parameters };
    let paths: Vec<IndexRow> = paths.iter().map(row).collect();
    match form {
        Form::Json => answer::json(StatusCode::OK, &Index { paths }),
        Form::Table | Form::Wide => {
            let line = |row: &IndexRow| {
                let parameters = row.parameters.iter().map(|name| format!("?{name}=")).collect::<Vec<_>>();
                format!("{:14} {:42} {}", row.path, row.about, parameters.join(" ")).trim_end().to_owned()
                    + "\n"
            };
            answer::text(StatusCode::OK, paths.iter().map(line).collect::<String>())
        }
    }
}

/// The configuration in force, every key with its value.
pub(super) fn config(readings: &Readings, _: Query, form: Form) -> Response {
    let config = Arc::clone(&readings.config.borrow());
    let text = match form {
        Form::Json => &config.json,
        Form::Table | Form::Wide => &config.text,
    };
    let line_end = if text.ends_with('\n') { "" } else { "\n" };
    answer::typed(StatusCode::OK, form.content_type(), format!("{text}{line_end}"))
}

/// Which daemon runs here, and with what.
#[derive(Serialize, JsonSchema)]
pub(super) struct Version {
    version: &'static str,
    node: Arc<str>,
    #[schemars(extend("enum" = KINDS))]
    datapath: &'static str,
    started: Rfc3339,
}

/// What runs here, since when.
pub(super) fn version(readings: &Readings, _: Query, form: Form) -> Response {
    let about = &readings.about;
    let node = Arc::clone(&readings.snapshot().node.name);
    let datapath = readings.datapath().kind();
    let started = Rfc3339(about.started);
    match form {
        Form::Json => {
            let version = Version { version: about.version, node, datapath, started };
            answer::json(StatusCode::OK, &version)
        }
        Form::Table | Form::Wide => {
            let version = about.version;
            let text = format!("holdfast {version} on {node}, datapath {datapath}, since {started}\n");
            answer::text(StatusCode::OK, text)
        }
    }
}
