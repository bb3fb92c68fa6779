//! What readers see of one service: its ports with their rows, its frontends with their verdicts.
//!
//! Invariant: a view never changes, and says nothing of another service but who owns an address that is lost.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::net::IpAddr;
use core::num::NonZeroU16;

use crate::facts::{ServiceFacts, SliceFacts, Timestamp};
use crate::hold::Hold;
use crate::keys::{PortKey, Protocol, ServiceKey};
use crate::lifecycle::{BalancerHistory, BalancerPhase};
use crate::list::{LastList, Row, Rows, Scope};
use crate::op::{FrontendType, PortIndex};
use crate::weights::Weight;
use crate::words;

words! {
    /// What a new connection to a frontend gets.
    #[derive(PartialOrd, Ord)]
    pub enum Verdict {
        /// A ready backend.
        Serving = "serving",
        /// A backend that is terminating, because no other is left.
        Draining = "draining",
        /// ECONNREFUSED: no backend is usable anywhere.
        Refusing = "refusing",
        /// Nothing: the policy is Local, and all usable backends are elsewhere.
        Dropping = "dropping",
        /// The last list, although the slices no longer have a usable endpoint.
        Held = "held",
        /// Not translated: no backend is there, and the real balancer is to answer.
        Passing = "passing",
        /// Not translated: it is the apiserver's own address.
        Bypassed = "bypassed",
        /// Another service owns this address.
        Conflict = "conflict",
        /// The datapath cannot translate this protocol, or must not translate this address.
        Unprogrammed = "unprogrammed",
    } told [Serving, Draining, Held, Refusing, Dropping, Passing, Bypassed, Conflict, Unprogrammed]
}

impl Verdict {
    /// How badly off the clients of a frontend are: the higher, the worse.
    pub const fn severity(self) -> u8 {
        match self {
            Self::Serving => 0,
            Self::Bypassed => 1,
            Self::Draining => 2,
            Self::Held => 3,
            Self::Conflict => 4,
            Self::Unprogrammed => 5,
            Self::Passing => 6,
            Self::Dropping => 7,
            Self::Refusing => 8,
        }
    }
}

words! {
    /// Why a verdict is not `serving`.
    #[derive(PartialOrd, Ord)]
    pub enum Reason {
        /// There never was a usable endpoint.
        NoEndpoints = "no-endpoints",
        /// Endpoints are listed, and none is usable.
        AllUnready = "all-unready",
        /// Every endpoint was seen terminating before it went.
        ScaledDown = "scaled-down",
        /// All endpoints that are listed stand in slices that a label keeps proxies away from.
        Hidden = "hidden",
        /// The endpoints went without a terminating phase.
        Vanished = "vanished",
        /// As above, a short time after its source was interrupted.
        Resync = "resync",
        /// As above, together with many other services.
        MassLoss = "mass-loss",
        /// The list was held as long as it may be.
        HoldExpired = "hold-expired",
        /// The list was held until no backend took a probe.
        ProbesFailed = "probes-failed",
        /// The policy is Local, and no usable endpoint is on this node.
        LocalPolicy = "local-policy",
        /// Another service has the address.
        Claimed = "claimed",
        /// A process of the node listens there.
        Listener = "listener",
        /// The address is one that no object may have, or an external IP that the configuration does not allow.
        Address = "address",
        /// SCTP where no packets are translated, or a protocol that Kubernetes does not know.
        Protocol = "protocol",
        /// The address is how nodes reach the apiserver.
        Control = "control",
        /// The list was held until other pods had the addresses of its last backends.
        AddressReused = "address-reused",
    }
}

/// Whether the maps hold what the rules want.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Status {
    /// Not yet tried.
    #[default]
    Pending,
    Done,
    /// The last try failed; it is tried again.
    Error(Arc<str>),
}

words! {
    /// Why a service has frontends, or none.
    pub enum ServiceState {
        /// It has frontends.
        Served = "served",
        /// It has no address that could be a frontend.
        NoAddress = "no-address",
        /// Kubernetes calls it `clusterIP: None`.
        Headless = "headless",
        /// A DNS alias.
        ExternalName = "external-name",
        /// The label `service-proxy-name` gives it to another proxy.
        OtherProxy = "other-proxy",
        /// Slices are there, the service is not.
        NoService = "no-service",
    }
}

/// One port in one family.
#[derive(Clone, Debug, PartialEq)]
pub struct PortView {
    /// Name, protocol, family.
    pub key: PortKey,
    /// Its place in the maps, once it has one.
    pub index: Option<PortIndex>,
    /// All endpoints, chosen or not.
    pub rows: Arc<Rows>,
    /// Its last list that was not empty.
    pub last: LastList,
    /// The list that is held.
    pub hold: Option<Arc<Hold>>,
    /// Why the last hold ended without a list.
    pub ended: Option<Reason>,
    /// Whether any frontend uses the cluster list.
    pub cluster_used: bool,
    /// Whether any frontend uses the local list.
    pub local_used: bool,
}

words! {
    /// Why an endpoint is in no list.
    pub enum UnusedReason {
        Unready = "unready",
        /// Going away, while others are ready or it does not serve any more.
        Terminating = "terminating",
        /// Ready, but the hints name other zones or nodes.
        Zone = "zone",
        /// Ready, but on another node, and the policy is Local.
        Remote = "remote",
        /// Ready, but its weight is 0, while others have one.
        Weight = "weight",
        /// Ready, but an operator has drained it, while others take clients.
        Drained = "drained",
    }
}

impl PortView {
    /// The slice that a row was taken from, among the service's own or as the hold remembers it.
    pub fn row_slice<'a>(&'a self, row: &Row, slices: &'a [Arc<SliceFacts>]) -> Option<&'a Arc<SliceFacts>> {
        let held = self.hold.as_ref().filter(|_| row.is_held());
        held.map_or(slices, |hold| &hold.slices).get(usize::from(row.slice))
    }

    /// Why a row of this port is in no list; `None` if it is in one.
    pub fn unused_reason(&self, row: &Row) -> Option<UnusedReason> {
        let conditions = row.conditions();
        let has_weight = self.rows.weight(row.backend()) > Weight::NONE;
        match (row.is_chosen(), conditions.ready, conditions.terminating) {
            (true, ..) => None,
            (_, true, _) if self.rows.weights().is_drained(row.backend()) => Some(UnusedReason::Drained),
            (_, true, _) if !has_weight => Some(UnusedReason::Weight),
            (_, true, _) if self.cluster_used => Some(UnusedReason::Zone),
            (_, true, _) => Some(UnusedReason::Remote),
            (_, _, true) => Some(UnusedReason::Terminating),
            (_, _, false) => Some(UnusedReason::Unready),
        }
    }
}

/// One row of the frontends' table. What is written of it for a restart leaves out what only the maps can say.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct FrontendView {
    /// What clients dial; unspecified for a NodePort.
    pub address: IpAddr,
    /// The port that clients dial.
    pub port: NonZeroU16,
    /// As the service says it, also where it is not programmed.
    pub protocol: Protocol,
    /// The kind of address.
    pub kind: FrontendType,
    /// The name of the service's port; empty if unnamed.
    pub port_name: Arc<str>,
    /// Its port among [`ServiceView::desired_ports`]; `None` where nothing can be programmed.
    pub position: Option<usize>,
    /// Which list new connections from this node get.
    pub scope: Scope,
    /// Whether traffic from outside gets the local list.
    pub external_local: bool,
    /// What a new connection gets.
    pub verdict: Verdict,
    /// Why, unless serving.
    pub reason: Option<Reason>,
    /// Whether the maps say so.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub status: Status,
    /// The owner of the address, where it is not this service.
    pub owner: Option<ServiceKey>,
    /// What the maps still serve here, where that is not what the port's rows say (yet).
    #[cfg_attr(feature = "serde", serde(skip))]
    pub applied: Option<Arc<Rows>>,
    /// Since when verdict, reason and lists are as they are.
    pub since: Timestamp,
}

impl FrontendView {
    /// Whether it needs no explanation: its clients are served, or it is meant to be as it is.
    pub fn is_healthy(&self) -> bool {
        matches!(self.verdict, Verdict::Serving | Verdict::Bypassed) && self.status == Status::Done
    }
}

/// One service with all that is known of it.
#[derive(Clone, Debug)]
pub struct ServiceView {
    pub key: ServiceKey,
    /// What the object says; `None` while only slices are known.
    pub facts: Option<Arc<ServiceFacts>>,
    /// Its own slices, by name.
    pub slices: Arc<[Arc<SliceFacts>]>,
    /// Why it has frontends, or none.
    pub state: ServiceState,
    /// Its ports, in the order of their keys.
    pub ports: Box<[PortView]>,
    /// Its frontends, in the order of the table.
    pub frontends: Box<[FrontendView]>,
    /// What this node saw of its load balancer, where it has one.
    pub balancer_history: Option<Box<BalancerHistory>>,
}

impl ServiceView {
    /// How many bytes it takes in memory, but for what it shares with the tables.
    pub fn bytes(&self) -> usize {
        let rows = self.ports.iter().map(|port| size_of::<PortView>() + port.rows.bytes());
        size_of::<Self>() + rows.sum::<usize>() + self.frontends.len() * size_of::<FrontendView>()
    }

    /// The frontend with the clients that are worst off: the last of several that are alike.
    pub fn worst_frontend(&self) -> Option<&FrontendView> {
        self.frontends.iter().max_by_key(|frontend| frontend.verdict.severity())
    }

    /// Whether any of its frontends needs an explanation.
    pub fn has_problem(&self) -> bool {
        !self.frontends.iter().all(FrontendView::is_healthy)
    }

    /// Whether it has a load balancer, or asks for one.
    pub(crate) fn has_balancer(&self) -> bool {
        let facts = self.facts.as_deref();
        facts.is_some_and(|it| {
            BalancerPhase::from_facts(it) != BalancerPhase::None || it.health_check_node_port.is_some()
        })
    }

    /// The list that this node's own processes and pods get at a frontend: none unless the verdict gives one.
    pub fn backends<'a>(&'a self, frontend: &'a FrontendView) -> impl Iterator<Item = Row> + use<'a> {
        let scope = frontend.scope;
        let rows: Option<&Rows> = match &frontend.applied {
            Some(applied) => Some(applied),
            None => self.rows(frontend).map(Arc::as_ref),
        };
        rows.into_iter().flat_map(move |rows| rows.list(scope))
    }

    /// The list that outside traffic gets, where it is not the list that this node itself gets.
    pub fn external_backends<'a>(
        &'a self,
        frontend: &FrontendView,
    ) -> Option<impl Iterator<Item = Row> + use<'a>> {
        let rows = self.rows(frontend).filter(|_| frontend.external_local)?;
        let same = rows.has_same_list(frontend.scope, rows, Scope::Local);
        (!same).then(|| rows.list(Scope::Local))
    }

    /// The rows that a frontend's lists are read off, if its verdict gives it any.
    pub(crate) fn rows(&self, frontend: &FrontendView) -> Option<&Arc<Rows>> {
        match frontend.verdict {
            Verdict::Serving | Verdict::Draining | Verdict::Held | Verdict::Refusing | Verdict::Dropping => {
                self.ports.get(frontend.position?).map(|port| &port.rows)
            }
            Verdict::Passing | Verdict::Bypassed | Verdict::Conflict | Verdict::Unprogrammed => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;
    use crate::keys::{ObjectName, Source};
    use crate::weights::BackendWeights;

    #[test]
    fn invariant_10_the_weights_of_its_backends_count_as_bytes_of_a_view() {
        let bytes = |weight| {
            let weight = Weight::new(weight).unwrap();
            let row = |number: u32| {
                let address = core::net::Ipv4Addr::from_bits(0x0a00_0000 + number).into();
                Row::new(address, NonZeroU16::MIN, crate::facts::Conditions::READY, 0, 0)
            };
            let rows: Vec<_> = (0..1_000).map(row).collect();
            let weights = BackendWeights::new(rows.iter().map(|row| (row.backend(), weight)));
            let rows = Arc::new(Rows::restore(&rows).unwrap().with_weights(weights));
            let port = PortView {
                key: PortKey {
                    name: "".into(),
                    transport: crate::keys::Transport::Tcp,
                    family: crate::keys::Family::V4,
                },
                index: None,
                rows,
                last: LastList::default(),
                hold: None,
                ended: None,
                cluster_used: true,
                local_used: false,
            };
            let ports = alloc::vec![port].into();
            let name = ObjectName::new("default", "web").unwrap();
            ServiceView {
                key: ServiceKey { name, source: Source::Manifests },
                facts: None,
                slices: Arc::default(),
                state: ServiceState::NoService,
                ports,
                frontends: Box::default(),
                balancer_history: None,
            }
            .bytes()
        };
        assert_eq!(bytes(2) - bytes(1), 1_000 * size_of::<(core::net::SocketAddr, Weight)>());
    }
}
