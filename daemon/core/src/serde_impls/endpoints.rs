//! Serializes the endpoints of a slice. Names and hints that endpoints share are written once, before the endpoints,
//! which refer to them by index.
//!
//! Invariant: deserialized endpoints pass the builder, which refuses those that cannot be backends. The packed form in
//! memory may change without this format. Texts are borrowed from the input: a file has millions of them, and most are
//! only compared.

use alloc::borrow::Cow;
use alloc::string::ToString;
use alloc::vec::Vec;
use core::net::IpAddr;

use serde::de::{Deserialize, Deserializer, Error};
use serde::ser::{Serialize, Serializer};

use crate::facts::endpoints::UidText;
use crate::facts::{Conditions, Endpoint, Endpoints, EndpointsBuilder, HintSet, NodeName, Target};
use crate::keys::Family;

#[derive(serde::Serialize, serde::Deserialize)]
struct EndpointsForm<'a> {
    #[serde(borrow)]
    names: Vec<BorrowedText<'a>>,
    hints: Vec<HintSet>,
    #[serde(borrow)]
    endpoints: Vec<EndpointForm<'a>>,
}

#[derive(serde::Serialize, serde::Deserialize)]
struct EndpointForm<'a> {
    address: IpAddr,
    conditions: Conditions,
    node: Option<u32>,
    zone: Option<u32>,
    hints: Option<u32>,
    #[serde(borrow)]
    target: Option<TargetForm<'a>>,
}

#[derive(serde::Serialize, serde::Deserialize)]
struct TargetForm<'a> {
    kind: u32,
    namespace: u32,
    #[serde(borrow)]
    name: BorrowedText<'a>,
    #[serde(borrow)]
    uid: UidForm<'a>,
}

#[derive(serde::Serialize, serde::Deserialize)]
enum UidForm<'a> {
    Uuid([u8; 16]),
    #[serde(borrow)]
    Text(BorrowedText<'a>),
}

/// A text that is borrowed from the input.
#[derive(serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
struct BorrowedText<'a>(#[serde(borrow)] Cow<'a, str>);

impl Serialize for Endpoints {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut form =
            EndpointsForm { names: Vec::new(), hints: Vec::new(), endpoints: Vec::with_capacity(self.len()) };
        for endpoint in self.iter() {
            let endpoint = form.encode_endpoint(&endpoint);
            form.endpoints.push(endpoint);
        }
        form.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Endpoints {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let form = EndpointsForm::deserialize(deserializer)?;
        let family = form.endpoints.first().map_or(Family::V4, |it| Family::from_address(it.address));
        let mut builder = EndpointsBuilder::new(family);
        for endpoint in &form.endpoints {
            let endpoint = form.decode_endpoint(endpoint).ok_or_else(|| {
                D::Error::custom("an endpoint refers to a name or hint that the slice lacks")
            })?;
            builder.push(endpoint).map_err(D::Error::custom)?;
        }
        Ok(builder.finish())
    }
}

impl<'a> EndpointsForm<'a> {
    fn encode_endpoint(&mut self, endpoint: &Endpoint<'a>) -> EndpointForm<'a> {
        EndpointForm {
            address: endpoint.address,
            conditions: endpoint.conditions,
            node: endpoint
                .node
                .map(|node| self.intern_text(|known| node == *known, || node.to_string().into())),
            zone: endpoint.zone.map(|name| self.intern_name(name)),
            hints: endpoint.hints.map(|hints| self.intern_hints(hints)),
            target: endpoint.target.map(|target| TargetForm {
                kind: self.intern_name(target.kind),
                namespace: self.intern_name(target.namespace),
                name: BorrowedText(target.name.to_string().into()),
                uid: match target.uid {
                    UidText::Uuid(uuid) => UidForm::Uuid(uuid),
                    UidText::Text(text) => UidForm::Text(BorrowedText(text.into())),
                },
            }),
        }
    }

    fn intern_name(&mut self, name: &'a str) -> u32 {
        self.intern_text(|known| *known == *name, || name.into())
    }

    /// Searches from the end, because the latest names repeat first: the endpoints of a slice have few nodes, zones and
    /// kinds.
    fn intern_text(&mut self, is: impl Fn(&str) -> bool, text: impl FnOnce() -> Cow<'a, str>) -> u32 {
        let known = self.names.iter().rposition(|known| is(&known.0));
        to_index(known.unwrap_or_else(|| {
            self.names.push(BorrowedText(text()));
            self.names.len() - 1
        }))
    }

    fn intern_hints(&mut self, hints: &HintSet) -> u32 {
        let known = self.hints.iter().rposition(|known| known == hints);
        to_index(known.unwrap_or_else(|| {
            self.hints.push(hints.clone());
            self.hints.len() - 1
        }))
    }

    /// `None`: the endpoint refers to an index that does not exist.
    fn decode_endpoint<'b>(&'b self, form: &'b EndpointForm<'_>) -> Option<Endpoint<'b>> {
        let named = |place: u32| self.names.get(usize::try_from(place).ok()?).map(|name| &*name.0);
        let node = form.node.map(|place| named(place).map(NodeName::from));
        let zone = form.zone.map(named);
        let hints = form.hints.map(|place| self.hints.get(usize::try_from(place).ok()?));
        let target = form.target.as_ref().map(|it| {
            Some(Target {
                kind: named(it.kind)?,
                namespace: named(it.namespace)?,
                name: (&*it.name.0).into(),
                uid: match &it.uid {
                    UidForm::Uuid(uuid) => UidText::Uuid(*uuid),
                    UidForm::Text(text) => UidText::Text(&text.0),
                },
            })
        });
        let address = form.address;
        let conditions = form.conditions;
        let node = require_reference(node)?;
        let zone = require_reference(zone)?;
        let hints = require_reference(hints)?;
        let target = require_reference(target)?;
        Some(Endpoint { address, conditions, node, zone, hints, target })
    }
}

/// The outer `None`: a reference leads to nothing.
fn require_reference<T>(found: Option<Option<T>>) -> Option<Option<T>> {
    found.map_or(Some(None), |it| it.map(Some))
}

fn to_index(place: usize) -> u32 {
    u32::try_from(place).unwrap_or(u32::MAX)
}
