//! The promise of the Helm chart: its schema has every key of the file, with the types and words that the reader
//! takes. The reader itself is asked; the sentences and defaults are those of the example.

use std::collections::BTreeMap;

use expect_test::expect_file;
use serde_json::{Map, Value, json};

use super::example::{EXAMPLE, legal_keys, uncomment};
use crate::problem::Subject;
use crate::{Config, ConfigErrors};

const SCHEMA: &str = include_str!("../../../../contrib/helm/holdfast/values.schema.json");

/// The last definition of the schema. What stands before it is written by hand.
const DEFINITION: &str = "\n    \"config\": ";

/// Types of JSON, with values that show whether a key takes such a type: some key takes each of them.
const TYPES: [(&str, &[&str]); 5] = [
    ("string", &["\"no-such-word\"", "\"auto\"", "\"none\"", "\"all\""]),
    ("integer", &["1", "8", "100", "2000", "200000"]),
    ("number", &["0.5"]),
    ("boolean", &["true"]),
    ("array", &["[]", "[\"no-such-word\"]"]),
];

/// The reader's errors about one key with this value.
fn errors(path: &str, value: &str) -> Vec<String> {
    let (table, key) = path.rsplit_once('.').unwrap_or(("", path));
    let header = match table.strip_prefix("service") {
        Some("") => "[[service]]".to_owned(),
        Some(_) => format!("[[service]]\n[{table}]"),
        None => format!("[{table}]"),
    };
    let place = path.replacen("service.", "service[0].", 1);
    let Err(ConfigErrors { errors, .. }) = Config::parse(&format!("{header}\n{key} = {value}\n"), "") else {
        return Vec::new();
    };
    let is_here =
        |at: &Subject| matches!(at, Subject::Key(at) if *at == place || *at == format!("{place}[0]"));
    errors
        .into_iter()
        .filter(|error| is_here(&error.place))
        .map(|error| error.message.with_values())
        .collect()
}

/// Whether the reader takes this value's type here, however bad the value.
fn takes(path: &str, value: &str) -> bool {
    !errors(path, value).iter().any(|message| message.contains("expected ") && message.contains(", found "))
}

/// What stands between two texts in the reader's error about this value.
fn said_of(path: &str, value: &str, before: &str, after: &str) -> Option<String> {
    let messages = errors(path, value);
    let rest = messages.iter().find_map(|message| message.split_once(before))?.1;
    Some(rest.split(after).next()?.to_owned())
}

fn types(path: &str, wrap: impl Fn(&str) -> String) -> Vec<&'static str> {
    let mut types: Vec<_> = TYPES
        .iter()
        .filter(|(_, values)| values.iter().any(|value| takes(path, &wrap(value))))
        .map(|(name, _)| *name)
        .collect();
    if types.contains(&"number") {
        types.retain(|name| *name != "integer");
    }
    types
}

fn one_or_more(types: &[&str]) -> Value {
    if let [single] = types { json!(single) } else { json!(types) }
}

/// The schema of a list's items: text, and where tables are legal too, their keys.
fn items(path: &str) -> Value {
    let types = types(path, |value| format!("[{value}]"));
    let text = json!({"type": one_or_more(&types)});
    match said_of(path, "[{no-such-key = 1}]", "legal here: ", "\n") {
        None => text,
        Some(keys) => {
            let keys: Map<_, _> = keys.split(", ").map(|key| (key.to_owned(), json!({}))).collect();
            json!({"anyOf": [text, {"type": "object", "additionalProperties": false, "properties": keys}]})
        }
    }
}

fn leaf(path: &str) -> Map<String, Value> {
    let types = types(path, str::to_owned);
    let mut schema = Map::from_iter([("type".to_owned(), one_or_more(&types))]);
    let mut add = |key: &str, value: Value| schema.insert(key.to_owned(), value);
    if types == ["string"] {
        let words = said_of(path, "\"no-such-word\"", "unknown word", "\n");
        if let Some((_, words)) = words.as_deref().and_then(|words| words.split_once("legal here: ")) {
            add("enum", json!(words.split(", ").collect::<Vec<_>>()));
        }
        if said_of(path, "\"no-such-word\"", "is not a duration", "\n").is_some() {
            add("pattern", json!("^[0-9]+(ms|s|m|h)$"));
        }
    }
    if let Some(bounds) = said_of(path, "-1", "a whole number from ", ",") {
        let bounds: Vec<u32> = bounds.split(" to ").map(|bound| bound.parse().expect("a number")).collect();
        add("minimum", json!(bounds[0]));
        add("maximum", json!(bounds[1]));
    }
    if types.contains(&"array") {
        add("items", items(path));
    }
    schema
}

/// The comment above each key of the example, by its path; the first one, where several blocks have the key.
fn sentences() -> BTreeMap<String, String> {
    let (mut all, mut table, mut comment) = (BTreeMap::new(), String::new(), Vec::new());
    for line in EXAMPLE.lines() {
        let bare = line.trim_start_matches('#');
        if let Some(header) = bare.strip_prefix('[') {
            header.trim_matches(['[', ']']).clone_into(&mut table);
        } else if let Some(sentence) = line.strip_prefix("# ") {
            comment.push(sentence);
            continue;
        } else if let Some((key, _)) = bare.split_once(" = ") {
            all.entry(format!("{table}.{key}")).or_insert_with(|| comment.join(" "));
        }
        comment.clear();
    }
    all
}

struct Shown {
    sentences: BTreeMap<String, String>,
    defaults: Value,
}

impl Shown {
    fn read() -> Self {
        let defaults: toml::Table = uncomment(EXAMPLE, "#").parse().expect("TOML");
        Self { sentences: sentences(), defaults: serde_json::to_value(defaults).expect("JSON") }
    }

    fn schema(&self, path: &str) -> Value {
        let Some(keys) = legal_keys(path) else { return self.key(path) };
        let join = |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
        let properties: Map<_, _> =
            keys.into_iter().map(|key| (key.clone(), self.schema(&join(&key)))).collect();
        let table = json!({"type": "object", "additionalProperties": false, "properties": properties});
        if path == "service" { json!({"type": "array", "items": table}) } else { table }
    }

    fn key(&self, path: &str) -> Value {
        let mut schema = leaf(path);
        if let Some(sentence) = self.sentences.get(path) {
            schema.insert("description".to_owned(), json!(sentence));
        }
        if let Some(default) = self.defaults.pointer(&format!("/{}", path.replace('.', "/"))) {
            schema.insert("default".to_owned(), default.clone());
        }
        Value::Object(schema)
    }
}

#[test]
fn the_schema_has_every_key_as_the_reader_takes_it() {
    let (by_hand, _) = SCHEMA.rsplit_once(DEFINITION).expect("the definition");
    let config = serde_json::to_string_pretty(&Shown::read().schema("")).expect("JSON");
    let whole = format!("{by_hand}{DEFINITION}{}\n  }}\n}}\n", config.replace('\n', "\n    "));
    expect_file!["../../../../contrib/helm/holdfast/values.schema.json"].assert_eq(&whole);
}
