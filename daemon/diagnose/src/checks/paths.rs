//! The paths of clients: what a client's next connection meets by the maps, and where open connections lead.
//!
//! Invariant: nothing is sent. The next connection is judged only for the client that the query names.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use holdfast_core::keys::{Protocol, Transport};
use serde_json::json;

use super::policy::is_kept_out;
use crate::case::{Case, judge_unavailable};
use crate::command::{Command, CommandWord};
use crate::evidence::{ClientTrace, Flows, ObservedFlow};
use crate::explain::Outcome;
use crate::finding::{Judgement, Remedy};
use crate::formatting::{format_count, join_names};
use crate::limits::NAMED_MAX;

pub(super) fn check_lookup(case: &Case<'_>) -> Judgement {
    let Some(all) = case.lookups().answer() else {
        return judge_unavailable(case.lookups(), "What a client would meet");
    };
    let of = |wanted: &'static [Outcome]| all.iter().filter(move |it| wanted.contains(&it.outcome));
    let Some(first) = all.first() else {
        return Judgement::not_applicable("It has no frontend of that family here.");
    };
    let judgement = if let Some(lost) = of(&[Outcome::Refused, Outcome::Dropped]).next() {
        judge_lost_client(case, lost)
    } else if let Some(unread) = of(&[Outcome::Unknown]).next() {
        Judgement::unknown(&unread.sentence)
    } else if let Some(passed) = of(&[Outcome::Passed]).next() {
        Judgement::info(&passed.sentence)
    } else {
        let client = case.scope().client.map_or_else(|| "The client".to_owned(), |client| client.to_string());
        let path = |it: &ClientTrace| format!("{} leads to {}", it.frontend, join_names(&it.backends));
        let paths: Vec<String> = all.iter().map(path).collect();
        Judgement::info(format!("{client} gets a backend: {}.", paths.join("; ")))
    };
    let lookups = all.iter().map(|it| json!({ "frontend": it.frontend.to_string(), "outcome": it.outcome.as_str(),
                                           "backends": it.backends.iter().take(NAMED_MAX).collect::<Vec<_>>() }));
    judgement.with("lookups", lookups.collect::<Vec<_>>()).with("first", &*first.sentence)
}

/// A client that the source ranges keep out is lost on purpose, as far as anybody knows.
fn judge_lost_client(case: &Case<'_>, lost: &ClientTrace) -> Judgement {
    let is_meant = lost.outcome == Outcome::Dropped
        && case.scope().client.is_some_and(|client| is_kept_out(case, client));
    let judgement = match is_meant {
        // The ranges keep out packets, and its sockets are served before there is one.
        true if case.scope().client.is_some_and(|client| case.may_dial_here(client)) => {
            return Judgement::info(&lost.sentence);
        }
        true => Judgement::warning(&lost.sentence),
        false => Judgement::error(&lost.sentence),
    };
    judgement.remedies(build_remedies(case, lost))
}

/// Remedies for a lost client. `explain` comes first, because it shows each step.
fn build_remedies(case: &Case<'_>, lost: &ClientTrace) -> Vec<Remedy> {
    let client = case.scope().client;
    let command = client.and_then(|client| {
        let words = [
            CommandWord::Literal("holdfast"),
            CommandWord::Literal("explain"),
            CommandWord::Socket(lost.frontend),
            CommandWord::Literal("--from"),
        ];
        Command::from_words(&[&words[..], &[CommandWord::Ip(client)]].concat())
    });
    let steps = Remedy::safe("See each step that leads to it.").with_command(command);
    vec![steps]
}

pub(super) fn check_stale(case: &Case<'_>) -> Judgement {
    let Some(flows) = case.flows().answer() else {
        return judge_unavailable(case.flows(), "Which backends have the connections of outside clients");
    };
    let lost: Vec<&ObservedFlow> = flows.list.iter().filter(|flow| !case.is_backend(flow.backend)).collect();
    let backends: BTreeSet<SocketAddr> = lost.iter().map(|flow| flow.backend).collect();
    let conversations = lost.iter().filter(|flow| flow.is_udp).count();
    let more = describe_unread_flows(flows);
    let with_backends = usize::try_from(flows.more_with_backends).unwrap_or(usize::MAX);
    let read = flows.list.len().saturating_add(with_backends);
    let judgement = match (lost.len(), conversations) {
        // Those that were not read may lead anywhere.
        (0, _) if !more.is_empty() => Judgement::unknown(format!(
            "None of {} that were read leads to an address that is no backend.{more}",
            format_count(read, "connection")
        )),
        (0, _) if read == 0 => Judgement::ok("No client outside has a connection through this node."),
        (0, _) => Judgement::ok(format!(
            "None of {} of outside clients leads to an address that is no backend.",
            format_count(read, "connection")
        )),
        (number, 0) => Judgement::info(format!(
            "{} of outside clients stay with former backends: {}. Each ends with its backend.{more}",
            format_count(number, "connection"),
            join_names(&backends)
        )),
        // A listed UDP conversation has sent nothing since its backend left.
        (number, of_udp) => Judgement::info(format!(
            "{} of outside clients were with former backends: {}. Of these, {of_udp} by UDP get another one within a \
             second, with their next datagram; a connection ends with its backend.{more}",
            format_count(number, "conversation"),
            join_names(&backends)
        )),
    };
    judgement.with("stale", lost.len()).with("flows", read)
}

/// Judges UDP ports that backends reported closed. It sends no datagram to find out: a datagram may mean anything to
/// the process that receives it.
pub(super) fn check_refused(case: &Case<'_>) -> Judgement {
    let by_udp = Protocol::Transport(Transport::Udp);
    if !case.frontends().any(|it| it.protocol == by_udp) {
        return Judgement::not_applicable("It has no port by UDP.");
    }
    let Some(flows) = case.flows().answer() else {
        return judge_unavailable(case.flows(), "Whether its backends refuse datagrams");
    };
    let conversations: Vec<&ObservedFlow> =
        flows.list.iter().filter(|it| it.is_udp && case.is_backend(it.backend)).collect();
    let more = describe_unread_flows(flows);
    if conversations.is_empty() && !more.is_empty() {
        return Judgement::unknown(format!("No conversation by UDP was read.{more}"));
    }
    if conversations.is_empty() {
        return Judgement::not_applicable(
            "No client outside speaks to it by UDP through this node now, so nothing is known of its backends' ports.",
        );
    }
    let refused: Vec<_> = conversations.iter().filter(|it| it.is_refused).collect();
    let backends: BTreeSet<SocketAddr> = refused.iter().map(|it| it.backend).collect();
    let all: BTreeSet<SocketAddr> = conversations.iter().map(|it| it.backend).collect();
    if refused.is_empty() {
        let read = format_count(conversations.len(), "conversation");
        return match more.is_empty() {
            true => Judgement::ok(format!("None of {read} was refused.")),
            false => Judgement::unknown(format!("None of {read} that was read was refused.{more}")),
        };
    }
    let who = format_count(refused.len(), "client");
    Judgement::error_if(
        backends == all,
        format!(
            "{who} outside {} refused by {}: no process listens at that port there (ICMP port unreachable).",
            if refused.len() == 1 { "is" } else { "are" },
            join_names(&backends)
        ),
    )
    .with("backends", json!(backends.iter().take(NAMED_MAX).map(ToString::to_string).collect::<Vec<_>>()))
    .with("refused", refused.len())
    .with("conversations", conversations.len())
    .remedy(Remedy::safe(
        "Look at which port the application listens by UDP, and correct targetPort or the application.",
    ))
}

fn describe_unread_flows(flows: &Flows) -> String {
    match usize::try_from(flows.more).unwrap_or(usize::MAX) {
        0 => String::new(),
        more => format!(" Not read: {}.", format_count(more, "more connection")),
    }
}
