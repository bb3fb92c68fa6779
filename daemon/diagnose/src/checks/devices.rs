//! The devices through which this node reaches the Service's backends.
//!
//! Invariant: the engine's published view gives each device's class; the kernel's routes locate each backend.

use std::collections::BTreeSet;
use std::net::IpAddr;

use holdfast_status::datapath::{DsrTransports, PacketStatus};
use serde_json::json;

use crate::case::{Case, judge_unavailable};
use crate::finding::{Judgement, Remedy};
use crate::formatting::join_names;
use crate::limits::NAMED_MAX;
use holdfast_status::views::devices::{DeviceClass, DeviceDecision};

struct BackendPath<'a> {
    to: IpAddr,
    device: &'a DeviceDecision,
}

impl BackendPath<'_> {
    /// Whether this node has no source address on this device. A backend on another node needs one, or its replies
    /// bypass this node.
    fn has_no_address(&self) -> bool {
        match self.to {
            IpAddr::V4(_) => self.device.address4.is_none(),
            IpAddr::V6(_) => self.device.address6.is_none(),
        }
    }

    /// Whether DSR is on but not through this device: its address is in no network of `dsr_from`, so other nodes do not
    /// recognise this node there.
    fn lacks_dsr_address(&self, packets: &PacketStatus) -> bool {
        let own = match self.to {
            IpAddr::V4(_) => self.device.address4.map(IpAddr::V4),
            IpAddr::V6(_) => self.device.address6.map(IpAddr::V6),
        };
        let switches = &packets.switches;
        switches.dsr_transports != DsrTransports::Off
            && own.is_some_and(|own| !switches.dsr_from.iter().any(|network| network.contains(own)))
    }

    fn is_untranslated(&self, packets: &PacketStatus) -> bool {
        !packets.devices.iter().any(|it| it.device.index == self.device.index && it.attached)
    }
}

/// Judges the devices on the path to backends. A flow is dropped if it needs another source and gets none, or if no
/// program translates its replies.
pub(super) fn check_devices(case: &Case<'_>) -> Judgement {
    let Some(packets) = case.datapath().status().and_then(|status| status.packets.as_ref()) else {
        return Judgement::not_applicable("Packets are not translated here.");
    };
    let Some(routes) = case.routes().answer() else {
        return judge_unavailable(case.routes(), "The routes to its backends");
    };
    let named = |name: &str| case.datapath().devices().iter().find(|it| it.name == name);
    let to_path = |route: &crate::evidence::Route| {
        let by = named(route.device.as_deref()?)?;
        matches!(by.class, DeviceClass::Outer | DeviceClass::Backends).then_some((route.to, by))
    };
    let paths: Vec<BackendPath<'_>> =
        routes.iter().filter_map(to_path).map(|(to, by)| BackendPath { to, device: by }).collect();
    judge_paths(&paths, packets)
}

fn judge_paths(paths: &[BackendPath<'_>], packets: &PacketStatus) -> Judgement {
    let nameless: Vec<_> = paths.iter().filter(|path| path.has_no_address()).collect();
    let untranslated: Vec<_> = paths.iter().filter(|path| path.is_untranslated(packets)).collect();
    let unknown: Vec<_> = paths.iter().filter(|path| path.lacks_dsr_address(packets)).collect();
    let left_out: Vec<_> = paths.iter().filter(|path| path.device.class == DeviceClass::Backends).collect();
    if !nameless.is_empty() {
        let sentence = format!(
            "This node has no source address for {} on {}: outside clients are dropped.",
            join_backends(&nameless),
            join_devices(&nameless)
        );
        return with_devices(Judgement::error(sentence), &nameless).remedy(Remedy::safe(
            "Give the node an address of that family that is neither a /32 nor a /128, at any device.",
        ));
    }
    if !untranslated.is_empty() {
        let sentence = format!(
            "No programs are attached to {}, which leads to {}: outside clients reach no backend there.",
            join_devices(&untranslated),
            join_backends(&untranslated)
        );
        return with_devices(Judgement::error(sentence), &untranslated)
            .remedy(Remedy::safe("See `holdfast datapath` for why they are not attached."));
    }
    if !unknown.is_empty() {
        return judge_without_dsr(&unknown);
    }
    if left_out.is_empty() {
        return Judgement::ok("Packets are translated at each device that leads to its backends.");
    }
    let sentence = format!(
        "packets.devices leaves out {}, which leads to {}: these backends are reached, but clients that come through \
         it are not served.",
        join_devices(&left_out),
        join_backends(&left_out)
    );
    with_devices(Judgement::info(sentence), &left_out).remedy(Remedy::safe(
        "If clients come through it, add it to `devices` under [packets], or write \"auto\".",
    ))
}

/// Judges backends that see this node's address although `[packets] dsr` is on.
fn judge_without_dsr(paths: &[&BackendPath<'_>]) -> Judgement {
    let sentence = format!(
        "packets.dsr is on, and the address of {} is in no network of packets.dsr_from: {} see this node and answer to it.",
        join_devices(paths),
        join_backends(paths)
    );
    with_devices(Judgement::info(sentence), paths).remedy(Remedy::safe(
        "If only nodes live in that network, name it in `dsr_from` under [packets], on all nodes.",
    ))
}

fn join_backends(paths: &[&BackendPath<'_>]) -> String {
    join_names(paths.iter().map(|path| path.to).collect::<BTreeSet<_>>())
}

fn join_devices(paths: &[&BackendPath<'_>]) -> String {
    join_names(paths.iter().map(|path| path.device.name.as_str()).collect::<BTreeSet<_>>())
}

fn with_devices(judgement: Judgement, paths: &[&BackendPath<'_>]) -> Judgement {
    let names: BTreeSet<&str> = paths.iter().map(|path| path.device.name.as_str()).collect();
    judgement.with("devices", json!(names.into_iter().take(NAMED_MAX).collect::<Vec<_>>()))
}
