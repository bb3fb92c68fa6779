//! The pauses and backoffs of the guard, on a clock that the test moves.

use std::path::Path;

use holdfast_fixtures::Authority;
use holdfast_fixtures::clock::Stopwatch;
use tokio::time::advance;

use super::super::Access;
use super::super::tests::access;
use super::*;

const VIP: &str = "169.254.20.1:6443";

fn access_with_two_endpoints(folder: &Path) -> Access {
    Authority::new().write(&folder.join("ca.crt"));
    let endpoints = "endpoints = [\"https://127.0.0.1:1\", \"https://127.0.0.1:2\"]";
    access(folder, &format!("{endpoints}\nca_file = \"ca.crt\"\nvip = \"{VIP}\""))
}

#[tokio::test(start_paused = true)]
async fn a_server_that_dies_after_each_return_always_costs_the_shortest_pause() {
    let folder = tempfile::tempdir().unwrap();
    let access = access_with_two_endpoints(folder.path());
    let mut guard = VipGuard::new(&access.inner, VIP.parse().unwrap());
    let target = guard.candidates().remove(0);
    for _ in 0..6 {
        let stopwatch = Stopwatch::start();
        guard.handle_disconnect(&target, Instant::now(), None).await;
        assert!(stopwatch.read() <= 2 * GUARD_RETRY_MIN, "{:?}", stopwatch.read());
        guard.record_failure(&target, EndpointError::Refused);
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_closes_and_accepts_again_costs_growing_pauses() {
    let folder = tempfile::tempdir().unwrap();
    let access = access_with_two_endpoints(folder.path());
    let mut guard = VipGuard::new(&access.inner, VIP.parse().unwrap());
    let target = guard.candidates().remove(0);
    let stopwatch = Stopwatch::start();
    for _ in 0..5 {
        guard.handle_disconnect(&target, Instant::now(), None).await;
    }
    assert!(stopwatch.read() >= 16 * GUARD_RETRY_MIN, "{:?}", stopwatch.read());
}

/// For example, apiservers fail by turns (k3s#11349): each was away for long when it is the only one.
#[tokio::test(start_paused = true)]
async fn the_end_of_a_lasting_connection_lets_a_long_gone_server_be_tried() {
    let folder = tempfile::tempdir().unwrap();
    let access = access_with_two_endpoints(folder.path());
    let mut guard = VipGuard::new(&access.inner, VIP.parse().unwrap());
    let [gone, last]: [_; 2] = guard.candidates().try_into().ok().unwrap();
    for _ in 0..6 {
        guard.record_failure(&gone, EndpointError::Refused);
    }
    let mut can_try_after = async |lived| {
        let since = Instant::now();
        advance(lived).await;
        guard.handle_disconnect(&last, since, Some(EndpointError::Closed)).await;
        guard.backoffs.can_try(gone.address, Instant::now())
    };
    assert!(!can_try_after(Duration::ZERO).await, "endpoints that come and go are not dialled in a loop");
    assert!(can_try_after(SHORT_CONNECTION).await);
}
