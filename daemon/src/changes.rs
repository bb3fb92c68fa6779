//! The story of every change, one log line per transition.
//!
//! Invariant: a line tells what a client gets from now on and which object made it so; a change that clients do not notice
//! is told at debug level only. Deliberately absent: storage, which the recorder will add at this place.

use holdfast_core::change::{Cause, Change};
use holdfast_core::facts::Meta;
use holdfast_core::hold::Answer;
use holdfast_core::snapshot::{FrontendView, ServiceView, Status};
use tokio::sync::mpsc;

/// Tells changes until nobody makes any.
pub async fn run(mut changes: mpsc::Receiver<Change>) {
    while let Some(change) = changes.recv().await {
        tell(&change);
    }
}

fn tell(change: &Change) {
    let cause = change.causes.last().map(cause).unwrap_or_default();
    if let Some(error) = &change.error {
        tracing::warn!(service = %change.service, %error, cause, "service not updated; trying again");
    }
    let before = change.before.as_deref();
    let after = change.after.as_deref();
    for view in after.into_iter().flat_map(|view| view.frontends.iter()) {
        let old = before.and_then(|before| Some((before, find(before, view)?)));
        tell_frontend(change, old, view, &cause);
    }
    let gone = |old: &&FrontendView| after.is_none_or(|after| find(after, old).is_none());
    for old in before.into_iter().flat_map(|before| before.frontends.iter().filter(gone)) {
        let frontend = name(old);
        tracing::info!(service = %change.service, frontend, cause, "frontend removed");
    }
}

fn tell_frontend(
    change: &Change,
    old: Option<(&ServiceView, &FrontendView)>,
    new: &FrontendView,
    cause: &str,
) {
    let Some(after) = change.after.as_deref() else { return };
    let service = &change.service;
    let (frontend, verdict) = (name(new), new.verdict.as_str());
    let reason = new.reason.map(holdfast_core::snapshot::Reason::as_str);
    let backends = after.backends(new).count();
    match old {
        None => tracing::info!(%service, frontend, verdict, reason, backends, cause, "frontend added"),
        Some((_, old)) if (old.verdict, old.reason) != (new.verdict, new.reason) => {
            let was = old.verdict.as_str();
            tracing::info!(%service, frontend, verdict, was, reason, backends, cause, "verdict changed");
        }
        Some((before, old)) if !before.backends(old).map(slot).eq(after.backends(new).map(slot)) => {
            let was = before.backends(old).count();
            tracing::info!(%service, frontend, verdict, backends, was, cause, "backends changed");
        }
        Some((_, old)) if old.status == Status::Pending && new.status == Status::Done => {
            tracing::info!(%service, frontend, verdict, backends, cause, "remembered frontend written");
        }
        Some((_, old)) if old.status != new.status && new.status == Status::Done => {
            tracing::info!(%service, frontend, verdict, backends, cause, "frontend updated after errors");
        }
        Some(_) => tracing::debug!(%service, frontend, verdict, backends, cause, "unchanged for clients"),
    }
}

fn slot(row: &holdfast_core::list::Row) -> holdfast_core::list::Slot {
    row.slot()
}

fn find<'a>(view: &'a ServiceView, row: &FrontendView) -> Option<&'a FrontendView> {
    let same =
        |it: &&FrontendView| (it.address, it.port, &it.protocol) == (row.address, row.port, &row.protocol);
    view.frontends.iter().find(same)
}

fn name(row: &FrontendView) -> String {
    format!("{}/{}", std::net::SocketAddr::new(row.address, row.port.get()), row.protocol)
}

/// The cause in words: which object, which version, who wrote it.
fn cause(cause: &Cause) -> String {
    match cause {
        Cause::ServiceApplied(facts) => object("Service", &facts.key, "applied", Some(&facts.meta)),
        Cause::ServiceDeleted(key, meta) => object("Service", key, "deleted", meta.as_deref()),
        Cause::SliceApplied(facts) => object("EndpointSlice", &facts.key, "applied", Some(&facts.meta)),
        Cause::SliceDeleted(key, meta) => object("EndpointSlice", key, "deleted", meta.as_deref()),
        Cause::SliceLeft(facts) => {
            object("EndpointSlice", &facts.key, "left for another service", Some(&facts.meta))
        }
        Cause::ClaimWon(frontend, other) => format!("{frontend} is no longer claimed by {other}"),
        Cause::ClaimLost(frontend, other) => format!("{frontend} is claimed by {other}"),
        Cause::NodeApplied => "the node changed".to_owned(),
        Cause::SettingsApplied => "the configuration changed".to_owned(),
        Cause::Retry => "tried again".to_owned(),
        Cause::Remembered => "remembered from before the restart".to_owned(),
        Cause::HoldDue => "the hold has reached its bound".to_owned(),
        Cause::Probed(probed) => format!("{} {}", probed.backend, answered(probed.answer)),
        Cause::AddressClaimed(address, other) => format!("{address} is another target of {other} now"),
        Cause::MassLoss { lost, populated } => {
            format!("{lost} of {populated} services lost all their backends at once")
        }
        Cause::ReadersLeft => "nobody reads what it left behind".to_owned(),
    }
}

const fn answered(answer: Answer) -> &'static str {
    match answer {
        Answer::Accepted => "took a probe",
        Answer::Refused => "refused a probe",
        Answer::Silent => "did not answer a probe",
    }
}

fn object(kind: &str, key: &impl std::fmt::Display, what: &str, meta: Option<&Meta>) -> String {
    let version = meta.and_then(|meta| meta.resource_version.as_deref());
    let writer = meta.and_then(|meta| meta.writer.as_ref());
    let origin = meta.and_then(|meta| meta.origin.as_deref());
    let mut text = format!("{kind} {key} {what}");
    for (word, value) in [
        (", version ", version),
        (", written by ", writer.map(|writer| &*writer.manager)),
        (", from ", origin),
    ] {
        if let Some(value) = value {
            text.push_str(word);
            text.push_str(value);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use holdfast_core::facts::{ServiceFacts, ServiceType, Timestamp, Writer};
    use holdfast_core::keys::{ObjectName, ServiceKey, Source};

    #[test]
    fn a_cause_names_object_version_writer_and_file() {
        let key = ServiceKey { name: ObjectName::new("default", "web").unwrap(), source: Source::Manifests };
        let mut facts = ServiceFacts::new(key.clone(), ServiceType::ClusterIp);
        assert_eq!(cause(&Cause::ServiceApplied(Arc::new(facts.clone()))), "Service default/web applied");
        let writer = Writer {
            manager: "kubectl-edit".into(),
            operation: "Update".into(),
            subresource: None,
            at: Some(Timestamp(0)),
        };
        facts.meta = Meta {
            resource_version: Some("7".into()),
            writer: Some(writer),
            origin: Some("web.yaml".into()),
            ..Meta::default()
        };
        assert_eq!(
            cause(&Cause::ServiceDeleted(key, Some(Box::new(facts.meta)))),
            "Service default/web deleted, version 7, written by kubectl-edit, from web.yaml"
        );
    }
}
