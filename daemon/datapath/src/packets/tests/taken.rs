//! Where the room for the entries of flows is taken from the start, and where it is taken with each flow.

use libbpf_rs::MapCore;
use libbpf_rs::libbpf_sys::BPF_F_NO_PREALLOC;

use super::network;
use crate::kernel::bed::bed;
use crate::load;
use crate::map::{Map, MapHandles};

/// The number of the map of entries over IPv6, and whether its room is taken with each flow.
fn entries6(maps: &MapHandles) -> (u32, bool) {
    let told = maps[&Map::Entries6].info().unwrap().info;
    (told.id, told.map_flags & BPF_F_NO_PREALLOC != 0)
}

/// A table that is there keeps its flows, and so its entries, whatever the node has become since.
#[test]
fn kernel_room_for_flows_over_ipv6_is_taken_from_the_start_where_the_node_has_an_address() {
    bed(|_| {
        let before = load::make_default_packet_maps(&MapHandles::new(), 64).unwrap();
        assert!(entries6(&before).1, "nothing but a loopback");
        network::lay();
        let after = load::make_default_packet_maps(&MapHandles::new(), 64).unwrap();
        assert!(!entries6(&after).1);
        let adopted = load::make_default_packet_maps(&before, 64).unwrap();
        assert_eq!(entries6(&adopted), entries6(&before));
    });
}
