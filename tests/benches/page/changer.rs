//! A node with many services, some of which change all the time.
//!
//! Invariant: each change affects clients, so the history records all of them.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::Scope;
use std::time::Duration;

use holdfast_fixtures::clock::{Stopwatch, pause};
use holdfast_tests::size::sized;

use crate::node::Node;

/// A hundred a second.
const PACE: Duration = Duration::from_millis(10);

/// The services that change in turns; each has a file of its own.
pub(crate) const CHANGING: u32 = 100;

/// The number of the service with the timed changes: after the changing ones and before the others.
pub(crate) const TIMED: u32 = CHANGING;

pub(crate) fn services() -> u32 {
    sized(10_000, 300)
}

pub(crate) fn node() -> Node {
    let others = (CHANGING + 1..services()).fold(String::new(), |text, service| text + &manifest(service, 0));
    let first: Vec<(String, String)> =
        (0..=CHANGING).map(|service| (file(service), manifest(service, 0))).collect();
    let mut files: Vec<(&str, &str)> =
        first.iter().map(|(file, text)| (file.as_str(), text.as_str())).collect();
    files.push(("others.yaml", &others));
    Node::start_program(std::env::current_exe().unwrap(), &files)
}

fn file(service: u32) -> String {
    format!("changing-{service:03}.yaml")
}

/// Changes one service.
pub(crate) fn change(node: &Node, service: u32, round: u32) {
    node.write(&file(service), &manifest(service, round));
}

#[derive(Default)]
pub(crate) struct Changer {
    stop: AtomicBool,
    done: AtomicU32,
}

/// Ends the changes when dropped, because a failed measurement would otherwise wait for their thread for ever.
pub(crate) struct RunningChanges<'a>(&'a Changer);

impl Drop for RunningChanges<'_> {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::Relaxed);
    }
}

impl Changer {
    /// Changes services at their pace, and catches up after delays on a busy machine.
    #[must_use]
    pub(crate) fn start<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        node: &'scope Node,
    ) -> RunningChanges<'scope> {
        scope.spawn(move || {
            let begun = Stopwatch::start();
            while !self.stop.load(Ordering::Relaxed) {
                let done = self.done.fetch_add(1, Ordering::Relaxed);
                change(node, done % CHANGING, 1 + done / CHANGING);
                pause((PACE * (done + 1)).saturating_sub(begun.read()));
            }
        });
        RunningChanges(self)
    }

    pub(crate) fn done(&self) -> u32 {
        self.done.load(Ordering::Relaxed)
    }
}

/// A service and its slice. Its backends change in each round, and drain in each tenth.
fn manifest(service: u32, round: u32) -> String {
    let [_, _, high, low] = service.to_be_bytes();
    let drains = round % 10 == 9;
    let endpoints = (0..1 + round % 4).fold(String::new(), |mut text, nth| {
        let last = 1 + (round + nth) % 250;
        let ready = !drains;
        writeln!(
            text,
            "- addresses: [10.{high}.{low}.{last}]\n  \
             conditions: {{ready: {ready}, serving: true, terminating: {drains}}}"
        )
        .unwrap();
        text
    });
    format!(
        "---
apiVersion: v1
kind: Service
metadata: {{name: web-{service}, namespace: load}}
spec: {{clusterIP: 10.96.{high}.{low}, ports: [{{name: http, port: 80}}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: web-{service}-1
  namespace: load
  labels: {{kubernetes.io/service-name: web-{service}}}
  managedFields: [{{manager: endpointslice-controller, operation: Update, time: '2026-01-08T11:11:55Z'}}]
addressType: IPv4
ports: [{{name: http, port: 8080, protocol: TCP}}]
endpoints:
{endpoints}"
    )
}
