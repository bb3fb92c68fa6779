//! The types of the knowledge: reasons, causes, remedies and the rest of the files.
//!
//! Invariant: an unknown field is an error, so that no misspelled field is silently ignored.

use std::fmt;

use serde::Deserialize;

/// Declares a closed set of words as files and answers spell them.
macro_rules! words {
    ($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
        pub enum $name { $($(#[$doc])* #[serde(rename = $word)] $variant,)+ }

        impl $name {
            /// Every word of the set, in order.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word,)+ }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

words! {
    EventType {
        Normal = "Normal",
        Warning = "Warning",
        /// A type that Kubernetes may add.
        Other = "other",
    }
}

words! {
    /// Whether components send a reason today.
    Emitted {
        Current = "current",
        /// Not sent in this spelling; `alias_of` names the reason that is sent.
        Variant = "variant",
        /// Sent only by older versions of Kubernetes.
        Old = "old",
        /// People look for it, and no component sends it.
        Never = "never",
        /// Not Kubernetes' own.
        ThirdParty = "third-party",
    }
}

words! {
    /// How serious a reason is.
    Severity {
        Info = "info",
        Notice = "notice",
        Warning = "warning",
        Error = "error",
    }
}

words! {
    /// The possible harm of a remedy.
    Risk {
        /// Read-only, or undone by its reverse.
        Safe = "safe",
        /// It interrupts traffic or a component.
        Disruptive = "disruptive",
        /// Data or cloud resources may be lost.
        Destructive = "destructive",
    }
}

words! {
    /// The step of an external load balancer's life that a reason reports, for any controller.
    Step {
        Ensuring = "ensuring",
        Ensured = "ensured",
        Creating = "creating",
        Created = "created",
        Updated = "updated",
        UpdateFailed = "update-failed",
        SyncFailed = "sync-failed",
        Deleting = "deleting",
        Deleted = "deleted",
        DeleteFailed = "delete-failed",
        NoNodes = "no-nodes",
        AddressAssigned = "address-assigned",
    }
}

words! {
    Subject {
        LoadBalancer = "load-balancer",
        Endpoints = "endpoints",
        Addresses = "addresses",
        Pods = "pods",
        Nodes = "nodes",
        Controllers = "controllers",
        /// An operator's file without a subject.
        Other = "other",
    }
}

/// One reason of Events, as sent by one kind of component.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EventReason {
    pub id: String,
    /// The word as an Event spells it.
    pub reason: String,
    /// Other spellings of the same word.
    #[serde(default)]
    pub aliases: Vec<String>,
    /// The id of the reason behind this spelling; its causes and its meaning apply.
    pub alias_of: Option<String>,
    /// The components that send it; empty: any may.
    #[serde(default)]
    pub components: Vec<String>,
    /// The kinds of objects of its Events.
    pub kinds: Vec<String>,
    #[serde(rename = "type")]
    pub event_type: EventType,
    pub emitted: Emitted,
    /// The Kubernetes version that introduced it, if known.
    pub since: Option<String>,
    /// How often it occurs: rare, low or medium.
    pub frequency: Option<String>,
    pub severity: Severity,
    pub step: Option<Step>,
    /// The message must contain one of these keywords; otherwise the same word means something else. Empty: any message
    /// matches.
    #[serde(default)]
    pub only_if: Vec<String>,
    /// Example messages, for people.
    #[serde(default)]
    pub says: Vec<String>,
    pub meaning: String,
    pub impact: Option<Impact>,
    #[serde(default)]
    pub before: Vec<String>,
    #[serde(default)]
    pub after: Vec<String>,
    /// Later reasons at the same object that end this one.
    #[serde(default)]
    pub resolved_by: Vec<String>,
    /// When the failed component retries.
    pub retry: Option<Retry>,
    /// The ids of its causes, specific ones first.
    #[serde(default)]
    pub causes: Vec<String>,
    /// Further causes of some messages only; these are tried first.
    #[serde(default)]
    pub when: Vec<ConditionalCauses>,
    /// Why there are no causes.
    pub no_causes: Option<String>,
    /// What to do if no cause matches.
    #[serde(default)]
    pub fallback: String,
    #[serde(skip, default = "default_subject")]
    pub subject: Subject,
}

const fn default_subject() -> Subject {
    Subject::Other
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Impact {
    pub user: String,
    pub service: String,
    pub cluster: String,
}

/// The pace of retries: the pause doubles from the first to the longest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Retry {
    pub first_ms: u32,
    pub max_ms: u32,
    /// The number of tries after which the component gives up until something changes. `None`: it never does.
    pub times: Option<u32>,
}

/// Causes of some messages of a reason only.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConditionalCauses {
    /// The message contains one of these keywords.
    pub contains: Vec<String>,
    /// The step that such a message reports, instead of the reason's own.
    pub step: Option<Step>,
    pub causes: Vec<String>,
}

/// A cause behind messages, identified by keywords.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cause {
    pub id: String,
    /// The message contains one of these keywords, in any case.
    pub any: Vec<String>,
    /// … and all of these.
    #[serde(default)]
    pub all: Vec<String>,
    /// … and none of these.
    #[serde(default)]
    pub not: Vec<String>,
    /// The providers that use these words; empty: any may.
    #[serde(default)]
    pub providers: Vec<String>,
    pub means: String,
    pub check: Vec<String>,
    pub remedy: Vec<Remedy>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Remedy {
    pub risk: Risk,
    #[serde(rename = "do")]
    pub action: String,
}

/// A common belief about some reasons and causes, and the truth. One belief often concerns several of them, so it is an
/// entry of its own.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Belief {
    pub id: String,
    /// The ids of its reasons and causes.
    pub about: Vec<String>,
    pub believed: String,
    pub truth: String,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Symptom {
    pub id: String,
    pub seen: String,
    pub reasons: Vec<String>,
    /// Checks of `holdfast diagnose` to read.
    pub checks: Vec<String>,
    pub note: String,
}

/// An error of the apiserver for a refused write, which never becomes an Event.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RefusedWrite {
    pub id: String,
    pub contains: Vec<String>,
    pub cause: String,
}

/// A phrase that no advice may contain.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ForbiddenPhrase {
    pub id: String,
    pub contains: Vec<String>,
    pub why: String,
}
