//! The allocations of one resource, and how much each namespace has.
//!
//! Invariant: an allocation is charged to the namespace that took it until it is released, whatever becomes of its
//! service.

use alloc::vec::Vec;

use crate::index::{Index, Seed};
use crate::limits;
use crate::op::QuotaId;

#[derive(Debug)]
pub(super) struct Charges {
    all: u32,
    /// By the number of each namespace.
    quota_usage: Vec<u32>,
    /// Each allocation's namespace and amount, by its number.
    parts: Index<u32, (QuotaId, u32)>,
}

impl Charges {
    pub(super) fn new(seed: Seed) -> Self {
        Self { all: 0, quota_usage: Vec::new(), parts: Index::new(seed) }
    }

    pub(super) const fn used(&self) -> u32 {
        self.all
    }

    pub(super) fn used_by(&self, quota: QuotaId) -> u32 {
        self.quota_usage.get(usize::from(quota.0)).copied().unwrap_or_default()
    }

    /// The namespace and amount of an allocation. `None`: it is not charged.
    pub(super) fn find_charge(&self, part: u32) -> Option<(QuotaId, u32)> {
        self.parts.get(&part).copied()
    }

    /// Charges an allocation, and replaces its earlier charge.
    pub(super) fn charge(&mut self, part: u32, quota: QuotaId, much: u32) {
        if let Some(before) = self.parts.insert(part, (quota, much)) {
            self.adjust_usage(before, u32::saturating_sub);
        }
        self.adjust_usage((quota, much), u32::saturating_add);
    }

    pub(super) fn release(&mut self, part: u32) {
        if let Some(before) = self.parts.remove(&part) {
            self.adjust_usage(before, u32::saturating_sub);
        }
    }

    fn adjust_usage(&mut self, (quota, much): (QuotaId, u32), by: fn(u32, u32) -> u32) {
        let at = usize::from(quota.0);
        if self.quota_usage.len() <= at {
            self.quota_usage.resize(at + 1, 0);
        }
        self.all = by(self.all, much);
        if let Some(count) = self.quota_usage.get_mut(at) {
            *count = by(*count, much);
        }
    }

    /// Whether `more` for a namespace leaves enough of `left` to others.
    pub(super) fn leaves_headroom(&self, quota: QuotaId, more: u32, left: u32) -> bool {
        more <= self.headroom(quota, left)
    }

    /// The most of `left` that a namespace may take: it ends with at most [`limits::QUOTA_REST_FACTOR`] times the rest.
    pub(super) fn headroom(&self, quota: QuotaId, left: u32) -> u32 {
        let part = u64::from(limits::QUOTA_REST_FACTOR);
        let most = (u64::from(left) * part).saturating_sub(u64::from(self.used_by(quota))) / (part + 1);
        u32::try_from(most).unwrap_or(left)
    }
}
