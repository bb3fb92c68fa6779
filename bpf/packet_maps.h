/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The maps of packets. Flows, and what leads to them, are kept through restarts, growth and upgrades: they have a
 * version of their own. The rest is shared by all generations.
 */
#ifndef HOLDFAST_PACKET_MAPS_H
#define HOLDFAST_PACKET_MAPS_H

#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "abi.h"

/* --- Flows. The sizes here are replaced before loading. --- */

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct flow);
} flow_table SEC(".maps");

/*
 * The entries of flows, with the flow's number: two for each flow, three where a backend of another node sees another
 * client. Each of the two maps has room for three of every flow, which is allocated from the start: that halves what a
 * flow's first packet costs, and saves a third where most flows are in no cache. On a node without an address of IPv6
 * the daemon has its entries allocated when their flows begin.
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

/* Numbers of free records. The one that was given back first is taken first: so each rests as long as possible. */
struct {
	__uint(type, BPF_MAP_TYPE_QUEUE);
	__uint(max_entries, 1);
	__type(value, __u32);
} free_flows SEC(".maps");

/* The last flows that had no answer when they began, the oldest first: the number, and above it the serial. */
struct {
	__uint(type, BPF_MAP_TYPE_QUEUE);
	__uint(max_entries, OPENING_FLOWS);
	__type(value, __u64);
} opening_flows SEC(".maps");

/*
 * At which ports the backends of flows are, or were: a packet that leaves is of no flow, if neither its source nor its
 * destination is at one of them. A byte too many costs one look at the entries.
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

/* Clients of ports with affinity that are known by their addresses. For those with a socket here see `affinity`. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, CLIENTS);
	__type(key, struct client_key);
	__type(value, struct client_value);
} clients SEC(".maps");

/* The devices at which packets are translated, by their numbers. */
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

/* In which second this node last sent a datagram from a node port's number, by the datagram that would answer it. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, OWN_TALKS);
	__type(key, struct talk_key);
	__type(value, __u32);
} own_talks SEC(".maps");

/*
 * A bit for each port number at which packets for the node itself may be of a flow: node ports, also those of flows
 * that outlive them, and the ports that are given to clients. A bit too many costs one look at the entries.
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

/* How many flows there are: see enum flow_count. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, FLOW_COUNTS);
	__type(key, __u32);
	__type(value, __u64);
} flow_counts SEC(".maps");

/* How many answers each CPU has sent in the second that is on. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct pace);
} packet_pace SEC(".maps");

#endif
