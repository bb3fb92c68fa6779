//! Where clients dial a frontend, in words.
//!
//! Invariant: a node port is named by the addresses that answer it, never by `0.0.0.0`, which every reader takes for
//! all addresses of the node.

use std::net::{IpAddr, SocketAddr};

use holdfast_core::claims::ClaimRule;
use holdfast_core::facts::{NodeFacts, ServiceFacts};
use holdfast_core::keys::{Family, Source};
use holdfast_core::snapshot::{FrontendView, ServiceView, Snapshot};

use crate::formatting::join_names;
use holdfast_status::rfc3339::Rfc3339;

/// The address, port and protocol that clients dial: `10.96.0.10:80/TCP`, `*:30080/TCP at 192.0.2.1, 192.0.2.2`.
pub fn format_place(it: &FrontendView, node: &NodeFacts) -> String {
    let (port, protocol) = (it.port.get(), &it.protocol);
    let at = |address: IpAddr| format!("{}/{protocol}", SocketAddr::new(address, port));
    if !it.address.is_unspecified() {
        return at(it.address);
    }
    match &*list_node_port_addresses(node, Family::from_address(it.address)) {
        [] => format!("*:{port}/{protocol} at no address of this node"),
        [only] => at(*only),
        several => format!("*:{port}/{protocol} at {}", join_names(several)),
    }
}

/// The addresses of a family that answer node ports; the first one of the loopback stands for its whole range.
pub(super) fn list_node_port_addresses(node: &NodeFacts, family: Family) -> Vec<IpAddr> {
    node.node_port_addresses.iter().copied().filter(|it| Family::from_address(*it) == family).collect()
}

/// The rule by which another service has the frontend's address, as `because its name sorts first`, to append to `its
/// claim comes first`. `None`: the objects do not show it, because a node port or a cluster IP of the owner covers the
/// address.
pub fn describe_precedence(snapshot: &Snapshot, view: &ServiceView, it: &FrontendView) -> Option<String> {
    let key = it.owner.as_ref()?;
    let owner = snapshot.services.find_by_name(&key.name).find(|other| other.key == *key)?;
    let is_same = |other: &&FrontendView| {
        (other.address, other.port, &other.protocol) == (it.address, it.port, &it.protocol)
    };
    let won = owner.frontends.iter().find(is_same)?;
    let (winner, loser) = (owner.facts.as_deref()?, view.facts.as_deref()?);
    Some(match ClaimRule::between((winner, won.kind), (loser, it.kind)) {
        ClaimRule::Source => {
            format!("because {} before {}", go_first(key.source), name_source(view.key.source))
        }
        ClaimRule::AddressKind => {
            format!("because {} goes before {}", won.kind.as_str(), it.kind.as_str())
        }
        ClaimRule::Age => {
            format!("because it is older: it is {}, and {} is {}", born(winner), view.key.name, born(loser))
        }
        ClaimRule::Name => "because its name sorts first, as nothing else differs".to_owned(),
    })
}

/// Which source goes first, as a clause.
fn go_first(source: Source) -> String {
    let verb = if source == Source::Kubernetes { "goes" } else { "go" };
    format!("{} {verb}", name_source(source))
}

const fn name_source(source: Source) -> &'static str {
    match source {
        Source::Config => "[[service]] blocks of the configuration",
        Source::Manifests => "manifests",
        Source::Kubernetes => "the apiserver",
        Source::ClusterSet => "ServiceImports",
    }
}

fn born(facts: &ServiceFacts) -> String {
    facts.meta.created.map_or_else(
        || "without a creation time, which counts as the youngest".to_owned(),
        |at| format!("of {}", Rfc3339(at)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_port_is_named_by_the_addresses_that_answer_it() {
        use holdfast_core::facts::Timestamp;
        use holdfast_core::keys::Protocol;
        use holdfast_core::list::Scope;
        use holdfast_core::op::FrontendType;
        use holdfast_core::snapshot::{Status, Verdict};

        let mut it = FrontendView {
            address: [0, 0, 0, 0].into(),
            port: 30080.try_into().unwrap(),
            protocol: Protocol::TCP,
            kind: FrontendType::NodePort,
            port_name: "".into(),
            position: None,
            scope: Scope::Cluster,
            external_local: false,
            verdict: Verdict::Serving,
            reason: None,
            status: Status::Done,
            owner: None,
            applied: None,
            since: Timestamp(0),
            verdict_since: Timestamp(0),
        };
        let mut node = NodeFacts::default();
        assert_eq!(format_place(&it, &node), "*:30080/TCP at no address of this node");
        node.node_port_addresses.extend(["192.0.2.1", "fd00::1"].map(|it| it.parse::<IpAddr>().unwrap()));
        assert_eq!(format_place(&it, &node), "192.0.2.1:30080/TCP");
        node.node_port_addresses.insert([192, 0, 2, 2].into());
        assert_eq!(format_place(&it, &node), "*:30080/TCP at 192.0.2.1, 192.0.2.2");
        it.address = [10, 96, 0, 10].into();
        assert_eq!(format_place(&it, &node), "10.96.0.10:30080/TCP");
    }
}
