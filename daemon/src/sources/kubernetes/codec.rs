//! How bodies are written, behind one trait: JSON is what is asked for; another encoding is another implementation.
//!
//! Invariant: one object that cannot be read harms no other, and is named if its metadata can be read. Deliberately absent:
//! what was delivered before, and what follows from an event.

mod json;

use std::fmt::{Debug, Display};

use super::envelope::{Identity, Status};
use super::object::Object;
use super::page::{ListFrame, NoPage};
use super::piece::Piece;
use super::what::What;
use crate::sources::objects::Provenance;

pub(super) use json::Json;

/// One event of a watch, taken out of its frame.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Frame<'a> {
    /// An object is there, new or changed.
    Applied(&'a [u8]),
    /// An object is gone; this is its last version.
    Deleted(&'a [u8]),
    /// Everything up to this version has been said.
    Bookmark(String),
    /// The watch has failed.
    Failed(Status),
}

/// Why a frame is none, in words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an event that is none: {0}")]
pub(super) struct NoFrame(pub(super) String);

/// A body that is taken apart while it comes.
pub(super) trait Splitter: Debug + Default + Send {
    /// Takes a chunk, and gives out each piece that ends in it.
    fn take(&mut self, chunk: &[u8], each: &mut dyn FnMut(Piece<'_>)) -> Result<(), NoPage>;
}

/// One encoding.
pub(super) trait Codec: Debug + Send + Sync + 'static {
    /// How it is asked for.
    const OBJECTS: &'static str;
    /// How lists of nothing but metadata are asked for.
    const METADATA: &'static str;
    /// Takes a list apart.
    type Page: Splitter;
    /// Takes a watch apart.
    type Frames: Splitter;

    /// What a list says of itself.
    fn end(page: Self::Page) -> Result<ListFrame, NoPage>;

    /// Takes an event out of its frame.
    fn frame(bytes: &[u8]) -> Result<Frame<'_>, NoFrame>;

    /// Who an object is, whatever the rest of it is.
    fn peek(bytes: &[u8]) -> Option<Identity>;

    /// Reads an object.
    fn read(what: What, bytes: &[u8], provenance: &Provenance) -> Object;

    /// An object that is not to be read, for this reason; it may be cut, or in its frame.
    fn refuse(what: What, bytes: &[u8], reason: &dyn Display, provenance: &Provenance) -> Object;
}
