//! Tables, written in chunks while the client reads.
//!
//! Invariant: an answer shows one snapshot from its first row to its last, and holds besides that snapshot at most a
//! chunk and one row, however long the table is.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use axum::http::StatusCode;
use axum::response::Response;
use futures_core::Stream;
use holdfast_core::facts::Timestamp;
use holdfast_core::keys::ObjectName;
use holdfast_core::snapshot::{ServiceView, Snapshot};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::footer::Footer;
use super::form::Form;
use super::limits;
use super::query::Filter;
use super::response::typed_response;
use super::text_table::{Cells, ColumnWidths};
use super::{response_schema, stale};
use holdfast_agent::readings::Readings;

/// A column of the text: its title and its cells.
pub(super) struct Column<T: Table> {
    title: &'static str,
    is_wide: bool,
    cell: Cell<T>,
}

/// Puts one cell of a row.
type Cell<T> = fn(&<T as Table>::Row<'_>, Form, &mut Cells);

/// A column of both tables.
pub(super) const fn column<T: Table>(title: &'static str, cell: Cell<T>) -> Column<T> {
    Column { title, is_wide: false, cell }
}

/// A column of the wide table only.
pub(super) const fn wide_column<T: Table>(title: &'static str, cell: Cell<T>) -> Column<T> {
    Column { title, is_wide: true, cell }
}

pub(super) trait Table: Send + Sized + Unpin + 'static {
    /// The name of the list in JSON.
    const NAME: &'static str;
    /// The name of the answer in the API's description.
    const ANSWER: &'static str;
    /// The content and order of the answer.
    const ORDER: &'static str;
    const COLUMNS: &'static [Column<Self>];
    /// Identifies a row of a service.
    type Place: Copy + Send + Unpin;
    type Row<'a>: Serialize + JsonSchema;

    /// A table before its first row.
    fn new(readings: &Readings) -> Self;

    /// Whether a service may have rows that pass the filter. All services are asked before they are sorted.
    fn may_have_rows(&self, view: &ServiceView, filter: &Filter) -> bool;

    /// The services that fail clients although their verdicts are good.
    fn list_failing_services(&self) -> BTreeSet<ObjectName>;

    /// Adds the rows of one service that pass the filter.
    fn add_positions(&mut self, view: &ServiceView, filter: &Filter, into: &mut Vec<Self::Place>);

    /// The order of rows of services with the same namespace and name.
    fn compare_rows(a: (&ServiceView, Self::Place), b: (&ServiceView, Self::Place)) -> Ordering;

    /// One row; `None` if the place is not one of this service's.
    fn build_row<'a>(&'a self, view: &'a ServiceView, place: Self::Place) -> Option<Self::Row<'a>>;

    /// The service of a row that `holdfast status` counts as failing.
    fn failing_service<'r>(row: &'r Self::Row<'_>) -> Option<&'r ObjectName>;

    /// Whether a row has a star in place of the addresses of this node.
    fn is_at_node_ports(_row: &Self::Row<'_>) -> bool {
        false
    }

    /// Drops the data for the rows of earlier services.
    fn clear_group(&mut self) {}

    /// Describes the members of the JSON object after the rows.
    fn describe_tail(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "object" })
    }

    /// Writes the part after the rows: further members of the JSON object, or further text.
    fn write_tail(_snapshot: &Snapshot, _form: Form, _out: &mut Vec<u8>) {}
}

/// Describes the answer as [`TableStream`] writes it.
pub(super) fn describe_table<T: Table>(generator: &mut SchemaGenerator) -> Schema {
    let rows = generator.subschema_for::<Vec<T::Row<'_>>>();
    let mut whole = T::describe_tail(generator);
    let members = whole.ensure_object();
    members.insert("description".to_owned(), T::ORDER.into());
    add_member(members, T::NAME, rows);
    add_member(members, stale::NAME, stale::describe_member(generator));
    generator.definitions_mut().insert(T::ANSWER.to_owned(), whole.into());
    response_schema::schema_ref(T::ANSWER)
}

pub(super) fn add_member(members: &mut Map<String, Value>, name: &str, described: Schema) {
    if let Value::Object(properties) = members.entry("properties").or_insert_with(|| json!({})) {
        properties.insert(name.to_owned(), described.into());
    }
    if let Value::Array(required) = members.entry("required").or_insert_with(|| json!([])) {
        required.push(name.into());
    }
}

/// The services that may have rows, in the order of the tables.
fn sort_services<T: Table>(table: &T, snapshot: &Snapshot, filter: &Filter) -> Arc<[Arc<ServiceView>]> {
    let services = &snapshot.services;
    let may_have = |view: &&Arc<ServiceView>| table.may_have_rows(view, filter);
    sort_by_key(match (&filter.service, filter.only_trouble) {
        (Some(name), _) => services.find_by_name(name).filter(may_have).collect(),
        (None, true) => list_in_trouble(table, snapshot).filter(may_have).collect(),
        (None, false) => services.iter().filter(may_have).collect(),
    })
}

/// The services with a bad verdict, and then those that fail clients with a good one.
fn list_in_trouble<'a, T: Table>(
    table: &T,
    snapshot: &'a Snapshot,
) -> impl Iterator<Item = &'a Arc<ServiceView>> {
    let failing = table.list_failing_services().into_iter();
    let failing = failing.flat_map(|name| snapshot.services.find_by_name(&name).collect::<Vec<_>>());
    snapshot.services.with_problems().chain(failing.filter(|view| !view.has_problem()))
}

/// Sorts services by their keys. The keys are compared as adjacent texts: the originals are scattered over memory, and
/// fetching each of them for each comparison takes ten times as long as the sort.
fn sort_by_key(views: Vec<&Arc<ServiceView>>) -> Arc<[Arc<ServiceView>]> {
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

/// The result of the search for the next row.
enum SeekResult<'a, T: Table> {
    Row(T::Row<'a>),
    Pending,
    End,
}

/// Iterates over all rows in order.
#[derive(Debug)]
struct RowCursor<T: Table> {
    table: T,
    filter: Filter,
    views: Arc<[Arc<ServiceView>]>,
    next: usize,
    places: std::vec::IntoIter<(usize, T::Place)>,
}

impl<T: Table> RowCursor<T> {
    fn new(table: T, views: Arc<[Arc<ServiceView>]>, filter: Filter) -> Self {
        Self { table, filter, views, next: 0, places: Vec::new().into_iter() }
    }

    fn restart(&mut self) {
        self.next = 0;
        self.places = Vec::new().into_iter();
    }

    /// Searches for the next row, in at most one turn's services.
    fn seek_row(&mut self) -> SeekResult<'_, T> {
        for _ in 0..limits::SERVICES_PER_TURN {
            if let Some((at, place)) = self.places.next() {
                let row = self.views.get(at).and_then(|view| self.table.build_row(view, place));
                return row.map_or(SeekResult::Pending, SeekResult::Row);
            }
            if self.load_group().is_none() {
                return SeekResult::End;
            }
        }
        SeekResult::Pending
    }

    /// Collects the places of the next group: services of one namespace and name, which several sources may have.
    fn load_group(&mut self) -> Option<()> {
        let rest = self.views.get(self.next..)?;
        let first = rest.first()?;
        self.table.clear_group();
        let mut places = Vec::new();
        let mut own = Vec::new();
        for (offset, view) in rest.iter().take_while(|view| view.key.name == first.key.name).enumerate() {
            self.table.add_positions(view, &self.filter, &mut own);
            places.extend(own.drain(..).map(|place| (self.next + offset, place)));
        }
        let view = |at: usize| self.views.get(at).unwrap_or(first);
        places.sort_by(|(a, a_place), (b, b_place)| {
            T::compare_rows((view(*a), *a_place), (view(*b), *b_place))
        });
        self.next += rest.iter().take_while(|view| view.key.name == first.key.name).count();
        self.places = places.into_iter();
        Some(())
    }
}

/// The whole table, as a response that is written while the client reads it.
pub(super) fn table_response<T: Table>(readings: &Readings, filter: Filter, form: Form) -> Response {
    let snapshot = readings.snapshot();
    let table = T::new(readings);
    let views = sort_services(&table, &snapshot, &filter);
    let walk = RowCursor::new(table, views, filter);
    let widths = ColumnWidths::default();
    let cells = Cells::default();
    let stage = TableStage::first(form);
    let footer = Footer::from_readings(readings);
    let now = readings.now();
    let (measured, turn_ended) = (0, false);
    let answer =
        TableStream { walk, snapshot, form, now, widths, cells, stage, footer, measured, turn_ended };
    let chunks = YieldingStream { answer, has_yielded: true };
    typed_response(StatusCode::OK, form.content_type(), Body::from_stream(chunks))
}

fn columns<T: Table>(form: Form) -> impl Iterator<Item = &'static Column<T>> {
    T::COLUMNS.iter().filter(move |column| form == Form::Wide || !column.is_wide)
}

fn fill_heading<T: Table>(form: Form, cells: &mut Cells) {
    cells.clear();
    columns::<T>(form).for_each(|column| cells.put(column.title));
}

fn fill_line<T: Table>(row: &T::Row<'_>, form: Form, (cells, now): (&mut Cells, Timestamp)) {
    cells.clear();
    columns::<T>(form).for_each(|column| (column.cell)(row, form, cells));
    // Only the wide tables have times.
    if form == Form::Wide {
        cells.add_ages(now);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TableStage {
    /// Text only: measuring the columns.
    Measure,
    Head,
    First,
    Rows,
    Tail,
    Done,
}

impl TableStage {
    const fn first(form: Form) -> Self {
        match form {
            Form::Table | Form::Wide => Self::Measure,
            Form::Json => Self::Head,
        }
    }
}

struct TableStream<T: Table> {
    walk: RowCursor<T>,
    snapshot: Arc<Snapshot>,
    form: Form,
    now: Timestamp,
    widths: ColumnWidths,
    cells: Cells,
    stage: TableStage,
    footer: Footer,
    /// How many rows were measured before the first was written.
    measured: usize,
    /// Whether the turn is over before a chunk is full.
    turn_ended: bool,
}

impl<T: Table> TableStream<T> {
    /// The next chunk; empty if there is nothing to write yet.
    fn next_chunk(&mut self) -> Result<Vec<u8>, serde_json::Error> {
        if self.stage == TableStage::Measure {
            self.stage = self.measure_rows();
            return Ok(Vec::new());
        }
        let mut out = Vec::with_capacity(2 * limits::CHUNK_BYTES);
        self.turn_ended = false;
        while out.len() < limits::CHUNK_BYTES && self.stage != TableStage::Done && !self.turn_ended {
            self.stage = match self.form {
                Form::Json => self.write_json(&mut out)?,
                Form::Table | Form::Wide => self.write_text(&mut out),
            };
        }
        Ok(out)
    }

    /// Measures about a chunk of rows. After the last row, or the last to measure, it returns to the first one.
    fn measure_rows(&mut self) -> TableStage {
        fill_heading::<T>(self.form, &mut self.cells);
        self.widths.observe(&self.cells);
        for _ in 0..limits::MEASURED_ROWS {
            let is_end = match self.walk.seek_row() {
                SeekResult::Row(row) if self.measured < limits::MEASURED_ROWS_MAX => {
                    fill_line::<T>(&row, self.form, (&mut self.cells, self.now));
                    false
                }
                SeekResult::Pending => return TableStage::Measure,
                SeekResult::Row(_) | SeekResult::End => true,
            };
            if is_end {
                self.walk.restart();
                return TableStage::Head;
            }
            self.widths.observe(&self.cells);
            self.measured += 1;
        }
        TableStage::Measure
    }

    fn write_json(&mut self, out: &mut Vec<u8>) -> Result<TableStage, serde_json::Error> {
        Ok(match self.stage {
            TableStage::Measure | TableStage::Head => {
                out.extend_from_slice(b"{\"");
                out.extend_from_slice(T::NAME.as_bytes());
                out.extend_from_slice(b"\": [");
                TableStage::First
            }
            TableStage::First | TableStage::Rows => match self.walk.seek_row() {
                SeekResult::End => TableStage::Tail,
                SeekResult::Pending => {
                    self.turn_ended = true;
                    self.stage
                }
                SeekResult::Row(row) => {
                    out.extend_from_slice(if self.stage == TableStage::First { b"\n" } else { b",\n" });
                    serde_json::to_writer(out, &row)?;
                    TableStage::Rows
                }
            },
            TableStage::Tail | TableStage::Done => {
                out.extend_from_slice(b"\n]");
                T::write_tail(&self.snapshot, self.form, out);
                stale::write(&self.snapshot, (self.form, self.now), out);
                out.extend_from_slice(b"}\n");
                TableStage::Done
            }
        })
    }

    fn write_text(&mut self, out: &mut Vec<u8>) -> TableStage {
        match self.stage {
            TableStage::Measure | TableStage::Head => fill_heading::<T>(self.form, &mut self.cells),
            TableStage::First | TableStage::Rows => match self.walk.seek_row() {
                SeekResult::End => return TableStage::Tail,
                SeekResult::Pending => {
                    self.turn_ended = true;
                    return self.stage;
                }
                SeekResult::Row(row) => {
                    self.footer.count_row(T::failing_service(&row), T::is_at_node_ports(&row));
                    fill_line::<T>(&row, self.form, (&mut self.cells, self.now));
                }
            },
            TableStage::Tail | TableStage::Done => {
                self.footer.write(&self.snapshot.node, out);
                T::write_tail(&self.snapshot, self.form, out);
                stale::write(&self.snapshot, (self.form, self.now), out);
                return TableStage::Done;
            }
        }
        // A row that is wider than the measured ones widens the columns from here on.
        if self.measured >= limits::MEASURED_ROWS_MAX {
            self.widths.observe(&self.cells);
        }
        self.widths.push_line(&self.cells, out);
        TableStage::Rows
    }
}

/// Writes one chunk at a time and yields to all other connections before the next.
struct YieldingStream<T: Table> {
    answer: TableStream<T>,
    has_yielded: bool,
}

impl<T: Table> Stream for YieldingStream<T> {
    type Item = serde_json::Result<Bytes>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.has_yielded = !self.has_yielded;
        if self.has_yielded {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        match self.answer.next_chunk() {
            Ok(chunk) if !chunk.is_empty() => Poll::Ready(Some(Ok(chunk.into()))),
            Ok(_) if self.answer.stage == TableStage::Done => Poll::Ready(None),
            Ok(_) => {
                self.has_yielded = true;
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

    fn streamed<T: Table>(table: T, snapshot: Snapshot, form: Form) -> YieldingStream<T> {
        let views = sort_services(&table, &snapshot, &Filter::default());
        let walk = RowCursor::new(table, views, Filter::default());
        let widths = ColumnWidths::default();
        let cells = Cells::default();
        let (snapshot, stage, now) = (Arc::new(snapshot), TableStage::first(form), Timestamp(0));
        let footer = Footer::default();
        let (measured, turn_ended) = (0, false);
        let answer =
            TableStream { walk, snapshot, form, now, widths, cells, stage, footer, measured, turn_ended };
        YieldingStream { answer, has_yielded: true }
    }

    fn frontends(form: Form) -> YieldingStream<Frontends> {
        streamed(Frontends::default(), many(500, 10), form)
    }

    fn polls<T: Table>(mut chunks: YieldingStream<T>) -> Vec<Poll<serde_json::Result<Bytes>>> {
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
        assert!(!in_a_row, "it yields after each chunk");
    }

    #[test]
    fn a_table_yields_after_each_chunk() {
        check_chunks(Form::Json);
        check_chunks(Form::Wide);
    }

    #[test]
    fn a_table_of_many_rows_begins_before_all_of_them_are_measured() {
        let polls = polls(streamed(Frontends::default(), many(10_000, 1), Form::Table));
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
    fn a_search_without_rows_yields_to_other_connections() {
        let services = 4 * limits::SERVICES_PER_TURN;
        let polls = polls(streamed(BackendTable::default(), many(services, 0), Form::Json));
        assert!(polls.iter().filter(|poll| poll.is_pending()).count() >= 4, "{}", polls.len());
    }
}
