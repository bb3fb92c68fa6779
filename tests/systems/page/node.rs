//! A real daemon with memory maps, and its objects.
//!
//! Invariant: it listens on a port of its own, and all of its files are in one folder, which is removed with it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use holdfast_fixtures::clock::wait_until;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;
use tokio::net::TcpSocket;

pub(crate) struct Node {
    program: PathBuf,
    more: String,
    /// The path that answers once a start is over.
    begun: &'static str,
    folder: TempDir,
    /// Bound and not listening, so that no other program gets the port while the daemon is stopped. The daemon, which
    /// reuses addresses, can listen on it.
    place: TcpSocket,
    process: Option<Child>,
}

impl Node {
    /// A node with these manifests.
    pub(crate) fn start(manifests: &[(&str, &str)]) -> Self {
        Self::start_program(program(), manifests)
    }

    /// A node with further tables in its configuration; `more` gets its folder.
    pub(crate) fn with(more: impl FnOnce(&Path) -> String) -> Self {
        let mut node = Self::prepare(program());
        node.more = more(node.folder.path());
        node.run();
        node
    }

    /// The same, but it need not be ready: a source may not answer.
    pub(crate) fn loading(more: impl FnOnce(&Path) -> String) -> Self {
        let mut node = Self::prepare(program());
        node.begun = "healthz";
        node.more = more(node.folder.path());
        node.run();
        node
    }

    /// The same with a program that has the daemon's CLI.
    pub(crate) fn start_program(program: PathBuf, manifests: &[(&str, &str)]) -> Self {
        let mut node = Self::prepare(program);
        manifests.iter().for_each(|(file, text)| node.write(file, text));
        node.run();
        node
    }

    fn prepare(program: PathBuf) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("manifests")).unwrap();
        let place = TcpSocket::new_v4().unwrap();
        place.set_reuseaddr(true).unwrap();
        place.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        Self { program, more: String::new(), begun: "readyz", folder, place, process: None }
    }

    /// The demo of `make run`.
    pub(crate) fn demo() -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/demo/manifests");
        let files: Vec<(String, String)> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap())
            .map(|entry| {
                (entry.file_name().into_string().unwrap(), fs::read_to_string(entry.path()).unwrap())
            })
            .collect();
        let files: Vec<(&str, &str)> =
            files.iter().map(|(name, text)| (name.as_str(), text.as_str())).collect();
        Self::start(&files)
    }

    pub(crate) fn port(&self) -> u16 {
        self.place.local_addr().unwrap().port()
    }

    #[allow(dead_code, reason = "the benchmark of the page needs it")]
    pub(crate) fn pid(&self) -> u32 {
        self.process.as_ref().map_or(0, Child::id)
    }

    /// A node with services `load/shop-0` and so on, without endpoints.
    pub(crate) fn with_services(number: usize) -> Self {
        let service = |number: usize| {
            format!(
                "apiVersion: v1\nkind: Service\nmetadata: {{name: shop-{number}, namespace: load}}\n\
                 spec: {{type: ClusterIP, clusterIP: 10.100.{}.{}, ports: [{{port: 80}}]}}\n---\n\
                 apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\naddressType: IPv4\nendpoints: []\n\
                 metadata: {{name: shop-{number}, namespace: load, labels: {{kubernetes.io/service-name: \
                 shop-{number}}}}}\n",
                number / 250,
                number % 250 + 1
            )
        };
        Self::start(&[("all.yaml", &(0..number).map(service).collect::<Vec<_>>().join("---\n"))])
    }

    pub(crate) fn url(&self, view: &str) -> String {
        format!("http://localhost:{}/#/{view}", self.port())
    }

    /// Replaces a manifest atomically.
    pub(crate) fn write(&self, file: &str, text: &str) {
        let new = self.folder.path().join(format!("{file}.new"));
        fs::write(&new, text).unwrap();
        fs::rename(new, self.folder.path().join("manifests").join(file)).unwrap();
    }

    pub(crate) fn run(&mut self) {
        let (folder, more) = (self.folder.path().display(), &self.more);
        let config = format!(
            "[node]\nname = \"node-1\"\nzone = \"zone-a\"\n[datapath]\nkind = \"memory\"\n[packets]\nenabled = false\n\
             [manifests]\npath = \"{folder}/manifests\"\n[state]\npath = \"{folder}/state\"\n\
             [admin]\nlisten = \"127.0.0.1:{}\"\nsocket = \"{folder}/admin.sock\"\n{more}",
            self.port()
        );
        let path = self.folder.path().join("holdfast.toml");
        fs::write(&path, config).unwrap();
        let log = File::create(self.folder.path().join("log")).unwrap();
        let mut command = Command::new(&self.program);
        command.args(["run", "--config"]).arg(path).stdout(Stdio::null()).stderr(log);
        self.process = Some(command.spawn().unwrap());
        let url = format!("http://localhost:{}/{}", self.port(), self.begun);
        wait_until(std::fmt::from_fn(|f| f.write_str(&self.log())), || ureq::get(&url).call().is_ok());
    }

    pub(crate) fn stop(&mut self) {
        let Some(mut process) = self.process.take() else { return };
        let pid = Pid::from_raw(i32::try_from(process.id()).unwrap());
        kill(pid, Signal::SIGTERM).unwrap();
        kill(pid, Signal::SIGCONT).unwrap();
        process.wait().unwrap();
    }

    /// Lets it answer nothing, as a node does that hangs, or that no packet reaches; or lets it go on.
    #[allow(dead_code, reason = "the benchmark of the page needs no silence")]
    pub(crate) fn freeze(&self, is_frozen: bool) {
        let pid = Pid::from_raw(i32::try_from(self.pid()).unwrap());
        kill(pid, if is_frozen { Signal::SIGSTOP } else { Signal::SIGCONT }).unwrap();
    }

    /// Waits until it has this many frontends.
    #[allow(dead_code, reason = "the benchmark of the page waits for the page")]
    pub(crate) fn until_rows(&self, number: usize) {
        let rows = || {
            let url = format!("http://localhost:{}/frontends?format=json", self.port());
            let mut answer = ureq::get(&url).call().unwrap();
            answer.body_mut().read_to_string().unwrap().matches("\"verdict\"").count()
        };
        wait_until(format_args!("{number} frontends"), || rows() == number);
    }

    /// Whether `holdfast status` ends with 0: all is well.
    #[allow(dead_code, reason = "the benchmark of the page asks the page alone")]
    pub(crate) fn is_well(&self) -> bool {
        let mut command = Command::new(&self.program);
        command.args(["status", "--socket"]).arg(self.socket()).stdout(Stdio::null());
        match command.status().unwrap().code() {
            Some(0) => true,
            Some(1) => false,
            other => panic!("holdfast status ended with {other:?}"),
        }
    }

    /// Deletes its saved table and history.
    pub(crate) fn forget(&self) {
        fs::remove_dir_all(self.folder.path().join("state")).unwrap();
    }

    /// The daemon's unix socket.
    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("admin.sock")
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The daemon's program, which is built next to this one.
fn program() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    own.parent().and_then(Path::parent).unwrap().join("holdfast")
}
