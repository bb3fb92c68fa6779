//! Why a client meets what it meets: the services that are meant, the answer in one sentence, everything that it rests
//! on, and what happens next.
//!
//! Invariant: what an answer calls applied was read back from the maps for this very answer. Nothing is guessed: what
//! is not known is absent.

mod balancer;
mod details;
mod find;
mod packet;
mod past;
mod refusing;
mod sentence;
mod states;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use holdfast_core::facts::{ObjectKey, Rejection};
use holdfast_core::keys::{FrontendKey, ObjectName, Source};
use holdfast_core::limits::READ_BACK_MAX;
use holdfast_core::op::FrontendEntry;
use holdfast_core::snapshot::{FrontendView, Reason, ServiceState, ServiceView, Snapshot};
use schemars::JsonSchema;
use serde::Serialize;

pub use balancer::LoadBalancer;
use details::{Applied, Desired, Rejected};
pub use details::{EndpointRow, FrontendRow, ObjectRef, RefusedRow, SliceRef, difference, key};
use find::Subject;
pub use find::{Dialled, Found, Question};
use holdfast_status::described::Code;
use holdfast_status::record::Record;
use holdfast_status::rfc3339::Rfc3339;
use holdfast_status::views::announced::AnnouncedAddress;
use holdfast_status::views::apiserver::View as ApiserverView;
use holdfast_status::views::checks::ChecksSeen;
use holdfast_status::views::clients::Counters;
use holdfast_status::views::datapath::DatapathView;
use holdfast_status::views::names::NameSeen;
use holdfast_status::views::refusals::Denied;
use packet::Watched;
pub use packet::{Outcome, Packet, SeenAs, Share as PacketShare};
pub use past::is_about;
pub use sentence::{of_frontend as sentence_of, why};
pub use states::{ChosenState, EndpointState, WriteStatus, chosen_state, state, status};

/// Where each reason has its section, in the repository and in the packages.
const GUIDE: &str = "docs/explain.md";

/// Why a client meets what it meets.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Explanation<'a> {
    /// What the question names.
    pub found: Code<Found>,
    /// The answer in one sentence.
    pub sentence: String,
    /// What the first packet of the client meets that was asked about; null if none was.
    pub packet: Option<Packet>,
    pub services: Vec<Explained<'a>>,
    /// Where no service has the address: what is near.
    pub near: Vec<NearRow>,
    /// If no service has the address or the name: the latest records about it.
    pub past: Vec<Record>,
    pub apiserver: Option<String>,
    pub stale_since: Option<Rfc3339>,
}

/// One service that has to do with what was asked for.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Explained<'a> {
    pub service: String,
    pub source: Code<Source>,
    pub state: Code<ServiceState>,
    pub sentence: String,
    /// How far its load balancer has come; null: it has none.
    pub load_balancer: Option<LoadBalancer<'a>>,
    pub frontends: Vec<FrontendRow<'a>>,
    pub desired: Desired<'a>,
    pub rejected: Vec<Rejected<'a>>,
    /// The name that its backends are asked by; null: they are not from the DNS.
    pub resolved: Option<NameSeen>,
    pub endpoints: Vec<EndpointRow<'a>>,
    pub refusals: Vec<RefusedRow>,
    /// Backends by UDP that said that their port is closed, as far as clients outside heard it through this node.
    pub refusing_backends: Vec<String>,
    /// The latest records of the history, oldest first.
    pub history: Vec<Record>,
}

/// Something that may have been meant.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Near")]
pub struct NearRow {
    pub what: &'static str,
    pub name: String,
}

/// What the running daemon knows beside its tables and maps, taken for one answer.
#[derive(Debug)]
pub struct Given {
    pub datapath: Arc<DatapathView>,
    /// The clients of the ports to which the frontends lead that were read back.
    pub counters: Counters,
    /// None where no apiserver is used.
    pub apiserver: Option<Arc<ApiserverView>>,
    /// The latest clients that were not served; the one that tried last comes last.
    pub refusals: Vec<Arc<Denied>>,
    /// Backends by UDP that said to a client outside that their port is closed.
    pub refusing: BTreeSet<SocketAddr>,
    /// The checked backends of each of [`Walk::lists_exactly`] that the configuration has.
    pub checks: BTreeMap<ObjectName, ChecksSeen>,
    /// What name servers say of the backends of those services.
    pub names: BTreeMap<ObjectName, NameSeen>,
    /// The addresses that are to be announced.
    pub announced: Vec<AnnouncedAddress>,
    /// The latest records of each of [`Walk::lists_exactly`], oldest first.
    pub histories: BTreeMap<ObjectName, Vec<Record>>,
    /// The latest records about [`Walk::missed`], oldest first.
    pub past: Vec<Record>,
}

/// What the maps said, by the frontend asked for.
pub type ReadBack = Vec<(FrontendKey, Result<Option<FrontendEntry>, String>)>;

impl Given {
    /// The checked backends of a service; none where the configuration does not have it.
    fn checks(&self, view: &ServiceView) -> Option<&ChecksSeen> {
        self.checks.get(&view.key.name).filter(|_| view.key.source == Source::Config)
    }

    /// The name that a service's backends are asked by.
    fn resolved(&self, view: &ServiceView) -> Option<&NameSeen> {
        self.names.get(&view.key.name).filter(|_| view.key.source == Source::Config)
    }

    /// Whether the address of a frontend is announced; none where it is not to be.
    fn announcement(&self, view: &ServiceView, it: &FrontendView) -> Option<AnnouncedAddress> {
        let is_its = |announced: &&AnnouncedAddress| announced.address == it.address;
        self.announced.iter().find(is_its).filter(|_| view.key.source == Source::Config).cloned()
    }

    fn of_service(&self, name: &ObjectName) -> Vec<Record> {
        self.histories.get(name).cloned().unwrap_or_default()
    }
}

/// A question on its way to its answer: the services that are meant are found, what the maps say of them is still to be
/// read.
#[derive(Debug)]
pub struct Walk {
    snapshot: Arc<Snapshot>,
    question: Question,
    /// The client that sends a packet, if one is asked about.
    from: Option<IpAddr>,
    found: Found,
    subjects: Vec<Subject>,
}

impl Walk {
    /// Finds the services that are meant.
    pub fn begin(snapshot: Arc<Snapshot>, question: Question, from: Option<IpAddr>) -> Self {
        let (found, subjects) = find::find(&snapshot, &question);
        Self { snapshot, question, from, found, subjects }
    }

    /// Whether no service has what was asked for.
    pub fn found_nothing(&self) -> bool {
        self.found == Found::Nothing
    }

    /// The frontends of which the answer needs what the maps say.
    pub fn keys(&self) -> Vec<FrontendKey> {
        let frontends = self.subjects.iter().flat_map(Subject::frontends);
        frontends.filter_map(details::key).take(READ_BACK_MAX).collect()
    }

    /// The services of which the answer has records.
    pub fn names(&self) -> BTreeSet<&ObjectName> {
        let asked = match &self.question {
            Question::Service(name) => Some(name),
            Question::Trouble | Question::Address(_) => None,
        };
        self.subjects.iter().map(|subject| &subject.view.key.name).chain(asked).collect()
    }

    /// The address that no service has.
    pub fn missed(&self) -> Option<&Dialled> {
        match &self.question {
            Question::Address(dialled) if self.found_nothing() => Some(dialled),
            _ => None,
        }
    }

    /// Whether a service of the answer has a port by UDP.
    pub fn is_by_udp(&self) -> bool {
        self.subjects.iter().any(|subject| refusing::by_udp(&subject.view).next().is_some())
    }

    /// Makes the answer, with what the maps said.
    pub fn end<'a>(&'a self, given: &Given, read: &ReadBack) -> Explanation<'a> {
        let Self { snapshot, question, found, subjects, .. } = self;
        let packet = self.packet(&given.datapath, read);
        let sentence = packet.as_ref().map(|packet| packet.sentence.clone());
        let sentence = sentence.unwrap_or_else(|| headline(snapshot, question, *found, subjects));
        let departs = given.datapath.departs();
        let departs = departs.map(|why| format!("Clients may still meet something else, because {why}. "));
        Explanation {
            found: Code(*found),
            sentence: departs.unwrap_or_default() + &sentence,
            packet,
            services: subjects.iter().map(|it| explained(given, snapshot, it, read)).collect(),
            near: near(snapshot, question, *found),
            past: self.past(given),
            apiserver: given.apiserver.as_deref().map(details::apiserver),
            stale_since: snapshot.stale_since.map(Rfc3339),
        }
    }
}

impl Walk {
    /// Records about what was asked for and is not there now; they say why it went.
    fn past(&self, given: &Given) -> Vec<Record> {
        match &self.question {
            Question::Service(name) if self.found_nothing() => given.of_service(name),
            Question::Address(_) => given.past.clone(),
            Question::Trouble | Question::Service(_) => Vec::new(),
        }
    }

    /// What the client's first packet meets. A backend that is dialled as such is no frontend.
    pub fn packet(&self, datapath: &DatapathView, read: &ReadBack) -> Option<Packet> {
        let (Question::Address(dialled), Some(from)) = (&self.question, self.from) else { return None };
        let subjects = if self.found == Found::Frontend { &*self.subjects } else { &[] };
        let watched = Watched::of(datapath);
        Some(packet::follow(&self.snapshot, &watched, (dialled, from), subjects, read))
    }
}

/// The answer in one sentence.
fn headline(snapshot: &Snapshot, question: &Question, found: Found, subjects: &[Subject]) -> String {
    let first = subjects.first();
    let frontend = first.and_then(|subject| worst(asked_for(question, subject)));
    match (question, first, frontend) {
        (Question::Trouble, None, _) => none_in_trouble(snapshot),
        (Question::Trouble, Some(subject), Some(frontend)) => {
            let more = "The worst of what is not served:";
            format!("{more} {}", sentence::of_frontend(&subject.view, frontend, snapshot))
        }
        (Question::Address(dialled), Some(subject), _) if found == Found::Backend => {
            details::backend_sentence(&subject.view, dialled, subjects.len())
        }
        (Question::Address(dialled), Some(subject), Some(frontend)) => {
            sentence::of_frontend(&subject.view, frontend, snapshot) + &others(dialled, frontend, subjects)
        }
        (_, Some(subject), Some(frontend)) => sentence::of_frontend(&subject.view, frontend, snapshot),
        (_, Some(subject), None) => sentence::of_service(&subject.view),
        (Question::Service(name), None, _) => unknown(snapshot, name),
        (Question::Address(dialled), None, _) => {
            format!(
                "Nobody has {dialled}: a client that dials it is not translated, and its packets leave as they are."
            )
        }
    }
}

/// What is said where no frontend is in trouble: that there is none to be served is no well-being.
fn none_in_trouble(snapshot: &Snapshot) -> String {
    let waiting = snapshot.sources.iter().filter(|(_, synced)| !**synced);
    let waiting: Vec<&str> = waiting.map(|(source, _)| source.as_str()).collect();
    match (waiting.is_empty(), snapshot.services.iter().any(|view| !view.frontends.is_empty())) {
        (true, true) => "Every frontend is served.".to_owned(),
        (true, false) => "There is no frontend: no source has a service that could be dialled.".to_owned(),
        (false, _) => format!(
            "Every frontend that is known is served, but there is no first list yet from: {}.",
            waiting.join(", ")
        ),
    }
}

/// The frontends that the first sentence is about: at an address, of the protocol that comes first.
fn asked_for<'a>(question: &Question, subject: &'a Subject) -> impl Iterator<Item = &'a FrontendView> {
    let first = match question {
        Question::Address(_) => subject.frontends().next().map(|it| it.protocol.clone()),
        Question::Trouble | Question::Service(_) => None,
    };
    subject.frontends().filter(move |it| first.as_ref().is_none_or(|first| it.protocol == *first))
}

/// A further sentence about the other protocols at an address, if the question names no protocol.
fn others(dialled: &Dialled, told: &FrontendView, subjects: &[Subject]) -> String {
    let all = subjects.iter().flat_map(Subject::frontends).map(|it| it.protocol.clone());
    let others: BTreeSet<_> = all.filter(|protocol| *protocol != told.protocol).collect();
    let others: Vec<String> = others.iter().map(|protocol| format!("{dialled}/{protocol}")).collect();
    if others.is_empty() { String::new() } else { format!(" There is {} too.", others.join(" and ")) }
}

/// The sentence about a service of which the table has nothing; its object may have been rejected.
fn unknown(snapshot: &Snapshot, name: &ObjectName) -> String {
    let of_it = |it: &&Rejection| matches!(&it.object, ObjectKey::Service(key) if key.name == *name);
    match snapshot.rejections.named.values().find(of_it) {
        Some(rejection) => {
            format!("No Service {name} is served, because its object is rejected: {}.", rejection.reason)
        }
        None => format!("No Service and no EndpointSlice of {name} is known."),
    }
}

/// The frontend that is worst for its clients, so that the first sentence is about what is wrong.
fn worst<'a>(frontends: impl Iterator<Item = &'a FrontendView>) -> Option<&'a FrontendView> {
    let mut worst: Option<&FrontendView> = None;
    for it in frontends {
        if worst.is_none_or(|known| it.verdict.severity() > known.verdict.severity()) {
            worst = Some(it);
        }
    }
    worst
}

fn near(snapshot: &Snapshot, question: &Question, found: Found) -> Vec<NearRow> {
    let near = if found == Found::Nothing { find::near(snapshot, question) } else { Vec::new() };
    near.into_iter().map(|it| NearRow { what: it.what, name: it.name }).collect()
}

fn explained<'a>(
    given: &Given,
    snapshot: &'a Snapshot,
    subject: &'a Subject,
    read: &ReadBack,
) -> Explained<'a> {
    let view = &*subject.view;
    let policy = &snapshot.settings.hold;
    let row = |it: &'a FrontendView| {
        let applied = Applied::of(view, it, read, &given.counters);
        let next = sentence::next(view, it, snapshot);
        FrontendRow { announcement: given.announcement(view, it), ..FrontendRow::of(view, it, applied, next) }
    };
    Explained {
        service: view.key.name.to_string(),
        source: Code(view.key.source),
        state: Code(view.state),
        sentence: worst(subject.frontends())
            .map_or_else(|| sentence::of_service(view), |it| sentence::of_frontend(view, it, snapshot)),
        load_balancer: LoadBalancer::of(view, snapshot.clock()),
        frontends: subject.frontends().map(row).collect(),
        desired: Desired::of(view, policy),
        rejected: Rejected::of(snapshot, view),
        resolved: given.resolved(view).cloned(),
        endpoints: details::endpoints(view, snapshot, given.checks(view)),
        refusals: details::refusals(&given.refusals, subject),
        refusing_backends: refusing::told(view, &given.refusing),
        history: given.of_service(&view.key.name),
    }
}

/// The place in the guide that explains a reason.
fn page(reason: Option<Reason>) -> Option<String> {
    reason.map(|reason| format!("{GUIDE}#{}", reason.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn that_nothing_is_known_is_not_said_to_be_well() {
        use holdfast_core::keys::Source;

        let of = |sources: &[(Source, bool)]| {
            let sources = sources.iter().copied().collect();
            none_in_trouble(&Snapshot { sources, ..Snapshot::default() })
        };
        assert!(of(&[(Source::Config, true)]).starts_with("There is no frontend"));
        let waits = of(&[(Source::Config, true), (Source::Kubernetes, false)]);
        assert!(waits.ends_with("there is no first list yet from: kubernetes."), "{waits}");
    }
}
