//! How large a measurement is: whole where `cargo bench` asks for it, short everywhere else.
//!
//! Invariant: the short form takes every path of the whole one, in seconds, so that no benchmark can rot unseen; its
//! figures mean nothing.

/// What `cargo bench` tells a benchmark, and `cargo test` does not.
const WHOLE: &str = "--bench";

/// Whether this is the short form.
pub fn is_short() -> bool {
    !std::env::args().any(|argument| argument == WHOLE)
}

/// The one or the other.
pub fn sized<T>(whole: T, short: T) -> T {
    if is_short() { short } else { whole }
}

/// The part that the command line names, if any.
pub fn wanted() -> Option<String> {
    std::env::args().skip(1).find(|argument| !argument.starts_with('-'))
}

/// What a process that measures one part has to be told: the part, and how large it is.
pub fn arguments(part: &str) -> Vec<String> {
    let whole = (!is_short()).then(|| WHOLE.to_owned());
    std::iter::once(part.to_owned()).chain(whole).collect()
}
