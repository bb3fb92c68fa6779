//! Comparisons of two copies of the state, and the last comparison of memory with the maps.
//!
//! Invariant: one comparison with the maps runs at a time, and a client that comes within [`FRESH`] of its end gets
//! its result.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use holdfast_core::snapshot::{FrontendView, ServiceView, Snapshot, Status};
use holdfast_datapath::Flow;
use holdfast_kubernetes::source::AuditReport;
use holdfast_status::rfc3339::Rfc3339;
use holdfast_status::views::datapath::DatapathView;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;
use tokio::time::Instant;

/// How many differences are named; the rest is counted.
const NAMED_MAX: usize = 100;

/// How long a comparison is reused for further clients.
const FRESH: Duration = Duration::from_secs(1);

/// The last comparison with the maps. A client that comes during one waits for it.
#[derive(Clone, Default)]
pub struct Verifications(Arc<Mutex<Option<LastComparison>>>);

/// The end of a comparison, and its result.
type LastComparison = (Instant, Arc<Comparison>);

impl fmt::Debug for Verifications {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Verifications")
    }
}

impl Verifications {
    /// The last comparison if it is fresh, or a new one. If the client of the new one leaves, or the comparison
    /// fails, the next waiting client begins another.
    pub async fn get(&self, run: impl Future<Output = Comparison>) -> Arc<Comparison> {
        let mut last = self.0.lock().await;
        if let Some((_, fresh)) = last.as_ref().filter(|(ended, _)| ended.elapsed() < FRESH) {
            return Arc::clone(fresh);
        }
        let found = Arc::new(run.await);
        *last = found.equal.is_some().then(|| (Instant::now(), Arc::clone(&found)));
        found
    }
}

/// The result of one comparison.
#[derive(Debug, Deserialize, Serialize, JsonSchema)]
pub struct Comparison {
    /// `memory with kernel`, `programs with maps`, `apiserver with memory`.
    pub what: String,
    /// Whether both are equal; null if the comparison failed.
    pub equal: Option<bool>,
    #[serde(default)]
    pub differences: Vec<String>,
    #[serde(default)]
    pub omitted: usize,
    pub error: Option<String>,
    /// When it was made; null if it failed. The apiserver is compared at most once per 10 s, however many clients ask.
    compared_at: Option<Rfc3339>,
    /// The age of the comparison, in whole seconds.
    pub age_seconds: Option<u64>,
}

impl Comparison {
    pub fn new(what: String, compared: AuditReport) -> Self {
        let compared_at = compared.at.map(|at| Rfc3339(holdfast_host::clock::millis(at).seconds()));
        let age_seconds = compared.at.map(|_| compared.age.as_secs());
        match compared.result {
            Ok(mut differences) => {
                let equal = differences.is_empty();
                let omitted = differences.len().saturating_sub(NAMED_MAX);
                differences.truncate(NAMED_MAX);
                let error = None;
                Self { what, equal: Some(equal), differences, omitted, error, compared_at, age_seconds }
            }
            Err(error) => {
                let differences = Vec::new();
                let error = Some(error);
                Self { what, equal: None, differences, omitted: 0, error, compared_at, age_seconds }
            }
        }
    }

    /// A comparison of memory with the maps made just now: its differences, or why it failed.
    pub fn with_maps(kind: &str, found: Result<Vec<String>, String>) -> Self {
        let at = found.is_ok().then(SystemTime::now);
        Self::new(format!("memory with {kind}"), AuditReport { result: found, at, age: Duration::ZERO })
    }
}

/// The differences in the last sample of flows, at most a second ago; `None` if packets are not translated.
pub fn compare_flows(view: &DatapathView) -> Option<Comparison> {
    let sampled = &view.status()?.flows.as_ref()?.sample;
    let astray = |flow: &Flow| {
        let Flow { client, frontend, transport, .. } = flow;
        format!(
            "some packets of {client} to {frontend}/{transport} are not translated: an entry of its flow is missing"
        )
    };
    let found = Ok(sampled.wrong.iter().map(astray).collect());
    let count = match sampled.checked {
        0 => "none looked at".to_owned(),
        checked => format!("{checked} looked at"),
    };
    let what = format!("flows with what leads to them, {count}");
    Some(Comparison::new(
        what,
        AuditReport { result: found, at: Some(SystemTime::now()), age: Duration::ZERO },
    ))
}

/// Whether the programs that clients meet read the maps that memory is compared with; `None` without programs.
pub fn compare_programs(view: &DatapathView) -> Option<Comparison> {
    view.status()?;
    let found = Ok(view.divergence_reason().into_iter().collect());
    let compared = AuditReport { result: found, at: Some(SystemTime::now()), age: Duration::ZERO };
    Some(Comparison::new("programs with maps".to_owned(), compared))
}

/// The services that the maps lack in part, because the maps refused a write.
pub fn unwritten_services(snapshot: &Snapshot) -> Vec<String> {
    let error = |it: &FrontendView| match &it.status {
        Status::Error(error) => Some(Arc::clone(error)),
        Status::Pending | Status::Done => None,
    };
    let refused = |view: &Arc<ServiceView>| {
        let error = view.frontends.iter().find_map(error)?;
        Some(format!("{} is incomplete in the maps: {error}", view.key))
    };
    let named: Vec<_> = snapshot.services.with_problems().filter_map(refused).collect();
    match snapshot.fill.failing {
        // The refused write may also belong to a deleted service.
        failing @ 1.. if named.is_empty() => {
            vec![format!("the maps refused writes of {failing} services")]
        }
        _ => named,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use holdfast_fixtures::clock::pause_async;

    use super::*;

    /// The duration of a large comparison.
    const LONG: Duration = Duration::from_secs(3);

    async fn run(count: &AtomicUsize, running: &AtomicUsize) -> Comparison {
        count.fetch_add(1, Ordering::Relaxed);
        assert_eq!(running.fetch_add(1, Ordering::Relaxed), 0, "two at a time");
        pause_async(LONG).await;
        running.fetch_sub(1, Ordering::Relaxed);
        Comparison::with_maps("maps", Ok(Vec::new()))
    }

    #[tokio::test(start_paused = true)]
    async fn clients_within_a_second_share_one_comparison() {
        let all = Verifications::default();
        let count = AtomicUsize::new(0);
        let running = AtomicUsize::new(0);
        let asks = (0..40).map(|_| all.get(run(&count, &running)));
        futures_util::future::join_all(asks).await;
        assert_eq!(count.load(Ordering::Relaxed), 1);
        pause_async(FRESH).await;
        all.get(run(&count, &running)).await;
        assert_eq!(count.load(Ordering::Relaxed), 2, "an older result is compared again");
    }

    #[tokio::test(start_paused = true)]
    async fn an_abandoned_comparison_is_made_by_the_next_client() {
        let all = Verifications::default();
        let count = AtomicUsize::new(0);
        let running = AtomicUsize::new(0);
        tokio::select! {
            _ = all.get(run(&count, &running)) => panic!("a comparison takes {LONG:?}"),
            () = pause_async(LONG / 2) => {}
        }
        running.store(0, Ordering::Relaxed);
        assert_eq!(all.get(run(&count, &running)).await.equal, Some(true));
        assert_eq!(count.load(Ordering::Relaxed), 2);
    }
}
