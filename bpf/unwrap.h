/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What comes from another node behind a header of that one: see wrap.h. The client's packet is judged as if the client
 * had dialled the frontend here, and goes to the backend that the other node has chosen, if any client here could get
 * that one and it is on this node. So a forged packet can no more than dial the frontend in another's name.
 *
 * A packet that was taken out goes to a backend of this node, or nowhere: it is not sent to a third node, and the stack
 * does not get it as it is.
 */
#ifndef HOLDFAST_UNWRAP_H
#define HOLDFAST_UNWRAP_H

#include "arrival.h"
#include "arrived.h"
#include "listed.h"
#include "nodes.h"
#include "packet.h"
#include "wrap.h"

/* What the first look at such a packet says. Beside these: SHOT. */
enum { IS_PLAIN = 120, IS_TAKEN_OUT = 121 };

INLINE int go_astray(enum packet_count counted)
{
	count_packet(counted);
	return SHOT;
}

/* --- The other header. --- */

/* By a device of a pod no node comes, nor as it came where the stack is to see whether IPsec let it in. */
INLINE bool may_come_from_node(const struct __sk_buff *skb)
{
	__u32 number = skb->ifindex;
	const struct device *device = bpf_map_lookup_elem(&devices, &number);

	return device && device->flags & (DEVICE_OUTER | DEVICE_BACKENDS) &&
	       !(device->flags & (DEVICE_POD | DEVICE_SECURED)) && skb->pkt_type == PACKET_HOST;
}

/* `false`: the packet is not behind such a header, and is none of ours for now. */
INLINE bool read_wrapper4(const struct __sk_buff *skb, struct place *from, struct place *to)
{
	const struct iphdr *ip = header(skb, link_header, sizeof(*ip));

	if (!ip || *(const __u8 *)ip != 0x45 || ip->protocol != IN_IPV4 ||
	    ip->frag_off & bpf_htons(MORE_FRAGMENTS | FRAGMENT_OFFSET) ||
	    fold16(sum_of(ip, sizeof(*ip), 0)) != 0xffff)
		return false;
	place4(from, ip->saddr, 0);
	place4(to, ip->daddr, ip->id);
	return true;
}

/* As above. */
INLINE bool read_wrapper6(const struct __sk_buff *skb, struct place *from, struct place *to)
{
	const struct ipv6hdr *ip = header(skb, link_header, sizeof(*ip));

	if (!ip || ip->version != 6 || ip->nexthdr != IN_IPV6)
		return false;
	set_place(from, ip->saddr.in6_u.u6_addr32, 0);
	set_place(to, ip->daddr.in6_u.u6_addr32, bpf_htons(bpf_ntohl(*(const __u32 *)ip)));
	return true;
}

INLINE bool is_own_address(const __u32 *address, bool v4)
{
	return v4 ? is_node4(address[3]) : is_node6(address);
}

/*
 * Whether the packet inside is for a frontend that this node knows. If it does not show its ports, the address has to
 * do: such a packet may be an error, or a fragment. What is for none is a tunnel of others.
 */
INLINE bool is_for_frontend(struct __sk_buff *skb, bool v4)
{
	struct packet inner = { .ip = link_header + size_of_wrapper(v4) };
	struct dial dial = {};
	__u16 ports[2];

	if (!make_readable(skb, inner.ip + size_of_wrapper(v4)) || !(v4 ? parse4(skb, &inner) : parse6(skb, &inner)))
		return false;
	dial_of(&dial, &inner.tuple, v4);
	if (means_loopback(&dial) || !may_be_frontend(&dial))
		return false;
	if (inner.part == LATER_FRAGMENT || is_icmp(&inner, v4))
		return true;
	if (!is_transport(inner.tuple.transport) || bpf_skb_load_bytes(skb, inner.transport, ports, sizeof(ports)))
		return false;
	dial.to.port = ports[1];
	return find_exact(&dial);
}

ALONE int is_for_frontend4(struct __sk_buff *skb)
{
	return is_for_frontend(skb, true);
}

ALONE int is_for_frontend6(struct __sk_buff *skb)
{
	return is_for_frontend(skb, false);
}

/* Takes a client's packet out from behind another node's header. */
INLINE int unwrap(struct __sk_buff *skb, bool v4)
{
	struct arrival *arrival = the_arrival();
	struct place from;

	if (!arrival || !may_come_from_node(skb) || !make_readable(skb, link_header + 2 * size_of_wrapper(v4)) ||
	    !(v4 ? read_wrapper4(skb, &from, &arrival->proposed) : read_wrapper6(skb, &from, &arrival->proposed)) ||
	    !is_of_nodes(from.address, v4) || is_own_address(from.address, v4) ||
	    is_of_nodes(arrival->proposed.address, v4))
		return IS_PLAIN;
	if (!(v4 ? is_for_frontend4(skb) : is_for_frontend6(skb)))
		return IS_PLAIN;
	if (bpf_skb_adjust_room(skb, -(__s32)size_of_wrapper(v4), BPF_ADJ_ROOM_MAC, BPF_F_ADJ_ROOM_FIXED_GSO))
		return go_astray(COUNT_UNWRITABLE);
	count_packet(COUNT_UNWRAPPED);
	return IS_TAKEN_OUT;
}

/* --- Whether the backend may be had. --- */

/*
 * As is_listed(), for a backend that another node names: while the daemon writes a list, an empty slot is no proof. A
 * backend that serves is one of its service, whichever list it is in.
 */
INLINE bool is_surely_listed(struct arrival *arrival, const struct dial *dial, __u64 word, __u64 cluster, bool v4)
{
	struct dial found = { .v4 = v4 };

	if (word_flags(cluster) & WORD_MEMBERS && is_member(dial, SCOPE_SERVING))
		return true;
	if (word_flags(word) & WORD_TABLE)
		return is_member(dial, dial->scope);
	return is_sorted_in(arrival, word, v4) &&
	       read_slot(&found, arrival->first + arrival->left / 2, &found.backend) &&
	       same_place(&found.backend, dial->backend.address, dial->backend.port, false);
}

INLINE int choose_proposed(struct arrival *arrival, struct dial *dial, __u64 word, __u64 cluster, bool v4)
{
	dial->backend = arrival->sought = arrival->proposed;
	if (!is_surely_listed(arrival, dial, word, cluster, v4))
		return go_astray(COUNT_NOT_LISTED);
	arrival->backend = dial->backend;
	arrival->port_index = dial->port_index;
	arrival->share = dial->share;
	arrival->is_local = false;
	arrival->keeps_port = true;
	return CHOSEN;
}

/* Whether a segment of no known connection is to be answered as a host answers it that knows none. */
INLINE bool may_be_denied(const struct packet *packet)
{
	return packet->tuple.transport == IPPROTO_TCP && packet->part == WHOLE &&
	       (packet->flags & (TCP_ACK | TCP_RST)) == TCP_ACK;
}

/*
 * As arrive(), for a client that came by another node. A node that drains serves it too: no other proxy takes it, and
 * the other nodes go on to send theirs.
 */
INLINE int arrive_by_node(struct __sk_buff *skb, struct arrival *arrival, bool v4)
{
	const struct packet *packet = &arrival->packet;
	struct dial dial = {};
	__u64 word, cluster;
	struct device *device = bpf_map_lookup_elem(&devices, &arrival->device);

	arrival->from_pod = arrival->sticks = arrival->may_wrap = 0;
	arrival->by_address = device && device->flags & DEVICE_BY_ADDRESS ? IS_BY_ADDRESS : 0;
	if (device)
		note_bridge(device->flags);
	dial_of(&dial, &packet->tuple, v4);
	if (means_loopback(&dial) || !find_exact(&dial) || says_to_be_node(packet, v4) ||
	    is_of_nodes(packet->tuple.source.address, v4))
		return go_astray(COUNT_ASTRAY);
	if (UNLIKELY(comes_from_frontend(&packet->tuple, &dial, v4)))
		return go_astray(COUNT_LOOP);
	word = read_word_for(arrival, &dial, &cluster);
	if (is_barred(arrival, &dial, cluster))
		return drop(arrival, &dial, REASON_SOURCE, COUNT_SOURCE);
	if (!begins(packet))
		return may_be_denied(packet) ? IS_UNKNOWN_HERE : go_astray(COUNT_ASTRAY);
	return stand_still() ? SHOT : choose_proposed(arrival, &dial, word, cluster, v4);
}

#endif
