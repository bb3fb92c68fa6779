//! Every bound of the rules, in one place, each with its reason.
//!
//! A bound is checked where data enters: the sources check the shape of objects, the tables and the plan their number.
//! Limits of the shell (HTTP, files, queues) stand beside the code that waits.

/// RFC 1123 label, the bound that Kubernetes sets for a namespace.
pub const NAMESPACE_LENGTH_MAX: usize = 63;

/// RFC 1123 subdomain, the bound that Kubernetes sets for the name of a slice; services are shorter.
pub const NAME_LENGTH_MAX: usize = 253;

/// A service with more ports than this cannot have come from an apiserver (its object would pass 1.5 MiB).
pub const PORTS_PER_SERVICE_MAX: usize = 4096;

/// External IPs, ingress IPs and source ranges of one service, as they are written; far more than any real one has.
pub const ADDRESSES_PER_SERVICE_MAX: usize = 1024;

/// Ports times source ranges of one family: an eighth of what the maps hold for all services. Of more ranges the widest
/// count.
pub const SOURCES_PER_SERVICE_MAX: usize = 1 << 13;

/// Ports times addresses of one service: twice its ports, so that both ClusterIPs of the largest legal object always
/// fit, while one object cannot use up what all services share.
pub const FRONTENDS_PER_SERVICE_MAX: usize = 2 * PORTS_PER_SERVICE_MAX;

/// Frontends that all services together may ask for, where the maps take so many. Each takes memory, in the maps or
/// not, and an object of 20 KB can ask for 8,192. It is twice as many: as long as all that is asked for has a place in
/// the maps, as much again is left, and no namespace has reached its part.
pub const fn frontend_demand_max(frontends: usize) -> usize {
    frontends.saturating_mul(2)
}

/// Ports times endpoints that all services together may ask for, with maps of so many slots, counted in blocks as the
/// slots of lists are. Each takes memory, in a list or not: 16 bytes with IPv4, 29 with IPv6, and up to 130 while it is
/// held and has a weight of its own; and two objects of 20 KB ask for 65,536. It is as many as a family has slots,
/// twice `limits.backends`: so they take 1.1 GB at the worst. Where the maps are small, two services have that many.
pub const fn row_demand_max(slots: u32) -> u32 {
    const LEAST: u32 = 2 << ROWS_PER_SERVICE_MAX.ilog2();
    if slots > LEAST { slots } else { LEAST }
}

/// Rows of each port that do not count: one for each of its lists, so that none is empty for want of room. There are
/// no more ports than frontends, which have a bound of their own.
pub const FREE_ROWS_PER_PORT: usize = 2;

/// Kubernetes' controller writes all ports of a Service into each of its slices, and the apiserver takes 20,000; there
/// are no more to join than a service may have.
pub const PORTS_PER_SLICE_MAX: usize = PORTS_PER_SERVICE_MAX;

/// Kubernetes' own bound is 1,000 endpoints in a slice; manifests written by hand may be larger.
pub const ENDPOINTS_PER_SLICE_MAX: usize = 10_000;

/// Ports times endpoints of one slice, 16 times what a whole service may have: the digest by which nodes are compared,
/// and the search for addresses that are listed twice, walk over all of them. 100 ports have room for the most
/// endpoints, and the most ports for twice as many endpoints as Kubernetes' controller writes into a slice by default.
pub const ROWS_PER_SLICE_MAX: usize = 1 << 20;

/// Slices of one service: 1,000 slices of 1,000 endpoints fill the 20 bits of a word's count.
pub const SLICES_PER_SERVICE_MAX: usize = 1_000;

/// Ports times endpoints of one service: 32,000 endpoints at two ports, or in both families, fit; Kubernetes itself is
/// tested with 5,000. All of them are decided for in one go, and more would keep other services waiting for longer than
/// 10 ms.
pub const ROWS_PER_SERVICE_MAX: usize = 1 << 16;

/// Ports of all slices of one service that are looked at, be they ports of the service or not: four times as many as
/// there can be rows, of which each port with an endpoint makes one at least.
pub const SLICE_PORTS_PER_SERVICE_MAX: usize = 4 * ROWS_PER_SERVICE_MAX;

/// So many ports of slices, or addresses in slices that a label hides, cost as much as a slot of a list: they are
/// looked at, and nothing is made of them.
pub const LOOKUPS_PER_SLOT: u64 = 4;

/// Backends in one list: the count in a word has 20 bits.
pub const BACKENDS_PER_LIST_MAX: usize = (1 << 20) - 1;

/// Slots of one family: 2^26 slots of 8 or 24 bytes are 0.5 or 1.6 GiB of kernel memory, more than a node should give.
pub const SLOTS_PER_FAMILY_MAX: u32 = 1 << 26;

/// Weights in one annotation: more than are written by hand; for more backends there are weights of nodes.
pub const WEIGHTS_PER_SERVICE_MAX: usize = 1_024;

/// Bytes of that annotation: so many items of an IPv6 address and a port.
pub const WEIGHTS_BYTES_MAX: usize = 64 << 10;

/// The shortest prefix by which IPv4 clients may be kept: what a whole registry is given. A shorter one would keep more
/// and more of all clients at one backend.
pub const AFFINITY_PREFIX_V4: u8 = 8;

/// The same for IPv6: what a provider is given. All of its customers are one client then.
pub const AFFINITY_PREFIX_V6: u8 = 32;

/// Drains in force at one time: all pods of the ten fullest nodes, one by one. Each backend that a decision looks at is
/// looked up among them, and each order writes all of them down.
pub const DRAINS_MAX: usize = 1_024;

/// Port indices: each costs 128 bytes of kernel memory; a million ports are far more than etcd can hold.
pub const PORT_INDICES_MAX: u32 = 1 << 20;

/// Namespaces with a share of their own in what all services use up; if there are more, some have a share together. A
/// flow has 12 bits for the number of its share, and 0 is the number of none.
pub const QUOTA_IDS_MAX: u16 = (1 << 12) - 1;

/// Services known at one time, programmed or not.
pub const SERVICES_MAX: usize = 1 << 20;

/// Sockets of the node that wait for clients. A host has some dozens; a list of more says less than it costs.
pub const LISTENERS_MAX: usize = 1 << 14;

/// Text of one slice (node, zone and object names): 24 bits of offset.
pub const SLICE_TEXT_BYTES_MAX: usize = 1 << 24;

/// Rejected objects that are shown by name; more are only counted.
pub const REJECTIONS_MAX: usize = 1_000;

/// Rejected objects that are known beyond those, to be shown when others are mended; at most 25 MB of reasons.
pub const REJECTED_MAX: usize = 16_384;

/// Bytes of memory, roughly, for objects that wait for room: some 30,000 small services or 700 full slices. Objects
/// beyond that are turned away; their source is asked for them again when half of the memory is free.
pub const WAITING_BYTES_MAX: usize = 64 << 20;

/// Services without room in the maps that are tried again in one batch.
pub const RETRIED_PER_BATCH: usize = 16;

/// Services that get room in one batch, each with all its slices; the next batch follows at once.
pub const ADMITTED_PER_BATCH: usize = 64;

/// Characters kept of a rejection's reason, so that a hostile object cannot fill memory or the journal.
pub const REJECTION_REASON_LENGTH_MAX: usize = 300;

/// Causes named in one change record; a service that is written more often within one batch shows the last ones.
pub const CAUSES_PER_CHANGE_MAX: usize = 8;

/// The work of one piece, after which events are taken and other services have their turn, in the units of
/// [`FRONTEND_WORK`]: some 250 ports and frontends, or 4,000 backends, which take about 1 ms of a slow machine. A
/// service that is heavier is carried out in several pieces.
pub const PIECE_WORK: u64 = 1 << 12;

/// What a frontend or a port costs, if a slot of a list costs 1: look-ups in several tables and a system call,
/// against a copy.
pub const FRONTEND_WORK: u64 = 16;

/// So many places of a table cost as much as a slot of a list: they are written, and nothing is decided for them. So do
/// slots that are wiped: what is made at a price is freed at no higher one, or tables were made faster than freed.
pub const PLACES_PER_SLOT: u64 = 16;

/// How many places are looked at for each place of a table, on average, before the rest of them is given out in their
/// order. For backends that did not choose their addresses it is 10 to 15, the harmonic number of so many places; who
/// chooses addresses that meet in the same places would have each backend walk through the whole table.
pub const LOOKUPS_PER_PLACE: u64 = 32;

/// A namespace's turn ends after one part in so many of a piece's work, if other namespaces wait.
pub const TURNS_PER_PIECE: u64 = 4;

/// Finalizers kept of a Service: real ones have one or two, and a tenant may write any number.
pub const FINALIZERS_MAX: usize = 8;

/// Host names of balancers kept of a Service; clouds give one, or one for each of a few zones.
pub const HOSTNAMES_MAX: usize = 4;

/// Managers kept that wrote a Service's status: that there is more than one is told, and more than these say nothing
/// new.
pub const STATUS_WRITERS_MAX: usize = 4;

/// Bytes of a finalizer, a host name, a manager, and of every other text that is kept of an object and has no bound of
/// its own (words of annotations, versions, writers): more than any in use has, and 16 such texts are 2 KiB at most.
pub const BALANCER_TEXT_LENGTH_MAX: usize = 128;

/// Slots that tables may take of so many: an object of a few bytes asks for a table of 16,384 slots, and lists without
/// one need their room.
pub const fn table_slots_max(slots: u32) -> u32 {
    slots / 4 * 3
}

/// Slots for the tables of one namespace.
pub const fn table_slots_of_namespace_max(slots: u32) -> u32 {
    slots / 4
}

/// A namespace's plain lists may take so many times the slots that are left, and the room for members, and its services
/// may ask for so many times the frontends and rows that are left: a namespace that is alone gets eight of nine parts,
/// and each other namespace finds some. So it is with the frontends and port indices of the maps.
pub const QUOTA_REST_FACTOR: u32 = 8;

/// Fewer frontends and indices than these have no parts: an operator who allows so few means just these.
pub const QUOTA_CAPACITY_MIN: u32 = 1 << 10;

/// Frontends at external IPs may take one in so many of all, of all namespaces together.
pub const EXTERNAL_IP_DIVISOR: u32 = 2;

/// Blocks of one size that are kept for lists that change: as many as a piece has ports.
const SPARES_PER_SIZE_MAX: u32 = 256;

/// How many blocks of 2^`order` slots are kept for lists that change and grow no larger: one part in 256 of the slots,
/// but at least one block where that is no more than a part in 64. Those of all sizes are a tenth of the slots at most.
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

/// The most frontends of one answer, so that they are read back from the maps within less than a millisecond.
pub const READ_BACK_MAX: usize = 64;

/// The members that are counted, of as many as there are slots of a family. The others are not counted: backends of
/// tables, each of which has ten places and more, so a fifth for tables of all slots of both families; and those of one
/// port, because new ones come before former ones go.
pub const fn counted_members_max(slots: u32) -> u32 {
    const OF_A_PORT: u32 = 3 << ROWS_PER_SERVICE_MAX.ilog2();
    let of_a_port = if OF_A_PORT < slots / 5 * 2 { OF_A_PORT } else { slots / 5 * 2 };
    slots - slots / 5 - of_a_port
}
