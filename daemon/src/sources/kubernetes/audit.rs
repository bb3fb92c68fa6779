//! The audit: now and then, and when somebody asks for it, names and versions of everything are compared with what the watch has told.
//!
//! Invariant: a difference counts only if it is the same after a pause, so that what is merely on its way is none.
//! Deliberately absent: repair. The watch that is found to have lied asks for a list itself.

use std::collections::{BTreeMap, BTreeSet};
use std::marker::PhantomData;
use std::sync::Arc;

use holdfast_core::keys::ObjectName;
use tokio::sync::{mpsc, oneshot, watch};

use super::Timing;
use super::codec::{Codec, Splitter};
use super::ending::Ending;
use super::envelope::Status;
use super::object::named;
use super::pace;
use super::piece::Piece;
use super::reflector::{SharedShelf, chance};
use super::shelf::{Shelf, Version};
use super::view::Watch;
use super::what::SharedSelection;
use crate::apiserver::Access;

/// Differences that are named; who needs more has the list that follows.
const NAMED_MAX: usize = 3;

/// Differences shown to who asks; a watch that misses more misses everything.
const SHOWN_MAX: usize = 100;

/// What an audit found, one line for each difference; or why it could not be done.
pub type Audited = Result<Vec<String>, String>;

/// Who asks for an audit now.
pub(super) type Asked = oneshot::Sender<Audited>;

/// What the server has.
type Listed = BTreeMap<ObjectName, Version>;

/// One object, as the watch has told it and as the server has it.
type Difference = (ObjectName, Option<Version>, Option<Version>);

/// The audit of one kind.
#[derive(Debug)]
pub(super) struct Audit<C> {
    pub(super) access: Access,
    pub(super) selection: SharedSelection,
    pub(super) timing: Timing,
    pub(super) shelf: SharedShelf,
    pub(super) view: watch::Sender<Watch>,
    pub(super) found: mpsc::Sender<Arc<str>>,
    pub(super) asks: mpsc::Receiver<Asked>,
    pub(super) codec: PhantomData<C>,
}

impl<C: Codec> Audit<C> {
    /// Runs until nobody listens.
    pub(super) async fn run(mut self) {
        while !self.found.is_closed() {
            let pause = self.timing.audit_every;
            let asked = tokio::select! {
                () = tokio::time::sleep(pause + pace::part(pause / 4, chance())) => None,
                Some(asked) = self.asks.recv() => Some(asked),
            };
            let found = self.audit().await;
            match &found {
                Ok(confirmed) if confirmed.is_empty() => {}
                Ok(confirmed) => self.tell(confirmed).await,
                Err(error) => {
                    tracing::debug!(watch = %self.selection.what, %error, "the audit has to wait");
                }
            }
            if let Some(asked) = asked {
                let lines = |found: Vec<Difference>| found.iter().take(SHOWN_MAX).map(shown).collect();
                let _who_asked_has_left = asked.send(found.map(lines).map_err(|error| error.to_string()));
            }
        }
    }

    async fn audit(&self) -> Result<Vec<Difference>, Ending> {
        let first = self.differences().await?;
        let confirmed = if first.is_empty() {
            Vec::new()
        } else {
            tokio::time::sleep(self.timing.audit_again).await;
            let second = self.differences().await?;
            first.intersection(&second).cloned().collect()
        };
        self.view.send_modify(|view| view.audits += 1);
        Ok(confirmed)
    }

    async fn tell(&self, confirmed: &[Difference]) {
        let names: Vec<String> =
            confirmed.iter().take(NAMED_MAX).map(|(name, ..)| name.to_string()).collect();
        let more = if confirmed.len() > names.len() { ", …" } else { "" };
        let text =
            format!("{} of {} differ: {}{more}", confirmed.len(), self.selection.what, names.join(", "));
        self.view.send_modify(|view| view.differences += 1);
        let _nobody_listens = self.found.send(text.into()).await;
    }

    async fn differences(&self) -> Result<BTreeSet<Difference>, Ending> {
        let listed = self.list().await?;
        Ok(differences(&self.shelf.lock(), &listed))
    }

    async fn list(&self) -> Result<Listed, Ending> {
        let query = self.selection.now().list();
        let reply = self.access.get_as(C::METADATA, &query, None).await.map_err(Ending::Away)?;
        if reply.status != 200 {
            let status = Status { code: Some(reply.status), ..Status::default() };
            return Err(Ending::Refused { status, retry_after: None });
        }
        let whole = self.timing.list_silence;
        tokio::time::timeout(whole, self.read(reply)).await.map_err(|_| Ending::Late(whole))?
    }

    async fn read(&self, mut reply: crate::apiserver::Reply) -> Result<Listed, Ending> {
        let (mut page, mut listed) = (C::Page::default(), Listed::new());
        let idle = self.timing.list_idle;
        let of_body = |error| Ending::of_body(error, idle);
        let mut list = |item: Piece<'_>| {
            listed.extend(C::peek(item.bytes()).and_then(|identity| named(self.selection.what, &identity)));
        };
        while let Some(chunk) = reply.chunk(idle).await.map_err(of_body)? {
            page.take(&chunk, &mut list)?;
        }
        page.end(&mut list)?;
        Ok(listed)
    }
}

fn shown((name, told, listed): &Difference) -> String {
    let version = |it: &Option<Version>| {
        it.as_ref().map_or_else(|| "nothing".to_owned(), |it| format!("version {}", it.resource_version))
    };
    format!("{name}: the apiserver has {}, the watch told {}", version(listed), version(told))
}

fn differences(shelf: &Shelf, listed: &Listed) -> BTreeSet<Difference> {
    let missing = listed.iter().filter(|(name, version)| shelf.version(name) != Some(*version));
    let missing =
        missing.map(|(name, version)| (name.clone(), shelf.version(name).cloned(), Some(version.clone())));
    let extra = shelf.versions().filter(|(name, _)| !listed.contains_key(*name));
    missing.chain(extra.map(|(name, version)| (name.clone(), Some(version.clone()), None))).collect()
}
