//! Finds the backend of another node with the fewest free SNAT ports.
//!
//! Invariant: a result covers one pass over the table. It counts the first [`BACKENDS_MAX`] backends that the pass
//! meets, to its end.

use std::collections::BTreeMap;

use holdfast_status::datapath::BackendPortUsage;

use crate::abi::flow::{self, types};
use crate::abi::{from_mapped, transport_from_number};

/// How many backends are counted: more than a node's clients reach on other nodes at once. Each takes some 60 bytes
/// during a pass.
const BACKENDS_MAX: usize = 1 << 14;

/// A backend in the record's form, its SNAT address, and the transport.
type PortUsageKey = (flow::RawEndpoint, [u32; 4], u8);

#[derive(Debug, Default)]
pub(super) struct PortUsage(BTreeMap<PortUsageKey, u32>);

impl PortUsage {
    pub(super) fn add_flow(&mut self, it: &types::flow) {
        if it.nat_port == 0 {
            return;
        }
        let key = ((it.backend, it.backend_port), it.nat, it.transport);
        if let Some(count) = self.0.get_mut(&key) {
            *count = count.saturating_add(1);
        } else if self.0.len() < BACKENDS_MAX {
            self.0.insert(key, 1);
        }
    }

    /// Takes the pass's result; the next pass begins empty.
    pub(super) fn take_fullest(&mut self) -> Option<BackendPortUsage> {
        let counts = std::mem::take(&mut self.0);
        let ((backend, nat, transport), taken) = counts.into_iter().max_by_key(|(_, count)| *count)?;
        let transport = transport_from_number(transport)?;
        Some(BackendPortUsage {
            backend: flow::decode_endpoint(backend),
            nat: from_mapped(nat),
            transport,
            used_ports: taken,
        })
    }
}

#[cfg(test)]
mod tests {
    use holdfast_core::keys::Transport;

    use super::*;

    fn flow(backend: &str, transport: u8, nat_port: u16) -> types::flow {
        let (backend, backend_port) = flow::encode_endpoint(backend.parse().unwrap());
        let (nat, _) = flow::encode_endpoint("192.0.2.1:0".parse().unwrap());
        types::flow { backend, backend_port, nat, nat_port, transport, ..types::flow::default() }
    }

    #[test]
    fn the_backend_with_the_most_ports_in_use_is_reported() {
        let mut usage = PortUsage::default();
        for (backend, transport, times) in
            [("10.2.0.5:80", 6, 3), ("10.2.0.5:80", 17, 2), ("[fd00::5]:80", 6, 1), ("10.2.0.6:80", 6, 1)]
        {
            (0..times).for_each(|at| usage.add_flow(&flow(backend, transport, 1_024 + at)));
        }
        usage.add_flow(&flow("10.2.0.7:80", 6, 0));
        let fullest = usage.take_fullest().unwrap();
        let expected = BackendPortUsage {
            backend: "10.2.0.5:80".parse().unwrap(),
            nat: "192.0.2.1".parse().unwrap(),
            transport: Transport::Tcp,
            used_ports: 3,
        };
        assert_eq!(fullest, expected);
        assert_eq!(usage.take_fullest(), None, "another pass begins");
    }

    #[test]
    fn backends_beyond_the_limit_are_not_counted() {
        let mut usage = PortUsage::default();
        for at in 0..u32::try_from(BACKENDS_MAX).unwrap() + 10 {
            usage.add_flow(&types::flow { backend: [at; 4], nat_port: 1, ..types::flow::default() });
        }
        assert_eq!(usage.0.len(), BACKENDS_MAX);
    }
}
