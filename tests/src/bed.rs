//! A private network, cgroup and bpffs on this machine, for real sockets and real programs.
//!
//! Invariant: nothing outside of the bed changes, and all of it is removed when the `Bed` is dropped or its process
//! ends in any way. A keeper process holds the namespaces and waits for the end of a pipe from here. The next bed
//! removes the cgroups of a killed keeper. Everything inside runs as a process of its own, because a change of this
//! process's namespaces or cgroup would affect other tests.

pub mod ask;
mod cgroup;
pub mod child;
pub mod clients;
pub mod compare;
mod cpu;
pub mod crowd;
pub mod daemon;
pub mod deaf;
mod dial;
mod errand;
pub mod fabric;
mod keeper;
pub mod limits;
mod links;
pub mod load;
pub mod names;
pub mod packet_probe;
mod probe_packet;
pub mod queries;
pub mod raw;
pub mod sctp;
mod seen_source;
mod serve;
pub mod sidecar;
pub mod speakers;
pub mod tracked;
pub mod uplinks;

use std::io::{self, Read};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, setns};

use self::ask::{Asker, Transport};
use self::cgroup::Tree;
pub(crate) use self::cgroup::mount_point;
use self::crowd::{ApiClients, Question};
pub use self::dial::{Dialer, Tally};
pub use self::errand::Errand;
use self::keeper::Keeper;
pub use self::links::{Layout, Neighbour};
use self::load::{Kind, Load};
use self::queries::Queries;
pub use self::serve::{Role, Server};
use self::sidecar::Known;

/// The most that a command inside may write; the rest is cut off.
const OUTPUT_BYTES_MAX: u64 = 1 << 20;

/// How often `wait` polls a child.
const CHILD_POLL: Duration = Duration::from_millis(2);

/// Set in the environment of a test that runs again as a process inside.
const INSIDE: &str = "HOLDFAST_BED_INSIDE";

/// Why a bed could not be made, or a program not run in it.
#[derive(Debug, thiserror::Error)]
pub enum BedError {
    /// Only root may create namespaces and cgroups and load programs.
    #[error("a bed needs root; run this test as root")]
    NotRoot,
    /// The machine has neither a unified nor a hybrid cgroup tree.
    #[error(
        "no cgroup2 is mounted here (see /proc/self/mountinfo); mount it: mount -t cgroup2 none /sys/fs/cgroup"
    )]
    NoCgroup2,
    /// `bed_child` was not built.
    #[error("bed_child is not beside {}; build it: cargo build -p holdfast-tests --bins", near.display())]
    NoChild {
        /// The program that looked for it.
        near: PathBuf,
    },
    /// The daemon was not built.
    #[error("holdfast is not beside {}; build it: cargo build -p holdfast", near.display())]
    NoDaemon {
        /// The program that looked for it.
        near: PathBuf,
    },
    /// The test was started without `make part PART=routers`.
    #[error(
        "HOLDFAST_ROUTERS is no folder with FRR, BIRD and keepalived; run this as `make part PART=routers`"
    )]
    NoSpeakers,
    /// The layout has no neighbour of this name.
    #[error("the bed has no neighbour {name}")]
    NoNeighbour {
        /// The requested name.
        name: String,
    },
    /// An operation on a file or folder failed.
    #[error("{what} {}", path.display())]
    File {
        /// The attempted operation.
        what: &'static str,
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A program could not be started.
    #[error("start {program}; `scripts/setup` brings what the tests run")]
    Start {
        program: String,
        /// The system's error.
        source: io::Error,
    },
    /// A program failed that should have succeeded.
    #[error("{program} failed with {status}: {said}")]
    Failed {
        program: String,
        /// Its exit status.
        status: ExitStatus,
        /// Its standard error.
        said: String,
    },
    /// A program was killed at its deadline.
    #[error("{program} did not end within {limit:?}; it said: {said}")]
    Late {
        program: String,
        /// Its deadline.
        limit: Duration,
        /// Its output until then.
        said: String,
    },
    /// A child of the bed wrote an unexpected line.
    #[error("{who} said {said:?}")]
    Unexpected {
        who: String,
        /// The line.
        said: String,
    },
}

/// Names the file in an error of a file operation.
pub(crate) fn at<'a>(what: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> BedError + 'a {
    move |source| BedError::File { what, path: path.to_owned(), source }
}

/// Where a process runs: inside or outside of the bed's cgroup, in the node's network or in a neighbour's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Location<'a> {
    inside: bool,
    neighbour: Option<&'a str>,
}

impl<'a> Location<'a> {
    /// A process of the node. Programs attached to `Bed::cgroup` see its sockets.
    pub const NODE: Location<'static> = Location { inside: true, neighbour: None };

    /// A process in the node's network but outside of its cgroup: no program of the bed sees its sockets.
    pub const OUTSIDE: Location<'static> = Location { inside: false, neighbour: None };

    /// A process in a neighbour's network and below the node's cgroup, as in a pod.
    pub const fn pod(neighbour: &'a str) -> Self {
        Self { inside: true, neighbour: Some(neighbour) }
    }

    /// A process in a neighbour's network and outside of the node's cgroup, as on another machine.
    pub const fn far(neighbour: &'a str) -> Self {
        Self { inside: false, neighbour: Some(neighbour) }
    }
}

/// The bed. Fields are dropped in this order: the processes end before the namespaces go.
#[derive(Debug)]
pub struct Bed {
    tree: Tree,
    neighbours: Vec<(&'static str, Keeper)>,
    keeper: Keeper,
    child: PathBuf,
}

impl Bed {
    /// A bed with nothing but a loopback interface.
    pub fn new() -> Result<Self, BedError> {
        Self::lay(&Layout::default())
    }

    /// A bed with addresses and neighbours.
    pub fn lay(layout: &Layout) -> Result<Self, BedError> {
        if !nix::unistd::geteuid().is_root() {
            return Err(BedError::NotRoot);
        }
        let child = companion()?;
        let tree = Tree::create()?;
        let keeper = Keeper::start(&child, Some(tree.top()))?;
        let names =
            layout.neighbours.iter().map(|neighbour| neighbour.name).chain(layout.apart.iter().copied());
        let neighbours = names.map(|name| Ok((name, Keeper::start(&child, None)?)));
        let neighbours = neighbours.collect::<Result<_, BedError>>()?;
        let bed = Self { tree, neighbours, keeper, child };
        links::configure(&bed, layout)?;
        Ok(bed)
    }

    /// The cgroup to attach programs to.
    pub fn cgroup(&self) -> &Path {
        self.tree.node()
    }

    /// A cgroup below `cgroup()`, created if missing.
    pub fn child_cgroup(&self, name: &str) -> Result<PathBuf, BedError> {
        let path = self.tree.node().join(name);
        std::fs::create_dir_all(&path).map_err(at("create", &path))?;
        Ok(path)
    }

    /// The path of the bed's bpffs from outside. Inside it is `/sys/fs/bpf`.
    pub fn bpffs(&self) -> PathBuf {
        self.root().join("sys/fs/bpf")
    }

    /// The path of the bed's root file system from outside.
    fn root(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root", self.keeper.pid()))
    }

    /// A command that will run at a location. The caller sets arguments, environment and pipes as usual.
    pub fn command(
        &self,
        location: Location<'_>,
        program: impl AsRef<std::ffi::OsStr>,
    ) -> Result<Command, BedError> {
        Ok(self.entering(self.netns(location)?, self.tree.folder(location), program.as_ref()))
    }

    /// A command that will run in the node's network and in a cgroup from `child_cgroup`.
    pub fn command_in(&self, cgroup: &Path, program: impl AsRef<std::ffi::OsStr>) -> Command {
        self.entering(&self.keeper, cgroup, program.as_ref())
    }

    /// A command that will run in the network of a location and in a cgroup from `child_cgroup`.
    pub fn command_at(
        &self,
        location: Location<'_>,
        cgroup: &Path,
        program: impl AsRef<std::ffi::OsStr>,
    ) -> Result<Command, BedError> {
        Ok(self.entering(self.netns(location)?, cgroup, program.as_ref()))
    }

    fn entering(&self, network: &Keeper, cgroup: &Path, program: &std::ffi::OsStr) -> Command {
        let mut command = Command::new(&self.child);
        command.arg("enter").arg(network.pid().to_string());
        command.arg(self.keeper.pid().to_string()).arg(cgroup).arg(program);
        command
    }

    /// A command that runs this test again as a process at a location. There, `is_inside()` returns true.
    pub fn rerun(&self, location: Location<'_>, test: &str) -> Result<Command, BedError> {
        let program = this_program()?;
        let mut command = self.command(location, program)?;
        command.args(["--exact", test, "--nocapture"]).env(INSIDE, "1");
        Ok(command)
    }

    /// Whether this process was started by `rerun`.
    pub fn is_inside() -> bool {
        std::env::var_os(INSIDE).is_some()
    }

    /// Runs a closure on a thread in the network of a location. The thread keeps this process's cgroup.
    pub fn within<T: Send>(
        &self,
        location: Location<'_>,
        run: impl FnOnce() -> T + Send,
    ) -> Result<T, BedError> {
        let path = PathBuf::from(format!("/proc/{}/ns/net", self.netns(location)?.pid()));
        let netns = std::fs::File::open(&path).map_err(at("open", &path))?;
        let body = || {
            setns(&netns, CloneFlags::CLONE_NEWNET).map_err(io::Error::from).map_err(at("enter", &path))?;
            Ok(run())
        };
        thread::scope(|scope| {
            scope.spawn(body).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Starts a server that answers with its own name, and waits until it listens.
    pub fn serve(
        &self,
        location: Location<'_>,
        role: Role,
        name: &str,
        address: SocketAddr,
    ) -> Result<Server, BedError> {
        let mut command = self.command(location, &self.child)?;
        command.args(["serve", role.word(), name, &address.to_string()]);
        Server::start(command, address)
    }

    /// Starts a server that tells each client, by TCP or UDP, which source address it sees.
    pub fn serve_seen_source(
        &self,
        location: Location<'_>,
        name: &str,
        addresses: &[SocketAddr],
    ) -> Result<Server, BedError> {
        let mut command = self.command(location, &self.child)?;
        command.args(["whom", name]).args(addresses.iter().map(SocketAddr::to_string));
        let first = addresses.first().copied().unwrap_or((Ipv4Addr::UNSPECIFIED, 0).into());
        Server::start(command, first)
    }

    /// Starts a client that asks a DNS server so many questions a second.
    pub fn queries(
        &self,
        location: Location<'_>,
        transport: Transport,
        server: SocketAddr,
        rate: u32,
    ) -> Result<Queries, BedError> {
        let mut command = self.command(location, &self.child)?;
        command.args(["queries", queries::transport_word(transport), &server.to_string(), &rate.to_string()]);
        Queries::start(command)
    }

    /// Starts a mesh's proxy in a pod, and in a cgroup from `child_cgroup`.
    pub fn sidecar(&self, pod: Location<'_>, cgroup: &Path, known: Known) -> Result<Server, BedError> {
        let mut command = self.command_at(pod, cgroup, &self.child)?;
        command.args(["sidecar", known.word()]);
        Server::start(command, (Ipv4Addr::UNSPECIFIED, 0).into())
    }

    /// Starts a client that sends requests on command, in a cgroup from `child_cgroup`.
    pub fn asker_in(&self, location: Location<'_>, cgroup: &Path) -> Result<Asker, BedError> {
        let mut command = self.command_at(location, cgroup, &self.child)?;
        command.arg("ask");
        Asker::start(command)
    }

    /// Starts a client that sends requests on command.
    pub fn asker(&self, location: Location<'_>) -> Result<Asker, BedError> {
        let mut command = self.command(location, &self.child)?;
        command.arg("ask");
        Asker::start(command)
    }

    /// Starts a load generator, which waits for its first turn.
    pub fn load(&self, location: Location<'_>, kind: Kind, address: SocketAddr) -> Result<Load, BedError> {
        let mut command = self.command(location, &self.child)?;
        command.args(["load", kind.word(), &address.to_string()]);
        Load::start(command)
    }

    /// Starts a client that dials an address in a loop.
    pub fn dial(&self, location: Location<'_>, address: SocketAddr) -> Result<Dialer, BedError> {
        let mut command = self.command(location, &self.child)?;
        command.args(["dial", &address.to_string()]);
        Dialer::start(command)
    }

    /// Starts clients of an admin API, which send requests in a loop.
    pub fn crowd(&self, location: Location<'_>, question: &Question<'_>) -> Result<ApiClients, BedError> {
        let mut command = self.command(location, &self.child)?;
        command.arg("crowd").args(question.arguments());
        ApiClients::start(command)
    }

    /// Runs an errand once as a user's process and returns its output.
    pub fn errand(
        &self,
        location: Location<'_>,
        uid: u32,
        errand: Errand,
        to: SocketAddr,
    ) -> Result<String, BedError> {
        let mut command = self.command(location, &self.child)?;
        command.args(["errand", &uid.to_string(), errand.word(), &to.to_string()]);
        succeed(command, errand::LIMIT).map(|said| said.trim_end().to_owned())
    }

    fn netns(&self, location: Location<'_>) -> Result<&Keeper, BedError> {
        let Some(name) = location.neighbour else { return Ok(&self.keeper) };
        let found = self.neighbours.iter().find(|(known, _)| *known == name);
        found.map(|(_, keeper)| keeper).ok_or_else(|| BedError::NoNeighbour { name: name.to_owned() })
    }
}

/// Runs a command to its end, or kills it at the limit.
pub fn finish(mut command: Command, limit: Duration) -> Result<Output, BedError> {
    let program = described(&command);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = spawn(&mut command)?;
    let stdout = child.stdout.take().map(drain);
    let stderr = child.stderr.take().map(drain);
    let status = wait(&mut child, limit).map_err(at("wait for", Path::new(&program)))?;
    let (stdout, stderr) = (collected(stdout), collected(stderr));
    let said = || String::from_utf8_lossy(&[stdout.clone(), stderr.clone()].concat()).into_owned();
    let status = status.ok_or_else(|| BedError::Late { program, limit, said: said() })?;
    Ok(Output { status, stdout, stderr })
}

/// Runs a command that must succeed and returns its standard output.
pub fn succeed(command: Command, limit: Duration) -> Result<String, BedError> {
    let program = described(&command);
    let output = finish(command, limit)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(BedError::Failed { program, status: output.status, said })
}

fn described(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

pub(crate) fn spawn(command: &mut Command) -> Result<Child, BedError> {
    let program = command.get_program().to_string_lossy().into_owned();
    command.spawn().map_err(|source| BedError::Start { program, source })
}

type Drained = thread::JoinHandle<Vec<u8>>;

fn drain(pipe: impl Read + Send + 'static) -> Drained {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // A read error keeps what was read before it.
        let _ = pipe.take(OUTPUT_BYTES_MAX).read_to_end(&mut bytes);
        bytes
    })
}

fn collected(pipe: Option<Drained>) -> Vec<u8> {
    pipe.and_then(|thread| thread.join().ok()).unwrap_or_default()
}

/// Waits for the end of a child. Past the limit, kills it and returns no status.
pub(crate) fn wait(child: &mut Child, limit: Duration) -> io::Result<Option<ExitStatus>> {
    let until = Instant::now() + limit;
    while Instant::now() < until {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        thread::sleep(CHILD_POLL);
    }
    child.kill()?;
    child.wait()?;
    Ok(None)
}

fn this_program() -> Result<PathBuf, BedError> {
    std::env::current_exe().map_err(at("find", Path::new("/proc/self/exe")))
}

/// The path of `bed_child`: next to this program, or, for tests and benchmarks, one folder up.
pub(crate) fn companion() -> Result<PathBuf, BedError> {
    let near = this_program()?;
    let folders = near.ancestors().skip(1).take(2);
    let found = folders.map(|folder| folder.join("bed_child")).find(|path| path.exists());
    found.ok_or(BedError::NoChild { near })
}
