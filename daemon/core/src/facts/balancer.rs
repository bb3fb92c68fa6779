//! A Service's load balancer and deletion: stored only for Services that have a load balancer or are being deleted.
//!
//! Invariant: every text and every list has a bound, so that no object makes its facts large; the excess is dropped.
//! These facts decide nothing that clients meet.

use alloc::boxed::Box;
use alloc::sync::Arc;

use super::Timestamp;
use crate::limits;

/// Facts on a Service of type LoadBalancer, or on any Service with a finalizer or a deletion time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct BalancerFacts {
    /// When its deletion was requested; finalizers delay the deletion.
    pub deleted: Option<Timestamp>,
    /// The first [`limits::FINALIZERS_MAX`] of `metadata.finalizers`.
    pub finalizers: Box<[Arc<str>]>,
    /// `spec.loadBalancerClass`: selects the controller of the balancer.
    pub class: Option<Arc<str>>,
    /// `spec.allocateLoadBalancerNodePorts: false`: the balancer must reach pods without a NodePort.
    pub without_node_ports: bool,
    /// Entries of `status.loadBalancer.ingress` that have a host name and no address.
    pub hostnames: Box<[Arc<str>]>,
    /// The managers in `managedFields` that wrote the status: two of them may undo each other's work.
    pub writers: Box<[Arc<str>]>,
    /// When one of those managers wrote last, if they have a time.
    pub written: Option<Timestamp>,
}

/// Prefixes and parts of the finalizers that load balancer controllers set.
const LB_FINALIZER_PREFIXES: [&str; 3] =
    ["service.k8s.aws/", "gke.networking.io/l4-", "svccontroller.k3s.cattle.io/"];
const LB_FINALIZER_PARTS: [&str; 2] = ["load-balancer", "loadbalancer"];

/// Whether a load balancer controller sets a finalizer of this name.
fn is_balancer_finalizer(finalizer: &str) -> bool {
    LB_FINALIZER_PREFIXES.iter().any(|begin| finalizer.starts_with(begin))
        || LB_FINALIZER_PARTS.iter().any(|part| finalizer.contains(part))
}

impl BalancerFacts {
    /// Whether a controller must still remove a load balancer before the object can go.
    pub fn has_balancer_finalizer(&self) -> bool {
        self.finalizers.iter().any(|name| is_balancer_finalizer(name))
    }

    /// Approximate memory in bytes.
    pub(crate) fn bytes(&self) -> usize {
        let texts = self.finalizers.len() + self.hostnames.len() + self.writers.len();
        size_of::<Self>() + texts * super::ENTRY_BYTES
    }
}

/// Cuts a text of an object to a length that no real one exceeds, and makes it one line: `?` replaces each invisible
/// character and each that reverses the text around it.
pub fn sanitize_text(text: &str) -> Arc<str> {
    let text = text.get(..text.floor_char_boundary(limits::BALANCER_TEXT_LENGTH_MAX)).unwrap_or_default();
    // `escape_debug` escapes what is not visible as it is, and quotes, which are visible.
    let is_seen = |it: char| matches!(it, '"' | '\\' | '\'') || it.escape_debug().count() == 1;
    match text.chars().all(is_seen) {
        true => text.into(),
        false => text
            .chars()
            .map(|it| if is_seen(it) { it } else { '?' })
            .collect::<alloc::string::String>()
            .into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn balancer_finalizers_are_recognized() {
        for (name, expected) in [
            ("service.kubernetes.io/load-balancer-cleanup", true),
            ("service.k8s.aws/resources", true),
            ("gke.networking.io/l4-netlb-v2", true),
            ("svccontroller.k3s.cattle.io/daemonset", true),
            ("loadbalancer.example.com/keep", true),
            ("foregroundDeletion", false),
            ("example.com/audit", false),
            ("", false),
        ] {
            assert_eq!(is_balancer_finalizer(name), expected, "{name}");
        }
    }

    #[test]
    fn a_text_is_cut_between_two_characters() {
        let most = limits::BALANCER_TEXT_LENGTH_MAX;
        assert_eq!(&*sanitize_text("example.com/a \"b\""), "example.com/a \"b\"");
        assert_eq!(&*sanitize_text("a\nb\u{202e}c\u{1b}[2J\u{200b}"), "a?b?c?[2J?");
        assert_eq!(sanitize_text(&"a".repeat(most + 9)).len(), most);
        assert_eq!(sanitize_text(&"é".repeat(most)).len(), most - most % 2);
        assert_eq!(&*sanitize_text(&"\u{20ac}".repeat(most)), "\u{20ac}".repeat(most / 3));
    }
}
