//! `/apiserver`: the apiserver in use, why that one, since when, and the errors of the others.
//!
//! Invariant: the answer is the last published view, at most a second old; no request is sent for it. No secret is
//! shown.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use axum::http::StatusCode;
use axum::response::Response;
use holdfast_core::facts::Timestamp;
use holdfast_status::rfc3339::Rfc3339;
use holdfast_status::schema_types::Code;
use holdfast_status::views::apiserver::{
    ApiserverState, ApiserverView, ClusterId, CredentialsView, EndpointView, LearnedState, Tier, VipView,
};
use schemars::JsonSchema;
use serde::Serialize;

use super::form::Form;
use super::query::Query;
use super::response;
use super::text_table::{Cells, write_dated_table};
use holdfast_agent::readings::Readings;
use holdfast_kubernetes::apiserver::Encoding;
use holdfast_kubernetes::source::{Resource, State as WatchState, Watch, is_away};

/// The connections to the apiserver.
#[derive(Serialize, JsonSchema)]
pub(super) struct Apiserver<'a> {
    /// Whether an apiserver is used; if not, everything else is empty.
    enabled: bool,
    /// The uid of the cluster's kube-system.
    cluster: Option<&'a str>,
    /// Why an apiserver may not tell which cluster it belongs to.
    unverified: Option<&'a str>,
    /// Why the learned addresses cannot be stored for a restart.
    memory_problem: Option<&'a str>,
    /// Requests that moved on to another endpoint.
    failovers: u64,
    /// The virtual address; null unless `[apiserver] vip` is set.
    vip: Option<VipRow>,
    /// Whether this node hears of no change: no watch works, or that of Services or EndpointSlices has failed for a
    /// minute.
    away: bool,
    /// Why the zone of this node is unknown, or may have changed unnoticed.
    zone_problem: Option<String>,
    /// The known endpoints, in order of preference.
    endpoints: Vec<EndpointRow<'a>>,
    /// The configured credentials, then kubelet's.
    credentials: Vec<CredentialsRow<'a>>,
    /// The state of each watch.
    watches: Vec<WatchRow>,
}

/// The address at which others on this node reach an apiserver.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "ApiserverVip")]
struct VipRow {
    /// The address that others dial.
    address: String,
    /// The endpoint behind it; null until an endpoint has ever answered.
    leads_to: Option<String>,
}

impl VipRow {
    fn from_view(view: &VipView) -> Self {
        Self { address: view.address.to_string(), leads_to: view.leads_to.map(|it| it.to_string()) }
    }

    fn text(&self) -> String {
        let leads_to = self.leads_to.as_deref().unwrap_or("nowhere: no endpoint has answered yet");
        format!("vip        {} leads to {leads_to}\n", self.address)
    }
}

/// One address of an apiserver.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "ApiserverEndpoint")]
struct EndpointRow<'a> {
    /// The address of the apiserver, with its port.
    address: String,
    /// The origin of the address: the configuration, kubelet, or the cluster.
    tier: Code<Tier>,
    /// The result of the last attempts.
    state: Code<ApiserverState>,
    /// Whether it has connections now.
    active: bool,
    /// Whether the next connection goes to this endpoint first.
    preferred: bool,
    /// Since when it has this state.
    since: Rfc3339,
    /// How many connections it has.
    connections: usize,
    #[serde(skip)]
    is_silent: bool,
    /// When the last byte of a list or a watch came from it; null if no watch uses it. An apiserver sends something
    /// each minute, and a hanging one looks healthy until the next attempt.
    heard: Option<Rfc3339>,
    /// The last error.
    last_error: Option<&'a str>,
    /// When the last error occurred.
    last_error_at: Option<Rfc3339>,
    /// When the cluster last listed it; null unless it is learned.
    seen: Option<Rfc3339>,
    /// When the cluster first listed it; null unless it is learned.
    learned: Option<Rfc3339>,
    /// Whether the cluster lists a learned endpoint: now, no longer (past), or last, because default/kubernetes lists
    /// none of its family now (held).
    listed: Option<Code<LearnedState>>,
    /// The EndpointSlice that last listed a learned endpoint.
    source: Option<String>,
}

/// The daemon's identity to the apiserver. Nothing here is secret.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "ApiserverCredentials")]
struct CredentialsRow<'a> {
    /// The endpoints that the credentials are for; learned endpoints get the configured credentials.
    tier: Code<Tier>,
    /// The kind of credentials: a token, a client certificate, a program that gives either.
    kind: &'static str,
    /// Their files.
    files: Vec<FileRow>,
    /// When they expire, if known.
    expires: Option<Rfc3339>,
    /// Why the last read failed.
    problem: Option<&'a str>,
    /// Since when they are unreadable.
    problem_since: Option<Rfc3339>,
}

/// A file of credentials.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "CredentialsFile")]
struct FileRow {
    /// The path of the file.
    path: String,
    /// When it was last written; null if it does not exist.
    modified: Option<Rfc3339>,
}

/// A watch of one kind of objects.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "ApiserverWatch")]
struct WatchRow {
    /// The kind of its objects.
    kind: Code<Resource>,
    /// The state of the watch.
    state: Code<WatchState>,
    /// Since when it has this state.
    since: Rfc3339,
    /// The apiserver that answered last.
    endpoint: Option<Arc<str>>,
    /// The encoding of its answer.
    encoding: Option<Code<Encoding>>,
    /// When the last byte of a list or a watch came.
    heard: Option<Rfc3339>,
    /// The resource version up to which the watch is complete.
    resource_version: Option<Arc<str>>,
    /// Known objects.
    objects: usize,
    /// Objects with an invalid last version.
    bad: usize,
    /// Objects that were unreadable in their encoding, and were requested again as JSON.
    alone: u64,
    /// Whole lists that were read.
    lists: u64,
    /// Lists and watches that failed or broke off.
    restarts: u64,
    /// Pages of lists that were requested again.
    page_retries: u64,
    /// Events that changed something.
    events: u64,
    /// Lists that removed more than half of everything.
    losses: u64,
    /// Comparisons with what the server has.
    audits: u64,
    /// Comparisons that found changes missed by the watch.
    differences: u64,
    /// The last error.
    last_error: Option<Arc<str>>,
    /// When the last error occurred.
    last_error_at: Option<Rfc3339>,
}

const ENDPOINT_TITLES: [&str; 10] =
    ["ENDPOINT", "TIER", "STATE", "USE", "SINCE", "HEARD", "CONNECTIONS", "LISTED", "SEEN", "SOURCE"];

const WATCH_TITLES: [&str; 9] =
    ["WATCH", "STATE", "SINCE", "ENCODING", "HEARD", "OBJECTS", "BAD", "LISTS", "RESTARTS"];

const LAST_ERROR: [&str; 2] = ["LAST ERROR AT", "LAST ERROR"];

impl WatchRow {
    fn from_watch(watch: Watch) -> Self {
        let (last_error, last_error_at) = watch.last_error.map(|it| (it.text, to_wall_clock(it.at))).unzip();
        Self {
            kind: Code(watch.what),
            state: Code(watch.state),
            since: to_wall_clock(watch.since),
            endpoint: watch.endpoint,
            encoding: watch.encoding.map(Code),
            heard: watch.last_received.map(to_wall_clock),
            resource_version: watch.resource_version,
            objects: watch.objects,
            bad: watch.bad,
            alone: watch.refetched,
            lists: watch.lists,
            restarts: watch.restarts,
            page_retries: watch.page_retries,
            events: watch.events,
            losses: watch.losses,
            audits: watch.audits,
            differences: watch.differences,
            last_error,
            last_error_at,
        }
    }

    /// The cells that fit a screen of 120 columns.
    fn short_cells(&self) -> Cells {
        let mut cells = Cells::default();
        cells.put(self.kind);
        cells.put(self.state);
        cells.put_optional(self.heard);
        cells.put(self.objects);
        cells.put_optional(self.last_error.as_deref());
        cells
    }

    fn cells(&self) -> Cells {
        let mut cells = Cells::default();
        cells.put(self.kind);
        cells.put(self.state);
        cells.put(self.since);
        cells.put_optional(self.encoding);
        cells.put_optional(self.heard);
        for count in [self.objects, self.bad] {
            cells.put(count);
        }
        for count in [self.lists, self.restarts] {
            cells.put(count);
        }
        cells.put_optional(self.last_error_at);
        cells.put_optional(self.last_error.as_deref());
        cells
    }
}

/// A moment of this process on the wall clock, to the nearest second, so that the same moment always shows the same
/// second.
fn to_wall_clock(at: Instant) -> Rfc3339 {
    let then = SystemTime::now().checked_sub(at.elapsed()).unwrap_or(UNIX_EPOCH) + Duration::from_millis(500);
    let since = then.duration_since(UNIX_EPOCH).unwrap_or_default();
    Rfc3339(Timestamp(i64::try_from(since.as_secs()).unwrap_or(i64::MAX)))
}

/// How long a watch of a healthy apiserver may stay silent: that sends a bookmark each minute.
const BOOKMARK_LATE: Duration = Duration::from_secs(65);

impl<'a> EndpointRow<'a> {
    fn from_view(view: &'a EndpointView, watches: &[Watch]) -> Self {
        let learned = view.learned.as_ref();
        let address = view.address.to_string();
        let own = watches.iter().filter(|watch| watch.endpoint.as_deref() == Some(address.as_str()));
        let heard = own.filter_map(|watch| watch.last_received).max();
        Self {
            address,
            heard: heard.map(to_wall_clock),
            is_silent: heard.is_some_and(|at| at.elapsed() > BOOKMARK_LATE),
            tier: Code(view.tier),
            state: Code(view.state),
            active: view.active,
            preferred: view.preferred,
            since: Rfc3339(view.since),
            connections: view.connections,
            last_error: view.last_error.as_ref().map(|(error, _)| error.as_str()),
            last_error_at: view.last_error.as_ref().map(|(_, at)| Rfc3339(*at)),
            seen: view.last_named.map(Rfc3339),
            learned: learned.and_then(|it| it.since).map(Rfc3339),
            listed: learned.map(|it| Code(it.state)),
            source: learned.and_then(|it| it.slice.as_ref()).map(|slice| format!("default/{slice}")),
        }
    }

    fn describe_use(&self) -> &'static str {
        match (self.active, self.preferred) {
            (true, true) => "active, preferred",
            (true, false) => "active",
            (false, true) if self.state.0 == ApiserverState::Failed => "tried first",
            (false, true) => "preferred",
            (false, false) => "",
        }
    }

    /// The cells that both tables begin with.
    fn first_cells(&self) -> Cells {
        let mut cells = Cells::default();
        cells.put(&self.address);
        cells.put(self.tier);
        if self.is_silent && self.state.0 == ApiserverState::Healthy {
            cells.put("unheard");
        } else {
            cells.put(self.state);
        }
        cells.put(self.describe_use());
        cells
    }

    /// The cells that fit a screen of 120 columns.
    fn short_cells(&self) -> Cells {
        let mut cells = self.first_cells();
        cells.put_optional(self.heard);
        cells.put_optional(self.last_error);
        cells
    }

    fn cells(&self) -> Cells {
        let mut cells = self.first_cells();
        cells.put(self.since);
        cells.put_optional(self.heard);
        cells.put(self.connections);
        cells.put_optional(self.listed);
        cells.put_optional(self.seen);
        cells.put_optional(self.source.as_deref());
        cells.put_optional(self.last_error_at);
        cells.put_optional(self.last_error);
        cells
    }
}

impl<'a> CredentialsRow<'a> {
    fn from_view(view: &'a CredentialsView) -> Self {
        let file = |(path, modified): &(std::path::PathBuf, _)| FileRow {
            path: path.display().to_string(),
            modified: Option::map(*modified, Rfc3339),
        };
        Self {
            tier: Code(view.tier),
            kind: view.kind,
            files: view.files.iter().map(file).collect(),
            expires: view.expires.map(Rfc3339),
            problem: view.problem.as_ref().map(|(problem, _)| problem.as_str()),
            problem_since: view.problem.as_ref().map(|(_, since)| Rfc3339(*since)),
        }
    }

    fn cells(&self, is_wide: bool) -> Cells {
        let mut cells = Cells::default();
        cells.put(self.tier);
        cells.put(self.kind);
        if is_wide {
            let newest = self.files.iter().filter_map(|file| file.modified).max_by_key(|it| it.0);
            cells.put_optional(newest);
        }
        cells.put_optional(self.expires);
        cells.put_optional(self.problem);
        cells
    }
}

impl<'a> Apiserver<'a> {
    fn from_view(view: &'a ApiserverView, watches: Vec<Watch>, (node, enabled): (&str, bool)) -> Self {
        Self {
            enabled,
            cluster: view.cluster.as_ref().map(ClusterId::as_str),
            unverified: view.unverified_reason.as_deref(),
            memory_problem: view.memory_problem.as_deref(),
            failovers: view.failovers,
            vip: view.vip.as_ref().map(VipRow::from_view),
            away: is_away(&watches, Instant::now()),
            zone_problem: watches.iter().find_map(|watch| watch.zone_problem(node)),
            endpoints: view
                .endpoints
                .iter()
                .map(|endpoint| EndpointRow::from_view(endpoint, &watches))
                .collect(),
            credentials: view.credentials.iter().map(CredentialsRow::from_view).collect(),
            watches: watches.into_iter().map(WatchRow::from_watch).collect(),
        }
    }

    /// What an operator does while the apiserver is away, outside holdfast.
    fn describe_next(&self) -> Option<String> {
        let first = self.endpoints.first().filter(|_| self.away)?;
        let is_refused =
            |it: &EndpointRow<'_>| it.last_error.is_some_and(|why| why.contains("connection refused"));
        let there = if self.endpoints.iter().all(is_refused) {
            "look on the machine that has the address whether kube-apiserver runs; "
        } else {
            ""
        };
        Some(format!("next       {there}from here: curl -k https://{}/readyz\n", first.address))
    }

    fn text(&self, is_wide: bool, now: Timestamp) -> Vec<u8> {
        if !self.enabled {
            return b"no apiserver is used: [kubernetes] is not enabled\n".to_vec();
        }
        let identity = match (self.unverified, self.cluster) {
            (Some(why), _) => format!("cannot be verified, {why}"),
            (None, Some(uid)) => uid.to_owned(),
            (None, None) => "not known yet".to_owned(),
        };
        let mut out = format!("cluster    {identity}\nfailovers  {}\n", self.failovers).into_bytes();
        out.extend(self.vip.iter().flat_map(|vip| vip.text().into_bytes()));
        if let Some(problem) = self.memory_problem {
            out.extend_from_slice(format!("memory     {problem}\n").as_bytes());
        }
        // What to do first, then what matters less.
        out.extend(self.describe_next().unwrap_or_default().into_bytes());
        if let Some(problem) = self.zone_problem.as_ref().filter(|_| !self.away) {
            out.extend_from_slice(format!("zone       {problem}\n").as_bytes());
        }
        out.push(b'\n');
        if is_wide {
            let titles = [&ENDPOINT_TITLES[..], &LAST_ERROR].concat();
            write_dated_table(titles, self.endpoints.iter().map(EndpointRow::cells), now, &mut out);
        } else {
            let titles = ["ENDPOINT", "TIER", "STATE", "USE", "HEARD", "LAST ERROR"];
            write_dated_table(titles, self.endpoints.iter().map(EndpointRow::short_cells), now, &mut out);
        }
        out.push(b'\n');
        let credentials = self.credentials.iter().map(|it| it.cells(is_wide));
        if is_wide {
            write_dated_table(
                ["CREDENTIALS", "KIND", "WRITTEN", "EXPIRES", "PROBLEM"],
                credentials,
                now,
                &mut out,
            );
        } else {
            write_dated_table(["CREDENTIALS", "KIND", "EXPIRES", "PROBLEM"], credentials, now, &mut out);
        }
        out.push(b'\n');
        if is_wide {
            let titles = [&WATCH_TITLES[..], &LAST_ERROR].concat();
            write_dated_table(titles, self.watches.iter().map(WatchRow::cells), now, &mut out);
        } else {
            let titles = ["WATCH", "STATE", "HEARD", "OBJECTS", "LAST ERROR"];
            write_dated_table(titles, self.watches.iter().map(WatchRow::short_cells), now, &mut out);
        }
        // While nothing is heard, what the Node lacks is no cause of that, so it comes last.
        if let Some(problem) = self.zone_problem.as_ref().filter(|_| self.away) {
            out.extend_from_slice(format!("\nalso: {problem}\n").as_bytes());
        }
        out
    }
}

/// The last published state of access and the watches.
pub(super) fn apiserver(readings: &Readings, _: Query, form: Form) -> Response {
    let view = readings.apiserver();
    let none = ApiserverView::default();
    let snapshot = readings.snapshot();
    let known = (&*snapshot.node.name, view.is_some());
    let shown = Apiserver::from_view(view.as_deref().unwrap_or(&none), readings.watches.current(), known);
    let response = response::render_response(StatusCode::OK, form, &shown, || {
        shown.text(form == Form::Wide, readings.now())
    });
    response::with_finding(response, shown.away)
}
