//! What the datapath says of itself, for readers: its state, and whom it turned away.
//!
//! Invariant: nobody here touches the maps. The engine publishes a view, the programs' ring buffer gives the refusals.
//! Names of services are the reader's to find, in the snapshot.

mod clients;
mod lines;
mod pace;
mod refusals;

use holdfast_datapath::Status;

pub(crate) use clients::{Clients, Counters};
pub(crate) use refusals::{DENIALS, answering, spelled};
pub use refusals::{Denied, LatestRefusals, RefusalLog};

const KERNEL: &str = "kernel";
const MEMORY: &str = "memory";

/// What [`DatapathView::kind`] may say.
pub(crate) const KINDS: [&str; 2] = [KERNEL, MEMORY];

/// The datapath at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatapathView(Option<Status>);

impl DatapathView {
    /// Tables in memory, which touch no traffic.
    pub const fn memory() -> Self {
        Self(None)
    }

    /// Programs and maps in the kernel.
    pub const fn kernel(status: Status) -> Self {
        Self(Some(status))
    }

    /// What carries the traffic, as the configuration spells it.
    pub const fn kind(&self) -> &'static str {
        if self.0.is_some() { KERNEL } else { MEMORY }
    }

    /// The state of programs and maps, where there are any.
    pub const fn status(&self) -> Option<&Status> {
        self.0.as_ref()
    }
}
