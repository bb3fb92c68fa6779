//! `status`: one screen that shows whether all is well, and if not, why.
//!
//! Invariant: it needs nothing that the API does not show. Lists are cut with a count, never silently.

mod apiserver;
mod checks;
mod datapath;
mod denied;
mod disk;
mod drained;
mod failures;
mod refused_reload;
mod sources;
mod trouble;
mod unserved;

use std::collections::BTreeMap;
use std::io::{self, Write};

use holdfast_core::keys::Source;
use holdfast_core::snapshot::ServiceState;
use holdfast_status::age::add_ages;
use holdfast_status::printable::sanitise_line;
use holdfast_status::views::announcements::AnnouncedAddress;
use holdfast_status::views::proxies::Trace;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use self::apiserver::Apiserver;
use self::checks::{FailingBackend, FailingCheck};
use self::datapath::{Datapath, ExcludedDevice, Filter, OtherProxy};
use self::denied::DeniedClients;
use self::disk::Unwritten;
use self::drained::DrainList;
use self::failures::{ClosedPort, Failures, NodePortListener};
use self::refused_reload::Refusal;
use self::sources::{ConfiguredServices, SourceState};
use self::unserved::{NotServing, describe_groups};
use super::Exit;
use super::client::{Client, ClientError};
use holdfast_api::about::Version;
use holdfast_api::health::{DamageRow, HistoryRow, KnowledgeFault};
use holdfast_api::totals::TotalsRow;

/// What a node without any service to serve needs.
const NOTHING_CONFIGURED: [&str; 2] =
    ["neither an apiserver nor manifests are given, and there is no [[service]]", "next: man holdfast.toml"];

/// What an operator may not conclude where no backend fails.
const UNSEEN: &str = "backends that no client has dialled lately\n           \
    for processes and pods of this node: TCP backends that never answer, and all UDP backends\n           \
    next: holdfast diagnose SERVICE dials them";

/// The same, where the daemon sees no client's connect.
const UNSEEN_CONNECTS: &str =
    "whether backends take the clients of this node: holdfast diagnose SERVICE dials them";

/// The word for a whole kind among rejected objects.
const IGNORED_KIND: &str = "Kind";

/// The most lines of one section, so that all sections fit on a screen.
const LINES_MAX: usize = 10;

#[derive(Debug, Deserialize)]
struct Readiness {
    healthy: bool,
    reason: Option<String>,
    sources: Vec<SourceState>,
    stale_since: Option<String>,
    snapshot: SnapshotStatus,
    history: HistoryRow,
    #[serde(flatten)]
    failures: Failures,
    #[serde(default)]
    event_knowledge_faults: Vec<KnowledgeFault>,
    #[serde(default)]
    shut: Vec<String>,
    #[serde(flatten)]
    restart: RestartFacts,
}

/// What an operator has to know before a restart: a file that is not in force, and what the disk does not take.
#[derive(Debug, Deserialize, Serialize)]
struct RestartFacts {
    #[serde(default)]
    refused_reload: Option<String>,
    #[serde(default)]
    refusal: Option<Refusal>,
    #[serde(default)]
    unwritten_drains: Option<String>,
    #[serde(default)]
    unwritten: Option<Unwritten>,
}

impl Readiness {
    /// Whether it is ready, its configuration is in force, the disk takes its state, and backends and the ports of
    /// services are as they should be.
    fn is_well(&self) -> bool {
        let is_written = self.snapshot.error.is_none() && self.history.error.is_none();
        let are_ports_open = self.failures.closed_ports.iter().all(|it| it.service.is_none());
        let is_in_force = self.restart.refused_reload.is_none() && self.restart.unwritten_drains.is_none();
        let do_backends_answer = self.failures.failing_checks.is_empty()
            && self.failures.failing_backends.is_empty()
            && self.failures.failing_backends_omitted == 0;
        let are_ports_own = are_ports_open && self.failures.node_port_listeners.is_empty();
        let has_room = !self.failures.denied_clients.iter().any(DeniedClients::is_shortage);
        self.healthy && is_in_force && is_written && are_ports_own && do_backends_answer && has_room
    }

    /// Whether services come from `[[service]]` blocks alone: neither an apiserver nor manifests are configured.
    fn has_only_blocks(&self) -> bool {
        self.sources.iter().all(|it| it.source == Source::Config.as_str())
    }
}

#[derive(Debug, Deserialize, Serialize)]
struct SnapshotStatus {
    written: Option<String>,
    bytes: u64,
    #[serde(default)]
    damage: Option<DamageRow>,
    error: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Services {
    services: Vec<Service>,
    totals: TotalsRow,
    rejected: Vec<RejectedObject>,
    rejected_dropped: u64,
}

#[derive(Debug, Deserialize)]
struct Service {
    service: String,
    verdict: Option<String>,
    reason: Option<String>,
    #[serde(default)]
    health: String,
    status: String,
    error: Option<String>,
    #[serde(default)]
    since: Option<String>,
    #[serde(default)]
    owner: Option<String>,
    #[serde(default)]
    frontends: u64,
}

#[derive(Debug, Deserialize, Serialize)]
struct RejectedObject {
    kind: String,
    name: Option<String>,
    place: Option<String>,
    reason: String,
}

/// The answer of `status -o json`.
#[derive(Debug, Serialize)]
pub(super) struct Status {
    good: bool,
    nothing_configured: bool,
    version: Version,
    ready: bool,
    reason: Option<String>,
    faults: Vec<String>,
    other_proxies: Vec<OtherProxy>,
    left_out_devices: Vec<ExcludedDevice>,
    refused_connects_seen: bool,
    filters: Vec<Filter>,
    announced_addresses: Vec<AnnouncedAddress>,
    sources: Vec<SourceState>,
    apiserver: Apiserver,
    stale_since: Option<String>,
    snapshot: SnapshotStatus,
    history: HistoryRow,
    services: u64,
    frontends: u64,
    backends: u64,
    unused: u64,
    drained: u64,
    /// The drained backends that clients still get.
    #[serde(skip)]
    drained_in_use: Vec<String>,
    /// Whether the configuration has services, or a folder for them.
    #[serde(skip)]
    has_blocks: bool,
    states: BTreeMap<String, u64>,
    verdicts: BTreeMap<String, u64>,
    held: Vec<NotServing>,
    not_serving: Vec<NotServing>,
    errors: Vec<FailedService>,
    rejected: Vec<RejectedObject>,
    rejected_dropped: u64,
    #[serde(flatten)]
    failures: Failures,
    event_knowledge_faults: Vec<KnowledgeFault>,
    shut: Vec<String>,
    #[serde(flatten)]
    restart: RestartFacts,
}

#[derive(Debug, Serialize)]
struct FailedService {
    service: String,
    error: String,
}

/// Queries everything that counts, and writes the screen or its JSON.
pub(super) fn run_status(client: &Client, json: bool, out: &mut impl Write) -> Result<Exit, ClientError> {
    let status = Status::query(client)?;
    if json {
        writeln!(out, "{}", to_json(&status)?)?;
    } else {
        out.write_all(status.to_text()?.as_bytes())?;
    }
    out.flush()?;
    Ok(status.exit())
}

pub(super) fn to_json(answer: &impl Serialize) -> Result<String, ClientError> {
    serde_json::to_string_pretty(answer).map_err(|error| ClientError::Broken(error.into()))
}

/// Whether programs or maps in the kernel have a fault.
pub(super) fn has_datapath_faults(client: &Client) -> Result<bool, ClientError> {
    let datapath: Datapath = query_json(client, "/datapath?format=json")?;
    Ok(!datapath.faults().is_empty())
}

/// Queries the API. A 503 is an answer too, because it has the reason.
pub(super) fn query_json<T: DeserializeOwned>(client: &Client, path: &str) -> Result<T, ClientError> {
    let mut answer = client.get(path)?;
    if answer.status != 503 {
        answer = answer.expect_ok()?;
    }
    serde_json::from_slice(&answer.read_whole()?).map_err(|error| ClientError::Broken(error.into()))
}

impl Status {
    pub(super) fn query(client: &Client) -> Result<Self, ClientError> {
        let version = query_json(client, "/version?format=json")?;
        let readiness = query_json(client, "/readyz?format=json")?;
        let datapath = query_json(client, "/datapath?format=json")?;
        let apiserver = query_json(client, "/apiserver?format=json")?;
        let services: Services = query_json(client, "/services?only=trouble&format=json")?;
        let drained_in_use = match services.totals.drained {
            0 => Vec::new(),
            _ => query_json::<DrainList>(client, "/drains?format=json")?.list_used(),
        };
        let has_blocks = query_json::<ConfiguredServices>(client, "/config?format=json")?.has_any();
        let status = Self::from_answers(version, readiness, datapath, apiserver, services);
        Ok(Self { drained_in_use, has_blocks, ..status })
    }

    /// The screen.
    pub(super) fn to_text(&self) -> Result<String, ClientError> {
        let mut text = Vec::new();
        self.write(&mut text)?;
        let text = String::from_utf8_lossy(&text);
        Ok(match &self.version.now {
            Some(now) => add_ages(&text, now.0),
            None => text.into_owned(),
        })
    }

    pub(super) const fn exit(&self) -> Exit {
        if self.good { Exit::Good } else { Exit::Finding }
    }

    fn from_answers(
        version: Version,
        readiness: Readiness,
        datapath: Datapath,
        apiserver: Apiserver,
        services: Services,
    ) -> Self {
        let Services { services, totals, rejected, rejected_dropped } = services;
        let faults = datapath.faults();
        let errors = list_errors(&services);
        let unserved = services.iter().filter_map(NotServing::from_service);
        let (held, not_serving): (Vec<_>, Vec<_>) = unserved.partition(|it| it.verdict == "held");
        let is_served =
            faults.is_empty() && errors.is_empty() && rejected.iter().all(RejectedObject::is_ignored_kind);
        let are_clients_served = !not_serving.iter().any(NotServing::is_outage);
        let nothing_configured = totals.services == 0 && readiness.has_only_blocks();
        let is_informed = !nothing_configured && !apiserver.is_away();
        Self {
            good: readiness.is_well() && is_served && are_clients_served && is_informed,
            nothing_configured,
            version,
            ready: readiness.healthy,
            reason: readiness.reason,
            faults,
            left_out_devices: datapath.excluded_devices(),
            refused_connects_seen: datapath.sees_refused_connects(),
            other_proxies: datapath.other_proxies,
            filters: datapath.filters,
            announced_addresses: datapath.announced_addresses,
            sources: readiness.sources,
            apiserver,
            stale_since: readiness.stale_since,
            snapshot: readiness.snapshot,
            history: readiness.history,
            services: totals.services,
            frontends: totals.frontends,
            backends: totals.backends,
            unused: totals.unused,
            drained: totals.drained,
            drained_in_use: Vec::new(),
            has_blocks: true,
            states: totals.states,
            verdicts: totals.verdicts,
            held,
            not_serving,
            errors,
            rejected,
            rejected_dropped,
            failures: readiness.failures,
            event_knowledge_faults: readiness.event_knowledge_faults,
            restart: readiness.restart,
            shut: readiness.shut,
        }
    }

    fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let Version { version, node, datapath, started, .. } = &self.version;
        writeln!(out, "holdfast {version} on {node}, since {started}")?;
        let ready = self.reason.as_deref().map_or_else(|| "yes".to_owned(), |reason| format!("no: {reason}"));
        writeln!(out, "ready      {ready}")?;
        let note = if datapath == "memory" { " (computed and shown; no traffic is touched)" } else { "" };
        writeln!(out, "datapath   {datapath}{note}")?;
        for OtherProxy { proxy, evidence, .. } in &self.other_proxies {
            writeln!(out, "alongside  {} ({})", sanitise_line(proxy), sanitise_line(&evidence.join(", ")))?;
        }
        for ExcludedDevice { device, why } in &self.left_out_devices {
            writeln!(out, "left out   {} ({})", sanitise_line(device), sanitise_line(why))?;
        }
        writeln!(out, "sources    {}", self.describe_sources())?;
        if let Some(apiserver) = self.apiserver.describe_state() {
            writeln!(out, "apiserver  {}", sanitise_line(&apiserver))?;
        }
        if let Some(since) = &self.stale_since {
            writeln!(out, "stale      as remembered from {since}")?;
        }
        writeln!(out, "snapshot   {}", self.snapshot.describe_state())?;
        writeln!(out, "history    {}", sanitise_line(&describe_history(&self.history)))?;
        writeln!(out, "services   {}{}", self.services, self.describe_states())?;
        writeln!(out, "frontends  {}", self.frontends)?;
        writeln!(out, "backends   {}", self.describe_backends())?;
        let verdicts =
            join_or_none(self.verdicts.iter().map(|(verdict, count)| format!("{count} {verdict}")));
        writeln!(out, "verdicts   {verdicts}")?;
        if let Some(announced) = self.describe_announced() {
            writeln!(out, "announced  {announced}")?;
        }
        if self.failures.failing_backends.is_empty() && self.services > 0 {
            writeln!(
                out,
                "not seen   {}",
                if self.refused_connects_seen { UNSEEN } else { UNSEEN_CONNECTS }
            )?;
        }
        self.write_sections(out)
    }

    /// Writes what needs attention, a section for each kind of it.
    fn write_sections(&self, out: &mut impl Write) -> io::Result<()> {
        let unconfigured: &[&str] = if self.nothing_configured { &NOTHING_CONFIGURED } else { &[] };
        write_section(out, "nothing is configured", unconfigured.iter().map(|it| (*it).to_owned()), 0)?;
        write_section(out, "the last reload was refused", self.describe_refused_reload().into_iter(), 0)?;
        write_section(
            out,
            &self.apiserver.absence_title(),
            self.apiserver.describe_absence().into_iter(),
            0,
        )?;
        write_section(out, "admin api", self.shut.iter().cloned(), 0)?;
        let unwritten = self.restart.unwritten.iter().flat_map(Unwritten::describe_state).collect::<Vec<_>>();
        write_section(out, "disk", unwritten.into_iter(), 0)?;
        write_section(out, "datapath", self.faults.iter().cloned(), 0)?;
        let filters = self.filters.iter().map(|it| format!("{}: {}", it.place, it.rule));
        write_section(out, "filters", filters, 0)?;
        let absent: Vec<String> = self.announced_addresses.iter().filter_map(unannounced_reason).collect();
        write_section(out, "not announced", absent.into_iter(), 0)?;
        for OtherProxy { proxy, traces, .. } in &self.other_proxies {
            let traces = traces.iter().map(|Trace { what, remove, .. }| format!("{what}: {remove}"));
            write_section(out, &sanitise_line(proxy), traces, 0)?;
        }
        self.write_services(out)?;
        write_section(out, "errors", self.errors.iter().map(FailedService::describe_state), 0)?;
        let (ignored, rejected): (Vec<_>, Vec<_>) = self.rejected.iter().partition(|it| it.is_ignored_kind());
        let rejected = rejected.into_iter().map(RejectedObject::describe_state);
        write_section(out, "rejected", rejected, self.rejected_dropped)?;
        let ignored = ignored.into_iter().map(RejectedObject::describe_ignored_kind);
        write_section(out, "ignored in the manifests", ignored, 0)?;
        let closed = self.failures.closed_ports.iter().map(ClosedPort::describe_state);
        write_section(out, "closed ports", closed, self.failures.closed_ports_omitted)?;
        write_next(out, self.failures.closed_ports.iter().find_map(|it| it.service.as_deref()))?;
        let others = self.failures.node_port_listeners.iter().map(|it| it.why.clone());
        write_section(
            out,
            "other processes at node ports",
            others,
            self.failures.node_port_listeners_omitted,
        )?;
        let next = self.failures.node_port_listeners.first().map(NodePortListener::next_commands);
        next.map_or(Ok(()), |next| writeln!(out, "  {}", sanitise_line(&next)))?;
        write_section(out, "files about Events", self.event_knowledge_faults.iter().map(describe_fault), 0)
    }
}

impl Status {
    /// Writes the services without ready backends, and the backends with failing checks.
    fn write_services(&self, out: &mut impl Write) -> io::Result<()> {
        write_section(out, "held", describe_groups(&self.held).into_iter(), 0)?;
        // Draining backends serve until they go.
        let (draining, unserved): (Vec<_>, Vec<_>) =
            self.not_serving.iter().partition(|it| it.verdict == "draining");
        let (failing, intended): (Vec<_>, Vec<_>) = unserved.into_iter().partition(|it| it.is_outage());
        write_section(out, "draining", describe_groups(draining).into_iter(), 0)?;
        write_section(out, "not serving", describe_groups(failing).into_iter(), 0)?;
        write_section(out, "not serving, yet or on purpose", describe_groups(intended).into_iter(), 0)?;
        let failing = self.failures.failing_checks.iter().map(FailingCheck::describe_state);
        write_section(out, "failing health checks", failing, self.failures.failing_checks_omitted)?;
        write_next(out, self.failures.failing_checks.first().map(FailingCheck::service))?;
        let failing = self.failures.failing_backends.iter().map(FailingBackend::describe_state);
        write_section(out, "backends that fail clients", failing, self.failures.failing_backends_omitted)?;
        write_next(out, self.failures.failing_backends.first().map(FailingBackend::service))?;
        self.write_denied(out)
    }

    /// Writes who was turned away lately. A rule may mean it, which makes no status bad; a shortage of the node does.
    fn write_denied(&self, out: &mut impl Write) -> io::Result<()> {
        let (short, meant): (Vec<_>, Vec<_>) =
            self.failures.denied_clients.iter().partition(|it| it.is_shortage());
        write_denied_section(out, "clients that this node has no room for", &short, 0)?;
        write_denied_section(out, "clients turned away", &meant, self.failures.denied_clients_omitted)
    }

    /// Why the configuration file is not in force.
    fn describe_refused_reload(&self) -> Vec<String> {
        let Some(why) = &self.restart.refused_reload else { return Vec::new() };
        let rest = self.restart.refusal.iter().flat_map(Refusal::describe_state);
        why.lines().map(str::to_owned).chain(rest).collect()
    }

    /// Services without frontends, by the reason. What clients of the others meet is on the line of verdicts.
    fn describe_states(&self) -> String {
        let others = self.states.iter().filter(|(state, _)| *state != ServiceState::Served.as_str());
        let others: Vec<_> = others.map(|(state, count)| format!("{count} {state}")).collect();
        if others.is_empty() { String::new() } else { format!(" ({})", others.join(", ")) }
    }

    /// How many of the addresses to announce are announced; `None`: there are none.
    fn describe_announced(&self) -> Option<String> {
        let all = self.announced_addresses.len();
        let there = self.announced_addresses.iter().filter(|it| it.announced).count();
        (all > 0).then(|| format!("{there} of {all} addresses"))
    }
}

fn list_errors(services: &[Service]) -> Vec<FailedService> {
    services.iter().filter(|service| service.status == "error").map(FailedService::from).collect()
}

fn unannounced_reason(AnnouncedAddress { address, announced, why, .. }: &AnnouncedAddress) -> Option<String> {
    (!announced).then(|| format!("{address}: {}", why.as_deref().unwrap_or("its route does not exist")))
}

/// Writes the command that says more about a service of the section before.
fn write_next(out: &mut impl Write, service: Option<&str>) -> io::Result<()> {
    match service {
        Some(service) => writeln!(out, "  next: holdfast diagnose {}", sanitise_line(service)),
        None => Ok(()),
    }
}

fn join_or_none(words: impl Iterator<Item = String>) -> String {
    let words: Vec<String> = words.collect();
    if words.is_empty() { "none".to_owned() } else { words.join(", ") }
}

/// Writes a section of clients, and the command that says more about the first of them.
fn write_denied_section(
    out: &mut impl Write,
    title: &str,
    denied: &[&DeniedClients],
    omitted: u64,
) -> io::Result<()> {
    write_section(out, title, denied.iter().map(|it| it.describe_state()), omitted)?;
    let next = denied.first().map(|it| it.next_command());
    next.map_or(Ok(()), |next| writeln!(out, "  {}", sanitise_line(&next)))
}

/// Writes a heading and its lines, if there are any.
fn write_section(
    out: &mut impl Write,
    title: &str,
    lines: impl ExactSizeIterator<Item = String>,
    unnamed: u64,
) -> io::Result<()> {
    let count = lines.len();
    if count == 0 && unnamed == 0 {
        return Ok(());
    }
    writeln!(out, "\n{title}")?;
    for line in lines.take(LINES_MAX) {
        writeln!(out, "  {}", sanitise_line(&line))?;
    }
    let more = u64::try_from(count.saturating_sub(LINES_MAX)).unwrap_or(u64::MAX).saturating_add(unnamed);
    if more > 0 {
        writeln!(out, "  and {more} more")?;
    }
    Ok(())
}

fn describe_history(row: &HistoryRow) -> String {
    let HistoryRow { seq, gaps, bytes, unwritten, error } = row;
    let size = if error.is_none() { format!(", {bytes} bytes") } else { String::new() };
    let mut text = match seq {
        0 => "no change yet".to_owned(),
        1 => format!("1 change{size}"),
        seq => format!("{seq} changes{size}"),
    };
    match gaps {
        0 => {}
        1 => text.push_str(", 1 gap"),
        gaps => text.push_str(&format!(", {gaps} gaps")),
    }
    if error.is_some() {
        text.push_str(&format!("; {unwritten} not on disk"));
    }
    text
}

impl SnapshotStatus {
    fn describe_state(&self) -> String {
        let written = match (&self.written, &self.error) {
            (Some(written), None) => format!("{} bytes, written {written}", self.bytes),
            (Some(written), Some(_)) => format!("not written since {written}"),
            (None, None) => "not written yet".to_owned(),
            (None, Some(_)) => "not written since the start".to_owned(),
        };
        let damage = self.damage.as_ref().map(describe_damage).unwrap_or_default();
        format!("{written}{damage}")
    }
}

fn describe_damage(row: &DamageRow) -> String {
    let DamageRow { error, older, lost, lost_services } = row;
    let named =
        if *lost > 0 { format!(" ({})", sanitise_line(&lost_services.join(", "))) } else { String::new() };
    format!(
        "; at the start {}: {older} services came from the file before, {lost} were lost{named}",
        sanitise_line(error)
    )
}

impl From<&Service> for FailedService {
    fn from(service: &Service) -> Self {
        let error = service.error.clone().unwrap_or_default();
        Self { service: service.service.clone(), error }
    }
}

impl FailedService {
    fn describe_state(&self) -> String {
        format!("{}: {}", self.service, self.error)
    }
}

fn describe_fault(fault: &KnowledgeFault) -> String {
    let KnowledgeFault { file, line, id, message } = fault;
    let line = line.map(|line| format!(":{line}")).unwrap_or_default();
    let id = id.as_deref().map(|id| format!(" {id}:")).unwrap_or_default();
    format!("{file}{line}:{id} {message}")
}

impl RejectedObject {
    /// Whether it is a kind of a manifest that is not read, which is no fault.
    fn is_ignored_kind(&self) -> bool {
        self.kind == IGNORED_KIND
    }

    fn describe_ignored_kind(&self) -> String {
        format!("{} {}", self.place.as_deref().unwrap_or_default(), self.reason)
    }

    fn describe_state(&self) -> String {
        let name = self.name.as_deref().or(self.place.as_deref()).unwrap_or_default();
        format!("{} {name}: {}", self.kind, self.reason)
    }
}
