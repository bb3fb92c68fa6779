//! Turns findings into one result: which finding explains which, the headline, and the exit code.
//!
//! Invariant: the same evidence gives the same result. A finding is explained only by a cause that comes before it in
//! [`EDGES`], so explanations form no cycle. If nothing is wrong, the result names no trouble.

use super::case::Case;
use super::checks::{ALL, Check, Group};
use super::evidence::Evidence;
use super::evidence_source::{EvidenceSource, SourceSet};
use super::finding::{Judgement, State};
use super::unknown_checks::UnknownCheck;

#[derive(Debug)]
pub struct Finding {
    pub check: &'static Check,
    pub judgement: Judgement,
    pub sources: SourceSet,
    /// The findings that this one causes.
    pub explains: Vec<&'static str>,
    /// The finding that causes this one.
    pub explained_by: Option<&'static str>,
}

impl Finding {
    /// The finding as an unknown check. `None`: its check could judge, or did not apply.
    pub(super) fn as_unknown(&self) -> Option<UnknownCheck<'_>> {
        let Judgement { state, sentence, .. } = &self.judgement;
        let why = self.judgement.unknown_reason();
        let unknown =
            UnknownCheck { id: self.check.id, sentence, reason: why, explained_by: self.explained_by };
        (*state == State::Unknown).then_some(unknown)
    }

    /// Whether it is nothing wrong, and a person may want to do something all the same.
    fn has_advice(&self) -> bool {
        self.judgement.state == State::Info && !self.judgement.remedies.is_empty()
    }

    fn queried_apiserver(&self) -> bool {
        self.sources.iter().any(EvidenceSource::is_apiserver)
    }

    /// An error or a warning without another cause.
    fn is_root_cause(&self) -> bool {
        self.explained_by.is_none() && self.judgement.state.is_trouble()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitStatus {
    Healthy,
    Warnings,
    Errors,
    /// There is no such Service.
    NoService,
    /// Nothing visible is wrong, but some sources could not be read.
    Incomplete,
}

/// The exit code of every command about a service that does not exist.
pub const NO_SERVICE_EXIT: u8 = 4;

impl ExitStatus {
    /// The exit code. Code 2 means with every command that the daemon cannot be reached.
    pub const fn code(self) -> u8 {
        match self {
            Self::Healthy => 0,
            Self::Warnings => 1,
            Self::Errors => 3,
            Self::NoService => NO_SERVICE_EXIT,
            Self::Incomplete => 5,
        }
    }
}

#[derive(Debug)]
pub struct DiagnosisResult {
    pub findings: Vec<Finding>,
    /// Index of the finding that comes first. `None`: all is well.
    pub headline: Option<usize>,
    pub exit: ExitStatus,
}

impl DiagnosisResult {
    pub fn count(&self, state: State) -> usize {
        self.findings.iter().filter(|it| it.judgement.state == state).count()
    }

    pub fn has_service(&self) -> bool {
        self.exit != ExitStatus::NoService
    }

    pub fn headline(&self) -> Option<&Finding> {
        self.findings.get(self.headline?)
    }
}

/// Each cause, and the findings that it explains. An earlier cause is the better explanation.
const EDGES: [(&str, &[&str]); 41] = [
    (
        "self.control",
        &[
            "self.watch",
            "self.ready",
            "svc.exists",
            "svc.cache-lag",
            "view.api-cache",
            "slices.lag",
            "hold.state",
        ],
    ),
    (
        "self.watch",
        &["self.ready", "svc.exists", "svc.cache-lag", "view.api-cache", "slices.lag", "hold.state"],
    ),
    ("svc.exists", &["svc.handled", "slices.exist", "slices.counts", "verdict", "probe.frontend"]),
    ("self.node", &["policy.internal-local", "policy.external-local", "lb.health-port"]),
    ("svc.selector", &["slices.exist", "slices.counts", "verdict", "probe.frontend"]),
    ("svc.namespace", &["slices.exist", "slices.missing", "lb.no-controller", "slices.counts"]),
    ("frontend.collision", &["verdict", "probe.frontend"]),
    ("svc.ports", &["verdict"]),
    ("controller.alive", &["slices.exist", "slices.stale", "slices.missing", "slices.lag"]),
    ("lb.controller-alive", &["lb.no-controller", "lb.stuck-ensuring", "lb.pending", "lb.delete-stuck"]),
    (
        "nodes.backends",
        &["pods.unready", "endpoints.stuck-terminating", "slices.counts", "probe.backend", "host.routes"],
    ),
    (
        "pods.selector-typo",
        &["pods.match", "slices.exist", "slices.counts", "verdict", "probe.frontend", "lb.health-port"],
    ),
    ("pods.scaled-to-zero", &["pods.match", "slices.exist", "slices.counts", "verdict", "probe.frontend"]),
    ("pods.match", &["slices.exist", "slices.counts", "verdict", "probe.frontend", "lb.health-port"]),
    ("pods.terminal", &["slices.exist", "slices.counts", "verdict", "probe.frontend"]),
    ("pods.pending", &["slices.exist", "slices.counts", "verdict", "probe.frontend"]),
    ("pods.unready", &["endpoints.never-ready", "slices.counts", "verdict", "probe.frontend"]),
    ("pods.named-port", &["slices.port-name", "slices.counts", "verdict", "probe.frontend"]),
    (
        "slices.hidden",
        &["slices.counts", "slices.family", "slices.missing", "verdict", "probe.frontend", "hold.state"],
    ),
    ("slices.exist", &["slices.counts", "slices.missing", "verdict", "probe.frontend"]),
    ("slices.missing", &["slices.counts", "verdict"]),
    ("slices.port-name", &["verdict", "probe.frontend"]),
    ("slices.stale", &["probe.backend", "flows.stale", "flows.refused"]),
    ("probe.checks", &["endpoints.never-ready", "slices.counts", "verdict", "probe.frontend"]),
    ("hold.state", &["slices.counts", "verdict", "probe.backend"]),
    ("slices.counts", &["verdict", "probe.frontend", "policy.local-draining"]),
    ("self.hooks", &["self.ready", "probe.frontend"]),
    ("self.maps", &["view.table-kernel", "verdict", "probe.frontend"]),
    ("view.table-kernel", &["probe.frontend"]),
    ("lb.failing", &["lb.pending", "events.list"]),
    ("lb.no-controller", &["lb.pending"]),
    ("lb.class-unserved", &["lb.pending"]),
    ("lb.ensured-no-ingress", &["lb.pending"]),
    ("lb.stuck-ensuring", &["lb.pending"]),
    ("policy.internal-local", &["verdict", "probe.frontend"]),
    ("foreign.leftover", &["foreign.kube-proxy"]),
    ("probe.backend", &["probe.frontend"]),
    ("dns.service", &["dns.name"]),
    ("policy.source-ranges", &["lookup", "clients.refusals"]),
    ("policy.external-local", &["lookup"]),
    ("verdict", &["lookup", "clients.refusals"]),
];

/// Order of groups in which the headline is picked from unexplained findings.
const HEADLINE_ORDER: [Group; 12] = [
    Group::Service,
    Group::Pods,
    Group::Endpoints,
    Group::Views,
    Group::Own,
    Group::Foreign,
    Group::Policy,
    Group::Balancer,
    Group::Host,
    Group::Probes,
    Group::Dns,
    Group::History,
];

pub fn judge_evidence(evidence: &Evidence) -> DiagnosisResult {
    let case = Case::new(evidence);
    let mut findings: Vec<Finding> = Vec::with_capacity(ALL.len());
    let exists = ALL.iter().find(|check| check.id == "svc.exists");
    let is_there = exists.is_none_or(|check| (check.judge)(&case).state != State::Error) || case.is_known();
    for check in ALL {
        let (judgement, looked) = match ensure_applies(check, is_there, &case) {
            Ok(()) => case.run_check(check.judge),
            Err(why) => (Judgement::not_applicable(why), SourceSet::default()),
        };
        findings.push(Finding {
            check,
            judgement,
            sources: looked,
            explains: Vec::new(),
            explained_by: None,
        });
    }
    link_causes(&mut findings);
    link_silent_apiserver(&mut findings);
    let first = find_headline(&findings);
    let end = exit_status(&findings, is_there, !evidence.skipped_sources.is_empty());
    DiagnosisResult { findings, headline: first, exit: end }
}

/// Whether a check applies. The error says why not.
fn ensure_applies(check: &Check, is_there: bool, case: &Case<'_>) -> Result<(), &'static str> {
    let of_proxies = matches!(check.id, "svc.ports" | "svc.selector") || check.group == Group::Endpoints;
    if case.is_alias() && of_proxies {
        return Err("It is an alias in DNS: it has neither ports nor endpoints of its own.");
    }
    if case.has_other_proxy() && of_proxies {
        return Err("It belongs to another proxy, and this node does not watch it.");
    }
    match (check.group, is_there, case.is_served_here()) {
        (Group::Own | Group::Service | Group::History, ..) => Ok(()),
        (_, false, _) => Err("There is no such Service."),
        (Group::Endpoints | Group::Dns, true, false) | (_, true, true) => Ok(()),
        (_, true, false) => Err("This node does not serve it, and need not."),
    }
}

fn link_causes(findings: &mut [Finding]) {
    for (cause, explained) in EDGES {
        let found = findings.iter().find(|it| it.check.id == cause);
        let Some((group, state)) = found.map(|it| (it.check.group, it.judgement.state)) else { continue };
        let mut explains = Vec::new();
        for finding in findings.iter_mut() {
            if explained.contains(&finding.check.id)
                && is_cause(cause, (group, state), finding.judgement.state)
            {
                finding.explained_by.get_or_insert(cause);
                explains.push(finding.check.id);
            }
        }
        if let Some(finding) = findings.iter_mut().find(|it| it.check.id == cause) {
            finding.explains = explains;
        }
    }
}

/// If no apiserver answers, that explains each unanswered query to it.
fn link_silent_apiserver(findings: &mut [Finding]) {
    let place = findings.iter().position(|it| it.check.id == "self.control");
    let is_away = |it: &Finding| it.judgement.state == State::Error;
    let Some(place) = place.filter(|place| findings.get(*place).is_some_and(is_away)) else { return };
    let is_silent = |it: &&mut Finding| it.judgement.state == State::Unknown && it.queried_apiserver();
    let mut silent = Vec::new();
    for finding in findings.iter_mut().filter(is_silent).filter(|it| it.explained_by.is_none()) {
        finding.explained_by = Some("self.control");
        silent.push(finding.check.id);
    }
    if let Some(cause) = findings.get_mut(place) {
        cause.explains.extend(silent);
    }
}

/// Whether a cause explains an effect, by their states. A scaled-down service is no trouble, but explains all that
/// follows. Some unready pods do not explain that none is ready. Neither a map that fills up, nor a fallback apiserver,
/// nor one node of many explains an error.
fn is_cause(id: &str, (group, state): (Group, State), effect: State) -> bool {
    match (state, effect) {
        (State::Warning | State::Error, State::Warning) | (State::Error, State::Error) => true,
        (State::Warning, State::Error) => {
            group != Group::Pods && !matches!(id, "self.control" | "self.maps" | "nodes.backends")
        }
        (State::Info, State::Warning | State::Error) => id == "pods.scaled-to-zero",
        _ => false,
    }
}

/// Index of the headline: the first unexplained error, else an intended cause, else the first warning.
fn find_headline(findings: &[Finding]) -> Option<usize> {
    let place = |wanted: &dyn Fn(&Finding) -> bool| {
        let found = findings.iter().enumerate().filter(|(_, it)| wanted(it));
        found
            .min_by_key(|(_, it)| HEADLINE_ORDER.iter().position(|group| *group == it.check.group))
            .map(|(place, _)| place)
    };
    place(&|it| it.is_root_cause() && it.judgement.state == State::Error)
        .or_else(|| place(&|it| it.judgement.state == State::Info && !it.explains.is_empty()))
        .or_else(|| place(&Finding::is_root_cause))
        // A pending load balancer: it is not wrong yet, but it is not well either.
        .or_else(|| place(&|it| it.check.id == "lb.pending" && it.judgement.state == State::Info))
        // Clients that the source ranges keep out: it is meant, and somebody may wonder.
        .or_else(|| place(&|it| it.check.id == "clients.refusals" && it.has_advice()))
}

fn exit_status(findings: &[Finding], is_there: bool, is_left_out: bool) -> ExitStatus {
    let any = |state| findings.iter().any(|it| it.judgement.state == state);
    if !is_there {
        return ExitStatus::NoService;
    }
    match (any(State::Error), any(State::Warning), any(State::Unknown)) {
        (true, ..) => ExitStatus::Errors,
        (false, true, _) => ExitStatus::Warnings,
        (false, false, true) => ExitStatus::Incomplete,
        // A skipped source may hide a fault.
        (false, false, false) if is_left_out => ExitStatus::Incomplete,
        (false, false, false) => ExitStatus::Healthy,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_edge_leads_from_a_check_to_a_later_edge() {
        let known = |id: &str| ALL.iter().any(|check| check.id == id);
        for (place, (cause, explained)) in EDGES.iter().enumerate() {
            assert!(known(cause), "{cause}");
            for id in *explained {
                assert!(known(id), "{id}");
                let before = EDGES.iter().take(place + 1).any(|(earlier, _)| earlier == id);
                assert!(!before, "{cause} explains {id}, which is a cause before it: there may be a circle");
            }
        }
    }

    #[test]
    fn every_check_has_a_unique_id_and_a_headline_place() {
        for (place, check) in ALL.iter().enumerate() {
            assert!(ALL.iter().skip(place + 1).all(|other| other.id != check.id), "{}", check.id);
            assert!(HEADLINE_ORDER.contains(&check.group), "{}", check.id);
        }
    }
}
