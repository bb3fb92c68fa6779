//! Reads a package mirror with apt, without touching this machine's packages.
//!
//! Invariant: lists, cache and status are private folders, and apt verifies each list with Debian's keys. Packages are
//! only unpacked, so it needs no root and runs none of their scripts.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::architecture::Architecture;
use crate::failure::{Failure, at, output};

const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// The mirror of a machine without Debian's own sources file.
const MIRROR: &str = "http://deb.debian.org/";

/// A set of suites with its own state.
#[derive(Debug)]
pub(crate) struct Apt {
    folder: PathBuf,
    architecture: Architecture,
}

impl Apt {
    /// Reads the lists of these suites, each given as `archive suite`, for example `debian-security
    /// bookworm-security`.
    pub(crate) fn read(folder: &Path, suites: &[&str], architecture: Architecture) -> Result<Self, Failure> {
        let apt = Self { folder: folder.to_owned(), architecture };
        for part in ["lists/partial", "cache/archives/partial"] {
            let path = folder.join(part);
            fs::create_dir_all(&path).map_err(at("create", &path))?;
        }
        let (mirror, name) = (mirror(), architecture.debian());
        let source = |suite: &&str| {
            let (archive, suite) = suite.split_once(' ').unwrap_or(("debian", suite));
            format!("deb [signed-by={KEYRING} arch={name}] {mirror}{archive} {suite} main\n")
        };
        apt.write("sources.list", &suites.iter().map(source).collect::<String>())?;
        apt.write("status", "")?;
        output(apt.command("apt-get").args(["-qq", "update"]))?;
        Ok(apt)
    }

    /// The names of all packages with this prefix.
    pub(crate) fn names(&self, prefix: &str) -> Result<Vec<String>, Failure> {
        let names = output(self.command("apt-cache").args(["pkgnames", prefix]))?;
        Ok(String::from_utf8_lossy(&names).lines().map(str::to_owned).collect())
    }

    /// Unpacks only these packages into a folder.
    pub(crate) fn unpack(&self, packages: &[String], into: &Path) -> Result<(), Failure> {
        let folder = self.folder.join("packages");
        renew(&folder)?;
        output(self.command("apt-get").args(["-qq", "download"]).args(packages).current_dir(&folder))?;
        extract(&folder, into)
    }

    /// Unpacks these packages and their dependencies into a folder.
    pub(crate) fn unpack_whole(&self, packages: &[&str], into: &Path) -> Result<(), Failure> {
        let switches = ["-qq", "-y", "--no-install-recommends", "--download-only", "install"];
        output(self.command("apt-get").args(switches).args(packages))?;
        extract(&self.folder.join("cache/archives"), into)
    }

    fn write(&self, name: &str, text: &str) -> Result<(), Failure> {
        let path = self.folder.join(name);
        fs::write(&path, text).map_err(at("write", &path))
    }

    fn command(&self, program: &str) -> Command {
        let folder = self.folder.display();
        let mut command = Command::new(program);
        for option in [
            format!("Dir::Etc::sourcelist={folder}/sources.list"),
            "Dir::Etc::sourceparts=/dev/null".to_owned(),
            "Dir::Etc::preferencesparts=/dev/null".to_owned(),
            format!("Dir::State={folder}"),
            format!("Dir::State::lists={folder}/lists"),
            format!("Dir::State::status={folder}/status"),
            format!("Dir::Cache={folder}/cache"),
            "Acquire::Languages=none".to_owned(),
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false".to_owned(),
            // As root, apt would download as a user that cannot write here.
            "APT::Sandbox::User=root".to_owned(),
            format!("APT::Architecture={}", self.architecture.debian()),
            // This machine may have others beside its own.
            format!("APT::Architectures={}", self.architecture.debian()),
        ] {
            command.args(["-o", &option]);
        }
        command
    }
}

/// The mirror that this machine already uses, up to the name of the archive.
fn mirror() -> String {
    let sources = fs::read_to_string("/etc/apt/sources.list.d/debian.sources").unwrap_or_default();
    let addresses = sources.lines().filter_map(|line| line.strip_prefix("URIs:"));
    let found =
        addresses.filter_map(|address| Some(address.trim().rsplit_once("debian")?.0.to_owned())).next();
    found.unwrap_or_else(|| MIRROR.to_owned())
}

fn extract(packages: &Path, into: &Path) -> Result<(), Failure> {
    for entry in fs::read_dir(packages).map_err(at("read", packages))? {
        let path = entry.map_err(at("read", packages))?.path();
        if path.extension().is_some_and(|extension| extension == "deb") {
            output(Command::new("dpkg-deb").arg("-x").arg(&path).arg(into))?;
        }
    }
    Ok(())
}

/// Replaces whatever is at this path with an empty folder.
pub(crate) fn renew(folder: &Path) -> Result<(), Failure> {
    if folder.exists() {
        fs::remove_dir_all(folder).map_err(at("remove", folder))?;
    }
    fs::create_dir_all(folder).map_err(at("create", folder))
}
