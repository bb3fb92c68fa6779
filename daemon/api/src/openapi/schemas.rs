//! Extends derived schemas by the rules of our answers.
//!
//! Invariant: each addition holds for every answer: an optional member is never null, and an object that always has all
//! its members has no others.

use serde_json::{Map, Value};

pub(super) fn simplify_schema(schema: &mut Value) {
    let Value::Object(members) = schema else { return };
    merge_enum(members);
    drop_null_where_optional(members);
    close_object(members);
    join_lines(schema);
}

/// Turns a choice among single words into one list of these words.
fn merge_enum(schema: &mut Map<String, Value>) {
    let Some(Value::Array(choices)) = schema.get("oneOf") else { return };
    let words: Option<Vec<Value>> = choices.iter().map(|choice| choice.get("const").cloned()).collect();
    if let Some(words) = words {
        schema.remove("oneOf");
        schema.insert("type".to_owned(), "string".into());
        schema.insert("enum".to_owned(), words.into());
    }
}

fn drop_null_where_optional(schema: &mut Map<String, Value>) {
    let required = schema.get("required").and_then(Value::as_array).cloned().unwrap_or_default();
    let Some(Value::Object(properties)) = schema.get_mut("properties") else { return };
    for (name, property) in properties {
        if let Value::Object(property) = property
            && !required.contains(&name.as_str().into())
        {
            drop_null(property);
        }
    }
}

fn drop_null(property: &mut Map<String, Value>) {
    // A default would only repeat that the member may be absent, and `required` says so already.
    property.remove("default");
    if let Some(Value::Array(types)) = property.get_mut("type") {
        types.retain(|it| it != "null");
        if let [only] = types.as_slice() {
            let only = only.clone();
            property.insert("type".to_owned(), only);
        }
    }
    if let Some(Value::Array(mut choices)) = property.remove("anyOf") {
        choices.retain(|it| it.get("type").is_none_or(|kind| kind != "null"));
        match choices.as_mut_slice() {
            [Value::Object(only)] => property.append(only),
            _ => drop(property.insert("anyOf".to_owned(), choices.into())),
        }
    }
}

fn close_object(schema: &mut Map<String, Value>) {
    let properties = schema.get("properties").and_then(Value::as_object).map_or(0, Map::len);
    let required = schema.get("required").and_then(Value::as_array).map_or(0, Vec::len);
    if properties > 0 && properties == required {
        schema.insert("additionalProperties".to_owned(), false.into());
    }
}

/// Puts each description on one line, wherever the sources break it.
fn join_lines(schema: &mut Value) {
    match schema {
        Value::Object(members) => {
            if let Some(Value::String(text)) = members.get_mut("description") {
                *text = text.replace('\n', " ");
            }
            members.values_mut().for_each(join_lines);
        }
        Value::Array(elements) => elements.iter_mut().for_each(join_lines),
        _ => {}
    }
}
