//! Splits a list into items and the frame around them while it arrives.
//!
//! Invariant: the output does not depend on chunk boundaries, and at most one item is in memory. A list states its
//! length, so one that broke off never passes for a whole one. An item may be invalid inside.

use super::{MAGIC, TYPE_META, UNKNOWN_RAW};
use crate::source::codec::Splitter;
use crate::source::page::{FRAME_BYTES_MAX, ItemSink, ListFrame, PageError};
use crate::source::piece::{Piece, PieceBuffer};
use holdfast_objects::protobuf::{DecodeError, Field, FieldHeader, Fields, WireKind};
use std::borrow::Cow;

/// The fields of a list.
const LIST_META: u32 = 1;
const LIST_ITEM: u32 = 2;

/// The fields of a list's `metadata`.
const RESOURCE_VERSION: u32 = 2;
const CONTINUE: u32 = 3;
const REMAINING: u32 = 4;

/// The part that the next bytes belong to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ListPart {
    /// The header of a field, or before the first field.
    #[default]
    Head,
    /// A field with the list's type.
    TypeMeta,
    /// A field with the list's metadata.
    ListMeta,
    Item,
    /// A field that is not read.
    Skipped,
}

/// A list while it arrives.
#[derive(Debug, Default)]
pub(crate) struct ProtobufList {
    has_begun: bool,
    /// The received bytes of a field's header.
    head: Vec<u8>,
    part: ListPart,
    /// The bytes of the field still to come.
    left: u64,
    /// The bytes of the list still to come, once it has begun.
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

    /// Reads one byte of a field's header, and enters the field after the last one.
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
                // The list itself is not skipped as one field: its own fields follow.
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

    /// Leaves a field without bytes.
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

/// Parts of one message that arrive separately are merged before decoding.
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
