//! Label and field selectors, as far as the tests' clients use them.
//!
//! Invariant: an unsupported selector is an error for the client, never "everything".

use serde_json::Value;

/// The conditions that an object must meet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Selector {
    terms: Vec<Term>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Term {
    subject: Subject,
    wanted: ValueMatch,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Subject {
    Label(String),
    Field(&'static str),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum ValueMatch {
    Present,
    Absent,
    Equal(String),
    Unequal(String),
    OneOf(Vec<String>),
}

/// The fields that apiservers can select by, and their paths in an object.
const FIELDS: [(&str, &str); 9] = [
    ("metadata.name", "/metadata/name"),
    ("metadata.namespace", "/metadata/namespace"),
    ("spec.clusterIP", "/spec/clusterIP"),
    ("spec.nodeName", "/spec/nodeName"),
    ("involvedObject.kind", "/involvedObject/kind"),
    ("involvedObject.namespace", "/involvedObject/namespace"),
    ("involvedObject.name", "/involvedObject/name"),
    ("reason", "/reason"),
    ("type", "/type"),
];

impl Selector {
    /// Parses the two query parameters; the error is the unsupported term.
    pub(super) fn parse(labels: &str, fields: &str) -> Result<Self, String> {
        let terms = |text: &str| -> Vec<String> {
            text.split(',').filter(|term| !term.is_empty()).map(str::to_owned).collect()
        };
        if let Some(term) = one_of(labels) {
            return Ok(Self { terms: vec![term] });
        }
        let labels = terms(labels).into_iter().map(|term| label(&term));
        let fields = terms(fields).into_iter().map(|term| field(&term).ok_or(term));
        Ok(Self { terms: labels.map(Ok).chain(fields).collect::<Result<_, _>>()? })
    }

    /// Adds the condition of one namespace.
    pub(super) fn within(mut self, namespace: Option<&str>) -> Self {
        let subject = Subject::Field("/metadata/namespace");
        self.terms.extend(namespace.map(|it| Term { subject, wanted: ValueMatch::Equal(it.to_owned()) }));
        self
    }

    /// Whether the object meets all conditions.
    pub(super) fn matches(&self, object: &Selected) -> bool {
        self.terms.iter().all(|term| term.matches(object))
    }
}

impl Term {
    fn matches(&self, object: &Selected) -> bool {
        let found = match &self.subject {
            Subject::Label(name) => object.labels.iter().find(|(label, _)| label == name),
            Subject::Field(pointer) => object.fields.iter().find(|(field, _)| field == pointer),
        };
        let found = found.map(|(_, value)| value.as_str());
        match &self.wanted {
            ValueMatch::Present => found.is_some(),
            ValueMatch::Absent => found.is_none(),
            ValueMatch::Equal(value) => found.unwrap_or_default() == value,
            ValueMatch::Unequal(value) => found.unwrap_or_default() != value,
            ValueMatch::OneOf(values) => values.iter().any(|value| found == Some(value)),
        }
    }
}

/// The selectable values of an object, extracted once, so that no watcher parses the object again.
#[derive(Clone, Debug, Default)]
pub(super) struct Selected {
    labels: Vec<(String, String)>,
    fields: Vec<(String, String)>,
}

impl Selected {
    pub(super) fn from_object(object: &Value) -> Self {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let labels = object.pointer("/metadata/labels").and_then(Value::as_object);
        let labels =
            labels.into_iter().flatten().filter_map(|(name, value)| Some((name.clone(), text(value)?)));
        let fields = FIELDS.iter().filter_map(|(_, at)| Some(((*at).to_owned(), text(object.pointer(at)?)?)));
        Self { labels: labels.collect(), fields: fields.collect() }
    }
}

fn label(term: &str) -> Term {
    if let Some(name) = term.strip_prefix('!') {
        return Term { subject: Subject::Label(name.to_owned()), wanted: ValueMatch::Absent };
    }
    match compared(term) {
        Some((name, wanted)) => Term { subject: Subject::Label(name.to_owned()), wanted },
        None => Term { subject: Subject::Label(term.to_owned()), wanted: ValueMatch::Present },
    }
}

/// Parses `name in (a,b)` as the only term.
fn one_of(labels: &str) -> Option<Term> {
    let (name, values) = labels.strip_suffix(')')?.split_once(" in (")?;
    let values = values.split(',').map(str::to_owned).collect();
    Some(Term { subject: Subject::Label(name.to_owned()), wanted: ValueMatch::OneOf(values) })
}

fn field(term: &str) -> Option<Term> {
    let (name, wanted) = compared(term)?;
    let (_, pointer) = FIELDS.into_iter().find(|(field, _)| *field == name)?;
    Some(Term { subject: Subject::Field(pointer), wanted })
}

fn compared(term: &str) -> Option<(&str, ValueMatch)> {
    if let Some((name, value)) = term.split_once("!=") {
        return Some((name, ValueMatch::Unequal(value.to_owned())));
    }
    let (name, value) = term.split_once('=')?;
    Some((name, ValueMatch::Equal(value.trim_start_matches('=').to_owned())))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(labels: &str, fields: &str, expected: bool) {
        let object =
            json!({"metadata": {"name": "web", "labels": {"app": "a"}}, "spec": {"clusterIP": "None"}});
        let selector = Selector::parse(labels, fields).unwrap();
        assert_eq!(
            selector.matches(&Selected::from_object(&object)),
            expected,
            "of {labels:?} and {fields:?}"
        );
    }

    #[test]
    fn terms_are_joined_by_and() {
        check("", "", true);
        check("app", "", true);
        check("!app", "", false);
        check("!b,app=a", "", true);
        check("app==a,app!=a", "", false);
        check("", "metadata.name=web", true);
        check("", "metadata.name=web,spec.clusterIP!=None", false);
        check("!b", "metadata.name=other", false);
        check("app in (b,a)", "", true);
        check("app in (b,c)", "", false);
    }

    #[test]
    fn a_field_without_a_selector_is_refused() {
        assert_eq!(Selector::parse("", "spec.type=NodePort"), Err("spec.type=NodePort".to_owned()));
    }
}
