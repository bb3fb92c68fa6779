//! The table of expectations.
//!
//! Invariant: each row was observed with the real kube-proxy (1.37, nftables). Where holdfast differs, the reason is
//! one of `DIFFERENCES`.

use super::Row;

/// How holdfast differs from kube-proxy by decision.
pub const DIFFERENCES: [(&str, &str); 4] = [
    ("kept", "The client's address is kept where the backend's answer comes back by this node anyway."),
    ("unallocated", "No service has this cluster IP, so the packet follows the routes."),
    ("ranges", "Source ranges are for clients that come by a device; a process of the node is let in."),
    ("direct", "A process whose socket is served dials the backend itself."),
];

/// Columns: client, service, address, kube-proxy's result; if holdfast differs: its result and the reason.
const ROWS: &str = "
outside    here          cluster     a as node      a as client     kept
outside    here          node        a as node      a as client     kept
outside    here          balancer    a as node      a as client     kept
outside    here          external    a as node      a as client     kept
outside-3  here          node        a as node      a as client     kept
outside    bridged       node        c as node      c as client     kept
outside    bridged       balancer    c as node      c as client     kept
outside    away          cluster     r as node
outside    away          node        r as node
outside    away          balancer    r as node
outside    away          external    r as node
outside    host          node        host as client
outside    host          balancer    host as client
outside    host-away     node        host2 as node
outside    host-away     external    host2 as node
outside    none          cluster     refused
outside    none          node        refused
outside    none          balancer    refused
outside    none          external    refused
outside    unready       node        refused
outside    ending        node        a as node      a as client     kept
outside    ending        balancer    a as node      a as client     kept
outside    here          node-other  refused
outside    here          cluster:81  refused
outside    none          cluster:81  refused
outside    here          balancer:81  lost
outside    none          unallocated  silent        lost            unallocated
outside    local         cluster     a|r as node    a|r as any      kept
outside    local         node        a as client
outside    local         balancer    a as client
outside    local         external    a as client
outside    local-away    node        silent
outside    local-away    balancer    silent
outside    local-away    external    silent
outside    local-away    cluster     r as node
outside    local-none    node        refused
outside    local-none    balancer    refused
outside    local-ending  node        a as client
outside    local-ending  external    a as client
outside    inside-local  cluster     a as node      a as client     kept
outside    inside-away   cluster     silent
outside    inside-away   node        r as node
outside    ranged        balancer    a as node      a as client     kept
outside-3  ranged        balancer    silent
outside-3  ranged        node        a as node      a as client     kept
outside-3  ranged        external    a as node      a as client     kept
outside-3  ranged        cluster     a as node      a as client     kept
outside    ranged-none   balancer    refused
outside-3  ranged-none   balancer    silent
outside-3  ranged-none   node        refused
outside    closed        node        refused
outside    closed        balancer    refused
outside    closed-away   node        refused
outside    closed-away   balancer    refused
host       here          cluster     a as node
host       here          node        a as node
host       here          balancer    a as node
host       away          cluster     r as node
host       away          node        r as node
host       host          cluster     host as node
host       none          cluster     refused
host       none          node        refused
host       local-away    node        r as node
host       local-away    balancer    r as node
host       inside-away   cluster     silent
host       ranged        balancer    silent         a as node       ranges
host       ranged        node        a as node
pod-a      bridged       cluster     c as client
pod-a      bridged       node        c as node      c as client     direct
pod-a      bridged       balancer    c as node      c as client     direct
pod-a      away          cluster     r as client
pod-a      away          node        r as node      r as client     direct
pod-a      host          cluster     host as client
pod-a      here          cluster     a as node      a as client     direct
pod-a      none          cluster     refused
pod-a      none          balancer    refused
pod-a      local-away    balancer    r as client
pod-a      local-away    node        r as client
pod-a      inside-away   cluster     silent
pod-a      ranged        balancer    silent         a as client     ranges
pod-r      here          node        a as node      a as client     kept
pod-r      bridged       balancer    c as node      c as client     kept
pod-r      host          node        host as client
pod-r      none          node        refused
pod-r      local-here    node        a|c as client
pod-r      ranged        balancer    silent
";

/// The same for pods with no program in their cgroup: devices translate their packets. `here` is bare-a itself and
/// `bridged` is bare-c, so each of them also reaches itself.
const ROWS_OF_PODS: &str = "
bare-a     here          cluster     a as node
bare-a     here          node        a as node
bare-a     here          balancer    a as node
bare-a     here          external    a as node
bare-b     here          cluster     a as client
bare-b     here          node        a as node      a as client     kept
bare-b     here          balancer    a as node      a as client     kept
bare-b     many          cluster     a|c|r as client
bare-a     bridged       cluster     c as client
bare-a     bridged       node        c as node      c as client     kept
bare-a     bridged       balancer    c as node      c as client     kept
bare-a     away          cluster     r as client
bare-a     away          node        r as node      r as client     kept
bare-a     away          external    r as node      r as client     kept
bare-a     host          cluster     host as client
bare-a     host          node        host as client
bare-a     host-away     cluster     host2 as client
bare-a     host-away     node        host2 as node  host2 as client  kept
bare-a     many          cluster     a|c|r as any
bare-a     here          cluster:81  refused
bare-a     away          cluster:81  refused
bare-a     none          cluster     refused
bare-a     none          node        refused
bare-a     none          balancer    refused
bare-a     closed        cluster     refused
bare-a     closed-away   cluster     refused
bare-a     local-away    balancer    r as client
bare-a     local-away    node        r as client
bare-a     inside-local  cluster     a as node
bare-a     inside-away   cluster     silent
bare-a     ranged        balancer    silent
bare-c     bridged       cluster     c as node
bare-c     bridged       node        c as node
bare-c     bridged       balancer    c as node
bare-c     here          cluster     a as client
bare-c     here          node        a as node      a as client     kept
bare-c     away          cluster     r as client
bare-c     host          node        host as client
bare-c     here          cluster:81  refused
bare-c     none          cluster     refused
bare-c     closed        cluster     refused
bare-d     bridged       cluster     c as client
bare-d     bridged       node        c as node      c as client     kept
bare-d     bridged       balancer    c as node      c as client     kept
bare-d     here          external    a as node      a as client     kept
bare-d     away          node        r as node      r as client     kept
bare-d     host-away     cluster     host2 as client
bare-d     none          balancer    refused
";

/// The rows of pods with no program in their cgroup.
pub fn rows_of_pods() -> Vec<Row> {
    ROWS_OF_PODS.lines().filter_map(Row::parse).collect()
}

/// All rows. A line that does not parse is an error of this file; a test finds it.
pub fn rows() -> Vec<Row> {
    ROWS.lines().filter_map(Row::parse).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::{CLIENTS, Family, SERVICES};
    use super::*;

    #[test]
    fn every_line_is_a_row_of_known_words() {
        let lines = ROWS.lines().chain(ROWS_OF_PODS.lines()).filter(|line| !line.is_empty());
        for line in lines {
            let row = Row::parse(line).unwrap_or_else(|| panic!("{line}"));
            let service = SERVICES.iter().find(|service| service.name == row.service);
            assert!(service.is_some_and(|it| it.frontend(row.address, Family::V6).is_some()), "{line}");
            assert!(CLIENTS.iter().any(|(name, _, _)| *name == row.client), "{line}");
        }
    }

    #[test]
    fn every_difference_has_a_reason_and_every_reason_a_row() {
        let reasons: BTreeSet<&str> = rows().iter().filter_map(Row::why).collect();
        let named: BTreeSet<&str> = DIFFERENCES.iter().map(|(word, _)| *word).collect();
        assert_eq!(reasons, named);
    }
}
