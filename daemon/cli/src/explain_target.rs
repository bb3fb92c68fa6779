//! What `explain` is asked about: an address with its port, a node port, or a service.
//!
//! Invariant: a number before a slash is a namespace, and no port.

use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};

use super::filters::ExplainArgs;

/// The node port that `30080`, `:30080` or a table's `*:30080/TCP` means, as an address of all.
pub(super) fn expand_node_port(what: &str) -> Cow<'_, str> {
    let (port, protocol) =
        what.split_once('/').map_or((what, None), |(port, protocol)| (port, Some(protocol)));
    let (any, port) = match (port.strip_prefix("[*]:"), port.strip_prefix("*:").or(port.strip_prefix(':'))) {
        (Some(port), _) => ("[::]", port),
        (None, Some(port)) => ("0.0.0.0", port),
        // A number before a slash is a namespace.
        (None, None) if protocol.is_some() => return Cow::Borrowed(what),
        (None, None) => ("0.0.0.0", port),
    };
    if !port.parse::<u16>().is_ok_and(|port| port > 0) {
        return Cow::Borrowed(what);
    }
    let protocol = protocol.map(|it| format!("/{it}")).unwrap_or_default();
    Cow::Owned(format!("{any}:{port}{protocol}"))
}

/// What to type where a packet is asked about and no port of an address is given; `None`: all is given.
pub(super) fn describe_missing_port(ExplainArgs { what, from, udp }: &ExplainArgs) -> Option<String> {
    let what = &*expand_node_port(what.as_deref()?);
    let option = if from.is_some() { "--from" } else { "--udp" };
    let address = what.split_once('/').map_or(what, |(address, _)| address);
    if from.is_none() && !udp || address.parse::<SocketAddr>().is_ok() {
        return None;
    }
    let why = format!("{option} needs what the client dials, an address with its port, and {what} is");
    let from = from.as_deref().unwrap_or("IP");
    Some(match (address.parse::<IpAddr>(), what.contains('/')) {
        (Ok(_), _) => {
            format!("{why} an address alone\nhint: `holdfast explain {address}` lists the ports there")
        }
        (Err(_), true) => format!(
            "{why} a service\nhint: `holdfast frontends {what}` lists its addresses, and `holdfast diagnose {what} \
             --client {from}` tries all of them"
        ),
        (Err(_), false) => format!("{why} neither that nor a service\nhint: such as 10.96.0.10:80"),
    })
}
