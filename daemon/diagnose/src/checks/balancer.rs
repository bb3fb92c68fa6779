//! The load balancer that a controller of the cluster makes for the Service.
//!
//! Invariant: core decides the state of the load balancer; these checks only put it into words.

use std::collections::BTreeSet;

use holdfast_core::facts::{BalancerFacts, Timestamp};
use holdfast_core::lifecycle::{
    self, BalancerEvent, BalancerPhase, BalancerStatus, Confidence, ControllerLiveness, EventReading,
    Finding, FindingId, Meaning, Severity,
};
use holdfast_core::op::FrontendType;
use holdfast_core::snapshot::Verdict;
use holdfast_knowledge::Step;
use serde_json::json;

use super::endpoints::judge_lease;
use super::events::event_remedies;
use crate::case::{Case, judge_unavailable, missing_right_remedy};
use crate::command::{Command, CommandWord};
use crate::evidence::{Listener, RecognisedEvent};
use crate::explain::ClosedHealthPort;
use crate::finding::{Judgement, Remedy, State};
use crate::formatting::{format_duration, join_names};
use crate::limits::NAMED_MAX;

/// Causes for which a deletion may leave resources at the provider.
const STRANDING_CAUSES: [&str; 4] =
    ["cloud.dependency", "cloud.active_connections", "cloud.unauthorized", "cloud.authorization_failed"];

const fn to_meaning(event: &RecognisedEvent) -> Meaning {
    match event.step {
        Some(Step::Ensuring) => Meaning::Ensuring,
        Some(Step::Ensured) => Meaning::Ensured,
        Some(Step::Creating) => Meaning::Creating,
        Some(Step::Created) => Meaning::Created,
        Some(Step::Updated) => Meaning::Updated,
        Some(Step::UpdateFailed) => Meaning::UpdateFailed,
        Some(Step::SyncFailed) => Meaning::SyncFailed,
        Some(Step::Deleting) => Meaning::Deleting,
        Some(Step::Deleted) => Meaning::Deleted,
        Some(Step::DeleteFailed) => Meaning::DeleteFailed,
        Some(Step::NoNodes) => Meaning::NoNodes,
        Some(Step::AddressAssigned) => Meaning::AddressAssigned,
        None => Meaning::Other,
    }
}

/// Events of the Service that a load balancer controller wrote. `None`: no Events were read, or some may be missing.
fn list_statements<'a>(case: &Case<'a>) -> Option<Vec<(&'a RecognisedEvent, BalancerEvent)>> {
    let events = case.events().answer()?;
    let is_about_it = |it: &&RecognisedEvent| {
        it.object.kind == "Service" && (it.step.is_some() || !is_unrelated_component(&it.component))
    };
    let one = |event: &'a RecognisedEvent| {
        let balancer_event = BalancerEvent {
            meaning: to_meaning(event),
            first: event.first.unwrap_or(Timestamp(0)),
            last: event.last.unwrap_or(Timestamp(0)),
            count: event.count,
            is_open: event.open,
            cause: event.cause.as_deref().map(Into::into),
            strands: event.cause.as_deref().is_some_and(|cause| STRANDING_CAUSES.contains(&cause)),
        };
        (event, balancer_event)
    };
    let statements: Vec<_> = events.iter().filter(is_about_it).map(one).collect();
    // If some Events were not read, an empty list proves nothing.
    (!statements.is_empty() || !*case.has_more_events()).then_some(statements)
}

/// Whether a component writes Events about Services, but none about load balancers.
fn is_unrelated_component(component: &str) -> bool {
    let others = ["endpoint", "kube-proxy", "holdfast", "ipallocator", "portallocator"];
    component.is_empty() || others.iter().any(|other| component.starts_with(other))
}

fn judge_balancer(case: &Case<'_>) -> Option<BalancerStatus> {
    let facts = case.facts()?;
    let statements =
        list_statements(case).map(|all| all.into_iter().map(|(_, event)| event).collect::<Vec<_>>());
    let events = statements.as_deref().map_or(EventReading::NotRead, EventReading::All);
    let controller = match judge_lease(case, "cloud-controller-manager").state {
        State::Ok => ControllerLiveness::Alive,
        State::Error => ControllerLiveness::Silent,
        _ => ControllerLiveness::Unknown,
    };
    let now = case.now();
    let history = case.view().and_then(|view| view.balancer_history.as_deref());
    Some(lifecycle::assess_balancer(&lifecycle::BalancerInput {
        facts: Some(facts),
        history,
        events,
        controller,
        now,
    }))
}

fn balancer_facts<'a>(case: &Case<'a>) -> Option<&'a BalancerFacts> {
    case.facts()?.balancer.as_deref()
}

fn skip_without_balancer() -> Judgement {
    Judgement::not_applicable("It asks for no load balancer.")
}

pub(super) fn check_state(case: &Case<'_>) -> Judgement {
    let Some(balancer) = judge_balancer(case).filter(|it| it.state != lifecycle::BalancerState::None) else {
        return skip_without_balancer();
    };
    let age =
        balancer.since.map(|since| format!(" for {}", format_duration(case.age(since)))).unwrap_or_default();
    Judgement::ok(format!("Its load balancer is {}{age}.", balancer.state.as_str()))
        .with("state", balancer.state.as_str())
        .with("since", balancer.since.map(|since| holdfast_status::rfc3339::Rfc3339(since).to_string()))
}

/// Words one of core's findings, and adds its remedies.
fn judge_finding(
    case: &Case<'_>,
    id: FindingId,
    words: impl FnOnce(&Finding) -> String,
    remedies: Vec<Remedy>,
) -> Judgement {
    let Some(balancer) = judge_balancer(case).filter(|it| it.state != lifecycle::BalancerState::None) else {
        return skip_without_balancer();
    };
    let Some(finding) = balancer.findings.iter().find(|it| it.id == id) else {
        return Judgement::ok("Its load balancer shows no sign of it.");
    };
    let sentence = words(finding);
    let judgement = match finding.severity {
        Severity::Notice => Judgement::info(sentence),
        Severity::Warning => Judgement::warning(sentence),
        Severity::Error => Judgement::error(sentence),
    };
    let judgement = judgement
        .with("age_seconds", finding.age)
        .with("cause", finding.cause.as_deref())
        .with("count", finding.count);
    let judgement = match finding.confidence {
        Confidence::Certain => judgement,
        Confidence::Likely | Confidence::WithoutEvents => judgement.likely(),
    };
    judgement.remedies(cause_remedies(case, finding)).remedies(remedies)
}

fn cause_remedies(case: &Case<'_>, finding: &Finding) -> Vec<Remedy> {
    let events = list_statements(case).unwrap_or_default();
    let has_cause = |(event, _): &(&RecognisedEvent, BalancerEvent)| {
        finding.cause.is_some() && event.cause.as_deref() == finding.cause.as_deref()
    };
    events
        .iter()
        .rev()
        .find(|it| has_cause(it))
        .map(|(event, _)| event_remedies(event).collect())
        .unwrap_or_default()
}

/// The newest open Event with one of these meanings, as a sentence.
fn describe_newest(case: &Case<'_>, meanings: &[Meaning]) -> String {
    let events = list_statements(case).unwrap_or_default();
    let matching = events.iter().filter(|(_, it)| meanings.contains(&it.meaning) && it.is_open);
    let newest = matching.max_by_key(|(_, it)| it.last).map(|(event, _)| *event);
    let Some(event) = newest else { return String::new() };
    let message = event.message.trim_end_matches('.');
    match event.meaning.trim_end_matches('.') {
        "" => format!(" {}: {message}.", event.reason),
        meaning => format!(" {meaning} ({}: {message}).", event.reason),
    }
}

fn describe_age(finding: &Finding) -> String {
    finding.age.map(|age| format!(" for {}", format_duration(age))).unwrap_or_default()
}

fn read_log_remedy() -> Remedy {
    Remedy::safe("Read the log of the component that makes load balancers here.")
}

pub(super) fn check_no_controller(case: &Case<'_>) -> Judgement {
    let words = |it: &Finding| {
        format!(
            "Nobody has acted on its load balancer{}: no finalizer, no Event, no address.",
            describe_age(it)
        )
    };
    let remedies = vec![Remedy::safe(
        "Look whether a controller runs that makes them: cloud-controller-manager, MetalLB with a pool, another.",
    )];
    judge_finding(case, FindingId::NoController, words, remedies)
}

pub(super) fn check_class_unserved(case: &Case<'_>) -> Judgement {
    let class = balancer_facts(case).and_then(|facts| facts.class.as_deref()).unwrap_or_default();
    let words =
        |it: &Finding| format!("No controller serves load balancers of class {class}{}.", describe_age(it));
    let remedies = vec![
        Remedy::safe("Look whether the controller of that class runs."),
        Remedy::disruptive("Recreate the Service without loadBalancerClass, which cannot be changed."),
    ];
    judge_finding(case, FindingId::ClassUnserved, words, remedies)
}

pub(super) fn check_failing(case: &Case<'_>) -> Judgement {
    let words = |it: &Finding| {
        let cause = it.cause.as_deref().map(|cause| format!(" ({cause})")).unwrap_or_default();
        format!(
            "Its load balancer has not come about{}{cause}.{}",
            describe_age(it),
            describe_newest(case, &[Meaning::SyncFailed])
        )
    };
    judge_finding(case, FindingId::Failing, words, vec![read_log_remedy()])
}

pub(super) fn check_stuck_ensuring(case: &Case<'_>) -> Judgement {
    let words = |it: &Finding| {
        format!(
            "Its load balancer is being made{}, without an error and without an address.",
            describe_age(it)
        )
    };
    judge_finding(case, FindingId::StuckEnsuring, words, vec![read_log_remedy()])
}

pub(super) fn check_ensured_no_ingress(case: &Case<'_>) -> Judgement {
    let words = |_: &Finding| {
        "A controller reported its load balancer done, but it has no address: another writer removed it, or writing \
         it failed."
            .to_owned()
    };
    judge_finding(case, FindingId::EnsuredNoIngress, words, vec![read_log_remedy()])
}

pub(super) fn check_no_nodes(case: &Case<'_>) -> Judgement {
    let words =
        |_: &Finding| format!("No node may take its traffic.{}", describe_newest(case, &[Meaning::NoNodes]));
    let remedies = vec![Remedy::safe(
        "Look at the label node.kubernetes.io/exclude-from-external-load-balancers, the taint \
         ToBeDeletedByClusterAutoscaler and nodes in deletion.",
    )];
    judge_finding(case, FindingId::NoNodes, words, remedies)
}

pub(super) fn check_degraded(case: &Case<'_>) -> Judgement {
    let all = [Meaning::UpdateFailed, Meaning::SyncFailed, Meaning::NoNodes];
    let words = |it: &Finding| {
        format!(
            "Its load balancer works, and has not followed the Service or the nodes{}.{}",
            describe_age(it),
            describe_newest(case, &all)
        )
    };
    judge_finding(case, FindingId::Degraded, words, vec![read_log_remedy()])
}

pub(super) fn check_pending(case: &Case<'_>) -> Judgement {
    let words = |it: &Finding| format!("It has had no external address{}.", describe_age(it));
    let others = Remedy::safe("See the other findings of its load balancer.");
    let remedies = missing_right_remedy(case.events()).into_iter().chain([others]);
    let judgement = judge_finding(case, FindingId::Pending, words, remedies.collect());
    // It is too early for a finding, and too early for `ok`.
    let known = case.facts().filter(|facts| facts.balancer.is_some());
    match known.filter(|facts| {
        judgement.state == State::Ok && BalancerPhase::from_facts(facts) == BalancerPhase::Pending
    }) {
        Some(facts) => {
            let age = facts
                .meta
                .created
                .map(|at| format!(", {} old", format_duration(case.taken_at().0.saturating_sub(at.0))));
            let age = age.unwrap_or_default();
            Judgement::info(format!(
                "It has no external address yet{age}; its controller may still be at it."
            ))
            .remedy(Remedy::safe("Wait two minutes, and look again."))
        }
        None => judgement,
    }
}

pub(super) fn check_flapping(case: &Case<'_>) -> Judgement {
    let words =
        |_: &Finding| "Its external address changes again and again: two controllers write it.".to_owned();
    judge_finding(
        case,
        FindingId::Flapping,
        words,
        vec![Remedy::safe("See lb.owner, and leave one of them to it.")],
    )
}

pub(super) fn check_delete_stuck(case: &Case<'_>) -> Judgement {
    let left = balancer_facts(case).map(|facts| join_names(facts.finalizers.iter())).unwrap_or_default();
    let words = |it: &Finding| {
        format!(
            "Its load balancer has been in deletion{}; finalizers left: {left}.{}",
            describe_age(it),
            describe_newest(case, &[Meaning::DeleteFailed])
        )
    };
    judge_finding(
        case,
        FindingId::DeleteStuck,
        words,
        vec![
            Remedy::safe(
                "Mend what keeps its controller from removing it; without its finalizer it would stay at the provider.",
            ),
            read_log_remedy(),
        ],
    )
}

pub(super) fn check_orphan_risk(case: &Case<'_>) -> Judgement {
    let words = |_: &Finding| "What it was made of may stay at the provider, and cost money.".to_owned();
    judge_finding(
        case,
        FindingId::OrphanRisk,
        words,
        vec![Remedy::safe("Look for it at the provider once the Service is gone.")],
    )
}

pub(super) fn check_controller_alive(case: &Case<'_>) -> Judgement {
    if !case.is_load_balancer() {
        return skip_without_balancer();
    }
    let judgement = judge_lease(case, "cloud-controller-manager");
    // A working balancer may belong to another controller, and the lease may be left over.
    let works = judge_balancer(case).is_some_and(|it| it.state == lifecycle::BalancerState::Ready);
    match judgement.state {
        State::Error if works => Judgement::info(judgement.sentence),
        _ => judgement,
    }
}

pub(super) fn check_owner(case: &Case<'_>) -> Judgement {
    if !case.is_load_balancer() {
        return skip_without_balancer();
    }
    // This node's facts name every writer of the status, even one that wrote only a condition.
    let Some(seen) = case.api_service() else {
        return judge_unavailable(case.service_lookup(), "Who writes the addresses of its load balancer");
    };
    match seen.balancer_writers.as_slice() {
        [] | [_] => Judgement::ok("At most one controller writes the addresses of its load balancer."),
        several => Judgement::warning(format!(
            "Several controllers write the addresses of its load balancer: {}.",
            join_names(several)
        ))
        .with("writers", json!(several.iter().take(NAMED_MAX).collect::<Vec<_>>()))
        .remedy(Remedy::safe(
            "Leave one controller to it: give the Service a loadBalancerClass, or stop the other.",
        )),
    }
}

pub(super) fn check_ip_mode(case: &Case<'_>) -> Judgement {
    let Some(service) = case.facts().filter(|_| case.is_load_balancer()) else {
        return skip_without_balancer();
    };
    let proxied = service.ingress.iter().filter(|it| it.proxied).map(|it| it.address.to_string());
    let hosts =
        balancer_facts(case).into_iter().flat_map(|facts| facts.hostnames.iter()).map(ToString::to_string);
    let outside: Vec<String> = proxied.chain(hosts).collect();
    match outside.is_empty() {
        true => Judgement::ok("Its external addresses are for this node to serve, as far as there are any."),
        false => Judgement::info(format!(
            "Not served here, because the balancer is to see the traffic: {}.",
            join_names(&outside)
        ))
        .with("addresses", json!(outside.iter().take(NAMED_MAX).collect::<Vec<_>>())),
    }
}

pub(super) fn check_vip_local(case: &Case<'_>) -> Judgement {
    let Some(addresses) = case.host_addresses().answer() else {
        return judge_unavailable(case.host_addresses(), "Whether this host has its external address");
    };
    let mut own =
        case.frontends_with_type(FrontendType::LoadBalancer).filter(|it| addresses.contains(&it.address));
    match own.next() {
        None => Judgement::ok("This host has none of its external addresses."),
        Some(frontend) => Judgement::info(format!(
            "{} is an address of this host, as MetalLB and kube-vip do it.",
            frontend.address
        )),
    }
}

pub(super) fn check_health_port(case: &Case<'_>) -> Judgement {
    let is_local = |facts: &&holdfast_core::facts::ServiceFacts| {
        facts.external_policy == holdfast_core::facts::TrafficPolicy::Local
    };
    let Some(facts) = case.facts().filter(is_local).filter(|_| case.is_load_balancer()) else {
        return Judgement::not_applicable(
            "No health port is needed: it is no load balancer, or its policy is Cluster.",
        );
    };
    let Some(port) = facts.health_check_node_port else {
        return Judgement::error(
            "Its external policy is Local, and without a health port no load balancer sees which nodes have endpoints.",
        )
        .remedy(Remedy::disruptive("Recreate the Service, so that the apiserver allocates one."));
    };
    let is_it = |it: &Listener| it.port == port.get() && it.protocol == "TCP";
    if case.listeners().answer().is_some_and(|all| !all.iter().any(is_it)) {
        return Judgement::error(format!(
            "No process listens on its health port {port}: load balancers leave this node out."
        ))
        .remedy(Remedy::safe("Read the daemon's journal: it says why the port cannot be opened."));
    }
    let Some(status) = case.health().answer() else {
        return judge_silent_health_port(case, port.get());
    };
    let here = count_local_endpoints(case);
    let expected = if here > 0 { 200 } else { 503 };
    let judgement = match *status == expected {
        true => {
            Judgement::ok(format!("Its health port {port} answers {status}, with {here} endpoints here."))
        }
        false => Judgement::error(format!(
            "Its health port {port} answers {status}, not {expected}, with {here} endpoints here.{}",
            describe_holder(case, port.get())
        ))
        .remedies(find_listener_remedies(case, port.get())),
    };
    judgement.with("port", port.get()).with("status", *status).with("local_endpoints", here)
}

/// Judges a health port that gave no answer by HTTP: another process may have it.
fn judge_silent_health_port(case: &Case<'_>, port: u16) -> Judgement {
    let mut listeners = case.listeners().answer().into_iter().flatten();
    let Some(holder) = listeners.find(|it| it.port == port && it.protocol == "TCP" && !it.own) else {
        return match case.closed_ports().iter().find(|it| it.service == *case.name()) {
            Some(closed) => judge_closed_health_port(case, closed),
            None => judge_unavailable(case.health(), "What its health port answers"),
        };
    };
    let who = holder.process.as_deref().unwrap_or("an unknown process");
    let pid = holder.pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default();
    Judgement::error(format!(
        "{who}{pid} listens at its health port {port}, and does not answer as a health port does: load balancers leave \
         this node out."
    ))
    .with("process", who)
    .with("port", port)
    .remedies(find_listener_remedies(case, port))
}

/// Judges a health port that the daemon could not open.
fn judge_closed_health_port(case: &Case<'_>, closed: &ClosedHealthPort) -> Judgement {
    let ClosedHealthPort { address, reason, .. } = closed;
    Judgement::error(format!(
        "Its health port cannot be opened at {address}: {reason}. Load balancers leave this node out."
    ))
    .with("port", address.port())
    .remedies(find_listener_remedies(case, address.port()))
}

/// Number of endpoints on this node as the health port counts them. A held endpoint counts as ready.
fn count_local_endpoints(case: &Case<'_>) -> usize {
    let Some(view) = case.view() else { return 0 };
    let rows = view.ports.iter().flat_map(|port| port.rows.iter().map(move |row| (port, row)));
    let here = rows.filter(|(port, row)| {
        let slice = port.row_slice(row, &view.slices);
        let endpoint = slice.and_then(|slice| slice.endpoints.get(row.endpoint.into()));
        (row.conditions().ready || row.is_held()) && endpoint.is_some_and(|it| case.is_local(it.node))
    });
    here.map(|(_, row)| row.address).collect::<BTreeSet<_>>().len()
}

fn find_listener_remedies(case: &Case<'_>, port: u16) -> Vec<Remedy> {
    let mut listeners = case.listeners().answer().into_iter().flatten();
    if listeners.any(|it| it.port == port && it.own) {
        return vec![Remedy::safe(
            "It is this daemon that answers: `holdfast status` says what is wrong with it.",
        )];
    }
    let mut others = case.listeners().answer().into_iter().flatten();
    if let Some(pid) = others.find(|it| it.port == port && !it.own).and_then(|it| it.pid) {
        let shown = ["ps", "-fp"].map(CommandWord::Literal);
        return vec![
            Remedy::safe("See what that process is, and whether it is meant to be there.").with_command(
                Command::from_words(&[&shown[..], &[CommandWord::Number(pid.into())]].concat()),
            ),
            Remedy::disruptive("Free the port: move that process to another port, or end it."),
        ];
    }
    let look = Remedy::safe("Look who listens at that port.").with_command(Command::from_words(&[
        CommandWord::Literal("ss"),
        CommandWord::Literal("-ltnp"),
        CommandWord::Literal("sport"),
        CommandWord::Literal("="),
        CommandWord::Number(port.into()),
    ]));
    vec![look, Remedy::disruptive("Free the port: move that process to another port, or end it.")]
}

fn describe_holder(case: &Case<'_>, port: u16) -> String {
    let mut listeners = case.listeners().answer().into_iter().flatten();
    let found = listeners.find(|it| it.port == port && !it.own).and_then(|it| it.process.as_deref());
    found.map(|process| format!(" {process} listens there.")).unwrap_or_default()
}

pub(super) fn check_node_eligible(case: &Case<'_>) -> Judgement {
    if !case.is_load_balancer() {
        return skip_without_balancer();
    }
    let name = &case.table().node.name;
    if case.nodes_lookup().answer().is_none() {
        return judge_unavailable(case.nodes_lookup(), "Whether balancers use this node");
    }
    match case.node(name) {
        Some(node) if node.excluded || node.leaving => {
            Judgement::info(format!("Balancers leave out node {name}, as its label or its taint asks for."))
        }
        Some(_) => Judgement::ok("Balancers may use this node."),
        None => Judgement::not_applicable("This node was not read."),
    }
}

pub(super) fn check_node_ports(case: &Case<'_>) -> Judgement {
    let without = balancer_facts(case).is_some_and(|facts| facts.without_node_ports);
    match case.is_load_balancer() {
        false => skip_without_balancer(),
        true if without => Judgement::info(
            "It has no node ports on purpose: its balancer must reach pods, or nodes at its address.",
        )
        .with(
            "served",
            case.frontends_with_type(FrontendType::LoadBalancer).any(|it| it.verdict == Verdict::Serving),
        ),
        true => Judgement::ok("It has node ports, or may have them."),
    }
}

#[cfg(test)]
mod tests {
    use holdfast_knowledge::Knowledge;

    use super::*;

    #[test]
    fn the_catalogue_has_these_causes() {
        let known = Knowledge::built_in();
        for cause in STRANDING_CAUSES {
            assert!(known.cause(cause).is_some(), "{cause}");
        }
    }
}
