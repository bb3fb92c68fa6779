//! What the real program writes and answers: as each released version did, and what it does with a newer version's.
//!
//! Invariant: `tests/formats` was written by the programs of those versions, and no test changes it ([`frozen`]).

mod program;

use std::fs;
use std::path::Path;

use holdfast_config::Config;
use holdfast_tests::formats::{missing_in_answer, missing_in_description};
use serde_json::Value;
use tempfile::TempDir;

use holdfast_fixtures::frozen::{Frozen, frozen, frozen_text};
use program::Program;

/// The paths of the API, each with a name for its answer. A diagnosis tells of the machine, so only its description
/// is compared.
const PATHS: [(&str, &str); 18] = [
    ("index", "/"),
    ("frontends", "/frontends"),
    ("backends", "/backends"),
    ("services", "/services"),
    ("drains", "/drains"),
    ("refusals", "/refusals"),
    ("flows", "/flows"),
    ("explain-service", "/explain?service=shop/full"),
    ("explain-address", "/explain?endpoint=10.96.0.10:53"),
    ("events", "/events"),
    ("verify", "/verify"),
    ("history", "/history"),
    ("datapath", "/datapath"),
    ("apiserver", "/apiserver"),
    ("config", "/config"),
    ("version", "/version"),
    ("readyz", "/readyz"),
    ("nowhere", "/nowhere"),
];

/// Commands, of which some have an answer to give and some cannot. GOOD and BAD are configurations.
const COMMANDS: [&str; 15] = [
    "check-config GOOD",
    "check-config BAD",
    "run --config BAD",
    "frontends --nonsense",
    "nonsense",
    "--tcp 127.0.0.1:1 status",
    "--tcp 127.0.0.1:1 verify",
    "--version",
    "frontends",
    "explain shop/full",
    "diagnose shop/nobody",
    "verify",
    "health ready",
    "drain 192.0.2.250",
    "undrain 192.0.2.251",
];

/// A running program that has everything: manifests, blocks, a drain, and a history.
fn everything() -> (TempDir, Program) {
    let folder = tempfile::tempdir().unwrap();
    let mut program = Program::new(folder.path());
    program.write_manifests();
    program.start_until("/frontends", &|answer| rows(answer, "frontends") > 15);
    assert_eq!(program.ask(&["drain", "192.0.2.1"]).status.code(), Some(1), "no other backend takes clients");
    program.wait_until("/readyz", &|answer| answer["snapshot"]["written"].is_string());
    (folder, program)
}

fn rows(answer: &Value, table: &str) -> usize {
    answer[table].as_array().map_or(0, Vec::len)
}

fn write_answers(program: &Program, folder: &Path) {
    fs::create_dir_all(folder).unwrap();
    for (name, path) in PATHS {
        fs::write(folder.join(format!("{name}.json")), program.text(path)).unwrap();
    }
}

/// Copies a folder of state without its lock.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let path = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &path);
        } else if entry.file_name() != "lock" {
            fs::copy(entry.path(), path).unwrap();
        }
    }
}

fn parse(text: &str) -> Value {
    program::parse(text).unwrap_or_else(|| panic!("{text}"))
}

fn old_answer(then: &Frozen, name: &str) -> Value {
    parse(&fs::read_to_string(then.path.join(format!("{name}.json"))).unwrap())
}

#[test]
fn each_released_answer_keeps_its_fields_and_their_types() {
    let (_folder, mut program) = everything();
    let description = program.get("/openapi.json");
    for then in frozen_text("openapi.json", program.text("/openapi.json").as_bytes()) {
        let missing = missing_in_description(&parse(&then.text()), &description);
        assert!(missing.is_empty(), "since {}: {missing:#?}", then.version);
    }
    let identifies =
        |name: &str| ["service", "address", "port", "protocol", "type", "verdict"].contains(&name);
    for then in frozen("answers", |folder| write_answers(&program, folder)) {
        for (name, path) in PATHS.iter().filter(|(name, _)| then.path.join(format!("{name}.json")).exists()) {
            let missing = missing_in_answer(&old_answer(&then, name), &program.get(path), &identifies);
            assert!(missing.is_empty(), "{path} since {}: {missing:#?}", then.version);
        }
    }
    let state = program.path("state");
    program.stop();
    frozen("state", |folder| copy(&state, folder));
}

/// An old answer, with the backends that clients cannot reach because another Service has the addresses: before 1.0.0
/// they were called active.
fn without_conflicts(mut then: Value, now: &Value) -> Value {
    let rows = then.get_mut("backends").and_then(Value::as_array_mut).into_iter().flatten();
    for (row, now) in rows.zip(now["backends"].as_array().into_iter().flatten()) {
        if now["unused_because"] == "conflict" {
            row["state"] = now["state"].clone();
            row["unused_because"] = now["unused_because"].clone();
        }
    }
    then
}

/// The daemon has nothing but its state: its manifests are gone, so it serves what it remembers.
#[test]
fn each_released_state_is_served_before_any_source_has_delivered() {
    let states = frozen("state", |_| ());
    for (state, answers) in states.iter().zip(frozen("answers", |_| ())) {
        assert_eq!(state.version, answers.version);
        let folder = tempfile::tempdir().unwrap();
        let mut program = Program::new(folder.path());
        copy(&state.path, &program.path("state"));
        program.start_until("/frontends", &|answer| rows(answer, "frontends") > 15);
        // Not what a restart may tell otherwise: times, that the manifests are gone, and the configuration's path.
        let changes = ["since", "stale_since", "rejected", "rejected_total", "origin"];
        for table in ["frontends", "backends", "services", "drains", "history"] {
            let now = program.get(&format!("/{table}"));
            // Those that are in use, without those of a conflict.
            let is_recounted = |name: &str| table == "services" && name == "backends";
            let stays = |name: &str| !changes.contains(&name) && !is_recounted(name);
            let missing =
                missing_in_answer(&without_conflicts(old_answer(&answers, table), &now), &now, &stays);
            assert!(missing.is_empty(), "{table} of {}: {missing:#?}", state.version);
        }
        assert_eq!(program.get("/readyz")["snapshot"]["damage"], Value::Null);
    }
}

/// The example with its keys uncommented, as a user does it.
fn uncomment(example: &str, marker: &str) -> String {
    let is_key = |rest: &str| rest.starts_with(|c: char| c == '[' || c.is_ascii_lowercase());
    let line = |line| match str::strip_prefix(line, marker).filter(|rest| is_key(rest)) {
        Some(rest) => format!("{rest}\n"),
        None => format!("{line}\n"),
    };
    example.lines().map(line).collect()
}

#[test]
fn each_released_key_of_the_configuration_is_read() {
    let now = include_str!("../../../config.example.toml");
    for then in frozen_text("config.example.toml", now.as_bytes()) {
        let defaults = uncomment(&then.text(), "#");
        assert_ne!(defaults, then.text());
        if let Err(errors) = Config::parse(&defaults, "config.example.toml") {
            panic!("since {}: {errors}", then.version);
        }
        // Some examples exclude each other, so only their names are looked at.
        let examples = uncomment(&then.text(), "##");
        assert_ne!(examples, then.text());
        let errors = Config::parse(&examples, "").map_or_else(|errors| errors.to_string(), |_| String::new());
        assert!(!errors.contains("unknown key"), "since {}: {errors}", then.version);
    }
}

fn exit_code(program: &Program, command: &str) -> Option<i32> {
    let word = |word: &str| match word {
        "GOOD" => program.config().display().to_string(),
        "BAD" => program.path("bad.toml").display().to_string(),
        word => word.to_owned(),
    };
    let words: Vec<String> = command.split(' ').map(word).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    if command.starts_with("--") { program.run(&words) } else { program.ask(&words) }.status.code()
}

#[test]
fn each_released_command_keeps_its_exit_codes() {
    let (_folder, program) = everything();
    fs::write(program.path("bad.toml"), "[nowhere]\n").unwrap();
    let line = |command: &&str| format!("{}\t{command}\n", exit_code(&program, command).unwrap());
    for then in frozen("exit-codes.txt", |path| {
        fs::write(path, COMMANDS.iter().map(line).collect::<String>()).unwrap();
    }) {
        let codes = then.text();
        assert!(codes.lines().count() >= 10);
        for (code, command) in codes.lines().map(|line| line.split_once('\t').unwrap()) {
            assert_eq!(exit_code(&program, command), code.parse().ok(), "{command} since {}", then.version);
        }
    }
}

/// A format that no version has yet.
const NEWER: u8 = 99;

/// What makes a file's format a newer one.
type Change<'a> = &'a dyn Fn(&mut Vec<u8>);

/// Turns a folder of state into that of a newer version: all its files have a format that this one does not know.
/// Returns the files, each with its content.
fn make_newer(state: &Path) -> Vec<(&'static str, Vec<u8>)> {
    let drains = |bytes: &mut Vec<u8>| {
        let text = String::from_utf8_lossy(bytes).replacen("version 1", &format!("version {NEWER}"), 1);
        *bytes = text.into_bytes();
    };
    let changes: [(&'static str, Change<'_>); 5] = [
        ("snapshot", &|bytes| bytes[12] = NEWER),
        ("snapshot.before", &|bytes| bytes[12] = NEWER),
        ("drains.json", &drains),
        ("drains.copy.json", &drains),
        ("history/00000000000000000001.history", &|bytes| bytes[19] = NEWER),
    ];
    let change = |(name, change): (&'static str, Change<'_>)| {
        let mut bytes = fs::read(state.join(name)).unwrap();
        change(&mut bytes);
        fs::write(state.join(name), &bytes).unwrap();
        (name, bytes)
    };
    // A short life writes its snapshot once.
    changes.into_iter().filter(|(name, _)| state.join(name).exists()).map(change).collect()
}

/// Checks what the log says of each file.
fn check_sentences(program: &Program, snapshot: &Path) {
    let log = program.log();
    for part in [
        format!("{} has format {NEWER} of a newer holdfast; this one reads format ", snapshot.display()),
        format!(", starts without the file and keeps it as snapshot.v{NEWER}"),
        format!("drains.json: it has version {NEWER}; this holdfast reads 1"),
    ] {
        assert!(log.contains(&part), "no {part} in\n{log}");
    }
    // A line for each record; the daemon may not have written the second one yet.
    let history = program.text("/history");
    let oldest: Value = serde_json::from_str(history.lines().next().unwrap_or_default()).unwrap();
    assert_eq!(oldest["gap"]["cause"], "other-version", "{history}");
}

#[test]
fn a_newer_state_is_refused_in_one_sentence_each_and_nothing_of_it_is_lost() {
    let newest = frozen("state", |_| ()).pop().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut program = Program::new(folder.path());
    let state = program.path("state");
    copy(&newest.path, &state);
    let newer = make_newer(&state);
    let kept = |name: &str| fs::read(state.join(name)).unwrap();
    let aside = format!("snapshot.v{NEWER}");
    program.start_until("/readyz", &|answer| answer["snapshot"]["error"].is_string());
    check_sentences(&program, &state.join("snapshot"));
    // The block of the configuration is served, and does not replace the table.
    assert_eq!(rows(&program.get("/frontends"), "frontends"), 1);
    program.stop();
    for (name, bytes) in &newer {
        let place = if *name == "drains.json" { "drains.damaged" } else { name };
        assert!(kept(place) == *bytes, "{name} is not as the newer version wrote it");
    }
    assert!(kept(&aside) == newer[0].1);
    // With all sources the table is whole, and takes the place of the newer one, which stays beside it.
    program.write_manifests();
    program.start_until("/readyz", &|answer| {
        answer["snapshot"]["written"].is_string() && answer["snapshot"]["error"].is_null()
    });
    program.stop();
    assert_ne!(kept("snapshot")[12], NEWER);
    assert!(kept(&aside) == newer[0].1);
}

#[test]
fn a_newer_key_is_refused_with_its_place_and_a_hint() {
    let folder = tempfile::tempdir().unwrap();
    let program = Program::new(folder.path());
    program.configure("[hold]\nfrom_the_future = 1\n");
    let config = program.config().display().to_string();
    for command in [&["check-config", &config][..], &["run", "--config", &config]] {
        let output = program.run(command);
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(78), "{error}");
        assert!(error.contains(": [hold] unknown key \"from_the_future\"; legal here: "), "{error}");
    }
    assert!(!program.path("state").exists(), "nothing was touched");
}
