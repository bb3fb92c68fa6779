/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Which addresses are those of nodes, by what the configuration says. A packet that another node has sent here on a
 * client's behalf is known by that address and by nothing else.
 */
#ifndef HOLDFAST_NODES_H
#define HOLDFAST_NODES_H

#include "dial.h"

/* Whether any network of nodes is known. Without one no packet is wrapped, and none that came wrapped is looked at. */
const volatile bool knows_nodes = false;
/* Networks in which only nodes live: of each the address, and then the mask. A mask of 0 is none. */
const volatile __u32 node_networks4[NODE_NETWORKS * 2] = {};
/* As above, four words each. */
const volatile __u32 node_networks6[NODE_NETWORKS * 8] = {};

/* Without branches, as differences() is. */
ALONE int is_of_nodes4(__u32 address)
{
	__u32 is_in = 0;

	for (__u32 at = 0; at < 2 * NODE_NETWORKS; at += 2) {
		__u32 mask = node_networks4[at + 1];
		__u64 differs = (address ^ node_networks4[at]) & mask;

		is_in |= mask & (__u32)((differs - 1) >> 32);
	}
	return !!is_in;
}

/* As above, of an address in four parts: an older kernel gives a function no more than numbers. */
ALONE int is_of_nodes6(__u32 a, __u32 b, __u32 c, __u32 d)
{
	__u32 is_in = 0;

	for (__u32 at = 0; at < 8 * NODE_NETWORKS; at += 8) {
		__u64 differs = ((a ^ node_networks6[at]) & node_networks6[at + 4]) |
				((b ^ node_networks6[at + 1]) & node_networks6[at + 5]) |
				((c ^ node_networks6[at + 2]) & node_networks6[at + 6]) |
				((d ^ node_networks6[at + 3]) & node_networks6[at + 7]);

		/* A mask begins with its first word. */
		is_in |= node_networks6[at + 4] & (__u32)((differs - 1) >> 32);
	}
	return !!is_in;
}

/* Whether the address is that of a node. */
INLINE bool is_of_nodes(const __u32 *address, bool v4)
{
	return v4 ? is_of_nodes4(address[3]) : is_of_nodes6(address[0], address[1], address[2], address[3]);
}

#endif
