//! Checks which crate of the product may use which: the walls between serving, explaining and showing.
//!
//! Invariant: dependencies point one way, from the end of [`CRATES`] to its beginning. A crate that serves never uses
//! one that explains or shows.

use crate::tree::{Finding, Source, assert_none, repository};

/// A crate that serves clients, or one that explains, shows or queries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Serves,
    Explains,
}

/// Each folder of `daemon/`, the role of its crate, and the crates that it may use.
const CRATES: [(&str, Role, &[&str]); 17] = [
    ("core", Role::Serves, &[]),
    ("objects", Role::Serves, &["core"]),
    ("status", Role::Serves, &["core"]),
    ("datapath", Role::Serves, &["core", "status"]),
    ("config", Role::Serves, &["core", "status"]),
    ("host", Role::Serves, &["config", "status"]),
    ("credentials", Role::Serves, &["config"]),
    ("kubernetes", Role::Serves, &["core", "objects", "config", "status", "host", "credentials"]),
    ("standalone", Role::Serves, &["core", "objects", "config", "status", "host", "credentials"]),
    (
        "agent",
        Role::Serves,
        &["core", "objects", "config", "status", "host", "kubernetes", "standalone", "datapath"],
    ),
    ("knowledge", Role::Explains, &[]),
    ("diagnose", Role::Explains, &["core", "objects", "status", "knowledge"]),
    (
        "evidence",
        Role::Explains,
        &[
            "core",
            "objects",
            "config",
            "status",
            "host",
            "kubernetes",
            "standalone",
            "datapath",
            "agent",
            "knowledge",
            "diagnose",
        ],
    ),
    ("page", Role::Explains, &[]),
    ("import", Role::Explains, &["core", "config"]),
    (
        "api",
        Role::Explains,
        &[
            "core",
            "config",
            "status",
            "host",
            "kubernetes",
            "standalone",
            "datapath",
            "agent",
            "knowledge",
            "diagnose",
            "evidence",
            "page",
        ],
    ),
    (
        "cli",
        Role::Explains,
        &[
            "core",
            "config",
            "status",
            "kubernetes",
            "standalone",
            "datapath",
            "agent",
            "knowledge",
            "diagnose",
            "evidence",
            "import",
            "api",
        ],
    ),
];

/// Each manifest names only crates that its row allows, and each crate has a row.
fn walls(source: &Source) -> Vec<Finding> {
    let folder = source.path.strip_prefix("daemon/").and_then(|path| path.strip_suffix("/Cargo.toml"));
    let Some(folder) = folder else { return Vec::new() };
    let Some((_, _, allowed)) = CRATES.iter().find(|(name, ..)| *name == folder) else {
        return vec![source.finding(1, "tests/tidy/walls.rs says which crates this one may know")];
    };
    let barred = dependencies(&source.text).filter(|(_, name)| !allowed.contains(name));
    barred.map(|(line, name)| source.finding(line, format!("{folder} does not know {name}"))).collect()
}

/// Our crates that a manifest names for the product, with the lines. Dependencies of tests do not count.
fn dependencies(manifest: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut section = "";
    manifest.lines().enumerate().filter_map(move |(at, line)| {
        if line.starts_with('[') {
            section = line;
        }
        let name = line.strip_prefix("holdfast-")?.split(['.', ' ']).next()?;
        // An optional dependency is for tests alone.
        (section == "[dependencies]" && !line.contains("optional = true")).then_some((at + 1, name))
    })
}

#[test]
fn a_dependency_outside_a_crates_row_is_found() {
    let check = |path: &str, text: &str, lines: &[usize]| {
        let found: Vec<usize> = walls(&Source::new(path, text)).iter().map(|finding| finding.line).collect();
        assert_eq!(found, lines, "{path}: {text}");
    };
    let two = "[dependencies]\nholdfast-core.workspace = true\nholdfast-api = { workspace = true }\n";
    check("daemon/agent/Cargo.toml", two, &[3]);
    check("daemon/agent/Cargo.toml", "[dev-dependencies]\nholdfast-api.workspace = true\n", &[]);
    check("daemon/other/Cargo.toml", two, &[1]);
    check("tests/Cargo.toml", two, &[]);
    let findings: Vec<Finding> = repository().unwrap().iter().flat_map(walls).collect();
    assert_none(&findings);
}

#[test]
fn no_serving_crate_may_use_an_explaining_one() {
    for (at, (name, role, known)) in CRATES.iter().enumerate() {
        for other in *known {
            let place = CRATES.iter().position(|(listed, ..)| listed == other);
            assert!(
                place.is_some_and(|place| place < at),
                "{name} knows {other}, which comes later or nowhere"
            );
            let other_role = CRATES.iter().find(|(listed, ..)| listed == other).map(|(_, role, _)| *role);
            assert!(*role == Role::Explains || other_role == Some(Role::Serves), "{name} knows {other}");
        }
    }
}
