//! `/refusals`: the latest rejected clients, and the current service of the frontend they dialled.
//!
//! Invariant: a row names the current service of the frontend, which a retry would reach.

use std::net::{IpAddr, SocketAddr};

use axum::http::StatusCode;
use axum::response::Response;
use holdfast_core::facts::Timestamp;
use holdfast_core::keys::{ObjectName, Transport};
use holdfast_core::snapshot::Reason;
use holdfast_status::rfc3339::Rfc3339;
use holdfast_status::schema_types::{Code, Text};
use holdfast_status::views::refusals::{Cause, DENIALS, DeniedClient, FrontendOwner, Owners, denial_word};
use schemars::JsonSchema;
use serde::Serialize;

use super::form::Form;
use super::query::Filter;
use super::response;
use super::text_table::{Cells, write_dated_table};
use holdfast_agent::datapath::{RefusalSnapshot, Stage, device_name};
use holdfast_agent::readings::Readings;

/// Under a table without a row, so that nobody takes it for "all is well".
const NOBODY: &str = "\nnone by holdfast itself; if backends refuse clients, `holdfast status` names them\n";

/// The latest refusals, newest first, and the counts of all.
#[derive(Serialize, JsonSchema)]
pub(super) struct Refusals<'a> {
    refusals: Vec<RefusalRow<'a>>,
    /// Clients that got ECONNREFUSED since the daemon started.
    refused_total: u64,
    /// Clients that were dropped since the daemon started.
    dropped_total: u64,
    /// Refusals that were too many to be reported, or that the daemon did not read in time; they are in no other
    /// number.
    lost_total: u64,
    /// Why the daemon reads no more refusals.
    failure: Option<String>,
}

/// Rejected attempts of one process, or of one outside address, at one frontend.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Refusal")]
struct RefusalRow<'a> {
    /// The latest attempt.
    time: Rfc3339,
    /// The first of the counted attempts.
    first_time: Rfc3339,
    /// How many attempts.
    count: u64,
    #[schemars(extend("enum" = DENIALS))]
    verdict: &'static str,
    /// The address that the client dialled; for a NodePort the node's.
    address: IpAddr,
    port: u16,
    protocol: Code<Transport>,
    /// `namespace/name` of the current service of the frontend; null if there is none.
    service: Option<Text<&'a ObjectName>>,
    port_name: Option<&'a str>,
    /// Why the frontend is not served now; null if it is, or if it has no service.
    reason: Option<Code<Reason>>,
    stage: Code<Stage>,
    /// Why this client was rejected at that time.
    cause: Code<Cause>,
    /// Where its last packet came from; null for a process of this node.
    source: Option<Text<SocketAddr>>,
    /// The device where that packet arrived, or its interface index if it is gone; null as above.
    device: Option<String>,
    /// Its process id on the host; 0 for a packet.
    pid: u32,
    /// 0 for a packet.
    thread: u32,
    /// The thread's name; empty for a packet.
    comm: &'a str,
    /// The id of its cgroup: the inode of the folder; 0 for a packet.
    cgroup: u64,
    /// The cookie of its network namespace; 0 for a packet.
    netns: u64,
}

impl<'a> RefusalRow<'a> {
    fn from_client(denied: &'a DeniedClient, owner: Option<FrontendOwner<'a>>) -> Self {
        let it = &denied.refusal;
        Self {
            time: Rfc3339(denied.last),
            first_time: Rfc3339(denied.first),
            count: denied.count,
            verdict: denial_word(it.denial),
            address: it.frontend.address,
            port: it.frontend.port.get(),
            protocol: Code(it.frontend.transport),
            service: owner.map(|(view, _)| Text(&view.key.name)),
            port_name: owner.map(|(_, frontend)| frontend.port_name.as_ref()),
            reason: owner.and_then(|(_, frontend)| frontend.reason.map(Code)),
            stage: Code(Stage::from_refusal(it)),
            cause: Code(it.cause),
            source: it.arrival.map(|arrival| Text(arrival.source)),
            device: it.arrival.map(device_name),
            pid: it.process,
            thread: it.thread,
            comm: &it.comm,
            cgroup: it.cgroup,
            netns: it.netns,
        }
    }

    fn matches_filter(&self, filter: &Filter) -> bool {
        filter.service.as_ref().is_none_or(|asked| self.service == Some(Text(asked)))
            && filter.address.is_none_or(|asked| self.address == asked)
    }

    fn cells(&self, wide: bool) -> Cells {
        let mut cells = Cells::default();
        cells.put(self.time);
        cells.put(self.verdict);
        cells.put(format_args!("{}/{}", SocketAddr::new(self.address, self.port), self.protocol));
        cells.put_optional(self.service);
        match self.cause.0 {
            Cause::NoBackend => cells.put_optional(self.reason),
            Cause::Source | Cause::Flows | Cause::Ports | Cause::Address | Cause::NoSuchPort => {
                cells.put(self.cause.0.describe());
            }
        }
        cells.put(self.count);
        cells.put_optional(self.source);
        let is_process = self.stage.0 == Stage::Socket;
        let of_process = |number: u64| is_process.then_some(number);
        cells.put_optional(of_process(self.pid.into()));
        if wide {
            cells.put(self.first_time);
            cells.put_optional(self.port_name);
            cells.put_optional(self.device.as_deref());
            cells.put_optional(of_process(self.thread.into()));
            cells.put_optional(of_process(self.cgroup));
            cells.put_optional(of_process(self.netns));
        }
        cells.put_optional(is_process.then_some(self.comm));
        cells
    }
}

fn titles(wide: bool) -> impl Iterator<Item = &'static str> {
    let first = ["TIME", "VERDICT", "FRONTEND", "SERVICE", "REASON", "COUNT", "SOURCE", "PID"];
    let more = ["FIRST", "PORT", "DEVICE", "THREAD", "CGROUP", "NETNS"];
    first.into_iter().chain(more.into_iter().filter(move |_| wide)).chain(["COMM"])
}

/// The whole answer, newest first.
pub(super) fn refusals(readings: &Readings, filter: &Filter, form: Form) -> Response {
    let told = readings.refusals.snapshot();
    let snapshot = readings.snapshot();
    let view = readings.datapath();
    let owners = Owners::from_snapshot(&snapshot, told.latest.iter().map(|denied| denied.refusal.frontend));
    let rows = told.latest.iter().rev();
    let rows = rows.map(|it| RefusalRow::from_client(it, owners.find_denied_owner(&it.refusal)));
    let rows: Vec<_> = rows.filter(|row| row.matches_filter(filter)).collect();
    let lost_total = view.status().map_or(0, |status| status.refusals_lost);
    let RefusalSnapshot { refused, dropped, failure, .. } = told;
    let shown =
        Refusals { refusals: rows, refused_total: refused, dropped_total: dropped, lost_total, failure };
    response::render_response(StatusCode::OK, form, &shown, || {
        text(&shown, form == Form::Wide, readings.now())
    })
}

fn text(Refusals { refusals, failure, .. }: &Refusals<'_>, wide: bool, now: Timestamp) -> Vec<u8> {
    let mut out = Vec::new();
    write_dated_table(titles(wide), refusals.iter().map(|row| row.cells(wide)), now, &mut out);
    if refusals.is_empty() {
        out.extend_from_slice(NOBODY.as_bytes());
    }
    if let Some(failure) = failure {
        out.extend(format!("\nrefusals are no longer read: {failure}\n").bytes());
    }
    out
}
