//! Whether an entry may be taken: whether its shape is legal, what it may say, and whether everything that it names is
//! there.
//!
//! Invariant: an answer says what is wrong and what to do. What an operator's file may not have, ours do not have
//! either: both are judged here.

use std::collections::BTreeSet;

use crate::entry::{Cause, EventReason, Never};
use crate::fill::unknown_placeholder;
use crate::limits::{ID_BYTES_MAX, KEYWORD_BYTES, LIST_MAX, SENTENCE_BYTES_MAX, WORD_BYTES_MAX};
use crate::text::is_unfit;

/// Ok, or what is wrong and what to do.
pub(crate) type Judgement = Result<(), String>;

/// The phrases that no advice may have, as they are looked for.
#[derive(Clone, Debug)]
pub(crate) struct NeverSaid(Vec<(String, String)>);

impl NeverSaid {
    pub(crate) fn new<'n>(nevers: impl Iterator<Item = &'n Never>) -> Self {
        let phrases = nevers
            .flat_map(|never| never.contains.iter().map(move |phrase| (folded(phrase), never.why.clone())));
        Self(phrases.collect())
    }

    fn judge(&self, advice: &str) -> Judgement {
        let text = folded(advice);
        match self.0.iter().find(|(phrase, _)| text.contains(phrase.as_str())) {
            Some((phrase, why)) => Err(format!("no advice may say {phrase:?}. {why} Write another remedy")),
            None => Ok(()),
        }
    }
}

/// The text in small letters, with one blank where there were several.
fn folded(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").to_lowercase()
}

/// Judges a reason by itself, without looking at what it names.
pub(crate) fn reason(reason: &EventReason, never: &NeverSaid) -> Judgement {
    id(&reason.id)?;
    word("reason", &reason.reason)?;
    let lists = [
        ("aliases", &reason.aliases),
        ("components", &reason.components),
        ("kinds", &reason.kinds),
        ("before", &reason.before),
        ("after", &reason.after),
        ("resolved_by", &reason.resolved_by),
        ("causes", &reason.causes),
    ];
    lists.iter().try_for_each(|(name, list)| words(name, list))?;
    keywords("only_if", &reason.only_if)?;
    length("when", reason.when.len())?;
    for when in &reason.when {
        keywords("when.contains", &when.contains)?;
        words("when.causes", &when.causes)?;
    }
    length("says", reason.says.len())?;
    let impact = reason.impact.iter().flat_map(|it| [&it.user, &it.service, &it.cluster]);
    let further = [&reason.since, &reason.frequency, &reason.no_causes];
    let sentences = reason.says.iter().chain([&reason.meaning]).chain(impact);
    sentences.chain(further.into_iter().flatten()).try_for_each(|text| sentence(text))?;
    explained(reason)?;
    advice(&reason.fallback, never)
}

/// Judges whether a reason has kinds, a meaning and causes; in place of causes it may say why none are to be looked
/// for.
fn explained(reason: &EventReason) -> Judgement {
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

/// Judges a cause by itself.
pub(crate) fn cause(cause: &Cause, never: &NeverSaid) -> Judgement {
    id(&cause.id)?;
    let lists = [("any", &cause.any), ("all", &cause.all), ("not", &cause.not)];
    lists.iter().try_for_each(|(name, list)| keywords(name, list))?;
    words("providers", &cause.providers)?;
    if cause.any.is_empty() {
        return Err("any is empty: name a keyword that messages of this cause have".to_owned());
    }
    if cause.means.trim().is_empty() {
        return Err("means is empty: say in a sentence what is behind it".to_owned());
    }
    if cause.remedy.is_empty() {
        return Err("remedy is empty: say what helps, even if that is to do nothing".to_owned());
    }
    sentence(&cause.means)?;
    length("check", cause.check.len())?;
    length("remedy", cause.remedy.len())?;
    let remedies = cause.remedy.iter().map(|remedy| &remedy.action);
    cause.check.iter().chain(remedies).try_for_each(|text| {
        if text.trim().is_empty() {
            return Err("a check or a remedy is empty: say what to do".to_owned());
        }
        advice(text, never)
    })
}

/// Judges whether every id and reason that a reason names is there. A dead id would be a cause that is never found.
pub(crate) fn references(reason: &EventReason, causes: &BTreeSet<&str>, reasons: &Names<'_>) -> Judgement {
    let named = reason.causes.iter().chain(reason.when.iter().flat_map(|when| &when.causes));
    if let Some(dead) = named.into_iter().find(|id| !causes.contains(id.as_str())) {
        return Err(format!("there is no cause {dead:?}: correct the id, or add the cause"));
    }
    let mut others = [&reason.before, &reason.after, &reason.resolved_by].into_iter().flatten();
    if let Some(dead) = others.find(|name| !reasons.spelled.contains(name.as_str())) {
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
pub(crate) struct Names<'a> {
    /// The ids of reasons that are no aliases themselves.
    pub(crate) ids: BTreeSet<&'a str>,
    pub(crate) spelled: BTreeSet<&'a str>,
}

fn id(id: &str) -> Judgement {
    let is_legal = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"._-".contains(&byte);
    if id.is_empty() || id.len() > ID_BYTES_MAX || !id.bytes().all(is_legal) {
        return Err(format!(
            "the id {id:?} is not legal: take small letters, digits, `.`, `_`, `-`, {ID_BYTES_MAX} at most"
        ));
    }
    Ok(())
}

fn words(name: &str, list: &[String]) -> Judgement {
    length(name, list.len())?;
    list.iter().try_for_each(|text| word(name, text))
}

fn word(name: &str, text: &str) -> Judgement {
    if text.trim().is_empty() || text.len() > WORD_BYTES_MAX {
        return Err(format!("a word of {name} is empty or longer than {WORD_BYTES_MAX} bytes: shorten it"));
    }
    fit(text)
}

fn keywords(name: &str, list: &[String]) -> Judgement {
    length(name, list.len())?;
    let min = KEYWORD_BYTES.start();
    let max = KEYWORD_BYTES.end();
    match list.iter().find(|word| !KEYWORD_BYTES.contains(&word.len()) || word.trim().is_empty()) {
        Some(word) => {
            Err(format!("the keyword {word:?} of {name} has to have {min} to {max} bytes: change it"))
        }
        None => list.iter().try_for_each(|word| fit(word)),
    }
}

fn length(name: &str, count: usize) -> Judgement {
    if count > LIST_MAX {
        return Err(format!("{name} has {count} items, and at most {LIST_MAX} are legal: divide the entry"));
    }
    Ok(())
}

fn advice(text: &str, never: &NeverSaid) -> Judgement {
    sentence(text)?;
    never.judge(text)?;
    match unknown_placeholder(text) {
        Some(name) => Err(format!(
            "{{{name}}} is not filled: {{ns}}, {{name}}, {{pod}}, {{node}}, {{ip}} and {{port}} are"
        )),
        None => Ok(()),
    }
}

fn sentence(text: &str) -> Judgement {
    if text.len() > SENTENCE_BYTES_MAX {
        return Err(format!(
            "a text has {} bytes, and at most {SENTENCE_BYTES_MAX} are legal: shorten it",
            text.len()
        ));
    }
    fit(text)
}

fn fit(text: &str) -> Judgement {
    match text.chars().find(|c| is_unfit(*c)) {
        Some(c) => Err(format!("a text has the control character U+{:04X}: take it out", u32::from(c))),
        None => Ok(()),
    }
}
