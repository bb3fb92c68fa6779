//! How the table looks in the file: facts, rows and frontends as core writes them, and forms of their own for what
//! differs.
//!
//! Invariant: a form is made from one value of the table and gives that value back unchanged; `None` says that no
//! daemon can have written the form. These types and those that core writes are the file's format: a change of one of
//! them makes a new version of the format, and the former type stays beside the new one. The file has no names of
//! fields; their order stands for them.
//!
//! Forms of their own: a service, because its source is written once for it and its slices, and what former versions
//! did not know of it stands at its end; a port, because its last list usually is its rows; a hold, because its times
//! are kept on the clock of a process; and whatever a former version wrote differently.

mod hold;
pub(super) mod odd;
mod words;

use std::sync::Arc;

use holdfast_core::facts::{AddressType, BalancerFacts, ServiceFacts, SliceFacts};
use holdfast_core::keys::{Family, ObjectName, PortKey, ServiceKey, Source};
use holdfast_core::list::{LastList, Row, Rows};
use holdfast_core::snapshot::{FrontendView, PortView, Reason, ServiceState, ServiceView};
use holdfast_core::time::Now;
use holdfast_core::weights::{Asked, OfBackends};
use serde::{Deserialize, Serialize};

use hold::Held;
pub(super) use hold::{HoldForm, HoldForm3};

/// One service as readers see it. Versions of the format differ in two parts of it: in the form of a hold, `H`, and in
/// what they know that the first one did not, `L`.
#[derive(Serialize, Deserialize)]
pub(super) struct ServiceForm<H = HoldForm, L = Later> {
    name: ObjectName,
    source: Source,
    facts: Option<Arc<ServiceFacts>>,
    slices: Arc<[Arc<SliceFacts>]>,
    state: ServiceState,
    ports: Vec<PortForm<H>>,
    frontends: Box<[FrontendView]>,
    later: L,
}

/// What a service and its slices say that the first version of the format had no place for.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct Later {
    before: Later8,
    affinity_prefix: Option<Arc<str>>,
}

/// The same as version 8 wrote it.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct Later8 {
    before: Later7,
    /// The weights that its slices have, in the order of these.
    of_slices: Vec<Option<Box<Asked>>>,
}

/// The same as version 7 wrote it.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct Later7 {
    balancer: Option<Box<BalancerFacts>>,
    maglev: Option<Arc<str>>,
    weights: Option<Box<Asked>>,
    /// The weights of the backends of its ports, in the order of these.
    of_backends: Vec<OfBackends>,
}

/// Versions 3 and 4 wrote nothing more; `()` takes no bytes in the file.
impl From<()> for Later {
    fn from((): ()) -> Self {
        Self::default()
    }
}

/// Versions 5 and 6 wrote what it says of its load balancer.
impl From<Option<Box<BalancerFacts>>> for Later {
    fn from(balancer: Option<Box<BalancerFacts>>) -> Self {
        Later7 { balancer, ..Later7::default() }.into()
    }
}

/// Version 7 knew of no weights of slices.
impl From<Later7> for Later {
    fn from(before: Later7) -> Self {
        Later8 { before, of_slices: Vec::new() }.into()
    }
}

/// Version 8 knew of no prefixes of clients.
impl From<Later8> for Later {
    fn from(before: Later8) -> Self {
        Self { before, affinity_prefix: None }
    }
}

impl From<&ServiceView> for Later {
    fn from(view: &ServiceView) -> Self {
        let affinity_prefix = view.facts.as_ref().and_then(|facts| facts.affinity_prefix.clone());
        Self { before: view.into(), affinity_prefix }
    }
}

impl From<&ServiceView> for Later8 {
    fn from(view: &ServiceView) -> Self {
        let has_any = view.slices.iter().any(|slice| slice.weights.is_some());
        let of_slices = view.slices.iter().filter(|_| has_any).map(|slice| slice.weights.clone()).collect();
        Self { before: view.into(), of_slices }
    }
}

impl From<&ServiceView> for Later7 {
    fn from(view: &ServiceView) -> Self {
        let of_backends = view.ports.iter().map(|port| port.rows.weights().clone()).collect();
        let Some(facts) = &view.facts else { return Self { of_backends, ..Self::default() } };
        let ServiceFacts { balancer, maglev, weights, .. } = &**facts;
        Self { balancer: balancer.clone(), maglev: maglev.clone(), weights: weights.clone(), of_backends }
    }
}

impl ServiceForm {
    pub(super) fn new(view: &ServiceView, clock: Now) -> Self {
        Self {
            name: view.key.name.clone(),
            source: view.key.source,
            facts: view.facts.clone(),
            slices: Arc::clone(&view.slices),
            state: view.state,
            ports: view.ports.iter().map(|port| PortForm::new(port, clock)).collect(),
            frontends: view.frontends.clone(),
            later: view.into(),
        }
    }
}

impl<H: Held, L: Into<Later>> ServiceForm<H, L> {
    pub(super) fn into_view(self) -> Option<ServiceView> {
        let Self { name, source, mut facts, slices, state, ports, frontends, later } = self;
        let Later { before, affinity_prefix } = later.into();
        let Later8 { before, of_slices } = before;
        let Later7 { balancer, maglev, weights, of_backends } = before;
        if let Some(facts) = facts.as_mut().map(Arc::make_mut) {
            facts.key.source = source;
            (facts.balancer, facts.maglev, facts.weights) = (balancer, maglev, weights);
            facts.affinity_prefix = affinity_prefix;
        }
        let of_backends = of_backends.into_iter().chain(std::iter::repeat(OfBackends::default()));
        let mut view = ServiceView {
            key: ServiceKey { name, source },
            facts,
            slices: weighed(sourced(slices, source)?, of_slices),
            state,
            ports: ports
                .into_iter()
                .zip(of_backends)
                .map(|(port, weights)| port.into_view(source, weights))
                .collect::<Option<_>>()?,
            frontends,
            // What was seen of the load balancer is not written down: it is seen anew.
            seen: None,
        };
        words::share(&mut view);
        Some(view)
    }
}

/// The slices with their weights.
fn weighed(mut slices: Arc<[Arc<SliceFacts>]>, weights: Vec<Option<Box<Asked>>>) -> Arc<[Arc<SliceFacts>]> {
    if !weights.is_empty() {
        for (slice, weights) in Arc::make_mut(&mut slices).iter_mut().zip(weights) {
            Arc::make_mut(slice).weights = weights;
        }
    }
    slices
}

/// Slices of this source. `None`: one has endpoints that are not of its address type.
fn sourced(mut slices: Arc<[Arc<SliceFacts>]>, source: Source) -> Option<Arc<[Arc<SliceFacts>]>> {
    for slice in Arc::make_mut(&mut slices).iter_mut().map(Arc::make_mut) {
        let legal = match slice.address_type {
            AddressType::Ip(family) => family,
            AddressType::Fqdn => Family::V4,
        };
        if slice.endpoints.family().is_some_and(|family| family != legal) {
            return None;
        }
        slice.key.source = source;
    }
    Some(slices)
}

#[derive(Serialize, Deserialize)]
struct PortForm<H> {
    key: PortKey,
    rows: Vec<Row>,
    last: Option<Vec<Row>>,
    /// The last list is equal to `rows`.
    last_is_now: bool,
    cluster_used: bool,
    local_used: bool,
    hold: Option<H>,
    ended: Option<Reason>,
}

impl PortForm<HoldForm> {
    fn new(view: &PortView, clock: Now) -> Self {
        let last_is_now = view.last.rows() == Some(&view.rows);
        let last = view.last.rows().filter(|_| !last_is_now);
        Self {
            key: view.key.clone(),
            rows: view.rows.all().collect(),
            last: last.map(|last| last.all().collect()),
            last_is_now,
            cluster_used: view.cluster_used,
            local_used: view.local_used,
            hold: view.hold.as_deref().map(|hold| HoldForm::new(hold, clock)),
            ended: view.ended,
        }
    }
}

impl<H: Held> PortForm<H> {
    fn into_view(self, source: Source, weights: OfBackends) -> Option<PortView> {
        let rows = Arc::new(Rows::remembered(&self.rows)?.weighted(weights));
        let last = match self.last {
            Some(last) => Some(Arc::new(Rows::remembered(&last)?)),
            None => self.last_is_now.then(|| Arc::clone(&rows)),
        };
        let hold = match self.hold {
            Some(hold) => Some(Arc::new(hold.into_hold(source, self.key.transport)?)),
            None => None,
        };
        Some(PortView {
            key: self.key,
            index: None,
            rows,
            last: LastList::remembered(last),
            hold,
            ended: self.ended,
            cluster_used: self.cluster_used,
            local_used: self.local_used,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use holdfast_core::facts::{Conditions, Endpoint, Endpoints, EndpointsBuilder, Meta};
    use holdfast_core::keys::SliceKey;

    use super::*;

    const ADDRESS: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 9));

    #[track_caller]
    fn check<T: for<'de> Deserialize<'de>>(record: &impl Serialize, is_legal: bool) {
        let record = postcard::to_extend(record, Vec::new()).unwrap();
        assert_eq!(postcard::from_bytes::<T>(&record).is_ok(), is_legal);
    }

    /// The file's checksum says that nothing was damaged, not that its writer knew the rules.
    #[test]
    fn what_no_constructor_would_make_is_not_read() {
        check::<ObjectName>(&("default", "web"), true);
        check::<ObjectName>(&("default", "a/b"), false);
        check::<Source>(&"manifests", true);
        check::<Source>(&"nowhere", false);
        let names = |node: u32| {
            let endpoint = (ADDRESS, (true, true, false), Some(node), None::<u32>, None::<u32>, None::<u32>);
            (["node-a"].as_slice().to_vec(), Vec::<u8>::new(), vec![endpoint])
        };
        check::<Endpoints>(&names(0), true);
        check::<Endpoints>(&names(1), false);
    }

    #[test]
    fn a_slice_has_endpoints_of_its_own_family_only() {
        let mut endpoints = EndpointsBuilder::new(Family::V4);
        let conditions = Conditions::READY;
        let node = None;
        let zone = None;
        let hints = None;
        let target = None;
        endpoints.push(Endpoint { address: ADDRESS, conditions, node, zone, hints, target }).unwrap();
        let name = ObjectName::new("default", "web-1").unwrap();
        let slice = |family| SliceFacts {
            key: SliceKey { name: name.clone(), source: Source::Config },
            meta: Meta::default(),
            service: None,
            headless: false,
            address_type: AddressType::Ip(family),
            ports: [].into(),
            endpoints: Endpoints::default(),
            endpoints_null: false,
            weights: None,
        };
        let endpoints = endpoints.finish();
        for (family, is_legal) in [(Family::V4, true), (Family::V6, false)] {
            let slices = Arc::from([Arc::new(SliceFacts { endpoints: endpoints.clone(), ..slice(family) })]);
            assert_eq!(sourced(slices, Source::Kubernetes).is_some(), is_legal);
        }
    }
}
