//! What a Service says of its load balancer and of its own deletion: kept only for Services that have a load balancer
//! or are being deleted.
//!
//! Invariant: every text and every list has a bound, so that no object makes its facts large; what has no room is left
//! out, and nothing that clients meet is decided by these facts.

use alloc::boxed::Box;
use alloc::sync::Arc;

use super::Timestamp;
use crate::limits;

/// What is known of a Service of type LoadBalancer, or of any Service with a finalizer or a time of deletion.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct BalancerFacts {
    /// When the Service was asked to go; it stays as long as a finalizer does.
    pub deleted: Option<Timestamp>,
    /// `metadata.finalizers`, the first [`from_capacity::FINALIZERS_MAX`] of them.
    pub finalizers: Box<[Arc<str>]>,
    /// `spec.loadBalancerClass`: which controller is to make the balancer.
    pub class: Option<Arc<str>>,
    /// `spec.allocateLoadBalancerNodePorts: false`: the balancer must reach pods without a NodePort.
    pub without_node_ports: bool,
    /// Entries of `status.loadBalancer.ingress` that have a host name and no address.
    pub hostnames: Box<[Arc<str>]>,
    /// The writers of the status, of `managedFields`: two of them may undo each other's work.
    pub writers: Box<[Arc<str>]>,
    /// When one of those writers wrote last, as far as they say.
    pub written: Option<Timestamp>,
}

/// What names of load balancers' finalizers begin with, or have in them.
const LB_FINALIZER_PREFIXES: [&str; 3] =
    ["service.k8s.aws/", "gke.networking.io/l4-", "svccontroller.k3s.cattle.io/"];
const LB_FINALIZER_PARTS: [&str; 2] = ["load-balancer", "loadbalancer"];

/// Whether a finalizer of this name is there to have a load balancer removed.
fn is_balancer_finalizer(finalizer: &str) -> bool {
    LB_FINALIZER_PREFIXES.iter().any(|begin| finalizer.starts_with(begin))
        || LB_FINALIZER_PARTS.iter().any(|part| finalizer.contains(part))
}

impl BalancerFacts {
    /// Whether a controller still has a load balancer to remove before the object may go.
    pub fn has_balancer_finalizer(&self) -> bool {
        self.finalizers.iter().any(|name| is_balancer_finalizer(name))
    }

    /// About how much memory it takes.
    pub(crate) fn bytes(&self) -> usize {
        let texts = self.finalizers.len() + self.hostnames.len() + self.writers.len();
        size_of::<Self>() + texts * super::ENTRY_BYTES
    }
}

/// A text that is kept of an object: cut at a character's end where it is longer than any real one, and made one line,
/// in which `?` stands for each character that cannot be seen or that turns the text beside it around.
pub fn sanitize_text(text: &str) -> Arc<str> {
    let text = text.get(..text.floor_char_boundary(limits::BALANCER_TEXT_LENGTH_MAX)).unwrap_or_default();
    // A character that `escape_debug` escapes is not seen as it is, except for those that need an escape only within
    // quotes.
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
    fn finalizers_of_balancers_are_told_from_others() {
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
