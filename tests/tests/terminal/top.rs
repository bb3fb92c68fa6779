//! `holdfast top` at a real terminal.

use std::io::{Read, Write};
use std::net::Ipv4Addr;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;

use holdfast_agent::readings::About;
use holdfast_api::{AdminServer, Settings, start};
use holdfast_core::facts::Timestamp;
use holdfast_core::snapshot::Snapshot;
use holdfast_evidence::event_watcher::EventStatus;
use holdfast_fixtures::{everything, many};
use holdfast_tests::readings;
use tempfile::TempDir;
use tokio::sync::watch;

use super::pty::{Pty, program};

const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l";
const LEAVE: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";

/// The real admin API over a table.
struct Served {
    folder: TempDir,
    _admin: AdminServer,
    _snapshots: watch::Sender<Arc<Snapshot>>,
}

fn serve(snapshot: Snapshot) -> Served {
    let folder = tempfile::tempdir().unwrap();
    let (snapshots, now) = watch::channel(Arc::new(snapshot));
    let readings = readings::from_snapshots(now, About { version: "1.0.0", started: Timestamp(0) });
    let settings =
        Settings { listen: (Ipv4Addr::LOCALHOST, 0).into(), socket: folder.path().join("admin.sock") };
    let problems = watch::channel(Vec::new()).0;
    let admin = start(&settings, (readings, EventStatus::default(), readings::acts()), problems).unwrap();
    Served { folder, _admin: admin, _snapshots: snapshots }
}

/// `top` at a terminal; the shell says how the terminal was before and after it.
fn top(folder: &Path, size: (u16, u16)) -> Pty {
    let (program, socket) =
        (program().display().to_string(), folder.join("admin.sock").display().to_string());
    Pty::run(
        &format!("stty -g; sh -c 'echo pid=$$; exec {program} --socket {socket} top'; echo end=$?; stty -g"),
        size,
    )
}

/// The modes that `stty -g` wrote, the exit code, and whether the screens were entered and left once.
#[track_caller]
fn check_restored(shown: &str, exit: &str) {
    let modes: Vec<&str> = shown
        .lines()
        .map(str::trim)
        .filter(|line| {
            line.matches(':').count() > 20 && line.chars().all(|it| it == ':' || it.is_ascii_hexdigit())
        })
        .collect();
    assert!(modes.len() == 2 && modes[0] == modes[1], "the mode before and after: {modes:?}\n{shown:?}");
    assert!(shown.contains(&format!("end={exit}")), "{shown:?}");
    assert_eq!((shown.matches(ENTER).count(), shown.matches(LEAVE).count()), (1, 1), "{shown:?}");
    assert!(shown.find(ENTER) < shown.find(LEAVE), "{shown:?}");
}

fn has(text: &'static str) -> impl Fn(&[String]) -> bool {
    move |screen| screen.iter().any(|line| line.contains(text))
}

#[test]
fn keys_filter_sort_select_and_quit() {
    let served = serve(everything());
    let mut pty = top(served.folder.path(), (120, 40));
    pty.wait_for("services", has("14 services by VERDICT"));
    pty.press("thief");
    let screen = pty.wait_for("filter", has("| 1 of 14 services"));
    assert!(has("> default/thief")(&screen) && has("default/web has its address")(&screen), "{screen:#?}");
    pty.press("\x1b");
    pty.wait_for("all services", has("14 services by VERDICT"));
    pty.press("\x1b[D");
    pty.wait_for("another column", has("14 services by SERVICE"));
    pty.press("\x1b[B\x1b[B\t");
    let screen = pty.wait_for("the other order", has("by SERVICE, reversed"));
    assert!(screen.iter().any(|line| line.starts_with("> ")), "{screen:#?}");
    pty.press("q");
    check_restored(&pty.wait_for_end(), "0");
}

#[test]
fn a_screen_fits_terminals_of_every_size_and_ten_thousand_services() {
    let served = serve(many(10_000, 1));
    for (columns, rows) in [(200, 60), (80, 24), (40, 12), (20, 4)] {
        let mut pty = top(served.folder.path(), (columns, rows));
        // The last line has room for all of it on two of them.
        let is_there = if columns < 80 { has("holdfast 1.0.0 ") } else { has("10000 services") };
        let screen = pty.wait_for("an answer", is_there);
        assert!(screen.len() <= usize::from(rows), "{columns} by {rows}: {} lines", screen.len());
        for line in &screen {
            assert!(line.chars().count() <= usize::from(columns), "{columns} by {rows}: {line:?}");
        }
        pty.press("\x03");
        check_restored(&pty.wait_for_end(), "0");
    }
}

#[test]
fn signals_restore_the_terminal() {
    let served = serve(everything());
    for signal in ["INT", "TERM", "HUP"] {
        let pty = top(served.folder.path(), (80, 24));
        pty.wait_for("services", has("14 services"));
        let shown = pty.shown();
        let pid = shown.split_once("pid=").unwrap().1.split(['\r', '\n']).next().unwrap();
        let sent = std::process::Command::new("kill").args(["-s", signal, pid]).status().unwrap();
        assert!(sent.success());
        check_restored(&pty.wait_for_end(), "0");
    }
}

#[test]
fn a_dead_daemon_is_said_above_the_last_known_state() {
    let folder = tempfile::tempdir().unwrap();
    let mut pty = top(folder.path(), (80, 24));
    let screen = pty.wait_for("error", has("error: cannot reach the daemon"));
    assert!(has("systemctl status holdfast")(&screen), "{screen:#?}");
    pty.press("q");
    check_restored(&pty.wait_for_end(), "0");

    let served = serve(everything());
    let pty = top(served.folder.path(), (80, 24));
    pty.wait_for("services", has("14 services"));
    let beside = tempfile::tempdir().unwrap();
    std::fs::rename(served.folder.path(), beside.path().join("away")).unwrap();
    let screen = pty.wait_for("error", has("error: cannot reach the daemon"));
    assert!(has("14 services")(&screen) && screen.concat().contains("s old"), "{screen:#?}");
}

/// Another process answers in the daemon's place, and says what a terminal would obey.
#[test]
fn a_hostile_answer_moves_no_cursor() {
    let folder = tempfile::tempdir().unwrap();
    let listener = UnixListener::bind(folder.path().join("admin.sock")).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut asked = [0; 4096];
            let count = stream.read(&mut asked).unwrap();
            let body = hostile_answer(&String::from_utf8_lossy(&asked[..count]));
            let head = "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length:";
            // A client that ends closes its connection.
            let _ = write!(stream, "{head} {}\r\n\r\n{body}", body.len());
        }
    });
    let mut pty = top(folder.path(), (100, 30));
    pty.wait_for("services", has("2 services"));
    pty.press("\x1b[B");
    pty.wait_for("the second one", |screen| {
        screen.iter().any(|line| line.starts_with("> ") && line.contains("zz"))
    });
    pty.press("q");
    let shown = pty.wait_for_end();
    check_restored(&shown, "0");
    let known = ["[H", "[K", "[J", "[?1049h", "[?25l", "[?7l", "[?7h", "[?25h", "[?1049l"];
    for sequence in shown.split('\x1b').skip(1) {
        assert!(known.iter().any(|known| sequence.starts_with(known)), "{sequence:?}");
    }
    assert!(!shown.contains(['\u{9b}', '\u{202e}', '\u{7}']), "{shown:?}");
}

/// Every text of every answer has sequences that clear the screen, set the title, or turn the direction of text.
fn hostile_answer(request: &str) -> String {
    let evil = r"x\u001b[2J\u001b]0;owned\u0007\u009b2J\u202e";
    let service = |name: &str| {
        format!(
            r#"{{"service":"{name}{evil}","source":"{evil}","type":"{evil}","state":"{evil}","verdict":"{evil}","reason":"{evil}",
            "since":"{evil}","owner":"{evil}","error":"{evil}","status":"error","backends":1,"clients":null}}"#
        )
    };
    let path = request.split(' ').nth(1).unwrap_or_default().split('?').next().unwrap_or_default();
    match path {
        "/version" => format!(
            r#"{{"version":"{evil}","node":"{evil}","datapath":"kernel","started":"2026-01-08T11:11:55Z"}}"#
        ),
        "/readyz" => format!(
            r#"{{"healthy":false,"reason":"{evil}","sources":[{{"source":"{evil}","synced":false}}],"stale_since":"{evil}",
            "snapshot":{{"written":"{evil}","bytes":1,"error":"{evil}"}},
            "history":{{"seq":1,"gaps":0,"bytes":1,"unwritten":0,"error":"{evil}"}},"refused_reload":"{evil}"}}"#
        ),
        "/datapath" => r#"{"other_proxies":[],"kernel":null}"#.to_owned(),
        "/apiserver" => r#"{"enabled":false,"watches":[]}"#.to_owned(),
        "/config" => r#"{"services":{}}"#.to_owned(),
        "/history" => "\x1b[2Jold\r\n".to_owned(),
        _ => format!(
            r#"{{"services":[{},{}],"totals":{{"services":2,"frontends":0,"backends":0,"drained":0,"held":0,
            "states":{{"{evil}":1}},"verdicts":{{"{evil}":1}}}},"rejected":[],"rejected_dropped":0}}"#,
            service("aa"),
            service("zz")
        ),
    }
}
