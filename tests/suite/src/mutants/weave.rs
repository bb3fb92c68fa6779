//! Inserts mutants into the text of a file.
//!
//! Invariant: pure. With any other number, the code behaves as before. A text that does not occur exactly once in the
//! file is an error, because the table would differ from the compiled code.

use super::table::{Row, Seam};
use crate::error::SuiteError;

/// The text of a file with these mutants.
pub(super) fn weave<'a>(
    file: &str,
    text: &str,
    rows: impl Iterator<Item = (usize, &'a Row)>,
) -> Result<String, SuiteError> {
    let mut woven = text.to_owned();
    for (number, row) in rows {
        let Some([before, original, after]) = row.parts() else { continue };
        let found = [before, original, after].concat();
        check_once(file, text, &found)?;
        // The rows of one file must not overlap.
        check_once(file, &woven, &found)?;
        let either = either(file.ends_with(".rs"), number, original, &row.mistake);
        woven = woven.replacen(&found, &[before, &either, after].concat(), 1);
    }
    Ok(woven)
}

/// The text of a file with a seam.
pub(super) fn insert(file: &str, text: &str, seam: &Seam) -> Result<String, SuiteError> {
    check_once(file, text, &seam.after)?;
    Ok(text.replacen(&seam.after, &format!("{}\n{}", seam.after, seam.insert), 1))
}

fn check_once(file: &str, text: &str, code: &str) -> Result<(), SuiteError> {
    match text.matches(code).count() {
        1 => Ok(()),
        count => Err(SuiteError::Mutant(format!("{file} has this code {count} times, and not once: {code}"))),
    }
}

/// Code that runs the mutant if its number is set, and else the original.
fn either(is_rust: bool, number: usize, original: &str, mistake: &str) -> String {
    let are_statements = original.trim_end().ends_with([';', '}']);
    match (is_rust, are_statements) {
        (true, true) => format!("if ::holdfast_mutant::is({number}) {{ {mistake} }} else {{ {original} }}"),
        (true, false) => {
            format!("(if ::holdfast_mutant::is({number}) {{ {mistake} }} else {{ {original} }})")
        }
        (false, true) => format!("if (mutant == {number}) {{ {mistake} }} else {{ {original} }}"),
        (false, false) => format!("(mutant == {number} ? ({mistake}) : ({original}))"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(code: &str, mistake: &str) -> Row {
        let tests = vec!["core/lib/a".to_owned()];
        Row { file: "a.rs".to_owned(), code: code.to_owned(), mistake: mistake.to_owned(), tests }
    }

    #[test]
    fn a_mutant_replaces_an_expression_or_statements() {
        let rows = [row("let a = ⟦b && c⟧;", "b"), row("⟦act(a);⟧", "")];
        let numbered = || (1..).zip(&rows);
        let woven = weave("a.rs", "let a = b && c;\nact(a);\n", numbered()).unwrap();
        let expression = "let a = (if ::holdfast_mutant::is(1) { b } else { b && c });\n";
        let statements = "if ::holdfast_mutant::is(2) {  } else { act(a); }\n";
        assert_eq!(woven, [expression, statements].concat());
        let woven = weave("a.h", "let a = b && c;\nact(a);\n", numbered()).unwrap();
        let expression = "let a = (mutant == 1 ? (b) : (b && c));\n";
        assert_eq!(woven, [expression, "if (mutant == 2) {  } else { act(a); }\n"].concat());
    }

    #[test]
    fn code_that_does_not_occur_exactly_once_is_refused() {
        let rows = [row("⟦a⟧", "b")];
        for text in ["", "a a"] {
            let error = weave("a.rs", text, (1..).zip(&rows)).unwrap_err();
            assert!(error.to_string().contains("and not once"), "{error}");
        }
    }
}
