//! Fuzzes the path from a manifest's bytes to the maps: folder, decoder, engine.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use holdfast_core::engine::Engine;
use holdfast_core::event::Event;
use holdfast_core::facts::{AddressType, ServiceFacts, SliceFacts, Timestamp};
use holdfast_core::index::Seed;
use holdfast_core::keys::{Family, Source};
use holdfast_core::limits;
use holdfast_core::maps::{DialOutcome, MemoryMaps};
use holdfast_core::time::ClockReading;
use holdfast_objects::manifests::TextFolder;

use super::Target;

const CLUSTER_YAML: &str = include_str!("../../fixtures/manifests/cluster.yaml");
const CLUSTER_JSON: &str = include_str!("../../fixtures/manifests/cluster.json");

const SMALL: [&str; 4] = [
    "apiVersion: v1\nkind: Service\nmetadata: {name: a, labels: {x: y}}\nspec: {clusterIP: 10.0.0.1, ports: [{port: 80}]}\n",
    "apiVersion: v1\nkind: Service\nmetadata:\n  name: b\nspec:\n  type: LoadBalancer\n  clusterIPs: [10.0.0.2, \"fd00::2\"]\n  ipFamilies: [IPv4, IPv6]\n  externalIPs: [1.2.3.4]\n  externalTrafficPolicy: Local\n  sessionAffinity: ClientIP\n  ports:\n  - {name: http, port: 80, nodePort: 30080}\n  - {name: dns, port: 53, protocol: UDP}\nstatus: {loadBalancer: {ingress: [{ip: 203.0.113.1, ipMode: VIP}]}}\n",
    "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: a-1, labels: {kubernetes.io/service-name: a}}\naddressType: IPv4\nports: [{port: 80}]\nendpoints:\n- addresses: [10.1.0.1]\n  conditions: {ready: true, serving: true, terminating: false}\n  nodeName: n\n  hints: {forZones: [{name: z}]}\n  targetRef: {kind: Pod, name: p-1, uid: 3c2e11e0-d424-5284-9ca1-bf50bb7d28dc}\n- addresses: [10.1.0.2]\n",
    "{\"apiVersion\": \"v1\", \"kind\": \"List\", \"items\": [{\"apiVersion\": \"v1\", \"kind\": \"Service\", \"metadata\": {\"name\": \"c\"}, \"spec\": {\"clusterIP\": \"None\"}}]}",
];

/// A service that no broken file may affect.
const STEADY: &str = "apiVersion: v1\nkind: Service\nmetadata: {name: steady, namespace: steady-3f9c}\nspec: {clusterIP: 198.18.51.77, ports: [{port: 4177}]}\n---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: steady-1, namespace: steady-3f9c, labels: {kubernetes.io/service-name: steady}}\naddressType: IPv4\nports: [{port: 80}]\nendpoints: [{addresses: [198.18.51.78]}]\n";

/// Its file is the first by name, so that its objects win over a copy.
const STEADY_FILE: &str = "0.yaml";
const STEADY_ADDRESS: (Ipv4Addr, u16) = (Ipv4Addr::new(198, 18, 51, 77), 4177);

/// Inputs alternate between these files, so that one is replaced while the other keeps its last good objects.
const FILES: [&str; 3] = ["a.yaml", "b.json", "c.yml"];

/// After this many inputs the folder is emptied, and then no object may remain.
const CLEAR_EVERY: u64 = 64;

pub(super) struct Manifests {
    files: BTreeMap<Arc<str>, Vec<u8>>,
    texts: TextFolder,
    engine: Engine<MemoryMaps>,
    now: Duration,
    inputs: u64,
}

impl Manifests {
    pub(super) fn new() -> Result<Self, String> {
        let started = Engine::start(MemoryMaps::default(), Seed(0), &[Source::Manifests]);
        let (mut engine, _) = started.map_err(|error| error.to_string())?;
        engine.apply(Event::Synced(Source::Manifests));
        Ok(Self {
            files: BTreeMap::new(),
            texts: TextFolder::new("fuzz"),
            engine,
            now: Duration::ZERO,
            inputs: 0,
        })
    }

    fn replace(&mut self) -> Result<Vec<Event>, String> {
        let events = self.texts.replace_files(&self.files);
        events.iter().try_for_each(within_limits)?;
        for event in &events {
            self.engine.apply(event.clone());
        }
        // The first run writes; a later one frees what no reader can see any longer.
        for _ in 0..3 {
            self.now += Duration::from_secs(1);
            self.engine.step(ClockReading { wall: Timestamp(1), mono: self.now }, &mut |_| ());
        }
        Ok(events)
    }

    fn clear(&mut self) -> Result<(), String> {
        self.files.clear();
        self.replace()?;
        match self.engine.maps().entries() {
            0 => Ok(()),
            left => Err(format!("the folder is empty, and {left} entries are left in the maps")),
        }
    }
}

impl Target for Manifests {
    fn name(&self) -> &'static str {
        "manifests"
    }

    fn corpus(&self) -> Vec<Vec<u8>> {
        // The fixtures are large; their single documents are as good, and faster.
        let items = CLUSTER_YAML.split("\n- apiVersion: ").skip(1);
        let items = items.map(|item| format!("apiVersion: {}\n", item.replace("\n  ", "\n")));
        let texts = SMALL.iter().map(|text| (*text).to_owned()).chain(items);
        texts.chain([CLUSTER_JSON.to_owned()]).map(String::into_bytes).collect()
    }

    fn read(&mut self, input: &[u8]) -> Result<String, String> {
        self.inputs += 1;
        if self.inputs.is_multiple_of(CLEAR_EVERY) {
            self.clear()?;
        }
        self.files.insert(STEADY_FILE.into(), STEADY.as_bytes().to_vec());
        let place = usize::try_from(self.inputs).unwrap_or(0) % FILES.len();
        let file = if input.first() == Some(&b'{') {
            "b.json"
        } else {
            FILES.get(place).copied().unwrap_or("a.yaml")
        };
        self.files.insert(file.into(), input.to_vec());
        let events = self.replace()?;
        let answer = self.engine.maps().dial(SocketAddr::from(STEADY_ADDRESS));
        if !matches!(&answer, DialOutcome::Served(slots) if slots.len() == 1) {
            return Err(format!("another file's service is {answer:?}"));
        }
        Ok(events.iter().map(shown).collect::<Vec<_>>().join(", "))
    }
}

fn shown(event: &Event) -> String {
    match event {
        Event::ServiceApplied(facts) => {
            let (kind, ports) = (facts.kind.as_str(), facts.ports.len().min(3));
            format!(
                "{kind} {:?} {:?} ports {}",
                facts.internal_policy,
                facts.external_policy,
                "p".repeat(ports)
            )
        }
        Event::SliceApplied(facts) => {
            format!("slice {:?} {}", facts.address_type, "e".repeat(facts.endpoints.len().min(3)))
        }
        Event::Rejected(rejection) => format!("rejected {}", rejection.reason),
        other => format!("{other:?}").chars().take_while(|c| c.is_alphabetic()).collect(),
    }
}

fn within_limits(event: &Event) -> Result<(), String> {
    let within = match event {
        Event::ServiceApplied(facts) => service_within_limits(facts),
        Event::SliceApplied(facts) => slice_within_limits(facts),
        Event::Rejected(rejection) => rejection.reason.chars().count() <= limits::REJECTION_REASON_LENGTH_MAX,
        _ => true,
    };
    if within { Ok(()) } else { Err(format!("past a limit: {event:?}")) }
}

fn service_within_limits(facts: &ServiceFacts) -> bool {
    let addresses =
        [facts.external_ips.len(), facts.ingress.len(), facts.source_ranges.len(), facts.cluster_ips.len()];
    facts.ports.len() <= limits::PORTS_PER_SERVICE_MAX
        && addresses.iter().all(|count| *count <= limits::ADDRESSES_PER_SERVICE_MAX)
        && facts.affinity_timeout.is_none_or(|seconds| (1..=86_400).contains(&seconds))
        && facts.key.name.name().len() <= limits::NAME_LENGTH_MAX
        && facts.key.name.namespace().len() <= limits::NAMESPACE_LENGTH_MAX
}

fn slice_within_limits(facts: &SliceFacts) -> bool {
    let mut addresses = facts.endpoints.iter().map(|endpoint| endpoint.address);
    facts.ports.len() <= limits::PORTS_PER_SLICE_MAX
        && facts.endpoints.len() <= limits::ENDPOINTS_PER_SLICE_MAX
        && facts.endpoints.len() * facts.ports.len() <= limits::ROWS_PER_SLICE_MAX
        && addresses.all(|it| {
            facts.address_type == AddressType::Ip(Family::from_address(it))
                && !it.is_unspecified()
                && !it.is_multicast()
        })
}
