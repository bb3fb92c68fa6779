//! One machine of a cluster: boots, runs commands, stops, boots again.
//!
//! Invariant: a machine's disk survives a reboot; its network, processes, cgroups and pinned BPF objects do not, as
//! after a power cut.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::cgroups::Cgroups;
use crate::control_plane::SERVICES_FOLDER;
use crate::error::{at, write};
use crate::program::{output, said, wait};
use crate::topology::{Init, MachineName, Topology};
use crate::wires::Wires;
use crate::{Built, ClusterError};

/// A machine boots in a tenth of a second; three at once on a busy machine take longer.
const BOOT_LIMIT: Duration = Duration::from_secs(30);

/// The default timeout of a command on a machine.
const COMMAND_LIMIT: Duration = Duration::from_secs(120);

/// How long a server may take after SIGTERM before it is killed, as kubelet does with a static pod. With an open
/// watch, an apiserver takes a minute in which nodes cannot renew their leases, and all nodes would be given up.
const END_GRACE: Duration = Duration::from_secs(10);

/// A killed process is gone at once; on a busy machine within seconds.
const END_LIMIT: Duration = Duration::from_secs(90);

/// The folder of the scripts that run around and in a machine.
const SCRIPTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/machine");

/// A machine of a cluster.
#[derive(Debug)]
pub struct Machine {
    name: MachineName,
    init: Init,
    layers: Vec<PathBuf>,
    cluster: String,
    folder: PathBuf,
    cgroups: Cgroups,
    wires: Wires,
    built: Built,
    /// The process in which it runs, if it does.
    outer: Mutex<Option<Child>>,
}

impl Machine {
    pub(crate) fn new(
        (name, topology): (MachineName, &Topology),
        cluster: &str,
        cgroups: &Cgroups,
        wires: &Wires,
        built: &Built,
    ) -> Self {
        let folder = built.folder.join("run").join(cluster).join(name.as_str());
        Self {
            name,
            init: topology.init_of(name),
            layers: topology.layers.clone(),
            cluster: cluster.to_owned(),
            folder,
            cgroups: cgroups.clone(),
            wires: wires.clone(),
            built: built.clone(),
            outer: Mutex::new(None),
        }
    }

    pub fn name(&self) -> MachineName {
        self.name
    }

    /// The machine's v2 cgroup from outside; its processes and pods are below.
    pub fn cgroup(&self) -> Option<PathBuf> {
        let folders = self.cgroups.machine_folders(&self.cluster, self.name.as_str());
        folders.into_iter().find(|folder| folder.join("cgroup.controllers").exists())
    }

    /// The folder of its services' logs while it exists.
    pub fn logs(&self) -> PathBuf {
        self.folder.join("log")
    }

    /// The machine's own disk over the common root; write it only while the machine is stopped.
    pub(crate) fn disk(&self) -> PathBuf {
        self.folder.join("upper")
    }

    /// Runs a command in the machine and returns its output, whatever its exit code.
    pub fn run(&self, command: &[&str]) -> Result<Output, ClusterError> {
        output(&mut self.entered(command, Some(COMMAND_LIMIT))?, "")
    }

    /// The output of a command that must succeed. It reads `input`, and is ended after `limit`.
    pub fn said(&self, command: &[&str], input: &str, limit: Duration) -> Result<String, ClusterError> {
        said(&mut self.entered(command, Some(limit))?, input)
    }

    /// Starts a command that keeps running; its output goes to `NAME.log` in the machine's logs.
    pub fn spawn(&self, name: &str, command: &[&str]) -> Result<Running, ClusterError> {
        let log = self.logs().join(name).with_extension("log");
        let file = File::create(&log).map_err(at("create", &log))?;
        let errors = file.try_clone().map_err(at("write", &log))?;
        let mut entered = self.entered(command, None)?;
        let child = entered.stdin(Stdio::null()).stdout(file).stderr(errors).process_group(0).spawn();
        let child = child.map_err(|source| ClusterError::Start { program: name.to_owned(), source })?;
        Ok(Running { child, log })
    }

    /// Writes a file of the machine, with its parent folders, whether the machine runs or not.
    pub fn write(&self, path: &str, text: impl AsRef<[u8]>) -> Result<(), ClusterError> {
        let root = match self.first() {
            Ok(pid) => PathBuf::from(format!("/proc/{pid}/root")),
            Err(_) => self.disk(),
        };
        write(&root.join(path.trim_start_matches('/')), text)
    }

    /// Whether its first process runs this service.
    pub fn has_service(&self, service: &str) -> bool {
        self.disk().join(SERVICES_FOLDER).join(service).exists()
    }

    /// Ends a service, and waits until its first process has restarted it.
    pub fn restart(&self, service: &str) -> Result<(), ClusterError> {
        self.stop(service)?;
        self.start(service)
    }

    /// Ends a service until it is started again: SIGTERM first, then SIGKILL.
    pub fn stop(&self, service: &str) -> Result<(), ClusterError> {
        if self.init == Init::Systemd {
            return self.systemctl("stop", service);
        }
        self.write(&format!("/run/services/{service}.stopped"), "")?;
        // The process is a child of the first one: once dead, its folder in /proc is gone, or it is a zombie.
        let script = format!(
            "pid=$(cat /run/services/$1.pid) && kill -TERM $pid
            for ((i = 0; i < {}; i++)); do kill -0 $pid || exit 0; sleep 0.05; done
            kill -KILL $pid; while kill -0 $pid; do sleep 0.05; done",
            END_GRACE.as_millis() / 50
        );
        self.run_for(service, &script)
    }

    /// Starts a stopped service.
    pub fn start(&self, service: &str) -> Result<(), ClusterError> {
        if self.init == Init::Systemd {
            return self.systemctl("start", service);
        }
        let script = "old=$(cat /run/services/$1.pid); rm -f /run/services/$1.stopped
            until [[ $(cat /run/services/$1.pid) != $old ]]; do sleep 0.05; done";
        self.run_for(service, script)
    }

    fn systemctl(&self, order: &str, service: &str) -> Result<(), ClusterError> {
        self.said(&["systemctl", order, service], "", END_LIMIT).map(drop)
    }

    fn run_for(&self, service: &str, script: &str) -> Result<(), ClusterError> {
        let quiet = format!("{{ {script}; }} 2>/dev/null; true");
        self.said(&["bash", "-c", &quiet, "it", service], "", END_LIMIT).map(drop)
    }

    /// A command that enters the machine. A limit ends it inside, because the end of its outer half would not.
    pub(crate) fn entered(&self, command: &[&str], limit: Option<Duration>) -> Result<Command, ClusterError> {
        let folders = self.cgroups.process_folders(&self.cluster, self.name.as_str());
        let mut entered = script("enter.sh");
        entered.arg(self.first()?.to_string()).arg(joined(&folders));
        if let Some(limit) = limit {
            entered.args(["timeout", "--kill-after=5"]).arg(limit.as_secs().to_string());
        }
        entered.args(command);
        Ok(entered)
    }

    /// Creates its network and starts its first process.
    pub(crate) fn boot(&self) -> Result<(), ClusterError> {
        let mut outer = self.outer();
        self.cgroups.create(&self.cluster, self.name.as_str())?;
        self.wires.attach(self.name)?;
        let (logs, pid) = (self.logs(), self.pid_file());
        fs::create_dir_all(&logs).map_err(at("create", &logs))?;
        let _ = fs::remove_file(&pid);
        let mut child = self.boot_script()?;
        let booted = wait(BOOT_LIMIT, || pid.exists() || !runs(&mut child));
        let came_up = booted && pid.exists();
        *outer = Some(child);
        if came_up { Ok(()) } else { Err(self.not_running()) }
    }

    fn boot_script(&self) -> Result<Child, ClusterError> {
        let log = self.logs().join("boot.log");
        let file = File::create(&log).map_err(at("create", &log))?;
        let errors = file.try_clone().map_err(at("write", &log))?;
        let cgroups = self.cgroups.machine_folders(&self.cluster, self.name.as_str());
        let mut boot = script("boot.sh");
        boot.env("NAME", self.name.as_str())
            .env("INIT", self.init.to_string())
            .env("FOLDER", &self.folder)
            .env("LOWER", self.lower());
        boot.env("PROGRAMS", &self.built.bin).env("HOLDFAST", &self.built.holdfast);
        boot.env("IMAGES", &self.built.images).env("NETWORK", self.wires.file(self.name));
        boot.env("CGROUPS", joined(&cgroups)).env("LAYOUT", self.cgroups.layout.as_str());
        // An interrupt is for the tests; machines end with their cluster and its process.
        boot.stdin(Stdio::piped()).stdout(file).stderr(errors).process_group(0);
        boot.spawn().map_err(|source| ClusterError::Start { program: "bash".to_owned(), source })
    }

    /// The lower layers of the machine's disk, in overlay syntax.
    fn lower(&self) -> OsString {
        let folders: Vec<_> = self.layers.iter().chain([&self.built.root]).map(|it| it.as_os_str()).collect();
        folders.join(OsStr::new(":"))
    }

    /// Cuts its power: all of its processes end at once.
    pub(crate) fn halt(&self) -> Result<(), ClusterError> {
        let Some(mut child) = self.outer().take() else { return Ok(()) };
        // Its first process is killed with it (unshare --kill-child), and all others with that.
        let _ = child.kill();
        let _ = child.wait();
        self.cgroups.remove(&format!("{}/{}", self.cluster, self.name))?;
        self.wires.detach(self.name)
    }

    /// The process id of the machine's first process, outside.
    fn first(&self) -> Result<i32, ClusterError> {
        let is_up = self.outer().as_mut().is_some_and(runs);
        let pid = fs::read_to_string(self.pid_file()).ok().and_then(|text| text.trim().parse().ok());
        pid.filter(|_| is_up).ok_or_else(|| self.not_running())
    }

    fn pid_file(&self) -> PathBuf {
        self.logs().join("pid")
    }

    fn not_running(&self) -> ClusterError {
        ClusterError::NotRunning { machine: self.name.as_str(), log: self.logs().join("boot.log") }
    }

    fn outer(&self) -> MutexGuard<'_, Option<Child>> {
        self.outer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A running command in a machine; dropping it ends the command.
#[derive(Debug)]
pub struct Running {
    child: Child,
    log: PathBuf,
}

impl Running {
    /// Whether it still runs.
    pub fn runs(&mut self) -> bool {
        runs(&mut self.child)
    }

    /// Its output so far.
    pub fn written(&self) -> Result<String, ClusterError> {
        fs::read_to_string(&self.log).map_err(at("read", &self.log))
    }

    /// Sends a signal to it and its children.
    pub fn signal(&self, signal: Signal) {
        // It may have ended by itself.
        let _ = killpg(self.group(), signal);
    }

    /// Sends SIGTERM, waits, and returns its output.
    pub fn stop(mut self) -> Result<String, ClusterError> {
        self.signal(Signal::SIGTERM);
        let group = self.group();
        // The child enters the machine; the command there is a child of its own, and may end later.
        wait(END_LIMIT, || !runs(&mut self.child) && killpg(group, None).is_err());
        self.written()
    }

    /// Waits until it ends by itself.
    pub fn wait(&mut self) -> io::Result<std::process::ExitStatus> {
        self.child.wait()
    }

    /// The command's process group, which all of its children share unless they leave it.
    fn group(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.signal(Signal::SIGKILL);
        let _ = self.child.wait();
    }
}

fn runs(child: &mut Child) -> bool {
    matches!(child.try_wait(), Ok(None))
}

fn script(name: &str) -> Command {
    let mut command = Command::new("bash");
    command.arg(Path::new(SCRIPTS).join(name));
    command
}

fn joined(folders: &[PathBuf]) -> String {
    folders.iter().map(|folder| folder.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::leftovers;

    /// Works on any machine, because there is always a v2 hierarchy.
    #[test]
    fn with_v2_alone_a_machine_is_like_a_container() {
        let (built, cgroups) = (Built::find().unwrap(), Cgroups::find().unwrap().only_v2());
        let name = leftovers::new_name();
        let wires = Wires::lay(&name, &Topology::default()).unwrap();
        let here = (MachineName::Outside, &Topology::default());
        let machine = Machine::new(here, &name, &cgroups, &wires, &built);
        machine.write("/etc/machine/init.sh", include_str!("../machine/init.sh")).unwrap();
        machine.boot().unwrap();
        let asked = machine.run(&[
            "sh",
            "-c",
            "stat -fc %T /sys/fs/cgroup; grep ^0: /proc/1/cgroup /proc/self/cgroup",
        ]);
        let said = String::from_utf8(asked.unwrap().stdout).unwrap();
        // As if the process that booted it were killed.
        drop(machine.outer().as_mut().unwrap().stdin.take());
        assert!(wait(END_LIMIT, || !machine.outer().as_mut().is_some_and(runs)), "nobody has it any more");
        machine.halt().unwrap();
        cgroups.remove(&name).unwrap();
        leftovers::remove_networks(&name);
        crate::cluster::keep_logs(&built.folder.join("run").join(&name));
        assert_eq!(said, "cgroup2fs\n/proc/1/cgroup:0::/init.scope\n/proc/self/cgroup:0::/init.scope\n");
    }
}
