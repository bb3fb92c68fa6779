//! holdfast as the only proxy beside a real Calico with rules of iptables, on two nodes: Kubernetes' own tests, and
//! what network policies let pass and stop, as with kube-proxy.
//! `make part PART=calico` builds what it needs and runs this.
//!
//! Invariant: no route of the tests leads from a node to the pods of the other; only Calico's do.

// The results of Kubernetes' tests and the verdicts are printed.
#![allow(clippy::print_stdout)]

#[cfg(test)]
#[path = "../shared/policies/all.rs"]
mod all;
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
    use holdfast_conformance::{Cluster, Cni, Family, Mode, Proxy, Topology};

    use super::all::table;
    use super::policies::stage::Stage;
    use super::policies::verdicts::{Difference, compare};
    use super::short_form::check_short_form;
    use super::typing;

    /// What kube-proxy does; UPDATE_EXPECT=1 writes it anew.
    const RECORDED: &str = include_str!("verdicts.tsv");

    /// With holdfast, a pod that reaches itself by its Service does not leave itself, so no policy sees that. And a pod
    /// keeps its address at the NodePort of its own node, on the way to another node's pod.
    const DIFFERENCES: [Difference; 8] = [
        ["nobody-to-servers", "server-n1", "clusterip-one", "passes"],
        ["clients-to-servers", "client-n1", "nodeport-two", "passes"],
        ["clients-to-servers", "client-n2", "far-one", "passes"],
        ["clients-to-servers", "server-n1", "clusterip-one", "passes"],
        ["outside-to-servers", "server-n1", "clusterip-one", "passes"],
        ["nodes-to-servers", "server-n1", "clusterip-one", "passes"],
        ["service-ports-of-servers", "server-n1", "clusterip-one", "passes"],
        ["tcp-of-servers", "server-n1", "clusterip-one", "passes"],
    ];

    fn holdfast() -> Proxy {
        Proxy::Holdfast { config: String::new() }
    }

    fn stage(proxy: Proxy) -> Stage {
        let (cni, family) = (Cni::Calico, Family::Ipv4);
        let topology = Topology { cni, proxy, family, ..Topology::default() };
        Stage::start(topology, "default/knp.default.POLICY ")
    }

    #[test]
    fn holdfast_does_beside_calico_what_kube_proxy_does() {
        let topology = Topology { cni: Cni::Calico, proxy: holdfast(), ..Topology::default() };
        let cluster = Cluster::start(&topology).unwrap();
        check_short_form(&cluster);
        let datapath = typing::typed(&cluster, "n1", "holdfast datapath");
        assert!(datapath.contains("packets go through the stack: table ip"), "{datapath}");
    }

    #[test]
    fn policies_have_the_recorded_verdicts_with_kube_proxy() {
        expect_file!["verdicts.tsv"].assert_eq(&table(&stage(Proxy::KubeProxy(Mode::Nftables))));
    }

    #[test]
    fn policies_have_the_same_verdicts_with_holdfast() {
        compare(RECORDED, &DIFFERENCES, &table(&stage(holdfast())));
    }
}
