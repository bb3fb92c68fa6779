/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The maps of the packet programs.
 *
 * Owns: the maps that only packet programs need. Reads and writes: nothing.
 *
 * Flows and their entries outlive restarts, growth and upgrades: they have a version of their own. All generations
 * share the rest.
 */
#ifndef HOLDFAST_PACKET_MAPS_H
#define HOLDFAST_PACKET_MAPS_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "abi.h"

/* --- Flows. The daemon replaces the sizes before it loads the programs. --- */

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct flow);
} flow_table SEC(".maps");

/*
 * Entries map the tuple of a packet to a flow's number. A flow has two entries, or three with SNAT. Each of the two
 * maps has room for three entries of every flow. Preallocation halves the cost of a flow's first packet, and saves a
 * third where most flows are in no cache. On a node without IPv6 addresses the daemon turns it off for IPv6.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, struct entry4_key);
	__type(value, __u32);
} entries4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, struct entry6_key);
	__type(value, __u32);
} entries6 SEC(".maps");

/*
 * The numbers of free records. The queue hands out the one that was freed first, so each record rests as long as
 * possible.
 */
struct {
	__uint(type, BPF_MAP_TYPE_QUEUE);
	__uint(max_entries, 1);
	__type(value, __u32);
} free_flows SEC(".maps");

/* The last flows that began without a reply, the oldest first: the number, and above it the serial. */
struct {
	__uint(type, BPF_MAP_TYPE_QUEUE);
	__uint(max_entries, OPENING_FLOWS);
	__type(value, __u64);
} opening_flows SEC(".maps");

/*
 * The ports of flows' backends, now or earlier. A leaving packet belongs to no flow if neither of its ports is marked.
 * A byte too many costs one lookup.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct port_bytes);
} backend_ports SEC(".maps");

/* --- Shared by all generations. --- */

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, FRAGMENTED);
	__type(key, struct fragment_key);
	__type(value, struct fragment_value);
} fragments SEC(".maps");

/* Clients with affinity that are known by address. `affinity` holds those with a socket on this node. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, CLIENTS);
	__type(key, struct client_key);
	__type(value, struct client_value);
} clients SEC(".maps");

/* The devices with packet programs, by ifindex. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, DEVICES);
	__type(key, __u32);
	__type(value, struct device);
} devices SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, SOURCE_RANGES);
	__type(key, struct source4_key);
	__type(value, __u32);
} source_ranges4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, SOURCE_RANGES);
	__type(key, struct source6_key);
	__type(value, __u32);
} source_ranges6 SEC(".maps");

/* The second in which this node last sent a datagram from a node port's number, by the tuple of its reply. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, OWN_TALKS);
	__type(key, struct talk_key);
	__type(value, __u32);
} own_talks SEC(".maps");

/*
 * A bit for each port number at which packets to the node may belong to a flow: node ports, also those that living
 * flows still use, and SNAT ports. A bit too many costs one lookup.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, NODE_PORT_WORDS);
	__type(key, __u32);
	__type(value, __u64);
} packet_ports SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct packet_settings);
} packet_settings SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, PACKET_COUNTS);
	__type(key, __u32);
	__type(value, __u64);
} packet_counts SEC(".maps");

/* The counts of flows: see enum flow_count. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, FLOW_COUNTS);
	__type(key, __u32);
	__type(value, __u64);
} flow_counts SEC(".maps");

/* What each CPU sent in the current second. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct pace);
} packet_pace SEC(".maps");

#endif
