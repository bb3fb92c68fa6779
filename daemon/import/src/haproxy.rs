//! `HAProxy`: its sections that forward TCP.
//!
//! Invariant: a section is read as a whole, with the settings of the `defaults` before it; a section that reads HTTP,
//! or that concerns the program alone, is noted once as a whole.

mod directives;
mod section;
mod sections;

use std::collections::{BTreeMap, BTreeSet};

use holdfast_core::affinity::Prefixes;
use holdfast_core::keys::Transport;

use super::imported_service::{AFFINITY_TIMEOUT, ImportedCheck, ImportedService};
use super::notes::{Notes, quote_excerpt};
use section::{Section, SectionKind};

/// Reads the services of a file: each `listen`, and each `frontend` with its `backend`.
pub(super) fn parse_services(text: &str, notes: &mut Notes) -> Vec<ImportedService> {
    let sections = sections::parse_sections(text, notes);
    let backends: BTreeMap<&str, &Section> = sections
        .iter()
        .filter(|it| it.kind == SectionKind::Backend)
        .map(|it| (it.name.as_str(), it))
        .collect();
    let mut used = BTreeSet::new();
    let mut all = Vec::new();
    for section in
        sections.iter().filter(|section| matches!(section.kind, SectionKind::Listen | SectionKind::Frontend))
    {
        if section.is_http {
            notes.add(
                section.line,
                format!(
                    "{} reads HTTP (mode http), which holdfast does not: left out",
                    quote_excerpt(&section.name)
                ),
            );
            used.extend(section.default_backend.clone());
        } else {
            all.extend(build_service(section, &backends, &mut used, notes));
        }
    }
    for section in sections.iter().filter(|it| it.kind == SectionKind::Backend && !used.contains(&it.name)) {
        notes.add(
            section.line,
            format!("no frontend names {} as its default_backend: left out", quote_excerpt(&section.name)),
        );
    }
    all
}

fn build_service<'a>(
    front: &'a Section,
    backends: &BTreeMap<&str, &'a Section>,
    used: &mut BTreeSet<String>,
    notes: &mut Notes,
) -> Option<ImportedService> {
    let Some(back) = find_backend_section(front, backends, used) else {
        let named = front.default_backend.as_deref().unwrap_or_default();
        notes.add(
            front.line,
            format!(
                "{} has no backend section {}: left out",
                quote_excerpt(&front.name),
                quote_excerpt(named)
            ),
        );
        return None;
    };
    let mut found = ImportedService::new(front.line, &front.name, Transport::Tcp);
    found.frontends.clone_from(&front.binds);
    found.backends = back.servers.iter().map(|server| (server.address, server.weight)).collect();
    found.check = build_check(back, notes);
    found.prefixes = back.prefixes.unwrap_or(Prefixes::WHOLE);
    found.affinity = back.affinity.or_else(|| back.balances_by_source.then_some(AFFINITY_TIMEOUT));
    Some(found)
}

/// The section with the servers.
fn find_backend_section<'a>(
    front: &'a Section,
    backends: &BTreeMap<&str, &'a Section>,
    used: &mut BTreeSet<String>,
) -> Option<&'a Section> {
    match &front.default_backend {
        None => (front.kind == SectionKind::Listen).then_some(front),
        Some(name) => {
            used.insert(name.clone());
            backends.get(name.as_str()).copied()
        }
    }
}

/// The check of a section's servers: that of the first checked server.
fn build_check(back: &Section, notes: &mut Notes) -> Option<ImportedCheck> {
    let mut checks = back.servers.iter().filter_map(|server| server.check.as_ref());
    let first = checks.next()?.clone();
    if checks.any(|check| check.port != first.port) {
        notes.add(back.line, "servers are checked at different ports: the first one's is taken for all");
    }
    let path = back.check_path.clone();
    // Without a path there is no status.
    let statuses = back.check_statuses.clone().filter(|_| path.is_some());
    Some(ImportedCheck { path, statuses, timeout: back.check_timeout, ..first })
}
