//! Explains what a client meets: the services of the query, the answer in one sentence, its evidence, and what happens
//! next.
//!
//! Invariant: whatever an answer calls applied was read back from the maps for this very answer. Nothing is guessed:
//! unknown parts are absent.

mod balancer;
mod details;
mod evidence;
mod failing_backends;
mod host;
mod obstacles;
mod packet;
mod place;
mod problems;
mod query_match;
mod record_match;
mod rivals;
mod sentence;
mod shortcomings;
mod states;
mod unserved;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use holdfast_core::facts::{ObjectKey, Rejection};
use holdfast_core::keys::{FrontendKey, ObjectName, Source};
use holdfast_core::limits::READ_BACK_MAX;
use holdfast_core::snapshot::{FrontendView, Reason, ServiceState, Snapshot};
use schemars::JsonSchema;
use serde::Serialize;

pub use balancer::LoadBalancer;
use details::{AppliedState, DesiredState, RejectedUpdate};
pub use details::{
    EndpointRow, FrontendRow, ObjectRef, RefusalRow, SliceRef, describe_difference, frontend_key,
};
pub use evidence::{ClosedHealthPort, ExplainEvidence, OtherProcess, ReadBack};
pub(crate) use failing_backends::list_failing;
pub use failing_backends::{FailingBackend, find_failing_backends};
use holdfast_status::record::Record;
use holdfast_status::rfc3339::Rfc3339;
use holdfast_status::schema_types::Code;
use holdfast_status::views::datapath::DatapathView;
use holdfast_status::views::names::NameStatus;
pub use obstacles::NewsObstacles;
use packet::AttachedDevices;
pub(crate) use packet::may_dial_here;
pub use packet::{BackendShare as PacketShare, ClientAddress, Outcome, Packet};
pub use place::{describe_precedence, format_place};
use query_match::Subject;
pub use query_match::{DialTarget, ExplainQuery, QueryMatch};
pub use record_match::is_about;
pub(crate) use rivals::{Claim, describe_claim, is_serious_claim, list_claims};
use rivals::{describe_losers, describe_rivals};
pub use sentence::{describe_frontend as sentence_of, describe_reason};
pub use states::{BackendState, EndpointState, WriteStatus, backend_state, endpoint_state, write_status};

/// The sentence where every frontend has backends, and that is not enough.
const ONLY_BACKENDS_FAIL: &str =
    "Each frontend has backends, and some of them fail clients: `holdfast status` names them.";

/// The sentence where every frontend has backends, and other processes get clients of services.
const ONLY_PORTS_TAKEN: &str = "Each frontend has backends, and other processes hold ports of services: \
                                `holdfast status` names the ports.";

/// The sentence where every frontend has backends, and others get no new clients.
const ONLY_CHECKS_FAIL: &str =
    "Each frontend has backends, and health checks of others fail: `holdfast status` names them.";

/// The sentence where every frontend has backends, and this node turned clients away for lack of room.
const ONLY_ROOM_LACKS: &str = "Each frontend has backends, and this node lacks room for their clients: \
                               `holdfast status` names the causes.";

/// What follows the worst frontend where clients of others fail too.
const MORE_FAILS: &str = " More is not well: `holdfast status` names it.";

/// The page with a section for each reason, in the repository and in the packages.
const GUIDE: &str = "docs/explain.md";

/// Where people find the pages, whose names follow.
pub const GUIDE_URL: &str = "https://holdfast.io/";

/// The answer to one query.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Explanation<'a> {
    /// The kind of match.
    pub found: Code<QueryMatch>,
    /// The answer in one sentence.
    pub sentence: String,
    /// What the queried client's first packet meets; null without a client.
    pub packet: Option<Packet>,
    pub services: Vec<ExplainedService<'a>>,
    /// Similar addresses or names, if no service matches.
    pub near: Vec<NearRow>,
    /// The latest records about the address or the name, if no service matches.
    pub past: Vec<Record>,
    pub apiserver: Option<String>,
    pub stale_since: Option<Rfc3339>,
    /// Whether clients of any service fail although their frontends have backends.
    #[serde(skip)]
    pub has_more_trouble: bool,
}

/// One service of the answer.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Explained")]
pub struct ExplainedService<'a> {
    pub service: String,
    pub source: Code<Source>,
    pub state: Code<ServiceState>,
    pub sentence: String,
    /// The state of its load balancer; null: it has none.
    pub load_balancer: Option<LoadBalancer<'a>>,
    /// The client addresses that the load balancer is for; empty: all.
    pub source_ranges: Vec<&'a str>,
    pub frontends: Vec<FrontendRow<'a>>,
    pub desired: DesiredState<'a>,
    pub rejected: Vec<RejectedUpdate<'a>>,
    /// The name that resolves to its backends; null: they are not from the DNS.
    pub resolved: Option<NameStatus>,
    pub endpoints: Vec<EndpointRow<'a>>,
    pub refusals: Vec<RefusalRow>,
    /// Its health check ports that are not open, for people.
    #[serde(skip)]
    pub closed_ports: Vec<String>,
    /// Other processes at its node ports, for people; programs have `/readyz`.
    #[serde(skip)]
    pub node_port_listeners: Vec<String>,
    /// UDP backends that reported their port closed to outside clients through this node.
    pub refusing_backends: Vec<String>,
    /// Its backends that fail clients, for people; programs have `/readyz`.
    #[serde(skip)]
    pub failing_backends: Vec<String>,
    /// How many more fail clients.
    #[serde(skip)]
    pub more_failing_backends: usize,
    /// What this node lately lacked for its clients, for people; programs have that in `refusals`.
    #[serde(skip)]
    pub shortage: Option<String>,
    /// Its backends that fail their health checks, for people; programs have those in `endpoints`.
    #[serde(skip)]
    pub failing_checks: Vec<String>,
    /// The latest records of the history, oldest first.
    pub history: Vec<Record>,
}

/// Something that may have been meant instead.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Near")]
pub struct NearRow {
    pub what: &'static str,
    pub name: String,
}

/// A query with services that are found and map entries that are still to be read.
#[derive(Debug)]
pub struct ResolvedQuery {
    snapshot: Arc<Snapshot>,
    query: ExplainQuery,
    /// The client that sends the packet to trace.
    from: Option<IpAddr>,
    found: QueryMatch,
    subjects: Vec<Subject>,
}

impl ResolvedQuery {
    /// Finds the services of the query.
    pub fn resolve(snapshot: Arc<Snapshot>, question: ExplainQuery, from: Option<IpAddr>) -> Self {
        let (found, subjects) = query_match::find_subjects(&snapshot, &question);
        Self { snapshot, query: question, from, found, subjects }
    }

    /// Whether no service matches the query.
    pub fn is_not_found(&self) -> bool {
        self.found == QueryMatch::Nothing
    }

    /// The answer needs the map entries of these frontends.
    pub fn frontend_keys(&self) -> Vec<FrontendKey> {
        let frontends = self.subjects.iter().flat_map(Subject::frontends);
        frontends.filter_map(details::frontend_key).take(READ_BACK_MAX).collect()
    }

    /// The answer needs the records of these services.
    pub fn service_names(&self) -> BTreeSet<&ObjectName> {
        let queried = match &self.query {
            ExplainQuery::Service(name) => Some(name),
            ExplainQuery::Trouble | ExplainQuery::Address(_) | ExplainQuery::Host(_) => None,
        };
        self.subjects.iter().map(|subject| &subject.view.key.name).chain(queried).collect()
    }

    /// The queried address, if no service has it.
    pub fn unknown_target(&self) -> Option<&DialTarget> {
        match &self.query {
            ExplainQuery::Address(dialled) if self.is_not_found() => Some(dialled),
            _ => None,
        }
    }

    /// The tables that the answer is about.
    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// Builds the answer from the map entries.
    pub fn explain<'a>(&'a self, given: &ExplainEvidence, read: &ReadBack) -> Explanation<'a> {
        let Self { snapshot, query: question, found, subjects, .. } = self;
        let packet = self.trace_packet(&given.datapath, read);
        let sentence = match (question, &packet) {
            (ExplainQuery::Trouble, _) => self.describe_trouble(given),
            (ExplainQuery::Address(dialled), Some(packet)) if self.is_not_found() => {
                let port = unserved::describe_known_port(snapshot, dialled, given);
                packet.sentence.clone() + &port.map(|port| format!(" {port}")).unwrap_or_default()
            }
            (ExplainQuery::Address(dialled), Some(packet)) => {
                let others = subjects.first().map(|it| describe_others_at_node_port(given, dialled, it));
                packet.sentence.clone() + &others.unwrap_or_default() + &self.describe_failed_clients(given)
            }
            (_, Some(packet)) => packet.sentence.clone() + &self.describe_failed_clients(given),
            (_, None) => self.describe_headline(given) + &self.describe_shortcomings(given),
        };
        let divergence = given.datapath.divergence_reason();
        let divergence =
            divergence.map(|why| format!("Clients may still meet something else, because {why}. "));
        Explanation {
            found: Code(*found),
            sentence: divergence.unwrap_or_default() + &sentence,
            has_more_trouble: describe_more_trouble(given).is_some(),
            packet,
            services: subjects.iter().map(|it| self.explain_service(given, it, read)).collect(),
            near: build_near_rows(snapshot, question, *found),
            past: self.past_records(given),
            apiserver: given.apiserver.as_deref().map(details::describe_apiserver),
            stale_since: snapshot.stale_since.map(Rfc3339),
        }
    }
}

impl ResolvedQuery {
    /// Records about a missing target. They say why it went.
    fn past_records(&self, given: &ExplainEvidence) -> Vec<Record> {
        match &self.query {
            ExplainQuery::Service(name) if self.is_not_found() => given.history(name),
            ExplainQuery::Address(_) => given.past.clone(),
            ExplainQuery::Trouble | ExplainQuery::Service(_) | ExplainQuery::Host(_) => Vec::new(),
        }
    }

    /// Traces the client's first packet. A backend's own address is no frontend.
    pub fn trace_packet(&self, datapath: &DatapathView, read: &ReadBack) -> Option<Packet> {
        let (ExplainQuery::Address(dialled), Some(from)) = (&self.query, self.from) else { return None };
        let subjects = if self.found == QueryMatch::Frontend { &*self.subjects } else { &[] };
        let watched = AttachedDevices::from_datapath(datapath);
        let dialled = dialled.at_node(&self.snapshot.node);
        Some(packet::trace_packet(&self.snapshot, &watched, (&dialled, from), subjects, read))
    }
}

impl ResolvedQuery {
    /// The answer about the whole node: its worst frontend, and what else is not well.
    fn describe_trouble(&self, given: &ExplainEvidence) -> String {
        match describe_more_trouble(given) {
            Some(only) if self.subjects.is_empty() => only.to_owned(),
            Some(_) => self.describe_headline(given) + MORE_FAILS,
            None => self.describe_headline(given),
        }
    }

    /// The answer in one sentence.
    fn describe_headline(&self, given: &ExplainEvidence) -> String {
        let headline = describe_match(&self.snapshot, &self.query, self.found, &self.subjects, given);
        if self.subjects.is_empty() { headline + &given.obstacles.describe() } else { headline }
    }
}

/// The sentence of a node where clients fail although each frontend has backends.
fn describe_more_trouble(given: &ExplainEvidence) -> Option<&'static str> {
    let all = [
        (!given.failing.is_empty(), ONLY_BACKENDS_FAIL),
        (given.are_ports_taken(), ONLY_PORTS_TAKEN),
        (given.do_checks_fail, ONLY_CHECKS_FAIL),
        (given.lacks_room(), ONLY_ROOM_LACKS),
    ];
    all.into_iter().find(|(holds, _)| *holds).map(|(_, sentence)| sentence)
}

fn describe_match(
    snapshot: &Snapshot,
    question: &ExplainQuery,
    found: QueryMatch,
    subjects: &[Subject],
    given: &ExplainEvidence,
) -> String {
    let (first, frontend) = find_headline(question, subjects, given);
    match (question, first, frontend) {
        (ExplainQuery::Trouble, None, _) => describe_all_served(snapshot),
        (ExplainQuery::Trouble, Some(subject), Some(frontend)) => {
            let more = "The worst of what is not served:";
            format!("{more} {}", sentence::describe_frontend(&subject.view, frontend, snapshot))
        }
        (ExplainQuery::Address(dialled), Some(subject), _) if found == QueryMatch::Backend => {
            details::describe_backend((&*subject.view, snapshot), dialled, subjects.len())
        }
        (ExplainQuery::Address(dialled), Some(subject), Some(frontend)) => {
            sentence::describe_frontend(&subject.view, frontend, snapshot)
                + &describe_rivals(snapshot, dialled, frontend, subjects)
                + &describe_other_protocols(dialled, frontend, subjects)
                + &describe_others_at_node_port(given, dialled, subject)
        }
        (ExplainQuery::Host(host), _, _) => host::describe_host(*host, found, subjects),
        (_, Some(subject), Some(frontend)) => {
            sentence::describe_frontend(&subject.view, frontend, snapshot)
                + &describe_losers(snapshot, &subject.view)
        }
        (_, Some(subject), None) => sentence::describe_service(&subject.view),
        (ExplainQuery::Service(name), None, _) => describe_unknown_service(snapshot, name),
        (ExplainQuery::Address(dialled), None, _) => unserved::describe_unserved(snapshot, dialled, given),
    }
}

/// The sentence where no frontend is in trouble. It does not call the state healthy if there are no frontends.
fn describe_all_served(snapshot: &Snapshot) -> String {
    let waiting = unsynced_sources(snapshot);
    match (waiting.is_empty(), snapshot.services.iter().any(|view| !view.frontends.is_empty())) {
        (true, true) => "Every frontend is served.".to_owned(),
        (true, false) => "There is no frontend: no source has a service that could be dialled.".to_owned(),
        (false, _) => format!(
            "Every frontend that is known is served, but there is no first list yet from: {}.",
            waiting.join(", ")
        ),
    }
}

/// The frontend of the first sentence, and whose it is: the worst of the first. Where clients of a service all get a
/// backend, it is the one at which they fail.
fn find_headline<'a>(
    question: &ExplainQuery,
    subjects: &'a [Subject],
    given: &ExplainEvidence,
) -> (Option<&'a Subject>, Option<&'a FrontendView>) {
    let first = subjects.first();
    let worst = first.and_then(|subject| worst_frontend(headline_frontends(question, subject)));
    let is_served = worst.is_some_and(|it| it.verdict.serves_clients());
    if !is_served || !matches!(question, ExplainQuery::Service(_)) {
        return (first, worst);
    }
    let find_failing = |it: &'a Subject| {
        let frontend = failing_backends::failing_frontend(given, &it.view)?;
        Some((Some(it), Some(frontend)))
    };
    subjects.iter().find_map(find_failing).unwrap_or((first, worst))
}

/// The frontends of the first sentence: at an address, only those of the first protocol.
fn headline_frontends<'a>(
    question: &ExplainQuery,
    subject: &'a Subject,
) -> impl Iterator<Item = &'a FrontendView> {
    let first = match question {
        ExplainQuery::Address(_) => subject.frontends().next().map(|it| it.protocol.clone()),
        ExplainQuery::Trouble | ExplainQuery::Service(_) | ExplainQuery::Host(_) => None,
    };
    subject.frontends().filter(move |it| first.as_ref().is_none_or(|first| it.protocol == *first))
}

/// A sentence about other processes at a node port, if the query names no address of the node.
fn describe_others_at_node_port(given: &ExplainEvidence, dialled: &DialTarget, subject: &Subject) -> String {
    if !dialled.address.ip().is_unspecified() {
        return String::new();
    }
    let others = given.describe_other_processes(subject);
    others.into_iter().map(|it| format!(" {it}.")).collect()
}

/// A sentence about the other protocols at an address, if the query names no protocol.
fn describe_other_protocols(dialled: &DialTarget, shown: &FrontendView, subjects: &[Subject]) -> String {
    let all = subjects.iter().flat_map(Subject::frontends).map(|it| it.protocol.clone());
    let others: BTreeSet<_> = all.filter(|protocol| *protocol != shown.protocol).collect();
    let others: Vec<String> = others.iter().map(|protocol| format!("{dialled}/{protocol}")).collect();
    if others.is_empty() { String::new() } else { format!(" There is {} too.", others.join(" and ")) }
}

/// What to say about a service that the table lacks, with names that may have been meant; `None`: it has the service.
pub fn describe_absence(snapshot: &Snapshot, name: &ObjectName, obstacles: &NewsObstacles) -> Option<String> {
    if snapshot.services.find_by_name(name).next().is_some() {
        return None;
    }
    let near = query_match::find_near_matches(snapshot, &ExplainQuery::Service(name.clone()));
    let near: Vec<String> = near.into_iter().map(|it| it.name).collect();
    let waiting = unsynced_sources(snapshot);
    let mut text = describe_unknown_service(snapshot, name) + &obstacles.describe() + "\n";
    if !waiting.is_empty() {
        text += &format!("There is no first list yet from: {}.\n", waiting.join(", "));
    }
    if !near.is_empty() {
        text += &format!("Did you mean {}?\n", near.join(" or "));
    }
    Some(text)
}

fn unsynced_sources(snapshot: &Snapshot) -> Vec<&'static str> {
    snapshot.sources.iter().filter(|(_, synced)| !**synced).map(|(source, _)| source.as_str()).collect()
}

/// The sentence about a service that the table lacks. Its object may have been rejected.
fn describe_unknown_service(snapshot: &Snapshot, name: &ObjectName) -> String {
    let is_about = |it: &&Rejection| matches!(&it.object, ObjectKey::Service(key) if key.name == *name);
    match snapshot.rejections.named.values().find(is_about) {
        Some(rejection) => {
            format!("No Service {name} is served, because its object is rejected: {}.", rejection.reason)
        }
        None => format!("No Service and no EndpointSlice of {name} is known."),
    }
}

/// The frontend that is worst for its clients.
fn worst_frontend<'a>(frontends: impl Iterator<Item = &'a FrontendView>) -> Option<&'a FrontendView> {
    let mut worst: Option<&FrontendView> = None;
    for it in frontends {
        if worst.is_none_or(|known| it.verdict.severity() > known.verdict.severity()) {
            worst = Some(it);
        }
    }
    worst
}

fn build_near_rows(snapshot: &Snapshot, question: &ExplainQuery, found: QueryMatch) -> Vec<NearRow> {
    let near = if found == QueryMatch::Nothing {
        query_match::find_near_matches(snapshot, question)
    } else {
        Vec::new()
    };
    near.into_iter().map(|it| NearRow { what: it.what, name: it.name }).collect()
}

impl ResolvedQuery {
    fn explain_service<'a>(
        &'a self,
        given: &ExplainEvidence,
        subject: &'a Subject,
        read: &ReadBack,
    ) -> ExplainedService<'a> {
        let snapshot = &*self.snapshot;
        let view = &*subject.view;
        let policy = &snapshot.settings.hold;
        let (failing_backends, more_failing_backends) = self.failing_backends(given, subject);
        let row = |it: &'a FrontendView| {
            let applied = AppliedState::new(view, it, read, &given.counters);
            let next = sentence::next_step(view, it, snapshot);
            FrontendRow {
                announcement: given.announcement(view, it),
                place: place::format_place(it, &snapshot.node),
                ..FrontendRow::new(view, it, applied, next)
            }
        };
        ExplainedService {
            service: view.key.name.to_string(),
            source: Code(view.key.source),
            state: Code(view.state),
            sentence: worst_frontend(subject.frontends()).map_or_else(
                || sentence::describe_service(view),
                |it| sentence::describe_frontend(view, it, snapshot),
            ),
            load_balancer: LoadBalancer::from_view(view, snapshot.clock()),
            source_ranges: view.facts.iter().flat_map(|facts| &facts.source_ranges).map(|it| &**it).collect(),
            frontends: subject.frontends().map(row).collect(),
            desired: DesiredState::from_view(view, policy),
            rejected: RejectedUpdate::list_for_view(snapshot, view),
            resolved: given.resolved_name(view).cloned(),
            endpoints: details::build_endpoint_rows(view, snapshot, given.checks(view)),
            refusals: details::build_refusal_rows(&given.refusals, subject),
            closed_ports: given.closed_health_ports(view),
            node_port_listeners: given.describe_other_processes(subject),
            refusing_backends: given.list_refusing_udp(subject),
            failing_backends,
            more_failing_backends,
            shortage: given.describe_shortage(subject),
            failing_checks: shortcomings::list_failing_checks(given, view),
            history: given.history(&view.key.name),
        }
    }
}

/// The section of the guide that explains a reason.
fn guide_link(reason: Option<Reason>) -> Option<String> {
    reason.map(|reason| format!("{GUIDE}#{}", reason.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_frontend_or_no_first_list_is_not_called_served() {
        use holdfast_core::keys::Source;

        let of = |sources: &[(Source, bool)]| {
            let sources = sources.iter().copied().collect();
            describe_all_served(&Snapshot { sources, ..Snapshot::default() })
        };
        assert!(of(&[(Source::Config, true)]).starts_with("There is no frontend"));
        let waits = of(&[(Source::Config, true), (Source::Kubernetes, false)]);
        assert!(waits.ends_with("there is no first list yet from: kubernetes."), "{waits}");
    }
}
