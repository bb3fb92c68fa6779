/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The flow of a client that arrives: the address and port with which it goes on, which record it gets, and all that
 * leads there.
 *
 * The ways back are put in before the way there. A flow that has a place which another one needs keeps it until it is
 * over. Where no record is free, evict.h decides which flow gives way.
 */
#ifndef HOLDFAST_OPEN_FLOW_H
#define HOLDFAST_OPEN_FLOW_H

#include "dsr.h"
#include "evict.h"
#include "fib.h"
#include "select_backend.h"
#include "snat.h"

/* --- The address with which it goes on. --- */

INLINE void copy_source(struct flow *flow, const struct tuple *tuple)
{
	copy_address(flow->client, tuple->source.address);
	flow->client_port = flow->translated_port = tuple->source.port;
	copy_address(flow->frontend, tuple->destination.address);
	flow->frontend_port = tuple->destination.port;
	flow->transport = tuple->transport;
}

INLINE bool has_address(const __u32 *address)
{
	return address[0] | address[1] | address[2] | address[3];
}

/*
 * The device by which a packet leaves for the flow's backend, had it come by the same device as this one, of which
 * `flags` are known; 0: there is none, now. Where the kernel does not say which one, it is that by which the packet
 * came, which has an address of this node, too.
 */
INLINE __u32 egress_to_backend(struct __sk_buff *skb, const struct flow *flow, __u32 class, __u32 flags,
			       bool *is_unknown, bool v4)
{
	struct tuple there;
	__u32 egress;

	set_endpoint(&there.source, flow->client, flow->client_port);
	set_endpoint(&there.destination, flow->backend, flow->backend_port);
	there.transport = flow->transport;
	egress = lookup_egress_cached(skb, &there, class, skb->ifindex, flags, v4);
	*is_unknown = egress == EGRESS_UNKNOWN;
	return *is_unknown ? skb->ifindex : egress;
}

/* The device that lends a client its address; 0: the client keeps its own. */
INLINE __u32 snat_device(struct __sk_buff *skb, const struct scratch *scratch, const struct flow *flow,
			 bool *is_unknown, bool v4)
{
	if (scratch->from_pod)
		return is_own_backend(flow) ? scratch->device : 0;
	return egress_to_backend(skb, flow, traffic_class(skb, &scratch->packet, v4), scratch->flags, is_unknown, v4);
}

/* Whether packets that leave by the device go to other nodes, or to clients outside. */
INLINE bool leads_outside(const struct device *device)
{
	return device->flags & (DEVICE_OUTER | DEVICE_BACKENDS);
}

/* Whether the address that backends of other nodes see by that device is one by which those know a node. */
INLINE bool has_dsr_address(const struct device *device, bool v4)
{
	return v4 ? is_dsr_node4(device->address4) :
		    is_dsr_node6(device->address6[0], device->address6[1], device->address6[2], device->address6[3]);
}

/* By how much the first bits of two words differ, as a number; 0: they are the same. */
INLINE __u64 prefix_diff(__u32 address, __u32 other, __u32 bits)
{
	return (__u64)bpf_ntohl(address ^ other) >> (32 - bits);
}

/* How many of the first `bits` bits of an address lie in its word number `at`. */
INLINE __u32 prefix_bits_in_word(__u32 bits, __u32 at)
{
	if (bits < 32 * at)
		return 0;
	return bits - 32 * at < 32 ? bits - 32 * at : 32;
}

INLINE bool is_local_pod4(const struct device *device, __u32 address)
{
	return device->pod_prefix4 &&
	       !prefix_diff(address, device->address4, prefix_bits_in_word(device->pod_prefix4, 0));
}

INLINE bool is_local_pod6(const struct device *device, const __u32 *address)
{
	__u64 differ = 0;

	for (__u32 at = 0; at < 4; at++)
		differ |= prefix_diff(address[at], device->address6[at], prefix_bits_in_word(device->pod_prefix6, at));
	return device->pod_prefix6 && !differ;
}

/*
 * Whether the backend is one of this node's own pods behind that device, which may lead to pods of other nodes too, as
 * Cilium's does. Such a pod is to see the client's own address: its answer comes by a device of its own, where no
 * program would give the client's address back.
 */
INLINE bool is_local_pod(const struct device *device, const __u32 *backend, bool v4)
{
	return v4 ? is_local_pod4(device, backend[3]) : is_local_pod6(device, backend);
}

/* Whether the client keeps its own address on the way by that device. */
INLINE bool keeps_client_address(const struct device *device, const struct flow *flow, __u32 is_local, bool v4)
{
	return is_local_pod(device, flow->backend, v4) || (is_local && device->flags & DEVICE_SWITCH);
}

/*
 * Sets the address that the backend sees instead of the client's, if it has to see one: a backend of another node is to
 * answer to this node, and not past it. A service that asks for the client's address (policy Local) has backends here
 * alone, and an answer to a pod's address comes back here from anywhere; only a pod that is its own backend would drop
 * a packet from its own address. `false`: there is no address to give, so no answer would come back this way.
 */
INLINE bool set_snat_address(struct __sk_buff *skb, const struct scratch *scratch, struct flow *flow, bool v4)
{
	bool is_unknown = false;
	__u32 number = snat_device(skb, scratch, flow, &is_unknown, v4);
	struct device *device = number ? bpf_map_lookup_elem(&devices, &number) : NULL;
	const __u32 none[4] = {};

	copy_address(flow->nat, none);
	flow->nat_port = 0;
	if (!device || !(leads_outside(device) || scratch->from_pod) ||
	    keeps_client_address(device, flow, scratch->is_local, v4))
		return true;
	note_bridge(device->flags);
	if (UNLIKELY(scratch->may_encap) && !is_unknown && !uses_ipsec(skb) && has_dsr_address(device, v4)) {
		flow->client_flags |= FLOW_ENCAP;
		return true;
	}
	if (v4 && device->address4) {
		flow->nat[2] = V4_MAPPED_PREFIX;
		flow->nat[3] = device->address4;
	} else if (!v4) {
		copy_address(flow->nat, device->address6);
	}
	return has_address(flow->nat);
}

/*
 * Whether a client would go on with another address now than when its flow began: the way to the backend is another
 * one, or there was none then, or the device has another address. While there is no way the stack tells the client so.
 * What a pod says, and what another node has let in, goes on as it is in any case.
 */
INLINE bool has_other_snat_address(struct __sk_buff *skb, __u32 number, __u32 class, bool v4)
{
	const struct flow *flow = get_flow(number);
	__u32 flags = get_device_flags(skb->ifindex), egress;
	const struct device *device;
	bool is_unknown;

	if (!flow || flags & DEVICE_POD || is_encapsulated(flow) || flow->backend_flags & FLOW_DECAP)
		return false;
	egress = egress_to_backend(skb, flow, class, flags, &is_unknown, v4);
	if (!egress)
		return false;
	device = bpf_map_lookup_elem(&devices, &egress);
	/* A client that kept its own at a switch is one of policy Local. */
	if (!device || !leads_outside(device) || keeps_client_address(device, flow, !flow->nat_port, v4))
		return flow->nat_port;
	if (!flow->nat_port)
		return true;
	return v4 ? flow->nat[3] != device->address4 : address_diff(flow->nat, device->address6);
}

GLOBAL int has_other_snat_address4(struct __sk_buff *skb, __u32 number, __u32 class)
{
	return has_other_snat_address(skb, number, class, true);
}

GLOBAL int has_other_snat_address6(struct __sk_buff *skb, __u32 number, __u32 class)
{
	return has_other_snat_address(skb, number, class, false);
}

/*
 * Whether a client is to be given another address, because no backend answers to the one that it has. Where a backend
 * answers, it is the right one; a connection that has begun by it ends with it, and only the two can tell.
 */
INLINE bool needs_other_snat_address(struct __sk_buff *skb, const struct flow *flow, __u32 number,
				     const struct packet *packet, bool v4)
{
	if (flow->transport == IPPROTO_UDP ? flow->state == FLOW_OPEN && !flow->unacked :
					     flow->state == FLOW_OPEN || flow->backend_flags & FLOW_SYN_SEEN)
		return false;
	return v4 ? has_other_snat_address4(skb, number, traffic_class(skb, packet, v4)) :
		    has_other_snat_address6(skb, number, traffic_class(skb, packet, v4));
}

/* --- The flow. --- */

/*
 * Whether a flow does without the entry of the client's packets, because another one has it: see dsr_decap.h. It is
 * found by the client's own port.
 */
INLINE bool may_share_original(const struct flow *flow, const struct flow *other)
{
	return flow->backend_flags & FLOW_DECAP && flow->translated_port == flow->client_port &&
	       is_backend_remote(other);
}

/*
 * Puts in the way there, which comes last. A process that was killed while it took a flow away may have left an entry
 * there that leads to no flow: it is replaced, or it would keep the client away for good.
 */
INLINE int add_original_entry(__u32 number, bool v4)
{
	struct flow *flow = get_flow(number), *other;
	struct tuple tuple, to;
	__u32 *there, led;
	int added;

	if (!flow)
		return -ENOENT;
	original_tuple(&tuple, flow);
	added = add_entry(&tuple, ENTRY_WIRE, number, v4);
	if (LIKELY(added != -EEXIST))
		return added;
	there = find_entry(&tuple, ENTRY_WIRE, v4);
	led = there ? *there : 0;
	other = get_flow(led);
	if (!there)
		return added;
	if (other && translate_ingress(other, &tuple, &to, v4) != NO_DIRECTION)
		return may_share_original(flow, other) ? 0 : added;
	there = find_entry(&tuple, ENTRY_WIRE, v4);
	if (there && *there == led)
		remove_entry(&tuple, ENTRY_WIRE, v4);
	return add_entry(&tuple, ENTRY_WIRE, number, v4);
}

GLOBAL int add_original_entry4(__u32 number)
{
	return add_original_entry(number, true);
}

GLOBAL int add_original_entry6(__u32 number)
{
	return add_original_entry(number, false);
}

/* Takes out what was put in of a flow that cannot be opened, and frees its record. */
INLINE void undo_open(const struct scratch *scratch, struct flow *flow, bool is_through, bool v4)
{
	struct tuple tuple;

	if (is_through) {
		stack_reply_tuple(&tuple, flow);
		remove_entry(&tuple, ENTRY_TRANSLATED, v4);
	}
	if (flow->nat_port) {
		snat_reply_tuple(&tuple, flow);
		remove_entry(&tuple, ENTRY_WIRE, v4);
	}
	uncount_flow(flow);
	flow->serial = 0;
	flow->state = FLOW_FREE;
	release_flow(scratch->number);
}

/* Fills in what a flow says before any packet can find it. */
INLINE void fill_flow(struct flow *flow, const struct scratch *scratch, __u32 now, bool v4)
{
	const struct tuple *tuple = &scratch->packet.tuple;

	flow->serial = 0;
	copy_source(flow, tuple);
	copy_address(flow->backend, scratch->backend.address);
	flow->backend_port = scratch->backend.port;
	flow->state = FLOW_OPENING;
	flow->client_flags = (is_connection_oriented(tuple->transport) ? FLOW_SYN_SEEN : 0) | scratch->affinity_flag |
			     scratch->reply_flag;
	flow->backend_flags = FLOW_COUNTED | scratch->decap_flag;
	flow->v4 = v4;
	flow->unacked = UNACKED_NOTHING;
	flow->port_and_share = scratch->port_index | scratch->share << FLOW_SHARE_AT;
	flow->seen = flow->began = now;
	count_flow(scratch->share, 1);
}

INLINE __u32 new_serial(void)
{
	return bpf_get_prandom_u32() | 1;
}

/*
 * Takes back what was put in of a flow, and returns `why`. Unless another flow had the place, the entries found no
 * room: then some is made.
 */
INLINE int abort_open(struct scratch *scratch, struct flow *flow, bool is_through, int why, bool v4)
{
	undo_open(scratch, flow, is_through, v4);
	if (why != -EEXIST)
		evict_one(scratch, seconds());
	return why;
}

/* What became of a flow that was to be opened. */
enum open_result { OPEN_OK, OPEN_EXISTS, OPEN_NO_ROOM, OPEN_NO_PORT, OPEN_NO_ADDRESS, OPEN_NOT_LOCAL, OPEN_NOT_REMOTE };

/*
 * Whether the backend is one of this node, and answers leave for the client by a device at which they are translated.
 * For a flow that came by another node: it goes to no third one, and is not answered past this one. A virtual switch
 * leads to other nodes too, but what is routed to it from outside is for a pod of this one.
 */
INLINE bool is_local_to_outside(struct __sk_buff *skb, const struct flow *flow, bool v4)
{
	__u32 there = lookup_egress(skb, flow->client, flow->backend, flow->client_port, flow->backend_port,
				    flow->transport, v4);
	__u32 back = lookup_egress(skb, flow->backend, flow->client, flow->backend_port, flow->client_port,
				   flow->transport, v4);
	const struct device *device = bpf_map_lookup_elem(&devices, &there);

	if (there == EGRESS_UNKNOWN || (device && leads_outside(device) && !(device->flags & DEVICE_SWITCH) &&
					!is_local_pod(device, flow->backend, v4)))
		return false;
	device = bpf_map_lookup_elem(&devices, &back);
	return device && leads_outside(device) && !is_local_pod(device, flow->client, v4);
}

GLOBAL int is_local_to_outside4(struct __sk_buff *skb, __u32 number)
{
	const struct flow *flow = get_flow(number);

	return flow && is_local_to_outside(skb, flow, true);
}

GLOBAL int is_local_to_outside6(struct __sk_buff *skb, __u32 number)
{
	const struct flow *flow = get_flow(number);

	return flow && is_local_to_outside(skb, flow, false);
}

/* Whether a flow that came by another node is one for this node. */
INLINE bool is_decap_local(struct __sk_buff *skb, const struct scratch *scratch, struct flow *flow, bool v4)
{
	const __u32 none[4] = {};

	copy_address(flow->nat, none);
	flow->nat_port = 0;
	return v4 ? is_local_to_outside4(skb, scratch->number) : is_local_to_outside6(skb, scratch->number);
}

/* Gives a flow a record of its own, and the address with which the client goes on. `OPEN_OK`: so far. */
INLINE enum open_result init_flow(struct __sk_buff *skb, struct scratch *scratch, bool v4)
{
	__u32 now = seconds();
	struct flow *flow = allocate_flow(scratch, now);

	if (!flow)
		return OPEN_NO_ROOM;
	fill_flow(flow, scratch, now, v4);
	mark_backend_port(flow->backend_port);
	if (UNLIKELY(scratch->decap_flag)) {
		if (is_decap_local(skb, scratch, flow, v4))
			return OPEN_OK;
	} else if (LIKELY(set_snat_address(skb, scratch, flow, v4)) &&
		   (LIKELY(!scratch->adopts) || is_encapsulated(flow))) {
		return OPEN_OK;
	}
	undo_open(scratch, flow, false, v4);
	if (UNLIKELY(scratch->adopts))
		return OPEN_NOT_REMOTE;
	return scratch->decap_flag ? OPEN_NOT_LOCAL : OPEN_NO_ADDRESS;
}

/*
 * Gives a flow its ports, and with them puts in the ways back. They come before the way there, so no packet goes where
 * its answer would not find back.
 */
INLINE int alloc_ports(const struct scratch *scratch, bool v4)
{
	struct flow *flow = get_flow(scratch->number);
	int added = 0;

	if (!flow)
		return -ENOENT;
	if (has_address(flow->nat))
		added = alloc_snat(scratch, flow, v4);
	return added ? added : alloc_client_port(scratch, flow, v4);
}

/* Puts in the way there, if the flow has its ports. */
INLINE enum open_result add_flow(struct scratch *scratch, int added, bool v4)
{
	struct flow *flow = get_flow(scratch->number);
	__u32 serial = new_serial();

	if (!flow)
		return OPEN_NO_ROOM;
	if (added)
		return abort_open(scratch, flow, false, added, v4) == -EEXIST ? OPEN_NO_PORT : OPEN_NO_ROOM;
	*(volatile __u32 *)&flow->serial = serial;
	added = v4 ? add_original_entry4(scratch->number) : add_original_entry6(scratch->number);
	if (added)
		return abort_open(scratch, flow, true, added, v4) == -EEXIST ? OPEN_EXISTS : OPEN_NO_ROOM;
	queue_opening(scratch->number, serial);
	count_packet(COUNT_FLOWS);
	return OPEN_OK;
}

/* --- The flow. --- */

/* Sends the first packet on, as the backend gets it. A packet that cannot be rewritten leaves no flow behind. */
INLINE enum step forward_first(struct __sk_buff *skb, struct scratch *scratch, bool v4)
{
	struct flow *flow = get_flow(scratch->number);
	struct tuple to = scratch->packet.tuple;

	if (!flow)
		return STEP_DROP;
	to.source.port = flow->translated_port;
	set_endpoint(&to.destination, flow->backend, flow->backend_port);
	if (nat_packet(skb, &scratch->packet, &to, v4)) {
		set_forward_mark(skb);
		mark_translated(skb);
		return STEP_PASS;
	}
	count_packet(COUNT_UNWRITABLE);
	scratch->victim = scratch->number;
	scratch->victim_serial = READ_ONCE(flow->serial);
	return DROP_AND_END_FLOW;
}

/* Drops the packet of a client that gets no flow, and reports why. */
INLINE enum step drop_unopened(const struct scratch *scratch, enum open_result why, bool v4)
{
	struct lb_request request = { .port_index = scratch->port_index, .share = scratch->share };

	set_request(&request, &scratch->packet.tuple, v4);
	if (why == OPEN_NO_ROOM)
		return drop_client(scratch, &request, REASON_FLOWS, COUNT_FULL);
	if (UNLIKELY(why == OPEN_NOT_LOCAL)) {
		count_packet(COUNT_NOT_LOCAL);
		return STEP_DROP;
	}
	if (UNLIKELY(why == OPEN_NOT_REMOTE)) {
		count_packet(COUNT_MIDSTREAM);
		save_unknown_segment(&scratch->packet, false);
		return STEP_PASS;
	}
	return drop_client(scratch, &request, why == OPEN_NO_ADDRESS ? REASON_ADDRESS : REASON_PORTS, COUNT_NO_PORT);
}

/* Begins the flow of a client that has got its backend. */
INLINE enum step open_flow(struct __sk_buff *skb, struct scratch *scratch, bool v4)
{
	enum open_result result = init_flow(skb, scratch, v4);

	return LIKELY(result == OPEN_OK) ? STEP_COMMIT_FLOW : drop_unopened(scratch, result, v4);
}

INLINE bool is_flow_encapsulated(const struct scratch *scratch)
{
	const struct flow *flow = get_flow(scratch->number);

	return flow && is_encapsulated(flow);
}

/* Says whether the flow has got all that it needs for its first packet. */
INLINE enum step commit_flow(struct scratch *scratch, int added, bool v4)
{
	enum open_result result = add_flow(scratch, added, v4);

	if (UNLIKELY(scratch->adopts) && result == OPEN_OK)
		count_packet(COUNT_ADOPTED);
	if (LIKELY(result == OPEN_OK))
		return UNLIKELY(scratch->may_encap) && is_flow_encapsulated(scratch) ? STEP_ENCAP : STEP_FORWARD_FIRST;
	return result == OPEN_EXISTS ? STEP_INGRESS_LOOKUP : drop_unopened(scratch, result, v4);
}

#endif
