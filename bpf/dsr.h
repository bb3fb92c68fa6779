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
const volatile bool has_dsr_from = false;
/* Networks in which only nodes live: of each the address, and then the mask. A mask of 0 is none. */
const volatile __u32 dsr_from4[DSR_NETWORKS * 2] = {};
/* As above, four words each. */
const volatile __u32 dsr_from6[DSR_NETWORKS * 8] = {};

/* Without branches, as address_diff() is. */
GLOBAL int is_dsr_node4(__u32 address)
{
	__u32 is_in = 0;

	for (__u32 at = 0; at < 2 * DSR_NETWORKS; at += 2) {
		__u32 mask = dsr_from4[at + 1];
		__u64 differs = (address ^ dsr_from4[at]) & mask;

		is_in |= mask & (__u32)((differs - 1) >> 32);
	}
	return !!is_in;
}

/* As above, of an address in four parts: an older kernel gives a function no more than numbers. */
GLOBAL int is_dsr_node6(__u32 a, __u32 b, __u32 c, __u32 d)
{
	__u32 is_in = 0;

	for (__u32 at = 0; at < 8 * DSR_NETWORKS; at += 8) {
		__u64 differs =
			((a ^ dsr_from6[at]) & dsr_from6[at + 4]) | ((b ^ dsr_from6[at + 1]) & dsr_from6[at + 5]) |
			((c ^ dsr_from6[at + 2]) & dsr_from6[at + 6]) | ((d ^ dsr_from6[at + 3]) & dsr_from6[at + 7]);

		/* A mask begins with its first word. */
		is_in |= dsr_from6[at + 4] & (__u32)((differs - 1) >> 32);
	}
	return !!is_in;
}

/* Whether the address is that of a node. */
INLINE bool is_dsr_node(const __u32 *address, bool v4)
{
	return v4 ? is_dsr_node4(address[3]) : is_dsr_node6(address[0], address[1], address[2], address[3]);
}

/* --- Whether its packets go to another node as they came. --- */

/* Which transports' packets go to other nodes as they came. */
enum { DSR_TCP = 1, DSR_UDP = 2 };
const volatile __u32 dsr_transports = 0;

INLINE bool has_dsr_transport(__u8 transport)
{
	return (transport == IPPROTO_TCP && dsr_transports & DSR_TCP) ||
	       (transport == IPPROTO_UDP && dsr_transports & DSR_UDP);
}

/*
 * Whether the client's packets may go to the backend's node as they came. The other node has to know the frontend,
 * which it does not at a node port of this one, and there has to be one: a server outside of the cluster takes no such
 * packet. A client that is to come back to its backend is remembered by the answers, which would not come here. What
 * goes to a node's own address goes to any service of that node, not to one backend; and pods may send in the name of a
 * node there, where that has its pods' packets bear its own address.
 */
INLINE bool can_encap(const struct scratch *scratch, const struct lb_request *request, __u64 word, bool v4)
{
	return has_dsr_from && link_header && has_dsr_transport(request->transport) && !scratch->from_pod &&
	       request->kind != NODE_PORT && request->scope == SCOPE_CLUSTER && !has_affinity(word) &&
	       !(word_flags(word) & WORD_OUTSIDE) && !is_dsr_node(scratch->packet.tuple.source.address, v4) &&
	       !is_dsr_node(request->backend.address, v4);
}

/* --- Connections that another node has let in. --- */

/* Whether this node sends packets of that transport to others, and no other proxy of this node has their connection. */
INLINE bool may_be_remote_flow(const struct scratch *scratch)
{
	return has_dsr_from && scratch->flags & DEVICE_ADOPTS && has_dsr_transport(scratch->packet.tuple.transport);
}

/* Whether the packet shows that it is of a connection that has begun, or ends one. */
INLINE bool may_adopt_flow(const struct scratch *scratch)
{
	const struct packet *packet = &scratch->packet;

	return may_be_remote_flow(scratch) && packet->tuple.transport == IPPROTO_TCP && packet->part == WHOLE &&
	       packet->flags & (TCP_ACK | TCP_RST) && !(packet->flags & TCP_SYN);
}

#endif
