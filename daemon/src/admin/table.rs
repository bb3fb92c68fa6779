//! Tables, written in chunks while the client reads.
//!
//! Invariant: an answer shows one snapshot from its first row to its last, and beside that snapshot it holds no more
//! than a chunk and one row, however long the table is.

use std::cmp::Ordering;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use axum::body::{Body, Bytes};
use axum::http::StatusCode;
use axum::response::Response;
use futures_core::Stream;
use holdfast_core::snapshot::{ServiceView, Snapshot};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::answer::typed;
use super::form::Form;
use super::limits;
use super::query::Filter;
use super::shown::{Cells, Widths};
use super::{answers, stale};
use crate::readings::Readings;

/// A column of the text: its title, and what stands below it.
pub(super) struct Column<T: Table> {
    title: &'static str,
    is_wide: bool,
    cell: Cell<T>,
}

/// Puts one cell of a row.
type Cell<T> = fn(&<T as Table>::Row<'_>, Form, &mut Cells);

/// A column that both tables show.
pub(super) const fn column<T: Table>(title: &'static str, cell: Cell<T>) -> Column<T> {
    Column { title, is_wide: false, cell }
}

/// A column that only the wide table shows.
pub(super) const fn wide<T: Table>(title: &'static str, cell: Cell<T>) -> Column<T> {
    Column { title, is_wide: true, cell }
}

/// A table of one kind of rows, which it finds service by service.
pub(super) trait Table: Send + Sized + Unpin + 'static {
    /// The name of the list in JSON.
    const NAME: &'static str;
    /// What the API's description calls the answer.
    const ANSWER: &'static str;
    /// What the answer has, in which order.
    const ORDER: &'static str;
    /// The columns of the text.
    const COLUMNS: &'static [Column<Self>];
    /// Which row of a service.
    type Place: Copy + Send + Unpin;
    /// What a row shows.
    type Row<'a>: Serialize + JsonSchema;

    /// A table that has shown nothing yet.
    fn new(readings: &Readings) -> Self;

    /// Adds the rows of one service that pass the filter.
    fn places(&mut self, view: &ServiceView, filter: &Filter, into: &mut Vec<Self::Place>);

    /// The order of rows of services with the same namespace and name.
    fn order(a: (&ServiceView, Self::Place), b: (&ServiceView, Self::Place)) -> Ordering;

    /// One row; `None` if the place is not one of this service's.
    fn row<'a>(&'a self, view: &'a ServiceView, place: Self::Place) -> Option<Self::Row<'a>>;

    /// Forgets what was kept for the rows of the services before.
    fn forget(&mut self) {}

    /// Describes the members of the JSON object that follow the rows.
    fn tail_described(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "object" })
    }

    /// What follows the rows: further members of the JSON object, or further text.
    fn tail(_snapshot: &Snapshot, _form: Form, _out: &mut Vec<u8>) {}
}

/// Describes the answer, as [`Streamed`] writes it.
pub(super) fn described<T: Table>(generator: &mut SchemaGenerator) -> Schema {
    let rows = generator.subschema_for::<Vec<T::Row<'_>>>();
    let mut whole = T::tail_described(generator);
    let members = whole.ensure_object();
    members.insert("description".to_owned(), T::ORDER.into());
    add(members, T::NAME, rows);
    add(members, stale::NAME, stale::described(generator));
    generator.definitions_mut().insert(T::ANSWER.to_owned(), whole.into());
    answers::named(T::ANSWER)
}

/// Adds a member that every answer has.
fn add(members: &mut Map<String, Value>, name: &str, described: Schema) {
    if let Value::Object(properties) = members.entry("properties").or_insert_with(|| json!({})) {
        properties.insert(name.to_owned(), described.into());
    }
    if let Value::Array(required) = members.entry("required").or_insert_with(|| json!([])) {
        required.push(name.into());
    }
}

/// All services, or those with the name that the filter asks for, in the order of the tables.
fn sorted(snapshot: &Snapshot, filter: &Filter) -> Arc<[Arc<ServiceView>]> {
    let mut views: Vec<_> = match &filter.service {
        Some(name) => snapshot.services.named(name).cloned().collect(),
        None => snapshot.services.iter().cloned().collect(),
    };
    views.sort_unstable_by(|a, b| a.key.cmp(&b.key));
    views.into()
}

/// Goes over all rows in order.
#[derive(Debug)]
struct Walk<T: Table> {
    table: T,
    filter: Filter,
    views: Arc<[Arc<ServiceView>]>,
    next: usize,
    places: std::vec::IntoIter<(usize, T::Place)>,
}

impl<T: Table> Walk<T> {
    fn new(table: T, views: Arc<[Arc<ServiceView>]>, filter: Filter) -> Self {
        Self { table, filter, views, next: 0, places: Vec::new().into_iter() }
    }

    fn restart(&mut self) {
        self.next = 0;
        self.places = Vec::new().into_iter();
    }

    fn next_row(&mut self) -> Option<T::Row<'_>> {
        let (at, place) = loop {
            if let Some(found) = self.places.next() {
                break found;
            }
            self.gather()?;
        };
        self.table.row(self.views.get(at)?, place)
    }

    /// Gathers the places of the next group: services of one namespace and name, which more than one source may have.
    fn gather(&mut self) -> Option<()> {
        let rest = self.views.get(self.next..)?;
        let first = rest.first()?;
        self.table.forget();
        let mut places = Vec::new();
        let mut own = Vec::new();
        for (offset, view) in rest.iter().take_while(|view| view.key.name == first.key.name).enumerate() {
            self.table.places(view, &self.filter, &mut own);
            places.extend(own.drain(..).map(|place| (self.next + offset, place)));
        }
        let view = |at: usize| self.views.get(at).unwrap_or(first);
        places.sort_by(|(a, a_place), (b, b_place)| T::order((view(*a), *a_place), (view(*b), *b_place)));
        self.next += rest.iter().take_while(|view| view.key.name == first.key.name).count();
        self.places = places.into_iter();
        Some(())
    }
}

/// The whole table, as a response that is made while the client reads it.
pub(super) fn table<T: Table>(readings: &Readings, filter: Filter, form: Form) -> Response {
    let snapshot = readings.snapshot();
    let views = sorted(&snapshot, &filter);
    let walk = Walk::new(T::new(readings), views, filter);
    let widths = Widths::default();
    let cells = Cells::default();
    let stage = Stage::first(form);
    let answer = Streamed { walk, snapshot, form, widths, cells, stage };
    let chunks = InTurn { answer, deadline: Instant::now() + limits::ANSWER_TIME_MAX, my_turn: true };
    typed(StatusCode::OK, form.content_type(), Body::from_stream(chunks))
}

fn columns<T: Table>(form: Form) -> impl Iterator<Item = &'static Column<T>> {
    T::COLUMNS.iter().filter(move |column| form == Form::Wide || !column.is_wide)
}

fn heading<T: Table>(form: Form, cells: &mut Cells) {
    cells.clear();
    columns::<T>(form).for_each(|column| cells.put(column.title));
}

fn line<T: Table>(row: &T::Row<'_>, form: Form, cells: &mut Cells) {
    cells.clear();
    columns::<T>(form).for_each(|column| (column.cell)(row, form, cells));
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Text only: finding out how wide the columns are.
    Measure,
    Head,
    First,
    Rows,
    Tail,
    Done,
}

impl Stage {
    const fn first(form: Form) -> Self {
        match form {
            Form::Table | Form::Wide => Self::Measure,
            Form::Json => Self::Head,
        }
    }
}

struct Streamed<T: Table> {
    walk: Walk<T>,
    snapshot: Arc<Snapshot>,
    form: Form,
    widths: Widths,
    cells: Cells,
    stage: Stage,
}

impl<T: Table> Streamed<T> {
    /// The next chunk; an empty one while there is nothing to say yet.
    fn chunk(&mut self) -> Result<Vec<u8>, serde_json::Error> {
        if self.stage == Stage::Measure {
            self.stage = self.measure();
            return Ok(Vec::new());
        }
        let mut out = Vec::with_capacity(2 * limits::CHUNK_BYTES);
        while out.len() < limits::CHUNK_BYTES && self.stage != Stage::Done {
            self.stage = match self.form {
                Form::Json => self.json(&mut out)?,
                Form::Table | Form::Wide => self.text(&mut out),
            };
        }
        Ok(out)
    }

    /// Measures as many rows as make about a chunk. After the last row it goes back to the first one.
    fn measure(&mut self) -> Stage {
        heading::<T>(self.form, &mut self.cells);
        self.widths.observe(&self.cells);
        for _ in 0..limits::MEASURED_ROWS {
            let Some(row) = self.walk.next_row() else {
                self.walk.restart();
                return Stage::Head;
            };
            line::<T>(&row, self.form, &mut self.cells);
            self.widths.observe(&self.cells);
        }
        Stage::Measure
    }

    fn json(&mut self, out: &mut Vec<u8>) -> Result<Stage, serde_json::Error> {
        Ok(match self.stage {
            Stage::Measure | Stage::Head => {
                out.extend_from_slice(b"{\"");
                out.extend_from_slice(T::NAME.as_bytes());
                out.extend_from_slice(b"\": [");
                Stage::First
            }
            Stage::First | Stage::Rows => match self.walk.next_row() {
                None => Stage::Tail,
                Some(row) => {
                    out.extend_from_slice(if self.stage == Stage::First { b"\n" } else { b",\n" });
                    serde_json::to_writer(out, &row)?;
                    Stage::Rows
                }
            },
            Stage::Tail | Stage::Done => {
                out.extend_from_slice(b"\n]");
                T::tail(&self.snapshot, self.form, out);
                stale::write(&self.snapshot, self.form, out);
                out.extend_from_slice(b"}\n");
                Stage::Done
            }
        })
    }

    fn text(&mut self, out: &mut Vec<u8>) -> Stage {
        match self.stage {
            Stage::Measure | Stage::Head => heading::<T>(self.form, &mut self.cells),
            Stage::First | Stage::Rows => match self.walk.next_row() {
                None => return Stage::Tail,
                Some(row) => line::<T>(&row, self.form, &mut self.cells),
            },
            Stage::Tail | Stage::Done => {
                T::tail(&self.snapshot, self.form, out);
                stale::write(&self.snapshot, self.form, out);
                return Stage::Done;
            }
        }
        self.widths.line(&self.cells, out);
        Stage::Rows
    }
}

/// Why an answer breaks off.
#[derive(Debug, thiserror::Error)]
enum BrokenOff {
    #[error("the client took longer than {} s", limits::ANSWER_TIME_MAX.as_secs())]
    TooSlow,
    #[error("a row could not be written: {0}")]
    Row(#[from] serde_json::Error),
}

/// Makes one chunk at a time and lets all other connections have their turn before the next.
struct InTurn<T: Table> {
    answer: Streamed<T>,
    deadline: Instant,
    my_turn: bool,
}

impl<T: Table> Stream for InTurn<T> {
    type Item = Result<Bytes, BrokenOff>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.my_turn = !self.my_turn;
        if self.my_turn {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        if Instant::now() > self.deadline {
            return Poll::Ready(Some(Err(BrokenOff::TooSlow)));
        }
        match self.answer.chunk() {
            Ok(chunk) if !chunk.is_empty() => Poll::Ready(Some(Ok(chunk.into()))),
            Ok(_) if self.answer.stage == Stage::Done => Poll::Ready(None),
            Ok(_) => {
                self.my_turn = true;
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            Err(error) => Poll::Ready(Some(Err(error.into()))),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;
    use std::time::Duration;

    use super::*;
    use crate::admin::frontends::Frontends;
    use crate::admin::tests::fixture::many;

    fn frontends(form: Form, deadline: Instant) -> InTurn<Frontends> {
        let snapshot = Arc::new(many(500, 10));
        let walk = Walk::new(Frontends, sorted(&snapshot, &Filter::default()), Filter::default());
        let widths = Widths::default();
        let cells = Cells::default();
        let stage = Stage::first(form);
        InTurn { answer: Streamed { walk, snapshot, form, widths, cells, stage }, deadline, my_turn: true }
    }

    fn polls(mut chunks: InTurn<Frontends>) -> Vec<Poll<Result<Bytes, BrokenOff>>> {
        let mut context = Context::from_waker(Waker::noop());
        let mut polls = Vec::new();
        loop {
            match Pin::new(&mut chunks).poll_next(&mut context) {
                Poll::Ready(None) => return polls,
                Poll::Ready(Some(chunk)) => {
                    let broken = chunk.is_err();
                    polls.push(Poll::Ready(chunk));
                    if broken {
                        return polls;
                    }
                }
                Poll::Pending => polls.push(Poll::Pending),
            }
        }
    }

    #[track_caller]
    fn check_chunks(form: Form) {
        let polls = polls(frontends(form, Instant::now() + Duration::from_secs(60)));
        let sizes: Vec<usize> = polls
            .iter()
            .filter_map(|poll| match poll {
                Poll::Ready(chunk) => Some(chunk.as_ref().unwrap().len()),
                Poll::Pending => None,
            })
            .collect();
        assert!(sizes.len() > 2, "{sizes:?}");
        assert!(sizes.iter().all(|size| *size < 2 * limits::CHUNK_BYTES), "{sizes:?}");
        let in_a_row = polls.windows(2).any(|pair| pair.iter().all(Poll::is_ready));
        assert!(!in_a_row, "after each chunk it is somebody else's turn");
    }

    #[test]
    fn a_table_is_made_chunk_by_chunk() {
        check_chunks(Form::Json);
        check_chunks(Form::Wide);
    }

    #[test]
    fn an_answer_that_takes_too_long_breaks_off() {
        let late = polls(frontends(Form::Json, Instant::now() - Duration::from_secs(1)));
        assert!(matches!(late.as_slice(), [Poll::Ready(Err(BrokenOff::TooSlow))]), "{late:?}");
    }
}
