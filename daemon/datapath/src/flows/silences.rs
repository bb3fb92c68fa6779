//! Collects backends that answer no client: each connect to them hangs, as to a pod or a node that is gone.
//!
//! Invariant: a backend is silent if a client has repeated its SYN for [`PATIENCE_SECONDS`], a whole pass has ended
//! since, and no flow of that backend had an answer for [`REFUSAL_SECONDS`]. So one packet in a forged name makes no
//! backend silent, nor does a lost one. An old connection whose client sends nothing but keepalives counts as answered.
//! It keeps at most [`REFUSALS_MAX`](super::refusals::REFUSALS_MAX) backends, for as long as refusals and with their
//! quotas.

use std::collections::{BTreeMap, BTreeSet};

use holdfast_core::keys::Transport;
use holdfast_status::datapath::{
    BackendAnswers, BackendRefusal, BackendRefusals, REFUSAL_SECONDS, is_refusal_current,
};

use super::lifetime::{has_flag, is_encapsulated};
use super::refusals::{flow_backend, keep_refusal};
use crate::abi::flow::types::{self, flow_flag, flow_state};

/// How long a client tries at least: it repeats its SYN after a second, and many give up after two or three.
const PATIENCE_SECONDS: u32 = 1;

#[derive(Debug, Default)]
pub(super) struct SilentBackends {
    /// Unanswered frontends and backends, each with the second of a client's last packet.
    unanswered: BackendRefusals,
    /// The pass that first met each of them.
    first: BTreeMap<BackendRefusal, u64>,
    /// The last packet of any connection that their backends have answered.
    answered: BackendAnswers,
}

/// Whether a client has repeated its SYN for long enough, and nothing came back.
fn is_unanswered(it: &types::flow) -> bool {
    u32::from(it.state) == flow_state::FLOW_OPENING.0
        && has_flag(it.client_flags, flow_flag::FLOW_SYN_SEEN)
        && !has_flag(it.backend_flags, flow_flag::FLOW_SYN_SEEN)
        && !has_flag(it.backend_flags, flow_flag::FLOW_RST_SEEN)
        && it.seen.saturating_sub(it.began) >= PATIENCE_SECONDS
}

/// Whether the backend has agreed to the connection, and has answered the client's last data too: an old connection
/// to a backend that is gone repeats its data.
fn answers_now(it: &types::flow) -> bool {
    has_flag(it.backend_flags, flow_flag::FLOW_SYN_SEEN) && it.unacked == 0
}

impl SilentBackends {
    /// Takes a flow that the sweep meets in a pass. Only TCP opens in a way that a backend has to answer at once.
    pub(super) fn record_flow(&mut self, it: &types::flow, now: u32, pass: u64) {
        let is_recent = now.saturating_sub(it.seen) <= REFUSAL_SECONDS;
        if it.transport != Transport::Tcp.protocol_number() || is_encapsulated(it) || !is_recent {
            return;
        }
        if is_unanswered(it) {
            self.record_unanswered(it, pass);
        } else if !self.unanswered.is_empty() && answers_now(it) {
            let Some(of) = flow_backend(it) else { return };
            if let Some(at) = self.answered.get_mut(&(of.backend, of.transport)) {
                *at = it.seen.max(*at);
            }
        }
    }

    fn record_unanswered(&mut self, it: &types::flow, pass: u64) {
        let Some(of) = flow_backend(it) else { return };
        keep_refusal(of, it.seen, &mut self.unanswered);
        if self.unanswered.contains_key(&of) {
            self.first.entry(of).or_insert(pass);
            self.answered.entry(of.backend()).or_default();
        }
    }

    /// The silent backends by the flows of a whole pass, each with the second of a client's last packet.
    pub(super) fn end_pass(&mut self, now: u32, pass: u64) -> BackendRefusals {
        let Self { unanswered, first, answered } = self;
        unanswered.retain(|of, seen| is_refusal_current(now, *seen, answered.get(&of.backend()).copied()));
        first.retain(|of, _| unanswered.contains_key(of));
        let backends: BTreeSet<_> = unanswered.keys().map(BackendRefusal::backend).collect();
        answered.retain(|backend, _| backends.contains(backend));
        let is_silent = |of: &BackendRefusal| {
            let answered = answered.get(&of.backend()).copied().unwrap_or_default();
            first.get(of).is_some_and(|first| *first < pass) && now.saturating_sub(answered) > REFUSAL_SECONDS
        };
        unanswered.iter().filter(|(of, _)| is_silent(of)).map(|(of, seen)| (*of, *seen)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_status::datapath::REFUSED_SECONDS_MAX;

    use super::super::refusals;
    use crate::abi::flow;

    const NOW: u32 = 200_000;
    const SYN: u32 = flow_flag::FLOW_SYN_SEEN.0;
    const RST: u32 = flow_flag::FLOW_RST_SEEN.0;

    /// A flow of a client that has tried for so long, with the flags of the backend.
    fn flow(tried: u32, backend_flags: u32, backend: &str) -> types::flow {
        let end = |text: &str| flow::encode_endpoint(text.parse().unwrap());
        let ((frontend, frontend_port), (backend, backend_port)) = (end("192.0.2.10:80"), end(backend));
        let state = if backend_flags & SYN == 0 { flow_state::FLOW_OPENING } else { flow_state::FLOW_OPEN };
        types::flow {
            frontend,
            frontend_port,
            backend,
            backend_port,
            transport: Transport::Tcp.protocol_number(),
            state: u8::try_from(state.0).unwrap(),
            client_flags: u8::try_from(SYN).unwrap(),
            backend_flags: u8::try_from(backend_flags).unwrap(),
            began: NOW - tried,
            seen: NOW,
            ..types::flow::default()
        }
    }

    /// The silent backends after passes with these flows each.
    fn silent(passes: &[&[types::flow]]) -> Vec<String> {
        let mut silences = SilentBackends::default();
        let mut last = BackendRefusals::new();
        for (pass, flows) in (0..).zip(passes) {
            flows.iter().for_each(|it| silences.record_flow(it, NOW, pass));
            last = silences.end_pass(NOW, pass);
        }
        last.keys().map(|of| of.backend.to_string()).collect()
    }

    #[test]
    fn a_backend_is_silent_if_no_client_has_an_answer_in_a_whole_pass() {
        let impatient = flow(1, 0, "10.1.0.1:8080");
        assert_eq!(silent(&[&[impatient], &[impatient]]), ["10.1.0.1:8080"]);
        let gone = flow(3, 0, "10.1.0.1:8080");
        let other = flow(9, SYN, "10.1.0.2:8080");
        assert_eq!(silent(&[&[gone], &[gone, other]]), ["10.1.0.1:8080"]);
        assert_eq!(silent(&[&[gone]]), Vec::<String>::new(), "an answered flow may come later in the pass");
        let answered = flow(9, SYN, "10.1.0.1:8080");
        assert_eq!(silent(&[&[gone], &[gone, answered]]), Vec::<String>::new(), "a client lost packets");
        assert_eq!(silent(&[&[gone], &[answered], &[gone]]), Vec::<String>::new(), "it answered lately");
        let old = types::flow { unacked: 1, ..answered };
        assert_eq!(
            silent(&[&[gone, old], &[gone, old]]),
            ["10.1.0.1:8080"],
            "an old connection repeats its data"
        );
        for (why, it) in [
            ("one packet, which may be forged", flow(0, 0, "10.1.0.1:8080")),
            ("a refusal is an answer", flow(3, RST, "10.1.0.1:8080")),
            (
                "answers go another way",
                types::flow { client_flags: u8::try_from(SYN | flow_flag::FLOW_ENCAP.0).unwrap(), ..gone },
            ),
            ("another protocol", types::flow { transport: Transport::Udp.protocol_number(), ..gone }),
            ("long ago", types::flow { seen: NOW - REFUSAL_SECONDS - 1, began: NOW - 99, ..gone }),
        ] {
            assert_eq!(silent(&[&[it], &[it]]), Vec::<String>::new(), "{why}");
        }
    }

    #[test]
    fn silent_backends_are_bounded_and_forgotten() {
        let mut silences = SilentBackends::default();
        for port in 1..=1_000_u16 {
            let it = types::flow { backend_port: port.to_be(), ..flow(3, 0, "10.1.0.1:1") };
            silences.record_flow(&it, NOW, 0);
        }
        assert_eq!(silences.end_pass(NOW, 1).len(), refusals::REFUSALS_MAX);
        assert!(
            silences.first.len() <= refusals::REFUSALS_MAX
                && silences.answered.len() <= refusals::REFUSALS_MAX
        );
        let later = NOW + REFUSAL_SECONDS + 1;
        assert_eq!(silences.end_pass(later, 2).len(), refusals::REFUSALS_MAX, "nobody has tried again");
        let answered = types::flow { seen: later, ..flow(9, SYN, "10.1.0.1:7") };
        silences.record_flow(&answered, later, 3);
        let silent = silences.end_pass(later, 3);
        assert!(silent.keys().all(|it| it.backend.port() != 7) && silent.len() == refusals::REFUSALS_MAX - 1);
        assert!(silences.end_pass(NOW + REFUSED_SECONDS_MAX + 1, 4).is_empty());
        assert!(silences.unanswered.is_empty() && silences.first.is_empty() && silences.answered.is_empty());
    }
}
