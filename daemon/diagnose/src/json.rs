//! A diagnosis for programs. The text for people is made from it.
//!
//! Invariant: fields are added, never renamed or removed; `schema` names the version. Every foreign text in it is
//! cleaned.

mod api;

use std::net::{IpAddr, SocketAddr};

use holdfast_core::snapshot::{FrontendView, Reason, Verdict};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

use super::case::Case;
use super::checks::Group;
use super::diagnosis_result::{DiagnosisResult, ExitStatus, Finding};
use super::evidence::{Evidence, Lookup, Probe, ProbeKind, ProbeOutcome};
use super::evidence_source::EvidenceSource;
use super::explain::format_place;
use super::finding::{Confidence, REASON_KEY, Remedy, State};
use super::formatting::{clean, join_names};
use super::limits::{NAMED_MAX, RECORDS_MAX};
use super::unknown_checks::{UnknownCheck, UnknownGroup, group_unknown};
use api::Api;
use holdfast_status::record::Record;
use holdfast_status::rfc3339::Rfc3339;
use holdfast_status::schema_types::Code;

/// The version of this format.
const SCHEMA: &str = "holdfast.diagnose/1";

/// What no node can see. The first is for load balancers.
const NOT_CHECKED: [&str; 3] =
    ["health checks of the cloud's balancer", "the path from outside this node", "firewalls inside pods"];

/// The problems of a service, and the remedies.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Diagnosis<'a> {
    pub schema: &'static str,
    pub service: DiagnosedService,
    /// The queried port, by name or number; null: all ports.
    pub port: Option<String>,
    pub node: String,
    pub version: &'static str,
    pub taken: Rfc3339,
    pub verdict: DiagnosisVerdict,
    pub counts: FindingCounts,
    pub findings: Vec<FindingRow<'a>>,
    pub endpoints: EndpointCounts,
    pub frontends: Vec<DiagnosedFrontend>,
    /// The latest records of the history, oldest first.
    pub history: Vec<&'a Record>,
    pub api: Api,
    pub not_checked: Vec<&'static str>,
    /// The exit code of `holdfast diagnose`.
    pub exit: u8,
}

/// The service in brief.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "DiagnosedService")]
pub struct DiagnosedService {
    pub namespace: String,
    pub name: String,
    pub uid: Option<String>,
    pub resource_version: Option<String>,
    pub r#type: Option<&'static str>,
    pub cluster_ips: Vec<IpAddr>,
}

/// The summary of all findings.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "DiagnosisVerdict")]
pub struct DiagnosisVerdict {
    /// What clients meet at the worst frontend; null: there is none.
    pub state: Option<Code<Verdict>>,
    pub reason: Option<Code<Reason>>,
    pub since: Option<Rfc3339>,
    /// The most likely cause in one sentence.
    pub headline: String,
    /// The next step; null: nothing to do.
    pub next: Option<Remedy>,
    /// The finding behind the headline; null: all is well.
    pub finding: Option<&'static str>,
    pub confidence: Code<Confidence>,
}

/// The number of findings in each state.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "FindingCounts")]
pub struct FindingCounts {
    pub ok: usize,
    pub info: usize,
    pub warning: usize,
    pub error: usize,
    pub unknown: usize,
    pub skipped: usize,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Finding")]
pub struct FindingRow<'a> {
    pub id: &'static str,
    pub group: Code<Group>,
    pub state: Code<State>,
    pub confidence: Code<Confidence>,
    pub message: &'a str,
    /// The evidence of the finding.
    pub data: &'a Map<String, Value>,
    /// Remedies for a person, the best first; holdfast applies none.
    pub remedies: &'a [Remedy],
    /// The findings that this one causes.
    pub explains: &'a [&'static str],
    /// The finding that causes this one.
    pub explained_by: Option<&'static str>,
    /// The sources that its check read; empty if the check does not apply.
    pub sources: Vec<Code<EvidenceSource>>,
}

/// Endpoints in slices; an address with the same ports counts once.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "EndpointCounts")]
pub struct EndpointCounts {
    pub ready: usize,
    /// Terminating, and still answering.
    pub serving: usize,
    pub terminating: usize,
    pub unready: usize,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "DiagnosedFrontend")]
pub struct DiagnosedFrontend {
    pub address: String,
    pub r#type: &'static str,
    pub verdict: Code<Verdict>,
    pub backends: usize,
    /// The result of a test connection; null: none was made.
    pub probe: Option<String>,
    /// Why it was not dialled, for people.
    #[serde(skip)]
    pub untried_reason: Option<&'static str>,
    /// Where clients dial it, for people.
    #[serde(skip)]
    pub place: String,
}

impl<'a> Diagnosis<'a> {
    pub fn new(evidence: &'a Evidence, answer: &'a DiagnosisResult, version: &'static str) -> Self {
        let case = Case::new(evidence);
        let counts = case.counts();
        let history = evidence.history.iter().rev().take(RECORDS_MAX).rev().collect();
        Self {
            schema: SCHEMA,
            service: build_service(&case),
            port: evidence.scope.focus.port.as_ref().map(|port| port.as_str().to_owned()),
            node: clean(&evidence.snapshot.node.name),
            version,
            taken: Rfc3339(evidence.taken),
            verdict: build_verdict(&case, answer),
            counts: FindingCounts::from_result(answer),
            findings: answer.findings.iter().map(FindingRow::from_finding).collect(),
            endpoints: EndpointCounts {
                ready: counts.ready,
                serving: counts.serving,
                terminating: counts.terminating,
                unready: counts.unready,
            },
            frontends: case.frontends().take(FRONTENDS_MAX).map(|it| build_frontend(&case, it)).collect(),
            history,
            api: Api::from_cluster(&evidence.cluster),
            not_checked: list_not_checked(&case),
            exit: answer.exit.code(),
        }
    }
}

/// The sources that this diagnosis skipped, and what no node can see.
fn list_not_checked(case: &Case<'_>) -> Vec<&'static str> {
    let unseen = NOT_CHECKED.into_iter().skip(usize::from(!case.is_load_balancer()));
    case.skipped_sources().iter().map(|place| place.as_str()).chain(unseen).collect()
}

/// The most frontends that are listed; `/frontends` has all.
const FRONTENDS_MAX: usize = NAMED_MAX * 4;

fn build_service(case: &Case<'_>) -> DiagnosedService {
    let name = case.name();
    let facts = case.facts();
    let text = |text: Option<&std::sync::Arc<str>>| text.map(|text| clean(text));
    DiagnosedService {
        namespace: name.namespace().to_owned(),
        name: name.name().to_owned(),
        uid: text(facts.and_then(|facts| facts.meta.uid.as_ref())),
        resource_version: text(facts.and_then(|facts| facts.meta.resource_version.as_ref())),
        r#type: facts.map(|facts| facts.kind.as_str()),
        cluster_ips: facts.map(|facts| facts.cluster_ips.clone()).unwrap_or_default(),
    }
}

/// What is said where nothing is wrong, and most clients fail all the same.
const ONLY_FOR_THIS_HOST: &str = "Nothing is wrong for processes in this host's own network. Its backends are at the \
                                  loopback, and pods and other machines do not reach them.";

fn build_verdict(case: &Case<'_>, answer: &DiagnosisResult) -> DiagnosisVerdict {
    let worst = super::checks::worst_frontend(case);
    let first = answer.headline();
    let well = || {
        let idle = super::checks::describe_idle_failures(case);
        match (answer.exit, idle) {
            (ExitStatus::Incomplete, idle) => {
                let what = if idle.is_some() { "Nothing fails for clients" } else { "Nothing is wrong" };
                let idle = idle.map(|idle| format!("; {idle}")).unwrap_or_default();
                let unseen = describe_unseen(case, answer);
                format!("{what}, as far as could be seen{idle}. Not looked at: {unseen}.")
            }
            (_, Some(idle)) => format!("Nothing fails for clients; {idle}."),
            (_, None) if super::checks::serves_only_this_host(case) => ONLY_FOR_THIS_HOST.to_owned(),
            (_, None) => "Nothing is wrong with this service.".to_owned(),
        }
    };
    DiagnosisVerdict {
        state: worst.map(|it| Code(it.verdict)),
        reason: worst.and_then(|it| it.reason).map(Code),
        since: worst.map(|it| Rfc3339(it.verdict_since)),
        headline: first.map_or_else(well, |it| it.judgement.sentence.clone()),
        next: first.and_then(|it| it.judgement.remedies.first().cloned()),
        finding: first.map(|it| it.check.id),
        confidence: Code(first.map_or(Confidence::Certain, |it| it.judgement.confidence)),
    }
}

/// Skipped sources and checks that could not judge: they may hide a fault.
fn describe_unseen(case: &Case<'_>, answer: &DiagnosisResult) -> String {
    let places = case.skipped_sources().iter().map(|place| place.as_str().to_owned());
    let groups = group_unknown(answer.findings.iter().filter_map(Finding::as_unknown));
    join_names(places.chain(groups.iter().map(UnknownGroup::to_text)))
}

impl FindingCounts {
    fn from_result(answer: &DiagnosisResult) -> Self {
        Self {
            ok: answer.count(State::Ok),
            info: answer.count(State::Info),
            warning: answer.count(State::Warning),
            error: answer.count(State::Error),
            unknown: answer.count(State::Unknown),
            skipped: answer.count(State::Skipped),
        }
    }
}

impl<'a> FindingRow<'a> {
    /// The row as an unknown check. `None`: its check could judge, or did not apply.
    pub(super) fn as_unknown(&self) -> Option<UnknownCheck<'a>> {
        let why = self.data.get(REASON_KEY).and_then(Value::as_str);
        let Self { id, message: sentence, explained_by, .. } = *self;
        let unknown = UnknownCheck { id, sentence, reason: why, explained_by };
        (self.state.0 == State::Unknown).then_some(unknown)
    }

    fn from_finding(it: &'a Finding) -> Self {
        Self {
            id: it.check.id,
            group: Code(it.check.group),
            state: Code(it.judgement.state),
            confidence: Code(it.judgement.confidence),
            message: &it.judgement.sentence,
            data: &it.judgement.evidence,
            remedies: &it.judgement.remedies,
            explains: &it.explains,
            explained_by: it.explained_by,
            sources: it.sources.iter().map(Code).collect(),
        }
    }
}

fn build_frontend(case: &Case<'_>, it: &FrontendView) -> DiagnosedFrontend {
    let address = SocketAddr::new(it.address, it.port.get());
    let probe = find_probe(case.probes_lookup(), it);
    DiagnosedFrontend {
        address: clean(&format!("{address}/{}", it.protocol)),
        r#type: it.kind.as_str(),
        verdict: Code(it.verdict),
        backends: case.view().map_or(0, |view| view.backends(it).count()),
        probe: probe.map(|probe| probe.outcome.as_str().to_owned()),
        untried_reason: match probe.map(|probe| &probe.outcome) {
            Some(ProbeOutcome::NotTried(why)) => Some(*why),
            _ => None,
        },
        place: clean(&format_place(it, &case.table().node)),
    }
}

/// The frontend's probe. A node port is probed at an address of the node.
fn find_probe<'a>(probes: &'a Lookup<Vec<Probe>>, it: &FrontendView) -> Option<&'a Probe> {
    let is_it = |probe: &&Probe| {
        probe.kind == ProbeKind::Frontend
            && probe.to.port() == it.port.get()
            && (probe.to.ip() == it.address || it.address.is_unspecified())
    };
    probes.answer()?.iter().find(is_it)
}
