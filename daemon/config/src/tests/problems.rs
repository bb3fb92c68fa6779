//! `problems.golden`: each block is a bad file, then every message about it, warnings marked.
//!
//! `BLESS=1 cargo test -p holdfast config` rewrites the messages; read the difference before you commit it.

use std::path::Path;

use super::effective::check_round_trip;
use super::example::known_keys;
use crate::Config;

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/tests/problems.golden");

/// Fewer rows mean that the file was cut by accident.
const ROWS_MIN: usize = 140;

struct Row<'a> {
    name: &'a str,
    input: &'a str,
    said: &'a str,
}

fn rows(golden: &str) -> Vec<Row<'_>> {
    let row = |block| {
        let (name, rest): (&str, &str) = Option::expect(str::split_once(block, '\n'), "a line with the name");
        let (input, said) = rest.split_once("---\n").unwrap_or((rest, ""));
        Row { name, input, said }
    };
    golden.split("=== ").skip(1).map(row).collect()
}

fn say(input: &str) -> String {
    let (errors, warnings) = match Config::parse(input, "config.toml") {
        Ok((config, warnings)) => {
            check_round_trip(config);
            (Vec::new(), warnings)
        }
        Err(refused) => (refused.errors, refused.warnings),
    };
    let errors = errors.iter().map(|error| format!("{}\n", error.with_values()));
    let warnings = warnings.iter().map(|warning| format!("warning: {}\n", warning.with_values()));
    errors.chain(warnings).collect()
}

/// Secrets as strings, in lists, as numbers, and where an operator forgot the quotes.
const SECRETS: [&str; 8] = [
    "hunter2",
    "\"hunter2\"",
    "'hunter2",
    "[\"hunter2\"]",
    "{ hunter2 = 1 }",
    "4242424242",
    "\"https://hunter2@192.0.2.1:6443\"",
    "\"https://192.0.2.1:6443/?token=hunter2\"",
];

/// The log and `/readyz` have more readers than the file.
#[test]
fn a_problem_shows_no_value_of_the_file() {
    let mut keys = std::collections::BTreeSet::new();
    known_keys("", &mut keys);
    let mut refused_count = 0;
    // A block is called by its name.
    for path in keys.iter().filter(|path| *path != "service.name") {
        let (table, key) = path.rsplit_once('.').unwrap_or(("", path));
        let header = match table.strip_prefix("service") {
            Some("") => "[[service]]".to_owned(),
            Some(_) if !table.starts_with("services") => format!("[[service]]\n[{table}]"),
            _ => format!("[{table}]"),
        };
        let header = if table.is_empty() { String::new() } else { header };
        for secret in SECRETS {
            let Err(refused) = Config::parse(&format!("{header}\n{key} = {secret}\n"), "c") else { continue };
            let shown =
                refused.to_string() + &refused.warnings.iter().map(ToString::to_string).collect::<String>();
            let is_key = shown.contains("unknown key \"hunter2\"");
            assert!(is_key || !shown.contains("hunter2") && !shown.contains("42424"), "{shown}");
            refused_count += 1;
        }
    }
    assert!(refused_count > 4 * keys.len(), "{refused_count} of {} keys", keys.len());
    let quoted = "[log]\nlevel = \"hunter2\"\n";
    let refused = Config::parse(quoted, "c").expect_err("a bad word");
    assert_eq!(
        refused.to_string(),
        "c:2:9: log.level: unknown word ***; legal here: error, warn, info, debug, trace"
    );
    let shown = refused.errors[0].with_values();
    assert_eq!(
        shown,
        "c:2:9: log.level: unknown word \"hunter2\"; legal here: error, warn, info, debug, trace"
    );
}

#[test]
fn each_bad_file_gets_every_error() {
    let golden = std::fs::read_to_string(GOLDEN).expect("the golden file");
    let rows = rows(&golden);
    assert!(rows.len() >= ROWS_MIN, "{} rows", rows.len());
    if std::env::var_os("BLESS").is_some() {
        let block = |row: &Row<'_>| format!("=== {}\n{}---\n{}\n", row.name, row.input, say(row.input));
        let blessed: String = rows.iter().map(block).collect();
        std::fs::write(GOLDEN, blessed).expect("the golden file");
        return;
    }
    for row in rows {
        assert_eq!(say(row.input).trim_end(), row.said.trim_end(), "{}", row.name);
        assert!(!row.said.trim().is_empty(), "{}: a row that says nothing guards nothing", row.name);
    }
}

#[track_caller]
fn check_refused(path: &Path, expected: &str) {
    let refused = Config::load(path).expect_err("a bad file").to_string();
    assert_eq!(refused, format!("{}{expected}", path.display()));
}

#[test]
fn an_unreadable_file_is_an_error_with_the_reason() {
    let folder = Folder::new("unreadable");
    let write = |name: &str, bytes: &[u8]| {
        let path = folder.path.join(name);
        std::fs::write(&path, bytes).expect("a file");
        path
    };
    let missing =
        ": there is no such file: create it (an empty one is legal, every key has a default) or name another";
    check_refused(&folder.path.join("missing.toml"), missing);
    check_refused(&folder.path, ": this is a folder: name a file in it");
    let latin1 = write("latin1.toml", b"[node]\nzone = \"z\xf6\"\n");
    check_refused(&latin1, ":2:10: the file is not UTF-8 from here on: save it as UTF-8");
    let large = write("large.toml", &vec![b'#'; super::super::limits::FILE_BYTES_MAX + 1]);
    let too_large = ": the file is larger than 1048576 bytes: move services to manifests (manifests.path)";
    check_refused(&large, too_large);
    let full = write("full.toml", &vec![b'#'; super::super::limits::FILE_BYTES_MAX]);
    assert!(Config::load(&full).is_ok());
}

/// Permission bits do not bind root, so the sentence is tested on its own.
#[test]
fn a_forbidden_file_names_the_user_that_needs_access() {
    let denied = std::io::Error::from(std::io::ErrorKind::PermissionDenied);
    let expected =
        "the file may not be read: let the user that holdfast runs as read it, and enter its folders";
    assert_eq!(super::super::file::unreadable_reason(&denied), expected);
}

#[test]
fn a_transient_read_error_is_not_a_bad_file() {
    let unread = |errno| super::super::file::read_error("a.toml", &std::io::Error::from_raw_os_error(errno));
    assert!(unread(nix::libc::ENFILE).is_transient);
    assert!(unread(nix::libc::ENOMEM).is_transient);
    assert!(!unread(nix::libc::ENOENT).is_transient);
    assert!(!unread(nix::libc::EACCES).is_transient);
}

#[test]
fn a_report_is_bounded_and_counts_the_rest() {
    let text: String = (0..1_234).map(|index| format!("wrong{index} = 1\n")).collect();
    let refused = Config::parse(&text, "config.toml").expect_err("a bad file");
    assert_eq!((refused.errors.len(), refused.omitted), (1_000, 234));
    assert!(refused.to_string().ends_with("\nand 234 more errors, not shown"));
}

/// The whole text is searched for the first place of a few errors only.
#[test]
fn a_file_full_of_the_same_header_is_refused_at_once() {
    let text = "[log]\n".repeat(super::super::limits::FILE_BYTES_MAX / 6);
    let begun = std::time::Instant::now();
    let refused = Config::parse(&text, "c").expect_err("a bad file");
    assert_eq!(
        refused.errors[0].to_string(),
        "c:2:2: table `log` is defined twice, in lines 1 and 2: put all its keys below one header"
    );
    assert!(
        refused.errors[900]
            .to_string()
            .ends_with("table `log` is defined twice: put all its keys below one header")
    );
    assert!(begun.elapsed().as_secs() < 60, "{:?}", begun.elapsed());
}

#[test]
fn lists_are_bounded() {
    let backends: Vec<String> =
        (0..1_001).map(|index| format!("\"192.0.{}.{}:80\"", index / 256, index % 256)).collect();
    let service = format!(
        "[[service]]\nname = \"a\"\nfrontends = [\"10.0.0.1:80\"]\nbackends = [{}]\n",
        backends.join(",")
    );
    let refused = Config::parse(&service, "c").expect_err("too many backends").to_string();
    assert_eq!(refused, "c:4:12: service \"a\": backends: 1001 items are too many: at most 1000");
    let blocks: String = (0..1_001)
        .map(|i| {
            format!(
                "[[service]]\nname = \"s{i}\"\nfrontends = [\"10.0.{}.{}:80\"]\nbackends = []\n",
                i / 256,
                i % 256
            )
        })
        .collect();
    let refused = Config::parse(&blocks, "c").expect_err("too many services").to_string();
    assert_eq!(refused, "c:1:1: service: 1001 blocks are too many: at most 1000");
}

/// A folder of its own under the system's temporary one, gone when dropped.
struct Folder {
    path: std::path::PathBuf,
}

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("holdfast-config-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder");
        Self { path }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.path).expect("the folder");
    }
}
