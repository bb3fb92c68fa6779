/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Every struct and constant that both sides of the maps see; the only place where they are defined.
 *
 * Addresses and ports are in network byte order. Where one map serves both families, an IPv4 address
 * is written as the IPv4-mapped IPv6 address. Fields are integers of fixed width or arrays of them, and
 * every byte is a field: the kernel compares keys as bytes.
 *
 * A change of anything here is a new VERSION, which lives in pins of its own beside the old one. None is a further map
 * that all generations share, or a number in an enum that only a refusal or a switch carries; a map of a generation, or
 * a kind or state that stands in an entry, is one: a daemon of before would not know it. What is kept with sockets
 * outlives that: a change of struct udp_socket is a new SOCKETS_VERSION.
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
	REVERSE_ENTRIES = 1 << 17,
	/* Destinations that one UDP socket remembers: what it is connected to, and what it sent datagrams to. */
	UDP_PAIRS = 8,
	/* Clients times ports with affinity; the least recently used go first. */
	AFFINITY_ENTRIES = 1 << 16,
	/* Addresses of one node. */
	NODE_ADDRESSES = 4096,
	/* Subtrees of cgroups that are left alone; the configuration allows as many. */
	EXEMPT_CGROUPS = 64,
	/* How deep the top of such a subtree may be: a container of a pod is at the fourth or fifth level. */
	CGROUP_LEVELS = 16,
	/* Bytes of refusals that wait for the daemon: some 2,500. */
	REFUSAL_BYTES = 1 << 18,
};

/* What kind of address a frontend is. */
enum frontend_kind {
	CLUSTER_IP = 0,
	LOAD_BALANCER = 1,
	EXTERNAL_IP = 2,
	NODE_PORT = 3,
	STATIC = 4,
};

/*
 * Where the parts of a list's word begin: the number of its first slot comes first, then how many it has, then flags.
 */
enum word_part {
	WORD_COUNT_AT = 32,
	WORD_FLAGS_AT = 52,
};

/* The flags of a word. */
enum word_flag {
	/* An empty list drops instead of refusing. */
	WORD_DROP = 1,
	/* In the cluster word: cluster IPs use the local word. */
	WORD_INTERNAL_LOCAL = 2,
	/* Clients stick to their backend. */
	WORD_AFFINITY = 4,
	/* In the cluster word: traffic from outside uses the local word. */
	WORD_EXTERNAL_LOCAL = 8,
	/* In the cluster word: whoever serves is in `members`, so who is not there does not serve. */
	WORD_MEMBERS = 16,
};

/* Where the parts of a frontend's target begin: the port index comes first, then enum frontend_kind. */
enum target_part {
	TARGET_KIND_AT = 32,
};

/* Which list of a port, or none: whoever serves in any slice of its service. */
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

/* Who is not served by sockets at all, whatever it dials. */
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

/* Who has turned a client away. What only packets can say (source, device) is 0 in what sockets say. */
enum stage {
	/* A program at a socket: the client is a process of this node. */
	STAGE_SOCKET = 0,
};

/* Why a client was turned away. */
enum reason {
	/* The list that is meant for it is empty; the verdict says the rest. */
	REASON_NO_BACKEND = 0,
};

/* What a client is known by when it comes again. */
enum client_kind {
	/* The cookie of its network namespace. */
	CLIENT_NETNS = 0,
	/* Its address, for a client whose socket is elsewhere. */
	CLIENT_ADDRESS = 1,
};

/*
 * What an IPv4 client dials. A node port has address 0 and says so by `any`, which is 0 in all other keys: who dials
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
 * The key again, then the target.
 *
 * A freed element may be filled for another key while a program still reads it. It is filled from the
 * front, and programs read the target first: so a foreign target comes with a foreign echo. Neither is left to the
 * processor: see look4().
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
	__u32 pad;
};
SIZE_IS(port_facts, 8);

/*
 * A port. What each connect reads is in one cache line, and what each connect writes in the other, which is counted in
 * columns, for some of the CPUs each.
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

/* A TCP socket and what it dialled, at its cookie modulo REVERSE_ENTRIES. */
struct reverse_entry {
	__u64 cookie;
	__u32 address[4];
	__u16 port;
	__u16 pad;
	/* Mixes all fields and the backend: an entry that is torn or of another connect does not fit. */
	__u32 check;
};
SIZE_IS(reverse_entry, 32);

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
	/* Who it is, and in which network namespace. Of one that was ever connected. */
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
	/* What it dialled, and where its packet came from. */
	__u16 port;
	__u16 source_port;
	__u8 transport;
	/* enum verdict */
	__u8 verdict;
	/* enum stage */
	__u8 stage;
	/* enum reason */
	__u8 reason;
	/* The port that the frontend led to. */
	__u32 port_index;
	/* The number of the device by which its packet came. */
	__u32 device;
};
SIZE_IS(refusal, 96);

/*
 * What the daemon tells all programs. The exemptions stay where they are in all versions: a daemon that waits tells its
 * own to the programs that still serve.
 */
struct control {
	/* Sockets of this cgroup are never translated; 0: none. */
	__u64 exempt_cgroup;
	/* The network namespace whose loopback addresses answer node ports; 0: the initial one. */
	__u64 host_netns;
	/* Refusals that found no room. */
	__u64 refusals_lost;
	/* Sockets with this mark are never translated; 0: none. */
	__u32 exempt_mark;
	/* enum restriction; 0: everybody is served. */
	__u32 restrictions;
};
SIZE_IS(control, 32);

#endif
