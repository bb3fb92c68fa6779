//! Lines that reach the journal, lines that do not, and the reports of both.

use std::collections::BTreeSet;
use std::io::{IoSliceMut, Read, Seek};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use holdfast_laws::hostile::{HOSTILE, check_lines};
use holdfast_status::printable::is_unprintable;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};
use tracing_subscriber::layer::SubscriberExt;

use super::journal::{Journal, JournalLayer};
use super::messages::{self, MESSAGES, say};
use super::rate_limit::{LINES_MAX, RateLimitLayer, RateWindow, WARNINGS_MAX, WINDOW};
use super::{stream_matches, text_layer, write_fatal_error};

/// A journald that reads its socket only when asked.
struct Fake {
    socket: UnixDatagram,
    path: PathBuf,
    _folder: tempfile::TempDir,
}

impl Fake {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_nonblocking(true).unwrap();
        Self { socket, path, _folder: folder }
    }

    fn next(&self) -> Option<String> {
        let mut bytes = vec![0; 1 << 16];
        let count = self.socket.recv(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(bytes.get(..count)?).into_owned())
    }

    fn log(&self, say: impl FnOnce()) -> Arc<Journal> {
        let journal = Arc::new(Journal::open_at(&self.path).unwrap());
        let layer = JournalLayer(Arc::clone(&journal));
        tracing::subscriber::with_default(
            tracing_subscriber::registry().with(RateLimitLayer::new()).with(layer),
            say,
        );
        journal
    }
}

#[track_caller]
fn has(entry: &str, line: &str) {
    assert!(entry.lines().any(|it| it == line), "{line:?} is not in\n{entry}");
}

#[test]
fn a_line_has_a_field_for_each_field_of_the_event_and_the_number_of_its_message() {
    let fake = Fake::new();
    let nothing: Option<&str> = None;
    fake.log(|| {
        let cause = "Service default/web applied";
        say!(info, messages::VERDICT_CHANGED, service = "default/web", seq = 7, cause, nothing);
    });
    let entry = fake.next().unwrap();
    has(&entry, "MESSAGE=verdict changed service=default/web seq=7 cause=\"Service default/web applied\"");
    has(&entry, "PRIORITY=6");
    has(&entry, "MESSAGE_ID=9d13d2898fe1915ece3b90f9eca89ee4");
    has(&entry, "HOLDFAST_SERVICE=default/web");
    has(&entry, "HOLDFAST_SEQ=7");
    has(&entry, "HOLDFAST_CAUSE=Service default/web applied");
    assert!(!entry.contains("NOTHING"), "{entry}");
    fake.log(|| tracing::info!("verdict changed"));
    let entry = fake.next().unwrap();
    assert!(!entry.contains("MESSAGE_ID"), "the text alone is no message with a number: {entry}");
}

#[test]
fn a_notice_has_a_priority_between_a_warning_and_the_other_lines() {
    let fake = Fake::new();
    fake.log(|| say!(notice, messages::VERDICT_CHANGED, service = "default/web"));
    let entry = fake.next().unwrap();
    has(&entry, "PRIORITY=5");
    has(&entry, "MESSAGE=verdict changed service=default/web");
    has(&entry, "MESSAGE_ID=9d13d2898fe1915ece3b90f9eca89ee4");
}

#[test]
fn invisible_characters_are_escaped_for_people_and_kept_for_programs() {
    let fake = Fake::new();
    fake.log(|| {
        tracing::warn!(file = "token\u{202e}gpj", name = "a\u{1b}[2J", plain = r#"C:"x"é"#, "cannot be read");
    });
    let entry = fake.next().unwrap();
    let told = r#"file="token\u{202e}gpj" name="a\u{1b}[2J" plain=C:"x"é"#;
    has(&entry, &format!("MESSAGE=cannot be read {told}"));
    has(&entry, "HOLDFAST_FILE=token\u{202e}gpj");
}

#[test]
fn foreign_texts_cannot_add_or_reverse_a_log_line() {
    let told =
        || tracing::warn!(service = HOSTILE, reason = %HOSTILE, why = ?HOSTILE, "{HOSTILE} cannot be read");
    let file = Arc::new(tempfile::tempfile().unwrap());
    for in_colours in [false, true] {
        let subscriber = tracing_subscriber::registry().with(text_layer(Arc::clone(&file), in_colours));
        tracing::subscriber::with_default(subscriber, told);
    }
    let mut written = String::new();
    (&*file).rewind().unwrap();
    (&*file).read_to_string(&mut written).unwrap();
    let (plain, _coloured) = written.split_once('\n').unwrap();
    check_lines("the log", plain, is_unprintable);
    assert_eq!(written.lines().count(), 2, "{written}");
    let fake = Fake::new();
    fake.log(told);
    let entry = fake.next().unwrap();
    check_lines("the journal", entry.split("\nPRIORITY=").next().unwrap(), is_unprintable);
}

#[test]
fn a_field_cannot_pose_as_the_journals_own() {
    let fake = Fake::new();
    fake.log(|| tracing::warn!(PRIORITY = 0, _pid = 1, "odd.name" = "x\nMESSAGE=forged", "oddities"));
    let entry = fake.next().unwrap();
    has(&entry, "PRIORITY=4");
    has(&entry, "HOLDFAST_PRIORITY=0");
    has(&entry, "HOLDFAST__PID=1");
    // Its length precedes it, so the second line is part of the value.
    let told = b"HOLDFAST_ODD_NAME\n\x10\0\0\0\0\0\0\0x\nMESSAGE=forged\n";
    assert!(entry.as_bytes().windows(told.len()).any(|bytes| bytes == told), "{entry:?}");
}

#[test]
fn lines_that_the_journal_refuses_are_counted_without_a_wait() {
    let fake = Fake::new();
    let began = Instant::now();
    let journal = fake.log(|| (0..2_000).for_each(|round| tracing::info!(round, "into the void")));
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    let taken = std::iter::from_fn(|| fake.next()).count();
    assert!((1..2_000).contains(&taken), "{taken}");
    journal.report_lost();
    let entry = fake.next().unwrap();
    has(&entry, &format!("HOLDFAST_COUNT={}", 2_000 - taken));
    has(&entry, &format!("MESSAGE_ID={}", messages::LOST.id));
    journal.report_lost();
    assert_eq!(fake.next(), None, "the count is logged once");
}

#[test]
fn a_restarted_journal_gets_the_count_of_lost_lines() {
    let Fake { socket, path, _folder } = Fake::new();
    drop(socket);
    std::fs::remove_file(&path).unwrap();
    let journal = Arc::new(Journal::open_at(&path).unwrap());
    let layer = JournalLayer(Arc::clone(&journal));
    let registry = tracing_subscriber::registry().with(layer);
    tracing::subscriber::with_default(registry, || {
        tracing::info!("no reader");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_nonblocking(true).unwrap();
        let back = Fake { socket, path, _folder };
        tracing::info!("a reader");
        has(&back.next().unwrap(), "HOLDFAST_COUNT=1");
        has(&back.next().unwrap(), "MESSAGE=a reader");
    });
}

#[test]
fn a_line_of_any_size_arrives() {
    let fake = Fake::new();
    let large = "x".repeat(1 << 20);
    let journal = fake.log(|| tracing::info!(large, "large"));
    let mut space = nix::cmsg_space!(std::os::fd::RawFd);
    let mut bytes = [0; 16];
    let mut room = [IoSliceMut::new(&mut bytes)];
    let fd = fake.socket.as_raw_fd();
    let message = recvmsg::<()>(fd, &mut room, Some(&mut space), MsgFlags::empty()).unwrap();
    let Some(ControlMessageOwned::ScmRights(files)) = message.cmsgs().unwrap().next() else {
        panic!("no file came: {journal:?}");
    };
    let mut file = owned(files[0]);
    file.rewind().unwrap();
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    assert!(text.contains(&format!("HOLDFAST_LARGE={large}\n")) && text.starts_with("MESSAGE=large "));
}

/// Through `/proc`, because adopting a number is unsafe.
fn owned(fd: std::os::fd::RawFd) -> std::fs::File {
    std::fs::File::open(format!("/proc/self/fd/{fd}")).unwrap()
}

#[test]
fn a_flood_is_limited_and_counted_by_kind_apart_from_warnings() {
    let now = Instant::now();
    let mut flood = RateWindow::new(now);
    let admitted = (0..LINES_MAX + 100).filter(|_| flood.admits(now, false, "frontend added", "")).count();
    assert_eq!(admitted, LINES_MAX as usize);
    assert!(!flood.admits(now, false, "backends changed", ""));
    let admitted = (0..WARNINGS_MAX + 5).filter(|_| flood.admits(now, true, "trouble", "")).count();
    assert_eq!(admitted, WARNINGS_MAX as usize);
    let left_out = flood.take_suppressed().unwrap();
    assert_eq!(
        (left_out.count, &*left_out.kinds),
        (106, "backends changed: 1, frontend added: 100, trouble: 5")
    );
    assert_eq!(flood.take_suppressed(), None);
    assert!(flood.admits(now + WINDOW, false, "frontend added", ""));
}

/// Many tenants together stay below the limit, and each still logs.
#[test]
fn a_namespace_has_a_quota_and_its_first_warnings_are_always_written() {
    let now = Instant::now();
    let mut flood = RateWindow::new(now);
    let mut written = 0;
    for tenant in 0..8 {
        let of = format!("tenant-{tenant}");
        let admitted = (0..10_000).filter(|_| flood.admits(now, true, "held", &of)).count();
        assert!((10..=100).contains(&admitted), "{of}: {admitted}");
        written += admitted;
    }
    assert_eq!((0..5).filter(|_| flood.admits(now, true, "held", "prod")).count(), 5);
    assert_eq!(flood.take_suppressed().unwrap().count, 80_000 - written as u64);
    let all = (0..1_000).flat_map(|tenant| std::iter::repeat_n(tenant, 20));
    let all =
        all.filter(|tenant| flood.admits(now, true, "held", &format!("x-{tenant}"))).count() + written + 5;
    assert!(all <= 2 * WARNINGS_MAX as usize, "{all}");
}

/// Each namespace has its own lines, and the report names the namespace whose lines are suppressed.
#[test]
fn a_namespaces_noise_silences_no_others_warnings() {
    let fake = Fake::new();
    let mut told = Vec::new();
    fake.log(|| {
        let mut warn = |service: String| {
            say!(warn, messages::LIST_HELD, service);
            told.extend(fake.next());
        };
        (0..20_000).for_each(|number| warn(format!("noisy/n-{number}")));
        (0..5).for_each(|number| warn(format!("prod/web-{number}")));
    });
    let of = |namespace: &str| told.iter().filter(|it| it.contains(&format!("SERVICE={namespace}/"))).count();
    assert_eq!(of("prod"), 5);
    assert!((50..=500).contains(&of("noisy")), "{}", of("noisy"));
}

#[test]
fn kinds_beyond_the_bound_are_counted_together() {
    let now = Instant::now();
    let mut flood = RateWindow::new(now);
    (0..LINES_MAX).for_each(|_| assert!(flood.admits(now, false, "", "")));
    (0..1_000).for_each(|kind| assert!(!flood.admits(now, false, &kind.to_string(), "")));
    let left_out = flood.take_suppressed().unwrap();
    assert_eq!(left_out.count, 1_000);
    assert!(left_out.kinds.ends_with("others: 936"), "{left_out:?}");
}

fn catalog() -> String {
    let catalog = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib/systemd/holdfast.catalog");
    std::fs::read_to_string(catalog).unwrap()
}

#[test]
fn the_catalog_explains_every_message_and_no_other() {
    let catalog = catalog();
    let explained: Vec<&str> = catalog.lines().filter_map(|line| line.strip_prefix("-- ")).collect();
    let known: BTreeSet<&str> = MESSAGES.iter().map(|message| message.id).collect();
    assert_eq!((known.len(), explained.len()), (MESSAGES.len(), MESSAGES.len()), "each number once");
    assert_eq!(explained.into_iter().collect::<BTreeSet<_>>(), known);
    assert!(known.iter().all(|id| id.len() == 32 && id.bytes().all(|b| b.is_ascii_hexdigit())));
    let texts: BTreeSet<&str> = MESSAGES.iter().map(|message| message.text).collect();
    assert_eq!(texts.len(), MESSAGES.len(), "each text once");
}

/// The text after each use of a message, up to the end of its statement or arm.
fn places<'a>(sources: &'a str, name: &str) -> Vec<&'a str> {
    let named = format!("messages::{name}");
    let behind = sources.match_indices(&named).map(|(at, _)| &sources[at + named.len()..]);
    let said = behind.filter(|it| it.starts_with([',', ')']));
    said.map(|it| it.split([';', '}']).next().unwrap_or_default()).collect()
}

#[test]
fn every_message_is_logged_with_the_fields_of_its_explanation() {
    let mut sources = String::new();
    read_all(&Path::new(env!("CARGO_MANIFEST_DIR")).join(".."), &mut sources);
    let catalog = catalog();
    for (name, message) in messages::NAMES.iter().zip(MESSAGES) {
        let places = places(&sources, name);
        assert!(!places.is_empty(), "no code logs {name}");
        let (_, entry) = catalog.split_once(message.id).unwrap();
        let entry = entry.split("\n-- ").next().unwrap();
        let shown = entry.split('@').filter_map(|word| word.strip_prefix("HOLDFAST_"));
        for field in shown.map(str::to_lowercase) {
            let without = places.iter().find(|place| !place.contains(&field));
            assert!(without.is_none(), "{name} is said without {field}: {without:?}");
        }
    }
}

fn read_all(folder: &Path, into: &mut String) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            read_all(&path, into);
        } else if path.extension().is_some_and(|it| it == "rs") && !path.ends_with("logging/tests.rs") {
            into.push_str(&std::fs::read_to_string(&path).unwrap());
        }
    }
}

#[test]
fn the_stream_is_the_journals_if_both_numbers_are() {
    assert!(stream_matches("9:1234", 9, 1234));
    assert!(
        !stream_matches("9:1234", 9, 1235) && !stream_matches("8:1234", 9, 1234) && !stream_matches("", 0, 0)
    );
}

#[test]
fn a_fatal_error_is_written_as_whole_lines() {
    let mut said = Vec::new();
    write_fatal_error("one\ntwo", &mut said);
    assert_eq!(String::from_utf8(said).unwrap(), "holdfast: one\nholdfast: two\n");
}
