//! Collects backends that refused outside clients, as the sweep meets their flows.
//!
//! Invariant: it keeps at most [`REFUSALS_MAX`] refusals, each for [`REFUSED_SECONDS_MAX`], and no namespace displaces
//! another that has fewer. Refusals that bypass this node are not seen. Any host can send packets in a backend's name,
//! so a refusal is a reason to check, not a verdict.

use std::collections::BTreeMap;

use holdfast_core::op::QuotaId;
use holdfast_status::datapath::{
    BackendAnswers, BackendEndpoint, BackendRefusal, BackendRefusals, FlowSweepProgress, REFUSAL_SECONDS,
    REFUSED_SECONDS_MAX,
};

use super::lifetime::{has_flag, is_connection_oriented, is_encapsulated};
use crate::abi::flow::types::{self, flow_flag, flow_state};
use crate::abi::{flow, transport_from_number};

/// How many refusals are kept; the checks that follow have their own limit. A tenant can cause any number of refusals,
/// most for services without checks.
pub(super) const REFUSALS_MAX: usize = 256;

/// Seconds after a client's packet in which an answer may still be on its way.
const ANSWER_SECONDS: u32 = 1;

/// Whether the backend refuses the client: it resets a connection that it never opened, or its port is closed.
fn is_refused(it: &types::flow) -> bool {
    let has = |bit| has_flag(it.backend_flags, bit);
    if !is_connection_oriented(it) {
        return has(flow_flag::FLOW_UNREACHABLE_SEEN);
    }
    let is_opening = u32::from(it.state) == flow_state::FLOW_OPENING.0;
    is_opening && has(flow_flag::FLOW_RST_SEEN) && !has(flow_flag::FLOW_SYN_SEEN)
}

pub(super) fn record_refusal(it: &types::flow, now: u32, refusing: &mut BackendRefusals) {
    if !is_refused(it) || now.saturating_sub(it.seen) > REFUSAL_SECONDS {
        return;
    }
    if let Some(refusal) = flow_backend(it) {
        keep_refusal(refusal, it.seen, refusing);
    }
}

/// Keeps a refusal, or its latest time, if there is room for its quota.
pub fn keep_refusal(refusal: BackendRefusal, at: u32, refusing: &mut BackendRefusals) {
    if let Some(seen) = refusing.get_mut(&refusal) {
        *seen = at.max(*seen);
    } else if refusing.len() < REFUSALS_MAX || evict_oldest(refusal.quota, refusing) {
        refusing.insert(refusal, at);
    }
}

/// Whether the backend has agreed to the connection, or replied to the datagram.
fn has_answered(it: &types::flow) -> bool {
    let has = |bit| has_flag(it.backend_flags, bit);
    if is_connection_oriented(it) {
        return has(flow_flag::FLOW_SYN_SEEN);
    }
    u32::from(it.state) == flow_state::FLOW_OPEN.0 && !has(flow_flag::FLOW_UNREACHABLE_SEEN)
}

/// Notes an answer of a backend that has refused clients. It has to answer a connection that began later.
pub(super) fn record_answer(it: &types::flow, answers: &mut BackendAnswers) {
    if answers.is_empty() || !has_answered(it) {
        return;
    }
    let backend = flow_backend(it).map(|it| it.backend());
    if let Some(latest) = backend.and_then(|backend| answers.get_mut(&backend)) {
        *latest = it.began.max(*latest);
    }
}

/// Notes a client of such a backend that has no answer, nor a refusal, after [`ANSWER_SECONDS`]. Only connections are
/// owed one.
pub(super) fn record_unanswered(it: &types::flow, now: u32, swept: &mut FlowSweepProgress) {
    let is_late = now.saturating_sub(it.seen) >= ANSWER_SECONDS;
    let is_owed = is_connection_oriented(it) && is_late && !is_encapsulated(it);
    if swept.answers.is_empty() || !is_owed || has_answered(it) || is_refused(it) {
        return;
    }
    let backend = flow_backend(it).map(|it| it.backend()).filter(|it| swept.answers.contains_key(it));
    if let Some(backend) = backend {
        let latest = swept.unanswered.entry(backend).or_default();
        *latest = it.seen.max(*latest);
    }
}

/// The backends whose answers the next pass looks for.
pub(super) fn select_answers(refused: impl Iterator<Item = BackendEndpoint>, answers: &mut BackendAnswers) {
    let former = std::mem::take(answers);
    *answers = refused.map(|it| (it, former.get(&it).copied().unwrap_or_default())).collect();
}

/// The frontend and the backend of a flow. `None`: no program wrote it.
pub(super) fn flow_backend(it: &types::flow) -> Option<BackendRefusal> {
    let endpoint = |address, port| flow::decode_endpoint((address, port));
    let quota = u16::try_from(it.port_and_share >> types::flow_part::FLOW_SHARE_AT.0).unwrap_or_default();
    Some(BackendRefusal {
        quota: QuotaId(quota),
        frontend: endpoint(it.frontend, it.frontend_port),
        transport: transport_from_number(it.transport)?,
        backend: endpoint(it.backend, it.backend_port),
    })
}

/// Removes the oldest refusal of the quota with the most, if that has at least two more than this one.
pub(super) fn evict_oldest(quota: QuotaId, refusing: &mut BackendRefusals) -> bool {
    let mut counts = BTreeMap::<QuotaId, usize>::new();
    refusing.keys().for_each(|it| *counts.entry(it.quota).or_default() += 1);
    let own = counts.get(&quota).copied().unwrap_or_default();
    let Some((most, count)) = counts.into_iter().max_by_key(|(_, count)| *count) else { return false };
    let evictable = refusing.iter().filter(|(it, _)| it.quota == most && count > own + 1);
    let oldest = evictable.min_by_key(|(_, seen)| **seen).map(|(it, _)| *it);
    oldest.is_some_and(|it| refusing.remove(&it).is_some())
}

pub(crate) fn expire_refusals(now: u32, refusing: &mut BackendRefusals) {
    refusing.retain(|_, seen| now.saturating_sub(*seen) <= REFUSED_SECONDS_MAX);
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use holdfast_core::keys::Transport;

    use super::*;

    const NOW: u32 = 200_000;

    /// A flow with the flags of its backend.
    fn flow(transport: Transport, is_open: bool, backend_flags: u32, seen: u32, client: u16) -> types::flow {
        let end = |text: &str| flow::encode_endpoint(text.parse().unwrap());
        let ((frontend, frontend_port), (backend, backend_port)) =
            (end("192.0.2.10:80"), end("10.1.0.1:8080"));
        let state = if is_open { flow_state::FLOW_OPEN } else { flow_state::FLOW_OPENING };
        types::flow {
            frontend,
            frontend_port,
            backend,
            backend_port,
            client_port: client,
            transport: transport.protocol_number(),
            state: u8::try_from(state.0).unwrap(),
            backend_flags: u8::try_from(backend_flags).unwrap(),
            seen,
            ..types::flow::default()
        }
    }

    fn seen_at(it: &types::flow) -> Option<u32> {
        let mut refusing = BackendRefusals::new();
        record_refusal(it, NOW, &mut refusing);
        refusing.into_values().next()
    }

    #[test]
    fn a_reset_before_opening_or_a_closed_port_is_a_refusal() {
        let [syn, fin, rst] =
            [flow_flag::FLOW_SYN_SEEN.0, flow_flag::FLOW_FIN_SEEN.0, flow_flag::FLOW_RST_SEEN.0];
        let refusal = flow_flag::FLOW_UNREACHABLE_SEEN.0;
        use Transport::{Sctp, Tcp, Udp};
        for (rule, transport, is_open, flags, expected) in [
            ("a reset", Tcp, false, rst, true),
            ("an abort", Sctp, false, rst, true),
            ("a closed port", Udp, false, refusal, true),
            ("a closed port after a reply", Udp, true, refusal, true),
            ("nothing yet", Tcp, false, 0, false),
            ("opened first", Tcp, false, syn | rst, false),
            ("a reset of an open connection", Tcp, true, syn | rst, false),
            ("an orderly close", Tcp, true, syn | fin, false),
            ("a datagram with a reply", Udp, true, 0, false),
            ("a flag that TCP never sets", Tcp, false, refusal, false),
        ] {
            let it = flow(transport, is_open, flags, NOW - 1, 1);
            assert_eq!(seen_at(&it), expected.then_some(NOW - 1), "{rule}");
        }
        assert_eq!(seen_at(&flow(Tcp, false, rst, NOW - REFUSAL_SECONDS - 1, 1)), None, "long ago");
    }

    #[test]
    fn refusals_are_bounded_deduplicated_and_expire() {
        let rst = flow_flag::FLOW_RST_SEEN.0;
        let mut refusing = BackendRefusals::new();
        for (seen, client) in [(NOW - 9, 1), (NOW - 3, 2), (NOW - 5, 3)] {
            record_refusal(&flow(Transport::Tcp, false, rst, seen, client), NOW, &mut refusing);
        }
        let expected = BackendRefusal {
            quota: QuotaId(0),
            frontend: "192.0.2.10:80".parse().unwrap(),
            transport: Transport::Tcp,
            backend: "10.1.0.1:8080".parse().unwrap(),
        };
        assert_eq!(
            refusing,
            BackendRefusals::from([(expected, NOW - 3)]),
            "one refusal for all clients, the latest"
        );
        for port in 1..1_000_u16 {
            let it = types::flow { backend_port: port.to_be(), ..flow(Transport::Tcp, false, rst, NOW, 1) };
            record_refusal(&it, NOW, &mut refusing);
        }
        assert_eq!(refusing.len(), REFUSALS_MAX);
        expire_refusals(NOW - 3 + REFUSED_SECONDS_MAX, &mut refusing);
        assert!(refusing.contains_key(&expected));
        expire_refusals(NOW + REFUSED_SECONDS_MAX + 1, &mut refusing);
        assert!(refusing.is_empty());
    }

    #[test]
    fn only_an_answer_of_a_backend_that_refused_is_noted() {
        let [syn, rst] = [flow_flag::FLOW_SYN_SEEN.0, flow_flag::FLOW_RST_SEEN.0];
        let began = |it: types::flow| types::flow { began: NOW - 5, ..it };
        let backend: SocketAddr = "10.1.0.1:8080".parse().unwrap();
        for (rule, transport, is_open, flags, expected) in [
            ("an answer", Transport::Tcp, true, syn, NOW - 5),
            ("an answer, then a reset", Transport::Tcp, true, syn | rst, NOW - 5),
            ("a refusal", Transport::Tcp, false, rst, 0),
            ("a reply", Transport::Udp, true, 0, NOW - 5),
            ("a closed port", Transport::Udp, true, flow_flag::FLOW_UNREACHABLE_SEEN.0, 0),
            ("nothing yet", Transport::Udp, false, 0, 0),
        ] {
            let mut answers = BackendAnswers::new();
            let it = began(flow(transport, is_open, flags, NOW, 1));
            record_answer(&it, &mut answers);
            assert!(answers.is_empty(), "{rule}: it has refused nobody");
            select_answers([(backend, transport)].into_iter(), &mut answers);
            record_answer(&it, &mut answers);
            assert_eq!(answers.values().copied().collect::<Vec<_>>(), [expected], "{rule}");
            select_answers([(backend, transport)].into_iter(), &mut answers);
            assert_eq!(answers.values().copied().collect::<Vec<_>>(), [expected], "{rule}: it stays");
            select_answers([].into_iter(), &mut answers);
            assert!(answers.is_empty(), "{rule}");
        }
    }

    #[test]
    fn a_client_without_an_answer_is_noted_for_a_backend_that_failed_others() {
        let [syn, rst, encap] =
            [flow_flag::FLOW_SYN_SEEN.0, flow_flag::FLOW_RST_SEEN.0, flow_flag::FLOW_ENCAP.0];
        let of_client = |flags: u32| types::flow {
            client_flags: u8::try_from(flags).unwrap(),
            ..flow(Transport::Tcp, false, 0, NOW - 1, 1)
        };
        let backend: BackendEndpoint = ("10.1.0.1:8080".parse().unwrap(), Transport::Tcp);
        for (rule, it, expected) in [
            ("no answer", of_client(syn), Some(NOW - 1)),
            ("it may be on its way", types::flow { seen: NOW, ..of_client(syn) }, None),
            ("a refusal", flow(Transport::Tcp, false, rst, NOW - 1, 1), None),
            ("an answer", flow(Transport::Tcp, true, syn, NOW - 1, 1), None),
            ("answers go another way", of_client(syn | encap), None),
        ] {
            let mut swept = FlowSweepProgress::default();
            record_unanswered(&it, NOW, &mut swept);
            assert!(swept.unanswered.is_empty(), "{rule}: the backend has failed nobody");
            select_answers([backend].into_iter(), &mut swept.answers);
            record_unanswered(&it, NOW, &mut swept);
            assert_eq!(swept.unanswered.get(&backend).copied(), expected, "{rule}");
        }
        let mut swept = FlowSweepProgress::default();
        select_answers([(backend.0, Transport::Udp)].into_iter(), &mut swept.answers);
        record_unanswered(&flow(Transport::Udp, false, 0, NOW - 1, 1), NOW, &mut swept);
        assert!(swept.unanswered.is_empty(), "a datagram may want no reply");
    }

    /// Records refusals of so many backends of a quota, the first of them the oldest.
    fn refuse(share: u32, backends: u16, refusing: &mut BackendRefusals) {
        for port in 1..=backends {
            let refused =
                flow(Transport::Tcp, false, flow_flag::FLOW_RST_SEEN.0, NOW - 20 + u32::from(port > 9), 1);
            let port_and_share = share << types::flow_part::FLOW_SHARE_AT.0 | 7;
            record_refusal(
                &types::flow { backend_port: port.to_be(), port_and_share, ..refused },
                NOW,
                refusing,
            );
        }
    }

    #[test]
    fn refusals_of_one_quota_do_not_displace_those_of_another() {
        let count = |share: u16, refusing: &BackendRefusals| {
            refusing.keys().filter(|it| it.quota == QuotaId(share)).count()
        };
        let mut refusing = BackendRefusals::new();
        refuse(1, 1_000, &mut refusing);
        refuse(2, 3, &mut refusing);
        assert_eq!([1, 2].map(|share| count(share, &refusing)), [REFUSALS_MAX - 3, 3]);
        refuse(1, 2_000, &mut refusing);
        assert_eq!(count(2, &refusing), 3, "the quota with the most evicts only its own");
        refuse(3, 1_000, &mut refusing);
        let each = [1, 2, 3].map(|share| count(share, &refusing));
        assert_eq!((each[1], each.iter().sum()), (3, REFUSALS_MAX));
        assert!(each[0].abs_diff(each[2]) <= 1, "{each:?}");
    }
}
