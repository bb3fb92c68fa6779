//! The datapath at one moment: the state of programs and maps, and the role of each device.
//!
//! Invariant: a copy that the engine publishes; this module never touches the maps.

use std::sync::Arc;

use crate::datapath::{KeptFailures, Status};
use holdfast_core::words;

use super::devices::DeviceDecision;

words! {
    /// The carrier of the traffic.
    pub enum DatapathKind {
        /// eBPF programs in the kernel.
        Kernel = "kernel",
        /// Tables in memory: everything is computed and shown, no traffic is touched.
        Memory = "memory",
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatapathView {
    status: Option<Status>,
    devices: Arc<[DeviceDecision]>,
}

impl DatapathView {
    /// Tables in memory, which touch no traffic.
    pub fn for_memory() -> Self {
        Self { status: None, devices: Arc::default() }
    }

    /// Programs and maps in the kernel.
    pub fn for_kernel(status: Status) -> Self {
        Self { status: Some(status), devices: Arc::default() }
    }

    /// The same view with the role of each device.
    pub fn with_devices(self, devices: Arc<[DeviceDecision]>) -> Self {
        Self { devices, ..self }
    }

    /// The same view with older failures that still count.
    pub fn with_kept_failures(&self, kept: &KeptFailures) -> Self {
        let status = self.status.clone().map(|status| Status { kept_failures: kept.clone(), ..status });
        Self { status, devices: Arc::clone(&self.devices) }
    }

    /// Why clients get something else than the maps say; `None` where programs of ours read these maps.
    pub fn divergence_reason(&self) -> Option<String> {
        let status = self.status()?;
        if status.waiting {
            return Some("another version's programs still serve".to_owned());
        }
        // The repair of every second has failed by now.
        let bare = status.bare_redirects();
        if !bare.is_empty() {
            return Some(format!("no program of ours is attached at {}", bare.join(", ")));
        }
        let behind = status.behind_hooks.join(", ");
        if !behind.is_empty() {
            return Some(format!("the programs at {behind} read maps that are no longer written"));
        }
        let packets = status.packets.as_ref().filter(|packets| packets.behind)?;
        let why = packets.failure.as_deref().unwrap_or("they are being replaced");
        Some(format!("programs at devices follow no change: {why}"))
    }

    /// Hooks of sockets, and then devices, with programs that serve without pins: they end with this process.
    pub fn unpinned_hooks(&self) -> Vec<&str> {
        let Some(status) = self.status() else { return Vec::new() };
        let hooks = status.broken_hooks.iter().filter(|hook| !status.detached_hooks.contains(hook)).copied();
        let devices = status.packets.iter().flat_map(|packets| &packets.devices);
        hooks.chain(devices.filter(|it| it.unpinned).map(|it| it.device.name.as_str())).collect()
    }

    pub fn devices(&self) -> &[DeviceDecision] {
        &self.devices
    }

    pub const fn kind(&self) -> DatapathKind {
        if self.status.is_some() { DatapathKind::Kernel } else { DatapathKind::Memory }
    }

    pub const fn status(&self) -> Option<&Status> {
        self.status.as_ref()
    }
}
