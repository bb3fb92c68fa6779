//! How facts and views look in the file.
//!
//! Invariant: every form is made from what it stands for, and gives it back unchanged; `None` means that it was never one.
//! These types are the file's format: a change of one is a new version of it, and the former one stays beside it. Deliberately
//! absent: names of fields in the file, which the order of the fields stands for.

mod hold;
pub(super) mod odd;
mod rows;
mod service;
mod slice;

use std::net::IpAddr;
use std::num::NonZeroU16;
use std::sync::Arc;

use holdfast_core::facts::{Meta, Timestamp, Writer};
use holdfast_core::keys::{ObjectName, PortKey, Protocol, ServiceKey, Source, Transport};
use holdfast_core::list::{LastList, Scope};
use holdfast_core::op::FrontendType;
use holdfast_core::snapshot::{FrontendView, PortView, ServiceState, ServiceView, Status, Verdict};
use holdfast_core::time::Now;
use serde::{Deserialize, Serialize};

pub(super) use hold::HoldForm3;
use hold::{Held, HoldForm};
use rows::RowForm;
use service::FactsForm;
use slice::SliceForm;

/// One service as readers see it. Of what it has, only the form of a hold, `H`, has ever changed.
#[derive(Serialize, Deserialize)]
pub(super) struct ServiceForm<H = HoldForm> {
    name: NameForm,
    source: Arc<str>,
    facts: Option<FactsForm>,
    slices: Vec<SliceForm>,
    state: Arc<str>,
    ports: Vec<PortForm<H>>,
    frontends: Vec<FrontendForm>,
}

impl ServiceForm {
    pub(super) fn new(view: &ServiceView, clock: Now) -> Self {
        Self {
            name: NameForm::from(&view.key.name),
            source: view.key.source.as_str().into(),
            facts: view.facts.as_deref().map(FactsForm::from),
            slices: view.slices.iter().map(|slice| SliceForm::from(&**slice)).collect(),
            state: view.state.as_str().into(),
            ports: view.ports.iter().map(|port| PortForm::new(port, clock)).collect(),
            frontends: view.frontends.iter().map(FrontendForm::from).collect(),
        }
    }
}

impl<H: Held> ServiceForm<H> {
    pub(super) fn into_view(self) -> Option<ServiceView> {
        let source = spelled(&Source::ALL, Source::as_str, &self.source)?;
        let slices = self.slices.into_iter().map(|slice| Some(Arc::new(slice.into_facts(source)?)));
        let facts = match self.facts {
            Some(facts) => Some(Arc::new(facts.into_facts(source)?)),
            None => None,
        };
        Some(ServiceView {
            key: ServiceKey { name: self.name.into_name()?, source },
            facts,
            slices: slices.collect::<Option<_>>()?,
            state: spelled(&ServiceState::ALL, ServiceState::as_str, &self.state)?,
            ports: self.ports.into_iter().map(|port| port.into_view(source)).collect::<Option<_>>()?,
            frontends: self.frontends.into_iter().map(FrontendForm::into_view).collect::<Option<_>>()?,
        })
    }
}

/// Finds what has this spelling.
fn spelled<T: Copy>(all: &[T], as_str: fn(T) -> &'static str, text: &str) -> Option<T> {
    all.iter().copied().find(|it| as_str(*it) == text)
}

#[derive(Serialize, Deserialize)]
struct NameForm {
    namespace: Arc<str>,
    name: Arc<str>,
}

impl From<&ObjectName> for NameForm {
    fn from(name: &ObjectName) -> Self {
        Self { namespace: name.namespace().into(), name: name.name().into() }
    }
}

impl NameForm {
    fn into_name(self) -> Option<ObjectName> {
        ObjectName::new(&self.namespace, &self.name).ok()
    }
}

#[derive(Serialize, Deserialize)]
struct MetaForm {
    uid: Option<Arc<str>>,
    resource_version: Option<Arc<str>>,
    generation: Option<i64>,
    created: Option<i64>,
    writer: Option<WriterForm>,
    origin: Option<Arc<str>>,
}

#[derive(Serialize, Deserialize)]
struct WriterForm {
    manager: Arc<str>,
    operation: Arc<str>,
    subresource: Option<Arc<str>>,
    at: Option<i64>,
}

impl From<&Meta> for MetaForm {
    fn from(meta: &Meta) -> Self {
        let Meta { uid, resource_version, generation, created, writer, origin } = meta.clone();
        let writer = writer.map(|it| WriterForm {
            manager: it.manager,
            operation: it.operation,
            subresource: it.subresource,
            at: it.at.map(|at| at.0),
        });
        Self { uid, resource_version, generation, created: created.map(|it| it.0), writer, origin }
    }
}

impl From<MetaForm> for Meta {
    fn from(form: MetaForm) -> Self {
        let MetaForm { uid, resource_version, generation, created, writer, origin } = form;
        let writer = writer.map(|it| Writer {
            manager: it.manager,
            operation: it.operation,
            subresource: it.subresource,
            at: it.at.map(Timestamp),
        });
        Self { uid, resource_version, generation, created: created.map(Timestamp), writer, origin }
    }
}

#[derive(Serialize, Deserialize)]
struct PortForm<H> {
    name: Arc<str>,
    transport: Arc<str>,
    is_ipv6: bool,
    rows: Vec<RowForm>,
    last: Option<Vec<RowForm>>,
    /// The last list is `rows` itself.
    last_is_now: bool,
    cluster_used: bool,
    local_used: bool,
    hold: Option<H>,
    ended: Option<Arc<str>>,
}

impl PortForm<HoldForm> {
    fn new(view: &PortView, clock: Now) -> Self {
        let last_is_now = view.last.rows() == Some(&view.rows);
        let last = view.last.rows().filter(|_| !last_is_now);
        Self {
            name: Arc::clone(&view.key.name),
            transport: view.key.transport.as_str().into(),
            is_ipv6: slice::is_ipv6(view.key.family),
            rows: rows::forms(&view.rows),
            last: last.map(|last| rows::forms(last)),
            last_is_now,
            cluster_used: view.cluster_used,
            local_used: view.local_used,
            hold: view.hold.as_deref().map(|hold| HoldForm::new(hold, clock)),
            ended: view.ended.map(|reason| reason.as_str().into()),
        }
    }
}

impl<H: Held> PortForm<H> {
    fn into_view(self, source: Source) -> Option<PortView> {
        let transport = spelled(&[Transport::Tcp, Transport::Udp], Transport::as_str, &self.transport)?;
        let rows = Arc::new(rows::rows(self.rows)?);
        let last = match self.last {
            Some(last) => Some(Arc::new(rows::rows(last)?)),
            None => self.last_is_now.then(|| Arc::clone(&rows)),
        };
        let hold = match self.hold {
            Some(hold) => Some(Arc::new(hold.into_hold(source, transport)?)),
            None => None,
        };
        let ended = match self.ended {
            Some(text) => Some(hold::reason(&text)?),
            None => None,
        };
        Some(PortView {
            key: PortKey { name: self.name, transport, family: slice::family(self.is_ipv6) },
            index: None,
            rows,
            last: LastList::remembered(last),
            hold,
            ended,
            cluster_used: self.cluster_used,
            local_used: self.local_used,
        })
    }
}

#[derive(Serialize, Deserialize)]
struct FrontendForm {
    address: IpAddr,
    port: NonZeroU16,
    protocol: Arc<str>,
    kind: Arc<str>,
    port_name: Arc<str>,
    place: Option<u32>,
    is_local: bool,
    external_local: bool,
    verdict: Arc<str>,
    reason: Option<Arc<str>>,
    owner: Option<(NameForm, Arc<str>)>,
    since: i64,
}

impl From<&FrontendView> for FrontendForm {
    fn from(view: &FrontendView) -> Self {
        let owner = |key: &ServiceKey| (NameForm::from(&key.name), key.source.as_str().into());
        Self {
            address: view.address,
            port: view.port,
            protocol: view.protocol.as_str().into(),
            kind: view.kind.as_str().into(),
            port_name: Arc::clone(&view.port_name),
            place: view.position.and_then(|at| u32::try_from(at).ok()),
            is_local: view.scope == Scope::Local,
            external_local: view.external_local,
            verdict: view.verdict.as_str().into(),
            reason: view.reason.map(|reason| reason.as_str().into()),
            owner: view.owner.as_ref().map(owner),
            since: view.since.0,
        }
    }
}

impl FrontendForm {
    fn into_view(self) -> Option<FrontendView> {
        let reason = match self.reason {
            Some(text) => Some(hold::reason(&text)?),
            None => None,
        };
        let owner = match self.owner {
            Some((name, source)) => {
                let source = spelled(&Source::ALL, Source::as_str, &source)?;
                Some(ServiceKey { name: name.into_name()?, source })
            }
            None => None,
        };
        Some(FrontendView {
            address: self.address,
            port: self.port,
            protocol: Protocol::parse(&self.protocol),
            kind: spelled(&FrontendType::ALL, FrontendType::as_str, &self.kind)?,
            port_name: self.port_name,
            position: self.place.and_then(|at| usize::try_from(at).ok()),
            scope: if self.is_local { Scope::Local } else { Scope::Cluster },
            external_local: self.external_local,
            verdict: spelled(&Verdict::ALL, Verdict::as_str, &self.verdict)?,
            reason,
            status: Status::Pending,
            owner,
            applied: None,
            since: Timestamp(self.since),
        })
    }
}
