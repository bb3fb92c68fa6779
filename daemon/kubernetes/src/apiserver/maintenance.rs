//! What goes on between requests: checks of better endpoints, rotated files, memory, views.
//!
//! Invariant: an endpoint is checked as it would be used, with TLS, credentials and the cluster's identity. A
//! connection that works is not closed for a better endpoint: watches end by themselves every few minutes and
//! go there then.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use super::endpoint_error::EndpointError;
use super::failover::{self, OpenTimeout};
use super::http::ApiRequest;
use super::lease::Target;
use super::{Inner, JSON};
use holdfast_host::ticker;

/// How soon a memory that could not be written is written again.
const SAVE_RETRY: Duration = Duration::from_secs(60);

/// The shortest time between two writes of the memory, however often a slice of `default/kubernetes` changes.
const SAVE_INTERVAL_MIN: Duration = Duration::from_secs(1);

/// A path that costs a server little and says whether it can serve.
const READYZ: ApiRequest<'static> = ApiRequest::for_get(JSON, "/readyz");

pub(super) async fn run(inner: &Inner) {
    tokio::join!(check_endpoints(inner), save_changes(inner), publish_views(inner));
}

/// The shortest time between two views, however often connections come and go.
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
        // 403 is an answer too: the endpoint serves, and only does not tell us its health.
        Ok(reply) if matches!(reply.status, 200 | 403) => target.record_success(),
        Ok(reply) => target.record_check_failure(EndpointError::from_status(reply.status, b"")),
        Err(trouble) if trouble.is_local() => target.record_error(trouble),
        Err(trouble) => target.record_check_failure(trouble),
    }
}

/// Writes the memory down whenever something was learned, and tries until it succeeds.
async fn save_changes(inner: &Inner) {
    loop {
        inner.memory_dirty.notified().await;
        while !save_memory(inner).await {
            tokio::time::sleep(SAVE_RETRY).await;
        }
        tokio::time::sleep(SAVE_INTERVAL_MIN).await;
    }
}

/// How long the disk is waited for.
const SAVE_TIMEOUT: Duration = Duration::from_secs(3);

/// Writes the memory down now; gives what is wrong with that, in words.
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
    // One write after the other, because all of them make the new file under one name.
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
