//! What an `EndpointSlice` says. Names that endpoints share stand in the slice's form once.

use std::net::IpAddr;
use std::num::NonZeroU16;
use std::sync::Arc;

use holdfast_core::facts::endpoints::UidText;
use holdfast_core::facts::{
    AddressType, Conditions, Endpoint, Endpoints, EndpointsBuilder, HintSet, SliceFacts, SlicePort, Target,
};
use holdfast_core::keys::{Family, Protocol, SliceKey, Source};
use serde::{Deserialize, Serialize};

use super::{MetaForm, NameForm};

#[derive(Serialize, Deserialize)]
pub(super) struct SliceForm {
    name: NameForm,
    meta: MetaForm,
    service: Option<Arc<str>>,
    headless: bool,
    /// `None`: host names.
    is_ipv6: Option<bool>,
    ports: Vec<(Arc<str>, Arc<str>, NonZeroU16)>,
    names: Vec<Arc<str>>,
    hints: Vec<HintForm>,
    endpoints: Vec<EndpointForm>,
    endpoints_null: bool,
}

#[derive(Serialize, Deserialize)]
struct HintForm {
    zones: Vec<Arc<str>>,
    nodes: Vec<Arc<str>>,
}

#[derive(Serialize, Deserialize)]
struct EndpointForm {
    address: IpAddr,
    ready: bool,
    serving: bool,
    terminating: bool,
    node: Option<u32>,
    zone: Option<u32>,
    hints: Option<u32>,
    target: Option<TargetForm>,
}

#[derive(Serialize, Deserialize)]
struct TargetForm {
    kind: u32,
    namespace: u32,
    name: String,
    uid: UidForm,
}

#[derive(Serialize, Deserialize)]
enum UidForm {
    Uuid([u8; 16]),
    Text(String),
}

pub(super) fn is_ipv6(family: Family) -> bool {
    family == Family::V6
}

pub(super) fn family(is_ipv6: bool) -> Family {
    if is_ipv6 { Family::V6 } else { Family::V4 }
}

impl From<&SliceFacts> for SliceForm {
    fn from(facts: &SliceFacts) -> Self {
        let mut shared = Shared::default();
        let endpoints = facts.endpoints.iter().map(|endpoint| shared.form(&endpoint)).collect();
        let port = |it: &SlicePort| (Arc::clone(&it.name), it.protocol.as_str().into(), it.port);
        Self {
            name: NameForm::from(&facts.key.name),
            meta: MetaForm::from(&facts.meta),
            service: facts.service.clone(),
            headless: facts.headless,
            is_ipv6: match facts.address_type {
                AddressType::Ip(family) => Some(is_ipv6(family)),
                AddressType::Fqdn => None,
            },
            ports: facts.ports.iter().map(port).collect(),
            names: shared.names,
            hints: shared.hints.iter().map(HintForm::from).collect(),
            endpoints,
            endpoints_null: facts.endpoints_null,
        }
    }
}

impl From<&HintSet> for HintForm {
    fn from(hints: &HintSet) -> Self {
        Self { zones: hints.zones.to_vec(), nodes: hints.nodes.to_vec() }
    }
}

impl SliceForm {
    pub(super) fn into_facts(self, source: Source) -> Option<SliceFacts> {
        let endpoints = self.endpoints()?;
        let port = |(name, protocol, port): (_, Arc<str>, _)| SlicePort {
            name,
            protocol: Protocol::parse(&protocol),
            port,
        };
        Some(SliceFacts {
            key: SliceKey { name: self.name.into_name()?, source },
            meta: self.meta.into(),
            service: self.service,
            headless: self.headless,
            address_type: self.is_ipv6.map_or(AddressType::Fqdn, |it| AddressType::Ip(family(it))),
            ports: self.ports.into_iter().map(port).collect(),
            endpoints,
            endpoints_null: self.endpoints_null,
        })
    }

    fn endpoints(&self) -> Option<Endpoints> {
        let mut builder = EndpointsBuilder::new(family(self.is_ipv6.unwrap_or_default()));
        let hints: Vec<HintSet> = self
            .hints
            .iter()
            .map(|it| HintSet { zones: it.zones.as_slice().into(), nodes: it.nodes.as_slice().into() })
            .collect();
        for form in &self.endpoints {
            builder.push(self.endpoint(form, &hints)?).ok()?;
        }
        Some(builder.finish())
    }

    fn endpoint<'a>(&'a self, form: &'a EndpointForm, hints: &'a [HintSet]) -> Option<Endpoint<'a>> {
        let target = match &form.target {
            Some(target) => Some(Target {
                kind: self.name(target.kind)?,
                namespace: self.name(target.namespace)?,
                name: target.name.as_str().into(),
                uid: match &target.uid {
                    UidForm::Uuid(uuid) => UidText::Uuid(*uuid),
                    UidForm::Text(text) => UidText::Text(text),
                },
            }),
            None => None,
        };
        Some(Endpoint {
            address: form.address,
            conditions: Conditions {
                ready: form.ready,
                serving: form.serving,
                terminating: form.terminating,
            },
            node: self.optional_name(form.node)?,
            zone: self.optional_name(form.zone)?,
            hints: match form.hints {
                Some(place) => Some(hints.get(usize::try_from(place).ok()?)?),
                None => None,
            },
            target,
        })
    }

    fn name(&self, place: u32) -> Option<&str> {
        self.names.get(usize::try_from(place).ok()?).map(AsRef::as_ref)
    }

    /// The outer `None`: there is no such name.
    fn optional_name(&self, place: Option<u32>) -> Option<Option<&str>> {
        match place {
            Some(place) => self.name(place).map(Some),
            None => Some(None),
        }
    }
}

/// What the endpoints of one slice share.
#[derive(Default)]
struct Shared {
    names: Vec<Arc<str>>,
    hints: Vec<HintSet>,
}

impl Shared {
    fn form(&mut self, endpoint: &Endpoint<'_>) -> EndpointForm {
        let Conditions { ready, serving, terminating } = endpoint.conditions;
        EndpointForm {
            address: endpoint.address,
            ready,
            serving,
            terminating,
            node: endpoint.node.map(|name| self.name(name)),
            zone: endpoint.zone.map(|name| self.name(name)),
            hints: endpoint.hints.map(|hints| self.hint(hints)),
            target: endpoint.target.map(|target| TargetForm {
                kind: self.name(target.kind),
                namespace: self.name(target.namespace),
                name: target.name.to_string(),
                uid: match target.uid {
                    UidText::Uuid(uuid) => UidForm::Uuid(uuid),
                    UidText::Text(text) => UidForm::Text(text.to_owned()),
                },
            }),
        }
    }

    /// The last names come again soonest: the endpoints of a slice have few nodes, zones and kinds.
    fn name(&mut self, name: &str) -> u32 {
        let known = self.names.iter().rposition(|known| **known == *name);
        place(known.unwrap_or_else(|| {
            self.names.push(name.into());
            self.names.len() - 1
        }))
    }

    fn hint(&mut self, hints: &HintSet) -> u32 {
        let known = self.hints.iter().rposition(|known| known == hints);
        place(known.unwrap_or_else(|| {
            self.hints.push(hints.clone());
            self.hints.len() - 1
        }))
    }
}

fn place(place: usize) -> u32 {
    u32::try_from(place).unwrap_or(u32::MAX)
}
