//! Finds circles among the files of a crate.
//!
//! Invariant: a module and its submodules are one unit and may use each other. Between two other modules, uses go one
//! way only, also through a third one.

use std::collections::{BTreeMap, BTreeSet};

use crate::code::{code_only, without_tests};
use crate::tree::{Finding, Source};

/// The modules that each module uses.
type Needs = BTreeMap<String, BTreeSet<String>>;

/// No file of a crate is in a circle with another file of it.
pub(crate) fn no_circle_of_files(sources: &[Source]) -> Vec<Finding> {
    shipped_crates(sources).iter().flat_map(|root| circles_in(root, sources)).collect()
}

/// The folders with the sources of the crates that are shipped.
fn shipped_crates(sources: &[Source]) -> Vec<&str> {
    let roots = sources.iter().filter(|source| source.path.starts_with("daemon/"));
    roots
        .filter_map(|source| source.path.strip_suffix("lib.rs").filter(|root| root.ends_with("/src/")))
        .collect()
}

fn circles_in(root: &str, sources: &[Source]) -> Vec<Finding> {
    let files: BTreeMap<String, &Source> =
        sources.iter().filter_map(|source| Some((module(source, root)?, source))).collect();
    let known: BTreeSet<&str> = files.keys().map(String::as_str).collect();
    let needs: Needs =
        files.iter().map(|(module, source)| (module.clone(), needed(module, &source.text, &known))).collect();
    let in_circle = |(module, source): (&String, &&Source)| {
        let back = needs.get(module)?.iter().find(|other| reaches(other, module, &needs))?;
        Some(source.finding(1, format!("in a circle with `{back}`, which needs it too")))
    };
    files.iter().filter_map(in_circle).collect()
}

/// `world::plan` for `daemon/core/src/world/plan.rs`. Tests have no module here: they may use everything.
fn module(source: &Source, root: &str) -> Option<String> {
    let path = source.path.strip_prefix(root)?.strip_suffix(".rs")?;
    let is_test = path.split('/').any(|part| part == "tests");
    let is_root = matches!(path, "lib" | "main");
    (!is_test && !is_root).then(|| path.replace('/', "::"))
}

fn needed(module: &str, text: &str, known: &BTreeSet<&str>) -> BTreeSet<String> {
    let parent = module.rsplit_once("::").map_or("", |(parent, _)| parent);
    let paths = paths(&without_tests(&code_only(text)), parent);
    let modules = paths.iter().filter_map(|path| longest_known(path, known));
    modules.filter(|other| !is_one_room(module, other)).collect()
}

/// The paths after `crate::` and `super::`, from the crate's root. Each item in braces is a path of its own.
fn paths(code: &str, parent: &str) -> Vec<String> {
    let of_root = code.match_indices(ROOT).map(|(at, _)| (at + ROOT.len(), String::new()));
    let is_first = |at: &usize| !code.get(..*at).unwrap_or_default().ends_with(UP);
    let ups = code.match_indices(UP).map(|(at, _)| at).filter(is_first);
    let of_parents = ups.map(|at| {
        let chain = code.get(at..).unwrap_or_default();
        let steps = chain.split(UP).take_while(|it| it.is_empty()).count().max(1);
        let above = (1..steps).fold(parent, |it, _| it.rsplit_once("::").map_or("", |(above, _)| above));
        (at + steps * UP.len(), above.to_owned())
    });
    of_root.chain(of_parents).flat_map(|(at, prefix)| items(code, at, &prefix)).collect()
}

const ROOT: &str = "crate::";
const UP: &str = "super::";

/// The paths that begin at this position.
fn items(code: &str, at: usize, prefix: &str) -> Vec<String> {
    let rest = code.get(at..).unwrap_or_default();
    let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':')).unwrap_or(rest.len());
    let (stem, after) = rest.split_at(end);
    let items = after.strip_prefix('{').and_then(|inside| Some(inside.split_once('}')?.0));
    let items = items.filter(|_| stem.is_empty() || stem.ends_with("::")).unwrap_or_default();
    items.split(',').map(|item| joined(prefix, &format!("{stem}{}", item.trim()))).collect()
}

fn joined(prefix: &str, path: &str) -> String {
    if prefix.is_empty() { path.to_owned() } else { format!("{prefix}::{path}") }
}

fn longest_known(path: &str, known: &BTreeSet<&str>) -> Option<String> {
    let ends = path.match_indices("::").map(|(at, _)| at).chain([path.len()]);
    let prefixes: Vec<&str> = ends.filter_map(|end| path.get(..end)).collect();
    prefixes.into_iter().rev().find(|prefix| known.contains(prefix)).map(str::to_owned)
}

fn is_one_room(a: &str, b: &str) -> bool {
    let is_below =
        |inner: &str, outer: &str| inner.strip_prefix(outer).is_some_and(|it| it.starts_with("::"));
    a == b || is_below(a, b) || is_below(b, a)
}

fn reaches(from: &str, to: &str, needs: &Needs) -> bool {
    let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
    while let Some(module) = next.pop() {
        if module == to {
            return true;
        }
        if seen.insert(module) {
            next.extend(needs.get(module).into_iter().flatten().map(String::as_str));
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::{assert_none, repository};

    fn file(root: &str, (name, text): &(&str, &str)) -> Source {
        Source::new(&format!("{root}{name}.rs"), text)
    }

    #[track_caller]
    fn check(files: &[(&str, &str)], in_circles: &[&str]) {
        for root in ["daemon/agent/src/", "daemon/src/"] {
            let sources: Vec<Source> = [("lib", "")].iter().chain(files).map(|it| file(root, it)).collect();
            let found: Vec<String> =
                no_circle_of_files(&sources).into_iter().map(|finding| finding.path).collect();
            let expected: Vec<String> = in_circles.iter().map(|name| format!("{root}{name}.rs")).collect();
            assert_eq!(found, expected, "{files:?}");
        }
    }

    #[test]
    fn circles_of_modules_are_found() {
        check(&[("a", "use crate::b::B;"), ("b", "use crate::a;")], &["a", "b"]);
        check(
            &[("a", "use crate::b::B;"), ("b", "use crate::c;"), ("c", "fn f(_: crate::a::A)")],
            &["a", "b", "c"],
        );
        check(&[("a", "use crate::b::B;"), ("b", "use crate::c::{D, E};"), ("c", "")], &[]);
        check(&[("w", "mod x;\nuse crate::w::x::X;"), ("w/x", "use super::W;")], &[]);
        check(&[("w/x", "use super::super::v;"), ("w", ""), ("v", "use crate::w::x;")], &["v", "w/x"]);
        check(&[("w/x", "use super::{W, y::Y};"), ("w/y", "use super::x;"), ("w", "")], &["w/x", "w/y"]);
        check(
            &[
                ("a", "// use crate::b;\nuse crate::b;"),
                ("b", "#[cfg(test)]\nmod tests {\n    use crate::a;\n}\n"),
            ],
            &[],
        );
        assert_none(&no_circle_of_files(&repository().unwrap()));
    }
}
