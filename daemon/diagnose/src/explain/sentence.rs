//! One sentence for each thing that a client can meet, and one for what happens next.
//!
//! Invariant: every verdict and every reason has its words here, and a section of its own in docs/explain.md.

use holdfast_core::address_policy::is_reserved;
use holdfast_core::hold::Bound;
use holdfast_core::keys::{FrontendKey, Protocol};
use holdfast_core::list::Row;
use holdfast_core::op::FrontendType;
use holdfast_core::snapshot::{
    FrontendView, PortView, Reason, ServiceState, ServiceView, Snapshot, Status, Verdict,
};

use super::place::{describe_precedence, format_place};
use holdfast_status::rfc3339::Rfc3339;

/// The most backends in a sentence; more are counted.
const NAMED_MAX: usize = 3;

/// What a client of this frontend meets.
pub fn describe_frontend(view: &ServiceView, it: &FrontendView, snapshot: &Snapshot) -> String {
    let backends: Vec<Row> = view.backends(it).collect();
    let name = format_frontend(view, it, snapshot);
    let since = Rfc3339(it.since);
    let who = join_backends(&backends);
    match it.verdict {
        Verdict::Serving => format!("{name} is served{}.", describe_serving_times(it, &who)),
        Verdict::Draining => {
            format!("{name} is still served by {who}, all terminating, because no other endpoint is usable.")
        }
        Verdict::Held if it.reason == Some(Reason::Control) => format!(
            "{name} is held: its slices list nobody, and new connections still go to {who}, because {}, since {since}.",
            describe_reason(it.reason)
        ),
        Verdict::Held => format!(
            "{name} is held: new connections still go to {who}, although {}, since {since}.",
            describe_reason(it.reason)
        ),
        Verdict::Refusing => {
            let why = match view.lacks_manifest_slices(it) {
                true => "the manifests have no EndpointSlice of it",
                false => describe_reason(it.reason),
            };
            format!("{name} refuses every connection (ECONNREFUSED), because {why}, since {since}.")
        }
        Verdict::Dropping => format!(
            "{name} drops every connection, because its traffic policy is Local and every usable endpoint is on another node."
        ),
        Verdict::Passing => format!(
            "{name} is not translated, because {}, and the service asks to leave the answer to the real balancer.",
            describe_reason(it.reason)
        ),
        Verdict::Bypassed => {
            format!("{name} is not translated, because the node reaches the apiserver at this very address.")
        }
        Verdict::Conflict if it.reason == Some(Reason::Listener) => {
            format!(
                "{name} is not served, because a process of this node listens at {}.",
                describe_socket(it, snapshot)
            )
        }
        Verdict::Conflict => {
            let (owner, rule) = describe_owner(view, it, snapshot);
            format!("{name} is not served, because {owner} has the address and its clients{rule}.")
        }
        Verdict::Unprogrammed if it.reason == Some(Reason::Address) => {
            format!("{name} is not served, because {}.", AddressRefusal::classify(it, snapshot).reason())
        }
        Verdict::Unprogrammed => match &it.status {
            Status::Error(error) => format!("{name} is not served: {error}."),
            Status::Pending | Status::Done => {
                format!("{name} is not served, because {}.", untranslated_reason(&it.protocol))
            }
        },
    }
}

/// Since when it serves, and since when these backends, whose list may have changed later.
fn describe_serving_times(it: &FrontendView, who: &str) -> String {
    let [verdict_since, since] = [it.verdict_since, it.since].map(Rfc3339);
    match it.verdict_since == it.since {
        true => format!(" by {who}, since {since}"),
        false => format!(", since {verdict_since}. Clients get {who}, since {since}"),
    }
}

pub(super) fn describe_service(view: &ServiceView) -> String {
    let name = &view.key.name;
    match view.state {
        ServiceState::Served => format!("{name} has frontends."),
        ServiceState::NoAddress => format!("{name} has no address that a client could dial."),
        ServiceState::Headless => {
            format!("{name} is headless: clients find its endpoints by DNS, and nothing is to be done.")
        }
        ServiceState::ExternalName => format!("{name} is a DNS alias, and nothing is to be done."),
        ServiceState::OtherProxy => {
            format!(
                "{name} belongs to another proxy, says its label service.kubernetes.io/service-proxy-name."
            )
        }
        ServiceState::NoService => {
            format!(
                "{name} is named by EndpointSlices only: its Service is not there, or not for this proxy."
            )
        }
    }
}

enum AddressRefusal {
    /// It means this host, this link or all hosts.
    Reserved,
    /// The configuration does not allow it.
    NotAllowed,
    /// It is the node's, and an imported service may not have it.
    NodeAddress,
    /// It is the node's, and the kernel has not reported the ports of its processes.
    ListenersUnknown,
    /// It is the node's, and one of the node's own servers has the port.
    NodePortTaken,
}

impl AddressRefusal {
    fn classify(it: &FrontendView, snapshot: &Snapshot) -> Self {
        let is_chosen = matches!(it.kind, FrontendType::ExternalIp | FrontendType::ClusterSetIp);
        if is_reserved(it.address) {
            Self::Reserved
        } else if is_chosen && !snapshot.settings.external_ips.allows(it.address) {
            Self::NotAllowed
        } else if it.kind == FrontendType::ClusterSetIp {
            Self::NodeAddress
        } else if is_chosen && snapshot.listeners.is_none() {
            Self::ListenersUnknown
        } else {
            Self::NodePortTaken
        }
    }

    const fn reason(&self) -> &'static str {
        match self {
            Self::Reserved => {
                "the address means this host, this link or everybody, and no object may have such a frontend"
            }
            Self::NotAllowed => "`external_ips` under [kubernetes] does not allow the address",
            Self::NodeAddress => "this node has the address itself, and no ServiceImport may take its ports",
            Self::ListenersUnknown => {
                "this node has the address itself, and the kernel has not told at which ports its processes listen"
            }
            Self::NodePortTaken => {
                "this node has the address itself, and the port is kubelet's, the apiserver's, etcd's or this daemon's"
            }
        }
    }

    const fn next_step(&self) -> &'static str {
        match self {
            Self::Reserved => {
                "Only a [[service]] of the configuration may have an address of this host or link."
            }
            Self::NotAllowed => {
                "It is served as soon as `external_ips` under [kubernetes] allows the address."
            }
            Self::ListenersUnknown => {
                "It is served as soon as the kernel tells, or `external_ips` under [kubernetes] has this very address, \
                 as a range of its own."
            }
            Self::NodeAddress | Self::NodePortTaken => {
                "It is served as soon as the node no longer has the address."
            }
        }
    }
}

/// The socket that conflicts with the frontend.
fn describe_socket(it: &FrontendView, snapshot: &Snapshot) -> String {
    let key = it.protocol.transport().map(|transport| FrontendKey {
        address: it.address,
        port: it.port,
        transport,
    });
    let listener = key.and_then(|key| snapshot.listeners.as_ref()?.find_listener(&key));
    listener.map_or_else(|| "this port".to_owned(), |it| it.to_string())
}

/// The service that has the address, and the rule by which its claim comes first, to append to a sentence.
fn describe_owner(view: &ServiceView, it: &FrontendView, snapshot: &Snapshot) -> (String, String) {
    let owner = it.owner.as_ref().map_or_else(|| "another service".to_owned(), |key| key.name.to_string());
    let rule = describe_precedence(snapshot, view, it);
    let rule = rule.map(|rule| format!(": the claim of {owner} comes first {rule}")).unwrap_or_default();
    (owner, rule)
}

fn format_frontend(view: &ServiceView, it: &FrontendView, snapshot: &Snapshot) -> String {
    let port = if it.port_name.is_empty() { String::new() } else { format!(", port {}", it.port_name) };
    format!("{} ({} of {}{port})", format_place(it, &snapshot.node), it.kind.as_str(), view.key.name)
}

fn join_backends(rows: &[Row]) -> String {
    let names: Vec<String> = rows.iter().take(NAMED_MAX).map(|row| row.backend().to_string()).collect();
    match rows.len() {
        0 => "nobody".to_owned(),
        1 => names.join(", "),
        count if count <= NAMED_MAX => format!("{count} backends ({})", names.join(", ")),
        count => format!("{count} backends ({} and {} more)", names.join(", "), count - NAMED_MAX),
    }
}

/// Why a protocol is not translated, as a clause.
fn untranslated_reason(protocol: &Protocol) -> String {
    match protocol.transport() {
        Some(transport) => format!("{transport} is translated by packets alone, and these are left alone"),
        None => format!("{protocol} cannot be translated"),
    }
}

/// The reason as a clause.
pub fn describe_reason(reason: Option<Reason>) -> &'static str {
    match reason {
        None => "all is well",
        Some(Reason::NoEndpoints) => "this daemon has seen no usable endpoint of it yet",
        Some(Reason::AllUnready) => "endpoints are listed and none of them is ready",
        Some(Reason::ScaledDown) => "it was scaled down: each endpoint was seen terminating before it went",
        Some(Reason::Hidden) => {
            "no slice with an endpoint of it is read: the label service.kubernetes.io/headless keeps proxies away"
        }
        Some(Reason::Vanished) => {
            "the endpoints that served last are not listed any more, and were not seen terminating"
        }
        Some(Reason::Resync) => {
            "its endpoints vanished shortly after the source was interrupted or listed anew"
        }
        Some(Reason::MassLoss) => "its endpoints vanished together with those of many other services",
        Some(Reason::HoldExpired) => "its endpoints vanished, and the hold has reached its bound",
        Some(Reason::ProbesFailed) => "its endpoints vanished, and none of them took a probe any more",
        Some(Reason::LocalPolicy) => "its traffic policy is Local and no usable endpoint is on this node",
        Some(Reason::Claimed) => "another service has the address",
        Some(Reason::Listener) => "a process of this node listens there",
        Some(Reason::Address) => "the address may not be a frontend",
        Some(Reason::Protocol) => "its protocol cannot be translated",
        Some(Reason::Control) => "it is how this node reaches the apiserver",
        Some(Reason::AddressReused) => "its endpoints vanished, and other pods have their addresses now",
    }
}

/// What the frontend does next by itself.
pub(super) fn next_step(view: &ServiceView, it: &FrontendView, snapshot: &Snapshot) -> String {
    if let Status::Error(_) = it.status {
        return "The maps refused the last change; it is tried again with growing pauses of at most 30 s."
            .to_owned();
    }
    let port = it.position.and_then(|at| view.ports.get(at));
    match it.verdict {
        Verdict::Held => port.map_or_else(String::new, |port| describe_hold_end(port, snapshot)),
        Verdict::Serving if it.protocol == Protocol::SCTP => {
            format!("{} Packets that come by a device are served, sockets are not.", keep_step(view))
        }
        Verdict::Serving => keep_step(view),
        Verdict::Draining => {
            "New connections are refused at once when the last terminating endpoint has gone.".to_owned()
        }
        Verdict::Refusing if view.lacks_manifest_slices(it) => {
            "It stays unserved until you write an EndpointSlice into the manifests: no controller writes one there."
                .to_owned()
        }
        Verdict::Refusing if it.reason == Some(Reason::NoEndpoints) => {
            "It is served with the first endpoint that is ready.".to_owned()
        }
        Verdict::Refusing => "It is served again with the first endpoint that is ready.".to_owned(),
        Verdict::Dropping => "It is served again with the first ready endpoint on this node.".to_owned(),
        Verdict::Passing => "It is translated again with the first endpoint that is ready.".to_owned(),
        Verdict::Bypassed => "The direct path stays direct.".to_owned(),
        Verdict::Conflict if it.reason == Some(Reason::Listener) => {
            "It is served within some seconds of the moment when no process listens there, or as soon as `external_ips` \
             under [kubernetes] has this very address, as a range of its own."
                .to_owned()
        }
        Verdict::Conflict => {
            let (owner, _) = describe_owner(view, it, snapshot);
            format!("{} gets the address as soon as {owner} gives it up.", view.key.name)
        }
        Verdict::Unprogrammed if it.reason == Some(Reason::Address) => {
            AddressRefusal::classify(it, snapshot).next_step().to_owned()
        }
        Verdict::Unprogrammed if it.protocol == Protocol::SCTP => {
            "It is served, to clients whose packets are, as soon as `enabled = true` under [packets] says so."
                .to_owned()
        }
        Verdict::Unprogrammed => "Only TCP, UDP and SCTP are translated.".to_owned(),
    }
}

/// What stays as it is, and the command that looks for what this node does not see by serving: holdfast hands clients
/// to backends without knowing whether these take them.
fn keep_step(view: &ServiceView) -> String {
    format!("It stays served. Clients fail nonetheless? holdfast diagnose {}", view.key.name)
}

fn describe_hold_end(port: &PortView, snapshot: &Snapshot) -> String {
    let Some(hold) = &port.hold else { return String::new() };
    let ends = match snapshot.hold_until(hold) {
        None => return "The hold has no limit; it ends when the endpoints return.".to_owned(),
        Some(until) => Rfc3339(until),
    };
    let probed = hold.backends.iter().filter(|it| it.answered && it.lost.is_none()).count();
    let transport = port.key.transport;
    let is_barred = hold.probe_targets(transport).next().is_none()
        && hold.unprobeable_targets(transport).next().is_some();
    let probes = match hold.bound {
        _ if is_barred => "no backend is probed, because no pod can have such an address",
        Bound::Guarded if probed == 0 && hold.awaits_first_probe() => "not every backend has been probed yet",
        Bound::Guarded if probed == 0 => "no backend has taken a probe yet, and one that does prolongs it",
        _ if probed == 0 => "no backend has taken a probe yet",
        _ => "backends that fail three probes in a row leave the list before",
    };
    format!(
        "The hold ends when the endpoints return, at the latest at {ends}; {probes}. After that connections are refused."
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_words_and_a_section() {
        let page = include_str!("../../../../docs/explain.md");
        let tables = include_str!("../../../../docs/tables.md");
        for reason in Reason::ALL {
            assert!(!describe_reason(Some(reason)).is_empty());
            let heading = format!("## {}\n", reason.as_str());
            assert!(page.contains(&heading), "docs/explain.md has no section {heading:?}");
            let row = format!("| `{}` |", reason.as_str());
            assert!(tables.contains(&row), "docs/tables.md has no row {row:?}");
        }
    }

    #[test]
    fn the_page_names_every_verdict() {
        let page = include_str!("../../../../docs/explain.md");
        for verdict in Verdict::ALL {
            assert!(
                page.contains(&format!("`{}`", verdict.as_str())),
                "docs/explain.md lacks {}",
                verdict.as_str()
            );
        }
    }
}
