//! The control group of a load: clients in the same places that ask the instances themselves, without any translation.
//!
//! Invariant: a question through the proxy may be lost only around a moment in which the control group lost one too. A
//! machine under load drops packets and lets servers wait, and that is no loss of the proxy.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use holdfast_tests::bed::Bed;
use holdfast_tests::bed::queries::{Answers, Queries};

use crate::dns::CLIENTS;

/// Where an instance answers the control group. At the frontend's own port, a pod's question from a port that it used
/// for the frontend a moment ago would belong to that flow.
pub(crate) const CONTROL_PORT: u16 = 54;

/// Per client and instance: often enough to meet a stall of a tenth of a second, and no load of its own.
const PER_SECOND: u32 = 25;

/// A stall reaches the questions sent so long before and after one that was lost in it.
const STALL: Duration = Duration::from_secs(1);

/// The clients, each with the answer of the instance that it asks.
pub(crate) struct Control(Vec<(Ipv4Addr, Queries)>);

impl Control {
    pub(crate) fn start(bed: &Bed, instances: &[(&str, Ipv4Addr)]) -> Self {
        let pairs = instances.iter().flat_map(|instance| CLIENTS.map(|client| (instance, client)));
        let start = |((at, answer), (place, transport, _)): (&(&str, Ipv4Addr), _)| {
            let server: SocketAddr = format!("{at}:{CONTROL_PORT}").parse().unwrap();
            (*answer, bed.queries(place, transport, server, PER_SECOND).unwrap())
        };
        Self(pairs.map(start).collect())
    }

    /// When questions to these instances were lost since the previous call. Fails if hardly any was answered: then
    /// nothing can be said of the proxy.
    #[track_caller]
    pub(crate) fn stalls(&mut self, by: &[Ipv4Addr]) -> Stalls {
        let mut stalls = Vec::new();
        for (instance, client) in &mut self.0 {
            let Answers { by: answers, lost } = client.tally().unwrap();
            if by.contains(instance) {
                let answered: u64 = answers.values().sum();
                assert!(answered > lost.len() as u64, "{instance} answers nobody: {answers:?} {lost:?}");
                stalls.extend(lost.iter().map(|it| it.sent));
            }
        }
        Stalls(stalls)
    }
}

/// The moments in which the control group lost questions.
pub(crate) struct Stalls(Vec<Duration>);

impl Stalls {
    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// Whether a question that was sent then may be lost for the machine's sake.
    pub(crate) fn excuse(&self, sent: Duration) -> bool {
        self.0.iter().any(|stall| stall.abs_diff(sent) <= STALL)
    }
}
