//! Helpers for the tests of both encodings.

use holdfast_core::keys::Source;
use holdfast_objects::{Defaulting, Provenance};

use super::{FrameError, WatchFrame};

pub(super) fn provenance() -> Provenance {
    Provenance {
        source: Source::Kubernetes,
        origin: Some("10.0.0.1:6443".into()),
        defaulting: Defaulting::Done,
    }
}

/// Formats a frame; `object` formats its object.
pub(super) fn shown(frame: Result<WatchFrame<'_>, FrameError>, object: impl Fn(&[u8]) -> String) -> String {
    match frame {
        Ok(WatchFrame::Applied(bytes)) => format!("applied {}", object(bytes)),
        Ok(WatchFrame::Deleted(bytes)) => format!("deleted {}", object(bytes)),
        Ok(WatchFrame::Bookmark(version)) => format!("bookmark {version}"),
        Ok(WatchFrame::Failed(status)) => format!("failed {status}"),
        Err(none) => none.to_string(),
    }
}
