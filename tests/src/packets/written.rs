//! Writes the fabric's objects to a real apiserver: the node, services of the table, and services without clients.
//!
//! Invariant: a failed write is an error, so that a measured proxy has exactly the stated number of services.

use std::panic::resume_unwind;
use std::thread;

use serde_json::{Value, json};

use super::Service;
use crate::bed::fabric::NODE_ADDRESSES;
use crate::peers::{Api, Cluster, Kind, NODE, PeersError};

/// How many clients write at once; the apiserver shares its processors with everything else here.
const WRITERS: u32 = 4;

/// How many endpoint addresses each /24 provides.
const ADDRESSES: u32 = 200;

/// Writes the node with its addresses in the fabric.
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

/// Writes services that no client dials, with one endpoint each.
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
