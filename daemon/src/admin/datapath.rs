//! `/datapath`: programs and maps in the kernel, and how full those are.
//!
//! Invariant: it shows what the engine published last, at most a second old; nothing is read from the kernel here.

use std::path::Path;
use std::sync::Arc;

use axum::http::StatusCode;
use axum::response::Response;
use holdfast_core::snapshot::Fill;
use holdfast_datapath::Status;
use serde::Serialize;

use super::answer;
use super::form::Form;
use super::query::Query;
use super::shown::{Cells, Widths};
use crate::datapath::DatapathView;
use crate::proxies::OtherProxy;
use crate::readings::Readings;

#[derive(Serialize)]
struct Datapath<'a> {
    kind: &'static str,
    other_proxies: &'a [OtherProxy],
    kernel: Option<Kernel<'a>>,
}

#[derive(Serialize)]
struct Kernel<'a> {
    cgroup: Option<&'a Path>,
    own_cgroup_exempt: bool,
    pins: Option<&'a Path>,
    waiting: bool,
    generation: u32,
    growths: u32,
    features: Features,
    maps: Vec<MapFill>,
    broken_hooks: &'a [&'static str],
    shared_hooks: Vec<SharedHook>,
    refusals_lost: u64,
    stale_sockets: Option<StaleSockets<'a>>,
    grace_failure: Option<&'a str>,
    in_cgroup_namespace: bool,
    behind_hooks: &'a [&'static str],
    leftover: Option<&'a str>,
    sockets: &'static str,
    udp_sockets: bool,
    exempt_cgroups: Vec<ExemptCgroup<'a>>,
}

/// A subtree that is left alone, where it is there.
#[derive(Serialize)]
struct ExemptCgroup<'a> {
    path: &'a Path,
    exists: bool,
}

/// Sockets whose backend has left.
#[derive(Serialize)]
struct StaleSockets<'a> {
    ended: u64,
    failure: Option<&'a str>,
}

/// A hook where others have programs too.
#[derive(Serialize)]
struct SharedHook {
    hook: &'static str,
    others: usize,
}

#[derive(Serialize)]
struct Features {
    set_retval: bool,
}

/// How full one map is. Slots are counted in whole blocks.
#[derive(Debug, Serialize)]
pub(super) struct MapFill {
    pub(super) map: &'static str,
    pub(super) used: u64,
    pub(super) size: u32,
    pub(super) limit: u32,
}

/// All maps that grow.
pub(super) fn fills(status: &Status, fill: &Fill) -> [MapFill; 6] {
    let [frontends4, frontends6] = status.frontends.map(u64::from);
    let [backends4, backends6] = fill.slots;
    let of = |map, used, place: fn(&holdfast_datapath::Shape) -> u32| MapFill {
        map,
        used,
        size: place(&status.shape),
        limit: place(&status.limits),
    };
    [
        of("frontends4", frontends4, |shape| shape.frontends[0]),
        of("frontends6", frontends6, |shape| shape.frontends[1]),
        of("ports", fill.ports as u64, |shape| shape.ports),
        of("backends4", backends4, |shape| shape.slots[0]),
        of("backends6", backends6, |shape| shape.slots[1]),
        of("members", u64::from(status.members), |shape| shape.members),
    ]
}

impl<'a> Kernel<'a> {
    fn of(status: &'a Status, fill: &Fill) -> Self {
        Self {
            cgroup: status.cgroup.as_deref(),
            own_cgroup_exempt: status.own_cgroup_exempt,
            pins: status.pins.as_deref(),
            waiting: status.waiting,
            generation: status.generation,
            growths: status.growths,
            features: Features { set_retval: status.features.set_retval },
            maps: fills(status, fill).into(),
            broken_hooks: &status.broken_hooks,
            shared_hooks: status
                .shared_hooks
                .iter()
                .map(|(hook, others)| SharedHook { hook, others: *others })
                .collect(),
            refusals_lost: status.refusals_lost,
            stale_sockets: status
                .stale_sockets
                .as_ref()
                .map(|it| StaleSockets { ended: it.ended, failure: it.failure.as_deref() }),
            grace_failure: status.grace_failure.as_deref(),
            in_cgroup_namespace: status.in_cgroup_namespace,
            behind_hooks: &status.behind_hooks,
            leftover: status.leftover.as_deref(),
            sockets: if status.served.pods { "all" } else { "host" },
            udp_sockets: status.served.udp,
            exempt_cgroups: exempt_cgroups(status),
        }
    }

    fn lines(&self) -> [(&'static str, String); 15] {
        let path =
            |path: Option<&Path>| path.map_or_else(|| "none".to_owned(), |it| it.display().to_string());
        let cgroup = path(self.cgroup);
        let namespace = if self.in_cgroup_namespace { NAMESPACE } else { "" };
        let yes = |yes: bool| if yes { "yes" } else { "no" }.to_owned();
        let broken =
            if self.broken_hooks.is_empty() { "none".to_owned() } else { self.broken_hooks.join(" ") };
        let shared =
            self.shared_hooks.iter().map(|SharedHook { hook, others }| format!("{others} at {hook}"));
        let shared = if self.shared_hooks.is_empty() {
            "none".to_owned()
        } else {
            shared.collect::<Vec<_>>().join(", ")
        };
        let grace = self.grace_failure.map_or_else(|| "end".to_owned(), |why| format!("do not end: {why}"));
        let behind =
            if self.behind_hooks.is_empty() { "none".to_owned() } else { self.behind_hooks.join(" ") };
        [
            ("cgroup", format!("{cgroup}{namespace}")),
            ("sockets served", self.served()),
            ("own cgroup exempt", yes(self.own_cgroup_exempt)),
            ("pins", path(self.pins)),
            ("serving", if self.waiting { "no: another version's programs serve" } else { "yes" }.to_owned()),
            ("generation", self.generation.to_string()),
            ("growths", self.growths.to_string()),
            ("refusal sets errno", yes(self.features.set_retval)),
            ("broken hooks", broken),
            ("others' programs", shared),
            ("hooks behind", behind),
            ("refusals lost", self.refusals_lost.to_string()),
            ("stale sockets", self.stale_sockets.as_ref().map_or_else(|| "stay".to_owned(), spelled)),
            ("grace periods", grace),
            ("old maps", self.leftover.map_or_else(|| "removed".to_owned(), |why| format!("stay: {why}"))),
        ]
    }

    fn served(&self) -> String {
        let pods = if self.sockets == "all" { "of the host and of pods" } else { "of the host only" };
        let udp = if self.udp_sockets { "" } else { ", TCP only" };
        let but = if self.exempt_cgroups.is_empty() { "" } else { ", but not below" };
        let mut line = format!("{pods}{udp}{but}");
        for ExemptCgroup { path, exists } in &self.exempt_cgroups {
            let absent = if *exists { "" } else { " (absent)" };
            line.push_str(&format!(" {}{absent}", path.display()));
        }
        line
    }

    fn write(&self, out: &mut Vec<u8>) {
        let lines = self.lines();
        let facts = lines.iter().map(|(name, value)| {
            let mut cells = Cells::default();
            cells.put(name);
            cells.put(value);
            cells
        });
        aligned(&facts.collect::<Vec<_>>(), out);
        out.push(b'\n');
        let rows = std::iter::once(heading()).chain(self.maps.iter().map(MapFill::cells));
        aligned(&rows.collect::<Vec<_>>(), out);
    }
}

/// What stands behind the path of a cgroup that was not asked for.
const NAMESPACE: &str =
    " (the root of a cgroup namespace, not the host's: processes outside of it are not served)";

fn exempt_cgroups(status: &Status) -> Vec<ExemptCgroup<'_>> {
    let paths = status.served.exempt_cgroups.iter();
    paths.map(|path| ExemptCgroup { path, exists: !status.absent_cgroups.contains(path) }).collect()
}

fn spelled(StaleSockets { ended, failure }: &StaleSockets<'_>) -> String {
    let failure = failure.map(|why| format!("; not all can be: {why}"));
    format!("{ended} ended{}", failure.unwrap_or_default())
}

impl MapFill {
    fn cells(&self) -> Cells {
        let mut cells = Cells::default();
        cells.put(self.map);
        cells.put(self.used);
        cells.put(self.size);
        cells.put(self.limit);
        cells
    }
}

fn heading() -> Cells {
    let mut cells = Cells::default();
    for title in ["MAP", "USED", "SIZE", "LIMIT"] {
        cells.put(title);
    }
    cells
}

fn aligned(lines: &[Cells], out: &mut Vec<u8>) {
    let mut widths = Widths::default();
    lines.iter().for_each(|cells| widths.observe(cells));
    lines.iter().for_each(|cells| widths.line(cells, out));
}

/// The whole answer.
pub(super) fn datapath(readings: &Readings, _: Query, form: Form) -> Response {
    let (view, snapshot) = (readings.datapath(), readings.snapshot());
    let proxies = Arc::clone(&readings.proxies.borrow());
    let kernel = view.status().map(|status| Kernel::of(status, &snapshot.fill));
    match form {
        Form::Json => {
            answer::json(StatusCode::OK, &Datapath { kind: view.kind(), other_proxies: &proxies, kernel })
        }
        Form::Table | Form::Wide => answer::text(StatusCode::OK, text(&view, &proxies, kernel.as_ref())),
    }
}

fn text(view: &DatapathView, proxies: &[OtherProxy], kernel: Option<&Kernel<'_>>) -> Vec<u8> {
    let note =
        if kernel.is_some() { "" } else { ": everything is computed and shown, no traffic is touched" };
    let mut out = format!("datapath {}{note}\n", view.kind()).into_bytes();
    for OtherProxy { proxy, evidence } in proxies {
        out.extend(format!("other proxy: {proxy} ({})\n", evidence.join(", ")).into_bytes());
    }
    if let Some(kernel) = kernel {
        kernel.write(&mut out);
    }
    out
}
