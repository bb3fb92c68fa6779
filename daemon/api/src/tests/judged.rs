//! Data that no listener of a test produces: lists of Events, and the apiserver's part of a diagnosis.

use std::sync::Arc;
use std::time::Duration;

use holdfast_core::keys::ObjectName;
use holdfast_core::snapshot::Snapshot;
use holdfast_diagnose::evidence::{
    Cluster, DaemonState, DiagnosisScope, Lookup, ObservedEndpoint, ObservedIngress, ObservedService,
    ObservedSlice, ObservedSlicePort, Owner, Pod, Pods, ReceivedEvents, Request, Right,
};
use holdfast_diagnose::{Diagnosis, EventList, EventScope, Focus, KnownServices, judge};
use holdfast_knowledge::{ClusterEvent, Knowledge};
use holdfast_status::views::clients::ClientCounters;
use holdfast_status::views::datapath::DatapathView;
use serde_json::{Value, json};

use super::fixture::{THEN, everything};

fn web() -> ObjectName {
    ObjectName::new("default", "web").unwrap()
}

/// Lists that together have every part.
pub(crate) fn lists_of_events() -> Vec<Value> {
    let said = |message: &str| {
        ClusterEvent::from_json(&json!({
            "involvedObject": {"kind": "Service", "namespace": "default", "name": "web"}, "type": "Warning",
            "reason": "SyncLoadBalancerFailed", "message": message, "count": 3,
            "lastTimestamp": "2026-01-08T11:10:55Z", "source": {"component": "service-controller"},
        }))
    };
    let heard = [said("RequestLimitExceeded"), said("RequestLimitExceeded; AccessDenied")];
    let right = Right { group: "", resource: "events", verbs: "list", namespace: None };
    [Lookup::Answered(heard.to_vec()), Lookup::Forbidden(right)]
        .map(|list| {
            let (about, snapshot) = (web(), Snapshot::default());
            let scope =
                EventScope { service: Some(&about), snapshot: &snapshot, now: THEN, version: "0.1.0" };
            let list = EventList::new(&ReceivedEvents::from_lookup(list), Knowledge::built_in, scope);
            serde_json::to_value(list).unwrap()
        })
        .to_vec()
}

/// A daemon that has nothing to say.
pub(crate) fn silent_daemon() -> DaemonState {
    DaemonState {
        unready: None,
        stalled: None,
        watches: Vec::new(),
        apiserver: None,
        datapath: Arc::new(DatapathView::for_memory()),
        counters: ClientCounters::default(),
        proxies: Arc::default(),
        filters: Arc::default(),
        announced: Vec::new(),
        denied: Vec::new(),
        checks: Default::default(),
        obstacles: Default::default(),
        closed_ports: Vec::new(),
        node_port_listeners: Vec::new(),
    }
}

/// Every part of it.
pub(crate) fn answers_of_the_apiserver() -> Value {
    let own = silent_daemon();
    let known = KnownServices::find(web(), Arc::new(everything()), &Focus::default());
    let mut material = known.into_evidence((own, Vec::new()), &Vec::new(), (DiagnosisScope::default(), THEN));
    material.cluster = cluster();
    let judged = judge(&material);
    let diagnosis = Diagnosis::new(&material, &judged, "0.1.0");
    serde_json::to_value(diagnosis).unwrap()["api"].take()
}

fn cluster() -> Cluster {
    let request = Request {
        what: "pods".to_owned(),
        took: Duration::from_millis(18),
        error: Some("forbidden".to_owned()),
    };
    Cluster {
        service: Lookup::Answered(Some(service())),
        slices: Lookup::Answered(vec![slice()]),
        pods: Lookup::Answered(Pods { list: vec![pod()], more: false }),
        requests: vec![request],
        ..Cluster::default()
    }
}

fn service() -> ObservedService {
    let at = ObservedIngress { ip: Some([192, 0, 2, 1].into()), proxied: true, ..ObservedIngress::default() };
    let named = ObservedIngress { hostname: Some("lb.example".to_owned()), ..ObservedIngress::default() };
    ObservedService {
        uid: "u".to_owned(),
        resource_version: "1".to_owned(),
        generation: Some(2),
        created: Some(THEN),
        class: Some("c".to_owned()),
        finalizers: vec!["f".to_owned()],
        families: vec!["IPv4".to_owned()],
        cluster_ips: vec![[10, 96, 0, 1].into()],
        ingress: vec![at, named],
        balancer_writers: vec!["w".to_owned()],
        ..ObservedService::default()
    }
}

fn slice() -> ObservedSlice {
    let port =
        |name: &str, port| ObservedSlicePort { name: name.to_owned(), protocol: "TCP".to_owned(), port };
    ObservedSlice {
        name: "s".to_owned(),
        manager: Some("m".to_owned()),
        created: Some(THEN),
        endpoints: vec![ObservedEndpoint { ready: Some(true), ..ObservedEndpoint::default() }],
        ports: vec![port("http", Some(80)), port("", None)],
        ..ObservedSlice::default()
    }
}

fn pod() -> Pod {
    Pod {
        name: "p".to_owned(),
        phase: "Running".to_owned(),
        node: Some("n".to_owned()),
        owner: Some(Owner { kind: "Job".to_owned(), name: "j".to_owned() }),
        ..Pod::default()
    }
}
