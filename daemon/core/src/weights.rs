//! Weights: how many new clients a backend gets beside the others of its list.
//!
//! Invariant: what is written is understood whole or not at all. A backend with weight 0 leaves a list only while
//! another one stays in it, so weights never make a list empty.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

use crate::limits;
use crate::split_name::NodeName;

/// The weight of one backend: 0 is no new client, and 1 is what has no weight of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Weight(u16);

impl Weight {
    pub const NONE: Self = Self(0);
    pub const ONE: Self = Self(1);
    pub const MAX: u16 = 256;

    /// `None`: it is more than a weight may be.
    pub const fn new(number: u16) -> Option<Self> {
        if number <= Self::MAX { Some(Self(number)) } else { None }
    }

    pub const fn number(self) -> u16 {
        self.0
    }
}

/// Keys with their weights, sorted by key, each once.
type SortedWeights<K> = Box<[(K, Weight)]>;

fn sort_weights<K: Ord>(mut each: Vec<(K, Weight)>) -> SortedWeights<K> {
    // Of two for the same key the last one counts.
    each.reverse();
    each.sort_by(|(a, _), (b, _)| a.cmp(b));
    each.dedup_by(|(a, _), (b, _)| a == b);
    each.into()
}

fn find_in_sorted<K: Ord>(each: &[(K, Weight)], key: &K) -> Option<Weight> {
    let position = each.binary_search_by(|(other, _)| other.cmp(key)).ok()?;
    each.get(position).map(|(_, weight)| *weight)
}

/// What a service, or a slice, says of the weights of its backends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Weights {
    backends: SortedWeights<SocketAddr>,
    /// For all ports of an address.
    addresses: SortedWeights<IpAddr>,
    /// For all endpoints of the node of that name.
    nodes: SortedWeights<Arc<str>>,
}

/// The items that are legal, as the author of another one is told.
const LEGAL: &str = "legal are items such as 192.0.2.1=5, 192.0.2.1:8080=0 or node:NAME=3, from 0 to 256";

/// How many characters are shown of an item that cannot be read.
const EXCERPT_MAX: usize = 60;

impl Weights {
    /// The weights of backends.
    pub fn from_backends(backends: impl IntoIterator<Item = (SocketAddr, Weight)>) -> Self {
        Self { backends: sort_weights(backends.into_iter().collect()), ..Self::default() }
    }

    /// Reads `ADDRESS=N,ADDRESS:PORT=N,node:NAME=N`, or says what cannot be read and what could.
    pub fn parse(text: &str) -> Result<Self, String> {
        const MAX: usize = limits::WEIGHTS_PER_SERVICE_MAX;
        let (mut backends, mut addresses, mut nodes) = (Vec::new(), Vec::new(), Vec::new());
        for (position, item) in text.split(',').map(str::trim).enumerate() {
            if position >= MAX {
                return Err(format!("it has more than {MAX} weights"));
            }
            let (whom, weight) = item
                .rsplit_once('=')
                .map_or((item, None), |(whom, number)| (whom.trim(), parse_weight(number)));
            let weight = weight.ok_or_else(|| invalid_item_reason(item))?;
            if let Some(name) = whom.strip_prefix("node:").filter(|name| is_node_name(name)) {
                nodes.push((name.into(), weight));
            } else if let Ok(address) = whom.parse() {
                addresses.push((address, weight));
            } else {
                backends.push((whom.parse().map_err(|_| invalid_item_reason(item))?, weight));
            }
        }
        Ok(Self {
            backends: sort_weights(backends),
            addresses: sort_weights(addresses),
            nodes: sort_weights(nodes),
        })
    }

    /// Each weight with the backend, address or node that has it, in an order of their own, however they were written.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (WeightTarget<'_>, Weight)> {
        let backends =
            self.backends.iter().map(|(backend, weight)| (WeightTarget::Backend(*backend), *weight));
        let addresses =
            self.addresses.iter().map(|(address, weight)| (WeightTarget::Address(*address), *weight));
        let nodes = self.nodes.iter().map(|(name, weight)| (WeightTarget::Node(name), *weight));
        backends.chain(addresses).chain(nodes)
    }

    /// The weight of a backend, if it says any: its own, else that of its address, else that of its node.
    pub fn find_weight(&self, backend: SocketAddr, node: Option<NodeName<'_>>) -> Option<Weight> {
        find_in_sorted(&self.backends, &backend)
            .or_else(|| find_in_sorted(&self.addresses, &backend.ip()))
            .or_else(|| node.and_then(|node| self.node_weight(node)))
    }

    fn node_weight(&self, node: NodeName<'_>) -> Option<Weight> {
        let place = self.nodes.binary_search_by(|(name, _)| node.compare(name).reverse()).ok()?;
        self.nodes.get(place).map(|(_, weight)| *weight)
    }
}

/// A backend, an address or a node that has a weight.
pub(crate) enum WeightTarget<'a> {
    Backend(SocketAddr),
    Address(IpAddr),
    Node(&'a str),
}

fn is_node_name(node: &str) -> bool {
    (1..=limits::NAME_LENGTH_MAX).contains(&node.len())
}

fn parse_weight(number: &str) -> Option<Weight> {
    let digits = Some(number.trim()).filter(|number| number.bytes().all(|byte| byte.is_ascii_digit()));
    digits?.parse().ok().and_then(Weight::new)
}

fn invalid_item_reason(item: &str) -> String {
    let shown: String = item.chars().take(EXCERPT_MAX).collect();
    format!("{shown:?} is no weight: {LEGAL}")
}

/// The weights that a service or a slice has, and why what is written now is not taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct WeightSetting {
    /// As they were written last, of what could be read.
    pub weights: Weights,
    /// What cannot be read, and what could.
    pub wrong: Option<Arc<str>>,
}

impl WeightSetting {
    /// How many bytes its texts have, and how many weights there are.
    pub(crate) fn size(&self) -> (usize, usize) {
        let text = |(whom, _): (WeightTarget<'_>, Weight)| {
            if let WeightTarget::Node(name) = whom { name.len() } else { 0 }
        };
        let wrong = self.wrong.as_deref().map_or(0, str::len);
        (wrong + self.weights.iter().map(text).sum::<usize>(), self.weights.iter().count())
    }

    /// Takes the weights of before, where those of now cannot be read: a slip of the pen must not send clients to a
    /// backend that is to have none.
    pub(crate) fn keep_previous(&mut self, before: Option<&Self>) {
        if let (Some(before), true) = (before, self.wrong.is_some()) {
            self.weights = before.weights.clone();
        }
    }
}

/// The backends of a port with other weights than 1, sorted, and those that are drained.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct BackendWeights {
    each: Option<Arc<[(SocketAddr, Weight)]>>,
    /// A start marks them anew, by the drains that it finds.
    #[cfg_attr(feature = "serde", serde(skip))]
    drained: Option<Arc<[SocketAddr]>>,
}

impl BackendWeights {
    /// Takes weights that are sorted by backend; those of 1 say nothing.
    pub(crate) fn new(each: impl Iterator<Item = (SocketAddr, Weight)>) -> Self {
        Self { each: collect_nonempty(each.filter(|(_, weight)| *weight != Weight::ONE)), drained: None }
    }

    /// The same weights, and these backends drained, which are sorted.
    #[must_use]
    pub(crate) fn with_drained(self, backends: impl Iterator<Item = SocketAddr>) -> Self {
        Self { drained: collect_nonempty(backends), ..self }
    }

    /// What it says of these backends, which are in order.
    pub(crate) fn select_backends(&self, these: impl Iterator<Item = SocketAddr> + Clone) -> Self {
        let weight = |backend| Some((backend, find_in_sorted(self.each.as_deref()?, &backend)?));
        let drained = these.clone().filter(|backend| self.is_drained(*backend));
        Self::new(these.filter_map(weight)).with_drained(drained)
    }

    /// Whether an operator has taken new clients from this backend.
    pub fn is_drained(&self, backend: SocketAddr) -> bool {
        self.drained.as_ref().is_some_and(|drained| drained.binary_search(&backend).is_ok())
    }

    /// The weight that counts: none of a backend that is drained.
    pub fn weight(&self, backend: SocketAddr) -> Weight {
        if self.is_drained(backend) {
            return Weight::NONE;
        }
        self.each.as_ref().and_then(|each| find_in_sorted(each, &backend)).unwrap_or(Weight::ONE)
    }

    /// How many bytes it takes in memory.
    pub(crate) fn bytes(&self) -> usize {
        self.each.as_deref().map_or(0, size_of_val) + self.drained.as_deref().map_or(0, size_of_val)
    }

    /// Whether every backend has the same.
    pub const fn is_uniform(&self) -> bool {
        self.each.is_none() && self.drained.is_none()
    }

    /// Whether no backend is drained.
    pub(crate) const fn has_no_drained(&self) -> bool {
        self.drained.is_none()
    }
}

/// What there is, shared; `None`: nothing.
fn collect_nonempty<T>(each: impl Iterator<Item = T>) -> Option<Arc<[T]>> {
    let mut each = each.peekable();
    each.peek().is_some().then(|| each.collect())
}

#[cfg(test)]
mod tests;
