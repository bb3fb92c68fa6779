//! The file system of a guest: a shell, kernel modules, and the tested programs with their libraries.
//!
//! Invariant: the part that depends only on the kernel is built once and kept. There is no network card; a test makes
//! its own links. Only a guest's disk can bring an init system.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cpio::Archive;
use crate::failure::{Failure, at, output};
use crate::modules;
use crate::store::{Kernel, Store};

/// The first process, with or without a disk, and the scripts that it runs.
const SCRIPTS: [(&str, &str); 3] = [
    ("init", include_str!("init.sh")),
    ("system", include_str!("system.sh")),
    ("errand", include_str!("errand.sh")),
];

/// The folder of tested programs in the guest.
const PROGRAMS: &str = "/payload";

/// Programs that tests run, if this machine has them.
const COMPANIONS: [&str; 6] =
    ["/usr/sbin/ip", "/usr/bin/curl", "/usr/bin/strace", "/usr/bin/dig", "/usr/bin/bash", "/usr/bin/nsenter"];

const FOLDERS: [&str; 8] = ["proc", "sys", "dev", "tmp", "run", "root", "var", "disk"];

/// The first bytes of a program that can be stripped.
const ELF: &[u8] = b"\x7fELF";

/// A shell script to run, with programs of this machine.
#[derive(Debug)]
pub(crate) struct Errand<'a> {
    pub(crate) script: String,
    /// They all lie in one folder, which is the script's working directory and in its PATH.
    pub(crate) programs: Vec<&'a Path>,
    /// The prefix of the line with the exit code, which no program prints.
    pub(crate) mark: String,
}

impl<'a> Errand<'a> {
    /// One program in place of the script.
    pub(crate) fn program(program: &'a Path, arguments: &[String], beside: &'a [PathBuf]) -> Self {
        let words = std::iter::once(inside(program)).chain(arguments.iter().cloned());
        let words: Vec<String> = words.map(|word| quoted(&word)).collect();
        let programs = beside.iter().map(PathBuf::as_path).chain([program]).collect();
        Self { script: format!("exec {}\n", words.join(" ")), programs, mark: mark() }
    }
}

/// The prefix of the line with the exit code; it differs in each run.
pub(crate) fn mark() -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    format!("exit-{:x}-{:x}-", std::process::id(), now.as_nanos())
}

/// Writes the file system of one run and returns its path.
pub(crate) fn build(store: &Store, kernel: &Kernel, errand: &Errand<'_>) -> Result<PathBuf, Failure> {
    let mut image = base(store, kernel)?;
    image.extend(payload(errand)?);
    let path = store.scratch()?.join(format!("{}initrd", errand.mark));
    fs::write(&path, image).map_err(at("write", &path))?;
    Ok(path)
}

/// The part that depends on the kernel, from the store or built now.
fn base(store: &Store, kernel: &Kernel) -> Result<Vec<u8>, Failure> {
    let mut hasher = DefaultHasher::new();
    (SCRIPTS, modules::WANTED, &kernel.modules, COMPANIONS.map(|path| Path::new(path).exists()))
        .hash(&mut hasher);
    let path = store.scratch()?.join(format!("{:016x}.base", hasher.finish()));
    if let Ok(bytes) = fs::read(&path) {
        return Ok(bytes);
    }
    let bytes = build_base(store, kernel)?;
    let unfinished = path.with_extension(mark());
    fs::write(&unfinished, &bytes).map_err(at("write", &unfinished))?;
    fs::rename(&unfinished, &path).map_err(at("rename into place", &path))?;
    Ok(bytes)
}

fn build_base(store: &Store, kernel: &Kernel) -> Result<Vec<u8>, Failure> {
    let mut archive = Archive::default();
    FOLDERS.iter().for_each(|folder| archive.folder(folder));
    SCRIPTS.iter().for_each(|(name, text)| archive.file(name, text.as_bytes().to_vec()));
    archive.file("etc/hosts", b"127.0.0.1 localhost\n::1 localhost\n".to_vec());
    add_shell(&mut archive, &store.tools()?.join("bin/busybox"))?;
    for program in COMPANIONS.iter().map(Path::new).filter(|program| program.exists()) {
        add_program(&mut archive, program, &program.to_string_lossy())?;
    }
    for (at, (name, bytes)) in modules::ordered(&kernel.modules)?.into_iter().enumerate() {
        archive.file(&format!("modules/{at:03}-{name}.ko"), bytes);
    }
    Ok(archive.bytes())
}

fn add_shell(archive: &mut Archive, busybox: &Path) -> Result<(), Failure> {
    archive.file("bin/busybox", fs::read(busybox).map_err(at("read", busybox))?);
    let applets = output(Command::new(busybox).arg("--list"))?;
    for applet in String::from_utf8_lossy(&applets).lines().filter(|applet| *applet != "busybox") {
        archive.link(&format!("bin/{applet}"), "busybox");
    }
    Ok(())
}

fn payload(errand: &Errand<'_>) -> Result<Vec<u8>, Failure> {
    let mut archive = Archive::default();
    for program in &errand.programs {
        add_program(&mut archive, program, &inside(program))?;
    }
    archive.file("payload/mark", errand.mark.as_bytes().to_vec());
    archive.file("payload/run", format!("#!/bin/sh\n{}", errand.script).into_bytes());
    Ok(archive.bytes())
}

/// The path of this machine's program in the guest.
pub(crate) fn inside(file: &Path) -> String {
    format!("{PROGRAMS}/{}", file.file_name().unwrap_or_default().to_string_lossy())
}

fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// Strips debug symbols, which cost seconds under emulation. Scripts and packages stay unchanged.
fn stripped(program: &Path) -> Result<Vec<u8>, Failure> {
    let bytes = fs::read(program).map_err(at("read", program))?;
    if !bytes.starts_with(ELF) {
        return Ok(bytes);
    }
    let folder = tempfile::tempdir().map_err(at("create a folder for", program))?;
    let lean = folder.path().join("lean");
    output(Command::new("strip").arg("-o").arg(&lean).arg(program))?;
    fs::read(&lean).map_err(at("read", &lean))
}

/// Adds a program and its libraries.
fn add_program(archive: &mut Archive, program: &Path, inside: &str) -> Result<(), Failure> {
    archive.file(inside, stripped(program)?);
    // ldd fails for static programs and scripts, which need no libraries.
    let libraries = output(Command::new("ldd").arg(program)).unwrap_or_default();
    for library in String::from_utf8_lossy(&libraries).lines().filter_map(library) {
        if !archive.has(library) {
            archive.file(library, fs::read(library).map_err(at("read", Path::new(library)))?);
        }
    }
    Ok(())
}

/// The path in a line of ldd: `libc.so.6 => /lib/libc.so.6 (0x7f…)` or `/lib64/ld-linux-x86-64.so.2 (0x7f…)`.
fn library(line: &str) -> Option<&str> {
    let path = line.rsplit_once(" (0x")?.0.rsplit(' ').next()?.trim();
    path.starts_with('/').then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_parsed_from_ldds_output() {
        assert_eq!(library("\tlibc.so.6 => /lib/x/libc.so.6 (0x00007f)"), Some("/lib/x/libc.so.6"));
        assert_eq!(library("\t/lib64/ld-linux-x86-64.so.2 (0x00007f)"), Some("/lib64/ld-linux-x86-64.so.2"));
        assert_eq!(library("\tlinux-vdso.so.1 (0x00007f)"), None);
        assert_eq!(library("\tstatically linked"), None);
    }

    #[test]
    fn an_argument_reaches_the_program_unchanged() {
        assert_eq!(quoted("a b"), "'a b'");
        assert_eq!(quoted("it's $x"), "'it'\\''s $x'");
    }
}
