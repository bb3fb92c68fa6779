/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The structs and constants that the programs and the daemon share through maps.
 *
 * Owns: the layout of every key and value, and every number that stands in one. Nothing else defines them. Reads and
 * writes: nothing.
 *
 * Addresses and ports are in network byte order. A map that serves both families holds an IPv4 address as an
 * IPv4-mapped IPv6 address. Fields are integers of fixed width or arrays of them. Every byte belongs to a field,
 * because the kernel compares keys as bytes.
 *
 * A change here needs a new VERSION, which has pins of its own beside the old ones. Five additions need none: a further
 * map that all generations share; a further number in an enum that only a refusal or a switch carries; a further flag
 * of a word, which an older daemon clears again; a field in place of a value's pad, if 0 means what was true before;
 * and a field in place of a pad of struct fragment_key, because another version's entries expire within seconds. A
 * further map of a generation needs a new VERSION. So does a further kind or state in an entry, because an older daemon
 * would not know it. The storage of sockets outlives a VERSION: a change of struct udp_socket needs a new
 * SOCKETS_VERSION. A change of struct flow, or of the keys that lead to flows, needs a new FLOWS_VERSION.
 */
#ifndef HOLDFAST_ABI_H
#define HOLDFAST_ABI_H

#include <linux/types.h>

#define SIZE_IS(type, size) _Static_assert(sizeof(struct type) == (size), #type)

/* Sizes that never change while the daemon runs. */
enum size {
	/* One bit for each port number. */
	NODE_PORT_WORDS = 1024,
	/* Address blocks of one family. */
	BLOCKS = 1 << 16,
	/* One bit for each address block of both families. */
	BLOCK_WORDS = 2 * BLOCKS / 64,
	/* Columns that count the connects of one port: a power of two. */
	CONNECT_COLUMNS = 8,
	/* TCP sockets whose dialled address is remembered: a power of two. 4 MiB. */
	SOCK_REV_NAT_ENTRIES = 1 << 17,
	/*
	 * Destinations that one UDP socket remembers: the one that it is connected to, and those that it sent datagrams
	 * to.
	 */
	UDP_PAIRS = 8,
	/* Network namespaces times ports with affinity. The kernel evicts the least recently used entry. */
	AFFINITY_ENTRIES = 1 << 16,
	/* Clients known by address, times lists with affinity, and the limit for one namespace: a power of two. */
	CLIENTS = 1 << 17,
	CLIENTS_PER_SHARE = 1 << 14,
	/* Addresses of one node. */
	NODE_ADDRESSES = 4096,
	/* Cgroup subtrees that are exempt. The configuration allows as many. */
	EXEMPT_CGROUPS = 64,
	/* The deepest level at which an exempt subtree may begin. A pod's container is at level four or five. */
	CGROUP_LEVELS = 16,
	/* The bytes of the refusal ring. It holds about 2,500 refusals. */
	REFUSAL_BYTES = 1 << 18,
	/* Slots of the rate limits for refusals, by namespace and cgroup: a power of two. See events.h. */
	REFUSAL_PACES = 1 << 12,
	/* Unanswered flows that are queued by age. The programs find further ones by sampling. */
	OPENING_FLOWS = 1 << 14,
	/*
	 * The namespace numbers by which flows are counted, so that each namespace gets its share of the flow table. 0:
	 * no namespace.
	 */
	FLOW_SHARES = 1 << 12,
	/* Datagrams with fragments under way. The kernel evicts the least recently used entry. */
	FRAGMENTED = 8192,
	/* Devices with packet programs: thousands of pods' devices, and the devices that lead elsewhere. */
	DEVICES = 4096,
	/* Source ranges times the ports that they apply to. */
	SOURCE_RANGES = 1 << 16,
	/* Cluster IPs of one family. Kubernetes is tested with fewer services in one cluster. */
	CLUSTER_IPS = 1 << 17,
	/*
	 * UDP conversations that this node began from a node port's number. The kernel evicts the least recently used
	 * entry.
	 */
	OWN_TALKS = 8192,
	/* Ranges of SNAT ports. The configuration allows as many. */
	SNAT_RANGES = 4,
	/* Networks of one family that `dsr_from` names. The configuration allows as many. */
	DSR_NETWORKS = 16,
	/*
	 * Refused connects that are remembered: for each group of frontends so many backends, both powers of two.
	 * 192 KiB. Services that share a group replace each other's entries, and a service fills one group for each of
	 * its frontends.
	 */
	REFUSED_GROUPS = 512,
	REFUSED_BACKENDS = 8,
	/*
	 * The ports that replace a client's own port towards a backend of this node. They lie below the ephemeral ports
	 * of hosts and below node ports.
	 */
	TRANSLATED_PORTS_FIRST = 1024,
	TRANSLATED_PORTS = 30000 - TRANSLATED_PORTS_FIRST,
};

/* The kind of a frontend's address. */
enum frontend_kind {
	CLUSTER_IP = 0,
	LOAD_BALANCER = 1,
	EXTERNAL_IP = 2,
	NODE_PORT = 3,
	STATIC = 4,
	/* An address of a ServiceImport. The author chose it, so the programs refuse no other port of it. */
	CLUSTER_SET_IP = 5,
};

/* The parts of a list's word: the number of the first slot, then the count of slots, then flags. */
enum word_part {
	WORD_COUNT_AT = 32,
	WORD_FLAGS_AT = 52,
};

/* The flags of a word. */
enum word_flag {
	/* An empty list drops clients. Without this flag it refuses them. */
	WORD_DROP = 1,
	/* Cluster word only: cluster IPs and cluster set IPs use the local word. */
	WORD_INTERNAL_LOCAL = 2,
	/* Clients have affinity to their backend. */
	WORD_AFFINITY = 4,
	/* Cluster word only: traffic from outside uses the local word. */
	WORD_EXTERNAL_LOCAL = 8,
	/*
	 * Cluster word only: the map `members` holds the serving backends, so a backend that is missing there does not
	 * serve.
	 */
	WORD_MEMBERS = 16,
	/* Cluster word only: load-balancer addresses accept only clients in `source_ranges`. */
	WORD_SOURCES = 32,
	/* Cluster word only: a hash selects the slot for a client that is known by its packets (Maglev). */
	WORD_MAGLEV = 64,
	/*
	 * The slots are a table: each backend has as many slots as its share is large, in no order. Each backend is a
	 * member of the list, too.
	 */
	WORD_TABLE = 128,
	/* Cluster word only: some backend may be on no node of the cluster, so the programs encapsulate no packet. */
	WORD_OUTSIDE = 256,
};

/* The parts of a frontend's target: the port index, then enum frontend_kind, then the share. */
enum target_part {
	TARGET_KIND_AT = 32,
	TARGET_SHARE_AT = 48,
};

/* The list of a port. SCOPE_SERVING is no list: it holds every serving backend of any slice of the service. */
enum scope {
	SCOPE_CLUSTER = 0,
	SCOPE_LOCAL = 1,
	SCOPE_SERVING = 2,
};

/* The state of a backend in its slot. */
enum slot_state {
	/* The slot was never written, or the daemon cleared it. */
	SLOT_EMPTY = 0,
	SLOT_ACTIVE = 1,
	SLOT_DRAINING = 2,
};

/* Sockets that the programs never translate, whatever they dial. */
enum restriction {
	/* Sockets in other network namespaces than the host's. */
	ONLY_HOST = 1,
	/* Datagrams. */
	NOT_UDP = 2,
	/* Processes below one of `exempt_cgroups`. */
	NOT_SUBTREES = 4,
};

/* What happened to a client that was not served. */
enum verdict {
	VERDICT_REFUSED = 1,
	VERDICT_DROPPED = 2,
};

/* The program that refused a client. A refusal of STAGE_SOCKET has 0 as source and device. */
enum stage {
	/* A socket program: the client is a process of this node. */
	STAGE_SOCKET = 0,
	/* A packet program: the client is known by its packet. */
	STAGE_PACKET = 1,
};

/* Why a client was refused or dropped. */
enum reason {
	/* The client's list is empty. The verdict says whether the client was refused or dropped. */
	REASON_NO_BACKEND = 0,
	/* The client is outside of the service's source ranges. */
	REASON_SOURCE = 1,
	/* The flow table is full. */
	REASON_FLOWS = 2,
	/* No SNAT port is free. */
	REASON_PORTS = 3,
	/* This node has no address for SNAT. */
	REASON_ADDRESS = 4,
	/* The client dialled a cluster IP at a port that the service does not have. */
	REASON_NO_SUCH_PORT = 5,
};

/* What identifies a client with affinity. */
enum client_kind {
	/* The cookie of its network namespace. */
	CLIENT_NETNS = 0,
	/* Its address: the client's socket is elsewhere. */
	CLIENT_ADDRESS = 1,
};

/* What a device is to the packets that arrive by it. */
enum device_flag {
	/* The senders are outside of this node. */
	DEVICE_OUTER = 1,
	/* The sender is a pod of this node. */
	DEVICE_POD = 2,
	/* The device leads to backends of other nodes. No client's packets arrive by it. */
	DEVICE_BACKENDS = 4,
	/*
	 * Policy routing applies to replies to the clients of this device: they leave by the route of the frontend's
	 * address.
	 */
	DEVICE_REPLY_BY_FRONTEND = 8,
	/* Packets may take the fast path between this device and other such devices: see fast_path.h. */
	DEVICE_FAST_PATH = 16,
	/*
	 * Pods of this node are behind the device, and their replies may take the fast path. The device serves no
	 * clients unless it has DEVICE_POD too.
	 */
	DEVICE_LOCAL_PODS = 32,
	/*
	 * A device that leads to a pod: the programs may redirect packets to its peer, because nothing queues or
	 * inspects them here. Another device: its packets carry no state of this node, so the programs may redirect
	 * them like that.
	 */
	DEVICE_PEER = 64,
	/* XDP redirects frames between this device and other such devices: see xdp.bpf.c. */
	DEVICE_XDP = 128,
	/* The FIB ignores the ports of a packet that arrives by the device. For IPv6 it ignores the flow label, too. */
	DEVICE_SIMPLE_FIB4 = 512,
	DEVICE_SIMPLE_FIB6 = 1024,
	/*
	 * This node has no other proxy, so an unknown segment that arrives by the device may belong to a connection of
	 * another node.
	 */
	DEVICE_ADOPTS = 2048,
	/*
	 * IPsec policies apply to packets that the stack sends and receives, so the programs neither encapsulate nor
	 * decapsulate packets at this device.
	 */
	DEVICE_IPSEC = 4096,
	/*
	 * The device is a bridge. Its ports may have shown a packet to netfilter before the packet reached the device.
	 */
	DEVICE_BRIDGE = 8192,
	/*
	 * The device is a virtual switch without an uplink. Pods of this node and of other nodes are behind it, and all
	 * reply by it. Under policy Local the backend is on this node.
	 */
	DEVICE_SWITCH = 16384,
};

/* The place where packets look like an entry. */
enum entry_kind {
	/* On the wire at an outer device: client to frontend, or backend to the SNAT address. */
	ENTRY_WIRE = 0,
	/* In the stack: between backend and client, in either direction. */
	ENTRY_TRANSLATED = 1,
};

enum flow_state {
	/* The record is free. */
	FLOW_FREE = 0,
	/* The client has sent a packet, and the backend has not agreed yet. */
	FLOW_OPENING = 1,
	FLOW_OPEN = 2,
};

/*
 * What one side of a TCP or SCTP connection has sent. Over UDP only a backend's FLOW_UNREACHABLE_SEEN exists. An INIT
 * of SCTP counts as SYN, its shutdown chunks as FIN, and an ABORT as RST.
 */
enum flow_flag {
	FLOW_SYN_SEEN = 1,
	FLOW_FIN_SEEN = 2,
	FLOW_RST_SEEN = 4,
	/* The backend reported a closed port, and has not replied since. */
	FLOW_UNREACHABLE_SEEN = 8,
	/* Client side only, not seen in packets: the client shall get this backend of this list again. */
	FLOW_AFFINITY_CLUSTER = 64,
	FLOW_AFFINITY_LOCAL = 128,
	/*
	 * Client side only: replies leave by the route of the frontend's address. Flows of versions without this flag
	 * have 0.
	 */
	FLOW_REPLY_BY_FRONTEND = 32,
	/*
	 * Client side only: packets take the fast path to another node. An older version sends them through the stack,
	 * which is slower. For a flow with a pod `nat` holds this.
	 */
	FLOW_FAST_PATH = 16,
	/*
	 * Client side only: the client's packets go encapsulated to the backend's node, and the backend replies
	 * directly: see dsr_encap.h. An older version would forward them without a header, and the client would not
	 * recognise the reply.
	 */
	FLOW_ENCAP = 8,
	/* Backend side only, not seen in packets: the flow counts have this flow. */
	FLOW_COUNTED = 64,
	/*
	 * Backend side only: no packet has left from `nat_port` yet, so a packet to that port is no reply of this flow.
	 * The flag stays where another rule masquerades traffic to other nodes. A flow of a version without shares has
	 * this flag until the client's next packet leaves.
	 */
	FLOW_SNAT_UNUSED = 128,
	/* Backend side only: `clients` holds this client with this backend. */
	FLOW_CLIENT_SAVED = 16,
	/* Backend side only: the client's packets arrive encapsulated from another node. */
	FLOW_DECAP = 32,
};

/* The lower bits of a flow's or a refusal's port hold the port index. The share is above them. */
enum flow_part {
	FLOW_SHARE_AT = 20,
};

/* The indices of `flow_counts`. A flow that began before there were counts is in none. */
enum flow_count {
	COUNT_OF_ALL = 0,
	/* The highest number of records that were ever handed out. Only the daemon uses it. */
	COUNT_OF_NUMBERS = 1,
	/* From here on, one count for each share. */
	COUNT_OF_SHARES = 2,
	FLOW_COUNTS = COUNT_OF_SHARES + FLOW_SHARES,
};

/* What the client has sent and the backend still has to reply to. Over UDP each datagram counts. */
enum unacked {
	UNACKED_NOTHING = 0,
	/* Data, or the end of it; or a datagram. */
	UNACKED_DATA = 1,
	/* A SYN on a connection that was established. */
	UNACKED_SYN = 2,
};

/* Seconds without a packet until a flow expires. */
enum lifetime {
	LIFE_OPENING = 30,
	/*
	 * An established connection. kube-proxy sets the same for TCP in conntrack. Newer kernels expire SCTP after 210
	 * seconds, but an association may have no heartbeats. An unanswered one expires earlier anyway.
	 */
	LIFE_TCP = 86400,
	/* One side has sent FIN. kube-proxy sets the same. */
	LIFE_HALF_CLOSED = 3600,
	/* Both sides have sent FIN. Segments may still be under way. */
	LIFE_CLOSED = 120,
	/* The backend has aborted the connection. */
	LIFE_RESET = 30,
	/*
	 * A RST arrived in the client's name, and the backend does not confirm it. Other devices on the path expire a
	 * connection that is idle for longer, too.
	 */
	LIFE_RESET_BY_CLIENT = 600,
	/* The backend does not reply to what it has to. conntrack uses the same. */
	LIFE_UNANSWERED = 300,
	/* One query and its reply, and a stream (see STREAM_AFTER). conntrack uses the same. */
	LIFE_UDP_BRIEF = 30,
	LIFE_UDP = 120,
	/* While the table is full, a closed or reset flow, or one query and its reply, expires this early. */
	LIFE_UNDER_PRESSURE = 10,
	/*
	 * While no other port is free, another flow may take the port of a closed connection, or of a flow that the
	 * backend has not agreed to, after this time.
	 */
	LIFE_TIME_WAIT = 1,
	/* A UDP conversation is a stream when it lasts for longer than this. */
	STREAM_AFTER = 2,
	/*
	 * The seconds of one turn. Later fragments find a first fragment of the same turn or of the one before, so they
	 * find it for at most as long as the kernel waits for fragments.
	 */
	FRAGMENT_TURN = 15,
};

/* The indices of `packet_counts`. */
enum packet_count {
	/* Flows that began. */
	COUNT_FLOWS = 0,
	/* TCP or SCTP packets to a frontend that belong to no flow and open none. The stack gets them first. */
	COUNT_MIDSTREAM = 1,
	/* Datagrams at node ports that belong to the node's own conversations. */
	COUNT_NODE_REPLIES = 2,
	/* Dropped: the client is outside of the source ranges. */
	COUNT_SOURCE = 3,
	/* Dropped: the flow table has no room. */
	COUNT_FULL = 4,
	/* Dropped: there is no SNAT port or no SNAT address. */
	COUNT_NO_PORT = 5,
	/* Unanswered flows that the programs evicted. */
	COUNT_UNANSWERED = 6,
	/* Other flows that the programs evicted. */
	COUNT_RECLAIMED = 7,
	/* Fragments that arrived before their first fragment, or long after it. The stack gets them first. */
	COUNT_FRAGMENTS = 8,
	/* Rejects (RST or ICMP) that were sent to clients. */
	COUNT_REJECTS = 9,
	/*
	 * Refused clients that got no reject: the rate limit was reached, or the packet allows none (see reject()).
	 * Also packets of no flow that would leave for their router again.
	 */
	COUNT_UNANSWERABLE = 10,
	/* ICMP errors that were translated. */
	COUNT_ERRORS = 11,
	/* Dropped: the program could not write to the packet. */
	COUNT_UNWRITABLE = 12,
	/* Frames that XDP redirected. Maps of older versions have no slot for this count. */
	COUNT_XDP_REDIRECTS = 13,
	/* Packets of refused clients that XDP dropped. The other counts have them, too. */
	COUNT_XDP_DROPS = 14,
	/*
	 * Packets that went encapsulated to another node. Maps of older versions have no slot for this count and the
	 * ones below.
	 */
	COUNT_ENCAP = 15,
	/* Packets of clients that arrived encapsulated from another node. */
	COUNT_DECAP = 16,
	/* Dropped after decapsulation: the frontend does not have the backend that the other node named. */
	COUNT_NOT_LISTED = 17,
	/* Dropped after decapsulation: the backend is not on this node, or the client is. */
	COUNT_NOT_LOCAL = 18,
	/* Dropped after decapsulation: the packet belongs to no flow and opens none. */
	COUNT_DECAP_UNKNOWN = 19,
	/* Dropped: there is no route to the other node, or none for a packet of that length. */
	COUNT_NO_ROUTE = 20,
	/* Flows that this node adopted in the middle of a connection. */
	COUNT_ADOPTED = 21,
	/* Dropped: a datagram whose source is a frontend. */
	COUNT_LOOP = 22,
	PACKET_COUNTS = 23,
};

/*
 * What an IPv4 client dials. A node port has address 0 and `any`. All other keys have 0 in `any`: a client that dials
 * 0.0.0.0 means itself, and finds no node port.
 */
struct frontend4_key {
	__u32 address;
	__u16 port;
	__u8 transport;
	__u8 any;
};
SIZE_IS(frontend4_key, 8);

/*
 * The key again as an echo, then the target.
 *
 * The kernel may reuse a freed element for another key while a program still reads it. The kernel fills the element
 * from the front, and the programs read the target first. So a wrong target comes with a wrong echo. Barriers enforce
 * both orders: see lookup_frontend4().
 */
struct frontend4_value {
	__u32 address;
	__u16 port;
	__u8 transport;
	__u8 any;
	__u64 target;
};
SIZE_IS(frontend4_value, 16);

/* What an IPv6 client dials. A node port has address 0, as above. */
struct frontend6_key {
	__u32 address[4];
	__u16 port;
	__u8 transport;
	__u8 any;
};
SIZE_IS(frontend6_key, 20);

/* As frontend4_value. */
struct frontend6_value {
	__u32 address[4];
	__u16 port;
	__u8 transport;
	__u8 any;
	__u32 reserved;
	__u64 target;
};
SIZE_IS(frontend6_value, 32);

/* What only some connects read. */
struct port_facts {
	/* Seconds. 0: no affinity. */
	__u32 affinity_timeout;
	/*
	 * The count of a client address' last bits that affinity ignores, where it knows clients by address. Daemons
	 * without this field left 0 here.
	 */
	__u32 ignored_bits;
};
SIZE_IS(port_facts, 8);

/*
 * A port of a service. Each connect reads the first cache line and writes the second one, which has one count for each
 * group of CPUs.
 */
struct port {
	/* The words of its two lists. The daemon and the programs access each word by one aligned access. */
	__u64 cluster;
	__u64 local;
	struct port_facts facts;
	/* Clients that were not served. */
	__u64 refused;
	__u64 dropped;
	__u64 reserved[3];
	/* Clients that got a backend. */
	__u64 connects[CONNECT_COLUMNS];
};
SIZE_IS(port, 128);

/* One slot of an IPv4 list. */
struct slot4 {
	__u32 address;
	__u16 port;
	/* enum slot_state */
	__u16 state;
};
SIZE_IS(slot4, 8);

/* One slot of an IPv6 list. */
struct slot6 {
	__u32 address[4];
	__u16 port;
	__u16 state;
	__u32 pad;
};
SIZE_IS(slot6, 24);

/* A backend that is in a list, or serves. The value is its enum slot_state. */
struct member_key {
	__u32 port_index;
	__u32 scope;
	__u32 address[4];
	__u16 port;
	__u16 pad[3];
};
SIZE_IS(member_key, 32);

/* An IPv6 address. */
struct in6 {
	__u32 address[4];
};
SIZE_IS(in6, 16);

/* A client of a port with affinity. */
struct affinity_key {
	/* A netns cookie in the first half, low word first, then zeros; or an address. enum client_kind says which. */
	__u32 client[4];
	__u32 port_index;
	/* enum scope */
	__u8 scope;
	/* enum client_kind */
	__u8 kind;
	__u16 pad;
};
SIZE_IS(affinity_key, 24);

/* The client's last backend, and when the client got it. */
struct affinity_value {
	__u32 address[4];
	__u16 port;
	__u16 pad[3];
	__u64 at_ns;
};
SIZE_IS(affinity_value, 32);

/* The slot for a client of a port with affinity that is known by address: see affinity.h. */
struct client_key {
	/* The number of the namespace. */
	__u32 share;
	/* Below CLIENTS_PER_SHARE. */
	__u32 slot;
};
SIZE_IS(client_key, 8);

/* The client, its list, its last backend, and when the client got it. */
struct client_value {
	__u32 client[4];
	__u32 address[4];
	__u16 port;
	/* enum scope */
	__u16 scope;
	__u32 port_index;
	__u64 at_ns;
};
SIZE_IS(client_value, 48);

/* A TCP socket and what it dialled. Its index is the socket's cookie modulo SOCK_REV_NAT_ENTRIES. */
struct sock_rev_nat {
	__u64 cookie;
	__u32 address[4];
	__u16 port;
	__u16 pad;
	/* A hash of all fields and the backend. It does not match a torn entry or one of another connect. */
	__u32 check;
};
SIZE_IS(sock_rev_nat, 32);

/* A backend that refused the connect of a TCP socket, and what the socket dialled. */
struct refused_connect {
	__u32 frontend[4];
	__u32 backend[4];
	__u16 frontend_port;
	__u16 backend_port;
	/* When, in seconds since boot. */
	__u32 second;
	/* A hash of the endpoints. Two processors may write at once, and the hash does not match a torn entry. */
	__u64 check;
};
SIZE_IS(refused_connect, 48);

/* What a UDP socket dialled, and the backend that it got. */
struct udp_pair {
	__u32 dialled[4];
	__u32 backend[4];
	__u16 dialled_port;
	__u16 backend_port;
	/* A hash of all fields. Two threads may write at once, and the hash does not match a torn pair. */
	__u32 check;
};
SIZE_IS(udp_pair, 40);

/* The storage of a UDP socket. Its layout has a version of its own. */
struct udp_socket {
	/* The cookies of the socket and of its network namespace. connect() writes them. */
	__u64 cookie;
	__u64 netns;
	/* The first pair is that of connect(). A datagram to a new destination replaces the oldest of the others. */
	struct udp_pair pairs[UDP_PAIRS];
	/* The index of the pair that was used last. */
	__u32 last;
	/* The count of writes to the other pairs. */
	__u32 written;
};
SIZE_IS(udp_socket, 344);

/* What a UDP socket is connected to. */
struct udp_connection {
	__u64 cookie;
	__u64 netns;
	struct udp_pair pair;
};
SIZE_IS(udp_connection, 56);

/*
 * A client that was not served. A field that does not apply is 0: a packet has no process, and a socket has no source
 * yet.
 */
struct refusal {
	/* Since boot. */
	__u64 at_ns;
	/* The client's cgroup and network namespace. */
	__u64 cgroup;
	__u64 netns;
	/* The client's process, its thread, and the thread's name. */
	__u32 process;
	__u32 thread;
	__u8 comm[16];
	/* What the client dialled. */
	__u32 address[4];
	/* The source of the client's packet. */
	__u32 source[4];
	/* The dialled port, and the source port of the packet. */
	__u16 port;
	__u16 source_port;
	__u8 transport;
	/* enum verdict */
	__u8 verdict;
	/* enum stage */
	__u8 stage;
	/* enum reason */
	__u8 reason;
	/* The port index of the frontend, and above FLOW_SHARE_AT the share, as in struct flow. */
	__u32 port_and_share;
	/* The ifindex of the ingress device. */
	__u32 device;
};
SIZE_IS(refusal, 96);

/* The refusals that were reported in one second. */
struct refusal_pace {
	__u32 second;
	__u32 reported;
};
SIZE_IS(refusal_pace, 8);

/*
 * A flow: a client, the frontend that it dialled, and the backend that it got. Entries map the tuples of packets to the
 * flow's number. A program that follows an entry compares the packet with the flow, so an outdated entry matches
 * nothing.
 */
struct flow {
	__u32 client[4];
	__u32 frontend[4];
	__u32 backend[4];
	/*
	 * The SNAT address: a backend of another node sees it instead of the client's. A pod that is its own backend
	 * sees it instead of its own. 0: the client keeps its address. Without `nat_port` there is no SNAT address, and
	 * the first word is the ifindex by which replies take the fast path, or 0.
	 */
	__u32 nat[4];
	__u16 client_port;
	__u16 frontend_port;
	__u16 backend_port;
	__u16 nat_port;
	/* The client's port in the stack: its own, or another one that collides with no other connection. */
	__u16 translated_port;
	__u8 transport;
	/* enum flow_state */
	__u8 state;
	/* enum flow_flag */
	__u8 client_flags;
	__u8 backend_flags;
	/* Whether the flow is IPv4. */
	__u8 v4;
	/* enum unacked. Versions without this field left 0 here. */
	__u8 unacked;
	/*
	 * The port index of the frontend, and above FLOW_SHARE_AT the share. Flows of versions without shares have
	 * share 0.
	 */
	__u32 port_and_share;
	/* Not 0 while all fields above belong together. Each flow has another serial. */
	__u32 serial;
	/* The second since boot of the flow's last packet. */
	__u32 seen;
	/* The second since boot in which the flow began. */
	__u32 began;
};
SIZE_IS(flow, 96);

/*
 * The tuple of a packet of a flow. Under ENTRY_TRANSLATED the lesser endpoint is the source, so packets of both
 * directions have one key. Addresses are compared first, as the numbers that stand here, the first word first; then
 * ports.
 */
struct entry4_key {
	__u32 source;
	__u32 destination;
	__u16 source_port;
	__u16 destination_port;
	__u8 transport;
	/* enum entry_kind */
	__u8 kind;
	__u16 pad;
};
SIZE_IS(entry4_key, 16);

/* As above. */
struct entry6_key {
	__u32 source[4];
	__u32 destination[4];
	__u16 source_port;
	__u16 destination_port;
	__u8 transport;
	__u8 kind;
	__u16 pad;
};
SIZE_IS(entry6_key, 40);

/* A datagram whose first fragment has arrived. */
struct fragment_key {
	__u32 source[4];
	__u32 destination[4];
	__u32 id;
	__u8 transport;
	/* enum entry_kind */
	__u8 kind;
	/* The turn in which the first fragment arrived: see FRAGMENT_TURN. */
	__u16 turn;
};
SIZE_IS(fragment_key, 40);

/* The ports in the first fragment. */
struct fragment_value {
	__u16 source_port;
	__u16 destination_port;
};
SIZE_IS(fragment_value, 4);

/* A byte for each port number, so that a program sets one without reading the others. */
struct port_bytes {
	__u8 is_set[1 << 16];
};
SIZE_IS(port_bytes, 1 << 16);

/* A device with packet programs. */
struct device {
	/*
	 * The SNAT address of packets that leave by this device. A pod that is its own backend sees it instead of its
	 * own address. 0: the device has none.
	 */
	__u32 address4;
	__u32 address6[4];
	/* enum device_flag */
	__u16 flags;
	/*
	 * The count of the address' first bits that this node's own pods share, where the device leads to pods of other
	 * nodes, too. 0: the device leads to no pods of this node.
	 */
	__u8 pod_prefix4;
	__u8 pod_prefix6;
};
SIZE_IS(device, 24);

/* A source range of a port's load-balancer addresses. */
struct source4_key {
	/* The bits of `port_index` count, too. */
	__u32 prefix;
	__u32 port_index;
	__u32 address;
};
SIZE_IS(source4_key, 12);

/* As above. */
struct source6_key {
	__u32 prefix;
	__u32 port_index;
	__u32 address[4];
};
SIZE_IS(source6_key, 24);

/* The tuple of the reply to a datagram that this node sent. */
struct talk_key {
	__u32 source[4];
	__u32 destination[4];
	__u16 source_port;
	__u16 destination_port;
};
SIZE_IS(talk_key, 36);

/* Consecutive port numbers. */
struct port_range {
	__u16 first;
	__u16 count;
};
SIZE_IS(port_range, 4);

enum drains { DRAINS_NOT = 0, DRAINS = 1 };

/* What the daemon tells the packet programs. */
struct packet_settings {
	/* The count of ports in all ranges. */
	__u32 snat_ports;
	struct port_range snat[SNAT_RANGES];
	/*
	 * DRAINS: the programs open no flows for new clients. A greater number: the second until which flows are
	 * frozen. Until then no flow begins, and the programs drop packets that begin or end a flow; the senders repeat
	 * them.
	 */
	__u32 drains;
};
SIZE_IS(packet_settings, 24);

/* What one CPU sent in one second. */
struct pace {
	__u32 second;
	/* Rejects, and reports that a packet is too big. */
	__u16 rejects;
	__u16 too_bigs;
};
SIZE_IS(pace, 8);

/*
 * What the daemon tells all programs. The exemptions have the same place in all versions: a waiting daemon passes its
 * own to the programs that still serve.
 */
struct control {
	/* Sockets of this cgroup are never translated. 0: none. */
	__u64 exempt_cgroup;
	/* The network namespace whose loopback addresses answer node ports. 0: the initial one. */
	__u64 host_netns;
	/* Refusals that the ring had no room for, or that passed the rate limit. */
	__u64 refusals_lost;
	/* Sockets with this mark are never translated. 0: none. */
	__u32 exempt_mark;
	/* enum restriction; 0: all sockets are served. */
	__u32 restrictions;
};
SIZE_IS(control, 32);

#endif
