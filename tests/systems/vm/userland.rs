//! The programs of a guest besides the tested ones, and the libraries that a program loads: of this machine, or of
//! Debian's packages for another architecture.
//!
//! Invariant: no program of another architecture runs on this machine. What those load is read from the programs.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::architecture::Architecture;
use crate::failure::{Failure, at, output};

/// Programs that tests run, if there are any, by their paths in the guest.
pub(crate) const COMPANIONS: [&str; 6] =
    ["/usr/sbin/ip", "/usr/bin/curl", "/usr/bin/strace", "/usr/bin/dig", "/usr/bin/bash", "/usr/bin/nsenter"];

/// Folders of programs in unpacked packages.
const FOLDERS: [&str; 4] = ["bin", "sbin", "usr/bin", "usr/sbin"];

/// The first bytes of a program.
const ELF: &[u8] = b"\x7fELF";

/// Where a guest's programs come from.
#[derive(Debug)]
pub(crate) enum Userland {
    /// This machine's own, with a static shell.
    Own { shell: PathBuf },
    /// Packages that are unpacked into a folder, but not installed.
    Unpacked { folder: PathBuf, architecture: Architecture },
}

impl Userland {
    /// The shell among these tools, and programs of this machine.
    pub(crate) fn of_this_machine(tools: &Path) -> Self {
        Self::Own { shell: tools.join("bin/busybox") }
    }

    pub(crate) fn shell(&self) -> PathBuf {
        match self {
            Self::Own { shell } => shell.clone(),
            Self::Unpacked { folder, .. } => folder.join("bin/busybox"),
        }
    }

    /// The companions that there are: path in the guest, and file.
    pub(crate) fn companions(&self) -> Vec<(&'static str, PathBuf)> {
        let find = |path: &&'static str| {
            let file = match self {
                Self::Own { .. } => Some(PathBuf::from(path)),
                Self::Unpacked { folder, .. } => {
                    found(folder, &FOLDERS, Path::new(path).file_name()?.to_str()?)
                }
            };
            Some((*path, file.filter(|file| file.exists())?))
        };
        COMPANIONS.iter().filter_map(find).collect()
    }

    /// The bytes of a program for a guest. Debug symbols cost seconds under emulation. Scripts and packages stay as
    /// they are, and so do programs of another architecture, which are built without symbols.
    pub(crate) fn stripped(&self, program: &Path) -> Result<Vec<u8>, Failure> {
        let bytes = fs::read(program).map_err(at("read", program))?;
        if !bytes.starts_with(ELF) || matches!(self, Self::Unpacked { .. }) {
            return Ok(bytes);
        }
        let folder = tempfile::tempdir().map_err(at("create a folder for", program))?;
        let lean = folder.path().join("lean");
        output(Command::new("strip").arg("-o").arg(&lean).arg(program))?;
        fs::read(&lean).map_err(at("read", &lean))
    }

    /// The libraries that a program loads, with their loader: path in the guest, and file.
    pub(crate) fn libraries(&self, program: &Path) -> Result<BTreeMap<String, PathBuf>, Failure> {
        match self {
            Self::Own { .. } => Ok(listed(program)),
            Self::Unpacked { folder, architecture } => unpacked(folder, architecture.triplet(), program),
        }
    }
}

/// The libraries of a program that runs here. ldd fails for static programs and scripts, which need none.
fn listed(program: &Path) -> BTreeMap<String, PathBuf> {
    let lines = output(Command::new("ldd").arg(program)).unwrap_or_default();
    let lines = String::from_utf8_lossy(&lines);
    lines.lines().filter_map(library).map(|path| (path.to_owned(), PathBuf::from(path))).collect()
}

/// The path in a line of ldd: `libc.so.6 => /lib/libc.so.6 (0x7f…)` or `/lib64/ld-linux-x86-64.so.2 (0x7f…)`.
fn library(line: &str) -> Option<&str> {
    let path = line.rsplit_once(" (0x")?.0.rsplit(' ').next()?.trim();
    path.starts_with('/').then_some(path)
}

/// The libraries of a program among unpacked packages. The guest's loader finds them where Debian has them.
fn unpacked(root: &Path, triplet: &str, program: &Path) -> Result<BTreeMap<String, PathBuf>, Failure> {
    let folders = [&format!("lib/{triplet}"), &format!("usr/lib/{triplet}"), "lib", "lib64"];
    let mut libraries = BTreeMap::new();
    let mut programs = vec![program.to_owned()];
    while let Some(program) = programs.pop() {
        for name in loaded(&program)? {
            let file =
                found(root, &folders, &name).ok_or_else(|| Failure::NotFetched { what: name.clone() })?;
            // Programs name the path of their loader, and the loader searches the other folder.
            let folder = if name.starts_with("ld-") { "/lib" } else { &format!("/lib/{triplet}") };
            let inside = format!("{folder}/{name}");
            if libraries.insert(inside, file.clone()).is_none() {
                programs.push(file);
            }
        }
    }
    Ok(libraries)
}

/// The names in a program's own list of what it loads, its loader among them. A script has none.
fn loaded(program: &Path) -> Result<Vec<String>, Failure> {
    let lines =
        output(Command::new("readelf").args(["--wide", "--dynamic", "--program-headers"]).arg(program));
    let lines = lines.unwrap_or_default();
    Ok(String::from_utf8_lossy(&lines).lines().filter_map(loaded_name).map(str::to_owned).collect())
}

/// The name in a line of readelf: `(NEEDED) Shared library: [libc.so.6]`, or `[Requesting program interpreter:
/// /lib/ld-linux-aarch64.so.1]`.
fn loaded_name(line: &str) -> Option<&str> {
    let loader = line.split_once("program interpreter: ").and_then(|(_, path)| path.rsplit('/').next());
    let needed = line.split_once("(NEEDED)").and_then(|(_, rest)| rest.split_once('[')).map(|(_, name)| name);
    loader.or(needed)?.trim_end().strip_suffix(']')
}

/// The file of this name in one of these folders.
fn found(root: &Path, folders: &[&str], name: &str) -> Option<PathBuf> {
    folders.iter().map(|folder| root.join(folder).join(name)).find(|path| path.exists())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn libraries_are_parsed_from_ldds_output() {
        assert_eq!(library("\tlibc.so.6 => /lib/x/libc.so.6 (0x00007f)"), Some("/lib/x/libc.so.6"));
        assert_eq!(library("\t/lib64/ld-linux-x86-64.so.2 (0x00007f)"), Some("/lib64/ld-linux-x86-64.so.2"));
        assert_eq!(library("\tlinux-vdso.so.1 (0x00007f)"), None);
        assert_eq!(library("\tstatically linked"), None);
    }

    #[test]
    fn libraries_are_parsed_from_a_programs_own_list() {
        let needed = " 0x0000000000000001 (NEEDED)             Shared library: [libc.so.6]";
        assert_eq!(loaded_name(needed), Some("libc.so.6"));
        let loader = "      [Requesting program interpreter: /lib/ld-linux-aarch64.so.1]";
        assert_eq!(loaded_name(loader), Some("ld-linux-aarch64.so.1"));
        assert_eq!(loaded_name(" 0x000000000000000c (INIT)               0x4000"), None);
    }

    /// This machine's own root is a root of packages too.
    #[test]
    fn both_ways_find_the_same_libraries() {
        let bash = Path::new("/bin/bash");
        let triplet = format!("{}-linux-gnu", std::env::consts::ARCH);
        let names = |libraries: BTreeMap<String, PathBuf>| -> BTreeSet<std::ffi::OsString> {
            libraries.into_values().filter_map(|path| Some(path.file_name()?.to_owned())).collect()
        };
        let found = names(unpacked(Path::new("/"), &triplet, bash).unwrap());
        assert!(found.len() > 1, "{found:?}");
        assert_eq!(found, names(listed(bash)));
    }

    #[test]
    fn a_library_that_was_not_fetched_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let error = unpacked(folder.path(), "none", Path::new("/bin/bash")).unwrap_err().to_string();
        assert!(error.contains(".so."), "{error}");
    }
}
