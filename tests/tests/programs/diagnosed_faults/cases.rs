//! The faults: what is configured, what runs, and the commands with their answers.

use holdfast_tests::bed::ask::Outcome;
use serde_json::{Value, json};

use super::setup::Datapath;

/// One fault.
pub(super) struct Case {
    pub(super) name: &'static str,
    /// Added to the daemon's configuration.
    pub(super) config: &'static str,
    /// A file in the daemon's folder of manifests.
    pub(super) manifests: &'static str,
    /// Where processes listen; at 10.1.0.x in a pod, else on the node.
    pub(super) servers: &'static [&'static str],
    pub(super) twist: Twist,
    /// What clients meet, where the kernel's programs carry them.
    pub(super) clients: &'static [Meeting],
    /// The commands that are enough.
    pub(super) asks: &'static [Ask],
    /// Other commands that an operator may type first: none of them misleads.
    pub(super) more: &'static [Ask],
}

/// What happens once the daemon runs.
#[derive(Clone, Copy)]
pub(super) enum Twist {
    None,
    ApiserverEnds,
    BlockAppended,
    DiskFills,
}

/// A client that dials often enough to meet every backend.
pub(super) struct Meeting {
    pub(super) who: Who,
    pub(super) dials: &'static str,
    /// Its worst outcome; `None`: each of its connections is answered.
    pub(super) meets: Option<Outcome>,
}

#[derive(Clone, Copy)]
pub(super) enum Who {
    Process,
    Outside,
}

/// One command, and its answer.
pub(super) struct Ask {
    pub(super) on: Option<Datapath>,
    pub(super) words: &'static [&'static str],
    pub(super) exit: i32,
    /// The cause, the culprit and the next step.
    pub(super) says: &'static [&'static str],
    /// What would be untrue.
    pub(super) never: &'static [&'static str],
}

impl Ask {
    pub(super) const fn new(
        words: &'static [&'static str],
        exit: i32,
        says: &'static [&'static str],
    ) -> Self {
        Self { on: None, words, exit, says, never: &[] }
    }

    pub(super) const fn never(mut self, never: &'static [&'static str]) -> Self {
        self.never = never;
        self
    }

    pub(super) const fn on(mut self, datapath: Datapath) -> Self {
        self.on = Some(datapath);
        self
    }

    pub(super) fn applies(&self, datapath: Datapath) -> bool {
        self.on.is_none_or(|on| on == datapath)
    }
}

const BARE: Case = Case {
    name: "",
    config: "",
    manifests: "",
    servers: &[],
    twist: Twist::None,
    clients: &[],
    asks: &[],
    more: &[],
};

const DIAGNOSE: &[&str] = &["diagnose", "shop/web"];

const REFUSED: Option<Outcome> = Some(Outcome::Refused);

const fn process(dials: &'static str, meets: Option<Outcome>) -> Meeting {
    Meeting { who: Who::Process, dials, meets }
}

const fn outside(dials: &'static str, meets: Option<Outcome>) -> Meeting {
    Meeting { who: Who::Outside, dials, meets }
}

/// Its slice calls two pods ready, and nothing listens at the second.
pub(super) const DEAD_POD: Case = Case {
    name: "a dead pod that is called ready",
    manifests: "
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {type: NodePort, clusterIP: 10.96.0.10,
  selector: {app: web}, ports: [{port: 80, nodePort: 30080, targetPort: 8080}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: [10.1.0.2]}, {addresses: [10.1.0.3], targetRef: {kind: Pod, name: web-dead}}]
",
    servers: &["10.1.0.2:8080"],
    clients: &[process("10.96.0.10:80", REFUSED), outside("192.0.2.1:30080", REFUSED)],
    asks: &[
        Ask::new(
            &["status"],
            1,
            &[
                "backends that fail clients",
                "shop/web: 10.1.0.3:8080 refused clients of 10.96.0.10:80/TCP, the last one at 20",
                "shop/web: 10.1.0.3:8080 refused clients of 192.0.2.1:30080/TCP, the last one at 20",
                "next: holdfast diagnose shop/web",
            ],
        )
        .on(Datapath::Kernel),
        Ask::new(
            DIAGNOSE,
            3,
            &[
                "1 of 2 backends fails: 10.1.0.3:8080 refused. About 1 of 2 new connections fails.",
                "Nothing listens at 10.1.0.3:8080, and another backend answers at the same port.",
                "Next: `holdfast drain 10.1.0.3` ends these failures on this node",
                "Look at Pod shop/web-dead, not at the port",
                "endpoints 2 ready",
                "error probe.backend the finding at the top",
                "1 error, 0 warnings",
            ],
        )
        .never(&[
            "see above",
            "correct targetPort",
            "does not listen on",
            "that pod, not",
            "10.96.0.10:80/TCP, 0.0.0.0:30080",
            "None of 0 connections",
        ]),
    ],
    ..BARE
};

/// The dead pod of [`DEAD_POD`] is drained: no client meets it any more.
pub(super) const DRAINED_POD: Case = Case {
    name: "a dead pod is drained",
    clients: &[process("10.96.0.10:80", REFUSED)],
    asks: &[
        Ask::new(&["drain", "10.1.0.3"], 0, &["10.1.0.3"]),
        Ask::new(
            DIAGNOSE,
            0,
            &[
                "SERVING since ",
                "Nothing fails for clients; one drained backend is dead (10.1.0.3:8080).",
                "info probe.backend 1 of 2 backends fails: 10.1.0.3:8080 refused. It is drained, so it gets no new \
                 client. Clients get other backends.",
                "0 errors, 0 warnings",
            ],
        )
        .never(&["Nothing is wrong"])
        .on(Datapath::Kernel),
        // Nobody dials frontends of tables in memory.
        Ask::new(
            DIAGNOSE,
            5,
            &["Nothing fails for clients, as far as could be seen; one drained backend is dead (10.1.0.3:8080)."],
        )
        .never(&["Nothing is wrong"])
        .on(Datapath::Memory),
    ],
    more: &[],
    ..DEAD_POD
};

pub(super) const CHECKED_BACKEND: Case = Case {
    name: "a checked backend is down",
    config: "
[[service]]
name = \"web\"
frontends = [\"10.96.0.10:80\"]
backends = [\"127.0.0.8:8080\", \"127.0.0.9:8080\"]
health_check = { interval = \"100ms\", timeout = \"100ms\", rise = 1, fall = 1 }
",
    servers: &["127.0.0.8:8080"],
    clients: &[process("10.96.0.10:80", None)],
    asks: &[
        Ask::new(
            &["status"],
            1,
            &[
                "failing health checks",
                "static/web: 127.0.0.9:8080",
                "refused",
                "next: holdfast diagnose static/web",
            ],
        ),
        Ask::new(
            &["diagnose", "static/web"],
            1,
            &[
                "own health checks fail for 1 of 2 backends: 127.0.0.9:8080",
                "It gets no new client, so none meets that. Nothing listens at 127.0.0.9:8080.",
                "Next: Start the process at 127.0.0.9:8080, or correct `backends` of the [[service]] block \"web\" (/",
            ],
        )
        .never(&[
            "findings on pods",
            "targetPort",
            "Pod ",
            "new connections fail",
            "warning probe.backend",
            "See whether a process listens",
        ]),
    ],
    more: &[
        Ask::new(
            &["diagnose", "static/web", "-o", "wide"],
            1,
            &[
                "ok probe.backend No client meets a dead backend. 127.0.0.9:8080 refused: new clients do not get a \
                 backend while its health checks fail (see probe.checks).",
            ],
        )
        .never(&["ok probe.backend 1 of 2 backends fails", "It lost no backend lately"]),
        Ask::new(
            &["explain", "static/web"],
            1,
            &[
                "127.0.0.8:8080, since 20",
                "But 127.0.0.9:8080 fails its health checks.",
                "Cause and remedy: holdfast diagnose static/web",
                "Configuration: the [[service]] block `web` in /",
                "127.0.0.9:8080/TCP unused (unready), since ",
                "its health checks turned 127.0.0.9 from ready to unready",
            ],
        )
        .never(&["EndpointSlice static/web-v4-8080: ", "conditions none", "health-check"]),
    ],
    ..BARE
};

/// The pod listens at 8080, and the Service names 8081.
pub(super) const TARGET_PORT: Case = Case {
    name: "a wrong targetPort of pods",
    manifests: "
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {type: NodePort, clusterIP: 10.96.0.10, selector: {app: web},
  ports: [{port: 80, nodePort: 30080, targetPort: 8081}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{port: 8081}]
endpoints: [{addresses: [10.1.0.2]}, {addresses: [10.1.0.3]}]
",
    servers: &["10.1.0.2:8080", "10.1.0.3:8080"],
    clients: &[process("10.96.0.10:80", REFUSED), outside("192.0.2.1:30080", REFUSED)],
    asks: &[
        Ask::new(
            &["status"],
            1,
            &[
                "backends that fail clients",
                "shop/web: 10.1.0.2:8081 refused clients of 10.96.0.10:80/TCP, the last one at 20",
                "shop/web: 10.1.0.2:8081 refused clients of 192.0.2.1:30080/TCP, the last one at 20",
                "next: holdfast diagnose shop/web",
            ],
        )
        .on(Datapath::Kernel),
        Ask::new(
            DIAGNOSE,
            3,
            &[
                "2 of 2 backends fail: 10.1.0.2:8081 refused, 10.1.0.3:8081 refused.",
                "Every new connection fails.",
                "does not listen on 8081, the port in EndpointSlice shop/web-1 (shop.yaml).",
                "Next: Look at which port the application listens: run `ss -ltnp` where it runs (the pod or machine of \
                 10.1.0.2, 10.1.0.3).",
                "remedy (DISRUPTIVE): Correct `ports` of EndpointSlice shop/web-1 (shop.yaml), or the port of the \
                 application. holdfast takes the port from there, not from `targetPort` of the Service.",
            ],
        )
        .never(&["holdfast drain", "Then correct", "of manifests"]),
    ],
    ..BARE
};

/// Drains one of two backends that refuse everybody. The other one fails on.
pub(super) const HALF_DRAINED: Case = Case {
    name: "one of two dead backends is drained",
    asks: &[
        Ask::new(&["drain", "10.1.0.2"], 0, &["10.1.0.2"]),
        Ask::new(
            &["status"],
            1,
            &["backends that fail clients", "shop/web: 10.1.0.3:8081 refused clients of 10.96.0.10:80/TCP"],
        )
        .never(&["10.1.0.2:8081 refused"])
        .on(Datapath::Kernel),
    ],
    ..TARGET_PORT
};

/// The process listens at 8080, and the block names 8081.
pub(super) const BACKEND_PORT: Case = Case {
    name: "a wrong port of a local backend",
    config: "
[[service]]
name = \"web\"
frontends = [\"10.96.0.10:80\"]
backends = [\"127.0.0.9:8081\"]
",
    servers: &["127.0.0.9:8080"],
    // The kernel drops packets from outside to the loopback. Only processes of the node are served by such a backend.
    clients: &[process("10.96.0.10:80", REFUSED), outside("10.96.0.10:80", Some(Outcome::Silent))],
    asks: &[
        Ask::new(
            &["explain", "static/web"],
            1,
            &[
                "Fails clients: 127.0.0.9:8081, or the loopback of a pod, refused clients of 10.96.0.10:80/TCP, the last one at ",
                "80 sent to a backend (whether it took them is not counted), 0 refused by holdfast",
                "Cause and remedy: holdfast diagnose static/web",
            ],
        )
        .on(Datapath::Kernel),
        Ask::new(
            &["diagnose", "static/web"],
            3,
            &[
                "Its one backend fails: 127.0.0.9:8081 refused. Every new connection fails.",
                "Nothing listens at 127.0.0.9:8081. A process listens at 127.0.0.9:8080 (bed_child, pid ",
                "Next (disruptive): Is 8080 right? Then write 127.0.0.9:8080 in place of 127.0.0.9:8081 into `backends` of the \
                 [[service]] block \"web\" (/",
                "config.toml), and reload. holdfast reload",
            ],
        )
        .never(&[
            "ss -ltnp","targetPort", "findings on pods", "Pod ", "selector", "not translated"]),
    ],
    more: &[
        Ask::new(
            &["explain"],
            1,
            &["Each frontend has backends, and some of them fail clients: `holdfast status` names them."],
        )
        .on(Datapath::Kernel),
        Ask::new(
            &["explain", "10.96.0.10:80", "--from", "10.2.0.2"],
            1,
            &[
                "is translated to 127.0.0.9:8081 of static/web, and lost: the kernel of this node drops packets that come \
                 by a device and go to the loopback (unless `route_localnet` of that device is 1), so only processes in \
                 this host's own network reach 127.0.0.9:8081.",
                "Cause and remedy: holdfast diagnose static/web --client 10.2.0.2",
            ],
        )
        .never(&["is sent to", "whose node is not known", "if it is on this node"])
        .on(Datapath::Kernel),
        Ask::new(
            &["diagnose", "static/web", "--client", "10.2.0.2"],
            3,
            &["and lost: the kernel of this node drops packets"],
        )
        .never(&["10.2.0.2 gets a backend"])
        .on(Datapath::Kernel),
    ],
    ..BARE
};

/// The same, where the first question is about the node. Nobody but its own processes dials the service.
pub(super) const REFUSED_PROCESSES: Case = Case {
    name: "a backend refuses the node's own processes",
    asks: &[
        Ask::new(
            &["status"],
            1,
            &[
                "backends that fail clients",
                "static/web: 127.0.0.9:8081, or the loopback of a pod, refused clients of 10.96.0.10:80/TCP, the last one at 20",
                "next: holdfast diagnose static/web",
            ],
        )
        .never(&["not seen"])
        .on(Datapath::Kernel),
        Ask::new(&["status"], 0, &["not seen whether backends take the clients of this node"])
            .on(Datapath::Memory),
    ],
    ..BACKEND_PORT
};

/// The selector says `wbe`, so that no controller lists a pod.
pub(super) const SELECTOR: Case = Case {
    name: "a typo in a selector",
    manifests: "
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {type: ClusterIP, clusterIP: 10.96.0.10, selector: {app: wbe}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Pod
metadata: {name: web-1, namespace: shop, labels: {app: web}}
spec: {containers: [{name: web, image: web}]}
",
    clients: &[process("10.96.0.10:80", REFUSED)],
    asks: &[
        // Nobody writes a slice there, so this is no service that waits for its pods.
        Ask::new(
            &["status"],
            1,
            &[
                "not serving 1 refusing (no-endpoints)",
                "shop/web",
                "next: holdfast diagnose shop/web",
                "ignored in the manifests Pod (v1) gives no Service a backend, an EndpointSlice",
            ],
        )
        .never(&["on purpose", "rejected"]),
        Ask::new(
            DIAGNOSE,
            3,
            &[
                "The manifests (shop.yaml) have no EndpointSlice of shop/web. In manifests, only an EndpointSlice gives a \
                 service its backends; a selector gives it none. Its selector app=wbe also matches no Pod of the \
                 manifests. Pod web-1 has app=web.",
                "Next: Write an EndpointSlice with the label kubernetes.io/service-name=web",
            ],
        )
        .never(&["(likely)", "findings on pods", "If the ", "no usable endpoint of it yet"]),
    ],
    more: &[Ask::new(&["explain", "shop/web"], 1, &["refuses every connection"])],
    ..BARE
};

/// The same by explain; and a kind that is not read is no fault of a service that works.
pub(super) const SELECTOR_EXPLAINED: Case = Case {
    name: "a typo in a selector, explained",
    clients: &[],
    asks: &[Ask::new(
        &["explain", "shop/web"],
        1,
        &[
            "because the manifests have no EndpointSlice of it",
            "later: It stays unserved until you write an EndpointSlice into the manifests: no controller writes one there.",
        ],
    )
    .never(&["with the first endpoint", "no usable endpoint of it yet", "see: docs/"])],
    ..SELECTOR
};

pub(super) const IGNORED_KIND: Case = Case {
    name: "a Pod in the manifests of a good service",
    manifests: "
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {type: ClusterIP, clusterIP: 10.96.0.10, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: [10.1.0.2]}]
---
apiVersion: v1
kind: Pod
metadata: {name: web-1, namespace: shop, labels: {app: web}}
spec: {containers: [{name: web, image: web}]}
",
    servers: &["10.1.0.2:8080"],
    asks: &[Ask::new(
        &["status"],
        0,
        &["1 serving", "ignored in the manifests Pod (v1) gives no Service a backend"],
    )
    .never(&["rejected"])],
    ..BARE
};

pub(super) const NODE_PORT: Case = Case {
    name: "a process at a NodePort",
    manifests: "
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {type: NodePort, clusterIP: 10.96.0.10,
  ports: [{port: 80, nodePort: 30080, targetPort: 8080}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: [10.1.0.2]}]
",
    servers: &["10.1.0.2:8080", "0.0.0.0:30080"],
    clients: &[process("192.0.2.1:30080", None)],
    asks: &[
        Ask::new(
            DIAGNOSE,
            1,
            &[
                "bed_child (pid ",
                "listens at 30080, the node port of shop/web: 192.0.2.1:30080 leads to shop/web, and ",
                "127.0.0.1:30080 lead to bed_child.",
                "Next: Look what that process is.",
                " ps -fp ",
                "remedy (safe): Have clients dial 192.0.2.1: `node_port_addresses`",
                "remedy (DISRUPTIVE): Move the process to another port",
            ],
        )
        .never(&["10.96.0.10:80/TCP, 0.0.0.0:30080"]),
        Ask::new(
            &["explain", "127.0.0.1:30080"],
            1,
            &[
                "30080/TCP is a node port of shop/web. It answers at 192.0.2.1, not at 127.0.0.1",
                "bed_child (pid ",
                "listens at 0.0.0.0:30080, and gets these clients. Cause and remedy: holdfast diagnose shop/web",
            ],
        )
        .never(&["No service has", "leave as they are"]),
    ],
    more: &[
        Ask::new(&["frontends"], 0, &["shop/web - NodePort *:30080/TCP"]).never(&["0.0.0.0:30080"]),
        Ask::new(&["history"], 0, &["*:30080/TCP is new"]).never(&["0.0.0.0:30080"]),
        Ask::new(
            &["explain", "30080"],
            1,
            &[
                "192.0.2.1:30080/TCP (NodePort of shop/web) is served by 10.1.0.2:8080",
                "bed_child (pid ",
                "listens at 30080, the node port of shop/web: 192.0.2.1:30080 leads to shop/web, and ",
                "127.0.0.1:30080 lead to bed_child.",
                "Cause and remedy: holdfast diagnose shop/web",
            ],
        ),
        Ask::new(&["explain", "192.0.2.1:30080"], 0, &["is served by 10.1.0.2:8080"]),
        Ask::new(
            &["explain", "shop/web"],
            1,
            &["Other process: bed_child (pid ", "Cause and remedy: holdfast diagnose shop/web"],
        ),
        Ask::new(
            &["explain", "10.2.0.1:30080", "--from", "10.2.0.2"],
            1,
            &[
                "the node port 30080/TCP of shop/web does not answer at 10.2.0.1",
                "It answers at 192.0.2.1, not at 10.2.0.1 (`node_port_addresses`). bed_child (pid ",
                "listens at 0.0.0.0:30080, and gets these clients. Cause and remedy: holdfast diagnose shop/web",
            ],
        )
        .never(&["no service has that frontend"])
        .on(Datapath::Kernel),
        Ask::new(
            &["explain"],
            1,
            &["Each frontend has backends, and other processes hold ports of services: `holdfast status` names the ports."],
        ),
        // Nameless, it diagnoses the services that status names.
        Ask::new(
            &["diagnose"],
            1,
            &["other processes at node ports bed_child (pid ", "SERVING since ", "Next: Look what that process is."],
        )
        .never(&["No service fails its clients"]),
        Ask::new(
            &["status"],
            1,
            &[
                "other processes at node ports bed_child (pid ",
                "listens at 30080, the node port of shop/web: 192.0.2.1:30080 leads to shop/web, and ",
                "127.0.0.1:30080 lead to bed_child",
                "next: ps -fp ",
                ", then: holdfast diagnose shop/web",
            ],
        ),
    ],
    ..BARE
};

/// The daemon runs with the first block; an operator appends the second and reloads.
pub(super) const TWO_BLOCKS: Case = Case {
    name: "two blocks claim one frontend",
    config: "
[[service]]
name = \"web\"
frontends = [\"10.96.0.10:80\"]
backends = [\"127.0.0.8:8080\"]
",
    servers: &["127.0.0.8:8080"],
    twist: Twist::BlockAppended,
    clients: &[process("10.96.0.10:80", None)],
    asks: &[
        Ask::new(
            &["status"],
            1,
            &[
                "the last reload was refused",
                "service \"api\": frontends[0]: 10.96.0.10:80 is claimed by static/web already (line ",
                "refused 20",
                "s ago), asked for by root (uid 0), pid ",
                "stays in force; do not restart the daemon: it would not start with the file as it was then",
                "holdfast check-config /",
            ],
        )
        .never(&["service[1]", "check-config FILE"]),
        // It looks at the file of the running daemon.
        Ask::new(
            &["check-config"],
            78,
            &[
                "config.toml:",
                "service \"api\": frontends[0]: 10.96.0.10:80 is claimed by static/web already (line ",
            ],
        )
        .never(&["there is no such file", "/etc/holdfast"]),
    ],
    ..BARE
};

/// The second block is asked for by its name.
pub(super) const BLOCK_OF_A_REFUSED_RELOAD: Case = Case {
    name: "a block of a refused reload",
    clients: &[],
    asks: &[
        Ask::new(
            &["diagnose", "static/api"],
            4,
            &[
                "static/api is not known here. The last reload was refused",
                "is claimed by static/web already (line ",
                "): give each block its own frontends",
                "Next: Correct the configuration until the command below finds nothing. Then run `holdfast reload`.",
                "holdfast check-config /",
                "config.toml",
            ],
        )
        .never(&["There is no Service", "(likely)", "apply the Service's manifest"]),
        Ask::new(
            &["explain", "static/api"],
            4,
            &["static/api is known. The last reload was refused", "is claimed by static/web already (line "],
        ),
    ],
    ..TWO_BLOCKS
};

/// An operator who knows neither the namespace of blocks nor that the file has another place.
pub(super) const NAME_WITHOUT_NAMESPACE: Case = Case {
    name: "a name without its namespace, and another file",
    clients: &[],
    asks: &[
        Ask::new(
            &["diagnose", "api"],
            64,
            &[
                "a [[service]] block without a namespace is static/api",
                "the last reload was refused, so new blocks are not known yet (holdfast status)",
            ],
        ),
        Ask::new(
            &["check-config", "/nonexistent/holdfast.toml"],
            78,
            &["there is no such file; the daemon runs with /", "config.toml: holdfast check-config /"],
        )
        .never(&["create it", "an empty one"]),
    ],
    ..TWO_BLOCKS
};

pub(super) const TWO_SERVICES: Case = Case {
    name: "two services claim one frontend",
    config: "
[[service]]
name = \"api\"
frontends = [\"10.96.0.10:80\"]
backends = [\"127.0.0.9:8080\"]
",
    manifests: "
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {type: ClusterIP, clusterIP: 10.96.0.10, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: [10.1.0.2]}]
",
    servers: &["127.0.0.9:8080", "10.1.0.2:8080"],
    asks: &[
        Ask::new(&["status"], 1, &["conflict (claimed)", "has its address"]),
        Ask::new(
            DIAGNOSE,
            3,
            &[
                "10.96.0.10:80/TCP belongs to static/api: the claim of static/api comes first because [[service]] \
                 blocks of the configuration go before manifests.",
                "Next: Ask whose address it is meant to be: that of static/api or of shop/web.",
                "remedy (DISRUPTIVE): Remove 10.96.0.10:80/TCP from the one that should not have it: `frontends` of the \
                 [[service]] block `api` in /",
                ", or `spec.clusterIP` of Service shop/web in shop.yaml.",
            ],
        )
        .never(&["then name)", "Served as before", "holdfast explain"]),
    ],
    more: &[
        Ask::new(
            &["explain", "static/api"],
            1,
            &[
                "10.96.0.10:80/TCP (Static of static/api) is served by 127.0.0.9:8080",
                "shop/web claims 10.96.0.10:80/TCP too, and does not get it: the claim of static/api comes first because ",
            ],
        ),
        Ask::new(
            &["explain", "shop/web"],
            1,
            &["is not served, because static/api has the address and its clients: ", "10.1.0.2:8080/TCP unused (conflict): ready, since"],
        ),
        Ask::new(
            &["diagnose", "static/api"],
            1,
            &[
                "SERVING since ",
                "shop/web claims 10.96.0.10:80/TCP too, and does not get it: the claim of static/api comes first because \
                 [[service]] blocks of the configuration go before manifests.",
                "Next: Ask whose address it is meant to be",
            ],
        ),
        Ask::new(
            &["diagnose", "static/web"],
            4,
            &[
                "There is no Service static/web",
                "Next: Look at the name, or write a [[service]] block \"web\" into the configuration. holdfast services",
            ],
        )
        .never(&["manifest again"]),
        Ask::new(
            &["explain", "10.96.0.10:80"],
            1,
            &[
                "10.96.0.10:80/TCP (Static of static/api) is served by 127.0.0.9:8080",
                "shop/web claims 10.96.0.10:80 too, and does not get it: the claim of static/api comes first because ",
            ],
        ),
    ],
    ..BARE
};

/// Any tenant may write such a claim. It takes nothing, so the owner's answers are as without it.
pub(super) const HOPELESS_CLAIM: Case = Case {
    name: "a claim on a port of another's cluster IP",
    config: "[kubernetes]\nexternal_ips = [\"10.96.0.0/16\"]\n",
    manifests: "
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {type: ClusterIP, clusterIP: 10.96.0.10, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: thief, namespace: other}
spec: {type: ClusterIP, clusterIP: 10.96.0.12, externalIPs: [10.96.0.10], ports: [{port: 81, targetPort: 8080}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: [10.1.0.2]}]
",
    servers: &["10.1.0.2:8080"],
    asks: &[
        Ask::new(&["explain", "shop/web"], 0, &["is served by 10.1.0.2:8080"]).never(&["claims"]),
        Ask::new(&["explain", "other/thief"], 1, &["10.96.0.10:81/TCP ExternalIP: conflict (claimed) since"]),
    ],
    ..BARE
};

pub(super) const HEALTH_PORT: Case = Case {
    name: "a health port is taken",
    config: "[kube_proxy]\nhealth = \"0.0.0.0:10256\"\n",
    manifests: "
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {type: LoadBalancer, clusterIP: 10.96.0.10,
  externalTrafficPolicy: Local, healthCheckNodePort: 32000,
  ports: [{port: 80, nodePort: 30080, targetPort: 8080}]}
status: {loadBalancer: {ingress: [{ip: 203.0.113.10}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: [10.1.0.2], nodeName: n1}]
",
    servers: &["10.1.0.2:8080", "0.0.0.0:32000"],
    asks: &[
        Ask::new(&["status"], 1, &["closed ports shop/web, health check port 192.0.2.1:32000: ", "next: holdfast diagnose shop/web"]),
        Ask::new(
            DIAGNOSE,
            3,
            &[
                "bed_child (pid ",
                "listens at its health port 32000",
                "Next: See what that process is, and whether it is meant to be there.",
                "ps -fp ",
                "remedy (DISRUPTIVE): Free the port",
            ],
        )
        .never(&[
            "ss -ltnp",
            "Look who listens",
            "remedy (safe): Look who listens at that port, and free it.",
        ]),
    ],
    more: &[
        Ask::new(
            &["explain", "32000"],
            1,
            &[
                "32000 is the health check port of shop/web, and this daemon could not open it: ",
                "Load balancers that ask there do not reach this daemon. Cause and remedy: holdfast diagnose shop/web",
            ],
        )
        .never(&["load balancers ask this daemon there", "Whether it is open", "0.0.0.0:30080"]),
        Ask::new(
            &["explain", "203.0.113.10:80"],
            1,
            &["is served by 10.1.0.2:8080", "But its health check port 192.0.2.1:32000 cannot be opened: "],
        ),
        Ask::new(&["explain", "10.96.0.10:80"], 0, &["is served by 10.1.0.2:8080"]).never(&["But "]),
        Ask::new(
            &["explain", "shop/web"],
            1,
            &["But its health check port 192.0.2.1:32000 cannot be opened: ", "Cause and remedy: holdfast diagnose shop/web"],
        ),
    ],
    ..BARE
};

pub(super) const SOURCE_RANGES: Case = Case {
    name: "source ranges exclude the client",
    manifests: "
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {type: LoadBalancer, clusterIP: 10.96.0.10, loadBalancerSourceRanges: [198.51.100.0/24],
  ports: [{port: 80, nodePort: 30080, targetPort: 8080}]}
status: {loadBalancer: {ingress: [{ip: 203.0.113.10}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: [10.1.0.2]}]
",
    servers: &["10.1.0.2:8080"],
    clients: &[outside("203.0.113.10:80", Some(Outcome::Silent))],
    asks: &[
        Ask::new(
            &["explain", "203.0.113.10:80", "--from", "10.2.0.2"],
            1,
            &[
                "10.2.0.2 is in none of the loadBalancerSourceRanges of shop/web (198.51.100.0/24)",
                "Cause and remedy: holdfast diagnose shop/web --client 10.2.0.2",
                "Source ranges: the load balancer is for clients of 198.51.100.0/24 alone",
                " packets, the last of 10.2.0.2:",
                "): not in loadBalancerSourceRanges",
            ],
        )
        .never(&["(source)", "Clients fail nonetheless?", "tries several times"])
        .on(Datapath::Kernel),
        Ask::new(
            &["diagnose", "shop/web", "--client", "10.2.0.2"],
            1,
            &[
                "10.2.0.2 is in none of the source ranges (198.51.100.0/24)",
                "Next: Ask whether the client is meant to come in",
                "remedy (DISRUPTIVE): If the client is meant to come in, add a range that has it to \
                 `loadBalancerSourceRanges` of Service shop/web in shop.yaml (now 198.51.100.0/24)",
            ],
        )
        .never(&["remedy (safe): If the client is to come in", "add them to loadBalancerSourceRanges", "error "]),
    ],
    more: &[
        // It is meant, so it makes no status bad.
        Ask::new(
            &["status"],
            0,
            &[
                "clients turned away shop/web: 203.0.113.10:80/TCP dropped ",
                " packets of 10.2.0.2, the last at 20",
                " s ago): not in loadBalancerSourceRanges",
                "next: holdfast explain 203.0.113.10:80 --from 10.2.0.2",
                "not seen backends that no client has dialled lately for processes and pods of this node: TCP \
                 backends that never answer, and all UDP backends next: holdfast diagnose SERVICE dials them",
            ],
        )
        .on(Datapath::Kernel),
        // A device of pods has an address of the node too.
        Ask::new(
            &["explain", "203.0.113.10:80", "--from", "10.1.0.1"],
            1,
            &[
                "10.1.0.1 is this node, and its own processes are served where they dial: `holdfast explain \
                 203.0.113.10:80` says what they get. A TCP packet from 10.1.0.1 to 203.0.113.10:80 that comes from outside \
                 is dropped",
            ],
        )
        .never(&["10.1.0.1 is outside"])
        .on(Datapath::Kernel),
        // It is meant, as for status. Whoever asks about the client is told otherwise.
        Ask::new(
            DIAGNOSE,
            0,
            &[
                " packets of 1 client outside were dropped, the last ",
                "10.2.0.2 is not in loadBalancerSourceRanges.",
                "Next: Ask whether the client is meant to come in",
                "of Service shop/web in shop.yaml (now 198.51.100.0/24)",
            ],
        )
        .on(Datapath::Kernel),
        Ask::new(
            &["explain", "203.0.113.10:80"],
            0,
            &["Source ranges: the load balancer is for clients of 198.51.100.0/24 alone"],
        ),
        Ask::new(
            &["explain", "203.0.113.10:80", "--client", "10.2.0.2"],
            1,
            &["10.2.0.2 is in none of the loadBalancerSourceRanges of shop/web (198.51.100.0/24)"],
        )
        .on(Datapath::Kernel),
        Ask::new(
            &["diagnose"],
            0,
            &["No service fails its clients, as far as this node sees. Rules of a service turned away the clients above."],
        )
        .on(Datapath::Kernel),
        Ask::new(&["diagnose", "shop/web", "--from", "10.2.0.2"], 1, &["10.2.0.2 is in none of the source ranges"]),
        Ask::new(&["refusals"], 0, &["not in loadBalancerSourceRanges"]).on(Datapath::Kernel),
    ],
    ..BARE
};

pub(super) const ALL_UNREADY: Case = Case {
    name: "all endpoints are unready",
    manifests: "
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {type: ClusterIP, clusterIP: 10.96.0.10, selector: {app: web},
  ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{port: 8080}]
endpoints:
- {addresses: [10.1.0.2], conditions: {ready: false}, targetRef: {kind: Pod, name: web-a}}
- {addresses: [10.1.0.3], conditions: {ready: false}, targetRef: {kind: Pod, name: web-b}}
",
    servers: &["10.1.0.2:8080"],
    clients: &[process("10.96.0.10:80", REFUSED)],
    asks: &[
        Ask::new(&["status"], 1, &["not serving", "refusing (all-unready)", "shop/web", "next: holdfast "]),
        Ask::new(
            DIAGNOSE,
            3,
            &[
                "None of 2 endpoints is ready. EndpointSlice shop/web-1 (shop.yaml) has `ready: false` for 10.1.0.2, \
                 10.1.0.3.",
                "10.1.0.2:8080 takes connections nonetheless.",
                "Next (disruptive): Set `ready: true` for 10.1.0.2 in EndpointSlice shop/web-1 (shop.yaml), if the \
                 application there is well. Leave 10.1.0.3 as it is: it takes no connection.",
                "It is unready, so it gets no new client. This service sends clients to no backend.",
                "endpoints 2 unready",
            ],
        )
        .never(&[
            "Look at the endpoints",
            "no Pod is read",
            "so no client meets that","findings on pods", "(likely)", "warning probe.backend", "new connections fail"]),
    ],
    more: &[Ask::new(&["explain", "shop/web"], 1, &["refuses every connection"])],
    ..BARE
};

/// The apiserver has gone; the node serves what it knows, so that no client fails.
pub(super) const APISERVER: Case = Case {
    name: "the apiserver is unreachable",
    servers: &["10.1.0.2:8080"],
    twist: Twist::ApiserverEnds,
    clients: &[process("10.96.0.10:80", None)],
    asks: &[
        Ask::new(
            &["status"],
            1,
            &[
                "the apiserver is not heard",
                "last heard 20",
                "refused",
                "learns of no rollout",
                "next: holdfast apiserver",
            ],
        ),
        Ask::new(
            DIAGNOSE,
            3,
            &[
                "No apiserver answers: 127.",
                "connection refused.",
                "Look on the machine that has the address whether kube-apiserver runs and on which port",
                "curl -k https://127.",
                "/readyz",
                "checks without an answer (-o wide names them)",
                "1 error, ",
            ],
        )
        .never(&["Not looked at: ", "unknown 2"]),
    ],
    more: &[Ask::new(&["apiserver"], 1, &["failed"])],
    ..BARE
};

/// What `status` leads to, on a cluster that has no Node of this name either.
pub(super) const APISERVER_ITSELF: Case = Case {
    name: "the apiserver is unreachable, by its own command",
    clients: &[],
    asks: &[
        Ask::new(
            &["apiserver"],
            1,
            &[
                "next look on the machine that has the address whether kube-apiserver runs; from here: curl -k https://127.",
                "readyz ENDPOINT ",
                "tried first",
                "connection refused",
                "also: the cluster has no Node \"n1\"",
            ],
        )
        .never(&["preferred", "CONNECTIONS"]),
        Ask::new(&["apiserver", "-o", "wide"], 1, &["CONNECTIONS", "RESTARTS", "LAST ERROR AT"]),
    ],
    ..APISERVER
};

pub(super) const DISK: Case = Case {
    name: "the disk is full",
    servers: &["10.1.0.2:8080"],
    twist: Twist::DiskFills,
    asks: &[
        Ask::new(
            &["status"],
            1,
            &[
                "disk /",
                "takes no write since 20",
                "s ago): No space left on device (os error 28) not on disk: the newest table, 1 history record; ",
                "the daemon tries again every second",
                "manifests are read again. It loses 1 history record",
                "next: make room: df -h /",
            ],
        )
        .never(&["older state", "1 changes", "snapshot.new", "under [state]"]),
        // The order counts, and a restart would lose it.
        Ask::new(&["drain", "10.1.0.2"], 1, &["not on disk yet, so a restart of the daemon would lose it"]),
    ],
    ..BARE
};

/// Two load balancers with one address and port.
pub(super) const VIP: Case = Case {
    name: "a VIP is claimed twice",
    manifests: "
apiVersion: v1
kind: Service
metadata: {name: api, namespace: shop}
spec: {type: LoadBalancer, clusterIP: 10.96.0.11,
  ports: [{port: 80, nodePort: 30081, targetPort: 8080}]}
status: {loadBalancer: {ingress: [{ip: 203.0.113.10}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: api-1, namespace: shop, labels: {kubernetes.io/service-name: api}}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: [10.1.0.3]}]
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {type: LoadBalancer, clusterIP: 10.96.0.10,
  ports: [{port: 80, nodePort: 30080, targetPort: 8080}]}
status: {loadBalancer: {ingress: [{ip: 203.0.113.10}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: [10.1.0.2]}]
",
    servers: &["10.1.0.2:8080", "10.1.0.3:8080"],
    asks: &[
        Ask::new(&["status"], 1, &["conflict (claimed)", "has one of its addresses"]),
        Ask::new(
            DIAGNOSE,
            3,
            &[
                "203.0.113.10:80/TCP belongs to shop/api: the claim of shop/api comes first because its name sorts first, \
                 as nothing else differs.",
                "Served nevertheless: 10.96.0.10:80/TCP, 192.0.2.1:30080/TCP.",
                "Next: Ask whose address it is meant to be: that of shop/api or of shop/web.",
                "Remove 203.0.113.10:80/TCP from the one that should not have it: `status.loadBalancer.ingress` of Service \
                 shop/api in shop.yaml, or `status.loadBalancer.ingress` of Service shop/web in shop.yaml.",
            ],
        )
        .never(&["Served as before", "by name alone"]),
    ],
    more: &[
        Ask::new(
            &["diagnose", "shop/api"],
            1,
            &[
                "SERVING since ",
                "shop/web claims 203.0.113.10:80/TCP too, and does not get it: the claim of shop/api comes first because its \
                 name sorts first, as nothing else differs.",
            ],
        ),
        Ask::new(
            &["explain", "203.0.113.10:80"],
            1,
            &[
                "is served by 10.1.0.3:8080",
                "shop/web claims 203.0.113.10:80 too, and does not get it: the claim of shop/api comes first because ",
                "later: shop/web gets the address as soon as shop/api gives it up.",
                "Load balancer (ready): at 203.0.113.10, since 20",
                " On this node shop/api has that address.",
                "in the maps now: the backends of shop/api, which has the address: 10.1.0.3:8080",
                "Cause and remedy: holdfast diagnose shop/web",
            ],
        )
        .never(&["when the owner gives", "its claim comes first", "api has: "]),
    ],
    ..BARE
};

/// A service that is written once the disk is full.
pub(super) const MORE: &str = "
apiVersion: v1
kind: Service
metadata: {name: more, namespace: shop}
spec: {type: ClusterIP, clusterIP: 10.96.0.12, ports: [{port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: more-1, namespace: shop, labels: {kubernetes.io/service-name: more}}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: [10.1.0.2]}]
";

/// What the apiserver has.
pub(super) fn cluster_objects() -> [Value; 2] {
    [
        json!({
            "kind": "Service", "apiVersion": "v1", "metadata": {"namespace": "shop", "name": "web"},
            "spec": {"type": "ClusterIP", "clusterIP": "10.96.0.10", "clusterIPs": ["10.96.0.10"],
                     "selector": {"app": "web"},
                     "ports": [{"name": "", "protocol": "TCP", "port": 80, "targetPort": 8080}]},
        }),
        json!({
            "kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1",
            "metadata": {"namespace": "shop", "name": "web-1", "labels": {"kubernetes.io/service-name": "web"}},
            "addressType": "IPv4", "ports": [{"name": "", "protocol": "TCP", "port": 8080}],
            "endpoints": [{"addresses": ["10.1.0.2"], "conditions": {"ready": true}}],
        }),
    ]
}
