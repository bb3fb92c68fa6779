/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Which addresses are those of nodes, by what the configuration says. A packet that another node has sent here on a
 * client's behalf is known by that address and by nothing else.
 */
#ifndef HOLDFAST_DSR_H
#define HOLDFAST_DSR_H

#include "common.h"
#include "lb.h"
#include "packet.h"

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

/* --- Whether its packets go to another node as they came. --- */

/* Which transports' packets go to other nodes as they came. */
enum { WRAPS_TCP = 1, WRAPS_UDP = 2 };
const volatile __u32 wraps = 0;

INLINE bool wraps_transport(__u8 transport)
{
	return (transport == IPPROTO_TCP && wraps & WRAPS_TCP) || (transport == IPPROTO_UDP && wraps & WRAPS_UDP);
}

/*
 * Whether the client's packets may go to the backend's node as they came. The other node has to know the frontend,
 * which it does not at a node port of this one, and there has to be one: a server outside of the cluster takes no such
 * packet. A client that is to come back to its backend is remembered by the answers, which would not come here. What
 * goes to a node's own address goes to any service of that node, not to one backend; and pods may send in the name of a
 * node there, where that has its pods' packets bear its own address.
 */
INLINE bool may_be_wrapped(const struct arrival *arrival, const struct dial *dial, __u64 word, bool v4)
{
	return knows_nodes && link_header && wraps_transport(dial->transport) && !arrival->from_pod &&
	       dial->kind != NODE_PORT && dial->scope == SCOPE_CLUSTER && !has_affinity(word) &&
	       !(word_flags(word) & WORD_OUTSIDE) &&
	       !is_of_nodes(arrival->packet.tuple.source.address, v4) && !is_of_nodes(dial->backend.address, v4);
}

/* --- Connections that another node has let in. --- */

/* Whether this node sends packets of that transport to others, and no other proxy of this node has their connection. */
INLINE bool may_be_of_others(const struct arrival *arrival)
{
	return knows_nodes && arrival->flags & DEVICE_JOINS && wraps_transport(arrival->packet.tuple.transport);
}

/* Whether the packet shows that it is of a connection that has begun, or ends one. */
INLINE bool may_join(const struct arrival *arrival)
{
	const struct packet *packet = &arrival->packet;

	return may_be_of_others(arrival) && packet->tuple.transport == IPPROTO_TCP && packet->part == WHOLE &&
	       packet->flags & (TCP_ACK | TCP_RST) && !(packet->flags & TCP_SYN);
}

#endif
