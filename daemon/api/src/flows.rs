//! `/flows`: clients and their backends through packets, and counts of packets.
//!
//! Invariant: an answer reads the table at the moment of the request, and is bounded by a limit; omitted flows are
//! counted. A row names the current service of the frontend: a flow may outlive the service that it began with.

use std::net::{IpAddr, SocketAddr};

use axum::http::StatusCode;
use axum::response::Response;
use holdfast_core::keys::{FrontendKey, ObjectName, Transport};
use holdfast_datapath::{
    BackendPortUsage, EncapDirection, Flow, FlowReport, FlowSweepProgress, FlowTable, PACKET_DROPS,
    PACKET_EVENTS, PacketCounts, SeenFlags, Stage,
};
use holdfast_status::age::format_duration;
use holdfast_status::schema_types::{Code, Text};
use holdfast_status::views::refusals::{FrontendOwner, Owners};
use schemars::JsonSchema;
use serde::Serialize;

use super::form::Form;
use super::limits::FLOWS_MAX;
use super::query::Query;
use super::response;
use super::text_table::{Cells, write_table};
use holdfast_agent::readings::Readings;

/// The flow table at this moment.
#[derive(Serialize, JsonSchema)]
pub(super) struct Flows<'a> {
    /// Whether packets are translated at all. If not, there are no flows.
    packets: bool,
    /// The capacity of the flow table.
    max: u32,
    /// How many flows there are.
    live: u64,
    /// How many flows have expired and are about to be deleted. No other number counts them.
    expired: u64,
    /// How many flows have an SNAT port, to which a backend of another node replies.
    snat_ports: u64,
    /// The size of this node's SNAT port range: flows share it at each port of each backend of another node, and each
    /// flow gets one port.
    snat_ports_max: u32,
    /// The backend port with the fewest SNAT ports left, as it was some seconds ago; null: no flow has one.
    fullest: Option<FullestBackend>,
    states: Vec<StateCount>,
    /// Dropped packets, since the maps were made.
    dropped: Vec<DropCount>,
    /// Other events of packets, since the maps were made.
    events: Vec<EventCount>,
    swept: Option<SweepStatus>,
    flows: Vec<FlowRow<'a>>,
    /// How many more flows match besides those in `flows`.
    omitted: u64,
}

/// A backend of another node, and how many SNAT ports flows use there.
#[derive(Serialize, JsonSchema)]
pub(super) struct FullestBackend {
    protocol: Code<Transport>,
    backend_address: IpAddr,
    backend_port: u16,
    /// The source address that the backend sees after SNAT.
    nat_address: IpAddr,
    /// How many SNAT ports are in use there.
    ports: u32,
}

impl FullestBackend {
    pub(super) fn from_usage(it: &BackendPortUsage) -> Self {
        Self {
            protocol: Code(it.transport),
            backend_address: it.backend.ip(),
            backend_port: it.backend.port(),
            nat_address: it.nat,
            ports: it.used_ports,
        }
    }

    /// The ports in use, out of `most`, and the backend.
    pub(super) fn describe_state(&self, most: u32) -> String {
        let backend = SocketAddr::new(self.backend_address, self.backend_port);
        format!("{} of {most} at {backend}/{}", self.ports, self.protocol)
    }
}

/// How many flows of one protocol are in one state.
#[derive(Serialize, JsonSchema)]
struct StateCount {
    protocol: Code<Transport>,
    state: Code<Stage>,
    count: u64,
}

/// How many packets were dropped for one reason.
#[derive(Serialize, JsonSchema)]
struct DropCount {
    #[schemars(extend("enum" = PACKET_DROPS))]
    reason: &'static str,
    count: u64,
}

/// How often one thing happened to packets.
#[derive(Serialize, JsonSchema)]
struct EventCount {
    #[schemars(extend("enum" = PACKET_EVENTS))]
    event: &'static str,
    count: u64,
}

/// Progress with expired flows, since the daemon started.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "FlowsSwept")]
struct SweepStatus {
    /// How often the sweep covered the whole table.
    passes: u64,
    /// Flows that it deleted.
    ended: u64,
    /// Why some expired flows stay; null if the last pass met no error.
    failure: Option<String>,
    /// Ports that SNAT may not use for one backend, because another proxy has a connection there.
    ports_kept_free: usize,
    /// Why those ports are unknown; null if they are known.
    ports_failure: Option<String>,
}

/// A client, the frontend that it dialled, and its backend.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Flow")]
struct FlowRow<'a> {
    protocol: Code<Transport>,
    client_address: IpAddr,
    client_port: u16,
    frontend_address: IpAddr,
    frontend_port: u16,
    backend_address: IpAddr,
    backend_port: u16,
    /// The source address that the backend sees after SNAT; null: it sees the client's own.
    nat_address: Option<IpAddr>,
    nat_port: Option<u16>,
    /// The client's port in this node's own stack.
    through_port: u16,
    /// Whether its packets take the fast path, if their devices allow that (`/datapath`).
    shortcut: bool,
    /// The direction of the client's encapsulated packets between two nodes (`[packets] dsr`); null: they are not
    /// encapsulated.
    wrapped: Option<Code<EncapDirection>>,
    state: Code<Stage>,
    client_heard: Vec<Said>,
    backend_heard: Vec<Said>,
    /// How long ago its last packet was, to about a second.
    idle_seconds: u64,
    /// How long the flow may idle before it expires.
    lifetime_seconds: u64,
    age_seconds: u64,
    /// `namespace/name` of the current service of the frontend; null if there is none.
    service: Option<Text<&'a ObjectName>>,
    port_name: Option<&'a str>,
}

/// TCP flags seen from one side of a flow. With UDP only a refusal is seen, which means that the port is closed.
#[derive(Clone, Copy, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Said {
    Syn,
    Fin,
    Rst,
    Refusal,
}

impl Said {
    fn from_flags(heard: SeenFlags) -> Vec<Self> {
        let all = [
            (heard.syn, Self::Syn),
            (heard.fin, Self::Fin),
            (heard.rst, Self::Rst),
            (heard.port_unreachable, Self::Refusal),
        ];
        all.into_iter().filter(|(was_heard, _)| *was_heard).map(|(_, said)| said).collect()
    }

    const fn as_str(self) -> &'static str {
        match self {
            Self::Syn => "syn",
            Self::Fin => "fin",
            Self::Rst => "rst",
            Self::Refusal => "refusal",
        }
    }
}

fn frontend_key(flow: &Flow) -> Option<FrontendKey> {
    FrontendKey::from_socket(flow.frontend, flow.transport)
}

impl<'a> FlowRow<'a> {
    fn from_flow(flow: &Flow, owner: Option<FrontendOwner<'a>>) -> Self {
        Self {
            protocol: Code(flow.transport),
            client_address: flow.client.ip(),
            client_port: flow.client.port(),
            frontend_address: flow.frontend.ip(),
            frontend_port: flow.frontend.port(),
            backend_address: flow.backend.ip(),
            backend_port: flow.backend.port(),
            nat_address: flow.nat.map(|nat| nat.ip()),
            nat_port: flow.nat.map(|nat| nat.port()),
            through_port: flow.through_port,
            shortcut: flow.fast_path,
            wrapped: flow.encap.map(Code),
            state: Code(flow.stage),
            client_heard: Said::from_flags(flow.client_seen),
            backend_heard: Said::from_flags(flow.backend_seen),
            idle_seconds: flow.idle.as_secs(),
            lifetime_seconds: flow.lifetime.as_secs(),
            age_seconds: flow.age.as_secs(),
            service: owner.map(|(view, _)| Text(&view.key.name)),
            port_name: owner.map(|(_, frontend)| frontend.port_name.as_ref()),
        }
    }

    /// The state, and who reset the connection: a backend that refuses clients does, and so does a client in a hurry.
    fn describe_stage(&self) -> String {
        let has_reset = |heard: &[Said]| heard.iter().any(|it| matches!(it, Said::Rst));
        match (self.state.0, has_reset(&self.client_heard), has_reset(&self.backend_heard)) {
            (Stage::Reset, true, false) => "reset by client".to_owned(),
            (Stage::Reset, false, true) => "reset by backend".to_owned(),
            (state, ..) => state.to_string(),
        }
    }

    fn cells(&self, wide: bool) -> Cells {
        let at = |address, port| SocketAddr::new(address, port);
        let mut cells = Cells::default();
        cells.put(at(self.client_address, self.client_port));
        cells.put(format_args!("{}/{}", at(self.frontend_address, self.frontend_port), self.protocol));
        cells.put(at(self.backend_address, self.backend_port));
        cells.put(self.describe_stage());
        let duration = |seconds: u64| format_duration(i64::try_from(seconds).unwrap_or(i64::MAX));
        cells.put(duration(self.idle_seconds));
        if wide {
            let nat = self.nat_address.zip(self.nat_port);
            cells.put_optional(nat.map(|(address, port)| at(address, port)));
            cells.put(self.through_port);
            cells.put(if self.shortcut { "yes" } else { "no" });
            cells.put(join_flags(&self.client_heard));
            cells.put(join_flags(&self.backend_heard));
            cells.put(duration(self.age_seconds));
            cells.put(duration(self.lifetime_seconds));
            cells.put_optional(self.port_name);
        }
        cells.put_optional(self.service);
        cells
    }
}

fn join_flags(said: &[Said]) -> String {
    said.iter().map(|it| it.as_str()).collect::<Vec<_>>().join(",")
}

fn titles(wide: bool) -> impl Iterator<Item = &'static str> {
    let first = ["CLIENT", "FRONTEND", "BACKEND", "STATE", "IDLE"];
    let more = ["SEEN AS", "THROUGH", "SHORTCUT", "CLIENT SAID", "BACKEND SAID", "AGE", "ENDS AFTER", "PORT"];
    first.into_iter().chain(more.into_iter().filter(move |_| wide)).chain(["SERVICE"])
}

impl<'a> Flows<'a> {
    /// Builds the answer. `seen` is the capacity of the table and the progress of the sweep; without it, packets are
    /// not translated.
    fn from_report(
        seen: Option<(u32, FlowSweepProgress)>,
        report: &FlowReport,
        counts: &PacketCounts,
        owners: &Owners<'a>,
    ) -> Self {
        let FlowReport { tally, matches: found, omitted: more } = report;
        let row = |flow: &Flow| {
            FlowRow::from_flow(flow, frontend_key(flow).and_then(|key| owners.find_owner(&key)))
        };
        let state =
            |(protocol, state, count)| StateCount { protocol: Code(protocol), state: Code(state), count };
        let swept = |it: FlowSweepProgress| SweepStatus {
            passes: it.passes,
            ended: it.ended,
            failure: it.failure,
            ports_kept_free: it.reserved_ports,
            ports_failure: it.reserved_ports_failure,
        };
        Self {
            packets: seen.is_some(),
            max: seen.as_ref().map_or(0, |(max, _)| *max),
            live: tally.live(),
            expired: tally.expired,
            snat_ports: tally.nat,
            snat_ports_max: seen.as_ref().map_or(0, |(_, it)| it.snat_ports),
            fullest: seen.as_ref().and_then(|(_, it)| it.fullest.as_ref()).map(FullestBackend::from_usage),
            states: tally.stages().map(state).collect(),
            dropped: counts.dropped.map(|(reason, count)| DropCount { reason, count }).into(),
            events: counts.events.map(|(event, count)| EventCount { event, count }).into(),
            swept: seen.map(|(_, it)| swept(it)),
            flows: found.iter().map(row).collect(),
            omitted: *more,
        }
    }

    fn text(&self, wide: bool) -> Vec<u8> {
        if !self.packets {
            return b"packets are not translated on this node, so there are no flows\n".to_vec();
        }
        let mut out = self.summary().into_bytes();
        write_table(titles(wide), self.flows.iter().map(|row| row.cells(wide)), &mut out);
        if self.omitted > 0 {
            out.extend(format!("\nand {}\n", self.describe_omitted()).bytes());
        }
        out
    }

    /// The flows that are left out, and how to see them.
    fn describe_omitted(&self) -> String {
        let limit = match self.flows.len() {
            FLOWS_MAX.. => String::new(),
            _ => format!("a higher limit, of {FLOWS_MAX} at most, or "),
        };
        format!("{} more (older); {limit}filters show them", self.omitted)
    }

    /// The lines about the whole table, before any single flow.
    fn summary(&self) -> String {
        let states = self.states.iter().filter(|it| it.count > 0);
        let states = states.map(|it| format!(", {} {} {}", it.count, it.protocol, it.state));
        let dropped = self.dropped.iter().map(|it| format!("{} {}", it.reason, it.count));
        let events = self.events.iter().map(|it| format!("{} {}", it.event, it.count));
        let kept = self.swept.as_ref().map_or(0, |swept| swept.ports_kept_free);
        let kept = if kept == 0 {
            String::new()
        } else {
            format!(", {kept} reserved for another proxy's connections")
        };
        let fullest = self.fullest.as_ref().map(|it| format!(", {}", it.describe_state(self.snat_ports_max)));
        let fullest = fullest.unwrap_or_default();
        let mut text = format!(
            "flows       {} of {}{}\nSNAT ports  {}{fullest}{kept}\ndropped     {}\nevents      {}\n",
            self.live,
            self.max,
            states.collect::<String>(),
            self.snat_ports,
            dropped.collect::<Vec<_>>().join(", "),
            events.collect::<Vec<_>>().join(", "),
        );
        if let Some(failure) = self.swept.as_ref().and_then(|swept| swept.failure.as_ref()) {
            text += &format!("sweep       cannot delete expired flows: {failure}\n");
        }
        if let Some(failure) = self.swept.as_ref().and_then(|swept| swept.ports_failure.as_ref()) {
            text += &format!("ports       cannot list those of another proxy's connections: {failure}\n");
        }
        text + "\n"
    }
}

/// The whole answer, in the order of the table.
pub(super) fn flows(readings: &Readings, query: Query, form: Form) -> Response {
    let view = readings.datapath();
    let snapshot = readings.snapshot();
    let seen = view.status().and_then(|status| status.flows.as_ref());
    let table = readings.flow_table();
    let Query { flows: filter, records, .. } = query;
    let limit = records.limit.unwrap_or(FLOWS_MAX);
    let report = table.as_ref().map(|table| table.find_flows(&filter, limit)).unwrap_or_default();
    let counts = table.as_ref().map(FlowTable::packet_counts).unwrap_or_default();
    let owners = Owners::from_snapshot(&snapshot, report.matches.iter().filter_map(frontend_key));
    let seen = table.zip(seen).map(|(table, seen)| (table.capacity(), seen.sweep.clone()));
    let flows = Flows::from_report(seen, &report, &counts, &owners);
    response::render_response(StatusCode::OK, form, &flows, || flows.text(form == Form::Wide))
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use expect_test::expect;
    use holdfast_core::op::PortIndex;
    use holdfast_datapath::BackendRefusals;

    use super::*;
    use crate::fixture::everything;

    fn flow(client: &str, frontend: &str, backend: &str, stage: Stage) -> Flow {
        let heard = SeenFlags { syn: true, ..SeenFlags::default() };
        let is_half = stage == Stage::HalfClosed;
        Flow {
            client: client.parse().unwrap(),
            frontend: frontend.parse().unwrap(),
            backend: backend.parse().unwrap(),
            nat: None,
            through_port: 40_001,
            fast_path: is_half,
            encap: None,
            transport: Transport::Tcp,
            stage,
            client_seen: heard,
            backend_seen: SeenFlags { fin: is_half, rst: !is_half, ..heard },
            port: PortIndex(1),
            idle: Duration::from_secs(7),
            age: Duration::from_secs(61),
            lifetime: Duration::from_secs(3_600),
        }
    }

    fn report() -> FlowReport {
        let found = vec![
            Flow {
                nat: Some("192.0.2.5:61007".parse().unwrap()),
                ..flow("203.0.113.9:40001", "192.0.2.5:30080", "10.1.0.1:8080", Stage::HalfClosed)
            },
            flow("[2001:db8::9]:40001", "[fd00::99]:53", "[fd00::7]:53", Stage::Open),
        ];
        let mut report = FlowReport { matches: found, ..FlowReport::default() };
        report.matches.iter().for_each(|flow| report.tally.record_flow(flow.transport, flow.stage));
        report.tally.record_flow(Transport::Udp, Stage::Open);
        (report.tally.nat, report.omitted) = (1, 1);
        report
    }

    fn with_flows<T>(failure: Option<&str>, show: impl FnOnce(&Flows<'_>) -> T) -> T {
        let snapshot = everything();
        let report = report();
        let owners = Owners::from_snapshot(&snapshot, report.matches.iter().filter_map(frontend_key));
        let failure = failure.map(str::to_owned);
        let kept_free_failure = failure.as_ref().map(|_| "EPERM: Operation not permitted".to_owned());
        let fullest = Some(BackendPortUsage {
            backend: "10.1.0.1:8080".parse().unwrap(),
            nat: "192.0.2.5".parse().unwrap(),
            transport: Transport::Tcp,
            used_ports: 1,
        });
        let passes = 3;
        let ended = 5;
        let left = 0;
        let kept_free = 2;
        let snat_ports = 27_512;
        let refusing = BackendRefusals::new();
        let swept = FlowSweepProgress {
            passes,
            ended,
            taken_over: left,
            reserved_ports: kept_free,
            snat_ports,
            fullest,
            backend_refusals: refusing,
            silent_backends: Default::default(),
            unanswered: Default::default(),
            answers: Default::default(),
            failure,
            reserved_ports_failure: kept_free_failure,
        };
        let mut counts = PacketCounts::default();
        counts.dropped[1].1 = 4;
        show(&Flows::from_report(Some((131_072, swept)), &report, &counts, &owners))
    }

    /// The answer of a node that translates packets, for tests without a kernel.
    pub(crate) fn json() -> serde_json::Value {
        with_flows(None, |flows| serde_json::to_value(flows).unwrap())
    }

    fn text(failure: Option<&str>, wide: bool) -> String {
        with_flows(failure, |flows| String::from_utf8(flows.text(wide)).unwrap())
    }

    #[test]
    fn counts_come_first_and_then_each_flow() {
        expect![[r#"
            flows       3 of 131072, 1 TCP open, 1 TCP half-closed, 1 UDP open
            SNAT ports  1, 1 of 27512 at 10.1.0.1:8080/TCP, 2 reserved for another proxy's connections
            dropped     source 0, flows 4, ports 0, write-failed 0, not-listed 0, not-local 0, decap-unknown 0, no-route 0, loop 0
            events      new 0, mid-stream 0, node-reply 0, unanswered 0, reclaimed 0, fragment 0, reject 0, reject-failed 0, icmp-error 0, xdp-redirect 0, xdp-drop 0, encap 0, decap 0, adopted 0

            CLIENT               FRONTEND             BACKEND        STATE        IDLE  SERVICE
            203.0.113.9:40001    192.0.2.5:30080/TCP  10.1.0.1:8080  half-closed  7 s   default/web
            [2001:db8::9]:40001  [fd00::99]:53/TCP    [fd00::7]:53   open         7 s   -

            and 1 more (older); a higher limit, of 1000 at most, or filters show them
        "#]].assert_eq(&text(None, false));
    }

    #[test]
    fn a_reset_connection_names_who_reset_it() {
        let rst = SeenFlags { syn: true, rst: true, ..SeenFlags::default() };
        let syn = SeenFlags { rst: false, ..rst };
        for (client, backend, expected) in
            [(rst, syn, "reset by client"), (syn, rst, "reset by backend"), (rst, rst, "reset")]
        {
            let flow = flow("203.0.113.9:40001", "192.0.2.5:30080", "10.1.0.1:8080", Stage::Reset);
            let flow = Flow { client_seen: client, backend_seen: backend, ..flow };
            assert_eq!(FlowRow::from_flow(&flow, None).describe_stage(), expected);
        }
    }

    #[test]
    fn a_wide_table_has_every_column() {
        let text = text(None, true);
        let rows: String = text.lines().skip(5).take(3).map(|line| format!("{line}\n")).collect();
        expect![[r#"
            CLIENT               FRONTEND             BACKEND        STATE        IDLE  SEEN AS          THROUGH  SHORTCUT  CLIENT SAID  BACKEND SAID  AGE   ENDS AFTER  PORT  SERVICE
            203.0.113.9:40001    192.0.2.5:30080/TCP  10.1.0.1:8080  half-closed  7 s   192.0.2.5:61007  40001    yes       syn          syn,fin       61 s  60 min      http  default/web
            [2001:db8::9]:40001  [fd00::99]:53/TCP    [fd00::7]:53   open         7 s   -                40001    no        syn          syn,rst       61 s  60 min      -     -
        "#]].assert_eq(&rows);
    }

    #[test]
    fn json_has_every_field_of_a_flow() {
        let told = json();
        assert_eq!(told["max"], 131_072);
        assert_eq!((&told["live"], &told["snat_ports"], &told["omitted"]), (&3.into(), &1.into(), &1.into()));
        expect![[r#"
            {
              "age_seconds": 61,
              "backend_address": "10.1.0.1",
              "backend_heard": [
                "syn",
                "fin"
              ],
              "backend_port": 8080,
              "client_address": "203.0.113.9",
              "client_heard": [
                "syn"
              ],
              "client_port": 40001,
              "frontend_address": "192.0.2.5",
              "frontend_port": 30080,
              "idle_seconds": 7,
              "lifetime_seconds": 3600,
              "nat_address": "192.0.2.5",
              "nat_port": 61007,
              "port_name": "http",
              "protocol": "TCP",
              "service": "default/web",
              "shortcut": true,
              "state": "half-closed",
              "through_port": 40001,
              "wrapped": null
            }"#]]
        .assert_eq(&serde_json::to_string_pretty(&told["flows"][0]).unwrap());
        assert_eq!(told["dropped"][1], serde_json::json!({ "reason": "flows", "count": 4 }));
    }

    #[test]
    fn failures_of_the_sweep_are_shown() {
        let text = text(Some("EPERM"), false);
        let lines = "
sweep       cannot delete expired flows: EPERM
ports       cannot list those of another proxy's connections: EPERM: Operation not permitted

CLIENT";
        assert!(text.contains(lines), "{text}");
    }

    #[test]
    fn ports_reserved_for_another_proxy_are_shown() {
        let line = ", 2 reserved for another proxy's connections\n";
        assert!(text(None, false).contains(line));
    }
}
