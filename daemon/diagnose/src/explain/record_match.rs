//! Whether a record is about an address that no service has now.
//!
//! Invariant: a record matches only by the frontends and backends that it names. The apiserver that sent the change is
//! neither. `/history` has older records.

use super::query_match::DialTarget;
use holdfast_status::record::{Diff, Record};

/// Whether a record is about a frontend or a backend at this address.
pub fn is_about(record: &Record, dialled: &DialTarget) -> bool {
    let address = dialled.address.to_string();
    let matches = |frontend: &str| match (frontend.split_once('/'), &dialled.protocol) {
        (Some((at, protocol)), Some(asked)) => at == address && protocol == asked.as_str(),
        (Some((at, _)), None) => at == address,
        (None, _) => false,
    };
    frontends(record).any(matches) || backends(record).any(|backend| backend == address)
}

fn frontends(record: &Record) -> impl Iterator<Item = &str> {
    let changed = record.transitions.iter().flat_map(|it| &it.frontends).map(String::as_str);
    changed.chain(record.triggers.iter().filter_map(|it| it.frontend.as_deref()))
}

fn backends(record: &Record) -> impl Iterator<Item = &str> {
    let transitions = &record.transitions;
    let lists = transitions.iter().flat_map(|it| [Some(&it.backends), it.external_backends.as_ref()]);
    let lists = lists.chain(record.triggers.iter().map(|it| it.endpoints.as_ref())).flatten();
    lists.flat_map(differing_addresses).chain(record.triggers.iter().filter_map(|it| it.address.as_deref()))
}

fn differing_addresses(list: &Diff) -> impl Iterator<Item = &str> {
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
            let dialled = DialTarget::new(address.parse().unwrap(), protocol.clone());
            assert_eq!(is_about(&record, &dialled), expected, "{address} {protocol:?}");
        }
    }
}
