//! What happened before: the latest records of a service, or about an address that no service has now.
//!
//! Invariant: an address is found where a record names it as a frontend or a backend, and nowhere else: the apiserver
//! that told it is no backend. `/history` has what is older.

use holdfast_core::keys::ObjectName;

use super::find::{Dialled, Found, Question};
use crate::readings::Readings;
use crate::recorder::{Diff, Line, Record, Wanted};

/// Records that are shown of a service or an address.
const RECORDS_MAX: usize = 5;

/// The latest records about a service or an address that is not there now; they say why it went.
pub(super) fn past(readings: &Readings, question: &Question, found: Found) -> Vec<Record> {
    match question {
        _ if found != Found::Nothing => Vec::new(),
        Question::Trouble => Vec::new(),
        Question::Service(name) => of_service(readings, name),
        Question::Address(dialled) => of_address(readings, dialled),
    }
}

/// The latest records of a service, oldest first.
pub(super) fn of_service(readings: &Readings, name: &ObjectName) -> Vec<Record> {
    let wanted = Wanted { service: Some(name.clone()), ..Wanted::default() };
    latest(readings.history.select(&wanted).iter().rev().filter_map(|line| line.record()))
}

fn of_address(readings: &Readings, dialled: &Dialled) -> Vec<Record> {
    let text = dialled.address.to_string();
    let lines = readings.history.select(&Wanted::default());
    // Reading a record costs far more than looking for the text in it, and almost none has it.
    let likely = lines.iter().rev().filter(|line| line.json.contains(&text));
    latest(likely.filter_map(|line: &std::sync::Arc<Line>| line.record()).filter(|it| names(it, dialled)))
}

fn latest(newest_first: impl Iterator<Item = Record>) -> Vec<Record> {
    let mut records: Vec<Record> = newest_first.take(RECORDS_MAX).collect();
    records.reverse();
    records
}

/// Whether it is about a frontend or a backend of this address.
fn names(record: &Record, dialled: &Dialled) -> bool {
    let address = dialled.address.to_string();
    let is_meant = |frontend: &str| match (frontend.split_once('/'), &dialled.protocol) {
        (Some((at, protocol)), Some(asked)) => at == address && protocol == asked.as_str(),
        (Some((at, _)), None) => at == address,
        (None, _) => false,
    };
    frontends(record).any(is_meant) || backends(record).any(|backend| backend == address)
}

fn frontends(record: &Record) -> impl Iterator<Item = &str> {
    let changed = record.transitions.iter().flat_map(|it| &it.frontends).map(String::as_str);
    changed.chain(record.triggers.iter().filter_map(|it| it.frontend.as_deref()))
}

fn backends(record: &Record) -> impl Iterator<Item = &str> {
    let transitions = &record.transitions;
    let lists = transitions.iter().flat_map(|it| [Some(&it.backends), it.external_backends.as_ref()]);
    let lists = lists.chain(record.triggers.iter().map(|it| it.endpoints.as_ref())).flatten();
    lists.flat_map(differing).chain(record.triggers.iter().filter_map(|it| it.address.as_deref()))
}

fn differing(list: &Diff) -> impl Iterator<Item = &str> {
    let gone_or_new = list.added.iter().chain(&list.removed).map(String::as_str);
    gone_or_new.chain(list.changed.iter().map(|it| it.address.as_str()))
}

#[cfg(test)]
mod tests {
    use holdfast_core::keys::Protocol;

    use super::*;

    const RECORD: &str = r#"{"time": "2026-01-08T11:11:55.000Z", "monotonic_us": 1, "boot_id": "b", "kind": "change",
        "service": "default/web", "rule": "vanished",
        "triggers": [{"event": "applied", "origin": "10.0.0.10:6443",
            "endpoints": {"removed": ["10.1.0.3:8080"], "kept": 0}}],
        "transitions": [{"frontends": ["10.96.0.20:80/TCP"],
            "backends": {"removed": ["10.1.0.2:8080"], "kept": 0}}]}"#;

    #[test]
    fn an_address_is_found_as_a_frontend_or_a_backend_only() {
        let record: Record = serde_json::from_str(RECORD).unwrap();
        for (address, protocol, expected) in [
            ("10.96.0.20:80", None, true),
            ("10.96.0.20:80", Some(Protocol::TCP), true),
            ("10.96.0.20:80", Some(Protocol::UDP), false),
            ("10.96.0.2:80", None, false),
            ("10.1.0.2:8080", None, true),
            ("10.1.0.3:8080", None, true),
            ("10.0.0.10:6443", None, false),
        ] {
            let dialled = Dialled::new(address.parse().unwrap(), protocol.clone());
            assert_eq!(names(&record, &dialled), expected, "{address} {protocol:?}");
        }
    }
}
