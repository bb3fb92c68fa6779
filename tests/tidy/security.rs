//! docs/security.md and docs/versions.md promise nothing without a test.
//!
//! Invariant: each row of their tables names at least one test of this repository. Whether the test shows what the
//! sentence says is for reviewers.

use crate::code::code_only;
use crate::tree::{Finding, Source};

const PAGES: [&str; 2] = ["docs/security.md", "docs/versions.md"];

/// Checks that each row of the pages names tests, and that they exist.
pub(crate) fn promises_are_shown(sources: &[Source]) -> Vec<Finding> {
    let code: Vec<String> =
        sources.iter().filter(|source| source.is_rust()).map(|source| code_only(&source.text)).collect();
    let is_test = |name: &str| {
        let declaration = format!("fn {name}(");
        code.iter().any(|text| text.contains(&declaration))
    };
    let pages = sources.iter().filter(|source| PAGES.contains(&source.path.as_str()));
    pages.flat_map(|page| rows(page).filter_map(|(line, row)| judge(page, line, row, is_test))).collect()
}

/// The rows of all tables, without heads and rules.
fn rows(page: &Source) -> impl Iterator<Item = (usize, &str)> {
    let numbered = page.text.lines().enumerate().map(|(at, line)| (at + 1, line));
    numbered.filter(|(_, line)| line.starts_with("| ") && !line.ends_with("| shown by |"))
}

fn judge(page: &Source, line: usize, row: &str, is_test: impl Fn(&str) -> bool) -> Option<Finding> {
    let names = row.trim_end_matches('|').rsplit('|').next().unwrap_or_default();
    let names: Vec<&str> = names.split('`').skip(1).step_by(2).collect();
    if names.is_empty() {
        return Some(page.finding(line, "name the test that shows it"));
    }
    let missing = names.into_iter().find(|name| !is_test(name))?;
    Some(page.finding(line, format!("there is no test `{missing}`")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::{assert_none, repository};

    #[track_caller]
    fn check(row: &str, expected: &[usize]) {
        let page = format!("# Security\n\n| it | shown by |\n|---|---|\n{row}\n");
        let sources = [Source::new(PAGES[0], &page), Source::new("a.rs", "fn a_b() {}\n// fn c_d() {}\n")];
        let found: Vec<usize> = promises_are_shown(&sources).iter().map(|finding| finding.line).collect();
        assert_eq!(found, expected, "{row}");
    }

    #[test]
    fn a_promise_without_an_existing_test_is_found() {
        check("| cannot | `a_b` |", &[]);
        check("| cannot `x` | `a_b`, `c_d` |", &[5]);
        check("| cannot `a_b` | |", &[5]);
        assert_none(&promises_are_shown(&repository().unwrap()));
    }
}
