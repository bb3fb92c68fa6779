//! A process that holds namespaces open, and removes the bed's cgroups after its parent has ended.
//!
//! Invariant: a keeper ends when its standard input ends, so it cannot outlive a killed test. The namespaces have no
//! name; processes enter them through the keeper's folder in /proc.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use holdfast_fixtures::network_namespace;
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use super::{BedError, cgroup, spawn};

/// The line that a child prints when it is ready.
pub(super) const READY: &str = "ready";

const BPFFS: &str = "/sys/fs/bpf";

/// The parent's handle of a keeper.
#[derive(Debug)]
pub(super) struct Keeper {
    child: Child,
}

impl Keeper {
    /// Starts a keeper with its own network. With cgroups, it also has its own mounts, and removes the cgroups at its
    /// end.
    pub(super) fn start(program: &Path, cgroups: Option<&Path>) -> Result<Self, BedError> {
        let mut command = Command::new(program);
        command.arg("keep").args(cgroups);
        // Ctrl-C must not reach the keeper, which cleans up after the test.
        command.process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut keeper = Self { child: spawn(&mut command)? };
        keeper.expect_ready()?;
        Ok(keeper)
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    fn expect_ready(&mut self) -> Result<(), BedError> {
        let said = self.child.stdout.take().map(first_line).unwrap_or_default();
        if said == READY {
            return Ok(());
        }
        let mut complaint = said;
        if let Some(stderr) = self.child.stderr.as_mut() {
            let _ = stderr.take(super::OUTPUT_BYTES_MAX).read_to_string(&mut complaint);
        }
        Err(BedError::Unexpected { who: "the keeper of the bed".to_owned(), said: complaint })
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        // The end of the pipe tells the keeper to end.
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// The first line that a child prints, without its line feed.
pub(super) fn first_line(pipe: impl Read) -> String {
    let mut line = String::new();
    let _ = BufReader::new(pipe).read_line(&mut line);
    line.trim_end().to_owned()
}

/// The keeper process.
pub(super) fn keep(cgroups: Option<&Path>) -> io::Result<()> {
    network_namespace::enter()?;
    if cgroups.is_some() {
        own_mounts()?;
    }
    writeln!(io::stdout(), "{READY}")?;
    io::copy(&mut io::stdin(), &mut io::sink())?;
    match cgroups {
        Some(top) => cgroup::remove(top).map_err(io::Error::other),
        None => Ok(()),
    }
}

fn own_mounts() -> io::Result<()> {
    let none: Option<&str> = None;
    unshare(CloneFlags::CLONE_NEWNS)?;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
    mount(Some("bpf"), BPFFS, Some("bpf"), MsFlags::empty(), none)?;
    Ok(())
}
