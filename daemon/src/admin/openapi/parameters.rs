//! What the description says of parameters: what each means, and what is legal.
//!
//! Invariant: each parameter that some path understands has a meaning here, which a test sees to.

use holdfast_datapath::Stage;
use serde_json::{Value, json};

use crate::admin::form::FORMATS;
use crate::admin::limits::{FLOWS_MAX, RECORDS_MAX};
use crate::admin::query::Legal;

/// What a parameter means; a meaning at one path goes before the one at all paths.
const MEANINGS: [(Option<&str>, &str, &str); 29] = [
    (None, "service", "Exactly this service, as namespace/name."),
    (Some("/diagnose"), "service", "Exactly this service, as namespace/name; it must be given."),
    (
        Some("/diagnose"),
        "client",
        "The address of a client: what it would meet at each frontend now, computed without sending anything.",
    ),
    (
        Some("/diagnose"),
        "since",
        "How far back a change counts as recent: a time in RFC 3339, or how long ago, such as 15m; 1h unless it is given.",
    ),
    (
        Some("/events"),
        "service",
        "What is about this service, as namespace/name, and about its pods; otherwise what all services depend on.",
    ),
    (
        None,
        "timeout",
        "How long the answer may take, in whole seconds: 5s unless it is given, which is the most.",
    ),
    (
        Some("/history"),
        "service",
        "Exactly this service, as namespace/name, also one that is gone; with gaps that may have records of it.",
    ),
    (
        Some("/watch"),
        "service",
        "Exactly this service, as namespace/name; with gaps that may have records of it.",
    ),
    (None, "type", "Exactly this type."),
    (Some("/frontends"), "address", "Exactly this address of the frontend."),
    (Some("/backends"), "address", "Exactly this address of the backend."),
    (Some("/refusals"), "address", "Exactly this address of the frontend; for a NodePort that of the node."),
    (
        Some("/explain"),
        "endpoint",
        "What a client dials, or a backend: an address with its port, and a protocol behind a slash if only that is meant.",
    ),
    (
        None,
        "from",
        "The address of a client: what its first packet to the endpoint meets, computed without sending one.",
    ),
    (Some("/apiserver/forget"), "endpoint", "The address with its port."),
    (None, "since", "Not before this time, in RFC 3339, or not longer ago, such as 90s, 15m, 2h, 1d."),
    (None, "until", "Not after this time, in the same forms."),
    (None, "reason", "Only where this reason or rule decided, or clients were told it."),
    (None, "client", "Exactly this address of the client, or this address and port."),
    (None, "frontend", "Exactly this address that was dialled, or this address and port."),
    (None, "backend", "Exactly this address of the backend, or this address and port."),
    (None, "state", "Only flows that have come so far."),
    (Some("/flows"), "limit", "So many flows at most; 1000 unless it is given."),
    (None, "limit", "The latest so many; with after, the first so many. Otherwise 1000."),
    (None, "after", "Only records with a higher number than this."),
    (None, "probe", "Whether connections are tried: over the socket alone, unless it says none."),
    (None, "port", "Only this port of the service, by its name or by the number that clients dial."),
    (
        None,
        "http",
        "A path: backends that are known to speak HTTP are asked for it, over the socket alone. No redirect is followed.",
    ),
    (None, "format", "The form of the answer; otherwise Accept decides, and a table is the default."),
];

/// All that a path understands.
pub(super) fn parameters(path: &str, legal: &Legal, needed: &[&str]) -> Vec<Value> {
    let described = |name: &&str| {
        json!({
            "name": name,
            "in": "query",
            "required": needed.contains(name),
            "description": meaning(path, name),
            "schema": schema(path, name, legal),
        })
    };
    legal.parameters.iter().map(described).collect()
}

fn meaning(path: &str, name: &str) -> Option<&'static str> {
    let of = |at: Option<&str>| MEANINGS.iter().find(|it| it.0 == at && it.1 == name);
    of(Some(path)).or_else(|| of(None)).map(|it| it.2)
}

fn schema(path: &str, name: &str, legal: &Legal) -> Value {
    match name {
        "format" => json!({ "type": "string", "enum": FORMATS.map(|(word, _)| word) }),
        "state" => json!({ "type": "string", "enum": Stage::ALL.map(Stage::as_str) }),
        "type" => json!({ "type": "string", "enum": legal.types }),
        "limit" if path == "/flows" => json!({ "type": "integer", "minimum": 1, "maximum": FLOWS_MAX }),
        "limit" => json!({ "type": "integer", "minimum": 1, "maximum": RECORDS_MAX }),
        "after" => json!({ "type": "integer" }),
        _ => json!({ "type": "string" }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::forget;
    use crate::admin::routes::PATHS;

    #[test]
    fn every_parameter_has_a_meaning() {
        let reads = PATHS.iter().map(|path| (path.path, &path.legal));
        for (path, legal) in reads.chain([(forget::PATH, &forget::LEGAL)]) {
            for name in legal.parameters {
                assert!(meaning(path, name).is_some(), "{path}?{name}=");
            }
        }
    }
}
