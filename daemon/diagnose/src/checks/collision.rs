//! Addresses that two Services claim: which of them gets one, by which rule, and what the other can do.
//!
//! Invariant: both are told, the owner too: its clients may want the other.

use std::net::SocketAddr;

use holdfast_core::keys::{ServiceKey, Source};
use holdfast_core::op::FrontendType;
use holdfast_core::snapshot::{FrontendView, ServiceView, Verdict};
use serde_json::json;

use crate::case::Case;
use crate::command::{Command, CommandWord};
use crate::explain::{
    Claim, describe_claim, describe_precedence, format_place, is_serious_claim, list_claims,
};
use crate::finding::{Judgement, Remedy};
use crate::formatting::{clean, join_names};
use crate::limits::NAMED_MAX;

pub(super) fn check_collision(case: &Case<'_>) -> Judgement {
    let lost: Vec<_> = case.frontends().filter(|it| it.verdict == Verdict::Conflict).collect();
    let Some(first) = lost.first() else { return judge_rivals(case) };
    let Some(view) = case.view() else { return Judgement::not_applicable("There is no Service.") };
    let owner = first.owner.as_ref().map_or_else(|| "another service".to_owned(), |key| key.name.to_string());
    let all = lost.iter().map(|it| format_frontend(it));
    // Age alone does not decide: a cluster IP wins over an external IP of any age.
    let rule = describe_precedence(case.table(), view, first);
    let rule = rule.map_or_else(String::new, |rule| format!(": the claim of {owner} comes first {rule}"));
    Judgement::error(format!("{} belongs to {owner}{rule}.{}", format_frontend(first), describe_kept(case)))
        .with("owner", owner)
        .with("frontends", json!(all.take(NAMED_MAX).collect::<Vec<_>>()))
        .remedies(build_remedies(case, view, first))
}

fn format_frontend(it: &FrontendView) -> String {
    format!("{}/{}", SocketAddr::new(it.address, it.port.get()), it.protocol)
}

/// The frontends that are served all the same.
fn describe_kept(case: &Case<'_>) -> String {
    let kept: Vec<String> = case
        .frontends()
        .filter(|it| it.verdict.serves_clients())
        .map(|it| format_place(it, &case.table().node))
        .collect();
    if kept.is_empty() { String::new() } else { format!(" Served nevertheless: {}.", join_names(kept)) }
}

/// What to do about a claim in vain: find out whose address it is, then take it out of one of the two objects.
fn build_remedies(case: &Case<'_>, loser: &ServiceView, lost: &FrontendView) -> Vec<Remedy> {
    let look = Command::from_words(&[
        CommandWord::Literal("holdfast"),
        CommandWord::Literal("explain"),
        CommandWord::Socket(SocketAddr::new(lost.address, lost.port.get())),
    ]);
    let owner = lost.owner.as_ref();
    let winner = owner.and_then(|key| find_view(case, key));
    let (Some(owner), Some(winner)) = (owner, winner) else {
        return vec![Remedy::safe("Look who has the address.").with_command(look)];
    };
    let is_same = |it: &&FrontendView| (it.address, it.port) == (lost.address, lost.port);
    let won = winner.frontends.iter().find(is_same).map_or(lost.kind, |it| it.kind);
    let places = [describe_place(winner, won), describe_place(loser, lost.kind)];
    vec![
        Remedy::safe(format!(
            "Ask whose address it is meant to be: that of {} or of {}.",
            owner.name, loser.key.name
        )),
        Remedy::disruptive(format!(
            "Remove {} from the one that should not have it: {}.",
            format_frontend(lost),
            places.join(", or ")
        )),
    ]
}

fn find_view<'a>(case: &'a Case<'_>, key: &ServiceKey) -> Option<&'a ServiceView> {
    case.table().services.find_by_name(&key.name).find(|view| view.key == *key).map(|view| &**view)
}

/// Where an object claims an address.
fn describe_place(view: &ServiceView, kind: FrontendType) -> String {
    let field = match (view.key.source, kind) {
        (Source::Config, _) => "`frontends`",
        (_, FrontendType::LoadBalancer) => "`status.loadBalancer.ingress`",
        (_, FrontendType::ExternalIp) => "`spec.externalIPs`",
        (_, FrontendType::NodePort) => "`nodePort`",
        (_, FrontendType::ClusterSetIp) => "`spec.ips`",
        (_, _) => "`spec.clusterIP`",
    };
    format!("{field} of {}", describe_object(view))
}

/// The object of a service, and its file if it comes from one.
pub(super) fn describe_object(view: &ServiceView) -> String {
    let object = match view.key.source {
        Source::Config => format!("the [[service]] block `{}`", view.key.name.name()),
        Source::ClusterSet => format!("ServiceImport {}", view.key.name),
        Source::Manifests | Source::Kubernetes => format!("Service {}", view.key.name),
    };
    // An apiserver is no place to look an object up by.
    let origin = view.facts.as_deref().and_then(|facts| facts.meta.origin.as_deref());
    let origin = origin.filter(|_| !view.key.source.is_tenant_writable());
    let file = origin.map(|origin| format!(" in {}", clean(origin))).unwrap_or_default();
    format!("{object}{file}")
}

/// Services that claim, without getting it, an address of this one or one that its node ports or cluster IPs cover.
fn judge_rivals(case: &Case<'_>) -> Judgement {
    let Some(own) = case.view() else { return Judgement::not_applicable("There is no Service.") };
    let table = case.table();
    let all = list_claims(table, own);
    let serious = all.iter().find(|claim| is_serious_claim(table, claim));
    let Some(claim) = serious.or_else(|| all.first()) else {
        return Judgement::ok("No other service claims its addresses.");
    };
    let (view, first) = *claim;
    let others: Vec<_> = all.iter().filter(|(_, it)| !std::ptr::eq(*it, first)).map(format_claim).collect();
    let more = match others.is_empty() {
        true => String::new(),
        false => format!(" So it is with {}.", join_names(others)),
    };
    let sentence = format!("{}{more}", describe_claim(table, claim, &format_frontend(first)));
    let judgement = match serious.is_some() {
        true => Judgement::warning(sentence).remedies(build_remedies(case, view, first)),
        false => Judgement::info(sentence),
    };
    let named: Vec<String> = all.iter().take(NAMED_MAX).map(format_claim).collect();
    judgement.with("rivals", json!(named))
}

/// A claim in vain.
fn format_claim((view, it): &Claim<'_>) -> String {
    format!("{} ({})", view.key.name, format_frontend(it))
}
