//! What the datapath reports: its faults, other proxies, filters, and devices that the configuration leaves out.
//!
//! Invariant: a fault is what keeps clients from being served, now or after the daemon ends.

use holdfast_status::views::announcements::AnnouncedAddress;
use holdfast_status::views::proxies::Trace;
use serde::{Deserialize, Serialize};

#[derive(Debug, Deserialize)]
pub(super) struct Datapath {
    pub(super) other_proxies: Vec<OtherProxy>,
    #[serde(default)]
    pub(super) filters: Vec<Filter>,
    #[serde(default)]
    pub(super) announced_addresses: Vec<AnnouncedAddress>,
    kernel: Option<Kernel>,
}

#[derive(Debug, Deserialize, Serialize)]
pub(super) struct OtherProxy {
    pub(super) proxy: String,
    pub(super) evidence: Vec<String>,
    #[serde(default)]
    pub(super) traces: Vec<Trace>,
}

#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Filter {
    pub(super) kind: String,
    pub(super) place: String,
    pub(super) rule: String,
}

#[derive(Debug, Deserialize)]
struct Kernel {
    waiting: bool,
    broken_hooks: Vec<String>,
    #[serde(default)]
    detached_hooks: Vec<String>,
    #[serde(default)]
    repair_failure: Option<String>,
    #[serde(default)]
    behind_hooks: Vec<String>,
    grace_failure: Option<String>,
    refused_connects_failure: Option<String>,
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

/// A device with backends that the configuration leaves out.
#[derive(Debug, Serialize)]
pub(super) struct ExcludedDevice {
    pub(super) device: String,
    pub(super) why: String,
}

impl Datapath {
    /// Why clients are not served, or will not be, although the rest may look well.
    pub(super) fn faults(&self) -> Vec<String> {
        let refused = |it: &AnnouncedAddress| {
            it.error.as_ref().map(|error| format!("the route to {} cannot be updated: {error}", it.address))
        };
        let refused = self.announced_addresses.iter().filter_map(refused);
        let Some(kernel) = &self.kernel else { return refused.collect() };
        let grace = kernel.grace_failure.as_ref().map(|why| format!("grace periods do not end: {why}"));
        let waiting = kernel.waiting.then(|| "another version's programs still serve".to_owned());
        let behind = |hook: &String| format!("{hook}: the program reads maps that are no longer written");
        let hooks = kernel.describe_broken_hooks().into_iter().chain(kernel.behind_hooks.iter().map(behind));
        let packets = kernel.packets.iter().flat_map(Packets::faults);
        waiting.into_iter().chain(hooks).chain(packets).chain(grace).chain(refused).collect()
    }

    /// Whether the daemon sees that a backend refuses clients of this node.
    pub(super) fn sees_refused_connects(&self) -> bool {
        self.kernel.as_ref().is_some_and(|kernel| kernel.refused_connects_failure.is_none())
    }

    pub(super) fn excluded_devices(&self) -> Vec<ExcludedDevice> {
        let packets = self.kernel.iter().filter_map(|kernel| kernel.packets.as_ref());
        let left_out = packets.flat_map(|packets| &packets.devices).filter(|it| it.class == "backends");
        left_out.map(|it| ExcludedDevice { device: it.name.clone(), why: it.why.clone() }).collect()
    }
}

impl Kernel {
    /// The hooks without a program of ours, and those with a program that would not outlive the daemon.
    fn describe_broken_hooks(&self) -> Vec<String> {
        let why = self.repair_failure.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
        let is_bare = |hook: &&String| self.detached_hooks.contains(*hook);
        let (bare, unpinned): (Vec<_>, Vec<_>) = self.broken_hooks.iter().partition(is_bare);
        // These only tell a client whom it has reached.
        let (nameless, bare): (Vec<_>, Vec<_>) =
            bare.into_iter().partition(|hook| hook.starts_with("getpeername"));
        let listed = |hooks: Vec<&String>| hooks.into_iter().cloned().collect::<Vec<_>>().join(", ");
        let said =
            |hooks: Vec<&String>, what| (!hooks.is_empty()).then(|| format!("{} {what}{why}", listed(hooks)));
        let gone = "have no program, so clients there are not served, and the daemon cannot reattach one";
        let all = [said(bare, gone), said(nameless, NAMELESS_TEXT), said(unpinned, UNPINNED_TEXT)];
        all.into_iter().flatten().collect()
    }
}

/// The consequence of a missing program that answers `getpeername`.
const NAMELESS_TEXT: &str =
    "have no program, so clients there are told the backend's address, and the daemon cannot reattach one";

/// The consequence of a missing pin.
const UNPINNED_TEXT: &str = "serve, but their pins are gone: their programs end with this daemon";

impl Packets {
    /// Why clients from outside are not served, or get outdated services.
    fn faults(&self) -> Vec<String> {
        let what = match self.hook {
            _ if self.behind => "clients from outside get outdated services",
            None => "clients from outside are not served",
            Some(_) => "clients from outside are not served by all devices",
        };
        let failure = self.failure.as_ref().map(|why| format!("{what}: {why}"));
        let outer = self.devices.iter().filter(|it| it.class == "outer");
        let device = |it: &Device| {
            let error = it.error.as_ref()?;
            Some(match it.unpinned {
                true => format!(
                    "clients that arrive at {} are served, but its programs end with this daemon: {error}",
                    it.name
                ),
                false => format!("clients that arrive at {} are not served: {error}", it.name),
            })
        };
        failure.into_iter().chain(outer.filter_map(device)).collect()
    }
}
