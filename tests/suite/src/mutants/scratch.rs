//! A copy of the tree with all mutants, below the target folder.
//!
//! Invariant: a file of the copy is written only if its content changes, so that a second build compiles only changes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::table::Mutants;
use super::weave;
use crate::built::{self, Program};
use crate::error::{SuiteError, at};
use crate::session::Places;

/// The crate from which code reads the number; `{NUMBER}` is the variable's name.
const CRATE: &str = r#"//! Which mistake is made.
use std::sync::OnceLock;

static NUMBER: OnceLock<u32> = OnceLock::new();

pub fn number() -> u32 {
    let read = || std::env::var("{NUMBER}").ok().and_then(|it| it.parse().ok());
    *NUMBER.get_or_init(|| read().unwrap_or(0))
}

pub fn is(number: u32) -> bool {
    self::number() == number
}
"#;
const MANIFEST: &str = "[package]\nname = \"holdfast-mutant\"\nversion = \"0.0.0\"\nedition = \"2024\"\n";

/// The folder of that crate in the copy.
const FOLDER: &str = "tests/mutant";

pub(super) struct Scratch {
    pub(super) tree: PathBuf,
    target: PathBuf,
    logs: PathBuf,
}

impl Scratch {
    /// Updates the copy from the checkout and the table.
    pub(super) fn fill(places: &Places, mutants: &Mutants) -> Result<Self, SuiteError> {
        let folder = places.target.join("mutants");
        let place = |name| folder.join(name);
        let scratch = Self { tree: place("tree"), target: place("target"), logs: place("logs") };
        let mut files = read(&places.root)?;
        plant(&mut files, mutants)?;
        scratch.write(&files)?;
        Ok(scratch)
    }

    fn write(&self, files: &BTreeMap<String, Vec<u8>>) -> Result<(), SuiteError> {
        for (name, text) in files {
            let path = self.tree.join(name);
            if fs::read(&path).is_ok_and(|before| before == *text) {
                continue;
            }
            path.parent().map_or(Ok(()), fs::create_dir_all).map_err(at("create the folder of", &path))?;
            fs::write(&path, text).map_err(at("write", &path))?;
        }
        remove_others(&self.tree, &self.tree, files)
    }

    /// Compiles the programs of these tests.
    pub(super) fn build(&self, patterns: &[&String]) -> Result<Vec<Program>, SuiteError> {
        let mut arguments = BTreeSet::new();
        for pattern in patterns {
            let mut parts = pattern.split('/');
            let (package, target) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
            arguments.insert(vec!["-p".to_owned(), package_named(package)]);
            arguments.insert(match target {
                "lib" => vec!["--lib".to_owned()],
                target => vec!["--test".to_owned(), target.to_owned()],
            });
        }
        let mut cargo = Command::new("cargo");
        cargo.args(["test", "--offline", "--no-run", "--message-format=json-render-diagnostics"]);
        cargo.args(arguments.into_iter().flatten());
        cargo.current_dir(&self.tree).env("CARGO_TARGET_DIR", &self.target);
        let start = |source| SuiteError::Start { program: "cargo".to_owned(), source };
        let built = cargo.output().map_err(start)?;
        if !built.status.success() {
            let why = String::from_utf8_lossy(&built.stderr);
            return Err(SuiteError::Mutant(format!("the copy with all mistakes does not compile:\n{why}")));
        }
        Ok(built::programs(&String::from_utf8_lossy(&built.stdout)))
    }

    /// The path for a test's output.
    pub(super) fn log(&self, number: usize, test: &str) -> PathBuf {
        self.logs.join(number.to_string()).join(format!("{}.log", test.replace(['/', ':'], "_")))
    }
}

/// The name of the package in a folder.
fn package_named(folder: &str) -> String {
    if folder == "daemon" { "holdfast".to_owned() } else { format!("holdfast-{folder}") }
}

/// The files of the checkout that git tracks, with new ones.
fn read(root: &Path) -> Result<BTreeMap<String, Vec<u8>>, SuiteError> {
    let mut git = Command::new("git");
    git.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]).current_dir(root);
    let start = |source| SuiteError::Start { program: "git".to_owned(), source };
    let listed = git.output().map_err(start)?;
    let names = String::from_utf8_lossy(&listed.stdout).into_owned();
    let mut files = BTreeMap::new();
    for name in names.split_terminator('\0') {
        let path = root.join(name);
        // Skips removed files and links.
        if path.symlink_metadata().is_ok_and(|it| it.is_file()) {
            files.insert(name.to_owned(), fs::read(&path).map_err(at("read", &path))?);
        }
    }
    Ok(files)
}

/// Inserts the mutants and the crate that they need.
fn plant(files: &mut BTreeMap<String, Vec<u8>>, mutants: &Mutants) -> Result<(), SuiteError> {
    let changed: BTreeSet<&String> = mutants.rows.iter().map(|row| &row.file).collect();
    for name in &changed {
        let rows = mutants.numbered().filter(|(_, row)| row.file == **name);
        let text = weave::weave(name, &text(files, name)?, rows)?;
        files.insert((*name).clone(), text.into_bytes());
    }
    for seam in &mutants.seams {
        let text = weave::insert(&seam.file, &text(files, &seam.file)?, seam)?;
        files.insert(seam.file.clone(), text.into_bytes());
    }
    let in_rust = changed.into_iter().chain(mutants.seams.iter().map(|it| &it.file));
    let packages: BTreeSet<String> =
        in_rust.filter(|it| it.ends_with(".rs")).filter_map(|it| manifest(files, it)).collect();
    for name in packages {
        let text = with_dependency(&text(files, &name)?);
        files.insert(name, text.into_bytes());
    }
    files.insert(format!("{FOLDER}/Cargo.toml"), MANIFEST.into());
    files.insert(format!("{FOLDER}/src/lib.rs"), CRATE.replace("{NUMBER}", super::NUMBER).into());
    join_workspace(files)
}

fn text(files: &BTreeMap<String, Vec<u8>>, name: &str) -> Result<String, SuiteError> {
    let bytes = files.get(name).ok_or_else(|| SuiteError::Mutant(format!("there is no file {name}")))?;
    Ok(String::from_utf8_lossy(bytes).into_owned())
}

/// The manifest of a file's package.
fn manifest(files: &BTreeMap<String, Vec<u8>>, file: &str) -> Option<String> {
    let folders = Path::new(file).ancestors().skip(1);
    let named = folders.map(|folder| folder.join("Cargo.toml").to_string_lossy().into_owned());
    named.into_iter().find(|name| files.contains_key(name))
}

/// A manifest with the dependency on the crate, and without lints, which would reject the inserted `if`.
fn with_dependency(manifest: &str) -> String {
    let line = "holdfast-mutant.workspace = true";
    let with = manifest.replacen("[dependencies]\n", &format!("[dependencies]\n{line}\n"), 1);
    let with = if with == manifest { format!("{manifest}\n[dependencies]\n{line}\n") } else { with };
    with.replace("[lints]\nworkspace = true\n", "")
}

/// Adds the crate to the workspace, without optimisation: a program that runs once compiles in half the time.
fn join_workspace(files: &mut BTreeMap<String, Vec<u8>>) -> Result<(), SuiteError> {
    let root = text(files, "Cargo.toml")?;
    let path = format!("holdfast-mutant = {{ path = \"{FOLDER}\" }}\n");
    let with = root.replacen("members = [", &format!("members = [\n    \"{FOLDER}\","), 1);
    let with = with.replacen("[workspace.dependencies]\n", &format!("[workspace.dependencies]\n{path}"), 1);
    let with = with.replace("opt-level = 1\n", "opt-level = 0\n");
    files.insert("Cargo.toml".to_owned(), with.into_bytes());
    Ok(())
}

/// Removes files from the copy that the checkout no longer has. Cargo's lock file follows from the manifests.
fn remove_others(tree: &Path, folder: &Path, files: &BTreeMap<String, Vec<u8>>) -> Result<(), SuiteError> {
    for entry in fs::read_dir(folder).map_err(at("read", folder))?.flatten() {
        let path = entry.path();
        let name = path.strip_prefix(tree).unwrap_or(&path).to_string_lossy().into_owned();
        if path.is_dir() {
            remove_others(tree, &path, files)?;
        } else if !files.contains_key(&name) {
            fs::remove_file(&path).map_err(at("remove", &path))?;
        }
    }
    Ok(())
}
