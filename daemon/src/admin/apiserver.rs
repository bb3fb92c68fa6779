//! `/apiserver`: which apiserver is used, why that one, since when, and what is wrong with the others.
//!
//! Invariant: it shows what access published last, at most a second old; nobody is asked for it. Deliberately absent: secrets.

use axum::http::StatusCode;
use axum::response::Response;
use serde::Serialize;

use super::Readings;
use super::answer;
use super::form::Form;
use super::moment::Moment;
use super::query::Query;
use super::shown::{Cells, Widths};
use crate::apiserver::{ClusterId, CredentialsView, EndpointView, View};

#[derive(Serialize)]
struct Apiserver<'a> {
    enabled: bool,
    cluster: Option<&'a str>,
    unverified: Option<&'a str>,
    memory_problem: Option<&'a str>,
    failovers: u64,
    endpoints: Vec<EndpointRow<'a>>,
    credentials: Vec<CredentialsRow<'a>>,
}

#[derive(Serialize)]
struct EndpointRow<'a> {
    address: String,
    tier: &'static str,
    state: &'static str,
    active: bool,
    preferred: bool,
    since: Moment,
    connections: usize,
    last_error: Option<&'a str>,
    last_error_at: Option<Moment>,
    seen: Option<Moment>,
}

#[derive(Serialize)]
struct CredentialsRow<'a> {
    tier: &'static str,
    kind: &'static str,
    files: Vec<FileRow>,
    expires: Option<Moment>,
    problem: Option<&'a str>,
    problem_since: Option<Moment>,
}

#[derive(Serialize)]
struct FileRow {
    path: String,
    modified: Option<Moment>,
}

impl<'a> EndpointRow<'a> {
    fn of(view: &'a EndpointView) -> Self {
        Self {
            address: view.address.to_string(),
            tier: view.tier.as_str(),
            state: view.state.as_str(),
            active: view.active,
            preferred: view.preferred,
            since: Moment(view.since),
            connections: view.connections,
            last_error: view.last_error.as_ref().map(|(error, _)| error.as_str()),
            last_error_at: view.last_error.as_ref().map(|(_, at)| Moment(*at)),
            seen: view.seen.map(Moment),
        }
    }

    const fn used(&self) -> &'static str {
        match (self.active, self.preferred) {
            (true, true) => "active, preferred",
            (true, false) => "active",
            (false, true) => "preferred",
            (false, false) => "",
        }
    }

    fn cells(&self) -> Cells {
        let mut cells = Cells::default();
        for text in [&self.address, self.tier, self.state, self.used()] {
            cells.put(text);
        }
        cells.put(self.since);
        cells.put(self.connections);
        cells.put_optional(self.last_error_at);
        cells.put_optional(self.last_error);
        cells
    }
}

impl<'a> CredentialsRow<'a> {
    fn of(view: &'a CredentialsView) -> Self {
        let file = |(path, modified): &(std::path::PathBuf, _)| FileRow {
            path: path.display().to_string(),
            modified: Option::map(*modified, Moment),
        };
        Self {
            tier: view.tier.as_str(),
            kind: view.kind,
            files: view.files.iter().map(file).collect(),
            expires: view.expires.map(Moment),
            problem: view.problem.as_ref().map(|(problem, _)| problem.as_str()),
            problem_since: view.problem.as_ref().map(|(_, since)| Moment(*since)),
        }
    }

    fn cells(&self) -> Cells {
        let mut cells = Cells::default();
        cells.put(self.tier);
        cells.put(self.kind);
        let newest = self.files.iter().filter_map(|file| file.modified).max_by_key(|it| it.0);
        cells.put_optional(newest);
        cells.put_optional(self.expires);
        cells.put_optional(self.problem);
        cells
    }
}

impl<'a> Apiserver<'a> {
    fn of(view: &'a View, enabled: bool) -> Self {
        Self {
            enabled,
            cluster: view.cluster.as_ref().map(ClusterId::as_str),
            unverified: view.unverified.as_deref(),
            memory_problem: view.memory_problem.as_deref(),
            failovers: view.failovers,
            endpoints: view.endpoints.iter().map(EndpointRow::of).collect(),
            credentials: view.credentials.iter().map(CredentialsRow::of).collect(),
        }
    }

    fn text(&self) -> Vec<u8> {
        if !self.enabled {
            return b"no apiserver is used: [kubernetes] is not enabled\n".to_vec();
        }
        let identity = match (self.unverified, self.cluster) {
            (Some(why), _) => format!("cannot be verified, {why}"),
            (None, Some(uid)) => uid.to_owned(),
            (None, None) => "not known yet".to_owned(),
        };
        let mut out = format!("cluster    {identity}\nfailovers  {}\n", self.failovers).into_bytes();
        if let Some(problem) = self.memory_problem {
            out.extend_from_slice(format!("memory     {problem}\n").as_bytes());
        }
        let titles =
            ["ENDPOINT", "TIER", "STATE", "USE", "SINCE", "CONNECTIONS", "LAST ERROR AT", "LAST ERROR"];
        table(&titles, self.endpoints.iter().map(EndpointRow::cells), &mut out);
        let titles = ["CREDENTIALS", "KIND", "WRITTEN", "EXPIRES", "PROBLEM"];
        table(&titles, self.credentials.iter().map(CredentialsRow::cells), &mut out);
        out
    }
}

fn table(titles: &[&str], rows: impl Iterator<Item = Cells>, out: &mut Vec<u8>) {
    let mut heading = Cells::default();
    titles.iter().for_each(|title| heading.put(title));
    let lines: Vec<Cells> = std::iter::once(heading).chain(rows).collect();
    let mut widths = Widths::default();
    lines.iter().for_each(|cells| widths.observe(cells));
    out.push(b'\n');
    lines.iter().for_each(|cells| widths.line(cells, out));
}

/// The whole answer.
pub(super) fn apiserver(readings: &Readings, _: Query, form: Form) -> Response {
    let view = readings.apiserver();
    let none = View::default();
    let shown = Apiserver::of(view.as_deref().unwrap_or(&none), view.is_some());
    match form {
        Form::Json => answer::json(StatusCode::OK, &shown),
        Form::Table | Form::Wide => answer::text(StatusCode::OK, shown.text()),
    }
}
