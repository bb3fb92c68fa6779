//! The real program with maps in memory, in a folder of its own: it needs neither root nor a network.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use holdfast_fixtures::clock::wait_until;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

/// The manifests of a daemon whose formats are written down.
const MANIFESTS: &str = include_str!("../../../../daemon/agent/src/state/tests/everything.yaml");

pub(super) struct Program {
    folder: PathBuf,
    child: Option<Child>,
}

impl Program {
    /// A program that is not started, with its configuration in this folder and no source but that.
    pub(super) fn new(folder: &Path) -> Self {
        let program = Self { folder: folder.to_owned(), child: None };
        program.configure("");
        program
    }

    /// Writes its configuration; `more` follows what it needs.
    pub(super) fn configure(&self, more: &str) {
        let path = |name| self.path(name).display().to_string();
        let text = format!(
            "[node]\nname = \"node-a\"\n[kubernetes]\nenabled = false\n[manifests]\npath = {:?}\n[datapath]\nkind = \
             \"memory\"\n[state]\npath = {:?}\n[admin]\nlisten = \"127.0.0.1:0\"\nsocket = {:?}\n[[service]]\nname = \
             \"static\"\nfrontends = [\"10.96.7.1:80\"]\nbackends = [\"192.0.2.71:8080\", \"192.0.2.72:8080\"]\n{more}",
            path("manifests"),
            path("state"),
            path("admin.sock"),
        );
        fs::write(self.config(), text).unwrap();
    }

    /// Writes all manifests.
    pub(super) fn write_manifests(&self) {
        fs::create_dir_all(self.path("manifests")).unwrap();
        fs::write(self.path("manifests/everything.yaml"), MANIFESTS).unwrap();
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    pub(super) fn config(&self) -> PathBuf {
        self.path("holdfast.toml")
    }

    pub(super) fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// Runs a command of the program to its end.
    pub(super) fn run(&self, words: &[&str]) -> Output {
        Command::new(binary()).args(words).stdin(Stdio::null()).output().unwrap()
    }

    /// Runs a command that asks the daemon.
    pub(super) fn ask(&self, words: &[&str]) -> Output {
        let socket = self.path("admin.sock").display().to_string();
        self.run(&[&["--socket", &socket], words].concat())
    }

    /// Starts it, and waits until an answer fulfils the condition.
    pub(super) fn start_until(&mut self, path: &str, holds: &dyn Fn(&Value) -> bool) {
        let log = File::create(self.path("log")).unwrap();
        let mut command = Command::new(binary());
        command.arg("run").arg("--config").arg(self.config()).stdin(Stdio::null());
        self.child = Some(command.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap());
        self.wait_until(path, holds);
    }

    pub(super) fn wait_until(&self, path: &str, holds: &dyn Fn(&Value) -> bool) {
        let message = std::fmt::from_fn(|f| write!(f, "{path}: {:?}\n{}", self.try_get(path), self.log()));
        wait_until(message, || self.try_get(path).is_some_and(|answer| holds(&answer)));
    }

    fn try_get(&self, path: &str) -> Option<Value> {
        parse(&self.text(path))
    }

    /// The answer of the API as it is written; empty if nobody answers.
    pub(super) fn text(&self, path: &str) -> String {
        let mut curl = Command::new("curl");
        curl.args(["-sS", "--max-time", "20", "-H", "accept: application/json", "--unix-socket"]);
        curl.arg(self.path("admin.sock")).arg(format!("http://localhost:9890{path}"));
        String::from_utf8(curl.output().unwrap().stdout).unwrap()
    }

    pub(super) fn get(&self, path: &str) -> Value {
        self.try_get(path).unwrap_or_else(|| panic!("{path}: {}\n{}", self.text(path), self.log()))
    }

    /// Stops it as systemd does.
    pub(super) fn stop(&mut self) {
        let mut child = self.child.take().expect("it runs");
        kill(Pid::from_raw(child.id().try_into().unwrap()), Signal::SIGTERM).unwrap();
        assert!(child.wait().unwrap().success(), "{}", self.log());
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// An answer as one value: the history is a line for each record, so it becomes a list.
pub(super) fn parse(text: &str) -> Option<Value> {
    let values = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    let mut values = values.collect::<Result<Vec<_>, _>>().ok()?;
    if values.len() > 1 { Some(values.into()) } else { values.pop() }
}

/// The program that is built beside the tests.
fn binary() -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    let found = tests.ancestors().map(|folder| folder.join("holdfast")).find(|path| path.is_file());
    found.expect("scripts/test-programs.sh builds the program")
}
