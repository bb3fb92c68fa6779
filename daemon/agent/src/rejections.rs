//! Logs rejected objects of all sources.
//!
//! Invariant: one line per object and reason, when the rejection begins; a flood becomes a few lines and a number.

use std::sync::Arc;
use std::time::{Duration, Instant};

use holdfast_core::facts::{ObjectKey, Rejection};
use holdfast_core::snapshot::{Rejections, Snapshot};
use tokio::sync::watch;

use holdfast_host::logging::line_limit::LineLimit;
use holdfast_host::logging::messages::{self, say};

/// Runs until the publisher of snapshots is gone.
pub async fn run(mut snapshots: watch::Receiver<Arc<Snapshot>>) {
    let started = Instant::now();
    let mut quota = LineLimit::default();
    let mut known = Arc::<Rejections>::default();
    while snapshots.changed().await.is_ok() {
        let now = Arc::clone(&snapshots.borrow_and_update().rejections);
        if !Arc::ptr_eq(&known, &now) {
            new_rejections(&known, &now)
                .for_each(|rejection| log_rejection(rejection, &mut quota, started.elapsed()));
            known = now;
        }
    }
}

/// Objects that are newly rejected, or for another reason.
fn new_rejections<'a>(before: &'a Rejections, now: &'a Rejections) -> impl Iterator<Item = &'a Rejection> {
    let is_told = |it: &&Rejection| before.named.get(&it.object).is_some_and(|old| old.reason == it.reason);
    now.named.values().filter(move |it| !is_told(it))
}

fn log_rejection(rejection: &Rejection, quota: &mut LineLimit, now: Duration) {
    let object = &rejection.object;
    let service = match object {
        ObjectKey::Service(key) => Some(tracing::field::display(key)),
        ObjectKey::Slice(_) | ObjectKey::File(..) | ObjectKey::Unnamed(..) | ObjectKey::Kind(..) => None,
    };
    let reason = &*rejection.reason;
    let origin = rejection.origin.as_deref();
    let allowed = quota.allow_line(now);
    let unsaid = allowed.filter(|unsaid| *unsaid > 0);
    match (allowed, rejection.is_waiting()) {
        (None, _) => tracing::debug!(%object, reason, origin, "object rejected"),
        (Some(_), true) => {
            tracing::warn!(service, %object, reason, origin, unsaid, "object waits for admission");
        }
        (Some(_), false) if rejection.is_ignored_kind() => {
            tracing::info!(%object, origin, unsaid, "objects of a kind that is not read are ignored");
        }
        (Some(_), false) => {
            say!(warn, messages::OBJECT_NOT_UNDERSTOOD, service, %object, reason, origin, unsaid);
        }
    }
}

#[cfg(test)]
mod tests {
    use holdfast_core::keys::Source;

    use super::*;

    fn rejections(list: &[(&str, &str)]) -> Rejections {
        let rejection = |(file, reason): &(&str, &str)| {
            let object = ObjectKey::File(Source::Manifests, (*file).into());
            (object.clone(), Rejection { object, origin: None, reason: (*reason).into(), partial: false })
        };
        Rejections { named: list.iter().map(rejection).collect(), ..Rejections::default() }
    }

    #[test]
    fn a_lasting_rejection_is_logged_once() {
        let check = |before: &[(&str, &str)], now: &[(&str, &str)], told: &[&str]| {
            let before = rejections(before);
            let now = rejections(now);
            let found: Vec<_> = new_rejections(&before, &now).map(|it| it.object.to_string()).collect();
            assert_eq!(found, told);
        };
        check(&[], &[("a", "bad"), ("b", "bad")], &["file a", "file b"]);
        check(&[("a", "bad"), ("b", "bad")], &[("a", "bad"), ("b", "worse")], &["file b"]);
        check(&[("a", "bad")], &[], &[]);
    }
}
