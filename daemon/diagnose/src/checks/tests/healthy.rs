//! The state of programs and maps with which every case begins, and with which the shell's tests of answers begin too.

use holdfast_core::sources::SourceRange;
use holdfast_status::datapath::{
    Beside, DeviceStatus, Features, GivenUp, HookKind, PacketStatus, PacketSwitches, Served, Shape,
    ShortcutState, Side, Status, Swept, Wraps, XdpState, XdpUse,
};

use super::devices::{Answers, Class, Decision, Reason, ShortcutDecision};

/// Maps that have grown once, and one hook that another program took away.
pub fn status() -> Status {
    let first = Shape { frontends: [4096; 2], ports: 4096, slots: [16_384; 2], members: 4096 };
    Status {
        features: Features { set_retval: true, tcx: true, lengths: true },
        cgroup: Some("/sys/fs/cgroup".into()),
        pins: Some("/sys/fs/bpf/holdfast".into()),
        waiting: false,
        generation: 2,
        growths: 1,
        shape: Shape { frontends: [16_384, 4096], ..first },
        limits: Shape { frontends: [500_000; 2], ports: 500_000, slots: [8_388_608; 2], members: 8_388_608 },
        frontends: [8, 1],
        members: 3,
        refusals_lost: 5,
        own_cgroup_exempt: true,
        broken_hooks: vec!["sendmsg6"],
        bare_hooks: Vec::new(),
        repair_failure: None,
        behind_hooks: Vec::new(),
        leftover: None,
        in_cgroup_namespace: false,
        served: Served { exempt_cgroups: vec!["/kata.slice".into()], ..Served::default() },
        absent_cgroups: Vec::new(),
        shared_hooks: vec![
            Beside { hook: "connect4", before: vec![37], after: vec![41] },
            Beside { hook: "connect6", before: Vec::new(), after: vec![42] },
        ],
        hooks_put_back: 0,
        grace_failure: None,
        stale_sockets: Some(Swept { sweeps: 7, ended: 2, failure: None }),
        packets: Some(PacketStatus {
            behind: false,
            switches: PacketSwitches {
                wraps: Wraps::Nothing,
                nodes: vec![SourceRange::new([192, 0, 2, 0].into(), 24).unwrap()],
                ..PacketSwitches::default()
            },
            flows: 131_072,
            flows_wanted: 131_072,
            flows_failure: None,
            flows_given_up: GivenUp::default(),
            hooks: Some(HookKind::Tcx),
            failure: None,
            repaired: 2,
            devices: devices()
                .iter()
                .filter_map(Decision::device)
                .map(|device| DeviceStatus {
                    attached: matches!(device.side, Side::Outer | Side::Near),
                    unpinned: false,
                    others: usize::from(device.name == "eth0"),
                    shortcut: match (device.shortcut, device.name.as_str()) {
                        (false, _) => ShortcutState::Unwanted,
                        (true, "eth0") => ShortcutState::Others,
                        (true, _) => ShortcutState::Taken,
                    },
                    xdp: match device.xdp {
                        XdpUse::Never => XdpState::Unwanted,
                        XdpUse::Native => XdpState::Taken,
                    },
                    error: (!matches!(device.side, Side::Outer | Side::Near))
                        .then(|| "cannot attach in: busy".to_owned()),
                    device,
                })
                .collect(),
        }),
        flows: None,
    }
}

/// A device that is left alone, one that leads outside, one of a pod that could not be served, one that is left out by
/// name, one that leads to pods of this node and of others, and one of a pod with answers that pass by the stack.
pub(crate) fn devices() -> [Decision; 6] {
    let device = |index, name: &str, class, reason| Decision {
        index,
        name: name.to_owned(),
        class,
        reason,
        address4: (class == Class::Outer).then(|| [192, 0, 2, 5].into()),
        address6: None,
        near4: 0,
        near6: 0,
        answers: Answers::Backend,
        shortcut: match class {
            Class::Outer | Class::Near => ShortcutDecision::Wanted,
            Class::Backends => ShortcutDecision::Needed("table ip filter, chain FORWARD: its policy".into()),
            Class::Pod | Class::None => ShortcutDecision::Inside,
        },
        peer: class == Class::Near,
        xdp: if class == Class::Outer { XdpUse::Native } else { XdpUse::Never },
        plain: [true; 2],
        joins: false,
        secured: false,
        bridge: false,
        switch: false,
    };
    [
        device(1, "lo", Class::None, Reason::Loopback),
        device(2, "eth0", Class::Outer, Reason::Gateway),
        device(7, "veth7", Class::Pod, Reason::LeadsToPod),
        device(8, "flannel.1", Class::Backends, Reason::LeftOut),
        Decision {
            address4: Some([10, 244, 1, 7].into()),
            near4: 24,
            ..device(9, "cilium_host", Class::Outer, Reason::Gateway)
        },
        device(20, "veth20", Class::Near, Reason::PodSide),
    ]
}
