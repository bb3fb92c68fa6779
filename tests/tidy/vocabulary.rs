//! The words of the project: each that ARCHITECTURE.md lists names something, and none that was given up comes back.
//!
//! Invariant: only names are judged. What a sentence needs for being plain, it may use.

use std::collections::BTreeSet;

use crate::code::{code_only, tokens, without_tests, words};
use crate::tree::{Finding, Source};

const PAGE: &str = "ARCHITECTURE.md";

/// Words that named several things or none. A test's name is a sentence, so a function only may not be called so alone.
const RETIRED: [&str; 8] = ["bench", "moment", "parts", "radix", "shelf", "story", "told", "what"];

const TYPES: [&str; 6] = ["struct", "enum", "trait", "type", "union", "mod"];

/// Each word of the list is in the name of a type, a module or a function.
pub(crate) fn listed_words_are_used(sources: &[Source]) -> Vec<Finding> {
    let Some(page) = sources.iter().find(|source| source.path == PAGE) else { return Vec::new() };
    let used = words_of_names(sources);
    let is_used = |word: &str| used.contains(word) || used.contains(&format!("{word}s"));
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

fn words_of_names(sources: &[Source]) -> BTreeSet<String> {
    let ours = sources.iter().filter(|source| source.is_rust() && source.path.starts_with("daemon/"));
    let code = ours.map(|source| without_tests(&code_only(&source.text)));
    code.flat_map(|code| {
        declared(&code).into_iter().flat_map(|(_, _, name)| words(&name)).collect::<Vec<_>>()
    })
    .collect()
}

/// No type or module has a retired word in its name, and no function is called so.
pub(crate) fn retired_words_stay_away(source: &Source) -> Vec<Finding> {
    let found = declared(&code_only(&source.text)).into_iter().filter_map(|(line, is_function, name)| {
        let is_retired = |word: &String| RETIRED.contains(&word.as_str());
        let word = if is_function { Some(name) } else { words(&name).into_iter().find(is_retired) };
        Some((line, word.filter(is_retired)?))
    });
    found
        .map(|(line, word)| source.finding(line, format!("`{word}` says too little; name what it is")))
        .collect()
}

/// The names that are declared: where, whether it is a function, and which.
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

    #[track_caller]
    fn check_retired(code: &str, lines: &[usize]) {
        let found = retired_words_stay_away(&Source::new("a.rs", code));
        assert_eq!(found.iter().map(|finding| finding.line).collect::<Vec<_>>(), lines, "{code}");
    }

    #[test]
    fn each_word_of_the_list_names_something() {
        check_listed("| slot | one |\n", "struct FreeSlots;", &[]);
        check_listed("| slot, op | one |\n| hold | so |\n", "fn slot() {}\nmod hold;", &[5]);
        check_listed("| slot | one |\n", "// struct Slot\nlet slot = 1;", &[5]);
        check_listed("| slot | one |\n", "#[cfg(test)]\nmod tests {\n    struct Slot;\n}\n", &[5]);
        assert_none(&listed_words_are_used(&repository().unwrap()));
    }

    #[test]
    fn retired_words_do_not_come_back() {
        check_retired("struct TopShelf;\nmod told;\nenum What {}\ntype Parts = u8;", &[1, 2, 3, 4]);
        check_retired(
            "fn told() {}\nfn who_is_told() {}\nstruct History;\nlet what = 1;\nmod benches;",
            &[1],
        );
        let sources = repository().unwrap();
        let judged = sources.iter().filter(|source| source.is_rust());
        assert_none(&judged.flat_map(retired_words_stay_away).collect::<Vec<_>>());
    }
}
