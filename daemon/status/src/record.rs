//! The record of a change: the same struct in memory, on disk, in the API and on the command line.
//!
//! Invariant: a record is complete: when, which object in which version by which writer, what clients got before and
//! after, and whether the maps accepted it. Its lists have bounds; a record that is still too long for the file becomes
//! a gap there. Fields are added, never renamed; an empty field is absent. The recorder makes records, and `sentence`
//! words them for people.

mod sentence;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt::Display;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::rfc3339::Millis;

/// Addresses named in one diff. A person reads no more, and a record stays below some 4 KiB.
const DIFF_ENTRIES_MAX: usize = 32;

/// A word of a closed set: borrowed when it is made, owned when it is read.
pub type Word = Cow<'static, str>;

/// The subject of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Clients see a difference, or the maps were written to.
    Change,
    /// An object came or went, and nothing changed for clients. Such records are reported, not stored.
    Event,
    /// Records are missing here.
    Gap,
}

/// One change of one service, or a place where changes are missing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Record {
    /// The number of the record. It counts up by one, across restarts too; absent: the record is not stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<u64>,
    /// When the batch with the change began.
    pub time: Millis,
    /// The same moment on the monotonic clock, which the journal shows too; microseconds since the boot.
    pub monotonic_us: u64,
    /// The kernel's id of that boot, as in the journal.
    pub boot_id: Arc<str>,
    /// A change, an event that changed nothing, or a gap.
    pub kind: Kind,
    /// The service that changed, as `namespace/name`. Absent: a gap may concern any service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
    /// The source that has the service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Word>,
    /// A short stable code of the rule that decided: a reason, `usable-endpoints`, `service-gone`, `no-effect`, …
    pub rule: Word,
    /// Why, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub triggers: Vec<Trigger>,
    /// How many earlier triggers did not fit.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub suppressed: u32,
    /// What changed for clients; frontends with the same change share one entry.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub transitions: Vec<Transition>,
    /// How many more entries did not fit.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub transitions_omitted: u32,
    /// How the maps responded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Outcome>,
    /// What is missing here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gap: Option<Gap>,
}

const TRIGGER_EVENTS: [&str; 20] = [
    "applied",
    "deleted",
    "left",
    "claim-won",
    "claim-lost",
    "node",
    "listeners",
    "settings",
    "drained",
    "undrained",
    "retry",
    "remembered",
    "readers-left",
    "hold-due",
    "probe-accepted",
    "probe-refused",
    "probe-silent",
    "address-claimed",
    "address-reused",
    "mass-loss",
];

/// One cause: usually an object, with its version and its writer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Trigger {
    /// What happened to the object.
    #[schemars(extend("enum" = TRIGGER_EVENTS))]
    pub event: Word,
    /// `Service` or `EndpointSlice`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<Word>,
    /// Its namespace and name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object: Option<String>,
    /// The source that reported the object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Word>,
    /// The object's uid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<Arc<str>>,
    /// The object's `resourceVersion`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource_version: Option<Arc<str>>,
    /// The version of its specification.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<i64>,
    /// The last writer, by `managedFields`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub writer: Option<LastWriter>,
    /// The apiserver's endpoint or the file from which the object was read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Arc<str>>,
    /// Whether the object has `endpoints: null`, not `[]`.
    #[serde(default, skip_serializing_if = "is_false")]
    pub endpoints_null: bool,
    /// Whether the object is new.
    #[serde(default, skip_serializing_if = "is_false")]
    pub new: bool,
    /// The relevant fields that differ from the object's former version. Empty for a known object: only its metadata
    /// differs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fields: Vec<Word>,
    /// How a slice's endpoints differ from its former ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub endpoints: Option<Diff>,
    /// The backend that was probed, drained, or taken by another pod; with a port where only that port was drained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// How many services lost their lists, and how many had one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost: Option<[u32; 2]>,
    /// The address that was claimed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frontend: Option<String>,
    /// The other service that claims it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub other: Option<String>,
    /// The user of this node who ordered the drain.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// When the user ordered it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ordered: Option<Millis>,
}

/// The manager that holdfast's health checks of a `[[service]]` name.
pub const HEALTH_CHECK_WRITER: &str = "health-check";

/// The last entry of `managedFields`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LastWriter {
    /// `kube-controller-manager`, `kubectl-edit`, …
    pub manager: Arc<str>,
    /// `Update` or `Apply`.
    pub operation: Arc<str>,
    /// `status`, where the write went to a subresource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subresource: Option<Arc<str>>,
    /// When the writer wrote.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<Millis>,
}

/// What changed for the clients of some frontends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Transition {
    /// What clients dial, each as `address:port/protocol`.
    pub frontends: Vec<String>,
    /// How many more frontends have the same change.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub frontends_omitted: u32,
    /// What clients got before; absent: the frontends are new.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<Met>,
    /// What clients get now; absent: the frontends are gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<Met>,
    /// The backends of new connections from this node.
    pub backends: Diff,
    /// The backends of traffic from outside, where they differ from those of new connections from this node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external_backends: Option<Diff>,
}

/// What a client gets at a frontend.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Met {
    /// `serving`, `refusing`, …
    pub verdict: Word,
    /// Why, unless serving.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Word>,
    /// The health of its clients, where verdict and reason alone would tell another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<Word>,
    /// How many backends a new connection may get.
    pub backends: u32,
    /// Whether the maps hold what they should.
    #[schemars(extend("enum" = ["pending", "done", "error"]))]
    pub status: Word,
    /// The service that owns the address, if it is another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
}

/// The difference of two lists.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Diff {
    /// Only in the later one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub added: Vec<String>,
    /// Only in the earlier one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub removed: Vec<String>,
    /// In both, but in another state.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changed: Vec<Changed>,
    /// How many are the same in both.
    pub kept: u32,
    /// How many differences did not fit.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub omitted: u32,
}

/// An entry of both lists, in another state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Changed {
    /// Its address and port.
    pub address: String,
    /// Its state before: `active` or `draining`; for an endpoint its conditions.
    pub before: Word,
    /// Its state afterwards.
    pub after: Word,
}

/// How the maps responded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Outcome {
    /// How many writes they accepted.
    pub ops: u32,
    /// The error of the writes that they refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Arc<str>>,
    /// From the begin of the batch until all of it was written, in microseconds.
    pub elapsed_us: u64,
}

/// Missing records.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Gap {
    /// Why they are missing.
    pub cause: GapCause,
    /// How many records, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub records: Option<u64>,
    /// The most records that can be missing, if their number is unknown: no more numbers were reserved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_most: Option<u64>,
    /// How many bytes of the file are unusable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// The file of the history in which records are missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// The namespaces with most of the missing records, if known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub namespaces: Vec<NamespaceShare>,
}

/// How many of the missing records belong to one namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NamespaceShare {
    /// The name of the namespace.
    pub namespace: String,
    /// How many of its records are missing.
    pub records: u64,
}

/// Why records are missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum GapCause {
    /// Changes came faster than they could be recorded.
    QueueFull,
    /// The file ends in the middle of a record: the daemon or the machine stopped during the write.
    TornTail,
    /// Bytes of the file differ from what was written.
    Damaged,
    /// Another version wrote the file, or it is not ours.
    OtherVersion,
    /// The disk rejected the records; memory had them.
    NotWritten,
    /// The daemon or the machine stopped without warning; its unwritten records are unknown.
    Killed,
    /// The files were full, and records of the namespaces that had most of them were evicted.
    MadeRoom,
}

impl Diff {
    /// Whether the two have the same entries in the same states.
    pub fn is_empty(&self) -> bool {
        self.added.is_empty() && self.removed.is_empty() && self.changed.is_empty() && self.omitted == 0
    }

    fn admit_entry(&mut self) -> bool {
        let room = self.added.len() + self.removed.len() + self.changed.len() < DIFF_ENTRIES_MAX;
        self.omitted += u32::from(!room);
        room
    }

    pub fn add(&mut self, address: impl Display) {
        if self.admit_entry() {
            self.added.push(address.to_string());
        }
    }

    pub fn remove(&mut self, address: impl Display) {
        if self.admit_entry() {
            self.removed.push(address.to_string());
        }
    }

    pub fn add_common(&mut self, address: impl Display, before: &'static str, after: &'static str) {
        if before == after {
            self.kept += 1;
        } else if self.admit_entry() {
            let address = address.to_string();
            self.changed.push(Changed { address, before: before.into(), after: after.into() });
        }
    }
}

impl Gap {
    /// A gap with nothing but its cause.
    pub const fn new(cause: GapCause) -> Self {
        Self { cause, records: None, at_most: None, bytes: None, file: None, namespaces: Vec::new() }
    }
}

impl GapCause {
    /// The cause as a clause that follows "because".
    pub const fn to_clause(self) -> &'static str {
        match self {
            Self::QueueFull => "more changes came than could be recorded",
            Self::TornTail => "the file ends in the middle of a record",
            Self::Damaged => "the file is damaged",
            Self::OtherVersion => "the file is of another version",
            Self::NotWritten => "the disk rejected them",
            Self::Killed => "the daemon stopped before it had written them",
            Self::MadeRoom => "they were evicted",
        }
    }
}

impl Record {
    /// The rule that decided, and the reasons of clients' verdicts before and after; each once.
    pub fn reasons(&self) -> Box<[Word]> {
        let met = self.transitions.iter().flat_map(|it| it.before.iter().chain(&it.after));
        let reasons = met.filter_map(|met| met.reason.clone());
        std::iter::once(self.rule.clone()).chain(reasons).collect::<BTreeSet<Word>>().into_iter().collect()
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
const fn is_zero(number: &u32) -> bool {
    *number == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
const fn is_false(flag: &bool) -> bool {
    !*flag
}
