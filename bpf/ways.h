/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The ways of packets that pass by the stack: asked for as the stack would ask, once in a second for each flow and
 * direction.
 *
 * To ask takes as long as all else that is done with such a packet. What the kernel said is kept for this second at
 * most, by each CPU for itself, and holds for packets that ask the same. Whether a device may be used is no part of it.
 */
#ifndef HOLDFAST_WAYS_H
#define HOLDFAST_WAYS_H

#include <linux/if_packet.h>
#include "arrived.h"
#include "asked.h"
#include "flow.h"
#include "packet.h"

/* How many ways a CPU keeps: two of each flow, as long as no other flow with the same place has packets too. */
#define KNOWN_WAYS 4096

/* A way that the kernel has told. */
struct known_way {
	/* Of which flow: its number, and its serial; 0: none. */
	__u32 number;
	__u32 serial;
	/* In which second. */
	__u32 second;
	/* By which device, and to which host; its address may be of IPv6 where the packet is of IPv4. */
	__u32 device;
	__u32 next[4];
	__u32 next_family;
	/* For which type of service, or which label and class. */
	__u32 class;
	/* How long packets may be. */
	__u32 longest;
	/* By which device such packets come. */
	__u32 came;
	/* The hardware addresses of the host, and of the device. */
	__u8 to[ETH_ALEN];
	__u8 from[ETH_ALEN];
	/* For which hardware address such packets come. */
	__u8 own[ETH_ALEN];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, KNOWN_WAYS);
	__type(key, __u32);
	__type(value, struct known_way);
} known_ways SEC(".maps");

/* The place of a flow's way in that direction. */
INLINE struct known_way *known_way(__u32 number, __u32 direction)
{
	__u32 at = (number << 1 | (direction == TO_CLIENT)) & (KNOWN_WAYS - 1);

	return bpf_map_lookup_elem(&known_ways, &at);
}

/* No way takes a packet of so many bytes. */
#define TOO_LONG (~0U)

/*
 * How long a packet is in the network, without what comes before its IP header; `length` is what that header says. What
 * this node has put together is divided again, each part with headers of its own. A frame has more bytes only where it
 * was filled up to the least that Ethernet has. TOO_LONG: it is of another length, which the stack sees to.
 */
INLINE __u32 length_in_network(const struct __sk_buff *skb, const struct packet *packet, __u32 length)
{
	__u32 headers = packet->transport - packet->ip;
	const __u8 *tcp;

	if (!skb->gso_size)
		return skb->len == packet->ip + length || (skb->len > packet->ip + length && skb->len <= ETH_ZLEN) ?
			       length :
			       TOO_LONG;
	if (packet->tuple.transport != IPPROTO_TCP)
		return skb->gso_size + headers + sizeof(struct udphdr);
	tcp = header(skb, packet->transport, sizeof(struct tcphdr));
	return tcp ? skb->gso_size + headers + (tcp[12] >> 4) * 4 : TOO_LONG;
}

/* What a packet's header of IP says of its way. */
struct passage {
	__u32 length;
	/* The type of service, or the label and the class. */
	__u32 class;
};

/* `false`: the stack would do more than send this packet on. */
INLINE bool ask_header4(const struct __sk_buff *skb, const struct packet *packet, struct passage *passage)
{
	const struct iphdr *ip = header(skb, packet->ip, sizeof(*ip));

	if (!ip || ip->ihl != 5 || ip->ttl <= 1)
		return false;
	passage->class = ip->tos;
	passage->length = length_in_network(skb, packet, bpf_ntohs(ip->tot_len));
	return true;
}

/* As above. */
INLINE bool ask_header6(const struct __sk_buff *skb, const struct packet *packet, struct passage *passage)
{
	const struct ipv6hdr *ip = header(skb, packet->ip, sizeof(*ip));

	if (!ip || !is_transport(ip->nexthdr) || ip->hop_limit <= 1)
		return false;
	passage->class = *(const __u32 *)ip & bpf_htonl(0x0fffffff);
	passage->length = length_in_network(skb, packet, bpf_ntohs(ip->payload_len) + sizeof(*ip));
	return true;
}

/*
 * Asks for the next host on the packet's way, as the stack would find it between the two programs. A packet that is too
 * long for its way, or that has none, is the stack's, which tells the sender; so is one of which the neighbour has not
 * answered.
 */
INLINE bool ask_way(struct __sk_buff *skb, struct known_way *way, const struct tuple *through,
		    const struct passage *passage, __u32 flags, bool v4)
{
	union route route = {};
	const struct bpf_fib_lookup *told = &route.asked;

	set_question(&route, through, passage->class, skb->ifindex, flags, v4);
	if (ask(skb, &route, passage->length) != BPF_FIB_LKUP_RET_SUCCESS)
		return false;
	way->device = told->ifindex;
	way->longest = told->mtu_result;
	way->class = passage->class;
	copy_address(way->next, told->ipv6_dst);
	way->next_family = told->family;
	__builtin_memcpy(way->to, told->dmac, ETH_ALEN);
	__builtin_memcpy(way->from, told->smac, ETH_ALEN);
	return true;
}

/*
 * Whether what answers the packet leaves by the device by which the packet came, if it comes by the one by which the
 * packet goes. Where it does not, the sender may have an address that the network has elsewhere, and the stack knows
 * whether that may be.
 */
INLINE bool leads_back(struct __sk_buff *skb, const struct tuple *through, __u32 device, bool v4)
{
	struct tuple answer;

	turned(&answer, through);
	return way_asked(skb, &answer, 0, device, flags_of(device), v4) == skb->ifindex;
}

/* Notes how the packets come that the way is for: the program at the driver knows them by that (xdp.bpf.c). */
INLINE void note_arrival_of(struct __sk_buff *skb, struct known_way *way)
{
	const struct ethhdr *link = link_header == ETH_HLEN ? header(skb, 0, sizeof(*link)) : NULL;

	way->came = skb->ifindex;
	if (link)
		__builtin_memcpy(way->own, link->h_dest, ETH_ALEN);
}

/*
 * Whether the way is for a packet like this one: of this flow, in this second, by this device. What is longer than the
 * way takes is for the kernel to see.
 */
INLINE bool is_way_of(const struct known_way *way, __u32 number, __u32 serial, __u32 now, __u32 came,
		      const struct passage *passage)
{
	return way->number == number && way->serial == serial && way->second == now && way->came == came &&
	       way->class == passage->class && passage->length <= way->longest;
}

/*
 * Knows the way of the packet that arrives by a device of which `flags` are known. `false`: it goes through the stack.
 */
INLINE bool know_way(struct __sk_buff *skb, const struct arrival *arrival, struct known_way *way,
		     const struct tuple *through, __u32 flags, bool v4)
{
	const struct packet *packet = &arrival->packet;
	__u32 number = arrival->number, serial = arrival->serial;
	struct passage passage;
	__u32 now = seconds();

	if (packet->part != WHOLE || skb->pkt_type != PACKET_HOST || skb->vlan_present || skb->mark)
		return false;
	if (!(v4 ? ask_header4(skb, packet, &passage) : ask_header6(skb, packet, &passage)) ||
	    passage.length > 0xffff)
		return false;
	if (LIKELY(is_way_of(way, number, serial, now, skb->ifindex, &passage)))
		return true;
	way->serial = 0;
	if (!ask_way(skb, way, through, &passage, flags, v4) || !leads_back(skb, through, way->device, v4))
		return false;
	note_arrival_of(skb, way);
	way->second = now;
	way->number = number;
	way->serial = serial;
	return true;
}

#endif
