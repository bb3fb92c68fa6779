//! The table's form in the file: facts, rows and frontends as core serializes them, and separate forms for the rest.
//!
//! Invariant: a form is made from one value of the table and converts back to the same value; `None` means that no
//! daemon can have written it. These types and those that core serializes are the file's format: changing one
//! requires a new version of the format. The file has no field names; the order identifies the fields.
//!
//! Separate forms: a service, because its source is written once for it and its slices, and because the fields that
//! facts, rows and slices omit are at its end; a port, because its last list usually equals its rows; and a hold,
//! because its times are on a process's clock.

mod hold;
mod interning;
pub(super) mod untabled_form;

use std::sync::Arc;

use holdfast_core::facts::{AddressType, BalancerFacts, ServiceFacts, SliceFacts};
use holdfast_core::keys::{Family, ObjectName, PortKey, ServiceKey, Source};
use holdfast_core::list::{LastList, Row, Rows};
use holdfast_core::snapshot::{FrontendView, PortView, Reason, ServiceState, ServiceView};
use holdfast_core::time::ClockReading;
use holdfast_core::weights::{BackendWeights, WeightSetting};
use serde::{Deserialize, Serialize};

use hold::HoldForm;

#[derive(Serialize, Deserialize)]
pub(super) struct ServiceForm {
    name: ObjectName,
    source: Source,
    facts: Option<Arc<ServiceFacts>>,
    slices: Arc<[Arc<SliceFacts>]>,
    state: ServiceState,
    ports: Vec<PortForm>,
    frontends: Box<[FrontendView]>,
    balancer: Option<Box<BalancerFacts>>,
    maglev: Option<Arc<str>>,
    weights: Option<Box<WeightSetting>>,
    port_weights: Vec<BackendWeights>,
    /// The weights that each slice asks for; empty if no slice asks for any.
    slice_weights: Vec<Option<Box<WeightSetting>>>,
    affinity_prefix: Option<Arc<str>>,
}

impl ServiceForm {
    pub(super) fn new(view: &ServiceView, clock: ClockReading) -> Self {
        let facts = view.facts.as_deref();
        Self {
            name: view.key.name.clone(),
            source: view.key.source,
            facts: view.facts.clone(),
            slices: Arc::clone(&view.slices),
            state: view.state,
            ports: view.ports.iter().map(|port| PortForm::new(port, clock)).collect(),
            frontends: view.frontends.clone(),
            balancer: facts.and_then(|facts| facts.balancer.clone()),
            maglev: facts.and_then(|facts| facts.maglev.clone()),
            weights: facts.and_then(|facts| facts.weights.clone()),
            port_weights: view.ports.iter().map(|port| port.rows.weights().clone()).collect(),
            slice_weights: slice_weights(&view.slices),
            affinity_prefix: facts.and_then(|facts| facts.affinity_prefix.clone()),
        }
    }

    pub(super) fn into_view(mut self) -> Option<ServiceView> {
        let source = self.source;
        if let Some(facts) = self.facts.as_mut().map(Arc::make_mut) {
            facts.key.source = source;
            facts.balancer = self.balancer;
            facts.maglev = self.maglev;
            facts.weights = self.weights;
            facts.affinity_prefix = self.affinity_prefix;
        }
        let port_weights = self.port_weights.into_iter().chain(std::iter::repeat(BackendWeights::default()));
        let ports = self.ports.into_iter().zip(port_weights);
        let mut view = ServiceView {
            key: ServiceKey { name: self.name, source },
            facts: self.facts,
            slices: with_weights(with_source(self.slices, source)?, self.slice_weights),
            state: self.state,
            ports: ports.map(|(port, weights)| port.into_view(source, weights)).collect::<Option<_>>()?,
            frontends: date_verdicts(self.frontends),
            // The load balancer's history is not saved: it is observed again.
            balancer_history: None,
        };
        interning::intern_texts(&mut view);
        Some(view)
    }
}

/// The file has one time for each frontend: that of its last change. Its verdict is at least as old.
fn date_verdicts(mut frontends: Box<[FrontendView]>) -> Box<[FrontendView]> {
    frontends.iter_mut().for_each(|it| it.verdict_since = it.since);
    frontends
}

fn slice_weights(slices: &[Arc<SliceFacts>]) -> Vec<Option<Box<WeightSetting>>> {
    let has_any = slices.iter().any(|slice| slice.weights.is_some());
    slices.iter().filter(|_| has_any).map(|slice| slice.weights.clone()).collect()
}

fn with_weights(
    mut slices: Arc<[Arc<SliceFacts>]>,
    weights: Vec<Option<Box<WeightSetting>>>,
) -> Arc<[Arc<SliceFacts>]> {
    if !weights.is_empty() {
        for (slice, weights) in Arc::make_mut(&mut slices).iter_mut().zip(weights) {
            Arc::make_mut(slice).weights = weights;
        }
    }
    slices
}

/// Sets the slices' source; `None` if one has endpoints of another address type.
fn with_source(mut slices: Arc<[Arc<SliceFacts>]>, source: Source) -> Option<Arc<[Arc<SliceFacts>]>> {
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
struct PortForm {
    key: PortKey,
    rows: Vec<Row>,
    last: Option<Vec<Row>>,
    /// Whether the last list equals `rows`.
    last_is_now: bool,
    cluster_used: bool,
    local_used: bool,
    hold: Option<HoldForm>,
    ended: Option<Reason>,
}

impl PortForm {
    fn new(view: &PortView, clock: ClockReading) -> Self {
        let last_is_now = view.last.rows() == Some(&view.rows);
        let last = view.last.rows().filter(|_| !last_is_now);
        Self {
            key: view.key.clone(),
            rows: view.rows.iter().collect(),
            last: last.map(|last| last.iter().collect()),
            last_is_now,
            cluster_used: view.cluster_used,
            local_used: view.local_used,
            hold: view.hold.as_deref().map(|hold| HoldForm::new(hold, clock)),
            ended: view.ended,
        }
    }

    fn into_view(self, source: Source, weights: BackendWeights) -> Option<PortView> {
        let rows = Arc::new(Rows::restore(&self.rows)?.with_weights(weights));
        let last = match self.last {
            Some(last) => Some(Arc::new(Rows::restore(&last)?)),
            None => self.last_is_now.then(|| Arc::clone(&rows)),
        };
        let hold = match self.hold {
            Some(hold) => Some(Arc::new(hold.into_hold(source)?)),
            None => None,
        };
        Some(PortView {
            key: self.key,
            index: None,
            rows,
            last: LastList::restore(last),
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

    /// The file's checksum detects damage, not a writer that breaks the rules.
    #[test]
    fn a_form_that_no_constructor_would_make_is_refused() {
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
            assert_eq!(with_source(slices, Source::Kubernetes).is_some(), is_legal);
        }
    }
}
