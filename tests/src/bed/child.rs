//! The child processes of a bed: keep, enter, serve, load, dial, ask, run an errand.
//!
//! Invariant: until a child has entered its namespaces and cgroup, it changes only itself.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use nix::sched::{CloneFlags, setns};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use super::{ask, crowd, dial, errand, keeper, load, queries, seen_source, serve, sidecar};

/// Runs the command in the arguments of `bed_child`. `enter` replaces this process.
pub fn main(arguments: &[OsString]) -> io::Result<()> {
    let words: Vec<&str> = arguments.iter().map_while(|word| word.to_str()).collect();
    match (words.as_slice(), arguments) {
        (["keep"], _) => keeper::keep(None),
        (["keep", cgroups], _) => keeper::keep(Some(Path::new(cgroups))),
        (["enter", net, mounts, cgroup, ..], [_, _, _, _, program, rest @ ..]) => {
            enter(net, mounts, Path::new(cgroup))?;
            let error = Command::new(program).args(rest).exec();
            Err(io::Error::new(error.kind(), format!("start {}: {error}", program.display())))
        }
        (["serve", role, name, address], _) => serve::run(role, name, parsed(address)?),
        (["whom", name, addresses @ ..], _) => with_many_files(|| seen_source::run(name, addresses)),
        (["queries", transport, server, rate], _) => {
            queries::run(transport, parsed(server)?, rate.parse().map_err(io::Error::other)?)
        }
        (["sidecar", known], _) => sidecar::run(known),
        (["ask"], _) => with_many_files(ask::run),
        (["dial", address], _) => dial::run(parsed(address)?),
        (["crowd", uid, clients, door, method, path], _) => crowd::run([uid, clients, door, method, path]),
        (["errand", uid, what, address], _) => errand::run(uid, what, parsed(address)?),
        (["load", kind, address], _) => load::run(kind, parsed(address)?),
        _ => Err(io::Error::other(
            "usage: bed_child keep|enter|serve|whom|sidecar|queries|ask|load|dial|crowd|errand …; a bed calls it",
        )),
    }
}

/// Raises the limit of open files to the machine's maximum; the default may be a thousand.
fn with_many_files(run: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, most, most)?;
    run()
}

fn parsed(address: &str) -> io::Result<SocketAddr> {
    address.parse().map_err(|_| io::Error::other(format!("{address} is not an address and a port")))
}

/// Moves this process. The cgroup comes first, because its path exists only in the outer mounts.
fn enter(net: &str, mounts: &str, cgroup: &Path) -> io::Result<()> {
    let folder = std::env::current_dir()?;
    let net = File::open(format!("/proc/{net}/ns/net"))?;
    let mounts = File::open(format!("/proc/{mounts}/ns/mnt"))?;
    fs::write(cgroup.join("cgroup.procs"), "0")?;
    setns(net, CloneFlags::CLONE_NEWNET)?;
    setns(mounts, CloneFlags::CLONE_NEWNS)?;
    // `setns` moves a process to the root of the new mounts.
    std::env::set_current_dir(folder)
}
