//! The policy of holds, implemented a second time: row by row as in the documentation.
//!
//! Invariant: nothing of the core's judgement is used here.

use std::collections::BTreeMap;

use holdfast_core::hold::{Bound, OnEmpty, Policy};
use holdfast_core::snapshot::Reason;

/// The evidence on a list that has lost its last backend.
#[derive(Clone, Copy, Debug)]
pub struct Signs {
    /// The service's setting, if it is valid.
    pub own: Option<OnEmpty>,
    /// The setting for all others.
    pub all: OnEmpty,
    /// The node reaches the apiserver through this service.
    pub control: bool,
    /// Endpoints are listed, and each backend of the last list is listed or was seen terminating.
    pub unready: bool,
    /// Any endpoints are listed. No sign of anything.
    pub beside: bool,
    /// Usable endpoints are on other nodes only, and the service's policy is Local.
    pub elsewhere: bool,
    /// All backends of the last list were seen terminating.
    pub ended: bool,
    /// A label hides slices with some backends of the last list from proxies.
    pub hidden: bool,
    /// The service's source was interrupted shortly before.
    pub interrupted: bool,
}

/// The reason and bound of a hold; `None`: refused.
pub type Rule = fn(&Signs) -> Option<(Reason, Bound)>;

pub fn rule(signs: &Signs) -> Option<(Reason, Bound)> {
    let rows = [
        (signs.own == Some(OnEmpty::Refuse), None),
        (signs.own == Some(OnEmpty::Hold), Some((reason_of(signs), Bound::Limit))),
        (signs.control, Some((Reason::Control, Bound::Unlimited))),
        (signs.own.is_none() && signs.all == OnEmpty::Refuse, None),
        (signs.own.is_none() && signs.all == OnEmpty::Hold, Some((reason_of(signs), Bound::Limit))),
        (signs.elsewhere || signs.unready || signs.ended, None),
    ];
    let row = rows.into_iter().find(|(fits, _)| *fits);
    row.map_or(Some((reason_of(signs), Bound::Guarded)), |(_, becomes)| becomes)
}

fn reason_of(signs: &Signs) -> Reason {
    match (signs.unready, signs.ended, signs.hidden, signs.interrupted) {
        (true, ..) => Reason::AllUnready,
        (_, true, ..) => Reason::ScaledDown,
        (_, _, true, _) => Reason::Hidden,
        (.., true) => Reason::Resync,
        _ => Reason::Vanished,
    }
}

/// The state of a hold; times in seconds.
#[derive(Clone, Copy, Debug)]
pub struct Probing {
    /// When it began, or when its bound restarted.
    pub begun: i64,
    /// When a backend was first probed.
    pub asked: Option<i64>,
    /// At least one backend could be probed and was not.
    pub waits: bool,
    /// At least one backend accepted a probe.
    pub answered: bool,
    /// A label hides the list from proxies.
    pub hidden: bool,
}

/// When a hold ends; `None`: never.
pub fn end(bound: Bound, hold: Probing, policy: &Policy) -> Option<i64> {
    let silence = hold.asked.unwrap_or(hold.begun) + 30;
    let guarded = hold.begun + if hold.hidden { policy.limit.min(60) } else { policy.limit };
    match bound {
        Bound::Unlimited => None,
        Bound::MassLoss => Some(hold.begun + policy.mass_loss_limit),
        Bound::Guarded if !hold.answered && !hold.waits => Some(silence.min(guarded)),
        Bound::Guarded => Some(guarded),
        Bound::Limit => Some(hold.begun + policy.limit),
    }
}

/// Of one namespace: services that had a list, that have one that is not held, and that lost theirs recently.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lost {
    pub populated: usize,
    pub standing: usize,
    pub lost: usize,
}

/// Whether the losses of a namespace are a mass loss. Either the namespace lost all its lists, more than three and more
/// than the share; or several namespaces together lost enough, even without any one of the others. Enough is also
/// measured over all namespaces except the one with the most services that lost nothing.
pub fn is_mass<K: Ord>(of: &K, all: &BTreeMap<K, Lost>, policy: &Policy) -> bool {
    let is_many = |lost: usize, populated: usize| {
        lost as u64 > (populated as u64 * u64::from(policy.mass_loss_share) / 1_000_000).max(3)
    };
    let many = |without: Option<&K>| {
        let counted = || all.iter().filter(|(key, _)| Some(*key) != without);
        let largest =
            counted().max_by_key(|(_, it)| it.populated.saturating_sub(it.lost)).map(|(key, _)| key);
        [None, largest].into_iter().any(|largest| {
            let counted = || counted().filter(|(key, _)| Some(*key) != largest).map(|(_, it)| it);
            is_many(counted().map(|it| it.lost).sum(), counted().map(|it| it.populated).sum())
        })
    };
    let Some(own) = all.get(of).filter(|own| own.lost > 0) else { return false };
    let mut others = all.iter().filter(|(key, it)| *key != of && it.lost > 0).map(|(key, _)| key).peekable();
    let spans = others.peek().is_some() && many(None) && others.all(|other| many(Some(other)));
    spans || own.standing == 0 && is_many(own.lost, own.populated)
}
