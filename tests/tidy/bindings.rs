//! Counts the names that `let` binds in each line.
//!
//! Invariant: it reads code as rustfmt lays it out and as [`code_only`] leaves it. A name counts in its own line, so a
//! pattern over several lines counts in each of them.
//!
//! [`code_only`]: crate::code::code_only

use crate::code::is_word;

/// The bracket depth inside the pattern of an open `let`; `None` outside of a pattern.
#[derive(Default)]
pub(crate) struct Bindings(Option<usize>);

impl Bindings {
    /// The names that the next line binds.
    pub(crate) fn count(&mut self, line: &str) -> usize {
        let mut names = 0;
        let mut rest = line;
        while let Some(first) = rest.chars().next() {
            let (word, behind) = rest.split_at(rest.find(|c| !is_word(c)).unwrap_or(rest.len()));
            if word.is_empty() {
                rest = rest.get(first.len_utf8()..).unwrap_or_default();
                self.take_sign(first, rest);
            } else {
                rest = behind;
                names += usize::from(self.take_word(word, behind.trim_start()));
            }
        }
        names
    }

    /// Ends the pattern at its `=`, its type or the end of the statement.
    fn take_sign(&mut self, sign: char, behind: &str) {
        self.0 = match (self.0, sign) {
            (Some(depth), '(' | '[' | '{') => Some(depth + 1),
            (Some(depth), ')' | ']' | '}') => depth.checked_sub(1),
            (Some(0), '=' | ';') => None,
            (Some(0), ':') if behind.starts_with(' ') => None,
            (depth, _) => depth,
        };
    }

    /// Whether `let` binds this word as a name. In brackets, a word before a colon is a field or a path.
    fn take_word(&mut self, word: &str, behind: &str) -> bool {
        let Some(depth) = self.0 else {
            self.0 = (word == "let").then_some(0);
            return false;
        };
        let is_name = word.starts_with(|c: char| c.is_lowercase() || c == '_');
        let is_keyword = ["_", "mut", "ref"].contains(&word);
        let is_place = behind.starts_with("::") || (depth > 0 && behind.starts_with(':'));
        is_name && !is_keyword && !is_place
    }
}

#[test]
fn each_name_counts_in_its_own_line() {
    for (code, expected) in [
        ("let a = b;\nlet mut c: D = e(f);", vec![1, 1]),
        ("let (a, (ref b, _)) = (c, d);", vec![2]),
        ("if let Some((a, b)) = c && let D::E { f, g: (h, ..), .. } = i {", vec![4]),
        ("let Self {\n    a,\n    b: (c, d),\n    ..\n} = self;\ne(f);", vec![0, 1, 2, 0, 0, 0]),
        ("let a;\nlet [b, c]: [d::E; 2] = f else { return g };", vec![1, 2]),
        ("letter(a, b)", vec![0]),
    ] {
        let mut bindings = Bindings::default();
        let counts: Vec<usize> = code.lines().map(|line| bindings.count(line)).collect();
        assert_eq!(counts, expected, "of {code}");
    }
}
