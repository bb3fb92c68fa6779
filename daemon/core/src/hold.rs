//! Holding: the whole policy for a list that would become empty.
//!
//! **The judgement.** The engine judges each service at the moment when a list that had a backend would have none.
//! [`judge()`] looks at the evidence alone: what the service asks for, whether the node reaches the apiserver through
//! it, what happened to each backend of the list, whether the source was interrupted. It refuses a list at once if each
//! backend was seen terminating or is itself listed as unready, and holds a list that went without such a sign. Neither
//! a label that only controllers write nor another unready endpoint is a sign. A service's own `refuse` or `hold`
//! overrides the evidence. A mass loss begins when more than a share of all services lose their lists within a short
//! time, in more than one namespace or in all of one: the world then judges these services once more, together.
//!
//! **The state.** Each port keeps its last list that was not empty, with the members that were seen terminating since;
//! while it is held, that list with the probe results of each backend; afterwards, why the hold ended. A hold writes
//! nothing to the maps when it begins, because they have the old list. It survives restarts and follows a renamed port.
//!
//! **The end.** A hold ends when the service has a list again; when the evidence turns to intent; when no backend is
//! left, because each failed its probes; and at its bound: [`Policy::limit`]; [`UNANSWERED_LIMIT`] if no backend took a
//! probe and none still awaits one, as with UDP; [`HIDDEN_LIMIT`] if a label hides the list from proxies;
//! [`Policy::mass_loss_limit`] in a mass loss. If the source is silent when the bound is reached, the bound starts
//! again: the loss of an apiserver also empties slices, and the agent cannot see them filled again. A source that seems
//! healthy is queried first, because a hung apiserver and a process that was stopped look healthy for a while: the list
//! goes with the answer, and stays without one. Only the node's own path to the apiserver is held without limit.
//! Another object that lists a held address proves nothing, because its writer may err or lie. It only causes one
//! urgent probe of the backend per hold, and a query to the apiserver for the pods at the address. If a pod runs there
//! and the held endpoint's pod does not, the address leaves the hold at once; the other addresses stay.
//!
//! **The probes.** The agent probes an endpoint of an apiserver's object only at an address that a pod can have: a
//! tenant's slice must not make a node probe the hosts of other nodes. Other endpoints are held to their bound
//! unprobed.
//!
//! | module | owns |
//! |---|---|
//! | `judge` | the pure decision and its evidence |
//! | `held_list` | a held list, its probes and deadlines |
//! | `ledger` | which holds are in force, and what may end them |
//! | `pods` | which pod has a held address now |
//! | `losses` | the recent losses of each namespace's services, and whether they are a mass loss |
//! | `silence` | which sources cannot report endpoints now, and what they answered |
//!
//! Invariant: pure. Every hold has a bound once its source reports again, except that of the node's own path to the
//! apiserver. The agent probes and queries sources; the world marks services dirty, with a cause for each.

mod held_list;
mod judge;
mod ledger;
mod losses;
mod pods;
mod silence;

pub(crate) use held_list::ListHistory;
pub use held_list::{
    FAILURES_MAX, HIDDEN_LIMIT, HeldBackend, Hold, ProbeAnswer, ProbeResult, ProbeState, QUERY_SECONDS,
    UNANSWERED_LIMIT,
};
pub use judge::{Bound, Evidence, Judgement, MASS_LOSS_MIN, OnEmpty, Policy, RESYNC_WINDOW, judge};
pub(crate) use judge::{EmptyList, HiddenAddresses, HoldContext};
pub(crate) use ledger::Ledger;
pub(crate) use losses::{ListPresence, MassLoss};
pub use pods::PodsAt;
