/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Which way the kernel would send a packet on, by its own routes and rules. */
#ifndef HOLDFAST_FIB_H
#define HOLDFAST_FIB_H

#include <linux/if_packet.h>
#include "common.h"
#include "conntrack.h"
#include "packet.h"

#define FAMILY4 2
#define FAMILY6 10

/* The kernel does not say by which device: a packet gets another header on that way. No device has this number. */
#define WAY_UNTOLD (~0U)

/* The device by which a packet leaves, by what the kernel says; 0: it stays on this node, or has no route. */
INLINE __u32 way_told(long found, const struct bpf_fib_lookup *route)
{
	if (found == BPF_FIB_LKUP_RET_SUCCESS || found == BPF_FIB_LKUP_RET_NO_NEIGH ||
	    found == BPF_FIB_LKUP_RET_FRAG_NEEDED)
		return route->ifindex;
	return found == BPF_FIB_LKUP_RET_UNSUPP_LWT ? WAY_UNTOLD : 0;
}

/* The number of the loopback, in each network namespace. */
#define LOOPBACK_NUMBER 1

/*
 * Asks the kernel for a way. A device that takes router advertisements is set not to forward IPv6, and programs hear no
 * way of what came by it; the stack forwards that all the same where all devices together are set to. So it is asked
 * for the way of what comes by the loopback, which is set as all are.
 */
INLINE long look_up(struct __sk_buff *skb, struct bpf_fib_lookup *route)
{
	long found = bpf_fib_lookup(skb, route, sizeof(*route), 0);

	if (LIKELY(found != BPF_FIB_LKUP_RET_FWD_DISABLED) || route->family != FAMILY6)
		return found;
	route->ifindex = LOOPBACK_NUMBER;
	return bpf_fib_lookup(skb, route, sizeof(*route), 0);
}

/* What the kernel says of the way of a packet that came by this device. */
INLINE long ask_way_out(struct __sk_buff *skb, struct bpf_fib_lookup *route, const __u32 *from, const __u32 *to,
			__u16 from_port, __u16 to_port, __u8 transport, bool v4)
{
	route->family = v4 ? FAMILY4 : FAMILY6;
	route->l4_protocol = transport;
	route->sport = from_port;
	route->dport = to_port;
	route->ifindex = skb->ifindex;
	if (v4) {
		route->ipv4_src = from[3];
		route->ipv4_dst = to[3];
	} else {
		copy_address(route->ipv6_src, from);
		copy_address(route->ipv6_dst, to);
	}
	return look_up(skb, route);
}

/* The device by which a packet would leave, had it come by this one: see way_told(). */
INLINE __u32 way_out(struct __sk_buff *skb, const __u32 *from, const __u32 *to, __u16 from_port, __u16 to_port,
		     __u8 transport, bool v4)
{
	struct bpf_fib_lookup route = {};

	return way_told(ask_way_out(skb, &route, from, to, from_port, to_port, transport, v4), &route);
}

/* --- The way of answers. --- */

/* What is known of a device, as enum device_flag. */
INLINE __u32 flags_of(__u32 number)
{
	struct device *device = bpf_map_lookup_elem(&devices, &number);

	return device ? device->flags : 0;
}

/* Whether policies of IPsec are to see what the stack sends on, as far as that is known of the packet's device. */
INLINE bool is_secured(const struct __sk_buff *skb)
{
	return flags_of(skb->ifindex) & DEVICE_SECURED;
}

/*
 * What a packet bears from the one program to the other that is as it leaves the node. The second program would look it
 * up by what is written now, and by that it may be an answer of another flow: of one to a backend that is a frontend.
 * A pod that writes this into its packets has them leave as they are.
 */
#define IS_WRITTEN 0x6c66

/*
 * Whether a bridge is among the devices by which packets come, or go to backends: then each packet that comes is looked
 * at for that. It is noted where a flow begins, and in each second in which its client speaks; and by the daemon when
 * it loads programs, for flows of which only the answers come by a bridge.
 */
__u32 met_bridge;

INLINE void note_bridge(__u32 flags)
{
	if (UNLIKELY(flags & DEVICE_BRIDGE))
		*(volatile __u32 *)&met_bridge = 1;
}

ALONE int note_bridge_of(struct __sk_buff *skb)
{
	note_bridge(flags_of(skb->ifindex));
	return NEXT;
}

/*
 * Notes that a packet that comes has been rewritten, where it came by the port of a bridge. Filters may have seen it at
 * the port, tracking of connections among them, as it was sent: they are to see it anew. The program is not, which
 * could take it for one to a backend that is a frontend too.
 */
ALONE int note_written_at_bridge(struct __sk_buff *skb)
{
	if (flags_of(skb->ifindex) & DEVICE_BRIDGE)
		skb->tc_index = IS_WRITTEN;
	return NEXT;
}

INLINE void note_written_in(struct __sk_buff *skb)
{
	if (UNLIKELY(READ_ONCE(met_bridge)))
		note_written_at_bridge(skb);
}

/* The devices where packet_out looks at what leaves. */
#define DEVICE_LOOKS (DEVICE_OUTER | DEVICE_POD | DEVICE_BACKENDS)

/*
 * Sends an answer out by the device that rules of routing have for the address that was dialled. The kernel has routed
 * the answer as a packet of its backend, because it bears that address only from here on. Where the rules tell the two
 * addresses apart, a network that takes the address from one device alone would drop an answer that comes by another.
 * An answer that is too long for that way, where no host would divide it, and one without a header of a link, which the
 * kernel cannot send by another device, leave as they are.
 */
INLINE int leave_by_address(struct __sk_buff *skb, __u32 number, bool v4)
{
	struct flow *flow = flow_at(number);
	const __u8 *ip = header(skb, link_header, LENGTH_END);
	struct bpf_fib_lookup route = {};
	__u32 device;
	long found;

	if (!flow || !ip || !link_header)
		return NEXT;
	/* What is to be cut into segments fits. */
	route.tot_len = skb->gso_size ? 0 : length_of_packet(ip);
	found = ask_way_out(skb, &route, flow->frontend, flow->client, flow->frontend_port, flow->client_port,
			    flow->transport, v4);
	device = found == BPF_FIB_LKUP_RET_FRAG_NEEDED ? 0 : way_told(found, &route);
	if (!device || device == WAY_UNTOLD || device == skb->ifindex)
		return NEXT;
	if (flags_of(device) & DEVICE_LOOKS)
		skb->tc_index = IS_WRITTEN;
	return bpf_redirect_neigh(device, NULL, 0, 0);
}

ALONE int leave_by_address4(struct __sk_buff *skb, __u32 number)
{
	return leave_by_address(skb, number, true);
}

ALONE int leave_by_address6(struct __sk_buff *skb, __u32 number)
{
	return leave_by_address(skb, number, false);
}

/* What becomes of an answer that has been written. */
INLINE int way_of_answer(struct __sk_buff *skb, const struct flow *flow, __u32 number, bool v4)
{
	if (LIKELY(!(flow->of_client & IS_BY_ADDRESS)))
		return NEXT;
	return v4 ? leave_by_address4(skb, number) : leave_by_address6(skb, number);
}

/*
 * What the kernel has told of ways in this second, kept by each CPU for whatever asks the very same.
 *
 * A question is all that the kernel looks at, byte for byte, so an answer is given to nothing else that asks. Where the
 * kernel looks at no ports, the question has none, and all connections between two hosts ask the same.
 */

/* How many answers a CPU keeps: a power of two. Where two questions have one place, the later one has it. */
#define ASKED_WAYS 1024
#define ASKED_BITS 10

/*
 * The question is the first part of what the kernel is given, but for the length of the packet: the rest of that it
 * only writes.
 */
#define QUESTION_WORDS 6
_Static_assert(QUESTION_WORDS * 8 == __builtin_offsetof(struct bpf_fib_lookup, ipv6_dst) + 16, "it ends with where to");

union route {
	struct bpf_fib_lookup asked;
	__u64 words[sizeof(struct bpf_fib_lookup) / 8];
};

struct asked_way {
	__u64 question[QUESTION_WORDS];
	/* As the kernel wrote it. */
	union route answer;
	/* What the kernel returned: the whole way, or only the device, of which the neighbour is not known. */
	__u32 found;
	/* In which second; 0: there is no answer. */
	__u32 second;
	__u32 pad[2];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, ASKED_WAYS);
	__type(key, __u32);
	__type(value, struct asked_way);
} asked_ways SEC(".maps");

/*
 * A length that no way is too short for: the kernel tells how long packets may be on a way only where it is asked for
 * one.
 */
#define ANY_LENGTH 1

/* Part of an IPv6 packet's class and label: the class. */
#define CLASS6 bpf_htonl(0x0ff00000)

/* What a packet says that its way may depend on, beside where it goes: the type of service, or the class and label. */
INLINE __u32 class_of(const struct __sk_buff *skb, const struct packet *packet, bool v4)
{
	if (v4) {
		const struct iphdr *ip = header(skb, packet->ip, sizeof(*ip));

		return ip ? ip->tos : 0;
	} else {
		const struct ipv6hdr *ip = header(skb, packet->ip, sizeof(*ip));

		return ip ? *(const __u32 *)ip & bpf_htonl(0x0fffffff) : 0;
	}
}

/*
 * Puts the question how a packet goes on that comes by a device. `flags`: what is known of that device; it says whether
 * ports and labels may be left out.
 */
INLINE void set_question(union route *route, const struct tuple *tuple, __u32 class, __u32 came, __u32 flags, bool v4)
{
	struct bpf_fib_lookup *asked = &route->asked;
	bool is_plain = flags & (v4 ? DEVICE_PLAIN4 : DEVICE_PLAIN6);

	asked->family = v4 ? FAMILY4 : FAMILY6;
	asked->l4_protocol = tuple->transport;
	asked->sport = is_plain ? 0 : tuple->source.port;
	asked->dport = is_plain ? 0 : tuple->destination.port;
	asked->ifindex = came;
	if (v4) {
		asked->tos = class;
		asked->ipv4_src = tuple->source.address[3];
		asked->ipv4_dst = tuple->destination.address[3];
	} else {
		asked->flowinfo = is_plain ? class & CLASS6 : class;
		copy_address(asked->ipv6_src, tuple->source.address);
		copy_address(asked->ipv6_dst, tuple->destination.address);
	}
}

INLINE struct asked_way *place_of_question(const union route *route)
{
	__u64 mixed = 0;
	__u32 at;

	for (int word = 0; word < QUESTION_WORDS; word++)
		mixed = (mixed ^ route->words[word]) * 0x9e3779b97f4a7c15;
	at = mixed >> (64 - ASKED_BITS);
	return bpf_map_lookup_elem(&asked_ways, &at);
}

/* Without branches, as differences() is, and for the same reason. */
INLINE bool is_same_question(const struct asked_way *way, const union route *route)
{
	__u64 differs = 0;

	for (int word = 0; word < QUESTION_WORDS; word++)
		differs |= way->question[word] ^ route->words[word];
	return !differs;
}

/*
 * Whether an answer is one for a packet of that length; 0: only the device is asked for. Kernels that tell no length
 * give the one back for which they were asked.
 */
INLINE bool is_answer_for(const struct asked_way *way, __u32 length)
{
	return !length || (way->found == BPF_FIB_LKUP_RET_SUCCESS && length <= way->answer.asked.mtu_result);
}

/*
 * Has the question answered in its own place, for a packet of that length as above, and returns what the kernel does.
 * That there is no way is not kept: one that comes is to be found at once.
 */
INLINE long ask(struct __sk_buff *skb, union route *route, __u32 length)
{
	struct asked_way *way = place_of_question(route);
	__u32 now = seconds();
	bool is_same;
	long found;

	if (!way)
		return BPF_FIB_LKUP_RET_NOT_FWDED;
	is_same = way->second == now && is_same_question(way, route);
	if (is_same && is_answer_for(way, length)) {
		*route = way->answer;
		return way->found;
	}
	if (!is_same) {
		way->second = 0;
		for (int word = 0; word < QUESTION_WORDS; word++)
			way->question[word] = route->words[word];
	}
	route->asked.tot_len = length ? length : ANY_LENGTH;
	found = look_up(skb, &route->asked);
	if (found == BPF_FIB_LKUP_RET_SUCCESS || found == BPF_FIB_LKUP_RET_NO_NEIGH) {
		way->answer = *route;
		way->found = found;
		way->second = now;
	}
	return found;
}

/* As way_out(), for what may have been asked in this second. */
INLINE __u32 way_asked(struct __sk_buff *skb, const struct tuple *tuple, __u32 class, __u32 came, __u32 flags, bool v4)
{
	union route route = {};
	long found;

	set_question(&route, tuple, class, came, flags, v4);
	found = ask(skb, &route, 0);
	return way_told(found, &route.asked);
}

/*
 * The ways of packets that pass by the stack: asked for as the stack would ask, once in a second for each flow and
 * direction.
 *
 * To ask takes as long as all else that is done with such a packet. What the kernel said is kept for this second at
 * most, by each CPU for itself, and holds for packets that ask the same. Whether a device may be used is no part of it.
 */

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
