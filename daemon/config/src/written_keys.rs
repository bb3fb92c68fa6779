//! Which keys a file has.
//!
//! Invariant: a message about a changed key names a key that somebody wrote, and no default that followed it.

use std::collections::BTreeSet;

/// The keys that a file has, or had since the process started.
#[derive(Clone, Debug, Default)]
pub struct WrittenKeys(BTreeSet<String>);

/// Equal values are equal, wherever they come from.
impl PartialEq for WrittenKeys {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for WrittenKeys {}

impl WrittenKeys {
    /// Adds a key. The items of blocks are no keys of their own.
    pub(super) fn add(&mut self, path: String) {
        if !path.contains('[') {
            self.0.insert(path);
        }
    }

    /// Adds the keys of an earlier file.
    pub(super) fn add_all(&mut self, earlier: &Self) {
        self.0.extend(earlier.0.iter().cloned());
    }

    /// The key if a file has or had it, else those that decide about its default.
    pub(super) fn find_cause(&self, key: &'static str) -> Vec<&'static str> {
        match DERIVED.into_iter().find(|(derived, _)| *derived == key && !self.0.contains(key)) {
            Some((_, causes)) => causes.iter().copied().filter(|cause| self.0.contains(*cause)).collect(),
            None => vec![key],
        }
    }
}

/// Keys whose defaults follow from other keys, and these. A key of `[kube_proxy]` follows from keys that wait for a
/// restart too, and so are named themselves.
const DERIVED: [(&str, &[&str]); 3] = [
    ("kubernetes.enabled", &["apiserver.endpoints", "apiserver.kubeconfig"]),
    ("kube_proxy.health", &[]),
    ("kube_proxy.metrics", &[]),
];
