//! A list, taken apart while it comes: each item on its own, and what stands around them.
//!
//! Invariant: what is given out does not depend on where chunks end, and no more than one item is held. Lengths say how
//! long a list is, so one that was broken off never passes for a whole one. An item may be wrong inside.

use super::{MAGIC, TYPE_META, UNKNOWN_RAW};
use crate::source::codec::Splitter;
use crate::source::page::{FRAME_BYTES_MAX, ItemSink, ListFrame, PageError};
use crate::source::piece::{Piece, PieceBuffer};
use holdfast_objects::protobuf::{DecodeError, Field, FieldHeader, Fields, WireKind};
use std::borrow::Cow;

/// The fields of every list.
const LIST_META: u32 = 1;
const LIST_ITEM: u32 = 2;

/// The fields of `metadata` of a list.
const RESOURCE_VERSION: u32 = 2;
const CONTINUE: u32 = 3;
const REMAINING: u32 = 4;

/// Where the bytes to come belong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ListPart {
    /// In the beginning of a field, or before the first one.
    #[default]
    Head,
    /// In a field that says what the list is.
    TypeMeta,
    /// In a field with what the list says of itself.
    ListMeta,
    Item,
    /// In a field that is not read.
    Skipped,
}

/// A list that has begun.
#[derive(Debug, Default)]
pub(crate) struct ProtobufList {
    has_begun: bool,
    /// The bytes of the beginning of a field that have come.
    head: Vec<u8>,
    part: ListPart,
    /// How much is to come of the field.
    left: u64,
    /// How much is to come of the list itself, once it has begun.
    list_left: Option<u64>,
    type_meta: Vec<u8>,
    list_meta: Vec<u8>,
    item: PieceBuffer,
}

impl Splitter for ProtobufList {
    fn push_chunk(&mut self, chunk: &[u8], items: &mut dyn ItemSink) -> Result<(), PageError> {
        let mut rest = chunk;
        while !rest.is_empty() {
            rest = match self.part {
                ListPart::Head if self.has_begun => self.begin_field(rest, items)?,
                ListPart::Head => self.read_magic(rest)?,
                _ => self.continue_field(rest, items)?,
            };
        }
        Ok(())
    }

    fn finish(self, _: &mut dyn ItemSink) -> Result<ListFrame, PageError> {
        if !self.has_begun && !MAGIC.starts_with(&self.head) {
            return Err(PageError::NotAList);
        }
        if !self.head.is_empty() || self.part != ListPart::Head || self.list_left != Some(0) {
            return Err(PageError::Truncated);
        }
        let frame = parse_list_frame(&self.type_meta, &self.list_meta).map_err(|_| PageError::Garbled)?;
        frame.validate()
    }
}

impl ProtobufList {
    fn read_magic<'a>(&mut self, rest: &'a [u8]) -> Result<&'a [u8], PageError> {
        let (bytes, rest) = rest.split_at(rest.len().min(MAGIC.len() - self.head.len()));
        self.head.extend_from_slice(bytes);
        if !MAGIC.starts_with(&self.head) {
            return Err(PageError::NotAList);
        }
        if self.head.len() == MAGIC.len() {
            self.has_begun = true;
            self.head.clear();
        }
        Ok(rest)
    }

    /// Takes one byte of the beginning of a field, and enters the field when that was the last one.
    fn begin_field<'a>(&mut self, rest: &'a [u8], items: &mut dyn ItemSink) -> Result<&'a [u8], PageError> {
        let (byte, rest) = rest.split_at(1);
        self.head.extend_from_slice(byte);
        let head = match FieldHeader::read(&self.head) {
            Ok(head) => head,
            Err(DecodeError::Cut) => return Ok(rest),
            Err(_) => return Err(PageError::Garbled),
        };
        self.head.clear();
        self.enter_field(head)?;
        if self.left == 0 {
            self.leave_field(items);
        }
        Ok(rest)
    }

    fn enter_field(&mut self, head: FieldHeader) -> Result<(), PageError> {
        let (left, is_bytes) = match head.kind {
            WireKind::Number(_) => (0, false),
            WireKind::Bytes(length) => (length, true),
            WireKind::Fixed(length) => (length, false),
        };
        (self.part, self.left) = (ListPart::Skipped, left);
        match self.list_left.filter(|left| *left > 0) {
            Some(in_list) => {
                let whole = u64::try_from(head.length).ok().and_then(|length| left.checked_add(length));
                let after = whole.and_then(|whole| in_list.checked_sub(whole));
                self.list_left = Some(after.ok_or(PageError::Garbled)?);
                self.part = list_part(head.number, is_bytes)?;
            }
            None if head.number == UNKNOWN_RAW => {
                // The list itself is no field to wait for: its own fields are what comes next.
                if !is_bytes || self.list_left.replace(left).is_some() {
                    return Err(PageError::Garbled);
                }
                (self.part, self.left) = (ListPart::Head, 0);
            }
            None if head.number == TYPE_META && is_bytes => self.part = ListPart::TypeMeta,
            None => {}
        }
        Ok(())
    }

    fn continue_field<'a>(
        &mut self,
        rest: &'a [u8],
        items: &mut dyn ItemSink,
    ) -> Result<&'a [u8], PageError> {
        let length = usize::try_from(self.left).map_or(rest.len(), |left| left.min(rest.len()));
        let (run, rest) = rest.split_at(length);
        self.left -= u64::try_from(length).unwrap_or_default();
        match self.part {
            ListPart::TypeMeta => append_bounded(&mut self.type_meta, run)?,
            ListPart::ListMeta => append_bounded(&mut self.list_meta, run)?,
            ListPart::Item => self.item.push_run(run, self.left == 0, &mut |item| items.take_item(item)),
            ListPart::Skipped | ListPart::Head => {}
        }
        if self.left == 0 {
            self.part = ListPart::Head;
        }
        Ok(rest)
    }

    /// Leaves a field that has no bytes.
    fn leave_field(&mut self, items: &mut dyn ItemSink) {
        if self.part == ListPart::Item {
            items.take_item(Piece::Whole(&[]));
        }
        self.part = ListPart::Head;
    }
}

const fn list_part(number: u32, is_bytes: bool) -> Result<ListPart, PageError> {
    match (number, is_bytes) {
        (LIST_META, true) => Ok(ListPart::ListMeta),
        (LIST_ITEM, true) => Ok(ListPart::Item),
        (LIST_META | LIST_ITEM, false) => Err(PageError::Garbled),
        _ => Ok(ListPart::Skipped),
    }
}

fn append_bounded(into: &mut Vec<u8>, run: &[u8]) -> Result<(), PageError> {
    if into.len().saturating_add(run.len()) > FRAME_BYTES_MAX {
        return Err(PageError::TooLong);
    }
    into.extend_from_slice(run);
    Ok(())
}

/// Parts of a message that come apart belong together, so they are read as if they had come at once.
fn parse_list_frame(type_meta: &[u8], list_meta: &[u8]) -> Result<ListFrame, DecodeError> {
    let mut frame = ListFrame::default();
    (frame.api_version, frame.kind) = super::parse_type_meta(type_meta)?;
    let mut fields = Fields::new(list_meta);
    while let Some(field) = fields.next_field()? {
        match field.number {
            RESOURCE_VERSION => frame.metadata.resource_version = owned_text(field)?,
            CONTINUE => frame.metadata.token = Some(owned_text(field)?),
            REMAINING => frame.metadata.remaining_item_count = Some(field.number()?),
            _ => {}
        }
    }
    Ok(frame)
}

fn owned_text(field: Field<'_>) -> Result<String, DecodeError> {
    field.text().map(Cow::into_owned)
}
