//! HTTP replies of the backends to the queried path.
//!
//! Invariant: any status from 200 to 399 is good, as for kubelet. The rest of a reply is not judged.

use serde_json::json;

use crate::case::{Case, judge_unavailable};
use crate::evidence::{HttpAnswer, HttpProbe, Lookup};
use crate::finding::{Judgement, Remedy};
use crate::focus::HttpPath;
use crate::formatting::{format_count, join_names};
use crate::limits::NAMED_MAX;

impl HttpProbe {
    const fn status(&self) -> Option<u16> {
        match self.answer {
            HttpAnswer::Status(status) => Some(status),
            HttpAnswer::Silent | HttpAnswer::Failed(_) => None,
        }
    }

    fn is_good(&self) -> bool {
        self.status().is_some_and(|status| (200..400).contains(&status))
    }

    /// Whether the path alone may be at fault: the backend may not have it.
    fn is_client_error(&self) -> bool {
        self.status().is_some_and(|status| (400..500).contains(&status))
    }

    fn to_text(&self) -> String {
        match &self.answer {
            HttpAnswer::Status(status) => format!("{} {status}", self.to),
            HttpAnswer::Silent => format!("{} nothing within a second", self.to),
            HttpAnswer::Failed(error) => format!("{} {error}", self.to),
        }
    }
}

pub(super) fn check_http(case: &Case<'_>) -> Judgement {
    let Some(all) = case.http().answer() else {
        return judge_unasked(case);
    };
    let path = case.scope().focus.http.as_ref().map_or("/", HttpPath::as_str);
    let bad: Vec<&HttpProbe> = all.iter().filter(|it| !it.is_good()).collect();
    let judgement = match (all.len(), bad.len()) {
        (0, _) => Judgement::unknown(
            "No backend that took a connection is known to speak HTTP: by appProtocol, or by a probe of its kubelet.",
        ),
        (number, 0) => {
            let listed = join_names(all.iter().map(HttpProbe::to_text));
            Judgement::info(format!(
                "Each of {} answers GET {path} well: {listed}.",
                format_count(number, "backend")
            ))
        }
        (number, failed) => {
            let is_error = number == failed && !bad.iter().any(|it| it.is_client_error());
            let listed = join_names(bad.iter().map(|it| it.to_text()));
            let sentence = format!(
                "{failed} of {} do not answer GET {path} well: {listed}.",
                format_count(number, "backend")
            );
            Judgement::error_if(is_error, sentence).remedy(choose_remedy(&bad))
        }
    };
    judgement.with("answers", json!(all.iter().take(NAMED_MAX).map(to_json).collect::<Vec<_>>()))
}

/// Judges a request that was not sent. A reader who named a path is told why.
fn judge_unasked(case: &Case<'_>) -> Judgement {
    match (&case.scope().focus.http, case.http()) {
        (Some(path), Lookup::Skipped(why)) => {
            Judgement::info(format!("GET {} was sent to no backend: {why}.", path.as_str()))
        }
        _ => judge_unavailable(case.http(), "What its backends answer by HTTP"),
    }
}

fn choose_remedy(bad: &[&HttpProbe]) -> Remedy {
    match bad.iter().all(|it| it.is_client_error()) {
        true => Remedy::safe("Check whether the application has that path, and which clients may read it."),
        false => {
            Remedy::safe("Look at the application's own log: it accepts the connection, but does not serve.")
        }
    }
}

fn to_json(it: &HttpProbe) -> serde_json::Value {
    let took = u64::try_from(it.took.as_millis()).unwrap_or(u64::MAX);
    json!({ "to": it.to.to_string(), "status": it.status(), "took_ms": took })
}
