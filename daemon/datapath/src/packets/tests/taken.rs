//! Whether memory for entries is allocated in advance, or with each flow.

use libbpf_rs::MapCore;
use libbpf_rs::libbpf_sys::BPF_F_NO_PREALLOC;

use super::network;
use crate::kernel::bed::bed;
use crate::load;
use crate::map::{Map, MapHandles};

/// The id of the IPv6 entry map, and whether it allocates with each flow.
fn entries6(maps: &MapHandles) -> (u32, bool) {
    let told = maps[&Map::Entries6].info().unwrap().info;
    (told.id, told.map_flags & BPF_F_NO_PREALLOC != 0)
}

/// An existing table keeps its flows and entries, even if the node has changed since.
#[test]
fn kernel_ipv6_entries_are_preallocated_if_the_node_has_an_ipv6_address() {
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
