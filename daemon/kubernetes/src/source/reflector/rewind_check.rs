//! Detects versions that go back: etcd was restored from a backup, or another store replies.
//!
//! Invariant: a watch from a future version is silent for ever, so the first silence after an interruption is not
//! trusted: the server is asked once for its version. If versions went back, the server issues them a second time, so
//! versions no longer identify delivered objects: everything is read again.
//!
//! After a long absence, a restored store may have passed the versions that it sent before. Its version proves nothing
//! then, and an audit follows soon after the watch has begun.

use std::sync::Arc;
use std::time::Instant;

use super::{Reflector, StopCause};
use crate::apiserver::{Encoding, Reply};
use crate::source::codec::{Codec, Json, Protobuf, Splitter};
use crate::source::piece::Piece;
use crate::source::watch_error::WatchError;

/// Whether both are numbers and the first is lower. Other servers' versions have no order.
fn is_older(one: &str, other: &str) -> bool {
    matches!((one.parse::<u64>(), other.parse::<u64>()), (Ok(one), Ok(other)) if one < other)
}

impl Reflector {
    /// Whether the silence was so long that versions alone do not prove the store to be the same.
    pub(super) fn was_away(&self) -> bool {
        let silence = self.view.borrow().silence(Instant::now());
        self.is_start_stale || silence.is_some_and(|it| it >= self.timing.long_absence)
    }

    /// Asks the server for its version once after each interruption. If it does not reply, the watch continues.
    pub(super) async fn query_newest_version(&mut self) -> Result<(), StopCause> {
        self.is_version_suspect = false;
        // The watch is not read meanwhile, and questions may follow one another.
        let most =
            if self.freshness.is_pending() { self.timing.refetch_timeout } else { self.timing.list_idle };
        let asking = tokio::time::timeout(most, self.fetch_newest_version());
        match asking.await {
            Ok(Ok(newest)) => Ok(self.check_rewind(&newest)?),
            Ok(Err(error)) => {
                self.check_encoding(&error);
                tracing::debug!(watch = %self.selection.what, %error, "the server did not report its version");
                self.freshness.give_up();
                Ok(())
            }
            Err(_) => {
                self.freshness.give_up();
                Ok(())
            }
        }
    }

    /// Checks whether versions went back; if so, forgets all versions, so that everything is read again.
    pub(super) fn check_rewind(&mut self, newest: &Arc<str>) -> Result<(), WatchError> {
        let Some(from) = self.latest_version.clone().filter(|reached| is_older(newest, reached)) else {
            return Ok(());
        };
        self.latest_version = Some(Arc::clone(newest));
        self.cache.lock().forget_versions();
        Err(WatchError::Rewound { from, to: Arc::clone(newest) })
    }

    async fn fetch_newest_version(&self) -> Result<Arc<str>, WatchError> {
        let query = self.selection.current().newest_version_path();
        let reply = self
            .access
            .get_as(self.encodings.metadata_accept(), &query, None)
            .await
            .map_err(WatchError::Unreachable)?;
        let reply = self.check_reply(reply).await.map_err(|(ending, _)| ending)?;
        match reply.encoding {
            Encoding::Json => self.read_version::<Json>(reply).await,
            Encoding::Protobuf => self.read_version::<Protobuf>(reply).await,
        }
    }

    async fn read_version<C: Codec>(&self, mut reply: Reply) -> Result<Arc<str>, WatchError> {
        let mut page = C::Page::default();
        let idle = self.timing.list_idle;
        let mut ignore = |_: Piece<'_>| ();
        while let Some(chunk) =
            reply.next_chunk(idle).await.map_err(|error| WatchError::from_body(error, idle))?
        {
            page.push_chunk(&chunk, &mut ignore)?;
        }
        Ok(page.finish(&mut ignore)?.metadata.resource_version.into())
    }
}

#[cfg(test)]
mod tests {
    use super::is_older;

    #[test]
    fn only_numbers_have_an_order() {
        for (one, other, expected) in
            [("9", "10", true), ("10", "9", false), ("9", "9", false), ("a", "b", false), ("", "1", false)]
        {
            assert_eq!(is_older(one, other), expected, "{one} {other}");
        }
    }
}
