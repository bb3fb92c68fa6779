//! `/`, `/config`, `/version`: the paths of the API, and this daemon.
//!
//! Invariant: the index is made from the served paths.

use std::borrow::Cow;
use std::sync::Arc;

use axum::http::StatusCode;
use axum::response::Response;
use holdfast_status::age::add_ages;
use holdfast_status::rfc3339::Rfc3339;
use holdfast_status::views::datapath::DatapathKind;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::form::Form;
use super::path::ApiPath;
use super::query::Query;
use super::response;
use holdfast_agent::readings::Readings;

/// The paths of the API.
#[derive(Serialize, JsonSchema)]
pub(super) struct Index {
    paths: Vec<IndexRow>,
}

/// A path, and the parameters that it accepts.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Path")]
struct IndexRow {
    path: &'static str,
    about: &'static str,
    parameters: Vec<&'static str>,
}

/// Every path with the parameters that it accepts.
pub(super) fn index(paths: &[ApiPath], form: Form) -> Response {
    let names = |path: &ApiPath| path.parameters.iter().map(|it| it.name).collect();
    let row = |path: &ApiPath| IndexRow { path: path.path, about: path.about, parameters: names(path) };
    let index = Index { paths: paths.iter().map(row).collect() };
    response::render_response(StatusCode::OK, form, &index, || {
        index.paths.iter().map(IndexRow::render_line).collect::<String>()
    })
}

impl IndexRow {
    fn render_line(&self) -> String {
        let parameters = self.parameters.iter().map(|name| format!("?{name}=")).collect::<Vec<_>>();
        format!("{:14} {:42} {}", self.path, self.about, parameters.join(" ")).trim_end().to_owned() + "\n"
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
    response::typed_response(StatusCode::OK, form.content_type(), format!("{text}{line_end}"))
}

/// This daemon's version, node and datapath.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
pub struct Version {
    pub version: Cow<'static, str>,
    pub node: Arc<str>,
    #[schemars(extend("enum" = DatapathKind::ALL.map(DatapathKind::as_str)))]
    pub datapath: Cow<'static, str>,
    pub started: Rfc3339,
    /// The file of the configuration; null from a daemon before 1.0.
    #[serde(default)]
    pub config_file: Option<String>,
    /// The daemon's clock at this answer, from which people count ages; null from a daemon before 1.0.
    pub now: Option<Rfc3339>,
}

/// This daemon's version, and since when it runs.
pub(super) fn version(readings: &Readings, _: Query, form: Form) -> Response {
    let shown = Version {
        version: readings.about.version.into(),
        node: Arc::clone(&readings.snapshot().node.name),
        datapath: readings.datapath().kind().as_str().into(),
        started: Rfc3339(readings.about.started),
        config_file: Some(readings.files.config.display().to_string()),
        now: Some(Rfc3339(readings.now())),
    };
    let Version { version, node, datapath, started, .. } = &shown;
    let text = || format!("holdfast {version} on {node}, datapath {datapath}, since {started}\n");
    let text = || add_ages(&text(), readings.now());
    response::render_response(StatusCode::OK, form, &shown, text)
}
