//! The size of a measurement: full under `cargo bench`, short everywhere else.
//!
//! Invariant: the short form takes every code path of the full one, in seconds, so that no benchmark breaks unnoticed.
//! Its results mean nothing.

/// The argument that `cargo bench` passes to a benchmark, and `cargo test` does not.
const WHOLE: &str = "--bench";

/// Whether this is the short form.
pub fn is_short() -> bool {
    !std::env::args().any(|argument| argument == WHOLE)
}

/// The first value under `cargo bench`, else the second.
pub fn sized<T>(whole: T, short: T) -> T {
    if is_short() { short } else { whole }
}

/// The part named on the command line, if any.
pub fn wanted() -> Option<String> {
    std::env::args().skip(1).find(|argument| !argument.starts_with('-'))
}

/// The arguments of a process that measures one part: the part and its size.
pub fn arguments(part: &str) -> Vec<String> {
    let whole = (!is_short()).then(|| WHOLE.to_owned());
    std::iter::once(part.to_owned()).chain(whole).collect()
}
