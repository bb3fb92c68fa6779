//! The audit: now and then, and when a client asks for it, names and versions of everything are compared with what the
//! watch has delivered.
//!
//! Invariant: a difference counts only if it is the same after a pause, so that what is merely on its way does not
//! count. The watch counts as having missed it only if it was watching all the while: a watch that is still listing, or
//! waits, gets the change by itself. The watch that missed something lists everything again itself.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use holdfast_core::keys::ObjectName;
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::Instant;

use super::Timing;
use super::asked::Answers;
use super::codec::{Codec, Json, Protobuf, Splitter};
use super::crowd::Crowd;
use super::delivered::Delivered;
use super::ending::Ending;
use super::envelope::Status;
use super::object::named;
use super::offer::Offer;
use super::pace;
use super::page::{NoPage, OBJECTS_MAX};
use super::piece::Piece;
use super::reflector::SharedDelivered;
use super::resource::SharedSelection;
use super::version::Version;
use super::view::{State, Watch};
use crate::apiserver::{Access, Encoding, Reply};

/// How many differences the log names; the list that follows brings the rest.
const NAMED_MAX: usize = 3;

/// How many differences a client is shown; a watch that misses more misses everything.
const SHOWN_MAX: usize = 100;

/// What the server has.
type Listed = BTreeMap<ObjectName, Version>;

/// One object, as the watch has delivered it and as the server has it.
type Difference = (ObjectName, Option<Version>, Option<Version>);

/// The audit of one kind.
#[derive(Debug)]
pub(super) struct Audit {
    pub(super) access: Access,
    pub(super) selection: SharedSelection,
    pub(super) offer: Offer,
    pub(super) timing: Timing,
    pub(super) delivered: SharedDelivered,
    pub(super) view: watch::Sender<Watch>,
    pub(super) found: mpsc::Sender<Ending>,
    pub(super) answers: Answers,
    /// Changes come again after so long a time that the watch alone is not believed.
    pub(super) returned: Arc<Notify>,
    /// The nodes that may have been away together with this one.
    pub(super) crowd: Crowd,
}

impl Audit {
    /// Runs until the watch is gone.
    pub(super) async fn run(mut self) {
        let mut untold = Vec::new();
        let mut due = self.next();
        while !self.found.is_closed() {
            // The hourly comparison is looked at first, so that a client that asks all the time does not put it off.
            let is_asked = tokio::select! {
                biased;
                () = tokio::time::sleep_until(due) => false,
                () = self.returned.notified() => {
                    due = due.min(self.soon());
                    continue;
                }
                () = self.answers.asked() => true,
            };
            if !is_asked || !self.answers.is_fresh() {
                untold = self.compare().await;
            }
            if !is_asked {
                due = self.next();
            }
            // What the hourly comparison finds is always put right.
            if (self.answers.is_to_mend() || !is_asked) && !untold.is_empty() {
                self.tell(&std::mem::take(&mut untold)).await;
            }
        }
    }

    /// When the next comparison is due by itself.
    fn next(&self) -> Instant {
        let pause = self.timing.audit_every;
        Instant::now() + pause + pace::part(pause / 4, pace::chance())
    }

    /// When nodes that were away compare. They may all have been away together, and each of them costs a list.
    fn soon(&mut self) -> Instant {
        let spread = self.timing.list_spread.max(self.crowd.nodes().list());
        Instant::now() + self.timing.audit_again + pace::part(spread, pace::chance())
    }

    /// Compares, answers the clients that wait, and returns what the watch has missed.
    async fn compare(&self) -> Vec<Difference> {
        let since = self.watching_since();
        let found = self.confirmed().await;
        let was_watching = since.is_some() && self.watching_since() == since;
        let lines = |found: &Vec<Difference>| found.iter().take(SHOWN_MAX).map(shown).collect();
        let answer = found.as_ref().map(lines).map_err(ToString::to_string);
        let missed = match found {
            Ok(found) => self.counted(if was_watching { found } else { Vec::new() }),
            Err(error) => {
                tracing::debug!(watch = %self.selection.what, %error, "the comparison with the apiserver has to wait");
                Vec::new()
            }
        };
        self.answers.answer(answer);
        missed
    }

    /// Since when changes have come by the watch without an interruption; `None` while none come.
    fn watching_since(&self) -> Option<std::time::Instant> {
        let view = self.view.borrow();
        (view.state == State::Watching).then_some(view.since)
    }

    fn counted(&self, missed: Vec<Difference>) -> Vec<Difference> {
        self.view.send_modify(|view| {
            view.audits += 1;
            view.differences += u64::from(!missed.is_empty());
        });
        missed
    }

    async fn confirmed(&self) -> Result<Vec<Difference>, Ending> {
        let first = self.differences().await?;
        if first.is_empty() {
            return Ok(Vec::new());
        }
        tokio::time::sleep(self.timing.audit_again).await;
        let second = self.differences().await?;
        Ok(first.intersection(&second).cloned().collect())
    }

    async fn tell(&self, confirmed: &[Difference]) {
        let names: Vec<String> =
            confirmed.iter().take(NAMED_MAX).map(|(name, ..)| name.to_string()).collect();
        let more = if confirmed.len() > names.len() { ", …" } else { "" };
        let text =
            format!("{} of {} differ: {}{more}", confirmed.len(), self.selection.what, names.join(", "));
        let _nobody_listens = self.found.send(Ending::Differs(text.into())).await;
    }

    async fn differences(&self) -> Result<BTreeSet<Difference>, Ending> {
        let listed = self.list().await?;
        Ok(differences(&self.delivered.lock(), &listed))
    }

    async fn list(&self) -> Result<Listed, Ending> {
        let query = self.selection.now().list();
        let reply = self.access.get_large(self.offer.metadata(), &query).await.map_err(Ending::Away)?;
        let encoding = reply.encoding;
        let listed = self.listed(reply).await;
        listed.inspect_err(|ending| {
            self.offer.heed(self.selection.what, Some(encoding), ending, self.timing.doubted);
        })
    }

    async fn listed(&self, reply: Reply) -> Result<Listed, Ending> {
        if reply.status != 200 {
            let status = Status { code: Some(reply.status), ..Status::default() };
            return Err(Ending::Refused { status, retry_after: None });
        }
        let whole = self.timing.list_silence;
        let reading = async {
            match reply.encoding {
                Encoding::Json => self.read::<Json>(reply).await,
                Encoding::Protobuf => self.read::<Protobuf>(reply).await,
            }
        };
        tokio::time::timeout(whole, reading).await.map_err(|_| Ending::Late(whole))?
    }

    async fn read<C: Codec>(&self, mut reply: Reply) -> Result<Listed, Ending> {
        let mut page = C::Page::default();
        let (mut listed, mut items) = (Listed::new(), 0_u32);
        let idle = self.timing.list_idle;
        let of_body = |error| Ending::of_body(error, idle);
        while let Some(chunk) = reply.chunk(idle).await.map_err(of_body)? {
            page.take(&chunk, &mut |item: Piece<'_>| {
                items = items.saturating_add(1);
                listed.extend(self.item::<C>(item));
            })?;
            if items > OBJECTS_MAX {
                return Err(NoPage::Endless.into());
            }
        }
        let frame = page.end(&mut |item: Piece<'_>| listed.extend(self.item::<C>(item)))?;
        if !frame.is_of_names() && !self.selection.what.is_listed_by(&frame) {
            return Err(NoPage::OtherKind.into());
        }
        Ok(listed)
    }

    /// What is compared of an item. The watch delivers no headless slice, but for one that was for proxies before.
    fn item<C: Codec>(&self, item: Piece<'_>) -> Option<(ObjectName, Version)> {
        let identity = C::peek(item.bytes())?;
        let is_headless = identity.is_headless();
        let found = named(self.selection.what, &identity);
        found.filter(|(name, _)| !is_headless || self.delivered.lock().version(name).is_some())
    }
}

fn shown((name, told, listed): &Difference) -> String {
    let version = |it: &Option<Version>| {
        it.as_ref().map_or_else(|| "nothing".to_owned(), |it| format!("version {}", it.resource_version))
    };
    format!("{name}: the apiserver has {}, the watch delivered {}", version(listed), version(told))
}

fn differences(delivered: &Delivered, listed: &Listed) -> BTreeSet<Difference> {
    let missing = listed.iter().filter(|(name, version)| delivered.version(name) != Some(*version));
    let missing = missing
        .map(|(name, version)| (name.clone(), delivered.version(name).cloned(), Some(version.clone())));
    let extra = delivered.versions().filter(|(name, _)| !listed.contains_key(*name));
    missing.chain(extra.map(|(name, version)| (name.clone(), Some(version.clone()), None))).collect()
}
