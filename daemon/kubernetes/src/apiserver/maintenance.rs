//! Work between requests: checks of preferred endpoints, rotated files, memory, views.
//!
//! Invariant: a check uses an endpoint as a request would, with TLS, credentials and the cluster's identity. A working
//! connection is not closed for a preferred endpoint: watches end every few minutes and move then.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use super::endpoint_error::EndpointError;
use super::failover::{self, OpenTimeout};
use super::http::ApiRequest;
use super::lease::Target;
use super::{Inner, JSON, silence};
use holdfast_host::ticker;

/// The pause before a failed save is tried again.
const SAVE_RETRY: Duration = Duration::from_secs(60);

/// The shortest time between two saves, however often a slice of `default/kubernetes` changes.
const SAVE_INTERVAL_MIN: Duration = Duration::from_secs(1);

/// A cheap path that reports whether the server can serve.
const READYZ: ApiRequest<'static> = ApiRequest::for_get(JSON, "/readyz");

pub(super) async fn run(inner: &Inner) {
    tokio::join!(check_endpoints(inner), save_changes(inner), publish_views(inner), silence::run(inner));
}

/// The shortest time between two views, however often connections open and close.
const PUBLISH_INTERVAL_MIN: Duration = Duration::from_millis(20);

async fn publish_views(inner: &Inner) {
    loop {
        inner.publish();
        inner.publish_addresses();
        tokio::select! {
            () = ticker::next_tick() => {}
            () = inner.endpoints.wait_for_change() => tokio::time::sleep(PUBLISH_INTERVAL_MIN).await,
        }
    }
}

async fn check_endpoints(inner: &Inner) {
    loop {
        inner.refresh_credentials().await;
        let due = inner.endpoints.lock().due_checks(Instant::now());
        for target in due.into_iter().filter_map(|id| inner.endpoints.target(id)) {
            check_endpoint(inner, &target).await;
        }
        ticker::next_tick().await;
    }
}

pub(super) async fn check_endpoint(inner: &Inner, target: &Target) {
    match failover::request_with_reauth(inner, target, &READYZ, OpenTimeout::Short).await {
        // 403 is a reply too: the endpoint serves, and only denies us its health.
        Ok(reply) if matches!(reply.status, 200 | 403) => target.record_success(),
        Ok(reply) => target.record_check_failure(EndpointError::from_status(reply.status, b"")),
        Err(trouble) if trouble.is_local() => target.record_error(trouble),
        Err(trouble) => target.record_check_failure(trouble),
    }
}

/// Saves the memory after each change, and retries until the save succeeds.
async fn save_changes(inner: &Inner) {
    loop {
        inner.memory_dirty.notified().await;
        while !save_memory(inner).await {
            tokio::time::sleep(SAVE_RETRY).await;
        }
        tokio::time::sleep(SAVE_INTERVAL_MIN).await;
    }
}

/// How long a caller waits for the disk.
const SAVE_TIMEOUT: Duration = Duration::from_secs(3);

/// Saves the memory now; returns the error as text.
pub(super) async fn save_within_limit(inner: &Inner) -> Option<String> {
    let late = || "the disk does not answer; it is written as soon as it does".to_owned();
    let problem = || inner.memory_problem.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let is_written = tokio::time::timeout(SAVE_TIMEOUT, save_memory(inner)).await;
    if is_written != Ok(true) {
        // `save_changes` tries again until the write succeeds.
        inner.memory_dirty.notify_one();
    }
    match is_written {
        Ok(true) => None,
        Ok(false) => Some(problem().unwrap_or_else(late)),
        Err(_) => Some(late()),
    }
}

async fn save_memory(inner: &Inner) -> bool {
    // Saves do not overlap, because all of them write the same temporary file.
    let _writing = inner.write_lock.lock().await;
    let memory = inner.memory().clone();
    let folder = inner.state.clone();
    let writing = tokio::task::spawn_blocking(move || memory.save(&folder));
    let problem = match writing.await {
        Ok(done) => done.err(),
        Err(error) => Some(error.to_string()),
    };
    let mut known = inner.memory_problem.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(error) = &problem
        && *known != problem
    {
        tracing::warn!(%error, "learned addresses of apiservers cannot be saved");
    }
    let is_written = problem.is_none();
    *known = problem;
    is_written
}
