//! The table of kernels and what was observed in them, as a page shows it.
//!
//! Invariant: the page shows what the last run observed, or the run fails: between two marks the page has the table
//! and nothing else.

use std::fs;
use std::path::Path;

use crate::failure::{Failure, at};

const BEGIN: &str = "<!-- observed: begin -->\n";
const END: &str = "<!-- observed: end -->\n";

/// What was observed in one kernel: names and values.
pub(crate) type Column = Vec<(String, String)>;

/// Whether the page shows these columns, each under its heading. With BLESS in the environment the page
/// is written anew.
pub(crate) fn agrees(page: &Path, columns: &[(String, Column)]) -> Result<bool, Failure> {
    let text = fs::read_to_string(page).map_err(at("read", page))?;
    let wanted =
        replaced(&text, &table(columns)).ok_or_else(|| Failure::NoTable { path: page.to_owned() })?;
    if std::env::var_os("BLESS").is_some() {
        fs::write(page, &wanted).map_err(at("write", page))?;
        return Ok(true);
    }
    Ok(text == wanted)
}

/// A row for each name in the order of their first appearance, a column for each kernel.
pub(crate) fn table(columns: &[(String, Column)]) -> String {
    let mut names: Vec<&str> = Vec::new();
    for (name, _) in columns.iter().flat_map(|(_, column)| column) {
        if !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    names.sort_unstable();
    let headings: Vec<&str> = columns.iter().map(|(heading, _)| heading.as_str()).collect();
    let mut text = row("observed", &headings);
    text.push_str(&row("---", &vec!["---"; headings.len()]));
    for name in names {
        let cells: Vec<&str> = columns.iter().map(|(_, column)| cell(column, name)).collect();
        text.push_str(&row(name, &cells));
    }
    text
}

fn cell<'a>(column: &'a Column, name: &str) -> &'a str {
    column.iter().find(|(known, _)| known == name).map_or("not observed", |(_, value)| value)
}

fn row(first: &str, cells: &[&str]) -> String {
    format!("| {first} | {} |\n", cells.join(" | "))
}

fn replaced(text: &str, table: &str) -> Option<String> {
    let (before, rest) = text.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}{table}{END}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(rows: &[(&str, &str)]) -> Column {
        rows.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn each_kernel_is_a_column() {
        let columns = [
            ("5.10".to_owned(), column(&[("an errno", "none"), ("a link", "yes")])),
            ("6.1".to_owned(), column(&[("a link", "yes")])),
        ];
        let expected = "| observed | 5.10 | 6.1 |\n| --- | --- | --- |\n\
            | a link | yes | yes |\n| an errno | none | not observed |\n";
        assert_eq!(table(&columns), expected);
    }

    #[test]
    fn a_page_that_shows_something_else_does_not_agree() {
        let folder = tempfile::tempdir().unwrap();
        let page = folder.path().join("page.md");
        let columns = [("5.10".to_owned(), column(&[("a link", "yes")]))];
        let shown = format!("# A\n{BEGIN}{}{END}more\n", table(&columns));
        for (text, expected) in [(shown.clone(), true), (shown.replace("yes", "no"), false)] {
            fs::write(&page, text).unwrap();
            assert_eq!(agrees(&page, &columns).unwrap(), expected);
        }
        fs::write(&page, "# A\n").unwrap();
        assert!(agrees(&page, &columns).unwrap_err().to_string().contains("page.md has no place"));
    }
}
