//! The desired state of the daemon: one service with clients, and many that make maps grow and shrink.
//!
//! Invariant: a cluster gives both the manifests and the state that the kernel must hold.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use holdfast_core::keys::{FrontendKey, Transport};
use holdfast_core::list::Slot;
use holdfast_core::op::Dump;
use serde_json::{Value, json};

use super::{BACKEND_PORT, BACKENDS, Dice, SoakError, VIP, backends};
use crate::bed::daemon::Daemon;

/// How many other services there may be: none, some, and enough for the first maps to grow, at three quarters of
/// 4,096.
const BULK: [u32; 3] = [0, 1_000, 4_000];

/// The first cluster IP of the services that only fill the table.
const BULK_FIRST: u32 = 0x0a64_0000;

/// The backends of the dialled service as a bit mask, and the number of other services.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cluster {
    backends: u64,
    bulk: u32,
}

impl Cluster {
    pub(super) const SMALL: Self = Self { backends: 1, bulk: 0 };

    /// A cluster with enough services for maps to grow.
    pub(super) fn large(dice: &mut Dice) -> Self {
        Self { bulk: BULK.into_iter().max().unwrap_or_default(), ..Self::SMALL.with_other_backends(dice) }
    }

    pub(super) fn any(dice: &mut Dice) -> Self {
        let place = usize::try_from(dice.below(BULK.len() as u64)).unwrap_or_default();
        Self { bulk: BULK.get(place).copied().unwrap_or_default(), ..Self::SMALL.with_other_backends(dice) }
    }

    /// The same cluster with a random, never empty list of backends.
    pub(super) fn with_other_backends(self, dice: &mut Dice) -> Self {
        Self { backends: 1 + dice.below((1 << BACKENDS.len()) - 1), ..self }
    }

    pub(super) fn frontends(self) -> usize {
        self.bulk as usize + 1
    }

    /// Writes the dialled service's manifest, and that of the other services if their number has changed.
    pub(super) fn write(self, daemon: &Daemon<'_>, before: Option<Self>) -> Result<(), SoakError> {
        if before.is_none_or(|before| before.bulk != self.bulk) {
            let objects: Vec<Value> = (0..self.bulk).flat_map(bulk_objects).collect();
            daemon.write_manifest("bulk.json", &list(&objects))?;
        }
        let chosen: Vec<&str> = self.chosen().collect();
        Ok(daemon.write_manifest("dialled.json", &list(&objects("dialled", "10.96.0.10", &chosen)))?)
    }

    fn chosen(self) -> impl Iterator<Item = &'static str> {
        let is_chosen = move |place: usize| self.backends >> place & 1 == 1;
        BACKENDS
            .into_iter()
            .enumerate()
            .filter(move |(place, _)| is_chosen(*place))
            .map(|(_, backend)| backend)
    }

    /// The backends that the kernel must have for each frontend.
    fn wanted(self) -> BTreeMap<SocketAddr, BTreeSet<SocketAddr>> {
        let one: BTreeSet<_> = backends().take(1).collect();
        let bulk = (0..self.bulk).map(|number| (SocketAddr::new(bulk_address(number), 80), one.clone()));
        let chosen =
            self.chosen().filter_map(|backend| Some(SocketAddr::new(backend.parse().ok()?, BACKEND_PORT)));
        let dialled = VIP.parse().ok().map(|vip| (vip, chosen.collect()));
        bulk.chain(dialled).collect()
    }

    /// Compares the kernel's state with this cluster.
    pub(super) fn check(self, dump: &Dump) -> Result<(), SoakError> {
        let (wanted, found) = (self.wanted(), found(dump));
        let first = |one: &BTreeMap<_, _>, other: &BTreeMap<SocketAddr, BTreeSet<SocketAddr>>| {
            one.iter().find(|(key, list)| other.get(key) != Some(list)).map(|(key, _): (&SocketAddr, _)| *key)
        };
        let differs = first(&wanted, &found).or_else(|| first(&found, &wanted));
        if let Some(frontend) = differs {
            let (wanted, found) = (wanted.get(&frontend), found.get(&frontend));
            return Err(SoakError::Differs(format!("{frontend}: wanted {wanted:?}, found {found:?}")));
        }
        if dump.orphans.is_empty() && dump.members.is_empty() {
            return Ok(());
        }
        Err(SoakError::Differs(format!("orphans {:?}, members {:?}", dump.orphans, dump.members)))
    }
}

fn found(dump: &Dump) -> BTreeMap<SocketAddr, BTreeSet<SocketAddr>> {
    let lists: BTreeMap<_, _> = dump.ports.iter().map(|port| (port.index, &port.cluster.1)).collect();
    let backends = |index| lists.get(&index).into_iter().flat_map(|slots| slots.iter().map(Slot::backend));
    let tcp = dump.frontends.iter().filter(|(key, _)| key.transport == Transport::Tcp);
    let dialled = |key: &FrontendKey| SocketAddr::new(key.address, key.port.get());
    tcp.map(|(key, value)| (dialled(key), backends(value.port).collect())).collect()
}

fn bulk_address(number: u32) -> IpAddr {
    IpAddr::V4(Ipv4Addr::from_bits(BULK_FIRST + number))
}

fn bulk_objects(number: u32) -> [Value; 2] {
    let backend = BACKENDS.into_iter().take(1).collect::<Vec<_>>();
    objects(&format!("bulk-{number}"), &bulk_address(number).to_string(), &backend)
}

fn objects(name: &str, address: &str, backends: &[&str]) -> [Value; 2] {
    let endpoints: Vec<Value> = backends.iter().map(|backend| json!({"addresses": [backend]})).collect();
    [
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "default"},
            "spec": {"type": "ClusterIP", "clusterIP": address, "ports": [{"port": 80}]},
        }),
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"name": name, "namespace": "default", "labels": {"kubernetes.io/service-name": name}},
            "ports": [{"port": BACKEND_PORT}], "endpoints": endpoints,
        }),
    ]
}

fn list(objects: &[Value]) -> String {
    json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string()
}
