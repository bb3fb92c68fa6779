//! What a real apiserver is given for a node of the fabric: the node, services of the table, and others that no client
//! dials.
//!
//! Invariant: what could not be written is an error, so a proxy that is measured has as many services as are said.

use std::panic::resume_unwind;
use std::thread;

use serde_json::{Value, json};

use super::Service;
use crate::bed::fabric::NODE_ADDRESSES;
use crate::peers::{Api, Cluster, Kind, NODE, PeersError};

/// Clients that write at once: an apiserver has as many processors as everything else here.
const WRITERS: u32 = 4;

/// So many addresses of endpoints are taken out of each /24.
const ADDRESSES: u32 = 200;

/// Writes the node, with the addresses that it has in the fabric.
pub fn write_node(api: &Api<'_>) -> Result<(), PeersError> {
    api.add_node(NODE, "zone-a")?;
    let addresses = NODE_ADDRESSES.map(|address| json!({"type": "InternalIP", "address": address}));
    api.merge_status(Kind::Node, NODE, &json!({"status": {"addresses": addresses}}))?;
    Ok(())
}

impl Service {
    /// Writes the service, its status and its slices.
    pub fn write(&self, api: &Api<'_>) -> Result<(), PeersError> {
        for object in self.objects() {
            api.apply_object(&object)?;
            if let Some(status) = object.get("status") {
                let name = format!("default/{}", self.name);
                api.merge_status(Kind::Service, &name, &json!({"status": status}))?;
            }
        }
        Ok(())
    }
}

/// Writes so many services that no client dials, with one endpoint each.
pub fn write_others(cluster: &Cluster, services: u32) -> Result<(), PeersError> {
    thread::scope(|scope| {
        let numbers = |first: u32| (first..services).step_by(WRITERS as usize);
        let writers: Vec<_> =
            (0..WRITERS).map(|first| scope.spawn(move || create(cluster, numbers(first)))).collect();
        writers.into_iter().try_for_each(|writer| writer.join().unwrap_or_else(|it| resume_unwind(it)))
    })
}

fn create(cluster: &Cluster, numbers: impl Iterator<Item = u32>) -> Result<(), PeersError> {
    let api = cluster.api(0)?;
    for number in numbers {
        for object in other(number) {
            api.create(&object)?;
        }
    }
    Ok(())
}

fn other(number: u32) -> [Value; 2] {
    let name = format!("other-{number}");
    let address = format!("10.244.{}.{}", 100 + number / ADDRESSES, 1 + number % ADDRESSES);
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "default"},
        "spec": {"ports": [{"name": "http", "port": 80, "targetPort": 8080}]},
    });
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {
            "name": name, "namespace": "default", "labels": {"kubernetes.io/service-name": name},
        },
        "ports": [{"name": "http", "port": 8080}],
        "endpoints": [{"addresses": [address], "nodeName": "n2", "conditions": {"ready": true}}],
    });
    [service, slice]
}
