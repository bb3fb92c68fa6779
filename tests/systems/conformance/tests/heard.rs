//! kubelet's Events: each is provoked by its real cause on a real node, and each is recognised.
//!
//! Invariant: no test here writes an Event. Each message has a line in the catalogue's fixtures, marked as seen in a
//! run.

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use holdfast_conformance::{Cluster, Topology};
    use holdfast_fixtures::clock::{Deadline, pause};
    use holdfast_knowledge::ClusterEvent;
    use holdfast_knowledge::expected_event::ExpectedEvent;
    use serde_json::Value;

    /// Kubelet reads the resolver's file every half minute, and backs off between tries of a sandbox.
    const SOON: Duration = Duration::from_secs(120);

    const NETWORK: &str = "/etc/cni/net.d/10-pods.conflist";

    const RESOLVER: &str = "/etc/resolv.conf";

    const KUBELET: &str = "/etc/kubernetes/kubelet.yaml";

    /// A node's permissions for what a diagnosis reads.
    const BINDING: &str = include_str!("../../../fixtures/diagnose-binding.yaml");

    /// A shell function; a machine's first process restarts kubelet when it ends.
    const AGAIN: &str = "again() { kill $(</run/services/kubelet.pid); }";

    /// A fault of a node.
    struct Fault {
        what: &'static str,
        /// A script that begins it.
        begins: &'static str,
        /// Pods that it affects: a name, and fields of the spec besides image and node.
        pods: &'static [(&'static str, &'static str)],
        /// Reasons, the kind of their object, and their cause in the catalogue.
        heard: &'static [(&'static str, &'static str, &'static str)],
        /// A service of one of these pods: the first finding of a diagnosis, and a further text.
        diagnosed: &'static [(&'static str, &'static str, &'static str)],
        /// A script that ends it.
        ends: &'static str,
    }

    const FAULTS: [Fault; 11] = [
        Fault {
            what: "a kubelet that starts",
            begins: "",
            pods: &[],
            heard: &[("Starting", "Node", "-")],
            diagnosed: &[],
            ends: "",
        },
        Fault {
            what: "pods that ask for too much, or answer their probes badly",
            begins: "",
            pods: &[
                (
                    "search",
                    "dnsConfig: {searches: [a01.test, a02.test, a03.test, a04.test, a05.test, a06.test, a07.test,
                     a08.test, a09.test, a10.test, a11.test, a12.test, a13.test, a14.test, a15.test, a16.test,
                     a17.test, a18.test, a19.test, a20.test, a21.test, a22.test, a23.test, a24.test, a25.test,
                     a26.test, a27.test, a28.test, a29.test, a30.test, a31.test, a32.test]}",
                ),
                ("servers", "dnsConfig: {nameservers: [192.0.2.1, 192.0.2.2, 192.0.2.3]}"),
                ("port-1", "CONTAINER, ports: [{containerPort: 8080, hostPort: 18080}]"),
                ("port-2", "CONTAINER, ports: [{containerPort: 8080, hostPort: 18080}]"),
                ("unready", "CONTAINER, readinessProbe: {httpGet: {path: '/echo?code=503&msg=no', port: 8080}}"),
                ("dying", "CONTAINER, livenessProbe: {tcpSocket: {port: 9999}, periodSeconds: 1}"),
                ("starting", "CONTAINER, startupProbe: {exec: {command: [cat, /nothing]}, periodSeconds: 1}"),
                (
                    "sent-away",
                    "CONTAINER, readinessProbe: {httpGet: {path: '/redirect?location=http://192.0.2.1/', port: 8080}}",
                ),
            ],
            heard: &[
                ("DNSConfigForming", "Pod", "dns.search_limit"),
                ("DNSConfigForming", "Pod", "dns.nameserver_limit"),
                ("NodePorts", "Pod", "port.same_hostport"),
                ("Unhealthy", "Pod", "probe.readiness"),
                ("Unhealthy", "Pod", "probe.liveness"),
                ("Unhealthy", "Pod", "probe.startup"),
                ("ProbeWarning", "Pod", "-"),
            ],
            diagnosed: &[
                ("unready", "pods.unready", "503"),
                ("port-2", "pods.terminal", "NodePorts"),
                ("search", "events.list", "shortened list of search domains"),
            ],
            ends: "",
        },
        Fault {
            what: "a range of addresses with room for one pod",
            begins: r#"sed -i 's|"10.244.1.0/24"|&, "rangeStart": "10.244.1.250", "rangeEnd": "10.244.1.250"|' $network"#,
            pods: &[("housed", "")],
            heard: &[],
            diagnosed: &[],
            ends: "for _ in {1..600}; do ls /var/lib/cni/networks/*/10.244.1.250 >&2 && break; sleep 0.1; done",
        },
        Fault {
            what: "a second pod in a range with room for one",
            begins: "",
            pods: &[("homeless", "")],
            heard: &[("FailedCreatePodSandBox", "Pod", "ip.pod_pool")],
            diagnosed: &[("homeless", "pods.pending", "No address for pods is left")],
            ends: r#"sed -i 's|, "rangeStart": "10.244.1.250", "rangeEnd": "10.244.1.250"||' $network"#,
        },
        Fault {
            what: "a plugin for networks that is not installed",
            begins: r#"sed -i 's|"type": "bridge"|"type": "absent"|' $network"#,
            pods: &[("unplugged", "")],
            heard: &[("FailedCreatePodSandBox", "Pod", "ip.cni")],
            diagnosed: &[("unplugged", "pods.pending", "FailedCreatePodSandBox")],
            ends: r#"sed -i 's|"type": "absent"|"type": "bridge"|' $network"#,
        },
        Fault {
            what: "no file of the resolver",
            begins: "rm $resolver; again",
            pods: &[("nameless", "dnsPolicy: Default")],
            heard: &[
                ("CheckLimitsForResolvConf", "Node", "dns.no_resolv_conf"),
                ("FailedCreatePodSandBox", "Pod", "dns.no_resolv_conf"),
            ],
            diagnosed: &[("nameless", "pods.pending", "resolver's file")],
            ends: "touch $resolver",
        },
        Fault {
            what: "a resolver with more domains than a pod may have",
            begins: "echo nameserver 192.0.2.1 >$resolver; echo search d{1..33}.test >>$resolver; again",
            pods: &[],
            heard: &[("CheckLimitsForResolvConf", "Node", "dns.resolv_conf_limits")],
            diagnosed: &[],
            ends: ": >$resolver",
        },
        Fault {
            what: "a kubelet that was not told of the cluster's DNS",
            begins: "cp $kubelet /etc/kubelet.whole; sed -i /^cluster/d $kubelet; again",
            pods: &[("lonely", "")],
            heard: &[("MissingClusterDNS", "Pod", "dns.cluster_dns_unset")],
            diagnosed: &[("lonely", "events.list", "kubelet has no clusterDNS")],
            ends: "mv /etc/kubelet.whole $kubelet; again",
        },
        Fault {
            what: "a sandbox that ends",
            begins: r#"of='labels."io.kubernetes.pod.name"==port-1,labels."io.cri-containerd.kind"==sandbox'
                ctr -n k8s.io tasks kill --signal SIGKILL $(ctr -n k8s.io containers ls -q "$of")"#,
            pods: &[],
            heard: &[("SandboxChanged", "Pod", "-")],
            diagnosed: &[],
            ends: "",
        },
        Fault {
            what: "no network at all",
            begins: "cp $network /etc/network.away; rm $network",
            pods: &[("early", "")],
            heard: &[("NetworkNotReady", "Pod", "net.not_ready")],
            diagnosed: &[("early", "pods.pending", "NetworkNotReady")],
            ends: "",
        },
        Fault {
            what: "a network that comes back",
            begins: "cp /etc/network.away $network",
            pods: &[],
            heard: &[("NodeReady", "Node", "-")],
            diagnosed: &[],
            ends: "",
        },
    ];

    /// Runs all faults even if one fails, because a cluster takes longer to start than most faults to show.
    #[test]
    fn kubelets_warnings_are_recognised() {
        let cluster = Cluster::start(&Topology { nodes: 1, ..Topology::default() }).unwrap();
        cluster.apply(BINDING).unwrap();
        let image = image(&cluster);
        let mut wrong: Vec<String> =
            FAULTS.iter().flat_map(|fault| provoke(&cluster, fault, &image)).collect();
        cluster.stop_machine("n1").unwrap();
        cluster.boot_machine("n1").unwrap();
        wrong.extend(hear(&cluster, "a node that boots", ("Rebooted", "Node", "-")).err());
        assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    }

    /// The Events that did not come as expected.
    fn provoke(cluster: &Cluster, fault: &Fault, image: &str) -> Vec<String> {
        on_node(cluster, fault.begins);
        let pods: String = fault.pods.iter().map(|(name, spec)| pod(name, spec, image)).collect();
        if !pods.is_empty() {
            cluster.apply(&pods).unwrap();
        }
        let heard = fault.heard.iter().map(|expected| hear(cluster, fault.what, *expected));
        let diagnosed = fault.diagnosed.iter().map(|expected| diagnose(cluster, *expected));
        let wrong = heard.chain(diagnosed).filter_map(Result::err).collect();
        on_node(cluster, fault.ends);
        wrong
    }

    fn on_node(cluster: &Cluster, script: &str) {
        let known = format!("network={NETWORK} resolver={RESOLVER} kubelet={KUBELET}\n{AGAIN}\n{script}");
        let done = cluster.on("n1").unwrap().run(&["bash", "-euc", &known]).unwrap();
        assert!(done.status.success(), "{script}: {done:?}");
    }

    /// The image's name on the node.
    fn image(cluster: &Cluster) -> String {
        let list = cluster.on("n1").unwrap().run(&["ctr", "-n", "k8s.io", "images", "ls", "-q"]).unwrap();
        let list = String::from_utf8(list.stdout).unwrap();
        list.lines().find(|name| name.contains("/agnhost:")).unwrap().to_owned()
    }

    /// A pod bound to its node by name, because the scheduler would reject some of them.
    fn pod(name: &str, spec: &str, image: &str) -> String {
        let container = format!("name: it, image: '{image}', args: [netexec]");
        let (container, spec) = match spec.strip_prefix("CONTAINER") {
            Some(more) => (format!("{container}{more}"), String::new()),
            None => (container, format!("  {spec}\n")),
        };
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, labels: {{is: {name}}}}}\nspec:\n  nodeName: n1\n\
             \x20 terminationGracePeriodSeconds: 1\n  containers: [{{{container}}}]\n{spec}---\n\
             apiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\n\
             spec: {{selector: {{is: {name}}}, ports: [{{port: 80, targetPort: 8080}}]}}\n---\n"
        )
    }

    /// Waits for the Event, and compares its cause in the catalogue.
    fn hear(cluster: &Cluster, what: &str, (reason, kind, cause): (&str, &str, &str)) -> Result<(), String> {
        let heard = ExpectedEvent { reason, component: "kubelet", kind, cause };
        let end = Deadline::after(SOON);
        loop {
            let all = said(cluster);
            if let Some(event) = all.iter().find(|event| heard.matches(&ClusterEvent::from_json(event))) {
                let checked = heard.verify(&ClusterEvent::from_json(event));
                return checked.map_err(|why| format!("{why}: {event:#}"));
            }
            if end.is_over() {
                return Err(format!("never said of {what}: {heard}, only\n{}", similar(&all, reason)));
            }
            pause(Duration::from_secs(1));
        }
    }

    /// Diagnoses the pod's service with the node's own holdfast.
    fn diagnose(cluster: &Cluster, (service, first, says): (&str, &str, &str)) -> Result<(), String> {
        let end = Deadline::after(SOON);
        let command = ["holdfast", "diagnose", &format!("default/{service}")];
        loop {
            let text = cluster.on("n1").unwrap().run(&command).unwrap();
            let json = cluster.on("n1").unwrap().run(&[&command[..], &["-o", "json"]].concat()).unwrap();
            let (text, json) = (String::from_utf8_lossy(&text.stdout), String::from_utf8_lossy(&json.stdout));
            let answer: Value = serde_json::from_str(&json).unwrap_or_default();
            let said = answer["verdict"].to_string();
            if answer["verdict"]["finding"] == first && said.contains(says) {
                println!("{text}");
                return Ok(());
            }
            if end.is_over() {
                return Err(format!("{service} is not diagnosed as {first}, {says}:\n{text}"));
            }
            pause(Duration::from_secs(2));
        }
    }

    /// The Events with that reason.
    fn similar(all: &[Value], reason: &str) -> String {
        all.iter().filter(|event| event["reason"] == reason).map(|event| format!("{event}\n")).collect()
    }

    fn said(cluster: &Cluster) -> Vec<Value> {
        let list = cluster.kubectl(&["get", "events", "-A", "-o", "json"]).unwrap();
        let list: Value = serde_json::from_str(&list).unwrap();
        list["items"].as_array().unwrap().clone()
    }
}
