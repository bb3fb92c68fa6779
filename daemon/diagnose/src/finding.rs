//! What one check came to: a state, a sentence, what it rests on, and what can be done.
//!
//! Invariant: every text that goes in is cleaned on its way, so nothing that others wrote reaches a reader as it was.

use holdfast_core::words;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

use super::command::Command;
use super::formatting;
use holdfast_status::schema_types::Code;

words! {
    /// How a check came out.
    pub enum State {
        /// Looked at, and as it should be.
        Ok = "ok",
        /// Worth knowing, and nothing is wrong.
        Info = "info",
        /// Some clients may be worse off, or will be.
        Warning = "warning",
        /// Clients are worse off.
        Error = "error",
        /// It could not be looked at.
        Unknown = "unknown",
        /// It does not apply here.
        Skipped = "skipped",
    }
}

words! {
    /// How sure a finding is.
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
    /// What a remedy may cost.
    pub enum Risk {
        /// It only reads, or the reverse step undoes it.
        Safe = "safe",
        /// Traffic or a component is interrupted.
        Disruptive = "disruptive",
        /// Data or resources of a cloud may be lost.
        Destructive = "destructive",
    }
}

impl State {
    /// Whether clients are worse off, or may be.
    pub const fn is_trouble(self) -> bool {
        matches!(self, Self::Warning | Self::Error)
    }
}

/// What a person can do. It is never done here.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Remedy {
    pub text: String,
    pub risk: Code<Risk>,
    /// The words of a command that does it.
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

    /// Adds the command, if there is one that is safe to show.
    pub fn with_command(self, command: Option<Command>) -> Self {
        Self { command, ..self }
    }
}

/// The evidence that says why a check could not look.
pub(super) const REASON_KEY: &str = "why";

/// What a check says of what it looked at.
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

    /// What was looked at, and that it is as it should be.
    pub fn ok(sentence: impl AsRef<str>) -> Self {
        Self::new(State::Ok, sentence.as_ref())
    }

    /// The same, unless there is more than was read: that may be otherwise.
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

    /// An error if it is so, else a warning.
    pub fn error_if(is_error: bool, sentence: impl AsRef<str>) -> Self {
        Self::new(if is_error { State::Error } else { State::Warning }, sentence.as_ref())
    }

    pub fn unknown(why: impl AsRef<str>) -> Self {
        Self::new(State::Unknown, why.as_ref())
    }

    pub fn not_applicable(why: impl AsRef<str>) -> Self {
        Self::new(State::Skipped, why.as_ref())
    }

    /// Adds something that the judgement rests on, for programs.
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.evidence.insert(name.to_owned(), formatting::clean_json(value.into()));
        self
    }

    /// Why its check could not look, if other checks may have the same reason.
    pub fn unknown_reason(&self) -> Option<&str> {
        self.evidence.get(REASON_KEY).and_then(Value::as_str)
    }

    /// Says that the judgement is only likely, because a source that would have made it certain was missing.
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
