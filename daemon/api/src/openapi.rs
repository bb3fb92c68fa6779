//! The description of this API, for programs: OpenAPI 3.1, made of the paths and of the types of their answers.
//!
//! Invariant: nothing in it is written down twice: a path describes itself in the table of paths, an answer by its own
//! type. The description is made once, at the first request. The sources have no copy of it but a golden file of the
//! tests, which shows what changes.

mod schemas;

use std::sync::OnceLock;

use axum::body::{Body, Bytes};
use axum::http::StatusCode;
use axum::response::Response;
use schemars::SchemaGenerator;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use super::answer::{self, RefusalJson};
use super::answers::{Answers, Describe, JSON, SCHEMAS, TEXT, content, schema, text};
use super::drains::order::{self, OrderedJson};
use super::forget::{self, ForgottenJson};
use super::form::Form;
use super::parameters;
use super::path::Path;
use super::query::{Parameter, Values};
use super::reload::{self, ReloadedJson};
use schemas::plain;

/// A path that is served on the Unix socket alone, with POST.
struct Wish {
    path: &'static str,
    summary: &'static str,
    legal: &'static [Parameter],
    describe: Describe,
    meaning: &'static str,
    /// The status of a refusal that only this path gives, and what that status means.
    refused: (&'static str, &'static str),
}

const WISHES: [Wish; 4] = [
    Wish {
        path: reload::PATH,
        summary: "Read the configuration again; over the unix socket only",
        legal: &[],
        describe: schema::<ReloadedJson>,
        meaning: "The new configuration is in force.",
        refused: ("422", "The new configuration is bad, and the old one stays in force."),
    },
    Wish {
        path: forget::PATH,
        summary: "Forget a learned address of an apiserver; over the unix socket only",
        legal: parameters::FORGET,
        describe: schema::<ForgottenJson>,
        meaning: "It is forgotten.",
        refused: ("409", "It stays: it is configured, named by the cluster now, held, or not known."),
    },
    Wish {
        path: order::ON,
        summary: "Give backends no new clients; over the unix socket only, and for root alone",
        legal: parameters::DRAIN,
        describe: schema::<OrderedJson>,
        meaning: "They are drained.",
        refused: ("409", "As many drains are in force as may be."),
    },
    Wish {
        path: order::OFF,
        summary: "Give backends new clients again; over the unix socket only, and for root alone",
        legal: parameters::DRAIN,
        describe: schema::<OrderedJson>,
        meaning: "That drain is not in force any more.",
        refused: ("403", "The client is not root."),
    },
];

/// Answers with the description.
pub(super) fn document(paths: &[Path], _: Form) -> Response {
    static DOCUMENT: OnceLock<Bytes> = OnceLock::new();
    let written = || {
        // A JSON value that was just made can always be written, so the default is never taken.
        let mut text = serde_json::to_vec_pretty(&described(paths)).unwrap_or_default();
        text.push(b'\n');
        text.into()
    };
    let document = Bytes::clone(DOCUMENT.get_or_init(written));
    answer::typed(StatusCode::OK, Form::Json.content_type(), Body::from(document))
}

fn described(paths: &[Path]) -> Value {
    let mut generator = settings().into_generator();
    let reads = paths.iter().map(|path| (path.path, json!({ "get": read(path, &mut generator) })));
    let mut paths: Vec<(&str, Value)> = reads.collect();
    paths.extend(WISHES.iter().map(|wish| (wish.path, json!({ "post": wished(wish, &mut generator) }))));
    let paths: Map<String, Value> = paths.into_iter().map(|(path, it)| (path.to_owned(), it)).collect();
    let mut schemas = generator.take_definitions(true);
    schemas.values_mut().for_each(plain);
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "holdfast admin API",
            "version": "1",
            "description": "On loopback and on a unix socket; reads only, but for POST /reload, /apiserver/forget, /drain \
                            and /undrain on the socket. Fields are added, never renamed or removed.",
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "servers": [{ "url": "http://127.0.0.1:9890" }],
        "paths": paths,
        "components": { "schemas": schemas },
    })
}

/// The settings for schemas as OpenAPI 3.1 has them: JSON Schema 2020-12, of types as they are written, not read.
fn settings() -> SchemaSettings {
    let mut settings = SchemaSettings::draft2020_12().for_serialize();
    settings.definitions_path = SCHEMAS.into();
    settings.meta_schema = None;
    settings
}

fn read(path: &Path, generator: &mut SchemaGenerator) -> Value {
    let Path { about, legal, answers, .. } = path;
    let content = answers.content(generator);
    let mut responses = Map::new();
    let answered = [("200", answers.meaning)].into_iter().chain(answers.other);
    responses.extend(
        answered.map(|(status, why)| (status.to_owned(), json!({ "description": why, "content": content }))),
    );
    responses.insert("default".to_owned(), refused("Refused.", generator));
    json!({ "summary": sentence(about), "parameters": described_each(legal), "responses": responses })
}

fn wished(wish: &Wish, generator: &mut SchemaGenerator) -> Value {
    let content = Answers::of(wish.describe).content(generator);
    let (status, why) = wish.refused;
    json!({
        "summary": wish.summary,
        "parameters": described_each(wish.legal),
        "responses": {
            "200": { "description": wish.meaning, "content": content },
            status: refused(why, generator),
            "default": refused("Refused.", generator),
        },
    })
}

/// Describes every parameter that a path understands.
fn described_each(legal: &[Parameter]) -> Vec<Value> {
    let described = |it: &Parameter| {
        json!({
            "name": it.name,
            "in": "query",
            "required": it.is_needed,
            "description": it.about,
            "schema": legal_values(it.values),
        })
    };
    legal.iter().map(described).collect()
}

fn legal_values(values: Values) -> Value {
    match values {
        Values::Text => json!({ "type": "string" }),
        Values::Words(words) => json!({ "type": "string", "enum": words() }),
        Values::Number { least: Some(least), most } => {
            json!({ "type": "integer", "minimum": least, "maximum": most })
        }
        Values::Number { least: None, .. } => json!({ "type": "integer" }),
    }
}

fn refused(why: &str, generator: &mut SchemaGenerator) -> Value {
    let schemas = [(JSON, schema::<RefusalJson<'_>>(generator)), (TEXT, text(generator))];
    json!({ "description": why, "content": content(schemas.into_iter()) })
}

/// Gives a text a capital, as a sentence begins.
fn sentence(about: &str) -> String {
    let mut letters = about.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}
