//! What each check reads, and when it is healthy: for the command line, and for the page of all checks.
//!
//! Invariant: every check has its words here and the same words in docs/diagnose.md; a test compares the two.

use super::checks::ALL;

/// Describes the check of that name in two lines. `None`: there is no such check.
pub fn describe_check(id: &str) -> Option<String> {
    let check = ALL.iter().find(|check| check.id == id)?;
    let looks: Vec<&str> = check.sources.iter().map(|place| place.as_str()).collect();
    Some(format!("{id} looks at: {}\nIt judges: {}\n", looks.join(", "), find_meaning(id)?))
}

fn find_meaning(id: &str) -> Option<&'static str> {
    MEANINGS.iter().find(|(of, _)| *of == id).map(|(_, words)| *words)
}

/// When a check is ok, or what it reports.
const MEANINGS: [(&str, &str); 111] = [
    ("self.ready", "every source has delivered, and the engine makes progress"),
    (
        "self.watch",
        "the watches of Services and EndpointSlices bring news: 90 s of silence is a warning, 5 min an error. A \
         watch that fails again and again is a warning after 5 s",
    ),
    ("self.control", "a configured apiserver answers; a fallback is a warning, no apiserver an error"),
    (
        "self.hooks",
        "every program is attached and reads the current maps. Also the ids of other programs that run first at the \
         same cgroup (an error if connections then miss the backends), and how often holdfast attached a program \
         again",
    ),
    ("self.maps", "the maps took the last change of this service, and have room"),
    ("self.node", "the node has a name, and a zone where hints need one"),
    ("svc.exists", "the Service exists; if not, similar names and its history"),
    ("svc.understood", "nothing of its objects is left out"),
    ("svc.cache-lag", "this node has the version that the apiserver has"),
    ("svc.handled", "this node is to serve it: not headless, no alias, not another proxy's"),
    ("svc.deleting", "whether it is being deleted, and which finalizers are left"),
    ("svc.ports", "its ports are TCP or UDP, or SCTP where packets are translated, each once"),
    ("svc.families", "it has a cluster IP of each family that it asks for"),
    ("svc.selector", "it has a selector, or somebody writes its slices"),
    (
        "frontend.collision",
        "no other service has its addresses; also which services ask for them, or for what its node ports and \
         cluster IPs cover, in vain",
    ),
    (
        "frontend.clusterip",
        "the apiserver's IPAddress object gives the cluster IP to it; older apiservers have none",
    ),
    ("svc.shared-backends", "which other services lead to the same backends"),
    ("svc.namespace", "the namespace is there and not terminating"),
    ("pods.match", "the selector matches pods"),
    ("pods.selector-typo", "no other pod has labels that are nearly those of the selector"),
    ("pods.scaled-to-zero", "whether each endpoint terminated before it went"),
    ("pods.pending", "each pod has an address"),
    ("pods.unready", "each pod is ready; if not, why: node, container, readiness gate, probe"),
    ("pods.named-port", "the pods declare the named target port"),
    ("pods.numeric-port", "whether the pods declare the port number; that is optional"),
    ("pods.terminal", "whether pods of it have ended"),
    ("slices.exist", "there is an EndpointSlice with its name"),
    ("slices.counts", "endpoints are ready"),
    ("slices.port-name", "each port has a port of the same name and protocol in a slice"),
    ("slices.family", "there are slices for each of its families"),
    (
        "slices.stale",
        "each endpoint is the pod that it names: it exists, has the same uid and address, and has not ended",
    ),
    ("slices.missing", "each ready pod is an endpoint"),
    ("slices.lag", "changes of slices come in time"),
    ("slices.duplicates", "whether an address is in two slices, which may happen for a moment"),
    ("endpoints.loopback", "no endpoint is at the loopback, where clients outside do not reach it"),
    ("slices.manager", "one writer writes its slices"),
    ("slices.hidden", "no slice of it has the label service.kubernetes.io/headless"),
    ("endpoints.truncated", "readers of the old Endpoints object see all addresses"),
    ("endpoints.handmade", "nobody writes Endpoints of its name by hand"),
    ("endpoints.never-ready", "no endpoint has been listed for five minutes without being ready"),
    ("endpoints.flapping", "no endpoint becomes ready and unready again and again"),
    ("endpoints.stuck-terminating", "no endpoint has been terminating for ten minutes"),
    ("controller.alive", "kube-controller-manager renews its Lease"),
    ("nodes.backends", "the nodes of its endpoints are ready"),
    ("policy.internal-local", "with internalTrafficPolicy Local a backend is on this node"),
    (
        "policy.external-local",
        "with externalTrafficPolicy Local a backend is on this node, or a health port tells balancers",
    ),
    ("policy.local-draining", "not all backends on this node are terminating"),
    ("policy.topology", "hints are complete; which endpoints they leave out"),
    ("policy.affinity", "whether clients keep their backend"),
    (
        "policy.source-ranges",
        "loadBalancerSourceRanges can be read, cover each family, and with `--client` that client",
    ),
    ("policy.publish-not-ready", "whether pods that are not ready get traffic on purpose"),
    ("lb.state", "how far its load balancer has come"),
    ("lb.no-controller", "a controller works on it"),
    ("lb.class-unserved", "a controller serves its class"),
    ("lb.failing", "the controller can make it; if not, the cause from the Event"),
    ("lb.stuck-ensuring", "the controller finishes its work on it"),
    ("lb.ensured-no-ingress", "it has an address once the controller reports success"),
    ("lb.no-nodes", "it has nodes that may take its traffic"),
    ("lb.degraded", "it follows the Service and the nodes"),
    ("lb.pending", "it has an address within ten minutes"),
    ("lb.flapping", "its address is stable"),
    ("lb.delete-stuck", "its deletion finishes"),
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
        "no early firewall rule drops its node ports or outer addresses: such a rule no longer sees them. Info: \
         FORWARD chains that drop by default, and a conntrack table smaller than kube-proxy made it",
    ),
    (
        "nodeport.addresses",
        "the addresses of this node at which its node ports answer, by family; the loopback only if \
         `node_port_addresses` has `\"localhost\"`",
    ),
    ("host.listener", "no other process listens at its node ports"),
    ("host.ephemeral", "the kernel gives its node ports to no connection"),
    ("host.port-pods", "no pod has one of its ports as host port, and no rule of a former such pod remains"),
    ("host.sysctls", "this host forwards packets; at which devices rp_filter is strict"),
    ("host.conntrack", "the kernel's table of connections has room"),
    ("host.routes", "this host has a route to each backend"),
    (
        "host.devices",
        "each device that leads to a backend has programs, and this node has an address to show to it; an error if \
         not. Also which of these devices `packets.devices` leaves out",
    ),
    ("host.announced", "each of its announced addresses has its route; if not, why"),
    ("view.api-cache", "this node has the slices that the apiserver has"),
    ("view.cache-table", "the table has what the slices lead to; if lists are held, how many"),
    ("view.table-kernel", "the maps hold what the table wants"),
    ("view.drift", "no other program changes the maps"),
    ("hold.state", "no list is held"),
    ("verdict", "the worst verdict of its frontends"),
    (
        "lookup",
        "with `--client`: each frontend with the backends that the client may get; if none, why. Nothing is sent",
    ),
    (
        "flows.stale",
        "whether a client outside still talks to a former backend: by UDP for a second, until its next datagram; by \
         TCP until the connection ends",
    ),
    (
        "flows.refused",
        "no UDP backend has told a client outside that its port is closed; see [below](#udp-without-asking)",
    ),
    (
        "flows.room",
        "in the last five minutes no client outside was dropped because the flow table or the ports for backends of \
         other nodes were full; unknown if this node reports no refusals and its ports have dropped clients",
    ),
    (
        "clients.refusals",
        "no client was refused or dropped at its frontends in the last five minutes; if one was, why, and how often",
    ),
    ("foreign.kube-proxy", "kube-proxy does not serve its frontends as well"),
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
        "no rules of a removed proxy name its frontends; an error if iptables rules lead to addresses that are no \
         backends",
    ),
    (
        "probe.frontend",
        "its frontends answer a connection from this host, and the answer comes from a backend",
    ),
    (
        "probe.backend",
        "its backends that get clients answer a connection; the kind of failure tells the cause, and the share of new \
         connections that fails",
    ),
    ("probe.clients", "no backend that answers this host has failed clients lately"),
    (
        "probe.checks",
        "holdfast's own health checks find each backend well; unknown if one has not ended or could not be made",
    ),
    ("probe.http", "each backend answers the path of `--http` with 200 to 399, as for kubelet"),
    (
        "probe.udp",
        "backends at port 53 answer as name servers. Other UDP ports are not tried; they are unknown unless \
         holdfast's own health checks ask them",
    ),
    ("dns.service", "kube-system/kube-dns is served"),
    (
        "dns.name",
        "a pod of the cluster's DNS resolves the name to the cluster IP, or to the endpoints of a headless Service. \
         Skipped where names do not end in `cluster.local`",
    ),
    (
        "dns.external-name",
        "the alias is a name, and a Service of this cluster behind it exists. holdfast does not resolve names \
         outside",
    ),
    ("dns.node", "this node's resolv.conf is there and within what pods take"),
    ("events.readable", "Events can be read"),
    (
        "events.list",
        "no Event is open; if one is, its meaning and its remedy. Events that end by themselves or harm no client \
         are no warning. For ready pods only DNS configuration counts: shortened, or missing in kubelet",
    ),
    ("history.recent", "what changed in the last hour"),
    ("history.correlate", "whether an Event about pods or nodes came within a minute of losing backends"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_check_has_its_row_in_the_page() {
        let expected = "dns.node looks at: host\nIt judges: this node's resolv.conf is there and within what pods take\n";
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
