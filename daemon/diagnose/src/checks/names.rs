//! What name servers said: those behind the Service, and the cluster's own of the Service's name.
//!
//! Invariant: one datagram without an answer proves little, so silence alone is an error only where no name server
//! answers.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use holdfast_core::keys::{Family, Protocol, Source, Transport};
use holdfast_core::list::Row;
use holdfast_core::snapshot::ServiceState;
use serde_json::json;

use crate::case::{Case, missing};
use crate::command::{Command, Word};
use crate::finding::{Judgement, Remedy};
use crate::limits::NAMED_MAX;
use crate::material::{Named, Names};
use crate::shown::{count, some};

impl Named {
    /// What a name server said, in a few words.
    fn word(&self) -> String {
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

/// The port at which name servers are asked.
const DNS_PORT: u16 = 53;

/// Whether it has a port by UDP that clients do not dial at the port of DNS.
fn is_elsewhere_than_dns(case: &Case<'_>) -> bool {
    let by_udp = || case.frontends().filter(|it| it.protocol == Protocol::UDP);
    let is_dns = |name: &str| by_udp().any(|it| it.port.get() == DNS_PORT && *it.port_name == *name);
    by_udp().any(|it| !is_dns(&it.port_name))
}

/// The judgement of ports by UDP that nobody may ask. Health checks of holdfast's own stand for a question.
fn unasked(case: &Case<'_>) -> Judgement {
    let udp = case.ports().filter(|port| port.key.transport == Transport::Udp);
    let mut chosen = udp.flat_map(|port| port.rows.iter()).filter(Row::is_chosen).peekable();
    let is_checked = |row: Row| case.checks().contains_key(&row.backend());
    if chosen.peek().is_none() {
        return Judgement::skipped("It has no backend by UDP that could be tried.");
    }
    if chosen.all(is_checked) {
        return Judgement::skipped(
            "Holdfast's own health checks look at its backends by UDP; see probe.checks.",
        );
    }
    Judgement::unknown(
        "Whether its backends answer by UDP was not tried: only name servers, at port 53, are asked, as silence of \
         others may be an answer.",
    )
}

pub(super) fn servers(case: &Case<'_>) -> Judgement {
    if !case.frontends().any(|it| it.protocol.transport() == Some(Transport::Udp)) {
        return Judgement::skipped("It has no port by UDP.");
    }
    let Some(Names { servers, .. }) = case.names().answer() else {
        return missing(case.names(), "Whether its backends answer by UDP");
    };
    if servers.is_empty() {
        return unasked(case);
    }
    let failed = servers.iter().filter(|(_, said)| !said.is_answer());
    let failed: Vec<String> = failed.map(|(at, said)| format!("{at} {}", said.word())).collect();
    match failed.is_empty() {
        true if is_elsewhere_than_dns(case) => unasked(case),
        true => {
            Judgement::ok(format!("Each of {} answers as a name server.", count(servers.len(), "backend")))
        }
        false => unanswered(case, &failed, servers.len()),
    }
}

fn unanswered(case: &Case<'_>, failed: &[String], all: usize) -> Judgement {
    // Where policies rule, this host may be kept out while clients are let in.
    let has_policies = case.asked_policies().answer().is_some_and(|number| *number > 0);
    let policies =
        if has_policies { " A NetworkPolicy may keep this host out and let clients in." } else { "" };
    let sentence = format!(
        "{} of {} do not answer as name servers: {}.{policies}",
        failed.len(),
        count(all, "backend"),
        some(failed)
    );
    let judgement = Judgement::error_if(failed.len() == all && !has_policies, sentence)
        .with("failed", json!(failed.iter().take(NAMED_MAX).collect::<Vec<_>>()))
        .remedy(Remedy::safe(
            "Look at the log of those pods, and whether a NetworkPolicy or a firewall is in the way.",
        ));
    if has_policies { judgement.possible() } else { judgement.likely() }
}

pub(super) fn own(case: &Case<'_>) -> Judgement {
    let is_headless = match case.state() {
        _ if case.source() == Some(Source::ClusterSet) => {
            return Judgement::skipped(
                "A ServiceImport has its name in a zone of all clusters, which is not asked.",
            );
        }
        Some(ServiceState::Served) => false,
        Some(ServiceState::Headless) => true,
        _ => return Judgement::skipped("DNS has no addresses of its own for it."),
    };
    let Some(names) = case.names().answer() else {
        return missing(case.names(), "What the cluster's DNS says of it");
    };
    let Some((at, said)) = &names.own else {
        return Judgement::skipped("This node knows no backend of kube-system/kube-dns that it could ask.");
    };
    let judgement = match said {
        Named::Answer { is_cut: true, .. } => {
            Judgement::ok("The cluster's DNS knows more addresses than fit.")
        }
        Named::Answer { is_unknown: true, .. } if is_headless && case.counts().ready == 0 => {
            Judgement::ok("The cluster's DNS has no address of it, as nobody is ready.")
        }
        Named::Answer { is_unknown: true, .. } => unknown(case, *at, names.everywhere.as_ref()),
        Named::Answer { addresses, code: 0, .. } => known(case, *at, addresses, is_headless),
        Named::Answer { .. } => untold(*at, said),
        Named::Refused | Named::Silent | Named::Failed(_) => untold(*at, said).likely(),
    };
    judgement.with("server", at.to_string())
}

fn untold(at: SocketAddr, said: &Named) -> Judgement {
    Judgement::warning(format!("The cluster's DNS at {at} does not tell its addresses: it {}.", said.word()))
        .remedy(diagnose_dns())
}

fn diagnose_dns() -> Remedy {
    let words = ["holdfast", "diagnose", "kube-system/kube-dns"].map(Word::Ours);
    Remedy::safe("See what is wrong with the cluster's DNS.").by(Command::of(&words))
}

fn read_its_log() -> Remedy {
    Remedy::safe("Read the log of the DNS pods: they may not hear of Services from the apiserver.")
}

/// Judges the answer that there is no such name. Where DNS does not even know a name that every cluster has, the names
/// of this cluster end otherwise.
fn unknown(case: &Case<'_>, at: SocketAddr, everywhere: Option<&Named>) -> Judgement {
    let is_usual =
        matches!(everywhere, Some(Named::Answer { code: 0, addresses, .. }) if !addresses.is_empty());
    if !is_usual {
        return Judgement::skipped(
            "The names of this cluster do not end in cluster.local, or its DNS knows none.",
        );
    }
    Judgement::error(format!("The cluster's DNS at {at} does not know {}.", case.name()))
        .remedy(read_its_log())
        .remedy(diagnose_dns())
}

fn known(case: &Case<'_>, at: SocketAddr, addresses: &[IpAddr], is_headless: bool) -> Judgement {
    let told: BTreeSet<IpAddr> = addresses.iter().copied().collect();
    let wanted: BTreeSet<IpAddr> = match is_headless {
        true => case.endpoints().into_keys().collect(),
        false => case.facts().into_iter().flat_map(|facts| facts.cluster_ips.iter().copied()).collect(),
    };
    let sentence = format!("The cluster's DNS at {at} leads its name to {}", some(&told));
    let judgement = match (is_right(&told, &wanted, is_headless), is_headless) {
        _ if told.is_empty() => Judgement::warning(format!(
            "The cluster's DNS at {at} knows its name, and no address of that family."
        ))
        .remedy(diagnose_dns()),
        (true, _) => Judgement::ok(format!("{sentence}.")),
        (false, true) => Judgement::info(format!(
            "{sentence}, which are not all its endpoints now; it keeps answers for a while."
        )),
        (false, false) => Judgement::error(format!("{sentence}, and its cluster IP is {}.", some(&wanted)))
            .remedy(Remedy::safe("Wait for half a minute, as long as answers are kept, and ask again."))
            .remedy(read_its_log()),
    };
    judgement.with("addresses", json!(told.iter().take(NAMED_MAX).collect::<Vec<_>>()))
}

/// Whether DNS tells no other address, and tells every cluster IP of each family of which it tells any address; a
/// headless Service may have more endpoints than DNS tells.
fn is_right(told: &BTreeSet<IpAddr>, wanted: &BTreeSet<IpAddr>, is_headless: bool) -> bool {
    let was_asked =
        |ip: &&IpAddr| told.iter().any(|it| Family::from_address(*it) == Family::from_address(**ip));
    told.is_subset(wanted) && (is_headless || wanted.iter().filter(was_asked).all(|ip| told.contains(ip)))
}
