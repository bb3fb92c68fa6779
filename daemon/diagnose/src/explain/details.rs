//! The parts of an explanation: objects, settings, map entries, and endpoints with everything that is known of them.

use std::net::{IpAddr, SocketAddr};

use holdfast_core::facts::{Meta, NodeName, ObjectKey, SliceFacts};
use holdfast_core::hold::{OnEmpty, Policy, ProbeState};
use holdfast_core::keys::{FrontendKey, Transport};
use holdfast_core::list::Row;
use holdfast_core::op::{FrontendEntry, FrontendType};
use holdfast_core::snapshot::{FrontendView, PortView, Reason, ServiceView, Snapshot, UnusedReason, Verdict};
use holdfast_core::str_enum::StrEnum;
use holdfast_core::words;
use schemars::JsonSchema;
use serde::Serialize;

use super::place::format_place;
use super::query_match::{self, DialTarget};
use super::states::{EndpointState, WriteStatus, endpoint_state, write_status};
use super::{ReadBack, Subject};
use holdfast_status::rfc3339::Rfc3339;
use holdfast_status::schema_types::{Code, Text};
use holdfast_status::views::announcements::AnnouncedAddress;
use holdfast_status::views::apiserver::{ApiserverView, Usage};
use holdfast_status::views::checks::{CheckStatus, CheckStatuses};
use holdfast_status::views::clients::{ClientCounters, Clients};
use holdfast_status::views::refusals::{Cause, DENIALS, DenialAtFrontend, denial_word};

/// The most endpoints of one service that are listed; `/backends` has all.
const ENDPOINTS_MAX: usize = 200;

/// The most refused clients that are listed; `/refusals` has the others.
const REFUSALS_MAX: usize = 5;

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ExplainedFrontend")]
pub struct FrontendRow<'a> {
    pub address: IpAddr,
    pub port: u16,
    pub protocol: &'a str,
    pub r#type: Code<FrontendType>,
    pub port_name: &'a str,
    pub verdict: Code<Verdict>,
    pub reason: Option<Code<Reason>>,
    /// The section that explains the reason.
    pub page: Option<String>,
    pub since: Rfc3339,
    pub status: Code<WriteStatus>,
    pub error: Option<&'a str>,
    pub owner: Option<String>,
    pub backends: Vec<String>,
    pub external_backends: Option<Vec<String>>,
    /// The map entry, read back for this answer.
    pub applied: AppliedState,
    /// Whether its address is announced, and if not, why; null: it should not be.
    pub announcement: Option<AnnouncedAddress>,
    /// What happens next by itself.
    pub next: String,
    /// Where clients dial it, for people.
    #[serde(skip)]
    pub place: String,
    /// When clients began to meet this, for people: a list may have changed since.
    #[serde(skip)]
    pub verdict_since: Rfc3339,
}

impl<'a> FrontendRow<'a> {
    pub fn new(view: &'a ServiceView, it: &'a FrontendView, applied: AppliedState, next: String) -> Self {
        let (status, error) = write_status(&it.status);
        Self {
            place: format!("{}/{}", SocketAddr::new(it.address, it.port.get()), it.protocol),
            address: it.address,
            port: it.port.get(),
            protocol: it.protocol.as_str(),
            r#type: Code(it.kind),
            port_name: &it.port_name,
            verdict: Code(it.verdict),
            reason: it.reason.map(Code),
            page: super::guide_link(it.reason),
            since: Rfc3339(it.since),
            verdict_since: Rfc3339(it.verdict_since),
            status: Code(status),
            error,
            owner: it.owner.as_ref().map(|key| key.name.to_string()),
            backends: view.backends(it).map(format_backend).collect(),
            external_backends: view.external_backends(it).map(|rows| rows.map(format_backend).collect()),
            applied,
            announcement: None,
            next,
        }
    }
}

fn format_backend(row: Row) -> String {
    row.backend().to_string()
}

/// A frontend's map entry, read back for this answer.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Applied")]
pub struct AppliedState {
    /// Whether the frontend is in the maps.
    pub programmed: bool,
    pub backends: Vec<String>,
    /// Whether the maps hold what they should; null if they could not be read.
    pub matches: Option<bool>,
    pub error: Option<String>,
    /// Clients of the frontend's port so far; null if they could not be read.
    pub clients: Option<Clients>,
}

/// The key of a frontend in the maps. `None`: the maps never hold its protocol.
pub fn frontend_key(it: &FrontendView) -> Option<FrontendKey> {
    Some(FrontendKey { address: it.address, port: it.port, transport: it.protocol.transport()? })
}

/// How a frontend's map entry differs from what it should be. `None`: it does not.
pub fn describe_difference(
    view: &ServiceView,
    it: &FrontendView,
    entry: Option<&FrontendEntry>,
) -> Option<String> {
    let applied = AppliedState::from_entry(view, it, entry);
    match (applied.matches, applied.programmed, applied.backends.is_empty()) {
        (Some(false), false, _) => Some("it is missing".to_owned()),
        (Some(false), true, true) => Some("it has no backend".to_owned()),
        (Some(false), true, false) => Some(format!("it leads to {}", applied.backends.join(", "))),
        (Some(true) | None, ..) => None,
    }
}

impl AppliedState {
    pub fn new(view: &ServiceView, it: &FrontendView, read: &ReadBack, counters: &ClientCounters) -> Self {
        let found = frontend_key(it).and_then(|key| read.iter().find(|(other, _)| *other == key));
        match found {
            Some((_, Ok(entry))) => {
                let clients = entry.as_ref().and_then(|entry| counters.port_clients(entry.port.index));
                Self { clients, ..Self::from_entry(view, it, entry.as_ref()) }
            }
            Some((_, Err(error))) => Self::from_error(Some(error.clone())),
            None => Self::from_error(None),
        }
    }

    fn from_error(error: Option<String>) -> Self {
        Self { programmed: false, backends: Vec::new(), matches: None, error, clients: None }
    }

    fn from_entry(view: &ServiceView, it: &FrontendView, entry: Option<&FrontendEntry>) -> Self {
        let slots = entry.map(|entry| entry.port.backends(it.scope)).unwrap_or_default();
        let mut backends: Vec<String> = slots.keys().map(|slot| slot.backend().to_string()).collect();
        backends.sort_unstable();
        let mut wanted: Vec<String> = view.backends(it).map(format_backend).collect();
        wanted.sort_unstable();
        let matches = match it.verdict {
            // Another service may own the address; then the maps hold that service's list.
            Verdict::Conflict => true,
            Verdict::Unprogrammed if it.reason == Some(Reason::Address) => true,
            Verdict::Passing | Verdict::Bypassed | Verdict::Unprogrammed => entry.is_none(),
            _ => entry.is_some() && backends == wanted,
        };
        Self { programmed: entry.is_some(), backends, matches: Some(matches), error: None, clients: None }
    }
}

/// The desired state, and the object versions that it comes from.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Desired")]
pub struct DesiredState<'a> {
    pub object: Option<ObjectRef<'a>>,
    pub slices: Vec<SliceRef<'a>>,
    pub settings: Vec<Setting>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Object")]
pub struct ObjectRef<'a> {
    pub uid: Option<&'a str>,
    pub resource_version: Option<&'a str>,
    pub generation: Option<i64>,
    /// The manager that wrote last, by managedFields.
    pub writer: Option<&'a str>,
    pub written: Option<Rfc3339>,
    /// The file or apiserver that the object was read from.
    pub origin: Option<&'a str>,
}

impl<'a> From<&'a Meta> for ObjectRef<'a> {
    fn from(meta: &'a Meta) -> Self {
        let writer = meta.writer.as_ref();
        Self {
            uid: meta.uid.as_deref(),
            resource_version: meta.resource_version.as_deref(),
            generation: meta.generation,
            writer: writer.map(|writer| &*writer.manager),
            written: writer.and_then(|writer| writer.at).map(Rfc3339),
            origin: meta.origin.as_deref(),
        }
    }
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Slice")]
pub struct SliceRef<'a> {
    pub name: String,
    pub endpoints: usize,
    /// Whether the object had null instead of an empty list.
    pub endpoints_null: bool,
    pub headless: bool,
    #[serde(flatten)]
    pub object: ObjectRef<'a>,
}

impl<'a> From<&'a SliceFacts> for SliceRef<'a> {
    fn from(slice: &'a SliceFacts) -> Self {
        Self {
            name: slice.key.name.to_string(),
            endpoints: slice.endpoints.len(),
            endpoints_null: slice.endpoints_null,
            headless: slice.headless,
            object: ObjectRef::from(&slice.meta),
        }
    }
}

words! {
    /// Where a setting comes from.
    pub enum SettingOrigin {
        /// Neither the configuration nor the service sets it.
        Default = "default",
        /// A key of `[hold]` in the configuration.
        Configuration = "configuration",
        /// The service itself.
        Service = "service",
        /// The service itself, with an illegal word.
        ServiceRejected = "service, rejected",
    }
}

/// A setting, and its origin.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Setting {
    pub name: &'static str,
    pub value: String,
    pub origin: Code<SettingOrigin>,
}

impl<'a> DesiredState<'a> {
    pub fn from_view(view: &'a ServiceView, policy: &Policy) -> Self {
        Self {
            object: view.facts.as_ref().map(|facts| ObjectRef::from(&facts.meta)),
            slices: view.slices.iter().map(|slice| SliceRef::from(&**slice)).collect(),
            settings: build_settings(view, policy),
        }
    }
}

fn build_settings(view: &ServiceView, policy: &Policy) -> Vec<Setting> {
    let default = Policy::default();
    let origin = |same| Code(if same { SettingOrigin::Default } else { SettingOrigin::Configuration });
    let own = view.facts.as_ref().and_then(|facts| facts.on_empty.as_deref());
    let on_empty = match own {
        Some(word) if OnEmpty::from_spelling(word).is_some() => {
            Setting { name: "on_empty", value: word.to_owned(), origin: Code(SettingOrigin::Service) }
        }
        Some(word) => {
            Setting { name: "on_empty", value: word.to_owned(), origin: Code(SettingOrigin::ServiceRejected) }
        }
        None => Setting {
            name: "on_empty",
            value: policy.on_empty.as_str().to_owned(),
            origin: origin(policy.on_empty == default.on_empty),
        },
    };
    let seconds = |name, value: i64, default| Setting {
        name,
        value: format!("{value}s"),
        origin: origin(value == default),
    };
    vec![
        on_empty,
        seconds("limit", policy.limit, default.limit),
        seconds("mass_loss_limit", policy.mass_loss_limit, default.mass_loss_limit),
    ]
}

/// An update that was rejected.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "RejectedUpdate")]
pub struct RejectedUpdate<'a> {
    pub object: String,
    pub reason: &'a str,
    pub origin: Option<&'a str>,
    pub partial: bool,
}

impl<'a> RejectedUpdate<'a> {
    /// Rejections of the service, of its known slices, and of its file.
    pub fn list_for_view(snapshot: &'a Snapshot, view: &ServiceView) -> Vec<Self> {
        let origin = view.facts.as_ref().and_then(|facts| facts.meta.origin.as_ref());
        let is_own = |object: &ObjectKey| match object {
            ObjectKey::Service(key) => *key == view.key,
            ObjectKey::Slice(key) => view.slices.iter().any(|slice| slice.key == *key),
            ObjectKey::File(source, file) => *source == view.key.source && Some(file) == origin,
            ObjectKey::Unnamed(..) | ObjectKey::Kind(..) => false,
        };
        let own = snapshot.rejections.named.values().filter(|it| is_own(&it.object));
        own.map(|it| Self {
            object: it.object.to_string(),
            reason: &it.reason,
            origin: it.origin.as_deref(),
            partial: it.partial,
        })
        .collect()
    }
}

/// One endpoint, with everything that decides its use.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ExplainedEndpoint")]
pub struct EndpointRow<'a> {
    pub address: IpAddr,
    pub port: u16,
    pub port_name: &'a str,
    pub protocol: Code<Transport>,
    pub state: Code<EndpointState>,
    pub reasons: Vec<String>,
    pub node: Option<Text<NodeName<'a>>>,
    pub zone: Option<&'a str>,
    pub slice: Option<String>,
    /// The file or apiserver that its slice was read from.
    pub origin: Option<&'a str>,
    pub since: Rfc3339,
    /// Its share of new clients relative to the other backends: 1 unless the service says otherwise; 0 is none.
    pub weight: u16,
    /// Its health check with the last result; null: it is not checked.
    pub check: Option<CheckStatus>,
}

impl EndpointRow<'_> {
    /// The row of a backend in a list, where another service has each address that leads to the list.
    fn without_clients(mut self) -> Self {
        if self.state.0 != EndpointState::Unused {
            self.state = Code(EndpointState::Unused);
            self.reasons.push(format!("not used: {}", UnusedReason::Conflict.as_str()));
        }
        self
    }
}

pub(super) fn build_endpoint_rows<'a>(
    view: &'a ServiceView,
    snapshot: &Snapshot,
    checks: Option<&CheckStatuses>,
) -> Vec<EndpointRow<'a>> {
    let ports = view.ports.iter().enumerate();
    let rows = ports.flat_map(|(position, port)| port.rows.iter().map(move |row| (position, port, row)));
    let check = |row: &Row| checks?.get(&SocketAddr::new(row.address, row.port.get())).cloned();
    let shown = |(position, port, row): (usize, &'a PortView, Row)| {
        let shown = build_endpoint_row(view, port, &row, snapshot);
        let shown = if view.is_port_in_conflict(position) { shown.without_clients() } else { shown };
        EndpointRow { check: check(&row), ..shown }
    };
    rows.take(ENDPOINTS_MAX).map(shown).collect()
}

fn build_endpoint_row<'a>(
    view: &'a ServiceView,
    port: &'a PortView,
    row: &Row,
    snapshot: &Snapshot,
) -> EndpointRow<'a> {
    let slice = port.row_slice(row, &view.slices);
    let found = slice.and_then(|slice| slice.endpoints.get(usize::from(row.endpoint)));
    EndpointRow {
        address: row.address,
        port: row.port.get(),
        port_name: &port.key.name,
        protocol: Code(port.key.transport),
        state: Code(endpoint_state(row)),
        reasons: list_reasons((view, port), row, snapshot),
        node: found.and_then(|endpoint| endpoint.node).map(Text),
        zone: found.and_then(|endpoint| endpoint.zone),
        slice: slice.map(|slice| slice.key.name.to_string()),
        origin: slice.and_then(|slice| slice.meta.origin.as_deref()),
        since: Rfc3339(row.since()),
        weight: port.rows.weight(row.backend()).number(),
        check: None,
    }
}

fn list_reasons((view, port): (&ServiceView, &PortView), row: &Row, snapshot: &Snapshot) -> Vec<String> {
    let conditions = row.conditions();
    let named = [
        ("ready", conditions.ready),
        ("serving", conditions.serving),
        ("terminating", conditions.terminating),
    ];
    let mut reasons: Vec<String> =
        named.iter().filter(|(_, is)| *is).map(|(name, _)| (*name).to_owned()).collect();
    if let Some(unused) = port.unused_reason(row) {
        reasons.push(format!("not used: {}", UnusedReason::as_str(unused)));
    }
    reasons.extend(describe_drain(view, port, row, snapshot));
    let held = port.hold.iter().flat_map(|hold| hold.backends.iter().map(move |it| (hold, it)));
    if let Some((hold, it)) =
        held.into_iter().find(|(_, it)| row.is_held() && it.row.backend() == row.backend())
    {
        let until = snapshot
            .hold_until(hold)
            .map_or_else(|| "without limit".to_owned(), |at| format!("until {}", Rfc3339(at)));
        reasons.push(format!("held {until}"));
        let is_probed = hold.probe_targets(port.key.transport).any(|backend| backend == row.backend());
        let is_barred = hold.unprobeable_targets(port.key.transport).any(|backend| backend == row.backend());
        if it.is_claimed {
            reasons.push("listed for another target too, which proves nothing".to_owned());
        }
        reasons.push(match (it.answered, it.failures) {
            _ if is_barred => "not probed, because no pod can have this address".to_owned(),
            _ if !is_probed => "not probed".to_owned(),
            _ if it.asked == ProbeState::Due => "not probed yet".to_owned(),
            (false, 0) => "no probe taken yet".to_owned(),
            (true, 0) => "takes probes".to_owned(),
            (_, failures) => format!("{failures} probes failed in a row"),
        });
    }
    reasons
}

/// The user that drained a backend, the time, and why clients get it if they do.
fn describe_drain(view: &ServiceView, port: &PortView, row: &Row, snapshot: &Snapshot) -> Option<String> {
    let is_drained = port.rows.weights().is_drained(row.backend());
    let (_, by) = snapshot.drains.find_drain(&view.key.name, row.backend()).filter(|_| is_drained)?;
    let used = if row.is_chosen() { ", and used all the same: no other backend takes clients" } else { "" };
    Some(format!("drained by {by} since {}{used}", Rfc3339(by.at)))
}

/// The service of a backend, and how the backend is used.
pub(super) fn describe_backend(
    (view, snapshot): (&ServiceView, &Snapshot),
    dialled: &DialTarget,
    services: usize,
) -> String {
    let ports = view.ports.iter().filter(|port| query_match::has_backend(port, dialled));
    let mut rows = ports.filter_map(|port| Some((port, port.rows.find(dialled.address)?)));
    let Some((port, row)) = rows.next() else { return format!("{dialled} is no backend any more.") };
    let state = match endpoint_state(&row) {
        EndpointState::Unused => {
            let because = port.unused_reason(&row).map_or("", UnusedReason::as_str);
            format!("gets no new connections ({because})")
        }
        _ if !is_served_anywhere(view, port) => describe_unserved_backend(view, port, snapshot),
        EndpointState::Active => "gets new connections".to_owned(),
        state => format!("gets new connections ({})", Code(state)),
    };
    let more = match services {
        0 | 1 => String::new(),
        count => format!(", and it is a backend of {} more services", count - 1),
    };
    format!("{dialled} is a backend of {} and {state}, since {}{more}.", view.key.name, Rfc3339(row.since()))
}

/// The frontends that lead to a port.
fn frontends_to<'a>(view: &'a ServiceView, port: &'a PortView) -> impl Iterator<Item = &'a FrontendView> {
    let leads = move |it: &&FrontendView| {
        let at = it.position.and_then(|at| view.ports.get(at));
        at.is_some_and(|at| std::ptr::eq(at, port))
    };
    view.frontends.iter().filter(leads)
}

fn is_served_anywhere(view: &ServiceView, port: &PortView) -> bool {
    frontends_to(view, port).any(|it| it.verdict.serves_clients())
}

/// A backend in a list that no client reaches.
fn describe_unserved_backend(view: &ServiceView, port: &PortView, snapshot: &Snapshot) -> String {
    let name = &view.key.name;
    let Some(first) = frontends_to(view, port).next() else {
        return format!("gets no client, because no frontend of {name} leads to it");
    };
    let owner = first.owner.as_ref().map(|key| format!(", {} has the address", key.name)).unwrap_or_default();
    format!(
        "gets no client, because no frontend of {name} is served here ({}: {}{owner})",
        format_place(first, &snapshot.node),
        first.verdict.as_str()
    )
}

/// A client that was not served.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "ExplainedRefusal")]
pub struct RefusalRow {
    pub time: Rfc3339,
    pub count: u64,
    #[schemars(extend("enum" = DENIALS))]
    pub verdict: &'static str,
    pub frontend: String,
    pub cause: Code<Cause>,
    /// The source of the client's last packet; null if the client is a process of this node.
    pub source: Option<String>,
    /// The process that dialled; 0 for a refused packet, whose process is unknown.
    pub pid: u32,
    pub comm: String,
    pub cgroup: u64,
}

/// The latest clients that these frontends did not serve.
pub(super) fn build_refusal_rows(latest: &[DenialAtFrontend], subject: &Subject) -> Vec<RefusalRow> {
    let row = |DenialAtFrontend { client: denied, .. }: &DenialAtFrontend| RefusalRow {
        time: Rfc3339(denied.last),
        count: denied.count,
        verdict: denial_word(denied.refusal.denial),
        frontend: denied.refusal.frontend.to_string(),
        cause: Code(denied.refusal.cause),
        source: denied.refusal.arrival.map(|arrival| arrival.source.to_string()),
        pid: denied.refusal.process,
        comm: denied.refusal.comm.clone(),
        cgroup: denied.refusal.cgroup,
    };
    latest.iter().rev().filter(|it| subject.has_denied(it)).take(REFUSALS_MAX).map(row).collect()
}

/// The apiserver in use, in a few words.
pub(super) fn describe_apiserver(view: &ApiserverView) -> String {
    match view.usage() {
        Usage::InUse(it) => format!("{} in use", it.address),
        Usage::Idle(it) => format!("{} answered last", it.address),
        Usage::Untried => "no apiserver was queried yet; what is known stays".to_owned(),
        Usage::Unreachable => "no apiserver answers; what is known stays".to_owned(),
    }
}
