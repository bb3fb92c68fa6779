//! holdfast as the only proxy beside a real kube-router, on two nodes: Kubernetes' own tests, and what network policies
//! let pass and stop, as with kube-proxy.
//! `make part PART=kube-router` builds what it needs and runs this.
//!
//! Invariant: policies are asked about in clusters of IPv4 alone. With IPv6, kube-router 2.1.0 takes no policy with
//! rules, because it names its sets otherwise than its rules do
//! (<https://github.com/cloudnativelabs/kube-router/issues/1653>).

// The results of Kubernetes' tests and the verdicts are printed.
#![allow(clippy::print_stdout)]

#[cfg(test)]
#[path = "../shared/policies/all.rs"]
mod all;
#[cfg(test)]
#[path = "../shared/policies/alone.rs"]
mod alone;
#[cfg(test)]
mod firewall;
#[cfg(test)]
#[path = "../shared/policies/later.rs"]
mod later;
#[cfg(test)]
#[path = "../shared/policies.rs"]
mod policies;
#[cfg(test)]
#[path = "../shared/short_form.rs"]
mod short_form;
#[cfg(test)]
#[path = "../shared/typing.rs"]
mod typing;

#[cfg(test)]
mod tests {
    use expect_test::expect_file;
    use holdfast_conformance::{Cluster, Cni, Family, Mode, Proxy, Topology, layer};

    use super::all::table;
    use super::later::{self, Firewall};
    use super::policies::stage::Stage;
    use super::policies::verdicts::{Difference, compare};
    use super::short_form::check_short_form;
    use super::{alone, firewall, typing};

    /// What kube-proxy does; UPDATE_EXPECT=1 writes it anew.
    const RECORDED: &str = include_str!("verdicts.tsv");

    /// Here a pod dials the NodePort of its own node, and the backend is on the other one. kube-proxy gives the pod the
    /// node's address, so rules about the pod do not apply to it, and rules about nodes do. With holdfast it keeps its
    /// own.
    const DIFFERENCES: [Difference; 4] = [
        ["clients-to-servers", "client-n1", "nodeport-two", "passes"],
        ["clients-to-servers", "client-n2", "far-one", "passes"],
        ["nodes-to-servers", "client-n1", "nodeport-two", "stopped"],
        ["nodes-to-servers", "client-n2", "far-one", "stopped"],
    ];

    const KUBE_PROXY: Proxy = Proxy::KubeProxy(Mode::Nftables);

    /// Pods are served by their packets, and packets skip as much of the stack as they can.
    const EVERY_SWITCH: &str = "[datapath]\nsockets = \"host\"\n\n[packets]\npod_devices = \"auto\"\n\
        xdp = \"native\"\nmaglev = true\ndsr = \"all\"\ndsr_from = [\"172.30.0.0/24\"]\n";

    fn holdfast(config: &str) -> Proxy {
        Proxy::Holdfast { config: config.to_owned() }
    }

    fn stage(cni: Cni, proxy: Proxy) -> Stage {
        let layers = if cni == Cni::KubeRouter { Vec::new() } else { vec![layer("kube-router").unwrap()] };
        let cards = proxy == holdfast(EVERY_SWITCH);
        let topology = Topology { cni, proxy, layers, cards, family: Family::Ipv4, ..Topology::default() };
        Stage::start(topology, "run through nw policy POLICY\"")
    }

    #[test]
    fn holdfast_does_beside_kube_router_what_kube_proxy_does() {
        let topology = Topology { cni: Cni::KubeRouter, proxy: holdfast(""), ..Topology::default() };
        let cluster = Cluster::start(&topology).unwrap();
        check_short_form(&cluster);
        let datapath = typing::typed(&cluster, "n1", "holdfast datapath");
        assert!(datapath.contains("packets go through the stack: table ip"), "{datapath}");
    }

    #[test]
    fn policies_have_the_recorded_verdicts_with_kube_proxy() {
        expect_file!["verdicts.tsv"].assert_eq(&table(&stage(Cni::KubeRouter, KUBE_PROXY)));
    }

    #[test]
    fn policies_have_the_same_verdicts_with_holdfast() {
        compare(RECORDED, &DIFFERENCES, &table(&stage(Cni::KubeRouter, holdfast(""))));
    }

    #[test]
    fn a_firewall_that_comes_later_has_the_same_verdicts_with_kube_proxy() {
        let stage = stage(Cni::Bridge, KUBE_PROXY);
        let (begin, end) = (|| alone::start(&stage.cluster), || alone::end(&stage.cluster));
        let table = later::table(&stage, &Firewall { begin: &begin, wait: &|| {}, end: &end });
        assert_eq!(table, firewall::within(RECORDED));
    }

    #[test]
    fn a_firewall_that_comes_later_has_the_same_verdicts_with_holdfast() {
        check_firewall_beside_shortcuts("");
    }

    #[test]
    fn a_firewall_that_comes_later_has_the_same_verdicts_with_every_switch() {
        check_firewall_beside_shortcuts(EVERY_SWITCH);
    }

    #[track_caller]
    fn check_firewall_beside_shortcuts(config: &str) {
        let stage = stage(Cni::Bridge, holdfast(config));
        firewall::wait_for_shortcuts(&stage);
        let begin = || {
            firewall::assert_shortcuts(&stage);
            alone::start(&stage.cluster);
        };
        let end = || {
            alone::end(&stage.cluster);
            firewall::wait_for_shortcuts(&stage);
        };
        let wait = || firewall::wait_for_the_stack(&stage);
        let table = later::table(&stage, &Firewall { begin: &begin, wait: &wait, end: &end });
        compare(&firewall::within(RECORDED), &DIFFERENCES, &table);
    }
}
