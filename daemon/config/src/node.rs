//! `[node]`: this node's identity, and its addresses for NodePorts.

use std::fmt;

use toml::Value;
use toml::de::DeValue;

use super::address::{Cidr, cidr};
use super::keys::{table, take_some};
use super::limits::CIDRS_MAX;
use super::show;
use super::table::{ListRule, LocatedValue, Table, WhenEmpty};
use super::value::{dns_name, label_value, quote, string};

/// A node's name in Kubernetes: lower case, a DNS name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeName(String);

/// The host's own name is not a legal node name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the host name gives no node name: {0}; set `name` under [node] to the node's name in Kubernetes")]
pub struct HostNameError(String);

impl NodeName {
    /// The name under which kubelet registers a host of this name: trimmed, in lower case.
    pub fn from_host_name(host_name: &str) -> Result<Self, HostNameError> {
        dns_name(&host_name.trim().to_lowercase()).map(Self).map_err(HostNameError)
    }

    /// Checks a node name; an error says what is legal.
    pub fn parse(text: &str) -> Result<Self, String> {
        dns_name(text).map(Self)
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The local addresses that answer NodePorts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodePortAddresses {
    /// The addresses by which other hosts reach this one.
    pub outer: OuterAddresses,
    /// Whether the host's loopback answers too.
    pub localhost: bool,
}

impl NodePortAddresses {
    /// The setting with these addresses and without the loopback.
    pub const fn from_outer(outer: OuterAddresses) -> Self {
        Self { outer, localhost: false }
    }
}

/// The local addresses that answer NodePorts, without the loopback.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OuterAddresses {
    Nowhere,
    /// The node's primary address of each family, as kube-proxy's nftables mode does.
    Primary,
    All,
    /// The local addresses within these ranges, at least one range; and the primary addresses, if the list also has
    /// `primary`.
    Ranges {
        cidrs: Vec<Cidr>,
        primary: bool,
    },
}

table! {
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Node "node" {
        /// The node's name; the default is the host name ([`NodeName::from_host_name`]).
        name: Option<NodeName> = None, take_some(node_name), show::optional(show_name), restart;
        /// The node's zone; the default is the label of the Node object.
        zone: Option<String> = None, take_some(label_value), show::optional(show::text), reload;
        node_port_addresses: NodePortAddresses = NodePortAddresses::from_outer(OuterAddresses::Primary),
            take_addresses, show_addresses, reload;
    }
}

fn node_name(value: &DeValue<'_>) -> Result<NodeName, String> {
    NodeName::parse(string(value, "a node's name")?)
}

fn show_name(name: &NodeName) -> Option<Value> {
    show::text(name.as_str())
}

fn show_addresses(setting: &NodePortAddresses) -> Option<Value> {
    let mut items = match &setting.outer {
        OuterAddresses::Nowhere => Vec::new(),
        OuterAddresses::Primary => vec!["primary".to_owned()],
        OuterAddresses::All => vec!["all".to_owned()],
        OuterAddresses::Ranges { cidrs, primary } => {
            let word = primary.then(|| "primary".to_owned());
            word.into_iter().chain(cidrs.iter().map(ToString::to_string)).collect()
        }
    };
    items.extend(setting.localhost.then(|| "localhost".to_owned()));
    show::list(&items)
}

/// One item of the list: a word, or a range.
#[derive(PartialEq, Eq)]
enum AddressItem {
    Primary,
    All,
    Localhost,
    Range(Cidr),
}

impl fmt::Display for AddressItem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Primary => f.write_str("\"primary\""),
            Self::All => f.write_str("\"all\""),
            Self::Localhost => f.write_str("\"localhost\""),
            Self::Range(range) => write!(f, "{range}"),
        }
    }
}

const ADDRESSES: ListRule = ListRule {
    what: "\"primary\", \"all\", \"localhost\" or ranges such as \"10.0.0.0/8\"",
    // An empty list could mean none or all, and kube-proxy has used it for all.
    when_empty: WhenEmpty::Refused,
    most: CIDRS_MAX,
};

fn take_addresses(table: &mut Table<'_, '_, '_>, key: &'static str) -> Option<NodePortAddresses> {
    let items = table.list(key, &ADDRESSES, parse_item)?;
    for (position, found) in items.iter().enumerate() {
        if items.iter().take(position).any(|before| before.value == found.value) {
            table.report().add_error(&found.site, format!("{} is already in the list", found.value));
        }
    }
    let named = |word: &AddressItem| items.iter().any(|found| found.value == *word);
    let localhost = named(&AddressItem::Localhost);
    let all = named(&AddressItem::All);
    let primary = named(&AddressItem::Primary);
    Some(NodePortAddresses { outer: outer_addresses(all, primary, items), localhost })
}

/// Combines the items as kube-proxy combines its words and ranges.
fn outer_addresses(all: bool, primary: bool, items: Vec<LocatedValue<AddressItem>>) -> OuterAddresses {
    let range = |found: LocatedValue<AddressItem>| {
        if let AddressItem::Range(cidr) = found.value { Some(cidr) } else { None }
    };
    let cidrs: Vec<Cidr> = items.into_iter().filter_map(range).collect();
    match (all, primary, cidrs.is_empty()) {
        (true, _, _) => OuterAddresses::All,
        (false, _, false) => OuterAddresses::Ranges { cidrs, primary },
        (false, true, true) => OuterAddresses::Primary,
        (false, false, true) => OuterAddresses::Nowhere,
    }
}

fn parse_item(value: &DeValue<'_>) -> Result<AddressItem, String> {
    match string(value, "\"primary\", \"all\", \"localhost\" or a range such as \"10.0.0.0/8\"")? {
        "primary" => Ok(AddressItem::Primary),
        "all" => Ok(AddressItem::All),
        "localhost" => Ok(AddressItem::Localhost),
        text if text.contains('/') => parse_range(text).map(AddressItem::Range),
        text => Err(format!("{} is not a range: legal are {}", quote(text), ADDRESSES.what)),
    }
}

/// A range outside the loopback. No range includes the loopback, so a range within it would cover no address.
fn parse_range(text: &str) -> Result<Cidr, String> {
    let range = cidr(text)?;
    match range.network().is_loopback() {
        true => Err(format!("{range} is the host's loopback: write \"localhost\"")),
        false => Ok(range),
    }
}
