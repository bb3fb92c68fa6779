//! What no door of a test brings about: lists of Events, and what an apiserver said to a diagnosis.

use std::sync::Arc;
use std::time::Duration;

use holdfast_core::keys::ObjectName;
use holdfast_core::snapshot::Snapshot;
use holdfast_diagnose::material::{
    Asked, Cluster, EndpointSeen, Heard, IngressSeen, Narrowed, Own, Owner, Pod, Pods, Request, Right,
    ServiceSeen, SlicePortSeen, SliceSeen,
};
use holdfast_diagnose::{Diagnosis, EventList, Focus, Known, Scope, judge};
use holdfast_knowledge::{ClusterEvent, Knowledge};
use holdfast_status::views::clients::Counters;
use holdfast_status::views::datapath::DatapathView;
use serde_json::{Value, json};

use super::fixture::{THEN, everything};

fn web() -> ObjectName {
    ObjectName::new("default", "web").unwrap()
}

/// Lists that have every part among them.
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
    [Asked::Answered(heard.to_vec()), Asked::Forbidden(right)]
        .map(|list| {
            let (about, snapshot) = (web(), Snapshot::default());
            let scope = Scope { about: Some(&about), snapshot: &snapshot, now: THEN, version: "0.1.0" };
            let list = EventList::of(&Heard::without(list), Knowledge::built_in, scope);
            serde_json::to_value(list).unwrap()
        })
        .to_vec()
}

/// Every part of it.
pub(crate) fn answers_of_the_apiserver() -> Value {
    let own = Own {
        unready: None,
        stalled: None,
        watches: Vec::new(),
        apiserver: None,
        datapath: Arc::new(DatapathView::memory()),
        counters: Counters::default(),
        proxies: Arc::default(),
        filters: Arc::default(),
        announced: Vec::new(),
        denied: Vec::new(),
        checks: Default::default(),
    };
    let known = Known::of(web(), Arc::new(everything()), &Focus::default());
    let mut material = known.material((own, Vec::new()), &Vec::new(), (Narrowed::default(), THEN));
    material.cluster = cluster();
    let judged = judge(&material);
    let diagnosis = Diagnosis::of(&material, &judged, "0.1.0");
    serde_json::to_value(diagnosis).unwrap()["api"].take()
}

fn cluster() -> Cluster {
    let request = Request {
        what: "pods".to_owned(),
        took: Duration::from_millis(18),
        error: Some("forbidden".to_owned()),
    };
    Cluster {
        service: Asked::Answered(Some(service())),
        slices: Asked::Answered(vec![slice()]),
        pods: Asked::Answered(Pods { list: vec![pod()], more: false }),
        requests: vec![request],
        ..Cluster::default()
    }
}

fn service() -> ServiceSeen {
    let at = IngressSeen { ip: Some([192, 0, 2, 1].into()), proxied: true, ..IngressSeen::default() };
    let named = IngressSeen { hostname: Some("lb.example".to_owned()), ..IngressSeen::default() };
    ServiceSeen {
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
        ..ServiceSeen::default()
    }
}

fn slice() -> SliceSeen {
    let port = |name: &str, port| SlicePortSeen { name: name.to_owned(), protocol: "TCP".to_owned(), port };
    SliceSeen {
        name: "s".to_owned(),
        manager: Some("m".to_owned()),
        created: Some(THEN),
        endpoints: vec![EndpointSeen { ready: Some(true), ..EndpointSeen::default() }],
        ports: vec![port("http", Some(80)), port("", None)],
        ..SliceSeen::default()
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
