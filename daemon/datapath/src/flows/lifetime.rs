//! How long a flow lives without a packet.
//!
//! Invariant: programs apply the same rule (`bpf/conntrack.h`). The daemon waits for [`EXPIRY_MARGIN`] beyond the
//! lifetime, so no program can revive a flow that it is removing.

use holdfast_core::keys::Transport;
use holdfast_status::datapath::Stage;

use crate::abi::flow::types::{self, flow_flag, flow_state, lifetime as life};
use crate::abi::transport_from_number;

/// Seconds: much longer than a program takes for a packet after it found the flow alive.
pub(super) const EXPIRY_MARGIN: u32 = 2;

/// The stage of a flow. `None`: the record is free, or no program wrote it.
pub(super) fn decode_stage(flow: &types::flow) -> Option<Stage> {
    let [client, backend] = [flow.client_flags, flow.backend_flags];
    // UDP has no such flags, whatever the bits say.
    let connects = is_connection_oriented(flow);
    if !has_state(flow, flow_state::FLOW_OPENING) && !has_state(flow, flow_state::FLOW_OPEN) {
        None
    } else if connects && has_flag(client | backend, flow_flag::FLOW_RST_SEEN) {
        Some(Stage::Reset)
    } else if has_state(flow, flow_state::FLOW_OPENING) {
        Some(Stage::Opening)
    } else if connects && has_flag(client & backend, flow_flag::FLOW_FIN_SEEN) {
        Some(Stage::Closed)
    } else if connects && has_flag(client | backend, flow_flag::FLOW_FIN_SEEN) {
        Some(Stage::HalfClosed)
    } else {
        Some(Stage::Open)
    }
}

/// Seconds without a packet after which the flow has expired; `None`: no program wrote it.
pub(super) fn lifetime_seconds(flow: &types::flow) -> Option<u32> {
    let seconds = match (decode_stage(flow)?, transport_from_number(flow.transport)?) {
        (Stage::Opening, _) => life::LIFE_OPENING,
        (_, Transport::Udp) if is_stream(flow) => life::LIFE_UDP,
        (_, Transport::Udp) => life::LIFE_UDP_BRIEF,
        (Stage::Open, _) => life::LIFE_TCP,
        (Stage::HalfClosed, _) if is_encapsulated(flow) => life::LIFE_RESET_BY_CLIENT,
        (Stage::HalfClosed, _) => life::LIFE_HALF_CLOSED,
        (Stage::Closed, _) => life::LIFE_CLOSED,
        (Stage::Reset, _) if has_state(flow, flow_state::FLOW_OPENING) => life::LIFE_OPENING,
        (Stage::Reset, _) if has_backend_ended(flow) => life::LIFE_RESET,
        (Stage::Reset, _) => life::LIFE_RESET_BY_CLIENT,
    };
    Some(if awaits_reply(flow) { seconds.0.min(life::LIFE_UNANSWERED.0) } else { seconds.0 })
}

/// Whether the backend still owes a reply that this node would see.
fn awaits_reply(flow: &types::flow) -> bool {
    flow.unacked != 0 && is_connection_oriented(flow) && !is_encapsulated(flow)
}

/// Whether the client's packets are encapsulated to another node. Then this node does not see the backend's replies.
pub(super) fn is_encapsulated(flow: &types::flow) -> bool {
    has_flag(flow.client_flags, flow_flag::FLOW_ENCAP)
}

/// Whether client and backend open and close a connection.
pub(super) fn is_connection_oriented(flow: &types::flow) -> bool {
    matches!(transport_from_number(flow.transport), Some(Transport::Tcp | Transport::Sctp))
}

/// Whether a flow is more than a request and its reply: its packets continue for longer.
pub(super) fn is_stream(flow: &types::flow) -> bool {
    flow.seen.wrapping_sub(flow.began).cast_signed() > life::STREAM_AFTER.0.cast_signed()
}

/// Whether the backend's segments, not the client's alone, close the connection.
pub(super) fn is_closed(flow: &types::flow) -> bool {
    has_flag(flow.client_flags & flow.backend_flags, flow_flag::FLOW_FIN_SEEN)
        || has_flag(flow.backend_flags, flow_flag::FLOW_RST_SEEN)
        || (has_flag(flow.client_flags, flow_flag::FLOW_RST_SEEN)
            && has_flag(flow.backend_flags, flow_flag::FLOW_FIN_SEEN))
}

/// Whether the backend has ended a reset connection. Any host can send a RST in a client's name.
fn has_backend_ended(flow: &types::flow) -> bool {
    has_flag(flow.backend_flags, flow_flag::FLOW_RST_SEEN)
        || has_flag(flow.backend_flags, flow_flag::FLOW_FIN_SEEN)
}

fn has_state(flow: &types::flow, state: flow_state) -> bool {
    u32::from(flow.state) == state.0
}

pub(super) fn has_flag(bits: u8, bit: flow_flag) -> bool {
    u32::from(bits) & bit.0 != 0
}

/// Whether the flow has been idle for longer than its lifetime and `margin`. A packet that another processor saw after
/// `now` was read does not expire it.
pub(super) fn is_expired(flow: &types::flow, now: u32, margin: u32) -> bool {
    lifetime_seconds(flow)
        .is_some_and(|lifetime| now.saturating_sub(flow.seen) > lifetime.saturating_add(margin))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    const TCP: u8 = 6;
    const UDP: u8 = 17;
    const SCTP: u8 = 132;
    const OPENING: u8 = 1;
    const OPEN: u8 = 2;
    const SYN: u8 = 1;
    const FIN: u8 = 2;
    const RST: u8 = 4;
    const WRAPPED: u8 = 8;

    /// Flows and their lifetimes: transport, state, client's flags, backend's flags, unacked; how long the flow has had
    /// packets; the lifetime. A test of the programs uses this table too.
    pub(crate) const LIFETIMES: [([u8; 5], u32, u32); 47] = [
        ([TCP, OPENING, 0, 0, 0], 0, 30),
        ([TCP, OPENING, SYN, 0, 0], 0, 30),
        ([TCP, OPENING, SYN, SYN, 0], 9, 30),
        ([TCP, OPENING, SYN | FIN, 0, 0], 0, 30),
        ([TCP, OPENING, SYN, RST, 0], 0, 30),
        ([TCP, OPENING, SYN | RST, SYN, 0], 0, 30),
        ([TCP, OPEN, SYN, SYN, 0], 0, 86_400),
        ([TCP, OPEN, 0, 0, 0], 9, 86_400),
        ([TCP, OPEN, SYN | FIN, SYN, 0], 0, 3_600),
        ([TCP, OPEN, SYN, SYN | FIN, 0], 9, 3_600),
        ([TCP, OPEN, SYN | FIN, SYN | FIN, 0], 9, 120),
        ([TCP, OPEN, RST, SYN, 0], 9, 600),
        ([TCP, OPEN, SYN | FIN | RST, SYN, 0], 0, 600),
        ([TCP, OPEN, SYN, RST, 0], 9, 30),
        ([TCP, OPEN, SYN | RST, SYN | FIN, 0], 9, 30),
        ([TCP, OPEN, SYN | FIN, SYN | FIN | RST, 0], 9, 30),
        ([TCP, OPENING, SYN, SYN, 1], 0, 30),
        ([TCP, OPEN, SYN, SYN, 1], 0, 300),
        ([TCP, OPEN, SYN, SYN, 2], 9, 300),
        ([TCP, OPEN, SYN | FIN, SYN, 1], 9, 300),
        ([TCP, OPEN, SYN | FIN, SYN | FIN, 1], 9, 120),
        ([TCP, OPEN, SYN | RST, SYN, 2], 9, 300),
        ([TCP, OPEN, SYN, RST, 1], 9, 30),
        ([SCTP, OPENING, SYN, 0, 0], 0, 30),
        ([SCTP, OPEN, SYN, SYN, 0], 9, 86_400),
        ([SCTP, OPEN, SYN, SYN, 1], 9, 300),
        ([SCTP, OPEN, SYN | FIN, SYN, 0], 9, 3_600),
        ([SCTP, OPEN, SYN | FIN, SYN | FIN, 1], 9, 120),
        ([SCTP, OPEN, SYN | RST, SYN, 0], 9, 600),
        ([SCTP, OPEN, SYN, SYN | RST, 0], 9, 30),
        ([SCTP, OPENING, SYN, RST, 0], 9, 30),
        ([TCP, OPENING, SYN | WRAPPED, 0, 0], 0, 30),
        ([TCP, OPEN, SYN | WRAPPED, 0, 0], 0, 86_400),
        ([TCP, OPEN, SYN | WRAPPED, 0, 2], 9, 86_400),
        ([TCP, OPEN, SYN | FIN | WRAPPED, 0, 0], 9, 600),
        ([TCP, OPEN, SYN | RST | WRAPPED, 0, 0], 9, 600),
        ([UDP, OPENING, WRAPPED, 0, 0], 2, 30),
        ([UDP, OPEN, WRAPPED, 0, 0], 9, 120),
        ([UDP, OPENING, 0, 0, 0], 0, 30),
        ([UDP, OPENING, 0, 0, 0], 9, 30),
        // Another processor's clock was a second behind.
        ([UDP, OPEN, 0, 0, 0], u32::MAX, 30),
        ([UDP, OPEN, 0, 0, 0], 0, 30),
        ([UDP, OPEN, 0, 0, 0], 2, 30),
        ([UDP, OPEN, 0, 0, 0], 3, 120),
        ([UDP, OPEN, SYN | FIN, FIN, 0], 9, 120),
        ([UDP, OPEN, RST, 0, 0], 9, 120),
        ([UDP, OPEN, 0, 0, 1], 9, 120),
    ];

    fn flow([transport, state, client_flags, backend_flags, unacked]: [u8; 5], lived: u32) -> types::flow {
        let began = 1_000_u32.wrapping_sub(lived);
        types::flow {
            transport,
            state,
            client_flags,
            backend_flags,
            unacked,
            seen: 1_000,
            began,
            ..types::flow::default()
        }
    }

    #[test]
    fn a_flows_state_and_flags_decide_its_lifetime() {
        for (case, lived, expected) in LIFETIMES {
            assert_eq!(lifetime_seconds(&flow(case, lived)), Some(expected), "{case:?} after {lived} s");
        }
    }

    #[test]
    fn a_flow_expires_just_after_the_last_second_of_its_lifetime() {
        for (case, lived, seconds) in LIFETIMES {
            let flow = flow(case, lived);
            let ends = flow.seen + seconds;
            for (now, margin, expected) in [
                (flow.seen, 0, false),
                // Another processor's clock was a second ahead.
                (flow.seen - 1, 0, false),
                (0, 0, false),
                (ends, 0, false),
                (ends + 1, 0, true),
                (ends + 1, EXPIRY_MARGIN, false),
                (ends + EXPIRY_MARGIN, EXPIRY_MARGIN, false),
                (ends + EXPIRY_MARGIN + 1, EXPIRY_MARGIN, true),
            ] {
                assert_eq!(is_expired(&flow, now, margin), expected, "{case:?} at {now} and {margin}");
            }
        }
    }

    #[test]
    fn a_record_that_no_program_wrote_never_expires() {
        for strange in [[TCP, 0, 0, 0, 0], [TCP, 3, 0, 0, 0], [0, OPEN, 0, 0, 0], [33, OPENING, 0, 0, 1]] {
            assert_eq!(lifetime_seconds(&flow(strange, 0)), None, "{strange:?}");
            assert!(!is_expired(&flow(strange, 0), u32::MAX, 0), "{strange:?}");
        }
    }
}
