//! The sentence about an address without a port.
//!
//! Invariant: it names what is there and no more; the sections below it say how each is served.

use std::net::{IpAddr, SocketAddr};

use super::query_match::{QueryMatch, Subject};

/// The most ports in the sentence; more are counted.
const NAMED_MAX: usize = 8;

/// Names the ports of the frontends at an address, or the backends there.
pub(super) fn describe_host(host: IpAddr, found: QueryMatch, subjects: &[Subject]) -> String {
    match found {
        QueryMatch::Frontend => {
            let ports = subjects.iter().flat_map(list_frontends);
            format!("{host} has the frontends {}.", join_some(ports))
        }
        QueryMatch::Backend => {
            let backends = subjects.iter().flat_map(|subject| list_backends(subject, host));
            format!("{host} is no frontend; it has the backends {}.", join_some(backends))
        }
        QueryMatch::Trouble | QueryMatch::Service | QueryMatch::Nothing => {
            format!("No service has {host}: holdfast does not translate packets to it.")
        }
    }
}

fn list_frontends(subject: &Subject) -> impl Iterator<Item = String> {
    let service = &subject.view.key.name;
    subject.frontends().map(move |it| format!("{}/{} of {service} ({})", it.port, it.protocol, it.verdict))
}

fn list_backends(subject: &Subject, host: IpAddr) -> impl Iterator<Item = String> {
    let service = &subject.view.key.name;
    let rows = subject.view.ports.iter().flat_map(move |port| {
        let transport = port.key.transport;
        port.rows.rows_at(host).map(move |row| (row.backend(), transport))
    });
    rows.map(move |(backend, transport): (SocketAddr, _)| format!("{backend}/{transport} of {service}"))
}

fn join_some(all: impl Iterator<Item = String>) -> String {
    let all: Vec<String> = all.collect();
    let shown = all.iter().take(NAMED_MAX).cloned().collect::<Vec<_>>().join(", ");
    match all.len().saturating_sub(NAMED_MAX) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}
