//! Every limit of core, with its reason.
//!
//! Code checks a limit where data enters: the sources check the shape of objects, the tables and the plan their number.
//! Limits of the agent (HTTP, files, queues) are next to the code that waits.

/// RFC 1123 label, the Kubernetes limit of a namespace.
pub const NAMESPACE_LENGTH_MAX: usize = 63;

/// RFC 1123 subdomain, the Kubernetes limit of a slice's name; services have shorter names.
pub const NAME_LENGTH_MAX: usize = 253;

/// No apiserver accepts a service with more ports (its object would exceed 1.5 MiB).
pub const PORTS_PER_SERVICE_MAX: usize = 4096;

/// External IPs, ingress IPs and source ranges of one service, as written; far more than any real one has.
pub const ADDRESSES_PER_SERVICE_MAX: usize = 1024;

/// Ports times source ranges of one family: an eighth of what the maps hold for all services. If there are more, the
/// widest ranges count.
pub const SOURCES_PER_SERVICE_MAX: usize = 1 << 13;

/// Ports times addresses of one service: twice its ports, so that both ClusterIPs of the largest legal object always
/// fit, while one object cannot exhaust what all services share.
pub const FRONTENDS_PER_SERVICE_MAX: usize = 2 * PORTS_PER_SERVICE_MAX;

/// Frontends that all services together may request, if the maps hold `frontends`. Each takes memory, in the maps or
/// not, and an object of 20 KB can request 8,192. With twice the maps' size, half of the demand remains free and no
/// namespace has reached its quota as long as every requested frontend fits into the maps.
pub const fn frontend_demand_max(frontends: usize) -> usize {
    frontends.saturating_mul(2)
}

/// Ports times endpoints that all services together may request, if the maps have `slots`; counted in blocks, like the
/// slots of lists. Each takes memory, in a list or not: 16 bytes with IPv4, 29 with IPv6, and up to 130 while it is
/// held and has its own weight; two objects of 20 KB request 65,536. The limit is the slots of a family, twice
/// `limits.backends`, which is 1.1 GB at worst. With small maps, it is what two services may have.
pub const fn row_demand_max(slots: u32) -> u32 {
    const LEAST: u32 = 2 << ROWS_PER_SERVICE_MAX.ilog2();
    if slots > LEAST { slots } else { LEAST }
}

/// Rows of each port that do not count: one for each of its lists, so that no limit empties a list. There are at most
/// as many ports as frontends, which have their own limit.
pub const FREE_ROWS_PER_PORT: usize = 2;

/// Kubernetes' controller writes all ports of a Service into each of its slices, and the apiserver accepts 20,000; no
/// more can join than a service may have.
pub const PORTS_PER_SLICE_MAX: usize = PORTS_PER_SERVICE_MAX;

/// Kubernetes' own limit is 1,000 endpoints in a slice; manifests written by hand may be larger.
pub const ENDPOINTS_PER_SLICE_MAX: usize = 10_000;

/// Ports times endpoints of one slice, 16 times those of a whole service: the digest that compares nodes, and the
/// search for duplicate addresses, walk all of them. The most endpoints fit at 100 ports, and the most ports with twice
/// the endpoints that Kubernetes' controller writes into a slice by default.
pub const ROWS_PER_SLICE_MAX: usize = 1 << 20;

/// Slices of one service: 1,000 slices of 1,000 endpoints fill the 20 bits of a word's count.
pub const SLICES_PER_SERVICE_MAX: usize = 1_000;

/// Ports times endpoints of one service: 32,000 endpoints at two ports, or in both families, fit; Kubernetes is tested
/// with 5,000. One decision covers all of them, and more would delay other services by over 10 ms.
pub const ROWS_PER_SERVICE_MAX: usize = 1 << 16;

/// Ports of all slices that one service's decision examines, whether the service has these ports or not: four times the
/// rows, since each port with an endpoint makes at least one row.
pub const SLICE_PORTS_PER_SERVICE_MAX: usize = 4 * ROWS_PER_SERVICE_MAX;

/// This many ports of slices, or addresses in hidden slices, cost as much as a slot of a list: a decision only examines
/// them.
pub const LOOKUPS_PER_SLOT: u64 = 4;

/// Backends in one list: the count in a word has 20 bits.
pub const BACKENDS_PER_LIST_MAX: usize = (1 << 20) - 1;

/// Slots of one family: 2^26 slots of 8 or 24 bytes are 0.5 or 1.6 GiB of kernel memory, more than a node should give.
pub const SLOTS_PER_FAMILY_MAX: u32 = 1 << 26;

/// Weights in one annotation: more than anyone writes by hand; for more backends there are weights of nodes.
pub const WEIGHTS_PER_SERVICE_MAX: usize = 1_024;

/// Bytes of that annotation: enough for that many items with an IPv6 address and a port.
pub const WEIGHTS_BYTES_MAX: usize = 64 << 10;

/// The shortest affinity prefix of IPv4: the allocation of a whole registry. A shorter one would send ever more of all
/// clients to one backend.
pub const AFFINITY_PREFIX_V4: u8 = 8;

/// The same for IPv6: the allocation of a provider. All of its customers are one client then.
pub const AFFINITY_PREFIX_V6: u8 = 32;

/// Drains in force at one time: all pods of the ten fullest nodes, one by one. A decision looks up each backend among
/// them, and each order saves all of them.
pub const DRAINS_MAX: usize = 1_024;

/// Port indices: each costs 128 bytes of kernel memory; a million ports are far more than etcd can hold.
pub const PORT_INDICES_MAX: u32 = 1 << 20;

/// Namespaces with their own quota of shared resources; if there are more, some share one. A flow has 12 bits for the
/// quota id, and 0 means none.
pub const QUOTA_IDS_MAX: u16 = (1 << 12) - 1;

/// Services in the tables, programmed or not.
pub const SERVICES_MAX: usize = 1 << 20;

/// Text of one slice (node, zone and object names): 24 bits of offset.
pub const SLICE_TEXT_BYTES_MAX: usize = 1 << 24;

/// Rejected objects that are shown by name; more are only counted.
pub const REJECTIONS_MAX: usize = 1_000;

/// Further rejected objects that are stored, to be shown when others are fixed; at most 25 MB of reasons.
pub const REJECTED_MAX: usize = 16_384;

/// Approximate bytes of objects that wait until they fit: some 30,000 small services or 700 full slices. Objects beyond
/// that are dropped; the tables request them again from their source when half of the memory is free.
pub const WAITING_BYTES_MAX: usize = 64 << 20;

/// Services without space in the maps that are retried in one batch.
pub const RETRIED_PER_BATCH: usize = 16;

/// Services admitted in one batch, each with all its slices; the next batch follows at once.
pub const ADMITTED_PER_BATCH: usize = 64;

/// Characters of a rejection's reason, so that a hostile object cannot fill memory or the journal.
pub const REJECTION_REASON_LENGTH_MAX: usize = 300;

/// Causes named in one change record; if one batch has more, the record names the last ones.
pub const CAUSES_PER_CHANGE_MAX: usize = 8;

/// The work of one piece in the units of [`FRONTEND_WORK`], after which the engine applies events and other services
/// follow: some 250 ports and frontends, or 4,000 backends, which take about 1 ms on a slow machine. A heavier service
/// takes several pieces.
pub const PIECE_WORK: u64 = 1 << 12;

/// The cost of a frontend or a port, if a slot of a list costs 1: look-ups in several tables and a system call, against
/// a copy.
pub const FRONTEND_WORK: u64 = 16;

/// This many places of a Maglev table cost as much as a slot of a list: they are written without a decision. Wiped
/// slots cost the same, because freeing a table must not cost more than making it.
pub const PLACES_PER_SLOT: u64 = 16;

/// Average look-ups per place of a Maglev table before the rest is assigned in order. Backends that did not choose
/// their addresses need 10 to 15, the harmonic number of the places; an attacker who chooses colliding addresses would
/// make each backend walk through the whole table.
pub const LOOKUPS_PER_PLACE: u64 = 32;

/// A namespace's turn ends after this fraction of a piece's work, if other namespaces wait.
pub const TURNS_PER_PIECE: u64 = 4;

/// Finalizers stored of a Service: real ones have one or two, and a tenant may write any number.
pub const FINALIZERS_MAX: usize = 8;

/// Host names of balancers stored of a Service; clouds give one, or one for each of a few zones.
pub const HOSTNAMES_MAX: usize = 4;

/// Stored managers that wrote a Service's status: a finding needs more than one, and more than these add nothing.
pub const STATUS_WRITERS_MAX: usize = 4;

/// Bytes of a finalizer, a host name, a manager, and of every other stored text without its own limit (words of
/// annotations, versions, writers): more than any in use has, and 16 such texts are 2 KiB at most.
pub const BALANCER_TEXT_LENGTH_MAX: usize = 128;

/// Slots that Maglev tables may take: an object of a few bytes requests a table of 16,384 slots, and plain lists need
/// space too.
pub const fn table_slots_max(slots: u32) -> u32 {
    slots / 4 * 3
}

/// Slots for the Maglev tables of one namespace.
pub const fn table_slots_of_namespace_max(slots: u32) -> u32 {
    slots / 4
}

/// A namespace may use this many times the rest: the remaining slots for its plain lists, the remaining members, and
/// the remaining frontends and rows for its requests. A lone namespace gets eight of nine parts, and each other
/// namespace still finds some. The same holds for frontends and port indices of the maps.
pub const QUOTA_REST_FACTOR: u32 = 8;

/// Smaller capacities have no quotas: an operator who sets such a limit means just that number.
pub const QUOTA_CAPACITY_MIN: u32 = 1 << 10;

/// Frontends at external IPs of all namespaces together may take this fraction of all frontends.
pub const EXTERNAL_IP_DIVISOR: u32 = 2;

/// Reserved blocks of one size for lists that change: as many as a piece has ports.
const SPARES_PER_SIZE_MAX: u32 = 256;

/// How many blocks of 2^`order` slots stay reserved for lists that change and do not grow: 1/256 of the slots, but at
/// least one block if that is at most 1/64 of the slots. All sizes together reserve a tenth of the slots at most.
pub const fn spare_blocks(slots: u32, order: u32) -> u32 {
    if order >= u32::BITS || 1 << order > slots / 64 || 1 << order > ROWS_PER_SERVICE_MAX {
        return 0;
    }
    match (slots / 256) >> order {
        0 => 1,
        SPARES_PER_SIZE_MAX.. => SPARES_PER_SIZE_MAX,
        blocks => blocks,
    }
}

/// The most frontends of one response, so that reading them from the maps takes less than a millisecond.
pub const READ_BACK_MAX: usize = 64;

/// The members that count toward the limit, out of as many as a family has slots. The rest is reserved for members that
/// do not count: the backends of tables, a fifth if tables take all slots of both families, because each has at least
/// ten places; and the members of one port, because new ones are inserted before former ones are removed.
pub const fn counted_members_max(slots: u32) -> u32 {
    const PORT_MEMBERS: u32 = 3 << ROWS_PER_SERVICE_MAX.ilog2();
    let port_members = if PORT_MEMBERS < slots / 5 * 2 { PORT_MEMBERS } else { slots / 5 * 2 };
    slots - slots / 5 - port_members
}
