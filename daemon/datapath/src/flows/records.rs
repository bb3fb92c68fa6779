//! The array of records, mapped.
//!
//! Invariant: a record in use is written only by its owner. [`crate::abi::flow`] says how a record is read whole.

use crate::abi::flow::{self, Cells, WORDS, types};
use crate::error::StartError;
use crate::generation::view;
use crate::map::{Handles, Map};
use crate::view::View;

/// All flow records, in use or free.
#[derive(Debug)]
pub(super) struct Records(View);

impl Records {
    pub(super) fn new(maps: &Handles) -> Result<Self, StartError> {
        view(maps, Map::Flows).map(Self)
    }

    fn all(&self) -> &[Cells] {
        let (all, _) = self.0.as_chunks::<WORDS>();
        all
    }

    /// How many records there are, in use or free.
    pub(super) fn len(&self) -> u32 {
        u32::try_from(self.all().len()).unwrap_or(u32::MAX)
    }

    pub(super) fn cells(&self, number: u32) -> Option<&Cells> {
        self.all().get(number as usize)
    }

    /// The records in use among `count` of them, from one number on.
    pub(super) fn some(&self, from: u32, count: u32) -> impl Iterator<Item = (u32, types::flow)> {
        let cells = self.all().iter().skip(from as usize).take(count as usize);
        (from..).zip(cells).filter_map(|(number, cells)| Some((number, flow::read(cells)?)))
    }

    /// The flow of that number; `None`: the record is free, or is being written.
    pub(super) fn read(&self, number: u32) -> Option<types::flow> {
        self.cells(number).and_then(flow::read)
    }

    /// The serial of the flow of that number; 0: there is none.
    pub(super) fn serial(&self, number: u32) -> u32 {
        self.cells(number).map_or(0, flow::serial)
    }

    /// Writes a flow where no program finds it.
    pub(super) fn write(&self, number: u32, it: &types::flow) {
        if let Some(cells) = self.cells(number) {
            flow::write(cells, it);
        }
    }

    /// Whether the record is still that very flow's.
    pub(super) fn is_of(&self, number: u32, it: &types::flow) -> bool {
        self.cells(number).is_some_and(|cells| flow::serial(cells) == it.serial)
    }

    pub(super) fn free(&self, number: u32) {
        if let Some(cells) = self.cells(number) {
            flow::free(cells);
        }
    }
}
