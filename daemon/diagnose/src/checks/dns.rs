//! The cluster's DNS as the tables show it, and this node's own resolver.
//!
//! Invariant: these checks query no name server; `name_servers` judges the replies.

use std::net::IpAddr;

use holdfast_core::keys::ObjectName;
use holdfast_core::snapshot::Verdict;

use crate::case::{Case, judge_unavailable};
use crate::command::is_name;
use crate::finding::{Judgement, Remedy};

/// The name that nearly every cluster gives its DNS, whatever server it runs.
const SERVICE: (&str, &str) = ("kube-system", "kube-dns");

/// The limits of a pod's resolver. Kubelet adds three search domains of its own to the node's.
const NAMESERVERS_MAX: usize = 3;
const SEARCH_DOMAINS_MAX: usize = 29;
const SEARCH_BYTES_MAX: usize = 2_048;

pub(super) fn check_service(case: &Case<'_>) -> Judgement {
    let name = ObjectName::new(SERVICE.0, SERVICE.1).ok();
    let Some(view) = name.and_then(|name| case.table().services.find_by_name(&name).next()) else {
        return Judgement::not_applicable(
            "This node knows no Service kube-system/kube-dns; DNS may have another name.",
        );
    };
    let serves = |verdict| matches!(verdict, Verdict::Serving | Verdict::Draining | Verdict::Held);
    match view.frontends.iter().find(|it| !serves(it.verdict)) {
        None => Judgement::ok("kube-system/kube-dns is served."),
        Some(frontend) => Judgement::error(crate::explain::sentence_of(view, frontend, case.table()))
            .remedy(Remedy::safe("No pod resolves a name meanwhile: diagnose kube-system/kube-dns.")),
    }
}

/// The label after a Service's name and namespace, in every cluster's domain.
const SERVICE_LABEL: &str = "svc";

/// Judges the target of an ExternalName. It does not resolve the target: a tenant who may write Services could make
/// this node query DNS for any name.
pub(super) fn check_external_name(case: &Case<'_>) -> Judgement {
    if !case.is_alias() {
        return Judgement::not_applicable("It is no alias.");
    }
    let Some(seen) = case.api_service() else {
        return judge_unavailable(case.service_lookup(), "What it is an alias of");
    };
    let target = seen.external_name.trim_end_matches('.');
    let correct = || Remedy::safe("Correct externalName of the Service.");
    if target.parse::<IpAddr>().is_ok() {
        return Judgement::error(format!(
            "It is an alias of {target}, which DNS takes for a name that does not exist."
        ))
        .remedy(Remedy::safe("For an address, write a Service without a selector and an EndpointSlice."));
    }
    if !is_name(target) {
        return Judgement::error(format!("It is an alias of {target:?}, which is no name of DNS."))
            .remedy(correct());
    }
    match parse_service_name(target) {
        Some(name) if name == *case.name() => {
            Judgement::error(format!("It is an alias of itself: {target}.")).remedy(correct())
        }
        Some(name) if case.table().services.find_by_name(&name).next().is_none() => {
            Judgement::error(format!("It is an alias of {name}, and there is no such Service."))
                .remedy(correct())
                .remedy(Remedy::safe("Apply that Service's manifest again."))
        }
        Some(name) => Judgement::info(format!("It is an alias of {name}: diagnose that one.")),
        None => {
            Judgement::info(format!("It is an alias of {target}; ask your DNS whether that name resolves."))
        }
    }
    .with("target", target)
}

/// Parses the name of a Service in this cluster: `name.namespace.svc.…`.
fn parse_service_name(target: &str) -> Option<ObjectName> {
    let mut labels = target.split('.');
    let name = labels.next()?;
    let namespace = labels.next()?;
    let kind = labels.next()?;
    (kind == SERVICE_LABEL).then(|| ObjectName::new(namespace, name).ok()).flatten()
}

pub(super) fn check_node(case: &Case<'_>) -> Judgement {
    let Some(resolver) = case.resolver().answer() else {
        return judge_unavailable(case.resolver(), "This node's resolv.conf");
    };
    if resolver.missing {
        return Judgement::error("There is no resolv.conf on this node: kubelet starts no new pod.")
            .remedy(Remedy::safe("Restore the file, or point kubelet's resolvConf to one that is there."));
    }
    let over = [
        (
            resolver.nameservers > NAMESERVERS_MAX,
            format!("{} name servers of {NAMESERVERS_MAX}", resolver.nameservers),
        ),
        (
            resolver.search_domains > SEARCH_DOMAINS_MAX,
            format!("{} search domains of {SEARCH_DOMAINS_MAX}", resolver.search_domains),
        ),
        (
            resolver.search_bytes > SEARCH_BYTES_MAX,
            format!("{} bytes of search domains of {SEARCH_BYTES_MAX}", resolver.search_bytes),
        ),
    ];
    let over: Vec<String> = over.into_iter().filter(|(is_over, _)| *is_over).map(|(_, what)| what).collect();
    match over.is_empty() {
        true => Judgement::ok("This node's resolv.conf is within what pods take."),
        false => Judgement::warning(format!(
            "This node's resolv.conf has more than pods take: {}.",
            over.join(", ")
        ))
        .remedy(Remedy::safe("Shorten it, or point kubelet's resolvConf to a shorter one.")),
    }
}
