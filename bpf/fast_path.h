/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The fast path: packets of a flow go from one device's program to the other device, past the stack.
 *
 * Owns: the redirect of a packet, and the choice whether a flow takes the fast path. Reads: the FIB, `devices`. Writes:
 * the packet, the scratch map, and the fast path's flag in `flow_table`.
 *
 * Both directions take the fast path, or neither: conntrack of the stack would reject a connection of which it sees one
 * direction. The route is what the stack would find. Any packet may still go through the stack, and does if the stack
 * would do more than forward it. A backend of this node replies by the device that led to it. Otherwise the stack gets
 * the reply, because another pod may use the address.
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

/* The stack's packet priorities by two TOS bits, from the right. */
#define TOS_PRIORITIES 0x4620

/* Decrements the TTL and sets the packet's priority, as a router does. */
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

/* Writes the link header. A virtual machine accepts only its own MAC address, and may be behind a bridge in the pod. */
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
 * A packet to a pod arrives at once at the pod's end of the veth pair. For any other, the kernel resolves the
 * neighbour, which keeps its entry fresh.
 */
INLINE int redirect_packet(struct __sk_buff *skb, const struct flow_path *path, bool is_given, bool v4)
{
	struct bpf_redir_neigh next = { .nh_family = v4 ? path->next_family : FAMILY6 };

	if (is_given)
		return write_link(skb, path) ? bpf_redirect_peer(path->device, 0) : TC_ACT_SHOT;
	copy_address(next.ipv6_nh, path->next);
	return bpf_redirect_neigh(path->device, &next, sizeof(next), 0);
}

/* Whether the flow has a local pod as its backend, and a fast path. */
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
 * Sets the tuples of the packet in the stack and behind the egress program. `false`: another flow has taken the record.
 * A global function: the verifier follows the rest of the fast path once, and not for each direction.
 */
GLOBAL int set_fast_path_tuples(void)
{
	struct scratch *scratch = get_scratch();
	const struct flow *flow = scratch ? get_flow(scratch->number) : NULL;
	struct tuple *translated, *outgoing;
	__u32 serial;

	if (!flow)
		return false;
	translated = &scratch->translated;
	outgoing = &scratch->outgoing;
	serial = scratch->serial;
	flow = (const struct flow *)load_after((const __u64 *)flow, serial);
	if (scratch->direction == TO_BACKEND) {
		set_endpoint(&translated->source, flow->client, flow->translated_port);
		set_endpoint(&translated->destination, flow->backend, flow->backend_port);
		*outgoing = *translated;
		if (!is_for_pod(flow, scratch))
			set_endpoint(&outgoing->source, flow->nat, flow->nat_port);
	} else {
		set_endpoint(&translated->source, flow->backend, flow->backend_port);
		set_endpoint(&translated->destination, flow->client, flow->translated_port);
		set_endpoint(&outgoing->source, flow->frontend, flow->frontend_port);
		set_endpoint(&outgoing->destination, flow->client, flow->client_port);
	}
	translated->transport = outgoing->transport = flow->transport;
	return READ_ONCE(flow->serial) == serial;
}

/*
 * Finds the path of a packet. `ingress_flags`: the flags of the ingress device. `wanted`: whether the path has to lead
 * to local pods or elsewhere. A pod that is a client counts as elsewhere: its replies have to pass the egress program
 * of its device. The flags of the egress device go to `egress_flags`. NULL: the stack gets the packet.
 */
INLINE struct flow_path *find_fast_path(struct __sk_buff *skb, const struct scratch *scratch, __u32 wanted,
					__u32 ingress_flags, __u32 *egress_flags, bool v4)
{
	struct flow_path *path = get_flow_path(scratch->number, scratch->direction);

	if (!path || !(ingress_flags & DEVICE_FAST_PATH) ||
	    !resolve_flow_path(skb, scratch, path, ingress_flags, v4))
		return NULL;
	*egress_flags = path->device == skb->ifindex ? ingress_flags : get_device_flags(path->device);
	if (scratch->direction == TO_CLIENT && *egress_flags & DEVICE_POD)
		*egress_flags &= ~DEVICE_LOCAL_PODS;
	return (*egress_flags & (DEVICE_FAST_PATH | DEVICE_LOCAL_PODS)) == wanted ? path : NULL;
}

/* Whether a packet may skip the host's end of the veth pair. */
INLINE bool can_redirect_peer(__u32 ingress_flags, __u32 egress_flags)
{
	return egress_flags & DEVICE_LOCAL_PODS && ingress_flags & egress_flags & DEVICE_PEER;
}

/* Whether the backend has to reply. */
INLINE bool is_backend_silent(const struct flow *flow)
{
	return flow->unacked || (flow->state == FLOW_OPENING && !(flow->backend_flags & FLOW_SYN_SEEN));
}

/*
 * Notes that the backend is silent, with the client's first packet in a second. A redirect to a peer does not tell the
 * kernel's neighbour table anything, and a virtual machine behind the pod may have changed. So one packet in a second
 * goes by the neighbour table, which resolves the address anew.
 */
INLINE void note_silent_backend(const struct flow *flow, __u32 number)
{
	struct scratch *scratch = get_scratch();

	if (UNLIKELY(is_backend_silent(flow)) && scratch)
		scratch->probe_neighbour = number + 1;
}

/* Whether this packet goes straight to the pod. */
INLINE bool uses_redirect_peer(struct scratch *scratch, __u32 ingress_flags, __u32 egress_flags)
{
	if (LIKELY(scratch->probe_neighbour != scratch->number + 1))
		return can_redirect_peer(ingress_flags, egress_flags);
	scratch->probe_neighbour = 0;
	return false;
}

/*
 * Redirects the packet past the stack. `ingress_flags` and `egress_flags`: the flags of both devices. If the egress
 * program would change nothing more, it gets the final packet and a mark. A device of local pods has no egress program:
 * the mark would go on into the pod's network, and the pod may be a node with programs of its own.
 */
INLINE int send_fast_path(struct __sk_buff *skb, struct scratch *scratch, const struct flow_path *path,
			  __u32 ingress_flags, __u32 egress_flags, bool v4)
{
	if (!decrement_ttl(skb, &scratch->packet, v4) ||
	    !nat_packet(skb, &scratch->packet, scratch->skips_egress ? &scratch->outgoing : &scratch->translated, v4))
		return TC_ACT_SHOT;
	if (scratch->skips_egress && !(egress_flags & DEVICE_LOCAL_PODS))
		skb->tc_index = MARK_TRANSLATED;
	return redirect_packet(skb, path, uses_redirect_peer(scratch, ingress_flags, egress_flags), v4);
}

/* What the egress device has to be. Outside hosts are not behind a device of local pods. */
INLINE __u32 required_device_flags(const struct flow *flow, const struct scratch *scratch)
{
	return is_for_pod(flow, scratch) ? DEVICE_FAST_PATH | DEVICE_LOCAL_PODS : DEVICE_FAST_PATH;
}

/* --- One flow. --- */

/* Saves the flow of the packet in the scratch map for the next step. */
INLINE enum step save_fast_path(__u32 number, __u32 serial, enum direction direction, bool skips_egress)
{
	struct scratch *scratch = get_scratch();

	if (!scratch)
		return STEP_DROP;
	scratch->number = number;
	scratch->serial = serial;
	scratch->direction = direction;
	scratch->skips_egress = skips_egress;
	return STEP_FAST_PATH;
}

/*
 * Sends a further packet of a flow, past the stack or through it. A packet is dropped if its flow has just ended. A
 * reply counts only if it has a path: another host may have sent it, which the stack detects, and then the egress
 * program does not see it.
 */
INLINE int fast_path(struct __sk_buff *skb, bool v4)
{
	struct scratch *scratch = get_scratch();
	struct flow *flow = scratch ? get_flow(scratch->number) : NULL;
	__u32 ingress_flags = get_device_flags(skb->ifindex), egress_flags;
	const struct flow_path *path;
	int verdict;

	if (!flow || !set_fast_path_tuples())
		return TC_ACT_SHOT;
	path = find_fast_path(skb, scratch, required_device_flags(flow, scratch), ingress_flags, &egress_flags, v4);
	if (path && scratch->skips_egress && scratch->direction == TO_CLIENT)
		note_reply(flow, scratch->number, &scratch->packet, v4);
	if (path && scratch->direction == TO_BACKEND)
		mark_snat_used(flow);
	if (path)
		verdict = send_fast_path(skb, scratch, path, ingress_flags, egress_flags, v4);
	else
		verdict = nat_packet(skb, &scratch->packet, &scratch->translated, v4) ? TC_ACT_UNSPEC : TC_ACT_SHOT;
	if (verdict == TC_ACT_UNSPEC)
		mark_translated(skb);
	if (verdict == TC_ACT_SHOT)
		count_packet(COUNT_UNWRITABLE);
	return verdict;
}

/*
 * Whether an address can be a single host's. The stack drops packets from other addresses, and the FIB does not tell.
 */
INLINE bool is_unicast_address(const __u32 *address, bool v4)
{
	__u32 first = bpf_ntohl(address[v4 ? 3 : 0]) >> 24;

	if (v4)
		return first && first != 127 && first < 224;
	return first != 0xff && (address[0] | address[1] | address[2] | (address[3] & ~bpf_htonl(1)));
}

/* Whether a flow may take the fast path, as far as its first packet tells. */
INLINE bool may_use_fast_path(const struct flow *flow, bool v4)
{
	return is_unicast_address(flow->client, v4) && is_unicast_address(flow->backend, v4) &&
	       !(flow->client_flags & FLOW_REPLY_BY_FRONTEND);
}

/* Sets the fast path for all further packets of the flow. For a local pod it notes the device of the replies. */
INLINE void enable_fast_path(struct flow *flow, const struct scratch *scratch, __u32 device)
{
	if (READ_ONCE(flow->serial) != scratch->serial)
		return;
	if (flow->nat_port)
		flow->client_flags |= FLOW_FAST_PATH;
	else
		*(volatile __u32 *)&flow->nat[0] = device;
}

/* Whether a pod's reply belongs to a flow with a fast path, and arrives by the noted device. */
INLINE bool is_from_fast_path_device(const struct flow *flow, const struct __sk_buff *skb)
{
	return is_pod_fast_path(flow) && flow->nat[0] == skb->ifindex;
}

/* Sends the first packet of a flow. If the stack has to forward it, the flow gets no fast path. */
INLINE int fast_path_first(struct __sk_buff *skb, bool v4)
{
	struct scratch *scratch = get_scratch();
	struct flow *flow = scratch ? get_flow(scratch->number) : NULL;
	const struct flow_path *path;
	__u32 egress_flags;
	int verdict;

	if (!flow || !may_use_fast_path(flow, v4))
		return TC_ACT_UNSPEC;
	scratch->serial = READ_ONCE(flow->serial);
	scratch->direction = TO_BACKEND;
	scratch->skips_egress = true;
	if (!set_fast_path_tuples())
		return TC_ACT_UNSPEC;
	path = find_fast_path(skb, scratch, required_device_flags(flow, scratch), scratch->flags, &egress_flags, v4);
	if (!path)
		return TC_ACT_UNSPEC;
	mark_snat_used(flow);
	verdict = send_fast_path(skb, scratch, path, scratch->flags, egress_flags, v4);
	if (verdict == TC_ACT_SHOT)
		count_packet(COUNT_UNWRITABLE);
	else
		enable_fast_path(flow, scratch, path->device);
	return verdict;
}

#endif
