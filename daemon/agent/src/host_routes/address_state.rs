//! Judges whether this node can serve an address, by the table that clients meet.
//!
//! Invariant: pure. A router sends all packets for an address to its announcer, so the worst of its announced
//! frontends decides. The cluster's objects about a node do not count. A block that was not read proves nothing,
//! least of all that it has gone.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use holdfast_core::facts::ObjectKey;
use holdfast_core::keys::{ObjectName, Protocol, Source, Transport};
use holdfast_core::snapshot::{FrontendView, Rejections, ServiceView, ServiceViews, Status, Verdict};
use holdfast_core::weights::Weight;

use holdfast_config::{Announce, ServiceBlock};
use holdfast_standalone::blocks::FIRST_INTERVAL_MAX;

/// The state of each address to announce.
pub(super) type AddressStates = BTreeMap<IpAddr, AddressState>;

/// Whether an address is served; a worse state is greater.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ServingState {
    Served,
    /// No source has reported the address yet, for this reason: its route stays until one does.
    Unreported(String),
    Undecided(String),
    /// It is not served, for this reason.
    Unserved(String),
}

impl ServingState {
    pub(super) fn reason(&self) -> Option<&str> {
        match self {
            Self::Served => None,
            Self::Unreported(why) | Self::Undecided(why) | Self::Unserved(why) => Some(why),
        }
    }

    /// The same state, limited by whether packets from outside are translated.
    fn limit_by_packets(self, takes_packets: bool) -> Self {
        if takes_packets {
            return self;
        }
        self.max(Self::Undecided("packets are not translated at each device".to_owned()))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AddressState {
    pub(super) serving: ServingState,
    /// How long silent backends may still count as usable: until the first checks of all backends are due.
    pub(super) checked_after: Duration,
}

impl AddressState {
    /// Why the address is not announced, or not normally.
    pub(super) fn pending_reason(&self, is_there: bool) -> Option<String> {
        match self.serving.reason() {
            None if !is_there => Some("it is served, and announced once that has lasted".to_owned()),
            why => why.map(str::to_owned),
        }
    }
}

pub(super) fn judge_blocks<'b>(
    blocks: impl IntoIterator<Item = &'b ServiceBlock>,
    services: &ServiceViews,
    takes_packets: bool,
) -> AddressStates {
    let mut standings = AddressStates::new();
    for block in blocks.into_iter().filter(|block| block.announce == Announce::Route) {
        let checked_after = first_check_time(block);
        for (address, judged) in block_states(block, services) {
            let judged = judged.limit_by_packets(takes_packets);
            let standing = standings
                .entry(address)
                .or_insert(AddressState { serving: ServingState::Served, checked_after });
            standing.checked_after = standing.checked_after.max(checked_after);
            if standing.serving < judged {
                standing.serving = judged;
            }
        }
    }
    standings
}

/// The addresses that a former process announced, each with the services that may have caused it.
pub(super) type FormerAddresses = BTreeMap<IpAddr, BTreeSet<ObjectName>>;

/// Finds the announced addresses in the table that the start began with. Of two services at one address, one that was
/// already unserved cannot be the cause, or there would be no route.
pub(super) fn former_addresses(
    announced: impl Iterator<Item = IpAddr>,
    services: &ServiceViews,
) -> FormerAddresses {
    let mut found: BTreeMap<IpAddr, BTreeMap<ObjectName, bool>> =
        announced.map(|address| (address, BTreeMap::new())).collect();
    if found.is_empty() {
        return FormerAddresses::new();
    }
    for view in services.iter().filter(|view| view.key.source == Source::Config) {
        for row in &*view.frontends {
            let Some(names) = found.get_mut(&row.address) else { continue };
            let is_lost = matches!(frontend_state(view, row), ServingState::Unserved(_));
            *names.entry(view.key.name.clone()).or_default() |= is_lost;
        }
    }
    let of_address = |(address, names): (IpAddr, BTreeMap<ObjectName, bool>)| {
        let are_all_lost = names.values().all(|is_lost| *is_lost);
        let names = names.into_iter().filter(|(_, is_lost)| are_all_lost || !is_lost);
        (address, names.map(|(name, _)| name).collect())
    };
    found.into_iter().map(of_address).collect()
}

pub(super) struct UnreadFiles<'u> {
    /// The services of blocks that were read.
    pub(super) read: BTreeSet<ObjectName>,
    pub(super) services: &'u ServiceViews,
    pub(super) rejections: &'u Rejections,
    /// Whether every existing file was read.
    pub(super) is_complete: bool,
}

impl UnreadFiles<'_> {
    /// Judges an address by the table alone; `None` if no block can have it any more.
    pub(super) fn judge_former(&self, address: IpAddr, names: &BTreeSet<ObjectName>) -> Option<ServingState> {
        let unread = names.iter().filter(|name| !self.read.contains(*name));
        let views =
            unread.filter_map(|name| self.services.find_by_name(name).find(|it| self.may_be_unread(it)));
        let worst = views.flat_map(|view| frontend_states(view, address)).max();
        match (worst, self.is_complete) {
            (None, true) => None,
            (None, false) => {
                Some(ServingState::Unreported("the files of services are not read yet".to_owned()))
            }
            (Some(ServingState::Undecided(why)), false) => Some(ServingState::Unreported(why)),
            (Some(worst), _) => Some(worst),
        }
    }

    fn may_be_unread(&self, view: &ServiceView) -> bool {
        let file = || view.facts.as_ref()?.meta.origin.clone();
        let is_rejected = |file| self.rejections.named.contains_key(&ObjectKey::File(Source::Config, file));
        view.key.source == Source::Config && (!self.is_complete || file().is_some_and(is_rejected))
    }
}

fn frontend_states(view: &ServiceView, address: IpAddr) -> impl Iterator<Item = ServingState> {
    view.frontends.iter().filter(move |row| row.address == address).map(move |row| frontend_state(view, row))
}

/// Adds a former process's addresses that no block names but an unread one may.
pub(super) fn keep_former(
    standings: &mut AddressStates,
    former: &FormerAddresses,
    unread: &UnreadFiles<'_>,
    takes_packets: bool,
) {
    for (address, names) in former {
        if !standings.contains_key(address)
            && let Some(judged) = unread.judge_former(*address, names)
        {
            let (judged, checked_after) = (judged.limit_by_packets(takes_packets), Duration::ZERO);
            standings.insert(*address, AddressState { serving: judged, checked_after });
        }
    }
}

/// The longest time to the first verdict of a backend that is silent, or that answers each time.
fn first_check_time(block: &ServiceBlock) -> Duration {
    let Some(check) = &block.health_check else { return Duration::ZERO };
    // Jitter lengthens the pause, but never doubles it.
    let pause = check.interval.min(FIRST_INTERVAL_MAX).saturating_mul(2);
    check.timeout.saturating_add(pause).saturating_mul(check.rise.max(check.fall))
}

fn block_states(block: &ServiceBlock, services: &ServiceViews) -> Vec<(IpAddr, ServingState)> {
    let name = ObjectName::new(block.namespace.as_str(), block.name.as_str()).ok();
    let view = name.and_then(|name| {
        services.find_by_name(&name).find(|view| view.key.source == Source::Config).cloned()
    });
    let rows: BTreeMap<SocketAddr, &FrontendView> = view
        .iter()
        .flat_map(|view| view.frontends.iter())
        .filter_map(|row| dialled_row(row, block.protocol))
        .collect();
    let judged = |frontend: &SocketAddr| {
        let found = view.as_deref().zip(rows.get(frontend));
        let known = found.map(|(view, row)| frontend_state(view, row));
        known.unwrap_or_else(|| ServingState::Undecided(format!("{frontend} is not in the table yet")))
    };
    block.frontends.iter().map(|frontend| (frontend.ip(), judged(frontend))).collect()
}

fn dialled_row(row: &FrontendView, transport: Transport) -> Option<(SocketAddr, &FrontendView)> {
    let is_meant = row.protocol == Protocol::Transport(transport);
    is_meant.then(|| (SocketAddr::new(row.address, row.port.get()), row))
}

fn frontend_state(view: &ServiceView, row: &FrontendView) -> ServingState {
    let name = &view.key.name;
    match (row.verdict, &row.status) {
        (Verdict::Serving | Verdict::Draining | Verdict::Held, _) if takes_clients(view, row) => {
            ServingState::Served
        }
        (Verdict::Serving | Verdict::Draining | Verdict::Held, _) => {
            ServingState::Unserved(format!("all backends of {name} are drained or have weight 0"))
        }
        (Verdict::Unprogrammed, Status::Pending) => {
            ServingState::Undecided(format!("{name} is not written yet"))
        }
        (_, Status::Error(error)) => ServingState::Unserved(format!("{name} is not served: {error}")),
        (verdict, _) => {
            let reason = row.reason.map(|reason| format!(" ({reason})")).unwrap_or_default();
            ServingState::Unserved(format!("{name} is {verdict}{reason} at port {}", row.port))
        }
    }
}

/// Whether new clients are wanted. If every backend is drained or has no weight, all of them serve clients, but none
/// asks for more.
fn takes_clients(view: &ServiceView, row: &FrontendView) -> bool {
    let Some(port) = row.position.and_then(|position| view.ports.get(position)) else { return false };
    view.backends(row).any(|backend| port.rows.weight(backend.backend()) > Weight::NONE)
}
