//! The meaning of failed test connections to backends: who is harmed, why, and what helps.
//!
//! Invariant: a backend that gets no new client harms nobody, whatever its test connection met.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use holdfast_core::keys::{Source, Transport};
use holdfast_core::list::Row;
use holdfast_core::snapshot::{PortView, UnusedReason};

use crate::case::Case;
use crate::command::{Command, CommandWord};
use crate::evidence::{Listener, Probe, ProbeKind, ProbeOutcome};
use crate::finding::{Judgement, Remedy};
use crate::formatting::{clean, join_names};

/// Whether the backend is in a list, so that new clients meet it.
pub(super) fn gets_clients(case: &Case<'_>, backend: SocketAddr) -> bool {
    case.ports().any(|port| port.rows.find(backend).is_some_and(|row| row.is_chosen()))
}

/// Judges failing backends that no new client meets.
pub(super) fn judge_unused(case: &Case<'_>, failed: &[&Probe], failure: &str) -> Judgement {
    let is_out = |it: &&Probe| case.checks().get(&it.to).is_some_and(|check| !check.usable);
    if failed.iter().all(is_out) {
        return Judgement::ok(format!("{failure} It gets no new client; see probe.checks."));
    }
    let reasons: BTreeSet<&str> = failed.iter().filter_map(|it| unused_reason(case, it.to)).collect();
    let why = if reasons.is_empty() { String::new() } else { format!(" ({})", join_names(reasons)) };
    let who = if failed.len() == 1 { "It gets" } else { "They get" };
    let is_any_used = case.ports().any(|port| port.rows.iter().any(|row| row.is_chosen()));
    let meaning = if is_any_used { ", so no client meets that" } else { ", and no other backend gets one" };
    let judgement = Judgement::info(format!("{failure} {who} no new client{why}{meaning}."));
    match name_pods(case, failed) {
        Some(pods) => judgement.remedy(Remedy::safe(format!("Look at {pods}: is its process up?"))),
        None => judgement,
    }
}

fn unused_reason(case: &Case<'_>, backend: SocketAddr) -> Option<&'static str> {
    let mut reasons = case.ports().filter_map(|port| port.unused_reason(&port.rows.find(backend)?));
    reasons.next().map(UnusedReason::as_str)
}

/// The share of new connections that fails, as a sentence with a blank behind it.
pub(super) fn describe_harm(case: &Case<'_>, met: &[&Probe]) -> String {
    match &*find_failing_ports(case, met) {
        [it] if it.failing == it.all => format!("Every new connection{} fails. ", it.name),
        [it] if it.is_even => {
            let verb = if it.failing == 1 { "fails" } else { "fail" };
            format!("About {} of {} new connections{} {verb}. ", it.failing, it.all, it.name)
        }
        all if !all.is_empty() && all.iter().all(|it| it.failing == it.all) => {
            "Every new connection to these ports fails. ".to_owned()
        }
        _ => "New connections that get such a backend fail. ".to_owned(),
    }
}

/// A port with failing backends in its list.
struct FailingPort {
    /// ` at port NAME` if the service has several.
    name: String,
    failing: usize,
    all: usize,
    /// Whether each backend gets the same share.
    is_even: bool,
}

fn find_failing_ports(case: &Case<'_>, met: &[&Probe]) -> Vec<FailingPort> {
    let several = case.ports().nth(1).is_some();
    let one = |port: &PortView| {
        let chosen = || port.rows.iter().filter(Row::is_chosen);
        let failing = chosen().filter(|row| met.iter().any(|it| it.to == row.backend())).count();
        let is_named = several && !port.key.name.is_empty();
        (failing > 0).then(|| FailingPort {
            name: if is_named { format!(" at port {}", clean(&port.key.name)) } else { String::new() },
            failing,
            all: chosen().count(),
            is_even: port.rows.weights().is_uniform(),
        })
    };
    case.ports().filter(|port| port.key.transport == Transport::Tcp).filter_map(one).collect()
}

/// The command that takes failing backends from new clients, if others are left for them.
fn drain_remedy(case: &Case<'_>, failed: &[&Probe]) -> Option<Remedy> {
    let met: Vec<&Probe> = failed.iter().copied().filter(|it| gets_clients(case, it.to)).collect();
    let hosts: BTreeSet<_> = met.iter().map(|it| it.to.ip()).collect();
    let ports = find_failing_ports(case, &met);
    let (Some(host), 1) = (hosts.first(), hosts.len()) else { return None };
    let is_enough = !ports.is_empty() && ports.iter().all(|it| it.failing < it.all);
    let words = [CommandWord::Literal("holdfast"), CommandWord::Literal("drain"), CommandWord::Ip(*host)];
    is_enough.then(|| {
        Remedy::safe(format!(
            "`holdfast drain {host}` ends these failures on this node: new clients get another backend, until \
             `holdfast undrain`."
        ))
        .with_command(Command::from_words(&words))
    })
}

/// The pods behind these addresses, as their endpoints name them.
fn name_pods(case: &Case<'_>, probes: &[&Probe]) -> Option<String> {
    let endpoints = case.endpoints();
    let pod = |probe: &&Probe| {
        let target = endpoints.get(&probe.to.ip())?.target.filter(|target| target.kind == "Pod")?;
        let namespace = if target.namespace.is_empty() { case.namespace() } else { target.namespace };
        Some(format!("Pod {}/{}", clean(namespace), clean(&target.name.to_string())))
    };
    let named: BTreeSet<String> = probes.iter().filter_map(pod).collect();
    (!named.is_empty()).then(|| join_names(named))
}

/// The meaning of these failures, and remedies.
pub(super) fn interpret_failures(
    case: &Case<'_>,
    all: &[&Probe],
    failed: &[&Probe],
) -> (String, Vec<Remedy>) {
    let is_all = failed.len() == all.len();
    let of = |local: bool| all.iter().filter(move |it| it.kind == ProbeKind::Backend { local });
    let fails =
        |local: bool| of(local).count() > 0 && of(local).all(|it| it.outcome != ProbeOutcome::Connected);
    if failed.iter().all(|it| it.outcome == ProbeOutcome::Refused) {
        return interpret_refusals(case, all, failed);
    }
    let (meaning, remedy) = match (is_all, fails(true), fails(false)) {
        (_, false, true) if of(true).count() > 0 => (
            "Those here answer and those on other nodes do not.",
            "Look at the network between nodes: tunnel or routes of the CNI plug-in, firewalls.",
        ),
        (_, true, false) if of(false).count() > 0 => (
            "Those on other nodes answer and those here do not.",
            "Look at NetworkPolicies and at this host's firewall.",
        ),
        (false, ..) => (
            "Other backends answer.",
            "Look at those pods and their nodes: are they up, does a NetworkPolicy or a firewall block them?",
        ),
        (true, ..) => (
            "None can be reached from this host.",
            "Look at the pods, at the network between nodes, at NetworkPolicies and firewalls.",
        ),
    };
    // Silence may be a policy against this host alone, so no drain is advised.
    (meaning.to_owned(), vec![Remedy::safe(remedy)])
}

/// The meaning of refused connections, and remedies. Who corrects it where depends on who lists the backends.
fn interpret_refusals(case: &Case<'_>, all: &[&Probe], failed: &[&Probe]) -> (String, Vec<Remedy>) {
    let ports: BTreeSet<u16> = failed.iter().map(|it| it.to.port()).collect();
    let answers =
        |port: &u16| all.iter().any(|it| it.to.port() == *port && it.outcome == ProbeOutcome::Connected);
    if ports.iter().all(answers) {
        return interpret_dead_backends(case, failed);
    }
    let named = join_names(failed.iter().map(|it| it.to));
    let ports = join_names(&ports);
    match case.source() {
        Some(Source::Config) => (
            format!("Nothing listens at {named}.{}", describe_other_listeners(case, failed)),
            correct_block(case, failed, &named),
        ),
        Some(Source::Manifests) => (
            format!(
                "The application does not listen on {ports}, the port in its EndpointSlice{}.",
                name_slice(case)
            ),
            vec![
                Remedy::safe("Look at which port the application listens."),
                Remedy::disruptive(
                    "Then correct `ports` of the EndpointSlice, or the application: of manifests, the slice counts and \
                     targetPort does not.",
                ),
            ],
        ),
        _ => (
            format!("The application does not listen on {ports} (the target port)."),
            vec![
                Remedy::safe("Look at which port the application listens."),
                Remedy::disruptive("Then correct targetPort of the Service, or the application."),
            ],
        ),
    }
}

/// Backends that refuse, while others answer at the same port.
fn interpret_dead_backends(case: &Case<'_>, failed: &[&Probe]) -> (String, Vec<Remedy>) {
    let named = join_names(failed.iter().map(|it| it.to));
    let look = match (case.source(), name_pods(case, failed)) {
        (Some(Source::Config), _) => Remedy::disruptive(
            "Start the process there, or take its address out of `backends` of the [[service]] block.",
        ),
        (_, pods) => Remedy::safe(format!(
            "Look at {}, not at the port: is its process up, and does the pod still exist?",
            pods.unwrap_or_else(|| "that pod".to_owned())
        )),
    };
    (
        format!("Nothing listens at {named}, and another backend answers at the same port."),
        drain_remedy(case, failed).into_iter().chain([look]).collect(),
    )
}

/// The one slice of a manifest, with its file.
fn name_slice(case: &Case<'_>) -> String {
    let mut slices = case.slices();
    let (Some(slice), None) = (slices.next(), slices.next()) else { return String::new() };
    let origin = slice.meta.origin.as_deref().map(|origin| format!(" ({})", clean(origin)));
    format!(" {}{}", slice.key.name, origin.unwrap_or_default())
}

/// What to do about a block that names a port at which nothing listens, by who listens beside it.
fn correct_block(case: &Case<'_>, failed: &[&Probe], named: &str) -> Vec<Remedy> {
    let file = case.facts().and_then(|facts| facts.meta.origin.as_deref());
    let file = file.map(|file| format!(" ({})", clean(file))).unwrap_or_default();
    let block = format!("`backends` of the [[service]] block {:?}{file}", case.name().name());
    let reload = || Command::from_words(&["holdfast", "reload"].map(CommandWord::Literal));
    match (case.listeners().answer(), find_other_listeners(case, failed).as_slice()) {
        (None, _) => vec![
            Remedy::safe("Look at which port the process listens (`ss -ltnp`)."),
            Remedy::disruptive(format!("Correct {block}, or start the process.")),
        ],
        (Some(_), []) => vec![Remedy::safe(format!("Start the process at {named}, or correct {block}."))],
        (Some(_), [it]) => {
            let right = SocketAddr::new(it.address, it.port);
            let wrong = join_names(failed.iter().map(|failed| failed.to).filter(|to| to.ip() == it.address));
            vec![
                Remedy::safe(format!(
                    "Is {} right? Then write {right} in place of {wrong} into {block}, and reload.",
                    it.port
                ))
                .with_command(reload()),
            ]
        }
        (Some(_), _) => vec![
            Remedy::safe(format!(
                "Which of these is right? Write it in place of {named} into {block}, and reload."
            ))
            .with_command(reload()),
        ],
    }
}

/// Who else listens at these addresses of this host, by address and port.
fn find_other_listeners<'a>(case: &Case<'a>, failed: &[&Probe]) -> Vec<&'a Listener> {
    let hosts: BTreeSet<_> = failed.iter().map(|it| it.to.ip()).collect();
    let is_there = |it: &&Listener| it.protocol == "TCP" && !it.own && hosts.contains(&it.address);
    let mut found: Vec<&Listener> =
        case.listeners().answer().into_iter().flatten().filter(is_there).collect();
    found.sort_by_key(|it| (it.address, it.port));
    found.dedup_by_key(|it| (it.address, it.port));
    found
}

/// Where else processes listen at these addresses of this host.
fn describe_other_listeners(case: &Case<'_>, failed: &[&Probe]) -> String {
    let shown = |it: &&Listener| {
        let process = it.process.as_deref().map(|process| match it.pid {
            Some(pid) => format!(" ({process}, pid {pid})"),
            None => format!(" ({process})"),
        });
        format!("{}{}", SocketAddr::new(it.address, it.port), process.unwrap_or_default())
    };
    let found: Vec<String> = find_other_listeners(case, failed).iter().map(shown).collect();
    match found.len() {
        0 => String::new(),
        1 => format!(" A process listens at {}.", join_names(found)),
        _ => format!(" Processes listen at {}.", join_names(found)),
    }
}
