//! `top`: the output of `status` and the latest changes, repeatedly on one screen.
//!
//! Invariant: `top` queries at most every two seconds, draws no line outside the terminal, and leaves nothing to
//! restore: the last screen stays after an interrupt. If the daemon does not answer, the screen says so above the last
//! known state.

use std::io::Write;
use std::thread;
use std::time::{Duration, Instant};

use holdfast_status::printable::sanitise_line;

use terminal_size::{Height, Width, terminal_size};

use super::Exit;
use super::client::{Client, ClientError};
use super::status::run_status;

/// The time between two screens: short enough to see a rollout, and long enough to cost the daemon nothing.
const PAUSE: Duration = Duration::from_secs(2);

const CHANGES: &str = "/history?format=table&limit=12";

/// Moves the cursor to the upper left corner, clears the line to its end, and clears the screen to its end.
const HOME: &str = "\x1b[H";
const LINE_END: &str = "\x1b[K\n";
const CLEAR_REST: &str = "\x1b[J";

/// Runs until interrupted, or until its output closes.
pub(super) fn run_top(client: &Client, out: &mut impl Write) -> Result<Exit, ClientError> {
    let Some(_) = terminal_size() else {
        return Err(ClientError::Refused { status: 400, message: NO_TERMINAL.to_owned() });
    };
    let mut known = (Vec::new(), Instant::now());
    loop {
        let head = match query_lines(client) {
            Ok(lines) => {
                known = (lines, Instant::now());
                client.fallback().into_iter().collect()
            }
            Err(error) => describe_outage(&error, known.1.elapsed()),
        };
        draw(out, head.iter().chain(&known.0), screen_size())?;
        thread::sleep(PAUSE);
    }
}

const NO_TERMINAL: &str = "standard output is no terminal\nhint: `holdfast status` writes the same once, and `holdfast watch` every change";

/// Columns and rows of the terminal; a terminal that is gone counts as 80 by 24.
fn screen_size() -> (u16, u16) {
    terminal_size().map_or((80, 24), |(Width(columns), Height(rows))| (columns, rows))
}

/// The output of `status`, then the latest changes, newest first.
fn query_lines(client: &Client) -> Result<Vec<String>, ClientError> {
    let mut screen = Vec::new();
    run_status(client, false, &mut screen)?;
    let changes = client.get(CHANGES)?.expect_ok()?.read_whole()?;
    let [screen, changes] = [&screen, &changes].map(|text| String::from_utf8_lossy(text).into_owned());
    let heading = [String::new(), "latest changes".to_owned()];
    let newest = changes.lines().rev().map(|line| format!("  {line}"));
    Ok(screen.lines().map(str::to_owned).chain(heading).chain(newest).collect())
}

fn describe_outage(error: &ClientError, age: Duration) -> Vec<String> {
    let said = error.to_string();
    let why = said.lines().next().unwrap_or_default().trim_end_matches(':');
    vec![
        format!("the daemon does not answer: {why}; the state below is {} s old", age.as_secs()),
        String::new(),
    ]
}

/// Draws over the last screen line by line, so nothing flickers. The last row stays free, or the screen would scroll.
fn draw<'a>(
    out: &mut impl Write,
    lines: impl Iterator<Item = &'a String>,
    (columns, rows): (u16, u16),
) -> Result<(), ClientError> {
    write!(out, "{HOME}")?;
    for line in lines.take(usize::from(rows.saturating_sub(1))) {
        let fits: String = sanitise_line(line).chars().take(usize::from(columns)).collect();
        write!(out, "{fits}{LINE_END}")?;
    }
    write!(out, "{CLEAR_REST}")?;
    out.flush()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(lines: &[&str], size: (u16, u16)) -> String {
        let lines: Vec<String> = lines.iter().map(|line| (*line).to_owned()).collect();
        let mut out = Vec::new();
        draw(&mut out, lines.iter(), size).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_screen_is_drawn_over_the_last_one_without_scrolling() {
        assert_eq!(drawn(&["one", "two", "three"], (80, 3)), "\x1b[Hone\x1b[K\ntwo\x1b[K\n\x1b[J");
    }

    #[test]
    fn a_line_is_cut_at_the_terminal_width_without_cursor_moves() {
        assert_eq!(drawn(&["ab\x1b[2Jcd"], (4, 24)), "\x1b[Hab?[\x1b[K\n\x1b[J");
    }

    #[test]
    fn a_daemon_without_an_answer_is_reported_in_one_line() {
        let error = ClientError::Unreachable(Vec::new());
        let said = describe_outage(&error, Duration::from_secs(7));
        assert_eq!(
            said[0],
            "the daemon does not answer: cannot reach the daemon; the state below is 7 s old"
        );
    }
}
