//! Whether packets are translated at balancers' devices, by the devices' classes and programs.

use holdfast_datapath::{DeviceStatus, FastPathState, HookKind, XdpState, XdpUse};
use holdfast_status::views::datapath::DatapathView;
use holdfast_status::views::devices::{
    ClassReason, DeviceClass, DeviceDecision, FastPathDecision, ReplyRouting,
};

use crate::readings::fixture;
use crate::readings::{fails_packets, translates_packets};

/// `eth0 outer Gateway !`: the mark stands for a device without programs.
fn decision(index: u32, text: &str) -> (DeviceDecision, bool) {
    let words: Vec<&str> = text.split(' ').collect();
    let class = if words[1] == "outer" { DeviceClass::Outer } else { DeviceClass::None };
    let reason = match words[2] {
        "Named" => ClassReason::Configured,
        "Absent" => ClassReason::Absent,
        "Gateway" => ClassReason::Gateway,
        "Address" => ClassReason::Address,
        _ => ClassReason::LocalPodsOnly,
    };
    let (address4, address6, answers) = (None, None, ReplyRouting::ByBackend);
    let (near4, near6) = (0, 0);
    let name = words[0].to_owned();
    let shortcut = FastPathDecision::NoOutsideFlows;
    let decision = DeviceDecision {
        index,
        name,
        class,
        reason,
        address4,
        address6,
        local_prefix4: near4,
        local_prefix6: near6,
        reply_routing: answers,
        fast_path: shortcut,
        peer: false,
        xdp: XdpUse::Never,
        fib_ignores_ports: [true; 2],
        adopts_flows: false,
        has_ipsec: false,
        bridge: false,
        switch: false,
    };
    (decision, words.len() == 3)
}

#[track_caller]
fn check(devices: &[&str], hooks: Option<HookKind>, expected: bool) {
    let decided: Vec<_> = (1..).zip(devices).map(|(index, text)| decision(index, text)).collect();
    let mut status = fixture::status();
    let packets = status.packets.as_mut().unwrap();
    let there = decided.iter().filter_map(|(decision, attached)| Some((decision.to_device()?, *attached)));
    packets.devices = there
        .map(|(device, attached)| DeviceStatus {
            device,
            attached,
            unpinned: attached,
            foreign_programs: 0,
            fast_path: FastPathState::Disabled,
            xdp: XdpState::Disabled,
            // A program without a pin serves.
            error: attached.then(|| "cannot pin in: read-only".to_owned()),
        })
        .collect();
    (packets.hooks, packets.failure) = (hooks, Some("one kind of programs does not load".to_owned()));
    let decisions = decided.into_iter().map(|(decision, _)| decision).collect();
    let view = DatapathView::for_kernel(status).with_devices(decisions);
    assert_eq!(translates_packets(&view), expected, "{devices:?}");
}

#[test]
fn every_inbound_device_needs_its_programs() {
    let tcx = Some(HookKind::Tcx);
    check(&["eth0 outer Gateway", "cni0 none PodSide"], tcx, true);
    check(&["eth0 outer Gateway !"], tcx, false);
    check(&["eth0 outer Gateway", "eth1 outer Gateway !"], tcx, false);
    check(&["eth0 outer Gateway", "ib0 outer Address !"], tcx, true);
    check(&["eth0 outer Gateway !", "flannel.1 outer Address"], tcx, false);
    check(&["eth0 outer Address", "eth1 outer Address !"], tcx, false);
    check(&["eth0 outer Named", "eth1 none PodSide"], tcx, true);
    check(&["eth0 outer Named", "eth9 none Absent"], tcx, false);
    check(&["cni0 none PodSide"], tcx, true);
    check(&["eth0 outer Gateway"], None, false);
}

/// A serving device must neither wake an operator nor take a node out of a balancer.
#[test]
fn packets_fail_at_a_device_without_programs_and_not_at_one_without_pins() {
    let with = |attached: bool, unpinned: bool| {
        let mut status = fixture::status();
        let packets = status.packets.as_mut().unwrap();
        packets.devices.retain(|it| it.device.name == "eth0");
        for device in &mut packets.devices {
            (device.attached, device.unpinned) = (attached, unpinned);
            device.error = Some("it is tried again".to_owned());
        }
        fails_packets(&DatapathView::for_kernel(status))
    };
    assert!(with(false, false) && with(true, false), "a device without a report fails too");
    assert!(!with(true, true));
}

#[test]
fn packets_that_are_not_configured_are_not_missed() {
    assert!(translates_packets(&DatapathView::for_memory()));
    let mut status = fixture::status();
    status.packets = None;
    assert!(translates_packets(&DatapathView::for_kernel(status)));
}
