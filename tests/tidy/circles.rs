//! Which file of core needs which: none is in a circle with another.
//!
//! Invariant: a module and what lies below it are one room, and may know each other; any two others know each other one
//! way at most, also over a third.

use std::collections::{BTreeMap, BTreeSet};

use crate::code::{code_only, without_tests};
use crate::tree::{Finding, Source};

const CORE: &str = "daemon/core/src/";

/// The modules that each module names.
type Needs = BTreeMap<String, BTreeSet<String>>;

/// No file of core is in a circle with another one.
pub(crate) fn no_circle_in_core(sources: &[Source]) -> Vec<Finding> {
    let files: BTreeMap<String, &Source> =
        sources.iter().filter_map(|source| Some((module(source)?, source))).collect();
    let known: BTreeSet<&str> = files.keys().map(String::as_str).collect();
    let needs: Needs =
        files.iter().map(|(module, source)| (module.clone(), needed(module, &source.text, &known))).collect();
    let in_circle = |(module, source): (&String, &&Source)| {
        let back = needs.get(module)?.iter().find(|other| reaches(other, module, &needs))?;
        Some(source.finding(1, format!("in a circle with `{back}`, which needs it too")))
    };
    files.iter().filter_map(in_circle).collect()
}

/// `world::plan` for `daemon/core/src/world/plan.rs`; tests may know everything.
fn module(source: &Source) -> Option<String> {
    let path = source.path.strip_prefix(CORE)?.strip_suffix(".rs")?;
    let is_test = path.split('/').any(|part| part == "tests");
    (!is_test && path != "lib").then(|| path.replace('/', "::"))
}

fn needed(module: &str, text: &str, known: &BTreeSet<&str>) -> BTreeSet<String> {
    let parent = module.rsplit_once("::").map_or("", |(parent, _)| parent);
    let paths = paths(&without_tests(&code_only(text)), parent);
    let modules = paths.iter().filter_map(|path| longest_known(path, known));
    modules.filter(|other| !is_one_room(module, other)).collect()
}

/// What stands after `crate::` and `super::`, each item of a brace alone, as paths from the crate's root.
fn paths(code: &str, parent: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (root, prefix) in [("crate::", ""), ("super::", parent)] {
        for (at, _) in code.match_indices(root) {
            let rest = code.get(at + root.len()..).unwrap_or_default();
            let end =
                rest.find(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':')).unwrap_or(rest.len());
            let (stem, after) = rest.split_at(end);
            let items = after.strip_prefix('{').and_then(|inside| Some(inside.split_once('}')?.0));
            let items = items.filter(|_| stem.is_empty() || stem.ends_with("::")).unwrap_or_default();
            found.extend(items.split(',').map(|item| joined(prefix, &format!("{stem}{}", item.trim()))));
        }
    }
    found
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

    fn file(name: &str, text: &str) -> Source {
        Source::new(&format!("{CORE}{name}.rs"), text)
    }

    #[track_caller]
    fn check(files: &[(&str, &str)], in_circles: &[&str]) {
        let sources: Vec<Source> = files.iter().map(|(name, text)| file(name, text)).collect();
        let found: Vec<String> =
            no_circle_in_core(&sources).into_iter().map(|finding| finding.path).collect();
        let expected: Vec<String> = in_circles.iter().map(|name| format!("{CORE}{name}.rs")).collect();
        assert_eq!(found, expected, "{files:?}");
    }

    #[test]
    fn no_file_of_core_is_in_a_circle_with_another() {
        check(&[("a", "use crate::b::B;"), ("b", "use crate::a;")], &["a", "b"]);
        check(
            &[("a", "use crate::b::B;"), ("b", "use crate::c;"), ("c", "fn f(_: crate::a::A)")],
            &["a", "b", "c"],
        );
        check(&[("a", "use crate::b::B;"), ("b", "use crate::c::{D, E};"), ("c", "")], &[]);
        check(&[("w", "mod x;\nuse crate::w::x::X;"), ("w/x", "use super::W;")], &[]);
        check(&[("w/x", "use super::{W, y::Y};"), ("w/y", "use super::x;"), ("w", "")], &["w/x", "w/y"]);
        check(
            &[
                ("a", "// use crate::b;\nuse crate::b;"),
                ("b", "#[cfg(test)]\nmod tests {\n    use crate::a;\n}\n"),
            ],
            &[],
        );
        assert_none(&no_circle_in_core(&repository().unwrap()));
    }
}
