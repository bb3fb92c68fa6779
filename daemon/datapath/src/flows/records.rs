//! The mapped array of flow records.
//!
//! Invariant: only its owner writes a record in use. [`crate::abi::flow`] reads a record whole.

use crate::abi::flow::{self, RECORD_WORDS, RecordCells, types};
use crate::error::StartError;
use crate::generation::map_array;
use crate::map::{Map, MapHandles};
use crate::mapped_array::MappedArray;

#[derive(Debug)]
pub(super) struct FlowRecords(MappedArray);

impl FlowRecords {
    pub(super) fn new(maps: &MapHandles) -> Result<Self, StartError> {
        map_array(maps, Map::Flows).map(Self)
    }

    fn as_cells(&self) -> &[RecordCells] {
        let (all, _) = self.0.as_chunks::<RECORD_WORDS>();
        all
    }

    pub(super) fn len(&self) -> u32 {
        u32::try_from(self.as_cells().len()).unwrap_or(u32::MAX)
    }

    pub(super) fn cells(&self, number: u32) -> Option<&RecordCells> {
        self.as_cells().get(number as usize)
    }

    /// The records in use among the `count` records from `from` on.
    pub(super) fn iter_range(&self, from: u32, count: u32) -> impl Iterator<Item = (u32, types::flow)> {
        let cells = self.as_cells().iter().skip(from as usize).take(count as usize);
        (from..).zip(cells).filter_map(|(number, cells)| Some((number, flow::read_record(cells)?)))
    }

    /// The flow with that number; `None`: the record is free, or a program is writing it.
    pub(super) fn read(&self, number: u32) -> Option<types::flow> {
        self.cells(number).and_then(flow::read_record)
    }

    pub(super) fn serial(&self, number: u32) -> u32 {
        self.cells(number).map_or(0, flow::load_serial)
    }

    /// Writes a flow that no program can find yet.
    pub(super) fn write(&self, number: u32, it: &types::flow) {
        if let Some(cells) = self.cells(number) {
            flow::write_record(cells, it);
        }
    }

    /// Whether the record still holds exactly that flow.
    pub(super) fn holds_flow(&self, number: u32, it: &types::flow) -> bool {
        self.cells(number).is_some_and(|cells| flow::load_serial(cells) == it.serial)
    }

    pub(super) fn free(&self, number: u32) {
        if let Some(cells) = self.cells(number) {
            flow::free_record(cells);
        }
    }
}
