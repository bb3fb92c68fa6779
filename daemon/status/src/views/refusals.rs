//! A rejected client: where, why, and how often.
//!
//! Invariant: plain data, with times as people read them. A reader finds the names of services in the snapshot.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

pub use crate::datapath::Cause;
use crate::datapath::{Denial, Refusal};
use holdfast_core::facts::Timestamp;
use holdfast_core::keys::{Family, FrontendKey};
use holdfast_core::snapshot::{FrontendView, ServiceView, Snapshot};

/// An older denial says nothing about now: the programs report a client that keeps trying each minute.
pub const RECENT_SECONDS: i64 = 300;

/// A client that was rejected once or repeatedly, with times as people read them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeniedClient {
    pub first: Timestamp,
    pub last: Timestamp,
    /// How many times, both of these included.
    pub count: u64,
    /// The client and its target, from the last time.
    pub refusal: Refusal,
}

/// What the client dialled, where a service has it. A port that no service has may be the number of a node port.
fn dialled_frontend(refusal: &Refusal) -> Option<FrontendKey> {
    Some(refusal.frontend).filter(|_| refusal.cause != Cause::NoSuchPort)
}

impl DeniedClient {
    pub const fn is_recent(&self, now: Timestamp) -> bool {
        self.last.0 >= now.0.saturating_sub(RECENT_SECONDS)
    }

    /// Whether this is the same process, or the same outside address, with the same result at the same frontend.
    pub fn is_same_client(&self, refusal: &Refusal) -> bool {
        let address = |it: &Refusal| it.arrival.map(|arrival| arrival.source.ip());
        let same = |it: &Refusal| (it.process, address(it), it.frontend, it.denial, it.cause, it.cgroup);
        same(&self.refusal) == same(refusal)
    }
}

/// The frontends that may have replied, in the programs' lookup order.
fn candidate_keys(dialled: &FrontendKey) -> [FrontendKey; 2] {
    let any =
        FrontendKey { address: Family::from_address(dialled.address).unspecified_address(), ..*dialled };
    [*dialled, any]
}

/// A frontend and its service.
pub type FrontendOwner<'a> = (&'a ServiceView, &'a FrontendView);

/// The service whose frontend a denied client reached. This searches all services: for many clients [`Owners`] are
/// faster.
pub fn find_denied_owner<'a>(snapshot: &'a Snapshot, refusal: &Refusal) -> Option<FrontendOwner<'a>> {
    let dialled = dialled_frontend(refusal)?;
    let [exact, any] = candidate_keys(&dialled);
    let views = snapshot.services.iter();
    let frontends = views.flat_map(|view| view.frontends.iter().map(move |it| (&**view, it)));
    let is_near = |it: &FrontendView| {
        it.port == dialled.port && (it.address == exact.address || it.address == any.address)
    };
    let mut wildcard = None;
    for (view, it) in frontends.filter(|(_, it)| is_near(it)) {
        match programmed_key(it) {
            Some(key) if key == exact => return Some((view, it)),
            Some(key) if key == any => wildcard = Some((view, it)),
            Some(_) | None => {}
        }
    }
    wildcard
}

/// The dialled frontends that have a service now.
#[derive(Debug)]
pub struct Owners<'a>(BTreeMap<FrontendKey, FrontendOwner<'a>>);

impl<'a> Owners<'a> {
    pub fn from_snapshot(snapshot: &'a Snapshot, dialled: impl Iterator<Item = FrontendKey>) -> Self {
        let dialled: BTreeSet<FrontendKey> = dialled.flat_map(|key| candidate_keys(&key)).collect();
        if dialled.is_empty() {
            return Self(BTreeMap::new());
        }
        let all =
            snapshot.services.iter().flat_map(|view| view.frontends.iter().map(move |it| (&**view, it)));
        let owned = all.filter_map(|owner| Some((programmed_key(owner.1)?, owner)));
        Self(owned.filter(|(key, _)| dialled.contains(key)).collect())
    }

    /// The service with exactly this address, or else with this port at every address of the node.
    pub fn find_owner(&self, dialled: &FrontendKey) -> Option<FrontendOwner<'a>> {
        candidate_keys(dialled).iter().find_map(|key| self.0.get(key).copied())
    }

    /// The service whose frontend a denied client reached.
    pub fn find_denied_owner(&self, refusal: &Refusal) -> Option<FrontendOwner<'a>> {
        self.find_owner(&dialled_frontend(refusal)?)
    }

    /// The service that sends clients of what was dialled to this backend, which failed one. `None`: it sends none any
    /// more.
    pub fn find_failing_owner(
        &self,
        dialled: &FrontendKey,
        backend: SocketAddr,
    ) -> Option<FrontendOwner<'a>> {
        self.find_owner(dialled).filter(|(view, frontend)| takes_clients(view, frontend, backend))
    }
}

/// A client that was denied, and the frontend in the maps that it reached.
#[derive(Clone, Debug)]
pub struct DenialAtFrontend {
    pub client: Arc<DeniedClient>,
    /// `None`: no frontend has what it dialled.
    pub reached: Option<FrontendKey>,
}

/// Finds the frontend that each of these clients reached.
pub fn find_frontends(snapshot: &Snapshot, denied: Vec<Arc<DeniedClient>>) -> Vec<DenialAtFrontend> {
    let owners = Owners::from_snapshot(snapshot, denied.iter().map(|it| it.refusal.frontend));
    let one = |client: Arc<DeniedClient>| {
        let owner = owners.find_denied_owner(&client.refusal);
        DenialAtFrontend { reached: owner.and_then(|(_, frontend)| programmed_key(frontend)), client }
    };
    denied.into_iter().map(one).collect()
}

/// Whether new clients of a frontend may get this backend. One on its way out gets them where no other is left.
pub fn takes_clients(view: &ServiceView, frontend: &FrontendView, backend: SocketAddr) -> bool {
    let port = frontend.position.and_then(|position| view.ports.get(position));
    let row = port.and_then(|port| port.rows.find(backend));
    row.is_some_and(|row| row.is_chosen())
}

/// The key of a row's frontend in the maps, if it is there.
pub fn programmed_key(frontend: &FrontendView) -> Option<FrontendKey> {
    let FrontendView { address, port, protocol, verdict, .. } = frontend;
    let transport = protocol.transport().filter(|_| verdict.is_in_maps())?;
    Some(FrontendKey { address: *address, port: *port, transport })
}

/// Every word that [`denial_word`] gives.
pub const DENIALS: [&str; 2] = [denial_word(Denial::Refused), denial_word(Denial::Dropped)];

/// The one spelling of a denial in tables, JSON, log and metrics.
pub const fn denial_word(denial: Denial) -> &'static str {
    match denial {
        Denial::Refused => "refused",
        Denial::Dropped => "dropped",
    }
}
