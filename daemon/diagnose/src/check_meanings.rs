//! What each check reads, and when it is healthy: for the command line, and for the page of all checks.
//!
//! Invariant: every check has its words here and the same words in docs/diagnose.md; a test compares the two.

use super::checks::ALL;

/// Describes the check of that name in two lines. `None`: there is no such check.
pub fn describe_check(id: &str) -> Option<String> {
    let check = ALL.iter().find(|check| check.id == id)?;
    let looks: Vec<&str> = check.sources.iter().map(|place| place.as_str()).collect();
    Some(format!("{id} looks at: {}\nIt is well if, or says: {}\n", looks.join(", "), find_meaning(id)?))
}

fn find_meaning(id: &str) -> Option<&'static str> {
    MEANINGS.iter().find(|(of, _)| *of == id).map(|(_, words)| *words)
}

/// When a check is ok, or what it reports.
const MEANINGS: [(&str, &str); 109] = [
    ("self.ready", "every source has delivered, and the engine moves"),
    (
        "self.watch",
        "the watches of Services and EndpointSlices are not silent: more than 90 s is a warning, 5 min an error. \
         One that is refused or broken off, again and again, is a warning after 5 s",
    ),
    ("self.control", "a configured apiserver answers; a fallback is a warning, none an error"),
    (
        "self.hooks",
        "every program is attached, and reads the maps that are written. If programs of others run before ours at \
         the same cgroup, their numbers; an error where connections to frontends go astray then. How often one \
         that somebody had detached was put back",
    ),
    ("self.maps", "the maps took the last change of this service, and have room"),
    ("self.node", "the node has a name, and a zone where hints need one"),
    ("svc.exists", "there is such a Service; if not, names that may have been meant, and how it went"),
    ("svc.understood", "nothing of its objects is left out"),
    ("svc.cache-lag", "this node has the version that the apiserver has"),
    ("svc.handled", "this node is to serve it: not headless, no alias, not another proxy's"),
    ("svc.deleting", "whether it is being deleted, and which finalizers are left"),
    ("svc.ports", "its ports are TCP or UDP, or SCTP where packets are translated, each once"),
    ("svc.families", "it has a cluster IP of each family that it asks for"),
    ("svc.selector", "it selects pods, or somebody writes its slices"),
    (
        "frontend.collision",
        "no other service has its addresses; which others ask for them, and for what its node ports and cluster \
         IPs cover, without getting them",
    ),
    (
        "frontend.clusterip",
        "the apiserver's IPAddress object gives the cluster IP to it; older apiservers have none",
    ),
    ("svc.shared-backends", "which other services lead to the same backends"),
    ("svc.namespace", "the namespace is there and not terminating"),
    ("pods.match", "the selector matches pods"),
    ("pods.selector-typo", "no other pod has labels that are nearly those of the selector"),
    ("pods.scaled-to-zero", "whether each endpoint was seen terminating before it went"),
    ("pods.pending", "each pod has an address"),
    ("pods.unready", "each pod is ready; if not, why: node, container, readiness gate, probe"),
    ("pods.named-port", "the pods declare the named target port"),
    ("pods.numeric-port", "whether the pods declare the number; it is legal if not"),
    ("pods.terminal", "whether pods of it have ended"),
    ("slices.exist", "there is an EndpointSlice with its name"),
    ("slices.counts", "endpoints are ready"),
    ("slices.port-name", "each port has a port of the same name and protocol in a slice"),
    ("slices.family", "there are slices for each of its families"),
    (
        "slices.stale",
        "each endpoint is the pod that it names: there, the same uid, the same address, not ended",
    ),
    ("slices.missing", "each ready pod is an endpoint"),
    ("slices.lag", "changes of slices come in time"),
    ("slices.duplicates", "whether an address is in two slices, which is legal for a moment"),
    ("slices.manager", "one writer writes its slices"),
    ("slices.hidden", "no slice of it has the label service.kubernetes.io/headless"),
    ("endpoints.truncated", "readers of the old Endpoints object see all addresses"),
    ("endpoints.handmade", "nobody writes Endpoints of its name by hand"),
    ("endpoints.never-ready", "no endpoint has been listed for five minutes without being ready"),
    ("endpoints.flapping", "no endpoint becomes ready and unready again and again"),
    ("endpoints.stuck-terminating", "no endpoint has been terminating for ten minutes"),
    ("controller.alive", "kube-controller-manager renews its Lease"),
    ("nodes.backends", "the nodes of its endpoints are ready"),
    ("policy.internal-local", "with internalTrafficPolicy Local somebody is on this node"),
    (
        "policy.external-local",
        "with externalTrafficPolicy Local somebody is on this node, or a health port tells balancers",
    ),
    ("policy.local-draining", "who is here is not only there because he is terminating"),
    ("policy.topology", "hints are whole, and whom they leave out"),
    ("policy.affinity", "whether clients keep their backend"),
    (
        "policy.source-ranges",
        "loadBalancerSourceRanges can be read, cover each family, and with `--client` that client",
    ),
    ("policy.publish-not-ready", "whether pods that are not ready get traffic on purpose"),
    ("lb.state", "how far its load balancer has come"),
    ("lb.no-controller", "somebody acts on it"),
    ("lb.class-unserved", "somebody serves its class"),
    ("lb.failing", "it can be made; if not, the cause that the Event names"),
    ("lb.stuck-ensuring", "it is not being made for ever"),
    ("lb.ensured-no-ingress", "once it is called done, it has an address"),
    ("lb.no-nodes", "there are nodes that may take its traffic"),
    ("lb.degraded", "it follows the Service and the nodes"),
    ("lb.pending", "it has an address within ten minutes"),
    ("lb.flapping", "its address does not change again and again"),
    ("lb.delete-stuck", "its deletion comes to an end"),
    ("lb.orphan-risk", "nothing of it stays at the provider"),
    ("lb.controller-alive", "cloud-controller-manager renews its Lease, if there is one"),
    ("lb.owner", "one controller writes its status"),
    ("lb.ipmode", "which external addresses are left to the balancer (ipMode: Proxy, host names)"),
    ("lb.vip-local", "whether this host has an external address of it"),
    ("lb.health-port", "the health port answers what it should: 200 with endpoints here, 503 without"),
    ("lb.node-eligible", "whether balancers leave this node out on purpose"),
    ("lb.nodeports", "whether it has no node ports on purpose"),
    (
        "host.filters",
        "no rule in front of where kube-proxy translated drops what is sent to one of its node ports or outer \
         addresses: it sees that no more. Chains of FORWARD that let nothing through but what a rule accepts, and \
         a table of connections smaller than kube-proxy made it, are to know",
    ),
    (
        "nodeport.addresses",
        "at which addresses of this node its node ports answer, of each family that they have; the loopback only \
         where `node_port_addresses` has `\"localhost\"`",
    ),
    ("host.listener", "no other process listens at its node ports"),
    ("host.ephemeral", "the kernel gives its node ports to no connection"),
    ("host.port-pods", "no pod's host port, and no rule that such a pod left, is in the way"),
    ("host.sysctls", "this host forwards; where the way back is filtered"),
    ("host.conntrack", "the kernel's table of connections has room"),
    ("host.routes", "there is a way to each backend"),
    (
        "host.devices",
        "programs are at each device that leads to a backend, and this node has an address to show to it; an \
         error if not. Which of these devices `packets.devices` leaves out",
    ),
    (
        "host.announced",
        "the route by which others are told of each of its addresses is there, where the configuration has them \
         announced; if not, why",
    ),
    ("view.api-cache", "this node has the slices that the apiserver has"),
    ("view.cache-table", "the table has what the rules make of the slices; if lists are kept, how many"),
    ("view.table-kernel", "the maps hold what the table wants"),
    ("view.drift", "nobody else changes the maps"),
    ("hold.state", "no list is held"),
    ("verdict", "what clients meet at the frontend that is worst for them"),
    ("lookup", "with `--client`: a backend gets the client at each frontend; if not, why. Nothing is sent"),
    (
        "flows.stale",
        "whether a conversation of a client outside is with a backend that is none any more: by UDP it gets \
         another one within a second, with its next datagram, by TCP it ends with its backend",
    ),
    (
        "flows.refused",
        "no backend by UDP has told a client outside that nobody is at its port; see [below](#udp-without-asking)",
    ),
    (
        "flows.room",
        "no client outside was dropped in the last five minutes because the table of flows, or the ports by which \
         backends on other nodes answer, had no room for it; not known where refusals were not told on this node \
         and its ports have dropped clients",
    ),
    (
        "clients.refusals",
        "no client was refused or dropped at its frontends in the last five minutes; if one was, why, and how often",
    ),
    ("foreign.kube-proxy", "kube-proxy does not serve its frontends beside us"),
    (
        "foreign.cilium",
        "Cilium does not; a warning if its agent has gone and its programs still translate \
         ([migrate-from-cilium.md](migrate-from-cilium.md))",
    ),
    ("foreign.calico", "Calico does not"),
    ("foreign.kube-router", "kube-router does not"),
    ("foreign.antrea", "Antrea does not"),
    (
        "foreign.leftover",
        "no rules of a proxy that has gone name its frontends; an error if rules of iptables lead to addresses \
         that are no backends",
    ),
    ("probe.frontend", "its frontends answer a connection from this host, and whoever answers is a backend"),
    ("probe.backend", "its backends do; how they fail says what is wrong"),
    (
        "probe.checks",
        "the health checks that `health_check` has holdfast make find each backend well; not known of a backend \
         whose check has not ended or could not be made",
    ),
    (
        "probe.http",
        "each backend that is asked for the path of `--http` answers with 200 to 399, as kubelet judges it",
    ),
    (
        "probe.udp",
        "backends behind port 53 answer as name servers; of other ports by UDP silence may be an answer, so they \
         are not tried, and it is not known whether they answer unless holdfast's own health checks ask them",
    ),
    ("dns.service", "kube-system/kube-dns is served"),
    (
        "dns.name",
        "the cluster's DNS, asked at one of its pods, leads the name to the cluster IP, that of a headless \
         Service to its endpoints. Skipped where names do not end in `cluster.local`",
    ),
    (
        "dns.external-name",
        "an alias is one of a name, and if that is a Service of this cluster, of one that is there. Whether a \
         name outside resolves is not asked: whoever may write Services would have this node send DNS what they \
         like",
    ),
    ("dns.node", "this node's resolv.conf is there and within what pods take"),
    ("events.readable", "Events can be read"),
    (
        "events.list",
        "no Event is open; if one is, what it means and what to do; a notice of the knowledge (what repairs \
         itself, or harms no client) is told without a warning. Of pods that are ready, only what they live with: \
         a DNS configuration that was cut, or that kubelet does not have",
    ),
    ("history.recent", "what changed in the last hour"),
    ("history.correlate", "whether something was said of pods or nodes within a minute of losing backends"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_check_has_its_row_in_the_page() {
        let expected = "dns.node looks at: host\n\
                    It is well if, or says: this node's resolv.conf is there and within what pods take\n";
        assert_eq!(describe_check("dns.node").as_deref(), Some(expected));
        for other in ["dns", "dns.", "", "error", "check", "` | ", "kubectl get endpoints"] {
            assert_eq!(describe_check(other), None, "{other}");
        }
        let page = include_str!("../../../docs/diagnose.md");
        for check in ALL {
            let places: Vec<String> = check.sources.iter().map(|place| format!("`{place}`")).collect();
            let row =
                format!("| `{}` | {} | {} |", check.id, places.join(", "), find_meaning(check.id).unwrap());
            assert!(page.lines().any(|line| line == row), "docs/diagnose.md lacks this line:\n{row}");
        }
        assert!(MEANINGS.iter().map(|(id, _)| *id).eq(ALL.iter().map(|check| check.id)));
    }
}
