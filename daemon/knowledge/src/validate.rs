//! Validates an entry: its shape, its texts, and whether everything that it names exists.
//!
//! Invariant: an error says what is wrong and what to do. The built-in entries pass the same rules as an operator's
//! file.

use std::collections::BTreeSet;

use crate::entry::{Cause, EventReason, ForbiddenPhrase};
use crate::limits::{ID_BYTES_MAX, KEYWORD_BYTES, LIST_MAX, SENTENCE_BYTES_MAX, WORD_BYTES_MAX};
use crate::placeholders::unknown_placeholder;
use crate::text::is_unprintable;

/// Ok, or what is wrong and what to do.
pub(crate) type Validation = Result<(), String>;

/// The phrases that no advice may contain, normalised.
#[derive(Clone, Debug)]
pub(crate) struct ForbiddenPhrases(Vec<(String, String)>);

impl ForbiddenPhrases {
    pub(crate) fn new<'n>(nevers: impl Iterator<Item = &'n ForbiddenPhrase>) -> Self {
        let phrases = nevers.flat_map(|never| {
            never.contains.iter().map(move |phrase| (normalise_text(phrase), never.why.clone()))
        });
        Self(phrases.collect())
    }

    fn validate_advice_text(&self, advice: &str) -> Validation {
        let text = normalise_text(advice);
        match self.0.iter().find(|(phrase, _)| text.contains(phrase.as_str())) {
            Some((phrase, why)) => Err(format!("no advice may say {phrase:?}. {why} Write another remedy")),
            None => Ok(()),
        }
    }
}

/// The text in lower case, with single blanks.
fn normalise_text(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").to_lowercase()
}

/// Validates a reason by itself, without the entries that it names.
pub(crate) fn validate_reason(reason: &EventReason, never: &ForbiddenPhrases) -> Validation {
    validate_id(&reason.id)?;
    validate_word("reason", &reason.reason)?;
    let lists = [
        ("aliases", &reason.aliases),
        ("components", &reason.components),
        ("kinds", &reason.kinds),
        ("before", &reason.before),
        ("after", &reason.after),
        ("resolved_by", &reason.resolved_by),
        ("causes", &reason.causes),
    ];
    lists.iter().try_for_each(|(name, list)| validate_words(name, list))?;
    validate_keywords("only_if", &reason.only_if)?;
    validate_length("when", reason.when.len())?;
    for when in &reason.when {
        validate_keywords("when.contains", &when.contains)?;
        validate_words("when.causes", &when.causes)?;
    }
    validate_length("says", reason.says.len())?;
    let impact = reason.impact.iter().flat_map(|it| [&it.user, &it.service, &it.cluster]);
    let further = [&reason.since, &reason.frequency, &reason.no_causes];
    let sentences = reason.says.iter().chain([&reason.meaning]).chain(impact);
    sentences.chain(further.into_iter().flatten()).try_for_each(|text| validate_sentence(text))?;
    validate_explanation(reason)?;
    validate_advice(&reason.fallback, never)
}

/// Validates that a reason has kinds, a meaning and causes; or, instead of causes, why there are none.
fn validate_explanation(reason: &EventReason) -> Validation {
    if reason.kinds.is_empty() {
        return Err("kinds is empty: say which kinds of objects it is about, such as \"Service\"".to_owned());
    }
    if reason.meaning.trim().is_empty() {
        return Err("meaning is empty: say in a sentence what it means".to_owned());
    }
    match (reason.causes.is_empty(), &reason.no_causes) {
        (true, None) => {
            Err("it has no causes: list ids in causes, or say in no_causes why none are needed".to_owned())
        }
        (false, Some(_)) => Err("it has causes and no_causes: leave one of them out".to_owned()),
        _ => Ok(()),
    }
}

pub(crate) fn validate_cause(cause: &Cause, never: &ForbiddenPhrases) -> Validation {
    validate_id(&cause.id)?;
    let lists = [("any", &cause.any), ("all", &cause.all), ("not", &cause.not)];
    lists.iter().try_for_each(|(name, list)| validate_keywords(name, list))?;
    validate_words("providers", &cause.providers)?;
    if cause.any.is_empty() {
        return Err("any is empty: name a keyword that messages of this cause have".to_owned());
    }
    if cause.means.trim().is_empty() {
        return Err("means is empty: say in a sentence what is behind it".to_owned());
    }
    if cause.remedy.is_empty() {
        return Err("remedy is empty: say what helps, even if that is to do nothing".to_owned());
    }
    validate_sentence(&cause.means)?;
    validate_length("check", cause.check.len())?;
    validate_length("remedy", cause.remedy.len())?;
    let remedies = cause.remedy.iter().map(|remedy| &remedy.action);
    cause.check.iter().chain(remedies).try_for_each(|text| {
        if text.trim().is_empty() {
            return Err("a check or a remedy is empty: say what to do".to_owned());
        }
        validate_advice(text, never)
    })
}

/// Validates that every id and reason that a reason names exists. A missing id would be a cause that never matches.
pub(crate) fn validate_references(
    reason: &EventReason,
    causes: &BTreeSet<&str>,
    reasons: &ReasonNames<'_>,
) -> Validation {
    let named = reason.causes.iter().chain(reason.when.iter().flat_map(|when| &when.causes));
    if let Some(dead) = named.into_iter().find(|id| !causes.contains(id.as_str())) {
        return Err(format!("there is no cause {dead:?}: correct the id, or add the cause"));
    }
    let mut others = [&reason.before, &reason.after, &reason.resolved_by].into_iter().flatten();
    if let Some(dead) = others.find(|name| !reasons.words.contains(name.as_str())) {
        return Err(format!("no reason is spelled {dead:?}: correct it, or add the reason"));
    }
    match &reason.alias_of {
        Some(dead) if !reasons.ids.contains(dead.as_str()) => {
            Err(format!("alias_of names {dead:?}, and there is no reason of that id: correct it"))
        }
        _ => Ok(()),
    }
}

/// The ids and words by which an entry can name reasons.
#[derive(Debug, Default)]
pub(crate) struct ReasonNames<'a> {
    /// The ids of reasons that are no aliases.
    pub(crate) ids: BTreeSet<&'a str>,
    pub(crate) words: BTreeSet<&'a str>,
}

fn validate_id(id: &str) -> Validation {
    let is_legal = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"._-".contains(&byte);
    if id.is_empty() || id.len() > ID_BYTES_MAX || !id.bytes().all(is_legal) {
        return Err(format!(
            "the id {id:?} is not legal: take small letters, digits, `.`, `_`, `-`, {ID_BYTES_MAX} at most"
        ));
    }
    Ok(())
}

fn validate_words(name: &str, list: &[String]) -> Validation {
    validate_length(name, list.len())?;
    list.iter().try_for_each(|text| validate_word(name, text))
}

fn validate_word(name: &str, text: &str) -> Validation {
    if text.trim().is_empty() || text.len() > WORD_BYTES_MAX {
        return Err(format!("a word of {name} is empty or longer than {WORD_BYTES_MAX} bytes: shorten it"));
    }
    validate_text(text)
}

fn validate_keywords(name: &str, list: &[String]) -> Validation {
    validate_length(name, list.len())?;
    let min = KEYWORD_BYTES.start();
    let max = KEYWORD_BYTES.end();
    match list.iter().find(|word| !KEYWORD_BYTES.contains(&word.len()) || word.trim().is_empty()) {
        Some(word) => {
            Err(format!("the keyword {word:?} of {name} has to have {min} to {max} bytes: change it"))
        }
        None => list.iter().try_for_each(|word| validate_text(word)),
    }
}

fn validate_length(name: &str, count: usize) -> Validation {
    if count > LIST_MAX {
        return Err(format!("{name} has {count} items, and at most {LIST_MAX} are legal: divide the entry"));
    }
    Ok(())
}

fn validate_advice(text: &str, never: &ForbiddenPhrases) -> Validation {
    validate_sentence(text)?;
    never.validate_advice_text(text)?;
    match unknown_placeholder(text) {
        Some(name) => Err(format!(
            "{{{name}}} is not filled: {{ns}}, {{name}}, {{pod}}, {{node}}, {{ip}} and {{port}} are"
        )),
        None => Ok(()),
    }
}

fn validate_sentence(text: &str) -> Validation {
    if text.len() > SENTENCE_BYTES_MAX {
        return Err(format!(
            "a text has {} bytes, and at most {SENTENCE_BYTES_MAX} are legal: shorten it",
            text.len()
        ));
    }
    validate_text(text)
}

fn validate_text(text: &str) -> Validation {
    match text.chars().find(|c| is_unprintable(*c)) {
        Some(c) => Err(format!("a text has the control character U+{:04X}: take it out", u32::from(c))),
        None => Ok(()),
    }
}
