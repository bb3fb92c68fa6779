//! Tables, written in chunks while the client reads.
//!
//! Invariant: an answer shows one snapshot from its first row to its last, and beside that snapshot it holds no more
//! than a chunk and one row, however long the table is.

use std::cmp::Ordering;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

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
use holdfast_agent::readings::Readings;

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

    /// Whether a service may have rows that pass the filter. It is asked of all services before they are put in order.
    fn may_have(view: &ServiceView, filter: &Filter) -> bool;

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
pub(super) fn add(members: &mut Map<String, Value>, name: &str, described: Schema) {
    if let Value::Object(properties) = members.entry("properties").or_insert_with(|| json!({})) {
        properties.insert(name.to_owned(), described.into());
    }
    if let Value::Array(required) = members.entry("required").or_insert_with(|| json!([])) {
        required.push(name.into());
    }
}

/// The services that may have rows, in the order of the tables.
fn sorted<T: Table>(snapshot: &Snapshot, filter: &Filter) -> Arc<[Arc<ServiceView>]> {
    let services = &snapshot.services;
    let may_have = |view: &&Arc<ServiceView>| T::may_have(view, filter);
    in_order(match (&filter.service, filter.is_trouble) {
        (Some(name), _) => services.find_by_name(name).filter(may_have).collect(),
        (None, true) => services.with_problems().filter(may_have).collect(),
        (None, false) => services.iter().filter(may_have).collect(),
    })
}

/// Puts services in the order of their keys. The keys are compared as texts that lie side by side: those of many
/// services lie all over memory, and to fetch each of them for each comparison takes ten times as long as to sort.
fn in_order(views: Vec<&Arc<ServiceView>>) -> Arc<[Arc<ServiceView>]> {
    let mut texts = Vec::new();
    let mut keys: Vec<(Range<usize>, &Arc<ServiceView>)> = Vec::with_capacity(views.len());
    for view in views {
        let begin = texts.len();
        let name = &view.key.name;
        [name.namespace(), name.name()].into_iter().for_each(|part| {
            texts.extend_from_slice(part.as_bytes());
            texts.push(0);
        });
        keys.push((begin..texts.len(), view));
    }
    let text = |range: &Range<usize>| texts.get(range.clone());
    keys.sort_unstable_by(|(a, one), (b, other)| {
        text(a).cmp(&text(b)).then_with(|| one.key.source.cmp(&other.key.source))
    });
    keys.into_iter().map(|(_, view)| Arc::clone(view)).collect()
}

/// What the search for the next row came to.
enum Sought<'a, T: Table> {
    Row(T::Row<'a>),
    /// There was none yet.
    Later,
    /// There is no further one.
    End,
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

    /// Looks for the next row, in no more services than one turn is for.
    fn seek(&mut self) -> Sought<'_, T> {
        for _ in 0..limits::SERVICES_SOUGHT {
            if let Some((at, place)) = self.places.next() {
                let row = self.views.get(at).and_then(|view| self.table.row(view, place));
                return row.map_or(Sought::Later, Sought::Row);
            }
            if self.gather().is_none() {
                return Sought::End;
            }
        }
        Sought::Later
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
    let views = sorted::<T>(&snapshot, &filter);
    let walk = Walk::new(T::new(readings), views, filter);
    let widths = Widths::default();
    let cells = Cells::default();
    let stage = Stage::first(form);
    let answer = Streamed { walk, snapshot, form, widths, cells, stage, measured: 0, is_over: false };
    let chunks = InTurn { answer, my_turn: true };
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
    /// How many rows have told how wide they are, before the first was written.
    measured: usize,
    /// Whether the turn is over before a chunk is full.
    is_over: bool,
}

impl<T: Table> Streamed<T> {
    /// The next chunk; an empty one while there is nothing to say yet.
    fn chunk(&mut self) -> Result<Vec<u8>, serde_json::Error> {
        if self.stage == Stage::Measure {
            self.stage = self.measure();
            return Ok(Vec::new());
        }
        let mut out = Vec::with_capacity(2 * limits::CHUNK_BYTES);
        self.is_over = false;
        while out.len() < limits::CHUNK_BYTES && self.stage != Stage::Done && !self.is_over {
            self.stage = match self.form {
                Form::Json => self.json(&mut out)?,
                Form::Table | Form::Wide => self.text(&mut out),
            };
        }
        Ok(out)
    }

    /// Measures as many rows as make about a chunk. After the last row, or the last that is waited for, it goes back to
    /// the first one.
    fn measure(&mut self) -> Stage {
        heading::<T>(self.form, &mut self.cells);
        self.widths.observe(&self.cells);
        for _ in 0..limits::MEASURED_ROWS {
            let is_end = match self.walk.seek() {
                Sought::Row(row) if self.measured < limits::MEASURED_ROWS_MAX => {
                    line::<T>(&row, self.form, &mut self.cells);
                    false
                }
                Sought::Later => return Stage::Measure,
                Sought::Row(_) | Sought::End => true,
            };
            if is_end {
                self.walk.restart();
                return Stage::Head;
            }
            self.widths.observe(&self.cells);
            self.measured += 1;
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
            Stage::First | Stage::Rows => match self.walk.seek() {
                Sought::End => Stage::Tail,
                Sought::Later => {
                    self.is_over = true;
                    self.stage
                }
                Sought::Row(row) => {
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
            Stage::First | Stage::Rows => match self.walk.seek() {
                Sought::End => return Stage::Tail,
                Sought::Later => {
                    self.is_over = true;
                    return self.stage;
                }
                Sought::Row(row) => line::<T>(&row, self.form, &mut self.cells),
            },
            Stage::Tail | Stage::Done => {
                T::tail(&self.snapshot, self.form, out);
                stale::write(&self.snapshot, self.form, out);
                return Stage::Done;
            }
        }
        // A row that is wider than those that were measured widens the columns from here on.
        if self.measured >= limits::MEASURED_ROWS_MAX {
            self.widths.observe(&self.cells);
        }
        self.widths.line(&self.cells, out);
        Stage::Rows
    }
}

/// Makes one chunk at a time and lets all other connections have their turn before the next.
struct InTurn<T: Table> {
    answer: Streamed<T>,
    my_turn: bool,
}

impl<T: Table> Stream for InTurn<T> {
    type Item = serde_json::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.my_turn = !self.my_turn;
        if self.my_turn {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        match self.answer.chunk() {
            Ok(chunk) if !chunk.is_empty() => Poll::Ready(Some(Ok(chunk.into()))),
            Ok(_) if self.answer.stage == Stage::Done => Poll::Ready(None),
            Ok(_) => {
                self.my_turn = true;
                cx.waker().wake_by_ref();
                Poll::Pending
            }
            Err(error) => Poll::Ready(Some(Err(error))),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;
    use crate::backends::BackendTable;
    use crate::fixture::many;
    use crate::frontends::Frontends;

    fn streamed<T: Table>(table: T, snapshot: Snapshot, form: Form) -> InTurn<T> {
        let views = sorted::<T>(&snapshot, &Filter::default());
        let walk = Walk::new(table, views, Filter::default());
        let widths = Widths::default();
        let cells = Cells::default();
        let (snapshot, stage) = (Arc::new(snapshot), Stage::first(form));
        let answer = Streamed { walk, snapshot, form, widths, cells, stage, measured: 0, is_over: false };
        InTurn { answer, my_turn: true }
    }

    fn frontends(form: Form) -> InTurn<Frontends> {
        streamed(Frontends, many(500, 10), form)
    }

    fn polls<T: Table>(mut chunks: InTurn<T>) -> Vec<Poll<serde_json::Result<Bytes>>> {
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
        let polls = polls(frontends(form));
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
    fn a_table_of_many_rows_begins_before_all_of_them_are_measured() {
        let polls = polls(streamed(Frontends, many(10_000, 1), Form::Table));
        let waited = polls.iter().position(Poll::is_ready).unwrap();
        let turns = 2 * (limits::MEASURED_ROWS_MAX / limits::MEASURED_ROWS + 2);
        assert!(waited <= turns, "{waited} polls without a row, of {}", polls.len());
        let lines = |poll: &Poll<serde_json::Result<Bytes>>| match poll {
            Poll::Ready(Ok(chunk)) => chunk.iter().filter(|byte| **byte == b'\n').count(),
            _ => 0,
        };
        assert_eq!(polls.iter().map(lines).sum::<usize>(), 10_001, "the heading and all rows");
    }

    #[test]
    fn a_search_among_services_without_rows_lets_others_have_their_turn() {
        let services = 4 * limits::SERVICES_SOUGHT;
        let polls = polls(streamed(BackendTable::default(), many(services, 0), Form::Json));
        assert!(polls.iter().filter(|poll| poll.is_pending()).count() >= 4, "{}", polls.len());
    }
}
