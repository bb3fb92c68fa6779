//! Reads the real kube-proxy's nftables rules, and follows them to the backends of a client that dials a service.
//!
//! Invariant: reading fails on an expression that it does not understand; it guesses nothing. It ignores which of
//! several endpoints is chosen, masquerading, source ranges, and hooks, whose order it assumes: a client that the NAT
//! chains lead nowhere meets the maps of services without endpoints.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;

use super::{Cluster, PeersError};
use crate::bed::{BedError, Location, succeed};

/// The timeout of a listing; some thousand rules take a second.
const LIST_LIMIT: Duration = Duration::from_secs(20);

const FAMILIES: [(&str, &str); 2] = [("ip", "0.0.0.0"), ("ip6", "::")];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Client {
    /// A process of the node.
    Local,
    Remote,
}

/// The fate of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientFate {
    /// It reaches one of these.
    To(BTreeSet<SocketAddr>),
    /// It is refused, because the service has no endpoint.
    Refused,
    /// It gets no reply.
    Dropped,
}

/// The dialled address, port and protocol; a NodePort's address is unspecified.
pub type Frontend = (SocketAddr, String);

/// The fate of a client at each of kube-proxy's frontends.
pub fn client_fates(cluster: &Cluster, client: Client) -> Result<BTreeMap<Frontend, ClientFate>, PeersError> {
    let mut fates = BTreeMap::new();
    for (family, node) in FAMILIES {
        Rules::new(&listing(cluster, family)?, client).collect(node, &mut fates)?;
    }
    Ok(fates)
}

fn listing(cluster: &Cluster, family: &str) -> Result<Value, PeersError> {
    let mut nft = cluster.bed().command(Location::OUTSIDE, "nft")?;
    nft.args(["--json", "list", "table", family, "kube-proxy"]);
    let text = succeed(nft, LIST_LIMIT)?;
    serde_json::from_str(&text).map_err(|error| unknown(&text, &error.to_string()))
}

/// Whether kube-proxy has written its tables; it writes a family's table in one transaction. Listing a whole large
/// table would take longer than a proxy's timeout.
pub(super) fn are_written(cluster: &Cluster) -> Result<bool, PeersError> {
    FAMILIES.iter().try_fold(true, |all, (family, _)| {
        Ok(all && has_chain(cluster, &[family, "kube-proxy", "services"])?)
    })
}

/// Whether iptables' nat table has this chain.
pub(super) fn translates(cluster: &Cluster, chain: &str) -> Result<bool, PeersError> {
    has_chain(cluster, &["ip", "nat", chain])
}

fn has_chain(cluster: &Cluster, chain: &[&str; 3]) -> Result<bool, PeersError> {
    let mut nft = cluster.bed().command(Location::OUTSIDE, "nft")?;
    nft.args(["list", "chain"]).args(chain);
    match succeed(nft, LIST_LIMIT) {
        Ok(_) => Ok(true),
        Err(BedError::Failed { .. }) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn unknown(what: &impl ToString, said: &str) -> PeersError {
    PeersError::Malformed { what: what.to_string(), said: said.to_owned() }
}

/// One table: elements of maps by the maps' names, rules by their chains.
struct Rules<'a> {
    client: Client,
    maps: BTreeMap<&'a str, &'a [Value]>,
    chains: BTreeMap<&'a str, Vec<&'a [Value]>>,
}

impl<'a> Rules<'a> {
    fn new(listing: &'a Value, client: Client) -> Self {
        let mut rules = Self { client, maps: BTreeMap::new(), chains: BTreeMap::new() };
        for object in array(listing.get("nftables")) {
            if let Some(map) = object.get("map") {
                rules.maps.insert(text(map.get("name")), array(map.get("elem")));
            }
            if let Some(rule) = object.get("rule") {
                rules.chains.entry(text(rule.get("chain"))).or_default().push(array(rule.get("expr")));
            }
        }
        rules
    }

    fn collect(&self, node: &str, fates: &mut BTreeMap<Frontend, ClientFate>) -> Result<(), PeersError> {
        for (map, address) in [("service-ips", None), ("service-nodeports", Some(node))] {
            for (frontend, verdict) in self.elements(map, address)? {
                if let Some(endpoints) = self.verdict(verdict)? {
                    fates.insert(frontend, ClientFate::To(endpoints));
                }
            }
        }
        for (map, address) in [("no-endpoint-services", None), ("no-endpoint-nodeports", Some(node))] {
            for (frontend, verdict) in self.elements(map, address)? {
                let way =
                    if verdict.get("drop").is_some() { ClientFate::Dropped } else { ClientFate::Refused };
                fates.entry(frontend).or_insert(way);
            }
        }
        Ok(())
    }

    fn elements(&self, map: &str, node: Option<&str>) -> Result<Vec<(Frontend, &'a Value)>, PeersError> {
        let elements = self.maps.get(map).copied().unwrap_or_default();
        let element = |element: &'a Value| {
            let key = element.get(0).map(|key| key.pointer("/elem/val").unwrap_or(key));
            let parts = array(key.and_then(|key| key.get("concat")));
            let (address, protocol, port) = match (node, parts) {
                (None, [address, protocol, port]) => (text(Some(address)), protocol, port),
                (Some(node), [protocol, port]) => (node, protocol, port),
                _ => return Err(unknown(element, "no key of a service")),
            };
            let protocol = text(Some(protocol)).to_uppercase();
            let dialled = socket(address, port).ok_or_else(|| unknown(element, "no address"))?;
            Ok(((dialled, protocol), element.get(1).unwrap_or(&Value::Null)))
        };
        elements.iter().map(element).collect()
    }

    /// The endpoints that a chain leads to; `None`: no rule matches this client.
    fn follow(&self, chain: &str) -> Result<Option<BTreeSet<SocketAddr>>, PeersError> {
        for rule in self.chains.get(chain).into_iter().flatten() {
            if let Some(found) = self.rule(rule)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    fn rule(&self, expressions: &[Value]) -> Result<Option<BTreeSet<SocketAddr>>, PeersError> {
        for expression in expressions {
            if let Some(condition) = expression.get("match") {
                if !self.holds(condition)? {
                    return Ok(None);
                }
            } else if let Some(found) = self.statement(expression)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// A new client has no affinity, and the map has matched the protocol already.
    fn holds(&self, condition: &Value) -> Result<bool, PeersError> {
        let (left, right) = (condition.get("left"), text(condition.get("right")));
        let is_fib = left.and_then(|left| left.get("fib")).is_some();
        let is_protocol = left.and_then(|left| left.pointer("/meta/key")) == Some(&"l4proto".into());
        match right {
            "local" if is_fib => Ok(self.client == Client::Local),
            _ if right.starts_with("@affinity-") => Ok(false),
            _ if is_protocol => Ok(true),
            _ => Err(unknown(condition, "a condition that no test knows")),
        }
    }

    fn statement(&self, statement: &Value) -> Result<Option<BTreeSet<SocketAddr>>, PeersError> {
        let Some((word, rest)) = statement.as_object().and_then(|object| object.iter().next()) else {
            return Err(unknown(statement, "no statement"));
        };
        match word.as_str() {
            "goto" => self.verdict(statement),
            "vmap" => {
                let verdicts = array(rest.pointer("/data/set")).iter().filter_map(|element| element.get(1));
                let found = verdicts.map(|verdict| self.verdict(verdict)).collect::<Result<Vec<_>, _>>()?;
                Ok(Some(found.into_iter().flatten().flatten().collect()))
            }
            "dnat" => translated(rest).map(Some),
            // Marks for masquerading, and updates of affinity.
            "mangle" | "set" => Ok(None),
            _ => Err(unknown(statement, "a statement that no test knows")),
        }
    }

    fn verdict(&self, verdict: &Value) -> Result<Option<BTreeSet<SocketAddr>>, PeersError> {
        let target = verdict.pointer("/goto/target").and_then(Value::as_str);
        self.follow(target.ok_or_else(|| unknown(verdict, "a verdict that no test knows"))?)
    }
}

/// Translates to one address, or to one of a map's.
fn translated(dnat: &Value) -> Result<BTreeSet<SocketAddr>, PeersError> {
    let wrong = || unknown(dnat, "a translation that no test knows");
    let several = dnat.pointer("/addr/map/data/set");
    let pair = |element: &Value| {
        let pair = element.pointer("/1/concat")?;
        socket(text(pair.get(0)), pair.get(1)?)
    };
    match several {
        Some(several) => array(Some(several)).iter().map(|element| pair(element).ok_or_else(wrong)).collect(),
        None => {
            let one = dnat.get("port").and_then(|port| socket(text(dnat.get("addr")), port));
            Ok([one.ok_or_else(wrong)?].into())
        }
    }
}

fn socket(address: &str, port: &Value) -> Option<SocketAddr> {
    Some(SocketAddr::new(address.parse().ok()?, port.as_u64()?.try_into().ok()?))
}

fn array(value: Option<&Value>) -> &[Value] {
    value.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

fn text(value: Option<&Value>) -> &str {
    value.and_then(Value::as_str).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// kube-proxy's rules for a port with the external policy Local and two endpoints, one of them on this node, and
    /// for a port without endpoints.
    fn listing() -> Value {
        let elements =
            |goto: &str| json!([[{"concat": ["203.0.113.7", "tcp", 80]}, {"goto": {"target": goto}}]]);
        let nobody = json!([
            [{"elem": {"val": {"concat": ["203.0.113.7", "tcp", 80]}, "comment": "a"}}, {"drop": null}],
            [{"elem": {"val": {"concat": ["203.0.113.7", "udp", 80]}, "comment": "b"}}, {"goto": {"target": "reject-chain"}}],
        ]);
        let local = json!({"match": {"op": "==", "left": {"fib": {"result": "type", "flags": "saddr"}}, "right": "local"}});
        let seen = json!({"match": {"op": "==", "left": {"payload": {}}, "right": "@affinity-1"}});
        let two = json!([[0, {"goto": {"target": "endpoint-1"}}], [1, {"goto": {"target": "endpoint-2"}}]]);
        json!({"nftables": [
            {"metainfo": {}},
            {"map": {"name": "service-ips", "elem": elements("external")}},
            {"map": {"name": "no-endpoint-services", "elem": nobody}},
            {"rule": {"chain": "external", "expr": [local, {"mangle": {}}]}},
            {"rule": {"chain": "external", "expr": [local, {"goto": {"target": "service"}}]}},
            {"rule": {"chain": "service", "expr": [seen, {"goto": {"target": "endpoint-1"}}]}},
            {"rule": {"chain": "service", "expr": [{"vmap": {"key": {"numgen": {}}, "data": {"set": two}}}]}},
            {"rule": {"chain": "endpoint-1", "expr": [{"set": {}}]}},
            {"rule": {"chain": "endpoint-1", "expr": [{"dnat": {"addr": "10.1.0.1", "port": 8080}}]}},
            {"rule": {"chain": "endpoint-2", "expr": [{"dnat": {"addr": "10.1.0.2", "port": 8080}}]}},
        ]})
    }

    #[track_caller]
    fn check(listing: &Value, client: Client, expected: &[(&str, &str, ClientFate)]) {
        let mut fates = BTreeMap::new();
        Rules::new(listing, client).collect("0.0.0.0", &mut fates).unwrap();
        let row = |(address, protocol, way): &(&str, &str, ClientFate)| {
            ((address.parse().unwrap(), (*protocol).to_owned()), way.clone())
        };
        assert_eq!(fates, expected.iter().map(row).collect());
    }

    #[test]
    fn policy_local_gives_local_clients_all_endpoints_and_drops_others() {
        let both = ["10.1.0.1:8080", "10.1.0.2:8080"].map(|address| address.parse().unwrap());
        let (dialled, refused) = ("203.0.113.7:80", ("203.0.113.7:80", "UDP", ClientFate::Refused));
        check(&listing(), Client::Local, &[(dialled, "TCP", ClientFate::To(both.into())), refused.clone()]);
        check(&listing(), Client::Remote, &[(dialled, "TCP", ClientFate::Dropped), refused]);
    }

    #[test]
    fn a_translation_to_a_map_leads_to_all_its_targets() {
        let map = json!({"set": [[0, {"concat": ["10.1.0.1", 80]}], [1, {"concat": ["10.1.0.2", 80]}]]});
        let found = translated(&json!({"family": "ip", "addr": {"map": {"key": {}, "data": map}}})).unwrap();
        assert_eq!(found, ["10.1.0.1:80", "10.1.0.2:80"].map(|address| address.parse().unwrap()).into());
    }

    #[test]
    fn an_unknown_expression_is_an_error() {
        let mut listing = listing();
        listing["nftables"][7]["rule"]["expr"] = json!([{"queue": {}}]);
        let told = Rules::new(&listing, Client::Local).collect("0.0.0.0", &mut BTreeMap::new());
        assert!(matches!(told, Err(PeersError::Malformed { .. })), "{told:?}");
    }
}
