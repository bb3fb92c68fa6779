/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The shortcut: packets of a flow go from the program at one device right to the other device, past the stack.
 *
 * Both directions of a flow take it, or neither: tracking that sees only one direction takes that for nonsense. The way
 * is asked for as the stack would ask. Any packet may go through the stack after all: one with which the stack would do
 * more than send it on does. A backend of this node answers by the device that led to it, or its answer is the stack's:
 * another pod may use its address.
 */
#ifndef HOLDFAST_FAST_PATH_H
#define HOLDFAST_FAST_PATH_H

#include <linux/if_packet.h>
#include "conntrack.h"
#include "fib.h"
#include "flow_state.h"
#include "nat.h"
#include "packet.h"

/* --- One packet. --- */

/* The priorities that the stack gives packets by two bits of their type of service, from the right. */
#define PRIORITIES 0x4620

/* Does to the packet what each router does: counts it down one hop, and gives it its place in queues. */
INLINE bool pass_hop(struct __sk_buff *skb, const struct packet *packet, bool v4)
{
	if (v4) {
		struct iphdr *ip = header(skb, packet->ip, sizeof(*ip));

		if (!ip)
			return false;
		ip->ttl--;
		ip->check = ~fold16((__u16)~ip->check + (__u64)(__u16)~bpf_htons(0x100));
		skb->priority = PRIORITIES >> (ip->tos >> 1 & 12) & 15;
	} else {
		struct ipv6hdr *ip = header(skb, packet->ip, sizeof(*ip));

		if (!ip)
			return false;
		ip->hop_limit--;
		note_change(skb, (__u16)~bpf_htons(1));
	}
	return true;
}

/*
 * Writes the header of the link. A virtual machine takes only what is for its own hardware, and may be behind a bridge
 * in the pod.
 */
INLINE bool write_link(struct __sk_buff *skb, const struct known_way *way)
{
	struct ethhdr *link = link_header == ETH_HLEN ? header(skb, 0, sizeof(*link)) : NULL;

	if (!link)
		return false;
	__builtin_memcpy(link->h_dest, way->to, ETH_ALEN);
	__builtin_memcpy(link->h_source, way->from, ETH_ALEN);
	return true;
}

/*
 * A packet that is given to a pod is there at once, as if it had come to the pod's end of the link. Otherwise the
 * kernel finds the neighbour, as it does for what the stack sends, and so keeps it fresh.
 */
INLINE int send_on(struct __sk_buff *skb, const struct known_way *way, bool is_given, bool v4)
{
	struct bpf_redir_neigh next = { .nh_family = v4 ? way->next_family : FAMILY6 };

	if (is_given)
		return write_link(skb, way) ? bpf_redirect_peer(way->device, 0) : SHOT;
	copy_address(next.ipv6_nh, way->next);
	return bpf_redirect_neigh(way->device, &next, sizeof(next), 0);
}

/* Whether the flow is with a pod of this node, and takes the shortcut. */
INLINE bool passes_to_pod(const struct flow *flow)
{
	return !flow->nat_port && flow->nat[0];
}

INLINE bool takes_shortcut(const struct flow *flow)
{
	return flow->of_client & TAKES_SHORTCUT || passes_to_pod(flow);
}

/* Whether the packet goes to a backend of this node. */
INLINE bool is_for_pod(const struct flow *flow, const struct arrival *arrival)
{
	return arrival->direction == TO_BACKEND && !flow->nat_port;
}

/*
 * Tells how the packet looks between the two programs, and how it leaves the second one. `false`: the record has become
 * another flow's.
 */
INLINE bool looks(const struct flow *flow, const struct arrival *arrival, struct tuple *through, struct tuple *left)
{
	__u32 serial = arrival->serial;

	flow = (const struct flow *)after((const __u64 *)flow, serial);
	if (arrival->direction == TO_BACKEND) {
		set_place(&through->source, flow->client, flow->through_port);
		set_place(&through->destination, flow->backend, flow->backend_port);
		*left = *through;
		if (!is_for_pod(flow, arrival))
			set_place(&left->source, flow->nat, flow->nat_port);
	} else {
		set_place(&through->source, flow->backend, flow->backend_port);
		set_place(&through->destination, flow->client, flow->through_port);
		set_place(&left->source, flow->frontend, flow->frontend_port);
		set_place(&left->destination, flow->client, flow->client_port);
	}
	through->transport = left->transport = flow->transport;
	return READ_ONCE(flow->serial) == serial;
}

/*
 * Finds the way of the packet that arrives by a device of which `here` is known: to pods of this node, or to others, as
 * is `wanted`. A pod that is a client counts as one of the others: what it is answered has to leave by the second
 * program of its device. What is known of the device by which the packet leaves goes to `there`. NULL: it is the
 * stack's.
 */
INLINE struct known_way *find_passage(struct __sk_buff *skb, const struct arrival *arrival, const struct tuple *through,
				      __u32 wanted, __u32 here, __u32 *there, bool v4)
{
	struct known_way *way = known_way(arrival->number, arrival->direction);

	if (!way || !(here & DEVICE_SHORTCUT) || !know_way(skb, arrival, way, through, here, v4))
		return NULL;
	*there = way->device == skb->ifindex ? here : flags_of(way->device);
	if (arrival->direction == TO_CLIENT && *there & DEVICE_POD)
		*there &= ~DEVICE_NEAR;
	return (*there & (DEVICE_SHORTCUT | DEVICE_NEAR)) == wanted ? way : NULL;
}

/* Whether what goes from one device to the other is given to a pod at once. */
INLINE bool gives(__u32 here, __u32 there)
{
	return there & DEVICE_NEAR && here & there & DEVICE_PEER;
}

/* Whether the backend of a flow owes an answer. */
INLINE bool has_silent_backend(const struct flow *flow)
{
	return flow->waits || (flow->state == FLOW_OPENING && !(flow->of_backend & HEARD_SYN));
}

/*
 * Notes, with the first packet of a client in a second, that its backend is silent. What is given to a pod at once says
 * nothing to the kernel's table of neighbours, which may have the hardware address of a guest that is no more. So one
 * packet in a second goes to a silent pod by that table, which asks for the address anew.
 */
INLINE void note_silence(const struct flow *flow, __u32 number)
{
	struct arrival *arrival = the_arrival();

	if (UNLIKELY(has_silent_backend(flow)) && arrival)
		arrival->unheard = number + 1;
}

/* Whether the packet is given to the pod at once. */
INLINE bool is_given(struct arrival *arrival, __u32 here, __u32 there)
{
	if (LIKELY(arrival->unheard != arrival->number + 1))
		return gives(here, there);
	arrival->unheard = 0;
	return false;
}

/*
 * Sends the packet past the stack, from a device of which `here` is known to one of which `there` is. Where the second
 * program has nothing to look at, it gets what that would write. A device by which pods answer has no second program:
 * what the packet bore would go on into the network of the pod, which may be a node with programs of its own.
 */
INLINE int take_passage(struct __sk_buff *skb, struct arrival *arrival, const struct known_way *way,
			const struct tuple *through, const struct tuple *left, __u32 here, __u32 there, bool v4)
{
	if (!pass_hop(skb, &arrival->packet, v4) ||
	    !rewrite(skb, &arrival->packet, arrival->is_whole ? left : through, v4))
		return SHOT;
	if (arrival->is_whole && !(there & DEVICE_NEAR))
		skb->tc_index = IS_WRITTEN;
	return send_on(skb, way, is_given(arrival, here, there), v4);
}

/* What a device has to be by which packets of a flow leave. Where pods answer by it, hosts outside do not. */
INLINE __u32 wanted_of_way(const struct flow *flow, const struct arrival *arrival)
{
	return is_for_pod(flow, arrival) ? DEVICE_SHORTCUT | DEVICE_NEAR : DEVICE_SHORTCUT;
}

/* --- One flow. --- */

/* Notes a packet of a flow that takes the shortcut for the next step. */
INLINE int note_passage(const struct packet *packet, __u32 number, __u32 serial, enum direction direction,
			bool is_whole)
{
	struct arrival *arrival = the_arrival();

	if (!arrival)
		return SHOT;
	arrival->packet = *packet;
	arrival->number = number;
	arrival->serial = serial;
	arrival->direction = direction;
	arrival->is_whole = is_whole;
	return MAY_PASS;
}

/*
 * Sends a further packet of a flow on, past the stack or through it. A packet of a flow that has just ended is lost. An
 * answer counts once it has its way: another host may have sent it, which the stack sees, and then the second program
 * does not.
 */
INLINE int pass(struct __sk_buff *skb, bool v4)
{
	struct arrival *arrival = the_arrival();
	struct flow *flow = arrival ? flow_at(arrival->number) : NULL;
	__u32 here = flags_of(skb->ifindex), there;
	const struct known_way *way;
	struct tuple through, left;
	int verdict;

	if (!flow || !looks(flow, arrival, &through, &left))
		return SHOT;
	way = find_passage(skb, arrival, &through, wanted_of_way(flow, arrival), here, &there, v4);
	if (way && arrival->is_whole && arrival->direction == TO_CLIENT)
		note_answer(flow, arrival->number, &arrival->packet, v4);
	if (way && arrival->direction == TO_BACKEND)
		note_sent(flow);
	if (way)
		verdict = take_passage(skb, arrival, way, &through, &left, here, there, v4);
	else
		verdict = rewrite(skb, &arrival->packet, &through, v4) ? NEXT : SHOT;
	if (verdict == NEXT)
		note_written_in(skb);
	if (verdict == SHOT)
		count_packet(COUNT_UNWRITABLE);
	return verdict;
}

/* Whether an address can be one host's. The stack drops packets from others, and a look at the routes does not tell. */
INLINE bool is_of_host(const __u32 *address, bool v4)
{
	__u32 first = bpf_ntohl(address[v4 ? 3 : 0]) >> 24;

	if (v4)
		return first && first != 127 && first < 224;
	return first != 0xff && (address[0] | address[1] | address[2] | (address[3] & ~bpf_htonl(1)));
}

/* Whether a flow may take the shortcut, as far as the first packet tells. */
INLINE bool may_take_shortcut(const struct flow *flow, bool v4)
{
	return is_of_host(flow->client, v4) && is_of_host(flow->backend, v4) && !(flow->of_client & IS_BY_ADDRESS);
}

/* Has all further packets of the flow take the shortcut, and a pod's answers by the device that led to the pod. */
INLINE void note_shortcut(struct flow *flow, const struct arrival *arrival, __u32 device)
{
	if (READ_ONCE(flow->serial) != arrival->serial)
		return;
	if (flow->nat_port)
		flow->of_client |= TAKES_SHORTCUT;
	else
		*(volatile __u32 *)&flow->nat[0] = device;
}

/* Whether a pod's answer is of a flow that takes the shortcut, and comes by the device that led to the pod. */
INLINE bool comes_back(const struct flow *flow, const struct __sk_buff *skb)
{
	return passes_to_pod(flow) && flow->nat[0] == skb->ifindex;
}

/* Sends the first packet of a flow on. If the stack has to do that, it does so for all packets of the flow. */
INLINE int pass_first(struct __sk_buff *skb, bool v4)
{
	struct arrival *arrival = the_arrival();
	struct flow *flow = arrival ? flow_at(arrival->number) : NULL;
	const struct known_way *way;
	struct tuple through, left;
	__u32 there;
	int verdict;

	if (!flow || !may_take_shortcut(flow, v4))
		return NEXT;
	arrival->serial = READ_ONCE(flow->serial);
	arrival->direction = TO_BACKEND;
	arrival->is_whole = true;
	if (!looks(flow, arrival, &through, &left))
		return NEXT;
	way = find_passage(skb, arrival, &through, wanted_of_way(flow, arrival), arrival->flags, &there, v4);
	if (!way)
		return NEXT;
	note_sent(flow);
	verdict = take_passage(skb, arrival, way, &through, &left, arrival->flags, there, v4);
	if (verdict == SHOT)
		count_packet(COUNT_UNWRITABLE);
	else
		note_shortcut(flow, arrival, way->device);
	return verdict;
}

#endif
