//! The time to open the page for a large node, and its memory in the browser.

use std::fmt::Write as _;

use holdfast_tests::size::sized;

use crate::browser::{Browser, Kind};
use crate::memory::{ARGUMENTS, heap, renderer};
use crate::node::Node;
use crate::process::private;

const SERVICES_PER_FILE: u32 = 500;

/// Records when all rows are there, within a frame or two.
const NOTE: &str = "() => { const timer = setInterval(() => { \
    const said = document.querySelector('main [role=status]')?.textContent ?? ''; \
    if (!said.startsWith(TOLD)) return; clearInterval(timer); window.whole = performance.now(); }, 10); }";

pub(crate) fn measure() {
    for endpoints in [1, 200] {
        let services: u32 = sized(10_000, 100);
        let files: Vec<(String, String)> = (0..services.div_ceil(SERVICES_PER_FILE))
            .map(|file| (format!("{file}.yaml"), manifests(file, services, endpoints)))
            .collect();
        let files: Vec<(&str, &str)> =
            files.iter().map(|(file, text)| (file.as_str(), text.as_str())).collect();
        let node = Node::start_program(std::env::current_exe().unwrap(), &files);
        opened(&node, services, endpoints);
    }
}

fn opened(node: &Node, services: u32, endpoints: u32) {
    let mut browser = Browser::start_with(Kind::Chromium, &ARGUMENTS);
    browser.keep_no_answers();
    let all = if services < 1_000 { services.to_string() } else { format!("{},000", services / 1_000) };
    browser.first(&NOTE.replace("TOLD", &format!("'{all} of {all} '")));
    browser.open(&node.url("frontends"));
    browser.until("!!window.whole");
    let paint = browser.value("performance.getEntriesByName('first-contentful-paint')[0].startTime");
    let whole = browser.value("window.whole");
    let renderer = renderer(&mut browser);
    let most = private(renderer);
    browser.collected();
    let heap = heap(&mut browser);
    println!(
        "{services} services of {endpoints} endpoints: first paint after {paint} ms, all rows after {whole} ms; \
         {most:.1} MB private then, {heap:.1} MB of JavaScript after a collection",
    );
}

fn manifests(file: u32, services: u32, endpoints: u32) -> String {
    let all: String = (1..=endpoints).fold(String::new(), |mut text, last| {
        writeln!(text, "- {{addresses: [10.0.0.{last}]}}").unwrap();
        text
    });
    let numbers = file * SERVICES_PER_FILE..services.min((file + 1) * SERVICES_PER_FILE);
    numbers.fold(String::new(), |mut text, service| {
        let [_, _, high, low] = service.to_be_bytes();
        write!(
            text,
            "---
apiVersion: v1
kind: Service
metadata: {{name: web-{service}, namespace: load}}
spec: {{clusterIP: 10.96.{high}.{low}, ports: [{{port: 80}}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: web-{service}-1, namespace: load, labels: {{kubernetes.io/service-name: web-{service}}}}}
addressType: IPv4
ports: [{{port: 8080}}]
endpoints:
{all}"
        )
        .unwrap();
        text
    })
}
