//! Outside clients that were dropped recently for lack of capacity, although a backend existed.
//!
//! Invariant: only refusals of this service's own frontends count. An empty list proves nothing if the programs lost
//! refusals and the service's ports dropped clients.

use std::sync::Arc;

use holdfast_status::datapath::Denial;

use super::refusals::recent_denials;
use crate::case::Case;
use crate::command::{Command, CommandWord};
use crate::finding::{Judgement, Remedy};
use crate::formatting::format_count;
use holdfast_status::views::refusals::{Cause, DeniedClient};

pub(super) fn check_capacity(case: &Case<'_>) -> Judgement {
    let lacks_capacity = |it: &Arc<DeniedClient>| is_dropped_outside(it) && it.refusal.cause.is_shortage();
    let own: Vec<Arc<DeniedClient>> = recent_denials(case).into_iter().filter(lacks_capacity).collect();
    let Some((why, advised)) = own.last().and_then(|latest| find_remedy(latest.refusal.cause)) else {
        return judge_no_drop(count_losses(case).unwrap_or_default());
    };
    let clients = format_count(own.len(), "client");
    let verb = if own.len() == 1 { "was" } else { "were" };
    let times: u64 = own.iter().map(|it| it.count).sum();
    Judgement::warning(format!("{clients} outside {verb} dropped in the last five minutes: {why}"))
        .with("clients", own.len())
        .with("times", times)
        .remedy(advised)
}

fn is_dropped_outside(denied: &DeniedClient) -> bool {
    denied.refusal.arrival.is_some() && denied.refusal.denial == Denial::Dropped
}

/// Refusals lost on this node, and clients that the service's ports dropped, as the programs count them.
fn count_losses(case: &Case<'_>) -> Option<[u64; 2]> {
    let lost = case.datapath().status()?.refusals_lost;
    Some([lost, case.counters().service_clients(case.view()?)?.dropped])
}

fn judge_no_drop([lost, dropped]: [u64; 2]) -> Judgement {
    if lost == 0 || dropped == 0 {
        return Judgement::ok("No outside client was dropped in the last five minutes for lack of capacity.");
    }
    Judgement::unknown(
        "No outside client is listed as dropped for lack of capacity, but the programs lost some refusals on this \
         node, and its ports have dropped clients.",
    )
    .with("lost", lost)
    .with("dropped", dropped)
}

/// The exhausted resource, and its remedy. `None`: another check reports this cause.
fn find_remedy(cause: Cause) -> Option<(&'static str, Remedy)> {
    let ours = |word| Command::from_words(&[CommandWord::Literal("holdfast"), CommandWord::Literal(word)]);
    match cause {
        Cause::Flows => Some((
            "the flow table has no room for more flows of its namespace.",
            Remedy::safe("See whose clients take the table, and raise `flows` under [packets].")
                .with_command(ours("flows")),
        )),
        Cause::Ports => Some((
            "no SNAT port is left for its backends on other nodes.",
            Remedy::safe("Widen `snat_ports` under [packets], or have more backends.")
                .with_command(ours("datapath")),
        )),
        Cause::Address => Some((
            "this node has no address of that family for replies of its backends on other nodes.",
            Remedy::safe("Give the node an address of that family.").with_command(ours("datapath")),
        )),
        Cause::NoBackend | Cause::Source | Cause::NoSuchPort => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::State;

    #[test]
    fn each_shortage_has_a_remedy() {
        for cause in Cause::ALL {
            assert_eq!(find_remedy(cause).is_some(), cause.is_shortage(), "{cause:?}");
        }
    }

    #[test]
    fn lost_refusals_and_dropped_clients_make_the_result_unknown() {
        for (counted, expected) in
            [([0, 0], State::Ok), ([9, 0], State::Ok), ([0, 9], State::Ok), ([9, 9], State::Unknown)]
        {
            assert_eq!(judge_no_drop(counted).state, expected, "{counted:?}");
        }
    }
}
