/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The maps. Those of a generation grow: the daemon builds larger ones beside, fills them, and moves the programs over.
 * The others keep their size and are shared by all generations; the map of what is kept with sockets is shared by all
 * versions too.
 */
#ifndef HOLDFAST_MAPS_H
#define HOLDFAST_MAPS_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "abi.h"

/* --- One generation. The sizes here are replaced before loading. --- */

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct frontend4_key);
	__type(value, struct frontend4_value);
} frontends4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct frontend6_key);
	__type(value, struct frontend6_value);
} frontends6 SEC(".maps");

/* The ports of services, by port index. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct port);
} ports SEC(".maps");

/* A list is one contiguous range of slots. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct slot4);
} backends4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct slot6);
} backends6 SEC(".maps");

/*
 * The members: the backends of lists with affinity; and all backends that serve, of UDP ports, and of TCP ports too
 * where the daemon ends the connections of a backend that has left.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct member_key);
	__type(value, __u32);
} members SEC(".maps");

/* --- Shared by all generations. --- */

/* A local IPv4 address that answers node ports; 127.0.0.1 stands for all of the loopback, and so does ::1 below. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, NODE_ADDRESSES);
	__type(key, __u32);
	__type(value, __u32);
} node_addresses4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, NODE_ADDRESSES);
	__type(key, struct in6);
	__type(value, __u32);
} node_addresses6 SEC(".maps");

/* The cluster IPs that have any frontend in the maps. The value says no more. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, CLUSTER_IPS);
	__type(key, __u32);
	__type(value, __u32);
} cluster_ips4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, CLUSTER_IPS);
	__type(key, struct in6);
	__type(value, __u32);
} cluster_ips6 SEC(".maps");

/* The tops of subtrees of cgroups that are left alone, by their ids. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, EXEMPT_CGROUPS);
	__type(key, __u64);
	__type(value, __u32);
} exempt_cgroups SEC(".maps");

/* A bit for each port number that any node port has: a client that dials another one pays one array access. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, NODE_PORT_WORDS);
	__type(key, __u32);
	__type(value, __u64);
} node_ports SEC(".maps");

/*
 * A bit for each block of addresses in which there may be a frontend, first those of IPv4: a client that dials another
 * block is spared the search. A bit too many costs just that.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, BLOCK_WORDS);
	__type(key, __u32);
	__type(value, __u64);
} frontend_blocks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, AFFINITY_ENTRIES);
	__type(key, struct affinity_key);
	__type(value, struct affinity_value);
} affinity SEC(".maps");

/*
 * What TCP sockets dialled. An entry names its socket by the cookie, which is never used twice: one that is out of date
 * fits no socket. So nothing has to be released, and closing a socket costs nothing. A socket that lost its entry to a
 * later one sees its backend in getpeername.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SOCK_REV_NAT_ENTRIES);
	__type(key, __u32);
	__type(value, struct sock_rev_nat);
} reverse SEC(".maps");

/*
 * What a UDP socket dialled, kept with the socket itself: no other socket pushes it out, it goes with its socket, and a
 * socket that has dialled nothing of ours is known by one look.
 */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct udp_socket);
} udp_sockets SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, REFUSAL_BYTES);
} refusals SEC(".maps");

/* How many refusals were told in the last second; each place counts for some namespaces and cgroups: see events.h. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, REFUSAL_PACES);
	__type(key, __u32);
	__type(value, struct refusal_pace);
} refusal_paces SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct control);
} control SEC(".maps");

#endif
