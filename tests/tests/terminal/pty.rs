//! A program at a terminal of a given size, and what it shows there.

use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Nothing here takes long, but a busy machine may.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long a shell may compute before it shows something.
const QUIET: Duration = Duration::from_millis(1500);

/// The built program, which cargo puts next to this one.
pub(super) fn program() -> PathBuf {
    let near = std::env::current_exe().unwrap();
    let found =
        near.ancestors().skip(1).take(2).map(|folder| folder.join("holdfast")).find(|path| path.is_file());
    found.expect("the daemon's program: `cargo build -p holdfast` makes it")
}

/// A shell at a terminal; it ends with the test.
pub(super) struct Pty {
    script: Child,
    keys: ChildStdin,
    shown: Arc<Mutex<Vec<u8>>>,
}

impl Pty {
    /// Runs a shell command at a terminal of this size, without colours.
    pub(super) fn run(command: &str, (columns, rows): (u16, u16)) -> Self {
        let command = format!("stty rows {rows} cols {columns}; {command}");
        let mut script = Command::new("script")
            .args(["--quiet", "--flush", "--return", "--command", &command, "/dev/null"])
            .env("NO_COLOR", "1")
            .env("SHELL", "/bin/sh")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("`script` of util-linux");
        let (keys, mut out) = (script.stdin.take().unwrap(), script.stdout.take().unwrap());
        let shown = Arc::<Mutex<Vec<u8>>>::default();
        let reader = Arc::clone(&shown);
        std::thread::spawn(move || {
            let mut bytes = [0; 65536];
            while let Ok(count @ 1..) = out.read(&mut bytes) {
                reader.lock().unwrap().extend_from_slice(&bytes[..count]);
            }
        });
        Self { script, keys, shown }
    }

    pub(super) fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
        self.keys.flush().unwrap();
    }

    /// Everything that the terminal got.
    pub(super) fn shown(&self) -> String {
        String::from_utf8_lossy(&self.shown.lock().unwrap()).into_owned()
    }

    /// The lines of the last whole screen.
    pub(super) fn screen(&self) -> Vec<String> {
        let shown = self.shown();
        let whole = shown.rsplit("\x1b[H").find(|screen| screen.contains("\x1b[J"));
        let whole = whole.unwrap_or_default().split("\x1b[J").next().unwrap_or_default();
        whole.split("\r\n").map(|line| line.trim_end_matches("\x1b[K").to_owned()).collect()
    }

    /// Waits until the screen is as it should be.
    #[track_caller]
    pub(super) fn wait_for(&self, what: &str, is_there: impl Fn(&[String]) -> bool) -> Vec<String> {
        let begun = Instant::now();
        loop {
            let screen = self.screen();
            if is_there(&screen) {
                return screen;
            }
            assert!(begun.elapsed() < PATIENCE, "no {what} on the screen:\n{}", screen.join("\n"));
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until nothing has been shown for a while.
    pub(super) fn wait_until_quiet(&self) {
        let mut known = (0, Instant::now());
        while known.1.elapsed() < QUIET {
            std::thread::sleep(Duration::from_millis(50));
            let length = self.shown.lock().unwrap().len();
            if length != known.0 {
                known = (length, Instant::now());
            }
        }
    }

    /// Waits until the shell has ended, and returns everything that it showed.
    #[track_caller]
    pub(super) fn wait_for_end(mut self) -> String {
        let begun = Instant::now();
        while self.script.try_wait().unwrap().is_none() {
            assert!(begun.elapsed() < PATIENCE, "it goes on:\n{}", self.shown());
            std::thread::sleep(Duration::from_millis(20));
        }
        // The reader sees the end of the pipe after the last byte.
        std::thread::sleep(Duration::from_millis(100));
        self.shown()
    }
}

impl Drop for Pty {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.script.kill();
        let _ = self.script.wait();
    }
}
