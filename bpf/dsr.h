/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * DSR: which networks hold nodes, and which packets may go encapsulated between nodes.
 *
 * Owns: the constants of `dsr_from` and of the transports. Reads: a request, and the scratch map. Writes: nothing.
 *
 * The source address of the outer header is all that proves that a node has sent an encapsulated packet.
 */
#ifndef HOLDFAST_DSR_H
#define HOLDFAST_DSR_H

#include "common.h"
#include "lb.h"
#include "packet.h"

/* Whether `dsr_from` names any network. Without one, the programs neither encapsulate nor decapsulate. */
const volatile bool has_dsr_from = false;
/* The networks of `dsr_from`: for each one an address, then a mask. Mask 0: no network. */
const volatile __u32 dsr_from4[DSR_NETWORKS * 2] = {};
/* As above, four words each. */
const volatile __u32 dsr_from6[DSR_NETWORKS * 8] = {};

/* Whether `dsr_from` has the address. Without branches, as address_diff(). */
GLOBAL int is_dsr_node4(__u32 address)
{
	__u32 is_in = 0;

	if (!has_dsr_from)
		return false;
	for (__u32 at = 0; at < 2 * DSR_NETWORKS; at += 2) {
		__u32 mask = dsr_from4[at + 1];
		__u64 differs = (address ^ dsr_from4[at]) & mask;

		is_in |= mask & (__u32)((differs - 1) >> 32);
	}
	return !!is_in;
}

/* As above, for an address in four words: older kernels pass only numbers to a function. */
GLOBAL int is_dsr_node6(__u32 a, __u32 b, __u32 c, __u32 d)
{
	__u32 is_in = 0;

	if (!has_dsr_from)
		return false;
	for (__u32 at = 0; at < 8 * DSR_NETWORKS; at += 8) {
		__u64 differs =
			((a ^ dsr_from6[at]) & dsr_from6[at + 4]) | ((b ^ dsr_from6[at + 1]) & dsr_from6[at + 5]) |
			((c ^ dsr_from6[at + 2]) & dsr_from6[at + 6]) | ((d ^ dsr_from6[at + 3]) & dsr_from6[at + 7]);

		/* A mask is not 0 if its first word is not 0. */
		is_in |= dsr_from6[at + 4] & (__u32)((differs - 1) >> 32);
	}
	return !!is_in;
}

/* Whether the address is one of a node. */
INLINE bool is_dsr_node(const __u32 *address, bool v4)
{
	return v4 ? is_dsr_node4(address[3]) : is_dsr_node6(address[0], address[1], address[2], address[3]);
}

/* --- Whether the client's packets may be encapsulated. --- */

/* The transports that use DSR. */
enum { DSR_TCP = 1, DSR_UDP = 2 };
const volatile __u32 dsr_transports = 0;

INLINE bool has_dsr_transport(__u8 transport)
{
	return (transport == IPPROTO_TCP && dsr_transports & DSR_TCP) ||
	       (transport == IPPROTO_UDP && dsr_transports & DSR_UDP);
}

/*
 * Whether the client's packets may go encapsulated to the backend's node. The other node has to know the frontend, so a
 * node port cannot: it belongs to this node. There has to be another node, so a server outside of the cluster cannot. A
 * client with affinity cannot: its replies save it, and they would not pass this node. A backend at a node's own
 * address cannot: it names a node, and not one backend. Also, pods may send in a node's name where the node masquerades
 * their packets.
 */
INLINE bool can_encap(const struct scratch *scratch, const struct lb_request *request, __u64 word, bool v4)
{
	return has_dsr_from && link_header && has_dsr_transport(request->transport) && !scratch->from_pod &&
	       request->kind != NODE_PORT && request->scope == SCOPE_CLUSTER && !has_affinity(word) &&
	       !(word_flags(word) & WORD_OUTSIDE) && !is_dsr_node(scratch->packet.tuple.source.address, v4) &&
	       !is_dsr_node(scratch->backend.address, v4);
}

/* --- Connections that another node has opened. --- */

/* Whether this node uses DSR for the transport, and no other proxy of this node may own the connection. */
INLINE bool may_be_remote_flow(const struct scratch *scratch)
{
	return has_dsr_from && scratch->flags & DEVICE_ADOPTS && has_dsr_transport(scratch->packet.tuple.transport);
}

/* Whether the packet belongs to a connection that has begun, or ends one. */
INLINE bool may_adopt_flow(const struct scratch *scratch)
{
	const struct packet *packet = &scratch->packet;

	return may_be_remote_flow(scratch) && packet->tuple.transport == IPPROTO_TCP && packet->part == WHOLE &&
	       packet->flags & (TCP_ACK | TCP_RST) && !(packet->flags & TCP_SYN);
}

#endif
