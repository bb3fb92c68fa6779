//! Lists, adds and removes the routes in the kernel.
//!
//! Invariant: only routes with this daemon's own protocol are listed or removed, in any table; an added route
//! replaces no other. Each step is bounded in time and bytes.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;

use holdfast_datapath::netlink::{
    Message, NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NetlinkFamily, NetlinkSocket, attribute, encode_attribute,
    ip,
};

/// The routing protocol number of our routes: neither the kernel's headers nor iproute2 assign it.
const PROTOCOL: u8 = 104;

/// The most bytes of a list, as for devices, but once per start. A router may have a million routes.
const LIST_BYTES_MAX: usize = 256 << 20;

/// The response to a change is a single message.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// How often the list is read while others change it. A lasting route of ours is in each of them.
const TRIES: usize = 3;

/// From `linux/rtnetlink.h`.
const RTM_NEWROUTE: u16 = 24;
const RTM_DELROUTE: u16 = 25;
const RTM_GETROUTE: u16 = 26;
const RTA_DST: u16 = 1;
const RT_SCOPE_UNIVERSE: u8 = 0;
/// FRR and BIRD read no route of type `local`. If one of them copies the route to the main table, an untranslated
/// packet ends there; by a device it would loop for ever.
const RTN_BLACKHOLE: u8 = 6;
/// The length of an `rtmsg`.
const ROUTE: usize = 12;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Route {
    pub(super) table: u8,
    pub(super) address: IpAddr,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RouteChange {
    Add,
    /// Add it back if another program removed it.
    Keep,
    Remove,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RouteStep {
    pub(super) change: RouteChange,
    pub(super) route: Route,
}

/// The routes that this daemon or a former one added.
pub(super) fn list_routes() -> io::Result<BTreeSet<Route>> {
    let mut listed = BTreeSet::new();
    for _ in 0..TRIES {
        let take = |message: Message<'_>| {
            listed.extend((message.kind == RTM_NEWROUTE).then(|| parse_own_route(message.body)).flatten());
        };
        if NetlinkSocket::dump(NetlinkFamily::Route, (RTM_GETROUTE, &[0; ROUTE]), LIST_BYTES_MAX, take)? {
            break;
        }
    }
    Ok(listed)
}

fn parse_own_route(body: &[u8]) -> Option<Route> {
    let [_, bits, _, _, table, protocol, _, kind, ..] = *body else { return None };
    let address = attribute(body.get(ROUTE..)?, RTA_DST).and_then(ip)?;
    let is_own = protocol == PROTOCOL && kind == RTN_BLACKHOLE && bits == prefix_length(address);
    is_own.then_some(Route { table, address })
}

const fn prefix_length(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => 128,
    }
}

type Outcomes = Vec<(RouteStep, io::Result<()>)>;

/// Does one step after the other, and returns each result.
pub(super) fn carry_out(steps: Vec<RouteStep>) -> Outcomes {
    let mut outcomes = steps.into_iter().map(|step| (step, send_step(step))).collect();
    accept_own_routes(&mut outcomes, list_routes);
    outcomes
}

/// A route that already existed is fine if it is ours: the kernel may have added it after our timeout. Finding out
/// lists all routes of a router, so one list serves all such steps.
fn accept_own_routes(outcomes: &mut Outcomes, list: impl FnOnce() -> io::Result<BTreeSet<Route>>) {
    let errno = |outcome: &io::Result<()>| outcome.as_ref().err().and_then(io::Error::raw_os_error);
    let was_there = |(step, outcome): &(RouteStep, io::Result<()>)| {
        step.change == RouteChange::Add && errno(outcome) == Some(nix::libc::EEXIST)
    };
    if !outcomes.iter().any(was_there) {
        return;
    }
    let listed = list();
    for (step, outcome) in outcomes.iter_mut().filter(|it| was_there(it)) {
        match &listed {
            Ok(ours) if ours.contains(&step.route) => *outcome = Ok(()),
            Ok(_) => {}
            Err(error) => *outcome = Err(io::Error::new(error.kind(), error.to_string())),
        }
    }
}

fn send_step(RouteStep { change, route }: RouteStep) -> io::Result<()> {
    let (kind, flags) = match change {
        RouteChange::Add | RouteChange::Keep => (RTM_NEWROUTE, NLM_F_CREATE | NLM_F_EXCL),
        RouteChange::Remove => (RTM_DELROUTE, 0),
    };
    let mut kernel = NetlinkSocket::open(NetlinkFamily::Route)?;
    kernel.request(kind, flags | NLM_F_ACK, &encode_route(route))?;
    kernel.read_reply(ANSWER_BYTES_MAX, |_| ()).map(drop)
}

fn encode_route(Route { table, address }: Route) -> Vec<u8> {
    let (family, value) = match address {
        IpAddr::V4(address) => (nix::libc::AF_INET, address.octets().to_vec()),
        IpAddr::V6(address) => (nix::libc::AF_INET6, address.octets().to_vec()),
    };
    let family = u8::try_from(family).unwrap_or_default();
    let header =
        [family, prefix_length(address), 0, 0, table, PROTOCOL, RT_SCOPE_UNIVERSE, RTN_BLACKHOLE, 0, 0, 0, 0];
    [&header[..], &encode_attribute(RTA_DST, &value)].concat()
}

/// Removes every route that a daemon left, in any table. Returns how many, and why others stay.
pub fn remove_all() -> io::Result<(usize, Vec<String>)> {
    let steps =
        list_routes()?.into_iter().map(|route| RouteStep { change: RouteChange::Remove, route }).collect();
    let mut stay = Vec::new();
    let outcomes = carry_out(steps);
    let all = outcomes.len();
    for (RouteStep { route: Route { table, address }, .. }, outcome) in outcomes {
        stay.extend(
            outcome.err().map(|error| format!("the route to {address} in table {table} stays: {error}")),
        );
    }
    Ok((all - stay.len(), stay))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(change: RouteChange, address: &str) -> RouteStep {
        RouteStep { change, route: Route { table: 180, address: address.parse().unwrap() } }
    }

    fn outcomes() -> Outcomes {
        let there = || Err(io::Error::from_raw_os_error(nix::libc::EEXIST));
        let puts = ["192.0.2.1", "192.0.2.2", "192.0.2.3"].map(|it| (step(RouteChange::Add, it), there()));
        let keep = (step(RouteChange::Keep, "192.0.2.4"), there());
        puts.into_iter().chain([keep, (step(RouteChange::Remove, "192.0.2.5"), Ok(()))]).collect()
    }

    /// A router has a million routes, and another program may own a route to each of a thousand announced addresses.
    #[test]
    fn one_list_identifies_our_existing_routes() {
        let mut lists = 0;
        let mut all = outcomes();
        let ours = BTreeSet::from([step(RouteChange::Add, "192.0.2.2").route]);
        accept_own_routes(&mut all, || {
            lists += 1;
            Ok(ours)
        });
        let are_good: Vec<bool> = all.iter().map(|(_, outcome)| outcome.is_ok()).collect();
        assert_eq!((lists, are_good), (1, vec![false, true, false, false, true]));
        let mut none = outcomes().split_off(3);
        accept_own_routes(&mut none, || unreachable!("nothing is in doubt"));
    }

    #[test]
    fn without_a_list_no_route_counts_as_foreign() {
        let mut all = outcomes();
        accept_own_routes(&mut all, || Err(io::ErrorKind::WouldBlock.into()));
        let kinds = all.iter().map(|(_, outcome)| outcome.as_ref().err().map(io::Error::kind));
        assert_eq!(kinds.take(3).collect::<Vec<_>>(), [Some(io::ErrorKind::WouldBlock); 3]);
    }
}
