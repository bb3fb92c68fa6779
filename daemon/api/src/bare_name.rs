//! A service's name without its namespace, and the services that it may mean.
//!
//! Invariant: the advice names a service only if this node knows it, or if a `[[service]]` block would be called so.

use holdfast_agent::readings::Readings;
use holdfast_core::keys::ObjectName;

/// The most services that are named.
const NAMED_MAX: usize = 3;

/// The namespace of blocks that name none.
const OF_BLOCKS: &str = "static";

/// A name without a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BareName {
    name: String,
    known: Vec<String>,
    /// The last reload was refused, so that a new block is not known.
    is_reload_refused: bool,
}

impl BareName {
    /// `None`: no service can have this name.
    pub(super) fn parse(name: &str) -> Option<Self> {
        ObjectName::new(OF_BLOCKS, name).ok()?;
        Some(Self { name: name.to_owned(), known: Vec::new(), is_reload_refused: false })
    }

    /// Looks for services with this name in any namespace.
    pub(super) fn find_services(self, readings: &Readings) -> Self {
        let snapshot = readings.snapshot();
        let names = snapshot.services.iter().map(|view| &view.key.name);
        let mut known: Vec<String> =
            names.filter(|it| it.name() == self.name).map(ToString::to_string).collect();
        known.sort();
        known.dedup();
        known.truncate(NAMED_MAX);
        let is_reload_refused = readings.refused_reload.borrow().is_some();
        Self { known, is_reload_refused, ..self }
    }

    /// The advice; `write` writes a service as the client would.
    pub(super) fn text(&self, write: impl Fn(&str) -> String) -> String {
        let Self { name, known, is_reload_refused } = self;
        let example = match known.as_slice() {
            [] => write("default/kubernetes"),
            known => known.iter().map(|it| write(it)).collect::<Vec<_>>().join(" or "),
        };
        let block = format!("{OF_BLOCKS}/{name}");
        let block = match known.contains(&block) {
            true => String::new(),
            false => format!("; a [[service]] block without a namespace is {}", write(&block)),
        };
        let refused = match (known.is_empty(), is_reload_refused) {
            (true, true) => {
                "; the last reload was refused, so new blocks are not known yet (holdfast status)"
            }
            _ => "",
        };
        format!("give the namespace and the name, such as {example}{block}{refused}")
    }
}
