//! Addresses that two Services claim: which of them gets one, by which rule, and what the other can do.
//!
//! Invariant: both are told, the owner too: its clients may want the other.

use std::net::SocketAddr;

use holdfast_core::keys::ObjectName;
use holdfast_core::snapshot::{FrontendView, Verdict};
use serde_json::json;

use crate::case::Case;
use crate::explain::{describe_precedence, format_place};
use crate::finding::{Judgement, Remedy};
use crate::formatting::{clean, join_names};
use crate::limits::NAMED_MAX;

pub(super) fn check_collision(case: &Case<'_>) -> Judgement {
    let lost: Vec<_> = case.frontends().filter(|it| it.verdict == Verdict::Conflict).collect();
    let Some(first) = lost.first() else { return judge_rivals(case) };
    let owner = first.owner.as_ref().map_or_else(|| "another service".to_owned(), |key| key.name.to_string());
    let address = SocketAddr::new(first.address, first.port.get());
    let all = lost.iter().map(|it| format!("{}/{}", SocketAddr::new(it.address, it.port.get()), it.protocol));
    // Age alone does not decide: a cluster IP wins over an external IP of any age.
    let rule = case.view().and_then(|view| describe_precedence(case.table(), view, first));
    let rule = rule.unwrap_or_else(|| "(by source, kind of address, age, then name)".to_owned());
    Judgement::error(format!(
        "{address}/{} belongs to {owner}, whose claim comes first {rule}.{}{}",
        first.protocol,
        describe_owner(case, first),
        describe_kept(case)
    ))
    .with("owner", owner)
    .with("frontends", json!(all.take(NAMED_MAX).collect::<Vec<_>>()))
    .remedy(Remedy::disruptive("Change the address or the port of one of the two."))
}

/// The file from which the owner comes.
fn describe_owner(case: &Case<'_>, lost: &FrontendView) -> String {
    // An apiserver is no place to look an object up by.
    let Some(key) = lost.owner.as_ref().filter(|key| !key.source.is_tenant_writable()) else {
        return String::new();
    };
    let owner = case.table().services.find_by_name(&key.name).find(|view| view.key == *key);
    let origin = owner.and_then(|view| view.facts.as_deref()?.meta.origin.as_deref());
    origin.map(|origin| format!(" {} is from {}.", key.name, clean(origin))).unwrap_or_default()
}

/// The frontends that are served all the same.
fn describe_kept(case: &Case<'_>) -> String {
    let kept: Vec<String> = case
        .frontends()
        .filter(|it| it.verdict.serves_clients())
        .map(|it| format_place(it, &case.table().node))
        .collect();
    if kept.is_empty() { String::new() } else { format!(" Served as before: {}.", join_names(kept)) }
}

/// Services that claim, without getting it, an address of this one or one that its node ports or cluster IPs cover.
fn judge_rivals(case: &Case<'_>) -> Judgement {
    let Some(own) = case.view() else { return Judgement::not_applicable("There is no Service.") };
    let is_in_vain =
        |it: &&FrontendView| it.verdict == Verdict::Conflict && it.owner.as_ref() == Some(&own.key);
    let views = case.table().services.with_problems();
    let mut all =
        views.flat_map(|view| view.frontends.iter().filter(is_in_vain).map(move |it| (&view.key.name, it)));
    let shown = |(of, it): (&ObjectName, &FrontendView)| {
        format!("{of} ({}/{})", SocketAddr::new(it.address, it.port.get()), it.protocol)
    };
    let named: Vec<String> = all.by_ref().take(NAMED_MAX).map(shown).collect();
    let sentence = match (named.len(), all.count()) {
        (0, _) => return Judgement::ok("No other service claims its addresses."),
        (1, _) => format!("{} claims addresses of this service without getting them.", join_names(&named)),
        (_, 0) => format!("{} claim addresses of this service without getting them.", join_names(&named)),
        (_, more) => format!(
            "{} and {more} more claim addresses of this service without getting them.",
            join_names(&named)
        ),
    };
    Judgement::info(sentence).with("rivals", json!(named))
}
