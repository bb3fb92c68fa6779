//! `top`: what needs attention and all services, live on one screen that obeys keys.
//!
//! Invariant: `top` queries at most every two seconds, and on a large node less often; no query delays a key. It draws
//! no line outside the terminal, and restores the terminal however it ends. If the daemon does not answer, the screen
//! says so above the last known state, and how old that is.

mod keys;
mod rows;
mod screen;
mod state;
mod terminal;

use std::io::{self, Write};
use std::time::{Duration, Instant};

use holdfast_api::about::Version;
use terminal_size::{Height, Width, terminal_size};
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

use self::keys::Key;
use self::rows::Services;
use self::state::{Answers, State};
use self::terminal::{Terminal, read_keys};
use super::Exit;
use super::client::{Client, ClientError};
use super::status::{query_json, run_status};

/// The least time between two queries: short enough to see a rollout, and long enough to cost the daemon nothing.
const PAUSE: Duration = Duration::from_secs(2);

/// How many times as long as an answer took the next query waits, so that a table of many services takes little of the
/// daemon's time.
const PAUSES_PER_ANSWER: u32 = 5;

/// How often the screen is drawn again when nothing happens, because ages grow.
const REDRAW: Duration = Duration::from_secs(1);

/// The most services that are asked for every few seconds: of more, the answer takes a large part of a processor.
const ALL_ROWS_MAX: u64 = 20_000;

const CHANGES: &str = "/history?format=table&limit=5";

const NO_TERMINAL: &str = "standard output is no terminal\nhint: `holdfast status` writes the same once, and `holdfast watch` every change";

/// Runs until a key or a signal ends it, or until its output closes.
pub(super) fn run_top(client: &Client, out: &mut impl Write) -> Result<Exit, ClientError> {
    if terminal_size().is_none() {
        return Err(ClientError::Refused { status: 400, message: NO_TERMINAL.to_owned() });
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(ClientError::NotSent)?;
    // A signal that comes as soon as the terminal is changed already restores it.
    let signals = runtime.block_on(async { Signals::register() })?;
    let mut terminal = Terminal::enter(out)?;
    run_screen(&runtime, Inputs::begin(client, signals)?, &mut terminal)?;
    Ok(Exit::Good)
}

/// The signals that `top` obeys.
struct Signals {
    ends: [Signal; 3],
    resized: Signal,
}

impl Signals {
    fn register() -> io::Result<Self> {
        let ends = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
        let [interrupt, terminate, hangup] = ends.map(signal);
        Ok(Self { ends: [interrupt?, terminate?, hangup?], resized: signal(SignalKind::window_change())? })
    }
}

/// What the screen waits for.
struct Inputs {
    keys: mpsc::Receiver<Key>,
    /// Whether keys may still come.
    has_keys: bool,
    answers: mpsc::Receiver<Result<Answers, String>>,
    signals: Signals,
}

/// Something that the screen obeys.
enum Input {
    Key(Key),
    Answers(Box<Result<Answers, String>>),
    Redraw,
    End,
}

impl Inputs {
    fn begin(client: &Client, signals: Signals) -> io::Result<Self> {
        Ok(Self { keys: read_keys()?, has_keys: true, answers: query_repeatedly(client.clone())?, signals })
    }

    async fn next(&mut self) -> Input {
        let Signals { ends: [interrupt, terminate, hangup], resized } = &mut self.signals;
        tokio::select! {
            _ = interrupt.recv() => Input::End,
            _ = terminate.recv() => Input::End,
            _ = hangup.recv() => Input::End,
            _ = resized.recv() => Input::Redraw,
            key = self.keys.recv(), if self.has_keys => key.map_or(Input::Redraw, Input::Key),
            Some(answers) = self.answers.recv() => Input::Answers(Box::new(answers)),
            () = tokio::time::sleep(REDRAW) => Input::Redraw,
        }
    }
}

fn run_screen(
    runtime: &Runtime,
    mut inputs: Inputs,
    terminal: &mut Terminal<'_, impl Write>,
) -> Result<(), ClientError> {
    runtime.block_on(async {
        let mut state = State::default();
        loop {
            draw(terminal.out(), &screen::compose(&mut state, screen_size()))?;
            match inputs.next().await {
                Input::Key(key) if state.press(key) => return Ok(()),
                Input::End => return Ok(()),
                Input::Answers(answers) => state.update(*answers),
                Input::Key(_) => {}
                Input::Redraw => inputs.has_keys &= !inputs.keys.is_closed(),
            }
        }
    })
}

/// Columns and rows of the terminal; a terminal that is gone counts as 80 by 24.
fn screen_size() -> (usize, usize) {
    terminal_size().map_or((80, 24), |(Width(columns), Height(rows))| (columns.into(), rows.into()))
}

/// Queries on a thread of its own: a daemon that hangs takes 40 seconds to say nothing.
fn query_repeatedly(client: Client) -> io::Result<mpsc::Receiver<Result<Answers, String>>> {
    let (sender, answers) = mpsc::channel(1);
    std::thread::Builder::new().name("queries".to_owned()).spawn(move || {
        loop {
            let begun = Instant::now();
            let answered = query_all(&client).map_err(|error| error.to_string());
            let took = begun.elapsed();
            if sender.blocking_send(answered).is_err() {
                return;
            }
            std::thread::sleep(PAUSE.max(took * PAUSES_PER_ANSWER));
        }
    })?;
    Ok(answers)
}

fn query_all(client: &Client) -> Result<Answers, ClientError> {
    let version: Version = query_json(client, "/version?format=json")?;
    let mut status = Vec::new();
    run_status(client, false, &mut status)?;
    let (services, note) = query_services(client, ALL_ROWS_MAX)?;
    let changes = client.get(CHANGES)?.expect_ok()?.read_whole()?;
    let [status, changes] = [status, changes].map(|text| String::from_utf8_lossy(&text).into_owned());
    let notes: Vec<String> = [client.fallback(), note].into_iter().flatten().collect();
    Ok(Answers::new(version.now, (&status, &changes), services.into_rows(), &notes))
}

/// All services; of very many only those in trouble, and a line that says so.
fn query_services(client: &Client, most: u64) -> Result<(Services, Option<String>), ClientError> {
    let trouble: Services = query_json(client, "/services?only=trouble&format=json")?;
    match trouble.count() {
        count if count <= most => Ok((query_json(client, "/services?format=json")?, None)),
        count => Ok((trouble, Some(describe_trouble_only(count)))),
    }
}

fn describe_trouble_only(count: u64) -> String {
    format!("of {count} services those in trouble are below; `holdfast services` has all")
}

/// The end of each line: what was there before goes.
const LINE_END: &str = "\x1b[K";

/// Draws over the last screen line by line, so nothing flickers. The last line has no end, or the screen would scroll.
fn draw(out: &mut impl Write, lines: &[String]) -> io::Result<()> {
    // What paints lines sees each from its beginning.
    out.write_all(b"\x1b[H")?;
    out.flush()?;
    write!(out, "{}{LINE_END}\x1b[J", lines.join(&format!("{LINE_END}\n")))?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use holdfast_api::fixture::{everything, serve};

    use super::*;

    #[test]
    fn a_screen_is_drawn_over_the_last_one_without_scrolling() {
        let mut out = Vec::new();
        draw(&mut out, &["one".to_owned(), "two".to_owned()]).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "\x1b[Hone\x1b[K\ntwo\x1b[K\x1b[J");
    }

    #[test]
    fn all_services_are_asked_for_unless_there_are_very_many() {
        let served = serve(everything());
        let client = Client::new(Some(served.socket.clone()), None);
        let (all, note) = query_services(&client, 14).unwrap();
        assert_eq!((all.into_rows().len(), note), (14, None));
        let (trouble, note) = query_services(&client, 13).unwrap();
        let rows = trouble.into_rows().len();
        assert!((1..14).contains(&rows), "{rows}");
        let expected = "of 14 services those in trouble are below; `holdfast services` has all";
        assert_eq!(note.as_deref(), Some(expected));
    }
}
