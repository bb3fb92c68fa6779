//! At which devices packets are to pass by the stack.

use holdfast_judgement::views::devices::ShortcutDecision::{
    self, ByAddress, Inside, Marked, Needed, Never, NoEthernet, StrictPaths, Wanted,
};

use super::super::listed::{By, Rule};
use super::{decided_beside, listed};

const ONE_WAY: &str = "2 eth0 - 10.0.0.5 default";
const TWO_WAYS: &str = "2 eth0 - 10.0.0.5 default\n3 eth1 - 10.1.0.5 strict";

fn from_node() -> Rule {
    Rule { priority: 1, by: By::Source([10, 0, 0, 5].into(), 32), table: 100, is_v4: true }
}

#[track_caller]
fn check(packets: &str, world: &str, rules: &[Rule], onlooker: Option<&str>, expected: &[ShortcutDecision]) {
    let mut world = listed(world);
    world.rules = rules.to_vec();
    let decided = decided_beside(packets, &world, &onlooker.map(Into::into));
    let decided: Vec<_> = decided.into_iter().map(|it| it.shortcut).collect();
    assert_eq!(decided, expected, "{packets} {world:?} {onlooker:?}");
}

#[test]
fn packets_pass_by_the_stack_where_nothing_needs_them_there() {
    check("", ONE_WAY, &[], None, &[Wanted]);
    check("", "1 lo loopback\n2 eth0 - 10.0.0.5 default\n7 veth1 veth", &[], None, &[Inside, Wanted, Inside]);
    check("", ONE_WAY, &[], Some("a policy of IPsec"), &[Needed("a policy of IPsec".into())]);
    check("", ONE_WAY, &[from_node()], None, &[ByAddress]);
    check("", "2 wg0 wireguard 10.0.0.5 default", &[], None, &[NoEthernet]);
    let overlay = "2 eth0 - 10.0.0.5\n3 flannel.1 vxlan gateway";
    check("devices = [\"eth0\"]", overlay, &[], None, &[Wanted, Wanted]);
}

#[test]
fn strict_paths_matter_where_packets_may_come_by_more_than_one_device() {
    check("", &format!("{ONE_WAY} strict"), &[], None, &[Wanted]);
    check("", TWO_WAYS, &[], None, &[Wanted, StrictPaths]);
}

/// The operator answers for the firewall, and not for what packets cannot do.
#[test]
fn the_configuration_decides_for_the_firewall_alone() {
    check("shortcut = \"never\"", ONE_WAY, &[], None, &[Never]);
    check("shortcut = \"always\"", ONE_WAY, &[], Some("a policy of IPsec"), &[Wanted]);
    check("shortcut = \"always\"", TWO_WAYS, &[], None, &[Wanted, StrictPaths]);
    check("shortcut = \"always\"", ONE_WAY, &[from_node()], None, &[ByAddress]);
    check("shortcut = \"always\"\nforward_mark = \"0x4000\"", ONE_WAY, &[], None, &[Marked]);
}
