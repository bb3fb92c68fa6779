//! The policy of holds, stated a second time: as the rows of its table stand in the documentation, from the top.
//!
//! Invariant: nothing of the core's judgement is used here.

use holdfast_core::hold::{Bound, OnEmpty, Policy};
use holdfast_core::snapshot::Reason;

/// What can be told of a list that has nobody any more.
#[derive(Clone, Copy, Debug)]
pub struct Signs {
    /// What the service asks for, if it can be followed.
    pub own: Option<OnEmpty>,
    /// What all others get.
    pub all: OnEmpty,
    /// The node reaches the apiserver by it.
    pub control: bool,
    /// Endpoints are listed.
    pub listed: bool,
    /// All of the last list were seen terminating.
    pub ended: bool,
    /// Its source was interrupted shortly before.
    pub interrupted: bool,
}

/// What becomes of such a list: `None` is refused.
pub type Rule = fn(&Signs) -> Option<(Reason, Bound)>;

pub fn rule(signs: &Signs) -> Option<(Reason, Bound)> {
    let rows = [
        (signs.own == Some(OnEmpty::Refuse), None),
        (signs.own == Some(OnEmpty::Hold), Some((reason_of(signs), Bound::Limit))),
        (signs.control, Some((Reason::Control, Bound::Unlimited))),
        (signs.own.is_none() && signs.all == OnEmpty::Refuse, None),
        (signs.own.is_none() && signs.all == OnEmpty::Hold, Some((reason_of(signs), Bound::Limit))),
        (signs.listed || signs.ended, None),
    ];
    let row = rows.into_iter().find(|(fits, _)| *fits);
    row.map_or(Some((reason_of(signs), Bound::Guarded)), |(_, becomes)| becomes)
}

fn reason_of(signs: &Signs) -> Reason {
    match (signs.listed, signs.ended, signs.interrupted) {
        (true, ..) => Reason::AllUnready,
        (_, true, _) => Reason::ScaledDown,
        (.., true) => Reason::Resync,
        _ => Reason::Vanished,
    }
}

/// How far a hold has come; times in seconds.
#[derive(Clone, Copy, Debug)]
pub struct Probing {
    /// When it began.
    pub begun: i64,
    /// When somebody was asked first.
    pub asked: Option<i64>,
    /// Somebody could be asked and was not.
    pub waits: bool,
    /// Somebody took a probe.
    pub answered: bool,
}

/// When a hold ends; `None`: never.
pub fn end(bound: Bound, hold: Probing, policy: &Policy) -> Option<i64> {
    let silence = hold.asked.unwrap_or(hold.begun) + 30;
    match bound {
        Bound::Unlimited => None,
        Bound::MassLoss => Some(hold.begun + policy.mass_loss_limit),
        Bound::Guarded if !hold.answered && !hold.waits => Some(silence.min(hold.begun + policy.limit)),
        Bound::Guarded | Bound::Limit => Some(hold.begun + policy.limit),
    }
}

/// Whether so many losses are one: more than three, and more than the share of those that had a list.
pub fn is_mass(lost: usize, populated: usize, policy: &Policy) -> bool {
    let share = populated as u64 * u64::from(policy.mass_loss_share) / 1_000_000;
    lost as u64 > share.max(3)
}
