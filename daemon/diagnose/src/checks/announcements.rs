//! Whether this node announces the service's addresses.
//!
//! Invariant: an address is judged only if the configuration announces it.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::case::Case;
use crate::finding::{Judgement, Remedy};
use crate::formatting::join_names;
use holdfast_status::views::announcements::AnnouncedAddress;

pub(super) fn check_announcements(case: &Case<'_>) -> Judgement {
    let own: BTreeSet<IpAddr> = case.frontends().map(|it| it.address).collect();
    let announced: Vec<_> = case.announcements().iter().filter(|it| own.contains(&it.address)).collect();
    if announced.is_empty() {
        return Judgement::not_applicable("The configuration has none of its addresses announced.");
    }
    if let Some(failed) = announced.iter().find(|it| it.error.is_some()) {
        return Judgement::error(format!("The kernel does not take a route: {failed}.")).remedy(
            Remedy::safe(
                "Look at what holds the table of routes; the change is tried again, at least once a minute.",
            ),
        );
    }
    if let Some(absent) = announced.iter().find(|it| !it.announced) {
        let sentence = format!("Clients outside are led to other nodes: {absent}.");
        return Judgement::warning(sentence).remedy(Remedy::safe(
            "Mend what the reason names; the route comes by itself once the address has been served for a while.",
        ));
    }
    // A route with a reason is about to end, or is not judged yet.
    if let Some(temporary) = announced.iter().find(|it| it.why.is_some()) {
        return Judgement::info(format!("A route is there, for now: {temporary}."));
    }
    Judgement::ok(format!("Routes announce {}.", join_names(list_addresses(&announced))))
}

fn list_addresses<'a>(announced: &'a [&AnnouncedAddress]) -> impl Iterator<Item = String> + use<'a> {
    announced.iter().map(|it| it.address.to_string())
}
