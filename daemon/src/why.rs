//! Why a client meets what it meets: the services that are meant, the answer in one sentence, everything that it rests
//! on, and what happens next.
//!
//! Invariant: what is said to be applied was read back from the maps for this very answer. Nothing is guessed: what is
//! not known is absent.

mod balancer;
mod details;
mod find;
mod packet;
mod past;
mod refusing;
mod sentence;
mod states;

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use holdfast_core::facts::{ObjectKey, Rejection};
use holdfast_core::keys::{FrontendKey, ObjectName, Source};
use holdfast_core::op::Entry;
use holdfast_core::snapshot::{FrontendView, Reason, ServiceState, Snapshot};
use schemars::JsonSchema;
use serde::Serialize;

use crate::datapath::{Counters, DatapathView};
use crate::described::Code;
use crate::engine::ask::FRONTENDS_MAX;
use crate::readings::Readings;
use crate::recorder::Record;
use crate::rfc3339::Rfc3339;
pub(crate) use balancer::LoadBalancer;
use details::{Applied, Desired, Rejected};
pub(crate) use details::{EndpointRow, FrontendRow, ObjectRef, RefusedRow, SliceRef, difference, key};
pub(crate) use find::{Dialled, Question};
use find::{Found, Subject};
use packet::Watched;
pub(crate) use packet::{Outcome, Packet, SeenAs, Share as PacketShare};
pub(crate) use sentence::{of_frontend as sentence_of, why};
pub(crate) use states::{ChosenState, EndpointState, WriteStatus, chosen_state, severity, state, status};

/// Where each reason has its section, in the repository and in the packages.
const GUIDE: &str = "docs/explain.md";

/// Why a client meets what it meets.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Explanation<'a> {
    /// What the question names.
    pub(crate) found: Code<Found>,
    /// The answer in one sentence.
    pub(crate) sentence: String,
    /// What the first packet of the client meets that was asked about; null if none was.
    pub(crate) packet: Option<Packet>,
    pub(crate) services: Vec<Explained<'a>>,
    /// Where no service has the address: what is near.
    pub(crate) near: Vec<NearRow>,
    /// If no service has it: the latest records that name it.
    pub(crate) past: Vec<Record>,
    pub(crate) apiserver: Option<String>,
    pub(crate) stale_since: Option<Rfc3339>,
}

/// One service that has to do with what was asked for.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Explained<'a> {
    pub(crate) service: String,
    pub(crate) source: Code<Source>,
    pub(crate) state: Code<ServiceState>,
    pub(crate) sentence: String,
    /// How far its load balancer has come; null: it has none.
    pub(crate) load_balancer: Option<LoadBalancer<'a>>,
    pub(crate) frontends: Vec<FrontendRow<'a>>,
    pub(crate) desired: Desired<'a>,
    pub(crate) rejected: Vec<Rejected<'a>>,
    pub(crate) endpoints: Vec<EndpointRow<'a>>,
    pub(crate) refusals: Vec<RefusedRow>,
    /// Backends by UDP that said that their port is closed, as far as clients outside heard it through this node.
    pub(crate) refusing_backends: Vec<String>,
    /// The latest records of the history, oldest first.
    pub(crate) history: Vec<Record>,
}

/// What may have been meant.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Near")]
pub(crate) struct NearRow {
    pub(crate) what: &'static str,
    pub(crate) name: String,
}

/// What the maps said, by the frontend asked for.
pub(crate) type ReadBack = Vec<(FrontendKey, Result<Option<Entry>, String>)>;

/// A question on its way to its answer: the services that are meant are found, what the maps say of them is still to be
/// read.
pub(crate) struct Walk {
    snapshot: Arc<Snapshot>,
    question: Question,
    /// The client that sends a packet, if one is asked about.
    from: Option<IpAddr>,
    found: Found,
    subjects: Vec<Subject>,
}

impl Walk {
    /// Finds the services that are meant.
    pub(crate) fn begin(snapshot: Arc<Snapshot>, question: Question, from: Option<IpAddr>) -> Self {
        let (found, subjects) = find::find(&snapshot, &question);
        Self { snapshot, question, from, found, subjects }
    }

    /// Whether no service has what was asked for.
    pub(crate) fn found_nothing(&self) -> bool {
        self.found == Found::Nothing
    }

    /// The frontends of which the answer needs what the maps say.
    pub(crate) fn keys(&self) -> Vec<FrontendKey> {
        let frontends = self.subjects.iter().flat_map(Subject::frontends);
        frontends.filter_map(details::key).take(FRONTENDS_MAX).collect()
    }

    /// The answer, with what the maps said.
    pub(crate) fn end<'a>(&'a self, readings: &Readings, read: &ReadBack) -> Explanation<'a> {
        let Self { snapshot, question, found, subjects, .. } = self;
        let packet = self.packet(&readings.datapath(), read);
        let refusing = refusing::seen(readings, subjects);
        let sentence = packet.as_ref().map(|packet| packet.sentence.clone());
        Explanation {
            found: Code(*found),
            sentence: sentence.unwrap_or_else(|| headline(snapshot, question, *found, subjects)),
            packet,
            services: subjects
                .iter()
                .map(|it| explained(readings, snapshot, it, (read, &refusing)))
                .collect(),
            near: near(snapshot, question, *found),
            past: past::past(readings, question, *found),
            apiserver: details::apiserver(readings),
            stale_since: snapshot.stale_since.map(Rfc3339),
        }
    }
}

impl Walk {
    /// What the client's first packet meets. A backend that is dialled as such is no frontend.
    pub(crate) fn packet(&self, datapath: &DatapathView, read: &ReadBack) -> Option<Packet> {
        let (Question::Address(dialled), Some(from)) = (&self.question, self.from) else { return None };
        let subjects = if self.found == Found::Frontend { &*self.subjects } else { &[] };
        let watched = Watched::of(datapath);
        Some(packet::of(&self.snapshot, &watched, (dialled, from), subjects, read))
    }
}

/// The answer in one sentence.
fn headline(snapshot: &Snapshot, question: &Question, found: Found, subjects: &[Subject]) -> String {
    let first = subjects.first();
    let frontend = first.and_then(|subject| worst(asked_for(question, subject)));
    match (question, first, frontend) {
        (Question::Trouble, None, _) => "Every frontend is served.".to_owned(),
        (Question::Trouble, Some(subject), Some(frontend)) => {
            let more = "The worst of what is not served:";
            format!("{more} {}", sentence::of_frontend(&subject.view, frontend))
        }
        (Question::Address(dialled), Some(subject), _) if found == Found::Backend => {
            details::backend_sentence(&subject.view, dialled, subjects.len())
        }
        (Question::Address(dialled), Some(subject), Some(frontend)) => {
            sentence::of_frontend(&subject.view, frontend) + &others(dialled, frontend, subjects)
        }
        (_, Some(subject), Some(frontend)) => sentence::of_frontend(&subject.view, frontend),
        (_, Some(subject), None) => sentence::of_service(&subject.view),
        (Question::Service(name), None, _) => unknown(snapshot, name),
        (Question::Address(dialled), None, _) => {
            format!(
                "Nobody has {dialled}: a client that dials it is not translated, and its packets leave as they are."
            )
        }
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

/// That there are other protocols at an address, if none was asked for.
fn others(dialled: &Dialled, told: &FrontendView, subjects: &[Subject]) -> String {
    let all = subjects.iter().flat_map(Subject::frontends).map(|it| it.protocol.clone());
    let others: BTreeSet<_> = all.filter(|protocol| *protocol != told.protocol).collect();
    let others: Vec<String> = others.iter().map(|protocol| format!("{dialled}/{protocol}")).collect();
    if others.is_empty() { String::new() } else { format!(" There is {} too.", others.join(" and ")) }
}

/// Nothing of it is in the table, maybe because it was rejected or has no room.
fn unknown(snapshot: &Snapshot, name: &ObjectName) -> String {
    let of_it = |it: &&Rejection| matches!(&it.object, ObjectKey::Service(key) if key.name == *name);
    match snapshot.rejections.named.values().find(of_it) {
        Some(rejection) => {
            format!("No Service {name} is served, because its object is rejected: {}.", rejection.reason)
        }
        None => format!("No Service and no EndpointSlice of {name} is known."),
    }
}

/// The one that is worst for its clients, so that the first sentence is about what is wrong.
fn worst<'a>(frontends: impl Iterator<Item = &'a FrontendView>) -> Option<&'a FrontendView> {
    let mut worst: Option<&FrontendView> = None;
    for it in frontends {
        if worst.is_none_or(|known| severity(it.verdict) > severity(known.verdict)) {
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
    readings: &Readings,
    snapshot: &'a Snapshot,
    subject: &'a Subject,
    (read, refusing): (&ReadBack, &BTreeSet<SocketAddr>),
) -> Explained<'a> {
    let view = &*subject.view;
    let policy = &snapshot.settings.hold;
    let counters = Counters::of(&readings.datapath());
    let row = |it: &'a FrontendView| {
        let applied = Applied::of(view, it, read, &counters);
        FrontendRow::of(view, it, applied, sentence::next(view, it, snapshot))
    };
    Explained {
        service: view.key.name.to_string(),
        source: Code(view.key.source),
        state: Code(view.state),
        sentence: worst(subject.frontends())
            .map_or_else(|| sentence::of_service(view), |it| sentence::of_frontend(view, it)),
        load_balancer: LoadBalancer::of(view, snapshot.clock()),
        frontends: subject.frontends().map(row).collect(),
        desired: Desired::of(view, policy),
        rejected: Rejected::of(snapshot, view),
        endpoints: details::endpoints(view, snapshot),
        refusals: details::refusals(readings, subject),
        refusing_backends: refusing::of(view, refusing),
        history: past::of_service(readings, &view.key.name),
    }
}

/// Where this reason is explained.
fn page(reason: Option<Reason>) -> Option<String> {
    reason.map(|reason| format!("{GUIDE}#{}", reason.as_str()))
}
