//! Rust text in the forms that the rules need: without comments and literals, without tests, as words.
//!
//! Invariant: each function keeps the line numbers of its input. There is no parser: rustfmt's layout is enough, and
//! `make check` enforces it.

/// Blanks out comments, strings and characters, and leaves only code.
pub(crate) fn code_only(text: &str) -> String {
    let blank = |c: char| if c == '\n' { '\n' } else { ' ' };
    rewritten(text, |head, _| head.chars().map(blank).collect())
}

/// Removes the contents of strings and characters.
pub(crate) fn without_literals(text: &str) -> String {
    let lines = |head: &str| head.chars().filter(|c| *c == '\n').collect();
    rewritten(text, |head, is_comment| if is_comment { head.to_owned() } else { lines(head) })
}

/// Replaces each comment and literal; the second argument of `replace` is true for a comment.
fn rewritten(text: &str, replace: impl Fn(&str, bool) -> String) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let comment = comment_len(rest);
        let length = comment.or_else(|| literal_len(rest));
        let (head, tail) = rest.split_at(length.unwrap_or(first.len_utf8()));
        match length {
            None => code.push(first),
            Some(_) => code.push_str(&replace(head, comment.is_some())),
        }
        rest = tail;
    }
    code
}

fn comment_len(text: &str) -> Option<usize> {
    if text.starts_with("//") {
        return Some(text.find('\n').unwrap_or(text.len()));
    }
    text.starts_with("/*").then(|| block_comment_len(text))
}

fn literal_len(text: &str) -> Option<usize> {
    raw_string_len(text).or_else(|| string_len(text)).or_else(|| char_len(text))
}

fn block_comment_len(text: &str) -> usize {
    let mut depth = 0_usize;
    for (at, _) in text.char_indices() {
        let (before, after) = text.split_at(at);
        if after.starts_with("/*") {
            depth += 1;
        } else if before.ends_with("*/") && at > 3 {
            depth -= 1;
        }
        if depth == 0 {
            return at;
        }
    }
    text.len()
}

fn raw_string_len(text: &str) -> Option<usize> {
    let marked = text.strip_prefix('r')?;
    let body = marked.trim_start_matches('#');
    let hashes = marked.len() - body.len();
    let end = format!("\"{}", "#".repeat(hashes));
    let content = body.strip_prefix('"')?;
    let length = content.find(&end).map_or(content.len(), |at| at + end.len());
    Some(1 + hashes + 1 + length)
}

fn string_len(text: &str) -> Option<usize> {
    let content = text.strip_prefix('"')?;
    let mut escaped = false;
    for (at, c) in content.char_indices() {
        if c == '"' && !escaped {
            return Some(at + 2);
        }
        escaped = c == '\\' && !escaped;
    }
    Some(text.len())
}

/// A quote that begins no character literal begins a lifetime.
fn char_len(text: &str) -> Option<usize> {
    let content = text.strip_prefix('\'')?;
    if let Some(escape) = content.strip_prefix('\\') {
        let named = escape.chars().next()?.len_utf8();
        return escape.get(named..)?.find('\'').map(|at| 1 + 1 + named + at + 1);
    }
    let only = content.chars().next()?.len_utf8();
    content.get(only..)?.starts_with('\'').then_some(1 + only + 1)
}

/// Blanks out inline test modules.
pub(crate) fn without_tests(code: &str) -> String {
    let mut kept = String::with_capacity(code.len());
    let mut lines = code.lines().peekable();
    let mut in_tests = false;
    while let Some(line) = lines.next() {
        let opens = lines.peek().is_some_and(|next| next.starts_with("mod ") && next.ends_with('{'));
        in_tests |= line == "#[cfg(test)]" && opens;
        if !in_tests {
            kept.push_str(line);
        }
        kept.push('\n');
        in_tests &= line != "}";
    }
    kept
}

/// The identifiers and keywords of a line.
pub(crate) fn tokens(line: &str) -> impl Iterator<Item = &str> {
    line.split(|c: char| !is_word(c)).filter(|token| !token.is_empty())
}

pub(crate) fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Splits `HttpServer`, `http_server` and `HTTP-server` into the words http and server.
pub(crate) fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut was_lower = false;
    for c in name.chars() {
        if !c.is_alphanumeric() || (c.is_uppercase() && was_lower) {
            words.push(String::new());
        }
        if let Some(word) = words.last_mut().filter(|_| c.is_alphanumeric()) {
            word.extend(c.to_lowercase());
        }
        was_lower = c.is_lowercase();
    }
    words
}

#[track_caller]
fn check_code(text: &str, expected: &str) {
    assert_eq!(code_only(text), expected, "of {text:?}");
}

#[test]
fn comments_and_literals_are_blanked_out() {
    check_code("a // b\nc", "a     \nc");
    check_code("a /* b */ c", "a         c");
    check_code("a /* b /* c */\n */ d", "a             \n    d");
    check_code("a(\"b\")", "a(   )");
    check_code("a(\"\\\"b\", c)", "a(     , c)");
    check_code("a(r#\"b\"c\"#, d)", "a(        , d)");
    check_code("a('b', '\\'', '\\u{1f}')", "a(   ,     ,         )");
    check_code("fn a<'b>(c: &'b str)", "fn a<'b>(c: &'b str)");
    check_code("for row in rows", "for row in rows");
}

#[test]
fn removed_literals_leave_their_line_breaks() {
    assert_eq!(without_literals("a(\"b\nc\", 'd') // \"e\"\n"), "a(\n, ) // \"e\"\n");
}

#[test]
fn inline_test_modules_are_blanked_out() {
    let text = "a\n#[cfg(test)]\nmod tests {\n    b\n}\nc\n";
    assert_eq!(without_tests(text), "a\n\n\n\n\nc\n");
    let text = "a\n#[cfg(test)]\nmod tests;\nb\n";
    assert_eq!(without_tests(text), text);
}

#[test]
fn names_are_split_into_words() {
    assert_eq!(words("HttpServer"), ["http", "server"]);
    assert_eq!(words("http_server"), ["http", "server"]);
    assert_eq!(words("Metadata"), ["metadata"]);
}
