//! Comparisons with the apiserver that a client asks for, made at once and not only when the hourly one is due.
//!
//! Invariant: clients cause at most one comparison in [`Timing::audit_interval_min`](super::Timing), however many ask and how
//! often. A client that asks within that time after a comparison gets the answer of that one, with its age; a client
//! that asks while one runs gets the answer of that. Only a client that may mend makes the watch list anew.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::{Notify, watch};

/// What an audit found, one line for each difference; or why it could not be done.
pub type AuditResult = Result<Vec<String>, String>;

/// How long an asker waits: long enough for two lists and the pause between them.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// What may follow from a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuditMode {
    /// May only look: the watch stays as it is.
    ReadOnly,
    /// May make the watch list anew what it has missed.
    Repair,
}

/// The answer to a question.
#[derive(Clone, Debug)]
pub struct AuditReport {
    /// What was found.
    pub result: AuditResult,
    /// When it was found; `None`: no comparison came to its end.
    pub at: Option<SystemTime>,
    /// How long ago it was found.
    pub age: Duration,
}

/// The latest comparison.
#[derive(Clone, Debug)]
pub(super) struct LatestAudit {
    result: AuditResult,
    ended: Instant,
    at: SystemTime,
}

/// What askers have asked for since the last comparison.
#[derive(Debug, Default)]
struct PendingRequests {
    any: Notify,
    repair: AtomicBool,
}

/// The side that asks. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct AuditClient {
    interval_min: Duration,
    requests: Arc<PendingRequests>,
    latest: watch::Receiver<Option<LatestAudit>>,
}

/// The side that compares.
#[derive(Debug)]
pub(super) struct AuditServer {
    interval_min: Duration,
    requests: Arc<PendingRequests>,
    latest: watch::Sender<Option<LatestAudit>>,
}

/// Both sides, for comparisons of which each begins at least `interval_min` after the end of the last one.
pub(super) fn audit_channel(pace: Duration) -> (AuditClient, AuditServer) {
    let wishes = Arc::<PendingRequests>::default();
    let (answers, latest) = watch::channel(None);
    (
        AuditClient { interval_min: pace, requests: Arc::clone(&wishes), latest },
        AuditServer { interval_min: pace, requests: wishes, latest: answers },
    )
}

impl LatestAudit {
    fn is_fresh(&self, pace: Duration) -> bool {
        self.ended.elapsed() < pace
    }

    fn to_report(&self) -> AuditReport {
        AuditReport { result: self.result.clone(), at: Some(self.at), age: self.ended.elapsed() }
    }
}

impl AuditClient {
    /// The latest comparison if it is fresh, or else the next one.
    pub(super) async fn request_audit(&self, asker: AuditMode) -> AuditReport {
        let mut latest = self.latest.clone();
        let fresh = latest
            .borrow_and_update()
            .as_ref()
            .filter(|it| it.is_fresh(self.interval_min))
            .map(LatestAudit::to_report);
        if asker == AuditMode::Repair {
            self.requests.repair.store(true, Ordering::Release);
        }
        if fresh.is_none() || asker == AuditMode::Repair {
            self.requests.any.notify_one();
        }
        if let Some(fresh) = fresh {
            return fresh;
        }
        match tokio::time::timeout(REQUEST_TIMEOUT, latest.changed()).await {
            Ok(Ok(())) => latest.borrow().as_ref().map_or_else(timeout_report, LatestAudit::to_report),
            Ok(Err(_)) | Err(_) => timeout_report(),
        }
    }
}

fn timeout_report() -> AuditReport {
    let found = Err("the comparison takes too long; is the apiserver there?".to_owned());
    AuditReport { result: found, at: None, age: Duration::ZERO }
}

impl AuditServer {
    /// Waits until a client asks for a comparison or for a mend.
    pub(super) async fn wait_for_request(&self) {
        self.requests.any.notified().await;
    }

    /// Whether it is too early for another comparison.
    pub(super) fn is_fresh(&self) -> bool {
        self.latest.borrow().as_ref().is_some_and(|it| it.is_fresh(self.interval_min))
    }

    /// Whether a client that may mend has asked since this was last called.
    pub(super) fn take_repair_request(&self) -> bool {
        self.requests.repair.swap(false, Ordering::AcqRel)
    }

    /// Answers the clients that wait, and those that ask soon.
    pub(super) fn publish_result(&self, found: AuditResult) {
        self.latest.send_replace(Some(LatestAudit {
            result: found,
            ended: Instant::now(),
            at: SystemTime::now(),
        }));
    }
}
