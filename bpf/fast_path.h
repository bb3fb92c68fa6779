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
#define TOS_PRIORITIES 0x4620

/* Does to the packet what each router does: counts it down one hop, and gives it its place in queues. */
INLINE bool decrement_ttl(struct __sk_buff *skb, const struct packet *packet, bool v4)
{
	if (v4) {
		struct iphdr *ip = get_header(skb, packet->ip, sizeof(*ip));

		if (!ip)
			return false;
		ip->ttl--;
		ip->check = ~csum_fold16((__u16)~ip->check + (__u64)(__u16)~bpf_htons(0x100));
		skb->priority = TOS_PRIORITIES >> (ip->tos >> 1 & 12) & 15;
	} else {
		struct ipv6hdr *ip = get_header(skb, packet->ip, sizeof(*ip));

		if (!ip)
			return false;
		ip->hop_limit--;
		update_skb_csum(skb, (__u16)~bpf_htons(1));
	}
	return true;
}

/*
 * Writes the header of the link. A virtual machine takes only what is for its own hardware, and may be behind a bridge
 * in the pod.
 */
INLINE bool write_link(struct __sk_buff *skb, const struct flow_path *path)
{
	struct ethhdr *link = link_header == ETH_HLEN ? get_header(skb, 0, sizeof(*link)) : NULL;

	if (!link)
		return false;
	__builtin_memcpy(link->h_dest, path->dst_mac, ETH_ALEN);
	__builtin_memcpy(link->h_source, path->src_mac, ETH_ALEN);
	return true;
}

/*
 * A packet that is given to a pod is there at once, as if it had come to the pod's end of the link. Otherwise the
 * kernel finds the neighbour, as it does for what the stack sends, and so keeps it fresh.
 */
INLINE int redirect_packet(struct __sk_buff *skb, const struct flow_path *path, bool is_given, bool v4)
{
	struct bpf_redir_neigh next = { .nh_family = v4 ? path->next_family : FAMILY6 };

	if (is_given)
		return write_link(skb, path) ? bpf_redirect_peer(path->device, 0) : TC_ACT_SHOT;
	copy_address(next.ipv6_nh, path->next);
	return bpf_redirect_neigh(path->device, &next, sizeof(next), 0);
}

/* Whether the flow is with a pod of this node, and takes the shortcut. */
INLINE bool is_pod_fast_path(const struct flow *flow)
{
	return !flow->nat_port && flow->nat[0];
}

INLINE bool has_fast_path(const struct flow *flow)
{
	return flow->client_flags & FLOW_FAST_PATH || is_pod_fast_path(flow);
}

/* Whether the packet goes to a backend of this node. */
INLINE bool is_for_pod(const struct flow *flow, const struct scratch *scratch)
{
	return scratch->direction == TO_BACKEND && !flow->nat_port;
}

/*
 * Tells how the packet looks between the two programs, and how it leaves the second one. `false`: the record has become
 * another flow's.
 */
INLINE bool fast_path_tuples(const struct flow *flow, const struct scratch *scratch, struct tuple *translated,
			     struct tuple *left)
{
	__u32 serial = scratch->serial;

	flow = (const struct flow *)load_after((const __u64 *)flow, serial);
	if (scratch->direction == TO_BACKEND) {
		set_endpoint(&translated->source, flow->client, flow->translated_port);
		set_endpoint(&translated->destination, flow->backend, flow->backend_port);
		*left = *translated;
		if (!is_for_pod(flow, scratch))
			set_endpoint(&left->source, flow->nat, flow->nat_port);
	} else {
		set_endpoint(&translated->source, flow->backend, flow->backend_port);
		set_endpoint(&translated->destination, flow->client, flow->translated_port);
		set_endpoint(&left->source, flow->frontend, flow->frontend_port);
		set_endpoint(&left->destination, flow->client, flow->client_port);
	}
	translated->transport = left->transport = flow->transport;
	return READ_ONCE(flow->serial) == serial;
}

/*
 * Finds the way of the packet that arrives by a device of which `here` is known: to pods of this node, or to others, as
 * is `wanted`. A pod that is a client counts as one of the others: what it is answered has to leave by the second
 * program of its device. What is known of the device by which the packet leaves goes to `there`. NULL: it is the
 * stack's.
 */
INLINE struct flow_path *find_fast_path(struct __sk_buff *skb, const struct scratch *scratch,
					const struct tuple *translated, __u32 wanted, __u32 here, __u32 *there, bool v4)
{
	struct flow_path *path = get_flow_path(scratch->number, scratch->direction);

	if (!path || !(here & DEVICE_FAST_PATH) || !resolve_flow_path(skb, scratch, path, translated, here, v4))
		return NULL;
	*there = path->device == skb->ifindex ? here : get_device_flags(path->device);
	if (scratch->direction == TO_CLIENT && *there & DEVICE_POD)
		*there &= ~DEVICE_LOCAL_PODS;
	return (*there & (DEVICE_FAST_PATH | DEVICE_LOCAL_PODS)) == wanted ? path : NULL;
}

/* Whether what goes from one device to the other is given to a pod at once. */
INLINE bool can_redirect_peer(__u32 here, __u32 there)
{
	return there & DEVICE_LOCAL_PODS && here & there & DEVICE_PEER;
}

/* Whether the backend of a flow owes an answer. */
INLINE bool is_backend_silent(const struct flow *flow)
{
	return flow->unacked || (flow->state == FLOW_OPENING && !(flow->backend_flags & FLOW_SYN_SEEN));
}

/*
 * Notes, with the first packet of a client in a second, that its backend is silent. What is given to a pod at once says
 * nothing to the kernel's table of neighbours, which may have the hardware address of a guest that is no more. So one
 * packet in a second goes to a silent pod by that table, which asks for the address anew.
 */
INLINE void note_silent_backend(const struct flow *flow, __u32 number)
{
	struct scratch *scratch = get_scratch();

	if (UNLIKELY(is_backend_silent(flow)) && scratch)
		scratch->probe_neighbour = number + 1;
}

/* Whether the packet is given to the pod at once. */
INLINE bool uses_redirect_peer(struct scratch *scratch, __u32 here, __u32 there)
{
	if (LIKELY(scratch->probe_neighbour != scratch->number + 1))
		return can_redirect_peer(here, there);
	scratch->probe_neighbour = 0;
	return false;
}

/*
 * Sends the packet past the stack, from a device of which `here` is known to one of which `there` is. Where the second
 * program has nothing to look at, it gets what that would write. A device by which pods answer has no second program:
 * what the packet bore would go on into the network of the pod, which may be a node with programs of its own.
 */
INLINE int send_fast_path(struct __sk_buff *skb, struct scratch *scratch, const struct flow_path *path,
			  const struct tuple *translated, const struct tuple *left, __u32 here, __u32 there, bool v4)
{
	if (!decrement_ttl(skb, &scratch->packet, v4) ||
	    !nat_packet(skb, &scratch->packet, scratch->skips_egress ? left : translated, v4))
		return TC_ACT_SHOT;
	if (scratch->skips_egress && !(there & DEVICE_LOCAL_PODS))
		skb->tc_index = MARK_TRANSLATED;
	return redirect_packet(skb, path, uses_redirect_peer(scratch, here, there), v4);
}

/* What a device has to be by which packets of a flow leave. Where pods answer by it, hosts outside do not. */
INLINE __u32 required_device_flags(const struct flow *flow, const struct scratch *scratch)
{
	return is_for_pod(flow, scratch) ? DEVICE_FAST_PATH | DEVICE_LOCAL_PODS : DEVICE_FAST_PATH;
}

/* --- One flow. --- */

/* Notes a packet of a flow that takes the shortcut for the next step. */
INLINE enum step save_fast_path(const struct packet *packet, __u32 number, __u32 serial, enum direction direction,
				bool skips_egress)
{
	struct scratch *scratch = get_scratch();

	if (!scratch)
		return STEP_DROP;
	scratch->packet = *packet;
	scratch->number = number;
	scratch->serial = serial;
	scratch->direction = direction;
	scratch->skips_egress = skips_egress;
	return STEP_FAST_PATH;
}

/*
 * Sends a further packet of a flow on, past the stack or through it. A packet of a flow that has just ended is lost. An
 * answer counts once it has its way: another host may have sent it, which the stack sees, and then the second program
 * does not.
 */
INLINE int fast_path(struct __sk_buff *skb, bool v4)
{
	struct scratch *scratch = get_scratch();
	struct flow *flow = scratch ? get_flow(scratch->number) : NULL;
	__u32 here = get_device_flags(skb->ifindex), there;
	const struct flow_path *path;
	struct tuple translated, left;
	int verdict;

	if (!flow || !fast_path_tuples(flow, scratch, &translated, &left))
		return TC_ACT_SHOT;
	path = find_fast_path(skb, scratch, &translated, required_device_flags(flow, scratch), here, &there, v4);
	if (path && scratch->skips_egress && scratch->direction == TO_CLIENT)
		note_reply(flow, scratch->number, &scratch->packet, v4);
	if (path && scratch->direction == TO_BACKEND)
		mark_snat_used(flow);
	if (path)
		verdict = send_fast_path(skb, scratch, path, &translated, &left, here, there, v4);
	else
		verdict = nat_packet(skb, &scratch->packet, &translated, v4) ? TC_ACT_UNSPEC : TC_ACT_SHOT;
	if (verdict == TC_ACT_UNSPEC)
		mark_translated(skb);
	if (verdict == TC_ACT_SHOT)
		count_packet(COUNT_UNWRITABLE);
	return verdict;
}

/* Whether an address can be one host's. The stack drops packets from others, and a look at the routes does not tell. */
INLINE bool is_unicast_address(const __u32 *address, bool v4)
{
	__u32 first = bpf_ntohl(address[v4 ? 3 : 0]) >> 24;

	if (v4)
		return first && first != 127 && first < 224;
	return first != 0xff && (address[0] | address[1] | address[2] | (address[3] & ~bpf_htonl(1)));
}

/* Whether a flow may take the shortcut, as far as the first packet tells. */
INLINE bool may_use_fast_path(const struct flow *flow, bool v4)
{
	return is_unicast_address(flow->client, v4) && is_unicast_address(flow->backend, v4) &&
	       !(flow->client_flags & FLOW_REPLY_BY_FRONTEND);
}

/* Has all further packets of the flow take the shortcut, and a pod's answers by the device that led to the pod. */
INLINE void enable_fast_path(struct flow *flow, const struct scratch *scratch, __u32 device)
{
	if (READ_ONCE(flow->serial) != scratch->serial)
		return;
	if (flow->nat_port)
		flow->client_flags |= FLOW_FAST_PATH;
	else
		*(volatile __u32 *)&flow->nat[0] = device;
}

/* Whether a pod's answer is of a flow that takes the shortcut, and comes by the device that led to the pod. */
INLINE bool is_from_fast_path_device(const struct flow *flow, const struct __sk_buff *skb)
{
	return is_pod_fast_path(flow) && flow->nat[0] == skb->ifindex;
}

/* Sends the first packet of a flow on. If the stack has to do that, it does so for all packets of the flow. */
INLINE int fast_path_first(struct __sk_buff *skb, bool v4)
{
	struct scratch *scratch = get_scratch();
	struct flow *flow = scratch ? get_flow(scratch->number) : NULL;
	const struct flow_path *path;
	struct tuple translated, left;
	__u32 there;
	int verdict;

	if (!flow || !may_use_fast_path(flow, v4))
		return TC_ACT_UNSPEC;
	scratch->serial = READ_ONCE(flow->serial);
	scratch->direction = TO_BACKEND;
	scratch->skips_egress = true;
	if (!fast_path_tuples(flow, scratch, &translated, &left))
		return TC_ACT_UNSPEC;
	path = find_fast_path(skb, scratch, &translated, required_device_flags(flow, scratch), scratch->flags, &there,
			      v4);
	if (!path)
		return TC_ACT_UNSPEC;
	mark_snat_used(flow);
	verdict = send_fast_path(skb, scratch, path, &translated, &left, scratch->flags, there, v4);
	if (verdict == TC_ACT_SHOT)
		count_packet(COUNT_UNWRITABLE);
	else
		enable_fast_path(flow, scratch, path->device);
	return verdict;
}

#endif
