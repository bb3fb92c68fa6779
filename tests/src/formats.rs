//! The rule for what programs read of holdfast: fields are added, and none goes or changes its type.
//!
//! Invariant: each function returns what a program that was written for `then` would miss in `now`; empty: nothing.

use std::collections::BTreeSet;

use serde_json::Value;

/// Two descriptions of the API, and the differences found so far.
struct Descriptions<'a> {
    then: &'a Value,
    now: &'a Value,
    /// The pairs of named schemas that were compared, because schemas may contain themselves.
    seen: BTreeSet<(String, String)>,
    missing: Vec<String>,
}

/// Compares two documents of `/openapi.json`.
pub fn missing_in_description(then: &Value, now: &Value) -> Vec<String> {
    let mut descriptions = Descriptions { then, now, seen: BTreeSet::new(), missing: Vec::new() };
    for (path, methods) in members(&then["paths"]) {
        for (method, operation) in members(methods) {
            let place = format!("{method} {path}");
            match now["paths"].get(path).and_then(|methods| methods.get(method)) {
                Some(other) => descriptions.compare_operations(&place, operation, other),
                None => descriptions.missing.push(place),
            }
        }
    }
    for name in members(member(&then["components"], "schemas")).map(|(name, _)| name) {
        if member(&now["components"], "schemas").get(name).is_none() {
            descriptions.missing.push(format!("schema {name}"));
        }
    }
    descriptions.missing
}

impl Descriptions<'_> {
    fn compare_operations(&mut self, place: &str, then: &Value, now: &Value) {
        let is_required = |parameter: &Value| parameter["required"] == true;
        for parameter in elements(&then["parameters"]) {
            let name = &parameter["name"];
            match elements(&now["parameters"]).find(|other| other["name"] == *name) {
                Some(other) if is_required(other) && !is_required(parameter) => {
                    self.missing.push(format!("{place}: {name} is required"));
                }
                Some(other) => {
                    self.compare_words(&format!("{place}?{name}"), &parameter["schema"], &other["schema"]);
                }
                None => self.missing.push(format!("{place}: the parameter {name}")),
            }
        }
        let is_known =
            |name: &Value| elements(&then["parameters"]).any(|parameter| parameter["name"] == *name);
        let further =
            elements(&now["parameters"]).filter(|other| is_required(other) && !is_known(&other["name"]));
        self.missing.extend(further.map(|other| format!("{place}: {} is required", other["name"])));
        for (status, answer) in members(&then["responses"]) {
            for (kind, content) in members(&answer["content"]) {
                let place = format!("{place} {status} {kind}");
                let other = &member(&member(&now["responses"], status)["content"], kind)["schema"];
                self.compare_schemas(&place, &content["schema"], other);
            }
        }
    }

    fn compare_schemas(&mut self, place: &str, then: &Value, now: &Value) {
        let names = (reference(then), reference(now));
        if let (Some(old), Some(new)) = &names
            && !self.seen.insert((old.clone(), new.clone()))
        {
            return;
        }
        let (then, now) = (resolve(self.then, then), resolve(self.now, now));
        if now.is_null() {
            return self.missing.push(place.to_owned());
        }
        let variants =
            (elements(&then["anyOf"]).collect::<Vec<_>>(), elements(&now["anyOf"]).collect::<Vec<_>>());
        if !variants.0.is_empty() {
            return self.compare_variants(place, &variants.0, &variants.1, now);
        }
        let (old, new) = (types(then), types(now));
        if !variants.1.is_empty() || !new.is_subset(&old) || new.is_empty() != old.is_empty() {
            self.missing.push(format!("{place}: {old:?} became {new:?}"));
        }
        self.compare_words(place, then, now);
        if then["items"].is_object() {
            self.compare_schemas(&format!("{place}[]"), &then["items"], &now["items"]);
        }
        if then["additionalProperties"].is_object() {
            let (old, new) = (&then["additionalProperties"], &now["additionalProperties"]);
            self.compare_schemas(&format!("{place}.*"), old, new);
        }
        self.compare_fields(place, then, now);
    }

    /// A field is one of several things, or nothing: it may not become a further thing.
    fn compare_variants(&mut self, place: &str, then: &[&Value], now: &[&Value], whole: &Value) {
        let now = if now.is_empty() { vec![whole] } else { now.to_vec() };
        for variant in now {
            let fits = |old: &&&Value| {
                let mut trial = Descriptions { missing: Vec::new(), seen: self.seen.clone(), ..*self };
                trial.compare_schemas(place, old, variant);
                trial.missing.is_empty()
            };
            if !then.iter().any(|old| fits(&old)) {
                self.missing.push(format!("{place}: no variant is like {variant}"));
            }
        }
    }

    fn compare_fields(&mut self, place: &str, then: &Value, now: &Value) {
        let required = |schema: &Value| elements(&schema["required"]).cloned().collect::<Vec<_>>();
        let still = required(now);
        let optional = required(then).into_iter().filter(|name| !still.contains(name));
        self.missing.extend(optional.map(|name| format!("{place}.{name} is not always there")));
        for (name, field) in members(&then["properties"]) {
            self.compare_schemas(&format!("{place}.{name}"), field, member(&now["properties"], name));
        }
    }

    /// A set of words may grow.
    fn compare_words(&mut self, place: &str, then: &Value, now: &Value) {
        let still: Vec<_> = elements(&now["enum"]).collect();
        let gone = elements(&then["enum"]).filter(|word| !still.is_empty() && !still.contains(word));
        self.missing.extend(gone.map(|word| format!("{place}: the word {word}")));
    }
}

fn reference(schema: &Value) -> Option<String> {
    Some(schema["$ref"].as_str()?.to_owned())
}

fn resolve<'a>(document: &'a Value, schema: &'a Value) -> &'a Value {
    match schema["$ref"].as_str().and_then(|path| document.pointer(path.trim_start_matches('#'))) {
        Some(target) => target,
        None => schema,
    }
}

fn types(schema: &Value) -> BTreeSet<&str> {
    let several = elements(&schema["type"]).filter_map(Value::as_str);
    schema["type"].as_str().into_iter().chain(several).collect()
}

/// The member of that name; null if there is none.
fn member<'a>(value: &'a Value, name: &str) -> &'a Value {
    static NULL: Value = Value::Null;
    value.get(name).unwrap_or(&NULL)
}

fn members(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flatten()
}

fn elements(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// Compares two answers: each field of the one is in the other, with a value of its type. `same` says for which
/// fields the value stays too.
pub fn missing_in_answer(then: &Value, now: &Value, same: &dyn Fn(&str) -> bool) -> Vec<String> {
    let mut missing = Vec::new();
    compare_answers("", (then, now), same, &mut missing);
    missing
}

fn compare_answers(
    place: &str,
    (then, now): (&Value, &Value),
    same: &dyn Fn(&str) -> bool,
    missing: &mut Vec<String>,
) {
    let name = place.rsplit('.').next().unwrap_or_default().trim_end_matches("[]");
    match (then, now) {
        (Value::Object(then), Value::Object(now)) => {
            for (name, then) in then {
                match now.get(name) {
                    Some(now) => compare_answers(&format!("{place}.{name}"), (then, now), same, missing),
                    None => missing.push(format!("{place}.{name}")),
                }
            }
        }
        (Value::Array(then), Value::Array(now)) => {
            if same(name) && then.len() != now.len() {
                missing.push(format!("{place} has {} rows and not {}", now.len(), then.len()));
            }
            let rows = then.iter().zip(now);
            rows.for_each(|rows| compare_answers(&format!("{place}[]"), rows, same, missing));
        }
        _ if same(name) && then != now => missing.push(format!("{place} is {now} and not {then}")),
        // Which fields may be null is for the description.
        (Value::Null, _) | (_, Value::Null) => {}
        _ if std::mem::discriminant(then) != std::mem::discriminant(now) => {
            missing.push(format!("{place} is {now} and not like {then}"));
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn document(row: &Value) -> Value {
        let answer = json!({ "content": { "application/json": { "schema": { "$ref": "#/components/schemas/Rows" } } } });
        let parameter =
            json!({ "name": "format", "required": false, "schema": { "enum": ["table", "json"] } });
        json!({
            "paths": { "/rows": { "get": { "parameters": [parameter], "responses": { "200": answer } } } },
            "components": { "schemas": {
                "Rows": { "type": "object", "required": ["rows"], "properties": {
                    "rows": { "type": "array", "items": { "$ref": "#/components/schemas/Row" } },
                    "next": { "anyOf": [{ "$ref": "#/components/schemas/Rows" }, { "type": "null" }] },
                } },
                "Row": row,
            } },
        })
    }

    fn row() -> Value {
        json!({ "type": "object", "required": ["name"], "properties": {
            "name": { "type": "string" },
            "since": { "type": ["string", "null"] },
            "state": { "type": "string", "enum": ["up", "down"] },
        } })
    }

    /// Whether a change of the row, and one of the document, is found.
    #[track_caller]
    fn check(is_found: bool, change: impl FnOnce(&mut Value)) {
        let mut now = document(&row());
        change(&mut now);
        let missing = missing_in_description(&document(&row()), &now);
        assert_eq!(!missing.is_empty(), is_found, "{missing:?}");
    }

    const FIELDS: &str = "/components/schemas/Row/properties";

    #[test]
    fn a_description_may_grow() {
        check(false, |_| ());
        check(false, |now| now.pointer_mut(FIELDS).unwrap()["more"] = json!({ "type": "integer" }));
        check(false, |now| now.pointer_mut(FIELDS).unwrap()["since"] = json!({ "type": "string" }));
        check(false, |now| now.pointer_mut(FIELDS).unwrap()["state"]["enum"] = json!(["up", "down", "held"]));
        check(false, |now| now["components"]["schemas"]["Row"]["required"] = json!(["name", "since"]));
        check(false, |now| now["paths"]["/more"] = json!({}));
        check(false, |now| {
            let parameters = &mut now["paths"]["/rows"]["get"]["parameters"];
            parameters.as_array_mut().unwrap().push(json!({ "name": "limit", "required": false }));
        });
    }

    #[test]
    fn a_description_never_shrinks_or_changes_a_type() {
        check(true, |now| _ = now.pointer_mut(FIELDS).unwrap().as_object_mut().unwrap().remove("since"));
        check(true, |now| now.pointer_mut(FIELDS).unwrap()["name"] = json!({ "type": "integer" }));
        check(true, |now| now.pointer_mut(FIELDS).unwrap()["name"] = json!({ "type": ["string", "null"] }));
        check(true, |now| now.pointer_mut(FIELDS).unwrap()["state"]["enum"] = json!(["up"]));
        check(true, |now| now["components"]["schemas"]["Row"]["required"] = json!([]));
        check(true, |now| {
            now["components"]["schemas"]["Rows"]["properties"]["next"] = json!({ "type": "array" });
        });
        check(true, |now| now["paths"] = json!({}));
        check(true, |now| now["paths"]["/rows"]["get"]["parameters"] = json!([]));
        check(true, |now| now["paths"]["/rows"]["get"]["parameters"][0]["required"] = json!(true));
        check(true, |now| now["paths"]["/rows"]["get"]["responses"]["200"]["content"] = json!({}));
    }

    #[test]
    fn an_answer_keeps_its_fields_and_their_types() {
        let then = json!({ "rows": [{ "name": "a", "at": 7 }], "error": null });
        let missing = |now: Value| missing_in_answer(&then, &now, &|name| name == "name" || name == "rows");
        assert_eq!(missing(json!({ "rows": [{ "name": "a", "at": 9, "more": 1 }], "error": "x" })), [""; 0]);
        assert_eq!(missing(json!({ "rows": [{ "name": "a" }], "error": null })), [".rows[].at"]);
        assert_eq!(missing(json!({ "rows": [{ "name": "b", "at": "9" }], "error": null })).len(), 2);
        assert_eq!(missing(json!({ "rows": [], "error": null })), [".rows has 0 rows and not 1"]);
    }
}
