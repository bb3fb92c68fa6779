/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The maps of all programs.
 *
 * Owns: the maps that the socket programs need. Reads and writes: nothing.
 *
 * The maps of a generation grow: the daemon makes larger ones, fills them, and moves the programs over. The other maps
 * keep their size, and all generations share them. All versions share the storage of sockets.
 */
#ifndef HOLDFAST_MAPS_H
#define HOLDFAST_MAPS_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "abi.h"

/* --- One generation. The daemon replaces the sizes before it loads the programs. --- */

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
 * The members: the backends of lists with affinity, and all serving backends of UDP ports. Of TCP ports, too, where the
 * daemon ends the connections of removed backends.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct member_key);
	__type(value, __u32);
} members SEC(".maps");

/* --- Shared by all generations. --- */

/* The node's IPv4 addresses that answer node ports. 127.0.0.1 stands for all loopback addresses, and ::1 does below. */
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

/* The cluster IPs that have any frontend. The value means nothing. */
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

/* The tops of exempt cgroup subtrees, by cgroup id. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, EXEMPT_CGROUPS);
	__type(key, __u64);
	__type(value, __u32);
} exempt_cgroups SEC(".maps");

/* A bit for each port number that is a node port. A client that dials another port costs one array access. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, NODE_PORT_WORDS);
	__type(key, __u32);
	__type(value, __u64);
} node_ports SEC(".maps");

/*
 * A bit for each address block that may have a frontend, those of IPv4 first. A client that dials another block needs
 * no lookup. A bit too many costs one lookup.
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
 * What TCP sockets dialled. An entry names its socket by the cookie, which is never reused, so an outdated entry
 * matches no socket. Closing a socket costs nothing. A socket whose entry was overwritten sees its backend in
 * getpeername.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, SOCK_REV_NAT_ENTRIES);
	__type(key, __u32);
	__type(value, struct sock_rev_nat);
} reverse SEC(".maps");

/*
 * What UDP sockets dialled, in socket storage: no other socket evicts it, and it goes with its socket. One lookup tells
 * whether a socket has dialled a frontend.
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

/*
 * The refusals that were reported in the last second. Each slot counts for some namespaces and cgroups: see events.h.
 */
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
