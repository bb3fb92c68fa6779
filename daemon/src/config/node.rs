//! `[node]`: which node this is, and which of its addresses answer NodePorts.

use toml::de::DeValue;

use super::address::{Cidr, cidr};
use super::limits::CIDRS_MAX;
use super::table::{Found, Items, Table, WhenEmpty};
use super::value::{dns_name, label_value, quote, string};

/// A node's name in Kubernetes: lower case, a DNS name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeName(String);

/// The host's own name is not a legal name for a node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the host name gives no node name: {0}; set `name` under [node] to the node's name in Kubernetes")]
pub struct NoNodeName(String);

impl NodeName {
    /// The name under which kubelet registers a host of this name: without white space around it, in lower case.
    pub fn of_host(host_name: &str) -> Result<Self, NoNodeName> {
        dns_name(&host_name.trim().to_lowercase()).map(Self).map_err(NoNodeName)
    }

    /// A name as it is given; an error says what is legal.
    pub fn parse(text: &str) -> Result<Self, String> {
        dns_name(text).map(Self)
    }

    /// The name as it is written.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Which local addresses answer NodePorts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodePortAddresses {
    /// Those by which others reach this host.
    pub outer: OuterAddresses,
    /// The host's loopback.
    pub localhost: bool,
}

impl NodePortAddresses {
    /// These, and not the loopback.
    pub const fn of(outer: OuterAddresses) -> Self {
        Self { outer, localhost: false }
    }
}

/// Which local addresses answer NodePorts, but for the loopback.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OuterAddresses {
    /// None.
    Nowhere,
    /// The node's primary address of each family, as kube-proxy's nftables mode does.
    Primary,
    /// Every local address.
    All,
    /// The local addresses within these ranges; never empty.
    Cidrs(Vec<Cidr>),
}

/// The table `[node]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// The node's name; none means the host name ([`NodeName::of_host`]).
    pub name: Option<NodeName>,
    /// The node's zone; none means the label of the Node object.
    pub zone: Option<String>,
    /// Which local addresses answer NodePorts.
    pub node_port_addresses: NodePortAddresses,
}

impl Default for Node {
    fn default() -> Self {
        Self { name: None, zone: None, node_port_addresses: NodePortAddresses::of(OuterAddresses::Primary) }
    }
}

pub(super) fn read(table: &mut Table<'_, '_, '_>) -> Node {
    let default = Node::default();
    Node {
        name: table.take("name", node_name),
        zone: table.take("zone", label_value),
        node_port_addresses: node_port_addresses(table).unwrap_or(default.node_port_addresses),
    }
}

fn node_name(value: &DeValue<'_>) -> Result<NodeName, String> {
    NodeName::parse(string(value, "a node's name")?)
}

/// One item of the list: a word, or a range.
enum Item {
    Alone(&'static str, OuterAddresses),
    Localhost,
    Range(Cidr),
}

const ADDRESSES: Items = Items {
    what: "\"primary\", \"all\", \"localhost\" or ranges such as \"10.0.0.0/8\"",
    // It could mean none or all, and kube-proxy has used it for all.
    when_empty: WhenEmpty::Refused,
    most: CIDRS_MAX,
};

fn node_port_addresses(table: &mut Table<'_, '_, '_>) -> Option<NodePortAddresses> {
    let items = table.list("node_port_addresses", &ADDRESSES, item)?;
    let (localhost, outer): (Vec<_>, Vec<_>) =
        items.into_iter().partition(|found| matches!(found.value, Item::Localhost));
    for again in localhost.iter().skip(1) {
        table.report().error(&again.site, "\"localhost\" is already in the list".to_owned());
    }
    Some(NodePortAddresses { outer: outer_addresses(table, &outer)?, localhost: !localhost.is_empty() })
}

fn outer_addresses(table: &mut Table<'_, '_, '_>, items: &[Found<Item>]) -> Option<OuterAddresses> {
    let mut words = items.iter().filter_map(|found| match &found.value {
        Item::Alone(word, meaning) => Some((&found.site, *word, meaning.clone())),
        Item::Range(_) | Item::Localhost => None,
    });
    match words.next_back() {
        None if items.is_empty() => Some(OuterAddresses::Nowhere),
        None => Some(OuterAddresses::Cidrs(ranges(table, items))),
        Some((_, _, meaning)) if items.len() == 1 => Some(meaning),
        Some((site, word, _)) => {
            let message = format!(
                "{word:?} cannot stand beside others: remove it, or everything else in the list but \"localhost\""
            );
            table.report().error(site, message);
            None
        }
    }
}

fn ranges(table: &mut Table<'_, '_, '_>, items: &[Found<Item>]) -> Vec<Cidr> {
    let mut cidrs = Vec::new();
    for found in items {
        match found.value {
            Item::Range(cidr) if cidrs.contains(&cidr) => {
                table.report().error(&found.site, format!("{cidr} is already in the list"));
            }
            Item::Range(cidr) => cidrs.push(cidr),
            Item::Alone(..) | Item::Localhost => (),
        }
    }
    cidrs
}

fn item(value: &DeValue<'_>) -> Result<Item, String> {
    match string(value, "\"primary\", \"all\", \"localhost\" or a range such as \"10.0.0.0/8\"")? {
        "primary" => Ok(Item::Alone("primary", OuterAddresses::Primary)),
        "all" => Ok(Item::Alone("all", OuterAddresses::All)),
        "localhost" => Ok(Item::Localhost),
        text if text.contains('/') => range(text).map(Item::Range),
        text => Err(format!("{} is not a range: legal are {}", quote(text), ADDRESSES.what)),
    }
}

/// No range stands for the loopback, however wide it is, so one of nothing else would be empty.
fn range(text: &str) -> Result<Cidr, String> {
    let range = cidr(text)?;
    match range.network().is_loopback() {
        true => Err(format!("{range} is the host's loopback: write \"localhost\"")),
        false => Ok(range),
    }
}
