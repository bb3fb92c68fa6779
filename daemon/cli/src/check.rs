//! `check-config`: every error of a configuration in one run.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use holdfast_knowledge::Fault;
use holdfast_status::printable::Printable;
use serde_json::{Value, json};

use super::client::Client;
use super::report::Report;
use super::status::query_json;
use super::{CONFIG_PATH, Exit};
use holdfast_api::about::Version;
use holdfast_config::{Cgroup, Config, DatapathKind, Position, Problem, Subject};
use holdfast_evidence::knowledge::{self, Edition};
use holdfast_kubernetes::apiserver::{Access, SetupError};
use holdfast_standalone::blocks::folder::BlockFiles;
use holdfast_standalone::blocks::merge::merge_blocks;
use holdfast_standalone::blocks::{Blocks, BlocksFolder, unusable_tls_files};
use holdfast_standalone::folder::{FileFormat as _, read_folder};
use holdfast_standalone::manifests::Manifests;

/// The file that the running daemon uses.
pub(super) fn running_config(client: &Client) -> Option<PathBuf> {
    let asked = query_json::<Version>(client, "/version?format=json").ok();
    asked.and_then(|version| version.config_file).map(PathBuf::from)
}

/// Checks the file that is asked for, or that of the running daemon, or the usual one.
pub(super) fn check_file(asked: Option<&Path>, used: Option<&Path>) -> Report {
    let path = asked.or(used).unwrap_or(Path::new(CONFIG_PATH));
    match used {
        Some(used) if !path.exists() => {
            let message = describe_missing_file(path, used);
            build_report(path, &[], &[file_problem(&path.display().to_string(), &message)], 0)
        }
        _ => check_config(path),
    }
}

/// An empty file would end all services of a daemon that runs with another one.
fn describe_missing_file(path: &Path, used: &Path) -> String {
    if path == used {
        "there is no such file here, and the daemon runs with it: put it back before a restart, or look in the \
         daemon's container"
            .to_owned()
    } else {
        let used = used.display();
        format!("there is no such file; the daemon runs with {used}: holdfast check-config {used}")
    }
}

/// Reports every error and warning of a configuration, or that it is good.
pub(super) fn check_config(path: &Path) -> Report {
    let edition = Edition::read(&knowledge::knowledge_folder(path));
    let of_events = || edition.faults().iter().map(fault_to_problem);
    match Config::load(path) {
        Ok((config, mut warnings)) => {
            let of_config = |error: String| file_problem(&path.display().to_string(), &error);
            let missing =
                config.manifests.path.as_deref().and_then(|path| Manifests::check_folder(path).err());
            warnings.extend(missing.map(|error| of_config(error.to_string())));
            let (access, absent) = match check_access(&config) {
                Ok(absent) => (None, absent),
                Err(error) => (Some(of_config(error.to_string())), Vec::new()),
            };
            let absent = absent.iter().map(|why| format!("[apiserver] {why}; {TRIED_AGAIN}"));
            let unusable = unusable_tls_files(&config.services).into_iter().map(|(block, why)| {
                let (namespace, name) = (&block.namespace, &block.name);
                format!("[[service]] {namespace}/{name}: its health check: {why}; {TRIED_AGAIN}")
            });
            warnings.extend(absent.chain(unusable).chain(missing_cgroup(&config)).map(of_config));
            let (blocks, of_blocks) = configured_blocks(&config, path);
            let (of_files, more) = check_folder(&config, &blocks, path);
            warnings.extend(more);
            let own = access.into_iter().chain(of_blocks);
            let errors: Vec<_> = own.chain(of_files).chain(of_events()).collect();
            build_report(path, &warnings, &errors, 0)
        }
        Err(refused) => {
            let errors: Vec<_> = refused.errors.iter().cloned().chain(of_events()).collect();
            build_report(path, &refused.warnings, &errors, refused.omitted)
        }
    }
}

fn file_problem(file: &str, message: &str) -> Problem {
    Problem {
        file: file.to_owned(),
        position: None,
        place: Subject::File,
        block: None,
        message: message.to_owned().into(),
    }
}

/// The configuration's own blocks, or their errors as objects: a start rejects those as well.
fn configured_blocks(config: &Config, path: &Path) -> (Arc<Blocks>, Vec<Problem>) {
    let file = path.to_string_lossy();
    match Blocks::from_config(config, &file) {
        Ok(blocks) => (Arc::new(blocks), Vec::new()),
        Err(invalid) => {
            let errors = invalid.iter().map(|it| file_problem(&file, &it.to_string()));
            (Arc::default(), errors.collect())
        }
    }
}

/// The errors and warnings of the folder of further `[[service]]` blocks.
fn check_folder(config: &Config, configured: &Arc<Blocks>, path: &Path) -> (Vec<Problem>, Vec<Problem>) {
    let (mut errors, mut warnings) = (Vec::new(), Vec::new());
    let Some(folder) = config.more_services.path.as_deref() else { return (errors, warnings) };
    let mut look = match read_folder::<BlockFiles>(folder) {
        Ok(look) => look,
        Err(reason) => {
            let error = BlocksFolder::folder_error(folder, reason).to_string();
            return (errors, vec![file_problem(&path.to_string_lossy(), &error)]);
        }
    };
    for (_, contents) in &mut look.files {
        if let Ok(contents) = contents {
            errors.append(&mut contents.errors);
            warnings.append(&mut contents.warnings);
        }
    }
    let mut known = BlockFiles::for_folder(folder);
    known.take_scan(look);
    let joined = merge_blocks(configured, known.files());
    errors.extend(joined.rejection_reasons().map(|(file, reason)| file_problem(file, reason)));
    (errors, warnings)
}

/// An error in a file about Events, as a problem. It concerns a whole entry, so its column is the first one.
fn fault_to_problem(fault: &Fault) -> Problem {
    Problem {
        file: fault.file.clone(),
        position: fault.line.map(|line| Position { line, column: 1 }),
        block: None,
        place: fault.id.clone().map_or(Subject::File, Subject::Key),
        message: fault.message.clone().into(),
    }
}

fn build_report(path: &Path, warnings: &[Problem], errors: &[Problem], omitted: usize) -> Report {
    let is_good = errors.is_empty();
    let file = path.display().to_string();
    let mut bad = format_lines("warning", warnings);
    bad.extend(format_lines("error", errors));
    bad.extend((omitted > 0).then(|| format!("and {omitted} more errors")));
    let warnings = problems_to_json(warnings);
    let errors = problems_to_json(errors);
    Report {
        exit: if is_good { Exit::Good } else { Exit::Config },
        json: json!({"good": is_good, "file": file, "errors": errors, "omitted": omitted, "warnings": warnings}),
        good: if is_good { vec![format!("{file}: good")] } else { Vec::new() },
        bad,
    }
}

/// What comes of a file that cannot be used now.
const TRIED_AGAIN: &str = "this is tried again when the daemon runs";

/// Errors of `[apiserver]` or its files that the daemon cannot work with; or else all files that are unusable now:
/// they may appear later, and a start waits for none of them.
fn check_access(config: &Config) -> Result<Vec<String>, SetupError> {
    if !config.kubernetes.enabled {
        return Ok(Vec::new());
    }
    Access::check_files(&config.apiserver)
}

/// Why no program could be attached, if the named cgroup does not exist: a start ends with that.
fn missing_cgroup(config: &Config) -> Option<String> {
    let Cgroup::Path(path) = &config.datapath.cgroup else { return None };
    let is_used = config.datapath.kind == DatapathKind::Kernel && !path.is_dir();
    is_used
        .then(|| format!("datapath.cgroup: {} does not exist; a start would end with that", path.display()))
}

/// One line for each, whatever the file names: not only root may write files into the folder of services.
fn format_lines(kind: &str, problems: &[Problem]) -> Vec<String> {
    problems.iter().map(|problem| format!("{kind}: {}", Printable(problem.with_values()))).collect()
}

fn problems_to_json(problems: &[Problem]) -> Vec<Value> {
    problems.iter().map(problem_to_json).collect()
}

fn problem_to_json(problem: &Problem) -> Value {
    let place = match &problem.place {
        Subject::File => None,
        Subject::Table(path) | Subject::Key(path) => Some(path),
    };
    let (line, column) = problem.position.map(|at| (at.line, at.column)).unzip();
    json!({"file": problem.file, "line": line, "column": column, "place": place, "message": problem.message.with_values()})
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No text is known that is read and has such blocks; a start would end with the same words.
    #[test]
    fn blocks_that_a_start_refuses_are_errors() {
        let text =
            "[[service]]\nname = \"web\"\nfrontends = [\"10.96.0.1:80\"]\nbackends = [\"192.0.2.1:80\"]\n";
        let (mut config, _) = Config::parse(text, "config.toml").unwrap();
        let path = Path::new("config.toml");
        assert!(configured_blocks(&config, path).1.is_empty());
        config.services.extend(config.services.clone());
        let (_, errors) = configured_blocks(&config, path);
        assert!(errors[0].to_string().starts_with("config.toml: [[service]] static/web: "), "{}", errors[0]);
    }
}
