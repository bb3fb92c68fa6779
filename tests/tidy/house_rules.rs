//! Rules that hold between files, such as README, ARCHITECTURE and the Makefile.
//!
//! Each rule reads the texts of the whole repository.

use crate::code::{code_only, is_word};
use crate::tree::{Finding, Source};

/// The number of invariants in ARCHITECTURE.md.
const INVARIANTS: usize = 14;

/// Marks of unfinished work; split here so that this file contains none.
const LEFTOVERS: [&str; 4] =
    [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X"), concat!("HA", "CK")];

/// The text of a file that the rules need. A missing file reads as empty.
pub(crate) fn text<'a>(sources: &'a [Source], path: &str) -> &'a str {
    sources.iter().find(|source| source.path == path).map_or("", |source| &source.text)
}

fn finding(path: &str, line: usize, rule: String) -> Finding {
    Finding { path: path.to_owned(), line, rule }
}

/// Unfinished work belongs into an issue, not into a comment.
pub(crate) fn no_leftovers(sources: &[Source]) -> Vec<Finding> {
    let ours = sources
        .iter()
        .filter(|source| !source.path.starts_with("LICENSE") && !source.path.ends_with(".lock"));
    let lines =
        ours.flat_map(|source| source.text.lines().enumerate().map(move |(at, line)| (source, at, line)));
    let found =
        lines.filter(|(_, _, line)| line.split(|c| !is_word(c)).any(|word| LEFTOVERS.contains(&word)));
    found.map(|(source, at, _)| source.finding(at + 1, "finish it, or open an issue")).collect()
}

/// A newcomer needs two commands, and README has each on a line of its own.
pub(crate) fn readme_says_both_commands(sources: &[Source]) -> Vec<Finding> {
    let readme = text(sources, "README.md");
    let missing =
        ["make run", "make test"].into_iter().filter(|command| !readme.lines().any(|line| line == *command));
    missing
        .map(|command| finding("README.md", 1, format!("`{command}` stands on a line of its own")))
        .collect()
}

/// CI runs the command that README names.
pub(crate) fn ci_runs_make_test(sources: &[Source]) -> Vec<Finding> {
    let commands = text(sources, ".ci/run").lines().filter(|line| !line.trim_start().starts_with('#'));
    let calls = |line: &str| line.contains("make ") && line.split_whitespace().any(|word| word == "test");
    if commands.into_iter().any(calls) {
        return Vec::new();
    }
    vec![finding(".ci/run", 1, "calls `make test`".to_owned())]
}

/// Each library has a sentence in ARCHITECTURE.md, and each sentence a library.
pub(crate) fn libraries_are_explained(sources: &[Source]) -> Vec<Finding> {
    let used = dependencies(text(sources, "Cargo.toml"));
    let explained = explained_libraries(text(sources, "ARCHITECTURE.md"));
    let unexplained = used.iter().filter(|(_, name)| !explained.iter().any(|(_, other)| other == name));
    let unused = explained.iter().filter(|(_, name)| !used.iter().any(|(_, other)| other == name));
    let why = |(line, name): &(usize, &str)| {
        finding("Cargo.toml", *line, format!("ARCHITECTURE.md says why `{name}`"))
    };
    let gone = |(line, name): &(usize, &str)| {
        finding("ARCHITECTURE.md", *line, format!("`{name}` is not in Cargo.toml"))
    };
    unexplained.map(why).chain(unused.map(gone)).collect()
}

fn dependencies(manifest: &str) -> Vec<(usize, &str)> {
    let lines = section(manifest, "[workspace.dependencies]", "[");
    let named = lines.filter_map(|(at, line)| Some((at, line.split_once(" = ")?.0)));
    named.filter(|(_, name)| !name.starts_with('#') && !name.starts_with("holdfast")).collect()
}

fn explained_libraries(architecture: &str) -> Vec<(usize, &str)> {
    let rows = section(architecture, "## Libraries", "#");
    rows.filter_map(|(at, row)| Some((at, row.strip_prefix("| `")?.split_once('`')?.0))).collect()
}

/// The numbered lines between a heading and the next line with the prefix `next`.
fn section<'a>(text: &'a str, heading: &'a str, next: &'a str) -> impl Iterator<Item = (usize, &'a str)> {
    let numbered = text.lines().enumerate().map(|(at, line)| (at + 1, line));
    let after = numbered.skip_while(move |(_, line)| *line != heading).skip(1);
    after.take_while(move |(_, line)| !line.starts_with(next))
}

/// Every page has a link to it.
pub(crate) fn pages_are_linked(sources: &[Source]) -> Vec<Finding> {
    let linked: Vec<String> = ["README.md", "docs/README.md"]
        .iter()
        .flat_map(|page| links(page, text(sources, page)))
        .map(|(_, to)| to)
        .collect();
    let pages =
        sources.iter().filter(|source| source.path.starts_with("docs/") && source.path.ends_with(".md"));
    let lost = pages.filter(|page| page.path != "docs/README.md" && !linked.contains(&page.path));
    lost.map(|page| page.finding(1, "linked from README.md or docs/README.md")).collect()
}

/// Every link points to an existing file.
pub(crate) fn links_lead_somewhere(sources: &[Source]) -> Vec<Finding> {
    let leads =
        |to: &str| sources.iter().any(|other| other.path == to || other.path.starts_with(&format!("{to}/")));
    let pages = sources.iter().filter(|source| source.path.ends_with(".md"));
    let links =
        pages.flat_map(|page| links(&page.path, &page.text).into_iter().map(move |link| (page, link)));
    let broken = links.filter(|(_, (_, to))| !leads(to));
    broken.map(|(page, (line, to))| page.finding(line, format!("there is no {to}"))).collect()
}

/// The relative links of a page, as paths in the repository.
fn links(page: &str, text: &str) -> Vec<(usize, String)> {
    let folder = page.rsplit_once('/').map_or("", |(folder, _)| folder);
    let lines = text.lines().enumerate();
    let targets = lines.flat_map(|(at, line)| line.split("](").skip(1).map(move |rest| (at + 1, rest)));
    let cut = targets.filter_map(|(at, rest)| Some((at, rest.split([')', '#']).next()?)));
    let relative = cut.filter(|(_, to)| !to.is_empty() && !to.contains("://"));
    relative.map(|(at, to)| (at, resolve(folder, to))).collect()
}

pub(crate) fn resolve(folder: &str, link: &str) -> String {
    let mut path: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in link.split('/').filter(|part| !part.is_empty() && *part != ".") {
        if part == ".." {
            path.pop();
        } else {
            path.push(part);
        }
    }
    path.join("/")
}

/// `make` alone explains every target.
pub(crate) fn targets_are_explained(sources: &[Source]) -> Vec<Finding> {
    let targets = text(sources, "Makefile").lines().enumerate().filter(|(_, line)| is_target(line));
    let silent = targets.filter(|(_, line)| !line.contains(" ## "));
    silent
        .map(|(at, _)| finding("Makefile", at + 1, "a target ends with `## A sentence.`".to_owned()))
        .collect()
}

fn is_target(line: &str) -> bool {
    let named = line.split_once(':').filter(|(name, _)| !name.contains([' ', '\t', '#', '.', '=']));
    named.is_some_and(|(name, rest)| !name.is_empty() && !rest.starts_with('='))
}

/// The kernel's socket context. One file alone reads it, so that the rest serves packets as well.
const SOCKET_CONTEXT: &str = "bpf_sock_addr";
const SOCKET_HOME: &str = "bpf/socket.bpf.c";

/// The programs' rules work on plain values.
pub(crate) fn sockets_have_one_home(sources: &[Source]) -> Vec<Finding> {
    let programs = sources.iter().filter(|source| source.path.starts_with("bpf/"));
    let others = programs.filter(|source| source.path != SOCKET_HOME);
    let lines =
        others.flat_map(|source| source.text.lines().enumerate().map(move |(at, line)| (source, at, line)));
    let found = lines.filter(|(_, _, line)| line.contains(SOCKET_CONTEXT));
    let rule = format!("`{SOCKET_CONTEXT}` only in {SOCKET_HOME}");
    found.map(|(source, at, _)| source.finding(at + 1, rule.clone())).collect()
}

/// Each invariant has a row, and each guard that a row names is a test.
pub(crate) fn invariants_are_guarded(sources: &[Source]) -> Vec<Finding> {
    (1..=INVARIANTS).flat_map(|number| invariant_is_guarded(sources, number)).collect()
}

fn invariant_is_guarded(sources: &[Source], number: usize) -> Option<Finding> {
    let page = "ARCHITECTURE.md";
    let prefix = format!("invariant_{number:02}_");
    let row =
        text(sources, page).lines().enumerate().find(|(_, line)| line.starts_with(&format!("| {number} |")));
    let Some((at, row)) = row else {
        return Some(finding(page, 1, format!("invariant {number} has no row")));
    };
    match (row.contains(&prefix), has_test(sources, &prefix)) {
        (true, false) => Some(finding(page, at + 1, format!("no test is named `{prefix}…`"))),
        (false, true) => Some(finding(page, at + 1, format!("a test named `{prefix}…` exists; say so"))),
        _ => None,
    }
}

fn has_test(sources: &[Source], prefix: &str) -> bool {
    let declarations = [format!("fn {prefix}"), format!("fn kernel_{prefix}")];
    let declares = |text: &str| declarations.iter().any(|declaration| text.contains(declaration));
    let with_name = |source: &&Source| source.is_rust() && declares(&source.text);
    sources.iter().filter(with_name).any(|source| declares(&code_only(&source.text)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::{TreeRule, assert_none, check_tree, repository};

    #[track_caller]
    fn check_repository(rule: TreeRule) {
        assert_none(&rule(&repository().unwrap()));
    }

    #[test]
    fn marks_of_unfinished_work_are_found() {
        for mark in LEFTOVERS {
            check_tree(no_leftovers, &[("a.rs", &format!("//! A.\n// {mark}: b"))], &[("a.rs", 2)]);
            check_tree(no_leftovers, &[("a.sh", &format!("mktemp a.{mark}{mark}; {mark}_b"))], &[]);
        }
        check_repository(no_leftovers);
    }

    #[test]
    fn readme_says_make_run_and_make_test() {
        check_tree(readme_says_both_commands, &[("README.md", "make run\nmake test\n")], &[]);
        check_tree(readme_says_both_commands, &[("README.md", "make run\n")], &[("README.md", 1)]);
        check_tree(readme_says_both_commands, &[], &[("README.md", 1), ("README.md", 1)]);
        check_repository(readme_says_both_commands);
    }

    #[test]
    fn ci_calls_make_test() {
        check_tree(
            ci_runs_make_test,
            &[(".ci/run", "#!/bin/sh\nexec make --no-print-directory test\n")],
            &[],
        );
        check_tree(ci_runs_make_test, &[(".ci/run", "# make test\ncargo test\n")], &[(".ci/run", 1)]);
        check_repository(ci_runs_make_test);
    }

    #[test]
    fn every_library_has_its_sentence() {
        let manifest =
            ("Cargo.toml", "[workspace.dependencies]\nholdfast = { }\na = \"1\"\n\nb-c = { }\n[x]\nd = 1\n");
        let explained = (
            "ARCHITECTURE.md",
            "| `z` | no |\n## Libraries\n| `a` | why |\n| `b-c` | why |\n### More\n| `y` |",
        );
        check_tree(libraries_are_explained, &[manifest, explained], &[]);
        let half = ("ARCHITECTURE.md", "## Libraries\n| `a` | why |\n| `e` | why |\n");
        check_tree(libraries_are_explained, &[manifest, half], &[("Cargo.toml", 5), ("ARCHITECTURE.md", 3)]);
        check_repository(libraries_are_explained);
    }

    #[test]
    fn every_page_is_linked() {
        let page = ("docs/a.md", "");
        check_tree(pages_are_linked, &[page, ("docs/README.md", "[a](a.md#b)")], &[]);
        check_tree(pages_are_linked, &[page, ("README.md", "[a](docs/a.md)")], &[]);
        check_tree(pages_are_linked, &[page, ("README.md", "[a](a.md) docs/a.md")], &[("docs/a.md", 1)]);
        check_repository(pages_are_linked);
    }

    #[test]
    fn every_link_leads_somewhere() {
        let page = ("docs/a.md", "[r](../README.md) [d](../docs/) [w](https://a.b/c) [s](#s)\n[x](b.md)");
        check_tree(links_lead_somewhere, &[page, ("README.md", "")], &[("docs/a.md", 2)]);
        check_repository(links_lead_somewhere);
    }

    #[test]
    fn every_make_target_has_its_sentence() {
        check_tree(
            targets_are_explained,
            &[("Makefile", ".PHONY: a\nA := b\nC ?= d\na: ## Do a.\n\t@x: y\n")],
            &[],
        );
        check_tree(targets_are_explained, &[("Makefile", "a: ## Do a.\nb: a\n")], &[("Makefile", 2)]);
        check_repository(targets_are_explained);
    }

    #[test]
    fn the_socket_context_outside_its_file_is_found() {
        let line = "struct bpf_sock_addr *ctx;";
        check_tree(sockets_have_one_home, &[("bpf/socket.bpf.c", line), ("docs/a.md", line)], &[]);
        check_tree(sockets_have_one_home, &[("bpf/lb.h", &format!("\n{line}"))], &[("bpf/lb.h", 2)]);
        check_repository(sockets_have_one_home);
    }

    #[test]
    fn every_invariant_has_its_guard() {
        let rows: String =
            (1..=INVARIANTS).map(|n| format!("| {n} | true | `invariant_{n:02}_…` |\n")).collect();
        let tests: String = (1..=INVARIANTS).map(|n| format!("fn invariant_{n:02}_a() {{}}\n")).collect();
        let page = ("ARCHITECTURE.md", rows.as_str());
        check_tree(invariants_are_guarded, &[page, ("a.rs", &tests)], &[]);
        let fewer = tests.replace("fn invariant_03_", "// fn invariant_03_");
        check_tree(invariants_are_guarded, &[page, ("a.rs", &fewer)], &[("ARCHITECTURE.md", 3)]);
        let later = rows.replace("`invariant_09_…`", "later");
        check_tree(
            invariants_are_guarded,
            &[("ARCHITECTURE.md", &later), ("a.rs", &tests)],
            &[("ARCHITECTURE.md", 9)],
        );
        let lost = rows.replace("| 4 |", "| four |");
        check_tree(
            invariants_are_guarded,
            &[("ARCHITECTURE.md", &lost), ("a.rs", &tests)],
            &[("ARCHITECTURE.md", 1)],
        );
        check_repository(invariants_are_guarded);
    }
}
