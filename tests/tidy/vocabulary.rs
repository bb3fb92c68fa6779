//! Checks the glossary: each word that ARCHITECTURE.md lists is in a name.
//!
//! Invariant: only names are checked. Prose may use any word.

use crate::code::{code_only, tokens, without_tests, words};
use crate::tree::{Finding, Source};

const PAGE: &str = "ARCHITECTURE.md";

const TYPES: [&str; 6] = ["struct", "enum", "trait", "type", "union", "mod"];

/// Each listed word is in the name of a type, a module, a function or a file of the programs.
pub(crate) fn listed_words_are_used(sources: &[Source]) -> Vec<Finding> {
    let Some(page) = sources.iter().find(|source| source.path == PAGE) else { return Vec::new() };
    let names = all_names(sources);
    let is_used = |word: &str| names.contains(&format!(" {word} ")) || names.contains(&format!(" {word}s "));
    let unused = listed(&page.text).filter(|(_, word)| !is_used(word));
    unused.map(|(line, word)| page.finding(line, format!("nothing is called `{word}`"))).collect()
}

/// The words of the first column, with their lines.
fn listed(page: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = page.lines().enumerate().map(|(at, line)| (at + 1, line));
    let chapter = lines.skip_while(|(_, line)| *line != "## Words").skip(1);
    let rows =
        chapter.take_while(|(_, line)| !line.starts_with('#')).filter(|(_, line)| line.starts_with("| "));
    rows.skip(1).flat_map(|(at, row)| {
        let first = row.split('|').nth(1).unwrap_or_default();
        first.split(',').map(move |word| (at, word.trim()))
    })
}

/// Every name as its words between spaces: ` event sink ` for `EventSink`.
fn all_names(sources: &[Source]) -> String {
    let ours = |source: &&Source| source.path.starts_with("daemon/") || source.path.starts_with("bpf/");
    sources
        .iter()
        .filter(ours)
        .flat_map(names_in)
        .map(|name| format!(" {} ", words(&name).join(" ")))
        .collect()
}

/// The names that a Rust file declares, or that a file of the programs mentions.
fn names_in(source: &Source) -> Vec<String> {
    let code = code_only(&source.text);
    let stem = source.path.rsplit('/').next().unwrap_or_default().split('.').next().unwrap_or_default();
    if source.is_rust() {
        let declared = declared(&without_tests(&code)).into_iter().map(|(_, _, name)| name);
        return declared.chain([stem.to_owned()]).collect();
    }
    tokens(&code).map(str::to_owned).chain([stem.to_owned()]).collect()
}

/// The declared names: the line of each, whether it is a function's, and the name.
fn declared(code: &str) -> Vec<(usize, bool, String)> {
    let lines = code.lines().enumerate();
    let names = lines.filter_map(|(at, line)| {
        let mut tokens = tokens(line);
        let keyword = tokens.find(|token| *token == "fn" || TYPES.contains(token))?;
        Some((at + 1, keyword == "fn", tokens.next()?.to_owned()))
    });
    names.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::{assert_none, repository};

    #[track_caller]
    fn check_listed(rows: &str, code: &str, lines: &[usize]) {
        let page = format!("## Words\n\n| word | is |\n|---|---|\n{rows}\n## More\n\n| other | is |\n");
        let sources = [Source::new(PAGE, &page), Source::new("daemon/src/a.rs", code)];
        let found: Vec<usize> = listed_words_are_used(&sources).iter().map(|finding| finding.line).collect();
        assert_eq!(found, lines, "{rows}: {code}");
    }

    #[test]
    fn each_word_of_the_list_names_something() {
        check_listed("| slot | one |\n", "struct FreeSlots;", &[]);
        check_listed("| slot, op | one |\n| hold | so |\n", "fn slot() {}\nmod hold;", &[5]);
        check_listed("| free slot | one |\n", "struct FreeSlots;", &[]);
        check_listed("| free slot | one |\n", "struct Free;\nstruct Slot;", &[5]);
        check_listed("| slot | one |\n", "// struct Slot\nlet slot = 1;", &[5]);
        check_listed("| slot | one |\n", "#[cfg(test)]\nmod tests {\n    struct Slot;\n}\n", &[5]);
        assert_none(&listed_words_are_used(&repository().unwrap()));
    }
}
