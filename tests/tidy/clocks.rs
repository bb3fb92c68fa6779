//! Test code inside `daemon/` asks no clock; below `tests/`, clippy says so (tests/clippy.toml).
//!
//! Invariant: a test there waits for events with `holdfast_fixtures::clock`, and moves the time that the product
//! promises.

use crate::code::{code_only, without_tests};
use crate::tree::{Finding, Source};

/// The calls that read a clock, or let time pass.
const CALLS: [&str; 6] =
    ["Instant::now", "SystemTime::now", ".elapsed()", "thread::sleep", "time::sleep(", "time::timeout("];

/// Folders whose tests do not follow the rule yet: they still compare times of the real clock, or poll by themselves.
const EXCEPTIONS: [&str; 10] = [
    "daemon/api/",
    "daemon/cli/",
    "daemon/config/",
    "daemon/credentials/",
    "daemon/datapath/",
    "daemon/evidence/",
    "daemon/host/",
    "daemon/kubernetes/",
    "daemon/src/",
    "daemon/standalone/",
];

/// No test asks the clock.
pub(crate) fn one_clock(source: &Source) -> Vec<Finding> {
    let is_excepted = EXCEPTIONS.iter().any(|folder| source.path.starts_with(folder));
    if !source.is_rust() || !source.path.starts_with("daemon/") || is_excepted {
        return Vec::new();
    }
    let code = code_only(&source.text);
    let product = if is_test_file(&source.path) { String::new() } else { without_tests(&code) };
    let mut product_lines = product.lines();
    let mut findings = Vec::new();
    for (at, line) in code.lines().enumerate() {
        let is_product = product_lines.next().is_some_and(|product| product == line);
        if !is_product && CALLS.iter().any(|call| line.contains(call)) {
            findings.push(source.finding(at + 1, "no test asks the clock: holdfast_fixtures::clock"));
        }
    }
    findings
}

fn is_test_file(path: &str) -> bool {
    path.ends_with("/tests.rs") || path.contains("/tests/")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::{check, check_repository};

    #[test]
    fn tests_in_daemon_ask_no_clock() {
        let text = "let begun = Instant::now();\n// Instant::now\nbegun.elapsed();\nthread::sleep(LONG);\n";
        check(one_clock, "daemon/agent/src/probes/tests.rs", text, &[1, 3, 4]);
        check(one_clock, "daemon/agent/src/probes/tests/many.rs", text, &[1, 3, 4]);
        check(one_clock, "daemon/agent/src/probes.rs", text, &[]);
        let module = format!("{text}#[cfg(test)]\nmod tests {{\n    tokio::time::sleep(LONG).await;\n}}\n");
        check(one_clock, "daemon/agent/src/probes.rs", &module, &[7]);
        check(one_clock, "daemon/agent/src/probes/tests.rs", "\"Instant::now\"; clock::now();", &[]);
        check(one_clock, "tests/src/host.rs", text, &[]);
        check_repository(one_clock);
    }
}
