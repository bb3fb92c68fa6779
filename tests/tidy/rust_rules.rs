//! Rules for each Rust file: how it begins, its names, what it may use, and its length.
//!
//! Each rule looks at one file alone. No rule has exceptions by file name.

use crate::bindings::Bindings;
use crate::code::{code_only, is_word, tokens, without_tests};
use crate::tree::{Finding, Source};

/// A longer file owns more than one thing.
const FILE_LINES_MAX: usize = 600;

/// A longer function cannot be read at one glance. A line counts once for each name that `let` binds in it, and at
/// least once, so `let ((a, b), c) = …` saves no lines.
const FUNCTION_LINES_MAX: usize = 60;

/// The folders that may use a library, or `unsafe`.
const HOMES: [(&str, &[&str]); 7] = [
    ("kube::", &["daemon/credentials/src"]),
    (
        "k8s_openapi::",
        &[
            "daemon/credentials/src",
            "daemon/kubernetes/src/apiserver",
            "daemon/evidence/src/diagnose/gather/cluster",
        ],
    ),
    ("jiff::", &["daemon/core/src/rfc3339", "daemon/knowledge/src/rfc3339", "daemon/status/src/rfc3339"]),
    ("axum::", &["daemon/api/src"]),
    ("libbpf_rs::", &["daemon/datapath/"]),
    ("hashbrown::", &["daemon/core/src/index.rs"]),
    // The suite asks the kernel which programs the machine has.
    ("unsafe", &["daemon/datapath/", "tests/suite/src/attached.rs"]),
];

/// Types that give access to tables, realized state or maps, and the modules that may use them: the engine, the task
/// that runs it, and `app`, which creates the maps. All others read a snapshot or send a request.
const HOLDERS: [(&str, &[&str]); 5] = [
    ("World", &["daemon/core/src/engine", "daemon/core/src/world"]),
    ("Engine", &["daemon/agent/src/engine", "daemon/agent/src/maps.rs", "daemon/src/app"]),
    ("AppMaps", &["daemon/agent/src/engine_thread.rs", "daemon/agent/src/maps.rs", "daemon/src/app"]),
    ("KernelMaps", &["daemon/agent/src/maps.rs"]),
    ("MemoryMaps", &["daemon/agent/src/maps.rs"]),
];

/// A file begins with what it owns.
pub(crate) fn module_doc(source: &Source) -> Vec<Finding> {
    if source.text.starts_with("//!") {
        return Vec::new();
    }
    vec![source.finding(1, "a module begins with `//!`: what it owns, its invariant")]
}

/// `foo.rs` next to `foo/`: editor tabs that are all called `mod.rs` look alike.
pub(crate) fn no_mod_rs(source: &Source) -> Vec<Finding> {
    if !source.path.ends_with("/mod.rs") {
        return Vec::new();
    }
    vec![source.finding(1, "no mod.rs: name the file after its module")]
}

/// Only a library's home uses it.
pub(crate) fn homes(source: &Source) -> Vec<Finding> {
    let code = code_only(&source.text);
    let mut findings = Vec::new();
    for (what, folders) in HOMES {
        if folders.iter().any(|folder| source.path.starts_with(folder)) {
            continue;
        }
        let rule = format!("`{what}` only under {}", folders.join(", "));
        findings.extend(lines_with(&code, what).map(|line| source.finding(line, rule.clone())));
    }
    findings
}

/// Core has no standard library, so it has no I/O, clock or thread.
pub(crate) fn pure_core(source: &Source) -> Vec<Finding> {
    if !is_production(source) || !source.path.starts_with("daemon/core/") {
        return Vec::new();
    }
    let code = without_tests(&code_only(&source.text));
    let mut findings: Vec<Finding> =
        lines_with(&code, "std::").map(|line| source.finding(line, "core has no `std`")).collect();
    if source.path == "daemon/core/src/lib.rs" {
        let needed = ["#![no_std]", "#![forbid(unsafe_code)]"];
        let missing = needed.iter().filter(|attribute| !code.lines().any(|line| line == **attribute));
        findings.extend(missing.map(|attribute| source.finding(1, format!("core says `{attribute}`"))));
    }
    findings
}

/// Files, sockets and clocks, and the types made of them. No object uses them.
const OUTSIDE: [&str; 15] = [
    "std::env",
    "std::fs",
    "std::io",
    "std::net::TcpListener",
    "std::net::TcpStream",
    "std::net::UdpSocket",
    "std::os",
    "std::process",
    "std::thread",
    "std::time",
    "TcpListener",
    "TcpStream",
    "UdpSocket",
    "tokio::",
    "hyper::",
];

/// Folders that only read text or judge facts.
const READERS: [&str; 4] =
    ["daemon/diagnose/src/", "daemon/knowledge/src/", "daemon/objects/src/", "daemon/status/src/"];

/// Parsing and judging need nothing of the machine.
pub(crate) fn pure_objects(source: &Source) -> Vec<Finding> {
    if !is_production(source) || !READERS.iter().any(|reader| source.path.starts_with(reader)) {
        return Vec::new();
    }
    let code = without_tests(&code_only(&source.text));
    let found =
        OUTSIDE.iter().flat_map(|outside| lines_with(&code, outside).map(move |line| (line, outside)));
    found
        .map(|(line, outside)| source.finding(line, format!("what only reads and judges has no `{outside}`")))
        .collect()
}

/// Readers see snapshots; the state behind them belongs to the engine.
pub(crate) fn one_writer(source: &Source) -> Vec<Finding> {
    let is_core = |path: &str| path.starts_with("daemon/core/");
    let is_maker = ["daemon/datapath/", "tests/"].iter().any(|folder| source.path.starts_with(folder));
    if !is_production(source) || is_maker {
        return Vec::new();
    }
    let code = without_tests(&code_only(&source.text));
    // The compiler already separates crates, so only homes on this file's side of core count.
    let is_barred = |homes: &[&str]| {
        homes.iter().any(|home| is_core(home) == is_core(&source.path))
            && !homes.iter().any(|home| source.path.starts_with(home))
    };
    let barred = HOLDERS.iter().filter(|(_, homes)| is_barred(homes));
    let found = barred.flat_map(|(word, homes)| lines_with(&code, word).map(move |line| (line, word, homes)));
    found
        .map(|(line, word, homes)| source.finding(line, format!("`{word}` only under {}", homes.join(", "))))
        .collect()
}

/// The lines that contain the text as a path or word of its own.
fn lines_with<'a>(code: &'a str, what: &'a str) -> impl Iterator<Item = usize> + 'a {
    code.lines().enumerate().filter(move |(_, line)| has(line, what)).map(|(at, _)| at + 1)
}

fn has(line: &str, what: &str) -> bool {
    line.match_indices(what).any(|(at, _)| {
        let (before, after) = line.split_at(at);
        let after = after.strip_prefix(what).unwrap_or_default();
        let starts = !before.ends_with(is_word) && !is_inner_segment(before);
        let ends = what.ends_with(':') || !after.starts_with(is_word);
        starts && ends
    })
}

/// `crate::kube::` is a module of ours; `::kube::` is the crate.
fn is_inner_segment(before: &str) -> bool {
    before.strip_suffix("::").is_some_and(|path| path.ends_with(is_word))
}

/// A file above the limit is divided.
pub(crate) fn file_size(source: &Source) -> Vec<Finding> {
    if !is_production(source) {
        return Vec::new();
    }
    let kept = without_tests(&source.text);
    let lines = kept.lines().filter(|line| !line.trim().is_empty()).count();
    if lines <= FILE_LINES_MAX {
        return Vec::new();
    }
    vec![source.finding(FILE_LINES_MAX, format!("{lines} lines; a file has at most {FILE_LINES_MAX}"))]
}

/// A function above the limit is divided.
pub(crate) fn function_size(source: &Source) -> Vec<Finding> {
    if !is_production(source) {
        return Vec::new();
    }
    let code = without_tests(&code_only(&source.text));
    let lines: Vec<&str> = code.lines().collect();
    let mut bindings = Bindings::default();
    let weights: Vec<usize> = lines.iter().map(|line| bindings.count(line).max(1)).collect();
    let starts = lines.iter().enumerate().filter(|(_, line)| is_function_start(line));
    let lengths = starts.map(|(at, _)| {
        let length = function_len(lines.get(at..).unwrap_or_default());
        (at + 1, weights.iter().skip(at).take(length).sum::<usize>())
    });
    let long = lengths.filter(|(_, length)| *length > FUNCTION_LINES_MAX);
    long.map(|(line, length)| {
        let what =
            format!("{length} lines and further bindings; a function has at most {FUNCTION_LINES_MAX}");
        source.finding(line, what)
    })
    .collect()
}

fn is_function_start(line: &str) -> bool {
    let before_name =
        ["pub", "crate", "super", "self", "in", "const", "async", "unsafe", "extern", "default"];
    tokens(line).find(|token| !before_name.contains(token)) == Some("fn")
}

/// Rustfmt closes a function at the indentation at which it opened it.
fn function_len(lines: &[&str]) -> usize {
    let Some(first) = lines.first() else { return 0 };
    if first.trim_end().ends_with(['}', ';']) {
        return 1;
    }
    let closes = |line: &&str| {
        indent(line) == indent(first) && (line.trim().starts_with('}') || line.trim_end().ends_with(';'))
    };
    1 + lines.iter().skip(1).position(closes).map_or(lines.len(), |at| at + 1)
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// Code of the product, and the programs that test it.
fn is_production(source: &Source) -> bool {
    let of_ours = source.path.starts_with("daemon/") || source.path.starts_with("tests/src/");
    let is_test =
        source.path.ends_with("/tests.rs") || source.path.trim_start_matches("tests/").contains("/tests/");
    source.is_rust() && of_ours && !is_test
}

/// An ignored test is never run.
pub(crate) fn no_ignored_tests(source: &Source) -> Vec<Finding> {
    let code = code_only(&source.text);
    let attributes = code.lines().map(|line| line.contains("#[ignore"));
    let examples = source.text.lines().map(|line| line.trim().ends_with(concat!("```", "ignore")));
    let found =
        attributes.zip(examples).enumerate().filter(|(_, (attribute, example))| *attribute || *example);
    found
        .map(|(at, _)| source.finding(at + 1, "no ignored tests: make it run, in a part of tests/parts.toml"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::{Rule, assert_none, check, repository};

    #[track_caller]
    fn check_repository(rule: Rule) {
        let sources = repository().unwrap();
        let findings: Vec<Finding> = sources.iter().filter(|s| s.is_rust()).flat_map(rule).collect();
        assert_none(&findings);
    }

    /// Whether the daemon's code declares a type of this name.
    fn is_declared(name: &str) -> bool {
        let kinds = [format!("struct {name}"), format!("enum {name}")];
        let sources = repository().unwrap();
        sources
            .iter()
            .filter(|source| source.is_rust() && source.path.starts_with("daemon/"))
            .any(|source| kinds.iter().any(|kind| lines_with(&source.text, kind).next().is_some()))
    }

    #[test]
    fn every_module_says_what_it_owns() {
        check(module_doc, "a.rs", "//! A.\n", &[]);
        check(module_doc, "a.rs", "use b;\n", &[1]);
        check(module_doc, "a.rs", "", &[1]);
        check_repository(module_doc);
    }

    #[test]
    fn a_module_is_a_file_of_its_name() {
        check(no_mod_rs, "daemon/api/src/lib.rs", "", &[]);
        check(no_mod_rs, "daemon/src/admin/mod.rs", "", &[1]);
        check_repository(no_mod_rs);
    }

    #[test]
    fn a_library_outside_its_home_is_found() {
        check(homes, "daemon/agent/src/engine.rs", "use kube::Client;", &[1]);
        check(homes, "daemon/agent/src/engine.rs", "fn a(x: ::kube::Client)", &[1]);
        check(homes, "daemon/agent/src/engine.rs", "\nuse k8s_openapi::api;\nuse axum::Router;", &[2, 3]);
        check(homes, "daemon/agent/src/engine.rs", "use crate::kube::x; // kube::y", &[]);
        check(homes, "daemon/kubernetes/src/source.rs", "use kube::Client;", &[1]);
        check(homes, "daemon/credentials/src/lib.rs", "use kube::Client;", &[]);
        check(homes, "daemon/api/src/lib.rs", "use axum::Router;", &[]);
        check(homes, "daemon/src/sources.rs", "use axum::Router;", &[1]);
        check(homes, "daemon/agent/src/engine.rs", "use libbpf_rs::Map;\nunsafe { a() }", &[1, 2]);
        check(homes, "tests/src/a.rs", "unsafe fn a() {}", &[1]);
        check(homes, "daemon/datapath/src/kernel.rs", "use libbpf_rs::Map;\nunsafe { a() }", &[]);
        check(homes, "daemon/core/src/lib.rs", "#![forbid(unsafe_code)]\nlet a = \"unsafe\";", &[]);
        check_repository(homes);
    }

    #[test]
    fn invariant_01_only_the_engine_holds_tables_and_realized() {
        check(one_writer, "daemon/agent/src/engine/batch.rs", "engine: Engine<M>, maps: KernelMaps,", &[1]);
        check(one_writer, "daemon/src/app/start.rs", "engine: Engine<AppMaps>,", &[]);
        check(one_writer, "daemon/core/src/engine.rs", "world: World,", &[]);
        check(one_writer, "daemon/core/src/hold/judge.rs", "world: World,\nmaps: MemoryMaps", &[1]);
        check(
            one_writer,
            "daemon/api/src/frontends.rs",
            "a: &Engine<M>\nb: EngineView,\nc: AppMaps\nd: &KernelMaps",
            &[1, 3, 4],
        );
        check(one_writer, "daemon/agent/src/probes/tests/many.rs", "Engine::start(MemoryMaps::new())", &[]);
        let gone = HOLDERS.iter().filter(|(word, _)| !is_declared(word)).collect::<Vec<_>>();
        assert!(gone.is_empty(), "these types are gone: {gone:?}");
        check_repository(one_writer);
    }

    #[test]
    fn objects_are_read_without_files_sockets_or_clocks() {
        check(pure_objects, "daemon/objects/src/wire.rs", "use std::fs::File;\nuse std::net::IpAddr;", &[1]);
        check(pure_objects, "daemon/knowledge/src/event.rs", "\nuse std::time::SystemTime;", &[2]);
        check(
            pure_objects,
            "daemon/diagnose/src/explain.rs",
            "use std::net::TcpStream;\nuse tokio::sync;",
            &[1, 2],
        );
        check(pure_objects, "daemon/standalone/src/folder/scan.rs", "use std::fs::File;", &[]);
        check_repository(pure_objects);
    }

    #[test]
    fn invariant_02_core_has_no_io_and_no_clock() {
        let lib = "daemon/core/src/lib.rs";
        check(pure_core, lib, "//! A.\n#![no_std]\n#![forbid(unsafe_code)]\n", &[]);
        check(pure_core, lib, "//! A.\n#![forbid(unsafe_code)]\n", &[1]);
        check(pure_core, lib, "//! A.\n#![no_std]\n// #![forbid(unsafe_code)]\n", &[1]);
        check(pure_core, "daemon/core/src/plan.rs", "\nuse std::time::Instant;", &[2]);
        check(
            pure_core,
            "daemon/core/src/plan.rs",
            "a\n#[cfg(test)]\nmod tests {\n    use std::vec;\n}\n",
            &[],
        );
        check(pure_core, "daemon/core/src/plan/tests.rs", "use std::vec;", &[]);
        check(pure_core, "daemon/agent/src/engine.rs", "use std::time::Instant;", &[]);
        check_repository(pure_core);
    }

    #[test]
    fn a_file_above_the_limit_is_found() {
        let path = "daemon/agent/src/engine.rs";
        let at_the_limit = "a;\n".repeat(FILE_LINES_MAX);
        check(file_size, path, &at_the_limit, &[]);
        check(file_size, path, &format!("{at_the_limit}b;\n"), &[FILE_LINES_MAX]);
        check(file_size, path, &format!("{at_the_limit}#[cfg(test)]\nmod tests {{\n    b;\n}}\n"), &[]);
        check(file_size, "daemon/agent/src/engine/tests.rs", &format!("{at_the_limit}b;\n"), &[]);
        check(file_size, "tests/src/simulation.rs", &format!("{at_the_limit}b;\n"), &[FILE_LINES_MAX]);
        check_repository(file_size);
    }

    #[test]
    fn a_function_above_the_limit_is_found() {
        let path = "daemon/core/src/plan.rs";
        let function = |lines: usize| {
            format!(
                "impl A {{\n    pub fn a(\n        b: C,\n    ) {{\n{}    }}\n}}\n",
                "        d;\n".repeat(lines - 4)
            )
        };
        check(function_size, path, &function(FUNCTION_LINES_MAX), &[]);
        check(function_size, path, &function(FUNCTION_LINES_MAX + 1), &[2]);
        let packed = function(FUNCTION_LINES_MAX - 1).replacen("d;", "let (d, e) = f;", 1);
        check(function_size, path, &packed, &[]);
        check(function_size, path, &packed.replacen("(d, e)", "((d, e), g)", 1), &[2]);
        check(function_size, path, &format!("fn a() {{}}\nfn b() -> C;\n{}", "d;\n".repeat(90)), &[]);
        check(function_size, path, &format!("fn a() {{\n{}", "    d;\n".repeat(90)), &[1]);
        check_repository(function_size);
    }

    #[test]
    fn no_test_is_left_out() {
        check(no_ignored_tests, "a.rs", "#[test]\n#[ignore]\nfn a() {}", &[2]);
        check(no_ignored_tests, "a.rs", "#[ignore = \"slow\"]", &[1]);
        check(no_ignored_tests, "a.rs", concat!("/// ```", "ignore"), &[1]);
        check(no_ignored_tests, "a.rs", "// #[ignore]\nlet ignore = 1;", &[]);
        check_repository(no_ignored_tests);
    }
}
