//! The screen of `top`: what needs attention, the services, and everything about the selected one.
//!
//! Invariant: a screen has at most the terminal's rows, and a line at most its columns. What has no room is counted.
//! Causes are wrapped and never cut.

use super::rows::Column;
use super::state::{Answers, State};

/// The most columns for a service's name, in hundredths of the screen: the detail has the whole name.
const NAME_PERCENT: usize = 35;
const NAME_WIDTH_MIN: usize = 16;

/// Where changes have room too.
const ROWS_FOR_CHANGES: usize = 30;

/// The mark of the selected row.
const MARK: &str = "> ";

/// All lines of one screen.
pub(super) fn compose(state: &mut State, (columns, rows): (usize, usize)) -> Vec<String> {
    let head = compose_head(state, columns, (rows / 3).max(2));
    let detail = compose_detail(state, columns, rows / 4);
    let changes =
        if rows >= ROWS_FOR_CHANGES { compose_changes(state, columns, rows / 6) } else { Vec::new() };
    let prompt = compose_prompt(state);
    let taken = head.len() + detail.len() + changes.len() + 1;
    let table = compose_table(state, columns, rows.saturating_sub(taken));
    let mut lines = [head, table, detail, changes].concat();
    // A terminal may have fewer rows than anything needs; the prompt says how to leave.
    lines.truncate(rows.saturating_sub(1));
    lines.push(prompt);
    lines.iter().map(|line| line.chars().take(columns).collect()).collect()
}

fn compose_head(state: &State, columns: usize, most: usize) -> Vec<String> {
    let outage = state.describe_outage();
    let head = state.answers.iter().flat_map(|answers| answers.head.iter().chain(&answers.attention));
    limit_lines(
        outage.iter().chain(head).flat_map(|line| wrap(line, columns)).collect(),
        most,
        "`holdfast status` has all",
    )
}

fn compose_detail(state: &State, columns: usize, most: usize) -> Vec<String> {
    let Some((row, answers)) = state.row(state.selected_place()).zip(state.answers.as_ref()) else {
        return Vec::new();
    };
    let lines = row.detail(answers.now()).iter().flat_map(|line| wrap(line, columns)).collect();
    let lines = limit_lines(lines, most.saturating_sub(1), "`holdfast explain` has all");
    std::iter::once(String::new()).chain(lines).take(most).collect()
}

fn compose_changes(state: &State, columns: usize, most: usize) -> Vec<String> {
    let changes = state.answers.iter().flat_map(|answers| &answers.changes);
    let lines =
        changes.flat_map(|line| wrap(line, columns.saturating_sub(2))).map(|line| format!("  {line}"));
    let lines: Vec<String> = lines.take(most.saturating_sub(1)).collect();
    match lines.is_empty() {
        true => lines,
        false => std::iter::once("latest changes".to_owned()).chain(lines).collect(),
    }
}

fn compose_prompt(state: &State) -> String {
    let filter = state.filter.trim_start();
    let all = state.answers.as_ref().map_or(0, |answers| answers.rows.len());
    let reversed = if state.is_reversed { ", reversed" } else { "" };
    let order = format!("services by {}{reversed}", state.column.title());
    match state.filter.is_empty() {
        true => format!("q: quit  letters: filter  left right: sort  Tab: reverse | {all} {order}"),
        false => {
            format!("filter: {filter}_ | Esc: all  Ctrl-C: quit | {} of {all} {order}", state.shown_count())
        }
    }
}

/// The heading and as many rows as there is room for; the selected one is among them.
fn compose_table(state: &mut State, columns: usize, room: usize) -> Vec<String> {
    let rows = room.saturating_sub(2);
    if rows == 0 || state.answers.is_none() {
        return Vec::new();
    }
    scroll(state, rows);
    let now = state.answers.as_ref().map(Answers::now).unwrap_or_default();
    let places = state.first..state.shown_count().min(state.first + rows);
    let heading = Column::ALL.map(|column| mark_title(state, column));
    let cells = places
        .clone()
        .filter_map(|place| state.row(place))
        .map(|row| Column::ALL.map(|column| row.cell(column, now)));
    let lines: Vec<[String; 9]> = std::iter::once(heading).chain(cells).collect();
    let widths = measure(&lines, columns);
    let selected = state.selected_place();
    let marks = std::iter::once("  ").chain(places.map(|place| if place == selected { MARK } else { "  " }));
    let table = marks.zip(&lines).map(|(mark, cells)| mark.to_owned() + &join_cells(cells, &widths));
    let mut table: Vec<String> = std::iter::once(String::new()).chain(table).collect();
    // What is below stays where it is while rows come and go.
    table.resize(room, String::new());
    table
}

/// Moves the rows on the screen so that the selected one is among them.
fn scroll(state: &mut State, rows: usize) {
    let selected = state.selected_place();
    let least = (selected + 1).saturating_sub(rows);
    let most = state.shown_count().saturating_sub(rows);
    state.first = state.first.clamp(least, selected).min(most.max(least));
}

/// The column by which rows are sorted has a mark.
fn mark_title(state: &State, column: Column) -> String {
    let mark = match (column == state.column, state.is_reversed) {
        (false, _) => "",
        (true, false) => "*",
        (true, true) => "^",
    };
    format!("{}{mark}", column.title())
}

fn measure(lines: &[[String; 9]], columns: usize) -> [usize; 9] {
    let name_width = (columns * NAME_PERCENT / 100).max(NAME_WIDTH_MIN);
    let mut widths = [0; 9];
    for cells in lines {
        for (width, cell) in widths.iter_mut().zip(cells) {
            *width = cell.chars().count().max(*width);
        }
    }
    if let Some(name) = widths.first_mut() {
        *name = name_width.min(*name);
    }
    widths
}

fn join_cells(cells: &[String; 9], widths: &[usize; 9]) -> String {
    let padded = cells.iter().zip(widths).map(|(cell, width)| match cell.chars().count() > *width {
        true => cell.chars().take(width.saturating_sub(3)).chain("...".chars()).collect(),
        false => format!("{cell:width$}"),
    });
    padded.collect::<Vec<String>>().join("  ").trim_end().to_owned()
}

/// The text in lines of the screen, with the indent of its first one; a word that is too long is broken.
fn wrap(text: &str, columns: usize) -> Vec<String> {
    if text.chars().count() <= columns {
        return vec![text.to_owned()];
    }
    let indent: String = text.chars().take_while(|letter| *letter == ' ').collect();
    let room = columns.saturating_sub(indent.len() + 2).max(1);
    let mut lines = vec![String::new()];
    for word in text.split(' ').filter(|word| !word.is_empty()) {
        let letters: Vec<char> = word.chars().collect();
        for piece in letters.chunks(room) {
            let piece: String = piece.iter().collect();
            let count = |line: &String| line.chars().count();
            match lines.last_mut() {
                Some(line) if line.is_empty() => line.push_str(&piece),
                Some(line) if count(line) + 1 + count(&piece) <= room => {
                    line.push(' ');
                    line.push_str(&piece);
                }
                Some(_) | None => lines.push(piece),
            }
        }
    }
    let hang = |place: usize| if place == 0 { "" } else { "  " };
    lines.iter().enumerate().map(|(place, line)| format!("{indent}{}{line}", hang(place))).collect()
}

/// At most so many lines; the last one counts what has no room.
fn limit_lines(mut lines: Vec<String>, most: usize, has_all: &str) -> Vec<String> {
    let more = lines.len().saturating_sub(most);
    if more > 0 {
        lines.truncate(most.saturating_sub(1));
        lines.push(format!("and {} more lines: {has_all}", more + 1));
    }
    lines
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::super::keys::Key;
    use super::super::state::tests::answers;
    use super::*;

    fn state(count: u64) -> State {
        let mut state = State::default();
        state.update(Ok(answers(count)));
        state
    }

    #[test]
    fn a_screen_has_the_state_the_rows_and_the_selected_service() {
        let mut state = state(4);
        state.press(Key::Down);
        expect![[r#"
            holdfast 1.0 on n1, since 2026-01-08T11:10:55Z (4 min ago)
            ready      yes
            verdicts   2 serving
            not serving
              1 refusing (vanished): demo/s00000

              SERVICE      VERDICT*  REASON    BACKENDS  SINCE      SENT  REFUSED  DROPPED  
              demo/s00000  refusing  vanished  0         3 min ago  0     0        0        
            > demo/s00003  refusing  vanished  3         3 min ago  3     0        0        
              demo/s00001  serving   -         1         3 min ago  1     0        0        
              demo/s00002  serving   -         2         3 min ago  2     0        0        












            demo/s00003 (ClusterIP, kubernetes): refusing (vanished) since
              2026-01-08T11:11:10Z (3 min ago)
            next: holdfast diagnose demo/s00003
            latest changes
              2026-01-08T11:11:56.000Z (2 min ago) #2 demo/b
              2026-01-08T11:11:55.000Z (3 min ago) #1 demo/a
            q: quit  letters: filter  left right: sort  Tab: reverse | 4 services by VERDICT
        "#]]
        .assert_eq(&(compose(&mut state, (80, 30)).join("\n") + "\n"));
    }

    #[test]
    fn no_screen_is_larger_than_its_terminal() {
        for count in [0, 1, 10_000] {
            let mut state = state(count);
            state.press(Key::End);
            for (columns, rows) in [(1, 1), (10, 2), (20, 5), (80, 24), (200, 60), (40, 8)] {
                let lines = compose(&mut state, (columns, rows));
                assert!(lines.len() <= rows.max(1), "{columns} by {rows}: {}", lines.len());
                assert!(
                    lines.iter().all(|line| line.chars().count() <= columns),
                    "{columns} by {rows}: {lines:?}"
                );
                let has_room = rows >= 24 && count > 0;
                assert!(!has_room || lines.iter().any(|line| line.starts_with(MARK)), "{lines:?}");
            }
        }
    }

    #[test]
    fn a_cause_is_wrapped_and_not_cut() {
        assert_eq!(wrap("  one two three", 10), ["  one", "    two", "    three"]);
        assert_eq!(wrap("abcdefgh", 6), ["abcd", "  efgh"]);
        assert_eq!(wrap("", 6), [""]);
    }

    #[test]
    fn what_has_no_room_is_counted() {
        let lines = ["a", "b", "c"].map(str::to_owned).to_vec();
        assert_eq!(limit_lines(lines.clone(), 3, "x"), ["a", "b", "c"]);
        assert_eq!(limit_lines(lines, 2, "x"), ["a", "and 2 more lines: x"]);
    }
}
