//! Checks what the pages for developers say about files: each path exists, and each hop of a walk names something that
//! its file declares.
//!
//! Invariant: only paths in backticks are checked. A path with a placeholder stands for many and is skipped.

use crate::code::{code_only, is_word, tokens};
use crate::tree::{Finding, Source};

const PAGES: [&str; 3] = ["ARCHITECTURE.md", "README.md", "docs/develop.md"];

/// The top folders of the repository. A text that begins with one of them and a `/` is a path.
const TOPS: [&str; 9] =
    ["daemon", "bpf", "tests", "docs", "scripts", "contrib", "packaging", "knowledge", "examples"];

/// A newcomer reads this page first and does not finish a longer one.
const ARCHITECTURE_LINES_MAX: usize = 300;

/// The words that declare a name in Rust.
const KEYWORDS: [&str; 8] = ["fn", "struct", "enum", "trait", "const", "static", "mod", "type"];

/// Each path that a page names is an existing file or folder.
pub(crate) fn paths_exist(sources: &[Source]) -> Vec<Finding> {
    let missing = named_paths(sources).filter(|(_, span)| !exists(sources, span.path));
    missing.map(|(page, span)| page.finding(span.line, format!("there is no {}", span.path))).collect()
}

/// Each name behind a path, as in "`file.rs`: `name`", is declared in that file.
pub(crate) fn hops_are_declared(sources: &[Source]) -> Vec<Finding> {
    let hops = named_paths(sources).filter_map(|(page, Span { line, path, name })| {
        Some((page, line, sources.iter().find(|source| source.path == path)?, name?))
    });
    let undeclared = hops.filter(|(_, _, file, name)| !declares(file, name));
    undeclared
        .map(|(page, line, file, name)| page.finding(line, format!("{} declares no `{name}`", file.path)))
        .collect()
}

/// ARCHITECTURE.md stays below its limit.
pub(crate) fn architecture_is_short(sources: &[Source]) -> Vec<Finding> {
    let pages = sources.iter().filter(|source| source.path == "ARCHITECTURE.md");
    let lengths = pages.map(|page| (page, page.text.lines().count()));
    let long = lengths.filter(|(_, lines)| *lines > ARCHITECTURE_LINES_MAX);
    let rule = |lines| format!("{lines} lines; at most {ARCHITECTURE_LINES_MAX}");
    long.map(|(page, lines)| page.finding(ARCHITECTURE_LINES_MAX, rule(lines))).collect()
}

/// A path in backticks with its line, and the name that follows it behind a colon.
struct Span<'a> {
    line: usize,
    path: &'a str,
    name: Option<&'a str>,
}

/// The paths in the pages.
fn named_paths(sources: &[Source]) -> impl Iterator<Item = (&Source, Span<'_>)> {
    let pages = sources.iter().filter(|source| PAGES.contains(&source.path.as_str()));
    pages.flat_map(|page| spans(&page.text).into_iter().map(move |span| (page, span)))
}

/// The paths in one page. Of a command, only the program counts.
fn spans(page: &str) -> Vec<Span<'_>> {
    let parts: Vec<&str> = page.split('`').collect();
    let lines = parts.iter().scan(1, |next, part| {
        let line = *next;
        *next += part.matches('\n').count();
        Some(line)
    });
    let code = parts.iter().zip(lines).enumerate().skip(1).step_by(2);
    let named = code.filter_map(|(at, (code, line))| {
        let path = code.split_whitespace().next()?.trim_end_matches('/');
        let name = parts.get(at + 2).filter(|_| parts.get(at + 1) == Some(&": "));
        is_path(path).then_some(Span { line, path, name: name.copied() })
    });
    named.collect()
}

/// Whether this is the path of one file or folder of the repository, not a pattern for many.
fn is_path(text: &str) -> bool {
    let is_of_ours = TOPS.iter().any(|top| text.strip_prefix(top).is_some_and(|rest| rest.starts_with('/')));
    is_of_ours && !text.contains(['*', '{', '…', '<']) && !tokens(text).any(is_placeholder)
}

fn is_placeholder(word: &str) -> bool {
    word == "vN" || (word != "README" && word.len() > 1 && word.chars().all(char::is_uppercase))
}

fn exists(sources: &[Source], path: &str) -> bool {
    let is_below = |source: &Source| source.path.strip_prefix(path).is_some_and(|rest| rest.starts_with('/'));
    sources.iter().any(|source| source.path == path || is_below(source))
}

fn declares(file: &Source, name: &str) -> bool {
    if file.is_rust() {
        code_only(&file.text).lines().any(|line| is_rust_declaration(line, name))
    } else {
        file.text.lines().any(|line| is_c_declaration(line, name))
    }
}

fn is_rust_declaration(line: &str, name: &str) -> bool {
    let words: Vec<&str> = tokens(line).collect();
    words.iter().zip(words.iter().skip(1)).any(|(keyword, word)| KEYWORDS.contains(keyword) && *word == name)
}

/// A C function is declared at the beginning of a line; calls are indented.
fn is_c_declaration(line: &str, name: &str) -> bool {
    let is_outside = line.starts_with(is_word);
    let call = format!("{name}(");
    is_outside
        && line
            .match_indices(&call)
            .any(|(at, _)| line.get(..at).is_some_and(|before| before.ends_with([' ', '*'])))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::{assert_none, repository};

    const RUST: &str =
        "pub(crate) fn run() { stop(); }\n// fn walk()\n    pub struct Way;\nconst MOST: u8 = 1;\n";
    const C: &str = "INLINE int come(void)\n{\n\treturn go(1);\n}\nstatic struct way *ways(void);\n";

    #[track_caller]
    fn check(rule: fn(&[Source]) -> Vec<Finding>, page: &str, text: &str, lines: &[usize]) {
        let page = Source::new(page, text);
        let sources = [page, Source::new("daemon/a/src/b.rs", RUST), Source::new("bpf/c.h", C)];
        let found: Vec<usize> = rule(&sources).iter().map(|finding| finding.line).collect();
        assert_eq!(found, lines, "{text}");
    }

    #[test]
    fn each_path_of_a_page_exists() {
        for page in PAGES {
            check(
                paths_exist,
                page,
                "`daemon/a/src/b.rs` `daemon/a` `daemon/a/`\n`bpf/c.h` `a/b` `c.h`",
                &[],
            );
            check(paths_exist, page, "\nsee `daemon/a/src/c.rs`, `bpf/c`", &[2, 2]);
        }
        check(
            paths_exist,
            "README.md",
            "```\na/b\n```\n`make\na` `daemon/A.rs` `daemon/Cargo.toml`",
            &[5, 5],
        );
        check(paths_exist, "README.md", "`scripts/a.sh 5.10`\nscripts/a.sh", &[1]);
        check(
            paths_exist,
            "README.md",
            "`daemon/*/b` `tests/{a,b}` `tests/a-….rs` `daemon/NAME.rs` `tests/a.vN`",
            &[],
        );
        check(paths_exist, "docs/packets.md", "`daemon/gone`", &[]);
        assert_none(&paths_exist(&repository().unwrap()));
    }

    #[test]
    fn each_hop_of_a_walk_is_declared() {
        let hop = |path: &str, name: &str| format!("1. `{path}`: `{name}` goes on with `else`.");
        for name in ["run", "Way", "MOST"] {
            check(hops_are_declared, PAGES[0], &hop("daemon/a/src/b.rs", name), &[]);
        }
        for name in ["stop", "walk", "Ways", "way"] {
            check(hops_are_declared, PAGES[0], &hop("daemon/a/src/b.rs", name), &[1]);
        }
        check(
            hops_are_declared,
            PAGES[0],
            &format!("{}\n{}", hop("bpf/c.h", "come"), hop("bpf/c.h", "ways")),
            &[],
        );
        check(
            hops_are_declared,
            PAGES[0],
            &format!("{}\n{}", hop("bpf/c.h", "go"), hop("bpf/c.h", "me")),
            &[1, 2],
        );
        assert_none(&hops_are_declared(&repository().unwrap()));
    }

    #[test]
    fn an_architecture_page_above_its_limit_is_found() {
        let lines = |count: usize| "a\n".repeat(count);
        check(architecture_is_short, PAGES[0], &lines(ARCHITECTURE_LINES_MAX), &[]);
        check(architecture_is_short, PAGES[0], &lines(ARCHITECTURE_LINES_MAX + 1), &[ARCHITECTURE_LINES_MAX]);
        check(architecture_is_short, PAGES[1], &lines(ARCHITECTURE_LINES_MAX + 1), &[]);
        assert_none(&architecture_is_short(&repository().unwrap()));
    }
}
