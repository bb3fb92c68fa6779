/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Every struct and constant that both sides of the maps see; the only place where they are defined.
 *
 * Addresses and ports are in network byte order. Where one map serves both families, an IPv4 address
 * is written as the IPv4-mapped IPv6 address. Fields are integers of fixed width or arrays of them, and
 * every byte is a field: the kernel compares keys as bytes.
 *
 * A change of anything here needs a new VERSION, which lives in pins of its own beside the old one. Five additions
 * need none: a further map that all generations share, a further number in an enum that only a refusal or a switch
 * carries, a further flag of a word, which an older daemon takes away again, a field in the place of a pad of a value,
 * where 0 says what was so before there was the field, and a field in the place of a pad of struct fragment_key, whose
 * entries are of no use to another version for longer than seconds. A further map of a generation needs one, and so
 * does a further kind or state that stands in an entry: an older daemon would not know it. What is kept with sockets
 * outlives a VERSION: a change of struct udp_socket is a new SOCKETS_VERSION, and one of struct flow or of what leads
 * to it is a new FLOWS_VERSION.
 */
#ifndef HOLDFAST_ABI_H
#define HOLDFAST_ABI_H

#include <linux/types.h>

#define SIZE_IS(type, size) _Static_assert(sizeof(struct type) == (size), #type)

/* How large the parts are that never grow. */
enum size {
	/* One bit for each port number. */
	NODE_PORT_WORDS = 1024,
	/* Blocks of addresses of one family. */
	BLOCKS = 1 << 16,
	/* One bit for each block of both families. */
	BLOCK_WORDS = 2 * BLOCKS / 64,
	/* Counts of one port's connects: a power of two. */
	CONNECT_COLUMNS = 8,
	/* TCP sockets that can be told what they dialled: a power of two. 4 MiB. */
	SOCK_REV_NAT_ENTRIES = 1 << 17,
	/* Destinations that one UDP socket remembers: what it is connected to, and what it sent datagrams to. */
	UDP_PAIRS = 8,
	/* Network namespaces times ports with affinity; the least recently used go first. */
	AFFINITY_ENTRIES = 1 << 16,
	/*
	 * Clients known by their addresses, times lists with affinity; and how many of them one namespace may have: a
	 * power of two.
	 */
	CLIENTS = 1 << 17,
	CLIENTS_PER_SHARE = 1 << 14,
	/* Addresses of one node. */
	NODE_ADDRESSES = 4096,
	/* Subtrees of cgroups that are left alone; the configuration allows as many. */
	EXEMPT_CGROUPS = 64,
	/* How deep the top of such a subtree may be: a container of a pod is at the fourth or fifth level. */
	CGROUP_LEVELS = 16,
	/* Bytes of refusals that wait for the daemon: some 2,500. */
	REFUSAL_BYTES = 1 << 18,
	/* Places by which namespaces and cgroups have a pace of refusals each: a power of two. See events.h. */
	REFUSAL_PACES = 1 << 12,
	/* So many of the flows that have not been answered are known by their age; others are found by chance. */
	OPENING_FLOWS = 1 << 14,
	/*
	 * The numbers of namespaces by which flows are counted, so that each namespace gets its share of the table; 0:
	 * of none.
	 */
	FLOW_SHARES = 1 << 12,
	/* Datagrams with fragments on their way; the least recently used go first. */
	FRAGMENTED = 8192,
	/*
	 * Devices at which packets are translated: those of thousands of pods, and a part for those that lead
	 * elsewhere.
	 */
	DEVICES = 4096,
	/* Ranges of sources, times the ports that they are for. */
	SOURCE_RANGES = 1 << 16,
	/* Cluster IPs of one family: more than the services that Kubernetes is tested with in one cluster. */
	CLUSTER_IPS = 1 << 17,
	/*
	 * Conversations over UDP that began on this node at the number of a node port; the least recently used go
	 * first.
	 */
	OWN_TALKS = 8192,
	/* Ranges of ports that are given to clients on their way to other nodes; the configuration allows as many. */
	SNAT_RANGES = 4,
	/* Networks of one family in which only nodes live; the configuration allows as many. */
	DSR_NETWORKS = 16,
	/*
	 * The ports by which clients come to backends of this node that need not see the clients' own ports: below the
	 * ports that systems choose by themselves, and below node ports.
	 */
	TRANSLATED_PORTS_FIRST = 1024,
	TRANSLATED_PORTS = 30000 - TRANSLATED_PORTS_FIRST,
};

/* What kind of address a frontend is. */
enum frontend_kind {
	CLUSTER_IP = 0,
	LOAD_BALANCER = 1,
	EXTERNAL_IP = 2,
	NODE_PORT = 3,
	STATIC = 4,
	/* An address of a ServiceImport, which its author chose: no other port of it is refused. */
	CLUSTER_SET_IP = 5,
};

/*
 * Where the parts of a list's word begin: the number of its first slot comes first, then how many slots it has, then
 * flags.
 */
enum word_part {
	WORD_COUNT_AT = 32,
	WORD_FLAGS_AT = 52,
};

/* The flags of a word. */
enum word_flag {
	/* An empty list drops instead of refusing. */
	WORD_DROP = 1,
	/* In the cluster word: cluster IPs and cluster set IPs use the local word. */
	WORD_INTERNAL_LOCAL = 2,
	/* Clients stick to their backend. */
	WORD_AFFINITY = 4,
	/* In the cluster word: traffic from outside uses the local word. */
	WORD_EXTERNAL_LOCAL = 8,
	/* In the cluster word: the backends that serve are in `members`, so one that is not there does not serve. */
	WORD_MEMBERS = 16,
	/* In the cluster word: load-balancer addresses are for the clients in `source_ranges` alone. */
	WORD_SOURCES = 32,
	/* In the cluster word: a client that is known by its packets has its place in the list computed. */
	WORD_MAGLEV = 64,
	/*
	 * The slots are a table: backends have as many places as their shares are large, in no order, and each is a
	 * member of the list, too.
	 */
	WORD_TABLE = 128,
	/*
	 * In the cluster word: some backend may be on no node of the cluster, so packets go to none of them as they
	 * came.
	 */
	WORD_OUTSIDE = 256,
};

/* Where the parts of a frontend's target begin: the port index comes first, then enum frontend_kind, then the share. */
enum target_part {
	TARGET_KIND_AT = 32,
	TARGET_SHARE_AT = 48,
};

/* Which list of a port. SCOPE_SERVING is no list, but all backends that serve in any slice of its service. */
enum scope {
	SCOPE_CLUSTER = 0,
	SCOPE_LOCAL = 1,
	SCOPE_SERVING = 2,
};

/* Why a backend is in a list. */
enum slot_state {
	/* Nothing was ever written here, or it was wiped. */
	SLOT_EMPTY = 0,
	SLOT_ACTIVE = 1,
	SLOT_DRAINING = 2,
};

/* Sockets that are not served at all, whatever they dial. */
enum restriction {
	/* Sockets in other network namespaces than the host's. */
	ONLY_HOST = 1,
	/* Datagrams. */
	NOT_UDP = 2,
	/* Processes below one of `exempt_cgroups`. */
	NOT_SUBTREES = 4,
};

/* What a client met that was not served. */
enum verdict {
	VERDICT_REFUSED = 1,
	VERDICT_DROPPED = 2,
};

/* Which program has turned a client away. What only packets can say (source, device) is 0 in what sockets say. */
enum stage {
	/* A program at a socket: the client is a process of this node. */
	STAGE_SOCKET = 0,
	/* A program at a device: the client is known by its packet. */
	STAGE_PACKET = 1,
};

/* Why a client was turned away. */
enum reason {
	/* The list that is meant for it is empty; the verdict says the rest. */
	REASON_NO_BACKEND = 0,
	/* The client is in none of the ranges of sources that the service allows. */
	REASON_SOURCE = 1,
	/* The table of flows is full. */
	REASON_FLOWS = 2,
	/* There is no port left by which another node could answer. */
	REASON_PORTS = 3,
	/* This node has no address to which another node could answer. */
	REASON_ADDRESS = 4,
	/* The client dialled the cluster IP of a service, and a port that the service does not have. */
	REASON_NO_SUCH_PORT = 5,
};

/* What a client is known by when it comes again. */
enum client_kind {
	/* The cookie of its network namespace. */
	CLIENT_NETNS = 0,
	/* Its address, for a client with its socket elsewhere. */
	CLIENT_ADDRESS = 1,
};

/* What a device is to the packets that come by it. */
enum device_flag {
	/* Its senders are outside of this node. */
	DEVICE_OUTER = 1,
	/* Its sender is a pod of this node. */
	DEVICE_POD = 2,
	/* The device leads to backends of other nodes; packets that come by it are of no client. */
	DEVICE_BACKENDS = 4,
	/*
	 * Answers to clients that come by it are routed by the address that the answers bear, and not by the backend's.
	 */
	DEVICE_REPLY_BY_FRONTEND = 8,
	/* Packets between it and other such devices may pass by the stack: see fast_path.h. */
	DEVICE_FAST_PATH = 16,
	/*
	 * Pods of this node are behind it, and what they answer may pass by the stack. It serves no clients, unless the
	 * pod is one, as DEVICE_POD says.
	 */
	DEVICE_LOCAL_PODS = 32,
	/*
	 * Of a device that leads to a pod: packets can be given to its other end right away, because nothing waits or
	 * looks here. Of another one: what comes by it bears nothing of this node, and can be given away like that.
	 */
	DEVICE_PEER = 64,
	/* Frames pass by the stack between it and other such devices, from driver to driver: see xdp.bpf.c. */
	DEVICE_XDP = 128,
	/*
	 * The kernel finds the way of a packet of IPv4 that comes by the device without a look at its ports; that of
	 * one of IPv6, without a look at ports and label.
	 */
	DEVICE_SIMPLE_FIB4 = 512,
	DEVICE_SIMPLE_FIB6 = 1024,
	/*
	 * A segment of no flow that comes by it may be of a connection that another node has let in: this node has no
	 * other proxy that could have the connection.
	 */
	DEVICE_ADOPTS = 2048,
	/*
	 * Policies of IPsec are to see what the stack sends and takes: nothing goes by it to another node as it came,
	 * and nothing is taken so.
	 */
	DEVICE_IPSEC = 4096,
	/* A bridge: its ports may have shown a packet to the filters of the stack before it came here. */
	DEVICE_BRIDGE = 8192,
	/*
	 * A virtual switch that is no way out of the node: pods of this node are behind it beside those of others, and
	 * all of them answer by it. Under policy Local the backend is one of this node's.
	 */
	DEVICE_SWITCH = 16384,
};

/* Where a packet shows the addresses of an entry. */
enum entry_kind {
	/* As it comes by an outer device: client to frontend, or backend to the address that the client was given. */
	ENTRY_WIRE = 0,
	/* As the stack sees it: between backend and client, in either direction. */
	ENTRY_TRANSLATED = 1,
};

enum flow_state {
	/* The record is free. */
	FLOW_FREE = 0,
	/* The client has been heard, and the two have not agreed yet. */
	FLOW_OPENING = 1,
	FLOW_OPEN = 2,
};

/*
 * What was heard of one side of a connection by TCP or SCTP. By UDP only a backend's FLOW_UNREACHABLE_SEEN is heard. An
 * INIT of SCTP counts as a SYN, what belongs to its shutdown as a FIN, and an ABORT as a RST.
 */
enum flow_flag {
	FLOW_SYN_SEEN = 1,
	FLOW_FIN_SEEN = 2,
	FLOW_RST_SEEN = 4,
	/* The backend has told that its port is closed, and has not answered since. */
	FLOW_UNREACHABLE_SEEN = 8,
	/*
	 * Of the client's side alone, and nothing that was heard: the client is to get this backend again, of that
	 * list.
	 */
	FLOW_AFFINITY_CLUSTER = 64,
	FLOW_AFFINITY_LOCAL = 128,
	/* Likewise: answers go as the frontend's address is routed. A flow from before this had a name has 0 here. */
	FLOW_REPLY_BY_FRONTEND = 32,
	/*
	 * Likewise: its packets pass by the stack to another node. An older version leads them through the stack, which
	 * is slower. Of a flow with a pod `nat` says it.
	 */
	FLOW_FAST_PATH = 16,
	/*
	 * Likewise: what the client says goes to another node as it came, behind a header of this node, and the backend
	 * answers past this one: see dsr_encap.h. An older version would send it there as its own stack does, and the
	 * client would not know the answer.
	 */
	FLOW_ENCAP = 8,
	/*
	 * Of the backend's side alone, and nothing that was heard: the flow is in the counts of flows.
	 */
	FLOW_COUNTED = 64,
	/*
	 * Likewise: nothing has left from the flow's `nat_port` yet, so what comes to that port is none of its answers.
	 * Where another masquerades what leaves for other nodes, nothing ever does. What was written before flows had a
	 * share says this too, until the client's next packet leaves.
	 */
	FLOW_SNAT_UNUSED = 128,
	/* Likewise: the client is remembered with this backend. */
	FLOW_CLIENT_SAVED = 16,
	/* Likewise: the client came by another node, behind a header of that one. */
	FLOW_DECAP = 32,
};

/*
 * The port of a flow or a refusal is a number of so many bits, into which every port index fits; the share is above
 * them.
 */
enum flow_part {
	FLOW_SHARE_AT = 20,
};

/* Where flows are counted, those that began since there are counts. */
enum flow_count {
	COUNT_OF_ALL = 0,
	/* No count of flows, but of the numbers of records that were handed out so far; the daemon's alone. */
	COUNT_OF_NUMBERS = 1,
	/* From here on by the share of the flow. */
	COUNT_OF_SHARES = 2,
	FLOW_COUNTS = COUNT_OF_SHARES + FLOW_SHARES,
};

/* What the client has said that the backend has to answer, and has not; a datagram counts as such, whatever it says. */
enum unacked {
	UNACKED_NOTHING = 0,
	/* Data, or the end of it; or a datagram. */
	UNACKED_DATA = 1,
	/* A SYN, where the two had agreed before. */
	UNACKED_SYN = 2,
};

/* Seconds without a packet after which a flow has ended. */
enum lifetime {
	LIFE_OPENING = 30,
	/*
	 * A connection, as long as kube-proxy has conntrack keep one of TCP. An association of SCTP, which conntrack of
	 * newer kernels forgets after 210 seconds, may have no heartbeats; what is not answered ends early in any case.
	 */
	LIFE_TCP = 86400,
	/* One side has said its last, also as kube-proxy has it. */
	LIFE_HALF_CLOSED = 3600,
	/* Both sides have said their last; segments may still be under way. */
	LIFE_CLOSED = 120,
	/* The backend says that the connection is over. */
	LIFE_RESET = 30,
	/*
	 * A RST came in the client's name, and the backend does not say so. A connection that is idle for longer is
	 * ended by others on its way too.
	 */
	LIFE_RESET_BY_CLIENT = 600,
	/* The backend does not answer what it has to: as conntrack has it. */
	LIFE_UNANSWERED = 300,
	/* As conntrack has it: a question and its answer, and what goes on for longer than STREAM_AFTER. */
	LIFE_UDP_BRIEF = 30,
	LIFE_UDP = 120,
	/* Where there is no room, a flow that was closed or reset, or was a question and its answer, ends so early. */
	LIFE_UNDER_PRESSURE = 10,
	/*
	 * Where there is no other port, the port of a connection that both sides have ended is given away so early, and
	 * the port of a flow that the other side has not agreed to.
	 */
	LIFE_TIME_WAIT = 1,
	/* So many seconds after its first packet a conversation over UDP is a stream. */
	STREAM_AFTER = 2,
	/*
	 * Fragments follow a first one of the same turn, or of the turn before; each has so many seconds. So they do it
	 * for at most as long as the kernel waits for the fragments of a datagram.
	 */
	FRAGMENT_TURN = 15,
};

/* What packets are counted by, beside the counts of ports. */
enum packet_count {
	/* Flows that began. */
	COUNT_FLOWS = 0,
	/* What is sent to a frontend by TCP or SCTP, is of no flow and opens none: left to the stack. */
	COUNT_MIDSTREAM = 1,
	/* Datagrams at node ports that are of a conversation of the node's own. */
	COUNT_NODE_REPLIES = 2,
	/* Dropped: outside of the ranges of sources. */
	COUNT_SOURCE = 3,
	/* Dropped: no room for a flow. */
	COUNT_FULL = 4,
	/* Dropped: no port, or no address, by which another node could answer. */
	COUNT_NO_PORT = 5,
	/* Flows that ended unanswered to make room for others. */
	COUNT_UNANSWERED = 6,
	/* Flows that ended because a program needed their room. */
	COUNT_RECLAIMED = 7,
	/* Fragments that came before their first one, or long after it: left to the stack. */
	COUNT_FRAGMENTS = 8,
	/* Answers to clients that were refused. */
	COUNT_REJECTS = 9,
	/*
	 * Clients that were refused and got no answer: too many were in that second, or the packet allows none (see
	 * reject()).
	 */
	COUNT_UNANSWERABLE = 10,
	/* Errors of routers and backends that were translated. */
	COUNT_ERRORS = 11,
	/* Packets that could not be written to, and were dropped. */
	COUNT_UNWRITABLE = 12,
	/* Packets that passed by the stack at a driver. What was made before this was counted has no place for it. */
	COUNT_XDP_REDIRECTS = 13,
	/* Packets of clients that were turned away, dropped at a driver. They are in the other counts, too. */
	COUNT_XDP_DROPS = 14,
	/* Packets of clients that went to another node as they came. As above, and so are those below. */
	COUNT_ENCAP = 15,
	/* Packets of clients that came by another node. */
	COUNT_DECAP = 16,
	/* Dropped: came by another node for a backend that this node does not know behind that frontend. */
	COUNT_NOT_LISTED = 17,
	/* Dropped: came by another node, and the backend is not on this one, or the client is. */
	COUNT_NOT_LOCAL = 18,
	/* Dropped: came by another node, and is of no flow of a backend here and begins none. */
	COUNT_DECAP_UNKNOWN = 19,
	/* Dropped: there is no way to the other node, or none for a packet that is so long. */
	COUNT_NO_ROUTE = 20,
	/* Flows that began with a segment of a connection that another node has let in. */
	COUNT_ADOPTED = 21,
	/* Dropped: a datagram that says to come from a frontend. */
	COUNT_LOOP = 22,
	PACKET_COUNTS = 23,
};

/*
 * What an IPv4 client dials. A node port has address 0 and says so by `any`, which is 0 in all other keys: a client
 * that dials 0.0.0.0 means itself, and finds no node port.
 */
struct frontend4_key {
	__u32 address;
	__u16 port;
	__u8 transport;
	__u8 any;
};
SIZE_IS(frontend4_key, 8);

/*
 * The key again, then the target.
 *
 * A freed element may be filled for another key while a program still reads it. It is filled from the front, and
 * programs read the target first: so a foreign target comes with a foreign echo. Neither order is left to the
 * processor: see lookup_frontend4().
 */
struct frontend4_value {
	__u32 address;
	__u16 port;
	__u8 transport;
	__u8 any;
	__u64 target;
};
SIZE_IS(frontend4_value, 16);

/* What an IPv6 client dials; a node port has address 0, as above. */
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
	/* Seconds; 0: no affinity. */
	__u32 affinity_timeout;
	/*
	 * So many last bits of a client's address do not count: where clients are known by addresses, two addresses
	 * that differ in these bits alone are one client. Daemons from before this field left 0 here.
	 */
	__u32 ignored_bits;
};
SIZE_IS(port_facts, 8);

/*
 * A port. What each connect reads is in one cache line. What each connect writes is in the other: counts in columns,
 * each for some of the CPUs.
 */
struct port {
	/* Where its two lists are. Each word is read and written by one aligned access. */
	__u64 cluster;
	__u64 local;
	struct port_facts facts;
	/* Clients that were not served. */
	__u64 refused;
	__u64 dropped;
	__u64 reserved[3];
	/* Clients that were led to a backend. */
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
	/* A cookie in the first half, low word first, and zeros; or an address. enum client_kind says which. */
	__u32 client[4];
	__u32 port_index;
	/* enum scope */
	__u8 scope;
	/* enum client_kind */
	__u8 kind;
	__u16 pad;
};
SIZE_IS(affinity_key, 24);

/* Where it went last, and when. */
struct affinity_value {
	__u32 address[4];
	__u16 port;
	__u16 pad[3];
	__u64 at_ns;
};
SIZE_IS(affinity_value, 32);

/* Where a client of a port with affinity may be remembered that is known by its address: see affinity.h. */
struct client_key {
	/* The number of the namespace. */
	__u32 share;
	/* One of CLIENTS_PER_SHARE. */
	__u32 slot;
};
SIZE_IS(client_key, 8);

/* The client itself and of which list, where it went last, and when. */
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

/* A TCP socket and what it dialled, at its cookie modulo SOCK_REV_NAT_ENTRIES. */
struct sock_rev_nat {
	__u64 cookie;
	__u32 address[4];
	__u16 port;
	__u16 pad;
	/* Mixes all fields and the backend: an entry that is torn or of another connect does not fit. */
	__u32 check;
};
SIZE_IS(sock_rev_nat, 32);

/* What a UDP socket dialled, and the backend that it got. */
struct udp_pair {
	__u32 dialled[4];
	__u32 backend[4];
	__u16 dialled_port;
	__u16 backend_port;
	/* Mixes all fields: two threads may write at once, and a pair that is torn does not fit. */
	__u32 check;
};
SIZE_IS(udp_pair, 40);

/* What is kept with a UDP socket, and goes with it. Its layout has a version of its own. */
struct udp_socket {
	/* The cookies of the socket and of its network namespace, written when it connects. */
	__u64 cookie;
	__u64 netns;
	/* The first is that of connect(); what the socket sent datagrams to replaces the oldest of the others. */
	struct udp_pair pairs[UDP_PAIRS];
	/* The one that was used last. */
	__u32 last;
	/* How many of the others were written. */
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

/* A client that was not let through. What does not apply is 0: a packet has no process, a socket no source yet. */
struct refusal {
	/* Since boot. */
	__u64 at_ns;
	/* The client's cgroup and network namespace. */
	__u64 cgroup;
	__u64 netns;
	/* Its process, thread, and the thread's name. */
	__u32 process;
	__u32 thread;
	__u8 comm[16];
	/* What it dialled. */
	__u32 address[4];
	/* Where its packet came from. */
	__u32 source[4];
	/* The port that it dialled, and the port that its packet came from. */
	__u16 port;
	__u16 source_port;
	__u8 transport;
	/* enum verdict */
	__u8 verdict;
	/* enum stage */
	__u8 stage;
	/* enum reason */
	__u8 reason;
	/* The port that the frontend led to, and from FLOW_SHARE_AT on the share, as in struct flow. */
	__u32 port_and_share;
	/* The number of the device by which its packet came. */
	__u32 device;
};
SIZE_IS(refusal, 96);

/* How many refusals were told in one second. */
struct refusal_pace {
	__u32 second;
	__u32 reported;
};
SIZE_IS(refusal_pace, 8);

/*
 * A client, the frontend that it dialled, and the backend that it got. All that is known of it stands here; what leads
 * here are entries of packets as they are seen, and a program that follows one compares the packet with what is written
 * here. So an entry that is out of date leads nowhere.
 */
struct flow {
	__u32 client[4];
	__u32 frontend[4];
	__u32 backend[4];
	/*
	 * The address that a backend of another node sees instead of the client's, or a pod that is its own backend
	 * instead of its own; 0: the client's. Without `nat_port` there is no such address, and the first word is the
	 * number of the device by which answers may pass by the stack, or 0.
	 */
	__u32 nat[4];
	__u16 client_port;
	__u16 frontend_port;
	__u16 backend_port;
	__u16 nat_port;
	/*
	 * The client's port between the devices: its own, or another one by which it meets no other connection there.
	 */
	__u16 translated_port;
	__u8 transport;
	/* enum flow_state */
	__u8 state;
	/* enum flow_flag */
	__u8 client_flags;
	__u8 backend_flags;
	/* Whether this is IPv4. */
	__u8 v4;
	/* enum unacked. Versions from before this field left 0 here. */
	__u8 unacked;
	/*
	 * The port behind the frontend, and from FLOW_SHARE_AT on the share. A flow from before there were shares says
	 * 0.
	 */
	__u32 port_and_share;
	/* Not 0 while all the above belongs together; each flow has another one. */
	__u32 serial;
	/* In seconds since boot: its last packet, as far as a second matters. */
	__u32 seen;
	/* When it began. */
	__u32 began;
};
SIZE_IS(flow, 96);

/*
 * How a packet of a flow looks. For ENTRY_TRANSLATED whichever of the two is less is the source, so that packets of
 * both directions have the same key: addresses are compared first, as the numbers that stand here, the first part
 * first, and then the ports.
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

/* A datagram of which the first fragment has been seen. */
struct fragment_key {
	__u32 source[4];
	__u32 destination[4];
	__u32 id;
	__u8 transport;
	/* enum entry_kind */
	__u8 kind;
	/* In which turn the first fragment was seen: see FRAGMENT_TURN. */
	__u16 turn;
};
SIZE_IS(fragment_key, 40);

/* What its first fragment says. */
struct fragment_value {
	__u16 source_port;
	__u16 destination_port;
};
SIZE_IS(fragment_value, 4);

/* A byte for each port number, so that each is set without looking at the others. */
struct port_bytes {
	__u8 is_set[1 << 16];
};
SIZE_IS(port_bytes, 1 << 16);

/* A device at which packets are translated. */
struct device {
	/*
	 * The address that backends of other nodes see, in packets that leave by this device, instead of the client's,
	 * and that a pod which is its own backend sees instead of its own; 0: the device has none to give.
	 */
	__u32 address4;
	__u32 address6[4];
	/* enum device_flag */
	__u16 flags;
	/*
	 * So many first bits of the address above are those of this node's own pods, to which the device leads beside
	 * pods of others; 0: it leads to none.
	 */
	__u8 pod_prefix4;
	__u8 pod_prefix6;
};
SIZE_IS(device, 24);

/* Clients that a port's load-balancer addresses are for. */
struct source4_key {
	/* Counts the bits of `port_index` too. */
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

/* How a datagram looks that answers what this node sent. */
struct talk_key {
	__u32 source[4];
	__u32 destination[4];
	__u16 source_port;
	__u16 destination_port;
};
SIZE_IS(talk_key, 36);

/* Port numbers that are next to each other. */
struct port_range {
	__u16 first;
	__u16 count;
};
SIZE_IS(port_range, 4);

enum drains { DRAINS_NOT = 0, DRAINS = 1 };

/* What the daemon tells the programs at devices. */
struct packet_settings {
	/* How many ports all ranges have together. */
	__u32 snat_ports;
	struct port_range snat[SNAT_RANGES];
	/*
	 * DRAINS: a client that has no flow yet gets none. A greater number: the second until which flows stand still.
	 * Meanwhile none begins, and no packet passes that begins or ends one; its sender says it again.
	 */
	__u32 drains;
};
SIZE_IS(packet_settings, 24);

/* What one CPU did in one second. */
struct pace {
	__u32 second;
	/* How many clients were refused by an answer, and how many were told how long packets may be. */
	__u16 rejects;
	__u16 too_bigs;
};
SIZE_IS(pace, 8);

/*
 * What the daemon tells all programs. The exemptions stay where they are in all versions: a daemon that waits tells its
 * own to the programs that still serve.
 */
struct control {
	/* Sockets of this cgroup are never translated; 0: none. */
	__u64 exempt_cgroup;
	/* The network namespace in which loopback addresses answer node ports; 0: the initial one. */
	__u64 host_netns;
	/* Refusals that found no room, or were too many. */
	__u64 refusals_lost;
	/* Sockets with this mark are never translated; 0: none. */
	__u32 exempt_mark;
	/* enum restriction; 0: all sockets are served. */
	__u32 restrictions;
};
SIZE_IS(control, 32);

#endif
