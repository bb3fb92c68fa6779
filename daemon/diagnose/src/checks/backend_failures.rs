//! The meaning of failed test connections to backends: who is harmed, why, and what helps.
//!
//! Invariant: a backend that gets no new client harms nobody, whatever its test connection met.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use holdfast_core::keys::{Source, Transport};
use holdfast_core::list::Row;
use holdfast_core::snapshot::{PortView, UnusedReason};

use super::endpoints::name_manifest_slices;
use crate::case::Case;
use crate::command::{Command, CommandWord};
use crate::evidence::{Listener, Probe, ProbeKind, ProbeOutcome};
use crate::finding::{Judgement, Remedy};
use crate::formatting::{clean, join_names};

pub(super) fn describe_probes(probes: &[&Probe]) -> String {
    join_names(probes.iter().map(|it| format!("{} {}", it.to, it.outcome.as_str())))
}

/// Whether the backend is in a list, so that new clients meet it.
pub(super) fn gets_clients(case: &Case<'_>, backend: SocketAddr) -> bool {
    case.ports().any(|port| port.rows.find(backend).is_some_and(|row| row.is_chosen()))
}

/// Judges failing backends that no new client meets.
pub(super) fn judge_unused(case: &Case<'_>, failed: &[&Probe], failure: &str) -> Judgement {
    let is_out = |it: &&Probe| case.checks().get(&it.to).is_some_and(|check| !check.usable);
    if failed.iter().all(is_out) {
        return Judgement::ok(format!(
            "No client meets a dead backend. {}: new clients do not get a backend while its health checks fail (see \
             probe.checks).",
            describe_probes(failed)
        ));
    }
    let sentence = format!("{failure} {} {}", describe_idleness(case, failed), describe_others(case));
    let judgement = Judgement::info(sentence);
    match name_pods(case, failed) {
        Some(pods) => judgement.remedy(Remedy::safe(format!("Look at {pods}: is its process up?"))),
        None => judgement,
    }
}

/// Why these backends get no new client.
fn describe_idleness(case: &Case<'_>, failed: &[&Probe]) -> String {
    match (failed.len(), shared_unused_reason(case, failed)) {
        (1, Some(why)) => format!("It is {why}, so it gets no new client."),
        (_, Some(why)) => format!("They are {why}, so they get no new client."),
        (1, None) => "It gets no new client.".to_owned(),
        (_, None) => "They get no new client.".to_owned(),
    }
}

fn describe_others(case: &Case<'_>) -> &'static str {
    match case.ports().any(|port| port.rows.iter().any(|row| row.is_chosen())) {
        true => "Clients get other backends.",
        false => "This service sends clients to no backend.",
    }
}

/// Why none of these backends is in a list, if there is one reason for all.
fn shared_unused_reason(case: &Case<'_>, failed: &[&Probe]) -> Option<&'static str> {
    let mut reasons: BTreeSet<Option<&str>> = failed.iter().map(|it| unused_reason(case, it.to)).collect();
    let first = reasons.pop_first()?;
    first.filter(|_| reasons.is_empty())
}

/// The reason as an adjective.
fn unused_reason(case: &Case<'_>, backend: SocketAddr) -> Option<&'static str> {
    let mut reasons = case.ports().filter_map(|port| port.unused_reason(&port.rows.find(backend)?));
    Some(match reasons.next()? {
        UnusedReason::Zone => "for another zone",
        UnusedReason::Remote => "on another node (its policy is Local)",
        UnusedReason::Weight => "of weight 0",
        UnusedReason::Conflict => "of a service whose addresses others have",
        it @ (UnusedReason::Unready | UnusedReason::Terminating | UnusedReason::Drained) => it.as_str(),
    })
}

/// The headline where clients are served and backends that they do not get fail.
pub(crate) fn describe_idle_failures(case: &Case<'_>) -> Option<String> {
    let is_failed = |it: &&Probe| {
        let is_dead = matches!(it.outcome, ProbeOutcome::Refused | ProbeOutcome::TimedOut);
        matches!(it.kind, ProbeKind::Backend { .. }) && is_dead && !gets_clients(case, it.to)
    };
    let failed: Vec<&Probe> = case.probes().filter(is_failed).collect();
    let first = failed.first()?;
    let kind = shared_unused_reason(case, &failed).filter(|why| !why.contains(' '));
    let kind = kind.map_or_else(String::new, |why| format!("{why} "));
    let (verb, silence) =
        if failed.len() == 1 { ("is", "does not answer") } else { ("are", "do not answer") };
    let state = match failed.iter().all(|it| it.outcome == ProbeOutcome::Refused) {
        true => format!("{verb} dead"),
        false => silence.to_owned(),
    };
    Some(match failed.len() {
        1 => format!("one {kind}backend {state} ({})", first.to),
        number => format!("{number} {kind}backends {state} ({})", join_names(failed.iter().map(|it| it.to))),
    })
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
    let ports = join_names(&ports);
    match case.source() {
        Some(Source::Config) => interpret_silent_block(case, failed),
        Some(Source::Manifests) => (
            format!(
                "The application does not listen on {ports}, the port in {}.",
                name_manifest_slices(case)
            ),
            vec![
                look_at_ports(case, failed),
                Remedy::disruptive(format!(
                    "Correct `ports` of {}, or the port of the application. holdfast takes the port from there, not from \
                     `targetPort` of the Service.",
                    name_manifest_slices(case)
                )),
            ],
        ),
        _ => (
            format!("The application does not listen on {ports} (the target port)."),
            vec![
                look_at_ports(case, failed),
                Remedy::disruptive("Correct `targetPort` of the Service, or the port of the application."),
            ],
        ),
    }
}

/// The meaning of refused connections to backends of a `[[service]]` block, and remedies.
pub(super) fn interpret_silent_block(case: &Case<'_>, failed: &[&Probe]) -> (String, Vec<Remedy>) {
    let named = join_names(failed.iter().map(|it| it.to));
    let meaning = format!("Nothing listens at {named}.{}", describe_other_listeners(case, failed));
    (meaning, correct_block(case, failed, &named))
}

/// How to see the ports of an application that does not listen where it should: by its pod, else at its address.
fn look_at_ports(case: &Case<'_>, failed: &[&Probe]) -> Remedy {
    let at = join_names(failed.iter().map(|it| it.to.ip()).collect::<BTreeSet<_>>());
    let endpoints = case.endpoints();
    let pod = failed.iter().find_map(|it| endpoints.get(&it.to.ip())?.target.filter(|it| it.kind == "Pod"));
    let describe = pod.filter(|_| case.source() == Some(Source::Kubernetes)).and_then(|pod| {
        let name = pod.name.to_string();
        let words = [CommandWord::Literal("describe"), CommandWord::Literal("pod"), CommandWord::Name(&name)];
        Command::kubectl(case.namespace(), &words)
    });
    match describe {
        Some(command) => {
            Remedy::safe("Look at which port the application listens (`Port` of its containers).")
                .with_command(Some(command))
        }
        None => Remedy::safe(format!(
            "Look at which port the application listens: run `ss -ltnp` where it runs (the pod or machine of {at})."
        )),
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
                Remedy::disruptive(format!(
                    "Is {} right? Then write {right} in place of {wrong} into {block}, and reload.",
                    it.port
                ))
                .with_command(reload()),
            ]
        }
        (Some(_), _) => vec![
            Remedy::disruptive(format!(
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
