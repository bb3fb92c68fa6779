//! The time of a change from the apiserver to a client of every node: one Service among many changes its backend again
//! and again, and a client on each node dials it in a loop.
//!
//! Invariant: a time begins before the request to the apiserver and ends with the new backend's answer, so it includes
//! everything in between. A change that a node has not shown before the next one counts as missed.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use holdfast_conformance::{Cluster, Machine, Proxy, Running};
use holdfast_fixtures::clock::{Deadline, pause};

use crate::client::{name_at, now};
use crate::stage::{PROGRAM, SETTLE_MAX, equip, nodes, topology};
use crate::{Failure, figures, say};

/// kube-proxy writes its rules at most once a second; changes are further apart, so that each meets it idle.
const PAUSE: Duration = Duration::from_millis(1200);

/// The interval of an observer's connects.
const LOOK: Duration = Duration::from_millis(2);

/// The target of the writes: kubectl's proxy on the same machine, without TLS.
const DOOR: &str = "127.0.0.1:8001";
const DOOR_PAUSE: Duration = Duration::from_millis(100);
const PATH: &str = "/apis/discovery.k8s.io/v1/namespaces/drill/endpointslices/moving";

/// The backends are servers outside, which never move.
const BACKENDS: [(&str, u16); 2] = [("a", 7001), ("b", 7002)];
const SERVICE: &str = "10.96.66.1:80";

/// The goal for every node.
const P99_MAX: Duration = Duration::from_millis(50);

/// The p99 of this many changes on every node; judged for holdfast.
pub(crate) fn run(proxy: &Proxy, changes: u32, services: u16) -> Result<bool, Failure> {
    let cluster = Cluster::start(&topology(proxy)?)?;
    fill(&cluster, services)?;
    let mut servers = Vec::new();
    for (name, port) in BACKENDS {
        let address = format!("0.0.0.0:{port}");
        servers
            .push(cluster.on("out")?.spawn(&format!("server-{name}"), &[PROGRAM, "serve", name, &address])?);
    }
    let door = cluster.on("cp")?.spawn("door", &["kubectl", "proxy", "--port=8001"])?;
    let observers =
        nodes().iter().map(|node| observer(cluster.on(node)?)).collect::<Result<Vec<_>, Failure>>()?;
    let changes = changes.to_string();
    let limit = PAUSE * 3 * changes.parse::<u32>()? + SETTLE_MAX;
    let written = cluster.on("cp")?.said(&[PROGRAM, "change", &changes], "", limit)?;
    let seen =
        observers.into_iter().map(|observer| Ok(observer.stop()?)).collect::<Result<Vec<_>, Failure>>()?;
    drop((door, servers));
    report(proxy, services, &written, &seen)
}

fn observer(node: &Machine) -> Result<Running, Failure> {
    Ok(node.spawn("observer", &[PROGRAM, "observe", SERVICE])?)
}

fn fill(cluster: &Cluster, services: u16) -> Result<(), Failure> {
    nodes().iter().chain(&["cp", "out"]).try_for_each(|machine| equip(cluster.on(machine)?))?;
    cluster.apply("{apiVersion: v1, kind: Namespace, metadata: {name: drill}}")?;
    cluster.apply(&service("moving", "10.96.66.1", "172.30.0.100", BACKENDS[0].1))?;
    let crowd: String = (0..services)
        .map(|number| {
            let [high, low] = number.to_be_bytes();
            service(&format!("crowd-{number}"), &format!("10.96.{}.{low}", 128 + high), "192.0.2.1", 8080)
        })
        .collect();
    cluster.on("cp")?.said(&["kubectl", "create", "-f", "-"], &crowd, SETTLE_MAX * 3)?;
    Ok(())
}

/// A Service without a selector and its only slice.
fn service(name: &str, address: &str, backend: &str, port: u16) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: drill}}\n\
         spec: {{clusterIP: {address}, ports: [{{port: 80}}]}}\n---\n\
         apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\naddressType: IPv4\n\
         metadata: {{name: {name}, namespace: drill, labels: {{kubernetes.io/service-name: {name}}}}}\n\
         ports: [{{name: \"\", port: {port}, protocol: TCP}}]\nendpoints: [{{addresses: [{backend}]}}]\n---\n"
    )
}

/// Prints a line when another server answers than before.
pub(crate) fn observe(address: SocketAddr) -> Result<(), Failure> {
    let mut last = String::new();
    loop {
        let name = name_at(address).unwrap_or_default();
        if name != last {
            writeln!(io::stdout(), "{} {name}", now())?;
            last = name;
        }
        pause(LOOK);
    }
}

/// Writes each change to the apiserver, and prints its time.
pub(crate) fn change(changes: u32) -> Result<(), Failure> {
    await_door()?;
    for (_, (name, port)) in (0..changes).zip(BACKENDS.iter().rev().cycle()) {
        let body = format!("{{\"ports\": [{{\"name\": \"\", \"port\": {port}, \"protocol\": \"TCP\"}}]}}");
        let at = now();
        patch(&body)?;
        writeln!(io::stdout(), "{at} {name}")?;
        pause(PAUSE);
    }
    Ok(())
}

/// Waits for kubectl's proxy to listen.
fn await_door() -> Result<(), Failure> {
    let end = Deadline::after(SETTLE_MAX);
    loop {
        match TcpStream::connect(DOOR) {
            Ok(_) => return Ok(()),
            Err(error) if end.is_over() => return Err(format!("{DOOR}: {error}").into()),
            Err(_) => pause(DOOR_PAUSE),
        }
    }
}

fn patch(body: &str) -> Result<(), Failure> {
    let mut door = TcpStream::connect(DOOR)?;
    door.set_read_timeout(Some(SETTLE_MAX))?;
    write!(
        door,
        "PATCH {PATH} HTTP/1.1\r\nHost: {DOOR}\r\nContent-Type: application/merge-patch+json\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )?;
    let mut answer = String::new();
    door.read_to_string(&mut answer)?;
    if answer.starts_with("HTTP/1.1 200") {
        Ok(())
    } else {
        Err(format!("the apiserver says {answer}").into())
    }
}

/// Parses lines of a time and a name.
fn events(text: &str) -> Vec<(u64, &str)> {
    text.lines()
        .filter_map(|line| line.split_once(' '))
        .filter_map(|(at, name)| Some((at.parse().ok()?, name)))
        .collect()
}

/// The time of each change until the observer reached the new backend, if that was before the next change.
fn delays(changes: &[(u64, &str)], seen: &[(u64, &str)]) -> Vec<Option<Duration>> {
    let ends = changes.iter().skip(1).map(|(at, _)| *at).chain([u64::MAX]);
    let delay = |((at, name), end): (&(u64, &str), u64)| {
        let met = seen.iter().find(|(when, who)| when >= at && *when < end && who == name);
        met.map(|(when, _)| Duration::from_nanos(when - at))
    };
    changes.iter().zip(ends).map(delay).collect()
}

fn report(proxy: &Proxy, services: u16, written: &str, seen: &[String]) -> Result<bool, Failure> {
    let changes = events(written);
    let seen_by: Vec<_> = seen.iter().map(|text| delays(&changes, &events(text))).collect();
    let mut rows: BTreeMap<String, Vec<Option<Duration>>> =
        nodes().iter().zip(&seen_by).map(|(node, delays)| ((*node).to_owned(), delays.clone())).collect();
    let every = (0..changes.len()).map(|at| {
        let all: Option<Vec<Duration>> = seen_by.iter().map(|node| node.get(at).copied().flatten()).collect();
        all.and_then(|all| all.into_iter().max())
    });
    let every: Vec<_> = every.collect();
    let is_good = is_soon(&every) || !matches!(proxy, Proxy::Holdfast { .. });
    rows.insert("every node".to_owned(), every);
    for (whose, delays) in rows {
        say(&format!("{}, {services} services, {whose}: {}", figures::word(proxy), described(&delays)))?;
    }
    Ok(is_good)
}

fn is_soon(delays: &[Option<Duration>]) -> bool {
    let known = sorted(delays);
    known.len() == delays.len() && rank(&known, 99).is_some_and(|p99| p99 <= P99_MAX)
}

fn described(delays: &[Option<Duration>]) -> String {
    let known = sorted(delays);
    let ms = |percent| rank(&known, percent).unwrap_or_default().as_secs_f64() * 1000.0;
    let missed = delays.len() - known.len();
    format!(
        "{} changes, p50 {:.1} ms, p99 {:.1} ms, most {:.1} ms, {missed} missed",
        delays.len(),
        ms(50),
        ms(99),
        ms(100)
    )
}

fn sorted(delays: &[Option<Duration>]) -> Vec<Duration> {
    let mut known: Vec<Duration> = delays.iter().copied().flatten().collect();
    known.sort();
    known
}

/// The percentile of sorted times.
fn rank(sorted: &[Duration], percent: usize) -> Option<Duration> {
    sorted.get((sorted.len() * percent).div_ceil(100).saturating_sub(1)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delay_ends_at_the_new_backend_or_the_next_change() {
        let changes = [(100, "b"), (200, "a"), (300, "b")];
        let seen = [(50, "a"), (130, "b"), (310, "a"), (320, "b")];
        let after = |nanos| Some(Duration::from_nanos(nanos));
        assert_eq!(delays(&changes, &seen), [after(30), None, after(20)]);
    }

    #[test]
    fn a_missed_change_counts_as_late() {
        let ms = |ms| Some(Duration::from_millis(ms));
        assert!(is_soon(&[ms(1), ms(50)]));
        assert!(!is_soon(&[ms(1), ms(51)]));
        assert!(!is_soon(&[ms(1), None]));
    }
}
