//! Audits that clients request, in addition to the hourly one.
//!
//! Invariant: clients cause at most one audit per [`Timing::audit_interval_min`](super::Timing). A request within that
//! time gets the last result with its age; a request during an audit gets that audit's result. Only a
//! [`AuditMode::Repair`] request makes the watch list again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::{Notify, watch};

/// An audit's differences, one line each, or why it failed.
pub type AuditResult = Result<Vec<String>, String>;

/// How long a client waits: enough for two lists and the pause between them.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// What a request may cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuditMode {
    /// Only reports; the watch continues.
    ReadOnly,
    /// Makes the watch list again if it missed something.
    Repair,
}

/// The answer to a request.
#[derive(Clone, Debug)]
pub struct AuditReport {
    pub result: AuditResult,
    /// When the audit ended; `None`: no audit completed.
    pub at: Option<SystemTime>,
    /// How long ago it ended.
    pub age: Duration,
}

/// The latest audit.
#[derive(Clone, Debug)]
pub(super) struct LatestAudit {
    result: AuditResult,
    ended: Instant,
    at: SystemTime,
}

/// Requests since the last audit.
#[derive(Debug, Default)]
struct PendingRequests {
    any: Notify,
    repair: AtomicBool,
}

/// The requesting side. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct AuditClient {
    interval_min: Duration,
    requests: Arc<PendingRequests>,
    latest: watch::Receiver<Option<LatestAudit>>,
}

/// The auditing side.
#[derive(Debug)]
pub(super) struct AuditServer {
    interval_min: Duration,
    requests: Arc<PendingRequests>,
    latest: watch::Sender<Option<LatestAudit>>,
}

/// Creates both sides; audits start at least `pace` after the end of the last one.
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
    /// The latest audit if it is fresh, else the next one.
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
    let found = Err("the comparison timed out; check whether an apiserver answers".to_owned());
    AuditReport { result: found, at: None, age: Duration::ZERO }
}

impl AuditServer {
    /// Waits until a client requests an audit or a repair.
    pub(super) async fn wait_for_request(&self) {
        self.requests.any.notified().await;
    }

    /// Whether it is too early for another audit.
    pub(super) fn is_fresh(&self) -> bool {
        self.latest.borrow().as_ref().is_some_and(|it| it.is_fresh(self.interval_min))
    }

    /// Whether a client has requested a repair since the last call.
    pub(super) fn take_repair_request(&self) -> bool {
        self.requests.repair.swap(false, Ordering::AcqRel)
    }

    /// Publishes the result to waiting clients and to those that ask soon.
    pub(super) fn publish_result(&self, found: AuditResult) {
        self.latest.send_replace(Some(LatestAudit {
            result: found,
            ended: Instant::now(),
            at: SystemTime::now(),
        }));
    }
}
