//! Converts `[[service]]` blocks to facts.
//!
//! Invariant: every fact in [`Blocks`] is valid, so blocks always convert to events. A reload is therefore validated
//! whole before any part of it is sent.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;
use std::sync::Arc;

use holdfast_core::facts::endpoints::EndpointError;
use holdfast_core::facts::{
    AddressType, Conditions, Endpoint, Endpoints, EndpointsBuilder, Meta, ServiceFacts, ServicePort,
    ServiceType, SliceFacts, SlicePort, Writer,
};
use holdfast_core::keys::{
    Family, InvalidName, ObjectName, Protocol, ServiceKey, SliceKey, Source, Transport,
};
use holdfast_core::limits;
use holdfast_core::weights::{Weight, WeightSetting, Weights};

use super::{HealthCheck, StaticService};
use crate::names::{BackendSet, Resolve};
use holdfast_config::{Config, VIP_SERVICE};

/// An invalid block.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("[[service]] {namespace}/{name}: {fault}")]
pub struct InvalidService {
    /// As written.
    pub namespace: String,
    /// As written.
    pub name: String,
    pub fault: BlockFault,
}

/// The error of a block.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BlockFault {
    /// The name is invalid.
    #[error(transparent)]
    Name(#[from] InvalidName),
    /// Another block has this name.
    #[error("another block has this namespace and name; give one of them another name")]
    Duplicate,
    /// There is no address to dial.
    #[error("it has no frontend; give at least one, as \"10.96.0.10:80\"")]
    NoFrontend,
    /// Port 0 cannot be dialled.
    #[error("{0} has port 0; legal are 1 to 65535")]
    PortZero(SocketAddr),
    /// The address cannot be a backend's.
    #[error("backend {0}: {1}")]
    Backend(SocketAddr, EndpointError),
    /// The backends have more families and ports than a service may have slices.
    #[error("its backends need {0} slices, one per family and port; at most {max} are legal", max = limits::SLICES_PER_SERVICE_MAX)]
    Slices(usize),
}

/// All valid blocks of a configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Blocks {
    blocks: BTreeMap<ObjectName, Arc<Block>>,
    // The apiserver's virtual address, and the file that sets it.
    vip: Option<(SocketAddr, Arc<str>)>,
    // The configuration that blocks of other files must not conflict with, and its file.
    own_config: (Arc<Config>, Arc<str>),
}

impl Blocks {
    /// Converts all blocks, or returns the error of each invalid one. `origin` is the file shown with every change.
    pub fn new(services: Vec<StaticService>, origin: &str) -> Result<Self, Vec<InvalidService>> {
        let mut blocks = BTreeMap::new();
        let mut invalid = Vec::new();
        let origin: Arc<str> = origin.into();
        for service in services {
            let namespace = service.namespace.clone();
            let name = service.name.clone();
            let added = Block::new(service, &origin).and_then(|block| add_block(&mut blocks, block));
            invalid.extend(added.err().map(|fault| InvalidService { namespace, name, fault }));
        }
        let own_config = (Arc::default(), origin);
        if invalid.is_empty() { Ok(Self { blocks, vip: None, own_config }) } else { Err(invalid) }
    }

    /// Converts a configuration's blocks and the apiserver's virtual address.
    pub fn from_config(config: &Config, origin: &str) -> Result<Self, Vec<InvalidService>> {
        let blocks = Self::new(config.services.iter().map(StaticService::from).collect(), origin)?;
        let vip = config.apiserver.vip.filter(|_| config.kubernetes.enabled);
        let own_config = (Arc::new(config.clone()), origin.into());
        Ok(Self { own_config, ..blocks.with_vip(vip, origin) })
    }

    /// The configuration that blocks of other files must not conflict with, and its file.
    pub(super) fn own_config(&self) -> (&Config, &Arc<str>) {
        (&self.own_config.0, &self.own_config.1)
    }

    /// Adds blocks, or replaces those of the same name.
    pub(super) fn with_blocks(&self, more: impl Iterator<Item = Arc<Block>>) -> Self {
        let more = more.map(|block| (block.service.key.name.clone(), block));
        Self { blocks: self.blocks.clone().into_iter().chain(more).collect(), ..self.clone() }
    }

    /// Sets the apiserver's virtual address.
    pub fn with_vip(self, vip: Option<SocketAddr>, origin: &str) -> Self {
        Self { vip: vip.map(|address| (address, origin.into())), ..self }
    }

    /// Adds the service of the virtual address with this backend. It exists even without a backend, so that no other
    /// service gets the address.
    pub(super) fn with_vip_target(self: Arc<Self>, endpoint: Option<SocketAddr>) -> Arc<Self> {
        let block =
            self.vip.as_ref().and_then(|(vip, origin)| Block::new(vip_service(*vip, endpoint), origin).ok());
        let Some(block) = block else { return self };
        let mut blocks = self.blocks.clone();
        // No block of the configuration may have this name.
        blocks.insert(block.service.key.name.clone(), Arc::new(block));
        Arc::new(Self { blocks, ..Self::clone(&self) })
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&ObjectName, &Arc<Block>)> {
        self.blocks.iter()
    }

    pub(super) fn get(&self, name: &ObjectName) -> Option<&Arc<Block>> {
        self.blocks.get(name)
    }

    pub(super) fn contains(&self, name: &ObjectName) -> bool {
        self.blocks.contains_key(name)
    }
}

/// The service of the apiserver's virtual address.
fn vip_service(vip: SocketAddr, endpoint: Option<SocketAddr>) -> StaticService {
    let [namespace, name] = VIP_SERVICE.map(str::to_owned);
    StaticService {
        name,
        namespace,
        port_name: "https".to_owned(),
        transport: Transport::Tcp,
        frontends: vec![vip],
        backends: endpoint.into_iter().collect(),
        weights: Vec::new(),
        resolve: None,
        health_check: None,
        affinity_timeout: None,
        affinity_prefix: None,
        on_empty: None,
        maglev: None,
    }
}

fn add_block(blocks: &mut BTreeMap<ObjectName, Arc<Block>>, block: Block) -> Result<(), BlockFault> {
    match blocks.insert(block.service.key.name.clone(), Arc::new(block)) {
        Some(_) => Err(BlockFault::Duplicate),
        None => Ok(()),
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Block {
    /// The block's service; independent of its backends' health.
    pub(super) service: Arc<ServiceFacts>,
    /// The block's slices, without readiness.
    pub(super) slices: BTreeMap<SliceKey, SliceMembers>,
    /// The health check of its backends.
    pub(super) check: Option<Arc<HealthCheck>>,
    /// The DNS name of its backends; `None`: the block lists them.
    pub(super) resolve: Option<Resolve>,
}

/// The backends of one slice: one family and port, in the block's order, without duplicates.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SliceMembers {
    meta: Meta,
    is_withdrawn: bool,
    family: Family,
    port: NonZeroU16,
    addresses: Vec<IpAddr>,
    // Weights from DNS. The service carries none of these: its own weights are for slow start, so a saved slice keeps
    // exactly what DNS returned.
    weights: Option<Box<WeightSetting>>,
}

impl Block {
    pub(super) fn new(service: StaticService, origin: &Arc<str>) -> Result<Self, BlockFault> {
        let name = ObjectName::new(&service.namespace, &service.name)?;
        let facts = service_facts(name, &service, origin)?;
        let slices = group_backends(&facts.key.name, &service.backends, (&facts.meta, false))?;
        let check = service.health_check.map(Arc::new);
        Ok(Self { service: Arc::new(facts), slices, check, resolve: service.resolve })
    }

    /// Replaces the backends by those from DNS.
    pub(super) fn with_backends(&self, set: &BackendSet) -> Result<Self, BlockFault> {
        let families = self.families();
        let fit =
            |(backend, _): &(&SocketAddr, &Weight)| families.contains(&Family::from_address(backend.ip()));
        let backends: Vec<_> = set.backends.iter().filter(fit).map(|(backend, _)| *backend).collect();
        let meta = Meta { writer: Some(dns_writer()), ..self.service.meta.clone() };
        let mut slices = group_backends(&self.service.key.name, &backends, (&meta, set.is_withdrawn))?;
        for members in slices.values_mut() {
            let own = |backend| Some((backend, *set.backends.get(&backend)?));
            let weights = Weights::from_backends(members.backends().filter_map(own));
            members.weights = Some(Box::new(WeightSetting { weights, wrong: None }));
        }
        let (service, check) = (Arc::clone(&self.service), self.check.clone());
        Ok(Self { service, slices, check, resolve: self.resolve.clone() })
    }

    /// The backends with their weights.
    pub(super) fn backend_set(&self) -> BackendSet {
        let of_service = self.service.weights.as_ref();
        let weight = |members: &SliceMembers, backend| {
            let setting = members.weights.as_ref().or(of_service)?;
            setting.weights.find_weight(backend, None)
        };
        let each = self.slices.values().flat_map(|members| {
            members.backends().map(move |it| (it, weight(members, it).unwrap_or(Weight::ONE)))
        });
        let backends = each.collect();
        BackendSet { backends, is_withdrawn: self.slices.values().any(|members| members.is_withdrawn) }
    }

    /// The families of its frontends.
    pub(super) fn families(&self) -> Vec<Family> {
        let has =
            |family| self.service.static_frontends.iter().any(|it| Family::from_address(it.ip()) == family);
        [Family::V4, Family::V6].into_iter().filter(|family| has(*family)).collect()
    }

    /// All backends, each once, with its slice.
    pub(super) fn backends(&self) -> impl Iterator<Item = (&SliceKey, SocketAddr)> {
        self.slices.iter().flat_map(|(key, members)| members.backends().map(move |backend| (key, backend)))
    }

    /// The facts of one slice; `ready` supplies the readiness.
    pub(super) fn slice_facts(
        &self,
        key: &SliceKey,
        members: &SliceMembers,
        ready: impl Fn(SocketAddr) -> bool,
    ) -> SliceFacts {
        let port = |port: &ServicePort| SlicePort {
            name: Arc::clone(&port.name),
            protocol: port.protocol.clone(),
            port: members.port,
        };
        SliceFacts {
            key: key.clone(),
            meta: members.meta.clone(),
            service: Some(self.service.key.name.name().into()),
            headless: false,
            address_type: AddressType::Ip(members.family),
            ports: self.service.ports.iter().map(port).collect(),
            endpoints: members.build_endpoints(ready),
            endpoints_null: false,
            weights: members.weights.clone(),
        }
    }
}

impl SliceMembers {
    fn backends(&self) -> impl Iterator<Item = SocketAddr> {
        self.addresses.iter().map(|address| SocketAddr::new(*address, self.port.get()))
    }

    fn build_endpoints(&self, ready: impl Fn(SocketAddr) -> bool) -> Endpoints {
        let mut endpoints = EndpointsBuilder::new(self.family);
        for backend in self.backends() {
            // Never fails: `group_backends` tried each of them.
            let is_ready = !self.is_withdrawn && ready(backend);
            let conditions =
                Conditions { ready: is_ready, serving: is_ready, terminating: self.is_withdrawn };
            let pushed = endpoints.push(build_endpoint(backend.ip(), conditions));
            debug_assert_eq!(pushed, Ok(()));
        }
        endpoints.finish()
    }
}

const fn build_endpoint(address: IpAddr, conditions: Conditions) -> Endpoint<'static> {
    Endpoint { address, conditions, node: None, zone: None, hints: None, target: None }
}

fn service_facts(
    name: ObjectName,
    service: &StaticService,
    origin: &Arc<str>,
) -> Result<ServiceFacts, BlockFault> {
    let frontends: Vec<_> = service.frontends.iter().copied().map(canonical).collect();
    if let Some(frontend) = frontends.iter().find(|frontend| frontend.port() == 0) {
        return Err(BlockFault::PortZero(*frontend));
    }
    let first = frontends.first().and_then(|frontend| NonZeroU16::new(frontend.port()));
    let port = ServicePort {
        name: service.port_name.as_str().into(),
        protocol: Protocol::Transport(service.transport),
        port: first.ok_or(BlockFault::NoFrontend)?,
        node_port: None,
    };
    Ok(ServiceFacts {
        meta: Meta { origin: Some(Arc::clone(origin)), ..Meta::default() },
        ports: vec![port],
        static_frontends: frontends,
        affinity_timeout: service.affinity_timeout,
        affinity_prefix: service.affinity_prefix.map(|prefixes| prefixes.to_string().into()),
        on_empty: service.on_empty.as_deref().map(Arc::from),
        maglev: service.maglev.map(|asked| asked.to_string().into()),
        weights: build_weights(service.weights.iter().copied()),
        ..ServiceFacts::new(ServiceKey { name, source: Source::Config }, ServiceType::Static)
    })
}

fn build_weights(each: impl Iterator<Item = (SocketAddr, Weight)>) -> Option<Box<WeightSetting>> {
    let mut each = each.map(|(backend, weight)| (canonical(backend), weight)).peekable();
    each.peek()
        .is_some()
        .then(|| Box::new(WeightSetting { weights: Weights::from_backends(each), wrong: None }))
}

/// The writer of facts from DNS. Their origin stays the block's file, so that they survive while that file is
/// unreadable.
fn dns_writer() -> Writer {
    Writer { manager: "dns".into(), operation: "Update".into(), subresource: None, at: None }
}

fn group_backends(
    name: &ObjectName,
    backends: &[SocketAddr],
    (meta, is_withdrawn): (&Meta, bool),
) -> Result<BTreeMap<SliceKey, SliceMembers>, BlockFault> {
    let mut groups: BTreeMap<(Family, NonZeroU16), (EndpointsBuilder, Vec<IpAddr>)> = BTreeMap::new();
    let mut seen = BTreeSet::new();
    for backend in backends.iter().copied().map(canonical).filter(|backend| seen.insert(*backend)) {
        let port = NonZeroU16::new(backend.port()).ok_or(BlockFault::PortZero(backend))?;
        let family = Family::from_address(backend.ip());
        let (trial, addresses) =
            groups.entry((family, port)).or_insert_with(|| (EndpointsBuilder::new(family), Vec::new()));
        trial
            .push(build_endpoint(backend.ip(), Conditions::READY))
            .map_err(|refused| BlockFault::Backend(backend, refused))?;
        addresses.push(backend.ip());
    }
    if groups.len() > limits::SLICES_PER_SERVICE_MAX {
        return Err(BlockFault::Slices(groups.len()));
    }
    let slice = |((family, port), (_, addresses))| {
        Ok((
            slice_key(name, family, port)?,
            SliceMembers { meta: meta.clone(), is_withdrawn, family, port, addresses, weights: None },
        ))
    };
    groups.into_iter().map(slice).collect()
}

/// The key of a slice, `<name>-<v4|v6>-<port>`. It is unique per service: the last two parts have no hyphen, so the
/// rest is the service's name.
fn slice_key(name: &ObjectName, family: Family, port: NonZeroU16) -> Result<SliceKey, InvalidName> {
    let family = match family {
        Family::V4 => "v4",
        Family::V6 => "v6",
    };
    let slice = format!("{}-{family}-{port}", name.name());
    Ok(SliceKey { name: ObjectName::new(name.namespace(), &slice)?, source: Source::Config })
}

/// The address as the tables hold it: without scope and flow label, and IPv4-mapped as IPv4.
const fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

#[cfg(test)]
mod tests;
