//! Weights: the share of new clients that a backend gets compared with the others of its list.
//!
//! Invariant: a text of weights is accepted whole or not at all. A backend with weight 0 leaves a list only while
//! another one stays in it, so weights never empty a list.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::{IpAddr, SocketAddr};

use crate::limits;
use crate::split_name::NodeName;

/// The weight of one backend: 0 takes no new clients, 1 is the default.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Weight(u16);

impl Weight {
    pub const NONE: Self = Self(0);
    pub const ONE: Self = Self(1);
    pub const MAX: u16 = 256;

    /// `None` if the number exceeds [`Self::MAX`].
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
    // The last one of two for the same key counts.
    each.reverse();
    each.sort_by(|(a, _), (b, _)| a.cmp(b));
    each.dedup_by(|(a, _), (b, _)| a == b);
    each.into()
}

fn find_in_sorted<K: Ord>(each: &[(K, Weight)], key: &K) -> Option<Weight> {
    let position = each.binary_search_by(|(other, _)| other.cmp(key)).ok()?;
    each.get(position).map(|(_, weight)| *weight)
}

/// The weights that a service or a slice sets for its backends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Weights {
    backends: SortedWeights<SocketAddr>,
    /// For all ports of an address.
    addresses: SortedWeights<IpAddr>,
    /// For all endpoints of the named node.
    nodes: SortedWeights<Arc<str>>,
}

/// The legal items, for the error about an illegal one.
const LEGAL: &str = "legal are items such as 192.0.2.1=5, 192.0.2.1:8080=0 or node:NAME=3, from 0 to 256";

/// The error shows at most this many characters of an invalid item.
const EXCERPT_MAX: usize = 60;

impl Weights {
    pub fn from_backends(backends: impl IntoIterator<Item = (SocketAddr, Weight)>) -> Self {
        Self { backends: sort_weights(backends.into_iter().collect()), ..Self::default() }
    }

    /// Parses `ADDRESS=N,ADDRESS:PORT=N,node:NAME=N`. The error names the invalid item and the legal ones.
    pub fn parse(text: &str) -> Result<Self, String> {
        const MAX: usize = limits::WEIGHTS_PER_SERVICE_MAX;
        let (mut backends, mut addresses, mut nodes) = (Vec::new(), Vec::new(), Vec::new());
        for (position, item) in text.split(',').map(str::trim).enumerate() {
            if position >= MAX {
                return Err(format!("it has more than {MAX} weights"));
            }
            let (target, weight) = item
                .rsplit_once('=')
                .map_or((item, None), |(target, number)| (target.trim(), parse_weight(number)));
            let weight = weight.ok_or_else(|| invalid_item_reason(item))?;
            if let Some(name) = target.strip_prefix("node:").filter(|name| is_node_name(name)) {
                nodes.push((name.into(), weight));
            } else if let Ok(address) = target.parse() {
                addresses.push((address, weight));
            } else {
                backends.push((target.parse().map_err(|_| invalid_item_reason(item))?, weight));
            }
        }
        Ok(Self {
            backends: sort_weights(backends),
            addresses: sort_weights(addresses),
            nodes: sort_weights(nodes),
        })
    }

    /// Each weight with its backend, address or node, in an order independent of the text.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (WeightTarget<'_>, Weight)> {
        let backends =
            self.backends.iter().map(|(backend, weight)| (WeightTarget::Backend(*backend), *weight));
        let addresses =
            self.addresses.iter().map(|(address, weight)| (WeightTarget::Address(*address), *weight));
        let nodes = self.nodes.iter().map(|(name, weight)| (WeightTarget::Node(name), *weight));
        backends.chain(addresses).chain(nodes)
    }

    /// The weight of a backend, if set: its own, else that of its address, else that of its node.
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

/// The target of a weight: a backend, an address or a node.
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

/// The weights of a service or a slice, and the error of an invalid text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct WeightSetting {
    /// The last valid weights.
    pub weights: Weights,
    /// The error: what is invalid and what is legal.
    pub wrong: Option<Arc<str>>,
}

impl WeightSetting {
    /// The bytes of its texts, and the number of weights.
    pub(crate) fn size(&self) -> (usize, usize) {
        let text = |(target, _): (WeightTarget<'_>, Weight)| {
            if let WeightTarget::Node(name) = target { name.len() } else { 0 }
        };
        let wrong = self.wrong.as_deref().map_or(0, str::len);
        (wrong + self.weights.iter().map(text).sum::<usize>(), self.weights.iter().count())
    }

    /// Restores the former weights if the new ones are invalid: a typing error must not send clients to a backend that
    /// shall get none.
    pub(crate) fn keep_previous(&mut self, before: Option<&Self>) {
        if let (Some(before), true) = (before, self.wrong.is_some()) {
            self.weights = before.weights.clone();
        }
    }
}

/// The backends of a port with other weights than 1, sorted, and the drained ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct BackendWeights {
    each: Option<Arc<[(SocketAddr, Weight)]>>,
    /// A start sets these again from the drains that it finds.
    #[cfg_attr(feature = "serde", serde(skip))]
    drained: Option<Arc<[SocketAddr]>>,
}

impl BackendWeights {
    /// Takes weights sorted by backend; a weight of 1 is the default and not stored.
    pub(crate) fn new(each: impl Iterator<Item = (SocketAddr, Weight)>) -> Self {
        Self { each: collect_nonempty(each.filter(|(_, weight)| *weight != Weight::ONE)), drained: None }
    }

    /// Marks these sorted backends drained.
    #[must_use]
    pub(crate) fn with_drained(self, backends: impl Iterator<Item = SocketAddr>) -> Self {
        Self { drained: collect_nonempty(backends), ..self }
    }

    /// The weights and drains of these sorted backends.
    pub(crate) fn select_backends(&self, these: impl Iterator<Item = SocketAddr> + Clone) -> Self {
        let weight = |backend| Some((backend, find_in_sorted(self.each.as_deref()?, &backend)?));
        let drained = these.clone().filter(|backend| self.is_drained(*backend));
        Self::new(these.filter_map(weight)).with_drained(drained)
    }

    pub fn is_drained(&self, backend: SocketAddr) -> bool {
        self.drained.as_ref().is_some_and(|drained| drained.binary_search(&backend).is_ok())
    }

    /// The effective weight: 0 if the backend is drained.
    pub fn weight(&self, backend: SocketAddr) -> Weight {
        if self.is_drained(backend) {
            return Weight::NONE;
        }
        self.each.as_ref().and_then(|each| find_in_sorted(each, &backend)).unwrap_or(Weight::ONE)
    }

    pub(crate) fn bytes(&self) -> usize {
        self.each.as_deref().map_or(0, size_of_val) + self.drained.as_deref().map_or(0, size_of_val)
    }

    pub const fn is_uniform(&self) -> bool {
        self.each.is_none() && self.drained.is_none()
    }

    pub(crate) const fn has_no_drained(&self) -> bool {
        self.drained.is_none()
    }
}

/// Collects the elements into a shared slice; `None` if there are none.
fn collect_nonempty<T>(each: impl Iterator<Item = T>) -> Option<Arc<[T]>> {
    let mut each = each.peekable();
    each.peek().is_some().then(|| each.collect())
}

#[cfg(test)]
mod tests;
