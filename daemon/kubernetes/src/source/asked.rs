//! Comparisons with the apiserver that a client asks for, made at once and not only when the hourly one is due.
//!
//! Invariant: clients cause at most one comparison in [`Timing::audit_pace`](super::Timing), however many ask and how
//! often. A client that asks within that time after a comparison gets the answer of that one, with its age; a client
//! that asks while one runs gets the answer of that. Only a client that may mend makes the watch list anew.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::{Notify, watch};

/// What an audit found, one line for each difference; or why it could not be done.
pub type Audited = Result<Vec<String>, String>;

/// How long an asker waits: long enough for two lists and the pause between them.
const PATIENCE: Duration = Duration::from_secs(30);

/// What may follow from a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asker {
    /// May only look: the watch stays as it is.
    Looks,
    /// May make the watch list anew what it has missed.
    Mends,
}

/// The answer to a question.
#[derive(Clone, Debug)]
pub struct Compared {
    /// What was found.
    pub found: Audited,
    /// When it was found; `None`: no comparison came to its end.
    pub at: Option<SystemTime>,
    /// How long ago it was found.
    pub age: Duration,
}

/// The latest comparison.
#[derive(Clone, Debug)]
pub(super) struct Latest {
    found: Audited,
    ended: Instant,
    at: SystemTime,
}

/// What askers have asked for since the last comparison.
#[derive(Debug, Default)]
struct Wishes {
    any: Notify,
    mend: AtomicBool,
}

/// The side that asks. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Askers {
    pace: Duration,
    wishes: Arc<Wishes>,
    latest: watch::Receiver<Option<Latest>>,
}

/// The side that compares.
#[derive(Debug)]
pub(super) struct Answers {
    pace: Duration,
    wishes: Arc<Wishes>,
    latest: watch::Sender<Option<Latest>>,
}

/// Both sides, for comparisons of which each begins at least `pace` after the end of the last one.
pub(super) fn ends(pace: Duration) -> (Askers, Answers) {
    let wishes = Arc::<Wishes>::default();
    let (answers, latest) = watch::channel(None);
    (Askers { pace, wishes: Arc::clone(&wishes), latest }, Answers { pace, wishes, latest: answers })
}

impl Latest {
    fn is_fresh(&self, pace: Duration) -> bool {
        self.ended.elapsed() < pace
    }

    fn compared(&self) -> Compared {
        Compared { found: self.found.clone(), at: Some(self.at), age: self.ended.elapsed() }
    }
}

impl Askers {
    /// The latest comparison if it is fresh, or else the next one.
    pub(super) async fn ask(&self, asker: Asker) -> Compared {
        let mut latest = self.latest.clone();
        let fresh =
            latest.borrow_and_update().as_ref().filter(|it| it.is_fresh(self.pace)).map(Latest::compared);
        if asker == Asker::Mends {
            self.wishes.mend.store(true, Ordering::Release);
        }
        if fresh.is_none() || asker == Asker::Mends {
            self.wishes.any.notify_one();
        }
        if let Some(fresh) = fresh {
            return fresh;
        }
        match tokio::time::timeout(PATIENCE, latest.changed()).await {
            Ok(Ok(())) => latest.borrow().as_ref().map_or_else(late, Latest::compared),
            Ok(Err(_)) | Err(_) => late(),
        }
    }
}

fn late() -> Compared {
    let found = Err("the comparison takes too long; is the apiserver there?".to_owned());
    Compared { found, at: None, age: Duration::ZERO }
}

impl Answers {
    /// Waits until a client asks for a comparison or for a mend.
    pub(super) async fn asked(&self) {
        self.wishes.any.notified().await;
    }

    /// Whether it is too early for another comparison.
    pub(super) fn is_fresh(&self) -> bool {
        self.latest.borrow().as_ref().is_some_and(|it| it.is_fresh(self.pace))
    }

    /// Whether a client that may mend has asked since this was last called.
    pub(super) fn is_to_mend(&self) -> bool {
        self.wishes.mend.swap(false, Ordering::AcqRel)
    }

    /// Answers the clients that wait, and those that ask soon.
    pub(super) fn answer(&self, found: Audited) {
        self.latest.send_replace(Some(Latest { found, ended: Instant::now(), at: SystemTime::now() }));
    }
}
