//! A program at a terminal of a given size, and what it shows there.

use std::fmt;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use holdfast_fixtures::clock;

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
        let message = fmt::from_fn(|f| write!(f, "{what} on the screen:\n{}", self.screen().join("\n")));
        clock::wait_for(message, || Some(self.screen()).filter(|screen| is_there(screen)))
    }

    /// Waits until nothing has been shown for a while.
    pub(super) fn wait_until_quiet(&self) {
        let mut shown_bytes = 0;
        clock::wait_until("quiet", || {
            clock::pause(QUIET);
            let before = std::mem::replace(&mut shown_bytes, self.shown.lock().unwrap().len());
            before == shown_bytes
        });
    }

    /// Waits until the shell has ended, and returns everything that it showed.
    #[track_caller]
    pub(super) fn wait_for_end(mut self) -> String {
        let (script, shown) = (&mut self.script, &self.shown);
        clock::wait_until("the shell's end", || script.try_wait().unwrap().is_some());
        // The reader sees the end of the pipe after the last byte, and then drops its part.
        clock::wait_until("the reader's end", || Arc::strong_count(shown) == 1);
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
