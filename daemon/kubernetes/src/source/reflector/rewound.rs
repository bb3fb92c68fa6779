//! Versions that go back: etcd was restored from a backup, or another store answers.
//!
//! Invariant: a watch from a version that is still to come is silent for ever, so the first silence after an
//! interruption is not believed: the server is asked once which version it has. If versions went back, they are given
//! out a second time, so what was delivered is not compared by its versions: all of it is read again.
//!
//! While this node was away for long, the store may have been restored and have gone on beyond what it had told before:
//! its version shows nothing then, and everything is compared soon after the watch has begun.

use std::sync::Arc;
use std::time::Instant;

use super::{Reflector, Stop};
use crate::apiserver::{Encoding, Reply};
use crate::source::codec::{Codec, Json, Protobuf, Splitter};
use crate::source::ending::Ending;
use crate::source::piece::Piece;

/// Whether both are numbers, and the first one is lower. Versions of other servers say nothing of their order.
fn is_before(one: &str, other: &str) -> bool {
    matches!((one.parse::<u64>(), other.parse::<u64>()), (Ok(one), Ok(other)) if one < other)
}

impl Reflector {
    /// Whether nothing has come for so long that versions alone do not show that the store is the same.
    pub(super) fn was_away(&self) -> bool {
        let silence = self.view.borrow().silence(Instant::now());
        self.is_from_long_ago || silence.is_some_and(|it| it >= self.timing.away)
    }

    /// Asks the server which version it has, once after each interruption. If the server does not say it, the watch
    /// goes on.
    pub(super) async fn ask_for_newest(&mut self) -> Result<(), Stop> {
        self.is_doubtful = false;
        // The watch is not read meanwhile, and there may be one question after the other.
        let most = if self.questions.is_pending() { self.timing.alone } else { self.timing.list_idle };
        let asking = tokio::time::timeout(most, self.newest());
        match asking.await {
            Ok(Ok(newest)) => Ok(self.check_newest(&newest)?),
            Ok(Err(error)) => {
                self.heed(&error);
                tracing::debug!(watch = %self.selection.what, %error, "the server does not say which version it has");
                self.questions.give_up();
                Ok(())
            }
            Err(_) => {
                self.questions.give_up();
                Ok(())
            }
        }
    }

    /// Checks whether versions went back; if so, forgets the versions of all that was delivered, so that all is read
    /// again.
    pub(super) fn check_newest(&mut self, newest: &Arc<str>) -> Result<(), Ending> {
        let Some(from) = self.reached.clone().filter(|reached| is_before(newest, reached)) else {
            return Ok(());
        };
        self.reached = Some(Arc::clone(newest));
        self.delivered.lock().forget_versions();
        Err(Ending::Rewound { from, to: Arc::clone(newest) })
    }

    async fn newest(&self) -> Result<Arc<str>, Ending> {
        let query = self.selection.now().newest();
        let reply = self.access.get_as(self.offer.metadata(), &query, None).await.map_err(Ending::Away)?;
        let reply = self.accepted(reply).await.map_err(|(ending, _)| ending)?;
        match reply.encoding {
            Encoding::Json => self.version_of::<Json>(reply).await,
            Encoding::Protobuf => self.version_of::<Protobuf>(reply).await,
        }
    }

    async fn version_of<C: Codec>(&self, mut reply: Reply) -> Result<Arc<str>, Ending> {
        let mut page = C::Page::default();
        let idle = self.timing.list_idle;
        let mut ignore = |_: Piece<'_>| ();
        while let Some(chunk) = reply.chunk(idle).await.map_err(|error| Ending::of_body(error, idle))? {
            page.take(&chunk, &mut ignore)?;
        }
        Ok(page.end(&mut ignore)?.metadata.resource_version.into())
    }
}

#[cfg(test)]
mod tests {
    use super::is_before;

    #[test]
    fn only_numbers_have_an_order() {
        for (one, other, expected) in
            [("9", "10", true), ("10", "9", false), ("9", "9", false), ("a", "b", false), ("", "1", false)]
        {
            assert_eq!(is_before(one, other), expected, "{one} {other}");
        }
    }
}
