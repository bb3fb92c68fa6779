//! Random services and slices that an apiserver accepts: any mixture of what decides which backends a node's client
//! reaches.
//!
//! Invariant: the seed alone decides, and no two services share an address. It leaves out what kube-proxy decides by
//! chance (two services with one external address, one endpoint that differs between slices), and a slice that moves
//! to another service, which kube-proxy leaves with both.

use serde_json::{Map, Value, json};

use super::{Api, Kind, NODE, PeersError};
use holdfast_laws::simulation::Random;

const NAMESPACE: &str = "default";

/// The most slices of a service.
const SLICES_MAX: usize = 3;

const NODES: [&str; 3] = [NODE, NODE, "n2"];
const ZONES: [&str; 3] = ["zone-a", "zone-a", "zone-b"];
const PORT_NAMES: [&str; 3] = ["a", "b", "c"];

/// Services by their numbers, and whether each exists.
#[derive(Debug)]
pub struct RandomServices {
    random: Random,
    services: Vec<bool>,
}

impl RandomServices {
    pub fn new(seed: u64, services: usize) -> Self {
        Self { random: Random::new(seed), services: vec![false; services] }
    }

    /// Creates all services with their slices.
    pub fn create(&mut self, api: &Api<'_>) -> Result<(), PeersError> {
        (0..self.services.len()).try_for_each(|number| {
            self.replace_service(api, number)?;
            (0..SLICES_MAX).try_for_each(|slice| self.replace_slice(api, number, slice))
        })
    }

    /// Makes random changes: replaces services; adds, changes and deletes slices.
    pub fn stir(&mut self, api: &Api<'_>, changes: usize) -> Result<(), PeersError> {
        (0..changes).try_for_each(|_| {
            let (number, slice) = (self.random.below(self.services.len()), self.random.below(SLICES_MAX));
            if self.random.chance(250) {
                return self.replace_service(api, number);
            }
            self.replace_slice(api, number, slice)
        })
    }

    /// Deletes a service and creates it again, because much of it is immutable. Sometimes it stays away for a while.
    fn replace_service(&mut self, api: &Api<'_>, number: usize) -> Result<(), PeersError> {
        let name = format!("{NAMESPACE}/s{number}");
        let Some(is_there) = self.services.get_mut(number) else { return Ok(()) };
        if std::mem::take(is_there) {
            api.delete(Kind::Service, &name)?;
            if self.random.chance(150) {
                return Ok(());
            }
        }
        *is_there = true;
        let service = api.apply_object(&service(&mut self.random, number))?;
        if service.pointer("/spec/type") != Some(&"LoadBalancer".into()) {
            return Ok(());
        }
        let ingress = ingress(&mut self.random, number);
        api.merge_status(Kind::Service, &name, &json!({"status": {"loadBalancer": {"ingress": ingress}}}))
            .map(drop)
    }

    fn replace_slice(&mut self, api: &Api<'_>, number: usize, slice: usize) -> Result<(), PeersError> {
        if self.random.chance(300) {
            let name = format!("{NAMESPACE}/s{number}-{slice}");
            return match api.delete(Kind::Slice, &name) {
                Err(PeersError::Refused { status: 404, .. }) => Ok(()),
                deleted => deleted,
            };
        }
        api.apply_object(&endpoint_slice(&mut self.random, number, slice)).map(drop)
    }
}

fn service(random: &mut Random, number: usize) -> Value {
    let mut meta = json!({"name": format!("s{number}"), "namespace": NAMESPACE});
    if random.chance(40) {
        insert(&mut meta, "labels", json!({"service.kubernetes.io/service-proxy-name": "other"}));
    }
    if random.chance(100) {
        insert(&mut meta, "annotations", json!({"service.kubernetes.io/topology-mode": "Auto"}));
    }
    let kind = random.pick(&["ClusterIP", "ClusterIP", "NodePort", "LoadBalancer", "LoadBalancer"]);
    let mut spec = json!({"type": kind, "ports": ports(random, number)});
    match random.below(20) {
        0 => spec = json!({"type": "ExternalName", "externalName": "example.com"}),
        1 => {
            insert(&mut spec, "type", "ClusterIP".into());
            insert(&mut spec, "clusterIP", "None".into());
        }
        _ => addressed(random, number, &mut spec),
    }
    json!({"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": spec})
}

/// Sets the address fields of services that clients dial.
fn addressed(random: &mut Random, number: usize, spec: &mut Value) {
    let kind = spec.get("type").and_then(Value::as_str).unwrap_or_default().to_owned();
    let families = random.pick(&[&["IPv4"][..], &["IPv6"], &["IPv4", "IPv6"], &["IPv6", "IPv4"]]);
    let policy = if families.len() == 1 { "SingleStack" } else { "RequireDualStack" };
    insert(spec, "ipFamilies", families.into());
    insert(spec, "ipFamilyPolicy", policy.into());
    if random.chance(250) {
        insert(spec, "internalTrafficPolicy", "Local".into());
    }
    if random.chance(250) {
        insert(
            spec,
            "externalIPs",
            json!([format!("203.0.113.{number}"), format!("2001:db8:1::{number:x}")]),
        );
    }
    if random.chance(200) {
        insert(spec, "sessionAffinity", "ClientIP".into());
    }
    if random.chance(400) {
        let wish = random.pick(&["PreferClose", "PreferSameZone", "PreferSameNode"]);
        insert(spec, "trafficDistribution", wish.into());
    }
    if kind != "ClusterIP" && random.chance(400) {
        insert(spec, "externalTrafficPolicy", "Local".into());
    }
    if kind == "LoadBalancer" && random.chance(300) {
        insert(spec, "allocateLoadBalancerNodePorts", false.into());
    }
    if kind == "LoadBalancer" && random.chance(250) {
        insert(spec, "loadBalancerSourceRanges", json!(["10.0.0.0/8", "fd00::/8"]));
    }
}

/// The ports of one service have different numbers, except for two protocols on one.
fn ports(random: &mut Random, number: usize) -> Vec<Value> {
    let count = 1 + random.below(PORT_NAMES.len());
    let port = |index: usize| {
        let shared = index == 1 && protocol(number, 0) != protocol(number, 1);
        let own = 80 + number % 7 + if shared { 0 } else { 10 * index };
        named(number, index, json!({"port": own, "protocol": protocol(number, index)}))
    };
    let ports = if is_nameless(number) { 0..1 } else { 0..count };
    ports.map(port).collect()
}

/// A service's only port may lack a name.
fn is_nameless(number: usize) -> bool {
    number.is_multiple_of(5)
}

fn named(number: usize, index: usize, mut port: Value) -> Value {
    if let Some(name) = PORT_NAMES.get(index).filter(|_| !is_nameless(number)) {
        insert(&mut port, "name", (*name).into());
    }
    port
}

fn protocol(number: usize, index: usize) -> &'static str {
    match (number + index) % 11 {
        0 => "SCTP",
        1 | 4 | 6 | 9 => "UDP",
        _ => "TCP",
    }
}

/// The status that a cloud would write.
fn ingress(random: &mut Random, number: usize) -> Vec<Value> {
    let mode = random.pick(&["VIP", "VIP", "VIP", "Proxy"]);
    let four = json!({"ip": format!("198.51.100.{number}"), "ipMode": mode});
    let six = json!({"ip": format!("2001:db8:2::{number:x}"), "ipMode": "VIP"});
    match random.below(5) {
        0 => vec![],
        1 => vec![json!({"hostname": "lb.example.com"})],
        2 => vec![six],
        _ => vec![four, six],
    }
}

fn endpoint_slice(random: &mut Random, number: usize, slice: usize) -> Value {
    // A slice never changes its address type.
    let is_six = slice == 1;
    let mut labels = json!({"kubernetes.io/service-name": format!("s{number}")});
    if random.chance(30) {
        insert(&mut labels, "service.kubernetes.io/headless", "".into());
    }
    let address = |index: usize| match is_six {
        true => format!("fd01::{:x}:{slice}{index}", number + 1),
        false => format!("10.1.{number}.{}", 10 * slice + index),
    };
    // Hints count only if every used endpoint has them.
    let is_hinted = random.chance(400);
    let mood = random.pick(&[SliceState::Ready, SliceState::Mixed, SliceState::Ending]);
    let count = random.below(6);
    let endpoints = (1..=count).map(|index| endpoint(random, &address(index), is_hinted, mood));
    let endpoints: Vec<Value> = endpoints.collect();
    let mut object = json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": format!("s{number}-{slice}"), "namespace": NAMESPACE, "labels": labels},
        "addressType": if is_six { "IPv6" } else { "IPv4" },
        "endpoints": endpoints,
    });
    if !random.chance(50) {
        insert(&mut object, "ports", slice_ports(random, number).into());
    }
    object
}

/// The common state of a slice's endpoints.
#[derive(Clone, Copy, Default)]
enum SliceState {
    #[default]
    Ready,
    Mixed,
    Ending,
}

impl SliceState {
    fn conditions(self, random: &mut Random) -> Value {
        match self {
            Self::Ready => json!({}),
            Self::Mixed => mixed(random).into(),
            Self::Ending => json!({"ready": false, "serving": random.chance(500), "terminating": true}),
        }
    }
}

/// Random conditions: each is mostly the healthy value, and sometimes the opposite or missing.
pub(crate) fn mixed(random: &mut Random) -> Map<String, Value> {
    let mut conditions = Map::new();
    for (condition, good) in [("ready", true), ("serving", true), ("terminating", false)] {
        let value = random.pick(&[None, Some(!good), Some(good), Some(good)]);
        conditions.extend(value.map(|value| (condition.to_owned(), value.into())));
    }
    conditions
}

fn endpoint(random: &mut Random, address: &str, is_hinted: bool, mood: SliceState) -> Value {
    let mut endpoint = json!({"addresses": [address], "conditions": mood.conditions(random)});
    if random.chance(800) {
        insert(&mut endpoint, "nodeName", random.pick(&NODES).into());
    }
    if random.chance(800) {
        insert(&mut endpoint, "zone", random.pick(&ZONES).into());
    }
    if is_hinted && !random.chance(30) {
        let mut hints = json!({"forZones": [{"name": random.pick(&ZONES)}]});
        if random.chance(600) {
            insert(&mut hints, "forNodes", json!([{"name": random.pick(&NODES)}]));
        }
        insert(&mut endpoint, "hints", hints);
    }
    endpoint
}

/// The ports of the service; rarely one is missing, has another protocol, or no number.
fn slice_ports(random: &mut Random, number: usize) -> Vec<Value> {
    let port = |index| {
        let protocol = if random.chance(70) { "UDP" } else { protocol(number, index) };
        let mut port = named(number, index, json!({"protocol": protocol}));
        if !random.chance(30) {
            insert(&mut port, "port", (8080 + index).into());
        }
        (!random.chance(70)).then_some(port)
    };
    let all = if is_nameless(number) { 0..1 } else { 0..PORT_NAMES.len() };
    all.filter_map(port).collect()
}

fn insert(object: &mut Value, field: &str, value: Value) {
    if let Some(object) = object.as_object_mut() {
        object.insert(field.to_owned(), value);
    }
}
