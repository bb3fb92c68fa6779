//! `bugreport`: one archive with what it takes to find the cause of a problem on this node.
//!
//! Invariant: the archive holds the files of [`FILES`] and nothing else; each is bounded and named with its content
//! before anything is written. No file that a configuration names is opened, so no credential can get in. A part that
//! cannot be read says why in its place.

mod archive;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::json;
use tokio::process::Command;
use tokio::time::timeout;

use super::Exit;
use super::client::{Client, ClientError};
use super::report::Report;
use super::status;

/// The most bytes of one file; the rest is left out, and the file says so.
const FILE_BYTES_MAX: usize = 32 << 20;

/// How long a program may take.
const PROGRAM_TIME_MAX: Duration = Duration::from_secs(20);

/// The arguments of `bugreport`.
#[derive(Clone, Debug, clap::Args)]
pub struct BugreportArgs {
    /// Write the archive to this new file [default: only show what it would hold]
    #[arg(long, value_name = "FILE")]
    pub(super) write: Option<PathBuf>,
}

/// Where the content of a file comes from.
#[derive(Clone, Copy, Debug)]
enum Source {
    /// A path of the admin API.
    Api(&'static str),
    /// The screen of `holdfast status`.
    Status,
    Program(&'static str, &'static [&'static str]),
    /// A file of this host.
    HostFile(&'static str),
}

/// One file of the archive.
#[derive(Clone, Copy, Debug)]
struct ReportFile {
    name: &'static str,
    about: &'static str,
    source: Source,
}

const fn file(name: &'static str, about: &'static str, source: Source) -> ReportFile {
    ReportFile { name, about, source }
}

const JOURNAL: &[&str] =
    &["--unit=holdfast.service", "--lines=5000", "--no-pager", "--output=short-iso-precise", "--no-hostname"];

const FILES: [ReportFile; 20] = [
    file("status.txt", "what `holdfast status` shows", Source::Status),
    file("version.json", "version, node and start of the daemon", Source::Api("/version")),
    file(
        "config.json",
        "the configuration in force: paths of credentials, not their content",
        Source::Api("/config"),
    ),
    file("ready.json", "whether the daemon is ready, and what is wrong", Source::Api("/readyz")),
    file("services.json", "all services, and rejected objects", Source::Api("/services")),
    file("frontends.json", "all frontends, and what clients get there", Source::Api("/frontends")),
    file("backends.json", "all endpoints, used or not", Source::Api("/backends")),
    file("drains.json", "drained backends", Source::Api("/drains")),
    file("trouble.json", "why clients are not served", Source::Api("/explain")),
    file("refusals.json", "the latest clients that were not served", Source::Api("/refusals")),
    file("flows.json", "clients from outside and their backends", Source::Api("/flows")),
    file("history.json", "the latest changes with their causes", Source::Api("/history?limit=10000")),
    file("datapath.json", "programs and maps in the kernel, and other proxies", Source::Api("/datapath")),
    file("apiserver.json", "the apiservers, and their errors", Source::Api("/apiserver")),
    file("verify.json", "apiserver, memory and maps, compared", Source::Api("/verify")),
    file("metrics.txt", "all metrics", Source::Api("/metrics")),
    file("journal.txt", "the last 5,000 lines of the journal", Source::Program("journalctl", JOURNAL)),
    file("links.txt", "the devices of this host", Source::Program("ip", &["-details", "link"])),
    file("kernel.txt", "the version of the kernel", Source::HostFile("/proc/version")),
    file("os-release.txt", "the distribution", Source::HostFile("/etc/os-release")),
];

/// A file with its content, or why there is none.
struct GatheredFile {
    file: ReportFile,
    content: Result<Vec<u8>, String>,
}

/// Shows what the archive would hold, or writes it.
pub(super) fn run_bugreport(client: &Client, write: Option<&Path>) -> Report {
    match write {
        None => describe_plan(),
        Some(path) => write_report(client, path),
    }
}

fn describe_plan() -> Report {
    let files: Vec<_> = FILES.iter().map(|it| json!({"name": it.name, "about": it.about})).collect();
    let mut good: Vec<String> = FILES.iter().map(|it| format!("{:<16} {}", it.name, it.about)).collect();
    good.push(PRIVACY.to_owned());
    good.push("Nothing is written yet; `holdfast bugreport --write FILE` writes it.".to_owned());
    Report { exit: Exit::Good, json: json!({"files": files, "written": null}), good, bad: Vec::new() }
}

/// What a reader of the archive learns.
const PRIVACY: &str = "It names the services, nodes and addresses of the cluster, and holds no credential: read it before you \
                       send it.";

fn write_report(client: &Client, path: &Path) -> Report {
    let gathered = gather_files(client);
    let failures: Vec<String> = gathered.iter().filter_map(GatheredFile::failure).collect();
    let files: Vec<_> = gathered.iter().map(GatheredFile::to_json).collect();
    match archive::write_archive(path, &gathered) {
        Ok(bytes) => Report {
            exit: if failures.is_empty() { Exit::Good } else { Exit::Incomplete },
            json: json!({"files": files, "written": path}),
            good: vec![
                format!("{} is written: {} files, {bytes} bytes", path.display(), FILES.len()),
                PRIVACY.to_owned(),
            ],
            bad: failures,
        },
        Err(error) => {
            let why = format!("holdfast: cannot write {}: {error}", path.display());
            Report {
                exit: Exit::Finding,
                json: json!({"files": files, "written": null, "error": why}),
                good: Vec::new(),
                bad: vec![why],
            }
        }
    }
}

impl GatheredFile {
    fn failure(&self) -> Option<String> {
        let why = self.content.as_ref().err()?;
        Some(format!("{} has no content: {}", self.file.name, why.lines().next().unwrap_or_default()))
    }

    fn to_json(&self) -> serde_json::Value {
        let bytes = self.content.as_ref().ok().map(Vec::len);
        json!({"name": self.file.name, "about": self.file.about, "bytes": bytes, "error": self.content.as_ref().err()})
    }
}

/// Gathers all files. A daemon that did not answer once is not asked again, because each question may take a minute.
fn gather_files(client: &Client) -> Vec<GatheredFile> {
    let mut is_silent = false;
    let mut gather = |file: &ReportFile| {
        let content = match file.source {
            Source::Api(_) | Source::Status if is_silent => Err(NOT_ASKED.to_owned()),
            Source::Api(path) => query(client, path).map_err(|error| note_silence(&error, &mut is_silent)),
            Source::Status => show_status(client).map_err(|error| note_silence(&error, &mut is_silent)),
            Source::Program(name, arguments) => {
                run_program(name, arguments).map_err(|error| format!("{name}: {error}"))
            }
            Source::HostFile(path) => fs::read(path).map_err(|error| format!("{path}: {error}")),
        };
        GatheredFile { file: *file, content: content.map(cut) }
    };
    FILES.iter().map(&mut gather).collect()
}

const NOT_ASKED: &str = "not asked, because the daemon did not answer before";

fn note_silence(error: &ClientError, is_silent: &mut bool) -> String {
    *is_silent |= matches!(error, ClientError::Unreachable(_) | ClientError::Broken(_));
    error.to_string()
}

/// JSON where the path has it. An unhealthy daemon answers with an error status, which is an answer here.
fn query(client: &Client, path: &str) -> Result<Vec<u8>, ClientError> {
    let separator = if path.contains('?') { '&' } else { '?' };
    let path = if path == "/metrics" { path.to_owned() } else { format!("{path}{separator}format=json") };
    client.get(&path)?.read_whole()
}

fn show_status(client: &Client) -> Result<Vec<u8>, ClientError> {
    let mut screen = Vec::new();
    status::run_status(client, false, &mut screen)?;
    Ok(screen)
}

fn run_program(name: &str, arguments: &[&str]) -> io::Result<Vec<u8>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let output = Command::new(name).args(arguments).kill_on_drop(true).output();
        let output = timeout(PROGRAM_TIME_MAX, output)
            .await
            .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        match output.status.success() {
            true => Ok(output.stdout),
            false => Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim_end().to_owned())),
        }
    })
}

fn cut(mut content: Vec<u8>) -> Vec<u8> {
    let more = content.len().saturating_sub(FILE_BYTES_MAX);
    if more > 0 {
        content.truncate(FILE_BYTES_MAX);
        content.extend(format!("\n... {more} bytes more\n").bytes());
    }
    content
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_file_of_the_archive_has_a_name_of_its_own() {
        let names: BTreeSet<&str> = FILES.iter().map(|it| it.name).collect();
        assert_eq!(names.len(), FILES.len());
    }

    #[test]
    fn a_long_file_is_cut_and_says_so() {
        let content = cut(vec![b'x'; FILE_BYTES_MAX + 3]);
        assert!(content.ends_with(b"x\n... 3 bytes more\n"));
        assert_eq!(cut(b"short".to_vec()), b"short");
    }

    #[test]
    fn a_program_that_fails_tells_why() {
        assert_eq!(run_program("sh", &["-c", "echo out"]).unwrap(), b"out\n");
        let error = run_program("sh", &["-c", "echo no journal >&2; exit 1"]).unwrap_err();
        assert_eq!(error.to_string(), "no journal");
        assert_eq!(
            run_program("holdfast-has-no-such-program", &[]).unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
    }
}
