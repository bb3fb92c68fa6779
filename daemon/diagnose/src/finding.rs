//! The judgement of one check: a state, a sentence, its evidence and its remedies.
//!
//! Invariant: every text is cleaned on its way in, so no foreign text reaches a reader unchanged.

use holdfast_core::words;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

use super::command::Command;
use super::formatting;
use holdfast_status::schema_types::Code;

words! {
    /// The outcome of a check.
    pub enum State {
        /// Judged, and as it should be.
        Ok = "ok",
        /// Worth knowing, and nothing is wrong.
        Info = "info",
        /// Some clients may be worse off, or will be.
        Warning = "warning",
        /// Clients are worse off.
        Error = "error",
        /// The evidence could not be read.
        Unknown = "unknown",
        /// The check does not apply here.
        Skipped = "skipped",
    }
}

words! {
    /// How certain a finding is.
    pub enum Confidence {
        /// Seen in the cluster, on this host or in the kernel.
        Certain = "certain",
        /// Inferred, because a source was missing.
        Likely = "likely",
        /// One of several explanations.
        Possible = "possible",
    }
}

words! {
    /// The possible cost of a remedy.
    pub enum Risk {
        /// It only reads, or its reverse undoes it.
        Safe = "safe",
        /// It interrupts traffic or a component, or changes which clients get which backend.
        Disruptive = "disruptive",
        /// Data or cloud resources may be lost.
        Destructive = "destructive",
    }
}

impl State {
    /// Whether clients are worse off, or may be.
    pub const fn is_trouble(self) -> bool {
        matches!(self, Self::Warning | Self::Error)
    }
}

/// A remedy for a person; holdfast never applies it.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Remedy {
    pub text: String,
    pub risk: Code<Risk>,
    /// The words of a command for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<Command>,
}

impl Remedy {
    pub fn safe(text: impl AsRef<str>) -> Self {
        Self::new(Risk::Safe, text)
    }

    pub fn disruptive(text: impl AsRef<str>) -> Self {
        Self::new(Risk::Disruptive, text)
    }

    pub fn new(risk: Risk, text: impl AsRef<str>) -> Self {
        Self { text: formatting::clean(text.as_ref()), risk: Code(risk), command: None }
    }

    /// Adds a command, if one is safe to show.
    pub fn with_command(self, command: Option<Command>) -> Self {
        Self { command, ..self }
    }
}

/// The evidence key for why a check could not judge.
pub(super) const REASON_KEY: &str = "why";

/// What a check concludes from its evidence.
#[derive(Clone, Debug, PartialEq)]
pub struct Judgement {
    pub state: State,
    pub confidence: Confidence,
    pub sentence: String,
    pub evidence: Map<String, Value>,
    pub remedies: Vec<Remedy>,
}

impl Judgement {
    fn new(state: State, sentence: &str) -> Self {
        Self {
            state,
            confidence: Confidence::Certain,
            sentence: formatting::clean(sentence),
            evidence: Map::new(),
            remedies: Vec::new(),
        }
    }

    /// Everything that was read is as it should be.
    pub fn ok(sentence: impl AsRef<str>) -> Self {
        Self::new(State::Ok, sentence.as_ref())
    }

    /// `ok`, unless unread parts may differ.
    pub fn ok_unless(is_cut: bool, sentence: impl AsRef<str>) -> Self {
        let sentence = sentence.as_ref();
        match is_cut {
            false => Self::ok(sentence),
            true => {
                Self::unknown(format!("Of the first page that was read: {sentence} The rest was not read."))
            }
        }
    }

    pub fn info(sentence: impl AsRef<str>) -> Self {
        Self::new(State::Info, sentence.as_ref())
    }

    pub fn warning(sentence: impl AsRef<str>) -> Self {
        Self::new(State::Warning, sentence.as_ref())
    }

    pub fn error(sentence: impl AsRef<str>) -> Self {
        Self::new(State::Error, sentence.as_ref())
    }

    /// An error if `is_error`, else a warning.
    pub fn error_if(is_error: bool, sentence: impl AsRef<str>) -> Self {
        Self::new(if is_error { State::Error } else { State::Warning }, sentence.as_ref())
    }

    pub fn unknown(why: impl AsRef<str>) -> Self {
        Self::new(State::Unknown, why.as_ref())
    }

    pub fn not_applicable(why: impl AsRef<str>) -> Self {
        Self::new(State::Skipped, why.as_ref())
    }

    /// Adds a piece of evidence, for programs.
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.evidence.insert(name.to_owned(), formatting::clean_json(value.into()));
        self
    }

    /// Why the check could not judge, if other checks may share the reason.
    pub fn unknown_reason(&self) -> Option<&str> {
        self.evidence.get(REASON_KEY).and_then(Value::as_str)
    }

    /// Marks the judgement as likely: a source that would have made it certain is missing.
    pub fn likely(self) -> Self {
        Self { confidence: Confidence::Likely, ..self }
    }

    pub fn possible(self) -> Self {
        Self { confidence: Confidence::Possible, ..self }
    }

    pub fn remedy(mut self, remedy: Remedy) -> Self {
        self.remedies.push(remedy);
        self
    }

    pub fn remedies(mut self, remedies: impl IntoIterator<Item = Remedy>) -> Self {
        self.remedies.extend(remedies);
        self
    }
}
