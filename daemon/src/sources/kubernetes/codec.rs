//! How an apiserver's bodies are written, behind one trait: JSON is asked for; another encoding is another
//! implementation.
//!
//! Invariant: one object that cannot be read harms no other, and is named if its metadata can be read.

mod json;

use std::fmt::{Debug, Display};

use super::envelope::{Identity, Status};
use super::object::Object;
use super::page::{Ahead, Items, ListFrame, NoPage};
use super::piece::Piece;
use super::resource::Resource;
use holdfast_objects::Provenance;

pub(super) use json::Json;

/// One event of a watch, taken out of its frame.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Frame<'a> {
    /// An object is there, new or changed.
    Applied(&'a [u8]),
    /// An object is gone; this is its last version.
    Deleted(&'a [u8]),
    /// Everything up to this version has been sent.
    Bookmark(String),
    /// The watch has failed.
    Failed(Status),
}

/// Why a frame cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a watch event: {0}")]
pub(super) struct NoFrame(pub(super) String);

/// A list that is taken apart while it comes.
pub(super) trait Splitter: Debug + Default + Send {
    /// Takes a chunk, and gives out items that end in it, or in an earlier one.
    fn take(&mut self, chunk: &[u8], items: &mut dyn Items) -> Result<(), NoPage>;

    /// Gives out the last items, and what the list says of itself.
    fn end(self, items: &mut dyn Items) -> Result<ListFrame, NoPage>;
}

/// A watch that is taken apart while it comes.
pub(super) trait Framer: Debug + Default + Send {
    /// Takes a chunk, and gives out each frame that ends in it.
    fn take(&mut self, chunk: &[u8], each: &mut dyn FnMut(Piece<'_>));
}

pub(super) trait Codec: Debug + Send + Sync + 'static {
    /// How objects are asked for, as `Accept` spells it.
    const OBJECTS: &'static str;
    /// How lists of nothing but metadata are asked for.
    const METADATA: &'static str;
    /// Takes a list apart.
    type Page: Splitter;
    /// Takes a watch apart.
    type Frames: Framer;

    /// Takes an event out of its frame.
    fn frame(bytes: &[u8]) -> Result<Frame<'_>, NoFrame>;

    /// The identity of an object, whatever the rest of it is.
    fn peek(bytes: &[u8]) -> Option<Identity>;

    /// Whether an event that cannot be read says of its object that it is gone; `None`: the event does not tell what
    /// happened to the object.
    fn is_deletion(bytes: &[u8]) -> Option<bool>;

    /// Reads an object.
    fn read(what: Resource, bytes: &[u8], provenance: &Provenance) -> Object;

    /// Reads the object at the beginning of a text that may go on.
    fn read_ahead(what: Resource, text: &str, provenance: &Provenance) -> Ahead<Object>;

    /// Finds the end of the object at the beginning of a text that may go on.
    fn skip_ahead(text: &str) -> Ahead<()>;

    /// Rejects an object for this reason, without reading it; its bytes may be cut off, or still stand in their frame.
    fn refuse(what: Resource, bytes: &[u8], reason: &dyn Display, provenance: &Provenance) -> Object;
}
