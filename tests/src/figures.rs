//! Benchmark results of several peers: written as they are measured, read back for a table and a chart.
//!
//! Invariant: a missing result is not shown, and no result is changed: the chart and the tables use the same lines.

mod picture;

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

pub use self::picture::picture;

/// The variable with the file that a run of several benchmarks writes to.
const FILE: &str = "HOLDFAST_FIGURES";

/// One peer's result of one measurement.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// The table; its words name the unit and the better direction.
    pub group: String,
    /// The row: the measurement.
    pub what: String,
    /// The column: the peer.
    pub of: String,
    pub median: f64,
    /// The middle half of the draws, or all of them if there are few.
    pub low: f64,
    pub high: f64,
}

impl Figure {
    /// The median of all draws, and their middle half.
    pub fn from_draws(group: &str, what: &str, of: &str, mut draws: Vec<f64>) -> Self {
        draws.sort_by(f64::total_cmp);
        let at =
            |part: usize| draws.get(draws.len().saturating_sub(1) * part / 4).copied().unwrap_or(f64::NAN);
        let [group, what, of] = [group, what, of].map(str::to_owned);
        Self { group, what, of, median: at(2), low: at(1), high: at(3) }
    }

    /// Prints the result, and writes it down if the run collects results.
    pub fn tell(&self) -> io::Result<()> {
        let Self { group, what, of, median, low, high } = self;
        writeln!(io::stdout(), "{group}: {what}, {of}: {median:.3} ({low:.3} to {high:.3})")?;
        note(self)
    }

    fn read(line: &str) -> Option<Self> {
        let mut fields = line.split('\t');
        let mut text = || fields.next().map(str::to_owned);
        let (group, what, of) = (text()?, text()?, text()?);
        let mut number = || fields.next()?.parse().ok();
        Some(Self { group, what, of, median: number()?, low: number()?, high: number()? })
    }

    fn written(&self) -> String {
        let Self { group, what, of, median, low, high } = self;
        format!("{group}\t{what}\t{of}\t{median}\t{low}\t{high}\n")
    }

    fn cell(&self) -> String {
        let shown = if (self.low, self.high) == (self.median, self.median) {
            String::new()
        } else {
            format!(" ({} to {})", number(self.low), number(self.high))
        };
        number(self.median) + &shown
    }
}

/// Three significant digits.
fn number(value: f64) -> String {
    match value.abs() {
        it if it >= 100.0 => format!("{value:.0}"),
        it if it >= 10.0 => format!("{value:.1}"),
        it if it >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// Writes a result down, if the run collects results.
pub fn note(figure: &Figure) -> io::Result<()> {
    let Some(path) = std::env::var_os(FILE) else { return Ok(()) };
    File::options().create(true).append(true).open(path)?.write_all(figure.written().as_bytes())
}

/// The file in which this run collects results, if any.
pub fn file() -> Option<PathBuf> {
    std::env::var_os(FILE).map(PathBuf::from)
}

/// All results of a file, in their order.
pub fn read(path: &Path) -> io::Result<Vec<Figure>> {
    Ok(fs::read_to_string(path)?.lines().filter_map(Figure::read).collect())
}

/// Replaces the text of a page between two marks with the tables of the results. The rest of the page stays.
pub fn publish(page: &Path, (begin, end): (&str, &str), figures: &[Figure]) -> io::Result<()> {
    let text = fs::read_to_string(page)?;
    let around = text.split_once(begin).and_then(|(head, rest)| Some((head, rest.split_once(end)?.1)));
    let (head, tail) =
        around.ok_or_else(|| io::Error::other(format!("{} lacks {begin} or {end}", page.display())))?;
    fs::write(page, format!("{head}{begin}\n\n{}\n{end}{tail}", tables(figures)))
}

/// Distinct words in the order of their first appearance.
fn each<'a>(words: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut each = Vec::new();
    words.for_each(|word| {
        if !each.contains(&word) {
            each.push(word);
        }
    });
    each
}

/// A Markdown table for each group.
pub fn tables(figures: &[Figure]) -> String {
    let groups = each(figures.iter().map(|it| it.group.as_str()));
    let table = |group: &&str| {
        let of_group: Vec<&Figure> = figures.iter().filter(|it| it.group == **group).collect();
        table(group, &of_group)
    };
    groups.iter().map(table).collect::<Vec<_>>().join("\n")
}

fn table(group: &str, figures: &[&Figure]) -> String {
    let columns = each(figures.iter().map(|it| it.of.as_str()));
    let mut text = format!("| {group} | {} |\n|---|{}\n", columns.join(" | "), "---|".repeat(columns.len()));
    for what in each(figures.iter().map(|it| it.what.as_str())) {
        let cell = |of: &&str| {
            let found = figures.iter().find(|it| it.what == what && it.of == **of);
            found.map_or_else(String::new, |it| it.cell())
        };
        let cells: Vec<String> = columns.iter().map(cell).collect();
        text += &format!("| {what} | {} |\n", cells.join(" | "));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn some() -> Vec<Figure> {
        let lines = "of plain\tconnects\tholdfast\t0.964\t0.94\t0.977\n\
            of plain\tconnects\tkube-proxy\t0.842\t0.831\t0.863\n\
            of plain\trequests\tholdfast\t0.972\t0.972\t0.972\n\
            ms\tone change\tkube-proxy\t1012.4\t520\t1100\n\
            cut off\tin the middle";
        lines.lines().filter_map(Figure::read).collect()
    }

    #[test]
    fn a_figure_is_read_as_it_was_written() {
        for figure in some() {
            assert_eq!(Figure::read(figure.written().trim_end()), Some(figure));
        }
        assert_eq!(some().len(), 4, "a line that was cut off is none");
    }

    #[test]
    fn text_around_the_tables_stays_unchanged() {
        let folder = tempfile::tempdir().unwrap();
        let page = folder.path().join("page.md");
        fs::write(&page, "# Head\n<!-- a -->\nold\n<!-- b -->\n## Tail\n").unwrap();
        let figure = Figure::from_draws("ms", "one change", "holdfast", vec![3.0, 1.0, 2.0]);
        for _ in 0..2 {
            publish(&page, ("<!-- a -->", "<!-- b -->"), std::slice::from_ref(&figure)).unwrap();
        }
        expect_test::expect![[r"
            # Head
            <!-- a -->

            | ms | holdfast |
            |---|---|
            | one change | 2.00 (1.00 to 2.00) |

            <!-- b -->
            ## Tail
        "]]
        .assert_eq(&fs::read_to_string(&page).unwrap());
        assert!(publish(&page, ("<!-- a -->", "<!-- c -->"), &[figure]).is_err());
    }

    #[test]
    fn a_table_leaves_unmeasured_cells_empty() {
        expect_test::expect![[r"
            | of plain | holdfast | kube-proxy |
            |---|---|---|
            | connects | 0.964 (0.940 to 0.977) | 0.842 (0.831 to 0.863) |
            | requests | 0.972 |  |

            | ms | kube-proxy |
            |---|---|
            | one change | 1012 (520 to 1100) |
        "]]
        .assert_eq(&tables(&some()));
    }
}
