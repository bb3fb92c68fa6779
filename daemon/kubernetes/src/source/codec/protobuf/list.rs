//! A list, taken apart while it comes: each item on its own, and what stands around them.
//!
//! Invariant: what is given out does not depend on where chunks end, and no more than one item is held. Lengths say how
//! long a list is, so one that was broken off never passes for a whole one. An item may be wrong inside.

use super::{MAGIC, TYPE_META, UNKNOWN_RAW};
use crate::source::codec::Splitter;
use crate::source::page::{FRAME_BYTES_MAX, Items, ListFrame, NoPage};
use crate::source::piece::{Gathered, Piece};
use holdfast_objects::protobuf::{Field, Fields, Head, Kind, Malformed};
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
enum Place {
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
pub(crate) struct List {
    has_begun: bool,
    /// The bytes of the beginning of a field that have come.
    head: Vec<u8>,
    place: Place,
    /// How much is to come of the field.
    left: u64,
    /// How much is to come of the list itself, once it has begun.
    list_left: Option<u64>,
    type_meta: Vec<u8>,
    list_meta: Vec<u8>,
    item: Gathered,
}

impl Splitter for List {
    fn take(&mut self, chunk: &[u8], items: &mut dyn Items) -> Result<(), NoPage> {
        let mut rest = chunk;
        while !rest.is_empty() {
            rest = match self.place {
                Place::Head if self.has_begun => self.begin_field(rest, items)?,
                Place::Head => self.begin(rest)?,
                _ => self.go_on(rest, items)?,
            };
        }
        Ok(())
    }

    fn end(self, _: &mut dyn Items) -> Result<ListFrame, NoPage> {
        if !self.has_begun && !MAGIC.starts_with(&self.head) {
            return Err(NoPage::NotAList);
        }
        if !self.head.is_empty() || self.place != Place::Head || self.list_left != Some(0) {
            return Err(NoPage::Truncated);
        }
        let frame = frame(&self.type_meta, &self.list_meta).map_err(|_| NoPage::Garbled)?;
        frame.checked()
    }
}

impl List {
    fn begin<'a>(&mut self, rest: &'a [u8]) -> Result<&'a [u8], NoPage> {
        let (bytes, rest) = rest.split_at(rest.len().min(MAGIC.len() - self.head.len()));
        self.head.extend_from_slice(bytes);
        if !MAGIC.starts_with(&self.head) {
            return Err(NoPage::NotAList);
        }
        if self.head.len() == MAGIC.len() {
            self.has_begun = true;
            self.head.clear();
        }
        Ok(rest)
    }

    /// Takes one byte of the beginning of a field, and enters the field when that was the last one.
    fn begin_field<'a>(&mut self, rest: &'a [u8], items: &mut dyn Items) -> Result<&'a [u8], NoPage> {
        let (byte, rest) = rest.split_at(1);
        self.head.extend_from_slice(byte);
        let head = match Head::read(&self.head) {
            Ok(head) => head,
            Err(Malformed::Cut) => return Ok(rest),
            Err(_) => return Err(NoPage::Garbled),
        };
        self.head.clear();
        self.enter(head)?;
        if self.left == 0 {
            self.leave(items);
        }
        Ok(rest)
    }

    fn enter(&mut self, head: Head) -> Result<(), NoPage> {
        let (left, is_bytes) = match head.kind {
            Kind::Number(_) => (0, false),
            Kind::Bytes(length) => (length, true),
            Kind::Fixed(length) => (length, false),
        };
        (self.place, self.left) = (Place::Skipped, left);
        match self.list_left.filter(|left| *left > 0) {
            Some(in_list) => {
                let whole = u64::try_from(head.length).ok().and_then(|length| left.checked_add(length));
                let after = whole.and_then(|whole| in_list.checked_sub(whole));
                self.list_left = Some(after.ok_or(NoPage::Garbled)?);
                self.place = place_in_list(head.number, is_bytes)?;
            }
            None if head.number == UNKNOWN_RAW => {
                // The list itself is no field to wait for: its own fields are what comes next.
                if !is_bytes || self.list_left.replace(left).is_some() {
                    return Err(NoPage::Garbled);
                }
                (self.place, self.left) = (Place::Head, 0);
            }
            None if head.number == TYPE_META && is_bytes => self.place = Place::TypeMeta,
            None => {}
        }
        Ok(())
    }

    fn go_on<'a>(&mut self, rest: &'a [u8], items: &mut dyn Items) -> Result<&'a [u8], NoPage> {
        let length = usize::try_from(self.left).map_or(rest.len(), |left| left.min(rest.len()));
        let (run, rest) = rest.split_at(length);
        self.left -= u64::try_from(length).unwrap_or_default();
        match self.place {
            Place::TypeMeta => gather(&mut self.type_meta, run)?,
            Place::ListMeta => gather(&mut self.list_meta, run)?,
            Place::Item => self.item.add(run, self.left == 0, &mut |item| items.take(item)),
            Place::Skipped | Place::Head => {}
        }
        if self.left == 0 {
            self.place = Place::Head;
        }
        Ok(rest)
    }

    /// Leaves a field that has no bytes.
    fn leave(&mut self, items: &mut dyn Items) {
        if self.place == Place::Item {
            items.take(Piece::Whole(&[]));
        }
        self.place = Place::Head;
    }
}

const fn place_in_list(number: u32, is_bytes: bool) -> Result<Place, NoPage> {
    match (number, is_bytes) {
        (LIST_META, true) => Ok(Place::ListMeta),
        (LIST_ITEM, true) => Ok(Place::Item),
        (LIST_META | LIST_ITEM, false) => Err(NoPage::Garbled),
        _ => Ok(Place::Skipped),
    }
}

fn gather(into: &mut Vec<u8>, run: &[u8]) -> Result<(), NoPage> {
    if into.len().saturating_add(run.len()) > FRAME_BYTES_MAX {
        return Err(NoPage::TooLong);
    }
    into.extend_from_slice(run);
    Ok(())
}

/// Parts of a message that come apart belong together, so they are read as if they had come at once.
fn frame(type_meta: &[u8], list_meta: &[u8]) -> Result<ListFrame, Malformed> {
    let mut frame = ListFrame::default();
    (frame.api_version, frame.kind) = super::type_meta(type_meta)?;
    let mut fields = Fields::of(list_meta);
    while let Some(field) = fields.next_field()? {
        match field.number {
            RESOURCE_VERSION => frame.metadata.resource_version = owned(field)?,
            CONTINUE => frame.metadata.token = Some(owned(field)?),
            REMAINING => frame.metadata.remaining_item_count = Some(field.number()?),
            _ => {}
        }
    }
    Ok(frame)
}

fn owned(field: Field<'_>) -> Result<String, Malformed> {
    field.text().map(Cow::into_owned)
}
