//! The Service itself: whether it exists, belongs to this node and is consistent.
//!
//! Invariant: a service is found by its exact name alone. A similar name is only called near.

use std::collections::BTreeSet;

use holdfast_core::facts::{ObjectKey, Rejection, ServiceFacts, ServicePort};
use holdfast_core::keys::{ObjectName, Protocol, Source};
use holdfast_core::snapshot::{Reason, ServiceState, ServiceView};
use serde_json::json;

use super::selector::{self, edit_distance};
use crate::case::{Case, judge_unavailable};
use crate::command::{Command, CommandWord};
use crate::explain::NewsObstacles;
use crate::finding::{Judgement, Remedy};
use crate::formatting::{self, clean, format_duration, join_names};
use crate::limits::NAMED_MAX;

/// A difference from the apiserver counts as lag only if the watch reported something within this time.
const LAG_SECONDS: u64 = 5;

/// The most letters by which a typo changes a name.
const SLIP_MAX: usize = 2;

/// The namespace of a `[[service]]` block that names none.
const BLOCK_NAMESPACE: &str = "static";

pub(super) fn check_exists(case: &Case<'_>) -> Judgement {
    let name = case.name();
    if case.facts().is_some() {
        return Judgement::ok(format!("{name} is known."));
    }
    let is_about = |it: &&Rejection| matches!(&it.object, ObjectKey::Service(key) if key.name == *name);
    if let Some(rejection) = case.table().rejections.named.values().find(is_about) {
        return Judgement::error(format!("{name} is rejected: {}.", rejection.reason))
            .remedy(Remedy::safe("Correct what the finding names; the object is taken once it is right."));
    }
    match case.service_lookup().answer() {
        Some(Some(seen)) if seen.proxy_name.is_some() => {
            Judgement::ok(format!("The apiserver has {name}, whose label gives it to another proxy."))
        }
        Some(Some(_)) => {
            Judgement::error(format!("The apiserver has {name}, and this node does not know it."))
                .remedy(Remedy::safe("See self.watch and self.control: the news has not come."))
        }
        Some(None) => judge_unknown(case, "the apiserver has no such Service"),
        None if case.apiserver().is_none() => judge_unknown(case, "no source of this node has one"),
        None => {
            judge_unknown(case, "no source of this node has one, and what the apiserver has is not known")
                .likely()
        }
    }
}

fn judge_unknown(case: &Case<'_>, why: &str) -> Judgement {
    let name = case.name();
    let near = find_near_names(case);
    let meant = if near.is_empty() { String::new() } else { format!(" Did you mean {}?", join_names(&near)) };
    let gone = case.history().iter().rev().find(|record| record.rule == "service-gone");
    let before = gone.map(|record| format!(" {}", record.sentence())).unwrap_or_default();
    let obstacles = case.obstacles();
    if *obstacles != NewsObstacles::default() {
        return judge_without_news(obstacles, format!("{name} is not known here.{meant}{before}"), &near);
    }
    Judgement::error(format!("There is no Service {name}: {why}.{meant}{before}"))
        .with("near", json!(near))
        .remedy(build_absence_remedy(case))
}

/// Where a service that nobody has would have to come from.
fn build_absence_remedy(case: &Case<'_>) -> Remedy {
    let name = case.name();
    let known = Command::from_words(&["holdfast", "services"].map(CommandWord::Literal));
    let is_block = |view: &ServiceView| {
        view.key.source == Source::Config && view.key.name.namespace() == name.namespace()
    };
    let text = if name.namespace() == BLOCK_NAMESPACE || case.table().services.iter().any(|it| is_block(it)) {
        format!("Look at the name, or write a [[service]] block {:?} into the configuration.", name.name())
    } else if case.table().sources.contains_key(&Source::Kubernetes) {
        "Look at the name and the namespace, or apply the Service's manifest again.".to_owned()
    } else {
        "Look at the name and the namespace, or write the Service into the folder of manifests.".to_owned()
    };
    Remedy::safe(text).with_command(known)
}

/// Judges a service that may be there, but whose news do not come.
fn judge_without_news(obstacles: &NewsObstacles, unknown: String, near: &[String]) -> Judgement {
    let judgement = Judgement::error(unknown + &obstacles.describe()).with("near", json!(near));
    let own = |words: &[CommandWord<'_>]| Command::from_words(words);
    let judgement = match &obstacles.refused_reload {
        None => judgement,
        Some(_) => judgement.remedy(build_reload_remedy(obstacles.config_file.as_deref())),
    };
    match obstacles.no_apiserver {
        false => judgement,
        true => judgement.remedy(
            Remedy::safe("See why no apiserver answers.")
                .with_command(own(&["holdfast", "apiserver"].map(CommandWord::Literal))),
        ),
    }
}

/// What to do about a file that is not in force.
fn build_reload_remedy(file: Option<&str>) -> Remedy {
    let check = ["holdfast", "check-config"].map(CommandWord::Literal);
    let file = file.map(CommandWord::Path);
    let command = Command::from_words(&check.into_iter().chain(file).collect::<Vec<_>>());
    Remedy::safe(
        "Correct the configuration until the command below finds nothing. Then run `holdfast reload`. Until then the former \
         configuration is in force.",
    )
    .with_command(command)
}

/// The same name in another namespace, and names that differ by a typo.
fn find_near_names(case: &Case<'_>) -> Vec<String> {
    let wanted = case.name();
    let is_near = |name: &ObjectName| {
        let same = name.name() == wanted.name();
        let slip = || {
            name.namespace() == wanted.namespace() && edit_distance(name.name(), wanted.name()) <= SLIP_MAX
        };
        name != wanted && (same || slip())
    };
    let services = case.table().services.iter().map(|view| &view.key.name);
    let near: BTreeSet<String> = services.filter(|name| is_near(name)).map(ToString::to_string).collect();
    near.into_iter().take(NAMED_MAX).collect()
}

pub(super) fn check_understood(case: &Case<'_>) -> Judgement {
    let Some(view) = case.view() else {
        return Judgement::not_applicable("There is no object to understand.");
    };
    let slices: BTreeSet<_> = view.slices.iter().map(|slice| &slice.key).collect();
    let is_about = |it: &&Rejection| match &it.object {
        ObjectKey::Service(key) => *key == view.key,
        ObjectKey::Slice(key) => slices.contains(key),
        _ => false,
    };
    let named = case.table().rejections.named.values().filter(is_about);
    let words: Vec<String> = named.map(|it| format!("{}: {}", it.object, it.reason)).collect();
    match words.is_empty() {
        true => Judgement::ok("Its objects are understood."),
        false => Judgement::warning(format!("Parts of its objects are ignored: {}.", join_names(&words)))
            .with("rejected", json!(words.iter().take(NAMED_MAX).collect::<Vec<_>>()))
            .remedy(Remedy::safe(
                "Correct what the finding names; the last good version stays in force until then.",
            )),
    }
}

pub(super) fn check_cache_lag(case: &Case<'_>) -> Judgement {
    let is_of_cluster = case.source() == Some(Source::Kubernetes);
    if is_of_cluster && case.facts().is_some() && matches!(case.service_lookup().answer(), Some(None)) {
        return Judgement::warning(
            "The apiserver has no such Service any more, and this node still serves it.",
        )
        .remedy(Remedy::safe("See self.watch and self.control: the news has not come."));
    }
    let (Some(facts), Some(seen)) = (case.facts(), case.api_service()) else {
        return judge_unavailable(case.service_lookup(), "The Service was not compared");
    };
    let ours = facts.meta.resource_version.as_deref();
    if ours.is_none() || ours == Some(&*seen.resource_version) {
        return Judgement::ok("This node has the version that the apiserver has.");
    }
    let silent =
        |it: &crate::evidence::WatchStatus| it.silent.is_none_or(|silent| silent.as_secs() > LAG_SECONDS);
    let is_silent = case.watches().iter().any(|it| it.what == "services" && silent(it));
    let sentence = format!(
        "The apiserver has version {} of the Service, this node {}.",
        seen.resource_version,
        ours.unwrap_or_default()
    );
    match is_silent {
        true => Judgement::warning(sentence).remedy(Remedy::safe("See self.watch: the news has not come.")),
        false => Judgement::info(format!("{sentence} The news is on its way.")),
    }
}

pub(super) fn check_handled(case: &Case<'_>) -> Judgement {
    if let Some(proxy) = case.api_service().and_then(|seen| seen.proxy_name.as_deref()) {
        return judge_other_proxy(proxy);
    }
    let Some(view) = case.view() else { return Judgement::not_applicable("There is no Service.") };
    let label = || view.facts.as_ref().and_then(|facts| facts.proxy_name.clone()).unwrap_or_default();
    match view.state {
        ServiceState::Served => Judgement::ok("This node serves it."),
        ServiceState::NoAddress => Judgement::warning("It has no address that a client could dial.")
            .remedy(Remedy::safe("Look whether the apiserver has given it a cluster IP.")),
        ServiceState::Headless => {
            Judgement::info("It is headless: clients find its endpoints by DNS, and no proxy serves it.")
        }
        ServiceState::ExternalName => Judgement::info("It is an alias in DNS, and no proxy serves it."),
        ServiceState::OtherProxy => judge_other_proxy(&label()),
        ServiceState::NoService => {
            Judgement::warning("Only EndpointSlices name it; there is no Service for this node.")
                .remedy(Remedy::safe("Apply the Service's manifest, or remove the slices."))
        }
    }
}

fn judge_other_proxy(proxy: &str) -> Judgement {
    Judgement::info(format!(
        "It belongs to another proxy: its label service.kubernetes.io/service-proxy-name is {:?}.",
        clean(proxy)
    ))
}

pub(super) fn check_deleting(case: &Case<'_>) -> Judgement {
    let Some(seen) = case.api_service() else {
        return judge_unavailable(case.service_lookup(), "Whether it is being deleted");
    };
    let Some(deletion) = seen.deletion else { return Judgement::ok("It is not being deleted.") };
    let age = format_duration(case.age(deletion));
    let finalizers =
        if seen.finalizers.is_empty() { "none".to_owned() } else { join_names(&seen.finalizers) };
    Judgement::info(format!("It has been in deletion for {age}; finalizers that are left: {finalizers}."))
        .with("finalizers", json!(seen.finalizers.iter().take(NAMED_MAX).collect::<Vec<_>>()))
}

/// Judges ports of protocols that this node, or any node, does not translate.
fn judge_untranslated(case: &Case<'_>, facts: &ServiceFacts) -> Option<Judgement> {
    let rows = || case.frontends().filter(|it| it.reason == Some(Reason::Protocol));
    let is_other = |port: &&ServicePort| {
        port.protocol.transport().is_none() || rows().any(|it| it.protocol == port.protocol)
    };
    let other: Vec<&ServicePort> = facts.ports.iter().filter(is_other).collect();
    let named: Vec<String> = other.iter().map(|port| format!("{}/{}", port.port, port.protocol)).collect();
    let by_packets = other.iter().all(|port| port.protocol == Protocol::SCTP);
    let judgement = match (named.is_empty(), by_packets) {
        (true, _) => return None,
        (false, true) => Judgement::warning(format!(
            "SCTP is translated by packets alone, and this node translates no packets: {} is not served.",
            join_names(&named)
        ))
        .remedy(Remedy::safe(
            "Have packets translated: `enabled = true` under [packets] of the configuration.",
        )),
        (false, false) => Judgement::warning(format!(
            "Only TCP, UDP and SCTP are translated; {} is not.",
            join_names(&named)
        )),
    };
    let means = "Serve that protocol by other means, such as hostNetwork or endpoints by DNS.";
    Some(judgement.with("ports", json!(named)).remedy(Remedy::safe(means)))
}

pub(super) fn check_ports(case: &Case<'_>) -> Judgement {
    let Some(facts) = case.facts() else { return Judgement::not_applicable("Its ports are not known.") };
    if let Some(judgement) = judge_untranslated(case, facts) {
        return judgement;
    }
    let mut known: BTreeSet<(u16, &Protocol)> = BTreeSet::new();
    let twice = facts.ports.iter().find(|port| !known.insert((port.port.get(), &port.protocol)));
    match (twice, facts.ports.is_empty()) {
        (Some(port), _) => {
            Judgement::warning(format!("The Service lists port {}/{} twice.", port.port, port.protocol))
                .remedy(Remedy::safe("Remove one of the two."))
        }
        (None, true) => Judgement::warning("It has no port.").remedy(Remedy::safe("Give it a port.")),
        (None, false) => Judgement::ok("Its ports can be served.").with("ports", facts.ports.len()),
    }
}

pub(super) fn check_families(case: &Case<'_>) -> Judgement {
    let Some(facts) = case.facts() else { return Judgement::not_applicable("Its families are not known.") };
    let have = case.families();
    let lacking: Vec<&str> = facts
        .ip_families
        .iter()
        .filter(|family| !have.contains(family))
        .map(|family| family.as_str())
        .collect();
    match lacking.is_empty() || have.is_empty() {
        true => Judgement::ok("Its cluster IPs fit its families."),
        false => {
            Judgement::warning(format!("It requests {} and has no such cluster IP.", lacking.join(" and ")))
                .remedy(Remedy::disruptive(
                    "Recreate the Service, so that it gets an address of each family.",
                ))
        }
    }
}

pub(super) fn check_selector(case: &Case<'_>) -> Judgement {
    if case.source() == Some(Source::Manifests) {
        return match selector::manifest_selector(case) {
            Some(selector) => Judgement::ok(format!(
                "Its selector is {}. In manifests, EndpointSlices give a service its backends.",
                formatting::format_selector(selector)
            )),
            None => Judgement::not_applicable("In manifests, EndpointSlices give a service its backends."),
        };
    }
    let Some(selector) = case.selector() else {
        return judge_unavailable(case.service_lookup(), "Its selector");
    };
    if !case.is_known() {
        return Judgement::not_applicable("This node does not know it.");
    }
    if !selector.is_empty() {
        return Judgement::ok(format!("It selects pods by {}.", formatting::format_selector(selector)));
    }
    if case.slices().next().is_some() {
        return Judgement::info(
            "It has no selector: its slices are written by something other than Kubernetes' controllers.",
        );
    }
    Judgement::error("It has no selector and no EndpointSlice: nothing says which backends it has.")
        .remedy(Remedy::safe("Write EndpointSlices for it, or give it a selector."))
}

pub(super) fn check_cluster_ip(case: &Case<'_>) -> Judgement {
    let asked = case.address_lookup();
    let name = case.name();
    match asked.answer() {
        None => {
            judge_unavailable(asked, "Which service has its cluster IP by the apiserver's IPAddress object")
        }
        Some(None) => Judgement::warning(
            "The apiserver keeps no IPAddress object for its cluster IP: the address may be given away.",
        )
        .remedy(Remedy::safe("Wait for the apiserver's repair, which runs every 3 minutes, and look again."))
        .remedy(Remedy::disruptive("Recreate the Service.")),
        Some(Some(of)) if (of.namespace.as_str(), of.name.as_str()) == (name.namespace(), name.name()) => {
            Judgement::ok(format!("{} is given to it.", of.address))
        }
        Some(Some(of)) => Judgement::error(format!(
            "The apiserver's IPAddress object gives {} to {}/{}.",
            of.address, of.namespace, of.name
        ))
        .with("owner", format!("{}/{}", of.namespace, of.name))
        .remedy(Remedy::disruptive("Recreate the younger of the two Services.")),
    }
}

pub(super) fn check_shared_backends(case: &Case<'_>) -> Judgement {
    let Some(own) = case.view() else { return Judgement::not_applicable("There is no Service.") };
    let backends = case.backends();
    let shares = |view: &&ServiceView| {
        view.key != own.key
            && view.ports.iter().any(|port| backends.iter().any(|backend| port.rows.find(*backend).is_some()))
    };
    let services = case.table().services.iter().map(AsRef::as_ref);
    let others: Vec<&ObjectName> = services.filter(shares).map(|view| &view.key.name).collect();
    if others.is_empty() {
        return Judgement::ok("No other service leads to its backends.");
    }
    let mut named: Vec<String> = others.iter().map(ToString::to_string).collect();
    named.sort();
    let listed = json!(named.iter().take(NAMED_MAX).collect::<Vec<_>>());
    let judgement = match find_confusable(case, &others) {
        None if named.len() > 1 => Judgement::info(format!("{} lead to the same backends.", join_names(&named))),
        None => Judgement::info(format!("{} leads to the same backends.", join_names(&named))),
        Some(other) => Judgement::warning(format!(
            "{other} leads to the same backends, one name begins with the other, and Cilium runs here: some of its \
             versions confuse the endpoints of such Services."
        ))
        .possible()
        .remedy(Remedy::safe("Have Cilium leave Services alone, or update it.")),
    };
    judgement.with("services", listed)
}

fn find_confusable<'a>(case: &Case<'_>, others: &[&'a ObjectName]) -> Option<&'a ObjectName> {
    let own = case.name();
    let begins =
        |other: &ObjectName| other.name().starts_with(own.name()) || own.name().starts_with(other.name());
    let runs = case.proxies().iter().any(|it| it.proxy == "Cilium");
    let other = others.iter().find(|other| other.namespace() == own.namespace() && begins(other));
    other.copied().filter(|_| runs)
}

pub(super) fn check_namespace(case: &Case<'_>) -> Judgement {
    let asked = case.namespace_lookup();
    match asked.answer() {
        None => judge_unavailable(asked, "Whether its namespace is terminating"),
        Some(Some(false)) => Judgement::ok("Its namespace is active."),
        Some(Some(true)) => {
            Judgement::warning("Its namespace is terminating: the apiserver refuses new endpoints there.")
                .remedy(Remedy::safe("Wait until that is gone, or look at what keeps it.").with_command(
                    Command::from_words(&[
                        CommandWord::Literal("kubectl"),
                        CommandWord::Literal("get"),
                        CommandWord::Literal("namespace"),
                        CommandWord::Name(case.namespace()),
                        CommandWord::Literal("-o"),
                        CommandWord::Literal("yaml"),
                    ]),
                ))
        }
        Some(None) => Judgement::warning("The apiserver has no such namespace.")
            .remedy(Remedy::safe("Look at the name of the namespace.")),
    }
}
