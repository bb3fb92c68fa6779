//! What goes on between requests: checks of better endpoints, rotated files, memory, views.
//!
//! Invariant: an endpoint is checked as it would be used, with TLS, credentials and the cluster's identity. A
//! connection that works is not closed for a better endpoint: watches end by themselves every few minutes and
//! go there then.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use super::http::Ask;
use super::lease::Target;
use super::trouble::Trouble;
use super::walk::{self, Patience};
use super::{Inner, JSON};
use holdfast_host::beat;

/// How soon a memory that could not be written is written again.
const WRITE_AGAIN: Duration = Duration::from_secs(60);

/// The shortest time between two writes of the memory, however often a slice of `default/kubernetes` changes.
const WRITE_PACE: Duration = Duration::from_secs(1);

/// A path that costs a server little and says whether it can serve.
const READY: Ask<'static> = Ask::read(JSON, "/readyz");

pub(super) async fn run(inner: &Inner) {
    tokio::join!(look(inner), remember(inner), publish(inner));
}

/// The shortest time between two views, however often connections come and go.
const PUBLISH_PACE: Duration = Duration::from_millis(20);

async fn publish(inner: &Inner) {
    loop {
        inner.publish();
        inner.publish_addresses();
        tokio::select! {
            () = beat::next() => {}
            () = inner.endpoints.news() => tokio::time::sleep(PUBLISH_PACE).await,
        }
    }
}

async fn look(inner: &Inner) {
    loop {
        inner.refresh().await;
        let due = inner.endpoints.lock().due(Instant::now());
        for target in due.into_iter().filter_map(|id| inner.endpoints.target(id)) {
            check(inner, &target).await;
        }
        beat::next().await;
    }
}

pub(super) async fn check(inner: &Inner, target: &Target) {
    match walk::ask_twice(inner, target, &READY, Patience::Short).await {
        // 403 is an answer too: the endpoint serves, and only does not tell us its health.
        Ok(reply) if matches!(reply.status, 200 | 403) => target.served(),
        Ok(reply) => target.check_failed(Trouble::status(reply.status, b"")),
        Err(trouble) if trouble.is_own() => target.noted(trouble),
        Err(trouble) => target.check_failed(trouble),
    }
}

/// Writes the memory down whenever something was learned, and tries until it succeeds.
async fn remember(inner: &Inner) {
    loop {
        inner.learned.notified().await;
        while !written(inner).await {
            tokio::time::sleep(WRITE_AGAIN).await;
        }
        tokio::time::sleep(WRITE_PACE).await;
    }
}

/// How long the disk is waited for.
const WRITE_MAX: Duration = Duration::from_secs(3);

/// Writes the memory down now; gives what is wrong with that, in words.
pub(super) async fn written_in_time(inner: &Inner) -> Option<String> {
    let late = || "the disk does not answer; it is written as soon as it does".to_owned();
    let problem = || inner.memory_problem.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let is_written = tokio::time::timeout(WRITE_MAX, written(inner)).await;
    if is_written != Ok(true) {
        // `remember` tries again until the write succeeds.
        inner.learned.notify_one();
    }
    match is_written {
        Ok(true) => None,
        Ok(false) => Some(problem().unwrap_or_else(late)),
        Err(_) => Some(late()),
    }
}

async fn written(inner: &Inner) -> bool {
    // One write after the other, because all of them make the new file under one name.
    let _writing = inner.writing.lock().await;
    let memory = inner.memory().clone();
    let folder = inner.state.clone();
    let writing = tokio::task::spawn_blocking(move || memory.write(&folder));
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
