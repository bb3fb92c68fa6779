//! Waits for another daemon to release a resource.
//!
//! Invariant: the wait ends, with the resource or with the error of the last try. A killed daemon keeps its locks
//! until the kernel has freed all of its memory, some hundred milliseconds if that is large.

use std::time::{Duration, Instant};

use crate::systemd;

/// The longest wait: a daemon that stops is gone within seconds.
pub const WAIT_MAX: Duration = Duration::from_secs(10);

/// The wait is logged after this time.
const LOG_AFTER: Duration = Duration::from_secs(1);

/// The time between two tries.
const POLL: Duration = Duration::from_millis(100);

/// The process that holds the resource, if the kernel reports it.
#[derive(Clone, Copy, Debug)]
pub struct Holder(pub Option<u32>);

/// Retries until the resource is free or the timeout expires. `holder` returns whether an error means that another
/// process holds it, and which process.
pub fn wait_until_free<T, E>(
    patience: Duration,
    what: &str,
    take: impl Fn() -> Result<T, E>,
    holder: impl Fn(&E) -> Option<Holder>,
) -> Result<T, E> {
    let begun = Instant::now();
    let mut is_said = false;
    loop {
        let error = match take() {
            Ok(taken) => return Ok(taken),
            Err(error) => error,
        };
        let Some(Holder(process)) = holder(&error).filter(|_| begun.elapsed() < patience) else {
            return Err(error);
        };
        if begun.elapsed() > LOG_AFTER && !std::mem::replace(&mut is_said, true) {
            let held = process.map(tracing::field::display);
            let seconds = patience.as_secs();
            tracing::warn!(
                process = held,
                what,
                seconds,
                "another holdfast still holds this; waiting for it to end"
            );
            systemd::notify_waiting(process);
        }
        std::thread::sleep(POLL);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// The outcome and the number of tries, if the first ones fail with `failures`.
    fn tries(patience: Duration, failures: &[&'static str]) -> (Result<(), &'static str>, usize) {
        let tried = Cell::new(0);
        let take = || {
            tried.set(tried.get() + 1);
            failures.get(tried.get() - 1).map_or(Ok(()), |error| Err(*error))
        };
        let holder = |error: &&str| (*error == "taken").then_some(Holder(None));
        (wait_until_free(patience, "it", take, holder), tried.get())
    }

    #[test]
    fn only_a_held_resource_is_waited_for() {
        assert_eq!(tries(WAIT_MAX, &["taken", "taken"]), (Ok(()), 3));
        assert_eq!(tries(WAIT_MAX, &["taken", "broken", "taken"]), (Err("broken"), 2));
        assert_eq!(tries(Duration::ZERO, &["taken"]), (Err("taken"), 1), "not for ever");
    }
}
