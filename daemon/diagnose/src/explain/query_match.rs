//! Matches a query to services: one by its name, or those that have an address.
//!
//! Invariant: exact matches come first, and a similar one is only called near. No prefix of a name matches.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use holdfast_core::facts::NodeFacts;
use holdfast_core::keys::{Family, ObjectName, Protocol};
use holdfast_core::snapshot::{FrontendView, PortView, ServiceView, Snapshot, Verdict};
use holdfast_core::words;
use holdfast_status::views::refusals::{DenialAtFrontend, programmed_key};

use super::place::format_place;

/// The most near matches of an answer.
const NEAR_MAX: usize = 8;

/// The most services of one answer: many may share a backend's address.
const SERVICES_MAX: usize = 16;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExplainQuery {
    /// Every frontend that is not healthy.
    Trouble,
    Service(ObjectName),
    /// What a client dials, or a backend.
    Address(DialTarget),
    /// All frontends of an address, or all backends there.
    Host(IpAddr),
}

/// An address with its port, and the protocol if the query names one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DialTarget {
    pub address: SocketAddr,
    pub protocol: Option<Protocol>,
}

impl DialTarget {
    /// Takes an IPv4-mapped IPv6 address for its IPv4 address, as the kernel does.
    pub fn new(address: SocketAddr, protocol: Option<Protocol>) -> Self {
        let canonical = match address.ip().to_canonical() {
            IpAddr::V4(v4) => SocketAddr::new(v4.into(), address.port()),
            IpAddr::V6(_) => address,
        };
        Self { address: canonical, protocol }
    }

    /// The first address of the node that answers node ports, in place of a star.
    pub(super) fn at_node(&self, node: &NodeFacts) -> Self {
        let family = Family::from_address(self.address.ip());
        let mut own = node.external_addresses().filter(|it| Family::from_address(*it) == family);
        let known = if self.address.ip().is_unspecified() { own.next() } else { None };
        let ip = known.unwrap_or_else(|| self.address.ip());
        Self { address: SocketAddr::new(ip, self.address.port()), protocol: self.protocol.clone() }
    }

    /// Whether the query includes this protocol.
    fn matches_protocol(&self, protocol: &Protocol) -> bool {
        self.protocol.as_ref().is_none_or(|asked| asked == protocol)
    }
}

impl fmt::Display for DialTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (ip, port) = (self.address.ip(), self.address.port());
        // A star stands for the addresses of this node, as in tables.
        match ip {
            IpAddr::V4(ip) if ip.is_unspecified() => write!(f, "*:{port}")?,
            IpAddr::V6(ip) if ip.is_unspecified() => write!(f, "[*]:{port}")?,
            _ => write!(f, "{}", self.address)?,
        }
        self.protocol.iter().try_for_each(|protocol| write!(f, "/{protocol}"))
    }
}

words! {
    pub enum QueryMatch {
        /// The query names nothing: the answer is about whatever is not served.
        Trouble = "trouble",
        Service = "service",
        /// What a client dials.
        Frontend = "frontend",
        /// An address that may receive clients.
        Backend = "backend",
        /// No service matches.
        Nothing = "nothing",
    }
}

/// A service of the answer, with the indices of its matching frontends.
#[derive(Clone, Debug)]
pub(super) struct Subject {
    pub view: Arc<ServiceView>,
    pub frontends: Vec<usize>,
}

impl Subject {
    pub(super) fn frontends(&self) -> impl Iterator<Item = &FrontendView> {
        self.frontends.iter().filter_map(|place| self.view.frontends.get(*place))
    }

    /// Whether the client reached one of these frontends.
    pub(super) fn has_denied(&self, denied: &DenialAtFrontend) -> bool {
        denied.reached.is_some() && self.frontends().any(|it| programmed_key(it) == denied.reached)
    }

    /// Puts TCP first: most queries without a protocol mean TCP.
    fn sort_by_protocol(&mut self) {
        let Self { view, frontends } = self;
        frontends.sort_by_key(|place| view.frontends.get(*place).map(|it| &it.protocol));
    }
}

/// Finds the services of a query, by exact matches alone.
pub(super) fn find_subjects(snapshot: &Snapshot, question: &ExplainQuery) -> (QueryMatch, Vec<Subject>) {
    match question {
        ExplainQuery::Trouble => {
            let bad = |it: &FrontendView| !it.is_healthy();
            (
                QueryMatch::Trouble,
                collect_subjects(snapshot.services.with_problems(), |view| match_positions(view, bad)),
            )
        }
        ExplainQuery::Service(name) => {
            let all = |view: &ServiceView| Some((0..view.frontends.len()).collect());
            let found = collect_subjects(snapshot.services.find_by_name(name), all);
            (if found.is_empty() { QueryMatch::Nothing } else { QueryMatch::Service }, found)
        }
        ExplainQuery::Address(dialled) => find_by_address(snapshot, dialled),
        ExplainQuery::Host(host) => find_by_host(snapshot, *host),
    }
}

fn find_by_host(snapshot: &Snapshot, host: IpAddr) -> (QueryMatch, Vec<Subject>) {
    let dialled = collect_subjects(snapshot.services.iter(), |view| {
        match_positions(view, |it| answers_at(snapshot, it, host))
    });
    if !dialled.is_empty() {
        return (QueryMatch::Frontend, dialled);
    }
    let behind = collect_subjects(snapshot.services.iter(), |view| {
        view.ports.iter().any(|port| port.rows.rows_at(host).next().is_some()).then(Vec::new)
    });
    (if behind.is_empty() { QueryMatch::Nothing } else { QueryMatch::Backend }, behind)
}

fn find_by_address(snapshot: &Snapshot, address: &DialTarget) -> (QueryMatch, Vec<Subject>) {
    let mut dialled = collect_subjects(snapshot.services.iter(), |view| {
        match_positions(view, |it| serves_address(snapshot, it, address))
    });
    if !dialled.is_empty() {
        dialled.iter_mut().for_each(Subject::sort_by_protocol);
        // The sort is stable: within a protocol, a service that is served there stays first.
        dialled.sort_by_key(|subject| subject.frontends().next().map(|it| it.protocol.clone()));
        return (QueryMatch::Frontend, dialled);
    }
    let behind = collect_subjects(snapshot.services.iter(), |view| {
        let reaches = |it: &FrontendView| it.position.is_some_and(|at| lists_backend(view, at, address));
        match_positions(view, reaches)
            .or_else(|| (0..view.ports.len()).any(|at| lists_backend(view, at, address)).then(Vec::new))
    });
    (if behind.is_empty() { QueryMatch::Nothing } else { QueryMatch::Backend }, behind)
}

fn collect_subjects<'a>(
    views: impl Iterator<Item = &'a Arc<ServiceView>>,
    matches: impl Fn(&ServiceView) -> Option<Vec<usize>>,
) -> Vec<Subject> {
    let found = |view: &Arc<ServiceView>| Some(Subject { frontends: matches(view)?, view: Arc::clone(view) });
    let mut subjects: Vec<Subject> = views.filter_map(found).collect();
    // A service that is served there comes before those that only claim the address.
    subjects.sort_by(|a, b| (is_conflicting(a), &a.view.key).cmp(&(is_conflicting(b), &b.view.key)));
    subjects.truncate(SERVICES_MAX);
    subjects
}

fn is_conflicting(subject: &Subject) -> bool {
    let mut frontends = subject.frontends().peekable();
    frontends.peek().is_some() && frontends.all(|it| it.verdict == Verdict::Conflict)
}

fn match_positions(view: &ServiceView, matches: impl Fn(&FrontendView) -> bool) -> Option<Vec<usize>> {
    let places = view.frontends.iter().enumerate().filter(|(_, it)| matches(it)).map(|(place, _)| place);
    Some(places.collect::<Vec<_>>()).filter(|places| !places.is_empty())
}

/// Whether a frontend answers at an address. A NodePort does at the node's addresses that serve node ports.
fn serves_address(snapshot: &Snapshot, it: &FrontendView, dialled: &DialTarget) -> bool {
    let address = dialled.address;
    dialled.matches_protocol(&it.protocol)
        && it.port.get() == address.port()
        && answers_at(snapshot, it, address.ip())
}

/// Whether a frontend answers at an address, at whatever port.
fn answers_at(snapshot: &Snapshot, it: &FrontendView, host: IpAddr) -> bool {
    let same_family = Family::from_address(it.address) == Family::from_address(host);
    let is_own = || snapshot.node.has_node_ports_at(host);
    it.address == host || it.address.is_unspecified() && same_family && is_own()
}

fn lists_backend(view: &ServiceView, place: usize, dialled: &DialTarget) -> bool {
    view.ports.get(place).is_some_and(|port| has_backend(port, dialled))
}

pub(super) fn has_backend(port: &PortView, dialled: &DialTarget) -> bool {
    dialled.matches_protocol(&Protocol::Transport(port.key.transport))
        && port.rows.find(dialled.address).is_some()
}

/// Something near the query, that may have been meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NearMatch {
    pub what: &'static str,
    pub name: String,
}

/// Finds near matches: the same address with another port or protocol, the same port at a close address, or the same
/// name in another namespace.
pub(super) fn find_near_matches(snapshot: &Snapshot, question: &ExplainQuery) -> Vec<NearMatch> {
    let mut near = Vec::new();
    for view in snapshot.services.iter() {
        match question {
            ExplainQuery::Trouble | ExplainQuery::Host(_) => {}
            ExplainQuery::Service(name) => near.extend(match_name(view, name)),
            ExplainQuery::Address(dialled) => match_address((view, snapshot), dialled.address, &mut near),
        }
    }
    near.sort_by(|a, b| (a.what, &a.name).cmp(&(b.what, &b.name)));
    near.dedup();
    near.truncate(NEAR_MAX);
    near
}

fn match_name(view: &ServiceView, name: &ObjectName) -> Option<NearMatch> {
    let known = &view.key.name;
    let what = if known.name() == name.name() {
        "a service of that name in another namespace"
    } else if known.namespace() == name.namespace() && is_slip(known.name(), name.name()) {
        "a service of a similar name"
    } else {
        return None;
    };
    Some(NearMatch { what, name: known.to_string() })
}

/// Whether one name is the other with one slip: a letter too many, missing or replaced, or two neighbours swapped. Each
/// of many services is compared, so the work grows with one length alone.
fn is_slip(one: &str, other: &str) -> bool {
    let [one, other] = [one, other].map(str::as_bytes);
    let begin = one.iter().zip(other).take_while(|(a, b)| a == b).count();
    let [one, other] = [one, other].map(|name| name.get(begin..).unwrap_or_default());
    let end = one.iter().rev().zip(other.iter().rev()).take_while(|(a, b)| a == b).count();
    let [one, other] =
        [one, other].map(|name| name.get(..name.len().saturating_sub(end)).unwrap_or_default());
    match (one, other) {
        ([], [_]) | ([_], [] | [_]) => begin + end > 0,
        ([a, b], [c, d]) => a == d && b == c,
        _ => false,
    }
}

fn match_address(
    (view, snapshot): (&ServiceView, &Snapshot),
    address: SocketAddr,
    near: &mut Vec<NearMatch>,
) {
    for it in &view.frontends {
        // A port alone means no address, so that no other port is near to it.
        let other_port = it.address == address.ip() && !address.ip().is_unspecified();
        let other_address = it.port.get() == address.port() && is_close(it.address, address.ip());
        let what = match (other_port, other_address) {
            (true, true) => "a frontend at that address and port by another protocol",
            (true, false) => "a frontend at that address with another port",
            (false, true) => "a frontend with that port at a close address",
            (false, false) => continue,
        };
        let name = format!("{} of {}", format_place(it, &snapshot.node), view.key.name);
        near.push(NearMatch { what, name });
    }
    let rows = view.ports.iter().flat_map(|port| port.rows.rows_at(address.ip()));
    near.extend(rows.map(|row| NearMatch {
        what: "a backend at that address with another port",
        name: format!("{} of {}", row.backend(), view.key.name),
    }));
}

/// Whether two addresses are in the same /24 or /64, so that one may be a typo.
fn is_close(a: IpAddr, b: IpAddr) -> bool {
    if a.is_unspecified() || b.is_unspecified() {
        return false;
    }
    match (a, b) {
        (IpAddr::V4(a), IpAddr::V4(b)) => a.octets().first_chunk::<3>() == b.octets().first_chunk::<3>(),
        (IpAddr::V6(a), IpAddr::V6(b)) => a.segments().first_chunk::<4>() == b.segments().first_chunk::<4>(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::is_slip;

    #[test]
    fn one_slip_makes_a_similar_name_and_two_do_not() {
        for (one, other, expected) in [
            ("wbe", "web", true),
            ("weeb", "web", true),
            ("we", "web", true),
            ("wab", "web", true),
            ("web", "web", false),
            ("none", "gone", true),
            ("nome", "gone", false),
            ("a", "b", false),
            ("", "ab", false),
            ("web-1", "web-10", true),
            ("payment", "web", false),
        ] {
            assert_eq!((is_slip(one, other), is_slip(other, one)), (expected, expected), "{one} {other}");
        }
    }
}
