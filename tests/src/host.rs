//! A booted Linux for package tests: real systemd as PID 1, real journald and real dpkg, in namespaces of its own. In
//! a guest made for these tests (`vm run --disk`), it is the guest itself.
//!
//! Invariant: nothing outside changes, and all of it goes when the `Host` is dropped or its process ends in any
//! way. The first process dies with the thread that started it, and takes all others with it; a guest ends as a whole.
//! Memory and CPU are not limited inside, because the machine may use those controllers in another hierarchy.

mod say;

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use holdfast_fixtures::clock::{Deadline, pause, try_wait_for};

use crate::bed::{BedError, Dialer, Role, Server, at, companion, finish, mount_point, spawn};

pub use say::CommandOutput;

/// Booting takes a quarter of a second. An emulated machine with clients that dial in a loop has taken half a minute
/// to restart a daemon, and a busy machine takes longer.
const BOOT_LIMIT: Duration = Duration::from_secs(180);

/// The timeout of one command inside. The longest is an upgrade in an emulated machine under traffic.
const COMMAND_LIMIT: Duration = Duration::from_secs(180);

/// How often a condition is polled.
const POLL: Duration = Duration::from_millis(20);

/// The prefix of all host cgroups; the process id follows.
const PREFIX: &str = "holdfast-host-";

/// The kernel argument of a guest whose system tests may change.
const GUEST: &str = "holdfast.guest";

/// One booted Linux.
#[derive(Debug)]
pub struct Host {
    /// Its first process; `None` for a guest.
    first: Option<Child>,
    pid: u32,
    cgroup: PathBuf,
}

impl Host {
    /// Boots a copy of a root file system.
    pub fn boot(root: &Path) -> Result<Self, BedError> {
        let mount = mount_point()?;
        remove_left_over(&mount);
        let name = format!("{PREFIX}{}-{}", std::process::id(), nix::unistd::gettid());
        let cgroup = mount.join(name);
        fs::create_dir(&cgroup).map_err(at("create", &cgroup))?;
        let first = spawn(&mut boot(root, &cgroup))?;
        Self { first: Some(first), pid: 0, cgroup }.ready()
    }

    /// Whether this machine is a guest that tests may change.
    pub fn is_around() -> bool {
        let line = fs::read_to_string("/proc/cmdline").unwrap_or_default();
        line.split_whitespace().any(|word| word == GUEST)
    }

    /// The guest that this process runs in, whatever its own root is.
    pub fn around() -> Result<Self, BedError> {
        Self { first: None, pid: 0, cgroup: mount_point()? }.ready()
    }

    /// Waits until it has booted.
    fn ready(mut self) -> Result<Self, BedError> {
        self.wait_for("systemd as the first process", |host| {
            host.pid = host.first_process().unwrap_or_default();
            host.pid != 0
                && host.run(&["systemctl", "is-system-running", "--wait"]).is_ok_and(|said| !said.is_lost())
        })?;
        let clients = self.cgroup.join("clients");
        fs::create_dir(&clients).map_err(at("create", &clients))?;
        Ok(self)
    }

    fn first_process(&self) -> Option<u32> {
        let list = fs::read_to_string(self.cgroup.join("init.scope/cgroup.procs")).ok()?;
        list.lines().next()?.parse().ok()
    }

    /// Waits until a condition holds, while the host lives.
    pub fn wait_for(&mut self, what: &str, mut holds: impl FnMut(&mut Self) -> bool) -> Result<(), BedError> {
        let until = Deadline::after(BOOT_LIMIT);
        while !holds(self) {
            let ended = self.first.as_mut().and_then(|first| first.try_wait().ok().flatten());
            if until.is_over() || ended.is_some() {
                let said = format!("nothing; waited for {what}; its first process: {ended:?}");
                return Err(BedError::Unexpected { who: "the host".to_owned(), said });
            }
            pause(POLL);
        }
        Ok(())
    }

    /// The processes of one of its cgroups, by their ids on this machine.
    pub fn processes(&self, cgroup: &str) -> Vec<u32> {
        let list = fs::read_to_string(self.cgroup.join(cgroup).join("cgroup.procs")).unwrap_or_default();
        list.lines().filter_map(|line| line.parse().ok()).collect()
    }

    /// The path of a file of the host from this process.
    pub fn path(&self, path: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{path}", self.pid))
    }

    /// Writes a file of the host.
    pub fn write(&self, path: &str, text: &str) -> Result<(), BedError> {
        let path = self.path(path);
        let folder = path.parent().unwrap_or(&path);
        fs::create_dir_all(folder).map_err(at("create", folder))?;
        fs::write(&path, text).map_err(at("write", &path))
    }

    /// Copies a file of this machine into the host.
    pub fn copy(&self, from: &Path, to: &str) -> Result<(), BedError> {
        fs::copy(from, self.path(to)).map(drop).map_err(at("copy", from))
    }

    /// A command in the host as root, in its clients' cgroup: holdfast's programs apply to its sockets.
    fn command<S: AsRef<OsStr>>(&self, namespaces: &[&str], words: &[S]) -> Command {
        let clients = self.cgroup.join("clients");
        let into = if clients.exists() { clients } else { self.cgroup.clone() };
        let mut command = Command::new("bash");
        command.arg("-c").arg("echo $$ >\"$0/cgroup.procs\"; exec \"$@\"").arg(into);
        command.args(["nsenter", "--target", &self.pid.to_string()]).args(namespaces).arg("--").args(words);
        command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("LC_ALL", "C.UTF-8");
        command.env("DEBIAN_FRONTEND", "noninteractive").env("SYSTEMD_PAGER", "").env("SYSTEMD_COLORS", "0");
        command
    }

    /// Runs a command in the host to its end, whatever its exit code.
    pub fn run<S: AsRef<OsStr>>(&self, words: &[S]) -> Result<CommandOutput, BedError> {
        let all = ["--mount", "--pid", "--net", "--uts", "--ipc", "--cgroup", "--root", "--wd"];
        let Output { status, stdout, stderr } = finish(self.command(&all, words), COMMAND_LIMIT)?;
        Ok(CommandOutput::new(status, &stdout, &stderr))
    }

    /// Runs a shell line in the host.
    pub fn shell(&self, line: &str) -> Result<CommandOutput, BedError> {
        self.run(&["sh", "-c", line])
    }

    /// Starts a server of this machine in the host's network.
    pub fn serve(&self, name: &str, address: SocketAddr) -> Result<Server, BedError> {
        self.serve_by("--net", name, address)
    }

    /// The same in a network of the host that `ip netns` has named.
    pub fn serve_in(&self, network: &str, name: &str, address: SocketAddr) -> Result<Server, BedError> {
        self.serve_by(&self.network(network), name, address)
    }

    fn serve_by(&self, network: &str, name: &str, address: SocketAddr) -> Result<Server, BedError> {
        let child = companion()?;
        let words = [child.as_os_str(), "serve".as_ref(), Role::Tcp.word().as_ref(), name.as_ref()];
        let mut command = self.command(&[network], &words);
        command.arg(address.to_string());
        Server::start(command, address)
    }

    /// Starts a client of this machine that dials in a loop, in the host's network and its clients' cgroup.
    pub fn dial(&self, address: SocketAddr) -> Result<Dialer, BedError> {
        self.dial_by("--net", address)
    }

    /// The same in a network of the host that `ip netns` has named.
    pub fn dial_in(&self, network: &str, address: SocketAddr) -> Result<Dialer, BedError> {
        self.dial_by(&self.network(network), address)
    }

    fn dial_by(&self, network: &str, address: SocketAddr) -> Result<Dialer, BedError> {
        let child = companion()?;
        let mut command = self.command(&[network], &[child.as_os_str(), "dial".as_ref()]);
        command.arg(address.to_string());
        Dialer::start(command)
    }

    /// The same as on another machine: no cgroup of the host has it, so holdfast translates none of its sockets.
    pub fn dial_from(&self, network: &str, address: SocketAddr) -> Result<Dialer, BedError> {
        let mut command = Command::new("nsenter");
        command.arg(self.network(network)).arg("--").arg(companion()?).arg("dial").arg(address.to_string());
        Dialer::start(command)
    }

    /// The option of nsenter for a named network. The path leads through the host's own mounts.
    fn network(&self, name: &str) -> String {
        format!("--net={}", self.path(&format!("/run/netns/{name}")).display())
    }
}

fn boot(root: &Path, cgroup: &Path) -> Command {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("systems/host/boot.sh");
    let mut command = Command::new("setpriv");
    command
        .args(["--pdeathsig", "KILL", "unshare", "--mount", "--propagation", "private"])
        .arg("bash")
        .arg(script)
        .arg(root)
        .arg(cgroup);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // Ctrl-C must not reach this process, which dies with the test.
    command.process_group(0);
    command
}

/// Removes leftovers of killed tests.
fn remove_left_over(mount: &Path) {
    let Ok(entries) = fs::read_dir(mount) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(pid) = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next()) else { continue };
        if !Path::new("/proc").join(pid).exists() {
            remove_tree(&entry.path());
        }
    }
}

/// Kills the processes of a cgroup and removes it. The next boot removes what remains.
fn remove_tree(cgroup: &Path) {
    let _ = fs::write(cgroup.join("cgroup.kill"), "1");
    let _removed = try_wait_for(|| (remove_folders(cgroup).is_ok() || !cgroup.exists()).then_some(()));
}

fn remove_folders(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)?.flatten() {
        if entry.file_type()?.is_dir() {
            remove_folders(&entry.path())?;
        }
    }
    fs::remove_dir(folder)
}

impl Drop for Host {
    fn drop(&mut self) {
        let Some(mut first) = self.first.take() else { return };
        let _ = first.kill();
        let _ = first.wait();
        remove_tree(&self.cgroup);
    }
}
