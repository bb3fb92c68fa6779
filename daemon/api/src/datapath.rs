//! `/datapath`: programs and maps in the kernel, and how full the maps are.
//!
//! Invariant: the answer is the engine's last published view, at most a second old; nothing is read from the kernel
//! here.

mod packets;

use std::fmt::Display;
use std::path::Path;
use std::sync::Arc;

use axum::http::StatusCode;
use axum::response::Response;
use holdfast_core::limits;
use holdfast_core::snapshot::Fill;
use holdfast_datapath::Status;
use holdfast_status::schema_types::Code;
use holdfast_status::views::announcements::AnnouncedAddress;
use holdfast_status::views::datapath::DatapathKind;
use holdfast_status::views::devices::DeviceDecision;
use holdfast_status::views::proxies::Filter;
use holdfast_status::views::proxies::{OtherProxy, Trace};
use schemars::JsonSchema;
use serde::Serialize;

use super::form::Form;
use super::query::Query;
use super::response;
use super::text_table::{Cells, write_aligned, write_table};
use holdfast_agent::readings::Readings;
use holdfast_config::Sockets;

use packets::Packets;

/// The carrier of the traffic.
#[derive(Serialize, JsonSchema)]
pub(super) struct Datapath<'a> {
    kind: Code<DatapathKind>,
    /// Other proxies that serve, or served, on this node. They stay as they are.
    other_proxies: &'a [OtherProxy],
    /// Firewall rules that affect packets of services otherwise than with kube-proxy.
    filters: &'a [Filter],
    /// Addresses of services with `announce = "route"`, and whether their routes exist.
    announced_addresses: &'a [AnnouncedAddress],
    /// Programs and maps; null if the tables are in memory.
    kernel: Option<Kernel<'a>>,
}

/// Programs and maps in the kernel.
#[derive(Serialize, JsonSchema)]
struct Kernel<'a> {
    /// The sockets in this cgroup get the services.
    cgroup: Option<&'a Path>,
    /// Whether the daemon's cgroup is exempt. If not, only its marked sockets are.
    own_cgroup_exempt: bool,
    /// Where programs and maps are pinned.
    pins: Option<&'a Path>,
    /// Whether another version's programs still serve, until these maps are filled.
    waiting: bool,
    /// Which generation of maps is in use.
    generation: u32,
    /// How often the maps have grown since the daemon started.
    growths: u32,
    features: Features,
    maps: Vec<MapFill>,
    /// Hooks where another process detached our program or removed its pin.
    broken_hooks: &'a [&'static str],
    /// Broken hooks without a program of ours; clients there reach no service. The others serve without a pin, and end
    /// with the daemon.
    detached_hooks: &'a [&'static str],
    /// Why the daemon cannot restore programs or pins; it tries again each second.
    repair_failure: Option<&'a str>,
    shared_hooks: Vec<SharedHook>,
    /// Refusals that were too many to be reported, or that the daemon did not read in time.
    refusals_lost: u64,
    /// Sockets that have lost their backend; null if the configuration lets them be.
    stale_sockets: Option<StaleSockets<'a>>,
    /// Why the daemon does not see which backends refuse clients of this node; null if it sees that.
    refused_connects_failure: Option<&'a str>,
    /// Why grace periods do not end; until they do, nothing is reused.
    grace_failure: Option<&'a str>,
    /// Whether the cgroup is the root of a cgroup namespace instead of the host's, without being configured.
    in_cgroup_namespace: bool,
    /// Hooks where a program still reads maps that the daemon no longer writes; the daemon tries each second to replace
    /// it.
    behind_hooks: &'a [&'static str],
    /// Why unused maps are still pinned.
    leftover: Option<&'a str>,
    /// Which sockets are served.
    sockets: Code<Sockets>,
    /// Whether UDP sockets are served.
    udp_sockets: bool,
    exempt_cgroups: Vec<ExemptCgroup<'a>>,
    /// How packets are translated; null if the configuration disables it.
    packets: Option<Packets<'a>>,
}

/// An exempt subtree of cgroups, whether or not it exists yet.
#[derive(Serialize, JsonSchema)]
struct ExemptCgroup<'a> {
    /// The path from the root of the hierarchy.
    path: &'a Path,
    /// Whether the subtree exists.
    exists: bool,
}

/// Sockets that have lost their backend.
#[derive(Serialize, JsonSchema)]
struct StaleSockets<'a> {
    /// How many sockets were ended since the daemon started.
    ended: u64,
    /// Why some or all sockets cannot be checked.
    failure: Option<&'a str>,
}

/// A hook with foreign programs.
#[derive(Serialize, JsonSchema)]
struct SharedHook {
    hook: &'static str,
    /// How many foreign programs are there.
    others: usize,
}

/// Features of newer kernels.
#[derive(Serialize, JsonSchema)]
struct Features {
    /// Whether a refusal sets its errno (Linux 5.18).
    set_retval: bool,
    /// Whether programs of devices have links (Linux 6.6).
    tcx: bool,
    /// Whether a route lookup reports to a program that a packet exceeds the MTU (Linux 5.12), which the fast path
    /// needs.
    lengths: bool,
}

/// How full one map is. Slots are counted in whole blocks, and members by these.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct MapFill {
    #[schemars(extend("enum" = MAPS))]
    pub(super) map: &'static str,
    /// Entries in use; slots of backends are counted in whole blocks, and members with those that these may come to.
    pub(super) used: u64,
    /// The current capacity of the map.
    pub(super) size: u32,
    /// The capacity that the map may grow to.
    pub(super) limit: u32,
}

/// The names of all growing maps.
const MAPS: [&str; 6] = ["frontends4", "frontends6", "ports", "backends4", "backends6", "members"];

pub(super) fn map_fills(status: &Status, fill: &Fill) -> [MapFill; 6] {
    let [frontends4, frontends6] = status.frontends.map(u64::from);
    let [backends4, backends6] = fill.slots;
    let fill_map = |map, used, place: fn(&holdfast_datapath::MapSizes) -> u32| MapFill {
        map,
        used,
        size: place(&status.map_sizes),
        limit: place(&status.limits),
    };
    // The reserve for changes and for tables is no capacity for lists.
    let most_members = limits::counted_members_max(status.limits.members);
    let [of_frontends4, of_frontends6, of_ports, of_backends4, of_backends6, of_members] = MAPS;
    [
        fill_map(of_frontends4, frontends4, |shape| shape.frontends[0]),
        fill_map(of_frontends6, frontends6, |shape| shape.frontends[1]),
        fill_map(of_ports, fill.ports as u64, |shape| shape.ports),
        fill_map(of_backends4, backends4, |shape| shape.slots[0]),
        fill_map(of_backends6, backends6, |shape| shape.slots[1]),
        MapFill {
            map: of_members,
            used: fill.members.max(status.members).into(),
            size: status.map_sizes.members.min(most_members),
            limit: most_members,
        },
    ]
}

impl<'a> Kernel<'a> {
    fn from_status(status: &'a Status, decisions: &'a [DeviceDecision], fill: &Fill) -> Self {
        let swept = status.flows.as_ref().map(|seen| &seen.sweep);
        Self {
            cgroup: status.cgroup.as_deref(),
            own_cgroup_exempt: status.own_cgroup_exempt,
            pins: status.pins.as_deref(),
            waiting: status.waiting,
            generation: status.generation,
            growths: status.growths,
            features: Features {
                set_retval: status.features.set_retval,
                tcx: status.features.tcx,
                lengths: status.features.lengths,
            },
            maps: map_fills(status, fill).into(),
            broken_hooks: &status.broken_hooks,
            detached_hooks: &status.detached_hooks,
            repair_failure: status.repair_failure.as_deref(),
            shared_hooks: status
                .shared_hooks
                .iter()
                .map(|it| SharedHook { hook: it.hook, others: it.count() })
                .collect(),
            refusals_lost: status.refusals_lost,
            stale_sockets: status
                .stale_sockets
                .as_ref()
                .map(|it| StaleSockets { ended: it.ended, failure: it.failure.as_deref() }),
            refused_connects_failure: status.refused_connects.failure.as_deref(),
            grace_failure: status.grace_failure.as_deref(),
            in_cgroup_namespace: status.in_cgroup_namespace,
            behind_hooks: &status.behind_hooks,
            leftover: status.leftover.as_deref(),
            sockets: Code(if status.served_sockets.pods { Sockets::All } else { Sockets::Host }),
            udp_sockets: status.served_sockets.udp,
            exempt_cgroups: exempt_cgroups(status),
            packets: status.packets.as_ref().map(|packets| Packets::from_status(packets, swept, decisions)),
        }
    }

    fn fact_lines(&self) -> [(&'static str, String); 17] {
        let path =
            |path: Option<&Path>| path.map_or_else(|| "none".to_owned(), |it| it.display().to_string());
        let cgroup = path(self.cgroup);
        let namespace = if self.in_cgroup_namespace { NAMESPACE_NOTE } else { "" };
        let yes = |yes: bool| if yes { "yes" } else { "no" }.to_owned();
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
            ("sockets served", self.describe_served()),
            ("own cgroup exempt", yes(self.own_cgroup_exempt)),
            ("pins", path(self.pins)),
            ("serving", if self.waiting { "no: another version's programs serve" } else { "yes" }.to_owned()),
            ("generation", self.generation.to_string()),
            ("growths", self.growths.to_string()),
            ("refusal sets errno", yes(self.features.set_retval)),
            ("broken hooks", self.describe_broken_hooks()),
            ("others' programs", shared),
            ("hooks behind", behind),
            ("refusals lost", self.refusals_lost.to_string()),
            (
                "stale sockets",
                self.stale_sockets.as_ref().map_or_else(|| "stay".to_owned(), describe_stale_sockets),
            ),
            ("refused connects", self.refused_connects_failure.unwrap_or("seen").to_owned()),
            ("packets", self.packets.as_ref().map_or_else(|| "off".to_owned(), Packets::describe_state)),
            ("grace periods", grace),
            ("old maps", self.leftover.map_or_else(|| "removed".to_owned(), |why| format!("stay: {why}"))),
        ]
    }

    /// The hooks without a program of ours, and those with a program that serves, but ends with the daemon.
    fn describe_broken_hooks(&self) -> String {
        let unpinned: Vec<&str> =
            self.broken_hooks.iter().filter(|hook| !self.detached_hooks.contains(hook)).copied().collect();
        let bare = (!self.detached_hooks.is_empty()).then(|| self.detached_hooks.join(" "));
        let unpinned = (!unpinned.is_empty())
            .then(|| format!("{} (served, but not pinned: ends with the daemon)", unpinned.join(" ")));
        let hooks: Vec<String> = bare.into_iter().chain(unpinned).collect();
        let why = self.repair_failure.map(|why| format!("; {why}")).unwrap_or_default();
        if hooks.is_empty() { format!("none{why}") } else { format!("{}{why}", hooks.join(", ")) }
    }

    fn describe_served(&self) -> String {
        let pods =
            if self.sockets == Code(Sockets::All) { "of the host and of pods" } else { "of the host only" };
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
        let lines = self.fact_lines();
        let facts = lines.iter().map(|(name, value)| Cells::from_values([&name as &dyn Display, value]));
        write_aligned(&facts.collect::<Vec<_>>(), out);
        out.push(b'\n');
        write_table(["MAP", "USED", "SIZE", "LIMIT"], self.maps.iter().map(MapFill::cells), out);
        if let Some(packets) = &self.packets {
            packets.write(out);
        }
    }
}

/// The note after a cgroup that is the root of a cgroup namespace without being configured.
const NAMESPACE_NOTE: &str =
    " (the root of a cgroup namespace, not the host's: processes outside of it are not served)";

fn exempt_cgroups(status: &Status) -> Vec<ExemptCgroup<'_>> {
    let paths = status.served_sockets.exempt_cgroups.iter();
    paths.map(|path| ExemptCgroup { path, exists: !status.absent_cgroups.contains(path) }).collect()
}

fn describe_stale_sockets(StaleSockets { ended, failure }: &StaleSockets<'_>) -> String {
    let failure = failure.map(|why| format!("; not all can be: {why}"));
    format!("{ended} ended{}", failure.unwrap_or_default())
}

impl MapFill {
    fn cells(&self) -> Cells {
        Cells::from_values([&self.map as &dyn Display, &self.used, &self.size, &self.limit])
    }
}

/// The engine's last published view, with other proxies and firewalls on this node.
pub(super) fn datapath(readings: &Readings, _: Query, form: Form) -> Response {
    let view = readings.datapath();
    let snapshot = readings.snapshot();
    let proxies = Arc::clone(&readings.proxies.borrow());
    let filters = Arc::clone(&readings.filters.borrow());
    let routes = Arc::clone(&readings.routes.borrow());
    let shown = Datapath {
        kind: Code(view.kind()),
        other_proxies: &proxies,
        filters: &filters,
        announced_addresses: &routes.addresses,
        kernel: view.status().map(|status| Kernel::from_status(status, view.devices(), &snapshot.fill)),
    };
    response::render_response(StatusCode::OK, form, &shown, || text(&shown))
}

fn text(Datapath { kind, other_proxies, filters, announced_addresses, kernel }: &Datapath<'_>) -> Vec<u8> {
    let note =
        if kernel.is_some() { "" } else { ": everything is computed and shown, no traffic is touched" };
    let mut out = format!("datapath {kind}{note}\n").into_bytes();
    for OtherProxy { proxy, evidence, traces } in *other_proxies {
        out.extend(format!("other proxy: {proxy} ({})\n", evidence.join(", ")).into_bytes());
        for Trace { what, remove, .. } in traces {
            out.extend(format!("{proxy}: {what}: {remove}\n").into_bytes());
        }
    }
    for Filter { place, rule, .. } in *filters {
        out.extend(format!("filter: {place}: {rule}\n").into_bytes());
    }
    for address in *announced_addresses {
        out.extend(format!("{address}\n").into_bytes());
    }
    if let Some(kernel) = kernel {
        kernel.write(&mut out);
    }
    out
}
