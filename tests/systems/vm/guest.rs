//! The file system of a guest: a shell, kernel modules, and the tested programs with their libraries.
//!
//! Invariant: the part that depends only on the kernel is built once and kept. There is no network card; a test makes
//! its own links. Only a guest's disk can bring an init system.

use std::fs;
use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher, RandomState};
use std::path::{Path, PathBuf};

use crate::cpio::Archive;
use crate::failure::{Failure, at};
use crate::modules;
use crate::store::{Kernel, Store};
use crate::userland::Userland;

/// The first process, with or without a disk, and the scripts that it runs.
const SCRIPTS: [(&str, &str); 3] = [
    ("init", include_str!("init.sh")),
    ("system", include_str!("system.sh")),
    ("errand", include_str!("errand.sh")),
];

/// The folder of tested programs in the guest.
const PROGRAMS: &str = "/payload";

const FOLDERS: [&str; 8] = ["proc", "sys", "dev", "tmp", "run", "root", "var", "disk"];

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
    format!("exit-{:x}-{:x}-", std::process::id(), RandomState::new().build_hasher().finish())
}

/// Writes the file system of one run and returns its path.
pub(crate) fn build(store: &Store, kernel: &Kernel, errand: &Errand<'_>) -> Result<PathBuf, Failure> {
    let mut image = base(store, kernel)?;
    image.extend(payload(store, errand)?);
    let path = store.scratch()?.join(format!("{}initrd", errand.mark));
    fs::write(&path, image).map_err(at("write", &path))?;
    Ok(path)
}

/// The part that depends on the kernel, from the store or built now.
fn base(store: &Store, kernel: &Kernel) -> Result<Vec<u8>, Failure> {
    let mut hasher = DefaultHasher::new();
    (SCRIPTS, modules::WANTED, &kernel.modules, store.userland()?.companions()).hash(&mut hasher);
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
    let userland = store.userland()?;
    // It links its other names to itself when the guest starts.
    archive.file("bin/busybox", read(&userland.shell())?);
    archive.link("bin/sh", "busybox");
    for (inside, program) in userland.companions() {
        add_program(&mut archive, &userland, &program, inside)?;
    }
    for (at, (name, bytes)) in modules::ordered(&kernel.modules)?.into_iter().enumerate() {
        archive.file(&format!("modules/{at:03}-{name}.ko"), bytes);
    }
    Ok(archive.bytes())
}

fn payload(store: &Store, errand: &Errand<'_>) -> Result<Vec<u8>, Failure> {
    let (mut archive, userland) = (Archive::default(), store.userland()?);
    for program in &errand.programs {
        add_program(&mut archive, &userland, program, &inside(program))?;
    }
    archive.file("payload/mark", errand.mark.as_bytes().to_vec());
    archive.file("payload/port", store.architecture().hardware().port.as_bytes().to_vec());
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

/// Adds a program and its libraries.
fn add_program(
    archive: &mut Archive,
    userland: &Userland,
    program: &Path,
    inside: &str,
) -> Result<(), Failure> {
    archive.file(inside, userland.stripped(program)?);
    for (inside, library) in userland.libraries(program)? {
        if !archive.has(&inside) {
            archive.file(&inside, read(&library)?);
        }
    }
    Ok(())
}

fn read(file: &Path) -> Result<Vec<u8>, Failure> {
    fs::read(file).map_err(at("read", file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_argument_reaches_the_program_unchanged() {
        assert_eq!(quoted("a b"), "'a b'");
        assert_eq!(quoted("it's $x"), "'it'\\''s $x'");
    }
}
