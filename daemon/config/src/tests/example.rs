//! The promises of `config.example.toml`: every key, its default, and nothing else.

use std::collections::BTreeSet;

use holdfast_core::affinity::Prefixes;
use toml::de::{DeTable, DeValue};

use super::effective::check_round_trip;
use crate::{CheckKind, Config, HttpCheck};

pub(super) const EXAMPLE: &str = include_str!("../../../../config.example.toml");

/// The example with its lines `{marker}key` and `{marker}[table]` uncommented.
pub(super) fn uncomment(text: &str, marker: &str) -> String {
    let line = |line: &str| match line.strip_prefix(marker) {
        Some(rest) if rest.starts_with(|c: char| c == '[' || c.is_ascii_lowercase()) => format!("{rest}\n"),
        _ => format!("{line}\n"),
    };
    text.lines().map(line).collect()
}

#[track_caller]
fn read(text: &str) -> Config {
    match Config::parse(text, "config.example.toml") {
        Ok((config, _)) => check_round_trip(config),
        Err(refused) => panic!("{refused}"),
    }
}

/// The legal keys of the table at `path`, by the reader; `None` if it is no table.
pub(super) fn legal_keys(path: &str) -> Option<Vec<String>> {
    let header = match path {
        "" => String::new(),
        "service" => "[[service]]\n".to_owned(),
        path if path.starts_with("service.") => format!("[[service]]\n[{path}]\n"),
        path => format!("[{path}]\n"),
    };
    let refused = Config::parse(&format!("{header}no-such-key = 1\n"), "").expect_err("an unknown key");
    let messages = refused.errors.iter().map(|error| error.message.with_values());
    let unknown = messages.filter(|message| message.starts_with("unknown key \"no-such-key\""));
    let list =
        unknown.map(|message| message.split_once("legal here: ").expect("a list").1.to_owned()).next()?;
    Some(list.split(", ").map(str::to_owned).collect())
}

/// Every key of the reader, as `table.key`.
pub(super) fn known_keys(path: &str, found: &mut BTreeSet<String>) {
    for key in legal_keys(path).expect("a table") {
        let key = if path.is_empty() { key } else { format!("{path}.{key}") };
        match legal_keys(&key) {
            Some(_) => known_keys(&key, found),
            None => _ = found.insert(key),
        }
    }
}

pub(super) fn shown_keys(path: &str, table: &DeTable<'_>, found: &mut BTreeSet<String>) {
    for (key, value) in table {
        let key = if path.is_empty() { key.to_string() } else { format!("{path}.{key}") };
        match value.get_ref() {
            DeValue::Table(inner) => shown_keys(&key, inner, found),
            DeValue::Array(items) if items.iter().all(|item| item.get_ref().is_table()) => {
                items.iter().for_each(|item| shown_keys(&key, item.get_ref().as_table().unwrap(), found));
            }
            _ => _ = found.insert(key),
        }
    }
}

#[test]
fn the_example_as_shipped_is_the_defaults() {
    assert_eq!(read(EXAMPLE), Config::default());
}

#[test]
fn every_default_shown_is_the_default() {
    let defaults = uncomment(EXAMPLE, "#");
    assert_ne!(defaults, EXAMPLE);
    assert_eq!(read(&defaults), Config::default());
}

#[test]
fn every_key_is_shown_and_none_else() {
    let all = uncomment(&uncomment(EXAMPLE, "##"), "#");
    let (mut shown, mut known) = (BTreeSet::new(), BTreeSet::new());
    shown_keys("", &DeTable::parse(&all).expect("TOML").into_inner(), &mut shown);
    known_keys("", &mut known);
    assert_eq!(shown, known);
    assert!(known.contains("service.health_check.path") && known.contains("datapath.limits.backends"));
}

/// Two examples exclude each other on purpose; without either of them, the whole file is legal.
#[test]
fn every_example_is_legal() {
    let all = uncomment(&uncomment(EXAMPLE, "##"), "#").replace("enabled = false", "enabled = true");
    let without = |keys: &[&str]| {
        let kept = all.lines().filter(|line| !keys.iter().any(|key| line.starts_with(key)));
        kept.map(|line| format!("{line}\n")).collect::<String>()
    };
    let config = read(&without(&["token_file"]));
    assert_eq!((config.services.len(), config.kubernetes.enabled), (6, true));
    read(&without(&["client_certificate_file", "client_key_file"]));
    let refused = Config::parse(&all, "").expect_err("two identities").to_string();
    assert!(refused.contains("two identities"), "{refused}");
}

/// In the block of a service the shown values are the defaults too, if a key has one.
#[test]
fn the_example_service_shows_the_defaults() {
    let all = uncomment(EXAMPLE, "##").replace("token_file", "#token_file");
    let block = &read(&all).services[0];
    let bare = "[[service]]\nname = \"web\"\nfrontends = [\"10.96.0.10:80\", \"[fd00:96::10]:80\"]\n\
                backends = [\"192.0.2.1:8080\", \"[2001:db8::1]:8080\"]\nhealth_check = { kind = \"http\" }\n";
    let mut expected = read(bare).services[0].clone();
    assert_eq!(
        expected.health_check.as_ref().map(|check| &check.kind),
        Some(&CheckKind::Http(HttpCheck::default()))
    );
    if let Some(check) = &mut expected.health_check {
        let (host, expect_body) = (Some("web.example.com".to_owned()), Some("all is well".to_owned()));
        check.kind = CheckKind::Http(HttpCheck { host, expect_body, ..HttpCheck::default() });
    }
    expected.on_empty = Some(Config::default().hold.on_empty);
    expected.affinity_prefix = Some(Prefixes::WHOLE);
    expected.maglev = Some(Config::default().packets.maglev);
    assert_eq!(block, &expected);
}

/// At least one comment above each key: a sentence that begins with a capital or a quoted word, and ends.
#[test]
fn every_key_has_its_sentence() {
    let lines: Vec<&str> = EXAMPLE.lines().collect();
    let is_key = |line: &str| line.starts_with("#") && !line.starts_with("# ") && line.contains(" = ");
    let keys = lines.windows(2).filter(|pair| is_key(pair[1]));
    let mut count = 0;
    for pair in keys {
        assert!(pair[0].starts_with("# ") && pair[0].ends_with('.'), "{}", pair[1]);
        count += 1;
    }
    assert!(count > 40, "{count}");
}

/// The page for operators names every key, in the table of its chapter or with its full path.
#[test]
fn the_guide_names_every_key() {
    const GUIDE: &str = include_str!("../../../../docs/configure.md");
    let mut known = BTreeSet::new();
    known_keys("", &mut known);
    for key in known {
        let last = key.rsplit('.').next().expect("a part");
        let rows = GUIDE.lines().filter(|line| line.starts_with("| `"));
        let mut names = rows.filter_map(|line| line.split(" | ").next());
        let full = format!("{}`", key.trim_start_matches("datapath."));
        assert!(names.any(|cell| cell.contains(&format!("`{last}`")) || cell.ends_with(&full)), "{key}");
    }
}

#[test]
fn the_demo_is_legal_without_warnings() {
    let demo = include_str!("../../../../examples/demo/holdfast.toml.in").replace("@DEMO@", "/tmp/demo");
    let (config, warnings) = Config::parse(&demo, "holdfast.toml").expect("a legal file");
    let config = check_round_trip(config);
    assert_eq!((config.services.len(), warnings), (1, Vec::new()));
}
