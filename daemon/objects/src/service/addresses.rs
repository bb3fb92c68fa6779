//! Parses the addresses of a Service, and the networks that may reach them.
//!
//! Invariant: a cluster IP has its family's index in `ipFamilies`, where kube-proxy looks for it.

use std::net::IpAddr;
use std::sync::Arc;

use holdfast_core::facts::{Ingress, ServiceFacts};
use holdfast_core::keys::Family;
use holdfast_core::limits;
use holdfast_core::str_enum::StrEnum;

use super::check_count;
use crate::error::quote_value;
use crate::wire::{ServiceSpecWire, ServiceStatusWire, Text};
use crate::{Defaulting, ObjectError, address};

/// Reads all addresses and families of a Service.
pub(super) fn read_addresses(
    facts: &mut ServiceFacts,
    spec: &ServiceSpecWire<'_>,
    status: Option<&ServiceStatusWire<'_>>,
    defaulting: Defaulting,
) -> Result<(), ObjectError> {
    facts.headless = is_headless(spec);
    facts.cluster_ips = cluster_ips(spec, defaulting)?;
    facts.external_ips =
        parse_addresses("spec.externalIPs", spec.external_ips.as_deref().unwrap_or_default())?;
    facts.ingress = parse_ingress(status)?;
    facts.source_ranges =
        parse_source_ranges(spec.load_balancer_source_ranges.as_deref().unwrap_or_default())?;
    facts.ip_families = ip_families(spec.ip_families.as_deref().unwrap_or_default())?;
    if facts.ip_families.is_empty() && defaulting == Defaulting::AsApiserver {
        facts.ip_families = derive_families(facts);
    }
    check_families(facts)
}

fn is_headless(spec: &ServiceSpecWire<'_>) -> bool {
    let first = spec.cluster_ips.as_deref().unwrap_or_default().first();
    match spec.cluster_ip.as_deref().unwrap_or_default() {
        "" => first.is_some_and(|first| &**first == "None"),
        single => single == "None",
    }
}

/// The cluster IPs, each at its family's index in `ipFamilies`.
fn cluster_ips(spec: &ServiceSpecWire<'_>, defaulting: Defaulting) -> Result<Vec<IpAddr>, ObjectError> {
    let single = spec.cluster_ip.as_deref().unwrap_or_default();
    let several = spec.cluster_ips.as_deref().unwrap_or_default();
    let defaulted = defaulting == Defaulting::AsApiserver;
    if is_headless(spec) || (single.is_empty() && !defaulted) {
        return Ok(Vec::new());
    }
    // kube-proxy reads `clusterIPs` only through `ipFamilies`; an object without those has only `clusterIP`.
    let several_count =
        !several.is_empty() && (defaulted || spec.ip_families.iter().flatten().next().is_some());
    if several_count {
        parse_addresses("spec.clusterIPs", several)
    } else if single.is_empty() {
        Ok(Vec::new())
    } else {
        Ok(vec![parse_address("spec.clusterIP".to_owned(), single)?])
    }
}

fn ip_families(words: &[Text<'_>]) -> Result<Vec<Family>, ObjectError> {
    check_count("spec.ipFamilies", words.len(), limits::ADDRESSES_PER_SERVICE_MAX)?;
    let wrong = |word: &str| ObjectError::word("spec.ipFamilies", word, "IPv4 and IPv6");
    let family = |word: &Text<'_>| Family::from_spelling(word).ok_or_else(|| wrong(word));
    words.iter().map(family).collect()
}

/// The families of a service without `ipFamilies`: those of its addresses, cluster IPs first.
fn derive_families(facts: &ServiceFacts) -> Vec<Family> {
    let others =
        facts.external_ips.iter().copied().chain(facts.ingress.iter().map(|ingress| ingress.address));
    let cluster = facts.cluster_ips.iter().copied();
    let mut families = Vec::new();
    // A family must keep the index of its cluster IP.
    let others = others.filter(|_| facts.cluster_ips.is_empty());
    for family in cluster.chain(others).map(Family::from_address) {
        if !families.contains(&family) {
            families.push(family);
        }
    }
    families
}

fn check_families(facts: &ServiceFacts) -> Result<(), ObjectError> {
    let pairs = facts.cluster_ips.iter().zip(&facts.ip_families).enumerate();
    match pairs.into_iter().find(|(_, (address, family))| Family::from_address(**address) != **family) {
        Some((index, (address, family))) => {
            Err(ObjectError::FamilyMismatch { index, address: *address, family: *family })
        }
        None => Ok(()),
    }
}

pub(crate) fn parse_addresses(field: &'static str, texts: &[Text<'_>]) -> Result<Vec<IpAddr>, ObjectError> {
    check_count(field, texts.len(), limits::ADDRESSES_PER_SERVICE_MAX)?;
    texts.iter().enumerate().map(|(index, text)| parse_address(format!("{field}[{index}]"), text)).collect()
}

fn parse_address(field: String, text: &str) -> Result<IpAddr, ObjectError> {
    address::parse(text).ok_or_else(|| ObjectError::address(field, text))
}

/// The entries with an address; one with only a host name is for clients of the real balancer.
fn parse_ingress(status: Option<&ServiceStatusWire<'_>>) -> Result<Vec<Ingress>, ObjectError> {
    let entries =
        status.and_then(|status| status.load_balancer.as_ref()?.ingress.as_deref()).unwrap_or_default();
    check_count("status.loadBalancer.ingress", entries.len(), limits::ADDRESSES_PER_SERVICE_MAX)?;
    let mut ingress = Vec::new();
    for (index, entry) in entries.iter().enumerate() {
        let Some(ip) = entry.ip.as_deref().filter(|ip| !ip.is_empty()) else { continue };
        let address = parse_address(format!("status.loadBalancer.ingress[{index}].ip"), ip)?;
        ingress.push(Ingress { address, proxied: is_proxied(entry.ip_mode.as_deref())? });
    }
    Ok(ingress)
}

fn is_proxied(mode: Option<&str>) -> Result<bool, ObjectError> {
    match mode.unwrap_or_default() {
        "" | "VIP" => Ok(false),
        "Proxy" => Ok(true),
        other => Err(ObjectError::word("status.loadBalancer.ingress.ipMode", other, "VIP and Proxy")),
    }
}

/// Parses the source ranges. A wrong range rejects the service: skipping it could allow clients that it should deny.
fn parse_source_ranges(texts: &[Text<'_>]) -> Result<Vec<Arc<str>>, ObjectError> {
    const FIELD: &str = "spec.loadBalancerSourceRanges";
    check_count(FIELD, texts.len(), limits::ADDRESSES_PER_SERVICE_MAX)?;
    let error = |index: usize, text: &Text<'_>| ObjectError::Cidr {
        field: format!("{FIELD}[{index}]"),
        shown: quote_value(text),
    };
    let parse =
        |(index, text): (usize, &Text<'_>)| address::parse_cidr(text).ok_or_else(|| error(index, text));
    texts.iter().enumerate().map(parse).collect()
}
