//! The tables of each fault: who comes from kube-proxy types `services`, `frontends` and `backends` first.
//!
//! Invariant: a table shows what `status` counts as failing, and the next command to type.

use super::cases::Ask;
use super::setup::Datapath;

const NEXT: &str = "; next: holdfast diagnose shop/web";

/// The tables by the name of the fault.
const TABLES: [(&str, &[Ask]); 11] = [
    ("a dead pod that is called ready", DEAD_POD),
    ("a checked backend is down", CHECKED_BACKEND),
    ("a wrong targetPort of pods", TARGET_PORT),
    ("a wrong port of a local backend", BACKEND_PORT),
    ("a typo in a selector", SELECTOR),
    ("a process at a NodePort", NODE_PORT),
    ("two blocks claim one frontend", TWO_BLOCKS),
    ("two services claim one frontend", TWO_SERVICES),
    ("a health port is taken", HEALTH_PORT),
    ("all endpoints are unready", ALL_UNREADY),
    ("a VIP is claimed twice", VIP),
];

/// The tables that are asked for after the other commands.
pub(super) fn find_asks(fault: &str) -> &'static [Ask] {
    TABLES.iter().find(|(name, _)| *name == fault).map_or(&[], |(_, asks)| asks)
}

const DEAD_POD: &[Ask] = &[
    Ask::new(
        &["services"],
        0,
        &["shop/web NodePort serving - refused 2 2/2 1 manifests", "1 of 1 needs attention", NEXT],
    )
    .on(Datapath::Kernel),
    // The verdict is good.
    Ask::new(
        &["frontends", "--only", "trouble"],
        0,
        &["10.96.0.10:80/TCP serving - refused", "*:30080/TCP serving - refused"],
    )
    .on(Datapath::Kernel),
    Ask::new(
        &["diagnose", "shop/web", "--no-probe"],
        3,
        &["10.1.0.3:8080 refused clients of 192.0.2.1:30080/TCP, the last one at 20", "without `--no-probe`"],
    )
    .on(Datapath::Kernel),
    Ask::new(
        &["frontends"],
        0,
        &[
            "10.96.0.10:80/TCP serving - refused 10.1.0.2:8080,10.1.0.3:8080",
            "*:30080/TCP serving - refused 10.1.0.2:8080,10.1.0.3:8080",
            "2 of 2 need attention",
            NEXT,
        ],
    )
    .on(Datapath::Kernel),
    Ask::new(
        &["backends"],
        0,
        &[
            "10.1.0.2:8080/TCP active - - ready",
            "10.1.0.3:8080/TCP active - refused ready - Pod shop/web-dead",
            "1 of 2 needs attention",
            NEXT,
        ],
    )
    .on(Datapath::Kernel),
    // Nobody is refused where no traffic is touched.
    Ask::new(&["services"], 0, &["shop/web NodePort serving - - 2 2/2 1 manifests"])
        .never(&["next:"])
        .on(Datapath::Memory),
    Ask::new(&["status"], 1, &["sources manifests "]).never(&["sources config"]).on(Datapath::Kernel),
];

/// The drain comes last: clients get that backend all the same.
const CHECKED_BACKEND: &[Ask] = &[
    Ask::new(
        &["services"],
        0,
        &[
            "static/web Static serving - checks 1 1/2",
            "1 of 1 needs attention; next: holdfast diagnose static/web",
        ],
    ),
    Ask::new(&["frontends"], 0, &["10.96.0.10:80/TCP serving - checks 127.0.0.8:8080"]),
    Ask::new(&["services", "--only", "trouble"], 0, &["static/web Static serving - checks 1 1/2"]),
    Ask::new(
        &["explain"],
        1,
        &["Each frontend has backends, and health checks of others fail: `holdfast status` names them."],
    ),
    Ask::new(&["backends"], 0, &["127.0.0.9:8080/TCP unused unready checks", "1 of 2 needs attention"]),
    Ask::new(&["drain", "127.0.0.8"], 1, &["127.0.0.8"]),
    Ask::new(
        &["status"],
        1,
        &[
            "sources config",
            "backends 1 of 2 in use, 1 drained (127.0.0.8 is drained and in use all the same: no other takes clients; \
             `holdfast drain` lists them)",
        ],
    ),
];

const TARGET_PORT: &[Ask] = &[
    Ask::new(&["services"], 0, &["shop/web NodePort serving - refused 2 2/2", NEXT]).on(Datapath::Kernel),
    Ask::new(&["backends"], 0, &["10.1.0.2:8081/TCP active - refused", "2 of 2 need attention", NEXT])
        .on(Datapath::Kernel),
];

const BACKEND_PORT: &[Ask] = &[Ask::new(
    &["services"],
    0,
    &[
        "static/web Static serving - refused 1 1/1",
        "1 of 1 needs attention; next: holdfast diagnose static/web",
    ],
)
.on(Datapath::Kernel)];

const SELECTOR: &[Ask] =
    &[Ask::new(&["services"], 0, &["shop/web ClusterIP refusing no-endpoints outage 1 0/0", NEXT])];

const NODE_PORT: &[Ask] = &[
    Ask::new(&["services", "--only", "trouble"], 0, &["shop/web NodePort serving - node-port 2 1/1"]),
    Ask::new(
        &["explain", "30080", "--from", "10.2.0.2"],
        0,
        &[
            "A TCP packet from 10.2.0.2 to 192.0.2.1:30080 is sent to 10.1.0.2:8080 of shop/web",
            "lead to bed_child",
        ],
    )
    .never(&["0.0.0.0"])
    .on(Datapath::Kernel),
    Ask::new(&["services"], 0, &["shop/web NodePort serving - node-port 2 1/1", NEXT]),
    Ask::new(
        &["frontends"],
        0,
        &[
            "10.96.0.10:80/TCP serving - - 10.1.0.2:8080",
            "*:30080/TCP serving - node-port",
            "* at a node port: 192.0.2.1 1 of 2 needs attention",
        ],
    ),
];

const TWO_BLOCKS: &[Ask] = &[Ask::new(
    &["services"],
    0,
    &["the last reload was refused, so what is new in the configuration is not here; next: holdfast status"],
)];

const TWO_SERVICES: &[Ask] = &[
    Ask::new(
        &["services"],
        0,
        &["shop/web ClusterIP conflict claimed outage 1 0/1", "1 of 2 needs attention", NEXT],
    ),
    Ask::new(&["frontends"], 0, &["10.96.0.10:80/TCP conflict claimed outage", NEXT]),
    Ask::new(&["backends"], 0, &["10.1.0.2:8080/TCP unused conflict outage ready"]),
    Ask::new(&["status"], 1, &["backends 1 of 2 in use"]),
];

const HEALTH_PORT: &[Ask] = &[
    Ask::new(&["services"], 0, &["shop/web LoadBalancer serving - health-port 3 1/1", NEXT]),
    Ask::new(&["frontends"], 0, &["203.0.113.10:80/TCP serving - health-port", "1 of 3 needs attention"]),
];

const ALL_UNREADY: &[Ask] =
    &[Ask::new(&["services"], 0, &["shop/web ClusterIP refusing all-unready outage 1 0/2", NEXT])];

const VIP: &[Ask] = &[
    Ask::new(
        &["services"],
        0,
        &["shop/web LoadBalancer conflict claimed outage 3 1/1", "1 of 2 needs attention", NEXT],
    ),
    Ask::new(&["backends"], 0, &["10.1.0.2:8080/TCP active - - ready"]).never(&["next:"]),
];
