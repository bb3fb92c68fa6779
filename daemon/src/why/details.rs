//! The parts of an explanation: objects, settings, what the maps say, endpoints with all that is known of them.

use std::net::IpAddr;
use std::sync::Arc;

use holdfast_core::facts::{Meta, ObjectKey, SliceFacts};
use holdfast_core::hold::{Asked, OnEmpty, Policy};
use holdfast_core::keys::{FrontendKey, Transport};
use holdfast_core::list::{Row, Scope};
use holdfast_core::op::{Entry, FrontendType};
use holdfast_core::snapshot::{
    FrontendView, PortView, Reason, ServiceView, Snapshot, UnusedBecause, Verdict,
};
use holdfast_core::words;
use schemars::JsonSchema;
use serde::Serialize;

use super::find::{self, Dialled};
use super::states::{EndpointState, WriteStatus, state, status};
use super::{ReadBack, Subject};
use crate::datapath::{Cause, Clients, Counters, DENIALS, Denied, answering, spelled};
use crate::described::Code;
use crate::readings::Readings;
use crate::rfc3339::Rfc3339;

/// Endpoints of one service that are named; a larger service is better read in `/backends`.
const ENDPOINTS_MAX: usize = 200;

/// Refused clients that are named; `/refusals` has the others.
const REFUSALS_MAX: usize = 5;

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "ExplainedFrontend")]
pub(crate) struct FrontendRow<'a> {
    pub(crate) address: IpAddr,
    pub(crate) port: u16,
    pub(crate) protocol: &'a str,
    pub(crate) r#type: Code<FrontendType>,
    pub(crate) port_name: &'a str,
    pub(crate) verdict: Code<Verdict>,
    pub(crate) reason: Option<Code<Reason>>,
    /// Where the reason is explained.
    pub(crate) page: Option<String>,
    pub(crate) since: Rfc3339,
    pub(crate) status: Code<WriteStatus>,
    pub(crate) error: Option<&'a str>,
    pub(crate) owner: Option<String>,
    pub(crate) backends: Vec<String>,
    pub(crate) external_backends: Option<Vec<String>>,
    /// What the maps hold, read back for this answer.
    pub(crate) applied: Applied,
    /// What happens next by itself.
    pub(crate) next: String,
}

impl<'a> FrontendRow<'a> {
    pub(crate) fn of(view: &'a ServiceView, it: &'a FrontendView, applied: Applied, next: String) -> Self {
        let (status, error) = status(&it.status);
        Self {
            address: it.address,
            port: it.port.get(),
            protocol: it.protocol.as_str(),
            r#type: Code(it.kind),
            port_name: &it.port_name,
            verdict: Code(it.verdict),
            reason: it.reason.map(Code),
            page: super::page(it.reason),
            since: Rfc3339(it.since),
            status: Code(status),
            error,
            owner: it.owner.as_ref().map(|key| key.name.to_string()),
            backends: view.backends(it).map(shown).collect(),
            external_backends: view.external_backends(it).map(|rows| rows.map(shown).collect()),
            applied,
            next,
        }
    }
}

fn shown(row: &Row) -> String {
    row.backend().to_string()
}

/// What the maps hold now, read back for this answer.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Applied {
    /// Whether the frontend is in the maps.
    pub(crate) programmed: bool,
    pub(crate) backends: Vec<String>,
    /// Whether that is what it should be; null if it could not be read.
    pub(crate) matches: Option<bool>,
    pub(crate) error: Option<String>,
    /// The clients that came to the frontend's port so far; null if it could not be read.
    pub(crate) clients: Option<Clients>,
}

/// Where a frontend is in the maps, if it can be.
pub(crate) fn key(it: &FrontendView) -> Option<FrontendKey> {
    Some(FrontendKey { address: it.address, port: it.port, transport: it.protocol.transport()? })
}

/// What the maps hold at a frontend that they should not; none: all is as it should be.
pub(crate) fn difference(view: &ServiceView, it: &FrontendView, entry: Option<&Entry>) -> Option<String> {
    let applied = Applied::read(view, it, entry);
    match (applied.matches, applied.programmed, applied.backends.is_empty()) {
        (Some(false), false, _) => Some("it is not there".to_owned()),
        (Some(false), true, true) => Some("it leads to nobody".to_owned()),
        (Some(false), true, false) => Some(format!("it leads to {}", applied.backends.join(", "))),
        (Some(true) | None, ..) => None,
    }
}

impl Applied {
    pub(crate) fn of(view: &ServiceView, it: &FrontendView, read: &ReadBack, counters: &Counters) -> Self {
        let found = key(it).and_then(|key| read.iter().find(|(other, _)| *other == key));
        match found {
            Some((_, Ok(entry))) => {
                let clients = entry.as_ref().and_then(|entry| counters.port(entry.port.index));
                Self { clients, ..Self::read(view, it, entry.as_ref()) }
            }
            Some((_, Err(error))) => Self::unread(Some(error.clone())),
            None => Self::unread(None),
        }
    }

    fn unread(error: Option<String>) -> Self {
        Self { programmed: false, backends: Vec::new(), matches: None, error, clients: None }
    }

    fn read(view: &ServiceView, it: &FrontendView, entry: Option<&Entry>) -> Self {
        let slots = entry.map(|entry| match it.scope {
            Scope::Cluster => &entry.port.cluster.1,
            Scope::Local => &entry.port.local.1,
        });
        let mut backends: Vec<String> =
            slots.into_iter().flatten().map(|slot| slot.backend().to_string()).collect();
        backends.sort_unstable();
        let mut wanted: Vec<String> = view.backends(it).map(shown).collect();
        wanted.sort_unstable();
        let matches = match it.verdict {
            Verdict::Passing | Verdict::Bypassed | Verdict::Unprogrammed => entry.is_none(),
            // The owner's list is in the maps.
            Verdict::Conflict => true,
            _ => entry.is_some() && backends == wanted,
        };
        Self { programmed: entry.is_some(), backends, matches: Some(matches), error: None, clients: None }
    }
}

/// What the objects ask for, and which versions of them.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Desired<'a> {
    pub(crate) object: Option<ObjectRef<'a>>,
    pub(crate) slices: Vec<SliceRef<'a>>,
    pub(crate) settings: Vec<Setting>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Object")]
pub(crate) struct ObjectRef<'a> {
    pub(crate) uid: Option<&'a str>,
    pub(crate) resource_version: Option<&'a str>,
    pub(crate) generation: Option<i64>,
    /// The last one in managedFields.
    pub(crate) writer: Option<&'a str>,
    pub(crate) written: Option<Rfc3339>,
    /// The file or apiserver that it was read from.
    pub(crate) origin: Option<&'a str>,
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

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Slice")]
pub(crate) struct SliceRef<'a> {
    pub(crate) name: String,
    pub(crate) endpoints: usize,
    /// The object said null, not an empty list.
    pub(crate) endpoints_null: bool,
    pub(crate) headless: bool,
    #[serde(flatten)]
    pub(crate) object: ObjectRef<'a>,
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
    pub(crate) enum SettingOrigin {
        /// Neither the configuration nor the service says anything else.
        Default = "default",
        /// `[hold] on_empty` of the configuration.
        Configuration = "configuration",
        /// The service itself.
        Service = "service",
        /// The service itself, with a word that means nothing.
        ServiceRejected = "service, rejected",
    }
}

/// A setting, and where it comes from.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Setting {
    pub(crate) name: &'static str,
    pub(crate) value: String,
    pub(crate) origin: Code<SettingOrigin>,
}

impl<'a> Desired<'a> {
    pub(crate) fn of(view: &'a ServiceView, policy: &Policy) -> Self {
        Self {
            object: view.facts.as_ref().map(|facts| ObjectRef::from(&facts.meta)),
            slices: view.slices.iter().map(|slice| SliceRef::from(&**slice)).collect(),
            settings: settings(view, policy),
        }
    }
}

fn settings(view: &ServiceView, policy: &Policy) -> Vec<Setting> {
    let default = Policy::default();
    let origin = |same| Code(if same { SettingOrigin::Default } else { SettingOrigin::Configuration });
    let own = view.facts.as_ref().and_then(|facts| facts.on_empty.as_deref());
    let on_empty = match own {
        Some(word) if OnEmpty::parse(word).is_some() => {
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

/// An update that was not taken.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "RejectedUpdate")]
pub(crate) struct Rejected<'a> {
    pub(crate) object: String,
    pub(crate) reason: &'a str,
    pub(crate) origin: Option<&'a str>,
    pub(crate) partial: bool,
}

impl<'a> Rejected<'a> {
    /// Rejections of the service itself and of the slices that are known to be its own.
    pub(crate) fn of(snapshot: &'a Snapshot, view: &ServiceView) -> Vec<Self> {
        let is_own = |object: &ObjectKey| match object {
            ObjectKey::Service(key) => *key == view.key,
            ObjectKey::Slice(key) => view.slices.iter().any(|slice| slice.key == *key),
            ObjectKey::File(..) | ObjectKey::Unnamed(..) | ObjectKey::Kind(..) => false,
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

/// One endpoint, with everything that speaks for or against it.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "ExplainedEndpoint")]
pub(crate) struct EndpointRow<'a> {
    pub(crate) address: IpAddr,
    pub(crate) port: u16,
    pub(crate) port_name: &'a str,
    pub(crate) protocol: Code<Transport>,
    pub(crate) state: Code<EndpointState>,
    pub(crate) reasons: Vec<String>,
    pub(crate) node: Option<&'a str>,
    pub(crate) zone: Option<&'a str>,
    pub(crate) slice: Option<String>,
    pub(crate) since: Rfc3339,
}

pub(crate) fn endpoints<'a>(view: &'a ServiceView, snapshot: &Snapshot) -> Vec<EndpointRow<'a>> {
    let rows = view.ports.iter().flat_map(|port| port.rows.all().iter().map(move |row| (port, row)));
    rows.take(ENDPOINTS_MAX).map(|(port, row)| endpoint(view, port, row, snapshot)).collect()
}

fn endpoint<'a>(
    view: &'a ServiceView,
    port: &'a PortView,
    row: &'a Row,
    snapshot: &Snapshot,
) -> EndpointRow<'a> {
    let slice = port.slice_of(row, &view.slices);
    let found = slice.and_then(|slice| slice.endpoints.get(usize::from(row.endpoint)));
    EndpointRow {
        address: row.address,
        port: row.port.get(),
        port_name: &port.key.name,
        protocol: Code(port.key.transport),
        state: Code(state(row)),
        reasons: reasons(port, row, snapshot),
        node: found.and_then(|endpoint| endpoint.node),
        zone: found.and_then(|endpoint| endpoint.zone),
        slice: slice.map(|slice| slice.key.name.to_string()),
        since: Rfc3339(row.since()),
    }
}

fn reasons(port: &PortView, row: &Row, snapshot: &Snapshot) -> Vec<String> {
    let conditions = row.conditions();
    let named = [
        ("ready", conditions.ready),
        ("serving", conditions.serving),
        ("terminating", conditions.terminating),
    ];
    let mut reasons: Vec<String> =
        named.iter().filter(|(_, is)| *is).map(|(name, _)| (*name).to_owned()).collect();
    if let Some(unused) = port.unused_because(row) {
        reasons.push(format!("not used: {}", UnusedBecause::as_str(unused)));
    }
    let held = port.hold.iter().flat_map(|hold| hold.backends.iter().map(move |it| (hold, it)));
    if let Some((hold, it)) =
        held.into_iter().find(|(_, it)| row.is_held() && it.row.backend() == row.backend())
    {
        let until = snapshot
            .hold_until(hold)
            .map_or_else(|| "without limit".to_owned(), |at| format!("until {}", Rfc3339(at)));
        reasons.push(format!("held {until}"));
        let is_probed = hold.probes(port.key.transport).any(|backend| backend == row.backend());
        let is_barred = hold.barred(port.key.transport).any(|backend| backend == row.backend());
        if it.is_claimed {
            reasons.push("listed for another target too, which proves nothing".to_owned());
        }
        reasons.push(match (it.answered, it.failures) {
            _ if is_barred => "not probed, because no pod can have this address".to_owned(),
            _ if !is_probed => "not probed".to_owned(),
            _ if it.asked == Asked::Due => "not probed yet".to_owned(),
            (false, 0) => "no probe taken yet".to_owned(),
            (true, 0) => "takes probes".to_owned(),
            (_, failures) => format!("{failures} probes failed in a row"),
        });
    }
    reasons
}

/// Which service a backend belongs to, and how it is used.
pub(crate) fn backend_sentence(view: &ServiceView, dialled: &Dialled, services: usize) -> String {
    let ports = view.ports.iter().filter(|port| find::has(port, dialled));
    let mut rows = ports.filter_map(|port| Some((port, port.rows.find(dialled.address)?)));
    let Some((port, row)) = rows.next() else { return format!("{dialled} is no backend any more.") };
    let state = match state(row) {
        EndpointState::Unused => {
            let because = port.unused_because(row).map_or("", UnusedBecause::as_str);
            format!("gets no new connections ({because})")
        }
        EndpointState::Active => "gets new connections".to_owned(),
        state => format!("gets new connections ({})", Code(state)),
    };
    let more = match services {
        0 | 1 => String::new(),
        count => format!(", and it is a backend of {} more services", count - 1),
    };
    format!("{dialled} is a backend of {} and {state}, since {}{more}.", view.key.name, Rfc3339(row.since()))
}

/// A client that was not served.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "ExplainedRefusal")]
pub(crate) struct RefusedRow {
    pub(crate) time: Rfc3339,
    pub(crate) count: u64,
    #[schemars(extend("enum" = DENIALS))]
    pub(crate) verdict: &'static str,
    pub(crate) frontend: String,
    pub(crate) cause: Code<Cause>,
    /// Where its last packet came from; null of a process of this node.
    pub(crate) source: Option<String>,
    /// 0 of a packet, as all of a process.
    pub(crate) pid: u32,
    pub(crate) comm: String,
    pub(crate) cgroup: u64,
}

/// The latest clients that dialled one of these frontends and were not served.
pub(crate) fn refusals(readings: &Readings, subject: &Subject) -> Vec<RefusedRow> {
    let told = readings.refusals.latest();
    let is_meant = |denied: &&Arc<Denied>| {
        subject.frontends().filter_map(key).any(|key| answering(&denied.refusal.frontend).contains(&key))
    };
    let row = |denied: &Arc<Denied>| RefusedRow {
        time: Rfc3339(denied.last),
        count: denied.count,
        verdict: spelled(denied.refusal.denial),
        frontend: denied.refusal.frontend.to_string(),
        cause: Code(denied.refusal.cause.into()),
        source: denied.refusal.arrival.map(|arrival| arrival.source.to_string()),
        pid: denied.refusal.process,
        comm: denied.refusal.comm.clone(),
        cgroup: denied.refusal.cgroup,
    };
    told.latest.iter().rev().filter(is_meant).take(REFUSALS_MAX).map(row).collect()
}

/// Which apiserver is used, in a few words.
pub(crate) fn apiserver(readings: &Readings) -> Option<String> {
    let view = readings.apiserver()?;
    let active = view.endpoints.iter().find(|it| it.active);
    Some(match active {
        Some(it) => format!("{} in use", it.address),
        None => "no apiserver answers; what is known stays".to_owned(),
    })
}
