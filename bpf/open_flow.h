/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Opens the flow of a new client: its record, its SNAT address, its ports and its entries.
 *
 * Owns: the choice of the SNAT address, and the order in which a flow is built. Reads: the FIB, `devices`, the scratch
 * map. Writes: `flow_table`, `entries4/6`, `opening_flows`.
 *
 * The entries of replies come before the entry of the client's packets. A flow keeps its tuple until it is closed, also
 * if another flow needs it. If no record is free, evict.h picks the flow that ends.
 */
#ifndef HOLDFAST_OPEN_FLOW_H
#define HOLDFAST_OPEN_FLOW_H

#include "dsr.h"
#include "evict.h"
#include "fib.h"
#include "select_backend.h"
#include "snat.h"

/* --- The SNAT address. --- */

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
 * The egress device to the flow's backend, for a packet of the same ingress device. `flags`: the ingress device's. 0:
 * there is no route now. If the kernel does not tell the device, it is the ingress device, which has an address of this
 * node, too.
 */
INLINE __u32 egress_to_backend(struct __sk_buff *skb, const struct flow *flow, __u32 class, __u32 flags,
			       bool *is_unknown, bool v4)
{
	struct tuple tuple;
	__u32 egress;

	set_endpoint(&tuple.source, flow->client, flow->client_port);
	set_endpoint(&tuple.destination, flow->backend, flow->backend_port);
	tuple.transport = flow->transport;
	egress = lookup_egress_cached(skb, &tuple, class, skb->ifindex, flags, v4);
	*is_unknown = egress == EGRESS_UNKNOWN;
	return *is_unknown ? skb->ifindex : egress;
}

/* The device whose address the client gets. 0: the client keeps its own. */
INLINE __u32 snat_device(struct __sk_buff *skb, const struct scratch *scratch, const struct flow *flow,
			 bool *is_unknown, bool v4)
{
	if (scratch->from_pod)
		return is_own_backend(flow) ? scratch->device : 0;
	return egress_to_backend(skb, flow, traffic_class(skb, &scratch->packet, v4), scratch->flags, is_unknown, v4);
}

/* Whether the device leads to other nodes or to outside clients. */
INLINE bool leads_outside(const struct device *device)
{
	return device->flags & (DEVICE_OUTER | DEVICE_BACKENDS);
}

/* Whether the device's SNAT address is one by which other nodes recognise this node. */
INLINE bool has_dsr_address(const struct device *device, bool v4)
{
	return v4 ? is_dsr_node4(device->address4) :
		    is_dsr_node6(device->address6[0], device->address6[1], device->address6[2], device->address6[3]);
}

/* The difference between the first bits of two words. 0: they are equal. */
INLINE __u64 prefix_diff(__u32 address, __u32 other, __u32 bits)
{
	return (__u64)bpf_ntohl(address ^ other) >> (32 - bits);
}

/* How many of an address' first `bits` bits lie in its word number `at`. Without branches, as is_reversed(). */
INLINE __u32 prefix_bits_in_word(__u32 bits, __u32 at)
{
	return min_u32(max_u32(bits, 32 * at) - 32 * at, 32);
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
 * Whether the backend is a pod of this node behind a device that may lead to pods of other nodes, too, as Cilium's
 * does. The pod has to see the client's own address: its reply arrives by another device, whose program would not
 * restore that address.
 */
INLINE bool is_local_pod(const struct device *device, const __u32 *backend, bool v4)
{
	return v4 ? is_local_pod4(device, backend[3]) : is_local_pod6(device, backend);
}

/* Whether the client keeps its address on the path by that device. */
INLINE bool keeps_client_address(const struct device *device, const struct flow *flow, __u32 is_local, bool v4)
{
	return is_local_pod(device, flow->backend, v4) || (is_local && device->flags & DEVICE_SWITCH);
}

/*
 * Sets the SNAT address, if the backend must not see the client's: a backend of another node has to reply to this node.
 * A service with policy Local has backends here alone. A reply to a pod's address returns here from anywhere, but a pod
 * that is its own backend would drop a packet from its own address. `false`: the device has no SNAT address, so no
 * reply would return.
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
	if (has_dsr_from && UNLIKELY(scratch->may_encap) && !is_unknown && !uses_ipsec(skb) &&
	    has_dsr_address(device, v4)) {
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
 * Whether a new flow of the client would get another SNAT address: by another route, by a route where there was none,
 * or by a new address of the device. Without a route the stack tells the client. Packets of pods and decapsulated
 * packets never change.
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
	/* At a virtual switch only a client of policy Local has kept its own address. */
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
 * Whether a client needs another SNAT address, because no backend replies to the one that it has. While a backend
 * replies, the address is right. An established connection keeps its address until it ends, and only its two ends know
 * when.
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

/* --- The record and the entries. --- */

/*
 * Whether a flow goes without an original entry, because another flow has it: see dsr_decap.h. It is found by the
 * client's own port.
 */
INLINE bool may_share_original(const struct flow *flow, const struct flow *other)
{
	return flow->backend_flags & FLOW_DECAP && flow->translated_port == flow->client_port &&
	       is_backend_remote(other);
}

/*
 * Adds the original entry, which comes last. A process that was killed while it ended a flow may have left a stale
 * entry there. This replaces it, or it would lock the client out for good.
 */
INLINE int add_original_entry(__u32 number, bool v4)
{
	struct flow *flow = get_flow(number), *other;
	struct tuple tuple, to;
	__u32 *entry, holder;
	int added;

	if (!flow)
		return -ENOENT;
	original_tuple(&tuple, flow);
	added = add_entry(&tuple, ENTRY_WIRE, number, v4);
	if (LIKELY(added != -EEXIST))
		return added;
	entry = find_entry(&tuple, ENTRY_WIRE, v4);
	holder = entry ? *entry : 0;
	other = get_flow(holder);
	if (!entry)
		return added;
	if (other && translate_ingress(other, &tuple, &to, v4) != NO_DIRECTION)
		return may_share_original(flow, other) ? 0 : added;
	entry = find_entry(&tuple, ENTRY_WIRE, v4);
	if (entry && *entry == holder)
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

/* Removes the entries of a flow that cannot be opened, and frees its record. */
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

/* Fills a record in, before any packet can find it. */
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
 * Undoes the opening of a flow, and returns `error`. Unless another flow has the tuple, the maps of entries are full,
 * so this evicts a flow.
 */
INLINE int abort_open(struct scratch *scratch, struct flow *flow, bool is_through, int error, bool v4)
{
	undo_open(scratch, flow, is_through, v4);
	if (error != -EEXIST)
		evict_one(scratch, seconds());
	return error;
}

/* The result of opening a flow. */
enum open_result { OPEN_OK, OPEN_EXISTS, OPEN_NO_ROOM, OPEN_NO_PORT, OPEN_NO_ADDRESS, OPEN_NOT_LOCAL, OPEN_NOT_REMOTE };

/*
 * Whether the backend is on this node, and replies leave for the client by a device that translates them. A
 * decapsulated flow needs both: it goes to no third node, and its reply passes this node. A virtual switch leads to
 * other nodes, too, but what outside hosts send by it is for a pod of this node.
 */
INLINE bool is_local_to_outside(struct __sk_buff *skb, const struct flow *flow, bool v4)
{
	__u32 to_backend = lookup_egress(skb, flow->client, flow->backend, flow->client_port, flow->backend_port,
					 flow->transport, v4);
	__u32 to_client = lookup_egress(skb, flow->backend, flow->client, flow->backend_port, flow->client_port,
					flow->transport, v4);
	const struct device *device = bpf_map_lookup_elem(&devices, &to_backend);

	if (to_backend == EGRESS_UNKNOWN || (device && leads_outside(device) && !(device->flags & DEVICE_SWITCH) &&
					     !is_local_pod(device, flow->backend, v4)))
		return false;
	device = bpf_map_lookup_elem(&devices, &to_client);
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

/* Whether a decapsulated flow belongs on this node. */
INLINE bool is_decap_local(struct __sk_buff *skb, const struct scratch *scratch, struct flow *flow, bool v4)
{
	const __u32 none[4] = {};

	copy_address(flow->nat, none);
	flow->nat_port = 0;
	return v4 ? is_local_to_outside4(skb, scratch->number) : is_local_to_outside6(skb, scratch->number);
}

/* Allocates a flow's record, and sets its SNAT address. OPEN_OK: so far. */
INLINE enum open_result init_flow(struct __sk_buff *skb, struct scratch *scratch, bool v4)
{
	__u32 now = seconds();
	struct flow *flow = allocate_flow(scratch, now);

	if (!flow)
		return OPEN_NO_ROOM;
	fill_flow(flow, scratch, now, v4);
	mark_backend_port(flow->backend_port);
	if (has_dsr_from && UNLIKELY(scratch->decap_flag)) {
		if (is_decap_local(skb, scratch, flow, v4))
			return OPEN_OK;
	} else if (LIKELY(set_snat_address(skb, scratch, flow, v4)) &&
		   (!has_dsr_from || LIKELY(!scratch->is_adopted) || is_encapsulated(flow))) {
		return OPEN_OK;
	}
	undo_open(scratch, flow, false, v4);
	if (has_dsr_from && UNLIKELY(scratch->is_adopted))
		return OPEN_NOT_REMOTE;
	return has_dsr_from && scratch->decap_flag ? OPEN_NOT_LOCAL : OPEN_NO_ADDRESS;
}

/*
 * Allocates the flow's ports, and with them adds the entries of replies. They come before the original entry, so each
 * packet's reply finds its flow.
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

/* Adds the original entry, if the flow has its ports. */
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

/* --- The steps. --- */

/* Sends the first packet to the backend. If the packet cannot be written, its flow ends. */
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

/* Drops the packet of a client without a flow, and reports the reason. */
INLINE enum step drop_unopened(const struct scratch *scratch, enum open_result result, bool v4)
{
	struct lb_request request = { .port_index = scratch->port_index, .share = scratch->share };

	set_request(&request, &scratch->packet.tuple, v4);
	if (result == OPEN_NO_ROOM)
		return drop_client(scratch, &request, REASON_FLOWS, COUNT_FULL);
	if (UNLIKELY(result == OPEN_NOT_LOCAL)) {
		count_packet(COUNT_NOT_LOCAL);
		return STEP_DROP;
	}
	if (UNLIKELY(result == OPEN_NOT_REMOTE)) {
		count_packet(COUNT_MIDSTREAM);
		save_unknown_segment(false);
		return STEP_PASS;
	}
	return drop_client(scratch, &request, result == OPEN_NO_ADDRESS ? REASON_ADDRESS : REASON_PORTS, COUNT_NO_PORT);
}

/* Opens the flow of a client with a backend, except for its ports. */
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

/* Completes the flow, and names the step for its first packet. */
INLINE enum step commit_flow(struct scratch *scratch, int added, bool v4)
{
	enum open_result result = add_flow(scratch, added, v4);

	if (has_dsr_from && UNLIKELY(scratch->is_adopted) && result == OPEN_OK)
		count_packet(COUNT_ADOPTED);
	if (LIKELY(result == OPEN_OK))
		return has_dsr_from && UNLIKELY(scratch->may_encap) && is_flow_encapsulated(scratch) ?
			       STEP_ENCAP :
			       STEP_FORWARD_FIRST;
	return result == OPEN_EXISTS ? STEP_INGRESS_LOOKUP : drop_unopened(scratch, result, v4);
}

#endif
