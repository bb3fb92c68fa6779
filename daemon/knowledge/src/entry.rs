//! The shapes of the knowledge: reasons, causes, remedies and whatever else the files have.
//!
//! Invariant: a field that is none of these is refused, so that a misspelled field is never ignored without a word.

use std::fmt;

use serde::Deserialize;

/// Declares a closed set of words as the files and answers spell them.
macro_rules! words {
    ($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
        pub enum $name { $($(#[$doc])* #[serde(rename = $word)] $variant,)+ }

        impl $name {
            /// Every word of the set, in its order.
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
    /// The type that an Event gives itself.
    EventType {
        Normal = "Normal",
        Warning = "Warning",
        /// A type that Kubernetes may add.
        Other = "other",
    }
}

words! {
    /// Whether a reason is sent today.
    Emitted {
        Current = "current",
        /// Not sent under this spelling; `alias_of` names the reason that is sent.
        Variant = "variant",
        /// Sent by older versions of Kubernetes alone.
        Old = "old",
        /// People look for it, and no component sends it.
        Never = "never",
        /// Not Kubernetes' own.
        ThirdParty = "third-party",
    }
}

words! {
    /// How loudly a reason is told.
    Severity {
        Info = "info",
        Notice = "notice",
        Warning = "warning",
        Error = "error",
    }
}

words! {
    /// How much harm a remedy can do.
    Risk {
        /// Read-only, or undone by the reverse step.
        Safe = "safe",
        /// Traffic or a component is interrupted.
        Disruptive = "disruptive",
        /// Data or resources of the cloud may be lost.
        Destructive = "destructive",
    }
}

words! {
    /// What a reason says about the life of an external load balancer, whichever controller works on it.
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
    /// What a file of reasons is about.
    Subject {
        LoadBalancer = "load-balancer",
        Endpoints = "endpoints",
        Addresses = "addresses",
        Pods = "pods",
        Nodes = "nodes",
        Controllers = "controllers",
        /// A file of the operator that does not say.
        Other = "other",
    }
}

/// One reason of Events, as one kind of component sends it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EventReason {
    pub id: String,
    /// The word as an Event spells it.
    pub reason: String,
    /// Other spellings of the same word.
    #[serde(default)]
    pub aliases: Vec<String>,
    /// The id of the reason that this spelling stands for; the causes and the meaning of that reason hold.
    pub alias_of: Option<String>,
    /// The components that send it; none named: any may.
    #[serde(default)]
    pub components: Vec<String>,
    /// The kinds of objects that its Events are about.
    pub kinds: Vec<String>,
    #[serde(rename = "type")]
    pub event_type: EventType,
    pub emitted: Emitted,
    /// The Kubernetes version that brought it, where that is known.
    pub since: Option<String>,
    /// How often it is seen: rare, low or medium.
    pub frequency: Option<String>,
    pub severity: Severity,
    pub step: Option<Step>,
    /// The message must have one of these keywords; in a message without any, the same word is about something else.
    /// Empty: any message fits.
    #[serde(default)]
    pub only_if: Vec<String>,
    /// Examples of its messages, for people.
    #[serde(default)]
    pub says: Vec<String>,
    pub meaning: String,
    pub impact: Option<Impact>,
    #[serde(default)]
    pub before: Vec<String>,
    #[serde(default)]
    pub after: Vec<String>,
    /// Reasons that end this one when they are seen later at the same object.
    #[serde(default)]
    pub resolved_by: Vec<String>,
    /// When the component that failed tries again.
    pub retry: Option<Retry>,
    /// The ids of its causes, the specific ones first.
    #[serde(default)]
    pub causes: Vec<String>,
    /// Further causes that only some messages can have; they are tried before the others.
    #[serde(default)]
    pub when: Vec<ConditionalCauses>,
    /// Why there are no causes to look for.
    pub no_causes: Option<String>,
    /// What to do where no cause fits.
    #[serde(default)]
    pub fallback: String,
    #[serde(skip, default = "default_subject")]
    pub subject: Subject,
}

const fn default_subject() -> Subject {
    Subject::Other
}

/// What a reason means for users, for the service and for the cluster.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Impact {
    pub user: String,
    pub service: String,
    pub cluster: String,
}

/// The pace of further tries: the pause doubles from the first to the longest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Retry {
    pub first_ms: u32,
    pub max_ms: u32,
    /// The number of tries after which the component gives up until something changes; none: it never gives up.
    pub times: Option<u32>,
}

/// Causes that only some messages of a reason can have.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConditionalCauses {
    /// The message has one of these keywords.
    pub contains: Vec<String>,
    /// What such a message says about the life of a load balancer, in place of the reason's own step.
    pub step: Option<Step>,
    pub causes: Vec<String>,
}

/// What is behind a message, by the words in it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cause {
    pub id: String,
    /// The message has one of these keywords, without regard to capitals.
    pub any: Vec<String>,
    /// … and each of these as well.
    #[serde(default)]
    pub all: Vec<String>,
    /// … and none of these.
    #[serde(default)]
    pub not: Vec<String>,
    /// The providers that use these words; none named: any may.
    #[serde(default)]
    pub providers: Vec<String>,
    pub means: String,
    pub check: Vec<String>,
    pub remedy: Vec<Remedy>,
}

/// What helps, and how much harm it can do.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Remedy {
    pub risk: Risk,
    #[serde(rename = "do")]
    pub action: String,
}

/// What is believed of some reasons and causes, and what is true. A belief is often about several of them, so it stands
/// beside them and not in each.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Belief {
    pub id: String,
    /// The ids of the reasons and causes that it is about.
    pub about: Vec<String>,
    pub believed: String,
    pub truth: String,
}

/// What is seen before one looks, and where to look.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Symptom {
    pub id: String,
    pub seen: String,
    pub reasons: Vec<String>,
    /// Checks of `holdfast diagnose`.
    pub checks: Vec<String>,
    pub note: String,
}

/// An error with which the apiserver answers a write, and which never becomes an Event.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RefusedWrite {
    pub id: String,
    pub contains: Vec<String>,
    pub cause: String,
}

/// What no advice may say.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ForbiddenPhrase {
    pub id: String,
    pub contains: Vec<String>,
    pub why: String,
}
