//! holdfast as the only proxy beside the AWS VPC CNI, on two nodes with two cards each, in a stand-in of a VPC: as whom
//! servers see their clients, beside kube-proxy.
//! `make part PART=vpc-cni` builds what it needs and runs this.
//!
//! Invariant: the VPC drops what leaves by a card without its source, so an answer by the wrong card is no answer.

// The rules of the node and the answers are printed.
#![allow(clippy::print_stdout)]

#[cfg(test)]
#[path = "../shared/answers.rs"]
mod answers;
#[cfg(test)]
mod stage;
#[cfg(test)]
mod table;
#[cfg(test)]
#[path = "../shared/typing.rs"]
mod typing;

#[cfg(test)]
mod tests {
    use expect_test::expect_file;
    use holdfast_conformance::{Mode, Proxy};

    use super::answers::served;
    use super::stage::Stage;
    use super::table::table;
    use super::typing::typed;

    /// What kube-proxy does; UPDATE_EXPECT=1 writes it anew.
    const RECORDED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vpc/kube-proxy.tsv");

    /// What AWS's programs make of a node: parts of what these commands say.
    const NODE: [(&str, &[&str]); 4] = [
        (
            "ip rule",
            &["512:\tfrom all to 172.30.0.", "1024:\tfrom all fwmark 0x80/0x80 lookup main", "lookup 2"],
        ),
        ("ip route show table 2", &["default via 172.30.0.1 dev eth1"]),
        ("iptables-save", &["-A AWS-SNAT-CHAIN-0 ", "-i eth0 ", "-j CONNMARK --set-xmark 0x80/0x80"]),
        ("sysctl net.ipv4.conf.eth0.rp_filter", &["= 2"]),
    ];

    #[test]
    fn kube_proxy_gives_the_recorded_answers() {
        let stage = Stage::start(Proxy::KubeProxy(Mode::Nftables));
        check_node(&stage);
        expect_file!["kube-proxy.tsv"].assert_eq(&table(&stage));
        println!("{} packets by the wrong card", stage.cluster.foreign_sources().unwrap());
    }

    #[test]
    fn holdfast_answers_whomever_kube_proxy_answers() {
        let stage = Stage::start(Proxy::Holdfast { config: String::new() });
        check_node(&stage);
        let answers = table(&stage);
        expect_file!["holdfast.tsv"].assert_eq(&answers);
        assert_eq!(served(&answers), served(&std::fs::read_to_string(RECORDED).unwrap()), "{answers}");
        let datapath = typed(&stage.cluster, "n1", "holdfast datapath");
        assert!(datapath.contains("packets go through the stack: table ip"), "{datapath}");
        assert_eq!(stage.cluster.foreign_sources().unwrap(), 0);
    }

    #[track_caller]
    fn check_node(stage: &Stage) {
        for (command, parts) in NODE {
            let said = typed(&stage.cluster, "n1", command);
            println!("{command}: {said}");
            assert!(parts.iter().all(|part| said.contains(part)), "{command}: {said}");
        }
    }
}
