//! The lines about clients that were turned away lately, at frontends that are served.
//!
//! Invariant: a client that a rule keeps out is shown, and is no fault of the node. A shortage of the node is one.

use holdfast_status::views::refusals::Cause;
use serde::{Deserialize, Serialize};

/// Clients that were turned away at one frontend for one cause.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct DeniedClients {
    service: Option<String>,
    frontend: String,
    protocol: String,
    verdict: String,
    cause: String,
    why: String,
    stage: String,
    count: u64,
    clients: Vec<String>,
    more_clients: u64,
    last: String,
}

impl DeniedClients {
    /// Whether this node lacks what the clients need.
    pub(super) fn is_shortage(&self) -> bool {
        Cause::ALL.iter().any(|cause| cause.as_str() == self.cause && cause.is_shortage())
    }

    pub(super) fn describe_state(&self) -> String {
        let Self { service, frontend, protocol, verdict, count, why, last, .. } = self;
        let service = service.as_deref().unwrap_or("no service");
        let unit = match (self.stage.as_str(), count) {
            ("packet", 1) => "packet",
            ("packet", _) => "packets",
            (_, 1) => "try",
            (_, _) => "tries",
        };
        let more = match self.more_clients {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let clients = self.clients.join(", ");
        format!(
            "{service}: {frontend}/{protocol} {verdict} {count} {unit} of {clients}{more}, the last at {last}: {why}"
        )
    }

    /// The service whose clients found no backend a short while ago, or for whom this node has no room.
    pub(super) fn failed_service(&self) -> Option<&str> {
        let has_failed = self.is_shortage() || self.cause == Cause::NoBackend.as_str();
        self.service.as_deref().filter(|_| has_failed)
    }

    /// The command that says more: what meets this client, or what is wrong with the service.
    pub(super) fn next_command(&self) -> String {
        let Self { service, frontend, protocol, .. } = self;
        let udp = if protocol == "UDP" { " --udp" } else { "" };
        match (self.cause.as_str(), service, self.clients.first()) {
            ("source", _, Some(client)) => format!("next: holdfast explain {frontend} --from {client}{udp}"),
            ("no-such-port", ..) | (_, None, _) => format!("next: holdfast explain {frontend}{udp}"),
            (_, Some(service), _) => format!("next: holdfast diagnose {service}"),
        }
    }
}
