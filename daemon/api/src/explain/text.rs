//! An explanation for people: the sentence first, then its evidence.

use std::fmt::Write as _;

use holdfast_core::keys::Source;
use holdfast_core::op::FrontendType;
use holdfast_core::snapshot::{ServiceState, Verdict};
use holdfast_diagnose::explain::{
    ClientAddress, EndpointRow, ExplainedService, Explanation, FrontendRow, GUIDE_URL, LoadBalancer,
    ObjectRef, Outcome, Packet, PacketShare, RefusalRow, SliceRef,
};
use holdfast_status::printable::Printable;
use holdfast_status::views::clients::Clients;

pub(super) fn write(explanation: &Explanation<'_>) -> String {
    let mut out = String::new();
    push_line(&mut out, 0, &explanation.sentence);
    if let Some(packet) = &explanation.packet {
        write_packet(&mut out, packet);
    }
    for service in &explanation.services {
        write_service(&mut out, service, explanation.packet.as_ref());
    }
    if !explanation.near.is_empty() {
        push_heading(&mut out, "Near it:");
    }
    for near in &explanation.near {
        push_line(&mut out, 1, &format!("{}: {}", near.what, near.name));
    }
    if !explanation.past.is_empty() {
        push_heading(&mut out, "Before:");
    }
    for record in &explanation.past {
        push_line(&mut out, 1, &record.sentence());
    }
    if let Some(apiserver) = &explanation.apiserver {
        push_heading(&mut out, &format!("Apiserver: {apiserver}"));
    }
    if let Some(since) = explanation.stale_since {
        push_line(
            &mut out,
            0,
            &format!("Stale: as remembered from {since}; a source has not delivered since"),
        );
    }
    out
}

/// Writes one line; foreign text in `text` cannot begin another one.
fn push_line(out: &mut String, depth: usize, text: &str) {
    // Writing to a String cannot fail.
    let _ = writeln!(out, "{:depth$}{}", "", Printable(text), depth = depth * 2);
}

/// Writes a heading after a blank line.
fn push_heading(out: &mut String, text: &str) {
    out.push('\n');
    push_line(out, 0, text);
}

/// Writes the path of a packet: the steps in one column, their results in the next, then backends.
fn write_packet(out: &mut String, packet: &Packet) {
    push_heading(out, "Step by step, from the maps as they are; nothing was sent:");
    for step in &packet.steps {
        push_line(out, 1, &format!("{:<9} {}", step.step.to_string(), step.says));
    }
    for it in &packet.backends {
        push_line(out, 2, &share_line(it));
    }
    if packet.more_backends > 0 {
        push_line(out, 2, &format!("and {} more, each with the same share", packet.more_backends));
    }
}

fn share_line(it: &PacketShare) -> String {
    let node = it.node.as_ref().map(|node| format!(" on {node}")).unwrap_or_default();
    let draining = if it.draining { ", terminating" } else { "" };
    let seen = match it.seen_as.0 {
        _ if it.is_loopback => "gets nothing from a device",
        ClientAddress::Client => "sees the client",
        ClientAddress::Dsr => "sees the client and answers it directly",
        ClientAddress::Node => "sees this node",
        ClientAddress::Unknown => "sees the client or this node",
    };
    format!("{:.1} % {}{node}{draining}, {seen}", it.share * 100.0, it.backend)
}

fn write_service(out: &mut String, it: &ExplainedService<'_>, packet: Option<&Packet>) {
    // A service with frontends has its verdicts; `served` beside a refusing one reads as a contradiction.
    let state = match it.state.0 {
        ServiceState::Served => String::new(),
        state => format!(", {}", state.as_str()),
    };
    push_heading(out, &format!("Service {} ({}{state})", it.service, it.source));
    if let Some(line) = describe_next_command(it, packet) {
        push_line(out, 1, &line);
    }
    if let Some(balancer) = &it.load_balancer {
        push_line(out, 1, &describe_balancer(it, balancer));
    }
    if !it.source_ranges.is_empty() {
        let ranges = it.source_ranges.join(", ");
        push_line(out, 1, &format!("Source ranges: the load balancer is for clients of {ranges} alone"));
    }
    write_troubles(out, it);
    for frontend in &it.frontends {
        write_frontend(out, frontend);
    }
    for line in describe_clients(&it.frontends) {
        push_line(out, 1, &line);
    }
    write_objects(out, it);
    for rejected in &it.rejected {
        let what = if rejected.partial { "Ignored in" } else { "Rejected" };
        push_line(out, 1, &format!("{what} {}: {}", rejected.object, rejected.reason));
    }
    if let Some(name) = &it.resolved {
        push_line(out, 1, &format!("Backends by DNS: {name}"));
    }
    if !it.endpoints.is_empty() {
        push_line(out, 1, "Endpoints:");
    }
    for endpoint in &it.endpoints {
        push_line(out, 2, &endpoint_line(endpoint));
        if let Some(check) = &endpoint.check {
            push_line(out, 3, &check.to_string());
        }
    }
    for refused in &it.refusals {
        push_line(out, 1, &refused_line(refused));
    }
    if !it.history.is_empty() {
        push_line(out, 1, "History:");
    }
    for record in &it.history {
        push_line(out, 2, &record.sentence());
    }
}

/// The load balancer, and the service that gets its clients on this node, if that is another one.
fn describe_balancer(it: &ExplainedService<'_>, balancer: &LoadBalancer<'_>) -> String {
    let is_lost = |frontend: &&FrontendRow<'_>| {
        frontend.r#type.0 == FrontendType::LoadBalancer && frontend.verdict.0 == Verdict::Conflict
    };
    let owner = it.frontends.iter().find(is_lost).and_then(|frontend| frontend.owner.as_deref());
    let lost = owner.map(|owner| format!(" On this node {owner} has that address.")).unwrap_or_default();
    format!("Load balancer ({}): {}{lost}", balancer.state, balancer.sentence(&it.service))
}

/// Writes what fails clients although its frontends have backends.
fn write_troubles(out: &mut String, it: &ExplainedService<'_>) {
    for closed in &it.closed_ports {
        push_line(out, 1, &format!("Health check port {closed}"));
    }
    for other in &it.node_port_listeners {
        push_line(out, 1, &format!("Other process: {other}"));
    }
    for failing in &it.failing_backends {
        push_line(out, 1, &format!("Fails clients: {failing}"));
    }
    if it.more_failing_backends > 0 {
        push_line(out, 1, &format!("Backends that fail clients too: {}", it.more_failing_backends));
    }
    if let Some(shortage) = &it.shortage {
        push_line(out, 1, &format!("No room: {shortage}"));
    }
}

/// The command that finds the cause and the remedy: an explanation tries no backend and asks no apiserver.
fn describe_next_command(it: &ExplainedService<'_>, packet: Option<&Packet>) -> Option<String> {
    if let Some(lost) = packet.filter(|it| matches!(it.outcome.0, Outcome::Refused | Outcome::Dropped)) {
        return Some(format!("Cause and remedy: holdfast diagnose {} --client {}", it.service, lost.from));
    }
    let is_served = |frontend: &FrontendRow<'_>| {
        matches!(frontend.verdict.0, Verdict::Serving | Verdict::Bypassed) && frontend.error.is_none()
    };
    let are_ports_own = it.closed_ports.is_empty() && it.node_port_listeners.is_empty();
    let do_backends_answer = it.failing_backends.is_empty() && it.failing_checks.is_empty();
    let is_well =
        it.shortage.is_none() && are_ports_own && do_backends_answer && it.frontends.iter().all(is_served);
    let ask = match (it.frontends.is_empty(), is_well) {
        (true, _) => return None,
        (false, true) => "Clients fail nonetheless?",
        (false, false) => "Cause and remedy:",
    };
    Some(format!("{ask} holdfast diagnose {}", it.service))
}

fn write_frontend(out: &mut String, it: &FrontendRow<'_>) {
    let reason = it.reason.map(|reason| format!(" ({reason})")).unwrap_or_default();
    push_line(
        out,
        1,
        &format!("{} {}: {}{reason} since {}", it.place, it.r#type, it.verdict, it.verdict_since),
    );
    if let Some(error) = it.error {
        push_line(out, 2, &format!("error: {error}"));
    }
    push_line(out, 2, &format!("backends: {}", join_backends(&it.backends)));
    if let Some(external) = &it.external_backends {
        push_line(out, 2, &format!("for clients from outside: {}", join_backends(external)));
    }
    push_line(out, 2, &format!("in the maps now: {}", describe_applied(it)));
    if let Some(announcement) = &it.announcement {
        push_line(out, 2, &announcement.to_string());
    }
    // A served frontend stays as it is; the command for its service is said once.
    if it.verdict.0 != Verdict::Serving || it.error.is_some() || it.protocol == "SCTP" {
        push_line(out, 2, &format!("later: {}", it.next));
    }
    if let Some(page) = &it.page {
        push_line(out, 2, &format!("see: {GUIDE_URL}{page}"));
    }
}

/// The counts of each port once: its frontends share them.
fn describe_clients(frontends: &[FrontendRow<'_>]) -> Vec<String> {
    let mut ports = Vec::new();
    let mut lines = Vec::new();
    for it in frontends {
        let port = (it.port_name, it.protocol);
        // The entry of a conflict is its owner's, and so are the counts.
        let own_clients = it.applied.clients.filter(|_| it.verdict.0 != Verdict::Conflict);
        let Some(Clients { connects, refused, dropped }) = own_clients else { continue };
        if ports.contains(&port) {
            continue;
        }
        ports.push(port);
        let port = if it.port_name.is_empty() { String::new() } else { format!(" at port {}", it.port_name) };
        // A kernel sends a dropped SYN again.
        let again = if dropped > 0 { " (one connect may be several packets)" } else { "" };
        let packets = if dropped == 1 { "packet" } else { "packets" };
        lines.push(format!(
            "Tries so far{port} ({}, all frontends together): {connects} sent to a backend (whether it took them is \
             not counted), {refused} refused by holdfast, {dropped} {packets} dropped by holdfast{again}",
            it.protocol
        ));
    }
    lines
}

fn describe_applied(it: &FrontendRow<'_>) -> String {
    let applied = &it.applied;
    let verdict = match applied.matches {
        None => return applied.error.clone().unwrap_or_else(|| "not read".to_owned()),
        Some(true) => "as it should be",
        Some(false) => "NOT as it should be",
    };
    let owner = it.owner.as_deref().filter(|_| it.verdict.0 == Verdict::Conflict);
    if let (Some(owner), true) = (owner, applied.programmed) {
        format!("the backends of {owner}, which has the address: {}", join_backends(&applied.backends))
    } else if applied.programmed {
        format!("{} ({verdict})", join_backends(&applied.backends))
    } else {
        format!("absent ({verdict})")
    }
}

fn join_backends(backends: &[String]) -> String {
    if backends.is_empty() { "none".to_owned() } else { backends.join(", ") }
}

fn write_objects(out: &mut String, it: &ExplainedService<'_>) {
    if it.source.0 == Source::Config {
        write_block(out, it);
        return;
    }
    match &it.desired.object {
        Some(object) => push_line(out, 1, &format!("Service object: {}", describe_version(object))),
        None => push_line(out, 1, "Service object: unknown"),
    }
    for slice in &it.desired.slices {
        push_line(
            out,
            1,
            &format!(
                "EndpointSlice {}: {}, {}",
                slice.name,
                describe_endpoints(slice),
                describe_version(&slice.object)
            ),
        );
    }
    write_settings(out, it);
}

/// The `[[service]]` block. The slices that this daemon makes of it are no objects that anybody wrote.
fn write_block(out: &mut String, it: &ExplainedService<'_>) {
    let name = it.service.split_once('/').map_or(&*it.service, |(_, name)| name);
    let origin = it.desired.object.as_ref().and_then(|object| object.origin);
    let file = origin.map(|origin| format!(" in {origin}")).unwrap_or_default();
    push_line(out, 1, &format!("Configuration: the [[service]] block `{name}`{file}"));
    write_settings(out, it);
}

fn write_settings(out: &mut String, it: &ExplainedService<'_>) {
    let settings: Vec<String> =
        it.desired.settings.iter().map(|it| format!("{} = {} ({})", it.name, it.value, it.origin)).collect();
    push_line(out, 1, &format!("Settings: {}", settings.join(", ")));
}

fn describe_endpoints(slice: &SliceRef<'_>) -> String {
    let headless = if slice.headless { ", headless" } else { "" };
    match (slice.endpoints_null, slice.endpoints) {
        (true, _) => format!("endpoints: null{headless}"),
        (false, 1) => format!("1 endpoint{headless}"),
        (false, count) => format!("{count} endpoints{headless}"),
    }
}

fn describe_version(object: &ObjectRef<'_>) -> String {
    let mut parts = Vec::new();
    if let Some(version) = object.resource_version {
        parts.push(format!("version {version}"));
    }
    if let Some(writer) = object.writer {
        let written = object.written.map(|at| format!(" at {at}")).unwrap_or_default();
        parts.push(format!("last written by {writer}{written}"));
    }
    if let Some(origin) = object.origin {
        parts.push(format!("from {origin}"));
    }
    if parts.is_empty() { "known".to_owned() } else { parts.join(", ") }
}

fn refused_line(it: &RefusalRow) -> String {
    let (one, several) = if it.source.is_some() { ("packet", "packets") } else { ("try", "tries") };
    let unit = if it.count == 1 { one } else { several };
    let who = match &it.source {
        Some(source) => source.clone(),
        None => format!("pid {} ({})", it.pid, it.comm),
    };
    let why = it.cause.0.describe();
    format!("{} {} {} {unit}, the last of {who} at {}: {why}", it.frontend, it.verdict, it.count, it.time)
}

fn endpoint_line(it: &EndpointRow<'_>) -> String {
    let address = std::net::SocketAddr::new(it.address, it.port);
    let node = it.node.map(|node| format!(", on {node}")).unwrap_or_default();
    let weight = if it.weight == 1 { String::new() } else { format!(", weight {}", it.weight) };
    let (why, others) = split_reasons(&it.reasons);
    let others = if others.is_empty() { String::new() } else { format!(": {}", others.join(", ")) };
    format!("{address}/{} {}{why}{others}{node}{weight}, since {}", it.protocol, it.state, it.since)
}

/// Why an endpoint is unused, in parentheses, and its other reasons.
fn split_reasons(reasons: &[String]) -> (String, Vec<String>) {
    let is_condition = |reason: &&String| matches!(reason.as_str(), "ready" | "serving" | "terminating");
    let unused = |reason: &String| reason.strip_prefix("not used: ").map(str::to_owned);
    let why = reasons.iter().find_map(unused);
    let condition = describe_conditions(reasons);
    let condition = (why.as_deref() != Some(condition)).then(|| condition.to_owned());
    let rest = reasons.iter().filter(|it| !is_condition(it) && unused(it).is_none()).cloned();
    let why = why.map(|why| format!(" ({why})")).unwrap_or_default();
    (why, condition.into_iter().chain(rest).collect())
}

/// Kubernetes' conditions in words. A bare `serving` would read as our verdict.
fn describe_conditions(reasons: &[String]) -> &'static str {
    let has = |condition: &str| reasons.iter().any(|it| it == condition);
    match (has("ready"), has("serving"), has("terminating")) {
        (true, _, false) => "ready",
        (true, _, true) => "ready, terminating",
        (false, true, true) => "terminating, still serving",
        (false, false, true) => "terminating",
        (false, _, false) => "unready",
    }
}
