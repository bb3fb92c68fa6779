//! The cost of a service's address to an outside client: connections, requests, a stream, datagrams, to a backend on
//! the node and to one on another. Needs root; `cargo bench -p holdfast-tests --bench packets`.
//!
//! Plain routing, holdfast, the real kube-proxy, a real Cilium agent and a real HAProxy each have an equal network of
//! their own. A proxy and plain routing take turns of milliseconds, so that both run under equal conditions; the
//! result is their ratio. Peers are measured if `scripts/peers.sh`, `scripts/cilium.sh` and `scripts/haproxy.sh` have
//! built them.

mod cilium;
mod haproxy;
mod stage;

use std::io::Write;

use holdfast_tests::bed::Role;
use holdfast_tests::bed::compare::{self, Medians, Ratio};
use holdfast_tests::bed::load::Kind;
use holdfast_tests::figures::{self, Figure};
use holdfast_tests::peers::Part::{IptablesProxy, Proxy};
use holdfast_tests::size::{self, sized};

use cilium::Cilium;
use haproxy::HaProxy;
use stage::{Failed, Holdfast, KubeProxy, Placement, Plain, Stage};

/// The kind of load, the role of the server, and the name of the measurement.
const KINDS: [(Kind, Role, &str); 4] = [
    (Kind::Exchange, Role::Turns, "connections"),
    (Kind::Request, Role::Turns, "requests"),
    (Kind::Datagram, Role::Return, "datagrams"),
    (Kind::Stream, Role::Sink, "stream"),
];

/// The numbers of services for the curve: if a proxy searches its rules from the first, the last service shows it.
const SERVICES: [u32; 4] = [2, 1_000, 10_000, 100_000];
/// How many of them are written to an apiserver, which takes a minute or two.
const WRITTEN_MAX: u32 = 1_000;

/// The table of these results.
const GROUP: &str = "Through a Service, of plain routing (more is better)";

/// New networks: the place of programs and rules in memory changes the cost.
const DRAWS: usize = 3;

/// The draws of one line: a measurement and a peer.
struct Line {
    what: String,
    of: String,
    draws: Vec<Medians>,
}

/// Lines in the order of their first draws.
#[derive(Default)]
struct Lines(Vec<Line>);

impl Lines {
    fn add(&mut self, what: String, of: &str, draw: Medians) {
        match self.0.iter_mut().find(|line| line.what == what && line.of == of) {
            Some(line) => line.draws.push(draw),
            None => self.0.push(Line { what, of: of.to_owned(), draws: vec![draw] }),
        }
    }

    fn show(&self) -> Result<(), Failed> {
        for Line { what, of, draws } in &self.0 {
            let Ratio { median, low, high, first_rate, second_rate, failed } = Ratio::from_draws(draws);
            let name = format!("{what}, {of}");
            writeln!(
                std::io::stdout(),
                "{name:54} {median:.3} of plain ({low:.3} to {high:.3}), {second_rate:.0}/s against \
                 {first_rate:.0}/s, {failed} failed"
            )?;
            let (what, of) = (what.clone(), of.clone());
            figures::note(&Figure { group: GROUP.to_owned(), what, of, median, low, high })?;
        }
        Ok(())
    }
}

/// Compares one proxy with plain routing under one kind of load.
fn compare(
    (plain, proxy): (&dyn Stage, &dyn Stage),
    place: Placement,
    (kind, role, _): (Kind, Role, &str),
) -> Result<Medians, Failed> {
    let _servers = [plain.serve(place, role)?, proxy.serve(place, role)?];
    let client = place.client();
    let (near, through) = (plain.dialled(place)?, proxy.dialled(place)?);
    let first = || plain.bed().load(client, kind, near);
    let second = || proxy.bed().load(client, kind, through);
    Ok(compare::draw(&first, &second)?)
}

/// All kinds of load with the fewest services. The first peer is plain routing again, whose ratio must be 1.
fn all_kinds(lines: &mut Lines) -> Result<(), Failed> {
    let plain = Plain::start()?;
    let mut proxies: Vec<(&str, Box<dyn Stage>)> = vec![
        ("plain again", Box::new(Plain::start()?)),
        ("holdfast", Box::new(Holdfast::start(SERVICES[0])?)),
        ("holdfast by the stack", Box::new(Holdfast::start_with(SERVICES[0], false)?)),
    ];
    for (name, part) in [("kube-proxy, nftables", Proxy), ("kube-proxy, iptables", IptablesProxy)] {
        if let Some(kube_proxy) = KubeProxy::start(part, SERVICES[0])? {
            proxies.push((name, Box::new(kube_proxy)));
        }
    }
    if let Some(cilium) = Cilium::start()? {
        proxies.push(("Cilium", Box::new(cilium)));
    }
    if let Some(haproxy) = HaProxy::start()? {
        proxies.push(("HAProxy", Box::new(haproxy)));
    }
    for kind in KINDS {
        for place in Placement::ALL {
            for (name, proxy) in proxies.iter().filter(|(_, proxy)| proxy.carries(kind.0)) {
                let what = format!("{}, {}", kind.2, place.word());
                let draw = compare((&plain, proxy.as_ref()), place, kind);
                let draw = draw.map_err(|error| format!("{what}, {name}: {error}"))?;
                lines.add(what, name, draw);
            }
        }
    }
    Ok(())
}

/// Connections to a backend on the node, with more and more services.
fn curve(lines: &mut Lines) -> Result<(), Failed> {
    let plain = Plain::start()?;
    let mut drawn = |name: &str, services: u32, proxy: &dyn Stage| -> Result<(), Failed> {
        let what = format!("connections, {services} services");
        lines.add(what, name, compare((&plain, proxy), Placement::Near, KINDS[0])?);
        Ok(())
    };
    for services in SERVICES.into_iter().take(sized(SERVICES.len(), 2)) {
        drawn("holdfast", services, &Holdfast::start(services)?)?;
        let is_written = services <= sized(WRITTEN_MAX, 0);
        if let Some(kube_proxy) = is_written.then(|| KubeProxy::start(Proxy, services)).transpose()?.flatten()
        {
            drawn("kube-proxy, nftables", services, &kube_proxy)?;
        }
    }
    Ok(())
}

type Part = (&'static str, fn(&mut Lines) -> Result<(), Failed>);

/// The part named by the argument, or both.
fn main() -> Result<(), Failed> {
    let wanted = size::wanted();
    let parts: [Part; 2] = [("kinds", all_kinds), ("services", curve)];
    for (_, part) in parts.iter().filter(|(name, _)| wanted.as_deref().is_none_or(|it| it == *name)) {
        let mut lines = Lines::default();
        for _ in 0..sized(DRAWS, 1) {
            part(&mut lines)?;
        }
        lines.show()?;
    }
    Ok(())
}
