//! The answer of a path, as `/openapi.json` describes it: kinds of content, and the schema of each.
//!
//! Invariant: a schema is made from the written type.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value, json};

/// Builds the schema of an answer, and of its parts.
pub(super) type SchemaFn = fn(&mut SchemaGenerator) -> Schema;

pub(super) const JSON: &str = "application/json";
pub(super) const TEXT: &str = "text/plain";

pub(super) struct ResponseSchema {
    content: &'static [&'static str],
    describe: SchemaFn,
    pub(super) meaning: &'static str,
    /// Another status of the same answer, and its meaning.
    pub(super) extra_status: Option<(&'static str, &'static str)>,
}

impl ResponseSchema {
    pub(super) const EVENTS: Self = Self {
        content: &["text/event-stream"],
        describe: text_schema,
        meaning: "Events named record, whose data is a record as in /history; at the end one named end or dropped, whose data \
                  says why.",
        extra_status: None,
    };
    pub(super) const METRICS: Self = Self {
        content: &[TEXT],
        describe: text_schema,
        meaning: "The text exposition format, version 0.0.4.",
        extra_status: None,
    };
    pub(super) const DOCUMENT: Self =
        Self { content: &[JSON], describe: any_object, meaning: "OpenAPI 3.1.", extra_status: None };

    /// An answer that is JSON of this type, or text for people.
    pub(super) const fn for_type(describe: SchemaFn) -> Self {
        Self { content: &[JSON, TEXT], describe, meaning: "The answer.", extra_status: None }
    }

    /// An answer of one JSON object of this type per line, or text for people.
    pub(super) const fn for_lines(describe: SchemaFn) -> Self {
        let meaning = "The records, oldest first: one in each line, or one after another in words.";
        Self { content: &["application/jsonl", TEXT], describe, meaning, extra_status: None }
    }

    pub(super) const fn with_status(self, status: &'static str, meaning: &'static str) -> Self {
        Self { extra_status: Some((status, meaning)), ..self }
    }

    pub(super) fn to_content(&self, generator: &mut SchemaGenerator) -> Value {
        let described = (self.describe)(generator);
        let schema = |kind: &&str| if *kind == TEXT { text_schema(generator) } else { described.clone() };
        let schemas: Vec<Schema> = self.content.iter().map(schema).collect();
        content_map(self.content.iter().copied().zip(schemas))
    }
}

pub(super) fn content_map<'a>(schemas: impl Iterator<Item = (&'a str, Schema)>) -> Value {
    schemas.map(|(kind, schema)| (kind.to_owned(), json!({ "schema": schema }))).collect::<Map<_, _>>().into()
}

pub(super) fn schema<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

/// A JSON object without details, because another document describes it.
pub(super) fn any_object(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object" })
}

pub(super) fn text_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string" })
}

pub(super) const SCHEMAS: &str = "/components/schemas";

pub(super) fn schema_ref(name: &str) -> Schema {
    Schema::new_ref(format!("#{SCHEMAS}/{name}"))
}
