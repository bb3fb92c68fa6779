//! A real apiserver gives the same facts in protobuf and in JSON.

use std::collections::BTreeMap;

use holdfast_config::{Encodings, NodeName};
use holdfast_core::event::Event;
use holdfast_kubernetes::apiserver::{Access, Encoding};
use holdfast_kubernetes::own_node::NodeReport;
use holdfast_kubernetes::source::{Kubernetes, SourceSettings};
use holdfast_tests::bed::{Layout, Location};
use holdfast_tests::peers::{Cluster, NODE, RandomServices};
use serde_json::json;
use tokio::sync::mpsc;

const SERVICES: usize = 40;

/// Groups of events that wait for this test.
const WAITING_MAX: usize = 64;

/// The source's events for each object and for the node.
async fn told(access: Access, encodings: Encodings, expected: Encoding) -> BTreeMap<String, String> {
    let settings =
        SourceSettings { encodings, node: NodeName::from_host_name(NODE).ok(), ..SourceSettings::default() };
    let source = Kubernetes::new(access, settings);
    let view = source.view();
    let (events_out, mut events) = mpsc::channel(WAITING_MAX);
    let (nodes_out, mut nodes) = mpsc::channel(1);
    let running = tokio::spawn(source.run(events_out, nodes_out));
    let mut told = BTreeMap::new();
    let mut is_synced = false;
    while !is_synced || !told.contains_key("node") {
        tokio::select! {
            Some(NodeReport { node, applied }) = nodes.recv() => {
                told.insert("node".to_owned(), format!("{node:?}"));
                applied.send(()).unwrap();
            }
            Some(group) = events.recv() => for event in group {
                is_synced |= matches!(event, Event::Synced(_));
                match &event {
                    Event::ServiceApplied(facts) => told.insert(facts.key.to_string(), format!("{facts:#?}")),
                    Event::SliceApplied(facts) => told.insert(format!("slice {}", facts.key), format!("{facts:#?}")),
                    Event::Rejected(rejection) => panic!("{rejection:?}"),
                    _ => None,
                };
            }
        }
    }
    assert!(view.current().iter().all(|watch| watch.encoding == Some(expected) && watch.refetched == 0));
    running.abort();
    told
}

#[test]
fn a_real_apiserver_leads_to_the_same_facts_in_both_encodings() {
    let cluster = Cluster::without_controllers(Layout::default(), 1).unwrap();
    let api = cluster.api(0).unwrap();
    api.add_node(NODE, "zone-a").unwrap();
    RandomServices::new(5, SERVICES).create(&api).unwrap();
    api.apply_object(&json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": "empty", "labels": {"kubernetes.io/service-name": "s1"}}, "endpoints": [],
    }))
    .unwrap();
    let (json, protobuf) = cluster
        .bed()
        .within(Location::NODE, || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let access = cluster.access().unwrap();
            let told = |encodings, expected| runtime.block_on(told(access.clone(), encodings, expected));
            (told(Encodings::Json, Encoding::Json), told(Encodings::Auto, Encoding::Protobuf))
        })
        .unwrap();
    assert!(json.len() > SERVICES, "{}", json.len());
    assert_eq!(json.keys().collect::<Vec<_>>(), protobuf.keys().collect::<Vec<_>>());
    for (object, facts) in &json {
        assert_eq!(Some(facts), protobuf.get(object), "{object}");
    }
}
