//! Counts names that name nothing: types and functions called by a bare participle, pronoun or adverb, and names that
//! two public types of one crate share.
//!
//! Invariant: the limits are those of ztunnel and linkerd2-proxy, counted in the same way. The rule judges a share and
//! no single name, because some participles are the field's own words.

use std::collections::BTreeMap;

use crate::code::{code_only, tokens, without_tests, words};
use crate::tree::{Finding, Source};

/// Limits per 1,000: types, functions, and functions that begin with `of_` or end with `_of`.
const TYPES_MAX: usize = 15;
const FUNCTIONS_MAX: usize = 10;
const GENITIVES_MAX: usize = 2;

const TYPES: [&str; 3] = ["struct", "enum", "trait"];

/// Participles that do not end with `ed`.
const PARTICIPLES: &str = "said told kept heard met led found given taken made known meant seen shown written read held \
    put cut left lost gone done begun chosen drawn grown hidden risen sent set sought spent spoken stood thought torn \
    understood woken won worn bound built fed felt fought got hung laid let lit paid sold shut slept stuck swept taught";

/// Pronouns and adverbs: they refer to a thing and do not name it.
const POINTERS: &str = "of it who whom whose what which why when where way well worth few all any other others beside \
    before after again alone ahead away back here there near past apart together later latest now never then so such \
    same either both more most less least first last next own one two many much";

/// Names from Rust's own libraries, and verbs that look like participles.
const FUNCTIONS_ALLOWED: &str = "next first last all any now read set put get let then one most min max when left both \
    back cut sent held shared";

/// Participles that are nouns too.
const TYPES_ALLOWED: &str = "set bound next one key shared seed need speed";

/// A declared type or function.
struct Declaration<'a> {
    source: &'a Source,
    line: usize,
    keyword: String,
    name: String,
    takes_mut_self: bool,
    is_public: bool,
}

impl Declaration<'_> {
    fn is_function(&self) -> bool {
        self.keyword == "fn"
    }

    fn finding(&self, rule: &str) -> Finding {
        self.source.finding(self.line, format!("`{}` {rule}", self.name))
    }
}

fn is_bare_type(it: &Declaration<'_>) -> bool {
    !it.is_function() && is_single_word(&it.name) && is_bare(&it.name.to_lowercase(), TYPES_ALLOWED)
}

fn is_bare_function(it: &Declaration<'_>) -> bool {
    it.is_function() && !it.name.contains('_') && is_bare(&it.name, FUNCTIONS_ALLOWED)
}

fn is_genitive(it: &Declaration<'_>) -> bool {
    it.is_function() && (it.name.starts_with("of_") || it.name.ends_with("_of"))
}

fn is_single_word(name: &str) -> bool {
    words(name).len() == 1
}

fn is_bare(name: &str, allowed: &str) -> bool {
    let is_in = |list: &str| list.split_whitespace().any(|word| word == name);
    let is_participle = name.len() > 4 && name.ends_with("ed") && !name.ends_with("eed");
    !is_in(allowed) && (is_participle || is_in(PARTICIPLES) || is_in(POINTERS))
}

/// Few types and functions have a name that names nothing.
pub(crate) fn names_name_things(sources: &[Source]) -> Vec<Finding> {
    let all = declarations(sources);
    let (functions, types): (Vec<&Declaration<'_>>, Vec<&Declaration<'_>>) =
        all.iter().partition(|it| it.is_function());
    let mut findings = above(&types, is_bare_type, TYPES_MAX, "does not say what the type is");
    findings.extend(above(&functions, is_bare_function, FUNCTIONS_MAX, "is no verb with an object"));
    findings.extend(above(&functions, is_genitive, GENITIVES_MAX, "names a relation, not a value"));
    findings
}

/// Every name that the rule counts, if their share exceeds the limit.
fn above(
    all: &[&Declaration<'_>],
    counts: fn(&Declaration<'_>) -> bool,
    limit: usize,
    rule: &str,
) -> Vec<Finding> {
    let counted = all.iter().filter(|it| counts(it));
    if counted.clone().count() * 1000 <= limit * all.len() {
        return Vec::new();
    }
    let rule = format!("{rule}; of 1,000 names at most {limit} may be like it");
    counted.map(|it| it.finding(&rule)).collect()
}

/// A function that asks a question changes nothing.
pub(crate) fn questions_change_nothing(sources: &[Source]) -> Vec<Finding> {
    let is_question = |name: &str| name.starts_with("is_") || name.starts_with("has_");
    let changing = declarations(sources).into_iter().filter(|it| it.takes_mut_self && is_question(&it.name));
    changing.map(|it| it.finding("asks, and takes `&mut self`")).collect()
}

/// Two public types of one crate have different names.
pub(crate) fn public_types_are_unique(sources: &[Source]) -> Vec<Finding> {
    let mut first = BTreeMap::new();
    let public = declarations(sources).into_iter().filter(|it| it.is_public && !it.is_function());
    let twins = public.filter_map(|it| {
        let key = (it.source.path.split("/src/").next()?.to_owned(), it.name.clone());
        let place = format!("{}:{}", it.source.path, it.line);
        let taken = first.insert(key, place)?;
        Some(it.finding(&format!("is the name of a type at {taken} too")))
    });
    twins.collect()
}

fn declarations(sources: &[Source]) -> Vec<Declaration<'_>> {
    sources.iter().filter(|source| is_production(&source.path)).flat_map(declared_in).collect()
}

fn is_production(path: &str) -> bool {
    let is_test = |part: &str| ["tests", "benches", "tests.rs", "build.rs"].contains(&part);
    path.starts_with("daemon/") && path.ends_with(".rs") && !path.split('/').any(is_test)
}

fn declared_in(source: &Source) -> Vec<Declaration<'_>> {
    let code = without_tests(&code_only(&source.text));
    let lines: Vec<&str> = code.lines().collect();
    let declared = lines.iter().enumerate().filter_map(|(at, line)| {
        let (keyword, name) = keyword_and_name(line).filter(|_| !line.contains('$'))?;
        let head: String = lines.iter().skip(at).take(3).flat_map(|line| line.chars()).collect();
        let takes_mut_self =
            head.split_once('(').is_some_and(|(_, rest)| rest.trim_start().starts_with("&mut self"));
        let is_public = line.trim_start().starts_with("pub ");
        Some(Declaration { source, line: at + 1, keyword, name, takes_mut_self, is_public })
    });
    declared.collect()
}

/// `fn` and `name` for `pub(crate) const fn name(`.
fn keyword_and_name(line: &str) -> Option<(String, String)> {
    const BEFORE: [&str; 8] = ["pub", "crate", "super", "in", "const", "async", "unsafe", "extern"];
    let mut words = tokens(line).skip_while(|token| BEFORE.contains(token));
    let keyword = words.next().filter(|word| *word == "fn" || TYPES.contains(word))?;
    Some((keyword.to_owned(), words.next()?.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::{assert_none, repository};

    #[track_caller]
    fn check(rule: fn(&[Source]) -> Vec<Finding>, code: &str, lines: &[usize]) {
        let sources = [Source::new("daemon/a/src/b.rs", code)];
        let found: Vec<usize> = rule(&sources).iter().map(|finding| finding.line).collect();
        assert_eq!(found, lines, "{code}");
    }

    #[test]
    fn bare_participles_are_counted() {
        check(
            names_name_things,
            "struct Asked;\nstruct AskedPort;\nenum Speed {}\npub trait Whose {}",
            &[1, 4],
        );
        check(names_name_things, "fn told() {}\nfn next() {}\npub(super) const fn kept_lists() {}", &[1]);
        check(names_name_things, "fn of_pod() {}\nfn port_of() {}\nfn offer() {}", &[1, 2]);
        check(names_name_things, "#[cfg(test)]\nmod tests {\n    struct Asked;\n}", &[]);
    }

    #[test]
    fn a_share_within_its_limit_passes() {
        let many: String = (0..100).map(|n| format!("fn load{n}() {{}}\n")).collect();
        check(names_name_things, &format!("{many}fn told() {{}}"), &[]);
        check(names_name_things, &format!("{many}fn told() {{}}\nfn kept() {{}}"), &[101, 102]);
    }

    #[test]
    fn a_question_that_changes_is_found() {
        check(questions_change_nothing, "fn is_there(&mut self) {}\nfn has_room(&self) {}", &[1]);
        check(questions_change_nothing, "fn is_there<T>(\n    &mut self,\n) {}\nfn mark(&mut self) {}", &[1]);
    }

    #[test]
    fn a_public_name_stands_once_in_a_crate() {
        check(public_types_are_unique, "pub struct A;\nmod b {\n    pub enum A {}\n}\nstruct A;", &[3]);
    }

    #[test]
    fn the_repository_stays_within_the_shares() {
        let sources = repository().unwrap();
        assert_none(&names_name_things(&sources));
        assert_none(&questions_change_nothing(&sources));
        assert_none(&public_types_are_unique(&sources));
    }
}
