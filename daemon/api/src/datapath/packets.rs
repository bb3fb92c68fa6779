//! The part of `/datapath` about packets: each device of the node, its role, and why.
//!
//! Invariant: a device is listed even without programs, so that an operator sees which devices are left out.

use std::borrow::Cow;
use std::net::{Ipv4Addr, Ipv6Addr};

use holdfast_datapath::{DeviceStatus, DsrTransports, FlowSweepProgress, HookKind, PacketStatus};
use holdfast_status::schema_types::Code;
use holdfast_status::views::devices::{CLASSES, DeviceClass, DeviceDecision, REPLY_ROUTINGS, ReplyRouting};
use schemars::JsonSchema;
use serde::Serialize;

use super::super::flows::FullestBackend;
use super::super::text_table::{Cells, write_table};

/// The kinds of hooks at devices.
const HOOKS: [&str; 2] = [TCX, CLSACT];
const TCX: &str = "tcx";
const CLSACT: &str = "clsact";

/// How packets are translated.
#[derive(Serialize, JsonSchema)]
pub(super) struct Packets<'a> {
    /// Why packets are not translated, or not at all devices, or by outdated programs; the daemon tries again.
    failure: Option<&'a str>,
    /// Whether programs at devices follow no change: they read tables from before those grew, or belong to a former
    /// daemon because this daemon's programs cannot replace them. Clients from outside get outdated services.
    behind: bool,
    /// The kind of hooks: links, or filters before Linux 6.6. Null while packets are not translated.
    #[schemars(extend("enum" = [TCX, CLSACT, None::<&str>]))]
    hook: Option<&'static str>,
    /// The capacity of the flow table; 0 while packets are not translated.
    flows: u32,
    /// The configured capacity of the flow table: it grows to that size without an interruption for clients.
    flows_wanted: u32,
    /// Why the table cannot get that size.
    flows_failure: Option<&'a str>,
    /// Flows that a shrinking table evicted, since the daemon started.
    flows_given_up: u64,
    /// How many of those flows were still in use: client or backend might still have sent data.
    flows_given_up_needed: u64,
    /// The size of this node's SNAT port range: flows share it at each port of each backend of another node, and each
    /// flow gets one port.
    snat_ports: u32,
    /// The backend port with the fewest SNAT ports left, as it was some seconds ago; null: no flow has one.
    fullest: Option<FullestBackend>,
    /// How often the daemon reattached a program that another process had detached from a device.
    repaired: u64,
    /// Packets of these transports go encapsulated to backends of other nodes (`[packets] dsr`), as far as this kernel
    /// supports it.
    dsr: Code<DsrTransports>,
    /// The networks that contain only nodes: encapsulated packets are accepted from these alone.
    dsr_from: Vec<String>,
    /// Why no client's packet is encapsulated to another node or accepted from one, although `dsr_from` has networks;
    /// null: nothing prevents it.
    no_dsr: Option<&'static str>,
    devices: Vec<Device<'a>>,
}

/// A device of this node.
#[derive(Serialize, JsonSchema)]
struct Device<'a> {
    name: &'a str,
    /// The interface index of the device; 0 if the configuration names it and it does not exist.
    index: u32,
    /// The role of the device: other hosts reach this node through it; it leads to a pod; it leads to backends, and
    /// clients that arrive there are not served; or no programs run there.
    #[schemars(extend("enum" = CLASSES))]
    class: &'static str,
    /// Why the device has this role.
    why: &'static str,
    /// Whether its programs are attached: one at ingress and one at egress; at a device of class near the first alone.
    attached: bool,
    /// Whether they are attached without pins: they serve, and end with the daemon.
    unpinned: bool,
    /// The IPv4 source address that backends of other nodes see after SNAT; at a pod's device, the one that the pod
    /// sees when it reaches itself.
    address4: Option<Ipv4Addr>,
    /// The IPv6 source address that backends of other nodes see after SNAT; at a pod's device, the one that the pod
    /// sees when it reaches itself.
    address6: Option<Ipv6Addr>,
    /// The networks of this node's own pods behind the device: these pods see a client's own address, although the
    /// device leads, or may lead, to pods of other nodes too.
    near: Vec<String>,
    /// How replies to clients that arrived at an outer device are routed: as packets of the backend, or of the
    /// frontend's address, if routing rules distinguish the two. Null for other devices.
    #[schemars(extend("enum" = [REPLY_ROUTINGS[0], REPLY_ROUTINGS[1], None::<&str>]))]
    answers: Option<&'static str>,
    /// How many foreign programs and filters are at the device too; they still run. They are not counted at pods'
    /// devices of class pod.
    others: usize,
    /// Whether packets of flows take the fast path at this device: to and from other nodes, or its pods.
    shortcut: bool,
    /// Why they do not; null if they do, and at devices that no flow of outside clients crosses.
    no_shortcut: Option<String>,
    /// Where packets to and from other nodes take the fast path at the driver (`[packets] xdp`). Null if they do not.
    #[schemars(extend("enum" = [NATIVE, None::<&str>]))]
    xdp: Option<&'static str>,
    /// Why they do not take it at the driver, if they are configured to.
    no_xdp: Option<Cow<'static, str>>,
    /// Why the programs are not attached, or have no pins; the daemon tries again each second.
    error: Option<&'a str>,
}

impl<'a> Packets<'a> {
    pub(super) fn from_status(
        status: &'a PacketStatus,
        swept: Option<&FlowSweepProgress>,
        decisions: &'a [DeviceDecision],
    ) -> Self {
        let [tcx, clsact] = HOOKS;
        let hook = |kind| if kind == HookKind::Tcx { tcx } else { clsact };
        let is_secured = !status.switches.dsr_from.is_empty() && decisions.iter().any(|it| it.has_ipsec);
        Self {
            failure: status.failure.as_deref(),
            behind: status.behind,
            hook: status.hooks.map(hook),
            flows: status.flows,
            flows_wanted: status.flows_wanted,
            flows_failure: status.flows_failure.as_deref(),
            flows_given_up: status.flows_evicted.total,
            flows_given_up_needed: status.flows_evicted.in_use,
            snat_ports: swept.map_or(0, |it| it.snat_ports),
            fullest: swept.and_then(|it| it.fullest.as_ref()).map(FullestBackend::from_usage),
            repaired: status.repaired,
            dsr: Code(status.switches.dsr_transports),
            dsr_from: status.switches.dsr_from.iter().map(ToString::to_string).collect(),
            no_dsr: is_secured.then_some("an IPsec policy must see packets"),
            devices: decisions
                .iter()
                .map(|decision| Device::from_decision(decision, &status.devices))
                .collect(),
        }
    }

    pub(super) fn describe_state(&self) -> String {
        match (self.hook, self.failure) {
            (None, None) => "not yet translated".to_owned(),
            (None, Some(why)) if self.behind => {
                format!("by the programs of a former daemon, unchanged: {why}")
            }
            (None, Some(why)) => format!("not translated: {why}"),
            (Some(hook), None) => {
                let flows = self.flows;
                let resized = self.describe_size();
                let details =
                    [self.describe_snat_ports(), self.describe_dsr(), self.describe_repairs()].concat();
                format!("up to {flows} flows{resized}, by {hook}{details}")
            }
            (Some(hook), Some(why)) if self.behind => format!("by {hook}, with outdated tables: {why}"),
            (Some(hook), Some(why)) => format!("by {hook}, not at all devices: {why}"),
        }
    }

    /// The note about a table without its configured size, or about flows that a smaller one evicted.
    fn describe_size(&self) -> String {
        let wanted = (self.flows_wanted != self.flows).then(|| match self.flows_failure {
            Some(why) => format!(" (not {}: {why})", self.flows_wanted),
            None => format!(" (soon {})", self.flows_wanted),
        });
        let all = self.flows_given_up;
        let needed = self.flows_given_up_needed;
        let given_up = (all > 0).then(|| format!(" ({all} evicted, {needed} of them in use)"));
        wanted.into_iter().chain(given_up).collect()
    }

    fn describe_snat_ports(&self) -> String {
        let fullest =
            self.fullest.as_ref().map(|it| format!(", SNAT ports {}", it.describe_state(self.snat_ports)));
        fullest.unwrap_or_default()
    }

    /// The encapsulation between nodes.
    fn describe_dsr(&self) -> String {
        let direct = match (self.dsr.0, self.dsr_from.as_slice()) {
            (_, []) => String::new(),
            (DsrTransports::Off, from) => {
                format!(", accepts encapsulated packets from nodes in {}", from.join(", "))
            }
            (which, from) => {
                format!(", {} from and to nodes in {} (dsr {which})", DSR_PACKETS, from.join(", "))
            }
        };
        let but = self.no_dsr.map(|why| format!(", but not now: {why}"));
        direct + &but.unwrap_or_default()
    }

    fn describe_repairs(&self) -> String {
        if self.repaired == 0 { String::new() } else { format!(", {} programs reattached", self.repaired) }
    }

    pub(super) fn write(&self, out: &mut Vec<u8>) {
        if self.devices.is_empty() {
            return;
        }
        out.push(b'\n');
        let titles = ["DEVICE", "CLASS", "ATTACHED", "OTHERS", "IPV4", "IPV6", "WHY"];
        write_table(titles, self.devices.iter().map(Device::cells), out);
    }
}

impl<'a> Device<'a> {
    fn from_decision(decision: &'a DeviceDecision, statuses: &'a [DeviceStatus]) -> Self {
        let served = decision.class != DeviceClass::None;
        let status = statuses.iter().find(|it| served && it.device.index == decision.index);
        let why_no_shortcut = decision.fast_path_obstacle(status);
        Self {
            name: &decision.name,
            index: decision.index,
            class: decision.class.as_str(),
            why: decision.reason.as_str(),
            attached: status.is_some_and(|status| status.attached),
            unpinned: status.is_some_and(|status| status.unpinned),
            address4: decision.address4,
            address6: decision.address6,
            near: decision.local_networks(),
            answers: (decision.class == DeviceClass::Outer).then(|| decision.reply_routing.as_str()),
            others: status.map_or(0, |status| status.foreign_programs),
            shortcut: why_no_shortcut.is_none(),
            xdp: decision.is_xdp_active(status).then_some(NATIVE),
            no_xdp: decision.xdp_obstacle(status),
            no_shortcut: why_no_shortcut.filter(|_| decision.has_outside_flows()).map(Cow::into_owned),
            error: status.and_then(|status| status.error.as_deref()),
        }
    }

    fn cells(&self) -> Cells {
        let mut cells = Cells::default();
        cells.put(self.name);
        cells.put(self.class);
        cells.put(if self.attached { "yes" } else { "no" });
        cells.put(self.others);
        cells.put(self.address4.map_or_else(|| "-".to_owned(), |it| it.to_string()));
        cells.put(self.address6.map_or_else(|| "-".to_owned(), |it| it.to_string()));
        cells.put(match self.error {
            None => {
                let said = [
                    self.describe_routing().to_owned(),
                    self.describe_local_pods(),
                    self.describe_fast_path(),
                    self.describe_driver(),
                ];
                format!("{}{}", self.why, said.concat())
            }
            Some(error) if self.unpinned => format!("{}; served, but not pinned: {error}", self.why),
            Some(error) => format!("{}; {error}", self.why),
        });
        cells
    }
}

impl Device<'_> {
    fn describe_routing(&self) -> &'static str {
        if self.answers == Some(ReplyRouting::ByFrontend.as_str()) { ROUTED_BY_ADDRESS } else { "" }
    }

    fn describe_local_pods(&self) -> String {
        if self.near.is_empty() {
            return String::new();
        }
        format!("; pods in {} are this node's own", self.near.join(" and "))
    }

    /// The path of packets between this device and others.
    fn describe_fast_path(&self) -> String {
        match &self.no_shortcut {
            Some(why) => format!("; packets go through the stack: {why}"),
            None if self.shortcut && self.class == DeviceClass::LocalPods.as_str() => {
                "; packets to its pods bypass the stack".to_owned()
            }
            None if self.shortcut && self.class == DeviceClass::Pod.as_str() => {
                "; packets to and from its pod bypass the stack".to_owned()
            }
            None if self.shortcut => "; packets to other nodes bypass the stack".to_owned(),
            None => String::new(),
        }
    }

    fn describe_driver(&self) -> String {
        match (self.xdp, &self.no_xdp) {
            (Some(mode), _) => format!(", at the driver ({mode})"),
            (None, Some(why)) if self.no_shortcut.is_none() => format!("; not at the driver: {why}"),
            _ => String::new(),
        }
    }
}

const DSR_PACKETS: &str = "encapsulated packets";

/// The XDP mode of a driver.
const NATIVE: &str = "native";

const ROUTED_BY_ADDRESS: &str = "; replies are routed by the frontend's address";
