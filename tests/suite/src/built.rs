//! The test programs that cargo has built, and their tests.
//!
//! Invariant: a test is named `package/target/test`, the package by its folder, so that equal names in two packages
//! are two tests. A benchmark is one test, of its short form.

use std::path::PathBuf;
use std::process::Command;

use serde::Deserialize;

use crate::error::SuiteError;

/// The test name of a benchmark.
const SHORT_FORM: &str = "short_form";

/// The needed fields of cargo's messages.
#[derive(Debug, Deserialize)]
struct Message {
    reason: String,
    #[serde(default)]
    executable: Option<PathBuf>,
    #[serde(default)]
    manifest_path: PathBuf,
    #[serde(default)]
    target: Option<Target>,
    #[serde(default)]
    profile: Option<Profile>,
}

#[derive(Debug, Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct Profile {
    test: bool,
}

/// A test program, its path and its working directory.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    /// Its package and its target, as in `datapath/kernel`.
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    /// The folder of its package, in which it runs as under cargo.
    pub(crate) folder: PathBuf,
    is_benchmark: bool,
}

/// One test of a program.
#[derive(Clone, Debug)]
pub(crate) struct Test {
    /// As in `datapath/kernel/maps::kernel_a_map_grows`.
    pub(crate) name: String,
    pub(crate) program: Program,
    /// The arguments that run only this test.
    pub(crate) arguments: Vec<String>,
}

/// The programs in cargo's messages, each once.
pub(crate) fn programs(messages: &str) -> Vec<Program> {
    let lines = messages.lines().filter_map(|line| serde_json::from_str::<Message>(line).ok());
    let mut programs: Vec<Program> = lines.filter_map(program).collect();
    programs.sort_by(|one, other| one.path.cmp(&other.path));
    programs.dedup_by(|one, other| one.path == other.path);
    programs
}

fn program(message: Message) -> Option<Program> {
    let (target, profile) = (message.target?, message.profile?);
    let is_benchmark = target.kind.iter().any(|kind| kind == "bench");
    if message.reason != "compiler-artifact" || !(profile.test || is_benchmark) {
        return None;
    }
    let folder = message.manifest_path.parent()?.to_owned();
    let package = folder.file_name()?.to_str()?;
    let name = match target.kind.first()?.as_str() {
        "lib" => format!("{package}/lib"),
        "bench" => format!("{package}/bench-{}", target.name),
        _ => format!("{package}/{}", target.name),
    };
    Some(Program { name, path: message.executable?, folder, is_benchmark })
}

impl Program {
    /// The program at a path, for this crate's own tests.
    #[cfg(test)]
    pub(crate) fn at_path(path: &str, folder: &std::path::Path) -> Self {
        let path = PathBuf::from(path);
        Self { name: "a/b".to_owned(), path, folder: folder.to_owned(), is_benchmark: false }
    }

    /// The tests that it lists.
    pub(crate) fn tests(&self) -> Result<Vec<Test>, SuiteError> {
        if self.is_benchmark {
            return Ok(vec![self.test(SHORT_FORM, Vec::new())]);
        }
        let listed = self.list()?;
        let names = listed.lines().filter_map(|line| line.strip_suffix(": test"));
        let alone = |name: &str| ["--exact", name, "--nocapture"].map(str::to_owned).to_vec();
        Ok(names.map(|name| self.test(name, alone(name))).collect())
    }

    fn test(&self, name: &str, arguments: Vec<String>) -> Test {
        Test { name: format!("{}/{name}", self.name), program: self.clone(), arguments }
    }

    fn list(&self) -> Result<String, SuiteError> {
        let mut command = self.command();
        command.args(["--list", "--format", "terse"]);
        let start = |source| SuiteError::Start { program: self.path.display().to_string(), source };
        let output = command.output().map_err(start)?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        Err(SuiteError::List { program: self.path.clone(), said })
    }

    /// The program as cargo starts it: tests find golden files from the folder of its package.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        command.current_dir(&self.folder).env("CARGO_MANIFEST_DIR", &self.folder);
        command
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn message(kind: &str, name: &str, test: bool, executable: &str) -> String {
        format!(
            r#"{{"reason":"compiler-artifact","manifest_path":"/h/daemon/core/Cargo.toml","target":{{"kind":["{kind}"],"name":"{name}"}},"profile":{{"test":{test}}},"executable":{executable}}}"#
        )
    }

    #[test]
    fn test_programs_are_named_by_package_and_target() {
        let messages = [
            message("lib", "holdfast_core", true, r#""/t/b""#),
            message("lib", "holdfast_core", false, "null"),
            message("test", "properties", true, r#""/t/a""#),
            message("bin", "simulate", false, r#""/t/simulate""#),
            message("bench", "speed", false, r#""/t/c""#),
            message("lib", "holdfast_core", true, r#""/t/b""#),
            r#"{"reason":"build-finished","success":true}"#.to_owned(),
            "   Compiling something".to_owned(),
        ];
        let found = programs(&messages.join("\n"));
        let names: Vec<&str> = found.iter().map(|program| program.name.as_str()).collect();
        assert_eq!(names, ["core/properties", "core/lib", "core/bench-speed"]);
        assert_eq!(found[0].folder, Path::new("/h/daemon/core"));
    }

    #[test]
    fn a_benchmark_is_one_test() {
        let found = programs(&message("bench", "speed", false, r#""/t/c""#));
        let tests = found[0].tests().unwrap();
        assert_eq!(tests.len(), 1);
        assert_eq!((tests[0].name.as_str(), tests[0].arguments.len()), ("core/bench-speed/short_form", 0));
    }
}
