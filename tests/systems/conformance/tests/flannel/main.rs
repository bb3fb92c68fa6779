//! holdfast as the only proxy beside a real Flannel, on two nodes: who reaches whom, seen as whom, and Kubernetes' own
//! tests.
//! `make part PART=flannel` builds what it needs and runs this.
//!
//! Invariant: no route of the tests leads from a node to the pods of the other; only Flannel's do.

// The results of Kubernetes' tests are printed.
#![allow(clippy::print_stdout)]

#[cfg(test)]
mod stage;
#[cfg(test)]
#[path = "../shared/typing.rs"]
mod typing;

#[cfg(test)]
mod tests {
    use holdfast_conformance::{Baseline, Cni, Comparison, Exceptions, Suite};

    use super::stage::{self, Place};
    use super::typing::typed;

    /// The tests of the short form.
    const SHORT_MIN: usize = 24;

    #[test]
    fn holdfast_does_over_vxlan_what_kube_proxy_does() {
        let cluster = stage::start(Cni::Flannel, "");
        let overlays =
            Place { sources: ["10.244.1.0", "fd00:10:244:1::"], device: "flannel.1", ports: 1_024..=65_535 };
        stage::check_everyone_is_served(&cluster, &overlays);
        let datapath = typed(&cluster, "n1", "holdfast datapath");
        for device in ["flannel.1", "flannel-v6.1"] {
            stage::assert_served_by_the_stack(&datapath, device);
        }
        stage::renew_overlay(&cluster);
        stage::check_everyone_is_served(&cluster, &overlays);
        let selection = Suite::short().selection;
        let report = Suite::run(&selection, &cluster).unwrap();
        let baseline = Baseline::load(&cluster.topology().id()).unwrap();
        let comparison = Comparison::new(&baseline, &report, &Exceptions::read().unwrap());
        println!("{comparison}{} passed", comparison.passed);
        assert!(!baseline.is_empty() && comparison.failed() == 0, "{comparison}");
        assert!(comparison.passed >= SHORT_MIN, "{comparison}");
    }

    #[test]
    fn holdfast_serves_beside_host_gateways_with_its_own_mark() {
        let config = "[packets]\nforward_mark = \"0x4000\"\nsnat_ports = \"20000-20999\"\n";
        let cluster = stage::start(Cni::FlannelHostGateway, config);
        let uplinks = Place { sources: ["172.30.0.11", "fd30::11"], device: "eth0", ports: 20_000..=20_999 };
        stage::check_everyone_is_served(&cluster, &uplinks);
    }
}
