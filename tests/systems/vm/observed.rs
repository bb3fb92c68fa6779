//! The table of kernels and their observed features, as a page shows it.
//!
//! Invariant: the page shows the last run's observations, or the run fails. Between two marks the page has only the
//! table.

use std::fs;
use std::path::Path;

use crate::failure::{Failure, at};

const BEGIN: &str = "<!-- observed: begin -->\n";
const END: &str = "<!-- observed: end -->\n";

const NOT_OBSERVED: &str = "not observed";

/// The line between the headings and the rows.
const RULE: &str = "---";

/// The observations in one kernel: names and values.
pub(crate) type Column = Vec<(String, String)>;

/// Whether the page shows these columns under their headings; it may have others. With BLESS, rewrites the page.
pub(crate) fn agrees(page: &Path, columns: &[(String, Column)]) -> Result<bool, Failure> {
    let text = fs::read_to_string(page).map_err(at("read", page))?;
    let all = with_columns(shown(&text), columns);
    let wanted = replaced(&text, &table(&all)).ok_or_else(|| Failure::NoTable { path: page.to_owned() })?;
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
    text.push_str(&row(RULE, &vec![RULE; headings.len()]));
    for name in names {
        let cells: Vec<&str> = columns.iter().map(|(_, column)| cell(column, name)).collect();
        text.push_str(&row(name, &cells));
    }
    text
}

/// The page's columns.
fn shown(page: &str) -> Vec<(String, Column)> {
    let table =
        page.split_once(BEGIN).and_then(|(_, rest)| rest.split_once(END)).map_or("", |(table, _)| table);
    let rows: Vec<Vec<&str>> = table.lines().map(cells).collect();
    let Some((headings, rows)) = rows.split_first() else { return Vec::new() };
    let column = |at: usize| -> Column {
        let cells = rows.iter().filter_map(|row| Some((row.first()?, row.get(at)?)));
        let known = cells.filter(|(name, value)| **name != RULE && **value != NOT_OBSERVED);
        known.map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    };
    headings.iter().enumerate().skip(1).map(|(at, heading)| ((*heading).to_owned(), column(at))).collect()
}

fn cells(row: &str) -> Vec<&str> {
    let inner = row.strip_prefix("| ").and_then(|row| row.strip_suffix(" |")).unwrap_or(row);
    inner.split(" | ").collect()
}

/// The page's columns, updated with those observed now.
fn with_columns(mut shown: Vec<(String, Column)>, observed: &[(String, Column)]) -> Vec<(String, Column)> {
    for (heading, column) in observed {
        match shown.iter_mut().find(|(known, _)| known == heading) {
            Some((_, known)) => known.clone_from(column),
            None => shown.push((heading.clone(), column.clone())),
        }
    }
    shown
}

fn cell<'a>(column: &'a Column, name: &str) -> &'a str {
    column.iter().find(|(known, _)| known == name).map_or(NOT_OBSERVED, |(_, value)| value)
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
    fn one_kernel_alone_is_compared_with_its_column() {
        let all = [
            ("5.10".to_owned(), column(&[("a link", "yes"), ("b", "1")])),
            ("6.1".to_owned(), column(&[("a link", "no")])),
        ];
        let page = format!("# A\n{BEGIN}{}{END}more\n", table(&all));
        assert_eq!(shown(&page), all);
        let changed = with_columns(shown(&page), &[("6.1".to_owned(), column(&[("a link", "yes")]))]);
        assert_eq!(changed[0], all[0]);
        assert_eq!(changed[1].1, column(&[("a link", "yes")]));
    }

    #[test]
    fn a_page_with_other_values_does_not_match() {
        let folder = tempfile::tempdir().unwrap();
        let page = folder.path().join("page.md");
        let columns = [("5.10".to_owned(), column(&[("a link", "yes")]))];
        let shown = format!("# A\n{BEGIN}{}{END}more\n", table(&columns));
        for (text, expected) in [(shown.clone(), true), (shown.replace("yes", "no"), false)] {
            fs::write(&page, text).unwrap();
            assert_eq!(agrees(&page, &columns).unwrap(), expected);
        }
        fs::write(&page, shown).unwrap();
        let other = [("6.1".to_owned(), column(&[("a link", "no")]))];
        assert!(!agrees(&page, &other).unwrap(), "a column that the page has not");
        fs::write(&page, "# A\n").unwrap();
        assert!(agrees(&page, &columns).unwrap_err().to_string().contains("page.md has no place"));
    }
}
