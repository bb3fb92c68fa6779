//! `/verify`: compares apiserver, memory and kernel now.
//!
//! Invariant: equal means that every possible comparison was made and found nothing, that the maps refused nothing, and
//! that the programs that clients reach read these maps. A comparison that could not be made is neither equal nor a
//! difference: the answer says so. The comparison itself rewrites differing entries in the kernel; missed changes are
//! listed again only for a query over the socket. The apiserver is queried at most once in a while, however many
//! clients ask: each comparison has its age. Folders and configuration are read whole at each change, so they are not
//! compared.

use std::sync::Arc;

use axum::http::StatusCode;
use axum::response::Response;
use holdfast_status::frontend_text::shorten_node_ports;
use holdfast_status::printable::sanitise_line;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::admin_listener::{ListenerKind, RequestContext};
use super::form::Form;
use super::query::Query;
use super::response;
use holdfast_agent::readings::{Comparison, compare_flows, compare_programs, unwritten_services};
use holdfast_kubernetes::source::AuditMode;

/// The results of all comparisons, including those with the apiserver.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
pub struct Verification {
    /// Every comparison was made and found nothing.
    pub(crate) equal: bool,
    /// Every comparison was made, whatever it found.
    #[serde(default = "complete_by_default")]
    complete: bool,
    comparisons: Vec<Arc<Comparison>>,
}

/// Older daemons omit the field.
const fn complete_by_default() -> bool {
    true
}

/// The overall result of all comparisons.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VerifyOutcome {
    /// Every comparison was made and found nothing.
    Equal,
    /// A comparison found a difference, whether or not others could be made.
    Different,
    /// No comparison found a difference, but some could not be made.
    Incomplete,
}

impl Verification {
    fn new(comparisons: Vec<Arc<Comparison>>) -> Self {
        let complete = comparisons.iter().all(|it| it.equal.is_some());
        let equal = complete && comparisons.iter().all(|it| it.equal == Some(true));
        Self { equal, complete, comparisons }
    }

    /// The overall result. It uses only the comparisons themselves, which older daemons have as well.
    pub fn outcome(&self) -> VerifyOutcome {
        let any = |equal| self.comparisons.iter().any(|it| it.equal == equal);
        match (any(Some(false)), any(None)) {
            (true, _) => VerifyOutcome::Different,
            (false, true) => VerifyOutcome::Incomplete,
            (false, false) if self.comparisons.is_empty() => VerifyOutcome::Incomplete,
            (false, false) => VerifyOutcome::Equal,
        }
    }

    pub fn text(&self) -> String {
        let end = match self.outcome() {
            VerifyOutcome::Equal => "all equal\n".to_owned(),
            VerifyOutcome::Different => "NOT equal\n".to_owned(),
            VerifyOutcome::Incomplete => {
                let made = self.comparisons.iter().filter(|it| it.equal.is_some()).count();
                let all = self.comparisons.len();
                format!(
                    "not fully compared: {made} of {all} comparisons were made, and found no difference\n"
                )
            }
        };
        self.comparisons.iter().map(|it| render_comparison(it)).collect::<String>() + &end
    }
}

/// Answers with the results of comparisons, made now or a moment ago.
pub(super) async fn verify(visit: RequestContext, _: Query, form: Form) -> Response {
    let asker = match visit.listener.kind {
        ListenerKind::Tcp(_) => AuditMode::ReadOnly,
        ListenerKind::Unix => AuditMode::Repair,
    };
    let (kernel, apiserver) = tokio::join!(compare_maps(&visit), visit.readings.watches.audit(asker));
    let datapath = visit.readings.datapath();
    let mut comparisons = vec![kernel];
    comparisons.extend(compare_programs(&datapath).into_iter().chain(compare_flows(&datapath)).map(Arc::new));
    let comparison =
        |(what, compared)| Arc::new(Comparison::new(format!("apiserver with memory, {what}"), compared));
    comparisons.extend(apiserver.into_iter().map(comparison));
    let verification = Verification::new(comparisons);
    response::render_response(StatusCode::OK, form, &verification, || verification.text())
}

/// One comparison as people read it. No foreign text in it can move a terminal's cursor.
fn render_comparison(it: &Comparison) -> String {
    let verdict = match (it.equal, &it.error) {
        (Some(true), _) => "equal".to_owned(),
        (Some(false), _) => match it.differences.len().saturating_add(it.omitted) {
            1 => "1 difference".to_owned(),
            count => format!("{count} differences"),
        },
        (None, error) => format!("not compared: {}", error.as_deref().unwrap_or_default()),
    };
    let age = match it.age_seconds {
        Some(age @ 1..) => format!(" ({age} s ago)"),
        Some(0) | None => String::new(),
    };
    let lines = it.differences.iter().map(|it| format!("  {}", shorten_node_ports(it)));
    let lines = std::iter::once(format!("{}: {verdict}{age}", it.what)).chain(lines);
    lines.map(|line| sanitise_line(&line) + "\n").collect()
}

/// Compares memory with the maps. It takes a permit of this listener first, so that a waiting client delays no client
/// of the other listener.
async fn compare_maps(visit: &RequestContext) -> Arc<Comparison> {
    let kind = visit.readings.datapath().kind().as_str();
    match visit.acquire_query_permit().await {
        Ok(_turn) => visit.readings.verifications.get(query_engine(visit)).await,
        Err(busy) => Arc::new(Comparison::with_maps(kind, Err(busy.to_string()))),
    }
}

/// A write that the maps refused is in memory as in the maps, and differs from the demand.
async fn query_engine(visit: &RequestContext) -> Comparison {
    let found = match visit.readings.engine.check().await {
        Ok(Ok(drift)) => {
            let changed = drift.iter().map(ToString::to_string);
            Ok(changed.chain(unwritten_services(&visit.readings.snapshot())).collect())
        }
        Ok(Err(error)) => Err(error.to_string()),
        Err(busy) => Err(busy.to_string()),
    };
    Comparison::with_maps(visit.readings.datapath().kind().as_str(), found)
}
