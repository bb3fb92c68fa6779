//! A table that goes on: all rows first, then each row that changes.
//!
//! Invariant: a row is written when it is new or differs, and once more with `gone` before it when it leaves. An outage
//! is reported once, and ends nothing.

use std::collections::BTreeMap;
use std::io::Write;
use std::thread;
use std::time::Duration;

use holdfast_status::age::remove_ages;

use super::client::{Client, ClientError};

/// The pause between two questions.
const PAUSE: Duration = Duration::from_secs(1);

/// How many cells name a row: the service, the port, the type and the address.
const NAMING_CELLS: usize = 4;

/// What the line below a table has that counts the failing rows. It is no row.
const NEXT_COMMAND: &str = "; next: holdfast ";

/// How the line below a table begins that explains a star. It is no row either.
const STAR: &str = "* at ";

/// Follows a table until interrupted, or until its output closes.
pub(super) fn follow_table(
    client: &Client,
    path: &str,
    out: &mut impl Write,
    err: &mut impl Write,
) -> Result<std::convert::Infallible, ClientError> {
    let mut rows = Rows::default();
    let first = read_table(client, path)?;
    out.write_all(rows.update(&first, true).as_bytes())?;
    let mut is_away = false;
    loop {
        out.flush()?;
        thread::sleep(PAUSE);
        match read_table(client, path) {
            Ok(text) => {
                out.write_all(rows.update(&text, false).as_bytes())?;
                is_away = false;
            }
            Err(error) if is_away => drop(error),
            Err(error) => {
                error.report(err);
                is_away = true;
            }
        }
    }
}

fn read_table(client: &Client, path: &str) -> Result<String, ClientError> {
    let bytes = client.get(path)?.expect_ok()?.read_whole()?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn is_row(line: &str) -> bool {
    !line.is_empty() && !line.contains(NEXT_COMMAND) && !line.starts_with(STAR)
}

/// The rows as they were written last: the cells by what names the row.
#[derive(Debug, Default)]
struct Rows(BTreeMap<Vec<String>, Vec<String>>);

impl Rows {
    /// Takes the table as it is now. Returns the lines to write.
    fn update(&mut self, table: &str, with_title: bool) -> String {
        let mut now = BTreeMap::new();
        let mut text = String::new();
        for (place, line) in table.lines().enumerate() {
            // An age grows without a change.
            let cells: Vec<String> = remove_ages(line).split_whitespace().map(str::to_owned).collect();
            let name: Vec<String> = cells.iter().take(NAMING_CELLS).cloned().collect();
            let is_row = place > 0 && is_row(line);
            let is_written = if is_row { self.0.get(&name) != Some(&cells) } else { with_title };
            if is_written {
                text.push_str(line);
                text.push('\n');
            }
            if is_row {
                now.insert(name, cells);
            }
        }
        for (name, _) in self.0.iter().filter(|(name, _)| !now.contains_key(*name)) {
            text.push_str(&format!("gone: {}\n", name.join("  ")));
        }
        self.0 = now;
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_rows_that_change_are_written_again() {
        let mut rows = Rows::default();
        let table = "SERVICE  PORT\na/web    http  x  1  serving\na/api    http  x  2  serving\n";
        assert_eq!(rows.update(table, true), table);
        assert_eq!(rows.update(table, false), "");
        let wider = "SERVICE   PORT\na/web     http  x  1  held\na/longer  http  x  3  serving\n";
        assert_eq!(
            rows.update(wider, false),
            "a/web     http  x  1  held\na/longer  http  x  3  serving\ngone: a/api  http  x  2\n"
        );
    }

    #[test]
    fn the_line_below_a_table_is_no_row() {
        let mut rows = Rows::default();
        let failing = "SERVICE  PORT\na/web  http  x  1  refused\n\n* at a node port: 192.0.2.1\n\n1 of 1 needs attention; next: \
             holdfast diagnose a/web\n";
        assert_eq!(rows.update(failing, true), failing);
        assert_eq!(rows.update(failing, false), "");
        let well = "SERVICE  PORT\na/web  http  x  1  -\n";
        assert_eq!(rows.update(well, false), "a/web  http  x  1  -\n");
    }

    #[test]
    fn a_row_that_only_grows_older_is_not_written_again() {
        let mut rows = Rows::default();
        let table =
            |since: &str| format!("SERVICE  PORT  TYPE  FRONTEND  SINCE\na/web  http  x  1  {since}\n");
        rows.update(&table("2026-01-08T11:11:55Z (3 min ago)"), true);
        assert_eq!(rows.update(&table("2026-01-08T11:11:55Z (4 min ago)"), false), "");
        assert!(!rows.update(&table("2026-01-08T11:15:55Z (now)"), false).is_empty());
    }
}
