//! `[packets]`: which packets are translated, and where; and the marks of this daemon's packets.

use std::ops::RangeInclusive;

use holdfast_core::words;
use toml::Value;
use toml::de::DeValue;

use super::address::{Cidr, cidr};
use super::keys::{Keys as _, table, take};
use super::limits::{
    DEVICE_NAME_BYTES_MAX, DEVICE_NAMES_MAX, FLOWS, NODE_BITS_MIN, NODE_NETWORKS_MAX, NODE_PORTS,
    SNAT_RANGES_MAX,
};
use super::show;
use super::table::Table;
use super::value::{boolean, integer, mismatch_message, quote, string, word};

/// A mark of one bit: for the daemon's own sockets, or for packets that it forwards for a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark(u32);

impl Mark {
    /// The bit that other programs are least likely to use, by the list in docs/packets.md: kube-proxy has bits 14 and
    /// 15, Cilium 8 to 15, Calico 16 to 31, Tailscale 16 to 23, the AWS VPC CNI 7, the portmap plugin 13.
    pub const DEFAULT: Self = Self(1 << 6);

    pub const fn bit(self) -> u32 {
        self.0
    }
}

impl Default for Mark {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl std::fmt::Display for Mark {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// The name of a device, or a pattern in which `*` stands for any characters.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeviceName(String);

impl DeviceName {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub fn matches_device(&self, name: &str) -> bool {
        let mut parts = self.0.split('*');
        let first = parts.next().unwrap_or_default();
        let Some(mut rest) = name.strip_prefix(first) else { return false };
        let Some(last) = parts.next_back() else { return rest.is_empty() };
        for part in parts {
            let Some((_, after)) = rest.split_once(part) else { return false };
            rest = after;
        }
        rest.ends_with(last)
    }
}

impl std::fmt::Display for DeviceName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OuterDevices {
    /// Those with suitable addresses and routes.
    Auto,
    /// Only these.
    Named(Vec<DeviceName>),
}

/// The devices at which pods' packets are served instead of their sockets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PodDevices {
    /// None: the sockets of all pods are served.
    None,
    /// Each that leads to a pod.
    Auto,
    /// Those that match one of the patterns.
    Named(Vec<DeviceName>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SnatPorts {
    /// Most of the ports that no other program on the node uses.
    Auto,
    /// A few ranges that do not overlap, at least one.
    Ranges(Vec<RangeInclusive<u16>>),
}

impl SnatPorts {
    /// The ports as configured.
    pub fn to_words(&self) -> Vec<String> {
        match self {
            Self::Auto => vec!["auto".to_owned()],
            Self::Ranges(ranges) => ranges.iter().map(format_range).collect(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flows {
    /// As many flows as fit into a small part of the node's memory.
    Auto,
    Max(u32),
}

/// By default, flows may take this fraction of the node's memory.
const MEMORY_DIVISOR: u64 = 256;

/// The memory of a flow in bytes: its record, and its entries in the flow table.
const FLOW_BYTES: u64 = 450;

/// More bytes of a flow where the node speaks IPv6: its entries in the IPv6 table.
const FLOW_BYTES6: u64 = 290;

/// Maps count against the memory limit of the daemon's cgroup, so flows may take this fraction of it: the daemon's own
/// memory, all other maps, and the records of the node's UDP sockets need the rest.
const LIMIT_DIVISOR: u64 = 4;

/// The limit of the shipped unit and pods, for when the actual one is unknown.
const DEFAULT_LIMIT: u64 = 2 << 30;

/// The fewest flows of any node, however little memory it has.
const FLOWS_MIN: u64 = 65_536;

/// The memory that limits the number of flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowMemory {
    /// The bytes of this node's memory; 0: unknown.
    pub memory: u64,
    /// The memory limit of the daemon's cgroup, [`u64::MAX`] if it has none; `None`: unknown.
    pub limit: Option<u64>,
    /// Whether the node speaks IPv6 with other hosts.
    pub ipv6: bool,
}

impl Flows {
    /// The most flows in this memory: the configured number, or else a power of two.
    pub fn max_flows(self, room: FlowMemory) -> u32 {
        let FlowMemory { memory, limit, ipv6 } = room;
        if let Self::Max(most) = self {
            return most;
        }
        let bytes = if ipv6 { FLOW_BYTES + FLOW_BYTES6 } else { FLOW_BYTES };
        let allowed = limit.unwrap_or(DEFAULT_LIMIT) / LIMIT_DIVISOR / bytes;
        let fit = (memory / MEMORY_DIVISOR / FLOW_BYTES).max(FLOWS_MIN).min(allowed).max(1);
        u32::try_from(1_u64 << fit.ilog2()).unwrap_or(u32::MAX).clamp(FLOWS.0, FLOWS.1)
    }
}

words! {
    /// When forwarded packets to other nodes take the fast path past the stack.
    pub enum FastPathUse {
        /// Where only the stack itself would miss them.
        Auto = "auto",
        Never = "never",
        /// Whatever a firewall would do with them.
        Always = "always",
    }
}

words! {
    /// Where the fast path starts at the driver of a device.
    pub enum XdpUse {
        Never = "never",
        /// Where the driver runs XDP programs.
        Native = "native",
    }
}

words! {
    /// Packets of these transports go encapsulated to the nodes of their backends.
    pub enum Dsr {
        /// None: backends of other nodes reply to this node.
        Off = "off",
        /// TCP alone.
        Tcp = "tcp",
        /// TCP and UDP.
        All = "all",
    }
}

table! {
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Packets "packets" {
        /// Whether packets are translated at all.
        enabled: bool = true, take(boolean), show::scalar, restart;
        /// The devices by which other hosts reach this node.
        devices: OuterDevices = OuterDevices::Auto, take(outer_devices), show_outer_devices, reload;
        /// The devices at which pods' packets are served instead of their sockets.
        pod_devices: PodDevices = PodDevices::None, take(pod_devices), show_pod_devices, reload;
        /// The SNAT ports for clients of backends on other nodes.
        snat_ports: SnatPorts = SnatPorts::Auto, take(snat_ports), show_snat_ports, restart;
        flows: Flows = Flows::Auto, take(flows), show_flows, reload;
        /// Whether services without their own setting select backends by hash, alike on all nodes.
        maglev: bool = false, take(boolean), show::scalar, reload;
        /// When forwarded packets to other nodes take the fast path past the stack.
        shortcut: FastPathUse = FastPathUse::Auto, take(word), show::word, reload;
        xdp: XdpUse = XdpUse::Never, take(xdp), show::word, reload;
        /// Packets of these transports go encapsulated to the nodes of their backends.
        dsr: Dsr = Dsr::Off, take(word), show::word, restart;
        /// Networks that contain only nodes: encapsulated packets are accepted from these alone.
        dsr_from: Vec<Cidr> = Vec::new(), take(dsr_from), show::filled_list, restart;
        /// The bit that marks the daemon's own sockets.
        mark: Mark = Mark::default(), take(mark), show::text, restart;
        /// The bit by which a firewall recognises packets forwarded for a service.
        forward_mark: Option<Mark> = None, take(forward_mark), show_forward_mark, restart;
    }
}

/// Reads the table. DSR needs the networks of the nodes: without them, another node cannot recognise an encapsulated
/// packet. Messages list the two keys first.
pub(super) fn read(table: &mut Table<'_, '_, '_>) -> Packets {
    table.list_keys_first(&["dsr_from", "dsr"]);
    let mut packets = Packets::read(table);
    if packets.dsr_from.is_empty()
        && packets.dsr != Dsr::Off
        && let Some(site) = table.good_site("dsr")
    {
        let message = "dsr needs the networks of the nodes: write them as dsr_from, on all nodes first";
        table.report().add_error(&site, message.to_owned());
        packets.dsr = Dsr::Off;
    }
    packets
}

fn show_outer_devices(devices: &OuterDevices) -> Option<Value> {
    match devices {
        OuterDevices::Auto => show::text("auto"),
        OuterDevices::Named(names) => show::list(names),
    }
}

fn show_pod_devices(devices: &PodDevices) -> Option<Value> {
    match devices {
        PodDevices::None => show::text("none"),
        PodDevices::Auto => show::text("auto"),
        PodDevices::Named(patterns) => show::list(patterns),
    }
}

fn show_snat_ports(ports: &SnatPorts) -> Option<Value> {
    let ports = ports.to_words();
    if let [ports] = ports.as_slice() { show::text(ports) } else { show::list(&ports) }
}

fn show_flows(flows: &Flows) -> Option<Value> {
    match flows {
        Flows::Auto => show::text("auto"),
        Flows::Max(most) => show::scalar(most),
    }
}

fn show_forward_mark(mark: &Option<Mark>) -> Option<Value> {
    mark.map_or_else(|| show::text("none"), |mark| show::text(&mark))
}

fn xdp(value: &DeValue<'_>) -> Result<XdpUse, String> {
    if value.as_str() == Some("generic") {
        return Err("generic XDP gains little: write \"native\" or \"never\"".to_owned());
    }
    word(value)
}

fn flows(value: &DeValue<'_>) -> Result<Flows, String> {
    match value {
        DeValue::String(text) if text == "auto" => Ok(Flows::Auto),
        DeValue::String(_) => Err(mismatch_message("\"auto\" or a whole number", value)),
        _ => integer(FLOWS)(value).map(Flows::Max),
    }
}

fn outer_devices(value: &DeValue<'_>) -> Result<OuterDevices, String> {
    const WHAT: &str = "\"auto\" or a list of devices such as [\"eth0\"]";
    match value {
        DeValue::String(text) if text == "auto" => Ok(OuterDevices::Auto),
        DeValue::Array(_) => Ok(OuterDevices::Named(device_names(value, WHAT, false)?)),
        _ => Err(mismatch_message(WHAT, value)),
    }
}

fn pod_devices(value: &DeValue<'_>) -> Result<PodDevices, String> {
    const WHAT: &str = "\"none\", \"auto\" or a list of patterns such as [\"veth*\"]";
    match value {
        DeValue::String(text) if text == "none" => Ok(PodDevices::None),
        DeValue::String(text) if text == "auto" => Ok(PodDevices::Auto),
        DeValue::Array(_) => Ok(PodDevices::Named(device_names(value, WHAT, true)?)),
        _ => Err(mismatch_message(WHAT, value)),
    }
}

/// The items of a list, or the error of the list or of one item.
fn read_items<'v, T>(
    value: &'v DeValue<'_>,
    what: &str,
    most: usize,
    read: impl Fn(&'v DeValue<'_>) -> Result<T, String>,
) -> Result<Vec<T>, String> {
    let DeValue::Array(items) = value else { return Err(mismatch_message(what, value)) };
    match items.len() {
        0 => Err(format!("the list is empty: write {what}")),
        count if count > most => Err(format!("{count} items are too many: at most {most}")),
        _ => items.iter().map(|item| read(item.get_ref())).collect(),
    }
}

fn device_names(value: &DeValue<'_>, what: &str, are_patterns: bool) -> Result<Vec<DeviceName>, String> {
    read_items(value, what, DEVICE_NAMES_MAX, |item| device_name(item, are_patterns))
}

fn device_name(value: &DeValue<'_>, is_pattern: bool) -> Result<DeviceName, String> {
    let text = string(value, "a device's name such as \"eth0\"")?;
    let is_odd = |it: char| it == '/' || it.is_whitespace() || it.is_control() || (it == '*' && !is_pattern);
    if (1..=DEVICE_NAME_BYTES_MAX).contains(&text.len()) && !text.contains(is_odd) {
        return Ok(DeviceName(text.to_owned()));
    }
    let star = if is_pattern { "" } else { ", \"*\"" };
    let legal = format!("1 to {DEVICE_NAME_BYTES_MAX} characters without \"/\"{star} and white space");
    Err(format!("{} is not a device's name: {legal}", quote(text)))
}

fn format_range(range: &RangeInclusive<u16>) -> String {
    if range.start() == range.end() {
        return range.start().to_string();
    }
    format!("{}-{}", range.start(), range.end())
}

fn snat_ports(value: &DeValue<'_>) -> Result<SnatPorts, String> {
    const WHAT: &str = "\"auto\", ports such as \"61000-65535\", or a list of them";
    let mut ranges = match value {
        DeValue::String(text) if text == "auto" => return Ok(SnatPorts::Auto),
        DeValue::String(_) => vec![port_range(value)?],
        _ => read_items(value, WHAT, SNAT_RANGES_MAX, port_range)?,
    };
    ranges.sort_unstable_by_key(|range| *range.start());
    let clash = ranges.iter().zip(ranges.iter().skip(1)).find(|(one, next)| one.end() >= next.start());
    if let Some((one, next)) = clash {
        return Err(format!("{} and {} have ports in common", format_range(one), format_range(next)));
    }
    Ok(SnatPorts::Ranges(ranges))
}

fn port_range(value: &DeValue<'_>) -> Result<RangeInclusive<u16>, String> {
    let text = string(value, "ports such as \"61000-65535\"")?;
    let number = |text: &str| text.parse::<u16>().ok().filter(|_| text.bytes().all(|it| it.is_ascii_digit()));
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let range = number(first).zip(number(last)).map(|(first, last)| first..=last);
    let Some(range) = range.filter(|range| !range.is_empty() && *range.start() >= 1024) else {
        let legal = "write two numbers from 1024 to 65535, the lower one first, such as \"61000-65535\"";
        return Err(format!("{} is no range of ports: {legal}", quote(text)));
    };
    if ranges_overlap(&range, &NODE_PORTS) {
        let taken = format_range(&NODE_PORTS);
        return Err(format!("{} has node ports in it ({taken}): choose ports above or below", quote(text)));
    }
    Ok(range)
}

fn dsr_from(value: &DeValue<'_>) -> Result<Vec<Cidr>, String> {
    const WHAT: &str = "a list of networks such as [\"10.0.0.0/24\"]";
    if matches!(value, DeValue::Array(networks) if networks.is_empty()) {
        return Ok(Vec::new());
    }
    read_items(value, WHAT, NODE_NETWORKS_MAX, |item| {
        node_network(string(item, "a network such as \"10.0.0.0/24\"")?)
    })
}

fn node_network(text: &str) -> Result<Cidr, String> {
    let network = cidr(text)?;
    let [v4, v6] = NODE_BITS_MIN;
    let least = if network.network().is_ipv4() { v4 } else { v6 };
    if network.prefix() < least {
        return Err(format!("{text} is too wide to contain only nodes: name networks of at least /{least}"));
    }
    Ok(network)
}

pub fn ranges_overlap(one: &RangeInclusive<u16>, other: &RangeInclusive<u16>) -> bool {
    one.start() <= other.end() && other.start() <= one.end()
}

fn parse_hexadecimal(text: &str) -> Option<u32> {
    // The standard library would accept a sign as well.
    let digits = text.strip_prefix("0x").filter(|digits| digits.bytes().all(|it| it.is_ascii_hexdigit()))?;
    u32::from_str_radix(digits, 16).ok()
}

const LEGAL: &str = "one bit of 32, such as \"0x40\"";

fn forward_mark(value: &DeValue<'_>) -> Result<Option<Mark>, String> {
    match value {
        DeValue::String(text) if text == "none" => Ok(None),
        _ => mark(value).map(Some),
    }
}

fn mark(value: &DeValue<'_>) -> Result<Mark, String> {
    let number = match value {
        DeValue::Integer(number) => u32::from_str_radix(number.as_str(), number.radix()).ok(),
        DeValue::String(text) => parse_hexadecimal(text),
        _ => return Err(mismatch_message(LEGAL, value)),
    };
    match (number.filter(|number| number.is_power_of_two()), value) {
        (Some(number), _) => Ok(Mark(number)),
        (None, DeValue::String(text)) => Err(format!("{} is not {LEGAL}", quote(text))),
        (None, _) => Err(mismatch_message(LEGAL, value)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_matches_any_characters() {
        for (pattern, name, expected) in [
            ("eth0", "eth0", true),
            ("eth0", "eth01", false),
            ("veth*", "veth12ab", true),
            ("veth*", "eth0", false),
            ("*", "anything", true),
            ("*.100", "eth0.100", true),
            ("l*c*", "lxc12", true),
            ("l*c*2", "lxc12", true),
            ("a*a", "a", false),
        ] {
            assert_eq!(DeviceName(pattern.to_owned()).matches_device(name), expected, "{pattern} {name}");
        }
    }
}
