//! holdfast in the shape of k3s, on two nodes: Flannel, kube-router's network policies, servicelb, and the agent's
//! balancer for the apiserver, with kube-proxy beside.
//! `make part PART=k3s` builds what it needs and runs this.
//!
//! Invariant: holdfast has the configuration of the runbook, and kube-proxy the mode that k3s gives it.

// The results of Kubernetes' tests, the answers and the verdicts are printed.
#![allow(clippy::print_stdout)]

#[cfg(test)]
mod agent;
#[cfg(test)]
#[path = "../shared/policies/alone.rs"]
mod alone;
#[cfg(test)]
#[path = "../shared/answers.rs"]
mod answers;
#[cfg(test)]
#[path = "../shared/guide.rs"]
mod guide;
#[cfg(test)]
#[path = "../shared/policies/later.rs"]
mod later;
#[cfg(test)]
#[path = "../shared/policies.rs"]
mod policies;
#[cfg(test)]
mod servicelb;
#[cfg(test)]
mod shape;
#[cfg(test)]
#[path = "../shared/short_form.rs"]
mod short_form;
#[cfg(test)]
mod table;
#[cfg(test)]
#[path = "../shared/typing.rs"]
mod typing;

#[cfg(test)]
mod tests {
    use expect_test::expect_file;
    use holdfast_conformance::{Cluster, Family, Mode, Proxy};

    use super::answers::served;
    use super::later::{self, Firewall};
    use super::policies::stage::Stage;
    use super::policies::verdicts::{Difference, compare};
    use super::servicelb::Status;
    use super::short_form::check_short_form;
    use super::{agent, alone, servicelb, shape, table};

    const OBJECTS: &str = include_str!("objects.yaml");

    /// What kube-proxy does; UPDATE_EXPECT=1 writes it anew.
    const RECORDED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/k3s/kube-proxy.tsv");

    /// What kube-proxy lets pass and stops.
    const VERDICTS: &str = include_str!("verdicts.tsv");

    /// The mode that k3s gives it.
    const KUBE_PROXY: Proxy = Proxy::KubeProxy(Mode::Iptables);

    const POD_DEVICES: &str = "\n[packets]\npod_devices = \"auto\"\n";

    /// As beside kube-router as the pod network: a pod keeps its address at the NodePort of its own node.
    const DIFFERENCES: [Difference; 2] = [
        ["clients-to-servers", "client-n1", "nodeport-two", "passes"],
        ["clients-to-servers", "client-n2", "far-one", "passes"],
    ];

    fn holdfast() -> Proxy {
        Proxy::Holdfast { config: String::new() }
    }

    /// Starts a cluster with servers, clients and the pods of servicelb. No other controller gives Services addresses.
    fn start(proxy: Proxy) -> Cluster {
        let is_holdfast = proxy == holdfast();
        let cluster = Cluster::start(&shape::topology(proxy, Family::Dual)).unwrap();
        if is_holdfast {
            shape::grant_rights(&cluster);
        }
        cluster.on("cp").unwrap().stop("load-balancer").unwrap();
        alone::start(&cluster);
        cluster.apply(OBJECTS).unwrap();
        cluster.kubectl(&["wait", "--for=condition=Ready", "pod", "--all", "--timeout=180s"]).unwrap();
        servicelb::start(&cluster);
        cluster
    }

    fn write_status(cluster: &Cluster, status: Status) {
        servicelb::write_status(cluster, status);
        table::wait_for(cluster, status);
    }

    /// The rows for a status with the nodes' addresses, which the proxy serves before the pods of servicelb get
    /// packets. `n2` has no backend of `local`, so that Service's status does not have its address.
    fn nodes_rows(cluster: &Cluster) -> String {
        write_status(cluster, Status::Nodes);
        let before = servicelb::clients(cluster);
        let rows = table::table(cluster, "nodes", &[]);
        let now = servicelb::clients(cluster);
        let with_clients = now.iter().filter(|(pod, count)| **count > before[*pod]).map(|(pod, _)| pod);
        assert_eq!(with_clients.collect::<Vec<_>>(), ["svclb-local-n2"], "{rows}");
        rows
    }

    #[test]
    fn kube_proxy_gives_the_recorded_answers() {
        let cluster = start(KUBE_PROXY);
        let nodes = nodes_rows(&cluster);
        write_status(&cluster, Status::Nat);
        let nat = table::table(&cluster, "nat", &[]);
        expect_file![RECORDED].assert_eq(&[table::HEADING, &nodes, &nat].concat());
    }

    #[test]
    fn holdfast_does_in_the_shape_of_k3s_what_kube_proxy_does() {
        let cluster = start(holdfast());
        let nodes = nodes_rows(&cluster);
        write_status(&cluster, Status::Nat);
        let sockets = table::table(&cluster, "nat, without pod_devices", &["out"]);
        shape::restart_with(&cluster, agent::VIP, POD_DEVICES);
        let nat = table::table(&cluster, "nat", &[]);
        expect_file!["holdfast.tsv"].assert_eq(&[table::HEADING, &nodes, &sockets, &nat].concat());
        check_differences(&[table::HEADING, &nodes, &nat].concat());
        agent::check(&cluster);
        end_servicelb(&cluster);
        check_short_form(&cluster);
    }

    /// Without `pod_devices`, holdfast does not serve the host port of the node that the status of `local` leaves out.
    #[track_caller]
    fn check_differences(table: &str) {
        let recorded = served(&std::fs::read_to_string(RECORDED).unwrap());
        let differs = served(table).into_iter().filter(|row| !recorded.contains(row));
        let expected = ["out", "n1", "client-n1", "client-n2"].into_iter().flat_map(|client| {
            ["n2/6:local", "n2:local"].map(|target| format!("nodes\t{client}\t{target}\tnobody\tnobody"))
        });
        assert_eq!(differs.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
    }

    /// Leaves the Services of Kubernetes' tests to the load balancer outside.
    fn end_servicelb(cluster: &Cluster) {
        cluster.kubectl(&["delete", "service", "one", "two", "local", "later"]).unwrap();
        servicelb::end(cluster);
        cluster.on("cp").unwrap().start("load-balancer").unwrap();
    }

    /// The verdicts where kube-router and its policies come while connections are open.
    fn verdicts(proxy: Proxy) -> String {
        let is_holdfast = proxy == holdfast();
        let topology = shape::topology(proxy, Family::Ipv4);
        let stage = Stage::start(topology, "run through nw policy POLICY\"");
        if is_holdfast {
            shape::grant_rights(&stage.cluster);
            shape::assert_served_by_the_stack(&stage.cluster);
        }
        let (begin, end) = (|| alone::start(&stage.cluster), || alone::end(&stage.cluster));
        later::table(&stage, &Firewall { begin: &begin, wait: &|| {}, end: &end })
    }

    #[test]
    fn policies_have_the_recorded_verdicts_with_kube_proxy() {
        expect_file!["verdicts.tsv"].assert_eq(&verdicts(KUBE_PROXY));
    }

    #[test]
    fn policies_have_the_same_verdicts_with_holdfast() {
        compare(VERDICTS, &DIFFERENCES, &verdicts(holdfast()));
    }
}
