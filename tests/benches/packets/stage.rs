//! The same small network for each proxy: none, holdfast, the real kube-proxy. Cilium's is in its own module.
//!
//! Invariant: all networks have the same paths. Packets to the other node pass this one in both directions, so that
//! plain routing has no shorter path.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use holdfast_core::engine::Engine;
use holdfast_core::event::Event;
use holdfast_core::facts::Timestamp;
use holdfast_core::index::Seed;
use holdfast_core::keys::Source;
use holdfast_core::maps::Capacity;
use holdfast_core::op::MapGrowth;
use holdfast_core::time::ClockReading;
use holdfast_datapath::{
    Device, DeviceSide, KernelMaps, PacketOptions, PacketSwitches, ServedSockets, StaleSockets, StartOptions,
};
use holdfast_fixtures::clock::{pause, try_wait_for};
use holdfast_laws::whole::step_whole;
use holdfast_laws::worlds::Shape;
use holdfast_objects::manifests::TextFolder;
use holdfast_tests::bed::fabric::{self, NODE_ADDRESSES, POD_CIDRS, Switches};
use holdfast_tests::bed::load::Kind;
use holdfast_tests::bed::{Bed, Location, Role, Server, succeed};
use holdfast_tests::packets::{BACKENDS, Family, SERVICES, Service, write_node, write_others};
use holdfast_tests::peers::{Cluster, Part, PeersError};
use serde_json::Value;

pub(crate) type Failed = Box<dyn std::error::Error>;

/// Many SNAT ports, so that a number is reused only by chance: each backend of another node has all of them, and each
/// stays taken for half a minute after its connection.
const SNAT_PORTS: [std::ops::RangeInclusive<u16>; 2] = [1024..=29_999, 33_000..=65_535];

const FLOWS: u32 = 65_536;

/// The client's pod.
pub(crate) const CLIENT_POD: &str = "pod-b";

/// Commands of `ip` take milliseconds.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// The places of a backend and its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placement {
    Near,
    Far,
    /// Both are pods of the node, and the daemon translates the client's packets.
    Inside,
}

impl Placement {
    pub(crate) const ALL: [Self; 3] = [Self::Near, Self::Far, Self::Inside];

    /// Places with a service each.
    const SERVED: [Self; 2] = [Self::Near, Self::Far];

    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Near => "backend on the node",
            Self::Far => "backend on another node",
            Self::Inside => "from pod to pod of the node",
        }
    }

    pub(crate) fn client(self) -> Location<'static> {
        Location::far(if self == Self::Inside { CLIENT_POD } else { "client" })
    }

    /// The dialled address, and the backend's.
    pub(crate) fn ends(self) -> Result<(SocketAddr, SocketAddr), Failed> {
        let kind = if self == Self::Inside { "cluster" } else { "balancer" };
        let frontend = self.service()?.frontend(kind, Family::V4).ok_or("the service has no address")?;
        Ok((frontend, self.backend()?))
    }

    fn service(self) -> Result<Service, Failed> {
        let name = match self {
            Self::Near | Self::Inside => "here",
            Self::Far => "away",
        };
        Ok(*SERVICES.iter().find(|service| service.name == name).ok_or("no such service")?)
    }

    /// The server's location, outside of all socket programs.
    fn place(self) -> Location<'static> {
        match self {
            Self::Near | Self::Inside => Location::far("pod-a"),
            Self::Far => Location::far("pod-r"),
        }
    }

    fn backend(self) -> Result<SocketAddr, Failed> {
        let name = match self {
            Self::Near | Self::Inside => "a",
            Self::Far => "r",
        };
        let backend = BACKENDS.iter().find(|backend| backend.name == name).ok_or("no such backend")?;
        Ok(*backend.sockets().first().ok_or("no address")?)
    }
}

/// A network, and the proxy that serves its node.
pub(crate) trait Stage {
    fn bed(&self) -> &Bed;

    /// The address that a client dials for that backend.
    fn dialled(&self, place: Placement) -> Result<SocketAddr, Failed> {
        Ok(place.ends()?.0)
    }

    /// Whether the proxy supports that kind of load.
    fn carries(&self, _kind: Kind) -> bool {
        true
    }

    fn serve(&self, place: Placement, role: Role) -> Result<Server, Failed> {
        Ok(self.bed().serve(place.place(), role, "backend", place.backend()?)?)
    }

    /// The far one is written last.
    fn wait_until_served(&self) -> Result<(), Failed> {
        for place in Placement::ALL {
            let (_server, dialled) = (self.serve(place, Role::Turns)?, self.dialled(place)?);
            let exchange = || {
                let mut load = self.bed().load(place.client(), Kind::Exchange, dialled).ok()?;
                load.turn(Duration::from_millis(1)).ok()
            };
            try_wait_for(exchange).ok_or_else(|| format!("{dialled} is not served"))?;
        }
        Ok(())
    }
}

/// Routes both directions through the node, with ICMP redirects off.
fn lay_ways(bed: &Bed) -> Result<(), Failed> {
    for (place, route) in [("router", "10.244.9.0/24"), ("node2", "10.20.0.0/24")] {
        let mut ip = bed.command(Location::far(place), "ip")?;
        ip.args(["route", "replace", route, "via", NODE_ADDRESSES[0]]);
        succeed(ip, SOON)?;
    }
    for device in ["all", "eth0"] {
        fabric::set(bed, Location::OUTSIDE, &format!("ipv4/conf/{device}/send_redirects"), "0")?;
    }
    Ok(())
}

pub(crate) fn bed() -> Result<Bed, Failed> {
    let bed = fabric::bed(Switches::default())?;
    lay_ways(&bed)?;
    Ok(bed)
}

/// No proxy: the client dials the backend.
pub(crate) struct Plain(Bed);

impl Plain {
    pub(crate) fn start() -> Result<Self, Failed> {
        Ok(Self(bed()?))
    }
}

impl Stage for Plain {
    fn bed(&self) -> &Bed {
        &self.0
    }

    fn dialled(&self, place: Placement) -> Result<SocketAddr, Failed> {
        place.backend()
    }
}

/// The datapath in this process, filled by the engine. Fields are dropped in this order.
pub(crate) struct Holdfast {
    _engine: Engine<KernelMaps>,
    bed: Bed,
}

impl Holdfast {
    /// A network with this many services, including the dialled ones, as on a node without a firewall.
    pub(crate) fn start(services: u32) -> Result<Self, Failed> {
        Self::start_with(services, true)
    }

    /// The same, with a choice of bypassing the stack.
    pub(crate) fn start_with(services: u32, shortcut: bool) -> Result<Self, Failed> {
        let bed = bed()?;
        let maps =
            bed.within(Location::OUTSIDE, || maps(&bed, shortcut).map_err(|error| error.to_string()))??;
        let sources = [Source::Kubernetes, Source::Manifests];
        let (mut engine, _) = Engine::start(maps, Seed(7), &sources)?;
        let own = TextFolder::new("the table").replace_files(&files()?);
        let dialled = u32::try_from(Placement::SERVED.len())?;
        let others = Shape { services: services.saturating_sub(dialled), endpoints: 1 }.events();
        own.into_iter().chain(others).chain(sources.map(Event::Synced)).for_each(|event| engine.apply(event));
        // The first step waits for readers of a former daemon.
        pause(Duration::from_millis(100));
        let now = ClockReading { wall: Timestamp(1_800_000_000), mono: Duration::ZERO };
        step_whole(&mut engine, now, &mut drop);
        let packets = engine.maps_mut().packet_status();
        if let Some(failure) = packets.and_then(|packets| packets.failure) {
            return Err(failure.into());
        }
        Ok(Self { _engine: engine, bed })
    }
}

impl Stage for Holdfast {
    fn bed(&self) -> &Bed {
        &self.bed
    }
}

/// Starts maps and programs as the daemon does, in the node's network.
fn maps(bed: &Bed, shortcut: bool) -> Result<KernelMaps, Failed> {
    let mut maps = KernelMaps::start(&StartOptions {
        cgroup: Some(bed.cgroup().to_owned()),
        bpffs: bed.bpffs().join("holdfast"),
        capacity: Capacity::default(),
        mark: 0,
        expected: MapGrowth::default(),
        stale_sockets: StaleSockets::default(),
        served: ServedSockets::default(),
        packets: Some(PacketOptions {
            flows: FLOWS,
            snat_ports: SNAT_PORTS.to_vec(),
            switches: PacketSwitches::default(),
        }),
    })?;
    let mut devices = vec![device("eth0", DeviceSide::Outer, shortcut)?];
    if shortcut {
        devices.push(device("pod-a", DeviceSide::LocalPods, true)?);
    }
    devices.push(device(CLIENT_POD, DeviceSide::Pod, shortcut)?);
    maps.set_devices(&devices);
    maps.serve_packets();
    while maps.tend_devices(|| false) {}
    maps.update_flows()?;
    Ok(maps)
}

/// A device of the node, with the daemon's decision.
fn device(name: &str, side: DeviceSide, shortcut: bool) -> Result<Device, Failed> {
    let is_outer = side == DeviceSide::Outer;
    let [address4, address6] = NODE_ADDRESSES;
    Ok(Device {
        address4: is_outer.then(|| address4.parse()).transpose()?,
        address6: is_outer.then(|| address6.parse()).transpose()?,
        fast_path: shortcut,
        peer: true,
        fib_ignores_ports: [true; 2],
        adopts_flows: false,
        has_ipsec: false,
        ..Device::new(nix::net::if_::if_nametoindex(name)?, name, side)
    })
}

pub(crate) fn objects() -> Result<Vec<Value>, Failed> {
    let services = Placement::SERVED.map(Placement::service).into_iter().collect::<Result<Vec<_>, _>>()?;
    Ok(services.iter().flat_map(Service::objects).collect())
}

fn files() -> Result<BTreeMap<std::sync::Arc<str>, Vec<u8>>, Failed> {
    let documents: Vec<String> = objects()?.iter().map(ToString::to_string).collect();
    Ok([("table.yaml".into(), documents.join("\n---\n").into_bytes())].into())
}

/// The real kube-proxy. The process that wrote its rules ends before the measurement; the rules stay.
pub(crate) struct KubeProxy(Cluster);

impl KubeProxy {
    /// `None`: kube-proxy was not built.
    pub(crate) fn start(part: Part, services: u32) -> Result<Option<Self>, Failed> {
        let cluster = match Cluster::start_with_pod_ranges(fabric::layout(), 1, POD_CIDRS) {
            Err(PeersError::NotBuilt { .. }) => return Ok(None),
            started => started?,
        };
        fabric::lay(cluster.bed(), Switches::default())?;
        lay_ways(cluster.bed())?;
        write(&cluster, services)?;
        cluster.start_part(part)?;
        let stage = Self(cluster);
        stage.wait_until_served()?;
        for part in [part, Part::Controllers, Part::Apiserver(0), Part::Etcd] {
            stage.0.kill(part)?;
        }
        Ok(Some(stage))
    }
}

impl Stage for KubeProxy {
    fn bed(&self) -> &Bed {
        self.0.bed()
    }
}

/// Writes all services, the others first.
fn write(cluster: &Cluster, services: u32) -> Result<(), Failed> {
    let api = cluster.api(0)?;
    write_node(&api)?;
    write_others(cluster, services.saturating_sub(2))?;
    for place in Placement::SERVED {
        place.service()?.write(&api)?;
    }
    Ok(())
}
