//! The whole daemon with the kernel's datapath: what an operator sees of a client that was turned away.

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

use holdfast::cli::{self, Command, Exit};
use holdfast_tests::bed::{Bed, Place};

/// For a start that takes milliseconds; in an emulated kernel seconds.
const PATIENCE: Duration = Duration::from_secs(60);

/// Where the daemon that a test starts finds its configuration.
const CONFIG: &str = "HOLDFAST_TEST_CONFIG";

/// The daemon of a bed, in a cgroup beside the one it serves.
struct Daemon {
    process: Child,
    socket: OsString,
    log: PathBuf,
}

impl Daemon {
    fn start(bed: &Bed, test: &str, folder: &Path, services: &str) -> Self {
        let [config, socket, log] = ["config.toml", "admin.sock", "log"].map(|name| folder.join(name));
        let text = format!(
            "{services}\n[datapath]\ncgroup = \"{}\"\n[admin]\nlisten = \"127.0.0.1:0\"\nsocket = \"{}\"\n",
            bed.cgroup().display(),
            socket.display()
        );
        fs::write(&config, text).unwrap();
        let mut command = bed.again(Place::OUTSIDE, test).unwrap();
        let out = File::create(&log).unwrap();
        command.env(CONFIG, &config).stdout(out.try_clone().unwrap()).stderr(out);
        let daemon = Self { process: command.spawn().unwrap(), socket: socket.into(), log };
        daemon.wait(&["status"], |exit, _| exit == Exit::Good);
        daemon
    }

    /// What the command line answers.
    fn ask(&self, words: &[&str]) -> (Exit, String) {
        let words = words.iter().map(OsString::from);
        let words = ["holdfast".into(), "--socket".into(), self.socket.clone()].into_iter().chain(words);
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let cli = cli::parse(words, &mut out, &mut err).unwrap();
        let Command::Question(question) = &cli.command else { panic!("a question") };
        let exit = cli.answer(question, &mut out, &mut err);
        (exit, String::from_utf8([out, err].concat()).unwrap())
    }

    /// Asks until the answer is the one that is waited for.
    fn wait(&self, words: &[&str], until: impl Fn(Exit, &str) -> bool) -> String {
        let begun = Instant::now();
        loop {
            let (exit, text) = self.ask(words);
            if until(exit, &text) {
                return text;
            }
            let log = || fs::read_to_string(&self.log).unwrap();
            assert!(begun.elapsed() < PATIENCE, "{words:?} still says {exit:?}: {text}{}", log());
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// This process becomes the daemon.
fn run_daemon() {
    let config = std::env::var_os(CONFIG).unwrap();
    let _ = cli::run(&cli::Run { config: config.into() }, &mut std::io::stderr());
}

#[test]
fn kernel_holdfast_refusals_names_curl() {
    if Bed::is_inside() {
        return run_daemon();
    }
    let (bed, folder) = (Bed::new().unwrap(), tempfile::tempdir().unwrap());
    let services = "[[service]]\nname = \"web\"\nfrontends = [\"10.96.0.20:80\"]\nbackends = []\non_empty = \"refuse\"\n";
    let test = "daemon::kernel_holdfast_refusals_names_curl";
    let daemon = Daemon::start(&bed, test, folder.path(), services);
    let mut curl = bed.command(Place::NODE, "curl").unwrap();
    let mut curl = curl.args(["-s", "--max-time", "10", "http://10.96.0.20/"]).spawn().unwrap();
    assert_eq!(curl.wait().unwrap().code(), Some(7), "curl could not connect");
    let named = format!("{}", curl.id());
    let text = daemon.wait(&["refusals"], |_, text| text.contains("curl"));
    let row = text.lines().find(|line| line.contains("curl")).unwrap();
    for part in [named.as_str(), "10.96.0.20:80/TCP", "static/web", "refused"] {
        assert!(row.contains(part), "no {part} in {text}");
    }
}
