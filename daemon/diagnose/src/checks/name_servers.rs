//! Replies of name servers: those behind the Service, and the cluster's own to the Service's name.
//!
//! Invariant: one unanswered datagram proves little, so silence alone is an error only if no name server answers.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use holdfast_core::keys::{Family, Protocol, Source, Transport};
use holdfast_core::list::Row;
use holdfast_core::snapshot::ServiceState;
use serde_json::json;

use crate::case::{Case, judge_unavailable};
use crate::command::{Command, CommandWord};
use crate::evidence::{DnsReplies, DnsReply};
use crate::finding::{Judgement, Remedy};
use crate::formatting::{format_count, join_names};
use crate::limits::NAMED_MAX;

impl DnsReply {
    fn describe(&self) -> String {
        match self {
            Self::Answer { code, .. } => format!("answers with code {code}"),
            Self::Refused => "refuses".to_owned(),
            Self::Silent => "is silent".to_owned(),
            Self::Failed(error) => format!("fails ({error})"),
        }
    }

    const fn is_answer(&self) -> bool {
        matches!(self, Self::Answer { .. })
    }
}

const DNS_PORT: u16 = 53;

/// Whether it has a UDP port that clients do not dial at port 53.
fn has_other_udp_port(case: &Case<'_>) -> bool {
    let by_udp = || case.frontends().filter(|it| it.protocol == Protocol::UDP);
    let is_dns = |name: &str| by_udp().any(|it| it.port.get() == DNS_PORT && *it.port_name == *name);
    by_udp().any(|it| !is_dns(&it.port_name))
}

/// Judges UDP ports that this node must not query. Holdfast's own health checks replace a query.
fn judge_not_queried(case: &Case<'_>) -> Judgement {
    let udp = case.ports().filter(|port| port.key.transport == Transport::Udp);
    let mut chosen = udp.flat_map(|port| port.rows.iter()).filter(Row::is_chosen).peekable();
    let is_checked = |row: Row| case.checks().contains_key(&row.backend());
    if chosen.peek().is_none() {
        return Judgement::not_applicable("It has no backend by UDP that could be tried.");
    }
    if chosen.all(is_checked) {
        return Judgement::not_applicable(
            "Holdfast's own health checks look at its backends by UDP; see probe.checks.",
        );
    }
    Judgement::unknown(
        "Whether its backends answer by UDP was not tried: only name servers, at port 53, are queried, because \
         silence of others may be an answer.",
    )
}

pub(super) fn check_servers(case: &Case<'_>) -> Judgement {
    if !case.frontends().any(|it| it.protocol.transport() == Some(Transport::Udp)) {
        return Judgement::not_applicable("It has no port by UDP.");
    }
    let Some(DnsReplies { servers, .. }) = case.names().answer() else {
        return judge_unavailable(case.names(), "Whether its backends answer by UDP");
    };
    if servers.is_empty() {
        return judge_not_queried(case);
    }
    let failed = servers.iter().filter(|(_, reply)| !reply.is_answer());
    let failed: Vec<String> = failed.map(|(at, reply)| format!("{at} {}", reply.describe())).collect();
    match failed.is_empty() {
        true if has_other_udp_port(case) => judge_not_queried(case),
        true => Judgement::ok(format!(
            "Each of {} answers as a name server.",
            format_count(servers.len(), "backend")
        )),
        false => judge_failed_servers(case, &failed, servers.len()),
    }
}

fn judge_failed_servers(case: &Case<'_>, failed: &[String], all: usize) -> Judgement {
    // A NetworkPolicy may keep this host out and let clients in.
    let has_policies = case.policies_lookup().answer().is_some_and(|number| *number > 0);
    let policies =
        if has_policies { " A NetworkPolicy may keep this host out and let clients in." } else { "" };
    let sentence = format!(
        "{} of {} do not answer as name servers: {}.{policies}",
        failed.len(),
        format_count(all, "backend"),
        join_names(failed)
    );
    let judgement = Judgement::error_if(failed.len() == all && !has_policies, sentence)
        .with("failed", json!(failed.iter().take(NAMED_MAX).collect::<Vec<_>>()))
        .remedy(Remedy::safe(
            "Look at the log of those pods, and whether a NetworkPolicy or a firewall blocks them.",
        ));
    if has_policies { judgement.possible() } else { judgement.likely() }
}

pub(super) fn check_service_name(case: &Case<'_>) -> Judgement {
    let is_headless = match case.state() {
        _ if case.source() == Some(Source::ClusterSet) => {
            return Judgement::not_applicable(
                "A ServiceImport has its name in a zone of all clusters, which is not queried.",
            );
        }
        Some(ServiceState::Served) => false,
        Some(ServiceState::Headless) => true,
        _ => return Judgement::not_applicable("DNS has no addresses of its own for it."),
    };
    let Some(names) = case.names().answer() else {
        return judge_unavailable(case.names(), "What the cluster's DNS returns for it");
    };
    let Some((at, reply)) = &names.own else {
        return Judgement::not_applicable(
            "This node knows no backend of kube-system/kube-dns that it could ask.",
        );
    };
    let judgement = match reply {
        DnsReply::Answer { is_cut: true, .. } => {
            Judgement::ok("The cluster's DNS has more addresses than fit into a reply.")
        }
        DnsReply::Answer { is_unknown: true, .. } if is_headless && case.counts().ready == 0 => {
            Judgement::ok("The cluster's DNS has no address of it, because no endpoint is ready.")
        }
        DnsReply::Answer { is_unknown: true, .. } => judge_unknown_name(case, *at, names.everywhere.as_ref()),
        DnsReply::Answer { addresses, code: 0, .. } => judge_addresses(case, *at, addresses, is_headless),
        DnsReply::Answer { .. } => judge_no_addresses(*at, reply),
        DnsReply::Refused | DnsReply::Silent | DnsReply::Failed(_) => judge_no_addresses(*at, reply).likely(),
    };
    judgement.with("server", at.to_string())
}

fn judge_no_addresses(at: SocketAddr, reply: &DnsReply) -> Judgement {
    Judgement::warning(format!(
        "The cluster's DNS at {at} does not return its addresses: it {}.",
        reply.describe()
    ))
    .remedy(diagnose_dns_remedy())
}

fn diagnose_dns_remedy() -> Remedy {
    let words = ["holdfast", "diagnose", "kube-system/kube-dns"].map(CommandWord::Literal);
    Remedy::safe("See what is wrong with the cluster's DNS.").with_command(Command::from_words(&words))
}

fn read_log_remedy() -> Remedy {
    Remedy::safe("Read the log of the DNS pods: they may not receive Services from the apiserver.")
}

/// Judges the reply that the name does not exist. If DNS does not know a name that every cluster has either, this
/// cluster uses another domain.
fn judge_unknown_name(case: &Case<'_>, at: SocketAddr, everywhere: Option<&DnsReply>) -> Judgement {
    let is_usual =
        matches!(everywhere, Some(DnsReply::Answer { code: 0, addresses, .. }) if !addresses.is_empty());
    if !is_usual {
        return Judgement::not_applicable(
            "The names of this cluster do not end in cluster.local, or its DNS knows none.",
        );
    }
    Judgement::error(format!("The cluster's DNS at {at} does not know {}.", case.name()))
        .remedy(read_log_remedy())
        .remedy(diagnose_dns_remedy())
}

fn judge_addresses(case: &Case<'_>, at: SocketAddr, addresses: &[IpAddr], is_headless: bool) -> Judgement {
    let listed: BTreeSet<IpAddr> = addresses.iter().copied().collect();
    let wanted: BTreeSet<IpAddr> = match is_headless {
        true => case.endpoints().into_keys().collect(),
        false => case.facts().into_iter().flat_map(|facts| facts.cluster_ips.iter().copied()).collect(),
    };
    let sentence = format!("The cluster's DNS at {at} resolves its name to {}", join_names(&listed));
    let judgement = match (has_expected_addresses(&listed, &wanted, is_headless), is_headless) {
        _ if listed.is_empty() => Judgement::warning(format!(
            "The cluster's DNS at {at} knows its name, and no address of that family."
        ))
        .remedy(diagnose_dns_remedy()),
        (true, _) => Judgement::ok(format!("{sentence}.")),
        (false, true) => Judgement::info(format!(
            "{sentence}, which are not all its endpoints now; it keeps answers for a while."
        )),
        (false, false) => {
            Judgement::error(format!("{sentence}, and its cluster IP is {}.", join_names(&wanted)))
                .remedy(Remedy::safe("Wait for half a minute, as long as answers are kept, and ask again."))
                .remedy(read_log_remedy())
        }
    };
    judgement.with("addresses", json!(listed.iter().take(NAMED_MAX).collect::<Vec<_>>()))
}

/// Whether DNS lists only wanted addresses, and every cluster IP of each family that it lists. A headless Service may
/// have more endpoints than DNS lists.
fn has_expected_addresses(listed: &BTreeSet<IpAddr>, wanted: &BTreeSet<IpAddr>, is_headless: bool) -> bool {
    let is_listed_family =
        |ip: &&IpAddr| listed.iter().any(|it| Family::from_address(*it) == Family::from_address(**ip));
    listed.is_subset(wanted)
        && (is_headless || wanted.iter().filter(is_listed_family).all(|ip| listed.contains(ip)))
}
