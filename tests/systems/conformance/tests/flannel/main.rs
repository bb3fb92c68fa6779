//! holdfast as the only proxy beside a real Flannel, on two nodes: who reaches whom, seen as whom, and Kubernetes' own
//! tests.
//! `make part PART=flannel` builds what it needs and runs this.
//!
//! Invariant: no route of the tests leads from a node to the pods of the other; only Flannel's do.

// The results of Kubernetes' tests are printed.
#![allow(clippy::print_stdout)]

#[cfg(test)]
#[path = "../shared/short_form.rs"]
mod short_form;
#[cfg(test)]
mod stage;
#[cfg(test)]
#[path = "../shared/typing.rs"]
mod typing;

#[cfg(test)]
mod tests {
    use std::ops::RangeInclusive;

    use holdfast_conformance::Cni;

    use super::short_form::check_short_form;
    use super::stage::{self, Place};

    /// The ports that a client gets where holdfast masquerades it, and not Flannel.
    const SNAT_PORTS: &str = "snat_ports = \"20000-20999\"";
    const OWN_PORTS: RangeInclusive<u16> = 20_000..=20_999;

    #[test]
    fn holdfast_does_over_vxlan_what_kube_proxy_does() {
        let cluster = stage::start(Cni::Flannel, "");
        let overlays =
            Place { sources: ["10.244.1.0", "fd00:10:244:1::"], device: "flannel.1", ports: 1_024..=65_535 };
        stage::check_everyone_is_served(&cluster, &overlays);
        for device in ["flannel.1", "flannel-v6.1"] {
            stage::assert_served_by_the_stack(&cluster, device, "FLANNEL-POSTRTG");
        }
        stage::renew_overlay(&cluster);
        stage::check_everyone_is_served(&cluster, &overlays);
        check_short_form(&cluster);
        stage::restart_with(&cluster, &format!("[packets]\nforward_mark = \"0x4000\"\n{SNAT_PORTS}\n"));
        stage::check_everyone_is_served(&cluster, &Place { ports: OWN_PORTS, ..overlays });
    }

    /// With rules of nftables, Flannel leaves clients of other nodes' pods alone.
    #[test]
    fn holdfast_serves_beside_host_gateways_and_nftables() {
        let cluster = stage::start(Cni::FlannelHostGateway, &format!("[packets]\n{SNAT_PORTS}\n"));
        let uplinks = Place { sources: ["172.30.0.11", "fd30::11"], device: "eth0", ports: OWN_PORTS };
        stage::check_everyone_is_served(&cluster, &uplinks);
        stage::assert_served_by_the_stack(&cluster, "eth0", "postrtg");
    }
}
