//! The readers' view of one service: its ports with their rows, its frontends with their verdicts.
//!
//! Invariant: a view never changes, and shows nothing of another service except the owner of a lost address.

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
    /// The result of a new connection to a frontend.
    #[derive(PartialOrd, Ord)]
    pub enum Verdict {
        /// A ready backend.
        Serving = "serving",
        /// A terminating backend, because no other is left.
        Draining = "draining",
        /// ECONNREFUSED: no backend is usable anywhere.
        Refusing = "refusing",
        /// No answer: the policy is Local, and all usable backends are on other nodes.
        Dropping = "dropping",
        /// A backend of the last list, although the slices no longer have a usable endpoint.
        Held = "held",
        /// Not translated: there is no backend, and the real balancer answers.
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
    /// How bad the verdict is for clients: higher is worse.
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
        /// Every endpoint was seen terminating before it was removed.
        ScaledDown = "scaled-down",
        /// All listed endpoints are in slices that a label hides from proxies.
        Hidden = "hidden",
        /// The endpoints were removed without a terminating phase.
        Vanished = "vanished",
        /// Like `Vanished`, shortly after an interruption of its source.
        Resync = "resync",
        /// Like `Vanished`, together with many other services.
        MassLoss = "mass-loss",
        /// The hold reached its bound.
        HoldExpired = "hold-expired",
        /// The hold ended because no backend took a probe.
        ProbesFailed = "probes-failed",
        /// The policy is Local, and no usable endpoint is on this node.
        LocalPolicy = "local-policy",
        /// Another service owns the address.
        Claimed = "claimed",
        /// A process of the node listens at the address.
        Listener = "listener",
        /// No object may have the address, or the configuration does not allow it as an external IP.
        Address = "address",
        /// SCTP without packet translation, or a protocol that Kubernetes does not define.
        Protocol = "protocol",
        /// Nodes reach the apiserver at this address.
        Control = "control",
        /// The hold ended because other pods have the addresses of its last backends.
        AddressReused = "address-reused",
    }
}

/// Whether the maps hold the desired state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Status {
    /// Not yet tried.
    #[default]
    Pending,
    Done,
    /// The last try failed; the engine retries.
    Error(Arc<str>),
}

words! {
    /// Why a service has frontends, or none.
    pub enum ServiceState {
        Served = "served",
        /// It has no address for a frontend.
        NoAddress = "no-address",
        /// Kubernetes calls it `clusterIP: None`.
        Headless = "headless",
        /// A DNS alias.
        ExternalName = "external-name",
        /// The label `service-proxy-name` assigns it to another proxy.
        OtherProxy = "other-proxy",
        /// There are slices without their service.
        NoService = "no-service",
    }
}

/// One port in one family.
#[derive(Clone, Debug, PartialEq)]
pub struct PortView {
    pub key: PortKey,
    /// Its index in the maps, once it has one.
    pub index: Option<PortIndex>,
    /// All endpoints, chosen or not.
    pub rows: Arc<Rows>,
    /// Its last list that was not empty.
    pub last: LastList,
    pub hold: Option<Arc<Hold>>,
    /// Why the last hold ended without a list.
    pub ended: Option<Reason>,
    pub cluster_used: bool,
    pub local_used: bool,
}

words! {
    /// Why an endpoint is in no list.
    pub enum UnusedReason {
        Unready = "unready",
        /// Terminating, while others are ready or it does not serve any more.
        Terminating = "terminating",
        /// Ready, but the hints name other zones or nodes.
        Zone = "zone",
        /// Ready, but on another node, and the policy is Local.
        Remote = "remote",
        /// Ready, but its weight is 0, while others have one.
        Weight = "weight",
        /// Ready, but drained by an operator, while others take clients.
        Drained = "drained",
        /// Other services, or processes of the node, have all addresses of its service, so that no client gets it.
        Conflict = "conflict",
    }
}

impl PortView {
    /// The slice of a row: one of the service's own, or of the hold.
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

/// One row of the frontends' table. The state file omits the fields that depend on the maps.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct FrontendView {
    /// The address that clients dial; unspecified for a NodePort.
    pub address: IpAddr,
    pub port: NonZeroU16,
    /// The protocol in the Service, programmed or not.
    pub protocol: Protocol,
    pub kind: FrontendType,
    /// The name of the service's port; empty if unnamed.
    pub port_name: Arc<str>,
    /// Its port in [`ServiceView::ports`]; `None` if it cannot be programmed.
    pub position: Option<usize>,
    /// The list of new connections from this node.
    pub scope: Scope,
    /// Whether traffic from outside gets the local list.
    pub external_local: bool,
    pub verdict: Verdict,
    /// The reason, unless serving.
    pub reason: Option<Reason>,
    /// Whether the maps hold it.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub status: Status,
    /// The owner of the address, if it is another service.
    pub owner: Option<ServiceKey>,
    /// The rows that the maps still serve here, if they differ from the port's.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub applied: Option<Arc<Rows>>,
    /// When verdict, reason and lists last changed.
    pub since: Timestamp,
    /// When the verdict or its reason last changed. Its list may be younger, as after a
    /// drain.
    #[cfg_attr(feature = "serde", serde(skip))]
    pub verdict_since: Timestamp,
}

impl FrontendView {
    /// Whether it needs no explanation: it serves clients, or it is bypassed on purpose.
    pub fn is_healthy(&self) -> bool {
        matches!(self.verdict, Verdict::Serving | Verdict::Bypassed) && self.status == Status::Done
    }
}

/// One service with all of its state.
#[derive(Clone, Debug)]
pub struct ServiceView {
    pub key: ServiceKey,
    /// `None` while only slices exist.
    pub facts: Option<Arc<ServiceFacts>>,
    /// Its own slices, by name.
    pub slices: Arc<[Arc<SliceFacts>]>,
    pub state: ServiceState,
    /// Its ports, sorted by key.
    pub ports: Box<[PortView]>,
    /// Its frontends, in table order.
    pub frontends: Box<[FrontendView]>,
    /// This node's history of its load balancer, if it has one.
    pub balancer_history: Option<Box<BalancerHistory>>,
}

impl ServiceView {
    /// Memory in bytes, without parts that it shares with the tables.
    pub fn bytes(&self) -> usize {
        let rows = self.ports.iter().map(|port| size_of::<PortView>() + port.rows.bytes());
        size_of::<Self>() + rows.sum::<usize>() + self.frontends.len() * size_of::<FrontendView>()
    }

    /// The frontend with the worst health, then with the worst verdict; the last one of several.
    pub fn worst_frontend(&self) -> Option<&FrontendView> {
        self.frontends.iter().max_by_key(|it| (self.frontend_health(it), it.verdict.severity()))
    }

    /// Whether no client gets the backends of a port because others have all its addresses.
    pub fn is_port_in_conflict(&self, position: usize) -> bool {
        let mut own = self.frontends.iter().filter(|it| it.position == Some(position)).peekable();
        own.peek().is_some() && own.all(|it| it.verdict == Verdict::Conflict)
    }

    /// Whether any of its frontends needs an explanation.
    pub fn has_problem(&self) -> bool {
        !self.frontends.iter().all(FrontendView::is_healthy)
    }

    /// Whether it has or requests a load balancer.
    pub(crate) fn has_balancer(&self) -> bool {
        let facts = self.facts.as_deref();
        facts.is_some_and(|it| {
            BalancerPhase::from_facts(it) != BalancerPhase::None || it.health_check_node_port.is_some()
        })
    }

    /// The list of a frontend for this node's own processes and pods; empty unless the verdict has one.
    pub fn backends<'a>(&'a self, frontend: &'a FrontendView) -> impl Iterator<Item = Row> + use<'a> {
        let scope = frontend.scope;
        let rows: Option<&Rows> = match &frontend.applied {
            Some(applied) => Some(applied),
            None => self.rows(frontend).map(Arc::as_ref),
        };
        rows.into_iter().flat_map(move |rows| rows.list(scope))
    }

    /// The list of outside traffic, if it differs from this node's own list.
    pub fn external_backends<'a>(
        &'a self,
        frontend: &FrontendView,
    ) -> Option<impl Iterator<Item = Row> + use<'a>> {
        let rows = self.rows(frontend).filter(|_| frontend.external_local)?;
        let same = rows.has_same_list(frontend.scope, rows, Scope::Local);
        (!same).then(|| rows.list(Scope::Local))
    }

    /// The rows of a frontend's lists, if its verdict has any.
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
    fn invariant_10_weights_of_backends_count_as_bytes_of_a_view() {
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
