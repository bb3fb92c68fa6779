//! What a path answers with, as `/openapi.json` describes it: kinds of content, and the schema of each.
//!
//! Invariant: a schema is made of the type that is written.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value, json};

/// Makes the schema of an answer, and of whatever it consists of.
pub(super) type Describe = fn(&mut SchemaGenerator) -> Schema;

pub(super) const JSON: &str = "application/json";
pub(super) const TEXT: &str = "text/plain";

/// What a path answers with.
pub(super) struct Answers {
    content: &'static [&'static str],
    describe: Describe,
    pub(super) meaning: &'static str,
    /// Another status that comes with the same answer, and when.
    pub(super) other: Option<(&'static str, &'static str)>,
}

impl Answers {
    pub(super) const EVENTS: Self = Self {
        content: &["text/event-stream"],
        describe: text,
        meaning: "Events named record, whose data is a record as in /history; at the end one named end or dropped, whose data \
                  says why.",
        other: None,
    };
    pub(super) const METRICS: Self = Self {
        content: &[TEXT],
        describe: text,
        meaning: "The text exposition format, version 0.0.4.",
        other: None,
    };
    pub(super) const DOCUMENT: Self =
        Self { content: &[JSON], describe: anything, meaning: "OpenAPI 3.1.", other: None };

    /// An answer that is JSON of this type, or text for people.
    pub(super) const fn of(describe: Describe) -> Self {
        Self { content: &[JSON, TEXT], describe, meaning: "The answer.", other: None }
    }

    /// An answer that is a JSON object of this type in each line, or text for people.
    pub(super) const fn lines(describe: Describe) -> Self {
        let meaning = "The records, oldest first: one in each line, or one after another in words.";
        Self { content: &["application/jsonl", TEXT], describe, meaning, other: None }
    }

    pub(super) const fn or(self, status: &'static str, meaning: &'static str) -> Self {
        Self { other: Some((status, meaning)), ..self }
    }

    pub(super) fn content(&self, generator: &mut SchemaGenerator) -> Value {
        let described = (self.describe)(generator);
        let schema = |kind: &&str| if *kind == TEXT { text(generator) } else { described.clone() };
        let schemas: Vec<Schema> = self.content.iter().map(schema).collect();
        content(self.content.iter().copied().zip(schemas))
    }
}

/// A schema for each kind of content.
pub(super) fn content<'a>(schemas: impl Iterator<Item = (&'a str, Schema)>) -> Value {
    schemas.map(|(kind, schema)| (kind.to_owned(), json!({ "schema": schema }))).collect::<Map<_, _>>().into()
}

/// The schema of a type.
pub(super) fn schema<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

/// A JSON object of which nothing is said, because another document describes it.
pub(super) fn anything(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object" })
}

pub(super) fn text(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string" })
}

/// The place of named schemas in the description.
pub(super) const SCHEMAS: &str = "/components/schemas";

/// Refers to the schema of this name.
pub(super) fn named(name: &str) -> Schema {
    Schema::new_ref(format!("#{SCHEMAS}/{name}"))
}
