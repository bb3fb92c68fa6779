//! `status`: one screen that says whether all is well, and if not, what.
//!
//! Invariant: it needs nothing that the API does not show. Lists are cut with a count, never silently.

mod apiserver;
mod checks;

use std::collections::BTreeMap;
use std::io::{self, Write};

use holdfast_status::plain::plain;
use holdfast_status::views::announced::AnnouncedAddress;
use holdfast_status::views::proxies::Trace;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use self::apiserver::Apiserver;
use self::checks::FailingCheck;
use super::Exit;
use super::client::{Client, ClientError};
use holdfast_api::about::Version;
use holdfast_api::health::{DamageRow, HistoryRow, KnowledgeFault};
use holdfast_api::totals::TotalsRow;

/// How many lines of one section are shown, so that all sections fit on a screen.
const LINES_MAX: usize = 10;

#[derive(Debug, Deserialize)]
struct Readiness {
    healthy: bool,
    reason: Option<String>,
    sources: Vec<Source>,
    stale_since: Option<String>,
    snapshot: SavedTable,
    history: HistoryRow,
    #[serde(default)]
    closed_ports: Vec<ClosedPort>,
    #[serde(default)]
    closed_ports_omitted: u64,
    #[serde(default)]
    failing_checks: Vec<FailingCheck>,
    #[serde(default)]
    failing_checks_omitted: u64,
    #[serde(default)]
    event_knowledge_faults: Vec<KnowledgeFault>,
    #[serde(default)]
    refused_reload: Option<String>,
    #[serde(default)]
    shut: Vec<String>,
    #[serde(default)]
    unwritten_drains: Option<String>,
}

#[derive(Debug, Deserialize, Serialize)]
struct ClosedPort {
    purpose: String,
    address: String,
    service: Option<String>,
    why: String,
}

#[derive(Debug, Deserialize, Serialize)]
struct SavedTable {
    written: Option<String>,
    bytes: u64,
    #[serde(default)]
    damage: Option<DamageRow>,
    error: Option<String>,
}

#[derive(Debug, Deserialize, Serialize)]
struct Source {
    source: String,
    synced: bool,
}

#[derive(Debug, Deserialize)]
struct Datapath {
    other_proxies: Vec<OtherProxy>,
    #[serde(default)]
    filters: Vec<Filter>,
    #[serde(default)]
    announced_addresses: Vec<AnnouncedAddress>,
    kernel: Option<Kernel>,
}

#[derive(Debug, Deserialize, Serialize)]
struct OtherProxy {
    proxy: String,
    evidence: Vec<String>,
    #[serde(default)]
    traces: Vec<Trace>,
}

#[derive(Debug, Deserialize, Serialize)]
struct Filter {
    kind: String,
    place: String,
    rule: String,
}

#[derive(Debug, Deserialize)]
struct Kernel {
    waiting: bool,
    broken_hooks: Vec<String>,
    #[serde(default)]
    bare_hooks: Vec<String>,
    #[serde(default)]
    repair_failure: Option<String>,
    #[serde(default)]
    behind_hooks: Vec<String>,
    grace_failure: Option<String>,
    #[serde(default)]
    packets: Option<Packets>,
}

#[derive(Debug, Deserialize)]
struct Packets {
    #[serde(default)]
    failure: Option<String>,
    #[serde(default)]
    behind: bool,
    #[serde(default)]
    hook: Option<String>,
    devices: Vec<Device>,
}

#[derive(Debug, Deserialize)]
struct Device {
    name: String,
    class: String,
    why: String,
    #[serde(default)]
    unpinned: bool,
    #[serde(default)]
    error: Option<String>,
}

/// A device that leads to backends, and that the configuration leaves out.
#[derive(Debug, Serialize)]
struct LeftOut {
    device: String,
    why: String,
}

#[derive(Debug, Deserialize)]
struct Services {
    services: Vec<Service>,
    totals: TotalsRow,
    rejected: Vec<Rejected>,
    rejected_dropped: u64,
}

#[derive(Debug, Deserialize)]
struct Service {
    service: String,
    verdict: Option<String>,
    reason: Option<String>,
    status: String,
    error: Option<String>,
}

#[derive(Debug, Deserialize, Serialize)]
struct Rejected {
    kind: String,
    name: Option<String>,
    place: Option<String>,
    reason: String,
}

/// The answer of `status -o json`.
#[derive(Debug, Serialize)]
struct Status {
    good: bool,
    version: Version,
    ready: bool,
    reason: Option<String>,
    faults: Vec<String>,
    other_proxies: Vec<OtherProxy>,
    left_out_devices: Vec<LeftOut>,
    filters: Vec<Filter>,
    announced_addresses: Vec<AnnouncedAddress>,
    sources: Vec<Source>,
    apiserver: Apiserver,
    stale_since: Option<String>,
    snapshot: SavedTable,
    history: HistoryRow,
    services: u64,
    frontends: u64,
    backends: u64,
    drained: u64,
    states: BTreeMap<String, u64>,
    verdicts: BTreeMap<String, u64>,
    held: Vec<NotServing>,
    not_serving: Vec<NotServing>,
    errors: Vec<Failed>,
    rejected: Vec<Rejected>,
    rejected_dropped: u64,
    closed_ports: Vec<ClosedPort>,
    closed_ports_omitted: u64,
    failing_checks: Vec<FailingCheck>,
    failing_checks_omitted: u64,
    event_knowledge_faults: Vec<KnowledgeFault>,
    refused_reload: Option<String>,
    shut: Vec<String>,
    unwritten_drains: Option<String>,
}

#[derive(Debug, Serialize)]
struct NotServing {
    service: String,
    verdict: String,
    reason: Option<String>,
}

#[derive(Debug, Serialize)]
struct Failed {
    service: String,
    error: String,
}

/// Asks for everything that counts, and writes the screen or its JSON.
pub(super) fn status(client: &Client, json: bool, out: &mut impl Write) -> Result<Exit, ClientError> {
    let version = read(client, "/version?format=json")?;
    let readiness = read(client, "/readyz?format=json")?;
    let datapath = read(client, "/datapath?format=json")?;
    let apiserver = read(client, "/apiserver?format=json")?;
    let services = read(client, "/services?only=trouble&format=json")?;
    let status = Status::of(version, readiness, datapath, apiserver, services);
    if json {
        let text =
            serde_json::to_string_pretty(&status).map_err(|error| ClientError::Broken(error.into()))?;
        writeln!(out, "{text}")?;
    } else {
        status.write(out)?;
    }
    out.flush()?;
    Ok(if status.good { Exit::Good } else { Exit::Finding })
}

/// Reads one answer of the API. A 503 is an answer too, because the reason is in it.
fn read<T: DeserializeOwned>(client: &Client, path: &str) -> Result<T, ClientError> {
    let mut answer = client.get(path)?;
    if answer.status != 503 {
        answer = answer.expect_ok()?;
    }
    serde_json::from_slice(&answer.whole()?).map_err(|error| ClientError::Broken(error.into()))
}

impl Status {
    fn of(
        version: Version,
        readiness: Readiness,
        datapath: Datapath,
        apiserver: Apiserver,
        services: Services,
    ) -> Self {
        let Services { services, totals, rejected, rejected_dropped } = services;
        let faults = datapath.faults();
        let left_out_devices = datapath.left_out();
        let failed = services.iter().filter(|service| service.status == "error");
        let errors: Vec<Failed> = failed.map(Failed::from).collect();
        let (held, not_serving) =
            services.iter().filter_map(NotServing::of).partition(|it: &NotServing| it.verdict == "held");
        let is_in_force = readiness.refused_reload.is_none();
        let is_served = faults.is_empty() && errors.is_empty() && rejected.is_empty();
        Self {
            good: readiness.healthy && is_in_force && is_served,
            version,
            ready: readiness.healthy,
            reason: readiness.reason,
            faults,
            other_proxies: datapath.other_proxies,
            left_out_devices,
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
            drained: totals.drained,
            states: totals.states,
            verdicts: totals.verdicts,
            held,
            not_serving,
            errors,
            rejected,
            rejected_dropped,
            closed_ports: readiness.closed_ports,
            closed_ports_omitted: readiness.closed_ports_omitted,
            failing_checks: readiness.failing_checks,
            failing_checks_omitted: readiness.failing_checks_omitted,
            event_knowledge_faults: readiness.event_knowledge_faults,
            refused_reload: readiness.refused_reload,
            shut: readiness.shut,
            unwritten_drains: readiness.unwritten_drains,
        }
    }

    fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let Version { version, node, datapath, started } = &self.version;
        writeln!(out, "holdfast {version} on {node}, since {started}")?;
        let ready = self.reason.as_deref().map_or_else(|| "yes".to_owned(), |reason| format!("no: {reason}"));
        writeln!(out, "ready      {ready}")?;
        let note = if datapath == "memory" { " (computed and shown; no traffic is touched)" } else { "" };
        writeln!(out, "datapath   {datapath}{note}")?;
        for OtherProxy { proxy, evidence, .. } in &self.other_proxies {
            writeln!(out, "beside     {} ({})", plain(proxy), plain(&evidence.join(", ")))?;
        }
        for LeftOut { device, why } in &self.left_out_devices {
            writeln!(out, "left out   {} ({})", plain(device), plain(why))?;
        }
        writeln!(out, "sources    {}", listed(self.sources.iter().map(Source::spelled)))?;
        if let Some(apiserver) = self.apiserver.spelled() {
            writeln!(out, "apiserver  {}", plain(&apiserver))?;
        }
        if let Some(since) = &self.stale_since {
            writeln!(out, "stale      as remembered from {since}")?;
        }
        writeln!(out, "snapshot   {}", self.snapshot.spelled())?;
        writeln!(out, "history    {}", plain(&spell_history(&self.history)))?;
        let states = listed(self.states.iter().map(|(state, count)| format!("{count} {state}")));
        writeln!(out, "services   {} ({states})", self.services)?;
        writeln!(out, "frontends  {}", self.frontends)?;
        writeln!(out, "backends   {}{}", self.backends, self.drained_spelled())?;
        let verdicts = listed(self.verdicts.iter().map(|(verdict, count)| format!("{count} {verdict}")));
        writeln!(out, "verdicts   {verdicts}")?;
        if let Some(announced) = self.announced_spelled() {
            writeln!(out, "announced  {announced}")?;
        }
        let refused: Vec<_> =
            self.refused_reload.iter().flat_map(|why| why.lines().map(str::to_owned)).collect();
        section(out, "the last reload was refused", refused.into_iter(), 0)?;
        section(out, "admin api", self.shut.iter().cloned(), 0)?;
        let drains = self.unwritten_drains.iter();
        let drains: Vec<_> =
            drains.map(|why| format!("a restart would not know the last orders: {why}")).collect();
        section(out, "drains", drains.into_iter(), 0)?;
        section(out, "datapath", self.faults.iter().cloned(), 0)?;
        let filters = self.filters.iter().map(|it| format!("{}: {}", it.place, it.rule));
        section(out, "filters", filters, 0)?;
        let absent: Vec<String> = self.announced_addresses.iter().filter_map(not_announced).collect();
        section(out, "not announced", absent.into_iter(), 0)?;
        for OtherProxy { proxy, traces, .. } in &self.other_proxies {
            let traces = traces.iter().map(|Trace { what, remove, .. }| format!("{what}: {remove}"));
            section(out, &plain(proxy), traces, 0)?;
        }
        self.write_services(out)?;
        section(out, "errors", self.errors.iter().map(Failed::spelled), 0)?;
        section(out, "rejected", self.rejected.iter().map(Rejected::spelled), self.rejected_dropped)?;
        let closed = self.closed_ports.iter().map(ClosedPort::spelled);
        section(out, "closed ports", closed, self.closed_ports_omitted)?;
        section(out, "files about Events", self.event_knowledge_faults.iter().map(spell_fault), 0)
    }
}

impl Status {
    /// Writes which services do not serve by ready backends, and which backends fail their checks.
    fn write_services(&self, out: &mut impl Write) -> io::Result<()> {
        section(out, "held", self.held.iter().map(NotServing::spelled), 0)?;
        // Draining backends serve until they go.
        let (draining, unserved): (Vec<_>, Vec<_>) =
            self.not_serving.iter().partition(|it| it.verdict == "draining");
        section(out, "draining", draining.into_iter().map(NotServing::spelled), 0)?;
        section(out, "not serving", unserved.into_iter().map(NotServing::spelled), 0)?;
        let failing = self.failing_checks.iter().map(FailingCheck::spelled);
        section(out, "failing health checks", failing, self.failing_checks_omitted)
    }

    /// What is drained stays so until it is taken back, which may be forgotten.
    fn drained_spelled(&self) -> String {
        match self.drained {
            0 => String::new(),
            drained => format!(", and {drained} drained (`holdfast drain` lists them)"),
        }
    }

    /// How many of the addresses that are to be announced are; `None`: none is to be.
    fn announced_spelled(&self) -> Option<String> {
        let all = self.announced_addresses.len();
        let there = self.announced_addresses.iter().filter(|it| it.announced).count();
        (all > 0).then(|| format!("{there} of {all} addresses"))
    }
}

/// Why an address is not announced.
fn not_announced(AnnouncedAddress { address, announced, why, .. }: &AnnouncedAddress) -> Option<String> {
    (!announced).then(|| format!("{address}: {}", why.as_deref().unwrap_or("its route is not there")))
}

fn listed(words: impl Iterator<Item = String>) -> String {
    let words: Vec<String> = words.collect();
    if words.is_empty() { "none".to_owned() } else { words.join(", ") }
}

/// Writes a heading and its lines, if there are any.
fn section(
    out: &mut impl Write,
    title: &str,
    lines: impl ExactSizeIterator<Item = String>,
    unnamed: u64,
) -> io::Result<()> {
    let count = lines.len();
    if count == 0 {
        return Ok(());
    }
    writeln!(out, "\n{title}")?;
    for line in lines.take(LINES_MAX) {
        writeln!(out, "  {}", plain(&line))?;
    }
    let more = u64::try_from(count.saturating_sub(LINES_MAX)).unwrap_or(u64::MAX).saturating_add(unnamed);
    if more > 0 {
        writeln!(out, "  and {more} more")?;
    }
    Ok(())
}

impl Datapath {
    /// Why clients are not served, or will not be, although everything else may look well.
    fn faults(&self) -> Vec<String> {
        let refused = |it: &AnnouncedAddress| {
            it.error
                .as_ref()
                .map(|error| format!("the route to {} is not as it should be: {error}", it.address))
        };
        let refused = self.announced_addresses.iter().filter_map(refused);
        let Some(kernel) = &self.kernel else { return refused.collect() };
        let grace = kernel.grace_failure.as_ref().map(|why| format!("grace periods do not end: {why}"));
        let waiting = kernel.waiting.then(|| "another version's programs still serve".to_owned());
        let behind = |hook: &String| format!("{hook}: the program reads maps that are no longer written");
        let hooks = kernel.broken().into_iter().chain(kernel.behind_hooks.iter().map(behind));
        let packets = kernel.packets.iter().flat_map(Packets::faults);
        waiting.into_iter().chain(hooks).chain(packets).chain(grace).chain(refused).collect()
    }

    fn left_out(&self) -> Vec<LeftOut> {
        let packets = self.kernel.iter().filter_map(|kernel| kernel.packets.as_ref());
        let left_out = packets.flat_map(|packets| &packets.devices).filter(|it| it.class == "backends");
        left_out.map(|it| LeftOut { device: it.name.clone(), why: it.why.clone() }).collect()
    }
}

impl Kernel {
    /// The hooks without a program of ours, and those whose program serves but would not outlive the daemon.
    fn broken(&self) -> Vec<String> {
        let why = self.repair_failure.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
        let is_bare = |hook: &&String| self.bare_hooks.contains(*hook);
        let (bare, unpinned): (Vec<_>, Vec<_>) = self.broken_hooks.iter().partition(is_bare);
        let listed = |hooks: Vec<&String>| hooks.into_iter().cloned().collect::<Vec<_>>().join(", ");
        let said =
            |hooks: Vec<&String>, what| (!hooks.is_empty()).then(|| format!("{} {what}{why}", listed(hooks)));
        let gone = "have no program any more, so clients there are not served, and none can be put back";
        let all = [said(bare, gone), said(unpinned, UNPINNED)];
        all.into_iter().flatten().collect()
    }
}

/// What a missing pin means, and what it does not.
const UNPINNED: &str = "serve, but their pins are gone: their programs end with this daemon";

impl Packets {
    /// Why clients from outside are not served, or not as services are now.
    fn faults(&self) -> Vec<String> {
        let what = match self.hook {
            _ if self.behind => "clients from outside meet services as they were, and no change of them",
            None => "clients from outside are not served",
            Some(_) => "clients from outside are not served by all devices",
        };
        let failure = self.failure.as_ref().map(|why| format!("{what}: {why}"));
        let outer = self.devices.iter().filter(|it| it.class == "outer");
        let device = |it: &Device| {
            let error = it.error.as_ref()?;
            Some(match it.unpinned {
                true => format!(
                    "clients who come by {} are served, but its programs end with this daemon: {error}",
                    it.name
                ),
                false => format!("clients who come by {} are not served: {error}", it.name),
            })
        };
        failure.into_iter().chain(outer.filter_map(device)).collect()
    }
}

fn spell_history(row: &HistoryRow) -> String {
    let HistoryRow { seq, gaps, bytes, unwritten, error } = row;
    let mut text = match seq {
        0 => "no change yet".to_owned(),
        seq => format!("{seq} changes, {bytes} bytes"),
    };
    if *gaps > 0 {
        text.push_str(&format!(", {gaps} gaps"));
    }
    if let Some(error) = error {
        text.push_str(&format!("; {unwritten} not written: {error}"));
    }
    text
}

impl SavedTable {
    fn spelled(&self) -> String {
        let written = match &self.written {
            Some(written) => format!("{} bytes, written {written}", self.bytes),
            None => "not written yet".to_owned(),
        };
        let error = self.error.as_deref().map(|error| format!("; {}", plain(error))).unwrap_or_default();
        let damage = self.damage.as_ref().map(spell_damage).unwrap_or_default();
        format!("{written}{error}{damage}")
    }
}

fn spell_damage(row: &DamageRow) -> String {
    let DamageRow { error, older, lost, lost_services } = row;
    let named = if *lost > 0 { format!(" ({})", plain(&lost_services.join(", "))) } else { String::new() };
    format!(
        "; at the start {}: {older} services were as in the file before, {lost} were lost{named}",
        plain(error)
    )
}

impl Source {
    fn spelled(&self) -> String {
        let state = if self.synced { "" } else { " (no first list yet)" };
        format!("{}{state}", self.source)
    }
}

impl NotServing {
    /// The service, unless its verdict is as it is meant to be: serving, or bypassed.
    fn of(service: &Service) -> Option<Self> {
        let meant = |verdict: &String| matches!(verdict.as_str(), "serving" | "bypassed");
        let verdict = service.verdict.clone().filter(|verdict| !meant(verdict))?;
        Some(Self { service: service.service.clone(), verdict, reason: service.reason.clone() })
    }

    fn spelled(&self) -> String {
        let reason = self.reason.as_deref().map(|reason| format!(" ({reason})")).unwrap_or_default();
        format!("{}: {}{reason}", self.service, self.verdict)
    }
}

impl From<&Service> for Failed {
    fn from(service: &Service) -> Self {
        let error = service.error.clone().unwrap_or_default();
        Self { service: service.service.clone(), error }
    }
}

impl Failed {
    fn spelled(&self) -> String {
        format!("{}: {}", self.service, self.error)
    }
}

impl ClosedPort {
    fn spelled(&self) -> String {
        let Self { purpose, address, service, why } = self;
        format!("{} {address}: {why}", service.as_deref().unwrap_or(purpose))
    }
}

fn spell_fault(fault: &KnowledgeFault) -> String {
    let KnowledgeFault { file, line, id, message } = fault;
    let line = line.map(|line| format!(":{line}")).unwrap_or_default();
    let id = id.as_deref().map(|id| format!(" {id}:")).unwrap_or_default();
    format!("{file}{line}:{id} {message}")
}

impl Rejected {
    fn spelled(&self) -> String {
        let name = self.name.as_deref().or(self.place.as_deref()).unwrap_or_default();
        format!("{} {name}: {}", self.kind, self.reason)
    }
}
