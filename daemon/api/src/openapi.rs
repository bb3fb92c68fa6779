//! The description of this API, for programs: OpenAPI 3.1, made from the paths and the types of their answers.
//!
//! Invariant: nothing in it is written twice: a path describes itself in the table of paths, an answer by its own type.
//! The description is built once, at the first request. The sources have no copy of it except a golden file of the
//! tests, which shows changes.

mod schemas;

use std::sync::OnceLock;

use axum::body::{Body, Bytes};
use axum::http::StatusCode;
use axum::response::Response;
use schemars::SchemaGenerator;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use super::drains::order::{self, DrainOrderJson};
use super::forget::{self, ForgetResponse};
use super::form::Form;
use super::parameters;
use super::path::ApiPath;
use super::query::{Parameter, Values};
use super::reload::{self, ReloadResponse};
use super::response::{self, ApiErrorBody};
use super::response_schema::{
    JSON, ResponseSchema, SCHEMAS, SchemaFn, TEXT, content_map, schema, text_schema,
};
use schemas::simplify_schema;

/// A POST path of the unix socket.
struct PostPath {
    path: &'static str,
    summary: &'static str,
    parameters: &'static [Parameter],
    describe: SchemaFn,
    meaning: &'static str,
    /// The status of a refusal that only this path gives, and its meaning.
    refusal: (&'static str, &'static str),
}

const POST_PATHS: [PostPath; 4] = [
    PostPath {
        path: reload::PATH,
        summary: "Read the configuration again; over the unix socket only",
        parameters: &[],
        describe: schema::<ReloadResponse>,
        meaning: "The new configuration is in force.",
        refusal: ("422", "The new configuration is bad, and the old one stays in force."),
    },
    PostPath {
        path: forget::PATH,
        summary: "Forget a learned address of an apiserver; over the unix socket only",
        parameters: parameters::FORGET,
        describe: schema::<ForgetResponse>,
        meaning: "It is forgotten.",
        refusal: ("409", "It stays: it is configured, listed by the cluster now, held, or unknown."),
    },
    PostPath {
        path: order::DRAIN_PATH,
        summary: "Give backends no new clients; over the unix socket only, and for root alone",
        parameters: parameters::DRAIN,
        describe: schema::<DrainOrderJson>,
        meaning: "They are drained.",
        refusal: ("409", "As many drains are in force as may be."),
    },
    PostPath {
        path: order::UNDRAIN_PATH,
        summary: "Give backends new clients again; over the unix socket only, and for root alone",
        parameters: parameters::DRAIN,
        describe: schema::<DrainOrderJson>,
        meaning: "That drain is not in force any more.",
        refusal: ("403", "The client is not root."),
    },
];

pub(super) fn document(paths: &[ApiPath], _: Form) -> Response {
    static DOCUMENT: OnceLock<Bytes> = OnceLock::new();
    let written = || {
        // Writing a fresh JSON value cannot fail, so the default is never used.
        let mut text = serde_json::to_vec_pretty(&describe_api(paths)).unwrap_or_default();
        text.push(b'\n');
        text.into()
    };
    let document = Bytes::clone(DOCUMENT.get_or_init(written));
    response::typed_response(StatusCode::OK, Form::Json.content_type(), Body::from(document))
}

fn describe_api(paths: &[ApiPath]) -> Value {
    let mut generator = settings().into_generator();
    let reads = paths.iter().map(|path| (path.path, json!({ "get": describe_get(path, &mut generator) })));
    let mut paths: Vec<(&str, Value)> = reads.collect();
    paths.extend(
        POST_PATHS.iter().map(|wish| (wish.path, json!({ "post": describe_post(wish, &mut generator) }))),
    );
    let paths: Map<String, Value> = paths.into_iter().map(|(path, it)| (path.to_owned(), it)).collect();
    let mut schemas = generator.take_definitions(true);
    schemas.values_mut().for_each(simplify_schema);
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

/// The settings for schemas of OpenAPI 3.1: JSON Schema 2020-12, of types as written, not read.
fn settings() -> SchemaSettings {
    let mut settings = SchemaSettings::draft2020_12().for_serialize();
    settings.definitions_path = SCHEMAS.into();
    settings.meta_schema = None;
    settings
}

fn describe_get(path: &ApiPath, generator: &mut SchemaGenerator) -> Value {
    let ApiPath { about, parameters: legal, response: answers, .. } = path;
    let content = answers.to_content(generator);
    let mut responses = Map::new();
    let answered = [("200", answers.meaning)].into_iter().chain(answers.extra_status);
    responses.extend(
        answered.map(|(status, why)| (status.to_owned(), json!({ "description": why, "content": content }))),
    );
    responses.insert("default".to_owned(), describe_refusal("Refused.", generator));
    json!({ "summary": capitalise(about), "parameters": describe_parameters(legal), "responses": responses })
}

fn describe_post(wish: &PostPath, generator: &mut SchemaGenerator) -> Value {
    let content = ResponseSchema::for_type(wish.describe).to_content(generator);
    let (status, why) = wish.refusal;
    json!({
        "summary": wish.summary,
        "parameters": describe_parameters(wish.parameters),
        "responses": {
            "200": { "description": wish.meaning, "content": content },
            status: describe_refusal(why, generator),
            "default": describe_refusal("Refused.", generator),
        },
    })
}

fn describe_parameters(legal: &[Parameter]) -> Vec<Value> {
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

fn describe_refusal(why: &str, generator: &mut SchemaGenerator) -> Value {
    let schemas = [(JSON, schema::<ApiErrorBody<'_>>(generator)), (TEXT, text_schema(generator))];
    json!({ "description": why, "content": content_map(schemas.into_iter()) })
}

fn capitalise(about: &str) -> String {
    let mut letters = about.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}
