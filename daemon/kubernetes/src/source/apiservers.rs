//! The apiservers that the cluster lists: the present slices of `default/kubernetes`.
//!
//! Invariant: when a slice is deleted or leaves the service, its addresses go too. A slice of a ServiceImport never
//! names this cluster's apiservers, whatever the ServiceImport's name.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use holdfast_core::event::Event;
use holdfast_core::facts::SliceFacts;
use holdfast_core::keys::{ObjectName, Source};

use crate::apiserver::ListedEndpoint;

/// The service that lists the apiservers.
const SERVICE: (&str, &str) = ("default", "kubernetes");

/// The service's port.
const PORT: &str = "https";

/// The most addresses taken from one slice: more than a cluster has apiservers.
const SLICE_ADDRESSES_MAX: usize = 16;

/// The service's slices, each with its addresses.
#[derive(Clone, Debug, Default)]
pub struct Apiservers(BTreeMap<ObjectName, Vec<SocketAddr>>);

impl Apiservers {
    /// Applies an event; returns whether it was about these slices.
    pub(super) fn apply_event(&mut self, event: &Event) -> bool {
        match event {
            Event::SliceApplied(slice) if slice.key.source == Source::Kubernetes => self.apply_slice(slice),
            Event::SliceDeleted(key, _) if key.source == Source::Kubernetes => {
                self.0.remove(&key.name).is_some()
            }
            _ => false,
        }
    }

    pub(super) fn apply_slice(&mut self, slice: &SliceFacts) -> bool {
        let name = &slice.key.name;
        if (name.namespace(), slice.service.as_deref()) == (SERVICE.0, Some(SERVICE.1)) {
            self.0.insert(name.clone(), slice_addresses(slice));
            return true;
        }
        self.0.remove(name).is_some()
    }

    /// All listed addresses, slice by slice.
    pub(super) fn listed_endpoints(&self) -> Vec<ListedEndpoint> {
        let of_slice = |(name, addresses): (&ObjectName, &Vec<SocketAddr>)| {
            let slice: Arc<str> = name.name().into();
            let listed =
                |address: &SocketAddr| ListedEndpoint { slice: Arc::clone(&slice), address: *address };
            addresses.iter().map(listed).collect::<Vec<_>>()
        };
        self.0.iter().flat_map(of_slice).collect()
    }
}

fn slice_addresses(slice: &SliceFacts) -> Vec<SocketAddr> {
    let port = slice.ports.iter().find(|port| &*port.name == PORT);
    let address = |port: u16| slice.endpoints.iter().map(move |it| SocketAddr::new(it.address, port));
    port.into_iter().flat_map(|port| address(port.port.get())).take(SLICE_ADDRESSES_MAX).collect()
}
