//! Ranks flows for eviction from a full table.
//!
//! Invariant: programs rank by the same rule (`bpf/evict.h`); the test
//! `kernel_programs_and_daemon_evict_the_same_flow` compares both.

use holdfast_core::keys::Transport;

use super::lifetime::{is_closed, is_connection_oriented, is_encapsulated, is_expired, is_stream};
use crate::abi::flow::types::{self, lifetime as life};
use crate::abi::transport_from_number;

/// The idle seconds take the bits below the rank.
const RANK_SHIFT: u32 = 20;

/// The rank of a flow; greater ranks are evicted first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum EvictionRank {
    /// Client or backend may still need it.
    Needed = 0,
    /// A UDP request with a reply, at most `LIFE_TIME_WAIT` ago, or a stream that has paused.
    Fresh = 1,
    /// A stream of datagrams that continues without a reply.
    OneSidedStream = 2,
    /// No reply, and no such stream.
    Unanswered = 3,
    /// A UDP request with a reply, longer ago.
    OldReply = 4,
    /// Both sides have closed it, or its lifetime is over.
    Closed = 5,
}

impl EvictionRank {
    pub(crate) fn from_flow(flow: &types::flow, now: u32) -> Self {
        let since = idle_seconds(flow, now);
        let is_udp = transport_from_number(flow.transport) == Some(Transport::Udp);
        let is_opening = u32::from(flow.state) == types::flow_state::FLOW_OPENING.0;
        // The backend of an encapsulated flow replies past this node.
        let is_one_sided = is_opening || (is_udp && is_encapsulated(flow));
        if is_evictable(flow, now) {
            Self::Closed
        } else if is_one_sided && is_udp && is_stream(flow) && since <= life::LIFE_UNDER_PRESSURE.0 {
            Self::OneSidedStream
        } else if is_one_sided || is_doubtful(flow, now) {
            Self::Unanswered
        } else if is_udp {
            Self::from_udp(is_stream(flow), since)
        } else {
            Self::Needed
        }
    }

    /// Two requests in a client's name, forged or not, get replies too. So a stream is needed only while it continues.
    fn from_udp(is_stream: bool, since: u32) -> Self {
        match is_stream {
            true if since <= life::LIFE_UNDER_PRESSURE.0 => Self::Needed,
            true => Self::Fresh,
            false if since <= life::LIFE_TIME_WAIT.0 => Self::Fresh,
            false => Self::OldReply,
        }
    }
}

/// How long a connection may be idle without counting as doubtful, if only its client is seen.
fn trusted_silence(flow: &types::flow) -> u32 {
    let lasted = flow.seen.wrapping_sub(flow.began).cast_signed();
    u32::try_from(lasted).unwrap_or(0).clamp(life::LIFE_UNDER_PRESSURE.0, life::LIFE_UNANSWERED.0)
}

/// Whether a connection may be forged because only its client is seen: any host can send the SYN, its ACK and more in
/// any name.
fn is_doubtful(flow: &types::flow, now: u32) -> bool {
    is_encapsulated(flow) && is_connection_oriented(flow) && idle_seconds(flow, now) > trusted_silence(flow)
}

fn idle_seconds(flow: &types::flow, now: u32) -> u32 {
    now.saturating_sub(flow.seen)
}

fn is_evictable(flow: &types::flow, now: u32) -> bool {
    let since = idle_seconds(flow, now);
    is_expired(flow, now, 0)
        || (since > life::LIFE_UNDER_PRESSURE.0 && is_closing(flow))
        || (is_connection_oriented(flow) && is_closed(flow) && since > life::LIFE_TIME_WAIT.0)
}

fn is_closing(flow: &types::flow) -> bool {
    if transport_from_number(flow.transport) == Some(Transport::Udp) {
        return u32::from(flow.state) == types::flow_state::FLOW_OPEN.0 && !is_stream(flow);
    }
    let is_client_done =
        is_encapsulated(flow) && u32::from(flow.client_flags) & types::flow_flag::FLOW_FIN_SEEN.0 != 0;
    let is_reset = u32::from(flow.client_flags | flow.backend_flags) & types::flow_flag::FLOW_RST_SEEN.0 != 0;
    is_reset
        || is_client_done
        || u32::from(flow.client_flags & flow.backend_flags) & types::flow_flag::FLOW_FIN_SEEN.0 != 0
}

pub(crate) fn eviction_score(flow: &types::flow, now: u32) -> u32 {
    let most = (1 << RANK_SHIFT) - 1;
    (EvictionRank::from_flow(flow, now) as u32) << RANK_SHIFT | idle_seconds(flow, now).min(most)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How long an encapsulated connection lasted and was idle; whether it is evicted for others.
    const DOUBTED: [(u32, u32, bool); 9] = [
        (0, 10, false),
        (0, 11, true),
        // A third packet in a client's name is as easy to forge as the first two.
        (3, 11, true),
        (60, 60, false),
        (60, 61, true),
        (86_400, 300, false),
        (86_400, 301, true),
        // Another processor's clock was a second behind.
        (u32::MAX, 10, false),
        (u32::MAX, 11, true),
    ];

    #[test]
    fn a_one_sided_connection_is_trusted_as_long_again_as_it_lasted() {
        for (lasted, silent, is_evicted) in DOUBTED {
            let mut flow = types::flow {
                transport: 6,
                state: 2,
                client_flags: u8::try_from(types::flow_flag::FLOW_ENCAP.0).unwrap(),
                seen: 100_000,
                began: 100_000_u32.wrapping_sub(lasted),
                ..types::flow::default()
            };
            let rank = |flow: &types::flow| EvictionRank::from_flow(flow, 100_000 + silent);
            let expected = if is_evicted { EvictionRank::Unanswered } else { EvictionRank::Needed };
            assert_eq!(rank(&flow), expected, "after {lasted} s, silent for {silent} s");
            flow.client_flags = 0;
            assert_eq!(rank(&flow), EvictionRank::Needed, "its backend is seen");
        }
    }

    /// A UDP flow's state, whether it is encapsulated, how long it lasted and was idle, and its rank.
    const CONVERSATIONS: [(types::flow_state, bool, u32, u32, EvictionRank); 12] = [
        (OPENING, false, 0, 0, EvictionRank::Unanswered),
        (OPENING, false, 3, 10, EvictionRank::OneSidedStream),
        (OPENING, false, 86_400, 0, EvictionRank::OneSidedStream),
        (OPENING, false, 86_400, 11, EvictionRank::Unanswered),
        (OPENING, true, 0, 0, EvictionRank::Unanswered),
        (OPEN, true, 3, 10, EvictionRank::OneSidedStream),
        (OPEN, true, 86_400, 11, EvictionRank::Unanswered),
        (OPEN, false, 0, 1, EvictionRank::Fresh),
        (OPEN, false, 0, 2, EvictionRank::OldReply),
        (OPEN, false, 3, 10, EvictionRank::Needed),
        (OPEN, false, 3, 11, EvictionRank::Fresh),
        (OPEN, false, 86_400, 120, EvictionRank::Fresh),
    ];
    const OPENING: types::flow_state = types::flow_state::FLOW_OPENING;
    const OPEN: types::flow_state = types::flow_state::FLOW_OPEN;

    #[test]
    fn a_stream_without_replies_is_evicted_before_flows_with_recent_replies() {
        for (state, is_encapsulated, lasted, silent, expected) in CONVERSATIONS {
            let client_flags = if is_encapsulated { types::flow_flag::FLOW_ENCAP.0 } else { 0 };
            let flow = types::flow {
                transport: 17,
                state: u8::try_from(state.0).unwrap(),
                client_flags: u8::try_from(client_flags).unwrap(),
                seen: 100_000,
                began: 100_000 - lasted,
                ..types::flow::default()
            };
            assert_eq!(
                EvictionRank::from_flow(&flow, 100_000 + silent),
                expected,
                "encapsulated: {is_encapsulated}, after {lasted} s, silent for {silent} s"
            );
        }
    }
}
